"""Which values are read inside of regions that are not part of the graph.

Their shapes must not be changed.
"""

from __future__ import annotations

from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.reader import walk
from rhino.ir.program.program import Program


def read_inside(program: Program) -> list[int]:
    """Returns the values that conditions of loops, branches and other regions read.

    Bodies of loops do not count: they are part of the graph.
    """
    graph = program.graph
    results = [result for op in program.ops for result in op.results]
    numbers = dict(zip([*program.entry.arguments, *results], range(graph.num_values), strict=True))
    found = []
    for number, op in enumerate(program.ops):
        regions = list(op.regions)
        if op.name == WHILE:
            for region in regions:
                numbers.update(zip(region.blocks[0].arguments, graph.results(number), strict=True))
            regions = regions[:1]
        inside = (
            inner for region in regions for block in region for one in block.operations for inner in walk(one.operation)
        )
        found += [numbers[value] for inner in inside for value in inner.operands if value in numbers]
    return found
