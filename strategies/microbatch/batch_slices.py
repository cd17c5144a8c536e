"""What is read only in slices is computed in slices.

Each part of the batch makes its own, in the loop (strategies/microbatch/time_axis.py).

No work is added, as a strategy that gives slices shares the work, and none is as large as the whole batch any more:
dropout masks with the loops of their random bits, positions broadcast over the batch, masks that compare counters,
and statistics of a part broadcast over it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.ir.graph.graph import BARRIER, Loop
from rhino.ir.graph.spec import PARTIAL, REPLICATED, Spec
from rhino.strategies.cost.candidates import State, following
from rhino.strategies.microbatch.time_axis import SETUP, Lay, Phase, Propagation


def slice_early(found: Propagation) -> None:
    """Moves ops of SETUP into the loop, readers first, where all of their results are read in slices."""
    graph, wanted = found.graph, _Wanted(found.graph.num_values)
    for value in graph.returns:
        wanted.note(value, REPLICATED)
    for op in range(graph.num_ops - 1, -1, -1):
        loop = found.ends.get(op)
        results = found.gives[op if loop is None else loop.op]
        specs = [wanted.of(value) for value in results]
        if loop is not None:
            _slice_loop(found, loop, specs)
        elif op in found.loops:
            _slice_kept(found, found.loops[op], specs)
        else:
            _slice_op(found, op, specs)
        for position, (value, need) in enumerate(zip(found.reads[op], found.needs(op), strict=True)):
            if loop is None or not loop.kept[position]:  # what is returned as it came is no reader
                wanted.note(value, need)


class _Wanted:
    """How the readers of each value want it."""

    def __init__(self, num_values: int) -> None:
        self.specs: list[Spec | None] = [None] * num_values

    def note(self, value: int, spec: Spec) -> None:
        before = self.specs[value]
        self.specs[value] = spec if before is None or before == spec else REPLICATED

    def of(self, value: int) -> Spec | None:
        """Returns how all of them want it; None where there are none."""
        return self.specs[value]


def _slice_op(found: Propagation, op: int, wanted: Sequence[Spec | None]) -> None:
    cls = found.classes[op]
    specs = {spec for spec in wanted if spec is not None}
    if cls.name == BARRIER or not specs or min(specs) <= PARTIAL:
        return
    is_own = op not in found.marks.owns and all(found.lays[value].is_own for value in found.gives[op])
    if found.phases[op] != Phase.SETUP and not is_own:
        return
    if any(found.lays[value] != SETUP and not (is_own and found.lays[value].is_own) for value in found.reads[op]):
        return  # a copy for those who need the batch whole
    state = _giving(found, op, wanted)
    if state is not None:
        found.settle(op, Phase.LOOP, state)


def _giving(found: Propagation, op: int, wanted: Sequence[Spec | None]) -> State | None:
    """Returns a strategy that gives the results as wanted, of which some are."""
    cls = found.classes[op]
    if not cls.operands:
        state = following(cls, next(spec for spec in wanted if spec is not None), found.sizes)
        return state if state.strategy[0] >= 0 else None
    options = (state for state in found.options_of(op) if state.strategy[0] >= 0 and PARTIAL not in state.operand_specs)
    return next(
        (s for s in options if all(w is None or w == comes for w, comes in zip(wanted, s.result_specs, strict=True))),
        None,
    )


def _slice_loop(found: Propagation, loop: Loop, wanted: Sequence[Spec | None]) -> None:
    """Moves a loop that does not depend on the batch, if it can run so that its results come as they are wanted."""
    if found.phases[loop.op] != Phase.SETUP or not any(spec is not None and spec > PARTIAL for spec in wanted):
        return
    lays = [Lay(Phase.LOOP, spec) if spec is not None and spec > PARTIAL else SETUP for spec in wanted]
    replicated = [value for value, spec in zip(found.gives[loop.op], wanted, strict=True) if spec == REPLICATED]
    if not found.stable(loop, lays) or any(found.lays[value] != SETUP for value in replicated):
        found.stable(loop, [SETUP] * len(lays))


def _slice_kept(found: Propagation, loop: Loop, wanted: Sequence[Spec | None]) -> None:
    """Slices what a loop in the loop hands round as it came: once, before it."""
    if found.phases[loop.op] != Phase.LOOP:
        return
    tested = found.tested.get(loop.op, frozenset())
    for value, spec, kept in zip(found.gives[loop.op], wanted, loop.kept, strict=True):
        if kept and spec is not None and spec > PARTIAL and found.lays[value] == SETUP and value not in tested:
            found.lays[value] = Lay(Phase.LOOP, spec)
