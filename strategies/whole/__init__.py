"""Strategies for whole plans: one file each, and the one table of their names."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

from rhino.strategies.whole import aceso, best, rhino, tap
from rhino.strategies.whole.base import ROUND, CutOff, Evaluate, Explored, Outcome, Refused, Shape, Space, SpentError, Strategy, Trials

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


FORESEEN: Final = 2 * ROUND
"""How many shapes are foreseen at a time."""


def explore(
    space: Space,
    evaluate: Evaluate,
    told: Callable[[Explored], None] = lambda _: None,
    strategy: str = DEFAULT,
    below_s: float = inf,
    relaxed: Sequence[Outcome] = (),
    foresee: Callable[[Iterator[Shape]], None] = lambda _: None,
) -> Explored:
    """Returns what became of the shapes of `space`; `evaluate` gives the outcomes of a round, and `told` hears of each round.

    Shapes that are proven not to be below `below_s` are cut off, too, and by the bounds of `relaxed`: what shapes came to where less was
    said of how anything lies. An interruption ends the search with what is known. Before a round `foresee` is given what is likely to be
    asked for behind it, which is found out when it is first read.
    """

    def round_of(shapes: Sequence[Shape], cutoff_s: float) -> Iterable[Outcome]:
        foresee(_foreseen(trials, strategy, set(shapes)))
        return evaluate(shapes, cutoff_s)

    trials = Trials(space, round_of, told, Explored(below_s), relaxed)
    try:
        STRATEGIES[strategy].run(trials)
    except SpentError:
        trials.explored.is_complete = False
    except KeyboardInterrupt:
        trials.explored.is_complete = False
        if not trials.explored.ranked:
            raise
    return trials.explored


class _EnoughError(Exception):
    """Raised when as many shapes are foreseen as are of use."""


@dataclass(eq=False)
class _Guesses:
    """Evaluates shapes for a search that is run again: as `known`, else as `guess` has it; and notes what is `foreseen`."""

    known: Mapping[Shape, Outcome]
    under_way: Container[Shape]
    guess: Callable[[Shape, float], Outcome]
    foreseen: list[Shape] = field(default_factory=list)

    def __call__(self, shapes: Sequence[Shape], cutoff_s: float) -> list[Outcome]:
        guessed = [one for one in shapes if one not in self.known]
        self.foreseen += [one for one in guessed if one not in self.under_way]
        if len(self.foreseen) >= FORESEEN or (self.foreseen and cutoff_s == inf):
            raise _EnoughError
        return [self.known.get(one) or self.guess(one, cutoff_s) for one in shapes]


def _too_slow(shape: Shape, cutoff_s: float) -> Outcome:
    return CutOff(shape, cutoff_s, cutoff_s, by_memory=False)


def _too_large(shape: Shape, _: float) -> Outcome:
    return Refused(shape, "", by_memory=True)


def _foreseen(trials: Trials, strategy: str, under_way: Container[Shape]) -> Iterator[Shape]:
    """Yields what a search asks for next, if nothing that is not known yet is better than the best: all too slow, or all too large."""
    known = {one.shape: one for one in trials.explored.outcomes}
    found: dict[Shape, None] = {}
    for guess in (_too_slow, _too_large):
        guesses = _Guesses(known, under_way, guess)
        again = Trials(trials.space, guesses, explored=Explored(trials.explored.below_s), relaxed=trials.relaxed)
        with suppress(_EnoughError, SpentError):
            STRATEGIES[strategy].run(again)
        new = [one for one in guesses.foreseen if one not in found]
        found.update(dict.fromkeys(new))
        yield from new
