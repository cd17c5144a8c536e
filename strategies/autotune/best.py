"""The best of all: what the other strategies request, `rhino`'s families last, then bottlenecks and kin of the best.

Nothing is evaluated twice, and configurations are cut off at the best of all. That does not keep a strategy from its
way, and each may have as many configurations evaluated as by itself (`--candidates`), so that the answer is never worse
than any other's: `aceso`, which goes on from plans that are not the best, comes first and sees what it would see by
itself; the others look at no less if more is cut off. What nobody else would ask for is looked at while there were
fewer configurations than that in all.

*Kin* of a configuration has a rank's devices in one row, its axes the other way round, or on three axes. That seldom
changes much, so families of kin are walked only where the best configuration of as many stages comes near the best of
all, and those of kin's kin where kin is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log2, prod
from typing import Final

from rhino.strategies.autotune import aceso, families, tap
from rhino.strategies.autotune.base import (
    ROUND,
    CutOff,
    Estimate,
    Evaluations,
    PlanConfig,
    Screening,
    Space,
    Strategy,
)

STARTS: Final = 3
"""Families of which the best member is a start."""

FAILS: Final = 8
"""Configurations that may be evaluated in a row from a start without a better one."""

NEAR: Final = 1.05
"""Times the best step up to which the kin of a configuration is evaluated.

On four devices of a machine of eight V100s, one row was up to 2.1 % faster than 2x2.
"""

NEAR_ENOUGH: Final = 1.02
"""Times the best step up to which what a screen has found is evaluated."""

MOST_UNLIKE: Final = 2 * ROUND
"""How many configurations are evaluated that a screen has found."""

UNLIKE_FAMILIES: Final = 2
"""Of how many of them the families are walked."""

MOST_STAGES: Final = 6
"""How many numbers of ranks of unlike meshes are looked at."""

MOST_SHAPES: Final = 8
"""How many meshes ranks of unlike meshes may have: the step is sharded once for each."""


def search(trials: Evaluations) -> None:
    """Asks for what all strategies ask for."""
    most = trials.space.most
    with trials.allowing(most):
        aceso.STRATEGY.run(trials)
    with trials.requested_by(STRATEGY.name), trials.allowing(_rest(trials)):
        _in_one_part(trials)
    for strategy in (tap.STRATEGY, families.STRATEGY):
        with trials.allowing(most):
            strategy.run(trials)
    with trials.requested_by(aceso.STRATEGY.name), trials.allowing(_rest(trials)):
        if starts := _starts(trials):
            aceso.alleviate(trials, starts, FAILS)
    with trials.requested_by(STRATEGY.name), trials.allowing(_rest(trials)):
        walked = {PlanConfig(stages, mesh, 0) for stages, meshes in trials.space.meshes.items() for mesh in meshes}
        while kin := _kin(trials, walked):
            families.walk(trials, families.of_meshes(kin))
        _on_unlike_ranks(trials)


def _on_unlike_ranks(trials: Evaluations) -> None:
    """Asks for ranks of unlike meshes that a screen finds, and then for the families of the best of them."""
    ranked, space = trials.explored.ranked, trials.space
    known = [one for one in trials.known.values() if isinstance(one, Estimate | CutOff) and one.config.stages > 1]
    known.sort(key=lambda one: (_estimated_s(one), one.config))
    numbers = [one.config.micro_batches for one in known] + [space.micro_batches[space.seed(2)]]
    number = next((number for number in numbers if number > 1), 0)
    if trials.screen is None or not space.unlike_stages or not number or (ranked and _fills(ranked[0], known, number)):
        return
    request = Screening(_near_shapes(space, known), _near_stages(space, known), number, min(space.remats))
    (found,) = trials.screen([request], NEAR_ENOUGH * trials.explored.best_s)
    tried = [config for _, config in found[:MOST_UNLIKE]]
    outcomes = [one for one in trials.outcomes(tried) if isinstance(one, Estimate | CutOff)]
    outcomes.sort(key=lambda one: (one.step_s, one.config))
    near = [one.config.family for one in outcomes if one.step_s < NEAR * trials.explored.best_s]
    families.walk(trials, list(dict.fromkeys(near))[:UNLIKE_FAMILIES])


def _estimated_s(one: Estimate | CutOff) -> float:
    """Returns what a pipeline is estimated to take by any schedule, infinite where that was not told."""
    if isinstance(one, Estimate):
        return one.quickest.step_s
    return one.step_s if one.estimated_s else inf


def _fills(best: Estimate, known: Sequence[Estimate | CutOff], number: int) -> bool:
    """Says whether the best plan has no time to spare for the filling of a pipeline.

    That takes a micro-batch's time, of twice as many as were looked at, beside the least that any plan computes.
    """
    plans = [one for other in known for one in ([other] if isinstance(other, Estimate) else other.plans[:1])]
    compute_s = min(one.compute_s for one in (best, *plans))
    return not best.is_bound_by_memory and best.step_s <= compute_s * (1 + 1 / (2 * number))


def _near_shapes(space: Space, known: Sequence[Estimate | CutOff]) -> tuple[tuple[int, ...], ...]:
    """Returns the meshes that ranks of unlike meshes may have, of many those about as large as the best pipeline's."""
    wanted = prod(known[0].config.mesh) if known else max(map(prod, space.rank_shapes)) // 2
    nearest = sorted(space.rank_shapes, key=lambda mesh: (abs(log2(prod(mesh) / wanted)), mesh))
    return tuple(sorted(nearest[:MOST_SHAPES]))


def _near_stages(space: Space, known: Sequence[Estimate | CutOff]) -> tuple[int, ...]:
    """Returns how many ranks of unlike meshes there may be, of many numbers those about that of the best pipeline."""
    wanted = known[0].config.stages if known else 2
    nearest = sorted(space.unlike_stages, key=lambda stages: (abs(log2(stages / wanted)), stages))
    return tuple(sorted(nearest[:MOST_STAGES]))


def _rest(trials: Evaluations) -> int:
    return max(0, trials.space.most - len(trials.explored.outcomes))


STRATEGY: Final = Strategy(
    "best", "all of them, then the bottlenecks of the best plans; never worse than any other", search
)


def _in_one_part(trials: Evaluations) -> None:
    """Asks for one stage whose batch is in one part, where nothing has fit.

    Strategies ask for more micro-batches where memory binds, until no more configurations may be evaluated. But what is
    summed up over them is memory, too, which one part does without: where most of a device is parameters, that is what
    fits.
    """
    space = trials.space
    meshes = space.meshes.get(1, ())
    kin = tuple(dict.fromkeys(one.mesh for mesh in meshes for one in space.kin(PlanConfig(1, mesh, 1))))
    for remat in space.remats if space.micro_batches[0] == 1 and space.may_hold(1, 1, 1.0) else ():
        for tried in (meshes, kin):
            if not trials.explored.ranked:
                trials.outcomes([PlanConfig(1, mesh, 1, remat) for mesh in tried])


def _starts(trials: Evaluations) -> list[PlanConfig]:
    """Returns the best configuration of each of the best families."""
    best: dict[PlanConfig, PlanConfig] = {}
    for one in trials.explored.ranked:
        best.setdefault(one.config.family, one.config)
    return list(best.values())[:STARTS]


def _kin(trials: Evaluations, walked: set[PlanConfig]) -> dict[int, tuple[tuple[int, ...], ...]]:
    """Returns the kin of each stage count's best mesh, where its configuration comes near the best of all.

    Meshes are returned once: what was returned before is in `walked`, and what is returned is added to it.
    """
    least: dict[int, tuple[float, PlanConfig]] = {}
    for config, one in trials.known.items():
        if isinstance(one, Estimate | CutOff):
            least[config.stages] = min(least.get(config.stages, (inf, config)), (one.step_s, config))
    near = [config for _, (seconds, config) in sorted(least.items()) if seconds < NEAR * trials.explored.best_s]
    found: dict[int, tuple[tuple[int, ...], ...]] = {}
    for config in near:
        fresh = [replace(kin, micro_batches=0, remat=0.0) for kin in trials.space.kin(config)]
        if meshes := tuple([kin.mesh for kin in fresh if kin not in walked]):
            found[config.stages] = meshes
        walked.update(fresh)
    return found
