"""Let barriers order a program on a CPU as StableHLO says that they do.

An `optimization_barrier` says that what makes any of its operands runs before what reads any of its results. XLA's CPU
backend (jaxlib 0.10.2) takes barriers out before it orders ops, so that what is recomputed may run early, and what it
waits for late: the memory that recomputation saves is lost. Here a barrier becomes a branch between its operands and
zeros, by a truth that is read from an element of one of them: that it is equal to itself, or is not. XLA does not see
through that; no bit changes. One of the zeros is a count instead: a branch in which there are only ops as cheap as a
broadcast becomes a choice for each result where the other is more than its operands, as it is once XLA has found one of
these to be a constant (`ConditionalSimplifier`). Backends of accelerators keep barriers until ops are ordered. (A
choice for each result, by a truth of every operand, is not enough: XLA computes the elements that it reads by
themselves. Of 388 MiB of temporaries of a GPT 127 were left, and 77 with the branch, 2026-11-22.)
"""

from __future__ import annotations

from typing import Any, Final

from rhino.ir.graph.graph import BARRIER
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import maker_of, walk
from rhino.ir.program.identity import make_constant

_MANUAL: Final = "sdy.manual_computation"

_EQUAL, _UNEQUAL = (f"#stablehlo<comparison_direction {direction}>" for direction in ("EQ", "NE"))


def order_by_barriers(module: ir.Module, num_devices: int) -> ir.Module:
    """Returns a copy of `module` whose barriers order it, or `module` where none does.

    A barrier in a program that is yet to be partitioned stays: an element of a split tensor would have to be sent.
    """
    if not any(map(_orders, walk(module.operation))):
        return module
    copy = copy_module(module)
    with copy.context, ir.Location.unknown():
        for barrier in [op for op in walk(copy.operation) if _orders(op) and (num_devices == 1 or _is_local(op))]:
            _write_out(barrier)
    return copy


def _orders(op: ir.Operation) -> bool:
    """Says whether a barrier holds anything up: what is there from the start does not."""
    made = [value for value in op.operands if maker_of(value) is not None] if op.name == BARRIER else []
    return len(op.operands) > 1 and bool(made) and all(map(_has_elements, op.operands))


def _is_local(op: ir.Operation) -> bool:
    while (parent := op.parent) is not None:
        op = parent.operation
        if op.name == _MANUAL:
            return True
    return False


def _write_out(barrier: ir.Operation) -> None:
    made = next(value for value in barrier.operands if maker_of(value) is not None)
    kinds = [value.type for value in barrier.operands]
    with ir.InsertionPoint(barrier), barrier.location:
        choice = stablehlo.IfOp(kinds, _truth(made))
        with ir.InsertionPoint(choice.regions[0].blocks.append()):
            stablehlo.ReturnOp(list(barrier.operands))
        with ir.InsertionPoint(choice.regions[1].blocks.append()):
            counted = next((number for number, kind in enumerate(kinds) if _dim_to_count(kind) is not None), None)
            stablehlo.ReturnOp(
                [_count(kind) if number == counted else make_constant(kind, 0) for number, kind in enumerate(kinds)]
            )
    for result, chosen in zip(barrier.results, choice.results, strict=True):
        result.replace_all_uses_with(chosen)
    barrier.erase()


def _dim_to_count(kind: ir.RankedTensorType) -> int | None:
    """Returns a dim along which a count is no constant, None where there is none."""
    is_truth = isinstance(kind.element_type, ir.IntegerType) and kind.element_type.width == 1
    return None if is_truth else next((dim for dim, size in enumerate(kind.shape) if size > 1), None)


def _count(kind: ir.RankedTensorType) -> ir.Value[Any]:
    result: ir.Value[Any] = stablehlo.IotaOp(kind, _dim_to_count(kind)).result
    return result


def _has_elements(value: ir.Value[Any]) -> bool:
    kind = value.type
    return (
        isinstance(kind, ir.RankedTensorType)
        and isinstance(kind.element_type, ir.FloatType | ir.IntegerType)
        and 0 not in kind.shape
    )


def _truth(value: ir.Value[Any]) -> ir.Value[Any]:
    """Returns true, from the first element of a tensor."""
    kind = ir.RankedTensorType(value.type)
    rank, f32 = len(kind.shape), ir.F32Type.get()
    if rank:
        corner = stablehlo.SliceOp(value, [0] * rank, [1] * rank, [1] * rank).result
        value = stablehlo.ReshapeOp(ir.RankedTensorType.get([], kind.element_type), corner).result
    if kind.element_type != f32:  # of integers XLA knows that they equal themselves
        value = stablehlo.ConvertOp(ir.RankedTensorType.get([], f32), value).result
    comparisons = [
        stablehlo.CompareOp(value, value, ir.Attribute.parse(direction)).result for direction in (_EQUAL, _UNEQUAL)
    ]
    truth: ir.Value[Any] = stablehlo.OrOp(*comparisons).result
    return truth
