"""Mix two choices: where they differ in parts that do not touch, each part may follow either.

The nodes in which two choices differ fall into parts that no edge joins. Taking a part over changes the cost and the memory by amounts
that do not depend on the others, so the best mixture under a budget is a knapsack over parts, solved exactly by MILP (equal parts are one
integer variable; a time becomes a row when a mixture breaks the budget at it). A part that is too large to be taken over whole may be cut
in two: `rhino.strategies.seams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhino.strategies.components import components
from rhino.strategies.problem import Floats, Ints, Problem
from rhino.strategies.small_rows import solve_small


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """The parts in which two choices differ: connected nodes, with no edge from one part to another.

    `label` [nodes] is the part of a node, -1 where both choose the same; `count` is how many there are.
    """

    problem: Problem
    base: Ints
    other: Ints
    label: Ints
    count: int

    @staticmethod
    def of(problem: Problem, base: Ints, other: Ints) -> Parts:
        """Returns the parts in which `other` [nodes] differs from `base` [nodes]."""
        differs = base != other
        nodes, both = np.flatnonzero(differs), differs[problem.edge_u] & differs[problem.edge_v]
        component = components(problem.num_nodes, np.stack([problem.edge_u[both], problem.edge_v[both]], axis=1))[nodes]
        kept, label = np.unique(component), np.full(problem.num_nodes, -1, dtype=np.int64)
        label[nodes] = np.searchsorted(kept, component)
        return Parts(problem, base, other, label, len(kept))

    def cost_changes(self) -> Floats:
        """Returns what taking over each part changes in cost [parts], in seconds."""
        edges = np.arange(self.problem.num_edges)
        return self._changes(self.problem.node_table, np.arange(self.problem.num_nodes), self.problem.edge_table, edges)

    def byte_changes(self, time: int) -> Floats:
        """Returns what taking over each part changes in memory at a time [parts], in bytes."""
        nodes, edges = self.problem.node_residents, self.problem.edge_residents
        of_nodes, of_edges = nodes.alive(time), edges.alive(time)
        return self._changes(nodes.table[of_nodes], nodes.owner[of_nodes], edges.table[of_edges], edges.owner[of_edges])

    def _changes(self, node_tables: Ints, nodes: Ints, edge_tables: Ints, edges: Ints) -> Floats:
        """Returns what changes in tables of nodes and of edges [parts]. The two ends of an edge are never in different parts."""
        problem, base, other, change = self.problem, self.base, self.other, np.zeros(self.count)
        mine = self.label[nodes] >= 0
        tables, nodes = node_tables[mine], nodes[mine]
        np.add.at(change, self.label[nodes], problem.node_entries(tables, nodes, other) - problem.node_entries(tables, nodes, base))
        part = np.maximum(self.label[problem.edge_u[edges]], self.label[problem.edge_v[edges]])
        tables, edges, part = edge_tables[part >= 0], edges[part >= 0], part[part >= 0]
        gained = problem.edge_entries(tables, edges, other, other) - problem.edge_entries(tables, edges, base, base)
        np.add.at(change, part, gained)
        return change


def recombination(problem: Problem, base: Ints, other: Ints, budget: float, times: Sequence[int] = ()) -> Ints | None:
    """Returns the cheapest mixture of two choices, by the parts in which they differ, that fits; None if only `base` does.

    `times` are those at which memory is likely to bind.
    """
    parts = Parts.of(problem, base, other)
    if not parts.count:
        return None
    gain = parts.cost_changes()
    before = problem.memory(base)
    room = {time: budget - float(before[time]) for time in times}
    while True:
        picks = _knapsack(parts, gain, room)
        if picks is None:
            return None
        mixed = np.where((parts.label >= 0) & picks[parts.label], other, base)
        memory = problem.memory(mixed)
        worst = int(memory.argmax())
        if memory[worst] <= budget:
            return mixed
        change = float(memory[worst] - before[worst])
        # A mixture that the solver's tolerance let through: leave it less room than it took, and twice as much less each time.
        room[worst] = 3 * room[worst] - 2 * change if worst in room else budget - float(before[worst])


def _knapsack(parts: Parts, gain: Floats, room: dict[int, float]) -> NDArray[np.bool_] | None:
    """Chooses the parts to take over, by the bytes that they may add at each time in `room`. None where nothing fits.

    Equal parts are one integer variable.
    """
    count = parts.count
    rows = np.array([parts.byte_changes(t) for t in room]).reshape(len(room), count)
    kinds, member = np.unique(np.vstack([gain[None, :], rows]), axis=1, return_inverse=True)
    member = np.asarray(member).reshape(-1)
    size = np.bincount(member, minlength=kinds.shape[1])
    scale = float(np.abs(kinds[0]).max()) or 1.0
    # In units of each row's largest change: small tensors under a large budget are far below the solver's tolerance.
    unit = np.maximum(np.abs(kinds[1:]).max(axis=1, initial=0.0), 1.0)
    most = np.array(list(room.values())) / unit
    found = solve_small(kinds[0] / scale, kinds[1:] / unit[:, None], np.full(len(most), -np.inf), most, size.astype(np.float64), whole=True)
    if found is None:
        return None
    taken = np.round(found.values).astype(np.int64)
    rank = np.zeros(count, dtype=np.int64)
    for kind in range(len(size)):
        members = np.flatnonzero(member == kind)
        rank[members] = np.arange(len(members))
    picks: NDArray[np.bool_] = rank < taken[member]
    return picks
