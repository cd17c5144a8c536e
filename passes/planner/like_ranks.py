"""What a configuration comes to whose ranks have one mesh: its shardings planned, its stages and schedules estimated.

What it comes to is the search's own cost and memory of that plan; if it is a pipeline, as its stages and schedule have
it. It is not planned to its end once it is proven to take as long as what is known. Each test costs more than the one
before: the arithmetic, the least of each op, the bound of shardings without regard to memory, a pipeline of these by
its fastest schedule, the least that memory rows say, and the search under prices of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.cluster.cluster import Cluster, mesh_axes
from rhino.ir.cluster.groups import rank_budgets, rank_clusters, rank_groups
from rhino.ir.cluster.hardware import Line
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.graph.graph import Loop
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.program import Program
from rhino.ir.units import PEAK, format_bytes
from rhino.passes.pipeline.sharded_step import micro_batch_seconds, unlike_devices
from rhino.passes.planner.search_space import arithmetic_s
from rhino.passes.planner.setup import OFFLOAD_OPTION, Setup
from rhino.passes.planner.staged_outcomes import (
    PlacedSteps,
    StagedStep,
    best_first,
    heard,
    shares_of,
    staged_step,
    with_recomputed,
)
from rhino.passes.sharding.planning_pass import Target, begin_choice, group_target, with_offload
from rhino.strategies.autotune.base import (
    NEARLY,
    CutOff,
    Estimate,
    Outcome,
    PlanConfig,
    Refused,
    bound_by_memory,
)
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.choice.sharding_plan_costs import Sharded
from rhino.strategies.cost.time_ratios import least_time_ratio
from rhino.strategies.memory.peak import peak_of
from rhino.strategies.pipeline.in_flight import several_in_flight
from rhino.strategies.pipeline.replicas import micro_batch_s, shares
from rhino.strategies.pipeline.stages.estimate import StageEstimates
from rhino.strategies.sharding.memory_fitting import fit
from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Limits, Search


def effective_ranks(config: PlanConfig, target: Target, cluster: Cluster) -> float:
    """Returns as how many ranks the ranks of a configuration count at most, each as quick as its devices are.

    The step's seconds on one rank, by `target`, divided by that are the least that a pipeline takes.
    """
    groups, group = rank_groups(cluster, (prod(config.mesh),) * config.num_ranks)
    if groups == (cluster,):
        return config.num_ranks
    ratios = [least_time_ratio(group_target(one, target.mesh).model, target.model) for one in groups]
    return sum(1 / ratios[number] for number in group) if all(ratios) else inf


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """A step that is sharded by `states` [nodes], as a pipeline."""

    states: Ints
    step: PlacedSteps


@dataclass(eq=False)
class LikeRanks:
    """The search of a configuration, to end where it takes `cutoff_s`: of one program on the mesh of a rank.

    Its ranks take devices as in one of `clusters`, which are parts of `cluster`'s orders by which their links are the
    same, each the memory of `target`'s. `begun` is the step in stages where nothing binds, once that is known.
    """

    config: PlanConfig
    setup: Setup
    cluster: Cluster
    limits: Limits
    program: Program
    target: Target
    clusters: Sequence[Cluster]
    cutoff_s: float
    begun: _Staged | None = field(default=None, init=False)
    choice: Choice = field(init=False)
    search: Search = field(init=False)

    @cached_property
    def loop(self) -> Loop | None:
        """The loop over micro-batches."""
        return accumulation_loop(self.program)

    @cached_property
    def effective_ranks(self) -> float:
        """As how many ranks they count at most, in any order."""
        return max(effective_ranks(self.config, self.target, one) for one in self.clusters)

    @cached_property
    def budget_bytes(self) -> float:
        """The bytes that a device of all ranks together may hold at most, in any order."""
        return max(sum(self.budgets(cluster)) for cluster in self.clusters)

    def budgets(self, cluster: Cluster) -> tuple[float, ...]:
        """Returns the bytes that a device of each rank may hold [ranks]; of replicas, which hold as much, the least."""
        config = self.config
        own = rank_budgets(cluster, (prod(config.mesh),) * config.num_ranks, self.setup.budget_bytes)
        return (min(own),) if config.replicas > 1 else own

    def outcome(self) -> Outcome:
        """Returns what the best shardings of the step come to."""
        config, cutoff_s, ranks = self.config, self.cutoff_s, self.config.stages
        least_s = arithmetic_s(self.program.graph, self.cluster)
        if least_s >= cutoff_s:
            return CutOff(config, least_s, least_s, by_memory=False, arithmetic_s=least_s)
        may_offload = bool(self.setup.options.get(OFFLOAD_OPTION))
        self.choice = begin_choice(
            with_offload(self.program, self.target) if may_offload else self.program, self.target
        )
        ops_s = _least_cost_s(self.choice.problem) / self.effective_ranks
        if ops_s >= cutoff_s:
            return CutOff(config, ops_s, ops_s, by_memory=False)
        recomputes = self.setup.recomputes and ranks > 1 and not config.remat
        with_memory = None
        if ranks > self.target.mesh.num_devices:  # memory is what most often rules out many ranks of few devices
            with_memory = self.with_memory(ops_s)
            if isinstance(with_memory, Refused) and not recomputes:
                return with_memory
        self.search = Search(self.choice.problem, replace(self.limits, cutoff=cutoff_s * self.effective_ranks))
        begun_s = self.search.begin() / self.effective_ranks
        if cutoff_s <= begun_s < inf:
            return CutOff(config, begun_s, begun_s, by_memory=False)
        if (too_slow := self.too_slow(begun_s)) is not None:
            return too_slow
        with_memory = with_memory or self.with_memory(begun_s)
        plain: Outcome = with_memory if isinstance(with_memory, Refused) else self.within_memory(*with_memory)
        return self.recomputed(plain) if recomputes and bound_by_memory(plain) else plain

    def too_slow(self, begun_s: float) -> Outcome | None:
        """Returns the outcome where stages of the best shardings, whatever they need, are too slow by any schedule.

        They take `begun_s` at least.
        """
        first = self.search.first
        assert first is not None, "it has begun"
        if self.loop is None or self.config.stages == 1 or first.value == inf or self.cutoff_s == inf:
            return None
        self.begun = self.staged(self.choice, first.states)
        # idle time and all, and what memory adds is long to find
        return self.begun.step.too_slow(begun_s) if self.begun.step.is_slow(self.cutoff_s) else None

    def within_memory(self, choice: Choice, problem: Problem) -> Outcome:
        """Returns what the best shardings of a step come to whose rows are within the memory of all ranks together."""
        config, search, cutoff_s, ranks = self.config, self.search, self.cutoff_s, self.effective_ranks
        budget = self.budget_bytes
        search.remember(problem)
        free = heard(search.free(budget))
        if isinstance(free, Infeasible):
            return Refused(config, "no choice of shardings was found", by_memory=False)
        free_s = free.bound / ranks
        if free_s >= cutoff_s:
            return CutOff(config, free_s, free_s, by_memory=False)
        if isinstance(free, Unsolved):
            return Refused(config, "no choice of shardings was found", by_memory=False)
        # Of several ranks rows decide, which count the micro-batches in flight.
        is_one = config.stages == 1
        answer = heard(fit(search, budget, free, peak_of(choice)) if is_one else search.within(budget, free))
        if not isinstance(answer, Answer):
            if isinstance(answer, Unsolved) and answer.bound / ranks >= cutoff_s:
                return CutOff(config, answer.bound / ranks, free_s, by_memory=True)
            return _none_that_fits(config, answer, free_s)
        bounds = (answer.bound / ranks, free_s)
        if config.replicas > 1:
            return self.on_replicas(choice, answer, bounds)
        if is_one:
            compute_s, collectives_s = shares_of(problem, answer.states)
            return Estimate(config, "", answer.cost, *bounds, compute_s, collectives_s, (answer.peak_bytes,))
        return self.staged_again(choice, answer.states).step.outcome(bounds, cutoff_s)

    def recomputed(self, plain: Outcome) -> Outcome:
        """Returns the better of `plain` and of plans whose stages recompute what their memory asks for.

        Their shardings are the best ones whatever these keep, and the best within a budget that one micro-batch counts
        in alone. `plain` has a bound on plans that recompute nothing beyond the share of the configuration.
        """
        search, choice = self.search, self.choice.with_memory()
        search.remember(choice.problem)
        free = heard(search.free(self.budget_bytes))
        if not isinstance(free, Answer):
            return plain
        within = heard(search.within(self.budget_bytes, free))
        known = [free, *([within] if isinstance(within, Answer) and within is not free else [])]
        bound_s = free.bound / self.effective_ranks
        steps = [self.staged_again(choice, answer.states).step for answer in known]
        found = [one for step in steps for one in step.recomputed(bound_s, self.cutoff_s)]
        return with_recomputed(plain, best_first(found), bound_s, self.cutoff_s)

    def on_replicas(self, choice: Choice, answer: Answer, bounds: tuple[float, float]) -> Estimate:
        """Returns what a sharded step comes to on replicas, each with the micro-batches that it is asked to take."""
        config, loop = self.config, self.loop
        sharded = Sharded(choice, answer.states, make_plan(choice, answer.states), loop)
        each_s = micro_batch_seconds(sharded, self.cluster, mesh_of_shape(config.mesh), config.replicas)
        parts = self.setup.shares or shares(each_s, config.micro_batches)
        busy_s = [count * own_s for count, own_s in zip(parts, each_s, strict=True)]
        once_s = answer.cost - config.micro_batches * micro_batch_s(choice.graph, loop, sharded.seconds)
        collectives_s = shares_of(choice.problem, answer.states)[1] / config.replicas
        compute_s = max(0.0, once_s + sum(busy_s) / config.replicas - collectives_s)
        step_s = once_s + max(busy_s)
        return Estimate(config, "", step_s, *bounds, compute_s, collectives_s, (answer.peak_bytes,))

    def with_memory(self, free_bound_s: float) -> tuple[Choice, Problem] | Refused:
        """Returns the choice with its memory rows, and the problem for the memory of all ranks together.

        Returns a refusal if the problem cannot fit.
        """
        config, ranks = self.config, self.config.stages
        choice = self.choice.with_memory()
        problem = choice.problem
        if ranks > 1 and self.loop is not None:
            problem = several_in_flight(choice, self.loop, min(config.micro_batches, ranks))
        least = float(problem.least_memory().max(initial=0.0)) / ranks
        # A plan in one stage is judged by its programs, which may need less than rows.
        if least * ranks > self.budget_bytes * (1 if ranks > 1 else NEARLY):
            return Refused(config, f"needs about {format_bytes(least)} per device", True, free_bound_s, least)
        return choice, problem

    def staged_again(self, choice: Choice, states: Ints) -> _Staged:
        """Returns the step in stages of these states, which may be known from the beginning."""
        if self.begun is not None and np.array_equal(states, self.begun.states):
            return self.begun
        return self.staged(choice, states)

    def staged(self, choice: Choice, states: Ints) -> _Staged:
        """Returns a sharded step as a pipeline."""
        config = self.config
        assert self.loop is not None, "a pipeline has micro-batches"
        sharded = Sharded(choice, states, make_plan(choice, states), self.loop)
        collectives_s = shares_of(choice.problem, states)[1] / config.stages
        steps, known = list[StagedStep](), dict[Line, tuple[StageEstimates, tuple[Cluster, ...]]]()
        for cluster in self.clusters:
            cuts = self.cuts(sharded, cluster, known)
            own = self.budgets(cluster), self.setup.budget_bytes, cluster.order
            steps.append(staged_step(config, self.setup.schedules, cuts, lambda _: collectives_s, *own))
        return _Staged(states, PlacedSteps(tuple(steps)))

    def cuts(
        self, sharded: Sharded, cluster: Cluster, known: dict[Line, tuple[StageEstimates, tuple[Cluster, ...]]]
    ) -> StageEstimates:
        """Returns the cuts of a sharded step on ranks that take devices as in `cluster`.

        They share what is known of cuts on the same links, and on the same groups in another order.
        """
        config, mesh = self.config, mesh_of_shape(self.config.mesh)
        link = mesh_axes(cluster, (config.stages, *config.mesh))[0].link
        parts = rank_clusters(cluster, (mesh.num_devices,) * config.stages)
        if link in known and set(parts) <= set(known[link][1]):
            cuts, groups = known[link]
            return cuts.on(tuple(map(groups.index, parts)))
        unlike = unlike_devices(sharded, cluster, mesh, range(config.stages))
        cuts = StageEstimates(sharded, config.micro_batches, link, self.setup.tolerances, unlike)
        known[link] = cuts, tuple(dict.fromkeys(parts))
        return cuts


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


def _least_cost_s(problem: Problem) -> float:
    """Returns a bound on every choice that takes no search: what each node and each edge takes at least."""
    least = np.array([table.min(initial=inf) for table in problem.tables])
    return float(least[problem.node_table].sum() + least[problem.edge_table].sum())
