"""Evaluate configurations: what each comes to, by planning its shardings and estimating its stages.

Each is planned on the mesh of its ranks (`LikeRanks`, `UnlikeRanks`), in the orders in which these may take devices,
and in both forms in which its step can be stored. Steps are made and read once for all that have them in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf, prod
from pathlib import Path
from typing import Final

from rhino.ir.cluster.cluster import Cluster, load_cluster, mesh_axes
from rhino.ir.cluster.groups import rank_clusters
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.cluster.placement import placements
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.program.program import Program
from rhino.passes.planner.evaluate_ranks import OnMesh, RankLook, UnlikeRanks, on_mesh, rank_look
from rhino.passes.planner.like_ranks import LikeRanks, effective_ranks
from rhino.passes.planner.search_space import arithmetic_s
from rhino.passes.planner.setup import OFFLOAD_OPTION, Setup
from rhino.passes.planner.staged_outcomes import best_placed
from rhino.passes.planner.step_programs import Key, StepPrograms
from rhino.passes.planner.whole_loops import WholeLoops
from rhino.passes.sharding.planning_pass import Target, rank_target
from rhino.strategies.autotune.base import (
    ABOUT,
    CutOff,
    Estimate,
    Found,
    Look,
    Outcome,
    PlanConfig,
    Refused,
    Screening,
)
from rhino.strategies.solver.search import Limits

LIMITS: Final = Limits(prices=12, gap=1e-2, exact_below_states=0, rounds=(4,))
"""How far shardings are searched for while configurations are compared: where memory binds, to about a hundredth."""

SCREENED: Final = 4
"""For how many stages loops over layers are cut where ranks of unlike meshes are looked for.

In more pieces shardings are long to find: of a GNMT in 16 pieces ten times as long as in 4 (2026-11-27).
"""


@dataclass(eq=False)
class Evaluator:
    """Evaluates configurations one after the other, and keeps what several have in common.

    In `folder` it is kept for other processes too.
    """

    setup: Setup
    folder: Path | None = None
    limits: Limits = LIMITS
    cluster: Cluster = field(init=False)
    steps: StepPrograms = field(init=False)
    whole_loops: WholeLoops = field(init=False)
    kept: tuple[Key, dict[tuple[int, ...], tuple[tuple[ir.Module, Program], OnMesh]]] | None = None
    """The step that was last asked for on ranks of unlike meshes, with what is known of it on each."""
    look: tuple[tuple[Key, tuple[tuple[int, ...], ...]], RankLook | None] | None = None
    """The last look at ranks of unlike meshes: of which step, and on which meshes."""

    def __post_init__(self) -> None:
        self.cluster = load_cluster(self.setup.cluster)
        self.steps = StepPrograms(self.setup, self.folder)
        self.whole_loops = WholeLoops(self.setup.schedules, self.limits)

    @property
    def context(self) -> ir.Context:
        """The context of all steps."""
        return self.steps.context

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
                    _, whole = self.steps.program(replace(config, stages=1), mesh_of_shape(config.mesh))
                    least_s = arithmetic_s(whole.graph, self.cluster)
                    return CutOff(config, least_s, least_s, by_memory=False, estimated_s=about_s)
                step = self.steps.program(config, mesh_of_shape(config.mesh))
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
        if not self.steps.has_layers or config.meshes or config.replicas > 1 or self.setup.options.get(OFFLOAD_OPTION):
            return 0.0
        least_s = self.whole_loops.least_s(config)
        if least_s * (1 - ABOUT) >= cutoff_s:
            return least_s
        ranks = {
            target: max(effective_ranks(config, target, one) for one in clusters)
            for target, clusters in self.placements(config).items()
        }
        try:
            _, program = self.steps.program(replace(config, stages=1), mesh_of_shape(config.mesh))
            return self.whole_loops.about_s(config, program, ranks)
        except RhinoError:  # which planning tells
            return 0.0

    def on_target(
        self,
        config: PlanConfig,
        step: tuple[ir.Module, Program],
        target: Target,
        clusters: Sequence[Cluster],
        cutoff_s: float,
    ) -> Outcome:
        """Returns the outcome of a configuration whose ranks take devices as in one of some `clusters`."""

        def planned(program: Program, cutoff_s: float) -> Outcome:
            ranks = LikeRanks(config, self.setup, self.cluster, self.limits, program, target, clusters, cutoff_s)
            return ranks.outcome()

        plain = planned(step[1], cutoff_s)
        viewed = self.steps.viewed(step[0], target)
        if viewed is None:
            return plain
        limit_s = min(cutoff_s, plain.step_s) if isinstance(plain, Estimate) else cutoff_s
        return _best(plain, planned(viewed[1], limit_s))

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
            _, program = self.steps.program(config, mesh_of_shape(config.mesh))
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
        key = self.steps.key_of(config)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, {}
        if mesh not in self.kept[1]:
            step = self.steps.program(config, mesh_of_shape(mesh))
            self.kept[1][mesh] = step, on_mesh(mesh, step[1], self.cluster, self.limits, self.setup.budget_bytes)
        return self.kept[1][mesh][1]

    def screened(self, request: Screening, cutoff_s: float) -> Found:
        """Returns configurations whose ranks have unlike meshes, and about what each takes, if less than `cutoff_s`.

        Loops over layers are cut as for so many equal stages as `SCREENED`.
        """
        config = PlanConfig(SCREENED, (1,), request.micro_batches, request.remat)
        key = self.steps.key_of(config), request.meshes
        if self.look is None or self.look[0] != key:
            parts: dict[tuple[int, ...], OnMesh] = {}
            with self.context:
                for mesh in request.meshes:
                    with suppress(RhinoError):  # constraints may not hold on a mesh
                        parts[mesh] = self.on_mesh(config, mesh)
                self.look = key, rank_look(parts, self.setup, self.cluster, request.micro_batches)
        return self.look[1].found(request, cutoff_s) if self.look[1] else []


def _best(plain: Outcome, viewed: Outcome) -> Outcome:
    """Returns the better outcome of a configuration whose step can be stored in two ways, with bounds on both."""
    if isinstance(viewed, Refused):
        return plain
    if isinstance(plain, Refused):
        return viewed
    is_viewed = isinstance(viewed, Estimate) or (isinstance(plain, CutOff) and viewed.bound_s < plain.bound_s)
    bounds = min(plain.bound_s, viewed.bound_s), min(plain.free_bound_s, viewed.free_bound_s)
    return replace(viewed if is_viewed else plain, bound_s=bounds[0], free_bound_s=bounds[1])
