"""Which states can win, against the definition.

The bound that spares comparisons rules out nothing that they would not.
"""

import numpy as np
import pytest
from problems import Tables

from rhino.strategies.solver.elimination.dominance import bound_of, undominated


def drawn(seed, states):
    """A node's costs and its edges' tables, with illegal entries, equal rows, and rows that are illegal everywhere."""
    rng = np.random.default_rng(seed)
    tables = Tables(rng)
    edges = [tables.cost((states, int(rng.integers(1, 9)))) for _ in range(rng.integers(1, 4))]
    if rng.random() < 0.5:
        twins = rng.integers(0, states, 2)
        for edge in edges:
            edge[twins[1]] = edge[twins[0]]
    return tables.cost((states,)), edges


def loses(cost, edges, p, q):
    """Whether state q is legal wherever p is, and never costs more: by what each costs at worst on every edge."""
    legal = [np.isfinite(edge[p]) for edge in edges]
    if (
        p == q
        or not np.isfinite(cost[q])
        or any((ok & ~np.isfinite(edge[q])).any() for ok, edge in zip(legal, edges, strict=True))
    ):
        return False
    return cost[p] - cost[q] >= sum(
        (edge[q][ok] - edge[p][ok]).max(initial=-np.inf) for ok, edge in zip(legal, edges, strict=True)
    )


@pytest.mark.parametrize("states", [2, 5, 12])
def test_states_that_lose_to_one_that_is_left_are_dropped(states):
    dropped = 0
    for seed in range(60):
        cost, edges = drawn(seed, states)
        alive = np.ones(states, dtype=bool)
        for p in np.argsort(cost, kind="stable")[::-1]:
            alive[p] = not any(alive[q] and loses(cost, edges, p, q) for q in range(states))
        kept = undominated(cost, edges, [bound_of(edge) for edge in edges])
        assert kept.tolist() == np.flatnonzero(alive).tolist(), seed
        dropped += states - len(kept)
    assert dropped >= 10 * states


def test_the_bound_is_below_every_difference_and_met_where_the_column_decides():
    table = np.array([[0.0, 4.0, 9.0], [5.0, 1.0, np.inf], [np.inf] * 3])
    total = np.zeros((3, 3))
    with np.errstate(invalid="ignore"):
        bound_of(table).add_to(total, table)
    assert total[:, 0].tolist() == [0.0, 5.0, np.inf]  # in column 0, where row 0 is least
    assert total[:, 1].tolist() == [3.0, 0.0, np.inf]
    assert not (total[:, 2] > -np.inf).any()  # a row that is illegal everywhere is not compared
