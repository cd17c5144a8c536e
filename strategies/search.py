"""The whole search: exact without a budget; with one, prices on memory, a proven bound, and recombination of what the prices found.

Without a budget (or where the optimum fits anyway) elimination gives the optimum, and the bound equals the cost.

With a budget, memory rows are priced: for prices l_t >= 0 the problem cost + sum_t l_t (memory_t - budget) has no rows, so elimination
solves it exactly, and its value is a lower bound on the constrained optimum (Lagrangian duality). The best prices are the duals of a
small LP over the choices found so far (Dantzig-Wolfe), to which every solve adds a choice, and every violated time a row. Prices move
alike tensors together, so two choices on either side of the budget are then recombined: where they differ, the differing nodes fall into
components that no edge joins, each of which may follow either choice on its own. Which ones do is a multiple-choice knapsack, solved
exactly; only the gap between whole components is left, and it is reported. A problem small enough is finished by MILP.

Limits are steps (solves), never seconds: the same problem gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import coo_array

from rhino.strategies.answer import Answer, Infeasible, Outcome, Unsolved, make_answer
from rhino.strategies.eliminate import Elimination, TableStore, TooWideError
from rhino.strategies.lp import solve_milp
from rhino.strategies.problem import Floats, Ints, Problem, Residents

_LADDER = (0.1, 1.0, 10.0)
"""First prices tried, in units of the whole cost for the whole budget: what memory is worth when all of it buys the whole step."""

Prices = dict[int, float]
"""Seconds per byte alive, by time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search may go. Units: solves, table entries, nodes of a MILP."""

    prices: int = 40
    table_entries: int = 1 << 24
    exact_below_states: int = 400
    gap: float = 1e-4


@dataclass(eq=False)
class Statistics:
    """What a search did, for reports: nodes and edges before and after exact reduction, states dropped, solves made."""

    nodes: int = 0
    edges: int = 0
    states: int = 0
    dropped_states: int = 0
    core_nodes: int = 0
    core_edges: int = 0
    solves: int = 0
    widest_table: int = 0


@dataclass(eq=False)
class Reduced:
    """A problem at some prices, after the exact reductions: what is left is its core."""

    elimination: Elimination
    offset: float
    """What the prices charge for memory that is there whatever is chosen, less the budget, in seconds."""


@dataclass(eq=False)
class Search:
    """One search on one problem. Tables and remembered operations are shared by its solves."""

    problem: Problem
    limits: Limits = field(default_factory=Limits)
    store: TableStore = field(default_factory=TableStore)
    statistics: Statistics = field(default_factory=Statistics)
    order: list[int] | None = None
    """The order in which the first solve removed the nodes; prices change tables, not the graph, so later solves follow it."""

    def reduce(self, prices: Prices | None = None, budget_bytes: float = 0.0, costs: bool = True) -> Reduced:
        """Returns the problem at `prices`, without dominated states, and for the first solve without nodes of degree 0, 1 and 2.

        With `costs` off, the prices are all that is charged.
        """
        prices = prices or {}
        problem, store = self.problem, self.store
        base = [store.intern(table) for table in problem.tables]
        node_costs = [base[t] if costs else store.scale(base[t], 0.0) for t in problem.node_table]
        edge_costs = [base[t] if costs else store.scale(base[t], 0.0) for t in problem.edge_table]
        for residents, charged in ((problem.node_residents, node_costs), (problem.edge_residents, edge_costs)):
            weight = _weights(residents, prices)
            for row in np.flatnonzero(weight).tolist():
                owner = int(residents.owner[row])
                charged[owner] = store.add(charged[owner], store.scale(base[residents.table[row]], float(weight[row])))
        elimination = Elimination(problem, store, node_costs, edge_costs)
        dropped = elimination.drop_dominated()
        if self.order is None:
            elimination.remove_chains()
            elimination.drop_dominated()
            elimination.remove_chains()
            self._note(elimination, dropped)
        offset = sum(price * (float(problem.base_bytes[t]) - budget_bytes) for t, price in prices.items())
        return Reduced(elimination, offset)

    def _note(self, elimination: Elimination, dropped: int) -> None:
        core, s = elimination.core(), self.statistics
        s.nodes, s.edges, s.states = self.problem.num_nodes, self.problem.num_edges, int(self.problem.num_states().sum())
        s.dropped_states, s.core_nodes, s.core_edges = dropped, len(core.nodes), core.num_edges

    def finish(self, reduced: Reduced) -> tuple[Ints, float]:
        """Solves the core exactly: returns the best states and the value at the prices (infinite where nothing is legal)."""
        self.statistics.solves += 1
        elimination, limit = reduced.elimination, self.limits.table_entries
        if self.order is None:
            elimination.run(limit)
            self.order = [step.node for step in elimination.steps]
        else:
            elimination.replay(self.order, limit)
        self.statistics.widest_table = max(self.statistics.widest_table, elimination.widest)
        return elimination.read_back(), elimination.constant + reduced.offset

    def run(self, budget_bytes: float | None, first: Reduced | None = None) -> Outcome:
        """Returns the best choice under the budget, with a bound; or what stands against one."""
        try:
            states, value = self.finish(first or self.reduce())
        except TooWideError:
            return solve_milp(self.problem, budget_bytes)
        if not np.isfinite(value):
            return Infeasible(None)
        answer = make_answer(self.problem, states, value, "elimination")
        if budget_bytes is None or answer.peak_bytes <= budget_bytes:
            return answer
        return _Priced(self, budget_bytes, answer).run()


def _weights(residents: Residents, prices: Prices) -> Floats:
    """Returns the seconds per byte that each resident is charged [residents]."""
    weight = np.zeros(len(residents))
    for time, price in sorted(prices.items()):
        weight[(residents.start <= time) & (residents.end >= time)] += price
    return weight


@dataclass(eq=False)
class _Priced:
    """The search for prices. `columns` are the choices found, with their cost and their memory at every time."""

    search: Search
    budget: float
    first: Answer
    columns: list[tuple[Ints, float, Floats]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    bound: float = -np.inf
    best: Answer | None = None
    tried: dict[tuple[int, int], Answer] = field(default_factory=dict)

    def run(self) -> Outcome:
        self.bound = self.first.bound
        self.note(self.first.states)
        infeasible = self.seek_feasible()
        if infeasible is not None:
            return infeasible
        for _ in range(self.search.limits.prices):
            value, prices = self.master()
            if self.closed(value):
                break
            states, reached = self.search.finish(self.search.reduce(prices, self.budget))
            self.bound = max(self.bound, reached)
            if not self.note(states):
                break
            self.recombine()
        return self.close()

    def closed(self, mixture_cost: float) -> bool:
        """Says whether the best answer is near enough to the bound, or the bound as high as prices can raise it."""
        gap = self.search.limits.gap
        if self.best is not None and self.best.cost - self.bound <= gap * abs(self.best.cost):
            return True
        return bool(np.isfinite(mixture_cost)) and mixture_cost - self.bound <= gap / 10 * abs(mixture_cost)

    def note(self, states: Ints) -> bool:
        """Takes up a choice: a column, its worst time as a row, and perhaps the best answer. Returns whether it taught anything."""
        problem = self.search.problem
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
                self.best = make_answer(problem, states, self.bound, "elimination at memory prices, recombined")
        return fresh or not known

    def seek_feasible(self) -> Infeasible | None:
        """Finds a choice that fits, or the proof that none does: rising prices first, then memory alone."""
        self.climb()
        least_peak = 0.0
        for _ in range(self.search.limits.prices):
            excess, weights = self.least_excess()
            if self.best is not None or excess <= 0:
                return None
            total = sum(weights.values())
            states, value = self.search.finish(self.search.reduce(weights, self.budget, costs=False))
            if total > 0:
                least_peak = max(least_peak, self.budget + value / total)
            if value > 0:
                return Infeasible(peak_bytes=least_peak)
            if not self.note(states):
                return None
        return None

    def climb(self) -> None:
        """Raises one price for all rows until a choice fits, or is as small at those times as it gets."""
        unit = self.first.cost / max(self.budget, 1.0)
        for factor in _LADDER:
            if self.best is not None:
                return
            prices = dict.fromkeys(self.times, factor * unit)
            states, reached = self.search.finish(self.search.reduce(prices, self.budget))
            self.bound = max(self.bound, reached)
            self.note(states)

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

    def recombine(self) -> None:
        """Improves the best answer by taking over, component by component, what cheaper columns do differently; each pair is tried once."""
        for number, (states, cost, _) in enumerate(self.columns):
            if self.best is None or cost >= self.best.cost or (number, id(self.best)) in self.tried:
                continue
            self.tried[number, id(self.best)] = self.best
            better = _recombination(self.search.problem, self.best.states, states, self.budget)
            if better is not None:
                self.note(better)

    def close(self) -> Outcome:
        """Finishes a small problem by MILP; else returns the best answer under the bound that was reached."""
        problem, best = self.search.problem, self.best
        open_gap = best is None or best.cost - self.bound > self.search.limits.gap * abs(best.cost)
        if open_gap and int(problem.num_states().sum()) <= self.search.limits.exact_below_states:
            outcome = solve_milp(problem, self.budget)
            if not isinstance(outcome, Unsolved):
                return outcome
        if best is None:
            return Unsolved(self.bound)
        return make_answer(problem, best.states, self.bound, best.method)


def _recombination(problem: Problem, base: Ints, other: Ints, budget: float) -> Ints | None:
    """Returns the cheapest mixture of two choices, by components of where they differ, that fits; None if only `base` does."""
    groups = _components(problem, np.flatnonzero(base != other))
    if not groups:
        return None
    label = np.full(problem.num_nodes, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        label[group] = number
    gain = _cost_changes(problem, base, other, label, len(groups))
    times: list[int] = []
    before = problem.memory(base)
    while True:
        picks = _knapsack(problem, base, other, label, gain, before, times, budget)
        if picks is None:
            return None
        mixed = np.where((label >= 0) & picks[label], other, base)
        memory = problem.memory(mixed)
        worst = int(memory.argmax())
        if memory[worst] <= budget:
            return mixed
        if worst in times:
            return None
        times.append(worst)


def _components(problem: Problem, nodes: Ints) -> list[list[int]]:
    inside = np.zeros(problem.num_nodes, dtype=bool)
    inside[nodes] = True
    both = inside[problem.edge_u] & inside[problem.edge_v]
    parent = {int(n): int(n) for n in nodes}

    def root(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    for u, v in zip(problem.edge_u[both].tolist(), problem.edge_v[both].tolist(), strict=True):
        a, b = root(u), root(v)
        parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for n in sorted(parent):
        groups.setdefault(root(n), []).append(n)
    return list(groups.values())


def _cost_changes(problem: Problem, base: Ints, other: Ints, label: Ints, count: int) -> Floats:
    """Returns what taking over each component changes in cost [components]."""
    change = np.zeros(count)
    nodes, edges = np.flatnonzero(label >= 0), _touched_edges(problem, label)
    np.add.at(change, label[nodes], _node_changes(problem, problem.node_table[nodes], nodes, base, other))
    np.add.at(change, _owners(problem, label)[edges], _edge_changes(problem, problem.edge_table[edges], edges, base, other))
    return change


def _byte_changes(problem: Problem, base: Ints, other: Ints, label: Ints, count: int, time: int) -> Floats:
    """Returns what taking over each component changes in memory at one time [components]."""
    change = np.zeros(count)
    nodes, edges, owners = problem.node_residents, problem.edge_residents, _owners(problem, label)
    rows = np.flatnonzero((nodes.start <= time) & (nodes.end >= time) & (label[nodes.owner] >= 0))
    np.add.at(change, label[nodes.owner[rows]], _node_changes(problem, nodes.table[rows], nodes.owner[rows], base, other))
    rows = np.flatnonzero((edges.start <= time) & (edges.end >= time) & (owners[edges.owner] >= 0))
    np.add.at(change, owners[edges.owner[rows]], _edge_changes(problem, edges.table[rows], edges.owner[rows], base, other))
    return change


def _node_changes(problem: Problem, tables: Ints, nodes: Ints, base: Ints, other: Ints) -> Floats:
    return problem.node_entries(tables, nodes, other) - problem.node_entries(tables, nodes, base)


def _edge_changes(problem: Problem, tables: Ints, edges: Ints, base: Ints, other: Ints) -> Floats:
    """Returns what changes in tables of edges when the component at an end (or both ends, of the same one) is taken over."""
    return problem.edge_entries(tables, edges, other, other) - problem.edge_entries(tables, edges, base, base)


def _owners(problem: Problem, label: Ints) -> Ints:
    """Returns the component that each edge touches, -1 for none [edges]; the two ends are never in different ones."""
    owners: Ints = np.maximum(label[problem.edge_u], label[problem.edge_v])
    return owners


def _touched_edges(problem: Problem, label: Ints) -> Ints:
    return np.flatnonzero(_owners(problem, label) >= 0)


def _knapsack(
    problem: Problem, base: Ints, other: Ints, label: Ints, gain: Floats, before: Floats, times: list[int], budget: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Chooses the components to take over at the times given; equal components are one integer variable. None where nothing fits."""
    count = len(gain)
    rows = np.array([_byte_changes(problem, base, other, label, count, t) for t in times]).reshape(len(times), count)
    kinds, member = np.unique(np.vstack([gain[None, :], rows]), axis=1, return_inverse=True)
    member = np.asarray(member).reshape(-1)
    size = np.bincount(member, minlength=kinds.shape[1])
    scale = float(np.abs(kinds[0]).max()) or 1.0
    room = np.array([budget - before[t] for t in times]) / max(budget, 1.0)
    constraints = [LinearConstraint(coo_array(kinds[1:] / max(budget, 1.0)).tocsr(), ub=room)] if times else []
    result = milp(
        kinds[0] / scale,
        constraints=constraints,
        integrality=np.ones(len(size)),
        bounds=(0, size),
        options={"mip_rel_gap": 1e-9, "node_limit": 20000},
    )
    if result.x is None:
        return None
    taken = np.round(result.x).astype(np.int64)
    rank = np.zeros(count, dtype=np.int64)
    for kind in range(len(size)):
        members = np.flatnonzero(member == kind)
        rank[members] = np.arange(len(members))
    picks: np.ndarray[tuple[int], np.dtype[np.bool_]] = rank < taken[member]
    return picks
