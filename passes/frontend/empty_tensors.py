"""Tensors without elements, as scans over pairs leave them: nothing computes one, and nothing is joined to one.

Whatever op gives such a tensor, a constant is as good. So none of its dims says how what it is read with lies, and no
op waits for what it would have been made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.program import CONSTANT

Value = ir.Value[Any]
_KEPT: Final = frozenset(
    {CONSTANT} | {f"stablehlo.{name}" for name in ("custom_call", "infeed", "outfeed", "send", "recv", "while")}
)
"""Ops that may do more than give their results, or may not end, and what stands in place of all others."""


def drop_empty_tensors(ops: Sequence[ir.Operation]) -> None:
    """Makes constants of tensors without elements, and takes them from what pads, joins, sums up or updates.

    What is no longer read stays, for whoever drops dead code.
    """
    for op in ops:
        if not any(map(_is_empty, [*op.results, *op.operands])):
            continue
        with ir.InsertionPoint(op), op.location:
            if op.results and op.name not in _KEPT and all(map(_is_empty, op.results)):
                for result in op.results:
                    result.replace_all_uses_with(_empty(result.type))
            elif len(op.results) == 1 and (same := _without(op)) is not None:
                op.results[0].replace_all_uses_with(same)


def _without(op: ir.Operation) -> Value | None:
    """Returns what an op gives that reads a tensor without elements, by another op; None where there is none."""
    kind = op.results[0].type
    match op.name:
        case "stablehlo.concatenate":
            parts = [value for value in op.operands if not _is_empty(value)]
            dim = ir.IntegerAttr(op.attributes["dimension"]).value
            return cast(Value, stablehlo.concatenate(parts, dim)) if len(parts) > 1 else parts[0]
        case "stablehlo.pad" | "stablehlo.reduce":
            return cast(Value, stablehlo.BroadcastInDimOp(kind, op.operands[1], []).result)
        case "stablehlo.dynamic_update_slice":
            return cast(Value, op.operands[0])
    return None


def _is_empty(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and kind.has_static_shape and 0 in kind.shape


def _empty(kind: ir.Type) -> Value:
    return cast(Value, stablehlo.ConstantOp(ir.Attribute.parse(f"dense<> : {kind}")).result)
