"""Turn the program of one part in time into a loop over all parts: setup, loop, apply (docs/pipelines.md).

What is given is a local program (passes/sharding/localize.py) whose one mesh axis is time: the batch arguments have the
shapes of one part, `partition_id` says which part it is, an `all_reduce` joins what the parts have, and an `all_gather`
puts their blocks together. Where an op goes follows from that alone: what depends on a part's number or on its batch,
up to these collectives, runs in the loop, and what follows from them after it. What only that needs is computed there
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rhino.ir.graph.graph import BARRIER
from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import walk
from rhino.ir.program.numerics import FUSIBLE, SOURCES
from rhino.passes.pipeline.time_loop import KEEP, PART, STACK, Carried, Leaving, TimeLoop, Value
from rhino.strategies.microbatch.time_axis import Phase

_REPEATS: Final = SOURCES | {"stablehlo.broadcast_in_dim", "stablehlo.broadcast"}
"""Ops that read nothing, or less than they give."""

_JOIN, _STACK = "stablehlo.all_reduce", "stablehlo.all_gather"


def make_loop(entry: func.FuncOp, parts: int, *, widen: bool) -> tuple[Carried, ...]:
    """Puts the loop over `parts` into `entry`; returns what it carries behind its index.

    Sums of 16-bit floats are kept in f32 if `widen` says so.
    """
    _split_barriers(entry)
    *ops, end = _read(entry)
    phases = _phases(ops)
    leaving = _leaving(ops, phases, end)
    collectives = [one.op for one in ops if one.name in (_JOIN, _STACK)]
    with ir.InsertionPoint(end.op), entry.location:
        loop = TimeLoop(leaving, parts, widen=widen)
    placed = _placed(ops, phases, end)
    for one, phase in zip(ops, placed, strict=True):
        if phase == Phase.APPLY:
            one.op.move_before(end.op)
    loop.fill(
        [
            one.op
            for one, phase in zip(ops, placed, strict=True)
            if phase == Phase.LOOP and one.name not in (_JOIN, _STACK)
        ]
    )
    for op in collectives:
        op.erase()
    return loop.carried()


@dataclass(slots=True, eq=False)
class _Op:
    """An op with what it and its regions read, and what it gives.

    Values of its own regions are among what it reads. `is_of_part` is true if it depends on the number of the part.
    """

    op: ir.Operation
    name: str
    reads: list[Value]
    gives: list[Value]
    is_of_part: bool


def _read(entry: func.FuncOp) -> list[_Op]:
    found = []
    for view in entry.regions[0].blocks[0].operations:
        op = view.operation
        name, reads = op.name, list(op.operands)
        is_of_part = name == PART
        for inner in walk(op)[1:] if len(op.regions) else ():
            reads += inner.operands
            is_of_part |= inner.name == PART
        found.append(_Op(op, name, reads, list(op.results), is_of_part))
    return found


def _split_barriers(entry: func.FuncOp) -> None:
    """Splits each barrier over values of the loop and values after it into one barrier for each.

    So no value in the loop waits for what is known only after it.
    """
    ops = [view.operation for view in entry.regions[0].blocks[0].operations]
    if not any(op.name == BARRIER for op in ops):
        return
    known = _known(_read(entry))
    for op in ops:
        met = {known.get(value, Phase.SETUP) for value in op.operands} if op.name == BARRIER else set()
        if {Phase.LOOP, Phase.APPLY} <= met:
            for late in (False, True):
                chosen = [
                    n for n, value in enumerate(op.operands) if (known.get(value, Phase.SETUP) == Phase.APPLY) == late
                ]
                with ir.InsertionPoint(op), op.location:
                    made = stablehlo.OptimizationBarrierOp([op.operands[n] for n in chosen])
                for n, result in zip(chosen, made.results, strict=True):
                    op.results[n].replace_all_uses_with(result)
            op.erase()


def _known(ops: Iterable[_Op]) -> dict[Value, Phase]:
    """Returns the phase in which each value is known; values of SETUP are left out."""
    known: dict[Value, Phase] = {}
    for one in ops:
        phase = max([known[value] for value in one.reads if value in known], default=Phase.SETUP)
        if one.name == BARRIER and phase == Phase.APPLY:
            known.update(
                (result, known[value]) for value, result in zip(one.reads, one.gives, strict=True) if value in known
            )
            continue
        if one.name in (_JOIN, _STACK):
            phase = Phase.APPLY
        elif one.is_of_part:
            phase = Phase.LOOP
        if phase != Phase.SETUP:
            known.update(dict.fromkeys(one.gives, phase))
    return known


def _phases(ops: Sequence[_Op]) -> list[Phase]:
    """Returns where each op goes; the collectives stand where their operands do."""
    known = _known(ops)
    found = []
    for one in ops:
        if one.name in (_JOIN, _STACK):
            found.append(Phase.LOOP)
        else:
            found.append(
                max([known[value] for value in (*one.gives, *one.reads) if value in known], default=Phase.SETUP)
            )
    return found


def _placed(ops: Sequence[_Op], phases: Sequence[Phase], end: _Op) -> list[Phase]:
    """Returns the phases of ops, where an op of SETUP gets the phase of its readers.

    It moves to APPLY, or to LOOP where computing it again costs less than keeping its results.
    """
    early = [one for one, phase in zip(ops, phases, strict=True) if phase == Phase.SETUP]
    small: set[Value] = set()
    for one in early:
        if one.name in _REPEATS or (
            one.name in FUSIBLE and all(value in small or not _rank(value) for value in one.op.operands)
        ):
            small.update(one.gives)
    needed: dict[Value, set[Phase]] = {result: set() for one in early for result in one.gives}
    for value in end.reads:
        if value in needed:
            needed[value].add(Phase.APPLY)
    found = list(phases)
    for number in range(len(ops) - 1, -1, -1):
        one = ops[number]
        if phases[number] == Phase.SETUP:
            met = {phase for result in one.gives for phase in needed[result]}
            if met <= {Phase.APPLY}:
                found[number] = Phase.APPLY
            elif met == {Phase.LOOP} and all(result in small for result in one.gives):
                found[number] = Phase.LOOP
        for value in one.reads:
            if value in needed:
                needed[value].add(found[number])
    return found


def _rank(value: Value) -> int:
    return len(ir.RankedTensorType(value.type).shape) if isinstance(value.type, ir.RankedTensorType) else 0


def _leaving(ops: Sequence[_Op], phases: Sequence[Phase], end: _Op) -> list[Leaving]:
    found: dict[tuple[str, Value, int], Leaving] = {}

    def note(how: str, value: Value, dim: int = 0) -> Leaving:
        return found.setdefault((how, value, dim), Leaving(how, value, dim, []))

    inside = {
        result
        for one, phase in zip(ops, phases, strict=True)
        if phase == Phase.LOOP and one.name not in (_JOIN, _STACK)
        for result in one.gives
    }
    for one, phase in zip([*ops, end], [*phases, Phase.APPLY], strict=True):
        if one.name == _JOIN:
            by = one.op.regions[0].blocks[0].operations[0].operation.name
            note(by, one.reads[0]).results.append(one.gives[0])
        elif one.name == _STACK:
            note(STACK, one.reads[0], ir.IntegerAttr(one.op.attributes["all_gather_dim"]).value).results.append(
                one.gives[0]
            )
        elif phase == Phase.APPLY:
            for value in one.reads:
                if value in inside:
                    note(KEEP, value)
    return list(found.values())
