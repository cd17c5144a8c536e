"""Write which results take over the buffers of arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rhino.ir.mlir.bindings import func, ir
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.donation import ALIAS, KEPT

DONOR: Final = "jax.buffer_donor"
"""On an argument whose buffer any result may take over."""


def set_aliases(function: func.FuncOp, pairs: Iterable[tuple[int, int]]) -> None:
    """Has results take over the buffers of arguments, by pairs of their numbers, and nothing else."""
    with function.context:
        attributes = boundary_attributes(function, "arg")
        for given in attributes:
            given.pop(ALIAS, None)
            given.pop(DONOR, None)
        for argument, result in pairs:
            kind = ir.IntegerType.get_signless(32)
            attributes[argument][ALIAS] = ir.IntegerAttr.get(kind, result)
        set_boundary_attributes(function, "arg", attributes)


def without_kept(module: ir.Module, entry: func.FuncOp) -> bool:
    """Takes the aliases off arguments whose buffers stay the caller's; says whether there were any."""
    attributes = boundary_attributes(entry, "arg")
    kept = [one for one in attributes if KEPT in one and ALIAS in one]
    for one in kept:
        del one[ALIAS]
    if kept:
        with module.context:
            set_boundary_attributes(entry, "arg", attributes)
    return bool(kept)
