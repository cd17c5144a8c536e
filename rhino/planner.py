"""From a traced function to a plan and the program that runs it: by search, or as a plan that was kept says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jax.version import __version__ as jax_version

from rhino.ir.cluster.cluster import load_cluster, parse_cluster
from rhino.ir.cluster.mesh import Mesh, parse_mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode, wrap_manual
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import MESH_NAME
from rhino.ir.plan.spmd_changes import check_current
from rhino.ir.plan.spmd_plan import SpmdPlan, dims_between_calls, num_parts
from rhino.ir.units import PEAK, format_bytes, parse_size
from rhino.passes.base import Remarks
from rhino.passes.planner.spmd_search import ANNOTATED, REWRITING, Sides, cluster_lines, normalize, search
from rhino.passes.registry import shard_in_parts
from rhino.passes.sharding.annotations import check_annotated, write_annotations, write_boundary_dims
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.sharding.problem import AUTO, Target, write_mesh
from rhino.pins import Named, named
from rhino.source import SIDES, key_words, mesh_of, read_traced, shapes, tensors
from rhino.strategies.cost.cost_model import CostModel
from rhino.traced import Traced

Pins = Callable[[Sequence[Named]], tuple[str, ...]]
"""From paths and ranks of the arguments to the texts of pins."""

SHARD, WHOLE = "shard", "whole"
LOCALIZED = "localized"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asks of a plan, in the words of `rhino-opt`. The mesh is a stage's share of `shared` devices; 0: it is the user's.

    A whole plan is searched for by `jobs` processes (None: one a core).
    """

    cluster: str
    mesh: str = ""
    budget: str = ""
    level: int = 3
    pins: Pins = field(default=lambda _: ())
    forbid: tuple[str, ...] = ()
    pad: tuple[str, ...] = ()
    axis_roles: tuple[str, ...] = ()
    constraints: str = ""
    op_rules: str = ""
    micro_batches: int | None = None
    batch: str = ""
    remat: str = ""
    stages: int | None = None
    schedule: str = ""
    search: str = SHARD
    jobs: int | None = None
    shared: int = 0

    @property
    def is_open(self) -> bool:
        """Whether stages, micro-batches or the mesh of a pipeline are to be searched for."""
        if self.stages is not None and self.micro_batches is not None and self.named_mesh() is not None:
            return False
        return self.search == WHOLE or ((self.stages or 1) > 1 and (self.micro_batches is None or self.mesh == AUTO))

    def named_mesh(self) -> Mesh | None:
        """The mesh, where the user names one."""
        return parse_mesh(self.mesh) if self.mesh and self.mesh != AUTO else None

    def options(self, sides: Sides) -> dict[str, str]:
        """Returns what is asked beside cluster, mesh, budget and stages, as passes take it, for a function of these tensors."""
        every = {
            "level": str(self.level),
            "pin": "; ".join(self.pins(named(sides))),
            "forbid": "; ".join(self.forbid),
            "pad": "; ".join(self.pad),
            "axis-role": "; ".join(self.axis_roles),
            "constraints": self.constraints,
            "op-rules": self.op_rules,
            "num": "" if self.micro_batches is None else str(self.micro_batches),
            "batch": self.batch,
            "remat": self.remat,
            "schedule": self.schedule,
        }
        return {name: text for name, text in every.items() if text}

    def budget_bytes(self) -> int:
        """Returns the memory of a device that may be used."""
        return parse_size(self.budget) if self.budget else int(load_cluster(self.cluster).device.usable_hbm_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan, and the module that XLA is to compile, as bytecode."""

    plan: SpmdPlan
    code: bytes


def search_plan(traced: Traced, request: PlanRequest) -> Planned:
    """Returns the best plan for `traced` that keeps to the request.

    The search lets a carried result have its argument's buffer. Where the caller keeps the argument, both are there: what that takes is
    known with the plan, and is counted then.

    Raises:
        RhinoError: what `rhino-opt --auto-shard` raises.
    """
    budget = request.budget_bytes()
    planned = _search(traced, request, budget)
    kept = _kept_bytes(traced, planned.plan)
    if planned.plan.predicted.peak_bytes + kept > budget:
        planned = _search(traced, request, max(1, budget - kept))
        kept = _kept_bytes(traced, planned.plan)
    peak = planned.plan.predicted.peak_bytes + kept
    if peak > budget:
        sizes = f"{format_bytes(peak)} per device, of {format_bytes(budget)}"
        what = f"the step has a {PEAK} of {sizes}: {format_bytes(kept)} of it to keep old state"
        raise RhinoError("RHI-SOLVE-001", what, Place(traced.name), fix="donate the state (donate_argnums), or raise the budget")
    predicted = replace(planned.plan.predicted, peak_bytes=peak, budget_bytes=budget, kept_bytes=kept)
    return Planned(replace(planned.plan, predicted=predicted), planned.code)


def adopt_plan(traced: Traced, plan: SpmdPlan, cluster: str | None, op_rules: str) -> Planned:
    """Returns `plan` for `traced`, which is to be the program that it was made for; nothing is searched.

    Raises:
        RhinoError: RHI-PLAN-004 where the program, or a cluster that is named, is another one; RHI-PLAN-001 where the plan is malformed.
    """
    form, code = _compiled_form(annotated_module(traced, plan, op_rules, cluster))
    return Planned(replace(plan, form=form), code)


def annotated_module(traced: Traced, plan: SpmdPlan, op_rules: str, cluster: str | None = None) -> ir.Module:
    """Returns the module of `traced` with a plan's shardings on it. Raises as `adopt_plan`."""
    context, remarks = make_context(), Remarks(traced.name)
    module = read_traced(traced, context)
    options = {name: plan.asked[name] for name in REWRITING if name in plan.asked}
    rewriting, _ = shard_in_parts({**options, "op-rules": op_rules})
    source = normalize(module, traced.name, rewriting, remarks, is_rewritten=bool(options))
    check_current(plan, source, shapes(traced, module), cluster_lines(cluster) if cluster is not None else None)
    with context, ir.Location.unknown():
        device = parse_cluster("\n".join(plan.cluster)).device
        write_mesh(module.operation, Target(MESH_NAME, Mesh(plan.mesh), CostModel(device, ())))
        name, mesh = mesh_of(module)
        write_annotations(module, plan.annotations)
        for side, held in zip(SIDES, (plan.arguments, plan.results), strict=True):
            write_boundary_dims(entry_function(module), side, name, mesh, [one.dims for one in held])
        check_annotated(module, traced.name)
    return module


def _search(traced: Traced, request: PlanRequest, budget: int) -> Planned:
    module = read_traced(traced, make_context())
    asked = request.options(shapes(traced, module))
    options = {"cluster": request.cluster, "mesh": request.mesh, "budget": str(budget), **asked}
    plan = search(module, traced.name, options, Remarks(traced.name), key_words(traced)).plan
    arguments, results = tensors(traced, module)
    form, code = _compiled_form(module)
    return Planned(replace(plan, form=form, versions={"jax": jax_version}, arguments=arguments, results=results), code)


def _compiled_form(module: ir.Module) -> tuple[str, bytes]:
    """Returns the localized program, or the annotated one where there is no other, and which it is."""
    try:
        form, made = LOCALIZED, wrap_manual(localized_copy(module))
    except RhinoError:
        form, made = ANNOTATED, module
    return form, bytecode(made)


def _kept_bytes(traced: Traced, plan: SpmdPlan) -> int:
    """Returns what lies, per device, beside what the program takes and gives: arguments that are kept, and those without padding."""
    mesh = dict(plan.mesh)
    kept = sum(one.num_bytes // num_parts(one, mesh) for n, one in enumerate(plan.arguments) if n in traced.kept)
    outside = (replace(one, dims=dims_between_calls(one, mesh)) for one in plan.arguments if one.padded)
    return kept + sum(one.num_bytes // num_parts(one, mesh) for one in outside)
