"""Give a local program along the time axis its whole batch back, of which it reads the slices of one part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.boundary import set_function_type
from rhino.passes.pipeline.time_loop import corner, reshape

Value = ir.Value[Any]

_GATHER: Final = "stablehlo.all_gather"


def take_slices(entry: func.FuncOp, batch: Mapping[int, int], parts: int) -> None:
    """Gives the batch arguments their whole shapes back, and what reads them the slices of one part."""
    block = entry.regions[0].blocks[0]
    first = block.operations[0] if len(block.operations) else None
    assert first is not None
    with ir.InsertionPoint(first), entry.location:
        part = stablehlo.ConvertOp(
            ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)), stablehlo.PartitionIdOp()
        ).result
        for number, dim in batch.items():
            argument = entry.arguments[number]
            readers = list(argument.uses)
            _widen(argument, dim, parts)
            mine = _slice(argument, dim, parts, part)
            for use in readers:
                reader = use.owner
                if reader.name == _GATHER:
                    reader.results[0].replace_all_uses_with(argument)
                    reader.erase()
                else:
                    reader.operands[use.operand_number] = mine
    set_function_type(entry)


def _widen(argument: Value, dim: int, parts: int) -> None:
    kind = ir.RankedTensorType(argument.type)
    shape = list(kind.shape)
    shape[dim] *= parts
    argument.set_type(ir.RankedTensorType.get(shape, kind.element_type))


def _slice(value: Value, dim: int, parts: int, part: Value) -> Value:
    """Returns block number `part` of `value` along `dim`, cut from [parts, ...]."""
    kind = ir.RankedTensorType(value.type)
    shape = list(kind.shape)
    shape[dim : dim + 1] = [parts, shape[dim] // parts]
    stacked: Value = reshape(value, shape)
    if dim:
        order = [dim, *(number for number in range(len(shape)) if number != dim)]
        stacked = stablehlo.TransposeOp(stacked, order).result
        shape = [shape[number] for number in order]
    one = stablehlo.DynamicSliceOp(stacked, corner(part, len(shape)), [1, *shape[1:]]).result
    return reshape(one, shape[1:])
