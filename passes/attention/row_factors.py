"""Factors of rows, applied to what was summed up without them."""

from __future__ import annotations

from collections.abc import Sequence

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.identity import make_constant
from rhino.ir.program.local_rules import shape_of
from rhino.passes.attention.block_views import converted, reshaped, value_of
from rhino.passes.attention.online_form import Factor
from rhino.passes.attention.score_region import Value
from rhino.passes.pipeline.parted_ops import broadcast


def with_factor(value: Value, factor: Factor) -> Value:
    """Returns a value with a factor of its rows."""
    kind = ir.RankedTensorType(value.type)
    if factor.zero_where is not None:
        row, zero = spread(factor.row, list(kind.shape), factor.dims), make_constant(kind, 0)
        return value_of(stablehlo.SelectOp(row, *((zero, value) if factor.zero_where else (value, zero))))
    row = spread(converted(factor.row, kind.element_type), list(kind.shape), factor.dims)
    return value_of((stablehlo.DivOp if factor.divides else stablehlo.MulOp)(value, row))


def spread(row: Value, shape: list[int], dims: Sequence[int | None]) -> Value:
    """Returns a row repeated to a shape, its dims at `dims`; those of one element are at None."""
    kept = [dim for dim in dims if dim is not None]
    sizes = [size for size, dim in zip(shape_of(row), dims, strict=True) if dim is not None]
    return broadcast(reshaped(row, sizes), shape, kept)
