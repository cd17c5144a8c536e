"""Where the user cuts a model in stages: marks on values, which stay with them until stages are chosen.

In a module from a front end a mark is a `stablehlo.composite` of the identity, which XLA takes for what it is. When it
is normalized it becomes an `optimization_barrier` with the attribute `rhino.stage_boundary`, which every rewriting
knows as an op of no cost.
"""

from __future__ import annotations

from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import entry_function, walk

BOUNDARY: Final = "rhino.stage_boundary"
"""The name of the composite, and on a barrier the way of the value that is marked."""

FORWARD, BACK = "forward", "back"

_COMPOSITE: Final = "stablehlo.composite"


def keep_marks(module: ir.Operation) -> None:
    """Makes marked barriers of the composites that are marks."""
    for op in [
        op for op in walk(module) if op.name == _COMPOSITE and ir.StringAttr(op.attributes["name"]).value == BOUNDARY
    ]:
        with ir.InsertionPoint(op), op.location:
            barrier = stablehlo.OptimizationBarrierOp(list(op.operands))
        barrier.operation.attributes[BOUNDARY] = ir.DictAttr(op.attributes["composite_attributes"])["way"]
        for old, new in zip(op.results, barrier.results, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


def direction_of(op: ir.Operation) -> str | None:
    """Returns the direction of the value that an op marks, None where it is no mark."""
    return ir.StringAttr(op.attributes[BOUNDARY]).value if BOUNDARY in op.attributes else None


def drop_marks(module: ir.Operation) -> None:
    """Takes marked barriers out: they order nothing, and would keep what follows from them from being recomputed."""
    for op in [op for op in walk(module) if BOUNDARY in op.attributes]:
        for operand, result in zip(op.operands, op.results, strict=True):
            result.replace_all_uses_with(operand)
        op.erase()


def num_marked_stages(module: ir.Module) -> int:
    """Returns how many stages the marks of a normalized module make: one more than stand one after the other."""
    level: dict[ir.Value[Any], int] = {}
    for view in entry_function(module).regions[0].blocks[0].operations:
        op = view.operation
        own = max((level.get(value, 0) for inner in walk(op) for value in inner.operands), default=0) + (
            direction_of(op) == FORWARD
        )
        level.update((result, own) for result in op.results)
    return max(level.values(), default=0) + 1
