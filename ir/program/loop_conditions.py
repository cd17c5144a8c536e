"""What the conditions of loops read."""

from __future__ import annotations

from typing import Any

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk
from rhino.ir.program.program import Program


def condition_reads(program: Program) -> dict[int, frozenset[int]]:
    """Returns for each loop the values that its condition reads."""
    graph = program.graph
    numbers: dict[ir.Value[Any], int] = {value: number for number, value in enumerate(program.entry.arguments)}
    for number, op in enumerate(program.ops):
        numbers.update(zip(op.results, graph.results(number), strict=True))
    found = {}
    for loop in graph.loops:
        for region in program.ops[loop.op].regions:
            numbers.update(zip(region.blocks[0].arguments, graph.results(loop.op), strict=True))
        condition = program.ops[loop.op].regions[0].blocks[0]
        read = (value for view in condition.operations for inner in walk(view.operation) for value in inner.operands)
        found[loop.op] = frozenset(numbers[value] for value in read if value in numbers)
    return found
