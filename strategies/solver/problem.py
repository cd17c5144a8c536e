"""The choice to be made, as plain tables.

A problem has nodes with states, edges with cost matrices, and what each choice keeps in memory.

    minimise   sum_u cost_u[x_u]  +  sum_(u,v) cost_uv[x_u, x_v]
    such that  for every time t:  base[t] + sum of the bytes of all residents alive at t  <=  budget

A node is an op, an argument or a returned value, a state is a sharding strategy, an edge is a value from its producer
to one consumer: Rhino section 4.2. A pair of states that is not legal has infinite cost; such a pair gets no variable
in any solver and no place in any sum. Tables are shared between alike nodes (a tuple of tables and an index for each
node), which is what makes alike layers cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints

PeakOf = Callable[[Ints], float]
"""The bytes that the program of a choice [nodes] takes of a device."""


# Relative to a table's largest entry: what is left of a sum M[a, b] = f[a] + g[b] after rounding.
SUM_TOLERANCE = 1e-13


@dataclass(frozen=True, slots=True, eq=False)
class Residents:
    """Tensors that take memory between two times, by who decides their size.

    Shapes: all [residents]. `owner` is a node or an edge, `table` indexes `Problem.tables`: bytes per device by state
    [states of the node], or by the states of both ends [states of u, states of v]. Alive at times `start .. end`, both
    included.
    """

    owner: Ints
    table: Ints
    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.owner)

    def alive(self, time: int) -> Ints:
        """Returns which are alive at a time, by their numbers."""
        return np.flatnonzero((self.start <= time) & (self.end >= time))


def no_residents() -> Residents:
    """Returns an empty list of residents."""
    empty = np.zeros(0, dtype=np.int64)
    return Residents(empty, empty, empty, empty)


@dataclass(frozen=True, eq=False)
class Problem:
    """One choice problem.

    Shapes: `node_table` [nodes], `edge_u`, `edge_v`, `edge_table` [edges] with edge_u < edge_v and no pair twice;
    `tables[node_table[u]]` is [states of u], `tables[edge_table[e]]` is [states of u, states of v]. Units: costs in
    seconds, memory in bytes per device. `num_times` is the length of the schedule, `base_bytes` [times] what is alive
    whatever is chosen. `coordinates[u]` [states of u, axes], where given, is what each state chooses along each mesh
    axis.
    """

    tables: tuple[Floats, ...]
    node_table: Ints
    edge_u: Ints
    edge_v: Ints
    edge_table: Ints
    num_times: int = 1
    base_bytes: Floats = field(default_factory=lambda: np.zeros(1))
    node_residents: Residents = field(default_factory=no_residents)
    edge_residents: Residents = field(default_factory=no_residents)
    coordinates: tuple[Ints, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.node_table)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.edge_table)

    def num_states(self) -> Ints:
        """Returns the number of states of every node [nodes]."""
        return np.array(list(map(len, self.tables)), dtype=np.int64)[self.node_table]

    @cached_property
    def _flat(self) -> tuple[Floats, Ints, Ints]:
        """All tables in one array; where each starts, and how many columns it has [tables]."""
        sizes = np.array([table.size for table in self.tables], dtype=np.int64)
        columns = np.array([table.shape[-1] if table.ndim == 2 else 1 for table in self.tables], dtype=np.int64)
        values = np.concatenate([table.ravel() for table in self.tables]) if self.tables else np.zeros(0)
        return values, np.cumsum(sizes) - sizes, columns

    def node_entries(self, tables: Ints, nodes: Ints, states: Ints) -> Floats:
        """Returns an entry of each of `tables` [n], by the states of `nodes` [n] in a choice `states` [nodes]."""
        values, start, _ = self._flat
        found: Floats = values[start[tables] + states[nodes]]
        return found

    def edge_entries(self, tables: Ints, edges: Ints, states_u: Ints, states_v: Ints) -> Floats:
        """Returns an entry of each of `tables` [n], by the states of both ends of `edges` [n].

        Each end has its state in one of two choices [nodes].
        """
        values, start, columns = self._flat
        found: Floats = values[
            start[tables] + states_u[self.edge_u[edges]] * columns[tables] + states_v[self.edge_v[edges]]
        ]
        return found

    def cost(self, states: Sequence[int] | Ints) -> float:
        """Returns the objective of a choice `states` [nodes], infinite if a pair in it is not legal."""
        x = np.asarray(states, dtype=np.int64)
        nodes = self.node_entries(self.node_table, np.arange(self.num_nodes), x)
        edges = self.edge_entries(self.edge_table, np.arange(self.num_edges), x, x)
        return float(nodes.sum() + edges.sum())

    def least_memory(self) -> Floats:
        """Returns what is alive at every time at least [times], whatever is chosen.

        Each resident of a node counts at its least size.
        """
        residents = self.node_residents
        sizes = np.array([self.tables[table].min() for table in residents.table.tolist()])
        change = np.zeros(self.num_times + 1)
        np.add.at(change, residents.start, sizes)
        np.subtract.at(change, residents.end + 1, sizes)
        result: Floats = self.base_bytes + np.cumsum(change)[:-1]
        return result

    def memory(self, states: Sequence[int] | Ints) -> Floats:
        """Returns the bytes alive at every time [times] under a choice `states` [nodes]."""
        x = np.asarray(states, dtype=np.int64)
        nodes, edges = self.node_residents, self.edge_residents
        change = np.zeros(self.num_times + 1)
        node_bytes = self.node_entries(nodes.table, nodes.owner, x)
        edge_bytes = self.edge_entries(edges.table, edges.owner, x, x)
        for residents, sizes in ((nodes, node_bytes), (edges, edge_bytes)):
            np.add.at(change, residents.start, sizes)
            np.subtract.at(change, residents.end + 1, sizes)
        result: Floats = self.base_bytes + np.cumsum(change)[:-1]
        return result


def starts(sizes: Ints) -> Ints:
    """Returns where each of the consecutive groups of these sizes starts."""
    return np.cumsum(sizes) - sizes


def spread(first: Ints, sizes: Ints) -> Ints:
    """Returns first[0], first[0] + 1, ... (sizes[0] of them), first[1], ... as one list."""
    return np.repeat(first - starts(sizes), sizes) + np.arange(sizes.sum())


def as_sum(table: Floats) -> tuple[Floats, Floats] | None:
    """Returns f, g with table[a, b] = f[a] + g[b], or None if the table is no such sum.

    They are infinite for a row or column of illegal pairs only.
    """
    legal: Bools = np.isfinite(table)
    rows, columns = np.asarray(legal.any(axis=1)), np.asarray(legal.any(axis=0))
    if not rows.any() or not (legal == np.outer(rows, columns)).all():
        return None
    f, g = np.full(len(rows), np.inf), np.full(len(columns), np.inf)
    part = table[np.ix_(rows, columns)]
    f[rows], g[columns] = part[:, 0], part[0] - part[0, 0]
    off = np.abs(f[rows][:, None] + g[columns] - part).max()
    return (f, g) if off <= SUM_TOLERANCE * np.abs(part).max() else None
