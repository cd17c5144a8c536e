"""Keep a batch apart from dims that a step merges it with, so that a part of it is a block of what comes out.

PyTorch's attention has the length first: `[length, batch, width]`, which a linear layer reads as `[length * batch,
width]`. A part of the batch is then every so many rows, which no split is. So what is merged is viewed as blocks of the
batch (`rhino.ir.graph.blocks`), from where it is merged to where it is taken apart again.
"""

from __future__ import annotations

from math import prod

from rhino.ir.graph.blocks import Blocks
from rhino.ir.mlir.bindings import ir
from rhino.passes.layout.materialize_strides import Viewable
from rhino.passes.layout.shapes import RESHAPE, shape_of
from rhino.strategies.layout.blocked_views import views_without_borders
from rhino.strategies.structure.axis_roles import Roles


def unmerge_inputs(module: ir.Operation, file: str) -> bool:
    """Rewrites a step so that it does not merge dims of its inputs with dims before them; returns whether it did.

    It stays as it is where some op that a merged dim goes to cannot take it otherwise, and so do its arguments and
    results. Its ops have their sharding rules.
    """
    step = Viewable.of(module, file)
    graph, roles = step.program.graph, Roles(step.program.graph)
    inputs = {
        roles.group[dim]
        for number, argument in enumerate(graph.arguments)
        if argument.alias is None
        for dim in roles.dims(number)
    }
    seeds = []
    for number, op in enumerate(step.program.ops):
        if op.name == RESHAPE:
            for dim, one in enumerate(roles.dims(int(graph.operands(number)[0]))):
                found = merged(op, dim) if roles.group[one] in inputs else None
                if found is not None:
                    seeds.append(((graph.results(number).start, found[0]), found[1]))
    views = views_without_borders(graph, step.cuts, step.able, step.fixed(), seeds)
    step.write(views)
    return bool(views.values)


def merged(op: ir.Operation, dim: int | None) -> tuple[int, Blocks] | None:
    """Returns the dim in which a reshape puts a dim of its operand behind others, and the blocks that it begins there.

    The result is None where it does not, or the op is another.
    """
    if op.name != RESHAPE or dim is None:
        return None
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    outer = prod(before[:dim])
    for into, size in enumerate(after):
        around = prod(after[:into])
        if around < outer < around * size and outer % around == 0 and around * size % outer == 0:
            num_blocks = outer // around
            return into, Blocks((size // num_blocks,) * num_blocks)
    return None
