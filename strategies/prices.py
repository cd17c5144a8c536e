"""Memory by prices: a bound by Lagrangian duality, choices by the prices that reach it.

For prices l_t >= 0 the problem cost + sum_t l_t (memory_t - budget) has no memory rows, so the solver takes it as it stands, and its value
is a lower bound on the constrained optimum. The best prices are the duals of a small LP over the choices found so far (Dantzig-Wolfe):
every solve adds a choice, every violated time a row. Prices move alike tensors together, so choices on either side of the budget are
recombined part by part. What is left between the answer and the bound is reported; a problem small enough is finished by MILP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from scipy.optimize import linprog

from rhino.strategies.answer import INTERRUPTED, Answer, Infeasible, Outcome, Unsolved, make_answer
from rhino.strategies.problem import Floats, Ints
from rhino.strategies.recombine import recombination
from rhino.strategies.solver import Prices, Solved, Solver

_MIXED = 8
"""How many of the smallest choices are mixed with each other where none of them fits."""

_LADDER = (0.1, 1.0, 10.0)
"""First prices tried, in units of the whole cost for the whole budget: what memory is worth when all of it buys the whole step."""


@dataclass(eq=False)
class PricedSearch:
    """The search for prices, from the optimum without a budget. `columns` are the choices found, with cost, and memory at every time."""

    solver: Solver
    budget: float
    first: Answer
    columns: list[tuple[Ints, float, Floats]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    bound: float = -np.inf
    best: Answer | None = None
    highest: Solved = field(init=False)
    tried: dict[tuple[int, int], Answer] = field(default_factory=dict)

    def run(self) -> Outcome:
        """Returns the best answer under the budget with the bound that the prices prove, or the proof that nothing fits."""
        self.bound, self.highest = self.first.bound, Solved(self.first.states, self.first.bound, self.first.bound)
        self.note(self.first.states)
        try:
            return self.search()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            return make_answer(self.solver.problem, self.best.states, self.bound, f"{self.best.method}, {INTERRUPTED}")

    def search(self) -> Outcome:
        """Returns what `run` does, unless it is interrupted."""
        infeasible = self.seek_feasible()
        if infeasible is not None:
            return infeasible
        for _ in range(self.solver.limits.prices):
            if self.is_cut_off:
                return Unsolved(self.bound)
            value, prices = self.master()
            if self.closed(value):
                break
            if not self.note(self.at(prices).states):
                break
            self.recombine()
        if self.best is None:
            self.mix_to_fit()
        self.tighten()
        return self.close()

    def at(self, prices: Prices) -> Solved:
        """Returns the best choice at `prices`, and remembers where the bound is highest."""
        solved = self.solver.solve(self.solver.reduce(prices, self.budget))
        self.bound = max(self.bound, solved.bound)
        if solved.value > self.highest.value:
            self.highest = solved
        return solved

    @property
    def is_cut_off(self) -> bool:
        """Says whether nothing that fits is fast enough to be asked for."""
        return self.bound >= self.solver.limits.cutoff

    def closed(self, mixture_cost: float) -> bool:
        """Says whether the best answer is near enough to the bound, or the bound as high as prices can raise it."""
        gap, bound = self.solver.limits.gap, self.highest.value
        if self.best is not None and self.best.cost - bound <= gap * abs(self.best.cost):
            return True
        return bool(np.isfinite(mixture_cost)) and mixture_cost - bound <= gap / 10 * abs(mixture_cost)

    def note(self, states: Ints) -> bool:
        """Takes up a choice: a column, its worst time as a row, and perhaps the best answer. Returns whether it taught anything."""
        problem = self.solver.problem
        known = any(np.array_equal(states, column[0]) for column in self.columns)
        memory = problem.memory(states)
        peak = int(memory.argmax())
        fresh = memory[peak] > self.budget and peak not in self.times
        if fresh:
            self.times.append(peak)
        if not known:
            cost = problem.cost(states)
            self.columns.append((states, cost, memory))
            if memory[peak] <= self.budget and (self.best is None or cost < self.best.cost):
                self.best = make_answer(problem, states, self.bound, f"{self.solver.method} at memory prices, recombined")
        return fresh or not known

    def seek_feasible(self) -> Infeasible | None:
        """Finds a choice that fits, or the proof that none does: rising prices first, then memory alone."""
        self.climb()
        least_peak = 0.0
        for _ in range(self.solver.limits.prices):
            excess, weights = self.least_excess()
            if self.best is not None or excess <= 0 or self.is_cut_off:
                return None
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

    def climb(self) -> None:
        """Raises one price for all rows until a choice fits, or is as small at those times as it gets."""
        unit = self.first.cost / max(self.budget, 1.0)
        for factor in _LADDER:
            if self.best is not None or self.is_cut_off:
                return
            prices = dict.fromkeys(self.times, factor * unit)
            self.note(self.at(prices).states)

    def least_excess(self) -> tuple[float, Prices]:
        """Returns the least worst excess that mixing the columns reaches, and the weights of the times that stand against less."""
        rows = self.excess_rows()
        count = len(self.columns)
        result = linprog(
            np.append(np.zeros(count), 1.0),
            A_ub=np.hstack([rows, -np.ones((len(rows), 1))]),
            b_ub=np.zeros(len(rows)),
            A_eq=np.append(np.ones(count), 0.0)[None, :],
            b_eq=[1.0],
            bounds=[(0, None)] * count + [(None, None)],
            method="highs-ds",
        )
        weights = {t: max(0.0, -float(d)) for t, d in zip(self.times, result.ineqlin.marginals, strict=True)}
        return float(result.fun) * self.budget, {t: w for t, w in weights.items() if w > 1e-12}

    def excess_rows(self) -> Floats:
        """Returns how far each column exceeds the budget at each row's time, as a fraction of the budget [times, columns]."""
        return np.array([[(memory[t] - self.budget) / max(self.budget, 1.0) for _, _, memory in self.columns] for t in self.times])

    def master(self) -> tuple[float, Prices]:
        """Returns the best mixture's cost and the prices at which no column beats it; unlimited prices where no mixture fits."""
        costs = np.array([cost for _, cost, _ in self.columns])
        scale = float(np.abs(costs).max()) or 1.0
        rows = self.excess_rows()
        result = linprog(
            costs / scale,
            A_ub=rows,
            b_ub=np.zeros(len(rows)),
            A_eq=np.ones((1, len(costs))),
            b_eq=[1.0],
            bounds=(0, None),
            method="highs-ds",
        )
        if result.status != 0:
            _, weights = self.least_excess()
            unit = 1e3 * scale / max(self.budget, 1.0)
            return np.inf, {t: w * unit for t, w in weights.items()}
        unit = scale / max(self.budget, 1.0)
        prices = {t: max(0.0, -float(d)) * unit for t, d in zip(self.times, result.ineqlin.marginals, strict=True)}
        return float(result.fun) * scale, {t: p for t, p in prices.items() if p > 0}

    def tighten(self) -> None:
        """Proves the bound that sweeps only estimate, where it is highest, and takes up the choice that comes with the proof."""
        solved = self.solver.tighten(self.highest)
        self.bound = max(self.bound, solved.bound)
        if solved is not self.highest:
            self.note(solved.states)
            self.recombine()

    def recombine(self) -> None:
        """Improves the best answer by taking over, component by component, what cheaper columns do differently; each pair is tried once."""
        for number, (states, cost, _) in enumerate(self.columns):
            if self.best is None or cost >= self.best.cost or (number, id(self.best)) in self.tried:
                continue
            self.tried[number, id(self.best)] = self.best
            better = recombination(self.solver.problem, self.best.states, states, self.budget)
            if better is not None:
                self.note(better)

    def mix_to_fit(self) -> None:
        """Looks for mixtures of two choices that fit although neither does, the smallest first."""
        order = sorted(range(len(self.columns)), key=lambda number: float(self.columns[number][2].max()))
        for first, second in combinations(order[:_MIXED], 2):
            mixed = recombination(self.solver.problem, self.columns[first][0], self.columns[second][0], self.budget)
            if mixed is not None:
                self.note(mixed)
        self.recombine()

    def close(self) -> Outcome:
        """Finishes a small problem by MILP; else returns the best answer under the bound that was reached."""
        problem, best = self.solver.problem, self.best
        open_gap = best is None or best.cost - self.bound > self.solver.limits.gap * abs(best.cost)
        if open_gap and int(problem.num_states().sum()) <= self.solver.limits.exact_below_states:
            from rhino.strategies.lp import solve_milp  # noqa: PLC0415 - loads another solver, and is for small problems

            outcome = solve_milp(problem, self.budget)
            if not isinstance(outcome, Unsolved):
                return outcome
        if best is None:
            return Unsolved(self.bound, min(float(memory.max()) for _, _, memory in self.columns))
        return make_answer(problem, best.states, self.bound, best.method)
