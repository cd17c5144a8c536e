"""Indices that count along one of their own dims, as of `q[arange(B), a]`: these are batching dims.

A gather or scatter that is told by an index which element of the batch to read has to have the whole batch. Where that
index is the position of the index vector itself, each element reads its own, so the dim is a batching dim of the op
(StableHLO specification, "gather" and "scatter"), along which both can be split. Such an index is never out of range:
nothing is clamped or dropped.

What counts is a constant or an iota, behind broadcasts, reshapes, and what turns negative indices into positive ones.
One index at least stays: without any, these ops would have no index vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of
from rhino.ir.program.identity import is_constant
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.program import CONSTANT

Value = ir.Value[Any]

_MOST_READ: Final = 1 << 20
"""Elements of a constant that are looked at."""


def name_batching_dims(ops: Sequence[ir.Operation]) -> None:
    """Makes batching dims of what gathers and scatters index by a count along a dim of their indices, in place.

    What is no longer read stays, for whoever drops dead code.
    """
    for op in ops:
        match op.name:
            case "stablehlo.gather":
                _of_gather(op)
            case "stablehlo.scatter":
                _of_scatter(op)


def _of_gather(op: ir.Operation) -> None:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    taken = _countings(
        op.operands[0],
        op.operands[1],
        numbers.index_vector_dim,
        numbers.start_index_map,
        numbers.collapsed_slice_dims,
        numbers.start_indices_batching_dims,
    )
    if not taken:
        return
    batching = _joined(numbers.operand_batching_dims, numbers.start_indices_batching_dims, taken)
    op.attributes["dimension_numbers"] = stablehlo.GatherDimensionNumbers.get(
        numbers.offset_dims,
        [dim for dim in numbers.collapsed_slice_dims if dim not in taken],
        list(batching),
        list(batching.values()),
        [dim for dim in numbers.start_index_map if dim not in taken],
        numbers.index_vector_dim,
    )
    _drop_indices(op, 1, numbers.index_vector_dim, [dim in taken for dim in numbers.start_index_map])


def _of_scatter(op: ir.Operation) -> None:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    indices = len(op.operands) // 2
    taken = _countings(
        op.operands[0],
        op.operands[indices],
        numbers.index_vector_dim,
        numbers.scattered_dims_to_operand_dims,
        numbers.inserted_window_dims,
        numbers.scatter_indices_batching_dims,
    )
    if not taken:
        return
    batching = _joined(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, taken)
    op.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
        numbers.update_window_dims,
        [dim for dim in numbers.inserted_window_dims if dim not in taken],
        list(batching),
        list(batching.values()),
        [dim for dim in numbers.scattered_dims_to_operand_dims if dim not in taken],
        numbers.index_vector_dim,
    )
    dropped = [dim in taken for dim in numbers.scattered_dims_to_operand_dims]
    _drop_indices(op, indices, numbers.index_vector_dim, dropped)


def _countings(
    operand: Value,
    indices: Value,
    vector_dim: int,
    places: Sequence[int],
    single: Sequence[int],
    batching: Sequence[int],
) -> dict[int, int]:
    """Returns the operand's dims that are indexed by a count, and along which dim of the indices it counts.

    `places` are the operand's dims that are indexed, `single` those that a window has one element of, without a dim of
    its own, and `batching` the dims of the indices that are batching dims already. One index at least is left out.
    """
    columns = _columns(indices, vector_dim)
    if len(columns) != len(places):
        return {}
    sizes, found = shape_of(operand), dict[int, int]()
    for column, place in zip(columns, places, strict=True):
        along = _counts_along(column)
        if along is None or along in (vector_dim, *batching, *found.values()):
            continue
        if place in single and len(found) + 1 < len(places) and shape_of(indices)[along] == sizes[place]:
            found[place] = along
    return found


def _columns(indices: Value, vector_dim: int) -> Sequence[Value]:
    """Returns what each component of an index vector is made of; nothing where they are not joined one by one."""
    made = maker_of(indices)
    if made is None or made.name != "stablehlo.concatenate":
        return ()
    is_by_one = all(shape_of(value)[vector_dim : vector_dim + 1] == (1,) for value in made.operands)
    dim = ir.IntegerAttr(made.attributes["dimension"]).value
    return tuple(made.operands) if dim == vector_dim and is_by_one else ()


def _drop_indices(op: ir.Operation, indices: int, vector_dim: int, dropped: Sequence[bool]) -> None:
    """Leaves components out of the index vectors of an op, whose operand number `indices` they are."""
    columns = _columns(op.operands[indices], vector_dim)
    kept = [column for column, is_dropped in zip(columns, dropped, strict=True) if not is_dropped]
    with ir.InsertionPoint(op), op.location:
        op.operands[indices] = kept[0] if len(kept) == 1 else stablehlo.concatenate(kept, vector_dim)
    if "indices_are_sorted" in op.attributes:  # what is left need not be
        op.attributes["indices_are_sorted"] = ir.BoolAttr.get(False)


def _joined(dims: Sequence[int], others: Sequence[int], taken: Mapping[int, int]) -> dict[int, int]:
    """Adds batching dims of an operand, each with its dim of the indices, in the order of the former."""
    return dict(sorted({**dict(zip(dims, others, strict=True)), **taken}.items()))


def _counts_along(value: Value) -> int | None:
    """Returns the dim such that each element of an integer tensor is its position along it; None where there is none.

    A dim of one element counts as none.
    """
    made = maker_of(value)
    if made is None:
        return None
    match made.name:
        case "stablehlo.iota":
            return _fitting(value, ir.IntegerAttr(made.attributes["iota_dimension"]).value)
        case "stablehlo.broadcast_in_dim":
            return _broadcast(made)
        case "stablehlo.reshape":
            return _reshaped(made)
        case "stablehlo.convert":
            along = _counts_along(made.operands[0])
            return None if along is None else _fitting(value, along)
        case "stablehlo.select" if _is_never(made.operands[0]):
            return _counts_along(made.operands[2])
    return _constant_count(value) if made.name == CONSTANT else None


def _fitting(value: Value, dim: int) -> int | None:
    """Returns a dim if a tensor's type holds all positions along it and there are several."""
    element, size = ir.RankedTensorType(value.type).element_type, shape_of(value)[dim]
    if not isinstance(element, ir.IntegerType) or element.width == 1:
        return None
    return dim if 1 < size <= 2 ** (element.width - (0 if element.is_unsigned else 1)) else None


def _broadcast(op: ir.Operation) -> int | None:
    along = _counts_along(op.operands[0])
    if along is None:
        return None
    dims: Sequence[int] = tuple(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return dims[along]  # of several elements, so that it is not repeated


def _reshaped(op: ir.Operation) -> int | None:
    """Returns where the dim of a count is after a reshape that leaves it in one piece."""
    along = _counts_along(op.operands[0])
    if along is None:
        return None
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    outer = prod(before[:along])
    return next(
        (dim for dim, size in enumerate(after) if size == before[along] and prod(after[:dim]) == outer),
        None,
    )


def _is_never(condition: Value) -> bool:
    """Says whether a condition is false, or that a count is below zero."""
    made = maker_of(condition)
    return is_constant(condition, 0) or (
        made is not None
        and made.name == "stablehlo.compare"
        and str(made.attributes["comparison_direction"]) == "#stablehlo<comparison_direction LT>"
        and is_constant(made.operands[1], 0)
        and _counts_along(made.operands[0]) is not None
    )


def _constant_count(value: Value) -> int | None:
    made, shape = maker_of(value), shape_of(value)
    assert made is not None
    attribute = made.attributes["value"]
    if not isinstance(attribute, ir.DenseIntElementsAttr) or attribute.is_splat or prod(shape) > _MOST_READ:
        return None
    numbers = np.asarray(attribute).reshape(shape)
    for dim, size in enumerate(shape):
        if size > 1 and np.array_equal(numbers, np.broadcast_to(_along(size, dim, len(shape)), shape)):
            return _fitting(value, dim)
    return None


def _along(size: int, dim: int, rank: int) -> np.ndarray[Any, Any]:
    return np.arange(size).reshape([size if n == dim else 1 for n in range(rank)])
