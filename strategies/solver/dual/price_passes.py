"""Prices on the ends of edges, and the passes that raise the bound which they prove (`dual_ascent` says how).

In: a problem with alike places as one, costs and tables in either precision. Out: prices, and what they prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rhino.ir.arrays import Floats
from rhino.strategies.solver.dual.colour_refinement import End, Lifted
from rhino.strategies.solver.problem import starts


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
        return sum(count * least_of(self.charged(c)) for c, count in enumerate(self.lifted.num_nodes))

    def _of_edges(self, edges: Sequence[int]) -> float:
        return sum(self.lifted.num_edges[e] * least_of(self.can_charge(e, 0) - self.prices[e][0]) for e in edges)

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


def least_of(vector: Floats) -> float:
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
        total -= least_of(total)
        if most is not None:
            np.minimum(total, most, out=total)
        total *= share
        pushed.append(total)
    for price, paid, nodes in visit.pushes:
        least = pushed[nodes[0]]
        for number in nodes[1:]:
            least = np.minimum(least, pushed[number])
        np.subtract(paid, least, price)
