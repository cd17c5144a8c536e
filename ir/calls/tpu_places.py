"""Kernels for TPUs that read their place in the grid from a table, so that a part of the grid knows where it is.

What a kernel computes from a coordinate of its grid, as the mask of causal attention from that of a block of keys, is
another number where the grid is a part of the whole one. With the coordinates in a scalar operand, which splits along
the dim of the grid, each part reads its own; so JAX's splash attention has the positions of queries in an operand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from rhino.ir.calls.tpu_grid import KernelGrid
from rhino.ir.calls.tpu_points import LOAD, Points
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.tpu_kernels import Kernel, decoded, encoded, functions_of, read_kernel, retype

_CONFIG: Final = "backend_config"
_SCALARS: Final = "scalar_prefetch"
_ALIASES: Final = "output_operand_aliases"
_LAYOUTS: Final = "operand_layouts"
_NEAR: Final = "#tpu.memory_space<smem>"


@dataclass(frozen=True, slots=True)
class AskedPlace:
    """A dim of a kernel's grid, of so many places, that splits if the kernel reads its coordinate from a table.

    Where it does, dim `dim` of result `result` is split in just as many parts.
    """

    grid: int
    size: int
    result: int
    dim: int


def asked_places(op: ir.Operation) -> list[AskedPlace]:
    """Returns the dims of the grid with whose coordinates a call's kernel computes, and that split all the same."""
    kernel = read_kernel(op)
    found = KernelGrid.of(kernel, op) if kernel is not None else None
    if kernel is None or found is None:
        return []
    places = [(grid, found.moved_by(grid)) for grid in sorted(found.free() & found.asked)]
    return [AskedPlace(grid, kernel.bounds[grid], *place) for grid, place in places if place is not None]


def read_place(op: ir.Operation, grid: int, table: ir.Value[Any]) -> ir.Operation:
    """Returns the call that takes the place of `op`: its kernel reads the coordinate along `grid` from `table`."""
    kernel = read_kernel(op)
    assert kernel is not None, "the call has places to read"
    first = kernel.num_scalars
    operands = [*list(op.operands)[:first], table, *list(op.operands)[first:]]
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes[_CONFIG] = ir.StringAttr.get(json.dumps(_with_table(kernel, grid)), op.context)
    with op.context, op.location, ir.InsertionPoint(op):
        if _LAYOUTS in attributes:
            layouts = list(ir.ArrayAttr(attributes[_LAYOUTS]))
            row = ir.Attribute.parse("dense<0> : tensor<1xindex>")
            attributes[_LAYOUTS] = ir.ArrayAttr.get([*layouts[:first], row, *layouts[first:]])
        if _ALIASES in attributes:
            attributes[_ALIASES] = ir.ArrayAttr.get([_moved(one, first) for one in ir.ArrayAttr(attributes[_ALIASES])])
        made = ir.Operation.create(op.name, [one.type for one in op.results], operands, attributes)
    for before, after in zip(op.results, made.results, strict=True):
        before.replace_all_uses_with(after)
    op.erase()
    return made


def _moved(given: ir.Attribute, first: int) -> ir.Attribute:
    """Returns an alias whose operand has one more before it, if it is not one of the first."""
    alias = stablehlo.OutputOperandAlias(given)
    number = alias.operand_index + (alias.operand_index >= first)
    made: ir.Attribute = stablehlo.OutputOperandAlias.get(
        alias.output_tuple_indices, number, alias.operand_tuple_indices
    )
    return made


def _with_table(kernel: Kernel, grid: int) -> dict[str, Any]:
    """Returns the configuration of the kernel that reads its coordinate along `grid` from one more scalar operand."""
    with decoded(kernel) as made:
        kind = ir.MemRefType.get(
            [made.bounds[grid]], ir.IntegerType.get_signless(32), memory_space=ir.Attribute.parse(_NEAR)
        )
        for function in functions_of(made):
            _insert_argument(function.regions[0].blocks[0], len(made.bounds) + made.num_scalars, kind)
            retype(function)
        count = ir.IntegerType.get_signless(64)
        made.body.attributes[_SCALARS] = ir.IntegerAttr.get(count, made.num_scalars + 1)
        _read(made, grid)
        config = encoded(made)
    call = config["custom_call_config"]
    for color in call.get("input_memory_space_colors", []):
        color["operand_index"] += color["operand_index"] >= kernel.num_scalars
    if "allow_input_fusion" in call:
        call["allow_input_fusion"].insert(kernel.num_scalars, False)
    return config


def _insert_argument(block: ir.Block, place: int, kind: ir.Type) -> None:
    """Gives a block an argument of a type at `place`, before those that stood there."""
    block.add_argument(kind, ir.Location.unknown())
    arguments = list(block.arguments)
    for number in range(len(arguments) - 1, place, -1):
        arguments[number].set_type(arguments[number - 1].type)
        arguments[number - 1].replace_all_uses_with(arguments[number])
    arguments[place].set_type(kind)


def _read(kernel: Kernel, grid: int) -> None:
    """Puts an element of the table, the last scalar operand, in the place of a coordinate in a kernel's function.

    Elements of other scalar operands stay where they are: such an operand is split as the grid is.
    """
    block, num_scalars = kernel.block, kernel.num_scalars + 1
    points = Points(kernel.bounds, kernel.body, num_scalars)
    loads = [op for op in walk(kernel.body) if op.name == LOAD and op.operands[0] in points.scalars]
    local = [
        (op, number)
        for op in loads
        for number, index in enumerate(op.operands)
        if number and points.plain(points.at(index)) == grid
    ]
    coordinate, table = block.arguments[grid], block.arguments[len(kernel.bounds) + num_scalars - 1]
    uses = [(use.owner.operation, use.operand_number) for use in coordinate.uses]
    with ir.InsertionPoint.at_block_begin(block):
        index = ir.Operation.create("arith.index_cast", [ir.IndexType.get()], [coordinate]).results[0]
        element = ir.Operation.create(LOAD, [coordinate.type], [table, index]).results[0]
    for op, number in uses:
        op.operands[number] = element
    for op, number in local:
        op.operands[number] = index
