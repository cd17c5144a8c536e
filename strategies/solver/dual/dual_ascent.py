"""A lower bound on a choice problem, and which states can be in a good choice, by prices on the ends of edges.

Every edge e = (u, v) may charge u and v for the states that they take. At prices p, every node and every edge takes its
least:

    bound = sum_u min_s (cost_u[s] + sum_e p_eu[s])  +  sum_e min_st (cost_e[s, t] - p_eu[s] - p_ev[t])

Every choice costs its bound at least, whatever the prices. The best prices are the duals of the local polytope
(`rhino.strategies.solver.lp.local_polytope`); they are raised here without an LP. A pass goes through the nodes in
order, forth and then back. A node first has each of its edges charge what it costs at least, state by state; then what
the node pays above its least is handed out in equal shares to the edges that lead on. No such step lowers the bound.
Passes by themselves crawl where prices move by the same little every time, so every few of them a step is made as far
as the last ones went, and farther as long as that pays; it is taken back where not.

Alike edges have the same prices (`rhino.strategies.solver.dual.colour_refinement`), so a pass takes as long for 72
layers as for 12. Nodes of one group may be in several classes; then an edge is handed the least that one of them would
hand it, state by state, for no bound to fall.

A pair that is not legal costs more than any choice here. That can only lower the bound.

On large problems passes compute in single precision, in less than half the time: any prices prove a bound. For numbers
to stay near those that matter, an edge then charges no state more than a few times the bound. What is proven is
computed in double precision, after one pass in it that makes good what rounding has lost.

Source: sequential tree-reweighted message passing (Kolmogorov 2006), in the form of Kolmogorov (2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rhino.ir.arrays import Floats
from rhino.strategies.solver.dual.colour_refinement import End, Lifted
from rhino.strategies.solver.problem import starts

_PERIOD, _GROWTH = 3, 1.2
"""Passes between steps, and by how much a step grows that paid.

Measured 2026-11-21 on a ResNet, a mixture of experts and GPTs on two axes: periods of 2 to 5 and growths of 1.2 to 2
came within a factor of two of each other, five to ten times ahead of passes alone."""

_LARGE: Final = 1 << 20
"""Entries of tables from which on passes are made in single precision."""

_MOST: Final = 4.0
"""Where passes are made in single precision, how many times the bound an edge may charge, or a node hand on."""


class _Pull(NamedTuple):
    """One end of an edge: `paid` [states] takes what it can charge there.

    `price` takes it as well where the edge does not lead on from here. `table` is [states of the other end, states],
    `other` the prices there as a column, and `room` takes their difference.
    """

    paid: Floats
    table: Floats
    other: Floats
    room: Floats
    price: Floats | None


class _Share(NamedTuple):
    """A node: its costs, what edges charge it, and which share each edge that leads on gets.

    An edge charges once, or as often as a number says.
    """

    cost: Floats
    once: list[Floats]
    often: list[tuple[int, Floats]]
    share: float


class _Push(NamedTuple):
    """One end of an edge that leads on.

    It has its prices, what the edge can charge, and which nodes of the visit hand to it.
    """

    price: Floats
    paid: Floats
    nodes: tuple[int, ...]


class _Visit(NamedTuple):
    """What is done at a group of nodes in one direction."""

    pulls: list[_Pull]
    shares: list[_Share]
    pushes: list[_Push]


Start = Callable[[int], tuple[Floats, Floats] | None]
"""The prices at the ends of an edge that an ascent begins with, None for none."""


class Passes:
    """Prices, and the passes that raise them.

    `tables` are those of edges as either end sees them, [states of the other end, states of the end]. `prices` are at
    both ends of each edge, `every` is all of them as one vector.
    """

    def __init__(self, lifted: Lifted, costs: list[Floats], tables: list[tuple[Floats, Floats]]) -> None:
        self.lifted, self.costs, self.tables = lifted, costs, tables
        kind = costs[0].dtype if costs else np.dtype(np.float64)
        self._room = np.empty(max([table.size for table, _ in tables], default=0), dtype=kind)
        self.every, self.prices = self._vector(kind)
        _, self.paid = self._vector(kind)
        self._visits = [self._plan(backward=False), self._plan(backward=True)]
        self._onward = self._pulls_onward()

    def _vector(self, kind: np.dtype[Any]) -> tuple[Floats, list[tuple[Floats, Floats]]]:
        """Returns room for a number for each state at each end of each edge, as one vector and as views of it."""
        sizes = np.array([table.shape[1] for pair in self.tables for table in pair], dtype=np.int64)
        every = np.zeros(int(sizes.sum()), dtype=kind)
        views = [every[a : a + n] for a, n in zip(starts(sizes).tolist(), sizes.tolist(), strict=True)]
        return every, list(zip(views[::2], views[1::2], strict=True))

    # What a pass does

    def _plan(self, *, backward: bool) -> list[_Visit]:
        members: dict[int, list[int]] = {}
        for c, group in enumerate(self.lifted.group):
            members.setdefault(group, []).append(c)
        return [self._visit(members[group], backward) for group in sorted(members, reverse=backward)]

    def _visit(self, members: list[int], backward: bool) -> _Visit:
        ends = {(e, side): self._leads_on(e, side, backward) for c in members for e, side, _ in self.lifted.ends[c]}
        pulls = [self._pull(e, side, self.prices[e][side]) for (e, side), on in ends.items() if not on]
        # Where both ends are here, the prices at the other one have just changed; elsewhere `paid` is still what it
        # was.
        pulls += [self._pull(e, side, None) for (e, side), on in ends.items() if on and self._is_within(e)]
        shares, nodes_of = [], dict[tuple[int, int], list[int]]()
        for number, c in enumerate(members):
            met = self.lifted.ends[c]
            shares.append(self._share(c, met, [end for end in met if ends[end[:2]]]))
            for e, side, _ in met:
                if ends[e, side]:
                    nodes_of.setdefault((e, side), []).append(number)
        pushes = [
            _Push(self.prices[e][side], self.paid[e][side], tuple(nodes)) for (e, side), nodes in nodes_of.items()
        ]
        return _Visit(pulls, shares, pushes)

    def _leads_on(self, e: int, side: int, backward: bool) -> bool:
        """Says whether an edge leads from its end at `side` to where a pass comes later.

        Among equals, u comes first.
        """
        here, there = self.lifted.edge_groups[e][side], self.lifted.edge_groups[e][1 - side]
        return (here < there if here != there else side == 0) != backward

    def _is_within(self, e: int) -> bool:
        """Says whether both ends of an edge are visited at the same time."""
        first, second = self.lifted.edge_groups[e]
        return first == second

    def _pull(self, e: int, side: int, price: Floats | None) -> _Pull:
        table = self.tables[e][side]
        return _Pull(self.paid[e][side], table, self.prices[e][1 - side][:, None], self._room_for(table), price)

    def _room_for(self, table: Floats) -> Floats:
        """Returns room for a table, in its order in memory. All share it, so that it stays in a processor's cache."""
        room = self._room[: table.size]
        return room.reshape(table.shape) if table.flags.c_contiguous else room.reshape(table.shape[::-1]).T

    def _pulls_onward(self) -> list[_Pull]:
        """Returns what a pass reads before it has computed it: what edges that lead on can charge."""
        ends = [(e, side) for e in range(len(self.tables)) for side in (0, 1) if not self._is_within(e)]
        return [self._pull(e, side, None) for e, side in ends if self._leads_on(e, side, backward=False)]

    def _share(self, c: int, met: list[End], onward: list[End]) -> _Share:
        once = [self.paid[e][side] for e, side, count in met if count == 1]
        often = [(count, self.paid[e][side]) for e, side, count in met if count > 1]
        leading = sum(count for *_, count in onward)
        return _Share(self.costs[c], once, often, 1.0 / max(leading, sum(count for *_, count in met) - leading, 1))

    def go_to(self, prices: Floats) -> None:
        """Takes prices, from which a pass may begin."""
        self.every[:] = prices
        for paid, table, other, room, _ in self._onward:
            np.minimum.reduce(np.subtract(table, other, room), out=paid)

    def run(self, most: float | None = None) -> None:
        """Makes a pass; no edge charges more than `most`, and no node hands on more."""
        for visits in self._visits:
            for visit in visits:
                _at(visit, most)

    # What prices prove

    def value(self) -> float:
        """Returns the bound that the prices prove."""
        return self._of_nodes() + self._of_edges(range(len(self.tables)))

    def value_after_pass(self) -> float:
        """Returns the bound that the prices prove after a pass.

        The last that is done at an edge is to have it charge what it can. So it costs nothing itself, but perhaps where
        both its ends are visited at the same time.
        """
        return self._of_nodes() + self._of_edges([e for e in range(len(self.tables)) if self._is_within(e)])

    def _of_nodes(self) -> float:
        return sum(count * _least(self.charged(c)) for c, count in enumerate(self.lifted.num_nodes))

    def _of_edges(self, edges: Sequence[int]) -> float:
        return sum(self.lifted.num_edges[e] * _least(self.can_charge(e, 0) - self.prices[e][0]) for e in edges)

    def can_charge(self, e: int, side: int) -> Floats:
        """Returns the most that an edge can charge one of its ends without a state that pays it [states]."""
        table = self.tables[e][side]
        most: Floats = np.minimum.reduce(np.subtract(table, self.prices[e][1 - side][:, None], self._room_for(table)))
        return most

    def charged(self, c: int) -> Floats:
        """Returns the costs of a node with what edges charge it [states]."""
        total: Floats = self.costs[c].copy()
        for e, side, count in self.lifted.ends[c]:
            total += count * self.prices[e][side]
        return total


class Ascent:
    """Prices of one problem, raised pass by pass.

    `bound` is the best so far, infinite once nothing is found to be legal.
    """

    def __init__(self, lifted: Lifted, start: Start | None = None) -> None:
        """Starts from the prices that `start` gives, or from none."""
        self.lifted = lifted
        problem = lifted.problem
        used = np.bincount(np.concatenate([problem.node_table, problem.edge_table]), minlength=len(problem.tables))
        most = float(used @ np.array([np.abs(table[np.isfinite(table)]).max(initial=0.0) for table in problem.tables]))
        self.barred = 3.0 * most or 1.0
        node_tables, edge_tables = problem.node_table[lifted.node].tolist(), problem.edge_table[lifted.edge].tolist()
        is_large = sum([problem.tables[table].size for table in edge_tables]) >= _LARGE
        finite = [np.where(np.isfinite(table), table, self.barred) for table in problem.tables]
        costs = [finite[table] for table in node_tables]
        flipped = {
            table: finite[table].T if is_large else np.ascontiguousarray(finite[table].T) for table in edge_tables
        }
        self.tables = [(flipped[table], finite[table]) for table in edge_tables]
        self._exact = Passes(lifted, costs, self.tables)
        self.prices = self._exact.prices
        self._rough: Passes | None = None
        if is_large:
            rough = {table: finite[table].astype(np.float32) for table in edge_tables}
            turned = {table: np.ascontiguousarray(one.T) for table, one in rough.items()}
            pairs = [(turned[table], rough[table]) for table in edge_tables]
            self._rough = Passes(lifted, [one.astype(np.float32) for one in costs], pairs)
        if start is not None:
            for pair, first in zip(self.prices, lifted.edge, strict=True):
                for price, old in zip(pair, start(first) or (), strict=False):
                    price[:] = old
        self._step = 1.0
        self.bound = self._or_illegal(self._exact.value())

    def at(self, edge: int) -> tuple[Floats, Floats]:
        """Returns the prices at the ends of an edge of the problem."""
        return self.prices[int(self.lifted.classes.edge[edge])]

    def charged(self, c: int) -> Floats:
        """Returns the costs of a node with what edges charge it [states]."""
        return self._exact.charged(c)

    def _or_illegal(self, value: float) -> float:
        """Returns a bound, infinite if it shows that nothing is legal.

        Legal choices cost a third of `barred` at most, others two thirds at least.
        """
        return np.inf if value > self.barred / 2 else value

    def run(self, passes: int, enough: float = np.inf) -> float:
        """Makes at least so many passes, or until the bound is `enough`.

        Returns the best bound so far, which the prices then prove.
        """
        if self._rough is None:
            begun = self._exact.every.copy()
            best, self.bound = self._raise(self._exact, begun, self.bound, passes, enough)
            self._exact.go_to(best)
            return self.bound
        return self._run_roughly(passes, enough)

    def _run_roughly(self, passes: int, enough: float) -> float:
        """Makes passes in single precision, and one in double precision that makes good what rounding has lost."""
        assert self._rough is not None
        exact, begun = self._exact, self._exact.every.copy()
        most = _MOST * self.bound if 0.0 < self.bound < np.inf else self.barred
        best, _ = self._raise(self._rough, begun.astype(np.float32), -np.inf, passes, enough, most)
        exact.go_to(best)
        exact.run(most)
        value = self._or_illegal(exact.value_after_pass())
        if value >= self.bound:
            self.bound = value
        else:
            exact.go_to(begun)
        return self.bound

    def _raise(
        self, engine: Passes, best: Floats, reached: float, passes: int, enough: float, most: float | None = None
    ) -> tuple[Floats, float]:
        """Makes passes from prices that prove `reached`; returns the best prices found, and what they prove."""
        engine.go_to(best)
        for _ in range(0, passes, _PERIOD):
            if reached >= enough:
                break
            for _ in range(_PERIOD):
                engine.run(most)
            value = self._or_illegal(engine.value_after_pass())
            if value < reached:
                engine.go_to(best)
                self._step /= _GROWTH**2
                continue
            reached, last, best = value, best, engine.every.copy()
            engine.go_to(best + np.asarray(self._step, dtype=best.dtype) * (best - last))
            self._step *= _GROWTH
        return best, reached

    def excess(self) -> list[Floats]:
        """Returns by class of nodes what each state costs more than the bound.

        No choice with one node in it costs less [states].
        """
        above = []
        for e, prices in enumerate(self.prices):
            least = [self._exact.can_charge(e, side) - price for side, price in enumerate(prices)]
            above.append([one - _least(one) for one in least])
        found = []
        for c, met in enumerate(self.lifted.ends):
            charged = self.charged(c)
            charged -= _least(charged)
            for e, side, count in met:
                charged += count * above[e][side]
            found.append(charged)
        return found


def _least(vector: Floats) -> float:
    """Returns the least number, in a quarter of the time of NumPy's `min`."""
    return float(vector[vector.argmin()])


def _at(visit: _Visit, most: float | None) -> None:
    """Does what there is to do at a group of nodes; nothing over `most` is charged or passed on."""
    for paid, table, other, room, price in visit.pulls:
        np.minimum.reduce(np.subtract(table, other, room), out=paid)
        if most is not None:
            np.minimum(paid, most, out=paid)
        if price is not None:
            price[:] = paid
    if not visit.pushes:
        return
    pushed = []
    for cost, once, often, share in visit.shares:
        total = cost.copy()
        for paid in once:
            total += paid
        for count, paid in often:
            total += count * paid
        total -= _least(total)
        if most is not None:
            np.minimum(total, most, out=total)
        total *= share
        pushed.append(total)
    for price, paid, nodes in visit.pushes:
        least = pushed[nodes[0]]
        for number in nodes[1:]:
            least = np.minimum(least, pushed[number])
        np.subtract(paid, least, price)
