"""The best of all: what the other strategies request, `rhino`'s families last, then bottlenecks and kin of the best.

Nothing is evaluated twice, and configurations are cut off at the best of all. That does not keep a strategy from its
way, and each may have as many configurations evaluated as by itself (`--candidates`), so that the answer is never worse
than any other's: `aceso`, which goes on from plans that are not the best, comes first and sees what it would see by
itself; the others look at no less if more is cut off. What nobody else would ask for is looked at while there were
fewer configurations than that in all.

*Kin* of a configuration has a rank's devices in one row, its axes the other way round, or on three axes. That seldom
changes much, so families of kin are walked only where the best configuration of as many stages comes near the best of
all and a look, where it tells, says that it may pay; and those of kin's kin where kin is better.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from rhino.strategies.autotune import aceso, families, tap, unlike
from rhino.strategies.autotune.base import (
    CutOff,
    Estimate,
    Evaluations,
    PlanConfig,
    Strategy,
)

STARTS: Final = 3
"""Families of which the best member is a start."""

FAILS: Final = 8
"""Configurations that may be evaluated in a row from a start without a better one."""


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
        unlike.on_unlike_ranks(trials)


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
    for remat in space.remats_of(1) if space.micro_batches[0] == 1 and space.may_hold(1, 1, 1.0) else ():
        for tried in (meshes, kin):
            if not trials.explored.ranked:
                trials.outcomes([PlanConfig(1, mesh, 1, remat) for mesh in tried])


def _starts(trials: Evaluations) -> list[PlanConfig]:
    """Returns the best configuration of each of the best families, of those whose ranks have one mesh."""
    best: dict[PlanConfig, PlanConfig] = {}
    for one in trials.explored.ranked:
        if not one.config.meshes:
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
    near = [
        config for _, (seconds, config) in sorted(least.items()) if seconds < families.NEAR * trials.explored.best_s
    ]
    found: dict[int, tuple[tuple[int, ...], ...]] = {}
    for config in near:
        every = {replace(kin, micro_batches=0, remat=0.0): kin for kin in trials.space.kin(config)}
        new = [kin for one, kin in every.items() if one not in walked]
        if meshes := tuple([kin.mesh for kin in trials.promising(new)]):
            found[config.stages] = meshes
        walked.update(every)
    return found
