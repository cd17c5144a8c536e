"""The best of all: the families of `rhino`, then the bottlenecks of its best plans, then what the other strategies would ask for.

Nothing is evaluated twice, so that the others ask for little that is new; and as each goes its own way, the answer is never worse than
theirs, as long as `--candidates` are not spent.
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
    rhino.STRATEGY.run(trials)
    with trials.asked_by(aceso.STRATEGY.name):
        if starts := _starts(trials):
            aceso.alleviate(trials, starts, FAILS)
    aceso.STRATEGY.run(trials)
    tap.STRATEGY.run(trials)


STRATEGY: Final = Strategy("best", "rhino, then the bottlenecks of its best plans; never worse than any other", search)


def _starts(trials: Trials) -> list[Shape]:
    """Returns the best shape of each of the best families."""
    best: dict[Shape, Shape] = {}
    for one in trials.explored.ranked:
        best.setdefault(one.shape.family, one.shape)
    return list(best.values())[:STARTS]
