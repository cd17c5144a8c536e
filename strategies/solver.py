"""Solve a choice problem at given prices of memory: exactly by elimination, or by MILP on its core where tables would grow too wide."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhino.strategies.answer import Answer
from rhino.strategies.eliminate import Elimination, TableStore, TooWideError
from rhino.strategies.problem import Floats, Ints, Problem, Residents

Prices = dict[int, float]
"""Seconds per byte alive, by time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search may go, in steps: solves at prices, entries of one table, states up to which a problem is finished by MILP.

    `gap` is the share of the cost at which a search is content.
    """

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
    """A problem at some prices, after the exact reductions: what is left is its core.

    `offset` is what the prices charge for memory that is there whatever is chosen, less the budget, in seconds.
    """

    elimination: Elimination
    offset: float


@dataclass(eq=False)
class Solver:
    """Solves one problem at one price after the other. Tables and remembered operations are shared by the solves."""

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
        elimination = Elimination(self.problem, self.store, *self._charged(prices, costs))
        dropped = elimination.drop_dominated()
        if self.order is None:
            elimination.remove_chains()
            elimination.drop_dominated()
            elimination.remove_chains()
            self._note(elimination, dropped)
        offset = sum(price * (float(self.problem.base_bytes[t]) - budget_bytes) for t, price in prices.items())
        return Reduced(elimination, offset)

    def _charged(self, prices: Prices, costs: bool) -> tuple[list[int], list[int]]:
        """Returns the tables of nodes and of edges with the prices of their residents added."""
        problem, store = self.problem, self.store
        base = [store.intern(table) for table in problem.tables]
        plain = base if costs else [store.scale(table, 0.0) for table in base]
        node_costs = [plain[t] for t in problem.node_table.tolist()]
        edge_costs = [plain[t] for t in problem.edge_table.tolist()]
        for residents, charged in ((problem.node_residents, node_costs), (problem.edge_residents, edge_costs)):
            weight = _weights(residents, prices)
            for row in np.flatnonzero(weight).tolist():
                owner = int(residents.owner[row])
                charged[owner] = store.add(charged[owner], store.scale(base[residents.table[row]], float(weight[row])))
        return node_costs, edge_costs

    def _note(self, elimination: Elimination, dropped: int) -> None:
        core, s = elimination.core(), self.statistics
        s.nodes, s.edges, s.states = self.problem.num_nodes, self.problem.num_edges, int(self.problem.num_states().sum())
        s.dropped_states, s.core_nodes, s.core_edges = dropped, len(core.nodes), core.num_edges

    def solve(self, reduced: Reduced) -> tuple[Ints, float]:
        """Returns the best states of a reduced problem, and a lower bound on its value: the value itself, unless MILP ran out of steps.

        The bound is infinite where nothing is legal.

        Raises:
            TooWideError: where neither elimination nor MILP on the core has an answer within their limits.
        """
        self.statistics.solves += 1
        elimination, limit = reduced.elimination, self.limits.table_entries
        untouched = elimination.copy()
        try:
            if self.order is None:
                elimination.run(limit)
                self.order = [step.node for step in elimination.steps]
            else:
                elimination.replay(self.order, limit)
        except TooWideError:
            states, bound = _by_milp(untouched)
            return states, bound + reduced.offset
        self.statistics.widest_table = max(self.statistics.widest_table, elimination.widest)
        return elimination.read_back(), elimination.constant + reduced.offset


def _by_milp(elimination: Elimination) -> tuple[Ints, float]:
    """Solves what is left of an elimination by MILP; its bound is the solver's."""
    elimination.remove_chains()
    nodes, problem = elimination.core_problem()
    if not nodes:
        return elimination.read_back(), elimination.constant
    from rhino.strategies.lp import solve_milp  # noqa: PLC0415 - loads LP solvers, which most searches do not need

    outcome = solve_milp(problem)
    if not isinstance(outcome, Answer):
        raise TooWideError(0)
    return elimination.read_back(dict(zip(nodes, outcome.states.tolist(), strict=True))), elimination.constant + outcome.bound


def _weights(residents: Residents, prices: Prices) -> Floats:
    """Returns the seconds per byte that each resident is charged [residents]."""
    weight = np.zeros(len(residents))
    for time, price in sorted(prices.items()):
        weight[(residents.start <= time) & (residents.end >= time)] += price
    return weight
