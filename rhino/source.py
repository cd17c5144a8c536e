"""A traced function as a module that is ready to be planned, what binds a plan to it, and its arguments and results by path."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Final

from rhino.ir.boundary import Attributes, Side, boundary_attributes, set_boundary_attributes
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mesh import Mesh
from rhino.ir.mlir import ir
from rhino.ir.program import argument_name
from rhino.ir.reader import entry_function, read_module, walk
from rhino.ir.shardings import SHARDING, module_mesh
from rhino.ir.spmd_plan import Dims, Source, Tensor
from rhino.passes.annotations import boundary_dims
from rhino.passes.base import Remarks
from rhino.passes.choose_shardings import ChooseShardings
from rhino.passes.pipeline import build_pass_manager
from rhino.passes.problem import AUTO, write_mesh
from rhino.passes.registry import Item
from rhino.passes.scopes import scopes_text
from rhino.traced import Traced, key_dims

Sides = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Arguments and results."""

SIDES: Final[tuple[Side, ...]] = ("arg", "res")
_ALIAS: Final = "tf.aliasing_output"
_RESULT_INFO: Final = "jax.result_info"


def read_traced(traced: Traced, context: ir.Context, kept: str = "") -> ir.Module:
    """Returns the module as it was traced, with what is carried written on its arguments, and `kept` on those that the caller keeps."""
    module = read_module(traced.code, traced.name, context)
    with context:
        entry = entry_function(module)
        int32 = ir.IntegerType.get_signless(32)
        attributes = boundary_attributes(entry, "arg")
        for number, result in traced.alias.items():
            attributes[number][_ALIAS] = ir.IntegerAttr.get(int32, result)
            if kept and number in traced.kept:
                attributes[number][kept] = ir.UnitAttr.get()
        set_boundary_attributes(entry, "arg", attributes)
    return module


def normalize(module: ir.Module, traced: Traced, passes: Sequence[Item], remarks: Remarks, *, is_rewritten: bool) -> Source:
    """Runs the passes before shardings are chosen, of which the first normalizes; returns what binds a plan to `module`.

    If the others rewrite it, the plan is of what they leave.
    """
    before = _digest(module)
    build_pass_manager(passes[:1], module.context, remarks).run(module.operation)
    ops = Counter(op.name for op in walk(entry_function(module).operation))
    source = Source(traced.name, before, _digest(module), dict(sorted(ops.items())))
    build_pass_manager(passes[1:], module.context, remarks).run(module.operation)
    return replace(source, normal_sha256=_digest(module)) if is_rewritten else source


def _digest(module: ir.Module) -> str:
    text = f"{module.operation.get_asm(enable_debug_info=False)}{scopes_text(module.operation)}"
    return hashlib.sha256(text.encode()).hexdigest()


def hold_keys(module: ir.Module, traced: Traced, chooser: ChooseShardings, remarks: Remarks) -> None:
    """Keeps the words of typed keys together, which no sharding of JAX's can part."""
    avals = {"arg": traced.in_avals, "res": traced.out_avals}
    held = {side: {n: extra for n, aval in enumerate(avals[side]) if (extra := key_dims(aval))} for side in SIDES}
    if not any(held.values()):
        return
    if chooser.mesh == AUTO and module_mesh(module.operation) is None:
        what = f"{traced.name} takes or gives typed keys, and the mesh is left to the search"
        raise RhinoError("RHI-MESH-002", what, fix="name a mesh, as 8 or 2x4, or pass jax.random.key_data(key)")
    with module.context, ir.Location.unknown():
        write_mesh(module.operation, chooser.target(module.operation, remarks))
        name, _ = mesh_of(module)
        entry = entry_function(module)
        for side in SIDES:
            old = boundary_attributes(entry, side)
            for number, extra in held[side].items():
                dims = ["{?}"] * len(avals[side][number].shape) + ["{}"] * extra
                old[number][SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{name}, [{', '.join(dims)}]>")
            set_boundary_attributes(entry, side, old)


def mesh_of(module: ir.Module) -> tuple[str, Mesh]:
    """Returns the mesh of a module that has one, with its name."""
    found = module_mesh(module.operation)
    assert found is not None
    return found


def shapes(traced: Traced, module: ir.Module) -> Sides:
    """Returns arguments and results by path, lying whole."""
    entry = entry_function(module)
    ranks = [len(ir.RankedTensorType(kind).shape) for kind in (*entry.type.inputs, *entry.type.results)]
    whole = [((),) * rank for rank in ranks]
    return _rows(traced, module, whole[: len(traced.in_avals)], whole[len(traced.in_avals) :])


def tensors(traced: Traced, module: ir.Module) -> Sides:
    """Returns arguments and results by path, lying as an annotated module says."""
    entry = entry_function(module)
    return _rows(traced, module, boundary_dims(entry, "arg"), boundary_dims(entry, "res"))


def _rows(traced: Traced, module: ir.Module, inputs: Sequence[Dims], outputs: Sequence[Dims]) -> Sides:
    entry = entry_function(module)
    arguments = tuple(
        Tensor(argument_name(value, n).replace('\\"', '"'), _kind(aval), dims, _bytes(aval), traced.alias.get(n))
        for n, (value, aval, dims) in enumerate(zip(entry.arguments, traced.in_avals, inputs, strict=True))
    )
    given = boundary_attributes(entry, "res")
    results = tuple(
        Tensor(_result_name(attributes, n), _kind(aval), dims, _bytes(aval))
        for n, (attributes, aval, dims) in enumerate(zip(given, traced.out_avals, outputs, strict=True))
    )
    return arguments, results


def _result_name(attributes: Attributes, number: int) -> str:
    return str(ir.StringAttr(attributes[_RESULT_INFO]).value) if _RESULT_INFO in attributes else f"result{number}"


def _kind(aval: Any) -> str:  # noqa: ANN401 - JAX's abstract array
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _bytes(aval: Any) -> int:  # noqa: ANN401 - as above
    return int(prod(aval.shape) * aval.dtype.itemsize)
