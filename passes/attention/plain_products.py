"""Products inside of attention in one form: heads in a dim of their own, factors of heads as multiplications.

Front ends write the same attention in several ways. PyTorch merges batch and heads into one dim for the products and
splits it again for the softmax; einsums that scale weights by head, as BERT's head masks, are products that sum over
nothing. Written alike, sums over keys are found to follow from others (passes/attention/row_sums.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of
from rhino.ir.program.local_rules import shape_of
from rhino.passes.attention.block_views import converted, reshaped, transposed
from rhino.passes.attention.score_dims import OpDims
from rhino.passes.attention.score_region import CONVERT, DOT, RESHAPE, TRANSPOSE, Region, Value
from rhino.passes.pipeline.parted_ops import broadcast

_REDUCE_PRECISION: Final = "stablehlo.reduce_precision"
_BITS: Final = {"f32": (8, 23), "bf16": (8, 7), "f16": (5, 10), "f64": (11, 52)}
"""Bits of exponent and mantissa."""


def write_products_plainly(region: Region) -> None:
    """Writes the products of attention in that form; an op that nobody reads any more is left."""
    for op, around in [(op, around) for op, around in region.dims.items() if op.name == DOT]:
        with ir.InsertionPoint(op), op.location:
            if not _as_multiplication(op):
                _split_batch(op, around)


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand of a product, its batching dims, and the dims of it that are neither those nor summed over."""

    value: Value
    batching: list[int]
    contracting: list[int]

    @property
    def free(self) -> list[int]:
        return [dim for dim in range(len(shape_of(self.value))) if dim not in (*self.batching, *self.contracting)]


def _sides(product: ir.Operation) -> tuple[_Side, _Side]:
    numbers = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    lhs, rhs = product.operands
    return (
        _Side(lhs, list(numbers.lhs_batching_dimensions), list(numbers.lhs_contracting_dimensions)),
        _Side(rhs, list(numbers.rhs_batching_dimensions), list(numbers.rhs_contracting_dimensions)),
    )


def drop_own_precision(block: ir.Block) -> None:
    """Drops roundings of products to the precision that they have, as `jax.checkpoint` writes on what it stores."""
    for op in [view.operation for view in block.operations]:
        made = maker_of(op.operands[0]) if op.name == _REDUCE_PRECISION else None
        if made is not None and made.name == DOT:
            element = str(ir.RankedTensorType(op.operands[0].type).element_type)
            bits = tuple(ir.IntegerAttr(op.attributes[f"{name}_bits"]).value for name in ("exponent", "mantissa"))
            if _BITS.get(element) == bits:
                op.results[0].replace_all_uses_with(op.operands[0])
                op.erase()


# Factors of heads


def _as_multiplication(product: ir.Operation) -> bool:
    """Writes a product that sums over nothing, and one of whose sides has no other dims, as a multiplication."""
    sides = _sides(product)
    if sides[0].contracting or all(side.free for side in sides):
        return False
    large, small = sides if sides[0].free else sides[::-1]
    element = ir.RankedTensorType(product.results[0].type).element_type
    value, order = _turned(large.value)  # large is `value` with its dims in `order`
    factor = broadcast(converted(small.value, element), _shape(value), _places(large, small, order))
    scaled = stablehlo.MulOp(converted(value, element), factor).result
    _hand_on(product.results[0], scaled, [order[dim] for dim in (*large.batching, *large.free)])
    return True


def _places(large: _Side, small: _Side, order: Sequence[int]) -> list[int]:
    """Returns at which dim of what the large side turns each dim of the small side is."""
    places = dict(zip(small.batching, large.batching, strict=True))
    return [order[places[dim]] for dim in range(len(shape_of(small.value)))]


def _turned(value: Value) -> tuple[Value, list[int]]:
    """Returns what a value turns, and in which order it has the dims of that."""
    order = list(range(len(shape_of(value))))
    made = _before_copies(value)
    while made is not None and made.name == TRANSPOSE:
        turned = _permutation(made)
        order, value = [turned[dim] for dim in order], made.operands[0]
        made = _before_copies(value)
    return value, order


def _hand_on(old: Value, new: Value, order: Sequence[int]) -> None:
    """Puts a value with its dims in an order in the place of another, and of what turns that."""
    for use in list(old.uses):
        reader = use.owner.operation
        if _is_copy(reader):
            _hand_on(reader.results[0], new, order)
        elif reader.name == TRANSPOSE:
            _hand_on(reader.results[0], new, [order[dim] for dim in _permutation(reader)])
    if list(old.uses):
        old.replace_all_uses_with(transposed(new, order))


def _before_copies(value: Value) -> ir.Operation | None:
    made = maker_of(value)
    while made is not None and _is_copy(made):
        made = maker_of(made.operands[0])
    return made


def _is_copy(op: ir.Operation) -> bool:
    return bool(op.name == CONVERT and op.operands[0].type == op.results[0].type)


def _permutation(op: ir.Operation) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))


# Batch and heads in one dim


def _split_batch(product: ir.Operation, around: OpDims) -> None:
    """Splits a batching dim of a product whose scores are merged along it before the product, or split behind it."""
    sides, (result,) = _sides(product), around.results
    for number in range(len(sides[0].batching)):
        found = [
            _merged_from(side.value, side.batching[number])
            for side, at in zip(sides, around.operands, strict=True)
            if at.is_score
        ]
        found += [_split_into(product.results[0], number)] if result.is_score else []
        sizes = next((sizes for sizes in found if sizes is not None), None)
        if sizes is not None:
            _split(product, sides, number, sizes)
            return


def _merged_from(value: Value, dim: int) -> list[int] | None:
    """Returns the sizes of the dims that a reshape merges into a dim, if it does nothing else."""
    made = maker_of(value)
    return _split_sizes(value, dim, made.operands[0]) if made is not None and made.name == RESHAPE else None


def _split_into(value: Value, dim: int) -> list[int] | None:
    """Returns the sizes of the dims into which a reader splits a dim, if it does nothing else."""
    views = [use.owner.operation.results[0] for use in value.uses if use.owner.operation.name == RESHAPE]
    return next((sizes for view in views if (sizes := _split_sizes(value, dim, view)) is not None), None)


def _split_sizes(merged: Value, dim: int, split: Value) -> list[int] | None:
    one, other = _shape(merged), _shape(split)
    more = len(other) - len(one)
    sizes = other[dim : dim + more + 1]
    is_split = more > 0 and 1 not in sizes and prod(sizes) == one[dim]
    return sizes if is_split and other == _with(one, dim, sizes) else None


def _split(product: ir.Operation, sides: Sequence[_Side], number: int, sizes: list[int]) -> None:
    """Writes a product with batching dim `number` as dims of these sizes."""
    more = len(sizes) - 1
    views, dims = list[Value](), list[list[int]]()
    for side in sides:
        place = side.batching[number]
        views.append(_viewed(side.value, _with(_shape(side.value), place, sizes)))
        moved = _behind(place, more)
        batching = list(map(moved, side.batching))
        batching[number : number + 1] = range(place, place + more + 1)
        dims += [batching, list(map(moved, side.contracting))]
    numbers = stablehlo.DotDimensionNumbers.get(dims[0], dims[2], dims[1], dims[3])
    old = product.results[0]
    shape = _with(_shape(old), number, sizes)
    kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(old.type).element_type)
    kept = {name: product.attributes[name] for name in product.attributes if name in ("precision_config", "algorithm")}
    new = ir.Operation.create(DOT, [kind], views, {"dot_dimension_numbers": numbers, **kept}).results[0]
    for use in list(old.uses):
        reader = use.owner.operation
        if reader.name == RESHAPE and _shape(reader.results[0]) == shape:
            reader.results[0].replace_all_uses_with(new)
    if any(list(use.owner.operation.results[0].uses) or use.owner.operation.name != RESHAPE for use in old.uses):
        old.replace_all_uses_with(reshaped(new, _shape(old)))


def _behind(place: int, more: int) -> Callable[[int], int]:
    """Returns where a dim is once `more` stand behind `place`."""
    return lambda dim: dim + more if dim > place else dim


def _viewed(value: Value, shape: list[int]) -> Value:
    """Returns a value in a shape; where it is a view of what has that, this."""
    made = maker_of(value)
    is_view = made is not None and made.name == RESHAPE and _shape(made.operands[0]) == shape
    return made.operands[0] if made is not None and is_view else reshaped(value, shape)


def _with(shape: Sequence[int], dim: int, sizes: Sequence[int]) -> list[int]:
    return [*shape[:dim], *sizes, *shape[dim + 1 :]]


def _shape(value: Value) -> list[int]:
    return list(shape_of(value))
