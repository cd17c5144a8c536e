"""What the programs of a Triton kernel load and store, and what decides what they store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from rhino.ir.calls.index_forms import Form, Variable
from rhino.ir.calls.known_values import (
    Known,
    Periods,
    added,
    computed,
    constant,
    counted,
    element_of,
    fitted,
    is_integer,
    merged,
    shape_of,
)
from rhino.ir.calls.machine import Machine, Reading, UnreadableError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.triton_kernels import TritonKernel, pointee_bytes

_PURE: Final = ("arith.", "math.")
_PURE_OPS: Final = frozenset(
    f"tt.{name}"
    for name in (
        "bitcast",
        "cat",
        "clampf",
        "dot",
        "fp_to_fp",
        "gather",
        "join",
        "mulhiui",
        "precise_divf",
        "precise_sqrt",
        "reduce",
        "reduce.return",
        "scan",
        "scan.return",
        "split",
    )
)
"""Ops whose results follow from their operands alone."""
_DOT: Final = "tt.dot"
_OUTSIDE: Final = ("tt.extern_elementwise", "tt.elementwise_inline_asm")
_REGISTER: Final = "%"
"""What names of registers start with in PTX; some of these say which program runs."""


def read_triton(kernel: TritonKernel) -> Reading:
    """Returns what the programs of a kernel load and store.

    Raises UnreadableError where an op is not known, or is known not to leave parts alone: atomic ones, and volatile
    loads.
    """
    machine = _TritonMachine(kernel.bounds)
    for number, argument in enumerate(kernel.block.arguments):
        machine.known[argument] = Known(Form(0), root=number)
    machine.run(kernel.block)
    return machine.reading()


@dataclass(slots=True)
class _TritonMachine(Machine):
    """Knows the ops of Triton."""

    def plain(self, op: ir.Operation, operands: Sequence[Known]) -> Sequence[Known]:
        """Returns what is known of the results of an op that runs no block; raises UnreadableError for unknown ops."""
        if op.name == "tt.load":
            return [self._load(op, operands)]
        if op.name == "tt.store":
            self._store(op, operands)
            return []
        self._count(op)
        if len(op.results) == 1 and (known := self._known(op, operands)) is not None:
            return [fitted(known, op.results[0].type)]
        _refuse_impure(op)
        return [Known(of=merged(one.follows for one in operands))] * len(op.results)

    def _known(self, op: ir.Operation, operands: Sequence[Known]) -> Known | None:
        """Returns what is known of the result of an op on integers, or on pointers; None for other ops."""
        match op.name:
            case "tt.get_program_id":
                axis = ir.IntegerAttr(op.attributes["axis"]).value
                return Known(counted(Variable("program", axis, self.bounds[axis])))
            case "tt.get_num_programs":
                axis = ir.IntegerAttr(op.attributes["axis"]).value
                return Known(of={axis: self.bounds[axis]}, low=self.bounds[axis], high=self.bounds[axis])
            case "tt.make_range":
                start, end = (ir.IntegerAttr(op.attributes[name]).value for name in ("start", "end"))
                return Known(counted(Variable("lane", 0, end - start)).plus(start))
            case "arith.constant":
                return constant(op.attributes["value"])
            case "tt.addptr":
                return replace(added(operands[0], operands[1], 1), root=operands[0].root)
            case "tt.bitcast" if pointee_bytes(element_of(op.results[0].type)):
                is_same = pointee_bytes(element_of(op.results[0].type)) == pointee_bytes(
                    element_of(op.operands[0].type)
                )
                return operands[0] if is_same else replace(operands[0], root=None)
            case "tt.splat" | "tt.broadcast" | "tt.expand_dims" | "tt.trans" | "tt.reshape":
                return _reshaped(op, operands[0])
        return computed(op, operands) if is_integer(op.results[0].type) else None

    def _load(self, op: ir.Operation, operands: Sequence[Known]) -> Known:
        if ir.BoolAttr(op.attributes["isVolatile"]).value:
            raise UnreadableError
        self._access(op, operands[0], operands[1:2], None)
        return Known(of=merged(one.follows for one in operands[1:]))  # what replaces elements that are not loaded

    def _store(self, op: ir.Operation, operands: Sequence[Known]) -> None:
        decides = merged([*self.control, *(one.follows for one in operands[1:])])
        self._access(op, operands[0], operands[2:], decides)

    def _access(self, op: ir.Operation, pointer: Known, mask: Sequence[Known], decides: Periods | None) -> None:
        kind = op.operands[0].type
        num_bytes = pointee_bytes(element_of(kind))
        if num_bytes is None:
            raise UnreadableError
        self.access(op, pointer, mask[0] if mask else Known(), decides, (prod(shape_of(kind)), num_bytes))

    def _count(self, op: ir.Operation) -> None:
        """Notes the work of an op: an operation for each element, or those of a product of matrices."""
        if op.name == _DOT:
            rows, columns = shape_of(op.results[0].type)[-2:]
            inner = shape_of(op.operands[0].type)[-1]
            batch = prod(shape_of(op.results[0].type)[:-2])
            dtype = str(element_of(op.operands[0].type))
            self.work[op] = (2.0 * batch * rows * columns * inner * self.times, dtype)
        elif op.name.startswith((*_PURE, "tt.reduce", "tt.scan", *_OUTSIDE)) and len(op.operands):
            sizes = [prod(shape_of(value.type)) for value in (*op.operands, *op.results) if shape_of(value.type)]
            self.work[op] = (max(sizes, default=0) * self.times, "")


def lanes_after(op: ir.Operation) -> dict[int, int] | None:
    """Returns which dim of its result each dim of an op's operand becomes, None where elements change their order."""
    given, made = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    if op.name == "tt.expand_dims":
        axis = ir.IntegerAttr(op.attributes["axis"]).value
        return {lane: lane + (lane >= axis) for lane in range(len(given))}
    if op.name == "tt.trans":
        order = list(ir.DenseI32ArrayAttr(op.attributes["order"]))
        return {lane: order.index(lane) for lane in range(len(given))}
    if op.name != "tt.reshape":
        return {lane: lane for lane in range(len(given))}
    lanes, others = ([lane for lane, size in enumerate(shape) if size > 1] for shape in (given, made))
    if [given[lane] for lane in lanes] != [made[lane] for lane in others] or "allow_reorder" in op.attributes:
        return None
    return dict(zip(lanes, others, strict=True))


def _reshaped(op: ir.Operation, operand: Known) -> Known:
    """Returns what is known of a tensor that has its operand's elements elsewhere, or several times."""
    lanes = lanes_after(op)
    if lanes is not None:
        return operand.renamed(lanes)
    forms = [*operand.facts, *([operand.form] if operand.form is not None else [])]
    if any(variable.kind == "lane" for form in forms for variable in form.tables):
        return Known(of=operand.follows, low=operand.least, high=operand.most)
    return operand


def _refuse_impure(op: ir.Operation) -> None:
    """Raises UnreadableError where more than its operands may decide what an op gives, or it does more than give it."""
    for one in walk(op):
        is_pure = one.name.startswith(_PURE) or one.name in _PURE_OPS
        if one.name in _OUTSIDE and ir.BoolAttr(one.attributes["pure"]).value:
            code = one.attributes.get("asm_string", None)
            is_pure = not isinstance(code, ir.StringAttr) or _REGISTER not in code.value
        if not is_pure:
            raise UnreadableError
