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

States that cost more than a choice at hand may be left out for good (`Ascent.narrow`): no better choice has them, and
tables become smaller.

Source: sequential tree-reweighted message passing (Kolmogorov 2006), in the form of Kolmogorov (2015).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.strategies.solver.dual.colour_refinement import Lifted
from rhino.strategies.solver.dual.merged_tables import MergedTable
from rhino.strategies.solver.dual.price_passes import Passes, least_of

_PERIOD, _GROWTH = 3, 1.2
"""Passes between steps, and by how much a step grows that paid.

Measured 2026-11-21 on a ResNet, a mixture of experts and GPTs on two axes: periods of 2 to 5 and growths of 1.2 to 2
came within a factor of two of each other, five to ten times ahead of passes alone."""

_LARGE: Final = 1 << 20
"""Entries of tables from which on passes are made in single precision."""

_WORTH: Final = 0.6
"""The share of the entries of tables that may be left where leaving out states is worth it."""

_MOST: Final = 4.0
"""Where passes are made in single precision, how many times the bound an edge may charge, or a node pass on."""


_ROUNDING: Final = 1e-5
"""By which share of a bound passes in single precision may be off."""


Start = Callable[[int], tuple[Floats, Floats] | None]
"""The prices at the ends of an edge of a problem that an ascent begins with, None for none."""


Left = Callable[[int], Ints]
"""The states of a node of a problem that are not left out."""


class Stage(NamedTuple):
    """What an ascent came to before it left out states: the prices at the ends of an edge, and the states of a node.

    Prices are of all states, and zero for those that had been left out by then. Those from before and from after that
    do not go together: what they prove is below zero.
    """

    prices: Start
    left: Left


class Ascent:
    """Prices of one problem, raised pass by pass.

    `bound` is the best so far, infinite once nothing is found to be legal.
    """

    def __init__(self, lifted: Lifted, stages: Sequence[Stage] = ()) -> None:
        """Goes on from the last of some stages, or from no prices with all states."""
        self.lifted = lifted
        problem = lifted.problem
        used = np.bincount(np.concatenate([problem.node_table, problem.edge_table]), minlength=len(problem.tables))
        most = float(used @ np.array([np.abs(table[np.isfinite(table)]).max(initial=0.0) for table in problem.tables]))
        self.barred = 3.0 * most or 1.0
        node_tables, edge_tables = problem.node_table[lifted.node].tolist(), problem.edge_table[lifted.edge].tolist()
        self._is_large = sum([problem.tables[table].size for table in edge_tables]) >= _LARGE
        finite = {
            number: np.where(np.isfinite(table := problem.tables[number]), table, self.barred)
            for number in sorted({*node_tables, *edge_tables})
        }
        merged = {number: MergedTable.of(finite[number]) for number in sorted(set(edge_tables))}
        costs, tables = [finite[table] for table in node_tables], [merged[table] for table in edge_tables]
        first_of = dict(zip(reversed(lifted.group), reversed(lifted.node), strict=True))
        every = [np.arange(len(problem.tables[problem.node_table[node]])) for _, node in sorted(first_of.items())]
        self.left = [stages[-1].left(node) for _, node in sorted(first_of.items())] if stages else every
        """By group, the states that are not left out."""
        if sum(map(len, self.left)) < sum(map(len, every)):
            costs, tables = self._sliced(costs, tables, self.left)
        self._build(costs, tables)
        if stages:
            self._price(self._given(stages[-1]))
        self._stages = list(stages[:-1])
        self._step = 1.0
        self.bound = self._or_illegal(self._exact.value())

    def _build(self, costs: list[Floats], tables: list[MergedTable]) -> None:
        """Makes ready for passes with the states that are left, without prices."""
        self.tables = tables
        each = {id(table): table for table in tables}
        turned = {number: one.turned() if self._is_large else one.turned().contiguous() for number, one in each.items()}
        pairs = [(turned[id(table)], table) for table in tables]
        self._exact = Passes(self.lifted, costs, pairs, self.left)
        self.prices = self._exact.prices
        self._rough: Passes | None = None
        if self._is_large:
            rough = {number: one.single() for number, one in each.items()}
            turned = {number: one.turned().contiguous() for number, one in rough.items()}
            pairs = [(turned[id(table)], rough[id(table)]) for table in tables]
            self._rough = Passes(self.lifted, [one.astype(np.float32) for one in costs], pairs, self.left)

    def _ends(self) -> Iterator[tuple[Ints, Ints]]:
        """Yields the states that are left at both ends of each edge."""
        for first, second in self.lifted.edge_groups:
            yield self.left[first], self.left[second]

    def narrow(self, room: float) -> None:
        """Leaves out for good the states that cost more than `room` above the bound.

        What is proven from then on is proven of choices without them. As making tables smaller takes as long as a few
        passes, nothing is done where fewer than `_WORTH` says would go.
        """
        if not self._is_large or not np.isfinite(room):
            return
        within: dict[int, Bools] = {}
        for group, excess in zip(self.lifted.group, self._excess(), strict=True):
            within[group] = within.get(group, False) | (excess <= room)
        kept = [np.flatnonzero(within[group]) for group in range(len(self.left))]
        entries = self._entries(kept)
        if not all(map(len, kept)) or entries > _WORTH * self._entries(self.left):
            return
        self._stages.append(self._stage())
        before = [
            (first[kept[u]], second[kept[v]])
            for (first, second), (u, v) in zip(self.prices, self.lifted.edge_groups, strict=True)
        ]
        costs, tables = self._sliced(self._exact.costs, self.tables, kept)
        self.left = [states[here] for states, here in zip(self.left, kept, strict=True)]
        self._build(costs, tables)
        self._price(before)
        self.bound = max(self.bound, self._or_illegal(self._exact.value()))

    def _entries(self, left: Sequence[Ints]) -> int:
        """Returns the pairs of states that edges have with some states of each group."""
        return sum([len(left[first]) * len(left[second]) for first, second in self.lifted.edge_groups])

    def _sliced(
        self, costs: list[Floats], tables: list[MergedTable], kept: Sequence[Ints]
    ) -> tuple[list[Floats], list[MergedTable]]:
        """Returns costs and tables with some of the states of each group; what is equal stays one."""
        numbers: dict[bytes, int] = {}
        of_group = [numbers.setdefault(states.tobytes(), len(numbers)) for states in kept]
        known: dict[tuple[int, int, int], MergedTable] = {}
        found = []
        for table, (first, second) in zip(tables, self.lifted.edge_groups, strict=True):
            key = id(table), of_group[first], of_group[second]
            if key not in known:
                known[key] = table.part(kept[first], kept[second])
            found.append(known[key])
        return [cost[kept[group]] for cost, group in zip(costs, self.lifted.group, strict=True)], found

    def _price(self, prices: Sequence[tuple[Floats, Floats]]) -> None:
        """Takes prices of the states that are left, by class of edges."""
        for pair, given in zip(self.prices, prices, strict=True):
            for price, one in zip(pair, given, strict=True):
                price[:] = one

    def _given(self, stage: Stage) -> list[tuple[Floats, Floats]]:
        """Returns the prices of a stage of the states that are left, by class of edges; those there are where none."""
        found = []
        for first, own, (u, v) in zip(self.lifted.edge, self.prices, self._ends(), strict=True):
            given = stage.prices(first)
            found.append(own if given is None else (given[0][u], given[1][v]))
        return found

    def take(self, stage: Stage) -> bool:
        """Takes the prices of a stage, if they are of all states that are left, and prove more; says whether so."""
        of_group = dict(zip(reversed(self.lifted.group), reversed(self.lifted.node), strict=True))
        if any(not np.isin(states, stage.left(of_group[group])).all() for group, states in enumerate(self.left)):
            return False
        before = [(u.copy(), v.copy()) for u, v in self.prices]
        self._price(self._given(stage))
        value = self._or_illegal(self._exact.value())
        if value <= self.bound:
            self._price(before)
            return False
        self.bound = value
        return True

    def _stage(self) -> Stage:
        """Returns what the ascent has come to."""
        classes, groups, left = self.lifted.classes, self.lifted.edge_groups, list(self.left)
        prices = [(u.copy(), v.copy()) for u, v in self.prices]
        problem, num_states = self.lifted.problem, self.lifted.problem.num_states()

        def at(edge: int) -> tuple[Floats, Floats]:
            number, found = int(classes.edge[edge]), []
            ends = int(problem.edge_u[edge]), int(problem.edge_v[edge])
            for node, price, group in zip(ends, prices[number], groups[number], strict=True):
                every = np.zeros(int(num_states[node]))
                every[left[group]] = price
                found.append(every)
            return found[0], found[1]

        return Stage(at, lambda node: left[int(classes.group[node])])

    def left_of(self, node: int) -> Ints:
        """Returns the states of a node of the problem that are not left out."""
        return self.left[int(self.lifted.classes.group[node])]

    @property
    def stages(self) -> list[Stage]:
        """What the ascent has come to so far, from the stage with all states on."""
        return [*self._stages, self._stage()]

    def charged(self, c: int) -> Floats:
        """Returns the costs of a node with what edges charge it [states that are left]."""
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
        """Makes passes in single precision, and some in double precision that make good what rounding has lost.

        One is enough but where prices are over the limit: to take what is over back lowers the bound until the next.
        """
        assert self._rough is not None
        exact, begun, value = self._exact, self._exact.every.copy(), -np.inf
        most = _MOST * self.bound if 0.0 < self.bound < np.inf else self.barred
        best, reached = self._raise(self._rough, begun.astype(np.float32), -np.inf, passes, enough, most)
        exact.go_to(best)
        for _ in range(_PERIOD):
            exact.run(most)
            value = self._or_illegal(exact.value_after_pass())
            if value >= reached - _ROUNDING * abs(reached):
                break
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
        """Returns by class of nodes what each state costs more than the bound; infinite for those that are left out.

        No choice with one node in it costs less [states].
        """
        found = []
        for node, group, excess in zip(self.lifted.node, self.lifted.group, self._excess(), strict=True):
            every = np.full(len(self.lifted.problem.tables[self.lifted.problem.node_table[node]]), np.inf)
            every[self.left[group]] = excess
            found.append(every)
        return found

    def _excess(self) -> list[Floats]:
        """Returns what `excess` does of the states that are left."""
        above = []
        for e, prices in enumerate(self.prices):
            more = [self._exact.can_charge(e, side) - price for side, price in enumerate(prices)]
            above.append([one - least_of(one) for one in more])
        found = []
        for c, met in enumerate(self.lifted.ends):
            charged = self.charged(c)
            charged -= least_of(charged)
            for e, side, count in met:
                charged += count * above[e][side]
            found.append(charged)
        return found
