"""What a program is changed in before its batch is taken in parts, where parts of it could not be otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.reader import walk
from rhino.ir.program.identity import is_constant, make_constant
from rhino.ir.program.numerics import reduction_of
from rhino.ir.program.program import Program
from rhino.strategies.microbatch.time_axis import Meeting, Phase, Propagation

COPY: Final = "rhino.copy"
"""On an op that computes whole what is computed in parts too."""


def make_copies(program: Program, found: Propagation) -> bool:
    """Makes the copies that the propagation asks for; returns whether there were any to make."""
    graph = program.graph
    wanted = {
        value for op, position in found.copies if (value := int(graph.operands(op)[position])) >= len(graph.arguments)
    }
    if not wanted:
        return False
    for op in range(graph.num_ops - 1, -1, -1):
        if any(value in wanted for value in graph.results(op)):
            loop = found.loops.get(op)
            read = graph.operands(op).tolist() if loop is None else found.entering(loop)
            wanted.update(value for value in read if found.lays[value].phase != Phase.SETUP)
    copies: list[ir.Operation] = []
    new: dict[ir.Value[Any], ir.Value[Any]] = {}
    for number, made in enumerate(program.ops):
        if any(value in wanted for value in graph.results(number)):
            copy = made.clone(ip=ir.InsertionPoint.after(made))
            copy.attributes[COPY] = ir.UnitAttr.get()
            copies.append(copy)
            new.update(zip(made.results, copy.results, strict=True))
    for copy in copies:
        _read_copies(copy, new)
    for op, position in found.copies:
        value = int(graph.operands(op)[position])
        if value >= len(graph.arguments):
            original = value_of(program, value)
            _read_copies(program.ops[op], {original: new[original]})
    return True


def unmark(entry: func.FuncOp) -> None:
    """Takes the marks off the copies."""
    for op in walk(entry.operation):
        if COPY in op.attributes:
            del op.attributes[COPY]


def value_of(program: Program, value: int) -> ir.Value[Any]:
    """Returns a value of the program that an op defines."""
    op = int(program.graph.value_op[value])
    result: ir.Value[Any] = program.ops[op].results[value - program.graph.results(op).start]
    return result


def _read_copies(op: ir.Operation, new: Mapping[ir.Value[Any], ir.Value[Any]]) -> None:
    for inner in walk(op):
        for number, value in enumerate(inner.operands):
            if value in new:
                inner.operands[number] = new[value]


def start_from_zero(program: Program, meeting: Meeting) -> bool:
    """Makes a scatter that adds blocks of the batch to sums over the batch add them to zeros, and then to the sums.

    Returns false for any other op.
    """
    op = program.ops[meeting.op]
    if (
        op.name != "stablehlo.scatter"
        or meeting.operand != 0
        or reduction_of(op) != "add"
        or is_constant(op.operands[0], 0)
    ):
        return False
    before, result = op.operands[0], op.results[0]
    with op.location:
        with ir.InsertionPoint(op):
            op.operands[0] = make_constant(before.type, 0)
        with ir.InsertionPoint.after(op):
            both = stablehlo.AddOp(before, result)
    result.replace_all_uses_except(both.result, both.operation)
    return True
