"""Why a plan in stages is as it is: the same search again, asked where a tensor could be instead, and how it could lie there.

Stages are cut for the whole step, and so are shardings chosen: one problem has all ranks. What an alternative adds there is work of the
rank that the tensor is on, in all micro-batches, and memory of all ranks together; how far that delays the step, the schedule decides.

Errors    RHI-PLAN-001 the plan does not say how it was asked for; RHI-PLAN-004 it is of another program; RHI-PIN-002 a name speaks of
          nothing that is there; and what the search raises.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Side
from rhino.ir.plan.folder import WholePlan, digest_of
from rhino.ir.plan.instructions import Feed, Fetch, Run, rank_of
from rhino.ir.plan.spmd_text import signed_seconds
from rhino.ir.program.accumulation import STAGE
from rhino.ir.request.constraints import parse_pin
from rhino.ir.units import parse_size, peak_text
from rhino.passes.base import Remarks
from rhino.passes.planner.plan_costs import PlanCosts, plan_costs
from rhino.passes.planner.spmd_search import Whole, digest
from rhino.passes.planner.staged_plan import make_whole_plan
from rhino.passes.planner.staged_search import cut_step
from rhino.passes.planner.staged_text import diff_whole, lost_text
from rhino.passes.planner.why import Replanned, Subject, Why, cluster_file, notable, other_program, pins_of, reasons_text
from rhino.passes.sharding.choose_shardings import LEVELS
from rhino.strategies.pipeline.stages.graph import NO_NODE, Staging
from rhino.strategies.pipeline.stages.problem import OPEN
from rhino.strategies.solver.answer import Infeasible, Unsolved

if TYPE_CHECKING:
    from rhino.strategies.pipeline.stages.cut import StageAnswer

PLAN: Final = "plan"
"""The name by which the plan itself is asked about."""

_CANNOT_BE: Final = ("RHI-SHARD-001", "RHI-SOLVE-001", "RHI-SOLVE-002", "RHI-STAGE-004", "RHI-STAGE-005")
_MOST_CUT: Final = 20_000
"""Nodes, each as often as there are stages and as the stages are cut anew, to say what subjects cost beside where they are."""


def why_whole_text(module: ir.Module, plan: WholePlan, name: str, data: bytes = b"") -> str:
    """Returns on which rank what `name` speaks of is and how it lies there, and what else there was; of the `plan` itself, what lost.

    `data` is the file that `module` was read from, if it was.
    """
    if name == PLAN:
        return "\n".join(lost_text(plan)) or "nothing else was looked at"
    return reasons_text(_asked(module, plan, data), name)


def notable_whole(module: ir.Module, plan: WholePlan, data: bytes = b"") -> list[Why]:
    """Returns why the arguments that take most memory, and the ops that take most time, are as they are."""
    return notable(_asked(module, plan, data))


def why_not_whole_text(module: ir.Module, plan: WholePlan, pin: str, data: bytes = b"") -> str:
    """Returns what would be different in as many stages and micro-batches if `pin` held too, and what that costs; or why it cannot be."""
    parse_pin(pin)
    about = plan.about
    options, remarks = _options(plan, module, data), Remarks(str(about["source"]))
    try:
        with cluster_file(about["cluster_file"]) as cluster:
            options |= {"pin": pins_of(options, (pin,)), "cluster": cluster}
            cut_step(module, remarks.file, options, remarks, _whole(plan))
            kept = {name: about[name] for name in ("source", "source_sha256", "pipeline")}
            chunks = about["stages"] // about["ranks"]
            other = make_whole_plan(module, about["schedule"], cluster, kept, chunks=chunks, file=remarks.file).plan
            budget = parse_size(options["budget"]) if "budget" in options else int(load_cluster(cluster).device.usable_hbm_bytes)
    except RhinoError as error:
        if error.id not in _CANNOT_BE:
            raise
        return "\n".join([f"{pin} cannot be: {error.what}", *(f"  {note}" for note in error.notes)])
    found, peak = diff_whole(plan, other), max(other.about["predicted_peak_bytes"])
    fits = "" if peak <= budget else f", which is not predicted to fit: {peak_text(peak, budget)}"
    return f"with {pin}{fits}:\n{found}" if found else f"with {pin} nothing changes: it is so already"


def _options(plan: WholePlan, module: ir.Module, data: bytes) -> dict[str, str]:
    """Returns what the plan was asked for, but for the cluster. Raises RHI-PLAN-001 where it does not say, RHI-PLAN-004."""
    about = plan.about
    if "pipeline" not in about:
        what = f"the plan of {about['source']} does not say how it was asked for, so it cannot be made again"
        raise RhinoError("RHI-PLAN-001", what, fix="plan anew, and ask that")
    asked = [digest(module), *([digest_of(data)] if data else [])]
    if about["source_sha256"] not in asked:
        raise other_program(str(about["source"]), asked[-1], str(about["source_sha256"]))
    return dict(about["pipeline"])


def _whole(plan: WholePlan) -> Whole:
    """Returns the dims that must stay whole, as a plan keeps them."""
    sides: tuple[Side, ...] = ("arg", "res")
    return {side: dict(found) for side, found in zip(sides, plan.about.get("whole", ([], [])), strict=True)}


def _asked(module: ir.Module, plan: WholePlan, data: bytes) -> Replanned:
    """Returns what the search for a plan, made again, can be asked."""
    remarks = Remarks(str(plan.about["source"]))
    options = _options(plan, module, data)
    with cluster_file(plan.about["cluster_file"]) as cluster:
        cut_step(module, remarks.file, {**options, "cluster": cluster}, remarks, _whole(plan), is_split=False)
    said = remarks.statistics
    costs = plan_costs(said)
    places = _Places(plan, costs, said["staging"], said["stages"], options)
    return Replanned(
        costs,
        said["answer"],
        said["solver"],
        LEVELS[int(options.get("level", max(LEVELS)))],
        said["budget_bytes"],
        tuple(one.name for one in plan.results),
        None,
        places.of,
        places.notes,
        ("work", "compute", "collectives", "memory"),
    )


@dataclass(eq=False)
class _Places:
    """Where the nodes of a choice are, and what it takes to have them elsewhere."""

    plan: WholePlan
    costs: PlanCosts
    staging: Staging
    answer: StageAnswer
    options: dict[str, str]
    left: int = _MOST_CUT

    def __post_init__(self) -> None:
        step = self.plan.step
        self.rank_of_stage = {one.task.stage: rank_of(step, one) for one in step.instructions if isinstance(one, Run)}
        self.fed = {one.argument: step.slots[one.target].rank for one in step.instructions if isinstance(one, Feed)}
        self.given = {one.result: step.slots[one.source].rank for one in step.instructions if isinstance(one, Fetch)}

    def of(self, number: int) -> str:
        """Returns the rank that a node is on, empty where it is on each that reads it."""
        node = self.costs.choice.nodes[number]
        if node.kind in ("argument", "return"):
            rank = (self.fed if node.kind == "argument" else self.given).get(node.number)
            return "" if rank is None else f"rank {rank}"
        graph = self.costs.plan.graph
        op = self.costs.program.ops[node.number if node.kind == "op" else int(graph.value_op[node.number])]
        if STAGE not in op.attributes:
            return ""
        stage = self._stage(ir.IntegerAttr(op.attributes[STAGE]).value)
        return f"stage {stage}, rank {self.rank_of_stage.get(stage, stage)}"

    def notes(self, subject: Subject) -> tuple[str, ...]:
        """Returns what it takes to have a subject in the stages beside its own, everything else cut anew."""
        nodes = self._stage_nodes(subject)
        problem = self.staging.problem
        stages = sorted(set(problem.device(self.answer.stage[nodes]).tolist())) if len(nodes) else []
        if len(stages) != 1:
            return (f"read in stages {', '.join(map(str, stages))}",) if stages else ()
        if (problem.pinned[nodes] != OPEN).any():
            return (f"in stage {stages[0]}: boundaries in the model say so",)
        others = [stage for stage in (stages[0] - 1, stages[0] + 1) if 0 <= stage < problem.num_stages]
        self.left -= len(others) * problem.num_nodes * problem.num_stages
        return tuple(f"in stage {stage} instead of {stages[0]}: {self._moved(nodes, stage)}" for stage in others) if self.left >= 0 else ()

    def _stage_nodes(self, subject: Subject) -> Ints:
        """Returns the nodes of the problem of stages that a subject is of: of arguments, those that read them."""
        graph, nodes = self.staging.graph, [self.costs.choice.nodes[number] for number in subject.nodes]
        if nodes[0].kind == "argument":
            values = {node.number for node in nodes}
            for loop in graph.loops:
                inside = zip(graph.results(loop.op), graph.operands(loop.op).tolist(), strict=True)
                values |= {carried for carried, source in inside if source in values}
            ops = [op for op in range(graph.num_ops) if values & set(graph.operands(op).tolist())]
        elif nodes[0].kind == "op" and "remat" not in self.options:  # what is recomputed has changed the numbers of ops
            ops = [node.number for node in nodes]
        else:
            return np.zeros(0, dtype=np.int64)
        found: Ints = np.unique(self.staging.node[ops])
        own: Ints = found[found != NO_NODE]
        return own

    def _moved(self, nodes: Ints, stage: int) -> str:
        from rhino.strategies.pipeline.stages.cut import solve_stages  # noqa: PLC0415 - loads LP solvers, which plans by themselves do not need

        problem, answer = self.staging.problem, self.answer
        turn = problem.num_stages - 1
        is_back = (answer.stage[nodes] > turn) | ((answer.stage[nodes] == turn) & problem.late[nodes])
        pinned = problem.pinned.copy()
        pinned[nodes] = np.where(is_back, problem.last - stage, stage)
        found = solve_stages(replace(problem, pinned=pinned), answer.limit_s / answer.least_s - 1 if answer.least_s else 0.0)
        if isinstance(found, Infeasible | Unsolved):
            return "cannot be"
        return (
            f"transfers {signed_seconds(found.cost - answer.cost)} in a step, the stage with most work "
            f"{signed_seconds(found.work_s - answer.work_s)} in a micro-batch"
        )

    def _stage(self, virtual: int) -> int:
        return int(self.staging.problem.device(np.array(virtual)))
