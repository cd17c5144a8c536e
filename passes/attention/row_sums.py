"""Sums over keys that follow from what attention gives, so that they need no loop of their own.

The gradient of a softmax subtracts, in each row, the sum over the keys of weights times their gradients. The gradient
of a weight is the product of the result's gradient with a value, and the result the sum of weighted values: so that sum
is the product of the result with its gradient. It holds for whatever weights have in both, as dropout, and for factors
of rows that they have in one alone, which are applied to the sum.

Source    Dao et al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness" (2022), B.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rhino.ir.graph.graph import REDUCE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of
from rhino.ir.program.identity import make_constant
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import reduction_of
from rhino.passes.attention.block_views import converted
from rhino.passes.attention.online_form import Factor, is_zero, keeps_numbers
from rhino.passes.attention.row_factors import with_factor
from rhino.passes.attention.score_dims import in_order
from rhino.passes.attention.score_region import BROADCAST, CONSTANT, CONVERT, DOT, TRANSPOSE, Region, Value
from rhino.passes.pipeline.parted_ops import broadcast

_SELECT: Final = "stablehlo.select"


@dataclass(eq=False)
class _Product:
    """What a value is a product of: a number, factors of rows, and all else, by how often it is.

    Beside a value stands whether it divides; beside what selects, the number of the operand that is not zero.
    """

    number: float = 1.0
    rows: Counter[tuple[Value, tuple[int, ...], bool]] = field(default_factory=Counter)
    others: Counter[tuple[Value, int]] = field(default_factory=Counter)

    def take(self, value: Value, region: Region, *, divides: bool = False) -> None:
        """Multiplies by a value, or divides by it."""
        made = maker_of(value)
        name = made.name if made is not None and made in region.dims else ""
        if made is None or not name:
            self.others[value, divides] += 1
        elif name == CONVERT and keeps_numbers(made):
            self.take(made.operands[0], region, divides=divides)
        elif name == "stablehlo.negate":
            self.number = -self.number
            self.take(made.operands[0], region, divides=divides)
        elif name in ("stablehlo.multiply", "stablehlo.divide"):
            self.take(made.operands[0], region, divides=divides)
            self.take(made.operands[1], region, divides=divides != (name == "stablehlo.divide"))
        elif name == _SELECT and not divides and any(map(is_zero, list(made.operands)[1:])):
            kept = 2 if is_zero(made.operands[1]) else 1
            self.others[made.operands[0], kept] += 1
            self.take(made.operands[kept], region)
        elif name == BROADCAST and (number := _number(made.operands[0])):
            self.number = self.number / number if divides else self.number * number
        elif (
            name == BROADCAST and region.dims[made].operands[0].query is not None and made.operands[0] not in region.at
        ):
            dims = tuple(ir.DenseI64ArrayAttr(made.attributes["broadcast_dimensions"]))
            self.rows[made.operands[0], dims, divides] += 1
        else:
            self.others[value, divides] += 1


def _product(value: Value, region: Region) -> _Product:
    found = _Product()
    found.take(value, region)
    return found


def _number(value: Value) -> float:
    """Returns the number that a scalar is; 0 where it is none, or not known."""
    made = maker_of(value)
    if made is None or made.name != CONSTANT or shape_of(value):
        return 0.0
    splat = ir.DenseElementsAttr(made.attributes["value"]).get_splat_value()
    return float(splat.value) if isinstance(splat, ir.FloatAttr) else 0.0


@dataclass(frozen=True, slots=True)
class _Sides:
    """A product of values with something for each query: dims of each side, by the dim of the scores that they are.

    `values` is the operand with the keys, `key` is the dim of the keys there. `inner` are the dims of the values that
    are no dim of the scores, and `other_inner` those of the other side, or the result, that they go with.
    """

    values: Value
    key: int
    batch: Mapping[int, int]
    other: Mapping[int, int]
    inner: tuple[int, ...]
    other_inner: tuple[int, ...]


def simplify_row_sums(region: Region) -> bool:
    """Computes from the results of attention those sums over keys that follow from them; says whether there are any."""
    ends = in_order(region.ends)
    found = False
    for place, end in enumerate(ends):
        if end.name == REDUCE and reduction_of(end) == "add" and _is_over_keys(end, region):
            found |= any(_follows(end, other, region) for other in ends[:place] if other.name == DOT)
    return found


def _is_over_keys(end: ir.Operation, region: Region) -> bool:
    at = region.dims[end].operands[0]
    return list(ir.DenseI64ArrayAttr(end.attributes["dimensions"])) == [at.key]


def _follows(end: ir.Operation, result: ir.Operation, region: Region) -> bool:
    """Computes a sum from a result of attention, if it follows from that."""
    weighted = _weighted(result, region)
    if weighted is None or region.dims[end].operands[0] != region.at[weighted[0]]:
        return False
    weights, sides = weighted
    if shape_of(weights) != shape_of(end.operands[0]):
        return False
    summed, given = _product(end.operands[0], region), _product(weights, region)
    left, missing = summed.others - given.others, given.others - summed.others
    if missing or left.total() != 1:
        return False
    ((gradient, divides),) = left
    gradients = None if divides else _gradient(gradient, region)
    if gradients is None or not _agree(gradients[1], sides):
        return False
    with ir.InsertionPoint(end), end.location:
        total = _joined(*gradients, result.results[0], sides, end)
        key = region.dims[end].operands[0].key
        assert key is not None
        total = _scaled(total, summed, given, key)
    end.results[0].replace_all_uses_with(total)
    return True


def _weighted(product: ir.Operation, region: Region) -> tuple[Value, _Sides] | None:
    """Returns the weights of a product that sums weighted values over the keys, and its sides."""
    numbers = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    places = [number for number, value in enumerate(product.operands) if value in region.at]
    if len(places) != 1 or product not in region.ends:
        return None
    (mine,) = places
    at = region.dims[product].operands[mine]
    dims = _dims(numbers, mine)
    if dims.contracting != [at.key]:
        return None
    theirs = _dims(numbers, 1 - mine)
    values = product.operands[1 - mine]
    batch = dict(zip(theirs.batching, dims.batching, strict=True))
    free = [dim for dim in range(len(shape_of(product.operands[mine]))) if dim not in (*dims.batching, at.key)]
    inner = [dim for dim in range(len(shape_of(values))) if dim not in (*theirs.batching, *theirs.contracting)]
    first = len(dims.batching)
    in_result = {dim: place for place, dim in enumerate(dims.batching)}
    start_mine, start_inner = (first, first + len(free)) if mine == 0 else (first + len(inner), first)
    in_result |= {dim: start_mine + place for place, dim in enumerate(free)}
    inner_places = tuple(range(start_inner, start_inner + len(inner)))
    (key,) = theirs.contracting
    return product.operands[mine], _Sides(values, key, batch, in_result, tuple(inner), inner_places)


def _gradient(value: Value, region: Region) -> tuple[Value, _Sides] | None:
    """Returns the result's gradient of which a product with the values gives those of the weights, and its sides."""
    product, places = maker_of(value), tuple(range(len(shape_of(value))))
    while product is not None and product in region.ops and product.name in (CONVERT, TRANSPOSE):
        if product.name == TRANSPOSE:
            permutation = list(ir.DenseI64ArrayAttr(product.attributes["permutation"]))
            places = tuple(places[permutation.index(dim)] for dim in range(len(places)))
        product = maker_of(product.operands[0])
    if product is None or product not in region.ops or product.name != DOT:
        return None
    numbers = stablehlo.DotDimensionNumbers(product.attributes["dot_dimension_numbers"])
    around = region.dims[product]
    keyed = [number for number, at in enumerate(around.operands) if at.key is not None and at.query is None]
    if len(keyed) != 1 or around.operands[1 - keyed[0]].query is None or around.operands[1 - keyed[0]].key is not None:
        return None
    (mine,) = keyed
    values, other = product.operands[mine], product.operands[1 - mine]
    dims, theirs = _dims(numbers, mine), _dims(numbers, 1 - mine)
    batch = {dim: places[place] for place, dim in enumerate(dims.batching)}
    free = [dim for dim in range(len(shape_of(values))) if dim not in (*dims.batching, *dims.contracting)]
    key = around.operands[mine].key
    if key is None or free != [key]:
        return None
    others = [dim for dim in range(len(shape_of(other))) if dim not in (*theirs.batching, *theirs.contracting)]
    start = len(dims.batching) + (1 if mine == 0 else 0)
    on_other = {places[place]: dim for place, dim in enumerate(theirs.batching)}
    on_other |= {places[start + place]: dim for place, dim in enumerate(others)}
    return other, _Sides(values, key, batch, on_other, tuple(dims.contracting), tuple(theirs.contracting))


def _agree(gradient: _Sides, weighted: _Sides) -> bool:
    """Says whether two products see the dims of the same values alike."""
    is_same = gradient.values == weighted.values and gradient.key == weighted.key
    return (
        is_same
        and gradient.batch == weighted.batch
        and set(gradient.inner) == set(weighted.inner)
        and set(gradient.other) == set(weighted.other)
    )


@dataclass(frozen=True, slots=True)
class _DotDims:
    batching: list[int]
    contracting: list[int]


def _dims(numbers: stablehlo.DotDimensionNumbers, side: int) -> _DotDims:
    if side == 0:
        return _DotDims(list(numbers.lhs_batching_dimensions), list(numbers.lhs_contracting_dimensions))
    return _DotDims(list(numbers.rhs_batching_dimensions), list(numbers.rhs_contracting_dimensions))


def _joined(other: Value, gradient: _Sides, result: Value, weighted: _Sides, end: ir.Operation) -> Value:
    """Returns the product of the result's gradient and the result, in the shape of the sum."""
    kind = ir.RankedTensorType(end.results[0].type)
    order = sorted(gradient.other)
    inner = dict(zip(weighted.inner, weighted.other_inner, strict=True))
    numbers = stablehlo.DotDimensionNumbers.get(
        [gradient.other[dim] for dim in order],
        [weighted.other[dim] for dim in order],
        list(gradient.other_inner),
        [inner[dim] for dim in gradient.inner],
    )
    sides = [converted(one, kind.element_type) for one in (other, result)]
    found: Value = stablehlo.DotGeneralOp(kind, *sides, numbers).result
    return found


def _scaled(total: Value, summed: _Product, given: _Product, key: int) -> Value:
    """Returns a sum of the weights that were given with the factors that the program's has."""
    kind = ir.RankedTensorType(total.type)
    if summed.number != given.number:
        number = make_constant(ir.RankedTensorType.get([], kind.element_type), summed.number / given.number)
        total = stablehlo.MulOp(total, broadcast(number, list(kind.shape), [])).result
    for rows, inverts in ((summed.rows - given.rows, False), (given.rows - summed.rows, True)):
        for (row, dims, divides), count in rows.items():
            for _ in range(count):
                total = with_factor(total, Factor(row, _without_key(row, dims, key), divides != inverts))
    return total


def _without_key(row: Value, dims: Sequence[int], key: int) -> tuple[int | None, ...]:
    """Returns at which dims of a sum over the keys a row is, whose dims are at `dims` of the scores."""
    places = zip(shape_of(row), dims, strict=True)
    return tuple(None if size == 1 else dim - (dim > key) for size, dim in places)
