"""The normal form of a program.

Every pass that writes ops ends with `tidy`, so that a normalized module stays normalized.
"""

from __future__ import annotations

from typing import Final

from rhino.ir.mlir.bindings import func, ir
from rhino.passes.frontend.loop_values import own_values
from rhino.passes.with_rules import run_on_functions

HOIST: Final = "stablehlo-canonicalize-dynamism"
"""Moves constants to the front of their function, beside what it is named for."""


def tidy(module: ir.Operation, entry: func.FuncOp) -> None:
    """Hoists constants, merges common subexpressions, and gives loops starts of their own.

    The starts come last, for they are not to be merged.
    """
    run_on_functions(module, f"{HOIST},cse")
    own_values(entry)
