"""What a sharded step comes to as a pipeline: by each schedule in time and memory, and the best that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.units import format_bytes
from rhino.strategies.autotune.base import (
    NEARLY,
    NEVER_RECOMPUTED,
    CutOff,
    Estimate,
    Outcome,
    PlanConfig,
    Refused,
    may_fit,
)
from rhino.strategies.pipeline.schedules import SCHEDULES, make_order
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule
from rhino.strategies.pipeline.stages.estimate import StageEstimate, StageEstimates
from rhino.strategies.pipeline.step_time import step_seconds
from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.problem import Problem

Timed: TypeAlias = list[tuple[float, str, Order, StageEstimate]]
"""What a pipeline takes by some schedules, best first.

The seconds of a step, the schedule, its tasks, and what its stages come to.
"""


@dataclass(frozen=True, slots=True, eq=False)
class StagedStep:
    """A sharded step as the pipeline of a configuration: its cuts, and what it takes by each schedule.

    Schedules that run `ahead` are apart from the others. There are none where the step cannot be cut. Configurations
    are compared by schedules that do not run ahead. What runs ahead needs so much memory that most configurations it
    would keep in the race are too large in the end. If only schedules that run ahead are requested, they are not apart.

    `collectives_s` tells the seconds of collectives of a cut, in the mean of ranks. Devices of ranks may hold `budgets`
    [ranks], none more than `budget_bytes`. Ranks take devices in `device_order`, as `Estimate` says.
    """

    config: PlanConfig
    cuts: StageEstimates
    timed: Timed
    ahead: Timed
    collectives_s: Callable[[StageEstimate], float]
    budgets: tuple[float, ...]
    budget_bytes: float
    device_order: tuple[int, ...] = ()

    def fits(self, peak_bytes: Sequence[float]) -> bool:
        """Says whether devices hold these peaks [ranks]."""
        return all(peak <= own for peak, own in zip(peak_bytes, self.budgets, strict=True))

    def is_slow(self, cutoff_s: float) -> bool:
        """Says whether the pipeline takes `cutoff_s` or longer by every schedule that may be used.

        A schedule that runs ahead may not be used if it needs too much memory.
        """
        if not self.timed or self.timed[0][0] < cutoff_s:
            return False
        quick = [(order, cut) for step_s, _, order, cut in self.ahead if step_s < cutoff_s]
        most = NEARLY * self.budget_bytes
        return not any(self.fits(cut.peak_bytes(order, most)) for order, cut in quick)

    def estimates(self, timed: Timed, bounds: tuple[float, float]) -> list[Estimate]:
        """Returns what the configuration comes to by each schedule, best first, without what that needs."""
        found = []
        for step_s, name, _, cut in timed:
            collectives_s = self.collectives_s(cut)
            compute_s = cut.times.busy_s(self.config.micro_batches) / self.config.stages - collectives_s
            figures = step_s, *bounds, compute_s, collectives_s
            found.append(Estimate(self.config, name, *figures, (), device_order=self.device_order))
        return found

    def too_slow(self, bound_s: float) -> CutOff:
        """Returns the outcome of the configuration where it takes too long, whatever it needs."""
        plans = tuple(self.estimates(self.timed, (bound_s, bound_s)))
        return CutOff(self.config, bound_s, bound_s, by_memory=False, estimated_s=self.timed[0][0], plans=plans)

    def outcome(self, bounds: tuple[float, float], cutoff_s: float, *, is_pressed: bool = False) -> Outcome:
        """Returns what the configuration comes to, where its step is to take less than `cutoff_s`.

        With `is_pressed` memory slows the step down, whatever the bounds say.
        """
        is_for_ahead = self.timed and self.timed[0][0] >= cutoff_s and not self.is_slow(cutoff_s)
        found = self._of_schedules(bounds, inf if is_for_ahead else cutoff_s)
        if isinstance(found, Estimate):
            return replace(self._with_ahead(found, bounds), is_pressed=is_pressed)
        return found

    def _of_schedules(self, bounds: tuple[float, float], cutoff_s: float) -> Outcome:
        """Returns what the configuration comes to by the best of the schedules that fit.

        Most of the work is to find the memory that a schedule needs. It is not done where the step takes `cutoff_s` or
        longer.
        """
        config, timed = self.config, self.timed
        if not timed:
            return Refused(config, f"it cannot be cut in {config.stages} stages", by_memory=False)
        found = self.estimates(timed, bounds)
        quick = [one for one in timed if one[0] < cutoff_s]
        for number, (*_, order, cut) in enumerate(quick):
            found[number] = replace(found[number], peak_bytes=cut.peak_bytes(order, NEARLY * self.budget_bytes))
            if self.fits(found[number].peak_bytes):
                others = tuple([one for one in found if one is not found[number] and may_fit(one, self.budget_bytes)])
                return replace(found[number], others=others)
        needed = min((max(one.peak_bytes) for one in found[: len(quick)]), default=0.0)
        why = f"its largest stage needs about {format_bytes(needed)} per device"
        nearly = tuple([one for one in found if may_fit(one, self.budget_bytes)])
        if len(quick) == len(timed):
            return Refused(config, why, True, bounds[1], needed, nearly)
        if quick and needed * NEVER_RECOMPUTED <= self.budget_bytes:
            # What others need is not known, so that more micro-batches may fit at once.
            return Refused(config, f"{why} by a schedule that is quick enough", True, bounds[1], nearly=nearly)
        estimated_s = timed[len(quick)][0]  # by a schedule that may fit: no quicker one does, whatever is kept
        return CutOff(config, *bounds, by_memory=bounds[0] > bounds[1], estimated_s=estimated_s, plans=nearly)

    def _with_ahead(self, plain: Estimate, bounds: tuple[float, float]) -> Estimate:
        """Returns the estimate of the configuration with what schedules that run ahead come to.

        The best one that is faster and fits is its `ahead`; the rest join its `others`. Those are made where the
        programs of better ones come to more than they are estimated at.
        """
        others = list(plain.others)
        for one, (_, _, order, cut) in zip(self.estimates(self.ahead, bounds), self.ahead, strict=True):
            if plain.ahead is None and one.step_s < plain.step_s:
                estimate = replace(one, peak_bytes=cut.peak_bytes(order, NEARLY * self.budget_bytes))
                if self.fits(estimate.peak_bytes):
                    plain = replace(plain, ahead=estimate)
                    continue
            else:
                estimate = one
            if may_fit(estimate, self.budget_bytes):
                others.append(estimate)
        return replace(plain, others=tuple(sorted(others, key=lambda one: one.step_s)))

    def recomputed(self, bound_s: float, cutoff_s: float) -> Iterator[Estimate]:
        """Yields what the step comes to by each schedule where stages recompute what their memory asks for.

        Where it takes `cutoff_s` or longer whatever they recompute, nothing is yielded.
        """
        config = self.config
        for step_s, name, order, _ in self.timed:
            if step_s >= cutoff_s or SCHEDULES[name].stages_per_rank > 1:
                continue
            if (cut := self.cuts.fitted(order, self.budgets)) is not None:
                collectives_s = self.collectives_s(cut)
                compute_s = cut.times.busy_s(config.micro_batches) / config.stages - collectives_s
                yield Estimate(
                    config,
                    name,
                    step_seconds(order, cut.times),
                    bound_s,
                    bound_s,
                    compute_s,
                    collectives_s,
                    cut.peak_bytes(order),
                    recomputes=True,
                    is_pressed=True,
                    device_order=self.device_order,
                )


@dataclass(frozen=True, slots=True)
class PlacedSteps:
    """A sharded step as a pipeline on ranks that take devices in one of several orders; each is a step [orders]."""

    steps: tuple[StagedStep, ...]

    def is_slow(self, cutoff_s: float) -> bool:
        """Says whether the pipeline is slow in every order, as `StagedStep.is_slow` does."""
        return all(step.is_slow(cutoff_s) for step in self.steps)

    def too_slow(self, bound_s: float) -> Outcome:
        """Returns the outcome of the configuration where it takes too long, whatever it needs."""
        return best_placed([step.too_slow(bound_s) for step in self.steps])

    def outcome(self, bounds: tuple[float, float], cutoff_s: float) -> Outcome:
        """Returns what the configuration comes to, where its step is to take less than `cutoff_s`."""
        return best_placed([step.outcome(bounds, cutoff_s) for step in self.steps])

    def recomputed(self, bound_s: float, cutoff_s: float) -> Iterator[Estimate]:
        """Yields what `StagedStep.recomputed` does, of each order."""
        for step in self.steps:
            yield from step.recomputed(bound_s, cutoff_s)


def best_placed(found: Sequence[Outcome]) -> Outcome:
    """Returns what a configuration comes to whose ranks may take devices in several orders [orders].

    The best plans of the other orders are among its `others`, and bounds hold for plans in any order.
    """
    if len(found) == 1:
        return found[0]
    left = [one for one in found if not isinstance(one, Refused)]
    if not left:
        refused = [one for one in found if isinstance(one, Refused)]
        least = min(refused, key=lambda one: (not one.by_memory, one.least_bytes or inf))
        nearly = best_first([plan for one in refused for plan in one.nearly])
        return replace(least, free_bound_s=min(one.free_bound_s for one in refused), nearly=nearly)
    bound_s, free_bound_s = min(one.bound_s for one in left), min(one.free_bound_s for one in left)
    best, *rest = sorted(left, key=lambda one: (isinstance(one, CutOff), one.step_s))
    if isinstance(best, CutOff):
        plans = best_first([plan for one in left if isinstance(one, CutOff) for plan in one.plans])
        # A bound of one order alone is what the others are taken not to come below.
        estimated_s = best.step_s if best.step_s > bound_s else 0.0
        return replace(best, bound_s=bound_s, free_bound_s=free_bound_s, estimated_s=estimated_s, plans=plans)
    estimates = [best, *(one for one in rest if isinstance(one, Estimate))]
    others = [plan for one in estimates for plan in one.others]
    others += [replace(one, others=(), ahead=None) for one in estimates[1:]]
    ahead = best_first([one.ahead for one in estimates if one.ahead])
    is_quick = bool(ahead) and ahead[0].step_s < best.step_s
    others += ahead[is_quick:]
    return replace(
        best,
        bound_s=bound_s,
        free_bound_s=free_bound_s,
        ahead=ahead[0] if is_quick else None,
        others=best_first(others),
    )


def staged_step(
    config: PlanConfig,
    schedules: Sequence[str],
    cuts: StageEstimates,
    collectives_s: Callable[[StageEstimate], float],
    budgets: tuple[float, ...],
    budget_bytes: float,
    device_order: tuple[int, ...] = (),
) -> StagedStep:
    """Returns a sharded step as a pipeline, and its seconds by each of `schedules`."""
    found: Timed = []
    ahead: Timed = []
    is_apart = any(not SCHEDULES[name].runs_ahead for name in schedules)
    for name in schedules:
        if pipeline := pipeline_of(SCHEDULES[name], config):
            order = make_order(name, pipeline)
            every = cuts.cuts(order.rank_of)
            best = min(((step_seconds(order, cut.times), name, order, cut) for cut in every), key=_seconds)
            (ahead if is_apart and SCHEDULES[name].runs_ahead else found).append(best)
    timed = sorted(found, key=_seconds), sorted(ahead, key=_seconds)
    return StagedStep(config, cuts, *timed, collectives_s, budgets, budget_bytes, device_order)


def _seconds(timed: tuple[float, str, Order, StageEstimate]) -> float:
    return timed[0]


def pipeline_of(schedule: Schedule, config: PlanConfig) -> Pipeline | None:
    """Returns the pipeline that a schedule runs for a configuration; None where it takes none."""
    chunks = schedule.stages_per_rank
    if chunks > 1 and config.micro_batches % config.stages:
        return None
    return Pipeline(config.stages * chunks, config.micro_batches, chunks)


def with_recomputed(plain: Outcome, found: Sequence[Estimate], bound_s: float, cutoff_s: float) -> Outcome:
    """Returns what a configuration comes to whose stages may recompute what their memory asks for.

    `found` are such plans, best first; `bound_s` is a bound on all of them, and `plain` what memory binds without.
    """
    best = next(iter(found), None)
    if isinstance(plain, Estimate):
        if best is None or plain.step_s <= best.step_s:
            return replace(plain, bound_s=bound_s, others=best_first([*plain.others, *found]), is_pressed=True)
        others = [*found[1:], *plain.others, replace(plain, others=(), ahead=None)]
        ahead = plain.ahead if plain.ahead and plain.ahead.step_s < best.step_s else None
        return replace(best, others=best_first(others), ahead=ahead)
    if best is not None and best.step_s < cutoff_s:
        nearly = plain.nearly if isinstance(plain, Refused) else ()
        return replace(best, others=best_first([*found[1:], *nearly]))
    if isinstance(plain, CutOff):
        estimated_s = min([max(plain.bound_s, plain.estimated_s), *(one.step_s for one in found[:1])])
        plans = best_first([*plain.plans, *found])
        return replace(plain, bound_s=bound_s, estimated_s=estimated_s, plans=plans)
    if best is not None:
        return CutOff(plain.config, bound_s, bound_s, by_memory=True, estimated_s=best.step_s, plans=tuple(found))
    return plain


def best_first(plans: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Returns plans, the fastest first."""
    return tuple(sorted(plans, key=lambda one: one.step_s))


def shares_of(problem: Problem, states: Ints) -> tuple[float, float]:
    """Returns the seconds of ops and of ways between them."""
    nodes = float(problem.node_entries(problem.node_table, np.arange(problem.num_nodes), states).sum())
    return nodes, problem.cost(states) - nodes


def heard(found: Answer | Infeasible | Unsolved) -> Answer | Infeasible | Unsolved:
    """Returns what the search of shardings came to.

    If it was interrupted it made do with what it had: the search of configurations ends, too.
    """
    if isinstance(found, Answer) and found.is_interrupted:
        raise KeyboardInterrupt
    return found
