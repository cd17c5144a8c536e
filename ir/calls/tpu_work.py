"""The work of a kernel for TPUs on its whole grid: operations, those in matrix products, and bytes that are moved."""

from __future__ import annotations

from math import prod
from typing import Final

from rhino.ir.calls.tpu_points import Points, window_place
from rhino.ir.graph.rules import CallWork
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.tpu_kernels import Kernel, parse_kernel

_MATMUL: Final = "tpu.matmul"


def kernel_work(config: str) -> CallWork | None:
    """Returns the work of a kernel, given as the text of its call's configuration; None where it cannot be read."""
    kernel = parse_kernel(config)
    return work_of(kernel) if kernel is not None and min(kernel.bounds, default=1) > 0 else None


def work_of(kernel: Kernel) -> CallWork:
    """Returns the work of a kernel on its whole grid; a window is moved when another one takes its place."""
    points = Points(kernel.bounds, kernel.body, kernel.num_scalars)
    flops, product_flops = _counted(kernel.block, points)
    first, moved = len(kernel.bounds), 0
    arguments = list(kernel.block.arguments)[first : first + kernel.num_scalars + len(kernel.windows)]
    for argument, window in zip(arguments, (*[None] * kernel.num_scalars, *kernel.windows), strict=True):
        places = [] if window is None else window_place(kernel, window)[0]
        follows = frozenset[int]().union(*(place.of for place in places))
        kind = ir.MemRefType(argument.type)
        times = prod(kernel.bounds[: max(follows, default=-1) + 1])
        moved += times * prod(kind.shape) * int(getattr(kind.element_type, "width", 8)) // 8
    products = [op for op in walk(kernel.body) if op.name == _MATMUL]
    dtype = str(ir.VectorType(products[0].operands[0].type).element_type) if products else ""
    steps = prod(kernel.bounds)
    return CallWork(round((flops + product_flops) * steps), round(product_flops * steps), dtype, moved)


def _counted(block: ir.Block, points: Points) -> tuple[float, float]:
    """Returns the operations of a block at a point of the grid, on average: on elements, and in matrix products."""
    flops = product_flops = 0.0
    for view in block.operations:
        op = view.operation
        times = _times(op, points)
        for region, share in zip(op.regions, times, strict=False):
            for inside in region.blocks:
                own = _counted(inside, points)
                flops, product_flops = flops + share * own[0], product_flops + share * own[1]
        if op.name == _MATMUL:
            lhs, rhs, result = (prod(ir.VectorType(one.type).shape) for one in (*list(op.operands)[:2], op.results[0]))
            product_flops += 2 * result * (lhs * rhs / result) ** 0.5
        elif op.name.startswith(("arith.", "math.", "vector.multi_reduction")) and op.name != "arith.constant":
            kinds = [one.type for one in (*op.operands, *op.results) if isinstance(one.type, ir.VectorType)]
            flops += max((prod(ir.VectorType(kind).shape) for kind in kinds), default=0)
    return flops, product_flops


def _times(op: ir.Operation, points: Points) -> tuple[float, ...]:
    """Returns how often each region of an op runs, once where nobody knows."""
    if op.name == "scf.if":
        asked = points.at(op.operands[0]).at
        share = 1.0 if asked is None else float((asked != 0).mean())
        return (share, 1.0 if asked is None else 1 - share)
    if op.name == "scf.for":
        ends = [points.at(value).at for value in list(op.operands)[:3]]
        known = [float(end.mean()) for end in ends if end is not None]
        return (max(0.0, (known[1] - known[0]) / known[2]),) if len(known) == 3 else (1.0,)
    return (1.0,) * len(op.regions)
