"""The best choice whose program fits a device: the search goes by rows, and is told how far these are from what a plan really takes.

Rows (`rhino.strategies.memory`) count before anything is chosen, the peak (`rhino.strategies.peak`) is that of the chosen program. So what
rows may take is the budget times what they are more than the peak of the best choice of all. That is corrected until a choice fits: lowered
by as much as a choice is over the budget, the next time twice that and so on, for a little less of rows may be no less of the peak; and
raised, never so far that a choice that did not fit would be found again, where nothing stays within it, or where a choice leaves much of
the budget, for a faster one may fit too. Between two limits of which one is too much the middle is tried. The bound of an answer is that of
the choices whose rows stay within its limit, which its method names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Final

from rhino.ir.units import format_bytes
from rhino.strategies.answer import Answer, Infeasible, Outcome, Unsolved
from rhino.strategies.problem import Ints
from rhino.strategies.search import Search

_TRIES: Final = 5
"""How many limits of rows are tried, and so many more until one is too low."""

_LIFTED: Final = 2
"""How many more are tried where a choice fits and leaves some of the budget."""

_SMALLEST: Final = 3
"""How many of the choices of least rows are asked for their programs where no limit has led to one that fits: peaks fall in steps."""

_GAIN: Final = 0.002
"""So much of a large step must be there to gain by what is left of the budget, if seconds fall evenly to those of the best of all."""

_SMALL: Final = 4000
"""Below so many nodes another limit costs little, and one launch more or less is much of the step."""

_FULL: Final = 0.999
"""A choice that takes this share of the budget leaves nothing."""

_CLOSE: Final = 1.005
"""Between limits that are so close no other is tried once a choice fits; until then a tenth as close ones are told apart."""

_WIDER: Final = 1.125
"""By how much the limit is widened where nothing stays within it: rows are farther from the peaks of other choices."""

_STEP: Final = 0.8
"""By no more than this the limit is lowered at once, unless the choice is farther over the budget."""

PeakOf = Callable[[Ints], float]
"""The bytes that the program of a choice [nodes] takes of a device."""


def fit(search: Search, budget_bytes: float | None, free: Outcome, peak_of: PeakOf, cutoff_s: float = inf) -> Outcome:
    """Returns the best choice found that fits, from the best without a budget (`free`), which `search` has found.

    Where the search ends as nothing takes less than `cutoff_s`, nothing within lower limits does.
    """
    if not isinstance(free, Answer):
        return free
    best = told(free, peak_of)
    if budget_bytes is None or best.peak_bytes <= budget_bytes:
        return best
    share = best.peak_bytes / free.peak_bytes
    first = budget_bytes / share
    fitting = _Fitting(search, budget_bytes, free, peak_of, _Limits(free.peak_bytes, first * _WIDER, next=first), share, cutoff_s)
    while fitting.goes_on():
        pass
    return fitting.answer or fitting.smallest_that_fits() or fitting.refusal() or Unsolved(best.bound, best.peak_bytes)


@dataclass(eq=False)
class _Fitting:
    """The search for a limit of rows: `answer` is the best choice that fits, `refused` the first refusal, `most` how many are tried.

    `share` is the peak of the best choice of all over what rows count of it; `smallest` the least peak of the programs that do not fit.
    """

    search: Search
    budget: float
    free: Answer
    peak_of: PeakOf
    limits: _Limits
    share: float
    cutoff_s: float
    answer: Answer | None = None
    refused: Infeasible | Unsolved | None = None
    smallest: float = inf
    tries: int = 0
    most: int = 2 * _TRIES

    def goes_on(self) -> bool:
        """Tries the next limit; says whether there is another that is worth it."""
        self.tries += 1
        limit = self.limits.next
        found = self.search.within(limit, self.free)
        worth = self.weigh(limit, found) if isinstance(found, Answer) else self.refuse(limit, found)
        if self.limits.too_low:
            self.most = min(self.most, _TRIES)
        return worth and self.tries < self.most and not self.limits.are_close(_CLOSE if self.answer else _CLOSE**0.1)

    def weigh(self, limit: float, found: Answer) -> bool:
        """Takes up an answer; says whether there may be a better one under another limit."""
        answer = told(found, self.peak_of)
        if not self.fits(answer):
            self.limits.lower(min(limit, found.peak_bytes), answer.peak_bytes / self.budget)
            return True
        if self.answer is None:
            self.most = min(self.most, self.tries + _LIFTED)
        if self.answer is None or answer.cost < self.answer.cost:
            words = answer.method if answer.is_interrupted else f"{answer.method}, within {format_bytes(limit)} of rows"
            self.answer = replace(answer, method=words)
        self.limits.lift(limit, limit * sqrt(self.budget / answer.peak_bytes))
        if answer.peak_bytes >= _FULL * self.budget or answer.is_interrupted:
            return False
        gain = (answer.cost - self.free.cost) * (self.limits.next - limit) / (self.free.peak_bytes - limit)
        return gain > _GAIN * answer.cost or len(answer.states) < _SMALL

    def refuse(self, limit: float, found: Infeasible | Unsolved) -> bool:
        """Takes up a refusal; says whether another limit may do."""
        self.refused = self.refused or found
        if isinstance(found, Unsolved) and found.bound < self.cutoff_s:
            self.limits.lower(limit, _WIDER)
            return True
        least = max(limit, found.peak_bytes or 0.0)
        self.limits.bar(least)
        return least < self.limits.widest

    def smallest_that_fits(self) -> Answer | None:
        """Returns one of the choices of least rows if its program fits."""
        answers = (told(one, self.peak_of) for one in self.search.smallest(_SMALLEST))
        return next((one for one in answers if self.fits(one)), None)

    def fits(self, answer: Answer) -> bool:
        """Says whether a program fits, and remembers the least that does not."""
        if answer.peak_bytes > self.budget:
            self.smallest = min(self.smallest, answer.peak_bytes)
        return answer.peak_bytes <= self.budget

    def refusal(self) -> Infeasible | Unsolved | None:
        """Returns the first refusal, in terms of the budget: what rows need of it, but no more than a program that was found takes."""
        if self.refused is None or self.refused.peak_bytes is None:
            return self.refused
        needed = self.refused.peak_bytes * self.share
        return replace(self.refused, peak_bytes=min((one for one in (needed, self.smallest) if self.budget < one < inf), default=needed))


@dataclass(eq=False)
class _Limits:
    """Which limit of rows is known to be too high, which too low, and which is the next to be tried, in bytes.

    Where nothing stays within one, none above `widest` is tried.
    """

    too_high: float
    widest: float
    too_low: float = 0.0
    next: float = 0.0
    power: int = 1
    least: float = 0.0
    """Nothing stays within less."""

    def lower(self, limit: float, excess: float) -> None:
        """Notes that `limit` is too high: what it allows is more than the budget by the factor `excess`, or nothing is found there."""
        self.too_high = min(self.too_high, limit)
        wanted = min(limit / excess, max(limit / excess**self.power, limit * _STEP)) * (1 - 1e-9)
        self.power *= 2
        self.next = min(self.least * _CLOSE, self.middle) if wanted <= self.least == self.too_low else self.inside(wanted)

    def lift(self, limit: float, wanted: float) -> None:
        """Notes that `limit` is too low, and about how high it should be."""
        self.too_low = max(self.too_low, limit)
        self.next = self.inside(wanted)

    def bar(self, least: float) -> None:
        """Notes that nothing stays within `least`."""
        self.least = max(self.least, least)
        self.lift(least, self.widest)

    def inside(self, limit: float) -> float:
        """Returns a limit that is neither too low nor too high: `limit` itself, or the middle."""
        return limit if self.too_low < limit < self.too_high else self.middle

    @property
    def middle(self) -> float:
        return sqrt(self.too_low * self.too_high)

    def are_close(self, apart: float) -> bool:
        """Says whether no limit is left between them that is this far above the one that is too low, as a factor."""
        return self.too_low * apart >= self.too_high


def told(answer: Answer, peak_of: PeakOf) -> Answer:
    """Returns an answer with the peak of its program."""
    return replace(answer, peak_bytes=peak_of(answer.states))
