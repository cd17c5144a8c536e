"""A lower bound on a choice problem by linear programming, with alike places in one variable.

The local polytope of a large model repeats itself: the tenth layer looks like the eleventh. Nodes are put in classes by colour
refinement (two nodes are alike if their costs are, and those of all nodes within `rounds` edges), and the LP gets one variable for each
state of a class, standing for the average over the class. The nodes of a class have the same number of edges of each class, so averages
of a choice meet every averaged constraint, and the optimum of the small LP is a lower bound for every choice after the first round
already; more rounds tell more places apart and can only raise it. Its size does not grow with the number of layers.

    minimise   sum_c n_c theta_c . x_c  +  sum_e m_e theta_e . y_e
    such that  sum_s x_c[s] = 1,   m_e sum_t y_e[s, t] = sum_c d_ce x_c[s]   (both sides of every class of edges)

with n_c nodes in class c, m_e edges in class e, d_ce of them ending in class c.

The bound is not the solver's word: from its prices for the rows, every class of nodes and of edges takes the least that they leave it.

Source: lifted linear programming (Mladenov, Ahmadi and Kersting 2012) for the local polytope of `rhino.strategies.polytope`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rhino.strategies.answer import Infeasible, Unsolved
from rhino.strategies.eliminate import Mask
from rhino.strategies.problem import Floats, Ints, Problem, as_sum, starts

if TYPE_CHECKING:
    from scipy import sparse

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
    """Returns the classes after `rounds` (at least one) of colour refinement; those of edges know their ends one round less."""
    assert rounds >= 1, rounds
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


def num_pairs(problem: Problem, classes: Classes) -> int:
    """Returns how many pairs of states the LP has to weigh."""
    _, first = np.unique(classes.edge, return_index=True)
    return int(sum(problem.tables[table].size for table in problem.edge_table[first].tolist()))


def lifted_bound(problem: Problem, classes: Classes, step_limit: int) -> Lifted | None:
    """Returns the bound; None where the solver has none within its steps."""
    return _Lift(problem, classes).solve(step_limit)


def floor_bound(problem: Problem) -> float:
    """Returns the bound that needs no LP: every node and every edge takes its least."""
    least = np.array([float(table.min(initial=np.inf)) for table in problem.tables])
    return float(least[problem.node_table].sum() + least[problem.edge_table].sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Link:
    """A class of edges: its table times the number of edges, and at each side the node classes with their share of the ends."""

    table: Floats
    ends: tuple[list[tuple[int, float]], list[tuple[int, float]]]


class _Lift:
    """The lifted LP of one problem. Rows: one for each class of nodes, then for each link one for each state at either side."""

    def __init__(self, problem: Problem, classes: Classes) -> None:
        _, node_of = np.unique(classes.node, return_index=True)
        _, edge_of = np.unique(classes.edge, return_index=True)
        many_nodes, many_edges = np.bincount(classes.node), np.bincount(classes.edge)
        self.classes = classes
        self.cost = [many_nodes[c] * problem.tables[problem.node_table[u]] for c, u in enumerate(node_of)]
        ends: list[tuple[list[tuple[int, float]], list[tuple[int, float]]]] = [([], []) for _ in edge_of]
        for side, nodes in enumerate((problem.edge_u, problem.edge_v)):
            for (e, c), count in Counter(zip(classes.edge.tolist(), classes.node[nodes].tolist(), strict=True)).items():
                ends[e][side].append((c, count / many_edges[e]))
        self.links = []
        for e, place in enumerate(edge_of):
            table = problem.tables[problem.edge_table[place]] * float(many_edges[e])
            parts = as_sum(table)
            if parts is None:
                self.links.append(_Link(table, ends[e]))
                continue
            for part, at_side in zip(parts, ends[e], strict=True):  # no variables of its own: a cost of the ends
                for c, share in at_side:
                    self.cost[c] = self.cost[c] + share * part
        self.first = starts(np.array([len(cost) for cost in self.cost], dtype=np.int64))

    def solve(self, step_limit: int) -> Lifted | None:
        """Returns the bound and the states in use."""
        matrix, cost, first_row = self.rows()
        legal = np.flatnonzero(np.isfinite(cost))
        positive = np.abs(cost[legal][cost[legal] != 0])
        scale = float(positive.mean()) if len(positive) else 1.0
        right = (np.arange(matrix.shape[0]) < len(self.cost)).astype(np.float64)
        from rhino.strategies.rows import Rows, solve_rows  # noqa: PLC0415 - loads LP solvers, which most searches do not need

        point = solve_rows(Rows(cost[legal] / scale, matrix[:, legal], right, right, 0), integer=False, step_limit=step_limit)
        if isinstance(point, Infeasible):
            return Lifted(np.inf, [])
        if isinstance(point, Unsolved):
            return None
        value = np.zeros(len(cost))
        value[legal] = point.values
        taken = [np.flatnonzero(value[f : f + len(cost)] > _USED) for f, cost in zip(self.first, self.cost, strict=True)]
        used = [tuple(some.tolist()) for some in taken]
        return Lifted(self.proven(point.duals * scale, first_row), [used[c] for c in self.classes.node.tolist()])

    def rows(self) -> tuple[sparse.csr_matrix, Floats, list[int]]:
        """Returns the rows of all variables (legal or not), their costs, and the first row of each link."""
        from scipy import sparse  # noqa: PLC0415 - as much to load as all of ours, and most searches do not need it

        cost = [np.concatenate(self.cost)]
        num_rows, num_columns = len(self.cost), len(cost[0])
        rows, columns = [np.repeat(np.arange(num_rows), [len(one) for one in self.cost])], [np.arange(num_columns)]
        data = [np.ones(num_columns)]
        first_row = []
        for link in self.links:
            first_row.append(num_rows)
            legal = np.nonzero(np.isfinite(link.table))
            cost.append(link.table[legal])
            own = num_columns + np.arange(len(legal[0]))
            for side, size in enumerate(link.table.shape):
                states = np.arange(size)
                for c, share in link.ends[side]:
                    rows.append(num_rows + states)
                    columns.append(self.first[c] + states)
                    data.append(np.full(size, -share))
                rows.append(num_rows + legal[side])
                columns.append(own)
                data.append(np.ones(len(own)))
                num_rows += size
            num_columns += len(own)
        entries = (np.concatenate(data), (np.concatenate(rows), np.concatenate(columns)))
        return sparse.csr_matrix(entries, shape=(num_rows, num_columns)), np.concatenate(cost), first_row

    def proven(self, duals: Floats, first_row: list[int]) -> float:
        """Returns the bound that prices of the rows prove by themselves."""
        left = list(self.cost)
        bound = 0.0
        for link, row in zip(self.links, first_row, strict=True):
            one = duals[row : row + link.table.shape[0]]
            two = duals[row + len(one) : row + len(one) + link.table.shape[1]]
            bound += float((link.table - one[:, None] - two[None, :]).min())
            for side, prices in zip(link.ends, (one, two), strict=True):
                for c, share in side:
                    left[c] = left[c] + share * prices
        return bound + sum(float(values.min()) for values in left)
