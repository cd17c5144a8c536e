"""The sharding rule and the work of a kernel for TPUs, read from the kernel itself.

A kernel runs once for each point of a grid, on windows of its operands and results. Where a dim of the grid chooses the
windows and does nothing else, the kernel on a part of that dim gives that part of the results: so in attention the
dims of the batch and of the heads. Where the kernel also computes with the coordinate, as a causal mask does with that
of the keys, it gives it too, once the coordinate is read from a table (`read_place`). Nothing is known by name here;
whose kernel it is does not matter.
"""

from __future__ import annotations

from math import prod

from rhino.ir.calls.tpu_grid import KernelGrid, shapes_of
from rhino.ir.calls.tpu_work import loads_along, tables_of, work_of
from rhino.ir.graph.rules import CallRule
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.tpu_kernels import read_kernel, written


def kernel_rule(op: ir.Operation) -> CallRule | None:
    """Returns the rule of a call of a kernel, None where it has none or cannot be read."""
    kernel = read_kernel(op)
    found = KernelGrid.of(kernel, op) if kernel is not None else None
    if kernel is None or found is None:
        return None
    text, parts = found.rule()
    work, counts = work_of(kernel, tables_of(kernel, op))
    loads = [(name, loads_along(counts, kernel.bounds, *part)) for part, name in parts.items()]
    return CallRule(text, work, tuple((name, load) for name, load in loads if load))


def fit_kernel(op: ir.Operation) -> None:
    """Gives a call of a kernel, made for larger operands and results, the grid of those that it has.

    Raises ValueError where their sizes fit no part of the grid.
    """
    kernel = read_kernel(op)
    found = KernelGrid.of(kernel, op, whole=False) if kernel is not None else None
    if kernel is None or found is None:
        return
    counts = [set[int]() for _ in kernel.bounds]
    for dims, shape in zip(found.dims, shapes_of(op), strict=True):
        for dim, size in zip(dims, shape, strict=True):
            if dim.parts:
                grid, least = dim.parts[0]
                rest = dim.window * prod(found.size(part) for part in dim.parts[1:])
                count = -(-size // rest) * least  # the last window may reach over the end
                counts[grid].add(min(count, kernel.bounds[grid]))  # the grid may leave windows out
    if any(len(count) > 1 for count in counts):
        raise ValueError(f"no part of a kernel's grid {kernel.bounds} is that of its operands and results")
    bounds = [min(count, default=bound) for count, bound in zip(counts, kernel.bounds, strict=True)]
    if tuple(bounds) != kernel.bounds:
        config = written(kernel, bounds, shapes_of(op)[: kernel.num_scalars])
        op.attributes["backend_config"] = ir.StringAttr.get(config, op.context)
