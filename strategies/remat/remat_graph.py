"""What a step keeps from its forward pass for its backward pass: which ops made it, from what, and who reads it again.

The *turn* is the op of a micro-batch at which most is held of what leads to products later; what comes before it is the
forward pass. What is only waited for by sums and updates says nothing of the turn, nor does what follows from a
barrier: that may be a recomputation. The *stash* is what is made before the turn and read behind it.

A *unit* is an op that writes memory, or a whole loop. Views and ops that are computed inside their readers
(`rhino.ir.graph.graph.materialized`) are no units: who reads them reads, in truth, what they are made of. Scalars,
arguments, and what follows from constants and counters alone are at hand wherever they are needed, and count nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import BARRIER, WHILE, Graph, Loop, materialized
from rhino.ir.graph.host_values import values_on_host
from rhino.ir.plan.stages import VirtualStages
from rhino.strategies.cost.cost_model import PRODUCTS
from rhino.strategies.remat.waiting_values import waiting_values
from rhino.strategies.structure.training_phases import TrainingPhases, parts_of

_COLLECTIVES: Final = "all_gather all_reduce all_to_all collective_broadcast collective_permute reduce_scatter"
_ONCE: Final = "rng custom_call infeed outfeed send recv after_all"
ONCE: Final = frozenset(
    {f"stablehlo.{name}" for name in f"{_COLLECTIVES} {_ONCE}".split()} | {BARRIER, "sdy.manual_computation"}
)
"""Ops that are never repeated: a second run may give something else, or takes what nobody knows."""


@dataclass(frozen=True, slots=True)
class Unit:
    """An op of the forward pass that writes memory, or a loop of it.

    `reads` and `makes` are values of the forward pass in memory.
    """

    op: int
    stage: int
    seconds: float
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    may_repeat: bool


@dataclass(frozen=True, slots=True, eq=False)
class Stash:
    """The forward pass of a micro-batch, its ops in program order.

    `num_bytes` has all values in memory that it makes, `late` those of the stash. `saved` are kept in any case: what is
    returned or summed up, what the user's own recomputation starts from, what cannot be made again. `turn` is the
    number of the last op of the forward pass. `waiting` has the values that may wait in host memory, and in how many
    parts each goes there, `host_s` the seconds of its way there and back: of none where none is to.
    """

    units: tuple[Unit, ...]
    num_bytes: Mapping[int, int]
    late: frozenset[int]
    saved: frozenset[int]
    turn: int
    host_s: Mapping[int, float] = field(default_factory=dict)
    waiting: Mapping[int, int] = field(default_factory=dict)

    def stage_of(self) -> dict[int, int]:
        """Returns the stage that makes each value."""
        return {value: unit.stage for unit in self.units for value in unit.makes}

    def with_host(self, host_s: Callable[[float], float]) -> Stash:
        """Returns the stash where what may wait in host memory is to; `host_s` is what a transfer of bytes takes."""
        found = {v: 2 * parts * host_s(self.num_bytes[v] / parts) for v, parts in self.waiting.items()}
        return replace(self, host_s=found)

    def without(self, ops: Container[int]) -> Stash:
        """Returns the stash without what some ops make, which is kept in any case."""
        own = frozenset(value for unit in self.units if unit.op in ops for value in unit.makes)
        units = tuple(replace(unit, may_repeat=unit.may_repeat and unit.op not in ops) for unit in self.units)
        return replace(self, units=units, late=self.late - own, saved=self.saved | own)

    def total_bytes(self, stage: int) -> int:
        """Returns the bytes of the stash that one stage makes, for one micro-batch."""
        return sum(
            self.num_bytes[value]
            for unit in self.units
            if unit.stage == stage
            for value in unit.makes
            if value in self.late
        )


def stash_of(graph: Graph, parts: TrainingPhases, stages: Sequence[int], num_stages: int) -> Stash:
    """Returns the stash of a program; `stages` are the virtual stages of its ops [ops], all 0 where it is not cut."""
    return _Reader(graph, parts, stages, VirtualStages(num_stages)).stash()


def saved_bytes(graph: Graph, loop: Loop | None) -> int:
    """Returns the bytes of the stash, unsplit, that may wait in host memory; `loop` is that over micro-batches."""
    stash = stash_of(graph, parts_of(graph, loop, np.zeros(graph.num_ops)), [0] * graph.num_ops, 1)
    return sum(stash.num_bytes[value] for value in stash.waiting if value in stash.late)


class _Reader:
    def __init__(self, graph: Graph, parts: TrainingPhases, stages: Sequence[int], virtual: VirtualStages) -> None:
        self.graph, self.parts, self.stages, self.virtual = graph, parts, stages, virtual
        self.first, self.end = (0, graph.num_ops) if parts.loop is None else (parts.loop.op + 1, parts.loop.end)
        self.value_op: list[int] = graph.value_op.tolist()
        self.unit_of = list(range(graph.num_ops))
        self.last_of = list(range(graph.num_ops))
        for loop in graph.loops:  # outer loops first
            if self.first <= loop.op < self.end and self.unit_of[loop.op] == loop.op:
                self.unit_of[loop.op : loop.end + 1] = [loop.op] * (loop.end + 1 - loop.op)
                self.last_of[loop.op] = loop.end
        self.kept = {
            value: int(start)
            for loop in graph.loops
            for value, start, kept in zip(
                graph.results(loop.op), graph.operands(loop.op).tolist(), loop.kept, strict=True
            )
            if kept
        }
        self.stands: list[bool] = materialized(graph).tolist()
        self.sources: list[tuple[int, ...]] = [()] * graph.num_values
        self.varies = [op < self.first or op >= self.end for op in self.value_op]
        self.follows_barrier = [False] * graph.num_values
        self.alike = list(range(graph.num_values))
        """A value that is computed in the same way, but for barriers: itself, or an earlier one [values]."""
        self.known: dict[tuple[int, ...], int] = {}
        self.made_again: set[int] = set()
        self.reads: dict[int, tuple[int, ...]] = {}
        self.is_unit = [False] * graph.num_ops
        for op in range(self.first, self.end):
            self._read(op)

    def _read(self, op: int) -> None:
        unit = self.unit_of[op]
        read = self._sources(op, unit)
        if unit != op:
            self.reads[unit] = tuple(dict.fromkeys((*self.reads[unit], *read)))
            return
        cls, results = self.graph.cls(op), self.graph.results(op)
        operands = self.graph.operands(op).tolist()
        varies = not self.parts.constant[op] and any(self.varies[value] for value in operands)
        follows = cls.name == BARRIER or any(self.follows_barrier[value] for value in operands)
        for value in results:
            self.varies[value], self.follows_barrier[value] = varies, follows
        self._compare(op, operands)
        free = cls.free or bool(self.parts.constant[op])
        self.is_unit[op] = cls.name == WHILE or (not free and any(self.stands[value] for value in results))
        if self.is_unit[op]:
            self.reads[op] = read
        for position, value in enumerate(results):
            if free or not self.graph.type_of(value).shape:
                continue
            if value in self.kept:
                self.sources[value] = self.sources[self.kept[value]]
            elif self.is_unit[op]:
                self.sources[value] = (value,)
            else:
                self.sources[value] = self.sources[operands[position]] if cls.name == BARRIER else read

    def _compare(self, op: int, operands: Sequence[int]) -> None:
        """Notes which values an op makes that are there already."""
        key = (int(self.graph.op_class[op]), *(self.alike[value] for value in operands))
        for position, value in enumerate(self.graph.results(op)):
            if self.graph.cls(op).name == BARRIER:
                self.alike[value] = self.alike[operands[position]]
            elif operands:
                self.alike[value] = self.known.setdefault((*key, -1 - position), value)
                if self.alike[value] != value and self.follows_barrier[value]:
                    self.made_again.add(self.alike[value])

    def _sources(self, op: int, unit: int) -> tuple[int, ...]:
        """Returns the values in memory that an op reads of what others make, behind ops that are computed inside it."""
        outside = (
            value
            for value in self.graph.operands(op).tolist()
            if not unit <= self.value_op[value] <= self.last_of[unit]
        )
        return tuple(dict.fromkeys(source for value in outside for source in self.sources[value]))

    def stash(self) -> Stash:
        """Returns the stash."""
        ops = [op for op in range(self.first, self.end) if self.is_unit[op]]
        returned = self.graph.returns if self.parts.loop is None else self.graph.operands(self.end).tolist()
        at_end = {source for value in returned for source in self.sources[value]}
        readers: dict[int, list[int]] = {}
        for op in ops:
            for value in self.reads[op]:
                readers.setdefault(value, []).append(op)
        turn = self._turn(ops, readers)
        early = [op for op in ops if op <= turn]
        makes = {
            op: tuple(value for value in self.graph.results(op) if self.sources[value] == (value,)) for op in early
        }
        values = [value for op in early for value in makes[op]]
        late = frozenset(
            value for value in values if value not in at_end and any(op > turn for op in readers.get(value, ()))
        )
        saved = at_end | self._started_from(turn)
        for op in early:
            if not self._may_repeat(op):
                saved.update(makes[op])
            else:
                saved.update(
                    value
                    for value in makes[op]
                    if any(r > turn and not self._mirrors(op, r) for r in readers.get(value, ()))
                )
        seconds = np.add.accumulate(np.concatenate([[0.0], self.parts.seconds]))
        units = tuple(
            Unit(
                op,
                self.stages[op],
                float(seconds[self.last_of[op] + 1] - seconds[op]),
                tuple(value for value in self.reads[op] if self.value_op[value] <= turn),
                makes[op],
                self._may_repeat(op),
            )
            for op in early
        )
        there = values_on_host(self.graph)
        sizes = {value: 0 if value in there else self.graph.type_of(value).num_bytes for value in values}
        mirrored = [
            value
            for op in early
            for value in makes[op]
            if value not in at_end and all(r <= turn or self._mirrors(op, r) for r in readers.get(value, ()))
        ]
        waiting = waiting_values(self.graph, [value for value in mirrored if sizes[value]], turn)
        return Stash(units, sizes, late, frozenset(saved), turn, waiting=waiting)

    def _turn(self, ops: Sequence[int], readers: Mapping[int, Sequence[int]]) -> int:
        """Returns the op after which most is alive of what is read on the way to a product or a loop.

        Of equal ops it is the last.
        """
        works = {op: self.graph.cls(op).name in PRODUCTS or self.graph.cls(op).name == WHILE for op in ops}
        for op in reversed(ops):
            works[op] |= any(works[reader] for value in self.graph.results(op) for reader in readers.get(value, ()))
        change = np.zeros(self.graph.num_ops + 1, dtype=np.int64)
        for value, read_by in readers.items():
            last = max((op for op in read_by if works[op]), default=-1)
            if last >= 0 and not self.follows_barrier[value]:
                change[self.value_op[value]] += self.graph.type_of(value).num_bytes
                change[last] -= self.graph.type_of(value).num_bytes
        alive: Ints = np.cumsum(change)
        return int(np.argmax(alive)) if alive.any() else -1

    def _started_from(self, turn: int) -> set[int]:
        """Returns the values behind the barriers of the backward pass.

        A recomputation that is there already starts from these.
        """
        barriers = [op for op in range(max(turn + 1, self.first), self.end) if self.graph.cls(op).name == BARRIER]
        return {
            source for op in barriers for value in self.graph.operands(op).tolist() for source in self.sources[value]
        }

    def _may_repeat(self, op: int) -> bool:
        """Says whether an op may run again.

        One that reads constants alone would be merged with the first; what follows from a barrier stands where the user
        wants it, and what runs again behind one does so already.
        """
        inside = range(op, self.last_of[op] + 1)
        read = [value for one in inside for value in self.graph.operands(one).tolist()]
        once = any(self.graph.cls(one).name in ONCE for one in inside) or any(
            self.follows_barrier[value] for value in read
        )
        once |= any(value in self.made_again for value in self.graph.results(op))
        return not once and any(self.varies[value] for value in read)

    def _mirrors(self, op: int, reader: int) -> bool:
        """Says whether a reader in the backward pass is of the same stage as an op of the forward pass."""
        return self.stages[reader] == self.virtual.opposite(self.stages[op])
