"""Exact solution by eliminating nodes: dynamic programming over the graph, with equal work done once.

A node is removed by minimising over its states: with one neighbour that is a message to it (the cone DP of Rhino 4.3.2,
level 1), with two a new edge between them (level 3, where the node is a critical node between segments), with more a
table over all of them. Every removal is exact, so what comes out is the optimum; only the size of the tables limits it.
Before that, states that can never win are dropped: state p of a node loses to q if p costs more by itself than q could
ever cost more on all edges together.

Tables are interned by content and every operation is remembered by its operands, so the k-th equal layer costs some
dictionary look-ups: TAP's folding without a notion of layers. The order is by size of the table made, then by node
number: no order depends on hashing.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.elimination.dominance import Bound, bound_of, undominated
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.tables import Tables, distinct_rows

MOST_NEIGHBOURS = 60
"""NumPy's arrays have at most 64 dimensions, those of one entry included."""

_ENTRIES_AT_ONCE = 1 << 18
"""Entries of a sum that are held at the same time: they then stay in a processor's cache."""

Mask = tuple[int, ...]
"""The states of a node that are left, by their numbers in the problem."""


@dataclass(eq=False)
class TableStore(Tables):
    """Tables, and the memory of operations on them. May be shared by solves of the same problem at other prices."""

    memo: dict[object, object] = field(default_factory=dict)

    def add(self, a: int, b: int) -> int:
        """Returns the sum of two tables of the same shape."""
        key = ("add", a, b) if a <= b else ("add", b, a)
        if key not in self.memo:
            self.memo[key] = self.intern(self.tables[a] + self.tables[b])
        return self.memo[key]  # type: ignore[return-value]

    def scale(self, a: int, factor: float) -> int:
        """Returns a table times a factor; what is infinite stays so."""
        key = ("scale", a, factor)
        if key not in self.memo:
            table = self.tables[a]
            self.memo[key] = self.intern(
                np.where(np.isinf(table), table, np.where(np.isinf(table), 0.0, table) * factor)
            )
        return self.memo[key]  # type: ignore[return-value]

    def row(self, a: int) -> int:
        """Returns the only row of a table whose first side has one state."""
        if ("row", a) not in self.memo:
            self.memo["row", a] = self.intern(self.tables[a][0])
        return self.memo["row", a]  # type: ignore[return-value]

    def transpose(self, a: int) -> int:
        """Returns a table with its two sides swapped."""
        if ("T", a) not in self.memo:
            self.memo["T", a] = self.intern(self.tables[a].T)
        return self.memo["T", a]  # type: ignore[return-value]

    def take(self, a: int, masks: tuple[Mask, ...]) -> int:
        """Returns the rows and columns of a table that `masks` leave."""
        table = self.tables[a]
        if tuple(map(len, masks)) == table.shape:
            return a
        key = ("take", a, masks)
        if key not in self.memo:
            self.memo[key] = self.intern(table[np.ix_(*masks)])
        return self.memo[key]  # type: ignore[return-value]

    def undominated(self, unary: int, tables: tuple[int, ...]) -> Mask:
        """Returns the states of a node that can win, by its costs and its edges' tables.

        A table is [states, states of the other end].
        """
        key = ("kept", unary, tables)
        if key not in self.memo:
            self.memo[key] = self._undominated(self.tables[unary], tables)
        return self.memo[key]  # type: ignore[return-value]

    def _undominated(self, cost: Floats, tables: tuple[int, ...]) -> Mask:
        kept = undominated(cost, [self.tables[table] for table in tables], [self._bound(table) for table in tables])
        return tuple(kept.tolist())

    def _bound(self, table: int) -> Bound:
        key = ("bound", table)
        if key not in self.memo:
            self.memo[key] = bound_of(self.tables[table])
        return self.memo[key]  # type: ignore[return-value]

    def least(self, parts: Parts) -> int:
        """Sums tables over positions and minimises over position 0: returns the table of the minimum over the others.

        `parts` lists (table, the positions of its sides); positions count the variables of the sum.
        """
        key = ("least", parts)
        if key not in self.memo:
            self.memo[key] = self._least(parts)
        return self.memo[key]  # type: ignore[return-value]

    def best(self, parts: Parts, index: tuple[int, ...]) -> int:
        """Returns the state of position 0 at which the sum of `least` is least, given those of the other positions."""
        key = ("best", parts, index)
        if key not in self.memo:
            aligned = [
                self.tables[number][tuple([slice(None) if p == 0 else index[p - 1] for p in at])]
                for number, at in parts
            ]
            costs: Floats = np.zeros(len(aligned[0]))
            for column in aligned:
                costs = costs + column
            self.memo[key] = int(costs.argmin())
        return self.memo[key]  # type: ignore[return-value]

    def _least(self, parts: Parts) -> int:
        count = 1 + max(position for _, positions in parts for position in positions)
        aligned = [align(self.tables[number], positions, count) for number, positions in parts]
        if prod(map(max, zip(*(table.shape for table in aligned), strict=True))) <= _ENTRIES_AT_ONCE:
            total = aligned[0]
            for table in aligned[1:]:
                total = total + table
            return self.intern(np.minimum.reduce(total, axis=0))
        if all(len(positions) <= 2 for _, positions in parts):
            return self.intern(self._least_of_classes(parts, count))
        return self.intern(_least_by_state(aligned, count))

    def _least_of_classes(self, parts: Parts, count: int) -> Floats:
        """Does what `least` does for pairs, for states of other nodes as one that have equal columns."""
        aligned, classes = [], [np.arange(0)] * (count - 1)
        for number, positions in parts:
            table = self.tables[number]
            if len(positions) == 2:
                side = positions.index(0)
                turned = table.T if side else table
                found = self._distinct(number, 1 - side)
                classes[max(positions) - 1] = np.arange(turned.shape[1]) if found is None else found[1]
                aligned.append(align(turned if found is None else turned[:, found[0]], (0, max(positions)), count))
            else:
                aligned.append(align(table, positions, count))
        best: Floats = _least_by_state(aligned, count)[np.ix_(*classes)]
        return best

    def _distinct(self, table: int, side: int) -> tuple[Ints, Ints] | None:
        """Returns what `distinct_rows` does of the states of one side of a table."""
        key = ("distinct", table, side)
        if key not in self.memo:
            self.memo[key] = distinct_rows(self.tables[table].T if side else self.tables[table])
        return self.memo[key]  # type: ignore[return-value]


def _least_by_state(aligned: Sequence[Floats], count: int) -> Floats:
    """Returns the least of a sum of tables over their first side, of `count` sides.

    One state is taken at a time, so that the sum never exists for all of them at once.
    """
    states = max(table.shape[0] for table in aligned)
    shape = np.broadcast_shapes(*(table.shape[1:] for table in aligned))
    best, room = np.full(shape, np.inf), np.empty(shape)
    for state in range(states):
        row: Floats = np.zeros((1,) * (count - 1))
        *first, last = [table[state if table.shape[0] > 1 else 0] for table in aligned]
        for part in first:
            row = row + part
        np.minimum(best, np.add(row, last, out=room), out=best)
    return best


Parts = tuple[tuple[int, tuple[int, ...]], ...]


def align(table: Floats, positions: tuple[int, ...], count: int) -> Floats:
    """Returns a view of `table` with its sides at `positions` of `count`."""
    order = sorted(range(len(positions)), key=positions.__getitem__)
    shape = [1] * count
    for side in order:
        shape[positions[side]] = table.shape[side]
    return table.transpose(order).reshape(shape)


@dataclass(frozen=True, slots=True)
class Removal:
    """One removed node: its factors at that time, and everyone's states then.

    The factors are over the node itself (position 0) and its neighbours (positions 1, 2, ...).
    """

    node: int
    neighbours: tuple[int, ...]
    parts: Parts
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """What is left after the cheap removals: the alive nodes, their states, and the factors between them."""

    nodes: tuple[int, ...]
    num_edges: int


class TooWideError(Exception):
    """Elimination would need a table of more than the allowed number of entries."""

    def __init__(self, entries: int) -> None:
        super().__init__(f"a table of {entries:,} entries")
        self.entries = entries


class Elimination:
    """The state of one elimination: factors between alive nodes, and the steps taken so far."""

    def __init__(
        self,
        problem: Problem,
        store: TableStore,
        node_costs: Sequence[int] | Ints | None = None,
        edge_costs: Sequence[int] | Ints | None = None,
        masks: Sequence[Mask] | None = None,
    ) -> None:
        self.problem = problem
        self.store = store
        base = [store.intern(table) for table in problem.tables] if node_costs is None or edge_costs is None else []
        self.unary = (
            np.asarray(node_costs).tolist() if node_costs is not None else [base[t] for t in problem.node_table]
        )
        edges = np.asarray(edge_costs).tolist() if edge_costs is not None else [base[t] for t in problem.edge_table]
        self.pairs: list[dict[int, int]] = [{} for _ in range(problem.num_nodes)]
        for u, v, table in zip(problem.edge_u.tolist(), problem.edge_v.tolist(), edges, strict=True):
            self.pairs[u][v] = table
            self.pairs[v][u] = store.transpose(table)
        self.masks: list[Mask] = (
            list(masks) if masks is not None else [tuple(range(len(store.tables[t]))) for t in self.unary]
        )
        if masks is not None:
            self._keep(masks)
        self.wide: list[dict[tuple[int, ...], int]] = [{} for _ in range(problem.num_nodes)]
        self.constant = 0.0
        self.widest = 0
        self.steps: list[Removal] = []
        self.alive = [True] * problem.num_nodes

    def _keep(self, masks: Sequence[Mask]) -> None:
        """Drops all states but those in `masks`."""
        store = self.store
        self.unary = [store.take(table, (mask,)) for table, mask in zip(self.unary, masks, strict=True)]
        for u, pairs in enumerate(self.pairs):
            for v, table in pairs.items():
                if u < v:
                    pairs[v] = store.take(table, (masks[u], masks[v]))
                    self.pairs[v][u] = store.transpose(pairs[v])

    # States that cannot win

    def drop_dominated(self) -> int:
        """Drops dominated states until none is left; returns how many went. Only while all factors are pairs."""
        store, dropped = self.store, 0
        self.settle()
        work = [node for node, alive in enumerate(self.alive) if alive]
        while work:
            changed: dict[int, None] = {}
            for node in work:
                kept = store.undominated(self.unary[node], tuple(sorted(self.pairs[node].values())))
                if len(kept) < len(self.masks[node]):
                    dropped += len(self.masks[node]) - len(kept)
                    self._restrict(node, kept)
                    changed.update(dict.fromkeys((node, *self.pairs[node])))
            self._settle(sorted(changed))
            work = [node for node in sorted(changed) if self.alive[node]]
        return dropped

    def settle(self) -> None:
        """Removes nodes that have one state left. Only while all factors are pairs."""
        self._settle(range(len(self.unary)))

    def _settle(self, nodes: Iterable[int]) -> None:
        """Removes those of `nodes` that have one state left: their edges become costs of the other ends."""
        for node in nodes:
            if self.alive[node] and len(self.masks[node]) == 1:
                for other, table in sorted(self.pairs[node].items()):
                    self.unary[other] = self.store.add(self.unary[other], self.store.row(table))
                    del self.pairs[other][node]
                self.pairs[node] = {}
                self.remove(node)

    def _restrict(self, node: int, kept: Mask) -> None:
        store = self.store
        self.masks[node] = tuple(self.masks[node][k] for k in kept)
        self.unary[node] = store.take(self.unary[node], (kept,))
        for other, table in self.pairs[node].items():
            rows = tuple(range(store.tables[table].shape[1]))
            self.pairs[node][other] = store.take(table, (kept, rows))
            self.pairs[other][node] = store.transpose(self.pairs[node][other])

    # Removal

    def neighbours(self, node: int) -> tuple[int, ...]:
        """Returns the nodes that share a factor with `node`, ascending."""
        if not self.wide[node]:
            return tuple(sorted(self.pairs[node]))
        found = set(self.pairs[node])
        for scope in self.wide[node]:
            found.update(scope)
        found.discard(node)
        return tuple(sorted(found))

    def entries(self, node: int) -> int:
        """Returns the size of the table that removing `node` makes, its own states included."""
        return prod(len(self.masks[n]) for n in (*self.neighbours(node), node))

    def remove(self, node: int) -> tuple[int, ...]:
        """Removes `node` by minimising over it; returns its neighbours."""
        around = self.neighbours(node)
        if len(around) > MOST_NEIGHBOURS:
            raise TooWideError(self.entries(node))
        scope = (node, *around)
        position = {n: p for p, n in enumerate(scope)}
        parts: list[tuple[int, tuple[int, ...]]] = [(self.unary[node], (0,))]
        parts += [(table, (0, position[other])) for other, table in self.pairs[node].items()]
        parts += [(table, tuple(position[n] for n in wide)) for wide, table in self.wide[node].items()]
        ordered = tuple(sorted(parts, key=_part_order))
        least = self.store.least(ordered)
        self._detach(node)
        self._attach(around, least)
        self.steps.append(Removal(node, around, ordered, tuple(self.masks[n] for n in scope)))
        self.alive[node] = False
        return around

    def _detach(self, node: int) -> None:
        for other in self.pairs[node]:
            del self.pairs[other][node]
        for scope in self.wide[node]:
            for other in scope:
                if other != node:
                    del self.wide[other][scope]
        self.pairs[node], self.wide[node] = {}, {}

    def _attach(self, scope: tuple[int, ...], table: int) -> None:
        store = self.store
        match scope:
            case ():
                self.constant += float(store.tables[table])
            case (n,):
                self.unary[n] = store.add(self.unary[n], table)
            case (u, v):
                total = store.add(self.pairs[u][v], table) if v in self.pairs[u] else table
                self.pairs[u][v] = total
                self.pairs[v][u] = store.transpose(total)
            case _:
                existing = self.wide[scope[0]].get(scope)
                total = table if existing is None else store.add(existing, table)
                for n in scope:
                    self.wide[n][scope] = total

    def remove_chains(self) -> None:
        """Removes nodes of at most two neighbours until none is left, in rounds over the whole graph.

        Alike places are removed at the same time.
        """
        work = [node for node, alive in enumerate(self.alive) if alive]
        while work:
            touched: dict[int, None] = {}
            for node in work:
                if self.alive[node] and not self.wide[node] and len(self.pairs[node]) <= 2:
                    touched.update(dict.fromkeys(self.remove(node)))
            work = sorted(touched)

    def run(self, max_entries: int) -> None:
        """Removes every node, the one that makes the smallest table first.

        Raises:
            TooWideError: where a table would have more than `max_entries` entries; then nothing has been removed.
        """
        for node in self._order(max_entries):
            self.remove(node)

    def is_wider_than(self, max_entries: int) -> bool:
        """Says whether removing every node would make a table of more entries."""
        try:
            self._order(max_entries)
        except TooWideError:
            return True
        return False

    def _order(self, max_entries: int) -> list[int]:
        """Returns the order in which `run` removes nodes, found without a table."""
        around = {node: set(self.neighbours(node)) for node, alive in enumerate(self.alive) if alive}
        sizes = list(map(len, self.masks))
        current = {node: prod([sizes[n] for n in others]) * sizes[node] for node, others in around.items()}
        heap = [(key, node) for node, key in current.items()]
        heapq.heapify(heap)
        order = []
        while heap:
            key, node = heapq.heappop(heap)
            if current.get(node) != key:
                continue
            self._check(key, max_entries)
            order.append(node)
            del current[node]
            neighbours = around.pop(node)
            for other in sorted(neighbours):
                joined = around[other]
                joined |= neighbours
                joined -= {node, other}
                fresh = prod([sizes[n] for n in joined]) * sizes[other]
                if fresh != current[other]:
                    current[other] = fresh
                    heapq.heappush(heap, (fresh, other))
        return order

    def replay(self, order: Sequence[int], max_entries: int) -> None:
        """Removes every node in the order of an earlier run on the same graph. Raises TooWideError as `run` does."""
        for node in order:
            if self.alive[node]:
                if self.wide[node] or len(self.pairs[node]) > 2:
                    self._check(self.entries(node), max_entries)
                self.remove(node)

    def _check(self, entries: int, max_entries: int) -> None:
        self.widest = max(self.widest, entries)
        if entries > max_entries:
            raise TooWideError(entries)

    def core(self) -> Core:
        """Returns what is left."""
        nodes = tuple(n for n, alive in enumerate(self.alive) if alive)
        wide = {scope for n in nodes for scope in self.wide[n]}
        return Core(nodes, sum(len(self.pairs[n]) for n in nodes) // 2 + len(wide))

    def core_problem(self) -> tuple[list[int], Problem]:
        """Returns the alive nodes, and the problem that is left between them. Only while all factors are pairs."""
        nodes = [n for n, alive in enumerate(self.alive) if alive]
        number = {n: k for k, n in enumerate(nodes)}
        table_of: dict[int, int] = {}
        edges = [
            (number[u], number[v], table_of.setdefault(table, len(table_of)))
            for u in nodes
            for v, table in sorted(self.pairs[u].items())
            if u < v
        ]
        columns = np.array(edges, dtype=np.int64).reshape(-1, 3).T
        unary = np.array([table_of.setdefault(self.unary[n], len(table_of)) for n in nodes], dtype=np.int64)
        tables = tuple(self.store.tables[table] for table in table_of)
        coordinates = left_coordinates(self.problem, [(n, self.masks[n]) for n in nodes])
        return nodes, Problem(tables, unary, columns[0], columns[1], columns[2], coordinates=coordinates)

    def left(self, node: int) -> Mask:
        """Returns the states that a node has left, as numbered in the problem."""
        return self.masks[node]

    @property
    def order(self) -> list[int]:
        """The nodes removed so far."""
        return [step.node for step in self.steps]

    def copy(self) -> Elimination:
        """Returns an elimination in the same state, on the same store."""
        twin = copy.copy(self)
        twin.unary, twin.masks, twin.alive, twin.steps = (
            list(self.unary),
            list(self.masks),
            list(self.alive),
            list(self.steps),
        )
        twin.pairs = [dict(pairs) for pairs in self.pairs]
        twin.wide = [dict(wide) for wide in self.wide]
        return twin

    def read_back(self, rest: dict[int, int] | None = None) -> Ints:
        """Returns the best states [nodes], as numbered in the problem, given those of the nodes still alive.

        After a whole run none is alive.
        """
        picked = [0] * len(self.alive)
        for node, state in (rest or {}).items():
            picked[node] = self.masks[node][state]
        for step in reversed(self.steps):
            index = tuple([mask.index(picked[n]) for n, mask in zip(step.neighbours, step.masks[1:], strict=True)])
            picked[step.node] = step.masks[0][self.store.best(step.parts, index)]
        return np.array(picked, dtype=np.int64)


def left_coordinates(problem: Problem, left: Sequence[tuple[int, Mask]]) -> tuple[Ints, ...]:
    """Returns the coordinates of the states that nodes have left, one array for alike nodes."""
    every, known = problem.coordinates, dict[tuple[int, Mask], Ints]()
    for node, mask in left if every else ():
        if (id(every[node]), mask) not in known:
            known[id(every[node]), mask] = every[node][list(mask)]
    return tuple(known[id(every[node]), mask] for node, mask in left) if every else ()


def _part_order(part: tuple[int, tuple[int, ...]]) -> tuple[int, ...]:
    return (len(part[1]), *part[1], part[0])
