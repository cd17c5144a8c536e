"""Evaluate configurations: what each comes to, by planning its shardings and estimating its stages.

A step is normalized once, taken in micro-batches once for each number of them, and planned once for each mesh of a
rank. What a configuration comes to is the search's own cost and memory of that plan; if it is a pipeline, as its stages
and schedule have it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.cluster.cluster import Cluster, load_cluster, mesh_axes, takes_three_axes
from rhino.ir.cluster.groups import num_units, rank_budgets, rank_clusters, rank_groups
from rhino.ir.cluster.hardware import Line
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape, option_of_meshes
from rhino.ir.cluster.placement import placements
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import Graph, Loop
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.program import Program, read_program
from rhino.ir.units import PEAK, format_bytes
from rhino.passes.base import Item, Remarks
from rhino.passes.pipeline.divider import Divider
from rhino.passes.pipeline.join_replicas import JoinReplicas
from rhino.passes.pipeline.micro_batch import BATCH, MicroBatch, batch_size
from rhino.passes.pipeline.rematerialize import Rematerialize, Rematerializer
from rhino.passes.pipeline.sharded_step import micro_batch_seconds, unlike_devices
from rhino.passes.pipeline.split_scans import SplitScans, find_layers
from rhino.passes.planner.choose_layouts import viewed_copy
from rhino.passes.planner.evaluate_ranks import OnMesh, RankLook, UnlikeRanks, on_mesh, rank_look
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.staged_outcomes import (
    PlacedSteps,
    StagedStep,
    best_first,
    best_placed,
    heard,
    shares_of,
    staged_step,
    with_recomputed,
)
from rhino.passes.planner.whole_loops import WholeLoops
from rhino.passes.registry import before_choice
from rhino.passes.sharding.planning_pass import Target, begin_choice, group_target, rank_target, with_offload
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.autotune.base import (
    ABOUT,
    MOST,
    NEARLY,
    CutOff,
    Estimate,
    Found,
    Look,
    Outcome,
    PlanConfig,
    Refused,
    Screening,
    Space,
    bound_by_memory,
)
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.choice.sharding_plan_costs import Sharded
from rhino.strategies.cost.time_ratios import least_time_ratio
from rhino.strategies.memory.peak import peak_of
from rhino.strategies.pipeline.in_flight import several_in_flight
from rhino.strategies.pipeline.replicas import micro_batch_s, shares
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.strategies.pipeline.stages.estimate import StageEstimates
from rhino.strategies.pipeline.stages.shapes import MOST_DEVICES
from rhino.strategies.sharding.choice_problem import build
from rhino.strategies.sharding.memory_fitting import fit
from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Limits, Search

LIMITS: Final = Limits(prices=12, gap=1e-2, exact_below_states=0, rounds=(4,))
"""How far shardings are searched for while configurations are compared: where memory binds, to about a hundredth."""


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """A step that is sharded by `states` [nodes], as a pipeline."""

    states: Ints
    step: PlacedSteps


SCREENED: Final = 4
"""For how many stages loops over layers are cut where ranks of unlike meshes are looked for.

In more pieces shardings are long to find: of a GNMT in 16 pieces ten times as long as in 4 (2026-11-27).
"""

MOST_OPS: Final = 500_000
"""How many ops there may be in the steps that an evaluator keeps as it has read them, beside the last.

Large ones take memory.
"""


_OFFLOAD: Final = "offload"
"""The option that leaves it to the choice of shardings what lies in host memory."""


_OP_RULES: Final = "op-rules"
"""The option that names the file of rules for custom calls."""


_Key: TypeAlias = tuple[int, int, float, int, str]
"""What a step depends on: the pieces of its loops, micro-batches, the share recomputed, replicas, unlike meshes."""


@dataclass(eq=False)
class _Planning:
    """The search of a configuration that has begun, to end where it takes `cutoff_s`.

    Its ranks take devices as in one of `clusters`, by which their links are the same. `staged` is the step in stages
    where nothing binds, once that is known.
    """

    config: PlanConfig
    clusters: Sequence[Cluster]
    program: Program
    choice: Choice
    loop: Loop | None
    search: Search
    effective_ranks: float
    cutoff_s: float
    staged: _Staged | None = None


@dataclass(eq=False)
class Evaluator:
    """Evaluates configurations one after the other, and keeps what several have in common.

    In `folder` it is kept for other processes too.
    """

    setup: Setup
    folder: Path | None = None
    limits: Limits = LIMITS
    cluster: Cluster = field(init=False)
    context: ir.Context = field(init=False)
    modules: dict[str, bytes | RhinoError] = field(default_factory=dict)
    programs: dict[_Key, tuple[ir.Module, Program]] = field(default_factory=dict)
    kept: tuple[_Key, dict[tuple[int, ...], tuple[tuple[ir.Module, Program], OnMesh]]] | None = None
    """The step that was last asked for on ranks of unlike meshes, with what is known of it on each."""
    look: tuple[tuple[_Key, tuple[tuple[int, ...], ...]], RankLook | None] | None = None
    """The last look at ranks of unlike meshes: of which step, and on which meshes."""

    ops_read: int = 0
    whole_loops: WholeLoops = field(init=False)
    dividers: dict[bytes, Divider] = field(default_factory=dict)
    rematerializer: Rematerializer = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = load_cluster(self.setup.cluster)
        self.context = make_context()
        self.rematerializer = Rematerializer(self.context)
        self.whole_loops = WholeLoops(self.setup.schedules, self.limits)

    def answer(self, request: PlanConfig | Screening | Look, cutoff_s: float) -> Outcome | Found | float:
        """Returns the outcome of a configuration, what a screening finds, or about what a configuration takes."""
        match request:
            case Screening():
                return self.screened(request, cutoff_s)
            case Look():
                with self.context:
                    return self.about_s(request.config)
            case PlanConfig():
                return self.outcome(request, cutoff_s)

    def outcome(self, config: PlanConfig, cutoff_s: float = inf) -> Outcome:
        """Returns the outcome of a configuration.

        The configuration is not planned to its end once it is proven to take at least `cutoff_s`. Ranks with devices of
        several groups, which are as slow as the slowest, are looked at if those of one group each take less.
        """
        try:
            if config.meshes:
                return self.on_unlike_ranks(config, cutoff_s)
            found = list[Outcome]()
            every = self.placements(config)
            with self.context:
                about_s = self.about_s(config, cutoff_s) if config.stages > 1 and cutoff_s < inf else 0.0
                if about_s * (1 - ABOUT) >= cutoff_s:
                    _, whole = self.program(replace(config, stages=1), mesh_of_shape(config.mesh))
                    least_s = arithmetic_s(whole.graph, self.cluster)
                    return CutOff(config, least_s, least_s, by_memory=False, estimated_s=about_s)
                step = self.program(config, mesh_of_shape(config.mesh))
                for target, clusters in every.items():
                    if self.cluster.groups and found and not isinstance(found[0], Estimate):
                        break
                    best_s = min([cutoff_s, *(one.step_s for one in found if isinstance(one, Estimate))])
                    found.append(self.on_target(config, step, target, clusters, best_s))
            return best_placed(found)
        except RhinoError as error:
            return Refused(config, error.what, by_memory=False)

    def about_s(self, config: PlanConfig, cutoff_s: float = inf) -> float:
        """Returns about what a configuration takes whose loops over layers are cut for stages; 0 where none are.

        Where it is known to take `cutoff_s` or longer, that is enough.
        """
        if not self.has_layers or config.meshes or config.replicas > 1 or self.setup.options.get(_OFFLOAD):
            return 0.0
        least_s = self.whole_loops.least_s(config)
        if least_s * (1 - ABOUT) >= cutoff_s:
            return least_s
        try:
            _, program = self.program(replace(config, stages=1), mesh_of_shape(config.mesh))
        except RhinoError:  # which planning tells
            return 0.0
        ranks = {
            target: max(self.effective_ranks(config, target, one) for one in clusters)
            for target, clusters in self.placements(config).items()
        }
        return self.whole_loops.about_s(config, program, ranks)

    def on_target(
        self,
        config: PlanConfig,
        step: tuple[ir.Module, Program],
        target: Target,
        clusters: Sequence[Cluster],
        cutoff_s: float,
    ) -> Outcome:
        """Returns the outcome of a configuration whose ranks take devices as in one of some `clusters`."""
        plain = self.planned(config, step[1], target, clusters, cutoff_s)
        viewed = self.viewed(step[0], target)
        if viewed is None:
            return plain
        limit_s = min(cutoff_s, plain.step_s) if isinstance(plain, Estimate) else cutoff_s
        return _best(plain, self.planned(config, viewed[1], target, clusters, limit_s))

    def placements(self, config: PlanConfig) -> dict[Target, tuple[Cluster, ...]]:
        """Returns the orders in which ranks may take devices, together those by which a rank's links are the same.

        Orders by which ranks are on like devices, with like links between them, are one. Replicas are alike in any.
        """
        mesh, sizes = mesh_of_shape(config.mesh), (prod(config.mesh),) * config.num_ranks
        found: dict[Target, dict[object, Cluster]] = {}
        for cluster in self.orders(sizes) if config.replicas == 1 else (self.cluster,):
            target = rank_target(cluster, mesh, config.num_ranks)
            parts = [(one.device, one.levels) for one in rank_clusters(cluster, sizes)]
            kind = mesh_axes(cluster, (config.num_ranks, *config.mesh))[0].link, tuple(parts)
            found.setdefault(target, {}).setdefault(kind, cluster)
        return {target: tuple(clusters.values()) for target, clusters in found.items()}

    def orders(self, sizes: Sequence[int]) -> tuple[Cluster, ...]:
        """Returns the orders of devices that are looked at for ranks of `sizes` [ranks]."""
        return placements(self.cluster, sizes)

    def on_unlike_ranks(self, config: PlanConfig, cutoff_s: float) -> Outcome:
        """Returns the outcome of a configuration whose ranks have unlike meshes."""
        with self.context:
            _, program = self.program(config, mesh_of_shape(config.mesh))
            least_s = arithmetic_s(program.graph, self.cluster)
            if least_s >= cutoff_s:
                return CutOff(config, least_s, least_s, by_memory=False, arithmetic_s=least_s)
            parts = {mesh: self.on_mesh(config, mesh) for mesh in dict.fromkeys(config.meshes)}
            found = list[Outcome]()
            for cluster in self.orders([prod(mesh) for mesh in config.meshes]):
                best_s = min([cutoff_s, *(one.step_s for one in found if isinstance(one, Estimate))])
                found.append(UnlikeRanks(config, self.setup, cluster, parts).outcome(best_s))
            return best_placed(found)

    def on_mesh(self, config: PlanConfig, mesh: tuple[int, ...]) -> OnMesh:
        """Returns the step of a configuration on a mesh of unlike ranks; those of one step are kept together."""
        key = self.key_of(config)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, {}
        if mesh not in self.kept[1]:
            step = self.program(config, mesh_of_shape(mesh))
            self.kept[1][mesh] = step, on_mesh(mesh, step[1], self.cluster, self.limits, self.setup.budget_bytes)
        return self.kept[1][mesh][1]

    def screened(self, request: Screening, cutoff_s: float) -> Found:
        """Returns configurations whose ranks have unlike meshes, and about what each takes, if less than `cutoff_s`.

        Loops over layers are cut as for so many equal stages as `SCREENED`.
        """
        config = PlanConfig(SCREENED, (1,), request.micro_batches, request.remat)
        key = self.key_of(config), request.meshes
        if self.look is None or self.look[0] != key:
            parts: dict[tuple[int, ...], OnMesh] = {}
            with self.context:
                for mesh in request.meshes:
                    with suppress(RhinoError):  # constraints may not hold on a mesh
                        parts[mesh] = self.on_mesh(config, mesh)
                self.look = key, rank_look(parts, self.setup, self.cluster, request.micro_batches)
        return self.look[1].found(request, cutoff_s) if self.look[1] else []

    def program(self, config: PlanConfig, mesh: Mesh) -> tuple[ir.Module, Program]:
        """Returns the step of a configuration on the mesh of a rank, which lasts as long as its module.

        A step that refers to no mesh axis is read once for all meshes.
        """
        key = self.key_of(config)
        found = self.programs.pop(key, None)
        if found is None:
            module = self.prepared(config)
            found = module, read_program(entry_function(module), mesh, self.setup.file)
            self.ops_read += found[1].graph.num_ops
        if _is_free_of_axes(found[1].graph):
            self.programs[key] = found
        while len(self.programs) > 1 and sum(program.graph.num_ops for _, program in self.programs.values()) > MOST_OPS:
            del self.programs[next(iter(self.programs))]
        return found

    def key_of(self, config: PlanConfig) -> _Key:
        """Returns what the step of a configuration depends on."""
        return self.num_stages(config), config.micro_batches, config.remat, config.replicas, self.unlike(config)

    def viewed(self, module: ir.Module, target: Target) -> tuple[ir.Operation, Program] | None:
        """Returns the step of `module` with dims stored as blocks, which lasts as long as its module.

        Returns None where none are, or where the arrays of each step have to be brought to that.
        """
        parts = 1 if self.setup.own_shapes else target.mesh.num_devices
        if (copy := viewed_copy(module.operation, parts, Remarks(self.setup.file))) is None:
            return None
        return copy, read_program(entry_function(copy), target.mesh, self.setup.file)

    def prepared(self, config: PlanConfig) -> ir.Module:
        """Returns the step in so many micro-batches, ready for the choice of shardings.

        To divide it is most of the work, and the same whatever is recomputed. What is pinned comes last
        and is not kept, so that evaluators that differ in it may share a folder.
        """
        own = {name: text for name, text in self.setup.options.items() if name != _OFFLOAD}
        *rewriting, populate, pin = before_choice({**own, "cluster": self.setup.cluster, **named_options(config)})
        again = [
            replace(one, layers=self.num_stages(config) == 1) for one in rewriting if isinstance(one, Rematerialize)
        ]
        others = [one for one in rewriting if not isinstance(one, Rematerialize)]
        at = next((number for number, one in enumerate(others) if isinstance(one, MicroBatch)), 0)
        step = self.made("step", self.setup.module, others[:at]) if at else self.setup.module
        stages, meshes = self.num_stages(config), self.unlike(config)
        cut = f"{stages}-{meshes}" if meshes else str(stages)
        if stages > 1:
            split = SplitScans(stages, leaves=True, cluster=self.setup.cluster, meshes=meshes)
            step = self.made(f"step-{cut}", step, [split])
        divided = self.made(f"{cut}-{config.micro_batches}", step, others[at:])
        name, join = f"{cut}-{config.micro_batches}-{config.remat:g}", list[Item]()
        if config.replicas > 1:
            join = [JoinReplicas(str(config.replicas), self.setup.cluster)]
            name += f"-{config.replicas}"
        module = ir.Module.parse(self.made(name, divided, [*again, *join, populate]), self.context)
        build_pass_manager([pin], self.context, Remarks(self.setup.file)).run(module.operation)
        return module

    def num_stages(self, config: PlanConfig) -> int:
        """Returns for how many stages loops over layers are cut, by any schedule; 1 where there are none to cut."""
        if config.stages == 1 or not self.has_layers:
            return 1
        return config.stages * max(SCHEDULES[name].stages_per_rank for name in self.setup.schedules)

    def unlike(self, config: PlanConfig) -> str:
        """Returns the meshes that the pieces of loops over layers are for, where they are unlike; else nothing."""
        stages = self.num_stages(config)
        if not config.meshes or stages == 1:
            return ""
        return option_of_meshes([mesh_of_shape(config.meshes[one % config.stages]) for one in range(stages)])

    @cached_property
    def has_layers(self) -> bool:
        """Whether the step has loops over layers that stages can share."""
        module = ir.Module.parse(self.setup.module, self.context)
        return bool(find_layers(entry_function(module).regions[0].blocks[0]))

    def made(self, name: str, start: bytes, items: Sequence[Item]) -> bytes:
        """Returns what `items` make of a module; what another process has put in the folder is not made again."""
        if name not in self.modules:
            file = self.folder / f"{name}.mlirbc" if self.folder else None
            self.modules[name] = file.read_bytes() if file and file.exists() else self.rewritten(start, items, file)
        found = self.modules[name]
        if isinstance(found, RhinoError):
            raise found
        return found

    def rewritten(self, start: bytes, items: Sequence[Item], file: Path | None) -> bytes | RhinoError:
        """Returns what `items` make of a module, and puts it into `file`."""
        first, *rest = items
        remarks = Remarks(self.setup.file)
        try:
            if isinstance(first, MicroBatch):
                module = self.dividers.setdefault(start, Divider(self.context)).divided(start, first, remarks)
            elif isinstance(first, Rematerialize):
                module = self.rematerializer.rewritten(start, first, remarks)
            else:
                module, rest = ir.Module.parse(start, self.context), [first, *rest]
            manager = build_pass_manager(rest, self.context, remarks)
            manager.enable_verifier(False)  # who parses what comes out verifies it
            manager.run(module.operation)
        except RhinoError as error:
            return error
        found = bytecode(module)
        if file:
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(found)
            part.replace(file)  # whole or not at all: others may look at any time
        return found

    def budgets(self, config: PlanConfig, cluster: Cluster) -> tuple[float, ...]:
        """Returns the bytes that a device of each rank may hold [ranks]; of replicas, which hold as much, the least."""
        own = rank_budgets(cluster, (prod(config.mesh),) * config.num_ranks, self.setup.budget_bytes)
        return (min(own),) if config.replicas > 1 else own

    def budget(self, config: PlanConfig, clusters: Sequence[Cluster]) -> float:
        """Returns the bytes that a device of all ranks together may hold at most, in any of some orders."""
        return max(sum(self.budgets(config, cluster)) for cluster in clusters)

    def effective_ranks(self, config: PlanConfig, target: Target, cluster: Cluster) -> float:
        """Returns as how many ranks the ranks of a configuration count at most, each as quick as its devices are.

        The step's seconds on one rank, by `target`, divided by that are the least that a pipeline takes.
        """
        groups, group = rank_groups(cluster, (prod(config.mesh),) * config.num_ranks)
        if groups == (cluster,):
            return config.num_ranks
        ratios = [least_time_ratio(group_target(one, target.mesh).model, target.model) for one in groups]
        return sum(1 / ratios[number] for number in group) if all(ratios) else inf

    def planned(
        self, config: PlanConfig, program: Program, target: Target, clusters: Sequence[Cluster], cutoff_s: float
    ) -> Outcome:
        """Returns what the best shardings of a step come to on ranks that take devices as in one of `clusters`."""
        least_s = arithmetic_s(program.graph, self.cluster)
        if least_s >= cutoff_s:
            return CutOff(config, least_s, least_s, by_memory=False, arithmetic_s=least_s)
        choice = begin_choice(with_offload(program, target) if self.setup.options.get(_OFFLOAD) else program, target)
        loop = accumulation_loop(program)
        ranks, effective_ranks = config.stages, max(self.effective_ranks(config, target, one) for one in clusters)
        ops_s = _least_cost_s(choice.problem) / effective_ranks
        if ops_s >= cutoff_s:
            return CutOff(config, ops_s, ops_s, by_memory=False)
        recomputes = self.setup.recomputes and ranks > 1 and not config.remat
        with_memory = None
        if ranks > target.mesh.num_devices:  # memory is what most often rules out many ranks of few devices
            with_memory = self.with_memory(config, clusters, choice, loop, ops_s)
            if isinstance(with_memory, Refused) and not recomputes:
                return with_memory
        search = Search(choice.problem, replace(self.limits, cutoff=cutoff_s * effective_ranks))
        begun_s = search.begin() / effective_ranks
        if cutoff_s <= begun_s < inf:
            return CutOff(config, begun_s, begun_s, by_memory=False)
        begun = search.first
        assert begun is not None, "it has begun"
        planning = _Planning(config, clusters, program, choice, loop, search, effective_ranks, cutoff_s)
        if loop is not None and ranks > 1 and begun.value < inf and cutoff_s < inf:
            staged = planning.staged = self.staged(planning, choice, begun.states, loop)
            if staged.step.is_slow(cutoff_s):  # idle time and all, and what memory adds is long to find
                return staged.step.too_slow(begun_s)
        with_memory = with_memory or self.with_memory(config, clusters, choice, loop, begun_s)
        plain: Outcome = with_memory if isinstance(with_memory, Refused) else self.within_memory(planning, *with_memory)
        return self.recomputed(planning, plain) if recomputes and bound_by_memory(plain) else plain

    def within_memory(self, planning: _Planning, choice: Choice, problem: Problem) -> Outcome:
        """Returns what the best shardings of a step come to whose rows are within the memory of all ranks together."""
        config, search, cutoff_s = planning.config, planning.search, planning.cutoff_s
        ranks, effective_ranks = config.stages, planning.effective_ranks
        budget = self.budget(config, planning.clusters)
        search.remember(problem)
        free = heard(search.free(budget))
        if isinstance(free, Infeasible):
            return Refused(config, "no choice of shardings was found", by_memory=False)
        free_s = free.bound / effective_ranks
        if free_s >= cutoff_s:
            return CutOff(config, free_s, free_s, by_memory=False)
        if isinstance(free, Unsolved):
            return Refused(config, "no choice of shardings was found", by_memory=False)
        # Of several ranks rows decide, which count the micro-batches in flight.
        most_s = cutoff_s * effective_ranks
        is_one = ranks == 1
        answer = heard(fit(search, budget, free, peak_of(choice), most_s) if is_one else search.within(budget, free))
        if not isinstance(answer, Answer):
            if isinstance(answer, Unsolved) and answer.bound / effective_ranks >= cutoff_s:
                return CutOff(config, answer.bound / effective_ranks, free_s, by_memory=True)
            return _none_that_fits(config, answer, free_s)
        bounds = (answer.bound / effective_ranks, free_s)
        if config.replicas > 1:
            return self.on_replicas(planning, choice, answer, bounds)
        if ranks == 1:
            compute_s, collectives_s = shares_of(problem, answer.states)
            return Estimate(config, "", answer.cost, *bounds, compute_s, collectives_s, (answer.peak_bytes,))
        return self.staged_again(planning, choice, answer.states).step.outcome(bounds, cutoff_s)

    def recomputed(self, planning: _Planning, plain: Outcome) -> Outcome:
        """Returns the better of `plain` and of plans whose stages recompute what their memory asks for.

        Their shardings are the best ones whatever these keep, and the best within a budget that one micro-batch counts
        in alone. `plain` has a bound on plans that recompute nothing beyond the share of the configuration.
        """
        search, budget = planning.search, self.budget(planning.config, planning.clusters)
        choice = planning.choice.with_memory()
        search.remember(choice.problem)
        free = heard(search.free(budget))
        if not isinstance(free, Answer):
            return plain
        within = heard(search.within(budget, free))
        known = [free, *([within] if isinstance(within, Answer) and within is not free else [])]
        bound_s = free.bound / planning.effective_ranks
        steps = [self.staged_again(planning, choice, answer.states).step for answer in known]
        found = [one for step in steps for one in step.recomputed(bound_s, planning.cutoff_s)]
        return with_recomputed(plain, best_first(found), bound_s, planning.cutoff_s)

    def on_replicas(self, planning: _Planning, choice: Choice, answer: Answer, bounds: tuple[float, float]) -> Estimate:
        """Returns what a sharded step comes to on replicas, each with the micro-batches that it is asked to take."""
        config, loop = planning.config, planning.loop
        sharded = Sharded(choice, answer.states, make_plan(choice, answer.states), loop)
        each_s = micro_batch_seconds(sharded, self.cluster, mesh_of_shape(config.mesh), config.replicas)
        parts = self.setup.shares or shares(each_s, config.micro_batches)
        busy_s = [count * own_s for count, own_s in zip(parts, each_s, strict=True)]
        once_s = answer.cost - config.micro_batches * micro_batch_s(choice.graph, loop, sharded.seconds)
        collectives_s = shares_of(choice.problem, answer.states)[1] / config.replicas
        compute_s = max(0.0, once_s + sum(busy_s) / config.replicas - collectives_s)
        step_s = once_s + max(busy_s)
        return Estimate(config, "", step_s, *bounds, compute_s, collectives_s, (answer.peak_bytes,))

    def staged_again(self, planning: _Planning, choice: Choice, states: Ints) -> _Staged:
        """Returns the step in stages of these states, which may be known from the beginning."""
        known, loop = planning.staged, planning.loop
        if known is not None and np.array_equal(states, known.states):
            return known
        assert loop is not None, "a pipeline has micro-batches"
        return self.staged(planning, choice, states, loop)

    def with_memory(
        self,
        config: PlanConfig,
        clusters: Sequence[Cluster],
        choice: Choice,
        loop: Loop | None,
        free_bound_s: float,
    ) -> tuple[Choice, Problem] | Refused:
        """Returns a choice with its memory rows, and the problem for the memory of all ranks together.

        Returns a refusal if the problem cannot fit.
        """
        ranks = config.stages
        choice = choice.with_memory()
        problem = choice.problem
        if ranks > 1 and loop is not None:
            problem = several_in_flight(choice, loop, min(config.micro_batches, ranks))
        least = float(problem.least_memory().max(initial=0.0)) / ranks
        # A plan in one stage is judged by its programs, which may need less than rows.
        if least * ranks > self.budget(config, clusters) * (1 if ranks > 1 else NEARLY):
            return Refused(config, f"needs about {format_bytes(least)} per device", True, free_bound_s, least)
        return choice, problem

    def staged(self, planning: _Planning, choice: Choice, states: Ints, loop: Loop) -> _Staged:
        """Returns a sharded step as a pipeline."""
        config, sharded = planning.config, Sharded(choice, states, make_plan(choice, states), loop)
        collectives_s = shares_of(choice.problem, states)[1] / config.stages
        steps, known = list[StagedStep](), dict[Line, tuple[StageEstimates, tuple[Cluster, ...]]]()
        for cluster in planning.clusters:
            cuts = self.cuts(config, sharded, cluster, known)
            own = self.budgets(config, cluster), self.setup.budget_bytes, cluster.order
            steps.append(staged_step(config, self.setup.schedules, cuts, lambda _: collectives_s, *own))
        return _Staged(states, PlacedSteps(tuple(steps)))

    def cuts(
        self,
        config: PlanConfig,
        sharded: Sharded,
        cluster: Cluster,
        known: dict[Line, tuple[StageEstimates, tuple[Cluster, ...]]],
    ) -> StageEstimates:
        """Returns the cuts of a sharded step on ranks that take devices as in `cluster`.

        They share what is known of cuts on the same links, and on the same groups in another order.
        """
        mesh, link = mesh_of_shape(config.mesh), mesh_axes(cluster, (config.stages, *config.mesh))[0].link
        parts = rank_clusters(cluster, (mesh.num_devices,) * config.stages)
        if link in known and set(parts) <= set(known[link][1]):
            cuts, groups = known[link]
            return cuts.on(tuple(map(groups.index, parts)))
        unlike = unlike_devices(sharded, cluster, mesh, range(config.stages))
        cuts = StageEstimates(sharded, config.micro_batches, link, self.setup.tolerances, unlike)
        known[link] = cuts, tuple(dict.fromkeys(parts))
        return cuts


def refusal(setup: Setup, config: PlanConfig) -> RhinoError | None:
    """Returns the error of the step itself, whatever the devices; None if there is none.

    The step is taken in micro-batches and recomputed as in the configuration.
    """
    try:
        Evaluator(setup).prepared(config)
    except RhinoError as error:
        return error
    return None


def named_options(config: PlanConfig) -> dict[str, str]:
    """Returns the options of the passes before the choice of shardings that make a step of this configuration."""
    found = {"num": str(config.micro_batches)} if config.micro_batches > 1 else {}
    return {**found, "remat": f"{config.remat:g}"} if config.remat else found


def _none_that_fits(config: PlanConfig, found: Infeasible | Unsolved, free_bound_s: float) -> Refused:
    """Returns the refusal of a configuration of which no choice fits.

    Where it has one stage, the refusal has the size of the least program that was found.
    """
    why = "no choice of shardings that is predicted to fit was found"
    least = (found.found_bytes if isinstance(found, Infeasible) else found.peak_bytes) if config.stages == 1 else None
    if least is None:
        return Refused(config, why, True, free_bound_s)
    return Refused(
        config,
        f"{why}; the least has a {PEAK} of {format_bytes(least)} per device",
        True,
        free_bound_s,
        found_bytes=least,
    )


def _is_free_of_axes(graph: Graph) -> bool:
    """Says whether a graph is the same whatever the mesh: nobody has said how anything lies."""
    constraints = (graph.fixed, graph.roles, graph.choices, any(limit is not None for limit in graph.return_fixed))
    return not any(constraints) and all(cls.fixed_specs is None for cls in graph.classes)


def _least_cost_s(problem: Problem) -> float:
    """Returns a bound on every choice that takes no search: what each node and each edge takes at least."""
    least = np.array([table.min(initial=inf) for table in problem.tables])
    return float(least[problem.node_table].sum() + least[problem.edge_table].sum())


def _best(plain: Outcome, viewed: Outcome) -> Outcome:
    """Returns the better outcome of a configuration whose step can be stored in two ways, with bounds on both."""
    if isinstance(viewed, Refused):
        return plain
    if isinstance(plain, Refused):
        return viewed
    is_viewed = isinstance(viewed, Estimate) or (isinstance(plain, CutOff) and viewed.bound_s < plain.bound_s)
    bounds = min(plain.bound_s, viewed.bound_s), min(plain.free_bound_s, viewed.free_bound_s)
    return replace(viewed if is_viewed else plain, bound_s=bounds[0], free_bound_s=bounds[1])


def make_space(
    setup: Setup,
    stages: Sequence[int] = (),
    meshes: Sequence[tuple[int, ...]] = (),
    micro_batches: Sequence[int] = (),
    most: int = MOST,
    replicas: int = 0,
    unlike: tuple[tuple[int, ...], ...] = (),
) -> Space:
    """Returns what there is to choose from; what the caller leaves empty is every possibility.

    With a number of `replicas` it is these alone, and so it is with `unlike` meshes [ranks].

    Raises:
        RhinoError: RHI-READ-005 and -006 for a module that cannot be read.
    """
    cluster, context = load_cluster(setup.cluster), make_context()
    module = ir.Module.parse(setup.module, context)
    rules = {name: text for name, text in setup.options.items() if name == _OP_RULES}
    build_pass_manager(before_choice(rules), context, Remarks(setup.file)).run(module.operation)
    possible = tuple(micro_batches) or _numbers(module, setup)  # the batch is followed through calls by their rules
    numbers = _apart(possible)
    with context:
        program = read_program(entry_function(module), mesh_of_shape((1,)), setup.file)
        unsplit = build(program.graph, rank_target(cluster, mesh_of_shape((1,)), cluster.num_devices).model).problem
    layers = find_layers(entry_function(module).regions[0].blocks[0])
    most_stages = _most_stages(program.graph, sum(one.trips for one in layers), cluster.num_devices)
    counts = stages or [count for count in range(1, most_stages + 1) if cluster.num_devices % count == 0]
    argument_bytes = sum(program.graph.type_of(value).num_bytes for value in range(len(program.graph.arguments)))
    passing = max(0.0, float(unsplit.least_memory().max(initial=0.0)) - argument_bytes)
    found = {count: tuple(meshes) or rank_meshes(cluster, count) for count in counts if count == 1 or numbers[-1] > 1}
    if replicas or unlike:
        found = {}
    count = replicas or (0 if stages or unlike else num_units(cluster))
    row = (cluster.num_devices // max(1, count),)
    apart = {}
    if count > 1 and numbers[-1] >= count:
        apart = {count: tuple(meshes) or tuple(dict.fromkeys([row, *rank_meshes(cluster, count)]))}
    is_open = numbers[-1] > 1 and not (meshes or replicas or unlike or setup.options.get(_OFFLOAD))
    may_be_unlike = is_open and cluster.num_devices <= MOST_DEVICES
    unlike_stages = (stages or range(2, cluster.num_devices)) if may_be_unlike else ()
    return Space(
        found,
        numbers,
        arithmetic_s(program.graph, cluster),
        most=most,
        budget_bytes=setup.budget_bytes,
        finer=possible,
        resident_bytes=argument_bytes / cluster.num_devices,
        passing_bytes=passing / cluster.num_devices,
        has_kin=not meshes,
        three_axes=frozenset([count for count in found if takes_three_axes(cluster, count)]),
        replicas=apart,
        unlike=(unlike,) if unlike and numbers[-1] > 1 else (),
        rank_shapes=unlike_meshes(cluster),
        unlike_stages=tuple([count for count in unlike_stages if 1 < count < cluster.num_devices]),
    )


def _most_stages(graph: Graph, layers: int, num_devices: int) -> int:
    """Returns in how many stages a step is looked at: none does less than one of the `layers` that loops run over."""
    works = graph.times() * np.array([cls.flops for cls in graph.classes], dtype=float)[graph.op_class]
    inside = np.zeros(graph.num_ops, dtype=bool)
    for loop in graph.loops:
        inside[loop.op : loop.end] = True
    of_loops = works[inside].sum()
    return min(num_devices, int(layers * works.sum() / of_loops)) if layers and of_loops else num_devices


def _numbers(module: ir.Module, setup: Setup) -> tuple[int, ...]:
    """Returns the possible numbers of micro-batches: the divisors of the batch, or 1 alone if there is no batch."""
    try:
        with module.context, ir.Location.unknown():
            size = batch_size(module.operation, {name: one for name, one in setup.options.items() if name in BATCH})
    except RhinoError:
        return (1,)
    return tuple(number for number in range(1, size + 1) if size % number == 0)


def _apart(possible: Sequence[int]) -> tuple[int, ...]:
    """Returns the numbers to step in, each about twice the one before."""
    numbers = [possible[0]]
    for number in possible:
        if number >= APART * numbers[-1]:
            numbers.append(number)
    return tuple(numbers)


APART: Final = 1.9
"""At least how many times the number before is the next number of micro-batches that is tried."""


def rank_meshes(cluster: Cluster, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes that are searched for a rank, where each rank has as many devices.

    They have two axes where the number of devices is a product. On devices of one level the order of the axes says
    little, and two axes do whatever one does: then it is one mesh for each product of two factors that gives the
    number. What one axis, three, or the other order have in their favour is looked at for the best plans (`Space.kin`).
    """
    size = cluster.num_devices // num_ranks
    return _pairs(cluster, size) or ((size,),)


def _pairs(cluster: Cluster, size: int) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes of two axes for a rank of so many devices."""
    pairs = [(outer, size // outer) for outer in range(2, size) if size % outer == 0]
    spans = size > cluster.levels[-1].size
    return tuple([pair for pair in pairs if spans or pair[0] <= pair[1]])


def unlike_meshes(cluster: Cluster) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes that ranks of unlike meshes may have, unasked: of one axis, and of two.

    Their numbers of devices, less than all, have no prime factor that the cluster's number has not: dims that can be
    divided among all devices can be divided among so many, and others seldom.
    """
    count = cluster.num_devices
    sizes = [size for size in range(1, count) if count ** size.bit_length() % size == 0]
    return tuple([mesh for size in sizes for mesh in ((size,), *_pairs(cluster, size))])


def arithmetic_s(graph: Graph, cluster: Cluster) -> float:
    """Returns the seconds of a step's products, each at the full rate of all devices: no plan is faster."""
    counts: list[float] = np.bincount(graph.op_class, graph.times(), len(graph.classes)).tolist()
    works = [
        (count * cls.flops, cls.operands[0].dtype)
        for count, cls in zip(counts, graph.classes, strict=True)
        if cls.operands
    ]
    groups = cluster.groups or (cluster,)

    def rate(dtype: str) -> float:
        return sum(one.num_devices * one.device.matmul_flops_per_s(dtype) for one in groups)

    return sum(flops / rate(dtype) for flops, dtype in works if flops)
