"""All that happens to the slots of a step, one slot after another: what reads it, gives it up and writes it, in order.

Before each event a slot is in the state that the last one left which changed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.plan.instruction_list import Group, InstructionList
from rhino.ir.plan.instructions import Global, Step

EMPTY, HELD, FREED, TAKEN, FETCHED, CONSTANT = range(6)
STATES: Final = ("empty", "held", "freed", "taken over", "fetched", "constant")
"""The states of a slot in words."""

READ, GIVE, WRITE = range(3)
"""What an instruction does with a slot, in the order in which it does."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events by slot, then in the list's order.

    Shapes: all [events]. `place` is the instruction and `column` which of its slots of the role it is; the slot is in
    state `before` since instruction `since` (-1 is from the start), and in `after` if the event changes it, else
    that is EMPTY.
    """

    slot: Ints
    place: Ints
    role: Ints
    column: Ints
    after: Ints
    before: Ints
    since: Ints

    @classmethod
    def of(cls, step: Step, known: InstructionList[Global]) -> Events:
        """Returns the events of a list whose every slot and program is there."""
        sides = [side for group in known.groups for side in _events_of(step, group)]
        none = _side(np.zeros((0, 0), dtype=np.int64), np.zeros(0, dtype=np.int64), READ, EMPTY)
        every = [np.concatenate(own) for own in zip(none, *sides, strict=True)]
        key = (every[0] * (len(known) + 1) + every[1]) * 3 + every[2]
        order = np.argsort(key, kind="stable")
        slot, place, role, column, after = (one[order] for one in every)
        changes = np.maximum.accumulate(np.where(after != EMPTY, np.arange(len(slot)), -1))
        last = np.concatenate([[-1], changes[:-1]]) if len(slot) else changes
        is_known = (last >= 0) & (slot[last] == slot)
        first = np.full(len(step.slots), EMPTY)
        first[[one for one, _ in step.constants]] = CONSTANT
        before = np.where(is_known, after[last], first[slot])
        return cls(slot, place, role, column, after, before, np.where(is_known, place[last], -1))

    def at_end(self, num_slots: int) -> tuple[Ints, Ints]:
        """Returns the state of each slot in the end, EMPTY where nothing changed it, and since which instruction."""
        state, since = np.full(num_slots, EMPTY), np.full(num_slots, -1)
        changing = np.flatnonzero(self.after != EMPTY)
        is_last = np.ones(len(changing), dtype=bool)
        is_last[:-1] = self.slot[changing[1:]] != self.slot[changing[:-1]]
        ends = changing[is_last]
        state[self.slot[ends]], since[self.slot[ends]] = self.after[ends], self.place[ends]
        return state, since


def _events_of(step: Step, group: Group) -> list[tuple[Ints, ...]]:
    """Returns the events of instructions of one form, by role; each side's by instruction and then by column."""
    places = group.places
    found = [_side(group.reads, places, READ, EMPTY), _side(group.writes, places, WRITE, HELD)]
    match group.form.kind:
        case "run":
            donated = [pair[0] for pair in step.programs[group.form.program].donated]
            taken = [column for column in donated if column < group.form.reads]
            found.append(_side(group.reads[:, taken], places, GIVE, TAKEN))
        case "free":
            found.append(_side(group.others, places, GIVE, FREED))
        case "fetch":
            found.append(_side(group.reads, places, GIVE, FETCHED))
    return found


def _side(slots: Ints, places: Ints, role: int, after: int) -> tuple[Ints, ...]:
    """Returns the columns of the events of slots [places, columns]; small numbers have small types."""
    count, width = slots.size, slots.shape[1]
    return (
        slots.ravel(),
        np.repeat(places, width),
        np.full(count, role, dtype=np.int8),
        np.tile(np.arange(width, dtype=np.int32), len(places)),
        np.full(count, after, dtype=np.int8),
    )
