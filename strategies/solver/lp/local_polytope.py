"""The local polytope of a choice problem, as sparse rows.

Variables: `x[u, s]`, node u takes state s; `y[e, s, t]`, edge e = (u, v) sees states s and t. Only legal states and
pairs have one.

    (1) choose_rows   sum_s x[u, s] = 1                                         for every node
    (2) edge_rows     sum_t y[e, s, t] = x[u, s],  sum_s y[e, s, t] = x[v, t]   for every edge that has y
    (3) memory_row    base[t] + sum of x * bytes + sum of y * bytes <= budget   for every time given
    (4) cover_row     sum of x[u, s_u] <= (number of them) - 1                  for every choice known not to fit

With x whole, y follows. An edge table that is a sum M[a, b] = f[a] + g[b] goes into the node costs and its edge needs
no y, unless it decides the size of something alive at a given time in a way that is no such sum. Costs are divided by
their mean and memory rows by the room that they leave, for a solver's tolerances are absolute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.answer import Infeasible
from rhino.strategies.solver.lp.linear_programs import Point, Rows
from rhino.strategies.solver.problem import Problem, Residents, as_sum, spread, starts


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A problem with one entry for every state of every node and every pair of states of every edge, sums folded away.

    Shapes: `cost`, `node` [states]; `first_state` [nodes]; `pair_cost`, `edge`, `pair_u`, `pair_v` [pairs], the last
    two index states; `first_pair`, `folded` [edges]. A cost is infinite where the state or the pair is not legal.
    """

    problem: Problem
    cost: Floats
    node: Ints
    first_state: Ints
    pair_cost: Floats
    edge: Ints
    pair_u: Ints
    pair_v: Ints
    first_pair: Ints
    folded: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The rows, and which state or pair each variable stands for.

    `x_flat` and `y_flat` index `Flat`'s states and pairs, x comes first.

    `scale`: seconds per unit of the rows' objective.
    """

    flat: Flat
    rows: Rows
    x_flat: Ints
    y_flat: Ints
    scale: float


def add_each(total: Floats, first: Ints, values: Floats) -> None:
    """Adds the values to `total` from each of the places `first` on; the places may repeat.

    Index and values are written out: NumPy 2.4.6's `add.at` reads past the end of values that it has to broadcast
    (2026-11-21).
    """
    np.add.at(total, np.add.outer(first, np.arange(len(values))).ravel(), np.tile(values, len(first)))


def alike(tables: Ints) -> Iterator[tuple[int, Ints]]:
    """Yields each distinct table with the places where it is used, in order."""
    if not len(tables):
        return
    order = np.argsort(tables, kind="stable")
    distinct, first = np.unique(tables[order], return_index=True)
    for table, start, end in zip(distinct, first, [*first[1:], len(tables)], strict=True):
        yield int(table), order[start:end]


def flatten(problem: Problem) -> Flat:
    """Returns the problem's tables written out for every node and edge, with sums folded into the nodes."""
    pool = np.concatenate([table.ravel() for table in problem.tables]) if problem.tables else np.zeros(0)
    table_size = np.array([table.size for table in problem.tables], dtype=np.int64)
    table_first, sizes, pairs = starts(table_size), problem.num_states(), table_size[problem.edge_table]
    first_state, first_pair = starts(sizes), starts(pairs)
    cost = pool[spread(table_first[problem.node_table], sizes)]
    pair_cost = pool[spread(table_first[problem.edge_table], pairs)]
    edge = np.repeat(np.arange(problem.num_edges), pairs)
    local, width = np.arange(len(edge)) - first_pair[edge], sizes[problem.edge_v[edge]]
    pair_u, pair_v = (
        first_state[problem.edge_u[edge]] + local // width,
        first_state[problem.edge_v[edge]] + local % width,
    )
    folded = np.zeros(problem.num_edges, dtype=np.bool_)
    for table, places in alike(problem.edge_table):
        if (parts := as_sum(problem.tables[table])) is not None:
            folded[places] = True
            for ends, part in zip((problem.edge_u, problem.edge_v), parts, strict=True):
                add_each(cost, first_state[ends[places]], part)
    pair_cost[folded[edge] & np.isfinite(pair_cost)] = 0.0
    pair_cost[~np.isfinite(cost[pair_u]) | ~np.isfinite(cost[pair_v])] = np.inf
    node = np.repeat(np.arange(problem.num_nodes), sizes)
    return Flat(problem, cost, node, first_state, pair_cost, edge, pair_u, pair_v, first_pair, folded)


def alive(residents: Residents, times: Sequence[int]) -> Ints:
    """Returns which residents are alive at one of the times at least, in order."""
    start, end = residents.start[:, None], residents.end[:, None]
    at = np.asarray(times, dtype=np.int64)
    return np.flatnonzero(((start <= at) & (at <= end)).any(axis=1))


def carrying(problem: Problem, times: Sequence[int]) -> Ints:
    """Returns the edges that need y for memory.

    They own something alive at these times whose bytes are no sum over both ends.
    """
    residents = problem.edge_residents
    used = alive(residents, times)
    needed = [
        residents.owner[used[places]] for t, places in alike(residents.table[used]) if as_sum(problem.tables[t]) is None
    ]
    return np.unique(np.concatenate(needed)) if needed else np.zeros(0, dtype=np.int64)


def resident_bytes(flat: Flat, time: int) -> tuple[Floats, Floats]:
    """Returns the bytes alive at `time` by state [states] and by pair [pairs]."""
    problem = flat.problem
    states, pairs = np.zeros(len(flat.cost)), np.zeros(len(flat.pair_cost))
    nodes, edges = problem.node_residents, problem.edge_residents
    used = alive(nodes, [time])
    for table, places in alike(nodes.table[used]):
        sizes = problem.tables[table]
        add_each(states, flat.first_state[nodes.owner[used[places]]], sizes)
    used = alive(edges, [time])
    for table, places in alike(edges.table[used]):
        sizes, owners = problem.tables[table], edges.owner[used[places]]
        if (parts := as_sum(sizes)) is None:
            add_each(pairs, flat.first_pair[owners], sizes.ravel())
            continue
        for ends, part in zip((problem.edge_u, problem.edge_v), parts, strict=True):
            add_each(states, flat.first_state[ends[owners]], part)
    return states, pairs


def least(values: Floats, groups: Ints) -> tuple[Floats, Ints]:
    """Returns the least of each run of equal groups [runs], and how long each run is [runs]."""
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    smallest: Floats = np.minimum.reduceat(values, first) if len(values) else np.zeros(0)
    return smallest, np.diff(first, append=len(groups))


def memory_row(
    flat: Flat, x_flat: Ints, y_flat: Ints, time: int, budget_bytes: float
) -> tuple[Floats, float] | Infeasible:
    """Returns constraint (3) at a time as (coefficients [variables], high), without the bytes common to all choices."""
    row: list[Floats] = []
    room = budget_bytes - float(flat.problem.base_bytes[time])
    for sizes, used, groups in zip(resident_bytes(flat, time), (x_flat, y_flat), (flat.node, flat.edge), strict=True):
        smallest, runs = least(sizes[used], groups[used])
        room -= float(smallest.sum())
        row.append(sizes[used] - np.repeat(smallest, runs))
    if room < 0:
        return Infeasible(budget_bytes - room)
    coefficients = np.concatenate(row)
    unit = room or float(coefficients.max(initial=0.0)) or 1.0
    return coefficients / unit, room / unit


def choose_rows(flat: Flat, x_flat: Ints) -> sparse.csr_matrix:
    """Returns constraint (1), without the columns of y."""
    shape = (flat.problem.num_nodes, len(x_flat))
    return sparse.csr_matrix((np.ones(len(x_flat)), (flat.node[x_flat], np.arange(len(x_flat)))), shape=shape)


def edge_rows(flat: Flat, x_flat: Ints, y_flat: Ints, ends: Ints, pair_end: Ints) -> sparse.csr_matrix:
    """Returns constraint (2) for one side of the edges.

    `ends` [edges] is the node, `pair_end` [pairs] the state at that side.
    """
    column = np.full(len(flat.cost), -1)
    column[x_flat] = np.arange(len(x_flat))
    legal = np.bincount(flat.node[x_flat], minlength=flat.problem.num_nodes)
    edges = np.unique(flat.edge[y_flat])
    sizes = legal[ends[edges]]
    first_row = np.zeros(flat.problem.num_edges, dtype=np.int64)
    first_row[edges] = starts(sizes)
    x_columns = spread(starts(legal)[ends[edges]], sizes)
    state = pair_end[y_flat]
    y_rows = first_row[flat.edge[y_flat]] + column[state] - starts(legal)[flat.node[state]]
    rows = np.concatenate([np.arange(len(x_columns)), y_rows])
    columns = np.concatenate([x_columns, len(x_flat) + np.arange(len(y_flat))])
    data = np.concatenate([-np.ones(len(x_columns)), np.ones(len(y_flat))])
    return sparse.csr_matrix((data, (rows, columns)), shape=(len(x_columns), len(x_flat) + len(y_flat)))


def equal_rows(flat: Flat, x_flat: Ints, y_flat: Ints) -> sparse.csr_matrix:
    """Returns constraints (1) and (2)."""
    choose = choose_rows(flat, x_flat)
    choose.resize(flat.problem.num_nodes, len(x_flat) + len(y_flat))
    ends = ((flat.problem.edge_u, flat.pair_u), (flat.problem.edge_v, flat.pair_v))
    return sparse.vstack([choose, *(edge_rows(flat, x_flat, y_flat, *end) for end in ends)], format="csr")


def limit_rows(
    flat: Flat, x_flat: Ints, y_flat: Ints, memory: Sequence[tuple[Floats, float]], covers: Sequence[Ints]
) -> tuple[sparse.csr_matrix, Floats]:
    """Returns constraints (3), already built, and (4) as (matrix, high [rows])."""
    cover_rows = [np.concatenate([np.isin(x_flat, cover), np.zeros(len(y_flat))]) for cover in covers]
    rows = np.array([row for row, _ in memory] + cover_rows).reshape(
        len(memory) + len(covers), len(x_flat) + len(y_flat)
    )
    return sparse.csr_matrix(rows), np.array([high for _, high in memory] + [len(cover) - 1.0 for cover in covers])


def build_model(
    flat: Flat, budget_bytes: float = np.inf, times: Sequence[int] = (), covers: Sequence[Ints] = ()
) -> Model | Infeasible:
    """Returns the local polytope with memory rows at `times`, or what shows at once that it is empty.

    `covers`: sets of states (indices into `Flat`'s) that do not fit together.
    """
    kept = ~flat.folded
    kept[carrying(flat.problem, times)] = True
    x_flat = np.flatnonzero(np.isfinite(flat.cost))
    y_flat = np.flatnonzero(np.isfinite(flat.pair_cost) & kept[flat.edge])
    if len(np.unique(flat.node[x_flat])) < flat.problem.num_nodes or len(np.unique(flat.edge[y_flat])) < kept.sum():
        return Infeasible(None)
    memory = []
    for time in times:
        row = memory_row(flat, x_flat, y_flat, time, budget_bytes)
        if isinstance(row, Infeasible):
            return row
        memory.append(row)
    equal = equal_rows(flat, x_flat, y_flat)
    limit, high = limit_rows(flat, x_flat, y_flat, memory, covers)
    one = (np.arange(equal.shape[0]) < flat.problem.num_nodes).astype(np.float64)
    cost = np.concatenate([flat.cost[x_flat], flat.pair_cost[y_flat]])
    scale = float(np.abs(cost[cost != 0]).mean()) if cost.any() else 1.0
    matrix = sparse.vstack([equal, limit], format="csr")
    low, high = np.concatenate([one, np.full(len(high), -np.inf)]), np.concatenate([one, high])
    return Model(flat, Rows(cost / scale, matrix, low, high, len(x_flat)), x_flat, y_flat, scale)


def dual_bound(model: Model, duals: Floats) -> float:
    """Returns the lower bound (seconds) that these row prices prove for every choice.

    Any prices do, so no solver has to be believed.

    The rows are paid for, then every node and every edge takes its cheapest entry on its own.
    """
    rows = model.rows
    prices = np.where(rows.low == rows.high, duals, np.minimum(duals, 0.0))
    left = rows.cost - rows.matrix.T @ prices
    num_x = len(model.x_flat)
    nodes, _ = least(left[:num_x], model.flat.node[model.x_flat])
    edges, _ = least(left[num_x:], model.flat.edge[model.y_flat])
    return float(prices @ rows.high + nodes.sum() + edges.sum()) * model.scale


def node_values(model: Model, point: Point) -> Floats:
    """Returns x [nodes, most states of a node], zero where there is no variable."""
    flat = model.flat
    sizes = flat.problem.num_states()
    x = np.zeros((flat.problem.num_nodes, int(sizes.max(initial=0))))
    node = flat.node[model.x_flat]
    x[node, model.x_flat - flat.first_state[node]] = point.values[: len(model.x_flat)]
    return x
