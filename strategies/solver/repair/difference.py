"""The parts in which two choices differ.

The nodes in which two choices differ fall into parts that no edge joins. Taking a part over changes the cost and the
memory by amounts that do not depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.connected_components import components
from rhino.strategies.solver.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """The parts in which two choices differ: connected nodes, with no edge from one part to another.

    `label` [nodes] is the part of a node, -1 where both choose the same; `count` is how many there are.
    """

    problem: Problem
    base: Ints
    other: Ints
    label: Ints
    count: int

    @staticmethod
    def of(problem: Problem, base: Ints, other: Ints) -> Difference:
        """Returns the parts in which `other` [nodes] differs from `base` [nodes]."""
        differs = base != other
        nodes, both = np.flatnonzero(differs), differs[problem.edge_u] & differs[problem.edge_v]
        component = components(problem.num_nodes, np.stack([problem.edge_u[both], problem.edge_v[both]], axis=1))[nodes]
        kept, label = np.unique(component), np.full(problem.num_nodes, -1, dtype=np.int64)
        label[nodes] = np.searchsorted(kept, component)
        return Difference(problem, base, other, label, len(kept))

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
        """Returns what changes in tables of nodes and of edges [parts].

        The two ends of an edge are never in different parts.
        """
        problem, base, other, change = self.problem, self.base, self.other, np.zeros(self.count)
        mine = self.label[nodes] >= 0
        tables, nodes = node_tables[mine], nodes[mine]
        np.add.at(
            change,
            self.label[nodes],
            problem.node_entries(tables, nodes, other) - problem.node_entries(tables, nodes, base),
        )
        part = np.maximum(self.label[problem.edge_u[edges]], self.label[problem.edge_v[edges]])
        tables, edges, part = edge_tables[part >= 0], edges[part >= 0], part[part >= 0]
        gained = problem.edge_entries(tables, edges, other, other) - problem.edge_entries(tables, edges, base, base)
        np.add.at(change, part, gained)
        return change
