"""From a module to its plan in one program: the choice of `auto-shard`, what binds it to the module, and its costs.

Errors    those of the passes of `auto-shard`; RHI-MESH-002 where the mesh is left open, and some dims must not be
          split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rhino.ir.graph.graph import HOST
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Side
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.memory_kinds import write_memory_kinds
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import MESH_NAME, module_mesh
from rhino.ir.plan.changes import check_current
from rhino.ir.plan.plan import Plan, Predicted
from rhino.passes.base import Remarks, make_pass, option_names
from rhino.passes.layout.materialize_strides import write_views
from rhino.passes.layout.pad import PadDims, padded_arguments
from rhino.passes.planner.choose_layouts import LayoutChoice, StashShare, swap
from rhino.passes.planner.module_facts import (
    Sides,
    Unsplit,
    boundary,
    cluster_lines,
    given_options,
    keep_unsplit,
    normalize,
)
from rhino.passes.planner.plan_costs import PlanCosts, alternatives, plan_costs
from rhino.passes.registry import repeats, shard_in_parts
from rhino.passes.sharding.annotations import (
    check_annotated,
    read_annotations,
    write_annotations,
    write_boundary_dims,
)
from rhino.passes.sharding.choose_shardings import ChooseShardings, FoundBefore, ShardingChoice
from rhino.passes.sharding.pack_collectives import write_packing
from rhino.passes.sharding.planning_pass import AUTO, rank_target, write_mesh
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.cost.buckets import packing_of
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.solver import Solver

ANNOTATED: Final = "annotated"
"""The form of a program that is compiled as it was, with the shardings on its ops."""

REWRITING: Final = (
    "num",
    "remat",
    "offload",
    "host-share",
    "batch",
    "batch-statistics",
    "pad",
    "parts",
    "amp",
    "attention",
)
"""Options that change the program for which shardings are chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A plan, and the choice that it is: for questions that the plan by itself does not answer. `solver` has found it.

    `module` is annotated with it: what `costs` knows of ops lives as long as that. `remarks` are those of its passes.
    """

    module: ir.Module
    plan: Plan
    costs: PlanCosts
    answer: Answer
    solver: Solver
    remarks: Remarks


def search(
    module: ir.Module, name: str, options: Mapping[str, str], remarks: Remarks, unsplit: Unsplit | None = None
) -> Found:
    """Returns the best plan for `module`, which is annotated with it; `name` is how it is called.

    `options` are those of the passes, by name: of `auto-shard`, and of micro-batches.
    """
    if padded := padded_arguments(options):  # as a plan holds it: without the file, for parts that are known
        parts = make_pass(PadDims, {name: text for name, text in options.items() if name in option_names(PadDims)})
        assert isinstance(parts, PadDims)
        options = {**options, "pad": padded, "parts": str(parts.num_parts(module.operation, remarks))}
    rewriting, rest = shard_in_parts(options)
    is_rewritten = any(name in options for name in REWRITING)
    written = bytecode(module) if "offload" in options or not repeats(options) else b""
    source = normalize(module, name, rewriting, remarks, is_rewritten=is_rewritten)
    chooser = next(one for one in rest if isinstance(one, ChooseShardings))
    keep_unsplit(module, name, unsplit or {}, chooser, remarks)
    build_pass_manager(rest, module.context, remarks).run(module.operation)
    if unkept := remarks.find(StashShare):  # a plan is bound to the program with its copies and transfers
        swap(module.operation, ir.Module.parse(written, module.context).operation)
        before = remarks.result(ShardingChoice)
        remarks.items.clear()
        remarks.results.clear()
        remarks.record(FoundBefore(before))
        on_mesh = {"mesh": unkept.mesh} if options.get("mesh") == AUTO else {}  # which is chosen already
        share = {unkept.option: f"{unkept.share:g}"}
        own = {name: text for name, text in options.items() if name != "offload" or unkept.offload}
        return search(module, name, {**own, **on_mesh, **share}, remarks, unsplit)
    chosen = remarks.result(ShardingChoice)
    layout = remarks.find(LayoutChoice)
    answer, costs = chosen.answer, plan_costs(chosen)
    sharding = costs.sharding(ANNOTATED, read_annotations(module))
    step_s, bound_s = answer.cost, answer.bound
    if layout is not None:
        step_s, sharding = step_s + layout.moved_s, replace(sharding, views=layout.views)
        bound_s = bound_s if layout.other.why_not else min(bound_s, layout.other.at_least_s)
    arguments, results = boundary(module, is_annotated=True)
    plan = Plan(
        source=source,
        cluster=cluster_lines(options["cluster"]),
        meshes=(chosen.target.mesh,),
        num_stages=1,
        num_micro_batches=int(options.get("num") or 1),
        schedule="",
        options=given_options(options),
        versions={},
        predicted=Predicted(step_s, bound_s, (int(answer.peak_bytes),), int(chosen.budget_bytes), (0,)),
        arguments=arguments,
        results=results,
        alternatives=alternatives(chosen, layout),
        sharding=sharding,
    )
    return Found(module, plan, costs, answer, chosen.solver, remarks)


def annotate(
    module: ir.Module, plan: Plan, name: str, op_rules: str, now: Sides, cluster: Sequence[str] | None
) -> None:
    """Writes the shardings of a plan in one program onto the program that it was made for, which is normalized.

    `now` are the module's arguments and results, `cluster` the lines of the cluster's file where one is named.

    Raises:
        RhinoError: RHI-PLAN-004 where the program, or the cluster, is another one; RHI-PLAN-001 where the plan is
            malformed.
    """
    assert plan.sharding is not None, "it is a plan in one program"
    options = {name: plan.options[name] for name in REWRITING if name in plan.options}
    if plan.num_micro_batches > 1:
        options["num"] = str(plan.num_micro_batches)
    rewriting, _ = shard_in_parts({**options, "op-rules": op_rules})
    source = normalize(module, name, rewriting, Remarks(name), is_rewritten=bool(options))
    check_current(plan, source, now, cluster)
    with module.context, ir.Location.unknown():
        if plan.sharding.views:
            write_views(module.operation, plan.sharding.views, name)
        target = rank_target(plan.machine(), plan.mesh, 1)
        write_mesh(module.operation, target)
        write_packing(module.operation, packing_of(target.model))
        mesh_name, mesh = module_mesh(module.operation) or (MESH_NAME, plan.mesh)
        write_annotations(module, plan.sharding.annotations)
        sides: tuple[Side, ...] = ("arg", "res")
        for side, own in zip(sides, (plan.arguments, plan.results), strict=True):
            entry = entry_function(module)
            write_boundary_dims(entry, side, mesh_name, mesh, [one.dims for one in own])
            write_memory_kinds(entry, side, [number for number, one in enumerate(own) if one.memory == HOST])
        check_annotated(module, name)


def search_options(plan: Plan, cluster: str) -> dict[str, str]:
    """Returns the options with which `search` finds a plan again; `cluster` names its cluster's file.

    A plan that its compiler chose was searched for within what the compiler made of others.
    """
    batches = {} if plan.num_micro_batches == 1 else {"num": str(plan.num_micro_batches)}
    budget = max(1, plan.predicted.budget_bytes - plan.predicted.kept_bytes[0])
    if plan.compared:
        budget = plan.compared.best.within_bytes
    own_shapes = {"own-shapes": "true"} if "jax" in plan.versions else {}
    own = {"cluster": cluster, "mesh": str(plan.mesh), "budget": str(budget)}
    return {**plan.options, **batches, **own_shapes, **own}
