"""Ranks of unlike meshes: about which meshes and numbers of ranks they are looked for, and which are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2, prod
from typing import Final

from rhino.strategies.autotune import families
from rhino.strategies.autotune.base import ROUND, CutOff, Estimate, Evaluations, Screening, Space

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


def on_unlike_ranks(trials: Evaluations, *, by_moves: bool = False) -> None:
    """Asks for ranks of unlike meshes that a screen finds, and then for the families of the best of them.

    It looks `by_moves` on single stages, or by dynamic programming.
    """
    ranked, space = trials.explored.ranked, trials.space
    known = [one for one in trials.known.values() if isinstance(one, Estimate | CutOff) and one.config.stages > 1]
    known.sort(key=lambda one: (_estimated_s(one), one.config))
    numbers = [one.config.micro_batches for one in known if _estimated_s(one) < inf]
    number = next(iter(numbers), space.micro_batches[space.seed(2)])
    if trials.screen is None or not space.unlike_stages or (ranked and _fills(ranked[0], known, number)):
        return
    request = Screening(_near_shapes(space, known), _near_stages(space, known), number, min(space.remats), by_moves)
    (found,) = trials.screen([request], NEAR_ENOUGH * trials.explored.best_s)
    tried = [config for _, config in found[:MOST_UNLIKE]]
    outcomes = [one for one in trials.outcomes(tried) if isinstance(one, Estimate | CutOff)]
    outcomes.sort(key=lambda one: (one.step_s, one.config))
    near = [one.config.family for one in outcomes if one.step_s < families.NEAR * trials.explored.best_s]
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
