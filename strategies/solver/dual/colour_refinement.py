"""Alike places of a choice problem, so that what is done for one is done for all.

A large model repeats itself: the tenth layer looks like the eleventh. Nodes are put in classes by colour refinement:
two nodes are alike if their costs are, and those of all nodes within `rounds` edges. Edges know their ends one round
less. So all nodes of a class have the same number of edges of each class, and where alike edges have the same prices,
alike nodes come to the same costs. The number of classes does not grow with the number of layers.

Source: lifted linear programming (Mladenov, Ahmadi and Kersting 2012).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Ints
from rhino.strategies.solver.problem import Problem

End = tuple[int, int, int]
"""How a node meets a class of edges: which, at which side (0 for u, 1 for v), and by how many of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of alike nodes and edges.

    Shapes: `node`, `group` [nodes], `edge` [edges]; `group` is the class one round before.
    """

    node: Ints
    group: Ints
    edge: Ints


def find_classes(problem: Problem, rounds: int) -> Classes:
    """Returns the classes after `rounds` (at least one) of colour refinement.

    Those of edges know their ends one round less.
    """
    return refinements(problem, (rounds,))[0]


def refinements(problem: Problem, rounds: Sequence[int]) -> list[Classes]:
    """Returns the classes after as many rounds of colour refinement as each of `rounds` says.

    The numbers of rounds are at least one, and ascending.
    """
    assert all(count >= 1 for count in rounds), rounds
    ends = list(zip(problem.edge_table.tolist(), problem.edge_u.tolist(), problem.edge_v.tolist(), strict=True))
    around: list[list[tuple[int, int]]] = [[] for _ in range(problem.num_nodes)]
    for table, u, v in ends:  # a table and a side are one number, above which there is room for a colour
        around[u].append(((2 * table) * problem.num_nodes, v))
        around[v].append(((2 * table + 1) * problem.num_nodes, u))
    color = _numbered(problem.node_table.tolist())
    found = []
    for count in range(1, max(rounds, default=0) + 1):
        before = color
        color = _numbered(
            [(before[u], tuple(sorted([side + before[v] for side, v in near]))) for u, near in enumerate(around)]
        )
        if count in rounds:
            edge = _numbered([(table, before[u], before[v]) for table, u, v in ends])
            found.append(Classes(*(np.array(numbers, dtype=np.int64) for numbers in (color, before, edge))))
    return found


def _numbered(keys: Sequence[object]) -> list[int]:
    """Returns the number of each key, in order of first appearance."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


@dataclass(frozen=True, slots=True, eq=False)
class Lifted:
    """A problem with one node and one edge for each class.

    `node` and `edge` are the first of each class in the problem, `num_nodes` and `num_edges` how many there are;
    `group` is the group of each class of nodes, `ends` how its nodes meet edges, and `edge_groups` the groups that a
    class of edges joins.
    """

    problem: Problem
    classes: Classes
    node: list[int]
    edge: list[int]
    num_nodes: list[int]
    num_edges: list[int]
    group: list[int]
    ends: list[list[End]]
    edge_groups: list[tuple[int, int]]


def lift(problem: Problem, classes: Classes) -> Lifted:
    """Returns `problem` with alike places as one."""
    node, edge = (np.unique(numbers, return_index=True)[1] for numbers in (classes.node, classes.edge))
    num_nodes = np.bincount(classes.node).tolist()
    ends: list[list[End]] = [[] for _ in node]
    for side, nodes in enumerate((problem.edge_u, problem.edge_v)):
        for (c, e), count in Counter(zip(classes.node[nodes].tolist(), classes.edge.tolist(), strict=True)).items():
            ends[c].append((e, side, count // num_nodes[c]))
    groups = zip(
        classes.group[problem.edge_u[edge]].tolist(), classes.group[problem.edge_v[edge]].tolist(), strict=True
    )
    many = np.bincount(classes.edge).tolist()
    return Lifted(
        problem,
        classes,
        node.tolist(),
        edge.tolist(),
        num_nodes,
        many,
        classes.group[node].tolist(),
        ends,
        list(groups),
    )
