"""In which memory arguments and results lie between steps, and what brings them to the device and back.

An argument that lies in host memory is brought to the device by a custom call that XLA takes for a copy, as JAX writes
it for `jax.device_put` inside of jit; so is a result the other way.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from rhino.ir.graph.graph import DEVICE, HOST, MemoryKind
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Attributes, Side, boundary_attributes, entries, set_boundary_attributes
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import end_of, entry_function, maker_of

MEMORY_KIND: Final = "mhlo.memory_kind"
"""On an argument or result: its memory, by JAX's name of the kind; without it, that of the device."""

SIDES: Final[tuple[Side, ...]] = ("arg", "res")

PLACEMENT: Final = "annotate_device_placement"
"""The custom call."""

_CALL: Final = "stablehlo.custom_call"
_LOOP: Final = "stablehlo.while"
_READ: Final = "stablehlo.dynamic_slice"
_WRITE: Final = "stablehlo.dynamic_update_slice"
FRONTEND: Final = "mhlo.frontend_attributes"
_KIND: Final = "_xla_buffer_placement"
_OF_HOST: Final = (HOST, "unpinned_host")


def is_on_host(attributes: Attributes) -> bool:
    """Says whether an argument or result with these attributes lies in host memory."""
    return MEMORY_KIND in attributes and ir.StringAttr(attributes[MEMORY_KIND]).value == HOST


def on_host(attributes: Attributes) -> Attributes:
    """Returns attributes of what lies in host memory."""
    return {**attributes, MEMORY_KIND: ir.StringAttr.get(HOST)}


def hosted(function: func.FuncOp, side: Side) -> list[int]:
    """Returns which arguments ("arg") or results ("res") of a function lie in host memory, by number."""
    return [number for number, one in enumerate(boundary_attributes(function, side)) if is_on_host(one)]


def write_transfers(entry: func.FuncOp) -> None:
    """Writes into a function what brings arguments to the device and results to host memory, where they lie there.

    Where that stands already nothing is written.
    """
    block = entry.regions[0].blocks[0]
    end = end_of(block)
    with entry.context, ir.Location.unknown():
        for number in hosted(entry, "arg"):
            argument = block.arguments[number]
            if _is_brought_by(argument):
                continue
            with ir.InsertionPoint.at_block_begin(block):
                here = placed(argument, DEVICE)
            argument.replace_all_uses_except(here.results[0], here)
        for number in hosted(entry, "res"):
            if lies_on_host(end.operands[number]):
                continue
            with ir.InsertionPoint(end):
                end.operands[number] = placed(end.operands[number], HOST).results[0]


def with_transfers(module: ir.Module) -> ir.Module:
    """Returns a module with what `write_transfers` writes: itself where nothing lies in host memory."""
    entry = entry_function(module)
    if not any(hosted(entry, side) for side in SIDES):
        return module
    module = copy_module(module)
    write_transfers(entry_function(module))
    return module


def write_memory_kinds(function: func.FuncOp, side: Side, numbers: Collection[int]) -> None:
    """Says of some arguments or results of a function, by number, that they lie in host memory."""
    attributes = boundary_attributes(function, side)
    found = [on_host(one) if number in numbers else one for number, one in enumerate(attributes)]
    set_boundary_attributes(function, side, found)


def remove_memory_kind(function: func.FuncOp, side: Side, number: int) -> None:
    """Says no more where an argument or result of a function lies: it lies on the device."""
    attributes = boundary_attributes(function, side)
    attributes[number].pop(MEMORY_KIND, None)
    set_boundary_attributes(function, side, attributes)


def placement_of(op: ir.Operation) -> MemoryKind | None:
    """Returns the memory to which an op moves what it reads; None where it does something else."""
    if not _is_transfer(op) or FRONTEND not in op.attributes:
        return None
    given = entries(op.attributes[FRONTEND])
    kind = ir.StringAttr(given[_KIND]).value if _KIND in given else ""
    return HOST if kind in _OF_HOST else DEVICE if kind == DEVICE else None


def lies_on_host(value: ir.Value[ir.Type]) -> bool:
    """Says whether a value is moved to host memory by what makes it: by an op, or row by row in a loop."""
    made = maker_of(value)
    if made is None:
        return False
    if made.name == _LOOP:
        last = end_of(made.regions[1].blocks[0]).operands[ir.OpResult(value).result_number]
        writer = maker_of(last)
        return writer is not None and writer.name == _WRITE and lies_on_host(writer.operands[1])
    return placement_of(made) == HOST


def _is_brought_by(value: ir.Value[ir.Type]) -> bool:
    """Says whether what reads a value moves it to the device: an op, or a loop row by row."""
    for use in value.uses:
        reader = use.owner.operation
        if placement_of(reader) == DEVICE:
            return True
        if reader.name == _LOOP and _is_brought_by(reader.regions[1].blocks[0].arguments[use.operand_number]):
            return True
        if reader.name == _READ and _is_brought_by(reader.results[0]):
            return True
    return False


def _is_transfer(op: ir.Operation) -> bool:
    return op.name == _CALL and ir.StringAttr(op.attributes["call_target_name"]).value == PLACEMENT


def placed(value: ir.Value[ir.Type], memory: MemoryKind, location: ir.Location | None = None) -> ir.Operation:
    """Returns the op that moves a value to a memory, written at the insertion point that is current."""
    return ir.Operation.create(
        _CALL,
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": ir.StringAttr.get(PLACEMENT),
            "has_side_effect": ir.BoolAttr.get(True),
            FRONTEND: ir.DictAttr.get({_KIND: ir.StringAttr.get(memory)}),
        },
        loc=location or ir.Location.unknown(),
    )
