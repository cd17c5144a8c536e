"""Compute a step in bf16 that was written in f32; parameters, optimizer states, sums and updates stay in f32.

Reads     a normalized module.
Writes    the element types of products, of what is computed element by element between them, and of what loops carry of
          these; `stablehlo.convert` where types meet. Arguments and results keep their types. Then `tidy`. A module
          that has products in 16 bits stays as it is, so a second run changes nothing.
Errors    RHI-AMP-001 a type that is not there, RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the
          module's mesh does not have.
Source    Which ops: strategies/precision/op_kinds.py; how that goes through a step: strategies/precision/
          mixed_precision.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import isfinite
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
from rhino.passes.precision.narrow_ops import write_types
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.passes.with_rules import renew_rules
from rhino.strategies.precision.mixed_precision import Precision, assign
from rhino.strategies.precision.op_kinds import Kind, kind_of_op
from rhino.strategies.precision.step_facts import WIDE_TYPE, Given

BF16: Final = "bf16"
NARROW_SUMS: Final = "bf16:sums"
"""What asks for gradients of parameters in bf16 too, from the product that makes them to the update."""

_LARGEST: Final = float.fromhex("0x1.fep127")
"""The largest finite number of bf16."""
_NARROW_TYPES: Final = frozenset({"bf16", "f16"})
_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class MixedPrecisionResult:
    """What computes in 16 bits: products of all of f32, and the bytes of the values that are stored so, in f32."""

    num_products: int
    num_wide_products: int
    narrow_bytes: int


@dataclass(frozen=True)
class MixedPrecision(Pass):
    """Compute products and what is between them in bf16, with parameters, sums and updates in f32."""

    name: ClassVar[str] = "rhino-amp"
    errors: ClassVar[tuple[str, ...]] = ("RHI-AMP-001", *UNSHARDED_ERRORS)

    amp: str = opt(BF16, f"the type to compute in: {BF16}; {NARROW_SUMS} sums up gradients of parameters in it, too")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        check_amp(self.amp, remarks.file)
        with unsharded_program(module, remarks) as program:
            reason = _reason_to_leave(program)
            if reason:
                remarks.add(self.name, Place(remarks.file), f"the program stays as it is: {reason}")
                return
            precision = assign(program.graph, replace(_given(program), narrow_sums=self.amp == NARROW_SUMS))
            _remark(program, precision, remarks)
            write_types(program, precision, ir.BF16Type.get())
            del program  # no handle of an op outlives the passes below
        tidy(module, entry_function(module, remarks.file))
        renew_rules(module)


def check_amp(text: str, file: str = "") -> None:
    """Raises RHI-AMP-001 for a type that a step cannot be rewritten to."""
    if text in (BF16, NARROW_SUMS):
        return
    if text == "f16":
        what = (
            "f16 needs a loss scale that follows the gradients from step to step, and a step has no argument and no "
            "result to keep it in"
        )
        fix = f"give {BF16}, which has the range of f32; or write the step in f16 with a loss scale in its state"
        raise RhinoError("RHI-AMP-001", what, Place(file), fix=fix)
    raise RhinoError(
        "RHI-AMP-001", f"'{text}' is no type for mixed precision", Place(file), fix=f"give {BF16} or {NARROW_SUMS}"
    )


def _reason_to_leave(program: Program) -> str:
    """Returns why a program is not rewritten; empty where it is."""
    products = [cls for cls in program.graph.classes if kind_of_op(cls.name) == Kind.PRODUCT]
    types = {kind.dtype for cls in products for kind in cls.operands}
    if found := sorted(types & _NARROW_TYPES):
        return f"it has products in {found[0]}, so its author has chosen types"
    if WIDE_TYPE not in types:
        return f"it has no products in {WIDE_TYPE}"
    return ""


def _given(program: Program) -> Given:
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
        if op.name == CONSTANT and _is_large(op)
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


def _is_large(constant: ir.Operation) -> bool:
    """Says whether a constant has a finite number that rounds to none in 16 bits."""
    if not isinstance(ir.RankedTensorType(constant.results[0].type).element_type, ir.F32Type):
        return False  # before the value is read: the bindings have no attribute for complex ones
    value = constant.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr):
        return False
    if value.is_splat:
        number = float(ir.FloatAttr(value.get_splat_value()).value)
        return isfinite(number) and abs(number) > _LARGEST
    numbers = np.asarray(ir.DenseFPElementsAttr(value))
    return bool((np.isfinite(numbers) & (np.abs(numbers) > _LARGEST)).any())


def _remark(program: Program, precision: Precision, remarks: Remarks) -> None:
    graph, name = program.graph, MixedPrecision.name
    for op, reason in precision.kept.items():
        place = place_of(program.ops[op].location, remarks.file)
        remarks.add(name, place, f"'{program.ops[op].name}' stays in {WIDE_TYPE}: {reason}")
    is_free = [maker >= 0 and graph.cls(maker).free for maker in graph.value_op.tolist()]
    size = int(graph.value_bytes()[precision.stored & ~np.array(is_free, dtype=bool)].sum())
    result = MixedPrecisionResult(len(precision.products), len(precision.kept), size)
    remarks.record(result)
    wide = Counter(graph.cls(op).name.removeprefix("stablehlo.") for op in precision.wide())
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(wide.items())) or "none"
    count = len(precision.products)
    what = (
        f"{count} of {count + len(precision.kept)} products compute in {BF16} and sum up in {WIDE_TYPE}; values of "
        f"{format_bytes(size)} are stored in half of that, {len(precision.stashed)} of them rounded for the backward "
        f"pass alone; in {WIDE_TYPE} stay: {listed}"
    )
    remarks.add(name, Place(remarks.file), what)
