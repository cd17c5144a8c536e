"""The loop over the parts of a batch: its index, what it carries from part to part, and what replaces that after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import walk
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.identity import identity_of, make_constant

PART: Final = "stablehlo.partition_id"
"""The op that is the number of the part, until the loop has an index."""

STACK: Final = "stack"
KEEP: Final = "keep"

Value = ir.Value[Any]


@dataclass(frozen=True, slots=True)
class Carried:
    """What the loop carries.

    `how` is the op that joins the parts, `STACK` where the loop keeps all of them, or `KEEP` where all are the same.
    """

    how: str
    kind: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """A value of the loop that is needed behind it, how, and what stands for it there."""

    how: str
    value: Value
    dim: int
    results: list[Value]


def corner(part: Value, rank: int) -> list[Value]:
    """Returns the indices at which row number `part` of a tensor of `rank` begins."""
    zero = make_constant(part.type, 0)
    return [part, *[zero] * (rank - 1)]


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """Returns `value` in another shape, as it is where it has that."""
    kind = ir.RankedTensorType(value.type)
    wanted = ir.RankedTensorType.get(shape, kind.element_type)
    result: Value = value if wanted == kind else stablehlo.ReshapeOp(wanted, value).result
    return result


class TimeLoop:
    """The loop, made empty at the insertion point, and filled with ops that stand before it."""

    def __init__(self, leaving: Sequence[Leaving], parts: int, *, widen: bool) -> None:
        self.leaving, self.parts = leaving, parts
        self.index_type = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        self.kinds = [self._kind(one, widen=widen) for one in leaving]
        starts = [
            make_constant(self.index_type, 0),
            *(self._start(one, kind) for one, kind in zip(leaving, self.kinds, strict=True)),
        ]
        types = [self.index_type, *self.kinds]
        self.op = stablehlo.WhileOp(types, starts)
        self.op.attributes[MICRO_BATCHES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), parts)
        places = [self.op.location] * len(types)
        self.condition, self.body = (ir.Block.create_at_start(region, types, places) for region in self.op.regions)
        with ir.InsertionPoint(self.condition):
            less = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
            test = stablehlo.CompareOp(self.condition.arguments[0], make_constant(self.index_type, parts), less)
            stablehlo.ReturnOp([test.result])
        for one, result in zip(leaving, list(self.op.results)[1:], strict=True):
            self._hand_out(one, result)

    def carried(self) -> tuple[Carried, ...]:
        """Returns what the loop carries."""
        found = []
        for one, kind in zip(self.leaving, self.kinds, strict=True):
            bits = kind.element_type.width if isinstance(kind.element_type, ir.IntegerType | ir.FloatType) else 64
            found.append(Carried(one.how.removeprefix("stablehlo."), str(kind), prod(kind.shape) * -(-int(bits) // 8)))
        return tuple(found)

    def _kind(self, one: Leaving, *, widen: bool) -> ir.RankedTensorType:
        kind = ir.RankedTensorType(one.value.type)
        if one.how == STACK:
            return ir.RankedTensorType.get([self.parts, *kind.shape], kind.element_type)
        narrow = isinstance(kind.element_type, ir.BF16Type | ir.F16Type)
        return (
            ir.RankedTensorType.get(kind.shape, ir.F32Type.get())
            if widen and narrow and one.how == "stablehlo.add"
            else kind
        )

    def _start(self, one: Leaving, kind: ir.RankedTensorType) -> Value:
        identity = identity_of(one.how, kind.element_type) if one.how.startswith("stablehlo.") else 0
        assert identity is not None, (one.how, kind)
        with one.value.location:
            return make_constant(kind, identity)

    def _hand_out(self, one: Leaving, result: Value) -> None:
        """Puts what the loop carried in the place of what it was carried for."""
        with one.value.location:
            local = ir.RankedTensorType(one.value.type)
            if one.how == STACK:
                order = [*range(1, one.dim + 1), 0, *range(one.dim + 1, len(local.shape) + 1)]
                turned = stablehlo.TransposeOp(result, order).result if one.dim else result
                shape = list(local.shape)
                shape[one.dim] *= self.parts
                result = reshape(turned, shape)
            elif result.type != local:
                result = stablehlo.ConvertOp(local, result).result
        for old in one.results:
            old.replace_all_uses_with(result)

    def fill(self, ops: Sequence[ir.Operation]) -> None:
        """Moves the ops of one part into the body, and ends it."""
        with ir.InsertionPoint(self.body), self.op.location:
            after = stablehlo.AddOp(self.body.arguments[0], make_constant(self.index_type, 1)).result
            returned = stablehlo.ReturnOp([after])
        for op in ops:
            op.move_before(returned.operation)
        self._read_what_is_kept()
        for part in [inner for op in ops for inner in walk(op) if inner.name == PART]:
            self._count(part)
        with ir.InsertionPoint(returned.operation):
            joined = [
                self._join(leaving, carried)
                for leaving, carried in zip(self.leaving, list(self.body.arguments)[1:], strict=True)
            ]
            stablehlo.ReturnOp([after, *joined], loc=self.op.location)
        returned.operation.erase()

    def _count(self, part: ir.Operation) -> None:
        """Puts the loop's index in the place of the number of a part."""
        index = self.body.arguments[0]
        for use in list(part.results[0].uses):
            if use.owner.name == "stablehlo.convert":
                kind = use.owner.results[0].type
                with ir.InsertionPoint(part), use.owner.location:
                    number = index if kind == self.index_type else stablehlo.ConvertOp(kind, index).result
                use.owner.results[0].replace_all_uses_with(number)
                use.owner.erase()
        if list(part.results[0].uses):
            with ir.InsertionPoint(part), part.location:
                part.results[0].replace_all_uses_with(stablehlo.ConvertOp(part.results[0].type, index).result)
        part.erase()

    def _read_what_is_kept(self) -> None:
        """Lets who reads a value of the last part outside the loop read what the loop carries of it."""
        for one, result in zip(self.leaving, list(self.op.results)[1:], strict=True):
            if one.how == KEEP:
                for use in list(one.value.uses):
                    if not _is_inside(use.owner.operation, self.body):
                        use.owner.operands[use.operand_number] = result

    def _join(self, one: Leaving, carried: Value) -> Value:
        value = one.value
        with value.location:
            if one.how == KEEP:
                return value
            if one.how == STACK:
                rank = len(ir.RankedTensorType(carried.type).shape)
                row = reshape(value, [1, *ir.RankedTensorType(value.type).shape])
                result: Value = stablehlo.DynamicUpdateSliceOp(
                    carried, row, corner(self.body.arguments[0], rank)
                ).result
                return result
            if value.type != carried.type:
                value = stablehlo.ConvertOp(carried.type, value).result
            joined: Value = ir.Operation.create(one.how, [carried.type], [carried, value]).results[0]
            return joined


def _is_inside(op: ir.Operation, block: ir.Block) -> bool:
    while op.parent is not None:
        if op.block == block:
            return True
        op = op.parent
    return False
