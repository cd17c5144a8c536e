"""The work of a kernel for TPUs: operations, those in matrix products, and bytes that are moved.

What a kernel leaves out, as blocks that a mask hides, is known as far as it follows from the point of the grid and from
scalar operands that are constants. So it is also known where the grid has more to do than elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rhino.ir.calls.tpu_points import MOST_POINTS, Ints, Known, Points, window_place
from rhino.ir.graph.graph import BARRIER, WHILE
from rhino.ir.graph.rules import CallWork
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.mlir.tpu_kernels import Kernel, parse_kernel

_MATMUL: Final = "tpu.matmul"
Times = NDArray[np.float64]
"""Numbers at the points of a grid [grid], a dim of which has size 1 where it does not matter."""
Counts = dict[tuple[int, ...], Times]
"""Such numbers, by shape, which are to be added: each hangs on few dims, and all together may hang on every one."""


def kernel_work(config: str) -> CallWork | None:
    """Returns the work of a kernel, given as the text of its call's configuration; None where it cannot be read."""
    kernel = parse_kernel(config)
    return work_of(kernel)[0] if kernel is not None and min(kernel.bounds, default=1) > 0 else None


def tables_of(kernel: Kernel, op: ir.Operation) -> list[Ints | None]:
    """Returns the scalar operands of a call that are constants."""
    return [_constant(value) for value in list(op.operands)[: kernel.num_scalars]]


def _constant(value: ir.Value[Any]) -> Ints | None:
    maker = _source(value)
    if maker is None or maker.name != "stablehlo.constant":
        return None
    given = maker.attributes["value"]
    return np.array(given, np.int64) if isinstance(given, ir.DenseIntElementsAttr) else None


def _source(value: ir.Value[Any]) -> ir.Operation | None:
    """Returns the op that has made a value, outside of loops that keep it and before barriers; None where none has."""
    while True:
        maker = maker_of(value)
        if maker is None:
            number, loop = ir.BlockArgument(value).arg_number, ir.BlockArgument(value).owner.owner.operation
        elif maker.name in (WHILE, BARRIER):
            number, loop = ir.OpResult(value).result_number, maker
        else:
            return maker
        if loop.name not in (WHILE, BARRIER):
            return None
        if loop.name == WHILE:
            body = loop.regions[1].blocks[0]
            if end_of(body).operands[number] != body.arguments[number]:
                return None
        value = loop.operands[number]


def work_of(kernel: Kernel, tables: Sequence[Ints | None] = ()) -> tuple[CallWork, Counts]:
    """Returns the work of a kernel on its whole grid, and its operations at each point.

    A window is moved when another one takes its place. `tables` are the scalar operands, as far as they are known.
    """
    points = Points(kernel.bounds, kernel.body, kernel.num_scalars, tables)
    flops, product_flops = _counted(kernel.block, points)
    first, moved = len(kernel.bounds), 0
    arguments = list(kernel.block.arguments)[first : first + kernel.num_scalars + len(kernel.windows)]
    for argument, window in zip(arguments, (*[None] * kernel.num_scalars, *kernel.windows), strict=True):
        places = [] if window is None else window_place(kernel, window, tables)[0]
        kind = ir.MemRefType(argument.type)
        num_bytes = prod(kind.shape) * int(getattr(kind.element_type, "width", 8)) // 8
        moved += round(_moves(places, kernel.bounds) * num_bytes)
    products = [op for op in walk(kernel.body) if op.name == _MATMUL]
    dtype = str(ir.VectorType(products[0].operands[0].type).element_type) if products else ""
    every = _plus(dict(flops), product_flops)
    total, in_products = (round(_mean(one) * prod(kernel.bounds)) for one in (every, product_flops))
    return CallWork(total, in_products, dtype, moved), every


def loads_along(counts: Counts, bounds: Sequence[int], grid: int, cut: int) -> tuple[int, ...]:
    """Returns the operations at each place along a dim of the grid whose coordinate is divided by `cut`.

    Nothing is returned where they are the same everywhere.
    """
    others = tuple(number for number in range(len(bounds)) if number != grid)
    line = np.zeros(bounds[grid])
    for one in counts.values():
        line = line + one.mean(axis=others)
    places = line.reshape(-1, cut).sum(axis=1) * (prod(bounds) // bounds[grid])
    return tuple(round(one) for one in places.tolist()) if (places != places[0]).any() else ()


def _moves(places: Sequence[Known], bounds: Sequence[int]) -> float:
    """Returns how often a window comes: whenever its place is another one than at the point before."""
    follows = sorted(frozenset[int]().union(*(place.of for place in places)))
    times = float(prod(bounds[: max(follows, default=-1) + 1]))
    shape = [bounds[grid] if grid in follows else 1 for grid in range(len(bounds))]
    if not follows or prod(shape) > MOST_POINTS:
        return times
    lines = [np.broadcast_to(place.at, shape).ravel() for place in places if place.at is not None]
    if len(lines) < len(places):
        return times
    changes = 1 + np.count_nonzero(np.any([line[1:] != line[:-1] for line in lines], axis=0))
    return times * changes / prod(shape)


def _mean(counts: Counts) -> float:
    return sum(float(one.mean()) for one in counts.values())


def _counted(block: ir.Block, points: Points) -> tuple[Counts, Counts]:
    """Returns the operations of a block at the points of the grid: on elements, and in matrix products."""
    flops, product_flops = Counts(), Counts()
    once = np.ones((1,) * len(points.bounds))
    for view in block.operations:
        op = view.operation
        times = _times(op, points)
        for region, share in zip(op.regions, times, strict=False):
            for inside in region.blocks:
                own = _counted(inside, points)
                _plus(flops, own[0], share)
                _plus(product_flops, own[1], share)
        if op.name == _MATMUL:
            lhs, rhs, result = (prod(ir.VectorType(one.type).shape) for one in (*list(op.operands)[:2], op.results[0]))
            _plus(product_flops, {once.shape: once * 2 * result * (lhs * rhs / result) ** 0.5})
        elif op.name.startswith(("arith.", "math.", "vector.multi_reduction")) and op.name != "arith.constant":
            kinds = [one.type for one in (*op.operands, *op.results) if isinstance(one.type, ir.VectorType)]
            _plus(flops, {once.shape: once * max((prod(ir.VectorType(kind).shape) for kind in kinds), default=0)})
    return flops, product_flops


def _plus(counts: Counts, more: Counts, times: Times | None = None) -> Counts:
    """Adds `more` to `counts`, so many times; on average where that is another number at too many points."""
    for one in more.values():
        factor = np.ones_like(one) if times is None else times
        if prod(np.broadcast_shapes(factor.shape, one.shape)) > MOST_POINTS:
            factor, one = factor.mean(keepdims=True), one.mean(keepdims=True)
        added = factor * one
        counts[added.shape] = counts[added.shape] + added if added.shape in counts else added
    return counts


def _times(op: ir.Operation, points: Points) -> tuple[Times, ...]:
    """Returns how often each region of an op runs, once where nobody knows."""
    once = np.ones((1,) * len(points.bounds))
    if op.name == "scf.if":
        asked = points.at(op.operands[0]).at
        return (once, once) if asked is None else (once * (asked != 0), once * (asked == 0))
    if op.name == "scf.for":
        ends = [points.at(value).at for value in list(op.operands)[:3]]
        known = [end for end in ends if end is not None]
        return (np.maximum(0.0, once * (known[1] - known[0]) / known[2]) if len(known) == 3 else once,)
    return (once,) * len(op.regions)
