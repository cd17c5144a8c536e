"""Which dims of an op's operands and results go together, row by row: so it can run on some rows at a time.

Source    StableHLO specification, section "Ops".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.numerics import FUSIBLE, reduction_of

Dim = int | None


@dataclass(frozen=True, slots=True)
class RowDims:
    """The dim of rows of each operand, and of the result; None where a tensor is whole for all rows.

    Where rows are summed (or their maximum taken, ...), the result is None and `joins` is the op that joins the
    results of several groups of rows.
    """

    operands: tuple[Dim, ...]
    result: Dim
    joins: str | None = None


def row_dims(op: ir.Operation, position: int | None, dim: int) -> RowDims | None:
    """Returns how an op runs row by row, where dim `dim` of operand `position` (None: of its result) is that of rows.

    Returns None where it cannot.
    """
    if len(op.results) != 1:
        return None
    rule = _RULES.get(op.name, _elementwise if op.name in FUSIBLE else None)
    return rule(op, position, dim) if rule is not None else None


def on_rows(op: ir.Operation, dims: RowDims, operands: Sequence[ir.Value[Any]], num_rows: int) -> ir.Value[Any]:
    """Returns what an op makes of some rows, `num_rows` of them, at the insertion point."""
    if op.name == "stablehlo.constant":
        assert dims.result is not None, "a constant has no operands"
        kind = _with_size(op.results[0].type, dims.result, num_rows)
        splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
        made: ir.Value[Any] = stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, splat), loc=op.location).result
        return made
    copy = op.clone(ip=ir.InsertionPoint.current)
    for number, operand in enumerate(operands):
        copy.operands[number] = operand
    if dims.result is not None:
        copy.results[0].set_type(_with_size(op.results[0].type, dims.result, num_rows))
        if op.name == "stablehlo.slice":
            ends = list(ir.DenseI64ArrayAttr(op.attributes["limit_indices"]))
            ends[dims.result] = num_rows
            copy.attributes["limit_indices"] = ir.DenseI64ArrayAttr.get(ends)
    result: ir.Value[Any] = copy.results[0]
    return result


def rows_of(value: ir.Value[Any], dim: int, start: int, stop: int) -> ir.Value[Any]:
    """Returns rows `start` to `stop` of a value, at the insertion point."""
    shape = _shape(value)
    first, last = [0] * len(shape), list(shape)
    first[dim], last[dim] = start, stop
    steps = ir.DenseI64ArrayAttr.get([1] * len(shape))
    made: ir.Value[Any] = stablehlo.SliceOp(
        value, ir.DenseI64ArrayAttr.get(first), ir.DenseI64ArrayAttr.get(last), steps
    ).result
    return made


def with_rows(kind: ir.Type, num_rows: int) -> ir.RankedTensorType:
    """Returns the type of a stack with another number of rows."""
    return _with_size(kind, 0, num_rows)


def _with_size(kind: ir.Type, dim: int, size: int) -> ir.RankedTensorType:
    tensor = ir.RankedTensorType(kind)
    shape = list(tensor.shape)
    shape[dim] = size
    return ir.RankedTensorType.get(shape, tensor.element_type)


def _shape(value: ir.Value[Any]) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _elementwise(op: ir.Operation, _: Dim, dim: int) -> RowDims | None:
    shape = _shape(op.results[0])
    shapes = [_shape(value) for value in op.operands]
    if any(one and one != shape for one in shapes):
        return None
    return RowDims(tuple(dim if one else None for one in shapes), dim)


def _constant(op: ir.Operation, _: Dim, dim: int) -> RowDims | None:
    value = op.attributes["value"]
    is_splat = isinstance(value, ir.DenseElementsAttr) and value.is_splat
    return RowDims((), dim) if is_splat else None


def _iota(op: ir.Operation, _: Dim, dim: int) -> RowDims | None:
    return RowDims((), dim) if ir.IntegerAttr(op.attributes["iota_dimension"]).value != dim else None


def _broadcast(op: ir.Operation, position: Dim, dim: int) -> RowDims | None:
    places = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    before, after = _shape(op.operands[0]), _shape(op.results[0])
    if position is not None:
        return RowDims((dim,), places[dim]) if before[dim] == after[places[dim]] else None
    own = places.index(dim) if dim in places else None
    return RowDims((None if own is None or before[own] != after[dim] else own,), dim)


def _transpose(op: ir.Operation, position: Dim, dim: int) -> RowDims | None:
    order = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    return RowDims((dim,), order.index(dim)) if position is not None else RowDims((order[dim],), dim)


def _reshape(op: ir.Operation, position: Dim, dim: int) -> RowDims | None:
    shapes = [_shape(op.operands[0]), _shape(op.results[0])]
    own, other = shapes if position is not None else shapes[::-1]
    same = [one for one, size in enumerate(other) if size == own[dim] and prod(other[:one]) == prod(own[:dim])]
    if len(same) != 1:
        return None
    return RowDims((dim,), same[0]) if position is not None else RowDims((same[0],), dim)


def _whole_dim(op: ir.Operation, _: Dim, dim: int) -> RowDims | None:
    """Where a dim is neither cut nor padded."""
    return RowDims((dim, *[None] * (len(op.operands) - 1)), dim) if _is_whole(op, dim) else None


def _is_whole(op: ir.Operation, dim: int) -> bool:
    if op.name == "stablehlo.slice":
        return _shape(op.operands[0])[dim] == _shape(op.results[0])[dim]
    if op.name == "stablehlo.reverse":
        return dim not in list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    sides = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return all(list(ir.DenseI64ArrayAttr(op.attributes[side]))[dim] == 0 for side in sides)


def _concatenate(op: ir.Operation, _: Dim, dim: int) -> RowDims | None:
    is_other = ir.IntegerAttr(op.attributes["dimension"]).value != dim
    return RowDims((dim,) * len(op.operands), dim) if is_other else None


def _reduce(op: ir.Operation, position: Dim, dim: int) -> RowDims | None:
    gone = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    left = [one for one in range(len(_shape(op.operands[0]))) if one not in gone]
    own = dim if position is not None else left[dim]
    if position == 1:
        return None
    if own not in gone:
        return RowDims((own, None), left.index(own))
    joins = op.regions[0].blocks[0].operations[0].operation.name if reduction_of(op) is not None else None
    return RowDims((own, None), None, joins) if joins is not None else None


def _product(op: ir.Operation, position: Dim, dim: int) -> RowDims | None:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)]
    summed = [list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)]
    free = [
        [one for one in range(len(_shape(op.operands[side]))) if one not in batch[side] and one not in summed[side]]
        for side in (0, 1)
    ]
    count = len(batch[0])
    if position is None:
        if dim < count:
            return RowDims((batch[0][dim], batch[1][dim]), dim)
        at = dim - count
        return (
            RowDims((free[0][at], None), dim) if at < len(free[0]) else RowDims((None, free[1][at - len(free[0])]), dim)
        )
    if dim in batch[position]:
        at = batch[position].index(dim)
        return RowDims((batch[0][at], batch[1][at]), at)
    if dim in free[position]:
        at = free[position].index(dim) + count + (len(free[0]) if position else 0)
        return RowDims((dim, None) if position == 0 else (None, dim), at)
    at = summed[position].index(dim)
    is_wide = isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.F32Type | ir.F64Type)
    return RowDims((summed[0][at], summed[1][at]), None, "stablehlo.add") if is_wide else None


_Rule = Callable[[ir.Operation, Dim, int], RowDims | None]

_RULES: Final[Mapping[str, _Rule | None]] = MappingProxyType(
    {
        "stablehlo.broadcast_in_dim": _broadcast,
        "stablehlo.concatenate": _concatenate,
        "stablehlo.constant": _constant,
        "stablehlo.dot_general": _product,
        "stablehlo.iota": _iota,
        "stablehlo.pad": _whole_dim,
        "stablehlo.reduce": _reduce,
        "stablehlo.reshape": _reshape,
        "stablehlo.reverse": _whole_dim,
        "stablehlo.slice": _whole_dim,
        "stablehlo.transpose": _transpose,
        "stablehlo.broadcast": None,
        "stablehlo.bitcast_convert": None,
        "stablehlo.dynamic_slice": None,
    }
)
"""The rules that are not those of ops that work element by element; None for ops that are never run on rows."""
