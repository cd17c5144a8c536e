"""The best choice whose program fits a device.

The search counts memory by rows, corrected by how far these are from what a plan really takes.

Rows (`rhino.strategies.memory.resident_rows`) count before anything is chosen, the peak
(`rhino.strategies.memory.peak`) is that of the chosen program. So what rows may take is the budget times what they are
more than the peak of the best choice of all. That is corrected until a choice fits: lowered by as much as a choice is
over the budget, the next time twice that and so on, for a little less of rows may be no less of the peak; and raised,
never so far that a choice that did not fit would be found again, where nothing stays within it, or where a choice
leaves much of the budget, for a faster one may fit too. Between two limits of which one is too much the middle is
tried. What all these searches have found is then asked for its programs (`rhino.strategies.sharding.primal_repair`).
The bound of an answer is that of the choices whose rows stay within a limit, which its method names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.units import format_bytes
from rhino.strategies.sharding.primal_repair import Programs, TakingOver
from rhino.strategies.solver.answer import INTERRUPTED, Answer, Infeasible, Outcome, Unsolved, make_answer
from rhino.strategies.solver.problem import PeakOf, Problem
from rhino.strategies.solver.search import Search
from rhino.strategies.solver.solver import Reduced

_TRIES: Final = 5
"""How many limits of rows are tried, and so many more until one is too low."""

_LIFTED: Final = 2
"""How many more are tried where a choice fits and leaves some of the budget."""

_SMALLEST: Final = 3
"""For how many choices of least rows programs are made where no limit has led to one that fits.

Peaks fall in steps.
"""

_GAIN: Final = 0.002
"""The least share of a large step that must be there to gain by what is left of the budget.

It is estimated as if seconds fell evenly to those of the best of all.
"""

_SMALL: Final = 4000
"""Below so many nodes another limit costs little, and one launch more or less is much of the step."""

_FULL: Final = 0.999
"""A choice that takes this share of the budget leaves nothing."""

_CLOSE: Final = 1.005
"""Between limits that are so close no other is tried once a choice fits.

Until then limits a tenth as close are told apart.
"""

_WIDER: Final = 1.125
"""By how much the limit is widened where nothing stays within it: rows are farther from the peaks of other choices."""

_STEP: Final = 0.8
"""By no more than this the limit is lowered at once, unless the choice is farther over the budget."""

_LEAVES: Final = 0.9
"""A choice that takes less than this share of the budget leaves much of it: rows say little of programs there."""

_NEAR: Final = 1.125
"""Programs are asked for, where none fits, if the least that is known takes no more than this share of the budget."""

_PROGRAM_STEPS: Final = 24_000
"""How many nodes the programs that are made at the end have in all, as far as the next two limits allow."""

_LEAST_PROGRAMS, _MOST_PROGRAMS = 16, 48
"""The least and the most programs that are made at the end, whatever `_PROGRAM_STEPS` says.

A program takes 0.07 ms of processor time a node to find, and a search at one limit takes tens of solves.
"""


def find_free(search: Search, budget_bytes: float, first: Reduced, peak_of: PeakOf) -> Outcome:
    """Returns the best choice of all with the peak of its program, by a search that has yet to begin.

    `first` is the problem that the search's `reduce` returned. It is searched to the end only if it fits.
    """
    free = search.free(budget_bytes, first, peak_of)
    return with_peak(free, peak_of) if isinstance(free, Answer) else free


def fit_free(
    search: Search, budget_bytes: float, free: Answer, peak_of: PeakOf, with_memory: Callable[[], Problem]
) -> Outcome:
    """Returns the best choice found that fits, where the best of all (`free`), which `search` has found, does not.

    `with_memory` returns the problem with what choices keep in memory.
    """
    search.remember(with_memory())
    return fit(search, budget_bytes, make_answer(search.problem, free.states, free.bound, free.method), peak_of)


def fit(search: Search, budget_bytes: float | None, free: Outcome, peak_of: PeakOf) -> Outcome:
    """Returns the best choice found that fits, from the best without a budget (`free`), which `search` has found.

    Where the search ends as nothing takes less than its cutoff, nothing within lower limits does.
    """
    if not isinstance(free, Answer):
        return free
    programs = Programs(search.problem, peak_of)
    best = with_peak(free, programs.tell)
    if budget_bytes is None or best.peak_bytes <= budget_bytes:
        return best
    share = best.peak_bytes / free.peak_bytes
    limits = RowLimits.below(free.peak_bytes, best.peak_bytes, budget_bytes)
    fitting = _Fitting(search, budget_bytes, free, programs, limits, share)
    fitting.bounds.append((inf, free.bound))
    while fitting.goes_on():
        pass
    fitting.finish()
    return fitting.answer or fitting.refusal() or Unsolved(best.bound, best.peak_bytes)


@dataclass(eq=False)
class _Fitting:
    """The search for a limit of rows.

    `answer` is the best choice that fits, `refused` the first refusal, `most` how many are tried.

    `share` is the peak of the best choice of all over what rows count of it. `bounds` are limits of rows with what all
    choices within cost at least (seconds); `highest` is the highest limit that was tried.
    """

    search: Search
    budget: float
    free: Answer
    programs: Programs
    limits: RowLimits
    share: float
    answer: Answer | None = None
    refused: Infeasible | Unsolved | None = None
    bounds: list[tuple[float, float]] = field(default_factory=list)
    highest: float = 0.0
    tries: int = 0
    most: int = 2 * _TRIES

    def goes_on(self) -> bool:
        """Tries the next limit; says whether there is another that is worth it."""
        self.tries += 1
        limit = self.limits.next
        found = self.within(limit)
        worth = self.weigh(limit, found) if isinstance(found, Answer) else self.refuse(limit, found)
        if self.limits.too_low:
            self.most = min(self.most, _TRIES)
        return worth and self.tries < self.most and not self.limits.are_close(_CLOSE if self.answer else _CLOSE**0.1)

    def within(self, limit: float) -> Outcome:
        """Returns the best choice under a limit of rows, and remembers its bound."""
        self.highest = max(self.highest, limit)
        found = self.search.within(limit, self.free)
        if not isinstance(found, Infeasible):
            self.bounds.append((limit, found.bound))
        return found

    def weigh(self, limit: float, found: Answer) -> bool:
        """Takes up an answer; says whether there may be a better one under another limit."""
        answer = with_peak(found, self.programs.tell)
        if answer.peak_bytes > self.budget:
            self.limits.lower(min(limit, found.peak_bytes), answer.peak_bytes / self.budget)
            return True
        if self.answer is None:
            self.most = min(self.most, self.tries + _LIFTED)
        self.take(limit, answer)
        self.limits.lift(limit, limit * sqrt(self.budget / answer.peak_bytes))
        if answer.peak_bytes >= _FULL * self.budget or answer.is_interrupted:
            return False
        gain = (answer.cost - self.free.cost) * (self.limits.next - limit) / (self.free.peak_bytes - limit)
        return gain > self.worth * answer.cost or self.is_small

    def take(self, limit: float, answer: Answer) -> None:
        """Takes one that fits for the answer if it is cheaper."""
        if self.answer is None or answer.cost < self.answer.cost:
            words = answer.method if answer.is_interrupted else f"{answer.method}, within {format_bytes(limit)} of rows"
            self.answer = replace(answer, method=words)

    def refuse(self, limit: float, found: Infeasible | Unsolved) -> bool:
        """Takes up a refusal; says whether another limit may do."""
        self.refused = self.refused or found
        if isinstance(found, Unsolved) and not self.is_too_slow(found):
            self.limits.lower(limit, _WIDER)
            return True
        least = max(limit, found.peak_bytes or 0.0)
        self.limits.bar(least)
        return least < self.limits.widest

    def is_too_slow(self, found: Infeasible | Unsolved | None) -> bool:
        """Says whether it is a refusal as nothing is fast enough to be asked for."""
        return isinstance(found, Unsolved) and found.bound >= self.search.limits.cutoff

    def finish(self) -> None:
        """Looks for a better answer, or for one at all, by the programs of what searches have found."""
        if self.answer is not None and self.answer.is_interrupted:
            return
        if self.answer is None and self.is_too_slow(self.refused):
            return
        try:
            self.look_wider()
            self.answer = self.answer or self.smallest_that_fits()
            self.go_by_programs()
        except KeyboardInterrupt:
            if self.answer is None:
                raise
            self.answer = replace(self.answer, method=f"{self.answer.method}, {INTERRUPTED}")

    def look_wider(self) -> None:
        """Searches within more rows than before where much of the budget is left.

        Programs of more rows may take no more.
        """
        leaves = self.answer is None or self.answer.peak_bytes < _LEAVES * self.budget
        limit = min(self.limits.widest, sqrt(self.limits.widest / _WIDER * self.free.peak_bytes))
        if leaves and self.is_small and limit > max(self.highest, self.limits.least):
            found = self.within(limit)
            if isinstance(found, Answer) and self.programs.tell(found.states) <= self.budget:
                self.take(limit, with_peak(found, self.programs.tell))

    def smallest_that_fits(self) -> Answer | None:
        """Returns one of the choices of least rows if its program fits."""
        answers = (with_peak(one, self.programs.tell) for one in self.search.smallest(_SMALLEST))
        return next((one for one in answers if one.peak_bytes <= self.budget), None)

    def go_by_programs(self) -> None:
        """Asks for programs of choices that searches have found, and of mixtures of these."""
        programs = self.programs
        if min(one.peak_bytes for one in programs.known.values()) > _NEAR * self.budget or not self.is_worth_programs():
            return
        programs.left = min(max(_PROGRAM_STEPS // max(len(self.free.states), 1), _LEAST_PROGRAMS), _MOST_PROGRAMS)
        enough = self.free.cost * (1 + (self.search.limits.gap if self.is_small else _GAIN))
        taking = TakingOver(programs, self.budget, [states for states, _, _ in self.search.columns], enough)
        states = self.answer.states if self.answer else taking.lowered()
        if programs.tell(states) <= self.budget:
            self.settle(taking.bettered(states))

    @property
    def worth(self) -> float:
        """The share of a large step that must be there to gain: no less than the search leaves open anyway."""
        return max(_GAIN, self.search.limits.gap)

    def is_worth_programs(self) -> bool:
        """Says whether much of a large step is open.

        It goes by the step's bound, or by what is left of the budget, as far as seconds fall evenly.
        """
        if self.answer is None or self.is_small:
            return True
        free_peak = self.programs.tell(self.free.states)
        left = (self.budget - self.answer.peak_bytes) / (free_peak - self.answer.peak_bytes)
        gain = self.answer.cost - self.answer.bound + (self.answer.cost - self.free.cost) * left
        return gain > self.worth * self.answer.cost

    def settle(self, states: Ints) -> None:
        """Takes a choice [nodes] for the answer, with the best bound proven of a limit of rows that it keeps."""
        if self.answer is not None and np.array_equal(states, self.answer.states):
            return
        rows = self.programs.rows(states)
        bound, limit = max((bound, -limit) for limit, bound in self.bounds if rows <= limit)
        within = f", within {format_bytes(-limit)} of rows" if limit > -inf else ""
        words = f"{self.search.solver.method} at memory prices, recombined by programs{within}"
        self.answer = with_peak(make_answer(self.search.problem, states, bound, words), self.programs.tell)

    @property
    def is_small(self) -> bool:
        """Says whether another limit costs little."""
        return len(self.free.states) < _SMALL

    def refusal(self) -> Infeasible | Unsolved | None:
        """Returns the first refusal, with the least program that was found.

        What rows need is converted to terms of the budget.
        """
        if self.refused is None or self.refused.peak_bytes is None:
            return self.refused
        found = min(one.peak_bytes for one in self.programs.known.values())
        if isinstance(self.refused, Unsolved):
            return replace(self.refused, peak_bytes=found)
        return Infeasible(min(self.refused.peak_bytes * self.share, found), found)


@dataclass(eq=False)
class RowLimits:
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

    @classmethod
    def below(cls, rows_bytes: float, peak_bytes: float, budget_bytes: float) -> RowLimits:
        """Returns the limits below the rows of the best choice of all, whose peak is over the budget."""
        first = budget_bytes * rows_bytes / peak_bytes
        return cls(rows_bytes, first * _WIDER, next=first)

    def lower(self, limit: float, excess: float) -> None:
        """Notes that `limit` is too high.

        What it allows is more than the budget by the factor `excess`, or nothing is found there.
        """
        self.too_high = min(self.too_high, limit)
        wanted = min(limit / excess, max(limit / excess**self.power, limit * _STEP)) * (1 - 1e-9)
        self.power *= 2
        self.next = (
            min(self.least * _CLOSE, self.middle) if wanted <= self.least == self.too_low else self.inside(wanted)
        )

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
        """The middle of what is too low and what is too high."""
        return sqrt(self.too_low * self.too_high)

    def are_close(self, apart: float) -> bool:
        """Says whether no limit is left between them that is this far above the one that is too low, as a factor."""
        return self.too_low * apart >= self.too_high


def each_once(peak_of: PeakOf) -> PeakOf:
    """Returns the same function, which is asked once about a choice."""
    known: dict[bytes, float] = {}

    def peak(states: Ints) -> float:
        key = states.tobytes()
        if key not in known:
            known[key] = peak_of(states)
        return known[key]

    return peak


def with_peak(answer: Answer, peak_of: PeakOf) -> Answer:
    """Returns an answer with the peak of its program."""
    return replace(answer, peak_bytes=peak_of(answer.states))
