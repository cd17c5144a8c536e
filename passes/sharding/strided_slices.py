"""Slices with strides in Shardy's conversion to local shapes.

Of a dim of which a slice takes one element of each block of a stride's length, every device can slice its own part. The
conversion (jaxlib 0.10.2) takes a slice of a split dim for one that has to communicate, and refuses it. So a call that
says nothing of the slice stands there during the conversion, which gives it its local shapes.
"""

from __future__ import annotations

from typing import Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import walk

SLICE: Final = "stablehlo.slice"
_CALL: Final = "rhino.slice"
_START, _STRIDES = "start_indices", "strides"


def set_slice_aside(op: ir.Operation) -> ir.Operation:
    """Puts a call in the place of a slice that has strides, and returns it; returns any other slice itself."""
    if all(stride == 1 for stride in ir.DenseI64ArrayAttr(op.attributes[_STRIDES])):
        return op
    (result,) = op.results
    with ir.InsertionPoint(op), op.location:
        call: ir.Operation = stablehlo.CustomCallOp([result.type], list(op.operands), call_target_name=_CALL).operation
    for name in (_START, _STRIDES):
        call.attributes[name] = op.attributes[name]
    result.replace_all_uses_with(call.results[0])
    op.erase()
    return call


def put_slices_back(module: ir.Operation) -> None:
    """Makes slices of their local shapes of the calls that stand for them."""
    for op in walk(module):
        if op.name == "stablehlo.custom_call" and ir.StringAttr(op.attributes["call_target_name"]).value == _CALL:
            _put_back(op)


def _put_back(call: ir.Operation) -> None:
    start, strides = (list(ir.DenseI64ArrayAttr(call.attributes[name])) for name in (_START, _STRIDES))
    sizes = ir.RankedTensorType(call.results[0].type).shape
    # Behind the last element that it takes.
    limits = [a + max(size - 1, 0) * by + min(size, 1) for a, size, by in zip(start, sizes, strides, strict=True)]
    with ir.InsertionPoint(call), call.location:
        made = stablehlo.SliceOp(call.operands[0], start, limits, strides)
    call.results[0].replace_all_uses_with(made.result)
    call.erase()
