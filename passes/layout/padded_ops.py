"""Rewrite one op for padded shapes.

This changes its types, the attributes that give sizes, and indices that must stay out of the padding.

Which ops can be, is what `can_pad` says; which of their dims are padded, their sharding rules
(strategies/layout/padding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rhino.ir.graph.graph import OpClass
from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.identity import is_uniform, make_constant
from rhino.passes.layout.shapes import (
    BARRIER,
    CONSTRAINT,
    RESHAPE,
    Shape,
    element_of,
    int_array,
    ints,
    retype,
    shape_of,
    with_shape,
    works_by_element,
)

_GATHER, _SCATTER, _SLICE, _DYNAMIC_SLICE = (
    "stablehlo.gather",
    "stablehlo.scatter",
    "stablehlo.slice",
    "stablehlo.dynamic_slice",
)
_IOTA: Final = "stablehlo.iota"
_PLAIN: Final = tuple(
    f"stablehlo.{name}"
    for name in (
        "broadcast_in_dim",
        "concatenate",
        "dot_general",
        "dynamic_update_slice",
        "pad",
        "reduce",
        "sort",
        "transpose",
    )
)
"""Ops whose attributes hold no sizes."""
_ABLE: Final = frozenset({_SLICE, _DYNAMIC_SLICE, _GATHER, RESHAPE, CONSTRAINT, *_PLAIN})
_WIDE_BITS: Final = 32
"""Unsigned integers of so many bits hold a number that no dim has."""


def can_pad(op: ir.Operation, cls: OpClass) -> bool:
    """Says whether an op can be written for padded shapes, along the dims that its sharding rule leaves free."""
    if op.name == BARRIER:
        return True
    if cls.rule is None:
        return False
    if op.name == _SCATTER:
        kind = element_of(op.operands[1])
        return len(op.results) == 1 and (not kind.is_unsigned or kind.width >= _WIDE_BITS)
    return op.name in _ABLE or works_by_element(op, cls)


def is_made_anew(op: ir.Operation) -> bool:
    """Says whether each reader of an op's result can make it in the shape that it wants."""
    return op.name == _IOTA or is_uniform(op)


def resized(value: ir.Value[Any], shape: Shape) -> ir.Value[Any]:
    """Returns a value cut to a shape where it is larger, and with zeros behind it where it is smaller.

    The ops are made at the insertion point.

    Not by `stablehlo.pad`: where that is what a split product reads, Shardy's conversion to local shapes ends the
    process unless it sees that the padding is zero, which it does not inside of a loop (jaxlib 0.10.2).
    """
    own = shape_of(value)
    least = tuple(map(min, own, shape))
    if least != own:
        value = stablehlo.SliceOp(value, [0] * len(own), list(least), [1] * len(own)).result
    for dim, (size, wanted) in enumerate(zip(least, shape, strict=True)):
        if size != wanted:
            before = shape_of(value)
            zeros = with_shape(value.type, (*before[:dim], wanted - size, *before[dim + 1 :]))
            value = stablehlo.ConcatenateOp([value, make_constant(zeros, 0)], dim).result
    return value


def masked(value: ir.Value[Any], dims: Sequence[int], own: Shape, fill: float | ir.Value[Any]) -> ir.Value[Any]:
    """Returns a value with `fill`, a number or a scalar, behind the `own` size of each of `dims`.

    The ops are made at the insertion point.
    """
    kind = value.type
    instead = (
        stablehlo.BroadcastInDimOp(kind, fill, []).result if isinstance(fill, ir.Value) else make_constant(kind, fill)
    )
    for dim in dims:
        value = stablehlo.SelectOp(_inside(shape_of(value), dim, own[dim]), value, instead).result
    return value


def _inside(shape: Shape, dim: int, size: int) -> ir.Value[Any]:
    """Makes the test whether an element of a tensor of `shape` lies in the first `size` along a dim."""
    kind = ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32))
    count = stablehlo.IotaOp(kind, dim).result
    test: ir.Value[Any] = stablehlo.CompareOp(count, make_constant(kind, size), _direction("LT")).result
    return test


def rewrite(op: ir.Operation, shapes: Sequence[Shape], own: Sequence[Shape]) -> None:
    """Rewrites an op, whose operands have `shapes` (results behind them) in place of their `own`, in place."""
    if RULE in op.attributes:
        del op.attributes[RULE]
    first, result = shapes[0], shapes[len(op.operands)]
    match op.name:
        case "stablehlo.slice":
            limits = zip(first, own[0], ints(op, "limit_indices"), strict=True)
            op.attributes["limit_indices"] = int_array([new if new != old else limit for new, old, limit in limits])
        case "stablehlo.dynamic_slice":
            op.attributes["slice_sizes"] = int_array(result)
        case "stablehlo.gather":
            _rewrite_gather(op, first, own[0])
        case "stablehlo.scatter":
            _rewrite_scatter(op, shapes, own)
    for value, shape in zip(op.results, shapes[len(op.operands) :], strict=True):
        retype(value, shape)


def _rewrite_gather(op: ir.Operation, shape: Shape, own: Shape) -> None:
    """Makes a gather take padded dims whole where it took them whole, and clamps other indices to their dim's own size.

    XLA would clamp to the padded size.
    """
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = ints(op, "slice_sizes")
    largest = [old - 1 if old != new and size == 1 else None for old, new, size in zip(own, shape, sizes, strict=True)]
    taken = zip(sizes, own, shape, strict=True)
    op.attributes["slice_sizes"] = int_array([new if size == old else size for size, old, new in taken])
    bounds = [largest[dim] for dim in numbers.start_index_map]
    if any(bound is not None for bound in bounds):
        with ir.InsertionPoint(op), op.location:
            limit = _per_component(op.operands[1], numbers.index_vector_dim, bounds)
            op.operands[1] = stablehlo.MinOp(op.operands[1], limit).result


def _rewrite_scatter(op: ir.Operation, shapes: Sequence[Shape], own: Sequence[Shape]) -> None:
    """Sends indices that are in the operand's padding, or that are padding themselves, out of range.

    A scatter drops updates that are out of range.
    """
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    inserted = numbers.inserted_window_dims
    largest = [
        old - 1 if old != new and dim in inserted else None
        for dim, (old, new) in enumerate(zip(own[0], shapes[0], strict=True))
    ]
    bounds = [largest[dim] for dim in numbers.scattered_dims_to_operand_dims]
    padded = [dim for dim, (old, new) in enumerate(zip(own[1], shapes[1], strict=True)) if old != new]
    with ir.InsertionPoint(op), op.location:
        indices = op.operands[1]
        if any(bound is not None for bound in bounds):
            beyond = stablehlo.CompareOp(
                indices, _per_component(indices, numbers.index_vector_dim, bounds), _direction("GT")
            ).result
            indices = stablehlo.SelectOp(beyond, make_constant(indices.type, _nowhere(indices)), indices).result
        op.operands[1] = masked(indices, padded, own[1], _nowhere(indices))


def _nowhere(indices: ir.Value[Any]) -> int:
    """Returns an index that no dim has: below zero, or the largest where there is nothing below."""
    return _largest(indices) if element_of(indices).is_unsigned else -1


def _largest(indices: ir.Value[Any]) -> int:
    kind = element_of(indices)
    return int(2 ** (kind.width - (0 if kind.is_unsigned else 1)) - 1)


def _per_component(indices: ir.Value[Any], vector_dim: int, bounds: Sequence[int | None]) -> ir.Value[Any]:
    """Makes a tensor of the type of `indices` with the bound of each component.

    A component without a bound gets the largest number of the type.
    """
    most = _largest(indices)
    numbers = [most if bound is None else min(bound, most) for bound in bounds]
    if len(set(numbers)) == 1:
        return make_constant(indices.type, numbers[0])
    kind = ir.RankedTensorType.get([len(numbers)], element_of(indices))
    row = stablehlo.ConstantOp(ir.Attribute.parse(f"dense<{numbers}> : {kind}")).result
    result: ir.Value[Any] = stablehlo.BroadcastInDimOp(indices.type, row, [vector_dim]).result
    return result


def _direction(name: str) -> ir.Attribute:
    return ir.Attribute(stablehlo.ComparisonDirectionAttr.get(name))
