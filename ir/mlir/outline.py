"""Loops as functions, and back, for passes that convert functions but not regions.

Shardy's conversion to local shapes rewrites functions and straight-line ops; the regions of a `stablehlo.while` it
leaves with global types. So each loop's condition and body become private functions with shardings on their arguments
and results, and the loop becomes a call of no meaning with the same operands and results. After the conversion the loop
is put together again, in local types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.boundary import Attributes, set_boundary_attributes
from rhino.ir.mlir.reader import captured_by, walk
from rhino.ir.mlir.shardings import SHARDING, per_value_attribute

_CALL = "rhino.loop"


@dataclass(frozen=True, slots=True)
class OutlinedLoop:
    """A loop as functions: `num_carried` values are carried.

    Further operands of the call are values that the regions read from outside.
    """

    call: str
    condition: str
    body: str
    num_carried: int


def outline_loops(
    module: ir.Operation,
    loops: Sequence[tuple[ir.Operation, list[ir.Attribute]]],
    known: Mapping[ir.Value[Any], ir.Attribute],
) -> list[OutlinedLoop]:
    """Replaces loops, inner ones first, by calls of functions; returns what `inline_loops` needs.

    Each loop comes with a sharding for each value that it carries; `known` holds those of values that regions may read
    from outside.
    """
    made = []
    for number, (loop, carried) in enumerate(loops):
        outside = captured_by(loop)
        name = f"{_CALL}.{number}"
        outlined = OutlinedLoop(name, f"{name}.condition", f"{name}.body", len(carried))
        inside = [*carried, *(known[value] for value in outside)]
        condition, body = (region.blocks[0] for region in loop.regions)
        _to_function(module, condition, outlined.condition, outside, inside, [None])
        _to_function(module, body, outlined.body, outside, inside, carried)
        with ir.InsertionPoint(loop), loop.location:
            operands = [*loop.operands, *outside]
            call = stablehlo.CustomCallOp([r.type for r in loop.results], operands, call_target_name=name).operation
        call.attributes[SHARDING] = per_value_attribute(carried)
        _replace(loop, call)
        made.append(outlined)
    return made


def inline_loops(module: ir.Operation, loops: Sequence[OutlinedLoop]) -> None:
    """Puts outlined loops together again, outer ones first.

    This reverses `outline_loops`, whatever happened to the types in between.
    """
    functions = {op.name.value: op for op in module.regions[0].blocks[0].operations if isinstance(op, func.FuncOp)}
    calls = {_target(op): op for op in walk(module) if op.name == "stablehlo.custom_call"} if loops else {}
    for loop in reversed(loops):
        call = calls[loop.call]
        operands = list(call.operands)
        with ir.InsertionPoint(call), call.location:
            made = stablehlo.WhileOp([r.type for r in call.results], operands[: loop.num_carried]).operation
        _replace(call, made)
        for region, name in zip(made.regions, (loop.condition, loop.body), strict=True):
            _to_region(functions[name], region, operands[loop.num_carried :])


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)


def _replace(old: ir.Operation, new: ir.Operation) -> None:
    for before, after in zip(old.results, new.results, strict=True):
        before.replace_all_uses_with(after)
    old.erase()


def _to_function(
    module: ir.Operation,
    block: ir.Block,
    name: str,
    outside: Sequence[ir.Value[Any]],
    given: Sequence[ir.Attribute],
    returned: Sequence[ir.Attribute | None],
) -> None:
    for value in outside:
        argument = block.add_argument(value.type, value.location)
        for view in block.operations:
            for op in walk(view.operation):
                op.replace_uses_of_with(value, argument)
    last = _end_with(block, func.ReturnOp)
    with ir.InsertionPoint(module.regions[0].blocks[0]), last.location:
        types = ([a.type for a in block.arguments], [v.type for v in last.operands])
        function = func.FuncOp(name, types, visibility="private")
    block.append_to(function.regions[0])
    results: list[Attributes] = [{} if one is None else {SHARDING: one} for one in returned]
    set_boundary_attributes(function, "arg", [{SHARDING: one} for one in given])
    set_boundary_attributes(function, "res", results)


def _to_region(function: func.FuncOp, region: ir.Region, outside: Sequence[ir.Value[Any]]) -> None:
    block = function.regions[0].blocks[0]
    arguments = list(block.arguments)
    for argument, value in zip(arguments[len(arguments) - len(outside) :], outside, strict=True):
        argument.replace_all_uses_with(value)
    for number in range(len(arguments) - 1, len(arguments) - len(outside) - 1, -1):
        block.erase_argument(number)
    _end_with(block, stablehlo.ReturnOp)
    block.append_to(region)
    function.operation.erase()


def _end_with(block: ir.Block, kind: Any) -> ir.Operation:  # noqa: ANN401 - an op class of a dialect
    """Ends a block with another kind of return of the same values; returns it."""
    *_, last = block.operations
    old = last.operation
    with ir.InsertionPoint(old), old.location:
        new: ir.Operation = kind(list(old.operands)).operation
    old.erase()
    return new
