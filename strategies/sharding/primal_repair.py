"""The last stage of a search under a budget: by programs alone, where what rows count says little of them.

Searches by rows (`rhino.strategies.solver.dual.memory_prices`) leave many choices behind, and which of these fit is
known of a few only: the program of a choice takes long to tell. So programs are asked for one by one, as many as steps
allow:

- of the choices that are cheaper than the best that fits, each where it does not look too large by those most like it
  whose programs are known;
- of mixtures. Where a cheaper choice differs from the one that fits, it does so in parts that do not touch
  (`rhino.strategies.solver.repair.difference`), and what is too much in its program is as a rule in a few of these. All
  are taken over at once, or else a half of them, and so on, so that one part that is too much is found with as many
  programs as the number of parts has binary digits, twice. A part that is too much as a whole is taken over as far as a
  cut (`rhino.strategies.solver.repair.graph_cut_repair`);
- where no choice fits, of mixtures that may take less than the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.strategies.solver.problem import PeakOf, Problem
from rhino.strategies.solver.repair.difference import Difference
from rhino.strategies.solver.repair.graph_cut_repair import Prefixes, orders

_SOURCES: Final = 6
"""From how many of the cheaper choices parts are taken over into one."""

_TIE: Final = 1e-9
"""By how much, relatively, a choice must be cheaper, or its program smaller, to be better."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownChoice:
    """A choice [nodes] whose program is known: the peak of that, and of its rows, in bytes."""

    states: Ints
    peak_bytes: float
    rows_bytes: float


@dataclass(eq=False)
class Programs:
    """The peaks of the programs of choices, each found once (`known`, by bytes of the choice).

    `left` is how many more may be found.
    """

    problem: Problem
    peak_of: PeakOf
    left: int = 0
    known: dict[bytes, KnownChoice] = field(default_factory=dict)

    def tell(self, states: Ints) -> float:
        """Returns the peak of a choice [nodes], whatever is left."""
        key = states.tobytes()
        if key not in self.known:
            self.known[key] = KnownChoice(states, self.peak_of(states), self.rows(states))
        return self.known[key].peak_bytes

    def ask(self, states: Ints) -> float:
        """Returns the peak of a choice [nodes]; infinite where it is not known and no more may be asked for."""
        if states.tobytes() not in self.known:
            if not self.left:
                return inf
            self.left -= 1
        return self.tell(states)

    def rows(self, states: Ints) -> float:
        """Returns the most bytes that rows count of a choice [nodes] at a time."""
        return float(self.problem.memory(states).max(initial=0.0))

    def estimate(self, states: Ints) -> float:
        """Returns about what the program of a choice [nodes] takes.

        That is more or less than the program most like it, by as much as its rows.
        """
        known = list(self.known.values())
        near = known[int((np.array([one.states for one in known]) != states).sum(axis=1).argmin())]
        return near.peak_bytes * self.rows(states) / near.rows_bytes if near.rows_bytes else near.peak_bytes


class TakingOver:
    """The search for a choice whose program fits, from `choices` [nodes] that others have found.

    One that costs `enough_s` or less is good enough.
    """

    def __init__(self, programs: Programs, budget: float, choices: Sequence[Ints], enough_s: float = -inf) -> None:
        self.programs, self.budget, self.enough = programs, budget, enough_s
        problem = programs.problem
        kinds = {(float(f"{problem.cost(one):.9g}"), one.tobytes()): one for one in choices}
        self.choices = [kinds[kind] for kind in sorted(kinds)]
        self.costs = [problem.cost(one) for one in self.choices]
        self.tried: set[tuple[bytes, bytes]] = set()

    def bettered(self, best: Ints) -> Ints:
        """Returns the cheapest choice found that fits, from one that does [nodes]."""
        while True:
            before, best = best, self.cheapest_known(best)
            for other in self.sources(best):
                best = self.mixed(best, other)
            if best is before or not self.goes_on(best):
                return best

    def goes_on(self, best: Ints) -> bool:
        """Says whether more may be asked for, and something may be gained by it."""
        return self.programs.left > 0 and self.programs.problem.cost(best) > self.enough

    def cheaper(self, best: Ints) -> list[Ints]:
        """Returns the choices that are known and cheaper than `best` [nodes], the cheapest first."""
        cost = self.programs.problem.cost(best) * (1 - _TIE)
        return [one for one, seconds in zip(self.choices, self.costs, strict=True) if seconds < cost]

    def cheapest_known(self, best: Ints) -> Ints:
        """Returns the cheapest of the choices that are known and fit, as far as they are asked."""
        while self.goes_on(best):
            fresh = (one for one in self.cheaper(best) if one.tobytes() not in self.programs.known)
            picked = next((one for one in fresh if self.programs.estimate(one) <= self.budget), None)
            if picked is None:
                return best
            if self.programs.ask(picked) <= self.budget:
                best = picked
        return best

    def sources(self, best: Ints) -> list[Ints]:
        """Returns choices that are cheaper than `best` [nodes] and not tried yet.

        They are the cheapest, the dearest, and some between.
        """
        fresh = [one for one in self.cheaper(best) if (best.tobytes(), one.tobytes()) not in self.tried]
        places = np.linspace(0, len(fresh) - 1, min(len(fresh), _SOURCES)).round().astype(np.int64)
        return [fresh[place] for place in places.tolist()]

    def mixed(self, best: Ints, other: Ints) -> Ints:
        """Returns `best` with as much of a cheaper choice as there is room for."""
        if not self.goes_on(best):
            return best
        self.tried.add((best.tobytes(), other.tobytes()))
        parts = Difference.of(self.programs.problem, best, other)
        gain = parts.cost_changes()
        worth = [part for part in np.argsort(gain, kind="stable").tolist() if gain[part] < 0]
        return _Mixing(self.programs, parts, self.budget, lowers=False).taken(best, worth)

    def lowered(self) -> Ints:
        """Returns the choice of least program found, no farther than to the first that fits."""
        best = min(self.programs.known.values(), key=lambda one: one.peak_bytes).states
        for other in sorted(self.choices, key=self.programs.estimate)[:_SOURCES]:
            parts = Difference.of(self.programs.problem, best, other)
            order = np.argsort(parts.cost_changes(), kind="stable").tolist()
            best = _Mixing(self.programs, parts, self.budget, lowers=True).taken(best, order)
        return best


@dataclass(frozen=True, slots=True, eq=False)
class _Mixing:
    """Takes parts of one choice over into another: what fits where that fits, else what takes less, until it fits."""

    programs: Programs
    parts: Difference
    budget: float
    lowers: bool

    def taken(self, mixed: Ints, worth: list[int]) -> Ints:
        """Returns a choice [nodes] with those of some parts that are good for it: all, or some of either half."""
        if not worth or not self.programs.left or (self.lowers and self.programs.tell(mixed) <= self.budget):
            return mixed
        chosen = np.isin(self.parts.label, worth)
        every = np.where(chosen, self.parts.other, mixed)
        if self.programs.ask(every) <= self.most(mixed):
            return every
        if len(worth) == 1:
            return mixed if self.lowers else self.cut(mixed, np.flatnonzero(chosen))
        half = len(worth) // 2
        return self.taken(self.taken(mixed, worth[:half]), worth[half:])

    def most(self, mixed: Ints) -> float:
        """Returns what a choice may take to be taken in place of `mixed`, in bytes."""
        return self.programs.tell(mixed) * (1 - _TIE) if self.lowers else self.budget

    def cut(self, mixed: Ints, nodes: Ints) -> Ints:
        """Returns a choice with a part [n] taken over as far as a cut that there is room for."""
        best, problem = mixed, self.programs.problem
        for order in orders(problem, nodes):
            one = Prefixes.of(problem, mixed, self.parts.other, order)
            counts = one.cheaper()
            low, high = 0, len(counts)
            while low < high:
                middle = (low + high) // 2
                found = one.choice(int(counts[middle]))
                if self.programs.ask(found) <= self.budget:
                    best, low = min(best, found, key=problem.cost), middle + 1
                else:
                    high = middle
        return best
