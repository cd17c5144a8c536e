"""Tensors in blocks of queries and keys: [blocks, ...] of what has either, and of both what meets in each trip.

In trip `r` block `j` of the queries meets block `j + r` of the keys, round. Blocks are of one size: where there are not
as many queries or keys, zeros stand behind the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.identity import identity_of, make_constant
from rhino.ir.program.local_rules import shape_of
from rhino.passes.attention.score_dims import At

Value = ir.Value[Any]


@dataclass(frozen=True, slots=True)
class Blocks:
    """In how many blocks queries and keys are."""

    count: int

    def part_shape(self, value: Value, at: At) -> list[int]:
        """Returns the shape of one block of a value."""
        shape = list(shape_of(value))
        for dim in at:
            if dim is not None:
                shape[dim] = -(-shape[dim] // self.count)
        return shape

    def padding(self, size: int) -> int:
        """Returns how many zeros stand behind so many queries or keys."""
        return -size % self.count

    def in_blocks(self, value: Value, at: At) -> Value:
        """Returns a value that has queries or keys as [blocks, ...]; with both, as [trips, blocks, ...]."""
        dims = sorted(dim for dim in at if dim is not None)
        if not dims:
            return value
        shape: list[int] = []
        places: dict[int, int] = {}
        for dim, size in enumerate(self.part_shape(value, at)):
            if dim in dims:
                places[dim] = len(shape)
                shape.append(self.count)
            shape.append(size)
        lead = [places[dim] for dim in (at.query, at.key) if dim is not None]
        order = [*lead, *(dim for dim in range(len(shape)) if dim not in lead)]
        filled = resized(value, {dim: self.count * self.part_shape(value, at)[dim] for dim in dims})
        turned = transposed(reshaped(filled, shape), order)
        return self._by_trip(turned) if at.is_score else turned

    def _by_trip(self, value: Value) -> Value:
        """Returns what is [queries, keys, ...] in blocks as [trips, queries, ...]: for each trip what meets in it."""
        blocks, rest = self.count, list(shape_of(value))[2:]
        kind = ir.RankedTensorType.get([blocks, blocks], ir.IntegerType.get_signless(32))
        index = self.modulo(stablehlo.AddOp(stablehlo.IotaOp(kind, 0).result, stablehlo.IotaOp(kind, 1).result).result)
        return transposed(self._picked(value, index), [1, 0, *range(2, 2 + len(rest))])

    def _by_key(self, value: Value) -> Value:
        """Returns what is [trips, queries, ...] in blocks as [queries, keys, ...]."""
        blocks, rest = self.count, list(shape_of(value))[2:]
        kind = ir.RankedTensorType.get([blocks, blocks], ir.IntegerType.get_signless(32))
        ahead = stablehlo.SubtractOp(stablehlo.IotaOp(kind, 1).result, stablehlo.IotaOp(kind, 0).result).result
        index = self.modulo(stablehlo.AddOp(ahead, make_constant(kind, blocks)).result)
        return self._picked(transposed(value, [1, 0, *range(2, 2 + len(rest))]), index)

    def _picked(self, value: Value, index: Value) -> Value:
        """Returns of each row of what is [blocks, blocks, ...] the elements with these indices, [blocks, blocks]."""
        blocks, rest = self.count, list(shape_of(value))[2:]
        index = reshaped(index, [blocks, blocks, 1])
        numbers = stablehlo.GatherDimensionNumbers.get(
            offset_dims=list(range(2, 2 + len(rest))),
            collapsed_slice_dims=[1],
            operand_batching_dims=[0],
            start_indices_batching_dims=[0],
            start_index_map=[1],
            index_vector_dim=2,
        )
        sizes = ir.DenseI64ArrayAttr.get([1, 1, *rest])
        return value_of(stablehlo.GatherOp(value, index, numbers, sizes))

    def whole(self, value: Value, at: At, shape: Sequence[int]) -> Value:
        """Returns what is in blocks, as of `in_blocks`, in its own shape."""
        turned = self._by_key(value) if at.is_score else value
        lead = [dim for dim in (at.query, at.key) if dim is not None]
        order: list[int] = []
        for dim in range(len(shape)):
            order += [lead.index(dim), dim + len(lead)] if dim in lead else [dim + len(lead)]
        filled = [size + (self.padding(size) if dim in lead else 0) for dim, size in enumerate(shape)]
        return resized(reshaped(transposed(turned, order), filled), dict(enumerate(shape)))

    def modulo(self, index: Value) -> Value:
        """Returns numbers of blocks modulo how many there are."""
        return value_of(stablehlo.RemOp(index, make_constant(index.type, self.count)))

    def passed_on(self, value: Value) -> Value:
        """Returns [blocks, ...] passed on by one: two shifts, of which devices know what to send one another."""
        rank = len(shape_of(value))
        kind = ir.RankedTensorType(value.type)
        zero = make_constant(ir.RankedTensorType.get([], kind.element_type), 0)
        rest, last = [0] * (rank - 1), self.count - 1
        ahead, home = (
            stablehlo.PadOp(value, zero, [low, *rest], [-low, *rest], [0] * rank).result for low in (-1, last)
        )
        is_boolean = isinstance(kind.element_type, ir.IntegerType) and kind.element_type.width == 1
        return value_of((stablehlo.OrOp if is_boolean else stablehlo.AddOp)(ahead, home))


def joined(value: Value, by: str) -> Value:
    """Returns the rows of a tensor, along its first dim, joined by an op."""
    kind = ir.RankedTensorType(value.type)
    scalar = ir.RankedTensorType.get([], kind.element_type)
    identity = identity_of(by, kind.element_type)
    assert identity is not None, by
    row = ir.RankedTensorType.get(list(kind.shape)[1:], kind.element_type)
    made = stablehlo.ReduceOp([row], [value], [make_constant(scalar, identity)], [0])
    block = ir.Block.create_at_start(made.regions[0], [scalar, scalar], [made.location] * 2)
    with ir.InsertionPoint(block):
        stablehlo.ReturnOp([ir.Operation.create(by, [scalar], list(block.arguments)).results[0]])
    rows: Value = made.results[0]
    return rows


def converted(value: Value, element: ir.Type) -> Value:
    """Returns a tensor with elements of a type, itself where it has them."""
    kind = ir.RankedTensorType(value.type)
    wanted = ir.RankedTensorType.get(kind.shape, element)
    return value if wanted == kind else stablehlo.ConvertOp(wanted, value).result


def reshaped(value: Value, shape: Sequence[int]) -> Value:
    """Returns a tensor in a shape, itself where it has that."""
    kind = ir.RankedTensorType(value.type)
    wanted = ir.RankedTensorType.get(list(shape), kind.element_type)
    return value if wanted == kind else stablehlo.ReshapeOp(wanted, value).result


def resized(value: Value, sizes: Mapping[int, int]) -> Value:
    """Returns a tensor with other sizes of some dims, cut off or with zeros behind; itself where it has these."""
    kind = ir.RankedTensorType(value.type)
    behind = [sizes.get(dim, size) - size for dim, size in enumerate(kind.shape)]
    if not any(behind):
        return value
    none = [0] * len(behind)
    zero = make_constant(ir.RankedTensorType.get([], kind.element_type), 0)
    return value_of(stablehlo.PadOp(value, zero, none, behind, none))


def transposed(value: Value, order: Sequence[int]) -> Value:
    """Returns a tensor with its dims in an order, itself where they are."""
    return value if list(order) == sorted(order) else stablehlo.TransposeOp(value, list(order)).result


def value_of(op: Any) -> Value:  # noqa: ANN401 - the bindings do not say what an op class gives
    """Returns the one result of an op that was made."""
    value: Value = op.result
    return value
