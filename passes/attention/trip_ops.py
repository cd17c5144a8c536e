"""The ops of one trip of a loop of attention: each written for the blocks of queries and keys that meet in it.

An op does for all blocks at once, [blocks, ...], what it does for all queries and keys in the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of
from rhino.ir.program.identity import make_constant
from rhino.ir.program.local_rules import shape_of
from rhino.ir.program.numerics import SOURCES
from rhino.passes.attention.block_views import Blocks, converted, value_of
from rhino.passes.attention.online_form import Form, Loops
from rhino.passes.attention.score_dims import NO_DIMS, At, OpDims
from rhino.passes.attention.score_region import CONSTANT, DOT, Value
from rhino.passes.pipeline.parted_ops import Operand, broadcast, for_parts


@dataclass(eq=False)
class TripOps:
    """Writes ops of a loop, of the first one that takes the largest numbers if `is_first`.

    `trip` is the number of the trip in the loop's body, `known` has the blocks of what the program computes, by where
    its queries and keys lie.
    """

    loops: Loops
    blocks: Blocks
    is_first: bool
    known: dict[tuple[Value, At], Value] = field(default_factory=dict)
    trip: Value = field(init=False)

    def is_one(self, op: ir.Operation) -> bool:
        """Says whether an op gives nothing but factors of rows, which are applied behind the loop."""
        form = self.form(op)
        return form.is_one and form.largest is None

    def form(self, op: ir.Operation) -> Form:
        """Returns what the result of an op is in this loop, beside its factors of rows."""
        return self.loops.forms.get(op.results[0], Form()) if self.is_first else Form()

    def written(self, op: ir.Operation, wide: ir.Type | None = None) -> Value:
        """Writes an op for the blocks of this trip, with a result in the element type of `wide`."""
        result, dims = op.results[0], self.loops.region.dims[op]
        kind = ir.RankedTensorType(result.type)
        own = ir.RankedTensorType.get(
            [self.blocks.count, *self.blocks.part_shape(result, dims.results[0])], kind.element_type
        )
        if self.is_one(op):
            return make_constant(own, 1)
        if self.is_first and op in self.loops.kept:
            return self.value(self.loops.kept[op], dims.results[0])
        if op.name in SOURCES:
            return self._source(op, own)
        made = self.parted(op, dims)
        if wide is not None and wide != made.type:
            if op.name == DOT:
                made.set_type(wide)
            else:
                made = stablehlo.ConvertOp(wide, made).result
        return made

    def parted(self, op: ir.Operation, dims: OpDims) -> Value:
        """Writes an op as it is, for the blocks of what it reads."""
        places = [*dims.operands, *[NO_DIMS] * (len(op.operands) - len(dims.operands))]
        operands = [
            Operand(self.value(value, at), at != NO_DIMS) for value, at in zip(op.operands, places, strict=True)
        ]
        shapes = [self.blocks.part_shape(op.results[0], dims.results[0])]
        made = for_parts(op, operands, shapes, self.blocks.count)
        assert made is not None, op.name
        return made[0]

    def value(self, value: Value, at: At) -> Value:
        """Returns the blocks of what the program computes."""
        return value if is_scalar_constant(value) else self.known[value, at]

    def _source(self, op: ir.Operation, kind: ir.RankedTensorType) -> Value:
        """Returns the blocks of a constant or an iota."""
        if op.name == CONSTANT:
            splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
            return value_of(stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(kind, splat)))
        at, dim = self.loops.region.at[op.results[0]], ir.IntegerAttr(op.attributes["iota_dimension"]).value
        if dim not in at:
            return value_of(stablehlo.IotaOp(kind, dim + 1))
        positions = self.positions(kind.shape[dim + 1], is_key=dim == at.key)
        return broadcast(converted(positions, kind.element_type), list(kind.shape), [0, dim + 1])

    def positions(self, size: int, *, is_key: bool) -> Value:
        """Returns which of all queries or keys those of each block are in this trip, [blocks, size]."""
        kind = ir.RankedTensorType.get([self.blocks.count, size], ir.IntegerType.get_signless(32))
        block = value_of(stablehlo.IotaOp(kind, 0))
        if is_key:
            block = self.blocks.modulo(value_of(stablehlo.AddOp(block, broadcast(self.trip, list(kind.shape), []))))
        first = stablehlo.MulOp(block, make_constant(kind, size)).result
        return value_of(stablehlo.AddOp(first, stablehlo.IotaOp(kind, 1).result))

    def rounds(self, loop: ir.Operation) -> None:
        """Writes a loop in which each element is computed by itself, for the blocks of this trip."""
        condition, body = (region.blocks[0] for region in loop.regions)
        places = [self.loops.region.at.get(argument, NO_DIMS) for argument in body.arguments]
        starts = [self.value(value, at) for value, at in zip(loop.operands, places, strict=True)]
        new = stablehlo.WhileOp([start.type for start in starts], starts)
        blocks = [
            ir.Block.create_at_start(region, [start.type for start in starts], [loop.location] * len(starts))
            for region in new.regions
        ]
        for old, block in zip((condition, body), blocks, strict=True):
            with ir.InsertionPoint(block):
                known = {*self.known}
                self.known.update(
                    ((argument, at), own)
                    for argument, at, own in zip(old.arguments, places, block.arguments, strict=True)
                )
                self._copy(old)
                self.known = {key: value for key, value in self.known.items() if key in known}
        for result, at, own in zip(loop.results, places, new.results, strict=True):
            self.known[result, at] = own

    def _copy(self, block: ir.Block) -> None:
        """Writes the ops of a block of such a loop."""
        for view in block.operations:
            op = view.operation
            if any(result in self.loops.region.at for result in op.results):
                self.known[op.results[0], self.loops.region.at[op.results[0]]] = self.written(op)
                continue
            copy = op.clone()
            for number, operand in enumerate(copy.operands):
                at = self.loops.region.at.get(operand, NO_DIMS)
                copy.operands[number] = self.known.get((operand, at), operand)
            self.known.update(((old, NO_DIMS), new) for old, new in zip(op.results, copy.results, strict=True))


def is_scalar_constant(value: Value) -> bool:
    """Says whether a value is a constant scalar, which a loop need not carry to read it."""
    made = maker_of(value)
    return made is not None and made.name == CONSTANT and not shape_of(value)
