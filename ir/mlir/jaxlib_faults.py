"""Programs on which jaxlib's own parser and passes end the process (jaxlib 0.10.2): refused before these see them.

Each is at odds with the StableHLO specification, or of a kind that the planner does not take, so that nothing is lost.
What the parser dies of has to be found in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of

_IN_TEXT: Final = (
    (
        re.compile(r'"stablehlo\.all_to_all"[^}]*replica_groups = dense<[^>]*> : tensor<(?:0x\d+|\d+x0)xi64>'),
        "RHI-READ-002",
        "an all_to_all has no replica groups",
        "name at least one group of replicas",
    ),
    (
        re.compile(r"tensor<[^\n>]*!quant\.[^\n>]*>, #stablehlo\.bounds"),
        "RHI-READ-004",
        "a quantized tensor has a bounded dynamic shape",
        "export the program for fixed shapes",
    ),
)
"""Texts at which the parser divides by zero or reads through a null pointer, with the id, what is wrong and what to
do."""


def refuse_text(text: str, name: str) -> None:
    """Refuses a text on which the parser ends the process.

    Raises:
        RhinoError: RHI-READ-002, RHI-READ-004.
    """
    for pattern, identifier, what, fix in _IN_TEXT:
        if found := pattern.search(text):
            line = text.count("\n", 0, found.start()) + 1
            column = found.start() - text.rfind("\n", 0, found.start())
            raise RhinoError(identifier, what, Place(name, line, column), fix=fix)


def refuse_ops(ops: Iterable[ir.Operation], name: str) -> None:
    """Refuses ops on which passes of jaxlib's end the process.

    Raises:
        RhinoError: RHI-READ-002 for a windowed reduction that starts from no scalar, RHI-READ-003 for a scan of complex
            numbers.
    """
    for op in ops:
        if op.name == "stablehlo.reduce_window":
            starts = list(op.operands)[len(op.operands) // 2 :]
            if wrong := next((value.type for value in starts if ir.RankedTensorType(value.type).shape), None):
                what = f"'{op.name}' starts from a {wrong}, expected a scalar"
                raise RhinoError("RHI-READ-002", what, place_of(op.location, name), fix="start from one element")
        elif op.name == "chlo.scan" and any("complex" in str(value.type) for value in op.operands):
            what, fix = f"'{op.name}' is of complex numbers", "scan their real and imaginary parts"
            raise RhinoError("RHI-READ-003", what, place_of(op.location, name), fix=fix)
