"""A step in one stage as a module in stages: one program, with the loop over micro-batches in it, if there is one.

Nothing has to wait between its parts, so nothing need be in memory there for their sake alone, and a device is launched
once for a step. What the step hands back as it came is no part of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import Attributes, boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.memory_kinds import is_on_host, write_memory_kinds
from rhino.ir.mlir.reader import end_of, walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.accumulation import MICRO_BATCHES
from rhino.ir.program.op_stages import remove_stages
from rhino.ir.program.staged_module import StagedPart, argument_names, declare_step, program_boundary, write_staged

_NAME: Final = "step_0"


def make_one_program(module: ir.Operation, entry: func.FuncOp) -> None:
    """Makes of `module`, whose `entry` is a step, a module in one stage, in place."""
    names = argument_names(entry)
    arguments, results = boundary_attributes(entry, "arg"), boundary_attributes(entry, "res")
    declare_step(entry, names)
    ops = walk(entry.operation)
    num_micro_batches = next(
        (ir.IntegerAttr(op.attributes[MICRO_BATCHES]).value for op in ops if MICRO_BATCHES in op.attributes), 1
    )
    for op in ops:
        remove_stages(op)
    block = entry.regions[0].blocks[0]
    end = end_of(block)
    returned = list(end.operands)
    passed = dict(_passed_on(returned, arguments, results))
    given = [number for number in range(len(returned)) if number not in passed]
    with ir.InsertionPoint(end), end.location:
        func.ReturnOp([returned[number] for number in given])
    end.erase()
    read = [number for number, value in enumerate(block.arguments) if any(True for _ in value.uses)]
    for number in sorted(set(range(len(names))).difference(read), reverse=True):
        block.erase_argument(number)
    _write_boundary(entry, [arguments[number] for number in read], [results[number] for number in given], given)
    part = StagedPart(
        "step", 0, _NAME, tuple([names[number] for number in read]), tuple([f"{_NAME}.{number}" for number in given])
    )
    named = [names[passed[number]] if number in passed else f"{_NAME}.{number}" for number in range(len(returned))]
    write_staged(module, [part], 1, num_micro_batches, named)


def _passed_on(
    returned: Sequence[ir.Value[Any]], arguments: Sequence[Attributes], results: Sequence[Attributes]
) -> Iterator[tuple[int, int]]:
    """Yields the results that are an argument as it came, with its number."""
    for number, value in enumerate(returned):
        if isinstance(value, ir.BlockArgument) and results[number].get(SHARDING) == arguments[value.arg_number].get(
            SHARDING
        ):
            yield number, value.arg_number


def _write_boundary(
    entry: func.FuncOp, arguments: Sequence[Attributes], results: Sequence[Attributes], given: Sequence[int]
) -> None:
    """Makes the function that is left a program, with its own name.

    Its aliases count only the results that it gives.
    """
    set_function_type(entry)
    entry.attributes["sym_name"] = ir.StringAttr.get(_NAME)
    entry.attributes["sym_visibility"] = ir.StringAttr.get("private")
    places = {number: place for place, number in enumerate(given)}
    aliases = [ir.IntegerAttr(one[ALIAS]).value if ALIAS in one else None for one in arguments]
    taken = [places.get(alias) if alias is not None else None for alias in aliases]
    boundary = [program_boundary(one.get(SHARDING), place) for one, place in zip(arguments, taken, strict=True)]
    set_boundary_attributes(entry, "arg", boundary)
    set_boundary_attributes(entry, "res", [program_boundary(one.get(SHARDING)) for one in results])
    write_memory_kinds(entry, "arg", [number for number, one in enumerate(arguments) if is_on_host(one)])
    write_memory_kinds(entry, "res", [number for number, one in enumerate(results) if is_on_host(one)])
