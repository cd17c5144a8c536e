"""The best of all: what the other strategies ask for, the families of `rhino` last, then the bottlenecks of the best plans and its kin.

Nothing is evaluated twice, and shapes are cut off at the best of all. That does not keep a strategy from its way, so that the answer is
never worse than any other's, as long as `--candidates` are not spent: `aceso`, which goes on from plans that are not the best, comes first
and sees what it would see by itself; the others look at no less if more is cut off.
"""

from __future__ import annotations

from typing import Final

from rhino.strategies.whole import aceso, rhino, tap
from rhino.strategies.whole.base import Shape, Strategy, Trials

STARTS: Final = 3
"""Families of which the best member is a start."""

FAILS: Final = 8
"""Configurations that may be evaluated in a row from a start without a better one."""


def search(trials: Trials) -> None:
    """Asks for what all strategies ask for."""
    for strategy in (aceso.STRATEGY, tap.STRATEGY, rhino.STRATEGY):
        strategy.run(trials)
    with trials.asked_by(aceso.STRATEGY.name):
        if starts := _starts(trials):
            aceso.alleviate(trials, starts, FAILS)
    with trials.asked_by(STRATEGY.name):
        trials.outcomes([kin for one in trials.explored.ranked[:1] for kin in trials.space.kin(one.shape)])


STRATEGY: Final = Strategy("best", "all of them, then the bottlenecks of the best plans; never worse than any other", search)


def _starts(trials: Trials) -> list[Shape]:
    """Returns the best shape of each of the best families."""
    best: dict[Shape, Shape] = {}
    for one in trials.explored.ranked:
        best.setdefault(one.shape.family, one.shape)
    return list(best.values())[:STARTS]
