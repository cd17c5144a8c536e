"""How a step runs when its batch comes in parts, one after the other.

Some of it each part can do alone, and the rest waits for all of them.

The parts are devices of an axis that is time. Along it a value is whole, split along a dim, or partial (the parts'
values add up, or the largest counts), and it belongs to a phase:

    SETUP    it does not depend on the batch, and is whole
    LOOP     each part has its own: split or partial
    APPLY    it follows from what is known when all parts are done, and is whole

`Propagation` decides in program order, by the strategies of the ops (strategies/cost/candidates.py). An op stays in the
loop as long as there is a strategy for what its operands are; partial sums flow on through ops that are linear in them.
Where there is none, the op is in APPLY: partial operands are accumulated before it, split ones stacked. Two things cost
nothing along this axis that cost much between devices:

* A value of SETUP, or of a part's own, is read in slices. What is read in slices alone is computed so, in the loop,
    each part its own (dropout masks, positions).
* What follows from the batch without a product (how many tokens count, say) can be computed whole before the loop as
    well, where the loop needs it whole. `copies` says which.

A loop of the program (a scan over layers) is in one phase with all of its body, and what it carries lies in one way all
the time.

Where a sum over the batch may be one of each part (a mean and a variance for normalizing, how busy experts are), it is
taken in the loop instead of waited for: each part then has a whole value of its own (`Lay.is_own`), as if the whole
batch were copies of that part. What only follows from such values can be of each part as well. What is read behind the
loop is the mean (accumulation_border.py says where that is taken). `statistics` are the sums. Ops that turn them into
what parts have of their own, and that into a share of the mean, are put into the program
(passes/pipeline/part_statistics.py), for which all is decided again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from math import prod
from typing import Final

from rhino.ir.graph.graph import BARRIER, Graph, Loop, OpClass
from rhino.ir.graph.spec import PARTIAL, REPLICATED, Spec, split_dim
from rhino.strategies.cost.candidates import REPLICATE, State, reads_halos, replicate, strategies
from rhino.strategies.cost.cost_model import PRODUCTS


class Phase(IntEnum):
    """When a value is known, or an op runs; later phases read earlier ones."""

    SETUP = 0
    LOOP = 1
    APPLY = 2


@dataclass(frozen=True, slots=True)
class Lay:
    """How a value lies along the time axis; `monoid` joins the parts of a partial one."""

    phase: Phase
    spec: Spec = REPLICATED
    monoid: str = "add"

    @property
    def is_split(self) -> bool:
        """Says whether each part has a block of it."""
        return split_dim(self.spec) is not None

    @property
    def is_partial(self) -> bool:
        """Says whether the parts' values are to be joined."""
        return self.spec == PARTIAL

    @property
    def is_own(self) -> bool:
        """Says whether each part has a whole value of its own."""
        return self.phase == Phase.LOOP and self.spec == REPLICATED


SETUP: Final = Lay(Phase.SETUP)
APPLY: Final = Lay(Phase.APPLY)

_OTHERS = "scatter select_and_scatter custom_call cholesky triangular_solve fft"
HEAVY: Final = PRODUCTS | {f"stablehlo.{name}" for name in _OTHERS.split()} | {"sdy.manual_computation"}
"""Ops that are a step's work.

What follows from the batch through one of them is not computed twice, nor in one piece.
"""


@dataclass(frozen=True, slots=True)
class Meeting:
    """An op that reads a block of the batch and needs `value`, its operand number `operand`, whole.

    The parts arise at op `source`. It is -1 where the value is split, along `dim`: each part has a block, and needs
    those of the others. An op that reads no block is in a loop that does.
    """

    op: int
    operand: int
    value: int
    source: int
    dim: int | None = None


@dataclass(frozen=True, slots=True)
class Marks:
    """Ops of a program that stand there for the parts' sake.

    `copies` compute whole what is computed in parts too. Of sums that may be each part's own, `may_be_own` make them,
    `owns` turn them into that, and `shares` turn what follows from those into parts of a mean. `twins` has, by op that
    may make such a sum, those that make it as well, such as what `jax.checkpoint` computes again: all are of parts, or
    none.
    """

    copies: frozenset[int] = frozenset()
    may_be_own: frozenset[int] = frozenset()
    owns: frozenset[int] = frozenset()
    shares: frozenset[int] = frozenset()
    twins: Mapping[int, frozenset[int]] = field(default_factory=dict)


class Propagation:
    """What becomes of every value and op.

    Shapes: `lays` [values], `phases` [ops], `states` [ops]: how ops of the loop run, None elsewhere. `copies` are the
    reads (op, operand) of what has to be computed whole before the loop as well. `meetings` says, by op, why one that
    reads blocks, or is in a loop that does, is not in the loop. `statistics` are the ops whose sums are taken by each
    part for itself.
    """

    def __init__(
        self,
        graph: Graph,
        parts: int,
        batch: Mapping[int, int],
        marks: Marks,
        tested: Mapping[int, frozenset[int]],
    ) -> None:
        """Propagates from `batch`, the dims that are split by argument.

        `tested` are the values that the condition of a loop reads.
        """
        self.graph, self.sizes, self.marks, self.tested = graph, (parts,), marks, tested
        self.zeros = set(graph.zeros)
        """What is nothing but zeros, and so a block or a part of itself."""
        self.lays = [SETUP] * graph.num_values
        self.phases = [Phase.SETUP] * graph.num_ops
        self.states: list[State | None] = [None] * graph.num_ops
        self.copies: dict[tuple[int, int], None] = {}
        self.meetings: dict[int, Meeting] = {}
        self.statistics: dict[int, None] = {}
        self.from_arguments = _from_arguments(graph) if marks.may_be_own else set[int]()
        self.needed_own: set[int] = set()
        """Ops that follow from statistics alone, and that blocks need."""
        self.body_start = 0
        """The first op of the body that is decided, or of the program."""
        self.cheap = bytearray(graph.num_values)
        """What follows from the batch without a heavy op."""
        self.loops = {loop.op: loop for loop in graph.loops}
        self.ends = {loop.end: loop for loop in graph.loops}
        uses = graph.uses.tolist()
        self.reads: list[list[int]] = [uses[a:b] for a, b in pairwise(graph.use_start.tolist())]
        """The values that each op reads [ops]."""
        self.gives = [range(a, b) for a, b in pairwise(graph.result_start.tolist())]
        """The values that each op defines [ops]."""
        self.kinds: list[int] = graph.op_class.tolist()
        self.classes = [graph.classes[kind] for kind in self.kinds]
        """The class of each op [ops]."""
        self._options: dict[int, tuple[State, ...]] = {}
        for argument, dim in batch.items():
            self.lays[argument] = Lay(Phase.LOOP, Spec(2 + dim))
            self.cheap[argument] = True
        self._run(0, graph.num_ops, 0)

    def body(self, loop: Loop) -> range:
        """Returns the ops of a loop's body, its end left out."""
        return range(loop.op + 1, loop.end)

    def _run(self, first: int, last: int, body: int) -> None:
        """Decides ops of a body that begins at op `body`."""
        op, outside = first, self.body_start
        self.body_start = body
        while op < last:
            loop = self.loops.get(op)
            if loop is not None:
                self._enter(loop)
                op = loop.end + 1
            else:
                self._decide(op)
                op += 1
        self.body_start = outside

    def _decide(self, op: int) -> None:
        cls, values = self.classes[op], self.reads[op]
        lays = [self.lays[value] for value in values]
        if op in self.marks.copies or all(lay.phase == Phase.SETUP for lay in lays):
            self.settle(op, Phase.SETUP, None)
            return
        if cls.name == BARRIER:
            self._forward(op, values, lays)
            return
        if any(lay.is_own for lay in lays) and all(lay.is_own or lay.phase == Phase.SETUP for lay in lays):
            state = self._following(op)
        elif op in self.marks.owns and lays[0].is_partial:
            state = State((REPLICATE,), (PARTIAL,), (REPLICATED,))
        else:
            state = self._best(op, values, lays)
        self.settle(op, Phase.APPLY if state is None else Phase.LOOP, state)
        if op in self.statistics and state is not None:
            for value in self.gives[op]:
                self.lays[value] = Lay(Phase.LOOP)
        # a loop waits with all of its body
        if state is None and (self.body_start > 0 or any(lay.is_split for lay in lays)):
            self.meetings[op] = self._meeting(op, values, lays)
            if self._takes_statistics(op):
                return
        cheap = cls.name not in HEAVY and all(
            lay.phase == Phase.SETUP or self.cheap[v] for v, lay in zip(values, lays, strict=True)
        )
        for value in self.gives[op]:
            self.cheap[value] = cheap

    def _following(self, op: int) -> State | None:
        """Returns how an op runs in the loop that only follows from what parts have of their own, None if after it."""
        if op in self.marks.shares:
            return State((REPLICATE,), (REPLICATED,), (PARTIAL,))
        in_body = self.body_start > 0  # all of a loop is in one phase
        is_own = self.marks.owns or in_body or op in self.needed_own or not self._reads_from_arguments(op)
        return replicate(self.classes[op], 1) if is_own else None

    def _reads_from_arguments(self, op: int) -> bool:
        """Says whether an op reads what follows from arguments alone, such as a parameter and its moments."""
        return any(self.lays[value].phase == Phase.SETUP and value in self.from_arguments for value in self.reads[op])

    def _takes_statistics(self, op: int) -> bool:
        """Decides an op anew that cannot run in the loop, with sums that each part takes for itself.

        Returns false, and changes nothing, where what it needs whole does not follow from such sums.
        """
        first = self.body_start
        sums, behind, waiting = set[int](), set[int](), [op]
        while waiting:
            one = waiting.pop()
            for value in self.reads[one]:
                lay, made = self.lays[value], int(self.graph.value_op[value])
                if not (lay.phase == Phase.APPLY or lay.is_partial) or made in sums or made in behind:
                    continue
                state = self.states[made] if made >= 0 else None
                if not first <= made < one:
                    return False
                if state is not None and state.strategy[0] >= 0:
                    if made not in self.marks.may_be_own:
                        return False
                    sums |= {made, *self.marks.twins.get(made, ())}
                else:
                    behind.add(made)
                    waiting.append(made)
        new = sums | (behind - self.needed_own)
        if not new:
            return False
        self.statistics.update(dict.fromkeys(sorted(sums)))
        self.needed_own |= behind
        again = min(new)
        for one in range(again, op + 1):
            self._forget_copies(one)
            self.meetings.pop(one, None)
        self._run(again, op + 1, first)
        return True

    def _forward(self, op: int, values: Sequence[int], lays: Sequence[Lay]) -> None:
        """Gives each result of a barrier what its operand is; only sums stay partial."""
        self.phases[op] = max((lay.phase for lay in lays), default=Phase.SETUP)
        for result, value, lay in zip(self.gives[op], values, lays, strict=True):
            self.lays[result] = APPLY if lay.is_partial and lay.monoid != "add" else lay
            self.cheap[result] = self.cheap[value]

    def settle(self, op: int, phase: Phase, state: State | None) -> None:
        """Puts an op into a phase, and its results; in the loop it runs in `state`."""
        self.phases[op], self.states[op] = phase, state
        self.meetings.pop(op, None)
        for number, value in enumerate(self.gives[op]):
            self.lays[value] = Lay(phase, state.result_specs[number], state.monoid) if state is not None else Lay(phase)
            self.cheap[value] = False

    def _best(self, op: int, values: Sequence[int], lays: Sequence[Lay]) -> State | None:
        """Returns the strategy in which an op runs in the loop, and notes what it needs a copy of.

        The result is None where there is no such strategy.
        """
        best: tuple[int, State, list[int]] | None = None
        for state in self.options_of(op):
            wanted = self._copies(values, lays, state)
            if wanted is None:
                continue
            if wanted and not any(
                lay.is_split and lay.spec == need for lay, need in zip(lays, state.operand_specs, strict=True)
            ):
                continue  # copies are for blocks' sake; sums alone are accumulated
            size = sum(prod(self.graph.type_of(values[position]).shape) for position in wanted)
            if best is None or size < best[0]:
                best = size, state, wanted
        if best is None:
            return None
        self.copies.update(dict.fromkeys((op, position) for position in best[2]))
        return best[1]

    def _copies(self, values: Sequence[int], lays: Sequence[Lay], state: State) -> list[int] | None:
        """Returns which operands a strategy needs whole that are not.

        The result is None where an operand is not available as the strategy needs it.
        """
        wanted = []
        for position, (value, lay, need) in enumerate(zip(values, lays, state.operand_specs, strict=True)):
            if lay.phase == Phase.SETUP or lay.is_own:
                if need == PARTIAL and value not in self.zeros:
                    return None
            elif lay.phase == Phase.LOOP and lay.spec == need:
                if lay.is_partial and lay.monoid != "add":
                    return None
            elif need != PARTIAL and self.cheap[value]:
                wanted.append(position)
            else:
                return None
        return wanted

    def options_of(self, op: int) -> tuple[State, ...]:
        """Returns the strategies that share an op's work among the parts, then those on partial sums."""
        kind, cls = self.kinds[op], self.classes[op]
        if kind not in self._options:
            shared = [
                state
                for state in strategies(cls, self.sizes, over_units=True)
                if state.strategy[0] >= 0 and not reads_halos(cls, state.strategy)  # other parts are not there yet
            ]
            self._options[kind] = (*shared, *_on_sums(cls))
        return self._options[kind]

    def _enter(self, loop: Loop) -> None:
        """Finds how what a loop carries can lie from its first to its last round.

        The loop is in APPLY where it cannot run in parts.
        """
        starts = self.reads[loop.op]
        if loop.op in self.marks.copies:
            self._settle_loop(loop, Phase.SETUP)
        elif not self.stable(loop, [self.lays[value] for value in starts]):
            self._leave_to_apply(loop)

    def stable(self, loop: Loop, lays: list[Lay]) -> bool:
        """Runs the body until what it carries lies as it returns it, starting from `lays`.

        Returns whether it comes to that.

        What starts from zeros may become sums: as long as that is open, its readers take it for whatever they need.
        """
        starts, ends = self.reads[loop.op], self.reads[loop.end]
        carried = self.gives[loop.op]
        is_open = True
        while True:
            blank = {
                v
                for v, start, lay in zip(carried, starts, lays, strict=True)
                if is_open and lay == SETUP and start in self.zeros
            }
            self.zeros |= blank
            fits = self._run_body(loop, lays)
            joined = [self._joined(*one) for one in zip(lays, starts, ends, strict=True)]
            self.zeros -= blank
            found = [lay for lay in joined if lay is not None]
            if not fits or len(found) < len(joined):
                return False
            if found == lays and not blank:
                break
            is_open = found != lays
            lays = found
        inside = any(self.phases[op] == Phase.LOOP for op in self.body(loop))
        phase = Phase.LOOP if inside or any(lay.phase == Phase.LOOP for lay in lays) else Phase.SETUP
        self.phases[loop.op] = self.phases[loop.end] = phase
        return all(self.lays[value] == SETUP for value in self.tested.get(loop.op, ()))

    def _run_body(self, loop: Loop, lays: Sequence[Lay]) -> bool:
        """Decides the ops of a body whose carried values lie as `lays`.

        Returns whether all of them stay in the loop.
        """
        for value, lay in zip(self.gives[loop.op], lays, strict=True):
            self.lays[value] = lay
            self.cheap[value] = False
        for op in self.body(loop):
            self._forget_copies(op)
        self._run(loop.op + 1, loop.end, loop.op + 1)
        return all(self.phases[op] != Phase.APPLY for op in self.body(loop))

    def _forget_copies(self, op: int) -> None:
        for position in range(len(self.reads[op])):
            self.copies.pop((op, position), None)

    def _joined(self, lay: Lay, start: int, end: int) -> Lay | None:
        """Returns how a carried value that lay as `lay` has to, where the body returns `end`; None where it cannot."""
        returned = self.lays[end]
        match returned.phase, lay.phase:
            case Phase.APPLY, _:
                return None
            case Phase.SETUP, Phase.LOOP if lay.is_partial:
                return lay if end in self.zeros else None
            case Phase.SETUP, _:
                return lay
            case Phase.LOOP, Phase.SETUP if returned.is_partial:
                return returned if start in self.zeros and returned.monoid == "add" else None
            case Phase.LOOP, Phase.SETUP:
                return returned
        return lay if returned == lay else None

    def _leave_to_apply(self, loop: Loop) -> None:
        why = next((self.meetings[op] for op in self.body(loop) if op in self.meetings), None)
        self._settle_loop(loop, Phase.APPLY)
        reads = [
            (op, position, value)
            for op in range(loop.op, loop.end + 1)
            for position, value in enumerate(self.reads[op])
        ]
        blocks = [read for read in reads if self.lays[read[2]].is_split]
        if blocks:
            op, position, value = blocks[0]
            self.meetings[loop.op] = why or Meeting(op, position, value, -1, split_dim(self.lays[value].spec))
        is_cheap = all(self.cheap[value] or self.lays[value].phase == Phase.SETUP for value in self.entering(loop))
        for value in self.gives[loop.op]:
            self.cheap[value] = is_cheap and not any(self.classes[op].name in HEAVY for op in self.body(loop))

    def _settle_loop(self, loop: Loop, phase: Phase) -> None:
        for op in (loop.op, *self.body(loop)):
            self._forget_copies(op)
            self.settle(op, phase, None)
        self.phases[loop.end] = phase

    def entering(self, loop: Loop) -> Iterator[int]:
        """Yields the values that a loop starts from, and that its body and condition read of what is outside."""
        yield from self.reads[loop.op]
        first = self.gives[loop.op].start
        inside = [value for op in range(loop.op + 1, loop.end + 1) for value in self.reads[op]]
        yield from (value for value in (*inside, *self.tested.get(loop.op, ())) if value < first)

    def _meeting(self, op: int, values: Sequence[int], lays: Sequence[Lay]) -> Meeting:
        """Returns why an op that reads blocks cannot run in the loop.

        It is the operand that is not split, if there is one, or else the last block.
        """
        unsplit = [position for position, lay in enumerate(lays) if lay.phase == Phase.APPLY or lay.is_partial]
        if unsplit:
            return Meeting(op, unsplit[0], values[unsplit[0]], self.source(values[unsplit[0]]))
        last = max(position for position, lay in enumerate(lays) if lay.is_split)
        return Meeting(op, last, values[last], -1, split_dim(lays[last].spec))

    def source(self, value: int) -> int:
        """Returns the op at which the parts of a value arise that is partial, or follows from one.

        The result is -1 where there is no such op.
        """
        graph = self.graph
        op = int(graph.value_op[value])
        while op >= 0:
            state = self.states[op]
            if state is not None and state.strategy[0] >= 0:
                return op
            following_from = [v for v in self.reads[op] if self.lays[v].phase == Phase.APPLY or self.lays[v].is_partial]
            if not following_from:
                return op
            before = int(graph.value_op[following_from[0]])
            if before >= op:  # a value that a loop carries
                return op
            op = before
        return -1

    def needs(self, op: int) -> tuple[Spec, ...]:
        """Returns how an op reads its operands: whole outside the loop; zeros are a partial sum as they are."""
        values, loop = self.reads[op], self.loops.get(op, self.ends.get(op))
        wanted: tuple[Spec, ...] = (REPLICATED,) * len(values)
        if self.classes[op].name == BARRIER:
            wanted = tuple(self.lays[value].spec for value in self.gives[op])
        elif self.phases[op] == Phase.LOOP and loop is not None:
            wanted = tuple(self.lays[value].spec for value in self.gives[loop.op])
        elif (state := self.states[op]) is not None:
            wanted = state.operand_specs
        return tuple(
            REPLICATED if need == PARTIAL and self.lays[value].phase == Phase.SETUP else need
            for value, need in zip(values, wanted, strict=True)
        )


def _from_arguments(graph: Graph) -> set[int]:
    """Returns the arguments, and the values that follow from any."""
    found = set(range(len(graph.arguments)))
    for op in range(graph.num_ops):
        if not found.isdisjoint(graph.operands(op).tolist()):
            found.update(graph.results(op))
    return found


def _on_sums(cls: OpClass) -> Iterator[State]:
    """Yields the strategies on partial sums, those of scalars too.

    A sum over parts in time costs nothing before it is taken.
    """
    for number, chosen in enumerate(cls.linear):
        needs = tuple(PARTIAL if operand in chosen else REPLICATED for operand in range(len(cls.operands)))
        yield State((-2 - number,), needs, (PARTIAL,) * len(cls.results))
