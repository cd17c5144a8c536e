"""Evaluate configurations: what each comes to, by planning its shardings and estimating its stages.

A step is normalized once, taken in micro-batches once for each number of them, and planned once for each mesh of a
rank. What a configuration comes to is the search's own cost and memory of that plan; if it is a pipeline, as its stages
and schedule have it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.cluster.cluster import Cluster, load_cluster, mesh_axes, takes_three_axes
from rhino.ir.cluster.groups import num_units, rank_budgets, rank_groups
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import Graph, Loop
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.program import Program, read_program
from rhino.ir.units import PEAK, format_bytes
from rhino.passes.base import Item, Remarks, make_passes
from rhino.passes.frontend.stage_marks import BOUNDARY
from rhino.passes.pipeline.divider import Divider
from rhino.passes.pipeline.fold_layers import FoldedLayers, FoldLayers
from rhino.passes.pipeline.join_replicas import JoinReplicas
from rhino.passes.pipeline.micro_batch import BATCH, MicroBatch, batch_size
from rhino.passes.pipeline.part_statistics import num_statistics_parts
from rhino.passes.pipeline.parted_statistics import PartedStatistics
from rhino.passes.pipeline.rematerialize import Rematerialize, Rematerializer
from rhino.passes.pipeline.sharded_step import micro_batch_seconds, unlike_devices
from rhino.passes.pipeline.split_scans import SplitScans, find_layers
from rhino.passes.planner.choose_layouts import viewed_copy
from rhino.passes.precision.mixed_precision import MixedPrecision
from rhino.passes.registry import before_choice
from rhino.passes.sharding.planning_pass import Target, begin_choice, group_target, rank_target, with_offload
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.autotune.base import (
    MOST,
    NEARLY,
    NEVER_RECOMPUTED,
    CutOff,
    Estimate,
    Outcome,
    PlanConfig,
    Refused,
    Space,
    bound_by_memory,
    may_fit,
)
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.choice.sharding_plan_costs import op_seconds
from rhino.strategies.cost.time_ratios import least_time_ratio
from rhino.strategies.memory.peak import peak_of
from rhino.strategies.pipeline.in_flight import several_in_flight
from rhino.strategies.pipeline.replicas import micro_batch_s, shares
from rhino.strategies.pipeline.schedules import SCHEDULES, make_order
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule
from rhino.strategies.pipeline.stages.balance import TOLERANCES
from rhino.strategies.pipeline.stages.estimate import Sharded, StageEstimate, StageEstimates
from rhino.strategies.pipeline.step_time import step_seconds
from rhino.strategies.sharding.choice_problem import build
from rhino.strategies.sharding.memory_fitting import fit
from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Limits, Search

LIMITS: Final = Limits(prices=12, gap=1e-2, exact_below_states=0, rounds=(4,))
"""How far shardings are searched for while configurations are compared: where memory binds, to about a hundredth."""


GROUPS: Final = 64
"""In how many groups alike layers are planned at least, where there are twice as many or more.

And in two for each device.
"""

CONSTRAINTS: Final = ("axis-role", "constraints", "forbid", "pin", "scope")
"""Options that are constraints on how tensors lie and ops run."""

_BY_NAME: Final = (*CONSTRAINTS, *BATCH, "pad")
"""Options that speak of tensors and ops by name, of which a step with fewer layers does not have all."""

Timed: TypeAlias = list[tuple[float, str, Order, StageEstimate]]
"""What a pipeline takes by some schedules, best first.

The seconds of a step, the schedule, its tasks, and what its stages come to.
"""


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """A step that is sharded by `states` [nodes] as a pipeline: its cuts, and what it takes by each schedule.

    Schedules that run `ahead` are apart from the others.
    """

    states: Ints
    cuts: StageEstimates
    timed: Timed
    ahead: Timed


MOST_OPS: Final = 500_000
"""How many ops there may be in the steps that an evaluator keeps as it has read them, beside the last.

Large ones take memory.
"""


_AMP: Final = "amp"
"""The option that changes the types of a step before it is folded."""

_STATISTICS: Final = "batch-statistics"
"""The option that changes a step before it is folded where it asks for those of parts that are no micro-batches."""

_OFFLOAD: Final = "offload"
"""The option that leaves it to the choice of shardings what lies in host memory."""


@dataclass(eq=False)
class _Planning:
    """The search of a configuration that has begun, to end where it takes `cutoff_s`.

    `staged` is the step in stages where nothing binds, once that is known.
    """

    config: PlanConfig
    program: Program
    choice: Choice
    loop: Loop | None
    search: Search
    effective_ranks: float
    cutoff_s: float
    staged: _Staged | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What configurations are evaluated for.

    `module` is the step as bytecode, and `options` are those of the passes, by name, as `before_choice` takes them.
    `layers` is the number of alike layers in each stretch of the step that `groups` stands for, where it is folded.
    Stages are cut within one of `tolerances` of the best balance. With `own_shapes` arrays have the shapes of the step
    as written between steps: what is stored as blocks is moved in each, and estimates are of steps without. Replicas
    take `shares` of the micro-batches, where they are given. With `recomputes` each stage may recompute what its memory
    asks for, where a configuration has no share for all.
    """

    module: bytes
    file: str
    cluster: str
    budget_bytes: float
    options: dict[str, str]
    schedules: tuple[str, ...] = tuple(SCHEDULES)
    layers: tuple[int, ...] = ()
    groups: int = 0
    tolerances: tuple[float, ...] = TOLERANCES
    own_shapes: bool = False
    shares: tuple[int, ...] = ()
    recomputes: bool = False


def in_own_types(setup: Setup) -> Setup:
    """Returns a setup whose step computes in the types that were asked for, so that its layers can be folded.

    So are statistics of parts of its batch.
    """
    is_parted = num_statistics_parts(setup.options.get(_STATISTICS, ""), setup.file) > 0
    if not setup.options.get(_AMP) and not is_parted:
        return setup
    context = make_context()
    module = ir.Module.parse(setup.module, context)
    own = {name: text for name, text in setup.options.items() if name in (_AMP, *BATCH)}
    amp, parted = make_passes((MixedPrecision, PartedStatistics), own, setup.file)
    made = [*((amp,) if setup.options.get(_AMP) else ()), *((parted,) if is_parted else ())]
    build_pass_manager(made, context, Remarks(setup.file)).run(module.operation)
    done = {_AMP, _STATISTICS} if is_parted else {_AMP}
    others = {name: text for name, text in setup.options.items() if name not in done}
    return replace(setup, module=bytecode(module), options=others)


def folded(setup: Setup) -> Setup:
    """Returns a setup in which one layer of a deep step stands for several.

    Returns the same setup if there are few layers, or if options refer to names.
    """
    if any(setup.options.get(name) for name in _BY_NAME) or BOUNDARY.encode() in setup.module:
        return setup
    context, remarks = make_context(), Remarks(setup.file)
    module = ir.Module.parse(setup.module, context)
    groups = max(GROUPS, 2 * load_cluster(setup.cluster).num_devices)
    build_pass_manager([FoldLayers(num_groups=groups)], context, remarks).run(module.operation)
    folded_layers = remarks.find(FoldedLayers)
    layers = folded_layers.counts if folded_layers else ()
    return replace(setup, module=bytecode(module), layers=layers, groups=groups) if layers else setup


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
    programs: dict[tuple[int, int, float, int], tuple[ir.Module, Program]] = field(default_factory=dict)
    ops_read: int = 0
    dividers: dict[bytes, Divider] = field(default_factory=dict)
    rematerializer: Rematerializer = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = load_cluster(self.setup.cluster)
        self.context = make_context()
        self.rematerializer = Rematerializer(self.context)

    def outcome(self, config: PlanConfig, cutoff_s: float = inf) -> Outcome:
        """Returns the outcome of a configuration.

        The configuration is not planned to its end once it is proven to take at least `cutoff_s`.
        """
        try:
            target = self.target(config)
            with self.context:
                step = self.program(config, target)
                plain = self.planned(config, step[1], target, cutoff_s)
                viewed = self.viewed(step[0], target)
                if viewed is None:
                    return plain
                limit_s = min(cutoff_s, plain.step_s) if isinstance(plain, Estimate) else cutoff_s
                return _best(plain, self.planned(config, viewed[1], target, limit_s))
        except RhinoError as error:
            return Refused(config, error.what, by_memory=False)

    def program(self, config: PlanConfig, target: Target) -> tuple[ir.Module, Program]:
        """Returns the step of a configuration, which lasts as long as its module.

        A step that refers to no mesh axis is read once for all meshes.
        """
        key = (self.num_stages(config), config.micro_batches, config.remat, config.replicas)
        found = self.programs.pop(key, None)
        if found is None:
            module = self.prepared(config)
            found = module, read_program(entry_function(module), target.mesh, self.setup.file)
            self.ops_read += found[1].graph.num_ops
        if _is_free_of_axes(found[1].graph):
            self.programs[key] = found
        while len(self.programs) > 1 and sum(program.graph.num_ops for _, program in self.programs.values()) > MOST_OPS:
            del self.programs[next(iter(self.programs))]
        return found

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
        again = [one for one in rewriting if isinstance(one, Rematerialize)]
        others = [one for one in rewriting if not isinstance(one, Rematerialize)]
        at = next((number for number, one in enumerate(others) if isinstance(one, MicroBatch)), 0)
        step = self.made("step", self.setup.module, others[:at]) if at else self.setup.module
        stages = self.num_stages(config)
        if stages > 1:
            split = SplitScans(stages, leaves=True, cluster=self.setup.cluster)
            step = self.made(f"step-{stages}", step, [split])
        divided = self.made(f"{stages}-{config.micro_batches}", step, others[at:])
        name, join = f"{stages}-{config.micro_batches}-{config.remat:g}", list[Item]()
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

    def target(self, config: PlanConfig) -> Target:
        """Returns the mesh of a rank, on the links that it has where every rank has one."""
        return rank_target(self.cluster, mesh_of_shape(config.mesh), config.num_ranks)

    def budgets(self, config: PlanConfig) -> tuple[float, ...]:
        """Returns the bytes that a device of each rank may hold [ranks]; of replicas, which hold as much, the least."""
        own = rank_budgets(self.cluster, (prod(config.mesh),) * config.num_ranks, self.setup.budget_bytes)
        return (min(own),) if config.replicas > 1 else own

    def fits(self, config: PlanConfig, peak_bytes: Sequence[float]) -> bool:
        """Says whether devices hold these peaks [ranks]."""
        return all(peak <= own for peak, own in zip(peak_bytes, self.budgets(config), strict=True))

    def effective_ranks(self, config: PlanConfig, target: Target) -> float:
        """Returns as how many ranks the ranks of a configuration count at most, each as quick as its devices are.

        The step's seconds on one rank, by `target`, divided by that are the least that a pipeline takes.
        """
        groups, group = rank_groups(self.cluster, (prod(config.mesh),) * config.num_ranks)
        if groups == (self.cluster,):
            return config.num_ranks
        ratios = [least_time_ratio(group_target(one, target.mesh).model, target.model) for one in groups]
        return sum(1 / ratios[number] for number in group) if all(ratios) else inf

    def planned(self, config: PlanConfig, program: Program, target: Target, cutoff_s: float) -> Outcome:
        """Returns what the best shardings of a step come to."""
        least_s = arithmetic_s(program.graph, self.cluster)
        if least_s >= cutoff_s:
            return CutOff(config, least_s, least_s, by_memory=False, arithmetic_s=least_s)
        choice = begin_choice(with_offload(program, target) if self.setup.options.get(_OFFLOAD) else program, target)
        loop = accumulation_loop(program)
        ranks, effective_ranks = config.stages, self.effective_ranks(config, target)
        ops_s = _least_cost_s(choice.problem) / effective_ranks
        if ops_s >= cutoff_s:
            return CutOff(config, ops_s, ops_s, by_memory=False)
        recomputes = self.setup.recomputes and ranks > 1 and not config.remat
        with_memory = None
        if ranks > target.mesh.num_devices:  # memory is what most often rules out many ranks of few devices
            with_memory = self.with_memory(config, choice, loop, ops_s)
            if isinstance(with_memory, Refused) and not recomputes:
                return with_memory
        search = Search(choice.problem, replace(self.limits, cutoff=cutoff_s * effective_ranks))
        begun_s = search.begin() / effective_ranks
        if cutoff_s <= begun_s < inf:
            return CutOff(config, begun_s, begun_s, by_memory=False)
        begun = search.first
        assert begun is not None, "it has begun"
        planning = _Planning(config, program, choice, loop, search, effective_ranks, cutoff_s)
        if loop is not None and ranks > 1 and begun.value < inf and cutoff_s < inf:
            staged = planning.staged = self.staged(config, choice, begun.states, loop)
            if self.is_slow(config, staged, cutoff_s):  # idle time and all, and what memory adds is long to find
                plans = tuple(_estimates(config, choice.problem, begun.states, staged.timed, (begun_s, begun_s)))
                return CutOff(config, begun_s, begun_s, by_memory=False, estimated_s=staged.timed[0][0], plans=plans)
        with_memory = with_memory or self.with_memory(config, choice, loop, begun_s)
        plain: Outcome = with_memory if isinstance(with_memory, Refused) else self.within_memory(planning, *with_memory)
        return self.recomputed(planning, plain) if recomputes and bound_by_memory(plain) else plain

    def within_memory(self, planning: _Planning, choice: Choice, problem: Problem) -> Outcome:
        """Returns what the best shardings of a step come to whose rows are within the memory of all ranks together."""
        config, search, cutoff_s = planning.config, planning.search, planning.cutoff_s
        ranks, effective_ranks, budget = config.stages, planning.effective_ranks, sum(self.budgets(config))
        search.remember(problem)
        free = _heard(search.free(budget))
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
        answer = _heard(fit(search, budget, free, peak_of(choice), most_s) if is_one else search.within(budget, free))
        if not isinstance(answer, Answer):
            if isinstance(answer, Unsolved) and answer.bound / effective_ranks >= cutoff_s:
                return CutOff(config, answer.bound / effective_ranks, free_s, by_memory=True)
            return _none_that_fits(config, answer, free_s)
        bounds = (answer.bound / effective_ranks, free_s)
        if config.replicas > 1:
            return self.on_replicas(config, choice, planning.program, answer, bounds)
        if ranks == 1:
            compute_s, collectives_s = _shares(problem, answer.states)
            return Estimate(config, "", answer.cost, *bounds, compute_s, collectives_s, (answer.peak_bytes,))
        staged = self.staged_again(planning, choice, answer.states)
        timed, ahead = staged.timed, staged.ahead
        is_for_ahead = timed and timed[0][0] >= cutoff_s and not self.is_slow(config, staged, cutoff_s)
        outcome = self.in_stages(config, problem, answer, bounds, timed, inf if is_for_ahead else cutoff_s)
        if isinstance(outcome, Estimate):
            return self.with_ahead(outcome, _estimates(config, problem, answer.states, ahead, bounds), ahead)
        return outcome

    def recomputed(self, planning: _Planning, plain: Outcome) -> Outcome:
        """Returns the better of `plain` and of plans whose stages recompute what their memory asks for.

        Their shardings are the best ones whatever these keep, and the best within a budget that one micro-batch counts
        in alone. `plain` has a bound on plans that recompute nothing beyond the share of the configuration.
        """
        search, budget = planning.search, sum(self.budgets(planning.config))
        choice = planning.choice.with_memory()
        search.remember(choice.problem)
        free = _heard(search.free(budget))
        if not isinstance(free, Answer):
            return plain
        within = _heard(search.within(budget, free))
        known = [free, *([within] if isinstance(within, Answer) and within is not free else [])]
        bound_s = free.bound / planning.effective_ranks
        found = [one for answer in known for one in self.fitted(planning, choice, answer, bound_s)]
        return with_recomputed(plain, _sorted(found), bound_s, planning.cutoff_s)

    def fitted(self, planning: _Planning, choice: Choice, answer: Answer, bound_s: float) -> Iterator[Estimate]:
        """Yields what a sharded step comes to by each schedule where stages recompute what their memory asks for.

        Where it takes longer whatever they recompute, nothing is yielded.
        """
        config, staged = planning.config, self.staged_again(planning, choice, answer.states)
        collectives_s = _shares(choice.problem, answer.states)[1] / config.stages
        for step_s, name, order, _ in staged.timed:
            if step_s >= planning.cutoff_s or SCHEDULES[name].stages_per_rank > 1:
                continue
            if (cut := staged.cuts.fitted(order, self.budgets(config))) is not None:
                compute_s = cut.times.busy_s(config.micro_batches) / config.stages - collectives_s
                peaks = cut.needs.peak_bytes(order)
                yield Estimate(
                    config,
                    name,
                    step_seconds(order, cut.times),
                    bound_s,
                    bound_s,
                    compute_s,
                    collectives_s,
                    peaks,
                    recomputes=True,
                    is_pressed=True,
                )

    def on_replicas(
        self, config: PlanConfig, choice: Choice, program: Program, answer: Answer, bounds: tuple[float, float]
    ) -> Estimate:
        """Returns what a sharded step comes to on replicas, each with the micro-batches that it is asked to take."""
        seconds = op_seconds(choice, answer.states)
        plan, mesh = make_plan(choice, answer.states), mesh_of_shape(config.mesh)
        each_s = micro_batch_seconds(plan, accumulation_loop(program), self.cluster, mesh, config.replicas, seconds)
        parts = self.setup.shares or shares(each_s, config.micro_batches)
        busy_s = [count * own_s for count, own_s in zip(parts, each_s, strict=True)]
        once_s = answer.cost - config.micro_batches * micro_batch_s(program.graph, accumulation_loop(program), seconds)
        collectives_s = _shares(choice.problem, answer.states)[1] / config.replicas
        compute_s = max(0.0, once_s + sum(busy_s) / config.replicas - collectives_s)
        step_s = once_s + max(busy_s)
        return Estimate(config, "", step_s, *bounds, compute_s, collectives_s, (answer.peak_bytes,))

    def staged_again(self, planning: _Planning, choice: Choice, states: Ints) -> _Staged:
        """Returns the step in stages of these states, which may be known from the beginning."""
        known, loop = planning.staged, planning.loop
        if known is not None and np.array_equal(states, known.states):
            return known
        assert loop is not None, "a pipeline has micro-batches"
        return self.staged(planning.config, choice, states, loop)

    def is_slow(self, config: PlanConfig, staged: _Staged, cutoff_s: float) -> bool:
        """Says whether a pipeline takes `cutoff_s` or longer by every schedule that may be used.

        A schedule that runs ahead may not be used if it needs too much memory.
        """
        if not staged.timed or staged.timed[0][0] < cutoff_s:
            return False
        quick = [(order, cut.needs) for step_s, _, order, cut in staged.ahead if step_s < cutoff_s]
        most = NEARLY * self.setup.budget_bytes
        return not any(self.fits(config, needs.peak_bytes(order, most)) for order, needs in quick)

    def with_memory(
        self, config: PlanConfig, choice: Choice, loop: Loop | None, free_bound_s: float
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
        if least * ranks > sum(self.budgets(config)) * (1 if ranks > 1 else NEARLY):
            return Refused(config, f"needs about {format_bytes(least)} per device", True, free_bound_s, least)
        return choice, problem

    def in_stages(
        self,
        config: PlanConfig,
        problem: Problem,
        answer: Answer,
        bounds: tuple[float, float],
        timed: Timed,
        cutoff_s: float,
    ) -> Outcome:
        """Returns what a sharded step comes to as a pipeline, with the best of the schedules that fit.

        Most of the work is to find the memory that a schedule needs. It is not done where the step takes `cutoff_s` or
        longer.
        """
        if not timed:
            return Refused(config, f"it cannot be cut in {config.stages} stages", by_memory=False)
        budget_bytes = self.setup.budget_bytes
        found = _estimates(config, problem, answer.states, timed, bounds)
        quick = [one for one in timed if one[0] < cutoff_s]
        for number, (*_, order, cut) in enumerate(quick):
            found[number] = replace(found[number], peak_bytes=cut.needs.peak_bytes(order, NEARLY * budget_bytes))
            if self.fits(config, found[number].peak_bytes):
                others = tuple([one for one in found if one is not found[number] and may_fit(one, budget_bytes)])
                return replace(found[number], others=others)
        needed = min((max(one.peak_bytes) for one in found[: len(quick)]), default=0.0)
        why = f"its largest stage needs about {format_bytes(needed)} per device"
        nearly = tuple([one for one in found if may_fit(one, budget_bytes)])
        if len(quick) == len(timed):
            return Refused(config, why, True, bounds[1], needed, nearly)
        if quick and needed * NEVER_RECOMPUTED <= budget_bytes:
            # What others need is not known, so that more micro-batches may fit at once.
            return Refused(config, f"{why} by a schedule that is quick enough", True, bounds[1], nearly=nearly)
        estimated_s = timed[len(quick)][0]  # by a schedule that may fit: no quicker one does, whatever is kept
        return CutOff(config, *bounds, by_memory=bounds[0] > bounds[1], estimated_s=estimated_s, plans=nearly)

    def with_ahead(self, plain: Estimate, found: list[Estimate], ahead: Timed) -> Estimate:
        """Returns the estimate of a configuration with what was `found` by schedules that run ahead.

        The best one that is faster and fits is its `ahead`; the rest join its `others`. Those are made where the
        programs of better ones come to more than they are estimated at.
        """
        others = list(plain.others)
        for one, (_, _, order, cut) in zip(found, ahead, strict=True):
            if plain.ahead is None and one.step_s < plain.step_s:
                estimate = replace(one, peak_bytes=cut.needs.peak_bytes(order, NEARLY * self.setup.budget_bytes))
                if self.fits(plain.config, estimate.peak_bytes):
                    plain = replace(plain, ahead=estimate)
                    continue
            else:
                estimate = one
            if may_fit(estimate, self.setup.budget_bytes):
                others.append(estimate)
        return replace(plain, others=tuple(sorted(others, key=lambda one: one.step_s)))

    def staged(self, config: PlanConfig, choice: Choice, states: Ints, loop: Loop) -> _Staged:
        """Returns a sharded step as a pipeline, and its seconds by each schedule.

        Schedules that run ahead are returned apart from the others. There are none where the step cannot be cut.
        Configurations are compared by schedules that do not run ahead. What runs ahead needs so much memory that most
        configurations it would keep in the race are too large in the end. If only schedules that run ahead are
        requested, they are not apart.
        """
        outer = mesh_axes(self.cluster, (config.stages, *config.mesh))[0]
        sharded = Sharded(
            make_plan(choice, states), choice.model, loop, op_seconds(choice, states), choice.problem.cost(states)
        )
        mesh, ranks = mesh_of_shape(config.mesh), range(config.stages)
        unlike = unlike_devices(sharded.plan, self.cluster, mesh, ranks, sharded.seconds)
        cuts = StageEstimates(sharded, config.micro_batches, outer.link, self.setup.tolerances, unlike)
        found: Timed = []
        ahead: Timed = []
        is_apart = any(not SCHEDULES[name].runs_ahead for name in self.setup.schedules)
        for name in self.setup.schedules:
            if pipeline := pipeline_of(SCHEDULES[name], config):
                order = make_order(name, pipeline)
                every = cuts.cuts(order.rank_of)
                best = min(((step_seconds(order, cut.times), name, order, cut) for cut in every), key=_seconds)
                (ahead if is_apart and SCHEDULES[name].runs_ahead else found).append(best)
        return _Staged(states, cuts, sorted(found, key=_seconds), sorted(ahead, key=_seconds))


def refusal(setup: Setup, config: PlanConfig) -> RhinoError | None:
    """Returns the error of the step itself, whatever the devices; None if there is none.

    The step is taken in micro-batches and recomputed as in the configuration.
    """
    try:
        Evaluator(setup).prepared(config)
    except RhinoError as error:
        return error
    return None


def _estimates(
    config: PlanConfig, problem: Problem, states: Ints, timed: Timed, bounds: tuple[float, float]
) -> list[Estimate]:
    """Returns what a configuration comes to by each schedule, best first, without what that needs."""
    _, collectives_s = (seconds / config.stages for seconds in _shares(problem, states))
    found = []
    for step_s, name, _, cut in timed:
        compute_s = cut.times.busy_s(config.micro_batches) / config.stages - collectives_s
        found.append(Estimate(config, name, step_s, *bounds, compute_s, collectives_s, ()))
    return found


def _seconds(timed: tuple[float, str, Order, StageEstimate]) -> float:
    return timed[0]


def pipeline_of(schedule: Schedule, config: PlanConfig) -> Pipeline | None:
    """Returns the pipeline that a schedule runs for a configuration; None where it takes none."""
    chunks = schedule.stages_per_rank
    if chunks > 1 and config.micro_batches % config.stages:
        return None
    return Pipeline(config.stages * chunks, config.micro_batches, chunks)


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


def _shares(problem: Problem, states: Ints) -> tuple[float, float]:
    """Returns the seconds of ops and of ways between them."""
    nodes = float(problem.node_entries(problem.node_table, np.arange(problem.num_nodes), states).sum())
    return nodes, problem.cost(states) - nodes


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


def with_recomputed(plain: Outcome, found: Sequence[Estimate], bound_s: float, cutoff_s: float) -> Outcome:
    """Returns what a configuration comes to whose stages may recompute what their memory asks for.

    `found` are such plans, best first; `bound_s` is a bound on all of them, and `plain` what memory binds without.
    """
    best = next(iter(found), None)
    if isinstance(plain, Estimate):
        if best is None or plain.step_s <= best.step_s:
            return replace(plain, bound_s=bound_s, others=_sorted([*plain.others, *found]), is_pressed=True)
        others = [*found[1:], *plain.others, replace(plain, others=(), ahead=None)]
        ahead = plain.ahead if plain.ahead and plain.ahead.step_s < best.step_s else None
        return replace(best, others=_sorted(others), ahead=ahead)
    if best is not None and best.step_s < cutoff_s:
        nearly = plain.nearly if isinstance(plain, Refused) else ()
        return replace(best, others=_sorted([*found[1:], *nearly]))
    if isinstance(plain, CutOff):
        estimated_s = min([max(plain.bound_s, plain.estimated_s), *(one.step_s for one in found[:1])])
        plans = _sorted([*plain.plans, *found])
        return replace(plain, bound_s=bound_s, estimated_s=estimated_s, plans=plans)
    if best is not None:
        return CutOff(plain.config, bound_s, bound_s, by_memory=True, estimated_s=best.step_s, plans=tuple(found))
    return plain


def _sorted(plans: Sequence[Estimate]) -> tuple[Estimate, ...]:
    return tuple(sorted(plans, key=lambda one: one.step_s))


def _heard(found: Answer | Infeasible | Unsolved) -> Answer | Infeasible | Unsolved:
    """Returns what the search of shardings came to.

    If it was interrupted it made do with what it had: the search of configurations ends, too.
    """
    if isinstance(found, Answer) and found.is_interrupted:
        raise KeyboardInterrupt
    return found


def make_space(
    setup: Setup,
    stages: Sequence[int] = (),
    meshes: Sequence[tuple[int, ...]] = (),
    micro_batches: Sequence[int] = (),
    most: int = MOST,
    replicas: int = 0,
) -> Space:
    """Returns what there is to choose from; what the caller leaves empty is every possibility.

    With a number of `replicas` it is these alone.

    Raises:
        RhinoError: RHI-READ-005 and -006 for a module that cannot be read.
    """
    cluster, context = load_cluster(setup.cluster), make_context()
    module = ir.Module.parse(setup.module, context)
    possible = tuple(micro_batches) or _numbers(module, setup)
    numbers = _apart(possible)
    build_pass_manager(before_choice({}), context, Remarks(setup.file)).run(module.operation)
    with context:
        program = read_program(entry_function(module), mesh_of_shape((1,)), setup.file)
        unsplit = build(program.graph, rank_target(cluster, mesh_of_shape((1,)), cluster.num_devices).model).problem
    argument_bytes = sum(program.graph.type_of(value).num_bytes for value in range(len(program.graph.arguments)))
    passing = max(0.0, float(unsplit.least_memory().max(initial=0.0)) - argument_bytes)
    counts = stages or [count for count in range(1, cluster.num_devices + 1) if cluster.num_devices % count == 0]
    found = {count: tuple(meshes) or rank_meshes(cluster, count) for count in counts if count == 1 or numbers[-1] > 1}
    if replicas:
        found = {}
    count = replicas or (0 if stages else num_units(cluster))
    row = (cluster.num_devices // max(1, count),)
    apart = {}
    if count > 1 and numbers[-1] >= count:
        apart = {count: tuple(meshes) or tuple(dict.fromkeys([row, *rank_meshes(cluster, count)]))}
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
    )


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
    pairs = [(outer, size // outer) for outer in range(2, size) if size % outer == 0]
    if not pairs:
        return ((size,),)
    spans = size > cluster.levels[-1].size
    return tuple([pair for pair in pairs if spans or pair[0] <= pair[1]])


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
