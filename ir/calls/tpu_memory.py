"""Whether a kernel for TPUs reads memory that stays from point to point only after it has written it anew."""

from __future__ import annotations

from math import prod
from typing import Any, Final

from rhino.ir.calls.tpu_points import Points
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk

_STORE: Final = "memref.store"
_STORES: Final = (_STORE, "tpu.vector_store", "vector.store")


def are_fresh(
    block: ir.Block,
    stays: frozenset[ir.Value[Any]],
    fresh: set[ir.Value[Any]],
    points: Points,
    start: tuple[slice, ...],
) -> bool:
    """Says whether the ops of a block read nothing of `stays` that is not `fresh`, and adds what they write to that.

    What they read matters at the points `start` of the grid.
    """
    return all(_is_fresh(op.operation, stays, fresh, points, start) for op in block.operations)


def _is_fresh(
    op: ir.Operation,
    stays: frozenset[ir.Value[Any]],
    fresh: set[ir.Value[Any]],
    points: Points,
    start: tuple[slice, ...],
) -> bool:
    """Says whether an op reads nothing of `stays` that is not `fresh`, and adds what it writes."""
    if op.name == "scf.if":
        asked = points.at(op.operands[0]).at
        at_start = None if asked is None else asked[_one_of_equal(asked.shape, start)] != 0
        for region, taken in zip(op.regions, (at_start, None if at_start is None else ~at_start), strict=True):
            if taken is None or taken.any():  # what only some points write is not written whole
                inside = fresh if taken is not None and taken.all() else set(fresh)
                if not all(are_fresh(block, stays, inside, points, start) for block in region.blocks):
                    return False
        return True
    if op.name in _STORES and _writes_whole(op):
        fresh.add(op.operands[1])
    stale = stays - fresh
    return not any(value in stale for one in walk(op) for value in one.operands) or _is_unread(op)


def _one_of_equal(shape: tuple[int, ...], places: tuple[slice, ...]) -> tuple[slice, ...]:
    """Returns the places of a broadcast array in the array of this shape: along dims where all are equal, the one.

    The shape of what is the same at every point may have no dims.
    """
    return tuple(slice(None) if size == 1 else place for size, place in zip(shape, places, strict=False))


def _writes_whole(op: ir.Operation) -> bool:
    """Says whether a store, of a value into memory, leaves nothing of the memory as it was."""
    value, memory, *indices = op.operands
    if op.name == _STORE:
        return prod(ir.MemRefType(memory.type).shape) == 1
    return (
        list(ir.VectorType(value.type).shape) == list(ir.MemRefType(memory.type).shape)
        and len(indices) == len(ir.MemRefType(memory.type).shape)  # there is no mask
        and not ("add" in op.attributes and ir.BoolAttr(op.attributes["add"]).value)
    )


def is_written(memory: ir.Value[Any]) -> bool:
    """Says whether an op may write `memory`, or a view of it."""
    for op in (use.owner.operation for use in memory.uses):
        if op.name.endswith("load"):
            continue
        if not len(op.results) or any(not isinstance(one.type, ir.MemRefType) or is_written(one) for one in op.results):
            return True
    return False


def _is_unread(op: ir.Operation) -> bool:
    """Says whether nothing follows from an op: Pallas loads what it then overwrites."""
    pending, seen = [op], {op}
    while pending:
        one = pending.pop()
        if not len(one.results) or len(one.regions):
            return False
        users = {use.owner.operation for value in one.results for use in value.uses} - seen
        pending += users
        seen |= users
    return True
