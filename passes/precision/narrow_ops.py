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
from rhino.strategies.precision.mixed_precision import Precision
from rhino.strategies.precision.step_facts import WIDE_TYPE

Value = ir.Value[Any]


def write_types(program: Program, precision: Precision, narrow: ir.Type) -> None:
    """Writes a precision into a program: `narrow` is the element type of what is in 16 bits."""
    _Writer(program, precision, narrow).run()


@dataclass(eq=False)
class _Writer:
    program: Program
    precision: Precision
    narrow: ir.Type
    rounded: dict[Value, Value] = field(default_factory=dict)
    """What stands for values that are computed in f32 and stored in 16 bits."""
    converted: dict[Value, Value] = field(default_factory=dict)
    """Each value in the other type than it is stored in."""

    def run(self) -> None:
        graph = self.program.graph
        for number, op in enumerate(self.program.ops):
            for position, value in enumerate(graph.operands(number).tolist()):
                if graph.type_of(value).dtype == WIDE_TYPE:
                    self.read(number, op, position)
            self.write(number, op)
        end = end_of(self.program.entry.regions[0].blocks[0])
        for position, value in enumerate(graph.returns):
            if graph.type_of(value).dtype == WIDE_TYPE:
                end.operands[position] = self.of_width(end.operands[position], end, narrow=False)

    def read(self, number: int, op: ir.Operation, position: int) -> None:
        """Makes an op read an operand in the type that it computes in.

        What its regions read of the values around it, they read in f32.
        """
        if position < len(op.operands):
            narrow = self.precision.reads(number, position)
            op.operands[position] = self.of_width(op.operands[position], op, narrow=narrow)
        elif position == len(op.operands):  # the first of those that are captured stands for all
            for inner in (one for one in walk(op) if one is not op):
                for at, value in enumerate(inner.operands):
                    if value in self.rounded or _element(value) == self.narrow:
                        inner.operands[at] = self.of_width(value, op, narrow=False)

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
                if is_stored:
                    with ir.InsertionPoint.after(op), op.location:
                        self.rounded[value] = self.convert(value, self.narrow)

    def retype(self, values: Sequence[Value]) -> None:
        for value in values:
            value.set_type(_with_element(value.type, self.narrow))

    def of_width(self, value: Value, reader: ir.Operation, *, narrow: bool) -> Value:
        """Returns a value in 16 bits or in f32, for a reader."""
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
