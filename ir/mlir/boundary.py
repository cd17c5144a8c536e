"""Attributes as plain dictionaries: those of a function's arguments and results, and those that hold others."""

from __future__ import annotations

from typing import Literal

from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.reader import end_of

Side = Literal["arg", "res"]
Attributes = dict[str, ir.Attribute]


def boundary_attributes(function: func.FuncOp, side: Side) -> list[Attributes]:
    """Returns the attributes of each argument ("arg") or result ("res") of a function."""
    count = len(function.type.inputs if side == "arg" else function.type.results)
    key = f"{side}_attrs"
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [entries(one) for one in ir.ArrayAttr(function.attributes[key])]


def entries(attribute: ir.Attribute) -> Attributes:
    """Returns what a dictionary attribute holds."""
    one = ir.DictAttr(attribute)
    return {one[number].name: one[number].attr for number in range(len(one))}


def set_function_type(function: func.FuncOp) -> None:
    """Gives a function the type that follows from what its block takes and returns."""
    block = function.regions[0].blocks[0]
    kind = ir.FunctionType.get(
        [value.type for value in block.arguments], [value.type for value in end_of(block).operands]
    )
    function.attributes["function_type"] = ir.TypeAttr.get(kind)


def set_boundary_attributes(function: func.FuncOp, side: Side, attributes: list[Attributes]) -> None:
    """Replaces the attributes of each argument or result of a function."""
    if f"{side}_attrs" in function.attributes or any(attributes):
        function.attributes[f"{side}_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in attributes])
