"""Solve a choice problem at given prices of memory: exactly by elimination; where tables would grow too wide, by sweeps and a bound.

Along one mesh axis elimination has always been enough. On several axes the states of a node are those of each axis multiplied, and its
tables often too wide; then sweeps (`rhino.strategies.sweep`) find a choice, and a lifted LP (`rhino.strategies.lift`) a bound on the cost
of every choice. That LP is nearly always whole, and the states that it uses then hold the optimum, which elimination finds among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rhino.strategies.answer import Answer
from rhino.strategies.eliminate import Elimination, TableStore, TooWideError
from rhino.strategies.problem import Floats, Ints, Problem, Residents
from rhino.strategies.sweep import Sweep

Prices = dict[int, float]
"""Seconds per byte alive, by time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search may go, in steps: solves at prices, entries of one table, states up to which a problem is finished by MILP.

    `gap` is the share of the cost at which a search is content. `rounds` are tried one after the other in the lifted LP, which may have
    `lp_columns` variables and take `lp_steps` steps.
    """

    prices: int = 40
    table_entries: int = 1 << 24
    exact_below_states: int = 400
    gap: float = 1e-4
    rounds: tuple[int, ...] = (4,)
    lp_columns: int = 1_000_000
    lp_steps: int = 200


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

    `offset` is what the prices charge for memory that is there whatever is chosen, less the budget, in seconds.
    """

    elimination: Elimination
    offset: float


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The best choice found [nodes], its value at the prices, and a lower bound on the value of every choice, in seconds.

    `left` is what is still to be proven: the problem that sweeps found the choice in.
    """

    states: Ints
    value: float
    bound: float
    left: Reduced | None = None


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
        return "sweeps over the mesh axes" if self.is_wide else "elimination"

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

    def solve(self, reduced: Reduced) -> Solved:
        """Returns the best choice of a reduced problem, with the bound that comes with it: its value, if it was found by elimination.

        The bound is infinite where nothing is legal, and minus infinity after sweeps: `tighten` has one.

        Raises:
            TooWideError: where there is one mesh axis, and neither elimination nor MILP on the core has an answer within their limits.
        """
        self.statistics.solves += 1
        if self.is_wide:
            return self._by_sweeps(reduced)
        elimination, limit = reduced.elimination, self.limits.table_entries
        untouched = Reduced(elimination.copy(), reduced.offset)
        try:
            if self.order is None:
                elimination.run(limit)
                self.order = [step.node for step in elimination.steps]
            else:
                elimination.replay(self.order, limit)
        except TooWideError:
            if not _has_axes(self.problem):
                return _by_milp(untouched)
            self.is_wide = True
            return self._by_sweeps(untouched)
        self.statistics.widest_table = max(self.statistics.widest_table, elimination.widest)
        value = elimination.constant + reduced.offset
        return Solved(elimination.read_back(), value, value)

    def _by_sweeps(self, reduced: Reduced) -> Solved:
        elimination = reduced.elimination
        nodes, core = elimination.core_problem()
        states = self._sweep(core).best(None if self.last is None else _positions(elimination, nodes, self.last))
        self.last = elimination.read_back(dict(zip(nodes, states.tolist(), strict=True)))
        value = core.cost(states) + elimination.constant + reduced.offset
        return Solved(self.last, value, -np.inf, reduced)

    def _sweep(self, core: Problem) -> Sweep:
        return Sweep(core, self.store, self.limits.table_entries)

    def tighten(self, solved: Solved) -> Solved:
        """Returns a better choice, or the same one, with a bound from lifted LPs; what elimination found is as good as it gets."""
        if solved.left is None:
            return solved
        from rhino.strategies.lift import find_classes, lifted_bound, num_columns  # noqa: PLC0415 - loads LP solvers

        elimination = solved.left.elimination
        nodes, core = elimination.core_problem()
        sweep, states = self._sweep(core), _positions(elimination, nodes, solved.states)
        base = elimination.constant + solved.left.offset
        bound = solved.bound if nodes else base
        for rounds in self.limits.rounds if nodes else ():
            classes = find_classes(core, rounds)
            if num_columns(core, classes) > self.limits.lp_columns:
                break
            lifted = lifted_bound(core, classes, self.limits.lp_steps)
            if lifted is None:
                break
            self.statistics.linear_programs += 1
            bound = max(bound, lifted.bound + base)
            if np.isinf(bound):
                break
            masks = [tuple(sorted({*used, state})) for used, state in zip(lifted.used, states.tolist(), strict=True)]
            mixed = sweep.within(masks)
            if mixed is not None and core.cost(mixed) < core.cost(states):
                states = sweep.descend(mixed, range(sweep.num_axes))
            value = core.cost(states) + base
            if value - bound <= self.limits.gap * abs(value):
                break
        self.last = elimination.read_back(dict(zip(nodes, states.tolist(), strict=True)))
        return Solved(self.last, core.cost(states) + base, bound)


def _has_axes(problem: Problem) -> bool:
    return bool(problem.coordinates) and problem.coordinates[0].shape[1] > 1


def _positions(elimination: Elimination, nodes: list[int], states: Ints) -> Ints:
    """Returns a choice of all nodes by the states that `nodes` have left; the first one where its own is gone."""
    masks = elimination.masks
    return np.array([masks[n].index(states[n]) if states[n] in masks[n] else 0 for n in nodes], dtype=np.int64)


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
