"""Elimination of alike nodes in batches: what `by_node` does node by node, a round at a time over the whole graph.

Nodes and tables are arrays of numbers. What is done to a node hangs on a few of them: its costs, the tables about it,
and how their sides lie. Equal rows of such numbers are found by sorting, and work is done once for each that is not. In
one round, nodes that do not touch each other are removed, those first that make the smallest tables, and of a chain of
alike nodes every other one: a chain of a thousand layers is halved ten times, with one new table each time. So Python's
work, and the tables, hang on how many kinds of places there are and on the logarithm of the layers; that of the arrays
is sorting.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.strategies.solver.elimination.by_node import (
    MOST_NEIGHBOURS,
    Core,
    Elimination,
    Mask,
    Parts,
    TableStore,
    TooWideError,
    left_coordinates,
)
from rhino.strategies.solver.problem import Problem, starts

_NEAR, _SHARE = 2.0, 1 / 16
"""What goes in the same round.

That is what makes a table of at most so many times the entries of the smallest one, and this share of the nodes. So the
end of a chain, whose tables are smaller, does not go before all else, layer by layer; and tables are as wide as one by
one.
"""

_FEW: Final = 3
"""Rows that are not worth sorting."""

_TABLE: Final = 4
"""Up to how many times as large as they are many numbers are looked up instead of sorted."""

_MANY: Final = 4000
"""Nodes from which on batches are faster.

970 took 0.15 s in batches and 0.08 s one by one, 36,000 0.33 s and 0.75 s, 129,000 0.84 s and 2.7 s (AMD EPYC,
2026-11-22).
"""

_ROUNDS: Final = 16
"""Rounds of dropping dominated states at once. GPTs on several devices take up to six.

On one device what one node loses lets the next one lose, layer by layer: 2,915 rounds for 40 layers (2026-11-22). Node
by node, such a step is a look-up.
"""

_HALF: Final = 31
"""Bits of each of two numbers that are one. Division would take ten times as long as a shift."""

Group = tuple[Ints, Ints]
"""Nodes of as many neighbours each, and these, ascending. Shapes: [nodes], [nodes, neighbours]."""


class _Graph:
    """Who shares a factor with whom, while nodes are removed, without any table; arrays shrink with it.

    Shapes: `nodes`, `alive`, `size`, `kind` [nodes]; `pairs` [pairs] holds every pair of neighbours both ways, as one
    number, ascending.
    """

    def __init__(self, nodes: Ints, size: Floats, kind: Ints, scopes: Iterable[Ints]) -> None:
        """`size` says how many states nodes have, `kind` which are alike, and `scopes` who shares factors.

        `scopes` are by places in `nodes`.
        """
        self.nodes, self.size, self.kind = nodes, size, kind
        self.alive = np.ones(len(nodes), dtype=bool)
        self.pairs = distinct(np.concatenate([np.zeros(0, dtype=np.int64), *map(self._pairs_of, scopes)]))
        self.widest = 0

    def _pairs_of(self, scopes: Ints) -> Ints:
        one, other = np.triu_indices(scopes.shape[1], 1)
        first, second = scopes[:, one].ravel(), scopes[:, other].ravel()
        return np.concatenate([pair(first, second), pair(second, first)])

    def _near(self) -> tuple[Ints, Ints]:
        """Returns every pair of neighbours, both ways, in ascending order."""
        if 2 * np.count_nonzero(self.alive) < len(self.alive):
            self._compact()
        return self.pairs >> _HALF, self.pairs & ((1 << _HALF) - 1)

    def _compact(self) -> None:
        """Numbers what is left anew, in its order."""
        left, number = np.flatnonzero(self.alive), np.cumsum(self.alive) - 1
        self.pairs = pair(number[self.pairs >> _HALF], number[self.pairs & ((1 << _HALF) - 1)])
        self.nodes, self.size, self.kind, self.alive = (
            self.nodes[left],
            self.size[left],
            self.kind[left],
            self.alive[left],
        )

    def chains(self) -> Iterator[list[Group]]:
        """Removes nodes of at most two neighbours until none is left; yields what goes at once."""
        while True:
            node, near = self._near()
            few = self.alive & (np.bincount(node, minlength=len(self.nodes)) <= 2)
            if not few.any():
                return
            yield self._removed(self._apart(few, self.size, node, near), node, near)

    def smallest_first(self, max_entries: int) -> Iterator[list[Group]]:
        """Removes every node, those first that make the smallest tables; yields what goes at once.

        Raises TooWideError as `run` does.
        """
        while self.alive.any():
            node, near = self._near()
            degree = np.bincount(node, minlength=len(self.nodes))
            entries, begin = self.size.copy(), np.flatnonzero(np.diff(node, prepend=-1))
            with np.errstate(over="ignore"):  # beside thousands of nodes
                if len(begin):
                    entries[node[begin]] *= np.multiply.reduceat(self.size[near], begin)
            np.minimum(entries, np.finfo(np.float64).max, out=entries)
            ascending = np.sort(entries[self.alive])
            least = float(ascending[0])
            small = entries <= min(
                max(_NEAR * least, float(ascending[int(_SHARE * len(ascending))])), max(least, max_entries)
            )
            chosen = self._apart(self.alive & (small | (degree <= 1)), entries, node, near)
            self.widest = max(self.widest, int(entries[chosen].max()))
            if self.widest > max_entries or degree[chosen].max() > MOST_NEIGHBOURS:
                raise TooWideError(self.widest)
            yield self._removed(chosen, node, near)

    def _apart(self, candidates: Bools, entries: Floats, node: Ints, near: Ints) -> Bools:
        """Returns which of the candidates [nodes] go at once: none beside another.

        Alike ones go alike, and every other one of a chain.
        """
        places = np.flatnonzero(candidates)
        kind = self.kind[places]
        turn = np.full(len(candidates), len(candidates), dtype=np.int64)
        parity = 2 * kind + ranks(kind) % 2
        turn[places[np.lexsort((parity, entries[places]))]] = np.arange(len(places))
        before = np.full(len(candidates), len(candidates), dtype=np.int64)
        begin = np.flatnonzero(np.diff(node, prepend=-1))
        if len(begin):
            before[node[begin]] = np.minimum.reduceat(turn[near], begin)
        return turn < before

    def _removed(self, chosen: Bools, node: Ints, near: Ints) -> list[Group]:
        """Removes nodes of which none is beside another; what was about each is joined."""
        degree = np.bincount(node, minlength=len(self.nodes))
        first, nodes = starts(degree), np.flatnonzero(chosen)
        groups, fresh = [], [self.pairs[~(chosen[node] | chosen[near])]]
        for count in np.unique(degree[nodes]).tolist():
            at = nodes[degree[nodes] == count]
            around = near[first[at][:, None] + np.arange(count)]
            groups.append((self.nodes[at], self.nodes[around]))
            if count > 1:
                fresh.append(self._pairs_of(around))
        self.alive[nodes] = False
        self.pairs = distinct(np.concatenate(fresh)) if len(fresh) > 1 else fresh[0]
        return groups


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Nodes removed in one round, with as many neighbours each, and the states that they had then.

    Shapes: `nodes`, `kind` [nodes], `around` [nodes, neighbours], `mask` [nodes, 1 + neighbours].
    """

    nodes: Ints
    around: Ints
    kind: Ints
    mask: Ints


class BatchElimination:
    """The state of one elimination: the costs of nodes, and factors by how many nodes they are over."""

    def __init__(
        self,
        problem: Problem,
        store: TableStore,
        node_costs: Sequence[int] | Ints | None = None,
        edge_costs: Sequence[int] | Ints | None = None,
        masks: Sequence[Mask] | None = None,
    ) -> None:
        self.problem, self.store = problem, store
        base = np.array([store.intern(table) for table in problem.tables], dtype=np.int64)
        edges = base[problem.edge_table] if edge_costs is None else np.array(edge_costs, dtype=np.int64)
        self.unary = base[problem.node_table] if node_costs is None else np.array(node_costs, dtype=np.int64)
        self.factors: dict[int, tuple[Ints, Ints]] = {2: (np.stack([problem.edge_u, problem.edge_v], axis=1), edges)}
        self._masks: list[Mask] = []
        self._mask_numbers: dict[Mask, int] = {}
        self.mask = each(self.unary[:, None], lambda table: self._number(tuple(range(len(store.tables[table])))))
        self.alive = np.ones(problem.num_nodes, dtype=bool)
        self.constant = 0.0
        self.widest = 0
        self._parts: list[tuple[int, tuple[int, ...]]] = []
        self._part_numbers: dict[tuple[int, ...], int] = {}
        self._kinds: list[Parts] = []
        self._least: list[int] = []
        self._kind_numbers: dict[tuple[int, ...], int] = {}
        self._batches: list[_Batch] = []
        if masks is not None:
            every, kept = (
                np.ones(len(edges), dtype=bool),
                np.array([self._number(mask) for mask in masks], dtype=np.int64),
            )
            self._restrict(self.alive, kept, every)

    @property
    def order(self) -> list[int]:
        """The nodes removed so far."""
        return [node for batch in self._batches for node in batch.nodes.tolist()]

    def copy(self) -> BatchElimination:
        """Returns an elimination in the same state, on the same store."""
        twin = copy.copy(self)
        twin.unary, twin.mask, twin.alive = self.unary.copy(), self.mask.copy(), self.alive.copy()
        twin.factors = {arity: (scopes, table.copy()) for arity, (scopes, table) in self.factors.items()}
        twin._batches = list(self._batches)
        return twin

    def _number(self, mask: Mask) -> int:
        if mask not in self._mask_numbers:
            self._mask_numbers[mask] = len(self._masks)
            self._masks.append(mask)
        return self._mask_numbers[mask]

    def _sizes(self) -> Ints:
        """Returns how many states every node has left [nodes]."""
        return self._lengths()[self.mask]

    def _lengths(self) -> Ints:
        return np.array([len(mask) for mask in self._masks], dtype=np.int64)

    def left(self, node: int) -> Mask:
        """Returns the states that a node has left, as numbered in the problem."""
        return self._masks[int(self.mask[node])]

    # States that cannot win

    def drop_dominated(self) -> int:
        """Drops dominated states until none is left; returns how many went. Only while all factors are pairs."""
        dropped, work = 0, self.alive
        for _ in range(_ROUNDS):
            if not work.any():
                break
            self.settle()
            kept = self._every()
            nodes, found = self._undominated(work)
            kept[nodes] = found
            left, near = self._keep(kept)
            work = near & self.alive
            dropped += left
        self.settle()
        if work.any():
            left, _ = self._keep(self._undominated_by_node())
            dropped += left
            self.settle()
        return dropped

    def _every(self) -> Ints:
        """Returns the numbers of the masks that leave nodes all that they have [nodes]."""
        return each(self._sizes()[:, None], lambda size: self._number(tuple(range(size))))

    def _keep(self, kept: Ints) -> tuple[int, Bools]:
        """Leaves nodes the states `kept` (numbers of masks [nodes]).

        Returns how many went, and which nodes that may matter to [nodes].
        """
        sizes, left = self._sizes(), self._lengths()[kept]
        changed: Bools = left < sizes
        scopes, _ = self.factors[2]
        touched: Bools = np.logical_or(*changed[scopes].T)
        self._restrict(changed, kept, touched)
        near = changed.copy()
        near[scopes[touched].ravel()] = True
        return int((sizes - left).sum()), near

    def _undominated_by_node(self) -> Ints:
        """Returns for every node which states are left in the end, as a number of a mask, found node by node."""
        scopes, table = self.factors[2]
        problem = replace(self.problem, edge_u=scopes[:, 0], edge_v=scopes[:, 1], edge_table=table)
        single = Elimination(problem, self.store, self.unary.tolist(), table.tolist())
        single.alive = self.alive.tolist()
        single.drop_dominated()
        return np.array([self._number(mask) for mask in single.masks], dtype=np.int64)

    def _undominated(self, work: Bools) -> tuple[Ints, Ints]:
        """Returns some nodes, and which of their states are left, as a number of a mask."""
        scopes, table = self.factors[2]
        node, side = scopes.T.ravel(), np.concatenate([table, each(table[:, None], self.store.transpose)])
        at = np.flatnonzero(work[node])
        at = at[np.argsort(pair(node[at], side[at]))]
        node, side = node[at], side[at]
        nodes = np.flatnonzero(work & self.alive)
        found = np.zeros(len(nodes), dtype=np.int64)
        for members, rows in _ragged(nodes, node, side):
            found[members] = each(np.column_stack([self.unary[nodes[members]], rows]), self._kept)
        return nodes, found

    def _kept(self, unary: int, *tables: int) -> int:
        return self._number(self.store.undominated(unary, tables))

    def settle(self) -> None:
        """Makes edges to nodes of one state costs of the other ends. Only while all factors are pairs."""
        single = self._sizes() == 1
        scopes, table = self.factors[2]
        first, second = single[scopes].T
        second &= ~first
        targets = np.concatenate([scopes[first, 1], scopes[second, 0]])
        rows = np.concatenate([table[first], each(table[second][:, None], self.store.transpose)])
        self._add(targets, each(rows[:, None], self.store.row))
        left = ~(first | second)
        self.factors[2] = scopes[left], table[left]

    def _restrict(self, changed: Bools, kept: Ints, touched: Bools) -> None:
        """Leaves nodes the states `kept` (numbers of masks [nodes]).

        `changed` [nodes] and `touched` [edges] say where that is not all.
        """
        store, masks = self.store, self._masks
        self.unary[changed] = each(
            np.column_stack([self.unary, kept])[changed], lambda t, k: store.take(t, (masks[k],))
        )
        rows = np.column_stack([self.mask, kept])[changed]
        self.mask[changed] = each(rows, lambda mask, k: self._number(tuple([masks[mask][state] for state in masks[k]])))
        scopes, table = self.factors[2]
        rows = np.column_stack([table[touched], kept[scopes[touched]]])
        table[touched] = each(rows, lambda t, u, v: store.take(t, (masks[u], masks[v])))

    # Removal

    def _add(self, nodes: Ints, tables: Ints) -> None:
        """Adds costs to nodes, of which one may occur several times."""
        nodes, tables = self._sums(nodes[:, None], tables)
        at = nodes[:, 0]
        self.unary[at] = each(np.column_stack([self.unary[at], tables]), self.store.add)

    def _sums(self, scopes: Ints, tables: Ints) -> tuple[Ints, Ints]:
        """Returns distinct scopes, each with the sum of its tables, two by two, so that equal sums are found early."""
        if not len(scopes):
            return scopes, tables
        first, group = alike(scopes)
        order = np.argsort(group, kind="stable")
        group, tables = group[order], tables[order]
        while len(group) > len(first):
            begin = np.flatnonzero(np.diff(group, prepend=-1))
            rank = np.arange(len(group)) - np.repeat(begin, np.diff(begin, append=len(group)))
            odd = np.flatnonzero(rank % 2)
            tables[odd - 1] = each(np.column_stack([tables[odd - 1], tables[odd]]), self.store.add)
            group, tables = np.delete(group, odd), np.delete(tables, odd)
        return scopes[first], tables

    def _graph(self) -> _Graph:
        nodes, number = np.flatnonzero(self.alive), np.cumsum(self.alive) - 1
        _, kind = alike(self.unary[nodes][:, None])
        return _Graph(
            nodes,
            self._sizes()[nodes].astype(np.float64),
            kind,
            [number[scopes] for scopes, _ in self.factors.values()],
        )

    def remove_chains(self) -> None:
        """Removes nodes of at most two neighbours until none is left."""
        for groups in self._graph().chains():
            self._remove(groups)

    def is_wider_than(self, max_entries: int) -> bool:
        """Says whether removing every node would make a table of more entries."""
        try:
            self._rounds(max_entries)
        except TooWideError:
            return True
        return False

    def _rounds(self, max_entries: int) -> list[list[Group]]:
        """Returns what `run` removes at once, found without a table."""
        graph = self._graph()
        rounds = [*graph.chains(), *graph.smallest_first(max_entries)]
        self.widest = max(self.widest, graph.widest)
        return rounds

    def run(self, max_entries: int) -> None:
        """Removes every node, those that make the smallest tables first.

        Raises:
            TooWideError: where a table would have more than `max_entries` entries, or too many sides; then nothing has
                been removed.
        """
        for groups in self._rounds(max_entries):
            self._remove(groups)

    def _remove(self, groups: Sequence[Group]) -> None:
        """Removes nodes of which none is beside another, by minimising over each."""
        num = len(self.alive)
        chosen = np.zeros(num, dtype=bool)
        for nodes, _ in groups:
            chosen[nodes] = True
        owner, number = self._taken(chosen, groups)
        for nodes, around in groups:
            kind = np.zeros(len(nodes), dtype=np.int64)
            for members, rows in _ragged(nodes, owner, number):
                kind[members] = each(np.column_stack([self.unary[nodes[members]], rows]), self._kind)
            self._batches.append(_Batch(nodes, around, kind, self.mask[np.column_stack([nodes, around])]))
            self._attach(around, np.array(self._least, dtype=np.int64)[kind])
        self.alive[chosen] = False

    def _taken(self, chosen: Bools, groups: Sequence[Group]) -> tuple[Ints, Ints]:
        """Takes out the factors of chosen nodes.

        Returns for each factor the node, in ascending order, and the part that it is of it.
        """
        num = len(chosen)
        keys = np.concatenate([(nodes[:, None] * num + around).ravel() for nodes, around in groups])
        places = np.concatenate([np.tile(np.arange(1, around.shape[1] + 1), len(around)) for _, around in groups])
        order = np.argsort(keys)
        keys, places = keys[order], places[order]
        owners, numbers = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for arity, (scopes, table) in self.factors.items():
            hit = chosen[scopes]
            rows = np.flatnonzero(hit.any(axis=1))
            if not len(rows):
                continue
            scope, side, every = scopes[rows], hit[rows].argmax(axis=1), np.arange(len(rows))
            owner = scope[every, side]
            at = np.searchsorted(keys, owner[:, None] * num + scope)
            position = places[np.minimum(at, len(places) - 1)]
            position[every, side] = 0
            owners.append(owner)
            numbers.append(each(np.column_stack([table[rows], position]), self._part))
            self.factors[arity] = np.delete(scopes, rows, axis=0), np.delete(table, rows)
        owner, number = np.concatenate(owners), np.concatenate(numbers)
        order = np.lexsort((number, owner))
        return owner[order], number[order]

    def _part(self, *row: int) -> int:
        if row not in self._part_numbers:
            self._part_numbers[row] = len(self._parts)
            self._parts.append((row[0], row[1:]))
        return self._part_numbers[row]

    def _kind(self, *row: int) -> int:
        """Returns the number of what a node and its factors are: its costs, and the numbers of the parts."""
        if row not in self._kind_numbers:
            self._kind_numbers[row] = len(self._kinds)
            self._kinds.append(((row[0], (0,)), *[self._parts[number] for number in row[1:]]))
            self._least.append(self.store.least(self._kinds[-1]))
        return self._kind_numbers[row]

    def _attach(self, scopes: Ints, tables: Ints) -> None:
        """Takes up factors: `scopes` [factors, arity] are their nodes, `tables` [factors] their tables' numbers."""
        arity = scopes.shape[1]
        if arity == 0:
            self.constant += float(sum(float(self.store.tables[table]) for table in tables.tolist()))
        elif arity == 1:
            self._add(scopes[:, 0], tables)
        else:
            old, old_tables = self.factors.get(
                arity, (np.zeros((0, arity), dtype=np.int64), np.zeros(0, dtype=np.int64))
            )
            met = np.zeros(len(self.alive), dtype=bool)
            met[scopes[:, 0]] = True
            same = met[old[:, 0]]  # what may be over the same nodes as what is new
            scopes, tables = self._sums(np.concatenate([old[same], scopes]), np.concatenate([old_tables[same], tables]))
            self.factors[arity] = np.concatenate([old[~same], scopes]), np.concatenate([old_tables[~same], tables])

    # What is left, and the answer

    def core(self) -> Core:
        """Returns what is left."""
        return Core(tuple(np.flatnonzero(self.alive).tolist()), sum(len(table) for _, table in self.factors.values()))

    def core_problem(self) -> tuple[list[int], Problem]:
        """Returns the alive nodes, and the problem that is left between them. Only while all factors are pairs."""
        scopes, table = self.factors[2]
        order = np.lexsort((scopes[:, 1], scopes[:, 0]))
        number = np.cumsum(self.alive) - 1
        (u, v), at = number[scopes[order]].T, np.flatnonzero(self.alive)
        used, tables = np.unique(np.concatenate([self.unary[at], table[order]]), return_inverse=True)
        nodes = at.tolist()
        every = tuple(self.store.tables[one] for one in used.tolist())
        coordinates = left_coordinates(self.problem, [(n, self.left(n)) for n in nodes])
        return nodes, Problem(every, tables[: len(at)], u, v, tables[len(at) :], coordinates=coordinates)

    def read_back(self, rest: dict[int, int] | None = None) -> Ints:
        """Returns the best states [nodes], as numbered in the problem, given those of the nodes still alive.

        After a whole run none is alive.
        """
        states = np.zeros((len(self._masks), max(map(len, self._masks), default=0)), dtype=np.int64)
        places = np.zeros((len(self._masks), 1 + max(map(max, self._masks), default=0)), dtype=np.int64)
        for number, mask in enumerate(self._masks):
            states[number, : len(mask)] = mask
            places[number, list(mask)] = np.arange(len(mask))
        picked = np.zeros(self.problem.num_nodes, dtype=np.int64)
        for node, state in (rest or {}).items():
            picked[node] = self.left(node)[state]
        for batch in reversed(self._batches):
            index = places[batch.mask[:, 1:], picked[batch.around]]
            best = each(
                np.column_stack([batch.kind, index]), lambda kind, *index: self.store.best(self._kinds[kind], index)
            )
            picked[batch.nodes] = states[batch.mask[:, 0], best]
        return picked


def pair(first: Ints, second: Ints) -> Ints:
    """Returns pairs of numbers as one number each."""
    return (first << _HALF) | second


def alike(rows: Ints) -> tuple[Ints, Ints]:
    """Returns the first of each kind of rows, and the number of each row's kind.

    Rows are [n, columns], of numbers from 0 on. Kinds are numbered in ascending order, column by column.
    """
    first, code = _kinds(rows[:, 0])
    for column in rows.T[1:]:
        if len(first) == len(rows):  # all are different already
            break
        kinds, numbers = _kinds(column)
        first, code = _kinds(code * len(kinds) + numbers)
    return first, code


def _kinds(numbers: Ints) -> tuple[Ints, Ints]:
    """Returns the first place of each number that there is, and each place's index among these in ascending order.

    Small numbers are looked up in a table, in a tenth of the time of sorting them.
    """
    span = int(numbers.max(initial=-1)) + 1
    if span > _TABLE * len(numbers) + _TABLE:
        _, first, number = np.unique(numbers, return_index=True, return_inverse=True)
        return first, number
    at = np.full(span, -1, dtype=np.int64)
    at[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    there = at >= 0
    return at[there], (np.cumsum(there) - 1)[numbers]


def distinct(numbers: Ints) -> Ints:
    """Returns numbers in ascending order, each once."""
    numbers = np.sort(numbers, kind="stable")
    return numbers[np.diff(numbers, prepend=-1) > 0]


def ranks(numbers: Ints) -> Ints:
    """Returns for each place how many before it have the same number."""
    order = np.argsort(numbers, kind="stable")
    begin = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[order] = np.arange(len(numbers)) - np.repeat(begin, np.diff(begin, append=len(numbers)))
    return rank


def each(rows: Ints, make: Callable[..., int]) -> Ints:
    """Returns what `make` makes of each row [rows], called once for rows that are equal."""
    if len(rows) <= _FEW:
        return np.array([make(*row) for row in rows.tolist()], dtype=np.int64)
    first, number = alike(rows)
    return np.array([make(*row) for row in rows[first].tolist()], dtype=np.int64)[number]


def _ragged(nodes: Ints, owner: Ints, value: Ints) -> list[tuple[Ints, Ints]]:
    """Returns nodes of which as many values are owned, as places in `nodes`, with those values [nodes, values].

    `owner` ascends.
    """
    owned = np.bincount(owner, minlength=int(nodes.max(initial=-1)) + 1)
    count, first = owned[nodes], starts(owned)[nodes]
    groups = [np.flatnonzero(count == number) for number in np.unique(count).tolist()]
    return [(group, value[first[group][:, None] + np.arange(count[group[0]])]) for group in groups]


AnyElimination = Elimination | BatchElimination


def elimination_of(
    problem: Problem,
    store: TableStore,
    node_costs: Sequence[int] | Ints | None = None,
    edge_costs: Sequence[int] | Ints | None = None,
    masks: Sequence[Mask] | None = None,
) -> AnyElimination:
    """Returns an elimination on a problem, in batches if it is large.

    It has other tables than the problem's own, or some states only, where given.
    """
    kind = BatchElimination if problem.num_nodes >= _MANY else Elimination
    return kind(problem, store, node_costs, edge_costs, masks)
