"""The slots of a step in columns: which kinds of slots there are, and of which kind each is.

A step of half a million slots has some thousand kinds, so what looks at all slots does so with NumPy; who asks for one
gets it as a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.plan.instructions import Listed, Slot


class SlotTable(Sequence[Slot]):
    """Slots in columns: slot i is `kinds[kind_of[i]]`. Kinds that are equal and not one object are two."""

    def __init__(self, kinds: Sequence[Slot], kind_of: Ints) -> None:
        """Shapes: `kind_of` [slots]."""
        self.kinds = tuple(kinds)
        self.kind_of = kind_of

    @classmethod
    def of(cls, slots: Sequence[Slot]) -> SlotTable:
        """Returns a table of slots: themselves if they are one."""
        if isinstance(slots, SlotTable):
            return slots
        number: dict[int, int] = {}  # by identity, which is quick, and in the order of the slots
        kind_of = np.array([number.setdefault(id(slot), len(number)) for slot in slots], dtype=np.int64)
        first = np.unique(kind_of, return_index=True)[1]
        return cls([slots[at] for at in first.tolist()], kind_of)

    @cached_property
    def ranks(self) -> Ints:
        """The rank of each slot."""
        found: Ints = np.array([slot.rank for slot in self.kinds], dtype=np.int64)[self.kind_of]
        return found

    def taken(self, slots: Ints) -> SlotTable:
        """Returns the slots of some numbers, in that order; kinds stand in the order of their first slots."""
        kind_of = self.kind_of[slots]
        first = np.full(len(self.kinds), len(kind_of))
        first[kind_of[::-1]] = np.arange(len(kind_of))[::-1]
        used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(kind_of))]
        number = np.empty(len(self.kinds), dtype=np.int64)
        number[used] = np.arange(len(used))
        return SlotTable([self.kinds[kind] for kind in used.tolist()], number[kind_of])

    def extended(self, slots: Sequence[Slot]) -> SlotTable:
        """Returns a table with further slots behind these."""
        more = SlotTable.of(slots)
        return SlotTable((*self.kinds, *more.kinds), np.concatenate([self.kind_of, len(self.kinds) + more.kind_of]))

    def __len__(self) -> int:
        return len(self.kind_of)

    @overload
    def __getitem__(self, at: int) -> Slot: ...

    @overload
    def __getitem__(self, at: slice) -> SlotTable: ...

    def __getitem__(self, at: int | slice) -> Slot | SlotTable:
        return self.taken(np.arange(len(self))[at]) if isinstance(at, slice) else self.kinds[self.kind_of[at]]

    def __iter__(self) -> Iterator[Slot]:
        return map(self.kinds.__getitem__, self.kind_of.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def slot_ranks(step: Listed) -> Ints:
    """Returns the rank of each slot of a step, or of a part of one."""
    return SlotTable.of(step.slots).ranks
