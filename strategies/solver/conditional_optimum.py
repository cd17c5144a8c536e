"""The best choice with some nodes fixed at a state, for one such question after another.

Elimination runs once; after that only what changes is computed again.

Elimination is a tree: the table that removing a node makes (`rhino.strategies.solver.elimination.by_node`) is read
where the first of its neighbours is removed. Holding a node changes the tables on its way to the root, and those alone
are made again; from there the choice is read back as far as it differs. So a question takes milliseconds where the
whole search takes seconds, and its answer is the optimum.

Among states of a few only (`masks`) what is found is an upper bound. A held node may take a state that is not among
them.

Source: bucket elimination with evidence (Dechter 1999).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.elimination.by_node import Elimination, Mask, TableStore, align
from rhino.strategies.solver.problem import Problem

_TIE: Final = 1e-12
"""The share of the whole cost below which two states are equally good: then a node keeps the state that it has."""

_Edge = tuple[int, Floats]
"""The other end of an edge, and its table with that end as columns."""


@dataclass(eq=False)
class _Hold:
    """One question: the state of each fixed node, and the tables that differ from those without it.

    The tables are by place in the order of removal.
    """

    taken: dict[int, int]
    fresh: dict[int, Floats] = field(default_factory=dict)
    picked: dict[int, int] = field(default_factory=dict)


class HeldChoices:
    """The choice of a problem that is best without questions (`value`, `states` [nodes]), and how it changes."""

    def __init__(self, problem: Problem, near: Ints, max_entries: int, masks: Sequence[Mask] | None = None) -> None:
        """Of choices that are equally good, what is like `near` [nodes] is taken.

        Raises TooWideError for tables of more entries.
        """
        store = TableStore()
        elimination = Elimination(problem, store, masks=masks)
        self.problem, self.masks = problem, list(elimination.masks)
        elimination.run(max_entries)
        self.value = elimination.constant
        self.scopes = [(step.node, *step.neighbours) for step in elimination.steps]
        self.tables = [store.tables[store.least(step.parts)] for step in elimination.steps]
        self.place = {scope[0]: place for place, scope in enumerate(self.scopes)}
        self.parents = [min((self.place[node] for node in scope[1:]), default=-1) for scope in self.scopes]
        self.children: list[list[int]] = [[] for _ in self.scopes]
        # of a node: the places whose tables have it as a neighbour
        self.readers: list[list[int]] = [[] for _ in self.scopes]
        for place, (scope, parent) in enumerate(zip(self.scopes, self.parents, strict=True)):
            if parent >= 0:
                self.children[parent].append(place)
            for node in scope[1:]:
                self.readers[node].append(place)
        self.edges: list[list[_Edge]] = [[] for _ in self.scopes]
        for u, v, number in zip(
            problem.edge_u.tolist(), problem.edge_v.tolist(), problem.edge_table.tolist(), strict=True
        ):
            table = problem.tables[number]
            first, other, own = (u, v, table) if self.place[u] < self.place[v] else (v, u, table.T)
            self.edges[self.place[first]].append((other, own))
        self.states = near
        states, every = near.copy(), _Hold({})
        for place in reversed(range(len(self.scopes))):
            node = self.scopes[place][0]
            every.picked[node] = states[node] = self._best(place, every)
        self.states = states

    def hold(self, nodes: Iterable[int], state: int) -> tuple[float, Ints]:
        """Returns the least value with `nodes` at `state`, and a choice [nodes] of that value.

        The value is infinite where there is none.
        """
        one = _Hold(dict.fromkeys(nodes, state))
        value = self._raise_tables(one)
        states = self.states.copy()
        if np.isfinite(value):
            self._read_back(one)
            for node, chosen in one.picked.items():
                states[node] = chosen
        return value, states

    def _raise_tables(self, one: _Hold) -> float:
        """Makes again the tables that holding changes; returns the value then."""
        value = self.value
        places = {self.place[node] for node in one.taken}
        places |= {
            place for node, state in one.taken.items() if state not in self.masks[node] for place in self.readers[node]
        }
        heap = sorted(places)
        while heap:
            place = heapq.heappop(heap)
            table = self._total(place, one).min(axis=0)
            one.fresh[place] = table
            parent = self.parents[place]
            if parent < 0:
                value += float(table) - float(self.tables[place]) if np.isfinite(table) else np.inf
            elif parent not in places:
                places.add(parent)
                heapq.heappush(heap, parent)
        return value

    def _read_back(self, one: _Hold) -> None:
        """Finds which nodes take another state, from the last that was removed to the first."""
        places = set(one.fresh)
        heap = sorted(-place for place in places)
        while heap:
            place = -heapq.heappop(heap)
            node = self.scopes[place][0]
            state = one.taken[node] if node in one.taken else self._best(place, one)
            if state == self.states[node]:
                continue
            one.picked[node] = state
            for reader in self.readers[node]:
                if reader not in places:
                    places.add(reader)
                    heapq.heappush(heap, -reader)

    def _options(self, node: int, one: _Hold) -> Mask:
        return (one.taken[node],) if node in one.taken else self.masks[node]

    def _total(self, place: int, one: _Hold) -> Floats:
        """Returns what is minimised where a node is removed, over the states that it and its neighbours may have."""
        scope, problem = self.scopes[place], self.problem
        position = {node: number for number, node in enumerate(scope)}
        rows = list(self._options(scope[0], one))
        total: Floats = align(problem.tables[problem.node_table[scope[0]]][rows], (0,), len(scope))
        for other, table in self.edges[place]:
            total = total + align(table[np.ix_(rows, self._options(other, one))], (0, position[other]), len(scope))
        for child in self.children[place]:
            around = self.scopes[child][1:]
            total = total + align(self._table(child, one), tuple(position[node] for node in around), len(scope))
        return total

    def _table(self, place: int, one: _Hold) -> Floats:
        """Returns the table that a removed node has left, of held neighbours the one state alone."""
        if place in one.fresh:
            return one.fresh[place]
        table, around = self.tables[place], self.scopes[place][1:]
        for side, node in enumerate(around):
            if node in one.taken:
                table = table.take([self.masks[node].index(one.taken[node])], axis=side)
        return table

    def _best(self, place: int, one: _Hold) -> int:
        """Returns the best state of the node that is removed at a place, given those of its neighbours.

        Of equally good states it is the one that the node had.
        """
        node, problem = self.scopes[place][0], self.problem
        options = self._options(node, one)
        costs: Floats = problem.tables[problem.node_table[node]][list(options)]
        for other, table in self.edges[place]:
            costs = costs + table[list(options), one.picked.get(other, int(self.states[other]))]
        for child in self.children[place]:
            index: list[slice | int] = []
            for other in self.scopes[child][1:]:
                chosen = one.picked.get(other, int(self.states[other]))
                index.append(
                    slice(None) if other == node else 0 if other in one.taken else self.masks[other].index(chosen)
                )
            costs = costs + self._table(child, one)[tuple(index)]
        best, old = int(costs.argmin()), int(self.states[node])
        if old in options and costs[options.index(old)] <= costs[best] + _TIE * abs(self.value):
            return old
        return options[best]
