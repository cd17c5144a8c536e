"""Compute a step in 16 bits that was written in f32; parameters, optimizer states, sums and updates stay in f32.

Reads     a normalized module.
Writes    the element types of products, of what is computed element by element between them, and of what loops carry of
          these; `stablehlo.convert` where types meet. Arguments and results keep their types. In f16, a step that
          computes gradients takes a loss scale and gives the next one (ir/program/loss_scale.py): arguments that have
          `rhino.loss_scale`, or two more at the end. Then `tidy`. A module that has products in 16 bits stays as it
          is, so a second run changes nothing.
Errors    RHI-AMP-001 a type that is not there, RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the
          module's mesh does not have.
Source    Which ops: strategies/precision/op_kinds.py; how that goes through a step: strategies/precision/
          mixed_precision.py; where the loss scale enters and leaves: loss_scale.py beside it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.program.program import CONSTANT, Program
from rhino.ir.units import format_bytes
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.frontend.tidy import tidy
from rhino.passes.precision.loss_scale import end_step, take_loss_scale
from rhino.passes.precision.narrow_ops import write_types
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.passes.with_rules import renew_rules
from rhino.strategies.precision.mixed_precision import Precision, assign
from rhino.strategies.precision.op_kinds import Kind, kind_of_op
from rhino.strategies.precision.step_facts import WIDE_TYPE, Given

BF16: Final = "bf16"
NARROW_SUMS: Final = "bf16:sums"
"""What asks for gradients of parameters in bf16 too, from the product that makes them to the update."""
F16: Final = "f16"

_RANGES: Final = {BF16: (0.0, float.fromhex("0x1.fep127")), F16: (2.0**-14, 65504.0)}
"""The least number that is told from zero to full precision and the largest one, by type; f32 reaches no lower than
bf16."""
_TYPES: Final = {BF16: ir.BF16Type.get, F16: ir.F16Type.get}
_NARROW_TYPES: Final = frozenset(_RANGES)
_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class MixedPrecisionResult:
    """What computes in 16 bits: products of all of f32, and the bytes of the values that are stored so, in f32."""

    num_products: int
    num_wide_products: int
    narrow_bytes: int


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Compute products and what is between them in 16 bits, with parameters, sums and updates in f32."""

    name: ClassVar[str] = "rhino-amp"
    errors: ClassVar[tuple[str, ...]] = ("RHI-AMP-001", *UNSHARDED_ERRORS)

    amp: str = opt(
        BF16,
        f"the type to compute in: {BF16}; {NARROW_SUMS} sums up gradients of parameters in it, too; {F16} scales the "
        "loss, by a number that the step takes and gives",
    )

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        check_amp(self.amp, remarks.file)
        with unsharded_program(module, remarks) as program:
            reason = _reason_to_leave(program)
            if reason:
                remarks.add(self.name, Place(remarks.file), f"the program stays as it is: {reason}")
                return
            kind = self.amp.partition(":")[0]
            given = replace(_given(program, kind), narrow_sums=self.amp == NARROW_SUMS, scales=kind == F16)
            precision = assign(program.graph, given)
            _remark(program, precision, kind, remarks)
            if kind == F16:
                _remark_scale(precision, remarks)
            state = take_loss_scale(program.entry) if precision.loss_scale else None
            gradients = write_types(program, precision, _TYPES[kind](), state)
            if state is not None:
                end_step(program.entry, state, gradients)
            del program, state, gradients  # no handle of an op outlives the passes below
        tidy(module, entry_function(module, remarks.file))
        renew_rules(module)


def check_amp(text: str, file: str = "") -> None:
    """Raises RHI-AMP-001 for a type that a step cannot be rewritten to."""
    if text not in (BF16, NARROW_SUMS, F16):
        what = f"'{text}' is no type for mixed precision"
        raise RhinoError("RHI-AMP-001", what, Place(file), fix=f"give {BF16}, {NARROW_SUMS} or {F16}")


def _reason_to_leave(program: Program) -> str:
    """Returns why a program is not rewritten; empty where it is."""
    products = [cls for cls in program.graph.classes if kind_of_op(cls.name) == Kind.PRODUCT]
    types = {kind.dtype for cls in products for kind in cls.operands}
    if found := sorted(types & _NARROW_TYPES):
        return f"it has products in {found[0]}, so its author has chosen types"
    if WIDE_TYPE not in types:
        return f"it has no products in {WIDE_TYPE}"
    return ""


def _given(program: Program, kind: str) -> Given:
    exact = [
        number
        for number, op in enumerate(program.ops)
        if program.graph.cls(number).precision != _DEFAULT or "algorithm" in op.attributes
    ]
    numbers = {value: number for number, value in enumerate(program.entry.arguments)}
    for number, op in enumerate(program.ops):
        numbers.update(zip(op.results, program.graph.results(number), strict=True))
    large = {
        program.graph.results(number)[0]
        for number, op in enumerate(program.ops)
        if op.name == CONSTANT and not _holds(*_RANGES[kind], op)
    }
    for number, op in enumerate(program.ops):
        if op.name == WHILE:
            condition = op.regions[0].blocks[0]
            own = dict(zip(condition.arguments, program.graph.results(number), strict=True))
            read = [
                value for view in condition.operations for inner in walk(view.operation) for value in inner.operands
            ]
            large |= {one for value in read if (one := own.get(value, numbers.get(value))) is not None}
    return Given(frozenset(exact), frozenset(large))


def _holds(least: float, largest: float, constant: ir.Operation) -> bool:
    """Says whether a type with this range has each finite number of an f32 constant, to rounding."""
    if not isinstance(ir.RankedTensorType(constant.results[0].type).element_type, ir.F32Type):
        return True  # before the value is read: the bindings have no attribute for complex ones
    value = constant.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr):
        return True
    numbers = np.asarray(
        ir.FloatAttr(value.get_splat_value()).value if value.is_splat else ir.DenseFPElementsAttr(value)
    )
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    return not ((sizes < least) | (sizes > largest)).any()


def _remark(program: Program, precision: Precision, kind: str, remarks: Remarks) -> None:
    graph, name = program.graph, MixedPrecision.name
    for op, reason in precision.kept.items():
        place = place_of(program.ops[op].location, remarks.file)
        remarks.add(name, place, f"'{program.ops[op].name}' stays in {WIDE_TYPE}: {reason}")
    is_free = [maker >= 0 and graph.cls(maker).free for maker in graph.value_op.tolist()]
    size = int(graph.value_bytes()[precision.stored & ~np.array(is_free, dtype=bool)].sum())
    result = MixedPrecisionResult(len(precision.products), len(precision.kept), size)
    remarks.record(result)
    wide = Counter(graph.cls(op).name.removeprefix("stablehlo.") for op in precision.wide())
    listed = ", ".join(f"{count} {name}" for name, count in sorted(wide.items())) or "none"
    count = len(precision.products)
    what = (
        f"{count} of {count + len(precision.kept)} products compute in {kind} and sum up in {WIDE_TYPE}; values of "
        f"{format_bytes(size)} are stored in half of that, {len(precision.stashed)} of them rounded for the backward "
        f"pass alone; in {WIDE_TYPE} stay: {listed}"
    )
    remarks.add(name, Place(remarks.file), what)


def _remark_scale(precision: Precision, remarks: Remarks) -> None:
    """Says what of the backward pass is scaled."""
    scale, what = precision.loss_scale, "no loss is scaled: no product gives the gradient of a weight"
    if scale is not None:
        count = sum(op in scale.reads for op in precision.products)
        what = f"{count} of {len(precision.products)} products in {F16} compute gradients that are scaled"
    remarks.add(MixedPrecision.name, Place(remarks.file), what)
