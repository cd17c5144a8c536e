"""Autotuning: strategies that search stages, meshes, micro-batches and rematerialization, and the table of their names.

In: a space and who evaluates its points. Out: the best plan, and what the others lose by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from rhino.strategies.autotune import aceso, best, families, tap
from rhino.strategies.autotune.base import (
    ROUND,
    CutOff,
    Estimate,
    Evaluate,
    Evaluations,
    Explored,
    Looks,
    Outcome,
    PlanConfig,
    Refused,
    Screen,
    Space,
    SpentError,
    Strategy,
)

__all__ = ["DEFAULT", "STRATEGIES", "explore", "is_open", "reopen"]

STRATEGIES: Final[dict[str, Strategy]] = {
    one.name: one
    for one in (
        aceso.STRATEGY,
        best.STRATEGY,
        families.STRATEGY,
        tap.STRATEGY,
    )
}
"""Every strategy by its name, sorted."""

DEFAULT: Final = best.STRATEGY.name


FORESEEN: Final = 2 * ROUND
"""How many configurations are foreseen at a time."""


def explore(
    space: Space,
    evaluate: Evaluate,
    on_round: Callable[[Explored], None] = lambda _: None,
    strategy: str = DEFAULT,
    below_s: float = inf,
    relaxed: Sequence[Outcome] = (),
    foresee: Callable[[Iterator[PlanConfig]], None] = lambda _: None,
    made_s: float | None = None,
    screen: Screen | None = None,
    look: Looks | None = None,
) -> Explored:
    """Returns what became of the configurations of `space`.

    `evaluate` gives the outcomes of a round, and `on_round` hears of each round.

    Configurations that are proven not to be below `below_s` are cut off, too, and by the bounds of `relaxed`: what
    configurations came to where less was said of how anything lies; with `made_s` that is the step to beat, whatever is
    estimated. An interruption ends the search with what is known. Before a round `foresee` is given what is likely to
    be asked for behind it, which is found out when it is first read. With `screen` ranks of unlike meshes are
    looked at, and with `look` what is promising first.
    """

    def round_of(configs: Sequence[PlanConfig], cutoff_s: float) -> Iterable[Outcome]:
        foresee(_foreseen(trials, strategy, set(configs)))
        return evaluate(configs, cutoff_s)

    trials = Evaluations(space, round_of, on_round, Explored(below_s, made_s), relaxed, screen=screen, look=look)
    try:
        _run(strategy, trials)
    except SpentError:
        trials.explored.is_complete = False
    except KeyboardInterrupt:
        trials.explored.interrupt()
        if not trials.explored.ranked:
            raise
    return trials.explored


def _run(strategy: str, trials: Evaluations) -> None:
    """Requests what a strategy asks for, and then the replicas and ranks of unlike meshes that there may be."""
    if trials.space.meshes:
        STRATEGIES[strategy].run(trials)
    with trials.requested_by(families.STRATEGY.name), trials.allowing(trials.space.most):
        families.walk_replicas(trials)
        families.walk_unlike(trials)


def is_open(explored: Explored, made_s: float, done: Collection[PlanConfig]) -> bool:
    """Returns whether a configuration was cut off, or a family passed over, that may beat `made_s`.

    That is the step of the best plan's programs, which may take longer than was estimated. Of `done` the programs were
    made.
    """
    cut_off = any(one.step_s < made_s and one.config not in done for one in explored.cut_off)
    return cut_off or any(bound_s < made_s for bound_s in explored.passed_over.values())


def reopen(
    explored: Explored,
    made_s: float,
    done: Collection[PlanConfig],
    space: Space,
    evaluate: Evaluate,
    on_round: Callable[[Explored], None] = lambda _: None,
    strategy: str = DEFAULT,
    screen: Screen | None = None,
    look: Looks | None = None,
) -> Explored:
    """Runs the search again with `made_s`, the step of the best plan whose programs were made, as the step to beat.

    Returns what became of the configurations. The search starts from what is known. It requests from `evaluate` what
    was cut off at less than `made_s`, and what it needs after that.
    """
    known = {
        one.config: one
        for one in explored.outcomes
        if not isinstance(one, CutOff) or one.step_s >= made_s or one.config in done
    }

    def evaluated(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        new = [one for one in configs if one not in known]
        found = {one.config: one for one in (evaluate(new, cutoff_s) if new else ())}
        return [known.get(one) or found[one] for one in configs]

    try:
        again = explore(space, evaluated, on_round, strategy, made_s=made_s, screen=screen, look=look)
    except KeyboardInterrupt:
        again = Explored(made_s=made_s)
        again.interrupt()
    outcomes = {one.config: one for one in (*explored.outcomes, *again.outcomes)}
    implied = {one.config: one for one in (*explored.implied, *again.implied) if one.config not in outcomes}
    passed_over = again.passed_over if again.is_complete else {**explored.passed_over, **again.passed_over}
    return replace(
        again,
        outcomes=list(outcomes.values()),
        implied=list(implied.values()),
        requested_by={**again.requested_by, **explored.requested_by},
        passed_over=passed_over,
        is_complete=explored.is_complete and again.is_complete,
        is_interrupted=explored.is_interrupted or again.is_interrupted,
    )


class _EnoughError(Exception):
    """Raised when as many configurations are foreseen as are of use."""


@dataclass(eq=False)
class _Guesses:
    """Evaluates configurations for a search that runs again, as `known` or else by `guess`; notes those `foreseen`."""

    known: Mapping[PlanConfig, Outcome]
    in_progress: Container[PlanConfig]
    guess: Callable[[PlanConfig, float], Outcome]
    foreseen: list[PlanConfig] = field(default_factory=list)

    def __call__(self, configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        guessed = [one for one in configs if one not in self.known]
        self.foreseen += [one for one in guessed if one not in self.in_progress]
        if len(self.foreseen) >= FORESEEN or (self.foreseen and cutoff_s == inf):
            raise _EnoughError
        return [self.known.get(one) or self.guess(one, cutoff_s) for one in configs]


def _too_slow(config: PlanConfig, cutoff_s: float) -> Outcome:
    return CutOff(config, cutoff_s, cutoff_s, by_memory=False)


def _too_large(config: PlanConfig, _: float) -> Outcome:
    return Refused(config, "", by_memory=True)


def _foreseen(trials: Evaluations, strategy: str, in_progress: Collection[PlanConfig]) -> Iterator[PlanConfig]:
    """Yields what a search requests next, if nothing that is not known yet is better than the best.

    It takes all such configurations for too slow, or all for too large. At the beginning the configurations under way
    stand for a best one, which collectives slow down.
    """
    known: dict[PlanConfig, Outcome] = {one.config: one for one in trials.explored.outcomes}
    if not known:
        least_s = trials.space.least_s
        known = {one: Estimate(one, "", 2 * least_s, least_s, least_s, least_s, least_s, ()) for one in in_progress}
    found: dict[PlanConfig, None] = {}
    for guess in (_too_slow, _too_large):
        guesses = _Guesses(known, in_progress, guess)
        again = Evaluations(
            trials.space,
            guesses,
            explored=Explored(trials.explored.below_s, trials.explored.made_s),
            relaxed=trials.relaxed,
            looked=dict(trials.looked),
        )
        with suppress(_EnoughError, SpentError):
            _run(strategy, again)
        new = [one for one in guesses.foreseen if one not in found]
        found.update(dict.fromkeys(new))
        yield from new
