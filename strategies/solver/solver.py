"""Solve a choice problem at given prices of memory.

The solution is exact by elimination, or near a bound where tables would grow too wide.

Along one mesh axis elimination has always been enough. On several axes the states of a node are those of each axis
multiplied, and its tables often too wide; then `rhino.strategies.solver.dual.wide` finds a choice, and a bound on the
cost of every choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.dual.alike_problems import stages_of_other
from rhino.strategies.solver.dual.bounded_elimination import core_states, narrowed
from rhino.strategies.solver.dual.colour_refinement import Lifted
from rhino.strategies.solver.dual.dual_ascent import Ascent, Stage
from rhino.strategies.solver.dual.wide import Wide
from rhino.strategies.solver.elimination.by_node import Elimination, TableStore, TooWideError
from rhino.strategies.solver.elimination.in_batches import AnyElimination, BatchElimination, each, elimination_of, ranks
from rhino.strategies.solver.problem import Problem, Residents

Prices = dict[int, float]
"""Seconds per byte alive, by time."""


_OF_GAP = 0.1
"""The share of the gap at which a search is content that a solve at prices may leave.

The gap of prices comes on top.
"""


_FAR = 1 << 10
"""How many times wider than allowed an elimination must be for dominated states to be left in."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search may go, in steps.

    Steps are solves at prices, entries of one table, and states up to which a problem is finished by MILP.

    `gap` is the share of the cost at which a search is content. A search ends without an answer once its bound reaches
    `cutoff` (seconds): nothing that slow is asked for. Where tables are too wide, alike places are told apart by so
    many `rounds` of refinement, one after the other, with at most so many `passes` of an ascent at each. Without
    `seeks_least` it does not look for the least memory that choices take where that is far over the budget.
    """

    prices: int = 40
    table_entries: int = 1 << 24
    exact_below_states: int = 400
    gap: float = 1e-4
    rounds: tuple[int, ...] = (4, 8)
    passes: int = 240
    cutoff: float = np.inf
    seeks_least: bool = True


@dataclass(eq=False)
class Statistics:
    """What a search did, for reports: nodes and edges before and after exact reduction, solves made."""

    nodes: int = 0
    edges: int = 0
    states: int = 0
    core_nodes: int = 0
    core_edges: int = 0
    solves: int = 0
    widest_table: int = 0


@dataclass(eq=False)
class Reduced:
    """A problem at some prices, after the exact reductions: what is left is its core.

    `offset` is what the prices charge for memory that is there whatever is chosen, less the budget, in seconds. Solving
    it may end once the bound reaches `cutoff`, and accepts an optimality gap of the share `gap`.
    """

    elimination: AnyElimination
    offset: float
    gap: float
    cutoff: float


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The best choice found [nodes], its value at the prices, and a lower bound on all choices' values, in seconds.

    `left` is what is left of the problem, where more can be proven of it or found.
    """

    states: Ints
    value: float
    bound: float
    left: Left | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Left:
    """A search that has not come to its end.

    It is on the nodes that are left of an elimination, at a cost of `base` seconds for the others. `finer` says in
    which refinements the bound may be raised further.
    """

    elimination: AnyElimination
    nodes: list[int]
    base: float
    wide: Wide
    finer: tuple[Lifted, ...]

    def solved(self) -> Solved:
        """Returns where the search has come to."""
        wide = self.wide
        every = self.elimination.read_back(dict(zip(self.nodes, wide.states.tolist(), strict=True)))
        return Solved(every, wide.cost + self.base, wide.bound + self.base, self)


@dataclass(eq=False)
class Solver:
    """Solves one problem at one price after the other.

    Solves without prices share tables and remembered operations (`store`). At other prices hardly a table is the same,
    and those of one solve take up to gigabytes: they go with it.
    """

    problem: Problem
    limits: Limits = field(default_factory=Limits)
    store: TableStore = field(default_factory=TableStore)
    statistics: Statistics = field(default_factory=Statistics)
    order: list[int] | None = None
    """The order in which the first solve removed the nodes.

    Prices change tables, not the graph, so later solves follow it (in batches it is found anew).
    """
    is_wide: bool = False
    """Whether elimination was found to be too wide."""
    is_far_too_wide: bool = False
    """Whether it would be even if dominated states were dropped: finding these then takes longer than it saves."""
    last: Ints | None = None
    """The choice of the last solve where it was, with which the next one starts."""

    charged: _Charged | None = None
    """What edges charged their ends at its end, with which the next one starts too."""
    memory_prices: Prices = field(default_factory=dict)
    """Those of the highest bound under the last budget."""
    like: Solver | None = None
    """One of a problem that is much the same. It shares its store, and the first solve starts with its prices."""
    begun: Wide | None = field(default=None, init=False)
    """The first search where elimination was too wide."""

    def __post_init__(self) -> None:
        if self.like is not None:
            self.store = self.like.store

    @property
    def method(self) -> str:
        """How choices are found, in a few words."""
        return "prices and sweeps" if self.is_wide else "elimination"

    def reduce(self, prices: Prices | None = None, budget_bytes: float = 0.0, costs: bool = True) -> Reduced:
        """Returns the problem at `prices`, without dominated states.

        For the first solve it is also without nodes of degree 0, 1 and 2. With `costs` off, the prices are all that is
        charged.
        """
        prices = prices or {}
        store = TableStore() if prices else self.store
        elimination = self._eliminated(store, *self._charged(store, prices, costs))
        if self.order is None:
            self._note(elimination)
        offset = self._offset(prices, budget_bytes)
        gap = _OF_GAP * self.limits.gap if prices else self.limits.gap
        return Reduced(elimination, offset, gap, self.limits.cutoff if costs else np.inf)

    def priced(self, prices: Prices, budget_bytes: float) -> tuple[Problem, float]:
        """Returns the problem with memory at `prices` in its costs and no residents, and what is charged besides."""
        store, problem = TableStore(), self.problem
        nodes, edges = self._charged(store, prices, costs=True)
        priced = Problem(tuple(store.tables), nodes, problem.edge_u, problem.edge_v, edges)
        return priced, self._offset(prices, budget_bytes)

    def _offset(self, prices: Prices, budget_bytes: float) -> float:
        """Returns what prices charge for memory that is there whatever is chosen, less the budget, in seconds."""
        return sum(price * (float(self.problem.base_bytes[t]) - budget_bytes) for t, price in prices.items())

    def _eliminated(self, store: TableStore, node_costs: Ints, edge_costs: Ints) -> AnyElimination:
        """Returns an elimination with these tables after exact reductions."""
        elimination = elimination_of(self.problem, store, node_costs, edge_costs)
        if self.order is None:
            most = int(self.problem.num_states().max(initial=0))
            limit = self.limits.table_entries
            # a table over two neighbours and the node itself, before anything that takes time
            self.is_far_too_wide = (
                bool(self.problem.coordinates) and most**3 > limit and elimination.is_wider_than(_FAR * limit)
            )
        if self.is_far_too_wide:
            elimination.remove_chains()
            return elimination
        elimination.drop_dominated()
        if self.order is None:
            elimination.remove_chains()
            elimination.drop_dominated()
            elimination.remove_chains()
        return elimination

    def _charged(self, store: TableStore, prices: Prices, costs: bool) -> tuple[Ints, Ints]:
        """Returns the tables of nodes and of edges with the prices of their residents added."""
        problem = self.problem
        base = np.array([store.intern(table) for table in problem.tables], dtype=np.int64)
        plain = base if costs else each(base[:, None], lambda table: store.scale(table, 0.0))
        node_costs, edge_costs = plain[problem.node_table], plain[problem.edge_table]
        for residents, charged in (
            ((problem.node_residents, node_costs), (problem.edge_residents, edge_costs)) if prices else ()
        ):
            self._charge(store, charged, residents, base, prices)
        return node_costs, edge_costs

    @staticmethod
    def _charge(store: TableStore, charged: Ints, residents: Residents, base: Ints, prices: Prices) -> None:
        """Adds the prices of residents to the tables `charged` [owners], one after the other.

        `base` [tables] are the numbers of tables.
        """
        weight = _weights(residents, prices)
        rows = np.flatnonzero(weight)
        weights, number = np.unique(weight[rows], return_inverse=True)
        seconds = weights.tolist()
        added = each(
            np.column_stack([base[residents.table[rows]], number]), lambda table, at: store.scale(table, seconds[at])
        )
        owners = residents.owner[rows]
        turn = ranks(owners)
        for one in range(int(turn.max(initial=-1)) + 1):
            at = turn == one
            charged[owners[at]] = each(np.column_stack([charged[owners[at]], added[at]]), store.add)

    def _note(self, elimination: AnyElimination) -> None:
        core, s = elimination.core(), self.statistics
        s.nodes, s.edges, s.states = (
            self.problem.num_nodes,
            self.problem.num_edges,
            int(self.problem.num_states().sum()),
        )
        s.core_nodes, s.core_edges = len(core.nodes), core.num_edges

    def solve(self, reduced: Reduced) -> Solved:
        """Returns the best choice of a reduced problem, with the bound that comes with it.

        If elimination found the choice, the bound is its value. The bound is infinite where nothing is legal. Where a
        gap is left, `tighten` may close it.

        Raises:
            TooWideError: where nothing is known of mesh axes, and neither elimination nor MILP on the core has an
                answer in its limits.
        """
        self.statistics.solves += 1
        elimination, limit = reduced.elimination, self.limits.table_entries
        if self.is_wide:
            return self._wide(elimination, reduced)
        untouched = elimination.copy()
        try:
            if self.order is None or isinstance(elimination, BatchElimination):
                elimination.run(limit)
                self.order = elimination.order if isinstance(elimination, Elimination) else []
            else:
                elimination.replay(self.order, limit)
        except TooWideError:
            if not self.problem.coordinates:
                return _by_milp(untouched, reduced.offset)
            self.is_wide = True
            return self._wide(untouched, reduced)
        return self._solved(elimination, reduced)

    def _solved(self, elimination: AnyElimination, reduced: Reduced) -> Solved:
        """Returns what an elimination of all nodes has found."""
        self.statistics.widest_table = max(self.statistics.widest_table, elimination.widest)
        value = elimination.constant + reduced.offset
        return Solved(elimination.read_back(), value, value)

    def _wide(self, elimination: AnyElimination, reduced: Reduced) -> Solved:
        """Returns the best choice found near a bound where elimination is too wide."""
        limits = self.limits
        if self.order is not None and not self.is_far_too_wide:
            elimination = narrowed(elimination)  # it has not been taken as far as it goes
        nodes, core = elimination.core_problem()
        base = elimination.constant + reduced.offset
        if not nodes:
            return Solved(elimination.read_back(), base, base)
        start = (
            np.zeros(len(nodes), dtype=np.int64) if self.last is None else core_states(elimination, nodes, self.last)
        )
        wide = Wide(core, elimination.store, limits.table_entries, reduced.gap, start, reduced.cutoff - base)
        if self.charged is not None:
            wide.stages = (self.charged.on(elimination, nodes, core),)
        elif self.like is not None and self.like.begun is not None and self.like.begun.ascent is not None:
            wide.stages = stages_of_other(core, self.like.begun.problem, self.like.begun.ascent.stages)
        self.begun = self.begun or wide
        refinements = list(wide.lifted(limits.rounds))
        if refinements:
            wide.ascend(refinements[0], limits.passes)
        if wide.cost == np.inf and not wide.is_over:
            wide.sweep()
        # an ascent that began with the prices of another problem may have ended after a few passes: it can go on
        finer = refinements if wide.stages else refinements[1:]
        solved = Left(elimination, nodes, base, wide, tuple(finer)).solved()
        self.last = solved.states
        if wide.ascent is not None:
            self.charged = _Charged.of(wide.ascent, elimination, nodes, core)
        return solved

    def tighten(self, solved: Solved) -> Solved:
        """Returns a better choice, or the same one, with a higher bound.

        What elimination found is as good as it gets.
        """
        if solved.left is None:
            return solved
        wide, passes = solved.left.wide, self.limits.passes
        steps = [step for lifted in solved.left.finer for step in (wide.finish, partial(wide.ascend, lifted, passes))]
        for step in (*steps, wide.finish, wide.sweep, wide.finish):
            if not wide.is_done:
                step()
        solved = solved.left.solved()
        self.last = solved.states
        return solved


@dataclass(frozen=True, slots=True, eq=False)
class _Charged:
    """The prices at the ends of edges after an ascent, and the states that their nodes had then.

    States are numbered as in the problem.
    """

    prices: dict[tuple[int, int], tuple[Floats, Floats] | None]
    masks: dict[int, Ints]
    num_states: Ints

    @staticmethod
    def of(ascent: Ascent, elimination: AnyElimination, nodes: list[int], core: Problem) -> _Charged:
        ends = zip(core.edge_u.tolist(), core.edge_v.tolist(), strict=True)
        whole = ascent.stages[0]
        prices = {(nodes[u], nodes[v]): whole.prices(edge) for edge, (u, v) in enumerate(ends)}
        masks = {n: np.array(elimination.left(n), dtype=np.int64) for n in nodes}
        return _Charged(prices, masks, elimination.problem.num_states())

    def on(self, elimination: AnyElimination, nodes: list[int], core: Problem) -> Stage:
        """Returns the prices for a core of the same problem; none for states that were not there."""

        def at(edge: int) -> tuple[Floats, Floats] | None:
            ends = nodes[int(core.edge_u[edge])], nodes[int(core.edge_v[edge])]
            found = self.prices.get(ends)
            if found is None:
                return None
            first, second = (
                self.spread(n, price)[list(elimination.left(n))] for n, price in zip(ends, found, strict=True)
            )
            return first, second

        return Stage(at, lambda node: np.arange(len(elimination.left(nodes[node]))))

    def spread(self, node: int, price: Floats) -> Floats:
        every = np.zeros(int(self.num_states[node]))
        every[self.masks[node]] = price
        return every


def _by_milp(elimination: AnyElimination, offset: float) -> Solved:
    """Solves what is left of an elimination by MILP; its bound is the solver's.

    What costs besides comes on top: `offset`, in seconds.
    """
    elimination.remove_chains()
    nodes, problem = elimination.core_problem()
    base = elimination.constant + offset
    if not nodes:
        return Solved(elimination.read_back(), base, base)
    from rhino.strategies.solver.lp.solve_lp import solve_milp  # noqa: PLC0415 - loads LP solvers, seldom needed

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
