"""Evaluate configurations whose ranks have unlike meshes.

The step is sharded as a whole on each distinct mesh, without regard to memory and, where that is too large, within what
all devices of the cluster hold together if they are ranks of that mesh. A stage takes its shardings from the choice for
the mesh of its rank, and its seconds and bytes with them.

A configuration's step has a lower bound by the least seconds t[r, n] that node n of the choice problem takes on rank r,
whatever its neighbours are. With T the time of the longest rank and B[r] the sum of t[r, n] over all nodes,

    T * sum over r of 1 / B[r]  >=  sum over r of (sum over n on r of t[r, n]) / B[r]
                                >=  sum over n of the least t[r, n] / B[r]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from typing import Final

from rhino.ir.arrays import Ints
from rhino.ir.cluster.cluster import Cluster, link_between
from rhino.ir.cluster.groups import rank_budgets, rank_clusters
from rhino.ir.cluster.hardware import Line
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.graph.graph import Loop
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.program import Program
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.staged_outcomes import (
    StagedStep,
    best_first,
    heard,
    shares_of,
    staged_step,
    with_recomputed,
)
from rhino.passes.sharding.planning_pass import begin_choice, group_target, rank_models, rank_target
from rhino.strategies.autotune.base import (
    CutOff,
    Found,
    Outcome,
    PlanConfig,
    Refused,
    Screening,
    bound_by_memory,
    on_meshes,
)
from rhino.strategies.autotune.screened_stages import moved_ranks
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import make_plan
from rhino.strategies.choice.sharding_plan_costs import Sharded
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.time_ratios import least_time_ratio
from rhino.strategies.pipeline.in_flight import several_in_flight
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.strategies.pipeline.stages.estimate import StageEstimate, StageEstimates
from rhino.strategies.pipeline.stages.shape_screen import Nodes, RankKind, ScreenedLine, neighbours, screen
from rhino.strategies.pipeline.stages.shapes import is_placed
from rhino.strategies.pipeline.stages.stage_graph import UnlikeDevices
from rhino.strategies.pipeline.stages.stage_problem import time_ratios
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.search import Limits, Search

Shape = tuple[int, ...]
"""The sizes of a mesh's axes."""

STARTS: Final = 2
"""From how many ranks that a screen finds their neighbours are looked at."""

MOST_LOOKED: Final = 64
"""How many ranks are looked at about in one screening, with neighbours of the best."""


@dataclass(eq=False)
class OnMesh:
    """A step that is sharded on one mesh: its choice problem, and the search on it, which has begun.

    `budget_bytes` is what one rank of that mesh may hold of the whole step, if the cluster is full of its like.
    """

    choice: Choice
    search: Search
    loop: Loop
    budget_bytes: float
    known: dict[bytes, Sharded] = field(default_factory=dict)

    def sharded(self, states: Ints) -> Sharded:
        """Returns the step as it is sharded by `states` [nodes], one object for equal ones."""
        key = states.tobytes()
        if key not in self.known:
            self.known[key] = Sharded(self.choice, states, make_plan(self.choice, states), self.loop)
        return self.known[key]

    def free(self, in_flight: int) -> Answer | None:
        """Returns the best choice whatever it keeps of so many micro-batches; None where none was found."""
        choice = self.choice.with_memory()
        self.search.remember(several_in_flight(choice, self.loop, in_flight))
        found = heard(self.search.free(self.budget_bytes))
        return found if isinstance(found, Answer) else None

    def within(self, free: Answer) -> Answer | None:
        """Returns the best choice that the budget holds."""
        found = heard(self.search.within(self.budget_bytes, free))
        return found if isinstance(found, Answer) else None


@dataclass(eq=False)
class UnlikeRanks:
    """Evaluates one configuration whose ranks have unlike meshes; `parts` are the step on each, the first's first."""

    config: PlanConfig
    setup: Setup
    cluster: Cluster
    parts: Mapping[Shape, OnMesh]
    found: dict[tuple[bytes, ...], StagedStep] = field(default_factory=dict)

    def outcome(self, cutoff_s: float) -> Outcome:
        """Returns what the configuration comes to; it is cut off once it is proven to take `cutoff_s` or longer."""
        config, parts = self.config, self.parts.values()
        bound_s = self.bound_s()
        if bound_s >= cutoff_s:
            return CutOff(config, bound_s, bound_s, by_memory=False)
        for part in parts:
            part.search.begin()
        begun = [part.search.first for part in parts]
        if any(one is None or one.value == inf for one in begun):
            return Refused(config, "no choice of shardings was found", by_memory=False)
        if cutoff_s < inf:
            quickest = self.staged([one.states for one in begun if one is not None])
            if quickest.is_slow(cutoff_s):
                return quickest.too_slow(bound_s)
        in_flight = min(config.micro_batches, config.stages)
        free = [part.free(in_flight) for part in parts]
        if not all(free):
            return Refused(config, "no choice of shardings was found", by_memory=False)
        within = [part.within(one) for part, one in zip(parts, free, strict=True) if one]
        plain: Outcome = Refused(
            config, "no choice of shardings that is predicted to fit was found", by_memory=True, free_bound_s=bound_s
        )
        known = [[one.states for one in free if one]]
        is_pressed = any(one is not other for one, other in zip(within, free, strict=False))
        if all(within):
            states = [one.states for one in within if one]
            plain = self.staged(states).outcome((bound_s, bound_s), cutoff_s, is_pressed=is_pressed)
            known += [states] if is_pressed else []
        if not self.setup.recomputes or config.remat or not bound_by_memory(plain):
            return plain
        found = [one for states in known for one in self.staged(states).recomputed(bound_s, cutoff_s)]
        return with_recomputed(plain, best_first(found), bound_s, cutoff_s)

    def bound_s(self) -> float:
        """Returns a lower bound on the step, which takes no search: that of this module's docstring."""
        ranks = [
            (self.parts[mesh].choice, model) for mesh, model in zip(self.config.rank_meshes, self.models(), strict=True)
        ]
        kinds = list(dict.fromkeys(ranks))
        least = [_least_s(choice, model) for choice, model in kinds]
        totals = [sum(one.values()) for one in least]
        if min(totals) <= 0.0:
            return 0.0
        rates = sum(1 / totals[kinds.index(rank)] for rank in ranks)
        nodes = least[0].keys()
        shares = (min(one.get(node, 0.0) / total for one, total in zip(least, totals, strict=True)) for node in nodes)
        return sum(shares) / rates

    def models(self) -> tuple[CostModel, ...]:
        """Returns the cost model of each rank's devices [ranks]."""
        return rank_models(self.cluster, [mesh_of_shape(mesh) for mesh in self.config.rank_meshes])

    def staged(self, states: Sequence[Ints]) -> StagedStep:
        """Returns the pipeline where the step is sharded by `states`, one for each distinct mesh."""
        key = tuple([one.tobytes() for one in states])
        if key not in self.found:
            self.found[key] = self._staged(states)
        return self.found[key]

    def _staged(self, states: Sequence[Ints]) -> StagedStep:
        config = self.config
        sharded = {mesh: part.sharded(one) for (mesh, part), one in zip(self.parts.items(), states, strict=True)}
        ranks = list(zip(config.rank_meshes, self.models(), strict=True))
        kinds = list(dict.fromkeys(ranks))
        group = tuple([kinds.index(rank) for rank in ranks])
        first = sharded[config.mesh]
        works = [sharded[mesh].seconds_on(model) for mesh, model in kinds]
        own = [sharded[mesh] for mesh, _ in kinds]
        unlike = UnlikeDevices(group, time_ratios(works, first.seconds), tuple([one.value_bytes for one in own]))
        sizes = [prod(mesh) for mesh in config.rank_meshes]
        link = link_between(self.cluster, sizes)
        cuts = StageEstimates(first, config.micro_batches, link, self.setup.tolerances, unlike, own)
        edges_s = [
            shares_of(self.parts[mesh].choice.problem, one)[1] for mesh, one in zip(self.parts, states, strict=True)
        ]
        share = {mesh: edges / sharded[mesh].total_s for mesh, edges in zip(self.parts, edges_s, strict=True)}

        def collectives_s(cut: StageEstimate) -> float:
            busy = enumerate(cut.times.each_busy_s(config.micro_batches))
            return sum(share[config.rank_meshes[stage % len(ranks)]] * one for stage, one in busy) / len(ranks)

        budgets = rank_budgets(self.cluster, sizes, self.setup.budget_bytes)
        limits = budgets, self.setup.budget_bytes, self.cluster.order
        return staged_step(config, self.setup.schedules, cuts, collectives_s, *limits)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Ranks of one mesh in one part of the cluster, the devices that they may begin with, and what these are like."""

    mesh: Shape
    model: CostModel
    starts: tuple[int, ...]
    budget_bytes: float


def _kinds(cluster: Cluster, meshes: Mapping[Shape, CostModel], budget_bytes: float) -> list[_Kind]:
    """Returns the kinds of ranks of some meshes, each with the model of the cluster's devices, whichever a rank has.

    Within a group of devices a rank lies in a node, or is whole nodes; between groups it may lie in any way.
    """
    found, every = list[_Kind](), range(cluster.num_devices)
    for mesh, common in meshes.items():
        size = prod(mesh)
        places: dict[Cluster, list[int]] = {}
        for first in every[: cluster.num_devices - size + 1]:
            before = [1] * first
            own = rank_clusters(cluster, (*before, size))[-1]
            if (cluster.groups and own == cluster) or is_placed(first, first + size, cluster.levels[-1].size):
                places.setdefault(own, []).append(first)
        for own, starts in places.items():
            model = common if own == cluster else group_target(own, mesh_of_shape(mesh)).model
            budget = rank_budgets(cluster, (*[1] * starts[0], size), budget_bytes)[-1]
            found.append(_Kind(mesh, model, tuple(starts), budget))
    return found


def rank_look(parts: Mapping[Shape, OnMesh], setup: Setup, cluster: Cluster, micro_batches: int) -> RankLook | None:
    """Returns the look at ranks of some meshes, those on which the step can be sharded; None where it can on none."""
    begun: dict[Shape, Sharded] = {}
    for mesh, part in parts.items():
        part.search.begin()
        if part.search.first is not None and part.search.first.value < inf:
            begun[mesh] = part.sharded(part.search.first.states)
    if not begun:
        return None
    kinds = _kinds(cluster, {mesh: one.model for mesh, one in begun.items()}, setup.budget_bytes)
    return RankLook(setup, cluster, kinds, [begun[kind.mesh] for kind in kinds], micro_batches)


@dataclass(eq=False)
class RankLook:
    """About what a step takes on ranks of some `kinds`, each by the number of its kind, in so many micro-batches.

    The step is `sharded` for each kind, without regard to memory but for what the screen counts.
    """

    setup: Setup
    cluster: Cluster
    kinds: Sequence[_Kind]
    sharded: Sequence[Sharded]
    micro_batches: int
    steps: dict[tuple[int, ...], float] = field(default_factory=dict)
    least: dict[tuple[int, ...], float] = field(default_factory=dict)
    on_links: dict[Line, StageEstimates] = field(default_factory=dict)

    def found(self, request: Screening, below_s: float) -> Found:
        """Returns configurations that may take less than `below_s`, each with about what it takes, best first."""
        known = self.looked_at(request, below_s)
        found = {self.config(ranks, request.remat): step_s for ranks, step_s in known.items()}
        return sorted([(step_s, config) for config, step_s in found.items() if config.meshes and step_s < below_s])

    @cached_property
    def unlike(self) -> UnlikeDevices:
        """How the kinds differ."""
        works = [one.seconds_on(kind.model) for one, kind in zip(self.sharded, self.kinds, strict=True)]
        sizes = tuple([one.value_bytes for one in self.sharded])
        return UnlikeDevices((), time_ratios(works, self.sharded[0].seconds), sizes)

    def estimates(self, sizes: Sequence[int]) -> StageEstimates:
        """Returns the cuts on ranks of so many devices, of which those on the same links share what is known."""
        link = link_between(self.cluster, sizes)
        if link not in self.on_links:
            own = self.sharded[0], self.micro_batches, link, self.setup.tolerances
            self.on_links[link] = StageEstimates(*own, self.unlike, self.sharded)
        return self.on_links[link]

    def config(self, ranks: Sequence[int], remat: float) -> PlanConfig:
        """Returns the configuration of ranks."""
        return on_meshes([self.kinds[one].mesh for one in ranks], self.micro_batches, remat)

    def step_s(self, ranks: tuple[int, ...], below_s: float) -> float:
        """Returns about what a step takes on ranks, or if that is not less than `below_s` something that is not."""
        if ranks in self.steps or self.least.get(ranks, 0.0) >= below_s:
            return self.steps.get(ranks, inf)
        cuts, every = self.estimates([prod(self.kinds[one].mesh) for one in ranks]).on(ranks), range(len(ranks))
        if ranks not in self.least:
            self.least[ranks] = cuts.least_s(every)
        if self.least[ranks] >= below_s:
            return inf
        step = staged_step(self.config(ranks, 0.0), self.schedules, cuts, lambda _: 0.0, (), 0.0)
        self.steps[ranks] = min((row[0] for row in (*step.timed, *step.ahead)), default=inf)
        return self.steps[ranks]

    @cached_property
    def schedules(self) -> Sequence[str]:
        """The schedules by which ranks are compared: those that do not run ahead, if there are any."""
        return [name for name in self.setup.schedules if not SCHEDULES[name].runs_ahead] or self.setup.schedules

    @cached_property
    def line(self) -> ScreenedLine:
        """The step on the line that a screen cuts."""
        count = self.cluster.num_devices
        kinds = [RankKind(prod(kind.mesh), kind.starts, kind.budget_bytes) for kind in self.kinds]
        halves = (count // 2, count // 2)
        inner, outer = link_between(self.cluster, (1, 1)), link_between(self.cluster, halves)
        nodes = Nodes(self.cluster.levels[-1].size, inner, outer)
        return ScreenedLine(self.estimates(halves), kinds, count, nodes)

    def looked_at(self, request: Screening, below_s: float) -> dict[tuple[int, ...], float]:
        """Returns about what a step takes on ranks that were looked at, infinite where that is not below `below_s`.

        These are what a screen finds, and from the best of that neighbours, as long as these are better; that is not
        done from what takes `below_s` or longer. Or what moves on single stages lead to.
        """
        recomputes, known = self.setup.recomputes, dict[tuple[int, ...], float]()

        def step_s(ranks: tuple[int, ...]) -> float:
            known[ranks] = self.step_s(ranks, below_s)
            return known[ranks]

        if request.by_moves:
            meshes = [kind.mesh for kind in self.kinds]
            for ranks in moved_ranks(self.line, meshes, request.stages, recomputes=recomputes):
                step_s(ranks)
            return known
        found = screen(self.line, request.stages, recomputes=recomputes)
        for start in sorted(found, key=step_s)[:STARTS]:
            best: tuple[int, ...] | None = start
            while best is not None and step_s(best) < below_s and len(known) < MOST_LOOKED:
                near = [one for one in neighbours(best, self.line.kinds) if len(one) in request.stages]
                better = min(near[: MOST_LOOKED - len(known)], key=step_s, default=best)
                best = better if step_s(better) < step_s(best) else None
        return known


def on_mesh(mesh: Shape, program: Program, cluster: Cluster, limits: Limits, budget_bytes: float) -> OnMesh:
    """Returns a step on the mesh of one of unlike ranks, of whose devices none may hold more than the budget."""
    own = mesh_of_shape(mesh)
    target = rank_target(cluster, own, max(1, cluster.num_devices // own.num_devices))
    choice, loop = begin_choice(program, target), accumulation_loop(program)
    assert loop is not None, "a pipeline has micro-batches"
    ones = rank_budgets(cluster, (1,) * cluster.num_devices, budget_bytes)
    return OnMesh(choice, Search(choice.problem, limits), loop, sum(ones) / own.num_devices)


def _least_s(choice: Choice, model: CostModel) -> dict[tuple[str, int], float]:
    """Returns the least seconds of each node, by kind and number, on devices of a model as quick as its own or more."""
    ratio = 1.0 if model == choice.model else least_time_ratio(model, choice.model)
    problem = choice.problem
    least = [float(table.min(initial=inf)) for table in problem.tables]
    return {
        (node.kind, node.number): ratio * least[table]
        for node, table in zip(choice.nodes, problem.node_table.tolist(), strict=True)
    }
