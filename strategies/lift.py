"""A lower bound on a choice problem by linear programming, with alike places in one variable.

The local polytope of a large model repeats itself: the tenth layer looks like the eleventh. Nodes are put in classes by colour
refinement (two nodes are alike if their costs are, and those of all nodes within `rounds` edges), and the LP gets one variable for each
state of a class, standing for the average over the class. Averages of a choice meet every averaged constraint, so the optimum of the small
LP is a lower bound for every choice, whatever the number of rounds; more rounds tell more places apart and can only raise it. Its size
does not grow with the number of layers.

    minimise   sum_c n_c theta_c . x_c  +  sum_e m_e theta_e . y_e
    such that  sum_s x_c[s] = 1,   m_e sum_t y_e[s, t] = sum_c d_ce x_c[s]   (both sides of every class of edges)

with n_c nodes in class c, m_e edges in class e, d_ce of them ending in class c.

Source: lifted linear programming (Mladenov, Ahmadi and Kersting 2012) for the local polytope of `rhino.strategies.polytope`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from rhino.strategies.answer import Infeasible, Unsolved
from rhino.strategies.eliminate import Mask
from rhino.strategies.polytope import as_sum, starts
from rhino.strategies.problem import Floats, Ints, Problem
from rhino.strategies.rows import Rows, solve_rows

_USED = 1e-7
"""Values of the LP above this are taken as chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Lifted:
    """What the LP says: a bound on the cost of every choice, and the states that it uses, by node."""

    bound: float
    used: list[Mask]


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of alike nodes and edges. Shapes: `node` [nodes], `edge` [edges]."""

    node: Ints
    edge: Ints


def find_classes(problem: Problem, rounds: int) -> Classes:
    """Returns the classes after `rounds` of colour refinement; those of edges know their ends one round less."""
    around: list[list[tuple[int, int, int]]] = [[] for _ in range(problem.num_nodes)]
    ends = list(zip(problem.edge_table.tolist(), problem.edge_u.tolist(), problem.edge_v.tolist(), strict=True))
    for table, u, v in ends:
        around[u].append((table, 0, v))
        around[v].append((table, 1, u))
    color = before = _numbered(problem.node_table.tolist())
    for _ in range(rounds):
        before = color
        color = _numbered([(color[u], tuple(sorted((table, side, color[v]) for table, side, v in near))) for u, near in enumerate(around)])
    edge = _numbered([(table, before[u], before[v]) for table, u, v in ends])
    return Classes(np.array(color, dtype=np.int64), np.array(edge, dtype=np.int64))


def _numbered(keys: list[object]) -> list[int]:
    """Returns the number of each key, in order of first appearance."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def num_columns(problem: Problem, classes: Classes) -> int:
    """Returns how many variables the LP has at most."""
    _, first = np.unique(classes.edge, return_index=True)
    pairs = sum(problem.tables[table].size for table in problem.edge_table[first].tolist())
    _, first = np.unique(classes.node, return_index=True)
    return int(pairs + sum(problem.tables[table].size for table in problem.node_table[first].tolist()))


def lifted_bound(problem: Problem, classes: Classes, step_limit: int) -> Lifted | None:
    """Returns the bound; None where the solver has none within its steps."""
    build = _Build(problem, classes)
    rows, scale = build.rows()
    point = solve_rows(rows, integer=False, step_limit=step_limit)
    if isinstance(point, Infeasible):
        return Lifted(np.inf, [])
    if isinstance(point, Unsolved):
        return None
    return Lifted(build.proven(rows, point.duals) * scale, build.used(point.values))


class _Build:
    """The rows of one lifted LP."""

    def __init__(self, problem: Problem, classes: Classes) -> None:
        self.problem = problem
        self.classes = classes
        self.num_nodes = np.bincount(classes.node)
        self.num_edges = np.bincount(classes.edge)
        _, self.node_of = np.unique(classes.node, return_index=True)
        _, self.edge_of = np.unique(classes.edge, return_index=True)
        sizes = np.array([len(problem.tables[problem.node_table[u]]) for u in self.node_of], dtype=np.int64)
        self.first = starts(sizes)
        self.sizes = sizes
        self.ends = [
            Counter(zip(classes.edge.tolist(), classes.node[side].tolist(), strict=True)) for side in (problem.edge_u, problem.edge_v)
        ]

    def rows(self) -> tuple[Rows, float]:
        """Returns the LP, its costs divided by a scale (seconds)."""
        problem = self.problem
        cost = [self.num_nodes[c] * problem.tables[problem.node_table[u]] for c, u in enumerate(self.node_of)]
        self.cost_x = np.concatenate(cost)
        entries: list[tuple[Floats, Ints, Ints]] = [
            (np.ones(len(self.cost_x)), np.repeat(np.arange(len(self.sizes)), self.sizes), np.arange(len(self.cost_x)))
        ]
        num_rows, num_columns = len(self.sizes), len(self.cost_x)
        cost_y: list[Floats] = []
        by_edge: list[dict[int, list[tuple[int, int]]]] = [{}, {}]
        for side, counts in enumerate(self.ends):
            for (edge, node), count in counts.items():
                by_edge[side].setdefault(edge, []).append((node, count))
        for edge, place in enumerate(self.edge_of):
            table, many = problem.tables[problem.edge_table[place]], self.num_edges[edge]
            parts = as_sum(table)
            if parts is not None:  # no variables of its own: a cost of the ends
                for side, part in enumerate(parts):
                    for node, count in by_edge[side][edge]:
                        self.cost_x[self.first[node] + np.arange(len(part))] += count * part
                continue
            legal = np.nonzero(np.isfinite(table))
            columns = num_columns + np.arange(len(legal[0]))
            cost_y.append(many * table[legal])
            for side, states in enumerate(legal):
                entries.append((np.ones(len(states)), num_rows + states, columns))
                for node, count in by_edge[side][edge]:
                    own = np.arange(table.shape[side])
                    entries.append((np.full(len(own), -count / many), num_rows + own, self.first[node] + own))
                num_rows += table.shape[side]
            num_columns += len(columns)
        total = np.concatenate([self.cost_x, *cost_y])
        finite = np.isfinite(total)
        scale = float(np.abs(total[finite & (total != 0)]).mean()) if (total[finite] != 0).any() else 1.0
        data, row, column = (np.concatenate(part) for part in zip(*entries, strict=True))
        matrix = sparse.csr_matrix((data, (row, column)), shape=(num_rows, num_columns))[:, np.flatnonzero(finite)]
        self.columns = np.flatnonzero(finite)
        right = (np.arange(num_rows) < len(self.sizes)).astype(np.float64)
        return Rows(total[finite] / scale, matrix, right, right, 0), scale

    def proven(self, rows: Rows, duals: Floats) -> float:
        """Returns the bound that these row prices prove by themselves: every variable is at most 1, whatever the solver says."""
        left = rows.cost - rows.matrix.T @ duals
        groups = self.group_of()[self.columns]
        least = np.full(int(groups.max()) + 1, np.inf)
        np.minimum.at(least, groups, left)
        return float(duals @ rows.high + least.sum())

    def group_of(self) -> Ints:
        """Returns for every variable the class that it belongs to, nodes first: of each, the variables add up to 1."""
        groups = [np.repeat(np.arange(len(self.sizes)), self.sizes)]
        next_group = len(self.sizes)
        for place in self.edge_of:
            table = self.problem.tables[self.problem.edge_table[place]]
            if as_sum(table) is None:
                groups.append(np.full(int(np.isfinite(table).sum()), next_group))
                next_group += 1
        return np.concatenate(groups)

    def used(self, values: Floats) -> list[Mask]:
        """Returns the states that have a part in the solution, by node."""
        taken = np.zeros(len(self.cost_x), dtype=bool)
        at = self.columns[self.columns < len(self.cost_x)]
        taken[at] = values[: len(at)] > _USED
        by_class = [tuple(np.flatnonzero(taken[f : f + n]).tolist()) for f, n in zip(self.first, self.sizes, strict=True)]
        return [by_class[c] for c in self.classes.node.tolist()]
