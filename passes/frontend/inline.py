"""Inline every call in the entry function, within a limit of ops.

MLIR's own `inline` leaves `func.call` alone here: jaxlib registers no inliner interface for the func dialect. Which
calls there are, and how many ops they expand to, is known before the first op is copied; then each op is copied once,
to where it stays, however deep its call is nested.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.reader import functions_of, walk

CALL: Final = "func.call"
_RETURN: Final = "func.return"
INLINE_ERRORS: Final = ("RHI-READ-006", "RHI-READ-007", "RHI-READ-008")
MOST_OPS: Final = 1_000_000
"""Ops of a program in which calls are inlined.

Ten times those of the largest published step (GPT-72, 76,000 instructions; Rhino 6).
"""


def inline_calls(module: ir.Operation, entry: func.FuncOp, file: str) -> None:
    """Replaces every call in `entry` by what it calls, in place.

    Raises:
        RhinoError: RHI-READ-006 where calls are recursive, RHI-READ-007 where they expand to more than `MOST_OPS` ops,
            RHI-READ-008 where a function that is called has no body.
    """
    functions = {op.name.value: op for op in functions_of(module)}
    _check_size(_callees_first(entry, functions, file), file)
    waiting = _calls(entry.operation)
    while waiting:
        call = waiting.pop()
        waiting += _inline_call(call, functions[_callee(call)])


def _inline_call(call: ir.Operation, callee: func.FuncOp) -> list[ir.Operation]:
    """Replaces a call by a copy of its callee's body; returns the calls in that."""
    values: dict[ir.Value[Any], ir.Value[Any]] = dict(zip(callee.arguments, call.operands, strict=True))
    inner: list[ir.Operation] = []
    for view in callee.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == _RETURN:
            for old, new in zip(call.results, op.operands, strict=True):
                old.replace_all_uses_with(values[new])
            break
        copy = op.clone(ip=ir.InsertionPoint(call))
        _remap(copy, values, call.location)
        values.update(zip(op.results, copy.results, strict=True))
        inner += _calls(copy)
    call.erase()
    return inner


def _remap(root: ir.Operation, values: dict[ir.Value[Any], ir.Value[Any]], caller: ir.Location) -> None:
    """Points the copied ops' operands at the caller's values, and their locations at the call."""
    for op in walk(root):
        op.location = ir.Location.callsite(op.location, [caller])
        for index, operand in enumerate(op.operands):
            replacement = values.get(operand)
            if replacement is not None:
                op.operands[index] = replacement


def _calls(root: ir.Operation) -> list[ir.Operation]:
    return [op for op in walk(root) if op.name == CALL]


def _callee(call: ir.Operation) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _callees_first(entry: func.FuncOp, functions: dict[str, func.FuncOp], file: str) -> list[func.FuncOp]:
    """Returns the functions that `entry` calls, directly or not, and itself: each after those that it calls."""
    order: dict[str, func.FuncOp] = {}
    around: list[tuple[str, Iterator[ir.Operation]]] = [(entry.name.value, iter(_calls(entry.operation)))]
    open_names = {entry.name.value}
    while around:
        name, calls = around[-1]
        call = next(calls, None)
        if call is None:
            order[name] = functions[name]
            open_names.remove(name)
            around.pop()
            continue
        callee = _callee(call)
        if callee in open_names:
            raise _recursive([*(one for one, _ in around), callee], place_of(call.location, file))
        if functions[callee].is_external:
            raise RhinoError(
                "RHI-READ-008",
                f"@{callee} is called, and has no body",
                place_of(call.location, file),
                fix="link the module with the one that defines it",
            )
        if callee not in order:
            open_names.add(callee)
            around.append((callee, iter(_calls(functions[callee].operation))))
    return list(order.values())


def _recursive(chain: list[str], place: Place) -> RhinoError:
    named = [f"@{name}" for name in chain]
    what = f"calls are recursive: {' -> '.join(named)}"
    return RhinoError("RHI-READ-006", what, place, fix="unroll the recursion")


def _check_size(functions: list[func.FuncOp], file: str) -> None:
    """Refuses a program that is too large once its calls are inlined, at the call that is one too many."""
    num_ops: dict[str, int] = {}
    for function in functions:
        ops = walk(function.operation)[1:]
        count = sum(op.name not in (CALL, _RETURN) for op in ops)
        for op in ops:
            if op.name == CALL:
                count += num_ops[_callee(op)]
                if count > MOST_OPS:
                    raise _too_large(function, count, place_of(op.location, file))
        num_ops[function.name.value] = count


def _too_large(function: func.FuncOp, count: int, place: Place) -> RhinoError:
    return RhinoError(
        "RHI-READ-007",
        f"with its calls inlined up to this one, @{function.name.value} has {count} ops, expected at most {MOST_OPS}",
        place,
        ("a sharding is chosen for each op, so each call becomes a copy of what it calls",),
        "make what repeats a loop (jax.lax.scan, stablehlo.while)",
    )
