"""Write on every op of a training step the pipeline stage that it belongs to.

Reads     the loop with `rhino.micro_batches` (docs/pipelines.md), or where there is none the whole step as one
          micro-batch; existing `rhino.virtual_stage` and `rhino.stage` on ops, as constraints; `sdy.mesh`,
          `sdy.sharding` and `rhino.strategy`, by which work and bytes are those of one device; `rhino.stage_boundary`
          on barriers (passes/frontend/stage_marks.py); a missing `sdy.sharding_rule` is made for the time of the pass.
Writes    `rhino.virtual_stage = v : i64` on each op of the loop's body, `rhino.stage = s : i64` on each op after it,
          `rhino.num_stages` on the module, and `rhino.stage_groups` where stages run on unlike devices; with
          `recomputes` also `rhino.remat = array<f64: ...>`, the share that each stage recomputes. Without a loop,
          on each op of the step; those that update arguments have a stage, all others a virtual one. A loop inside has
          one stage with all that is in it. Takes the marks out; adds, removes and changes no other op.
Errors    RHI-STAGE-001 no such number of stages, RHI-STAGE-002 the tolerance is malformed, RHI-STAGE-003 existing
          stages cannot be honoured, RHI-STAGE-004 no cut fits the budget, RHI-STAGE-005 the steps are spent,
          RHI-CLI-001 a malformed budget, RHI-SCHED-001 no such schedule, or it does not take such stages,
          RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function, RHI-SHARD-001
          a sharding that the module's mesh does not have, RHI-LOCAL-001 an op that cannot run between the shardings
          around it, RHI-MESH-001 a mesh that is larger than the cluster.
Source    Rhino 5.1, 5.2; strategies/pipeline/stages/cut.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from rhino.ir.arrays import Bools, Floats
from rhino.ir.cluster.cluster import Cluster, link_between, load_cluster
from rhino.ir.cluster.groups import rank_budgets
from rhino.ir.cluster.mesh import parse_meshes
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import Graph
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import MICRO_BATCHES, accumulation_loop
from rhino.ir.program.op_stages import (
    STAGE,
    VIRTUAL_STAGE,
    refuse_misplaced,
    set_stage,
    set_virtual_stage,
    stage_of,
    virtual_stage_of,
)
from rhino.ir.program.program import Program
from rhino.ir.program.staged_module import NUM_STAGES, REMAT, STAGE_GROUPS
from rhino.ir.units import fits_text, format_bytes, format_seconds, parse_size
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.frontend.stage_marks import BACK, FORWARD, direction_of, drop_marks
from rhino.passes.pipeline.sharded_step import (
    SHARDED_ERRORS,
    num_ranks,
    rank_mesh,
    sharded_step,
    unlike_devices,
    unlike_ranks,
)
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.pipeline.schedules import DEFAULT, Order, Pipeline, make_order
from rhino.strategies.pipeline.split_backward_cost import split_backward_cost
from rhino.strategies.pipeline.stages.marks import marked_stages
from rhino.strategies.pipeline.stages.places import OpStages, op_stages
from rhino.strategies.pipeline.stages.remat_steps import remat_steps
from rhino.strategies.pipeline.stages.stage_graph import Staging, make_staging
from rhino.strategies.pipeline.stages.stage_problem import OPEN, StageProblem
from rhino.strategies.pipeline.stages.stage_remat import remat_shares, stage_remat
from rhino.strategies.solver.answer import Infeasible, Unsolved
from rhino.strategies.structure.training_phases import TrainingPhases, parts_of

if TYPE_CHECKING:
    from rhino.strategies.pipeline.stages.cut import StageAnswer

_TOLERANCE = re.compile(r"\d+(\.\d*)?|\.\d+")

MOST_TOLERANCE = 10.0

LARGE_SHARE = 0.2
"""A loop with more than this share of the work is worth a remark: it cannot be cut."""


@dataclass(frozen=True, eq=False)
class StageCut:
    """The stages that were cut, of the nodes of a problem."""

    answer: StageAnswer
    staging: Staging

    @property
    def recomputes(self) -> bool:
        """Whether stages may recompute what they save."""
        return len(self.staging.problem.remat) > 0

    @property
    def held_bytes(self) -> list[float]:
        """What the devices of each stage hold, as the cut counts it [stages]."""
        problem = self.staging.problem
        held: list[float] = stage_remat(problem, problem.device(self.answer.stage)).held_bytes.tolist()
        return held


@dataclass(frozen=True)
class PipelineStages(Pass):
    """Write on every op its pipeline stage: the cut whose transfers cost least within a tolerance of balance."""

    name: ClassVar[str] = "rhino-pipeline-stages"
    errors: ClassVar[tuple[str, ...]] = (
        *(f"RHI-STAGE-00{number}" for number in range(1, 6)),
        "RHI-CLI-001",
        "RHI-SCHED-001",
        "RHI-CLUSTER-001",
        "RHI-CLUSTER-002",
        *UNSHARDED_ERRORS,
        *SHARDED_ERRORS,
    )

    stages: int = opt(2, "how many stages")
    tolerance: str = opt(
        "", "how far the work of the largest stage may exceed the best balance, as a share; empty chooses one"
    )
    schedule: str = opt(DEFAULT, "the pipeline schedule; an empty tolerance is chosen for it")
    ranks: int = opt(0, "the number of ranks; 0 is one for each stage")
    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")
    budget: str = opt(
        "", "bytes per device that parameters, sums and saved activations may take, as 16GiB; empty sets no limit"
    )
    mesh: str = opt("", "the meshes of ranks, as 2x2;2;2, where they are unlike; one says nothing")
    recomputes: bool = opt(False, "stages recompute what their budget asks for, each its own share")
    stage_rows: str = opt(
        "", "bytes per device that stages may be estimated to hold, in place of the budget; also one for each, as a;b"
    )

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        tolerance = parse_tolerance(self.tolerance)
        if self.stages < 1:
            raise _bad_number(f"{self.stages} stages were requested", "ask for one or more")
        ranks = self.ranks or self.stages
        if ranks < 1 or self.stages % ranks:
            raise _bad_number(
                f"{self.stages} stages were requested on {ranks} ranks", "ask for a number that the ranks divide"
            )
        cluster = load_cluster(self.cluster)
        with unsharded_program(module, remarks) as program:
            loop = accumulation_loop(program)
            count = 1 if loop is None else ir.IntegerAttr(program.ops[loop.op].attributes[MICRO_BATCHES]).value
            order = make_order(self.schedule, Pipeline(self.stages, count, self.stages // ranks))
            staging = self._staging(program, module, cluster, count, order.rank_of)
            answer = _solve(staging.problem, tolerance, order)
            if isinstance(answer, Infeasible | Unsolved):
                raise _unsolved(program, staging, tolerance, order, answer)
            _write(program, op_stages(staging, answer.stage))
            module.attributes[NUM_STAGES] = _number(self.stages)
            if self.recomputes:
                module.attributes[REMAT] = ir.DenseF64ArrayAttr.get(remat_shares(staging.problem, answer.stage))
            if groups := staging.problem.group:
                module.attributes[STAGE_GROUPS] = ir.DenseI64ArrayAttr.get(groups)
            for place, text in _remarks(program, staging, answer):
                remarks.add(self.name, place, text)
        drop_marks(module)
        remarks.record(StageCut(answer, staging))

    def _staging(
        self, program: Program, module: ir.Operation, cluster: Cluster, count: int, rank_of: Sequence[int]
    ) -> Staging:
        """Returns the problem of `count` micro-batches and stages on the ranks `rank_of` [stages]."""
        mesh = rank_mesh(module)
        ranks = num_ranks(module, cluster, self.stages)
        meshes = (mesh,) * ranks
        own_meshes = parse_meshes(self.mesh) if self.mesh else ()
        is_unlike = len(set(own_meshes)) > 1
        if is_unlike:
            meshes = own_meshes
            ranks = max(1, cluster.num_devices // mesh.num_devices)
        sharded = sharded_step(program, module, cluster, ranks)
        parts, value_bytes = parts_of(program.graph, sharded.loop, sharded.seconds), sharded.value_bytes
        split = SplitMicroBatch(program.graph, parts, value_bytes * program.graph.copies(), sharded.is_alone)
        # The last stage's forward and backward passes are one program.
        apart = split_backward_cost(sharded.plan, sharded.model, split) if self.stages > 1 else None
        sizes = [own.num_devices for own in meshes]
        apart_by = sizes if is_unlike else [cluster.num_devices // ranks] * ranks
        link = link_between(cluster, apart_by) if len(meshes) > 1 else None
        body, after = (
            [program.ops[one] for one in np.flatnonzero(part).tolist()] for part in (parts.body, parts.apply)
        )
        refuse_misplaced(body, after, program.file)
        pins = {
            number: stage
            for number, op in enumerate(program.ops)
            if not parts.free[number]
            and (stage := virtual_stage_of(op) if parts.body[number] else stage_of(op)) is not None
            and (parts.body[number] or parts.apply[number])
        }
        pins = {**self._marked(program, parts), **pins}
        _check_range(program, pins, parts.apply, self.stages)
        rank_of = [min(rank, len(meshes) - 1) for rank in rank_of]
        budgets: list[float] | None = None
        if self.budget and self.stages > 1:  # of one, the proof of the plan decides, more exactly than rows
            budgets = self._budgets(rank_budgets(cluster, sizes, parse_size(self.budget)), rank_of)
        staging = make_staging(
            program.graph,
            parts,
            self.stages,
            count,
            pins,
            budgets,
            value_bytes,
            link,
            split,
            apart,
            unlike_ranks(module, program.file, cluster, meshes, rank_of, sharded.seconds, value_bytes)
            if is_unlike
            else unlike_devices(sharded, cluster, mesh, rank_of),
        )
        if self.recomputes and budgets is not None:
            steps = remat_steps(staging, split, min(count, self.stages))
            staging = replace(staging, problem=replace(staging.problem, remat=steps))
        working = int(np.count_nonzero(staging.problem.work))
        if not working:
            raise _bad_number(
                "the step computes nothing, so no stage has anything to do", "shard it alone, with --auto-shard"
            )
        if working < self.stages:
            what = f"{self.stages} stages were requested, and the step has {working} ops that compute"
            raise _bad_number(what, f"ask for at most {working}, or give loops in it unrolled: each counts as one")
        _check_order(program, staging, pins)
        return staging

    def _budgets(self, own: Sequence[float], rank_of: Sequence[int]) -> list[float]:
        """Returns what devices of each stage may hold, on ranks `rank_of` [stages] with budgets of their `own`.

        Raises RHI-STAGE-001 for limits of another number of stages.
        """
        limits = [parse_size(one) for one in (self.stage_rows or self.budget).split(";")]
        if len(limits) == 1:
            return [own[rank] * limits[0] / parse_size(self.budget) for rank in rank_of]
        if len(limits) != self.stages:
            what = f"stage-rows has {len(limits)} values, and {self.stages} stages were requested"
            raise _bad_number(what, "give one value, or one for each stage")
        return [float(one) for one in limits]

    def _marked(self, program: Program, parts: TrainingPhases) -> dict[int, int]:
        """Returns the virtual stages of ops that follow from the user's boundaries.

        Raises RHI-STAGE-003 where these do not fit.
        """
        marks = {
            number: direction for number, op in enumerate(program.ops) if (direction := direction_of(op)) is not None
        }
        if not marks:
            return {}
        forward, back = ([number for number, own in marks.items() if own == direction] for direction in (FORWARD, BACK))
        found = marked_stages(program.graph, parts.body, forward, back)
        for number in found.misplaced:
            raise RhinoError(
                "RHI-STAGE-003",
                "a stage boundary is inside a loop of the model, or inside a part that is recomputed",
                place_of(program.ops[number].location, program.file),
                fix="put it outside of such parts: outside of jax.lax.scan, fori_loop and jax.checkpoint",
            )
        if found.num_stages != self.stages:
            place = place_of(program.ops[next(iter(marks))].location, program.file)
            if found.num_stages == 1:
                what = "the stage boundaries in the model separate no ops"
                fix = "put them on activations, between the batch and the loss"
                raise RhinoError("RHI-STAGE-003", what, place, fix=fix)
            what = f"boundaries in the model make {found.num_stages} stages, and {self.stages} were requested"
            raise RhinoError("RHI-STAGE-003", what, place, fix=f"ask for {found.num_stages}, or take boundaries out")
        return {op: stage for op, stage in found.stages.items() if parts.body[op] and not parts.free[op]}


def parse_tolerance(text: str) -> float | None:
    """Returns by what share of the best balance the largest work of a stage may be over it; None where none is given.

    Raises:
        RhinoError: RHI-STAGE-002 where it is no such share.
    """
    if not text:
        return None
    if not _TOLERANCE.fullmatch(text) or float(text) > MOST_TOLERANCE:
        raise RhinoError(
            "RHI-STAGE-002",
            f"tolerance '{text}' is no number from 0 to {MOST_TOLERANCE:g}",
            fix="give for example 0.1: the largest work of a stage may be a tenth over the best balance",
        )
    return float(text)


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _bad_number(what: str, fix: str) -> RhinoError:
    return RhinoError("RHI-STAGE-001", what, fix=fix)


def _check_range(program: Program, pins: dict[int, int], apply: Bools, num_stages: int) -> None:
    for op, stage in pins.items():
        most = num_stages - 1 if apply[op] else VirtualStages(num_stages).last
        if not 0 <= stage <= most:
            raise RhinoError(
                "RHI-STAGE-003",
                f"'{program.ops[op].name}' is to be in {'' if apply[op] else 'virtual '}stage {stage}, of 0 to {most}",
                place_of(program.ops[op].location, program.file),
                (f"{num_stages} stages were requested",),
                f"choose one of these, or remove its {STAGE if apply[op] else VIRTUAL_STAGE}",
            )


def _check_order(program: Program, staging: Staging, pins: dict[int, int]) -> None:
    """Raises RHI-STAGE-003 where pins contradict the order of ops.

    An op must not follow from one that is pinned to a later stage, and all ops of a loop are in one stage.
    """
    problem = staging.problem
    by: dict[int, int] = {}  # the pinned op that each node follows, of those in the latest stage
    for op, stage in pins.items():
        other = by.setdefault(int(staging.node[op]), op)
        if pins[other] != stage:
            raise _contradiction(program, pins, other, op, "is in one loop with")
    order = np.argsort(problem.before, kind="stable")
    for source, target in zip(problem.before[order].tolist(), problem.after[order].tolist(), strict=True):
        if source not in by:
            continue
        own = by.get(target)
        if own is not None and problem.pinned[target] != OPEN and pins[own] < pins[by[source]]:
            raise _contradiction(program, pins, by[source], own, "is needed by")
        if own is None or pins[own] < pins[by[source]]:
            by[target] = by[source]


def _contradiction(program: Program, pins: dict[int, int], first: int, second: int, relation: str) -> RhinoError:
    one, other = program.ops[first], program.ops[second]
    return RhinoError(
        "RHI-STAGE-003",
        f"'{one.name}' is to be in virtual stage {pins[first]} and {relation} '{other.name}' in virtual stage "
        f"{pins[second]}",
        place_of(other.location, program.file),
        (
            f"'{one.name}' is at {place_of(one.location, program.file)}",
            "along the program virtual stages may only grow",
        ),
        f"remove the {VIRTUAL_STAGE} of one of them",
    )


def _solve(problem: StageProblem, tolerance: float | None, order: Order) -> StageAnswer | Infeasible | Unsolved:
    from rhino.strategies.pipeline.stages.cut import solve_stages  # noqa: PLC0415 - loads LP solvers

    return solve_stages(problem, tolerance, order)


def _unsolved(
    program: Program, staging: Staging, tolerance: float | None, order: Order, found: Infeasible | Unsolved
) -> RhinoError:
    """Returns what to say where there is no choice."""
    problem = staging.problem
    if problem.budget_bytes is None:
        return RhinoError(
            "RHI-STAGE-005", "the search ran out of steps before it found stages", fix="pin fewer ops, or none"
        )
    free = _solve(replace(problem, budget_bytes=None), tolerance, order)
    notes = [f"the largest: {', '.join(_largest(staging.graph, program))}"]
    if not isinstance(free, Infeasible | Unsolved):
        memory = problem.device_memory(problem.device(free.stage))
        notes.insert(0, f"without it, the stages need {', '.join(map(format_bytes, memory.tolist()))}")
    fix = "allow more bytes or more stages, or take the batch in more micro-batches"
    if isinstance(found, Infeasible):
        return RhinoError(
            "RHI-STAGE-004",
            f"no cut in {problem.num_stages} stages {fits_text(max(problem.budget_bytes))}",
            Place(program.file),
            tuple(notes),
            fix,
        )
    what = f"the search ran out of steps before it found a cut that {fits_text(max(problem.budget_bytes))}"
    return RhinoError("RHI-STAGE-005", what, Place(program.file), tuple(notes), fix)


def _largest(graph: Graph, program: Program) -> list[str]:
    sizes = graph.value_bytes()[: len(graph.arguments)]
    return [
        f"{program.describe(value)} of {format_bytes(int(sizes[value]))}"
        for value in np.argsort(-sizes, kind="stable")[:3].tolist()
    ]


def _write(program: Program, stages: OpStages) -> None:
    for op, virtual, stage in zip(program.ops, stages.virtual.tolist(), stages.device.tolist(), strict=True):
        if op.name == "stablehlo.return":
            continue
        if virtual != OPEN:
            set_virtual_stage(op, virtual)
        elif stage != OPEN:
            set_stage(op, stage)


def _remarks(program: Program, staging: Staging, answer: StageAnswer) -> Iterator[tuple[Place, str]]:
    """Yields the remarks on a choice, each with its place."""
    problem, file = staging.problem, Place(program.file)
    device = problem.device(answer.stage)
    remat = stage_remat(problem, device)
    work, memory = problem.device_work(device) + remat.added_s, remat.held_bytes
    even = max(float(work.sum()), 1e-300) / problem.num_stages
    over, allowed = (f"{seconds / even - 1:.1%}" for seconds in (answer.work_s, answer.limit_s))
    moved, transfers = staging.moved(device)
    yield (
        file,
        f"{format_bytes(moved)} move between stages per step in {transfers:,} transfers, at most {answer.gap:.2%} "
        "over the least cost; the "
        f"largest stage has {over} more than its even share of the work, {allowed} are allowed; found by "
        f"{answer.method}",
    )
    for stage in range(problem.num_stages):
        share = f"{work[stage] / max(float(work.sum()), 1e-300):.1%}"
        yield (
            file,
            (
                f"stage {stage}: {format_seconds(float(work[stage]))} per micro-batch ({share} of the work), "
                f"{format_bytes(float(memory[stage]))} of parameters, sums and what {problem.in_flight()[stage]:.0f} "
                "micro-batches save"
                + (
                    f", of which {format_bytes(float(remat.freed_bytes[stage]))} of each are recomputed in "
                    f"{format_seconds(float(remat.added_s[stage]))}"
                    if remat.freed_bytes[stage]
                    else ""
                )
            ),
        )
    present = problem.nets.present(device, problem.num_stages)
    for stage in range(1, problem.num_stages):
        crossing = present[:, :stage].any(axis=1) & present[:, stage:].any(axis=1)
        yield (
            file,
            f"between stages {stage - 1} and {stage}: {format_bytes(float(staging.net_bytes @ crossing))} per step",
        )
    yield from _idle_stages(file, work)
    yield from _large_loops(program, staging)


def _idle_stages(file: Place, work: Floats) -> Iterator[tuple[Place, str]]:
    for stage in np.flatnonzero(work <= 0).tolist():
        yield (
            file,
            f"stage {stage} has no work: within the tolerance this cut transfers least. Ask for fewer stages, or for a "
            "smaller tolerance",
        )


def _large_loops(program: Program, staging: Staging) -> Iterator[tuple[Place, str]]:
    total = float(staging.problem.work.sum())
    for loop in program.graph.loops:
        node = int(staging.node[loop.op])
        if node < 0 or staging.problem.work[node] < LARGE_SHARE * total:
            continue
        share = staging.problem.work[node] / total
        yield (
            place_of(program.ops[loop.op].location, program.file),
            (
                f"this loop is {share:.0%} of the work and all in one stage: nothing is cut inside a loop. Unroll it, "
                "or if it is the one "
                f"over micro-batches, say so with {MICRO_BATCHES}"
            ),
        )
