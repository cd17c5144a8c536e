"""The best choice whose program fits a device: the search goes by rows, and is told how far these are from what a plan really takes.

Rows (`rhino.strategies.memory`) count before anything is chosen, the peak (`rhino.strategies.peak`) is that of the chosen program. So what
rows may take is the budget times what they are more than the peak of the best choice of all. That is corrected until a choice fits: lowered
by as much as a choice is over the budget, the next time twice that and so on, for a little less of rows may be no less of the peak; between
a limit that nothing stays within and one whose choice does not fit, the middle is tried. Where a choice fits and leaves much of the budget,
the limit is raised again, for a faster one may fit too. The bound of an answer is that of the choices whose rows stay within its limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Final

from rhino.strategies.answer import Answer, Infeasible, Outcome, Unsolved
from rhino.strategies.problem import Ints
from rhino.strategies.search import Search

_TRIES: Final = 5
"""How many limits of rows are tried."""

_ENOUGH: Final = 0.95
"""A choice that takes this share of the budget will do."""

_CLOSE: Final = 1.01
"""Between limits that are so close no other is tried."""

_WIDER: Final = 1.125
"""By how much the limit is widened, once, where nothing stays within it: rows are farther from the peaks of other choices."""

PeakOf = Callable[[Ints], float]
"""The bytes that the program of a choice [nodes] takes of a device."""


def fit(search: Search, budget_bytes: float | None, free: Outcome, peak_of: PeakOf) -> Outcome:
    """Returns the best choice found that fits, from the best without a budget (`free`), which `search` has found."""
    if not isinstance(free, Answer):
        return free
    best = told(free, peak_of)
    if budget_bytes is None or best.peak_bytes <= budget_bytes:
        return best
    limit = first = budget_bytes * free.peak_bytes / best.peak_bytes
    too_little, too_much, power = 0.0, inf, 1
    fitting: Answer | None = None
    refused: Infeasible | Unsolved | None = None
    for _ in range(_TRIES):
        found = search.within(limit, free)
        if not isinstance(found, Answer):
            refused = refused or _in_terms_of(found, budget_bytes / limit)
            too_little, limit = limit, first * _WIDER
        elif (answer := told(found, peak_of)).peak_bytes > budget_bytes:
            too_much = min(limit, found.peak_bytes)
            limit = too_much * (budget_bytes / answer.peak_bytes) ** power * (1 - 1e-9)
            power *= 2
        else:
            fitting = answer if fitting is None or answer.cost < fitting.cost else fitting
            if answer.peak_bytes >= _ENOUGH * budget_bytes or answer.is_interrupted:
                break
            too_little, limit = limit, limit * sqrt(budget_bytes / answer.peak_bytes)
        if too_little * _CLOSE >= min(too_much, limit):
            break
        if too_little and too_much < inf:
            limit = sqrt(too_little * too_much)
    return fitting or refused or Unsolved(best.bound, best.peak_bytes)


def told(answer: Answer, peak_of: PeakOf) -> Answer:
    """Returns an answer with the peak of its program."""
    return replace(answer, peak_bytes=peak_of(answer.states))


def _in_terms_of(refused: Infeasible | Unsolved, share: float) -> Infeasible | Unsolved:
    """Returns a refusal by rows in terms of the budget that they stood for."""
    return refused if refused.peak_bytes is None else replace(refused, peak_bytes=refused.peak_bytes * share)
