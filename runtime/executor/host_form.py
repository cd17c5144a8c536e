"""The form in which a CPU's XLA runs a module as it is meant: the same values, in other ops."""

from __future__ import annotations

from typing import Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import walk
from rhino.runtime.executor.barriers import order_by_barriers
from rhino.runtime.executor.scatters import separate_inputs

_PRODUCTS: Final = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})


def host_form(module: ir.Module, num_devices: int) -> ir.Module:
    """Returns a copy of `module` for a CPU, or `module` where that is no other."""
    return order_by_barriers(separate_inputs(_widened(module)), num_devices)


def _widened(module: ir.Module) -> ir.Module:
    """Returns a copy of `module` whose products in 16 bits with sums in f32 read f32, or `module` where there are none.

    No bit changes: f32 holds what is in 16 bits, and XLA's CPU backend (jaxlib 0.10.2) converts operands itself, but
    not where it has joined a transposition to such a product, which then ends in "Unsupported element type".
    """
    if not any(map(_is_mixed, walk(module.operation))):
        return module
    copy = copy_module(module)
    with copy.context:
        for op in [op for op in walk(copy.operation) if _is_mixed(op)]:
            with ir.InsertionPoint(op), op.location:
                for position, value in enumerate(list(op.operands)):
                    shape = ir.RankedTensorType(value.type).shape
                    wide = ir.RankedTensorType.get(shape, ir.F32Type.get())
                    op.operands[position] = stablehlo.ConvertOp(wide, value).result
    return copy


def _is_mixed(op: ir.Operation) -> bool:
    if op.name not in _PRODUCTS:
        return False
    read, given = ([ir.RankedTensorType(one.type).element_type for one in side] for side in (op.operands, op.results))
    return isinstance(given[0], ir.F32Type) and all(isinstance(one, ir.BF16Type | ir.F16Type) for one in read)
