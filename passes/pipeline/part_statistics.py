"""Take statistics of each micro-batch in place of those of the batch.

Such are the mean and the variance that normalize a batch, and how busy each expert is for a balance loss. Each part
takes such a sum for itself, times the number of parts: as if the whole batch were copies of that part. What is read
behind the loop is the mean over parts. So the step is one that is written for a micro-batch, and whose gradients,
losses and moving averages are means over micro-batches. It is not the step of the whole batch, so it is done only where
it is asked for.

In the program of one device two conversions that change nothing stand for this: one where a sum becomes a part's own,
and one where what follows from it becomes a part of a mean (strategies/microbatch/time_axis.py). In the program of a
part they become a product and a quotient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.locations import name_of
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.program.identity import make_constant
from rhino.ir.program.program import Program
from rhino.ir.request.patterns import matches
from rhino.passes.pipeline.batch_program import COPY, value_of
from rhino.strategies.microbatch.time_axis import Marks, Phase, Propagation

_PER_PART: Final = "per-part"
"""What asks for statistics of each micro-batch; patterns of names of ops may follow a colon."""

_STATISTIC: Final = "rhino.statistic"
"""On a conversion that changes nothing, what it stands for."""
_SUM, _EXTREME, _SHARE = "sum", "extreme", "share"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Which sums over the batch each micro-batch may take for itself: all, or those of ops with names like these."""

    patterns: tuple[str, ...] | None

    def marks(self, program: Program) -> Marks:
        """Returns the ops of a program that are marked, and those that may be statistics."""
        kinds = {number: _kind(op) for number, op in enumerate(program.ops) if _STATISTIC in op.attributes}
        return Marks(
            frozenset(number for number, op in enumerate(program.ops) if COPY in op.attributes),
            frozenset(number for number, op in enumerate(program.ops) if self.allows(op)),
            frozenset(number for number, kind in kinds.items() if kind != _SHARE),
            frozenset(number for number, kind in kinds.items() if kind == _SHARE),
        )

    def allows(self, op: ir.Operation) -> bool:
        """Says whether what an op sums up over the batch may be of each part."""
        if self.patterns is None:
            return True
        name = name_of(op.location)
        return any(matches(pattern, name, "/") for pattern in self.patterns)


def parse_statistics(text: str, file: str) -> Statistics:
    """Returns what an option says of statistics; nothing may be of a part if it is empty.

    Raises:
        RhinoError: RHI-BATCH-008.
    """
    how, colon, names = text.partition(":")
    patterns = tuple(name.strip() for name in names.split(";") if name.strip())
    if text and (how.strip() != _PER_PART or (colon and not patterns)):
        raise RhinoError(
            "RHI-BATCH-008",
            f"batch statistics '{text}' are not known",
            Place(file),
            fix=f"give {_PER_PART}, or {_PER_PART}:NAME;NAME with patterns of the names of ops",
        )
    return Statistics(patterns if colon or not text else None)


def mark_statistics(program: Program, found: Propagation) -> None:
    """Puts the conversions of statistics into a program that are wanted for it to be taken in parts."""
    graph = program.graph
    shared: dict[int, list[tuple[ir.Operation, int]]] = {}
    for op in range(graph.num_ops):
        if found.phases[op] == Phase.APPLY:
            for position, value in enumerate(found.reads[op]):
                if found.lays[value].is_own:
                    shared.setdefault(value, []).append((program.ops[op], position))
    end = end_of(program.entry.regions[0].blocks[0])
    for position, value in enumerate(graph.returns):
        if found.lays[value].is_own:
            shared.setdefault(value, []).append((end, position))
    own: dict[int, ir.Value[Any]] = {}
    for op in found.statistics:
        state = found.states[op]
        assert state is not None
        for value in graph.results(op):
            made = value_of(program, value)
            converted = _mark(made, _SUM if state.monoid == "add" else _EXTREME)
            made.replace_all_uses_except(converted.results[0], converted)
            own[value] = converted.results[0]
    for value, readers in shared.items():
        share = _mark(own[value] if value in own else value_of(program, value), _SHARE).results[0]
        for reader, position in readers:
            reader.operands[position] = share


def settle_statistics(entry: ir.Operation, parts: int) -> tuple[ir.Location, ...]:
    """Writes what the conversions stand for into the program of a part; returns where its own values are made."""
    places = []
    for op in [op for op in walk(entry) if _STATISTIC in op.attributes]:
        value, kind = op.operands[0], _kind(op)
        if kind != _SHARE:
            places.append(op.location)
        with ir.InsertionPoint(op), op.location:
            if kind == _SHARE:
                value = stablehlo.DivOp(value, make_constant(value.type, parts)).result
            elif kind == _SUM:
                value = stablehlo.MulOp(value, make_constant(value.type, parts)).result
        op.results[0].replace_all_uses_with(value)
        op.erase()
    return tuple(places)


def _kind(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes[_STATISTIC]).value)


def _mark(value: ir.Value[Any], kind: str) -> ir.Operation:
    """Returns a conversion of a value to what it is, behind what makes it."""
    made = maker_of(value)
    assert made is not None
    with ir.InsertionPoint.after(made), made.location:
        convert: ir.Operation = stablehlo.ConvertOp(value.type, value).operation
    convert.attributes[_STATISTIC] = ir.StringAttr.get(kind)
    return convert
