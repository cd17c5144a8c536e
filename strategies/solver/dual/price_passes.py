"""Prices on the ends of edges, and the passes that raise the bound which they prove (`dual_ascent` says how).

In: a problem with alike places as one, costs and tables in either precision. Out: prices, and what they prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.dual.colour_refinement import End, Lifted
from rhino.strategies.solver.dual.merged_tables import MergedTable
from rhino.strategies.solver.problem import starts


class _Members(NamedTuple):
    """Which states are in each class: the states class by class, and where each class begins."""

    order: Ints
    begin: Ints

    @classmethod
    def of(cls, classes: Ints) -> _Members:
        return cls(np.argsort(classes, kind="stable"), starts(np.bincount(classes)))


class _Pull(NamedTuple):
    """One end of an edge: `price` [states] takes what it can charge there, the states of class `here` the same.

    `table` is [states of the other end, states], or their classes. `other` are the prices there, `room` takes what is
    left of costs.
    """

    price: Floats
    table: Floats
    other: Floats
    members: _Members | None
    room: Floats
    here: Ints | None

    def least(self) -> Floats:
        """Returns the most that the edge can charge without a state that pays it [states, or their classes]."""
        other = self.other if self.members is None else _most(self.other, self.members)
        found: Floats = np.minimum.reduce(np.subtract(self.table, other[:, None], self.room))
        return found

    def run(self) -> None:
        """Charges what the edge can."""
        if self.here is not None:
            self.least().take(self.here, out=self.price, mode="clip")  # which is what needs no further room
            return
        other = self.other if self.members is None else _most(self.other, self.members)
        np.minimum.reduce(np.subtract(self.table, other[:, None], self.room), out=self.price)


class _Share(NamedTuple):
    """A node: its costs, what edges charge it, and which share each edge that leads on gets.

    An edge charges once, or as often as a number says.
    """

    cost: Floats
    once: list[Floats]
    often: list[tuple[int, Floats]]
    share: float


class _Push(NamedTuple):
    """The prices at an end of an edge that leads on, and which nodes of the visit hand to it."""

    price: Floats
    nodes: tuple[int, ...]


class _Single(NamedTuple):
    """A visit to a node that is alone in its group, and that each edge charges once.

    `every` [edges, states] are all its prices, `taken` and `onward` those of edges that do not lead on, and that do.
    """

    pulls: list[_Pull]
    cost: Floats
    every: Floats
    taken: Floats
    onward: Floats
    share: float


class _Visit(NamedTuple):
    """What is done at a group of nodes in one direction."""

    pulls: list[_Pull]
    shares: list[_Share]
    pushes: list[_Push]


class Passes:
    """Prices, and the passes that raise them.

    `tables` are those of edges as either end sees them, from the other end to the end. `prices` are at both ends of
    each edge, `every` is all of them as one vector, group by group.
    """

    def __init__(
        self, lifted: Lifted, costs: list[Floats], tables: list[tuple[MergedTable, MergedTable]], left: Sequence[Ints]
    ) -> None:
        """Begins without prices, on the states `left` of each group."""
        self.lifted, self.costs, self.tables = lifted, costs, tables
        kind = costs[0].dtype if costs else np.dtype(np.float64)
        self._room = np.empty(max([table.costs.size for table, _ in tables], default=0), dtype=kind)
        self._ends = self._by_group()
        self._sizes = list(map(len, left))
        self.every, self.prices, self._blocks = self._vector(kind)
        known: dict[int, _Members] = {}
        self._members = [
            tuple([None if one.u is None else known.setdefault(id(one.u), _Members.of(one.u)) for one in pair])
            for pair in tables
        ]
        self._visits = [self._plan(backward=False), self._plan(backward=True)]
        self._onward = self._pulls_onward()

    def _by_group(self) -> list[list[tuple[int, int]]]:
        """Returns the ends of edges at each group, those first whose edges come from before."""
        ends: list[list[tuple[int, int]]] = [[] for _ in range(max(self.lifted.group, default=-1) + 1)]
        for e, groups in enumerate(self.lifted.edge_groups):
            for side, group in enumerate(groups):
                ends[group].append((e, side))
        return [sorted(each, key=lambda end: self._leads_on(end[0], end[1], backward=False)) for each in ends]

    def _vector(self, kind: np.dtype[Any]) -> tuple[Floats, list[tuple[Floats, Floats]], list[Floats]]:
        """Returns room for a number for each state at each end of each edge.

        It is one vector, and views of it by edge and by group [ends, states].
        """
        shapes = [(len(ends), size) for ends, size in zip(self._ends, self._sizes, strict=True)]
        every = np.zeros(sum(count * size for count, size in shapes), dtype=kind)
        begin = starts(np.array([count * size for count, size in shapes], dtype=np.int64)).tolist()
        blocks = [
            every[at : at + count * size].reshape(count, size) for at, (count, size) in zip(begin, shapes, strict=True)
        ]
        views = {
            end: block[row] for ends, block in zip(self._ends, blocks, strict=True) for row, end in enumerate(ends)
        }
        return every, [(views[e, 0], views[e, 1]) for e in range(len(self.tables))], blocks

    # What a pass does

    def _plan(self, *, backward: bool) -> list[_Visit | _Single]:
        members: dict[int, list[int]] = {}
        for c, group in enumerate(self.lifted.group):
            members.setdefault(group, []).append(c)
        return [self._visit(members[group], backward) for group in sorted(members, reverse=backward)]

    def _visit(self, members: list[int], backward: bool) -> _Visit | _Single:
        group = self.lifted.group[members[0]]
        ends = {end: self._leads_on(*end, backward) for end in self._ends[group]}
        # Where both ends are here, the prices at the other one have just changed; elsewhere what an edge that leads on
        # can charge is still what it was.
        pulls = [self._pull(*end) for end, on in ends.items() if not on]
        pulls += [self._pull(*end) for end, on in ends.items() if on and self._is_within(end[0])]
        if len(members) == 1 and self._is_single(members[0]):
            return self._single(members[0], pulls, sum(ends.values()), backward)
        shares, nodes_of = [], dict[tuple[int, int], list[int]]()
        for number, c in enumerate(members):
            met = self.lifted.ends[c]
            shares.append(self._share(c, met, [end for end in met if ends[end[:2]]]))
            for e, side, _ in met:
                if ends[e, side]:
                    nodes_of.setdefault((e, side), []).append(number)
        pushes = [_Push(self.prices[e][side], tuple(nodes)) for (e, side), nodes in nodes_of.items()]
        return _Visit(pulls, shares, pushes)

    def _is_single(self, c: int) -> bool:
        return all(count == 1 and not self._is_within(e) for e, _, count in self.lifted.ends[c])

    def _single(self, c: int, pulls: list[_Pull], num_onward: int, backward: bool) -> _Single:
        every = self._blocks[self.lifted.group[c]]
        at = num_onward if backward else len(every) - num_onward
        taken, onward = (every[at:], every[:at]) if backward else (every[:at], every[at:])
        return _Single(pulls, self.costs[c], every, taken, onward, 1.0 / max(len(taken), len(onward), 1))

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

    def _pull(self, e: int, side: int) -> _Pull:
        table, members = self.tables[e][side], self._members[e][side]
        return _Pull(
            self.prices[e][side], table.costs, self.prices[e][1 - side], members, self._room_for(table.costs), table.v
        )

    def _room_for(self, table: Floats) -> Floats:
        """Returns room for a table, in its order in memory. All share it, so that it stays in a processor's cache."""
        room = self._room[: table.size]
        return room.reshape(table.shape) if table.flags.c_contiguous else room.reshape(table.shape[::-1]).T

    def _pulls_onward(self) -> list[_Pull]:
        """Returns what a pass reads before it has computed it: what edges that lead on can charge."""
        ends = [(e, side) for e in range(len(self.tables)) for side in (0, 1) if not self._is_within(e)]
        return [self._pull(e, side) for e, side in ends if self._leads_on(e, side, backward=False)]

    def _share(self, c: int, met: list[End], onward: list[End]) -> _Share:
        once = [self.prices[e][side] for e, side, count in met if count == 1]
        often = [(count, self.prices[e][side]) for e, side, count in met if count > 1]
        leading = sum(count for *_, count in onward)
        return _Share(self.costs[c], once, often, 1.0 / max(leading, sum(count for *_, count in met) - leading, 1))

    def go_to(self, prices: Floats) -> None:
        """Takes prices, from which a pass may begin: edges that lead on charge what they can, which lowers no bound."""
        self.every[:] = prices
        for pull in self._onward:
            pull.run()

    def run(self, most: float | None = None) -> None:
        """Makes a pass; no edge charges more than `most`, and no node passes on more."""
        for visits in self._visits:
            for visit in visits:
                if isinstance(visit, _Single):
                    _at_single(visit, most)
                else:
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
        return sum([count * least_of(self.charged(c)) for c, count in enumerate(self.lifted.num_nodes)])

    def _of_edges(self, edges: Sequence[int]) -> float:
        return sum([self.lifted.num_edges[e] * least_of(self.can_charge(e, 0) - self.prices[e][0]) for e in edges])

    def can_charge(self, e: int, side: int) -> Floats:
        """Returns the most that an edge can charge one of its ends without a state that pays it [states]."""
        pull = self._pull(e, side)
        most = pull.least()
        return most if pull.here is None else most[pull.here]

    def charged(self, c: int) -> Floats:
        """Returns the costs of a node with what edges charge it [states]."""
        total: Floats = self.costs[c].copy()
        for e, side, count in self.lifted.ends[c]:
            total += self.prices[e][side] if count == 1 else count * self.prices[e][side]
        return total


def least_of(vector: Floats) -> float:
    """Returns the least number, in a quarter of the time of NumPy's `min`."""
    return float(vector[vector.argmin()])


def _most(prices: Floats, members: _Members) -> Floats:
    """Returns the highest price of each class of states."""
    found: Floats = np.maximum.reduceat(prices[members.order], members.begin)
    return found


def _at_single(visit: _Single, most: float | None) -> None:
    """Does what there is to do at one node; nothing over `most` is charged or passed on."""
    pulls, cost, every, taken, onward, share = visit
    for pull in pulls:
        pull.run()
    if most is not None:
        np.minimum(taken, most, out=taken)
    if not len(onward):
        return
    total = np.add.reduce(every)
    total += cost
    total -= total[total.argmin()]
    if most is not None:
        np.minimum(total, most, out=total)
    total *= share
    np.subtract(onward, total, out=onward)


def _at(visit: _Visit, most: float | None) -> None:
    """Does what there is to do at a group of nodes; nothing over `most` is charged or passed on."""
    for pull in visit.pulls:
        pull.run()
        if most is not None:
            np.minimum(pull.price, most, out=pull.price)
    if not visit.pushes:
        return
    pushed = []
    for cost, once, often, share in visit.shares:
        total = cost.copy()
        for price in once:
            total += price
        for count, price in often:
            total += count * price
        total -= least_of(total)
        if most is not None:
            np.minimum(total, most, out=total)
        total *= share
        pushed.append(total)
    for price, nodes in visit.pushes:
        least = pushed[nodes[0]]
        for number in nodes[1:]:
            least = np.minimum(least, pushed[number])
        np.subtract(price, least, out=price)
