"""One op rewritten for viewed shapes: a dim that is seen in blocks is two dims to it.

Which ops can be, is what `can_rewrite` says; op semantics are in their sharding rules, and here are only the attributes
that number dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rhino.ir.graph.blocks import Blocks, View, interleave, put_in_order, viewed_shape
from rhino.ir.graph.graph import OpClass
from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import ir, sdy, stablehlo
from rhino.ir.mlir.boundary import Attributes
from rhino.ir.mlir.reader import maker_of
from rhino.ir.program.op_stages import copy_stage
from rhino.passes.layout.shapes import (
    BARRIER,
    CONSTRAINT,
    RESHAPE,
    Shape,
    int_array,
    ints,
    retype,
    shape_of,
    with_shape,
    works_by_element,
)
from rhino.strategies.structure.factor_links import Cut

_SLICE, _PAD, _CONCATENATE = "stablehlo.slice", "stablehlo.pad", "stablehlo.concatenate"
_EDGES: Final = ("edge_padding_low", "edge_padding_high", "interior_padding")


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor as an op sees it: the blocks of each dim.

    `dims[d]` are the numbers, in the viewed shape, of what dim `d` becomes.
    """

    view: View
    dims: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        dims: list[tuple[int, ...]] = []
        for blocks in self.view:
            start = dims[-1][-1] + 1 if dims else 0
            dims.append((start, start + 1) if blocks.is_split else (start,))
        object.__setattr__(self, "dims", tuple(dims))

    @property
    def shape(self) -> Shape:
        """The shape without the view."""
        return tuple(blocks.size for blocks in self.view)

    @property
    def viewed(self) -> Shape:
        """The shape after the view."""
        return viewed_shape(self.view)

    def map(self, numbers: Sequence[int], change: Callable[[Blocks, int], Shape]) -> Shape:
        """Returns what becomes, in the viewed shape, of a number that each dim has."""
        return _flat(change(blocks, number) for blocks, number in zip(self.view, numbers, strict=True))

    def numbers(self, dims: Iterable[int]) -> Shape:
        """Returns what becomes of the dims with these numbers."""
        return _flat(self.dims[dim] for dim in dims)


def cut_of(op: ir.Operation) -> Cut | None:
    """Returns what a slice, concatenation or padding cuts.

    Returns None for other ops, and where elements are skipped or removed.
    """
    match op.name:
        case "stablehlo.slice" if set(ints(op, "strides")) <= {1}:
            return Cut(0, (1,), (ints(op, "start_indices"),))
        case "stablehlo.pad":
            low, high, interior = (ints(op, name) for name in _EDGES)
            return Cut(2, (0,), (low,)) if not any(interior) and min((*low, *high), default=0) >= 0 else None
        case "stablehlo.concatenate":
            return _joined(op)
    return None


def _joined(op: ir.Operation) -> Cut:
    dim, rank, start = _int(op, "dimension"), len(shape_of(op.results[0])), 0
    offsets = []
    for operand in op.operands:
        offsets.append(tuple(start if number == dim else 0 for number in range(rank)))
        start += shape_of(operand)[dim]
    return Cut(len(offsets), tuple(range(len(offsets))), tuple(offsets))


def can_rewrite(op: ir.Operation, cls: OpClass) -> bool:
    """Says whether an op can be written for viewed shapes.

    It can if known attributes number its dims, or if it works element by element.
    """
    if op.name in _CUTTING:
        return cut_of(op) is not None
    if op.name == BARRIER:
        return True
    if cls.rule is None or op.name in _HANDLERS or op.name in _INDEXED:
        return cls.rule is not None
    return works_by_element(op, cls)


def rewrite(op: ir.Operation, seen: Sequence[Seen], cut: Cut | None) -> ir.Operation:
    """Rewrites an op, whose operands have their viewed shapes, for what it sees; returns what stands in its place.

    A part of a cut is taken, or given, in two dims even where it is one block: `[1, block]`, `[parts, block / parts]`.
    """
    if RULE in op.attributes:
        del op.attributes[RULE]
    if op.name in _INDEXED:
        return _rewrite_indexed(op, seen)
    for name, attribute in _HANDLERS[op.name](op, seen).items() if op.name in _HANDLERS else ():
        op.attributes[name] = attribute
    shapes = [one.viewed for one in seen]
    if cut is not None:
        for part in cut.parts:
            shapes[part] = seen[cut.whole].map(seen[part].shape, Blocks.upto)
    for position, operand in enumerate(op.operands):
        op.operands[position] = _Moves(op, op).reshaped(operand, shapes[position])
    for result, shape in zip(op.results, shapes[len(op.operands) :], strict=True):
        retype(result, shape)
    return op


def _rewrite_indexed(op: ir.Operation, seen: Sequence[Seen]) -> ir.Operation:
    """Returns a dynamic slice, or its update, with an index for each new dim.

    A viewed dim is taken whole, so that any index of it is clamped to 0: the one that is there serves both.
    """
    num_tensors = len(op.operands) - len(seen[0].shape)
    indices = [op.operands[num_tensors + dim] for dim, new in enumerate(seen[0].dims) for _ in new]
    attributes = {name: op.attributes[name] for name in op.attributes}
    if "slice_sizes" in attributes:
        attributes["slice_sizes"] = int_array(seen[-1].viewed)
    kinds = [with_shape(op.results[0].type, seen[-1].viewed)]
    with ir.InsertionPoint(op), op.location:
        new = ir.Operation.create(op.name, kinds, [*list(op.operands)[:num_tensors], *indices], attributes)
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    return new


@dataclass(frozen=True, slots=True)
class _Moves:
    """Ops that move elements, placed before one op and with the place and the stage of another."""

    before: ir.Operation
    like: ir.Operation

    def cut(self, array: ir.Value[Any], dim: int, start: int, size: int) -> ir.Value[Any]:
        shape = shape_of(array)
        starts, limits = [0] * len(shape), list(shape)
        starts[dim], limits[dim] = start, start + size
        ends = int_array(starts), int_array(limits), int_array([1] * len(shape))
        return self.made(array, lambda: stablehlo.SliceOp(array, *ends))

    def joined(self, arrays: Sequence[ir.Value[Any]], dim: int) -> ir.Value[Any]:
        return self.made(arrays[0], lambda: stablehlo.ConcatenateOp(arrays, dim))

    def reshaped(self, array: ir.Value[Any], shape: Shape) -> ir.Value[Any]:
        if not _is_tensor(array) or shape_of(array) == shape:
            return array
        return self.made(array, lambda: stablehlo.ReshapeOp(with_shape(array.type, shape), array))

    def made(self, value: ir.Value[Any], op: Callable[[], Any]) -> ir.Value[Any]:
        with ir.InsertionPoint(self.before), self.like.location:
            new = op().operation
        copy_stage(new, (self.like, maker_of(value)))
        result: ir.Value[Any] = new.results[0]
        return result

    def brought(self, value: ir.Value[Any], source: View, target: View) -> ir.Value[Any]:
        """Returns a value that is in one view in another."""
        for dim, blocks in enumerate(source):
            if blocks.parts > 1 and blocks != target[dim]:
                at = Seen(source).dims[dim][0]
                source = (*source[:dim], Blocks((blocks.size,)), *source[dim + 1 :])
                value = put_in_order(value, viewed_shape(source), at, blocks, self)
        for dim, blocks in enumerate(target):
            if blocks.parts > 1 and blocks != source[dim]:
                source = (*source[:dim], Blocks((blocks.size,)), *source[dim + 1 :])
                value = self.reshaped(value, viewed_shape(source))
                value = interleave(value, viewed_shape(source), Seen(source).dims[dim][0], blocks, self)
                source = (*source[:dim], blocks, *source[dim + 1 :])
        return self.reshaped(value, viewed_shape(target))


def read_as(value: ir.Value[Any], source: Seen, target: Seen, before: ir.Operation) -> ir.Value[Any]:
    """Returns a value that is in one view in another, for `before` to read: itself, if it is in that."""
    return _Moves(before, before).brought(value, source.view, target.view)


def store(op: ir.Operation, result: ir.Value[Any], given: Seen, stored: Seen) -> None:
    """Makes all readers of a result of `op`, which gives it in one view, read it in another."""
    if not _is_tensor(result) or (shape_of(result) == given.viewed == stored.viewed and given.view == stored.view):
        return
    uses, following = list(result.uses), ir.InsertionPoint.after(op).ref_operation
    assert following is not None, "a block ends with a terminator"
    moves = _Moves(following, op)
    last = moves.brought(moves.reshaped(result, given.viewed), given.view, stored.view)
    for use in uses:
        use.owner.operands[use.operand_number] = last


def viewed_sharding(sharding: ir.Attribute, seen: Seen) -> ir.Attribute:
    """Returns a sharding with one more unsplit dim, as open as the one that it comes from, for each viewed dim."""
    given = sdy.TensorShardingAttr(sharding)
    dims = _flat([dim] * len(new) for dim, new in zip(given.dimension_shardings, seen.dims, strict=True))
    return ir.Attribute(
        sdy.TensorShardingAttr.get(given.mesh_or_ref, dims, list(given.replicated_axes), list(given.unreduced_axes))
    )


def split_dims(sharding: ir.Attribute) -> list[int]:
    """Returns the dims that a sharding splits."""
    dims = sdy.TensorShardingAttr(sharding).dimension_shardings
    return [number for number, dim in enumerate(dims) if list(sdy.DimensionShardingAttr(dim).axes)]


def _dot(op: ir.Operation, seen: Sequence[Seen]) -> Attributes:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = seen[0], seen[1]
    sides = (
        left.numbers(numbers.lhs_batching_dimensions),
        right.numbers(numbers.rhs_batching_dimensions),
        left.numbers(numbers.lhs_contracting_dimensions),
        right.numbers(numbers.rhs_contracting_dimensions),
    )
    return {"dot_dimension_numbers": stablehlo.DotDimensionNumbers.get(*sides)}


def _broadcast(op: ir.Operation, seen: Sequence[Seen]) -> Attributes:
    source, target = seen
    pairs = zip(source.dims, ints(op, "broadcast_dimensions"), strict=True)
    # A dim of size 1 stays one dim: it is repeated along the blocks, and what it then is along the inside of each.
    return {"broadcast_dimensions": int_array(_flat(target.dims[to][: len(dims)] for dims, to in pairs))}


def _slice(op: ir.Operation, seen: Sequence[Seen]) -> Attributes:
    start, limit = (ints(op, name) for name in ("start_indices", "limit_indices"))
    return {
        "start_indices": int_array(seen[0].map(start, Blocks.start)),
        "limit_indices": int_array(seen[0].map(limit, Blocks.upto)),
        "strides": int_array((1,) * len(seen[0].viewed)),
    }


def _pad(op: ir.Operation, seen: Sequence[Seen]) -> Attributes:
    return {name: int_array(seen[2].map(ints(op, name), Blocks.start)) for name in _EDGES}


def _concatenate(op: ir.Operation, seen: Sequence[Seen]) -> Attributes:
    dim = _int(op, "dimension")
    dim = seen[-1].dims[dim][seen[-1].view[dim].cut_dim]
    return {"dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)}


def _numbering(name: str) -> Callable[[ir.Operation, Sequence[Seen]], Attributes]:
    """Returns the handler of an op whose attribute `name` numbers dims of its first operand."""
    return lambda op, seen: {name: int_array(seen[0].numbers(ints(op, name)))}


_CUTTING: Final = {_SLICE: _slice, _PAD: _pad, _CONCATENATE: _concatenate}
_INDEXED: Final = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"})
_HANDLERS: Final[dict[str, Callable[[ir.Operation, Sequence[Seen]], Attributes]]] = {
    **_CUTTING,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.dot_general": _dot,
    "stablehlo.reduce": _numbering("dimensions"),
    RESHAPE: lambda op, seen: {},
    "stablehlo.transpose": _numbering("permutation"),
    CONSTRAINT: lambda op, seen: {"sharding": viewed_sharding(op.attributes["sharding"], seen[0])},
}
"""The attributes that change with the shapes, by op."""


def _flat(parts: Iterable[Iterable[Any]]) -> tuple[Any, ...]:
    return tuple(number for part in parts for number in part)


def _is_tensor(value: ir.Value[Any]) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _int(op: ir.Operation, name: str) -> int:
    return int(ir.IntegerAttr(op.attributes[name]).value)
