"""Alike layers of a choice problem: nodes that repeat one after the other, with the edges about them.

A *stretch* is found from one place where the tables of nodes repeat at a distance, whatever these nodes are: arguments, ops, or values.
They are the first columns. A node of the middle layer beside a known one begins a column of its own, whose other nodes stand at the same
place beside those of the other layers; so a column may be numbered in any order. What every layer has beside it is outside. Then all of it
is compared: the edges of a column lead, in every layer, to the same column as many layers away, or to the same node outside.

Which layer a column is said to be in is free. A least set of nodes that parts the layers before it from those behind it (Menger) gives the
*joints*: columns without which no way leads from one layer to another. All others then are in the layer of what they are joined to.

Source: a period of a graph, as TAP's folding has it of names; here it is read from tables and edges alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.strategies.solver.problem import Problem, starts

_WINDOW: Final = 16
"""Tables of nodes in a row by which a place is known again."""

_PLACES: Final = 32
"""Places that are looked at for such a row, spread over all nodes."""

_TRIED: Final = 4
"""Distances that are tried at each: some rows occur several times in a layer."""

_ENDS: Final = 2
"""Layers at either end that are left out from the start: they have the same tables, and other neighbours."""

_SPAN: Final = 2
"""Layers that an edge may lead away, at most."""

_AT_ONCE: Final = 1 << 15
"""Edges that are compared at once: what is known of them stays in a processor's cache."""

_MOST_JOINTS: Final = 12
"""More joints are not worth it: tables over those of two layers would be too wide."""


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Alike layers. The first `num_inner` columns are inner ones, then come `num_joints` joints, then nodes outside.

    Shapes: `nodes` [columns, layers], the same one in all layers where it is outside; `edges` [places, layers]; `head`, `tail` [places] are
    the columns of both ends, the head in the layer itself and the tail `way` [places] layers on; `flipped` [places] says that the tail is
    the end `u` of the problem's edge. Every edge of a column is there once. Where it has an inner node, that is its head, else a joint is.
    """

    nodes: Ints
    edges: Ints
    head: Ints
    tail: Ints
    way: Ints
    flipped: Bools
    num_inner: int
    num_joints: int

    @property
    def num_own(self) -> int:
        """Number of the columns that have a node in each layer."""
        return self.num_inner + self.num_joints

    @property
    def span(self) -> int:
        """How many layers away an edge leads at most; at least one."""
        return max(1, int(np.abs(self.way).max(initial=0)))

    def ends(self, places: Ints, heads: Ints, tails: Ints) -> Ints:
        """Returns the ends u and v of edges [edges, 2], by their places and the layers of their heads and tails."""
        head, tail = self.nodes[self.head[places], heads], self.nodes[self.tail[places], tails]
        flipped = self.flipped[places]
        return np.column_stack([np.where(flipped, tail, head), np.where(flipped, head, tail)])


def find_stretch(problem: Problem, least: int) -> Stretch | None:
    """Returns the alike layers of a problem, if there are as many as `least`; whether their tables are the same is not looked at."""
    for start, step, count in _repeats(problem.node_table, least + 2 * _ENDS):
        layers = np.arange(_ENDS, count - _ENDS)
        columns = _Columns(problem, len(layers))
        for place in range(step):
            columns.add(start + place + layers * step)
        found = columns.stretch(least) if columns.follow() else None
        if found is not None:
            return found
    return None


def _repeats(tables: Ints, least: int) -> Iterator[tuple[int, int, int]]:
    """Yields where tables of nodes repeat: the first node, how far on the next layer begins, and how many layers; each such place once."""
    begun = set[tuple[int, int]]()
    for anchor in np.linspace(0, len(tables), _PLACES + 1, dtype=np.int64)[1:-1].tolist():
        for step in _distances(tables, anchor):
            differs = np.flatnonzero(tables[step:] != tables[:-step])
            at = int(np.searchsorted(differs, anchor))
            start = int(differs[at - 1]) + 1 if at else 0
            stop = int(differs[at]) if at < len(differs) else len(tables) - step
            count = (stop - start) // step + 1
            if count >= least and (start, step) not in begun:
                begun.add((start, step))
                yield start, step, count
                break


def _distances(tables: Ints, anchor: int) -> list[int]:
    """Returns how far after a node the same tables come in a row again, the nearest first."""
    at = np.arange(anchor, len(tables) - _WINDOW)
    for further in range(_WINDOW):
        at = at[tables[at + further] == tables[min(anchor + further, len(tables) - 1)]]
    return [int(one) for one in at[at > anchor][:_TRIED] - anchor]


class _Columns:
    """Columns of nodes, as they are found.

    Shapes: `column` [nodes], -1 for none yet and less for one outside; `layer` [nodes]. Every edge is listed at both its ends: `ends` has
    all ends `u`, then all ends `v`, and `listed` the places in it, node by node, `degree` [nodes] many from `first` [nodes] on.
    """

    def __init__(self, problem: Problem, num_layers: int) -> None:
        self.num_edges, self.num_layers, self.middle = problem.num_edges, num_layers, num_layers // 2
        self.ends = np.concatenate([problem.edge_u, problem.edge_v])
        self.listed = np.argsort(self.ends, kind="stable")
        self.degree = np.bincount(self.ends, minlength=problem.num_nodes)
        self.first = starts(self.degree)
        self.column, self.layer = np.full(problem.num_nodes, -1), np.zeros(problem.num_nodes, dtype=np.int64)
        self.nodes: list[Ints] = []
        self.outside: list[int] = []

    def add(self, nodes: Ints) -> None:
        """Adds a column. What has been taken for another one stays that: then the column is none, which is seen in the end."""
        free = self.column[nodes] == -1
        self.column[nodes[free]], self.layer[nodes[free]] = len(self.nodes), np.flatnonzero(free)
        self.nodes.append(nodes)

    def beside(self, first: Ints, place: Ints | int) -> tuple[Ints, Ints]:
        """Returns which node is beside another at a place, and where its edge is in `ends`; of nodes whose edges begin at `first`."""
        at = self.listed[np.minimum(first + place, len(self.listed) - 1)]
        return self.ends[np.where(at < self.num_edges, at + self.num_edges, at - self.num_edges)], at

    def follow(self) -> bool:
        """Adds what is beside known columns in the middle layer, column by column, until nothing is new; says whether that is all."""
        for known in self.nodes:  # grows meanwhile
            if len(self.nodes) * self.num_layers > len(self.column):
                return False
            begin = self.first[known[self.middle - 1 : self.middle + 2]]
            near, _ = self.beside(begin[:, None], np.arange(self.degree[known[self.middle]]))
            for place, (last, other, next_one) in enumerate(near.T.tolist()):
                if self.column[other] != -1:
                    continue
                if last == other == next_one:
                    self.outside.append(other)
                    self.column[other] = -1 - len(self.outside)
                else:
                    self.add(self.beside(self.first[known], place)[0])
        return True

    def stretch(self, least: int) -> Stretch | None:
        """Returns the layers in which columns are what they are in the middle, if there are so many in a row."""
        num_columns, first = len(self.nodes), np.array([self.first[nodes[self.middle]] for nodes in self.nodes])
        degree = np.array([self.degree[nodes[self.middle]] for nodes in self.nodes])
        head = np.repeat(np.arange(num_columns), degree)
        place = np.arange(len(head)) - np.repeat(starts(degree), degree)
        other, at = self.beside(first[head], place)
        found = self.column[other]
        inside = found >= 0
        tail = np.where(inside, found, num_columns - 2 - found)
        way = np.where(inside, self.layer[other] - self.middle, 0)
        if np.abs(way).max(initial=0) > _SPAN:
            return None
        joints = _joints(head[inside], tail[inside], way[inside], num_columns)
        shift = _shifts(head[inside], tail[inside], way[inside], joints, num_columns)
        if not joints or shift is None:
            return None
        rank = np.zeros(num_columns + len(self.outside), dtype=np.int64)  # of columns: inner ones, joints, nodes outside
        rank[list(joints)], rank[num_columns:] = 1, 2
        number = np.argsort(np.argsort(rank, kind="stable"))
        is_u = at < self.num_edges
        once = (rank[head] < rank[tail]) | ((rank[head] == rank[tail]) & is_u)
        head, tail, place, flipped = head[once], tail[once], place[once], ~is_u[once]
        way = np.where(rank[tail] == 2, 0, way[once] + shift[head] - shift[np.minimum(tail, num_columns - 1)])
        nodes = self._moved(shift)[np.argsort(rank, kind="stable")]
        one = Stretch(nodes, nodes[:0], number[head], number[tail], way, flipped, int((rank == 0).sum()), len(joints))
        return self._checked(one, place, least) if nodes.shape[1] >= least else None

    def _moved(self, shift: Ints) -> Ints:
        """Returns columns, each so many layers on, and the nodes outside [columns, layers]."""
        count = self.num_layers - int(shift.max()) + int(shift.min())
        own = [nodes[first : first + count] for nodes, first in zip(self.nodes, (shift - shift.min()).tolist(), strict=True)]
        return np.stack([*own, *[np.full(max(count, 0), node) for node in self.outside]])

    def _checked(self, one: Stretch, place: Ints, least: int) -> Stretch | None:
        """Returns the most layers in a row that are as the middle one is, with edges; `place` [places] says where these are at heads."""
        nodes, own = one.nodes, one.nodes[: one.num_own]
        degree, begin = self.degree[own], self.first[own]
        alike: Bools = (degree == degree[:, [len(own[0]) // 2]]).all(axis=0)
        mark, numbers = np.full(len(self.column), -1), np.arange(own.size).reshape(own.shape)
        mark[own] = numbers
        alike &= (mark[own] == numbers).all(axis=0)
        edges = np.empty((len(one.head), len(alike)), dtype=np.int64)
        for way in np.unique(one.way).tolist():
            first, last = max(-way, 0), len(alike) - max(way, 0)
            alike[:first] = alike[last:] = False
            every = np.flatnonzero(one.way == way)
            for some in np.array_split(every, 1 + len(every) * len(alike) // _AT_ONCE):
                other, at = self.beside(begin[one.head[some], first:last], place[some, None])
                same = other == nodes[one.tail[some], first + way : last + way]
                same &= (at >= self.num_edges) == one.flipped[some, None]
                alike[first:last] &= same.all(axis=0)
                edges[some, first:last] = at % self.num_edges
        if (mark[nodes[one.num_own :, 0]] >= 0).any():
            return None
        breaks = np.flatnonzero(~np.concatenate([[False], alike, [False]]))
        longest = int(np.diff(breaks).argmax())
        first, last = int(breaks[longest]), int(breaks[longest + 1]) - 1
        if last - first < least:
            return None
        return replace(one, nodes=nodes[:, first:last], edges=edges[:, first:last])


def _joints(head: Ints, tail: Ints, way: Ints, num_columns: int) -> dict[int, int]:
    """Returns a least set of nodes that parts layers, as the columns with the layer that each is in; none if that is large."""
    span = max(1, int(np.abs(way).max(initial=0)))
    depth = 7 * span  # layers: wide enough for a set that is spread over two layers on either side
    near: list[list[int]] = [[] for _ in range(depth * num_columns)]
    for one, other in zip((head + num_columns * span).tolist(), (tail + num_columns * (span + way)).tolist(), strict=True):
        for layer in range(-span * num_columns, (depth - span) * num_columns, num_columns):
            if one + layer >= 0 and 0 <= other + layer < len(near):
                near[one + layer].append(other + layer)
    cut = _least_cut(near, span * num_columns, (depth - span) * num_columns) or []
    joints: dict[int, int] = {}
    for node in cut:
        joints.setdefault(node % num_columns, (node - cut[0]) // num_columns)
    return joints


def _least_cut(near: Sequence[Sequence[int]], first: int, last: int) -> list[int] | None:
    """Returns the fewest nodes without which no way leads from the nodes before `first` to those from `last` on; none if they are many.

    Ways that share no node are found one by one, each in what the others leave (Ford and Fulkerson). A place is a node as it is entered or,
    with an odd number, left.
    """
    before: dict[int, int] = {}  # of every node that is on a way, the one before it
    for _ in range(_MOST_JOINTS + 1):
        came = {2 * node + 1: -1 for node in range(first)}
        place = _walk(near, last, before, came)
        if place < 0:
            return [node for node in range(first, last) if 2 * node in came and 2 * node + 1 not in came]
        joined, left = {}, []
        while came[place] >= 0:
            since = came[place]
            if since // 2 == place // 2 and since % 2:
                left.append(place // 2)
            elif since % 2:
                joined[place // 2] = since // 2
            place = since
        before |= joined
        for node in left:
            del before[node]
    return None


def _walk(near: Sequence[Sequence[int]], last: int, before: dict[int, int], came: dict[int, int]) -> int:
    """Looks for a way to a node from `last` on that shares no node with others, or takes turns with them; returns its end, -1 for none.

    `came` has the places where it may begin, and gets from where each place was come to.
    """
    places = list(came)
    for place in places:  # grows meanwhile
        node = place // 2
        if not place % 2:
            steps = [2 * before[node] + 1 if node in before else place + 1]
        elif node in before:
            steps = [*(2 * other for other in near[node]), place - 1]
        else:
            steps = [2 * other for other in near[node]]
        for step in steps:
            if step not in came:
                came[step] = place
                places.append(step)
                if step >= 2 * last:
                    return step
    return -1


def _shifts(head: Ints, tail: Ints, way: Ints, joints: Mapping[int, int], num_columns: int) -> Ints | None:
    """Returns how many layers on each column has what is said to be in a layer [columns], so that edges of inner columns stay in it.

    The joints are those of one set; an inner column is between this and the next one. None where there is no such thing.
    """
    near: list[list[tuple[int, int]]] = [[] for _ in range(num_columns)]
    for one, other, on in zip(head.tolist(), tail.tolist(), way.tolist(), strict=True):
        near[one].append((other, on))
    shift = dict(joints)
    for column in range(num_columns):
        if column in shift:
            continue
        part, shift[column] = [column], 0
        ways = []  # to joints
        for one in part:  # grows meanwhile
            for other, on in near[one]:
                if other in joints:
                    ways.append(shift[one] + on - joints[other])
                elif other not in shift:
                    shift[other] = shift[one] + on
                    part.append(other)
                elif shift[other] != shift[one] + on:
                    return None
        for one in part:
            shift[one] -= min(ways, default=0)
    return np.array([shift[column] for column in range(num_columns)], dtype=np.int64)
