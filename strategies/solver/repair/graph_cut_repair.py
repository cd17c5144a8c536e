"""Mix two choices that differ in one piece: one of them on this side of a cut through the graph, the other beyond it.

Prices of memory find choices that no mixture of others beats. Of a hundred alike layers these are two: all layers as
one choice has them, or as the other, for at any price what is good for one layer is good for all, and each cut between
two layers costs something. The best choice under a budget has as many layers of the cheaper choice as there is room
for, and one cut.

Nodes are ordered by how much nearer they are to one end of the graph than to the other, counted in edges. What hangs on
a layer, as the update of its weights, is as far along as the layer itself, for all ways there pass it. Then every
prefix of this order is tried, from both ends: what it costs and what it keeps is known for all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.problem import Problem, spread
from rhino.strategies.solver.repair.difference import Difference

_MOST: Final = 4
"""How many of the parts in which two choices differ are cut: those in which there is most to gain."""


def cut_mixture(problem: Problem, base: Ints, other: Ints, budget: float, times: Sequence[int] = ()) -> Ints | None:
    """Returns the cheapest choice found that fits, with parts of `other` in `base` that end at a cut.

    The result is None if there is none but `base`. `times` are those at which memory is likely to bind.
    """
    parts, best = Difference.of(problem, base, other), base
    for part in _worth_most(parts):
        nodes = np.flatnonzero(parts.label == part)
        for order in orders(problem, nodes):
            best = Prefixes.of(problem, best, other, order).cheapest(budget, times)
    return None if best is base else best


def orders(problem: Problem, nodes: Ints) -> tuple[Ints, Ints]:
    """Returns some connected nodes from one end of these to the other, and from there [n]."""
    along = _along(problem, nodes)
    return nodes[np.argsort(along, kind="stable")], nodes[np.argsort(-along, kind="stable")]


def _worth_most(parts: Difference) -> list[int]:
    """Returns the parts of several nodes in which there is most to gain, and of those that look alike one."""
    gain, size = parts.cost_changes(), np.bincount(parts.label[parts.label >= 0], minlength=parts.count)
    kinds = {
        (float(f"{gain[part]:.9g}"), int(size[part])): part for part in reversed(range(parts.count)) if size[part] > 1
    }
    return [kinds[kind] for kind in sorted(kinds)[:_MOST]]


@dataclass(frozen=True, slots=True, eq=False)
class Prefixes:
    """The choices that follow `other` for the first nodes of `order` [n], and `base` for all else; there are n + 1.

    `position` [nodes] is where a node stands in the order, n where it does not.
    """

    problem: Problem
    base: Ints
    other: Ints
    order: Ints
    position: Ints

    @staticmethod
    def of(problem: Problem, base: Ints, other: Ints, order: Ints) -> Prefixes:
        """Returns the choices along an order of nodes [n] in which two choices [nodes] differ."""
        position = np.full(problem.num_nodes, len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        return Prefixes(problem, base, other, order, position)

    def cheapest(self, budget: float, times: Sequence[int]) -> Ints:
        """Returns the cheapest that fits; `base` itself where none does."""
        problem, before = self.problem, self.problem.memory(self.base)
        cost = self.cost_changes()
        forbidden: set[int] = set()
        for time in times:
            self.forbid(cost, time, budget - float(before[time]))
            forbidden.add(time)
        while np.isfinite(cost).any():
            count = int(cost.argmin())
            mixed = self.choice(count)
            memory = problem.memory(mixed)
            worst = int(memory.argmax())
            if memory[worst] <= budget:
                return mixed if count else self.base
            if worst in forbidden:  # over by rounding
                cost[count] = np.inf
            else:
                self.forbid(cost, worst, budget - float(before[worst]))
                forbidden.add(worst)
        return self.base

    def cheaper(self) -> Ints:
        """Returns the lengths of the prefixes that cost less than all shorter ones, in ascending order.

        The nodes of a prefix follow `other`.
        """
        cost = self.cost_changes()
        least = np.minimum.accumulate(cost)
        result: Ints = np.flatnonzero(cost[1:] < least[:-1]) + 1
        return result

    def choice(self, count: int) -> Ints:
        """Returns the choice [nodes] that follows `other` for the first `count` nodes."""
        mixed = self.base.copy()
        mixed[self.order[:count]] = self.other[self.order[:count]]
        return mixed

    def cost_changes(self) -> Floats:
        """Returns what each costs more than `base` [n + 1], in seconds."""
        problem = self.problem
        return self.changes(
            problem.node_table, np.arange(problem.num_nodes), problem.edge_table, np.arange(problem.num_edges)
        )

    def forbid(self, cost: Floats, time: int, room: float) -> None:
        """Sets the cost [n + 1] of all that add more bytes than `room` at a time to infinity."""
        nodes, edges = self.problem.node_residents, self.problem.edge_residents
        of_nodes, of_edges = nodes.alive(time), edges.alive(time)
        added = self.changes(nodes.table[of_nodes], nodes.owner[of_nodes], edges.table[of_edges], edges.owner[of_edges])
        cost[added > room] = np.inf

    def changes(self, node_tables: Ints, nodes: Ints, edge_tables: Ints, edges: Ints) -> Floats:
        """Returns what each has more than `base` [n + 1], by tables of nodes and edges.

        It is infinite where a pair is not legal.
        """
        problem, base, other, size = self.problem, self.base, self.other, len(self.order)
        steps, barred = np.zeros(size + 1), np.zeros(size + 1)
        mine = self.position[nodes] < size
        tables, nodes = node_tables[mine], nodes[mine]
        gained = problem.node_entries(tables, nodes, other) - problem.node_entries(tables, nodes, base)
        np.add.at(steps, self.position[nodes] + 1, gained)
        at_u, at_v = self.position[problem.edge_u[edges]], self.position[problem.edge_v[edges]]
        mine = np.minimum(at_u, at_v) < size
        tables, edges, at_u, at_v = edge_tables[mine], edges[mine], at_u[mine], at_v[mine]
        before = problem.edge_entries(tables, edges, base, base)
        between = np.where(
            at_u < at_v,
            problem.edge_entries(tables, edges, other, base),
            problem.edge_entries(tables, edges, base, other),
        )
        legal: NDArray[np.bool_] = np.isfinite(between)
        between = np.where(legal, between, before)
        first, second = np.minimum(at_u, at_v) + 1, np.maximum(at_u, at_v) + 1
        np.add.at(steps, first, between - before)
        np.add.at(barred, first[~legal], 1.0)
        both = second <= size
        np.add.at(steps, second[both], (problem.edge_entries(tables, edges, other, other) - between)[both])
        np.subtract.at(barred, second[both & ~legal], 1.0)
        result: Floats = np.where(np.cumsum(barred) > 0, np.inf, np.cumsum(steps))
        return result


def _along(problem: Problem, nodes: Ints) -> Ints:
    """Returns how much farther each of some connected nodes is from one end than from the other [n], in edges."""
    near = _Neighbours.of(problem, nodes)
    start = int(near.distances(0).argmax())
    from_start = near.distances(start)
    result: Ints = from_start - near.distances(int(from_start.argmax()))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class _Neighbours:
    """Who is next to whom: the neighbours of node u are `ends[begin[u] : begin[u + 1]]`.

    All are numbered among the nodes in question.
    """

    begin: Ints
    ends: Ints

    @staticmethod
    def of(problem: Problem, nodes: Ints) -> _Neighbours:
        number = np.full(problem.num_nodes, -1, dtype=np.int64)
        number[nodes] = np.arange(len(nodes))
        u, v = number[problem.edge_u], number[problem.edge_v]
        inside = (u >= 0) & (v >= 0)
        one, two = np.concatenate([u[inside], v[inside]]), np.concatenate([v[inside], u[inside]])
        order = np.argsort(one, kind="stable")
        return _Neighbours(np.searchsorted(one[order], np.arange(len(nodes) + 1)), two[order])

    def distances(self, source: int) -> Ints:
        """Returns how many edges each node is from `source` [nodes]."""
        result = np.full(len(self.begin) - 1, -1, dtype=np.int64)
        front, steps = np.array([source]), 0
        while len(front):
            result[front] = steps
            counts = self.begin[front + 1] - self.begin[front]
            reached = np.unique(self.ends[spread(self.begin[front], counts)])
            front, steps = reached[result[reached] < 0], steps + 1
        return result
