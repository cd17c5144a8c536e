"""What a sharded step comes to when it is cut in stages, without making their programs.

It is cut along a line as well as can be, in time and memory.

The figures are of the plan: an op takes what it takes as sharded, collectives and all, and a value is as large as its
part on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.ir.cluster.hardware import Line as Link
from rhino.strategies.choice.sharding_plan_costs import Sharded
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.pipeline.split_backward_cost import split_backward_cost
from rhino.strategies.pipeline.stages.balance import awaited_nodes, leaves_idle, stage_times
from rhino.strategies.pipeline.stages.line import (
    Line,
    StageStretches,
    Stretches,
    crossing_cost,
    cut,
    least_limit,
    least_work,
    lines_of,
    on_devices,
    stretches,
)
from rhino.strategies.pipeline.stages.needs import StageNeeds, rank_peaks
from rhino.strategies.pipeline.stages.places import op_stages
from rhino.strategies.pipeline.stages.remat_steps import remat_steps
from rhino.strategies.pipeline.stages.stage_graph import UnlikeDevices, make_staging
from rhino.strategies.pipeline.stages.stage_problem import ROUNDING, RematSteps, StageProblem
from rhino.strategies.pipeline.stages.stage_remat import StageRemat, stage_remat
from rhino.strategies.pipeline.step_time import StageTimes, step_seconds
from rhino.strategies.structure.training_phases import TrainingPhases, parts_of

FITTINGS: Final = 4
"""How often a cut is corrected by what its programs are estimated to need."""


@dataclass(frozen=True, eq=False)
class StageEstimate:
    """A cut in stages: what they take, and what devices of each need, which is found out when it is first asked for.

    Shapes: `held_bytes` [stages], what devices hold as the cut counts it.
    """

    times: StageTimes
    held_bytes: Floats
    find_needs: Callable[[], tuple[StageNeeds, ...]]

    @cached_property
    def needs(self) -> tuple[StageNeeds, ...]:
        """What devices need of each stage [stages], each those of the stage's own mesh."""
        return self.find_needs()

    def peak_bytes(self, order: Order, limit_bytes: float = inf) -> tuple[float, ...]:
        """Returns what a device of each rank needs at most [ranks], as `rank_peaks` does."""
        first = [order.rank_of.index(rank) for rank in range(len(order.tasks))]
        return rank_peaks([self.needs[stage] for stage in first], order, limit_bytes)


class StageEstimates:
    """The cuts of a sharded step in any number of stages.

    They are those whose transfers cost least within a tolerance of the best balance. What the number does not change is
    found once. `link` is that between a stage and the next, and `unlike` says how the devices of ranks differ, if they
    do; where they have meshes of their own, `on_meshes` [groups] is the step as it is sharded there.
    """

    def __init__(
        self,
        sharded: Sharded,
        num_micro_batches: int,
        link: Link,
        tolerances: Sequence[float],
        unlike: UnlikeDevices | None = None,
        on_meshes: Sequence[Sharded] = (),
    ) -> None:
        plan, self.unlike = sharded.plan, unlike
        self.sharded, self.num_micro_batches, self.tolerances = sharded, num_micro_batches, sorted(tolerances)
        assert sharded.loop is not None, "a pipeline has micro-batches"
        parts = parts_of(plan.graph, sharded.loop, sharded.seconds)
        self.split = _split(sharded, parts)
        apart = split_backward_cost(plan, sharded.model, self.split)
        self.staging = make_staging(
            plan.graph,
            parts,
            1,
            num_micro_batches,
            value_bytes=sharded.value_bytes,
            link=link,
            split=self.split,
            apart=apart,
            unlike=unlike,
        )
        problem = self.staging.problem
        lines = [line for late in (problem.late, *problem.turns) for line in lines_of(replace(problem, late=late))]
        self.lines = [
            line for line in lines if line.back.any()
        ] or lines  # where there is a backward pass it is on the same devices
        self.link = link
        self.pieces = [_pieces(self.staging.problem, line) for line in self.lines]
        self.pieces_between: dict[frozenset[int], list[Stretches]] = {}
        self.on_meshes = tuple(dict.fromkeys(on_meshes)) or (sharded,)
        self.mesh_of = [self.on_meshes.index(one) for one in on_meshes]  # by group
        self.splits = [_split(one, parts) for one in self.on_meshes] if on_meshes else [self.split]
        self.temporaries: list[dict[object, float]] = [{} for _ in self.on_meshes]
        self.found: dict[tuple[int, tuple[int, ...]], tuple[StageEstimate, ...]] = {}
        self.steps: dict[int, RematSteps] = {}

    def cuts(self, rank_of: Sequence[int]) -> tuple[StageEstimate, ...]:
        """Returns the cuts in stages on ranks `rank_of` [stages] that are the best within some tolerance.

        The most even comes first.
        """
        problem = self._problem(rank_of)
        key = problem.num_stages, problem.group
        if key not in self.found:
            self.found[key] = tuple([self._estimate(problem, stage) for stage in self._best_on_lines(problem)])
        return self.found[key]

    def least_s(self, rank_of: Sequence[int]) -> float:
        """Returns what a step takes at least in stages on ranks `rank_of` [stages]: as long as its largest stage."""
        staging = self.staging.problem
        problem = replace(staging, num_stages=len(rank_of), group=self._group(rank_of))
        most_s = min(least_work(problem, self._unpinned(problem, one)) for one in self.pieces)
        return self.num_micro_batches * most_s * (1 - ROUNDING)

    def fitted(self, order: Order, budgets: Sequence[float]) -> StageEstimate | None:
        """Returns the cut by which a step takes least whose stages recompute what their ranks' budgets ask for.

        There is a stage on each rank. What a cut counts leaves out temporaries, and what comes from other stages: from
        cut to cut budgets are corrected by what these take. None where no cut was found that fits.
        """
        problem, limits = self._problem(order.rank_of), np.array(budgets)
        problem = replace(problem, remat=self.remat_steps(problem.num_stages))
        own = limits
        for _ in range(FITTINGS):
            if (own <= 0).any():
                return None
            fitting = replace(problem, budget_bytes=tuple(own.tolist()))
            cuts = [self._estimate(fitting, stage) for stage in self._best_on_lines(fitting)]
            if not cuts:
                return None
            best = min(cuts, key=lambda one: step_seconds(order, one.times))
            peaks = np.array(best.peak_bytes(order))
            if (peaks <= limits).all():
                return best
            own = np.minimum(own, limits - (peaks - best.held_bytes))
        return None

    def on(self, group: tuple[int, ...]) -> StageEstimates:
        """Returns the cuts on ranks of these groups [ranks], which share what is known of all cuts."""
        assert self.unlike is not None, "there are groups where devices are unlike"
        found = copy(self)
        found.unlike = replace(self.unlike, group=group)
        return found

    def remat_steps(self, num_stages: int) -> RematSteps:
        """Returns what may be recomputed in so many stages."""
        if num_stages not in self.steps:
            in_flight = min(num_stages, self.num_micro_batches)
            self.steps[num_stages] = remat_steps(self.staging, self.split, in_flight)
        return self.steps[num_stages]

    def _problem(self, rank_of: Sequence[int]) -> StageProblem:
        group = self._group(rank_of)
        nets = self.staging.nets_between(set(group), self.link)
        return replace(self.staging.problem, num_stages=len(rank_of), group=group, nets=nets)

    def _group(self, rank_of: Sequence[int]) -> tuple[int, ...]:
        return tuple([self.unlike.group[rank] for rank in rank_of]) if self.unlike else ()

    def _unpinned(self, problem: StageProblem, parts: Stretches) -> StageStretches:
        """Returns what the stretches of a line take on the devices of a problem, where any may be any stage."""
        return on_devices(problem, replace(parts, pins=parts.pins * problem.num_stages))

    def _pieces_of(self, problem: StageProblem) -> list[Stretches]:
        """Returns what the stretches of all lines take where what is sent is that of the problem."""
        if problem.nets is self.staging.problem.nets:
            return self.pieces
        groups = frozenset(problem.group)
        if groups not in self.pieces_between:
            self.pieces_between[groups] = [replace(one, cost=crossing_cost(problem, one.line)) for one in self.pieces]
        return self.pieces_between[groups]

    def _estimate(self, problem: StageProblem, stage: Ints) -> StageEstimate:
        """Returns what stages take and need, where `stage` [nodes] are virtual stages."""
        parts, num_stages, device = self.staging.parts, problem.num_stages, problem.device(stage)
        costly = np.flatnonzero(parts.apply & (parts.seconds != 0))  # each of which is of a node
        apply_s, on = np.zeros(num_stages), device[self.staging.node[costly]]
        seconds = parts.seconds[costly]
        if self.unlike:
            seconds = seconds * self.unlike.time_ratio[np.array(problem.group)[on], costly]
        np.add.at(apply_s, on, seconds)
        # Before the loop, and what costs nothing.
        once_s = self.sharded.total_s - self.num_micro_batches * float(problem.work.sum()) - float(apply_s.sum())
        awaited, remat = awaited_nodes(problem, stage), stage_remat(problem, device)
        times = replace(
            stage_times(problem, stage, awaited, remat.added_s),
            apply_s=tuple((apply_s + max(0.0, once_s) / num_stages).tolist()),
        )
        return StageEstimate(times, remat.held_bytes, lambda: self._needs(problem, stage, awaited, remat))

    def _needs(self, problem: StageProblem, stage: Ints, awaited: Bools, remat: StageRemat) -> tuple[StageNeeds, ...]:
        """Returns what devices need of each stage [stages]."""
        by_op = op_stages(replace(self.staging, problem=problem), stage)
        awaited_ops = (self.staging.node >= 0) & awaited[self.staging.node]
        needs = [
            StageNeeds(
                sharded.plan,
                split,
                by_op,
                awaited_ops,
                kept_bytes=tuple(problem.kept_memory(problem.device(stage)).tolist()),
                freed_bytes=tuple(remat.freed_bytes.tolist()),
                again_bytes=tuple(remat.alive_bytes.tolist()),
                temporaries=temporaries,
            )
            for sharded, split, temporaries in zip(self.on_meshes, self.splits, self.temporaries, strict=True)
        ]
        of_stages = [self.mesh_of[problem.group_of(one)] if self.mesh_of else 0 for one in range(problem.num_stages)]
        return tuple([needs[mesh] for mesh in of_stages])

    def _best_on_lines(self, problem: StageProblem) -> Iterator[Ints]:
        """Yields each node's virtual stage in the best cut of a line within each tolerance, in its best balance.

        A wider one cannot pay where all that it moves less in a step takes no longer than what its largest stage has
        more to do. That is known before it is cut: it has more to do than what a narrower one allows.
        """
        pieces = [self._unpinned(problem, one) for one in self._pieces_of(problem)]
        least_s = min(least_work(problem, parts) for parts in pieces)
        if least_s == np.inf:
            return
        taken: list[tuple[float, float]] = []

        def pays(moved: float, work_s: float) -> bool:
            return all(other - moved > problem.num_micro_batches * (work_s - other_s) for other, other_s in taken)

        limit_s = least_s
        for tolerance in self.tolerances:
            if not pays(0.0, limit_s):
                return
            limit_s = least_s * (1 + tolerance)
            found = [
                (one[0], number)
                for number, parts in enumerate(pieces)
                if (one := cut(problem, parts, limit_s)) is not None
            ]
            moved, number = min(found)
            work_s = least_limit(problem, pieces[number], limit_s, moved)
            if pays(moved, work_s):
                best = cut(problem, pieces[number], work_s)
                assert best is not None, "the least limit is one under which a cut exists"
                stage = self.lines[number].stages(problem, best[1])
                if taken and leaves_idle(problem, stage):
                    return
                yield stage
                taken.append((moved, work_s))


def _split(sharded: Sharded, parts: TrainingPhases) -> SplitMicroBatch:
    """Returns what the forward pass stashes for the backward pass where the step is so sharded."""
    graph = sharded.plan.graph
    return SplitMicroBatch(graph, parts, sharded.value_bytes * graph.copies(), sharded.is_alone)


def _pieces(problem: StageProblem, line: Line) -> Stretches:
    """Returns the stretches of a line, which nothing is pinned to."""
    found = stretches(problem, line)
    assert found is not None, "only pins go against a line"
    return found
