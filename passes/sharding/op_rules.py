"""Give custom calls the sharding rules that their owner says they have, or that they show.

Reads     a file of rules by target, and `sdy.sharding_rule` on custom calls of the input (JAX writes it on its own
          linear algebra).
Writes    `sdy.sharding_rule` on the custom calls of these targets, marked as custom, and so marks the rules of the
          input; `rhino.cost` where the file says what a call costs. A rule in the file goes before one in the input.
          A call that has neither gets the rule and the costs that it shows: kernels for TPUs and GPUs, and cuDNN's
          attention. A kernel for GPUs that shows none runs whole, which a remark says.
Errors    RHI-CLI-002 the file cannot be read, RHI-RULE-001 it is malformed, RHI-RULE-002 a rule does not fit a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rhino.ir.calls.gpu_rules import whole_rule
from rhino.ir.calls.known_calls import call_rule
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.rules import RULE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import walk
from rhino.ir.program.local_rules import CUSTOM_CALL, is_custom
from rhino.ir.program.program import COST
from rhino.ir.request.op_rules import OpRule, read_op_rules
from rhino.passes.base import Pass, Remarks, opt


@dataclass(frozen=True)
class OpRules(Pass):
    """Give custom calls the sharding rules of a file, and mark those that they have as their owner's."""

    name: ClassVar[str] = "rhino-op-rules"
    errors: ClassVar[tuple[str, ...]] = ("RHI-CLI-002", "RHI-RULE-001", "RHI-RULE-002")

    op_rules: str = opt("", "a TOML file of rules for custom calls, see docs/constraints.md")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Writes rules onto `module`."""
        rules = read_op_rules(self.op_rules) if self.op_rules else {}
        used = set()
        for op in walk(module):
            if op.name != CUSTOM_CALL:
                continue
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if target in rules:
                _give(op, rules[target], f"the rule for @{target}", remarks.file)
                used.add(target)
            elif RULE in op.attributes:
                _mark(op)
            else:
                self._show(op, remarks)
        for target in rules:
            if target not in used:
                remarks.add(self.name, Place(remarks.file), f"no custom call takes the rule for @{target}")

    def _show(self, op: ir.Operation, remarks: Remarks) -> None:
        """Gives a call what it shows of itself."""
        found, whole = call_rule(op), whole_rule(op)
        if found is not None:
            op.attributes[RULE] = ir.Attribute.parse(found.text)
            _write_cost(op, found.work.costs, found.work.product_dtype, found.loads)
        if whole is not None:
            rule, why = whole
            op.attributes[RULE] = ir.Attribute.parse(rule)
            place = place_of(op.location, remarks.file)
            remarks.add(self.name, place, f"a kernel runs whole on every device: {why}")


def _mark(op: ir.Operation) -> None:
    rule = op.attributes[RULE]
    if not is_custom(rule):
        op.attributes[RULE] = ir.Attribute.parse(f"{str(rule).removesuffix('>')}, custom>")


def _give(op: ir.Operation, rule: OpRule, what: str, file: str) -> None:
    try:
        shapes = [
            [tuple(ir.RankedTensorType(value.type).shape) for value in side] for side in (op.operands, op.results)
        ]
        sizes = rule.fitted(*shapes)
        cost = rule.cost(sizes)
        op.attributes[RULE] = ir.Attribute.parse(rule.text(sizes))
        op.verify()
    except (ValueError, ir.MLIRError) as error:
        why = (
            str(error.error_diagnostics[0].message)
            if isinstance(error, ir.MLIRError) and error.error_diagnostics
            else str(error)
        )
        raise RhinoError(
            "RHI-RULE-002", f"{what} does not fit the call: {why}", place_of(op.location, file), fix="correct the rule"
        ) from None
    if cost:
        _write_cost(op, cost)


def _write_cost(
    op: ir.Operation,
    cost: Mapping[str, int],
    product_dtype: str = "",
    loads: Sequence[tuple[str, tuple[int, ...]]] = (),
) -> None:
    count = ir.IntegerType.get_signless(64)
    written: dict[str, ir.Attribute] = {key: ir.IntegerAttr.get(count, value) for key, value in cost.items()}
    if product_dtype:
        written["product_dtype"] = ir.StringAttr.get(product_dtype)
    if loads:
        written["loads"] = ir.DictAttr.get({factor: ir.DenseI64ArrayAttr.get(list(load)) for factor, load in loads})
    op.attributes[COST] = ir.DictAttr.get(written)
