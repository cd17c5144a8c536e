"""Give ops and values of a program other element types, with conversions where an op reads another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rhino.ir.graph.graph import BARRIER, WHILE
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.program.identity import make_constant
from rhino.ir.program.program import CONSTANT, Program
from rhino.passes.precision.loss_scale import LossScaleState
from rhino.strategies.precision.mixed_precision import Precision
from rhino.strategies.precision.step_facts import WIDE_TYPE

Value = ir.Value[Any]


def write_types(
    program: Program, precision: Precision, narrow: ir.Type, factors: LossScaleState | None = None
) -> list[Value]:
    """Writes a precision into a program: `narrow` is the element type of what is in 16 bits.

    `factors` are there for a precision with a loss scale. Returns the values that are finite where all gradients are.
    """
    writer = _Writer(program, precision, narrow, factors)
    writer.run()
    return writer.gradients()


@dataclass(eq=False)
class _Writer:
    program: Program
    precision: Precision
    narrow: ir.Type
    factors: LossScaleState | None
    rounded: dict[Value, Value] = field(default_factory=dict)
    """What stands for values that are computed in f32 and stored in 16 bits."""
    converted: dict[Value, Value] = field(default_factory=dict)
    """Each value in the other type than it is stored in."""
    rescaled: dict[Value, Value] = field(default_factory=dict)
    """Scaled values unscaled, and others scaled, in f32."""
    numbers: dict[Value, int] = field(default_factory=dict)
    """What is in the graph, by number."""

    def run(self) -> None:
        graph = self.program.graph
        self.numbers = {value: number for number, value in enumerate(self.program.entry.arguments)}
        for number, op in enumerate(self.program.ops):
            inner = [region.blocks[0].arguments for region in op.regions] if op.name == WHILE else []
            for values in (op.results, *inner):
                self.numbers.update(zip(values, graph.results(number), strict=True))
        for number, op in enumerate(self.program.ops):
            for position, value in enumerate(graph.operands(number).tolist()):
                if graph.type_of(value).dtype == WIDE_TYPE:
                    self.read(number, op, position)
            self.write(number, op)
        end = self.end
        for position, value in enumerate(graph.returns):
            if graph.type_of(value).dtype == WIDE_TYPE:
                end.operands[position] = self.as_read(end.operands[position], end, narrow=False)

    @property
    def end(self) -> ir.Operation:
        return end_of(self.program.entry.regions[0].blocks[0])

    def gradients(self) -> list[Value]:
        """Returns the values that are finite where all gradients are, unscaled."""
        scale, graph = self.precision.loss_scale, self.program.graph
        made_by = [int(graph.value_op[value]) for value in scale.finite] if scale else []
        return [
            self.as_read(self.program.ops[op].results[value - graph.results(op).start], self.end, narrow=False)
            for op, value in zip(made_by, scale.finite if scale else (), strict=True)
        ]

    def read(self, number: int, op: ir.Operation, position: int) -> None:
        """Makes an op read an operand in the type that it computes in, and scaled or not.

        What its regions read of the values around it, they read in f32.
        """
        if position < len(op.operands):
            narrow, scale = self.precision.reads(number, position), self.precision.loss_scale
            is_scaled = scale is not None and position in scale.reads.get(number, ())
            op.operands[position] = self.as_read(op.operands[position], op, narrow=narrow, is_scaled=is_scaled)
        elif position == len(op.operands):  # the first of those that are captured stands for all
            for inner in (one for one in walk(op) if one is not op):
                for at, value in enumerate(inner.operands):
                    if value in self.rounded or _element(value) == self.narrow or self.is_scaled(value):
                        inner.operands[at] = self.as_read(value, op, narrow=False)

    def write(self, number: int, op: ir.Operation) -> None:
        """Gives the results of an op their types."""
        results = self.program.graph.results(number)
        stored = [bool(self.precision.stored[value]) for value in results]
        if op.name == WHILE:
            for values in (op.results, *(region.blocks[0].arguments for region in op.regions)):
                self.retype([value for value, is_stored in zip(values, stored, strict=True) if is_stored])
        elif op.name == BARRIER or (self.precision.computes[number] and op.name != CONSTANT):
            self.retype([value for value, is_stored in zip(op.results, stored, strict=True) if is_stored])
        elif op.name != CONSTANT:  # which is made anew for each type
            for value, is_stored in zip(op.results, stored, strict=True):
                if is_stored and not self.is_begin(value):
                    with ir.InsertionPoint.after(op), op.location:
                        self.rounded[value] = self.convert(value, self.narrow)

    def is_scaled(self, value: Value) -> bool:
        scale = self.precision.loss_scale
        return scale is not None and value in self.numbers and bool(scale.scaled[self.numbers[value]])

    def is_begin(self, value: Value) -> bool:
        """Says whether a value is rounded when it has been scaled."""
        scale = self.precision.loss_scale
        return scale is not None and self.numbers[value] in scale.begins

    def retype(self, values: Sequence[Value]) -> None:
        for value in values:
            value.set_type(_with_element(value.type, self.narrow))

    def as_read(self, value: Value, reader: ir.Operation, *, narrow: bool, is_scaled: bool = False) -> Value:
        """Returns a value in 16 bits or in f32, scaled or not, for a reader."""
        if self.is_scaled(value) != is_scaled:
            value = self.rescale(value, reader, is_scaled=is_scaled)
        value = self.rounded.get(value, value)
        if (_element(value) == self.narrow) == narrow:
            return value
        if value not in self.converted:
            maker = maker_of(value)
            if maker is not None and maker.name == CONSTANT:
                with ir.InsertionPoint(maker), maker.location:
                    self.converted[value] = self.constant(value, maker)
            else:
                before = _in_block_of(value, reader)
                with ir.InsertionPoint(before), reader.location:
                    self.converted[value] = self.convert(value, self.narrow if narrow else ir.F32Type.get())
        return self.converted[value]

    def rescale(self, value: Value, reader: ir.Operation, *, is_scaled: bool) -> Value:
        """Returns a value scaled that is not, or unscaled that is.

        What the backward pass begins with is rounded then.
        """
        if value not in self.rescaled:
            assert self.factors is not None, "a loss scale has factors"
            is_wide = _element(value) != self.narrow
            wide = value if is_wide else self.as_read(value, reader, narrow=False, is_scaled=not is_scaled)
            factor = self.factors.scale if is_scaled else self.factors.inverse
            with ir.InsertionPoint(_in_block_of(value, reader)), reader.location:
                if wide.type != factor.type:
                    factor = stablehlo.BroadcastInDimOp(wide.type, factor, []).result
                product = stablehlo.MulOp(wide, factor).result
                if is_wide and self.is_begin(value) and self.precision.stored[self.numbers[value]]:
                    self.rounded[product] = self.convert(product, self.narrow)
            self.rescaled[value] = product
        return self.rescaled[value]

    def constant(self, value: Value, maker: ir.Operation) -> Value:
        """Makes a constant in 16 bits, before the one in f32."""
        attribute = maker.attributes["value"]
        if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
            number = float(ir.FloatAttr(attribute.get_splat_value()).value)
            return make_constant(_with_element(value.type, self.narrow), number)
        with ir.InsertionPoint.after(maker):
            return self.convert(value, self.narrow)

    def convert(self, value: Value, element: ir.Type) -> Value:
        result: Value = stablehlo.ConvertOp(_with_element(value.type, element), value).result
        return result


def _in_block_of(value: Value, reader: ir.Operation) -> ir.Operation:
    """Returns the op in the block where a value is made that is or holds its reader."""
    maker = maker_of(value)
    block = value.owner if maker is None else maker.block
    found = reader
    while found.block != block:
        parent = found.parent
        assert parent is not None, "a value is made in a block around its readers"
        found = parent.operation
    return found


def _element(value: Value) -> ir.Type | None:
    return ir.RankedTensorType(value.type).element_type if isinstance(value.type, ir.RankedTensorType) else None


def _with_element(kind: ir.Type, element: ir.Type) -> ir.Type:
    tensor = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get(tensor.shape, element, tensor.encoding)
