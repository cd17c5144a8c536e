"""Memory by prices: a bound by Lagrangian duality, choices by the prices that reach it.

For prices l_t >= 0 the problem cost + sum_t l_t (memory_t - budget) has no memory rows, so the solver takes it as it
stands, and its value is a lower bound on the constrained optimum. The best prices are the duals of a small LP over the
choices found so far (Dantzig-Wolfe): every solve adds a choice, every violated time a row. Prices move alike tensors
together, so choices on either side of the budget are recombined part by part, and split at cuts
(`rhino.strategies.solver.repair.graph_cut_repair`). What is left between the answer and the bound is reported; a
problem small enough is finished by MILP.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.answer import INTERRUPTED, Answer, Infeasible, Outcome, Unsolved, make_answer
from rhino.strategies.solver.dual.cheaper_states import with_cheaper_states
from rhino.strategies.solver.lp.small_programs import solve_small
from rhino.strategies.solver.repair.component_repair import recombination
from rhino.strategies.solver.repair.graph_cut_repair import cut_mixture
from rhino.strategies.solver.solver import Prices, Solved, Solver

_MIXED = 8
"""How many of the smallest choices are mixed with each other where none of them fits."""

_REFINED = 8
"""How many times in turn the best answer is refined by all columns at most."""

_BASES = 3
"""From how many of the cheapest columns that fit cuts are tried.

What another column gave the best may prevent a better one.
"""

_LADDER = (0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0)
"""First prices tried, in units of the whole cost for the whole budget.

That unit is what memory is worth when all of it buys the whole step. Of scanned GPTs whose memory binds, prices end at
0.2 to 0.4 of it, near the least budget at 1.2: steps of two take a quarter fewer solves in all than steps of four, for
too high a price teaches little.
"""

_PEAKS = 4
"""How many of the times at which a choice or a mixture is over the budget become rows.

They are the worst of those that are worse than all about them.
"""

_ROW_TOLERANCE = 1e-6
"""By which share of the budget a mixture may be over it before that makes a row.

It is more than the tolerance of the solver.
"""

_LEFT = 0.25
"""Prices are good enough once they can raise the bound by no more than this share of the gap that they cannot close."""


_FAR = 1.25
"""Times the budget: where the least that nodes keep is more, no program of a choice on the way to that fits.

Programs may need less than rows: a GPT of 1.3 billion parameters on four devices 13.5 GiB, of 16.2 (2026-11-22).
"""

_TIE = 1e-9
"""By which share of its cost a choice must be cheaper to be better."""

Column = tuple[Ints, float, Floats]
"""A choice that was found [nodes], what it costs, and what it keeps at every time [times].

All of this is valid under any budget.
"""


@dataclass(eq=False)
class KnownSolves:
    """What solves at prices came to under other budgets, which change a choice's value by the same for all choices.

    `unit` is that of first prices, in seconds per byte: with one for all budgets, prices come again.
    """

    unit: float = 0.0
    solves: dict[tuple[tuple[int, float], ...], tuple[Solved, float]] = field(default_factory=dict)
    """By prices: the solution, and the budget that it was found under."""

    def at(self, prices: Prices, budget: float, cutoff: float) -> Solved | None:
        """Returns the best choice at `prices` if known; nothing where a cutoff has ended that search too soon."""
        solved, before = self.solves.get(tuple(sorted(prices.items())), (None, 0.0))
        if solved is None:
            return None
        more = sum(prices.values()) * (before - budget)
        if solved.bound >= cutoff > solved.bound + more:
            return None
        return Solved(solved.states, solved.value + more, solved.bound + more)

    def note(self, prices: Prices, budget: float, solved: Solved) -> None:
        """Takes up what a solve came to, without what is left to do: that takes much memory."""
        self.solves[tuple(sorted(prices.items()))] = replace(solved, left=None), budget


@dataclass(eq=False)
class PricedSearch:
    """The search for prices, from the optimum without a budget.

    `columns` and `known` may hold what was found under another budget.
    """

    solver: Solver
    budget: float
    first: Answer
    columns: list[Column] = field(default_factory=list)
    known: KnownSolves = field(default_factory=KnownSolves)
    hint: Prices = field(default_factory=dict)
    """Prices that are tried first: those of the same step on another mesh show soon whether it is slower on this."""
    times: list[int] = field(default_factory=list)
    bound: float = -np.inf
    best: Answer | None = None
    highest: Solved = field(init=False)
    highest_prices: Prices = field(default_factory=dict, init=False)
    tried: dict[tuple[int, int], Answer] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Returns the best answer under the budget with the bound that prices prove, or the proof that nothing fits."""
        self.bound, self.highest = self.first.bound, Solved(self.first.states, self.first.bound, self.first.bound)
        for states, cost, memory in self.columns:
            self.consider(states, cost, memory)
        self.note(self.first.states)
        try:
            return self.search()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            return make_answer(self.solver.problem, self.best.states, self.bound, f"{self.best.method}, {INTERRUPTED}")

    def search(self) -> Outcome:
        """Returns what `run` does, unless it is interrupted."""
        most, begun = self.solver.limits.prices, self.solver.statistics.solves
        infeasible = self.seek_feasible()
        if infeasible is not None:
            return infeasible
        for _ in range(max(most - (self.solver.statistics.solves - begun), most // 2)):
            if self.is_cut_off:
                break
            value, prices = self.master()
            if self.closed(value):
                break
            if not self.note(self.at(prices).states):
                break
            self.recombine()
        if self.is_cut_off:
            return Unsolved(self.bound)
        if self.best is None:
            self.mix_to_fit()
        self.tighten()
        self.solver.memory_prices = self.highest_prices
        self.refine()
        return self.close()

    def at(self, prices: Prices) -> Solved:
        """Returns the best choice at `prices`, and remembers where the bound is highest."""
        solved = self.known.at(prices, self.budget, self.solver.limits.cutoff)
        if solved is None:
            solved = self.solver.solve(self.solver.reduce(prices, self.budget))
            self.known.note(prices, self.budget, solved)
        self.bound = max(self.bound, solved.bound)
        if self.highest.value < solved.value < np.inf:
            self.highest, self.highest_prices = solved, prices
        return solved

    @property
    def is_cut_off(self) -> bool:
        """Says whether nothing that fits is fast enough to be asked for."""
        return self.bound >= self.solver.limits.cutoff

    def closed(self, mixture_cost: float) -> bool:
        """Says whether the best answer is near enough to the bound, or the bound as high as prices can raise it."""
        gap, bound = self.solver.limits.gap, self.highest.value
        if self.is_near(bound):
            return True
        if not np.isfinite(mixture_cost):
            return False
        enough = gap / 10 * abs(mixture_cost)
        if self.best is not None:
            enough = max(enough, min(gap * abs(mixture_cost), _LEFT * (self.best.cost - mixture_cost)))
        return mixture_cost - bound <= enough

    def is_near(self, bound: float) -> bool:
        """Says whether there is an answer so near to `bound` that the search is content."""
        return self.best is not None and self.best.cost - bound <= self.solver.limits.gap * abs(self.best.cost)

    def note(self, states: Ints) -> bool:
        """Takes up a choice: a column, its worst times as rows, and perhaps the best answer.

        Returns whether it taught anything.
        """
        problem = self.solver.problem
        cost = problem.cost(states)
        if cost == np.inf:
            return False  # the solve was cut off before it had a choice
        known = any(np.array_equal(states, column[0]) for column in self.columns)
        memory = problem.memory(states)
        taught = self.take_times(memory, self.budget)
        if not known:
            self.columns.append((states, cost, memory))
            self.consider(states, cost, memory)
        return taught or not known

    def consider(self, states: Ints, cost: float, memory: Floats) -> None:
        """Makes a column the best answer if it fits and is cheaper."""
        if memory.max() <= self.budget and (self.best is None or cost < self.best.cost):
            self.best = make_answer(
                self.solver.problem, states, self.bound, f"{self.solver.method} at memory prices, recombined"
            )

    def seek_feasible(self) -> Infeasible | None:
        """Finds choices of which a mixture fits, or the proof that none does.

        It tries rising prices first, and then memory alone; that at once where the least that nodes keep is far too
        much already, and nobody asks what the least choice takes.
        """
        if self.hint and max(self.hint) < self.solver.problem.num_times:
            self.note(self.at(self.hint).states)
        self.known.unit = self.known.unit or self.first.cost / max(self.budget, 1.0)
        unit, least_peak = self.known.unit, 0.0
        for number in range(len(_LADDER) if self.is_far_over else 0, self.solver.limits.prices):
            excess, weights = self.least_excess()
            if self.best is not None or excess <= 0 or self.is_cut_off:
                return None
            if number < len(_LADDER):
                self.note(self.at({t: weight * _LADDER[number] * unit for t, weight in weights.items()}).states)
                continue
            total = sum(weights.values())
            solved = self.solver.solve(self.solver.reduce(weights, self.budget, costs=False))
            if solved.value > 0:
                solved = self.solver.tighten(solved)
            if total > 0:
                least_peak = max(least_peak, self.budget + solved.bound / total)
            if solved.bound > 0:
                return Infeasible(peak_bytes=least_peak)
            if not self.note(solved.states):
                return None
        return None

    @property
    def is_far_over(self) -> bool:
        """Says whether choices of rising prices, of which none can fit, are not asked for."""
        if self.solver.limits.seeks_least:
            return False
        return bool(self.solver.problem.least_memory().max(initial=0.0) > _FAR * self.budget)

    def least_excess(self) -> tuple[float, Prices]:
        """Returns the least worst excess that mixing the columns reaches.

        It comes with the weights of the times that stand against less.
        """
        count = len(self.columns)
        while True:
            rows = self.excess_rows()
            times = len(rows)
            # the worst excess of a mixture is this and the variable after the columns, which is never zero
            least = float(rows.min()) - 1.0
            found = solve_small(
                np.append(np.zeros(count), 1.0),
                np.vstack([np.hstack([rows, -np.ones((times, 1))]), np.append(np.ones(count), 0.0)]),
                np.append(np.full(times, -np.inf), 1.0),
                np.append(np.full(times, least), 1.0),
                np.full(count + 1, np.inf),
            )
            assert found is not None, "any column is a mixture"
            if not self.adds_rows(found.values[:count], found.cost + least):
                return (found.cost + least) * self.budget, self.prices_of(found.duals)

    def prices_of(self, duals: Floats) -> Prices:
        """Returns the prices of the times that rows' duals are [times, ...]."""
        return {t: -dual for t, dual in zip(self.times, duals.tolist(), strict=False) if dual < -1e-12}

    def excess_rows(self) -> Floats:
        """Returns how far each column exceeds the budget at each row's time [times, columns].

        The excess is a fraction of the budget.
        """
        return np.array(
            [[(memory[t] - self.budget) / max(self.budget, 1.0) for _, _, memory in self.columns] for t in self.times]
        )

    def adds_rows(self, shares: Floats, excess: float) -> bool:
        """Takes up as rows the times at which a mixture is more over the budget than by the share `excess`.

        Returns whether any is new.
        """
        memory: Floats = shares @ np.array([column[2] for column in self.columns])
        return self.take_times(memory, self.budget + (excess + _ROW_TOLERANCE) * max(self.budget, 1.0))

    def take_times(self, memory: Floats, most: float) -> bool:
        """Takes up as rows the worst times at which `memory` is more than `most`; returns whether any is new."""
        fresh = [time for time in peaks(memory, most)[:_PEAKS] if time not in self.times]
        self.times += fresh
        return bool(fresh)

    def master(self) -> tuple[float, Prices]:
        """Returns the best mixture's cost and the prices at which no column beats it.

        The prices are high where no mixture fits.
        """
        costs = np.array([cost for _, cost, _ in self.columns])
        scale = float(np.abs(costs).max()) or 1.0
        unit = scale / max(self.budget, 1.0)
        while True:
            rows = self.excess_rows()
            found = solve_small(
                costs / scale,
                np.vstack([rows, np.ones(len(costs))]),
                np.append(np.full(len(rows), -np.inf), 1.0),
                np.append(np.zeros(len(rows)), 1.0),
                np.full(len(costs), np.inf),
            )
            if found is None:
                return np.inf, {t: weight * 1e3 * unit for t, weight in self.least_excess()[1].items()}
            if not self.adds_rows(found.values, 0.0):
                return found.cost * scale, {t: price * unit for t, price in self.prices_of(found.duals).items()}

    def tighten(self) -> None:
        """Proves the bound that prices of edges only come near, where it is highest.

        It takes up the choice that comes with the proof.
        """
        solved = self.solver.tighten(self.highest)
        self.bound = max(self.bound, solved.bound)
        if solved is not self.highest:
            self.note(solved.states)

    def recombine(self) -> None:
        """Improves the best answer by taking over, part by part, what columns do differently; each pair is tried once.

        A dearer column may do some of it better.
        """
        for number, (states, *_) in enumerate(self.columns):
            if self.best is None or (number, id(self.best)) in self.tried:
                continue
            self.tried[number, id(self.best)] = self.best
            better = recombination(self.solver.problem, self.best.states, states, self.budget, self.times)
            if better is not None:
                self.note(better)

    def refine(self) -> None:
        """Improves the best answer by what columns do differently, in whole parts and up to cuts, while that helps."""
        for _ in range(_REFINED):
            before = self.best
            if before is None or self.is_near(self.bound):
                return
            self.recombine()
            columns = list(self.columns)
            fitting = sorted(
                (cost, number) for number, (_, cost, memory) in enumerate(columns) if memory.max() <= self.budget
            )
            for _, base in fitting[:_BASES]:
                for states, *_ in columns:
                    mixed = cut_mixture(self.solver.problem, columns[base][0], states, self.budget, self.times)
                    if mixed is not None:
                        self.note(mixed)
            if self.best is before:
                return

    def mix_to_fit(self) -> None:
        """Looks for mixtures of two choices that fit although neither does, the smallest first."""
        order = sorted(range(len(self.columns)), key=lambda number: float(self.columns[number][2].max()))
        for first, second in combinations(order[:_MIXED], 2):
            for mix in (recombination, cut_mixture):
                mixed = mix(
                    self.solver.problem, self.columns[first][0], self.columns[second][0], self.budget, self.times
                )
                if mixed is not None:
                    self.note(mixed)

    def close(self) -> Outcome:
        """Finishes a small problem by MILP; else returns the best answer under the bound that was reached."""
        problem = self.solver.problem
        is_open = self.best is None or self.best.cost - self.bound > self.solver.limits.gap * abs(self.best.cost)
        if is_open and int(problem.num_states().sum()) <= self.solver.limits.exact_below_states:
            exact = self.exact()
            if exact is not None:
                return exact
        if self.best is None:
            return Unsolved(self.bound, min(float(memory.max()) for _, _, memory in self.columns))
        return make_answer(problem, self.best.states, self.bound, self.best.method)

    def exact(self) -> Outcome | None:
        """Returns what MILP finds, None where that is nothing better: of states that a better choice may have."""
        from rhino.strategies.solver.lp.solve_lp import solve_milp  # noqa: PLC0415 - loads one more solver

        problem, best = self.solver.problem, self.best
        if best is None:
            outcome = solve_milp(problem, self.budget)
            return None if isinstance(outcome, Unsolved) else outcome
        most = best.cost - _TIE * abs(best.cost)
        priced, offset = self.solver.priced(self.highest_prices, self.budget)
        open_ = with_cheaper_states(problem, priced, best.states, most - offset)
        found = solve_milp(open_, self.budget, rounds=False)
        self.bound = max(self.bound, most if isinstance(found, Infeasible) else min(found.bound, most))
        if not isinstance(found, Answer) or found.cost >= best.cost:
            return None
        return make_answer(problem, found.states, min(self.bound, found.cost), found.method)


def peaks(memory: Floats, budget: float) -> list[int]:
    """Returns the worst time of each stretch that is over the budget, the worst first."""
    over = np.flatnonzero(memory > budget)
    stretches = np.split(over, np.flatnonzero(np.diff(over) > 1) + 1) if len(over) else []
    return sorted((int(part[memory[part].argmax()]) for part in stretches), key=lambda time: (-memory[time], time))
