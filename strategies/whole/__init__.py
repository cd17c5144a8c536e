"""Strategies for whole plans: one file each, and the one table of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from rhino.strategies.whole import aceso, best, rhino, tap
from rhino.strategies.whole.base import Evaluate, Explored, Outcome, Space, SpentError, Strategy, Trials

__all__ = ["DEFAULT", "STRATEGIES", "explore"]

STRATEGIES: Final[dict[str, Strategy]] = {
    one.name: one
    for one in (
        aceso.STRATEGY,
        best.STRATEGY,
        rhino.STRATEGY,
        tap.STRATEGY,
    )
}
"""Every strategy by its name, sorted."""

DEFAULT: Final = best.STRATEGY.name


def explore(
    space: Space,
    evaluate: Evaluate,
    told: Callable[[Explored], None] = lambda _: None,
    strategy: str = DEFAULT,
    below_s: float = inf,
    relaxed: Sequence[Outcome] = (),
) -> Explored:
    """Returns what became of the shapes of `space`; `evaluate` gives the outcomes of a round, and `told` hears of each round.

    Shapes that are proven not to be below `below_s` are cut off, too, and by the bounds of `relaxed`: what shapes came to where less was
    said of how anything lies. An interruption ends the search with what is known.
    """
    trials = Trials(space, evaluate, told, Explored(below_s), relaxed)
    try:
        STRATEGIES[strategy].run(trials)
    except SpentError:
        trials.explored.is_complete = False
    except KeyboardInterrupt:
        trials.explored.is_complete = False
        if not trials.explored.ranked:
            raise
    return trials.explored
