"""Solve a choice problem at given prices of memory: exactly by elimination; where tables would grow too wide, by sweeps and a bound.

Along one mesh axis elimination has always been enough. On several axes the states of a node are those of each axis multiplied, and its
tables often too wide; then sweeps (`rhino.strategies.sweep`) find a choice, and a lifted LP (`rhino.strategies.lift`) a bound on the cost
of every choice. That LP is nearly always whole, and the states that it uses then hold the optimum, which elimination finds among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rhino.strategies.answer import Answer
from rhino.strategies.eliminate import Elimination, TableStore, TooWideError
from rhino.strategies.lift import find_classes, floor_bound, lifted_bound, num_pairs
from rhino.strategies.problem import Floats, Ints, Problem, Residents
from rhino.strategies.sweep import Sweep

Prices = dict[int, float]
"""Seconds per byte alive, by time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search may go, in steps: solves at prices, entries of one table, states up to which a problem is finished by MILP.

    `gap` is the share of the cost at which a search is content. `rounds` are tried one after the other in the lifted LP, which may weigh
    `lp_pairs` pairs of states and take `lp_steps` steps.
    """

    prices: int = 40
    table_entries: int = 1 << 24
    exact_below_states: int = 400
    gap: float = 1e-4
    rounds: tuple[int, ...] = (2, 4)
    lp_pairs: int = 1_000_000
    lp_steps: int = 1000


@dataclass(eq=False)
class Statistics:
    """What a search did, for reports: nodes and edges before and after exact reduction, states dropped, solves made, LPs solved."""

    nodes: int = 0
    edges: int = 0
    states: int = 0
    dropped_states: int = 0
    core_nodes: int = 0
    core_edges: int = 0
    solves: int = 0
    widest_table: int = 0
    linear_programs: int = 0


@dataclass(eq=False)
class Reduced:
    """A problem at some prices, after the exact reductions: what is left is its core.

    `offset` is what the prices charge for memory that is there whatever is chosen, less the budget, in seconds. `cones` is the problem
    before nodes of degree 2 went: their removal joins states of both ends, which sweeps along one axis want apart.
    """

    elimination: Elimination
    offset: float
    cones: Elimination


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The best choice found [nodes], its value at the prices, and a lower bound on the value of every choice, in seconds.

    `left` is the problem that it was found in, where more can be proven of it: by an LP of more than `rounds`.
    """

    states: Ints
    value: float
    bound: float
    left: Reduced | None = None
    rounds: int = 0


@dataclass(eq=False)
class Solver:
    """Solves one problem at one price after the other. Tables and remembered operations are shared by the solves."""

    problem: Problem
    limits: Limits = field(default_factory=Limits)
    store: TableStore = field(default_factory=TableStore)
    statistics: Statistics = field(default_factory=Statistics)
    order: list[int] | None = None
    """The order in which the first solve removed the nodes; prices change tables, not the graph, so later solves follow it."""
    is_wide: bool = False
    """Whether elimination was found to be too wide: sweeps then take its place."""
    last: Ints | None = None
    """The choice of the last solve by sweeps, from which the next one starts."""

    @property
    def method(self) -> str:
        """How choices are found, in a few words."""
        return "a lifted LP and sweeps" if self.is_wide else "elimination"

    def reduce(self, prices: Prices | None = None, budget_bytes: float = 0.0, costs: bool = True) -> Reduced:
        """Returns the problem at `prices`, without dominated states, and for the first solve without nodes of degree 0, 1 and 2.

        With `costs` off, the prices are all that is charged.
        """
        prices = prices or {}
        elimination = Elimination(self.problem, self.store, *self._charged(prices, costs))
        dropped = elimination.drop_dominated()
        cones = elimination
        if self.order is None:
            elimination.remove_chains(degree=1)
            cones = elimination.copy()
            elimination.remove_chains()
            elimination.drop_dominated()
            elimination.remove_chains()
            self._note(elimination, dropped)
        offset = sum(price * (float(self.problem.base_bytes[t]) - budget_bytes) for t, price in prices.items())
        return Reduced(elimination, offset, cones)

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

    def solve(self, reduced: Reduced) -> Solved:
        """Returns the best choice of a reduced problem, with the bound that comes with it: its value, if it was found by elimination.

        The bound is infinite where nothing is legal, and low after sweeps: `tighten` has a better one.

        Raises:
            TooWideError: where nothing is said of mesh axes, and neither elimination nor MILP on the core has an answer in its limits.
        """
        self.statistics.solves += 1
        if self.is_wide:
            return self._wide(reduced)
        elimination, limit = reduced.elimination, self.limits.table_entries
        untouched = Reduced(elimination.copy(), reduced.offset, reduced.cones)
        try:
            if self.order is None:
                elimination.run(limit)
                self.order = [step.node for step in elimination.steps]
            else:
                elimination.replay(self.order, limit)
        except TooWideError:
            if not self.problem.coordinates:
                return _by_milp(untouched)
            self.is_wide = True
            return self._wide(untouched)
        self.statistics.widest_table = max(self.statistics.widest_table, elimination.widest)
        value = elimination.constant + reduced.offset
        return Solved(elimination.read_back(), value, value)

    def _wide(self, reduced: Reduced) -> Solved:
        """Returns the best choice found where elimination is too wide: the first time by LP, then by sweeps from the last choice."""
        first = self._by_lp(reduced, self.limits.rounds[0]) if self.last is None and self.limits.rounds else None
        if first is None or (first.value == np.inf and first.bound < np.inf):
            return self._by_sweeps(reduced)
        self.last = first.states
        return first

    def _by_sweeps(self, reduced: Reduced) -> Solved:
        """Returns what sweeps find, from the last choice if there is one."""
        elimination = reduced.cones
        nodes, core = elimination.core_problem()
        start = None if self.last is None else elimination.positions(nodes, self.last)
        states = Sweep(core, self.store, self.limits.table_entries).best(start)
        self.last = elimination.read_back(dict(zip(nodes, states.tolist(), strict=True)))
        value = core.cost(states) + elimination.constant + reduced.offset
        return Solved(self.last, value, floor_bound(core) + elimination.constant + reduced.offset, reduced)

    def _by_lp(self, reduced: Reduced, rounds: int) -> Solved | None:
        """Returns the best choice among the states that a lifted LP uses, with its bound; None where there is no LP or it is too large."""
        elimination = reduced.elimination
        nodes, core = elimination.core_problem()
        base = elimination.constant + reduced.offset
        if not nodes:
            return Solved(elimination.read_back(), base, base)
        classes = find_classes(core, rounds)
        if num_pairs(core, classes) > self.limits.lp_pairs:
            return None
        self.statistics.linear_programs += 1
        lifted = lifted_bound(core, classes, self.limits.lp_steps)
        if lifted is None:
            return None
        if lifted.bound == np.inf:
            return Solved(elimination.read_back(dict.fromkeys(nodes, 0)), np.inf, np.inf)
        states = Sweep(core, self.store, self.limits.table_entries).within(lifted.used)
        if states is None:
            return Solved(elimination.read_back(dict.fromkeys(nodes, 0)), np.inf, lifted.bound + base, reduced, rounds)
        every = elimination.read_back(dict(zip(nodes, states.tolist(), strict=True)))
        return Solved(every, core.cost(states) + base, lifted.bound + base, reduced, rounds)

    def tighten(self, solved: Solved) -> Solved:
        """Returns a better choice, or the same one, with a bound from lifted LPs; what elimination found is as good as it gets."""
        left = solved.left
        if left is None:
            return solved
        solved = self._swept(solved, left)
        for rounds in self.limits.rounds:
            if rounds <= solved.rounds or self._is_close(solved):
                continue
            tried = self._by_lp(left, rounds)
            if tried is None or tried.bound == np.inf:
                return tried or solved
            better = min(solved, tried, key=lambda one: one.value)
            solved = self._swept(replace(better, bound=max(solved.bound, tried.bound), left=left, rounds=rounds), left)
        self.last = solved.states
        return solved

    def _swept(self, solved: Solved, left: Reduced) -> Solved:
        """Returns what sweeps make of a choice with a gap."""
        if self._is_close(solved):
            return solved
        self.last = solved.states if solved.value < np.inf else None
        swept = self._by_sweeps(left)
        return replace(swept, bound=solved.bound, rounds=solved.rounds) if swept.value < solved.value else solved

    def _is_close(self, solved: Solved) -> bool:
        return solved.value - solved.bound <= self.limits.gap * abs(solved.value)


def _by_milp(reduced: Reduced) -> Solved:
    """Solves what is left of an elimination by MILP; its bound is the solver's."""
    elimination = reduced.elimination
    elimination.remove_chains()
    nodes, problem = elimination.core_problem()
    base = elimination.constant + reduced.offset
    if not nodes:
        return Solved(elimination.read_back(), base, base)
    from rhino.strategies.lp import solve_milp  # noqa: PLC0415 - loads LP solvers, which most searches do not need

    outcome = solve_milp(problem)
    if not isinstance(outcome, Answer):
        raise TooWideError(0)
    states = elimination.read_back(dict(zip(nodes, outcome.states.tolist(), strict=True)))
    return Solved(states, outcome.cost + base, outcome.bound + base)


def _weights(residents: Residents, prices: Prices) -> Floats:
    """Returns the seconds per byte that each resident is charged [residents]."""
    weight = np.zeros(len(residents))
    for time, price in sorted(prices.items()):
        weight[(residents.start <= time) & (residents.end >= time)] += price
    return weight
