"""What goes into a loop and comes out of it as values of their own, so that each place can choose how they lie.

What a loop carries lies in one way from its start to all of its uses. A start that other ops read too could not be what the loop wants, and
of a sum that a loop leaves in parts each reader would join the parts for itself.
"""

from __future__ import annotations

from typing import Any, Final

from rhino.ir.accumulation import MICRO_BATCHES
from rhino.ir.identity import is_constant
from rhino.ir.mlir import func, ir, stablehlo
from rhino.ir.reader import maker_of, walk

_LOOP: Final = "stablehlo.while"


def own_values(entry: func.FuncOp) -> None:
    """Gives each loop starts of its own where they are constants, and what one over micro-batches sums up from zeros a value after it.

    A barrier, for it may lie in another way than what goes past it, and XLA (jaxlib 0.10.2) folds a reshape to the same shape away and puts
    its sharding on the loop.
    """
    for loop in [op for op in walk(entry.operation) if op.name == _LOOP]:
        for number, value in enumerate(list(loop.operands)):
            if _is_repeated(value) and len(list(value.uses)) > 1:
                made = maker_of(value)
                assert made is not None
                loop.operands[number] = made.clone(ip=ir.InsertionPoint(loop)).results[0]
            result = loop.results[number]
            if MICRO_BATCHES in loop.attributes and _is_zero(value) and len(list(result.uses)) > 1:
                with ir.InsertionPoint.after(loop), loop.location:
                    after = stablehlo.OptimizationBarrierOp([result])
                result.replace_all_uses_except(after.results[0], after.operation)


def _source(value: ir.Value[Any]) -> ir.Value[Any]:
    """Returns what a value repeats."""
    made = maker_of(value)
    return made.operands[0] if made is not None and made.name == "stablehlo.broadcast_in_dim" else value


def _is_repeated(value: ir.Value[Any]) -> bool:
    made = maker_of(_source(value))
    return made is not None and made.name == "stablehlo.constant"


def _is_zero(value: ir.Value[Any]) -> bool:
    return bool(ir.RankedTensorType(value.type).shape) and is_constant(_source(value), 0)
