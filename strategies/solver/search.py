"""The whole search: the optimum, if it fits the memory of a device; else the best that does, with a proven bound.

Without a budget (or where the optimum fits anyway) the answer is what `strategies/solver/solver.py` finds, with its
bound. Where that does not fit, `strategies/solver/dual/memory_prices.py` takes over. Limits are steps (solves), never
seconds: the same problem gives the same answer. A search that is interrupted (Ctrl-C) gives the best choice it has, if
it has one that fits, with the bound that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from rhino.ir.arrays import Ints
from rhino.strategies.solver.answer import INTERRUPTED, Answer, Infeasible, Outcome, Unsolved, fits, make_answer
from rhino.strategies.solver.elimination.by_node import TooWideError
from rhino.strategies.solver.problem import PeakOf, Problem
from rhino.strategies.solver.solver import Limits, Prices, Reduced, Solved, Solver, Statistics

if TYPE_CHECKING:
    from rhino.strategies.solver.dual.memory_prices import Column, KnownSolves

__all__ = ["Limits", "Search", "Statistics"]


@dataclass(eq=False)
class Search:
    """One search on one problem."""

    problem: Problem
    limits: Limits = field(default_factory=Limits)
    like: Solver | None = None
    """The solver of a problem that is much the same, if there is one: what it knows is a start."""
    hint: Prices = field(default_factory=dict)
    """Memory prices of the same step on another mesh: the first search under a budget begins with them."""
    first: Solved | None = field(default=None, init=False)
    columns: list[Column] = field(default_factory=list, init=False)
    """What searches under a budget have found; the next one begins with it."""
    known: KnownSolves | None = field(default=None, init=False)
    """What solves at memory prices came to."""

    def __post_init__(self) -> None:
        self.solver = Solver(self.problem, self.limits, like=self.like)

    @property
    def statistics(self) -> Statistics:
        """What the search did so far."""
        return self.solver.statistics

    def give_up_at(self, cutoff_s: float) -> None:
        """Ends without an answer from now on once the bound reaches `cutoff_s`."""
        self.limits = self.solver.limits = replace(self.limits, cutoff=cutoff_s)

    def reduce(self) -> Reduced:
        """Returns the problem after the exact reductions."""
        return self.solver.reduce()

    def run(self, budget_bytes: float | None, first: Reduced | None = None) -> Outcome:
        """Returns the best choice under the budget, with a bound; or what stands against one.

        `first` is what `reduce` returned.
        """
        free = self.free(budget_bytes, first)
        return self.within(budget_bytes, free) if isinstance(free, Answer) and budget_bytes is not None else free

    def begin(self, first: Reduced | None = None) -> float:
        """Solves without regard to memory as far as one solve goes, and returns the bound."""
        if self.first is None:
            self.first = self.solver.solve(first or self.reduce())
        return self.first.bound

    def remember(self, problem: Problem) -> None:
        """Takes up what choices keep in memory.

        `problem` is what there was, with residents and tables for them behind the others.
        """
        self.problem = self.solver.problem = problem
        self.columns, self.known = [], None

    def free(self, budget_bytes: float | None, first: Reduced | None = None, peak_of: PeakOf | None = None) -> Outcome:
        """Returns the best choice whether it fits or not; its bound is raised as far as it goes only if it fits.

        `peak_of` tells the bytes of a choice where the problem does not say yet what choices keep in memory.
        """
        try:
            self.begin(first)
            assert self.first is not None, "a search that has begun has solved once"
            solved, method = self.first, self.solver.method
            if self.limits.cutoff <= solved.bound < np.inf:
                return Unsolved(solved.bound)
            if solved.left is not None and (budget_bytes is None or self._fits(solved.states, budget_bytes, peak_of)):
                solved, method = self._tightened(solved, method)
            if solved.bound == np.inf:
                return Infeasible(None)
            if solved.value == np.inf:
                return Unsolved(solved.bound)
            return make_answer(self.problem, solved.states, solved.bound, method)
        except TooWideError:
            return Unsolved(-np.inf)

    def within(self, budget_bytes: float, free: Answer) -> Outcome:
        """Returns the best choice under the budget, from the one without (`free`), which this search has found."""
        if free.peak_bytes <= budget_bytes:
            return free
        from rhino.strategies.solver.dual.memory_prices import KnownSolves, PricedSearch  # noqa: PLC0415 - loads LP solvers

        self.known = self.known or KnownSolves()
        hint = {} if self.columns else self.hint
        try:
            return PricedSearch(self.solver, budget_bytes, free, self.columns, self.known, hint).run()
        except TooWideError:
            return Unsolved(-np.inf)

    def smallest(self, count: int) -> list[Answer]:
        """Returns at most so many choices of least memory found under a budget, the smallest first.

        Their bound is that of all choices, whatever these keep.
        """
        bound = -np.inf if self.first is None else self.first.bound
        kinds = {(float(memory.max()), cost): states for states, cost, memory in reversed(self.columns)}
        method = f"{self.solver.method} for memory"
        return [make_answer(self.problem, kinds[kind], bound, method) for kind in sorted(kinds)[:count]]

    def _fits(self, states: Ints, budget_bytes: float, peak_of: PeakOf | None) -> bool:
        return peak_of(states) <= budget_bytes if peak_of else fits(self.problem, states, budget_bytes)

    def _tightened(self, solved: Solved, method: str) -> tuple[Solved, str]:
        """Returns what is left when the bound has been raised, or when the user has had enough of that."""
        try:
            return self.solver.tighten(solved), method
        except KeyboardInterrupt:
            if solved.value == np.inf:
                raise
            return solved, f"{method}, {INTERRUPTED}"
