"""Mix two choices: where they differ in parts that do not touch, each part may follow either.

The nodes in which two choices differ fall into components that no edge joins. Taking a component over changes the cost and the memory
by amounts that do not depend on the others, so the best mixture under a budget is a knapsack over components, solved exactly by MILP
(equal components are one integer variable; a time becomes a row when a mixture breaks the budget at it).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhino.strategies.components import components
from rhino.strategies.problem import Floats, Ints, Problem
from rhino.strategies.small_rows import solve_small


def recombination(problem: Problem, base: Ints, other: Ints, budget: float, times: Sequence[int] = ()) -> Ints | None:
    """Returns the cheapest mixture of two choices, by components of where they differ, that fits; None if only `base` does.

    `times` are those at which memory is likely to bind.
    """
    groups = _components(problem, np.flatnonzero(base != other))
    if not groups:
        return None
    label = np.full(problem.num_nodes, -1, dtype=np.int64)
    for number, group in enumerate(groups):
        label[group] = number
    gain = _cost_changes(problem, base, other, label, len(groups))
    before = problem.memory(base)
    room = {time: budget - float(before[time]) for time in times}
    while True:
        picks = _knapsack(problem, base, other, label, gain, room)
        if picks is None:
            return None
        mixed = np.where((label >= 0) & picks[label], other, base)
        memory = problem.memory(mixed)
        worst = int(memory.argmax())
        if memory[worst] <= budget:
            return mixed
        change = float(memory[worst] - before[worst])
        # A mixture that the solver's tolerance let through: leave it less room than it took, and twice as much less each time.
        room[worst] = 3 * room[worst] - 2 * change if worst in room else budget - float(before[worst])


def _components(problem: Problem, nodes: Ints) -> list[list[int]]:
    inside = np.zeros(problem.num_nodes, dtype=bool)
    inside[nodes] = True
    both = inside[problem.edge_u] & inside[problem.edge_v]
    component = components(problem.num_nodes, np.stack([problem.edge_u[both], problem.edge_v[both]], axis=1))
    groups: dict[int, list[int]] = {}
    for node, number in zip(nodes.tolist(), component[nodes].tolist(), strict=True):
        groups.setdefault(number, []).append(node)
    return list(groups.values())


def _cost_changes(problem: Problem, base: Ints, other: Ints, label: Ints, count: int) -> Floats:
    """Returns what taking over each component changes in cost [components]."""
    change = np.zeros(count)
    nodes, edges = np.flatnonzero(label >= 0), _touched_edges(problem, label)
    np.add.at(change, label[nodes], _node_changes(problem, problem.node_table[nodes], nodes, base, other))
    np.add.at(change, _owners(problem, label)[edges], _edge_changes(problem, problem.edge_table[edges], edges, base, other))
    return change


def _byte_changes(problem: Problem, base: Ints, other: Ints, label: Ints, count: int, time: int) -> Floats:
    """Returns what taking over each component changes in memory at one time [components]."""
    change = np.zeros(count)
    nodes, edges, owners = problem.node_residents, problem.edge_residents, _owners(problem, label)
    rows = np.flatnonzero((nodes.start <= time) & (nodes.end >= time) & (label[nodes.owner] >= 0))
    np.add.at(change, label[nodes.owner[rows]], _node_changes(problem, nodes.table[rows], nodes.owner[rows], base, other))
    rows = np.flatnonzero((edges.start <= time) & (edges.end >= time) & (owners[edges.owner] >= 0))
    np.add.at(change, owners[edges.owner[rows]], _edge_changes(problem, edges.table[rows], edges.owner[rows], base, other))
    return change


def _node_changes(problem: Problem, tables: Ints, nodes: Ints, base: Ints, other: Ints) -> Floats:
    return problem.node_entries(tables, nodes, other) - problem.node_entries(tables, nodes, base)


def _edge_changes(problem: Problem, tables: Ints, edges: Ints, base: Ints, other: Ints) -> Floats:
    """Returns what changes in tables of edges when the component at an end (or both ends, of the same one) is taken over."""
    return problem.edge_entries(tables, edges, other, other) - problem.edge_entries(tables, edges, base, base)


def _owners(problem: Problem, label: Ints) -> Ints:
    """Returns the component that each edge touches, -1 for none [edges]; the two ends are never in different ones."""
    owners: Ints = np.maximum(label[problem.edge_u], label[problem.edge_v])
    return owners


def _touched_edges(problem: Problem, label: Ints) -> Ints:
    return np.flatnonzero(_owners(problem, label) >= 0)


def _knapsack(
    problem: Problem, base: Ints, other: Ints, label: Ints, gain: Floats, room: dict[int, float]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Chooses the components to take over, by the bytes that they may add at each time in `room`. None where nothing fits.

    Equal components are one integer variable.
    """
    count = len(gain)
    rows = np.array([_byte_changes(problem, base, other, label, count, t) for t in room]).reshape(len(room), count)
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
    picks: np.ndarray[tuple[int], np.dtype[np.bool_]] = rank < taken[member]
    return picks
