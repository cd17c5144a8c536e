"""Which result takes over an argument's buffer: the attribute that says so, and what it may say.

XLA refuses two arguments for one result, and buffers of different sizes. Another type of the same size it takes; but a
result is to lie on the devices as the argument does that it takes the place of, and tensors of different shapes cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.locations import place_of

ALIAS: Final = "tf.aliasing_output"

KEPT: Final = "rhino.kept"
"""On an argument that a result takes the place of: it is not donated, and its buffer stays the caller's."""


def check_aliases(function: func.FuncOp, file: str) -> None:
    """Refuses what cannot be a function's donation.

    Raises:
        RhinoError: RHI-READ-002 where an attribute is no number of a result, RHI-READ-009 where a result would take
            over two buffers, or that of another type.
    """
    owner: dict[int, int] = {}
    kinds = function.type.inputs, function.type.results  # lists of all are made for each, so not once an argument
    for number, attribute in _aliases(function):
        wrong = _wrong(*kinds, number, attribute, owner)
        if wrong:
            identifier, what = wrong
            place = place_of(function.location if function.is_external else function.arguments[number].location, file)
            raise RhinoError(identifier, f"argument {number} is donated to {what}", place, fix=f"remove its {ALIAS}")
        owner[ir.IntegerAttr(attribute).value] = number


def _aliases(function: func.FuncOp) -> Iterator[tuple[int, ir.Attribute]]:
    if "arg_attrs" in function.attributes:
        for number, one in enumerate(ir.ArrayAttr(function.attributes["arg_attrs"])):
            attributes = ir.DictAttr(one)
            if ALIAS in attributes:
                yield number, attributes[ALIAS]


def _wrong(
    inputs: list[ir.Type], results: list[ir.Type], number: int, attribute: ir.Attribute, owner: dict[int, int]
) -> tuple[str, str] | None:
    """Returns the id and what is wrong with an argument's attribute; `owner` has the arguments before it, by result."""
    if not isinstance(attribute, ir.IntegerAttr):
        return "RHI-READ-002", f"{attribute}, expected the number of a result"
    result = ir.IntegerAttr(attribute).value
    if not 0 <= result < len(results):
        return "RHI-READ-002", f"result {result}, of {len(results)}"
    if inputs[number] != results[result]:
        return "RHI-READ-009", f"result {result}, a {results[result]}; expected its own type, {inputs[number]}"
    if result in owner:
        return "RHI-READ-009", f"result {result}, as argument {owner[result]} does"
    return None
