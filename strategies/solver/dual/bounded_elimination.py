"""Choices near a bound: elimination among the states that the prices of an ascent leave, which are few.

What prices say of a state is how much more than the bound a choice with it must cost. States far above the bound are in
no good choice, and without them tables stay narrow. With enough room that is proof: what costs more than a choice at
hand is in no better one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.elimination.by_node import Mask, TableStore, TooWideError
from rhino.strategies.solver.elimination.in_batches import AnyElimination, elimination_of

_ROOM = (1e-3, 1e-2, 5e-2, 2e-1)
"""How far above the bound states may be, in shares of what a node costs on average.

More states give better choices and wider tables.
"""


def narrowed(elimination: AnyElimination) -> AnyElimination:
    """Returns an elimination, taken as far as it goes without a table wider than two nodes."""
    for _ in range(2):
        elimination.drop_dominated()
        elimination.remove_chains()
    return elimination


def states_within(ascent: Ascent, excess: Sequence[Floats], room: float, *, least: bool) -> list[Mask]:
    """Returns for every node the states that cost no more than `room` above the bound.

    With `least`, `room` is counted from the best state of the node.
    """
    kept = [tuple(np.flatnonzero(one <= room + (one.min() if least else 0.0)).tolist()) for one in excess]
    return [kept[c] for c in ascent.lifted.classes.node.tolist()]


def best_within(ascent: Ascent, store: TableStore, max_entries: int, known: Ints, most: float = 1.0) -> Ints | None:
    """Returns the best choice [nodes], from a legal one that is known.

    It is None where more than the share `most` of all states may be in a better one, or elimination of these is too
    wide.
    """
    problem = ascent.lifted.problem
    masks = states_within(ascent, ascent.excess(), problem.cost(known) - ascent.bound, least=False)
    if sum(map(len, masks)) > most * int(problem.num_states().sum()):
        return None
    if not all(masks):
        return known
    elimination = narrowed(elimination_of(problem, store, masks=masks))
    try:
        elimination.run(max_entries)
    except TooWideError:
        return None
    return min(known, elimination.read_back(), key=problem.cost)


def core_states(elimination: AnyElimination, nodes: list[int], states: Ints) -> Ints:
    """Returns a choice of all nodes by the states that `nodes` have left; the first one where its own is gone."""
    left = [elimination.left(n) for n in nodes]
    return np.array(
        [mask.index(states[n]) if states[n] in mask else 0 for n, mask in zip(nodes, left, strict=True)], dtype=np.int64
    )


def best_near(ascent: Ascent, store: TableStore, max_entries: int, enough: float) -> Ints:
    """Returns the best choice found near the bound of an ascent [nodes]. It may not be legal.

    One that costs `enough` will do.
    """
    problem, excess = ascent.lifted.problem, ascent.excess()
    unit = abs(ascent.bound) / max(problem.num_nodes, 1)
    best = greedy(ascent)
    for share in _ROOM:
        masks = states_within(ascent, excess, share * unit, least=True)
        elimination = elimination_of(problem, store, masks=masks)
        elimination.settle()  # most nodes have one state or two: tables are small before any state is found dominated
        elimination.remove_chains()
        try:
            narrowed(elimination).run(max_entries)
        except TooWideError:
            break
        best = min(best, elimination.read_back(), key=problem.cost)
        if problem.cost(best) <= enough:
            break
    return best


def greedy(ascent: Ascent) -> Ints:
    """Returns a choice made node by node [nodes].

    Each node takes the least by costs and prices, and where a neighbour has chosen, by what that costs.
    """
    problem, prices, edge_class = ascent.lifted.problem, ascent.prices, ascent.lifted.classes.edge.tolist()
    charged = [ascent.charged(c) for c in range(len(ascent.lifted.node))]
    total = [charged[c].copy() for c in ascent.lifted.classes.node.tolist()]
    # edges to neighbours that choose later: class, side here, neighbour
    onward: list[list[tuple[int, int, int]]] = [[] for _ in total]
    for e, u, v in zip(edge_class, problem.edge_u.tolist(), problem.edge_v.tolist(), strict=True):
        onward[min(u, v)].append((e, 0 if u < v else 1, max(u, v)))
    left = [ascent.left_of(node) for node in range(problem.num_nodes)]
    states = np.zeros(problem.num_nodes, dtype=np.int64)
    for node, costs in enumerate(total):
        place = int(costs.argmin())
        states[node] = left[node][place]
        for e, side, other in onward[node]:
            table = ascent.tables[e] if side == 0 else ascent.tables[e].turned()
            total[other] += table.row(place) - prices[e][side][place] - prices[e][1 - side]
    return states
