"""Turn the program of one part in time into a loop over all parts: setup, loop, apply (docs/pipelines.md).

What is given is a local program (passes/localize.py) whose one mesh axis is time: the batch arguments have the shapes of one part,
`partition_id` says which part it is, an `all_reduce` joins what the parts have, and an `all_gather` puts their blocks together. Where an op
goes follows from that alone: what depends on a part's number or on its batch, up to these collectives, runs in the loop, and what follows
from them after it. What only that needs is computed there too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rhino.ir.graph import BARRIER
from rhino.ir.mlir import func, ir, stablehlo
from rhino.ir.numerics import FUSIBLE, SOURCES
from rhino.ir.reader import walk
from rhino.passes.time_loop import KEEP, PART, STACK, Carried, Leaving, TimeLoop, Value
from rhino.strategies.time_axis import Phase

_REPEATS: Final = SOURCES | {"stablehlo.broadcast_in_dim", "stablehlo.broadcast"}
"""Ops that read nothing, or less than they give."""

_JOIN, _STACK = "stablehlo.all_reduce", "stablehlo.all_gather"


def make_loop(entry: func.FuncOp, parts: int, *, widen: bool) -> tuple[Carried, ...]:
    """Puts the loop over `parts` into `entry`; returns what it carries behind its index.

    Sums of 16-bit floats are kept in f32 if `widen` says so.
    """
    _split_barriers(entry)
    *ops, end = [view.operation for view in entry.regions[0].blocks[0].operations]
    phases = _phases(ops)
    leaving = _leaving(ops, phases, end)
    collectives = [op for op in ops if op.name in (_JOIN, _STACK)]
    with ir.InsertionPoint(end), entry.location:
        loop = TimeLoop(leaving, parts, widen=widen)
    placed = _placed(ops, phases, end)
    for op, phase in zip(ops, placed, strict=True):
        if phase == Phase.APPLY:
            op.move_before(end)
    loop.fill([op for op, phase in zip(ops, placed, strict=True) if phase == Phase.LOOP and op.name not in (_JOIN, _STACK)])
    for op in collectives:
        op.erase()
    return loop.carried()


def _reads(op: ir.Operation) -> list[Value]:
    """Returns what an op and its regions read, their own values among it."""
    return [value for inner in walk(op) for value in inner.operands]


def _split_barriers(entry: func.FuncOp) -> None:
    """Makes of each barrier one for every operand that leaves the loop, so that none holds up what it does not order."""
    ops = [view.operation for view in entry.regions[0].blocks[0].operations]
    known = _known(ops)
    for op in ops:
        met = {known.get(value, Phase.SETUP) for value in op.operands}
        if op.name == BARRIER and {Phase.LOOP, Phase.APPLY} <= met:
            for late in (False, True):
                chosen = [n for n, value in enumerate(op.operands) if (known.get(value, Phase.SETUP) == Phase.APPLY) == late]
                with ir.InsertionPoint(op), op.location:
                    made = stablehlo.OptimizationBarrierOp([op.operands[n] for n in chosen])
                for n, result in zip(chosen, made.results, strict=True):
                    op.results[n].replace_all_uses_with(result)
            op.erase()


def _known(ops: Iterable[ir.Operation]) -> dict[Value, Phase]:
    """Returns the phase in which each value is known; values of SETUP may be left out."""
    known: dict[Value, Phase] = {}
    for op in ops:
        phase = max((known.get(value, Phase.SETUP) for value in _reads(op)), default=Phase.SETUP)
        if op.name == BARRIER and phase == Phase.APPLY:
            known.update((result, known.get(value, Phase.SETUP)) for value, result in zip(op.operands, op.results, strict=True))
            continue
        if op.name in (_JOIN, _STACK):
            phase = Phase.APPLY
        elif op.name == PART or any(inner.name == PART for inner in walk(op)):
            phase = Phase.LOOP
        known.update((result, phase) for result in op.results)
    return known


def _phases(ops: Sequence[ir.Operation]) -> list[Phase]:
    """Returns where each op goes; the collectives stand where their operands do."""
    known = _known(ops)
    found = []
    for op in ops:
        if op.name in (_JOIN, _STACK):
            found.append(Phase.LOOP)
        else:
            met = [known.get(value, Phase.SETUP) for value in (*op.results, *_reads(op))]
            found.append(max(met, default=Phase.SETUP))
    return found


def _placed(ops: Sequence[ir.Operation], phases: Sequence[Phase], end: ir.Operation) -> list[Phase]:
    """Returns the phases, for ops of SETUP that of those who need them: APPLY, and LOOP where computing anew costs less than keeping."""
    small: set[Value] = set()
    for op in ops:
        if op.name in _REPEATS or (op.name in FUSIBLE and all(value in small or not _rank(value) for value in op.operands)):
            small.update(op.results)
    needed = {value: {Phase.APPLY} for value in end.operands}
    found = list(phases)
    for number in range(len(ops) - 1, -1, -1):
        op = ops[number]
        if phases[number] == Phase.SETUP:
            met = {phase for result in op.results for phase in needed.get(result, ())}
            if met <= {Phase.APPLY}:
                found[number] = Phase.APPLY
            elif met == {Phase.LOOP} and all(result in small for result in op.results):
                found[number] = Phase.LOOP
        for value in _reads(op):
            needed.setdefault(value, set()).add(found[number])
    return found


def _rank(value: Value) -> int:
    return len(ir.RankedTensorType(value.type).shape) if isinstance(value.type, ir.RankedTensorType) else 0


def _leaving(ops: Sequence[ir.Operation], phases: Sequence[Phase], end: ir.Operation) -> list[Leaving]:
    found: dict[tuple[str, Value, int], Leaving] = {}

    def note(how: str, value: Value, dim: int = 0) -> Leaving:
        return found.setdefault((how, value, dim), Leaving(how, value, dim, []))

    inside = {
        result
        for op, phase in zip(ops, phases, strict=True)
        if phase == Phase.LOOP and op.name not in (_JOIN, _STACK)
        for result in op.results
    }
    for op, phase in zip([*ops, end], [*phases, Phase.APPLY], strict=True):
        if op.name == _JOIN:
            by = op.regions[0].blocks[0].operations[0].operation.name
            note(by, op.operands[0]).results.append(op.results[0])
        elif op.name == _STACK:
            note(STACK, op.operands[0], ir.IntegerAttr(op.attributes["all_gather_dim"]).value).results.append(op.results[0])
        elif phase == Phase.APPLY:
            for value in _reads(op):
                if value in inside:
                    note(KEEP, value)
    return list(found.values())
