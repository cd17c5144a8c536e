"""From a traced function to a plan and the program that runs it: by search, or as a plan that was kept says."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final, cast

from jax.version import __version__ as jax_version

from rhino.ir.boundary import Attributes, Side, boundary_attributes, set_boundary_attributes
from rhino.ir.cluster import cluster_to_text, load_cluster, parse_cluster
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.manual import bytecode, wrap_manual
from rhino.ir.mesh import Mesh, parse_mesh
from rhino.ir.mlir import ir, make_context
from rhino.ir.plan_changes import check_current
from rhino.ir.program import argument_name
from rhino.ir.reader import entry_function, read_module, walk
from rhino.ir.shardings import MESH_NAME, SHARDING, module_mesh
from rhino.ir.spmd_plan import Dims, Source, SpmdPlan, Tensor, num_parts
from rhino.ir.units import format_bytes, parse_size
from rhino.passes.annotations import boundary_dims, read_annotations, write_annotations, write_boundary_dims
from rhino.passes.base import Remarks
from rhino.passes.choose_shardings import ChooseShardings
from rhino.passes.localize import localized_copy
from rhino.passes.op_rules import OpRules
from rhino.passes.pipeline import build_pass_manager
from rhino.passes.plan_costs import plan_costs, rivals
from rhino.passes.problem import AUTO, Target, write_mesh
from rhino.passes.registry import Item, build_named
from rhino.strategies.cost import CostModel
from rhino.traced import Traced, key_dims

Pins = Callable[[Sequence[tuple[str, int]]], tuple[str, ...]]
"""From paths and ranks of the arguments to the texts of pins."""

_Sides = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]

LOCALIZED, ANNOTATED = "localized", "annotated"
_ALIAS: Final = "tf.aliasing_output"
_RESULT_INFO: Final = "jax.result_info"
_SIDES: Final[tuple[Side, ...]] = ("arg", "res")


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asks of a plan, in the words of `rhino-opt`."""

    cluster: str
    mesh: str = ""
    budget: str = ""
    level: int = 3
    pins: Pins = field(default=lambda _: ())
    forbid: tuple[str, ...] = ()
    axis_roles: tuple[str, ...] = ()
    constraints: str = ""
    op_rules: str = ""

    def named_mesh(self) -> Mesh | None:
        """The mesh, where the user names one."""
        return parse_mesh(self.mesh) if self.mesh and self.mesh != AUTO else None


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan, and the module that XLA is to compile, as bytecode."""

    plan: SpmdPlan
    code: bytes


def search_plan(traced: Traced, wish: Wish) -> Planned:
    """Returns the best plan for `traced` that keeps to the wish.

    The search lets a carried result have its argument's buffer. Where the caller keeps the argument, both are there: what that takes is
    known with the plan, and is counted then.

    Raises:
        RhinoError: what `rhino-opt --auto-shard` raises.
    """
    budget = parse_size(wish.budget) if wish.budget else int(load_cluster(wish.cluster).device.usable_hbm_bytes)
    planned = _search(traced, wish, budget)
    kept = _kept_bytes(traced, planned.plan)
    if planned.plan.predicted.peak_bytes + kept > budget:
        planned = _search(traced, wish, max(1, budget - kept))
        kept = _kept_bytes(traced, planned.plan)
    peak = planned.plan.predicted.peak_bytes + kept
    if peak > budget:
        what = f"the step needs {format_bytes(peak)} per device, of {format_bytes(budget)}: {format_bytes(kept)} of it to keep old state"
        raise RhinoError("RHI-SOLVE-001", what, Place(traced.name), fix="donate the state (donate_argnums), or raise the budget")
    predicted = replace(planned.plan.predicted, peak_bytes=peak, budget_bytes=budget, kept_bytes=kept)
    return Planned(replace(planned.plan, predicted=predicted), planned.code)


def adopt_plan(traced: Traced, plan: SpmdPlan, cluster: str | None, op_rules: str) -> Planned:
    """Returns `plan` for `traced`, which is to be the program that it was made for; nothing is searched.

    Raises:
        RhinoError: RHI-PLAN-004 where the program, or a cluster that is named, is another one; RHI-PLAN-001 where the plan is malformed.
    """
    context, remarks = make_context(), Remarks(traced.name)
    module = _read(traced, context)
    options = {"op-rules": op_rules}
    source, rest = _normalize(module, traced, options, remarks)
    found = cluster_to_text(load_cluster(cluster)).splitlines() if cluster is not None else None
    check_current(plan, source, _shapes(traced, module), found)
    build_pass_manager([one for one in rest if isinstance(one, OpRules)], context, remarks).run(module.operation)
    with context, ir.Location.unknown():
        device = parse_cluster("\n".join(plan.cluster)).device
        write_mesh(module.operation, Target(MESH_NAME, Mesh(plan.mesh), CostModel(device, ())))
        name, mesh = _mesh(module)
        write_annotations(module, plan.annotations)
        for side, tensors in zip(_SIDES, (plan.arguments, plan.results), strict=True):
            write_boundary_dims(entry_function(module), side, name, mesh, [one.dims for one in tensors])
    form, code = _compiled_form(module)
    return Planned(replace(plan, form=form), code)


def _search(traced: Traced, wish: Wish, budget: int) -> Planned:
    context, remarks = make_context(), Remarks(traced.name)
    module = _read(traced, context)
    pins = wish.pins([(one.path, len(one.dims)) for one in _shapes(traced, module)[0]])
    options = {
        "cluster": wish.cluster,
        "mesh": wish.mesh,
        "budget": str(budget),
        "level": str(wish.level),
        "pin": "; ".join(pins),
        "forbid": "; ".join(wish.forbid),
        "axis-role": "; ".join(wish.axis_roles),
        "constraints": wish.constraints,
        "op-rules": wish.op_rules,
    }
    source, rest = _normalize(module, traced, options, remarks)
    chooser = next(one for one in rest if isinstance(one, ChooseShardings))
    _hold(module, traced, chooser, remarks)
    build_pass_manager(rest, context, remarks).run(module.operation)
    target = replace(chooser, mesh="").target(module.operation, remarks)
    said = remarks.statistics
    costs = plan_costs(said)
    arguments, results = _tensors(traced, module)
    form, code = _compiled_form(module)
    plan = SpmdPlan(
        source=source,
        cluster=tuple(cluster_to_text(load_cluster(wish.cluster)).splitlines()),
        mesh=target.mesh.axes,
        form=form,
        asked={key: value for key, value in options.items() if value and key not in ("cluster", "mesh", "budget")},
        versions={"jax": jax_version},
        predicted=costs.predicted(said["answer"], budget),
        arguments=arguments,
        results=results,
        works=costs.works(),
        costs=costs.costs(),
        memory=costs.memory(),
        rivals=rivals(said),
        annotations=read_annotations(module),
    )
    return Planned(plan, code)


def _read(traced: Traced, context: ir.Context) -> ir.Module:
    """Returns the module as it was traced, with what is carried written on its arguments."""
    module = read_module(traced.code, traced.name, context)
    with context:
        entry = entry_function(module)
        int32 = ir.IntegerType.get_signless(32)
        taken = {number: {_ALIAS: cast(ir.Attribute, ir.IntegerAttr.get(int32, result))} for number, result in traced.alias.items()}
        old = boundary_attributes(entry, "arg")
        set_boundary_attributes(entry, "arg", [{**attributes, **taken.get(n, {})} for n, attributes in enumerate(old)])
    return module


def _normalize(module: ir.Module, traced: Traced, options: dict[str, str], remarks: Remarks) -> tuple[Source, tuple[Item, ...]]:
    """Normalizes `module`; returns what binds a plan to it, and the passes that are left of the search."""
    items = build_named("auto-shard", options)
    assert items is not None
    before = _digest(module)
    build_pass_manager(items[:1], module.context, remarks).run(module.operation)
    ops = Counter(op.name for op in walk(entry_function(module).operation))
    return Source(traced.name, before, _digest(module), dict(sorted(ops.items()))), items[1:]


def _digest(module: ir.Module) -> str:
    return hashlib.sha256(str(module.operation.get_asm(enable_debug_info=False)).encode()).hexdigest()


def _hold(module: ir.Module, traced: Traced, chooser: ChooseShardings, remarks: Remarks) -> None:
    """Keeps the words of typed keys together, which no sharding of JAX's can part."""
    avals = {"arg": traced.in_avals, "res": traced.out_avals}
    held = {side: {n: extra for n, aval in enumerate(avals[side]) if (extra := key_dims(aval))} for side in _SIDES}
    if not any(held.values()):
        return
    if chooser.mesh == AUTO and module_mesh(module.operation) is None:
        what = f"{traced.name} takes or gives typed keys, and the mesh is left to the search"
        raise RhinoError("RHI-MESH-002", what, fix="name a mesh, as 8 or 2x4, or pass jax.random.key_data(key)")
    with module.context, ir.Location.unknown():
        write_mesh(module.operation, chooser.target(module.operation, remarks))
        name, _ = _mesh(module)
        entry = entry_function(module)
        for side in _SIDES:
            old = boundary_attributes(entry, side)
            for number, extra in held[side].items():
                dims = ["{?}"] * len(avals[side][number].shape) + ["{}"] * extra
                old[number][SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{name}, [{', '.join(dims)}]>")
            set_boundary_attributes(entry, side, old)


def _mesh(module: ir.Module) -> tuple[str, Mesh]:
    found = module_mesh(module.operation)
    assert found is not None
    return found


def _compiled_form(module: ir.Module) -> tuple[str, bytes]:
    """Returns the localized program, or the annotated one where there is no other, and which it is."""
    try:
        form, made = LOCALIZED, wrap_manual(localized_copy(module))
    except RhinoError:
        form, made = ANNOTATED, module
    return form, bytecode(made)


def _shapes(traced: Traced, module: ir.Module) -> _Sides:
    """Returns arguments and results by path, lying whole."""
    entry = entry_function(module)
    ranks = [len(ir.RankedTensorType(kind).shape) for kind in (*entry.type.inputs, *entry.type.results)]
    whole = [((),) * rank for rank in ranks]
    return _rows(traced, module, whole[: len(traced.in_avals)], whole[len(traced.in_avals) :])


def _tensors(traced: Traced, module: ir.Module) -> _Sides:
    entry = entry_function(module)
    return _rows(traced, module, boundary_dims(entry, "arg"), boundary_dims(entry, "res"))


def _rows(traced: Traced, module: ir.Module, inputs: Sequence[Dims], outputs: Sequence[Dims]) -> _Sides:
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


def _kept_bytes(traced: Traced, plan: SpmdPlan) -> int:
    """Returns what the results take, per device, that stand beside arguments of which they could have had the buffers."""
    mesh = dict(plan.mesh)
    return sum(one.num_bytes // num_parts(one, mesh) for n, one in enumerate(plan.arguments) if n in traced.kept)
