"""A traced function as a module that is ready to be planned, and what binds a plan to it.

Arguments and results go by their paths.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.donation import ALIAS, KEPT
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.plan.leaves import leaf_groups
from rhino.ir.plan.plan import Tensor, kind_of
from rhino.ir.program.loss_scale import LOSS_SCALE, PARTS
from rhino.passes.planner.module_facts import Sides, Unsplit, boundary
from rhino.traced import Traced, key_dims

SIDES: Final[tuple[Side, ...]] = ("arg", "res")


def read_traced(traced: Traced, context: ir.Context) -> ir.Module:
    """Returns the module as traced, with aliases on the carried arguments, and marks on those the caller keeps.

    So have those that hold a loss scale.
    """
    module = read_module(traced.code, traced.name, context)
    with context:
        entry = entry_function(module)
        int32 = ir.IntegerType.get_signless(32)
        attributes = boundary_attributes(entry, "arg")
        for number, result in traced.alias.items():
            attributes[number][ALIAS] = ir.IntegerAttr.get(int32, result)
            if number in traced.kept:
                attributes[number][KEPT] = ir.UnitAttr.get()
        if (first := traced.loss_scale_leaf) is not None:
            for number, part in enumerate(PARTS, first):
                attributes[number][LOSS_SCALE] = ir.StringAttr.get(part)
        set_boundary_attributes(entry, "arg", attributes)
    return module


def program_of(traced: Traced | None, function: str) -> ir.Module:
    """Returns the module that a plan is of, as `read_traced` gives it.

    Raises RHI-JAX-006 where a plan came without it.
    """
    if traced is None:
        raise RhinoError(
            "RHI-JAX-006",
            f"what was saved does not hold the program of {function}, which is to be searched again",
            fix="give the plan to the function, and ask that: "
            "rhino.parallelize(step, plan=plan).plan(*shapes).why(name)",
        )
    return read_traced(traced, make_context())


def program_text(module: ir.Module) -> bytes:
    """Returns a module as a file of it, names included."""
    return str(module.operation.get_asm(enable_debug_info=True)).encode()


def key_words(traced: Traced) -> Unsplit:
    """Returns, by number of argument or result, how many dims of typed keys no sharding of JAX's can split.

    These are the dims of the keys' words.
    """
    avals = {"arg": traced.in_avals, "res": traced.out_avals}
    return {side: {n: extra for n, aval in enumerate(avals[side]) if (extra := key_dims(aval))} for side in SIDES}


def shapes(traced: Traced, module: ir.Module) -> Sides:
    """Returns arguments and results by path, replicated."""
    return with_kinds(traced, boundary(module, is_annotated=False))


def tensors(traced: Traced, module: ir.Module) -> Sides:
    """Returns arguments and results by path, with the shardings of an annotated module."""
    return with_kinds(traced, boundary(module, is_annotated=True))


def with_kinds(traced: Traced, sides: Sides) -> Sides:
    """Returns arguments and results with the dtypes and shapes that JAX shows."""
    arguments, results = (
        tuple(
            _with_kind(side[piece], aval)
            for group, aval in zip(leaf_groups(side), avals, strict=True)
            for piece in group
        )
        for side, avals in zip(sides, (traced.in_avals, traced.out_avals), strict=True)
    )
    return arguments, results


def _with_kind(one: Tensor, aval: Any) -> Tensor:  # noqa: ANN401 - JAX's abstract array
    shape = aval.shape if one.rows is None else (one.rows[1] - one.rows[0], *aval.shape[1:])
    num_bytes = one.num_bytes if one.padded else int(prod(shape) * aval.dtype.itemsize)
    return replace(one, kind=kind_of(aval.dtype, shape), num_bytes=num_bytes)
