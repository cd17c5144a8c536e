"""Elimination against enumeration: whole, in parts, with states dropped, in the order of an earlier run."""

import itertools
from functools import cache

import numpy as np
import pytest
from brute_force import brute_force
from problems import random_problem

from rhino.strategies.solver.elimination import by_node as eliminate
from rhino.strategies.solver.elimination.by_node import Elimination, TableStore, TooWideError
from rhino.strategies.solver.problem import Problem

NUM_PROBLEMS, NUM_BATCHES = 320, 8
BATCHES = [range(1000 + first, 1000 + NUM_PROBLEMS, NUM_BATCHES) for first in range(NUM_BATCHES)]
NO_LIMIT = 1 << 40
ROUNDING = 1e-12
"""Relative: sums go in another order than those of enumeration."""


@cache
def truth(seed):
    """The least cost of a random problem, infinite where nothing is legal."""
    found = brute_force(random_problem(seed))
    return np.inf if found is None else found.cost


def ints(*values):
    return np.array(values, dtype=np.int64)


def problem_of(costs, edges):
    """A problem from the costs of its nodes, and the tables of its edges by their ends."""
    tables = tuple(np.array(table, dtype=float) for table in (*costs, *edges.values()))
    ends = np.array(list(edges), dtype=np.int64).reshape(-1, 2)
    return Problem(tables, np.arange(len(costs)), ends[:, 0], ends[:, 1], np.arange(len(costs), len(tables)))


def check(problem, elimination, wanted):
    """The value is the least cost, and the states that are read back have it."""
    assert not any(elimination.alive)
    assert elimination.constant == pytest.approx(wanted, rel=ROUNDING)
    if np.isfinite(wanted):
        assert problem.cost(elimination.read_back()) == pytest.approx(wanted, rel=ROUNDING)


@pytest.mark.parametrize("batch", BATCHES)
def test_removing_every_node_finds_the_optimum(batch):
    for seed in batch:
        problem = random_problem(seed)
        elimination = Elimination(problem, TableStore())
        elimination.run(NO_LIMIT)
        check(problem, elimination, truth(seed))


@pytest.mark.parametrize("batch", BATCHES)
def test_dropping_states_and_chains_first_changes_nothing(batch):
    for seed in batch:
        problem = random_problem(seed)
        elimination = Elimination(problem, TableStore())
        elimination.drop_dominated()
        elimination.remove_chains()
        elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        check(problem, elimination, truth(seed))


@pytest.mark.parametrize("batch", BATCHES)
def test_what_is_left_after_dropping_states_still_holds_the_optimum(batch):
    """Enumeration of the core, with the states that are left, is as good as enumeration of all.

    Its choice reads back at the same cost.
    """
    dropped = 0
    for seed in batch:
        problem = random_problem(seed)
        elimination = Elimination(problem, TableStore())
        dropped += elimination.drop_dominated()
        nodes, core = elimination.core_problem()
        found = brute_force(core)
        assert elimination.constant + (np.inf if found is None else found.cost) == pytest.approx(
            truth(seed), rel=ROUNDING
        )
        if found is not None and np.isfinite(truth(seed)):
            states = elimination.read_back(dict(zip(nodes, found.states.tolist(), strict=True)))
            assert problem.cost(states) == pytest.approx(truth(seed), rel=ROUNDING)
    assert dropped > 20


@pytest.mark.parametrize("batch", BATCHES)
def test_what_is_left_after_chains_has_degree_three_and_the_same_optimum(batch):
    cores = 0
    for seed in batch:
        elimination = Elimination(random_problem(seed), TableStore())
        elimination.remove_chains()
        nodes, core = elimination.core_problem()
        degree = np.bincount(np.concatenate([core.edge_u, core.edge_v]), minlength=len(nodes))
        assert (degree >= 3).all()
        assert (elimination.core().nodes, elimination.core().num_edges) == (tuple(nodes), core.num_edges)
        found = brute_force(core)
        assert elimination.constant + (np.inf if found is None else found.cost) == pytest.approx(
            truth(seed), rel=ROUNDING
        )
        cores += bool(nodes)
    assert cores > 3


@pytest.mark.parametrize("batch", BATCHES)
def test_any_order_gives_the_same_value(batch):
    for seed in batch:
        problem = random_problem(seed)
        order = np.random.default_rng(seed).permutation(problem.num_nodes)
        elimination = Elimination(problem, TableStore())
        elimination.replay(order.tolist(), NO_LIMIT)
        assert [step.node for step in elimination.steps] == list(order)
        check(problem, elimination, truth(seed))


@pytest.mark.parametrize("batch", BATCHES[:2])
def test_a_store_may_be_shared_by_other_problems(batch):
    store = TableStore()
    for seed in batch:
        problem = random_problem(seed)
        elimination = Elimination(problem, store)
        elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        check(problem, elimination, truth(seed))


def test_the_random_problems_hold_every_case():
    values = [truth(seed) for batch in BATCHES for seed in batch]
    assert 20 < np.isinf(values).sum() < 200


def test_the_same_problem_gives_the_same_states():
    for seed in BATCHES[0]:
        runs = [Elimination(random_problem(seed), TableStore()) for _ in range(2)]
        for elimination in runs:
            elimination.drop_dominated()
            elimination.run(NO_LIMIT)
        assert runs[0].steps == runs[1].steps
        if np.isfinite(truth(seed)):
            np.testing.assert_array_equal(runs[0].read_back(), runs[1].read_back())


# By hand


def test_a_chain_of_two():
    """Cheapest alone, 0 and 0, costs 9 between them; 0 with 1 costs 0 + 2 + 1."""
    problem = problem_of([[0, 4], [0, 2]], {(0, 1): [[9, 1], [0, 9]]})
    elimination = Elimination(problem, TableStore())
    elimination.run(NO_LIMIT)
    assert elimination.constant == 3
    assert list(elimination.read_back()) == [0, 1]


def complete(num_nodes, num_states):
    """Every two nodes are joined; the tables are random."""
    rng = np.random.default_rng(0)
    edges = {pair: rng.random((num_states, num_states)) for pair in itertools.combinations(range(num_nodes), 2)}
    return problem_of([rng.random(num_states) for _ in range(num_nodes)], edges)


def test_a_replayed_order_is_held_to_the_limit_too():
    """Prices may leave a hub of pairs more states than the first run saw; then its table is too large all the same."""
    costs = [np.zeros(10) for _ in range(6)]
    hub = problem_of(costs, {(0, other): np.arange(100.0).reshape(10, 10) % 7 for other in range(1, 6)})
    with pytest.raises(TooWideError):
        Elimination(hub, TableStore()).replay(range(6), 10_000)


def test_a_table_that_is_too_wide_is_refused():
    """The first node of a complete graph is joined to all others: 4 to the power of 5 entries."""
    assert problem_of([[0.0]], {}).num_edges == 0
    elimination = Elimination(complete(5, 4), TableStore())
    with pytest.raises(TooWideError) as caught:
        elimination.run(4**5 - 1)
    assert caught.value.entries == elimination.widest == 4**5
    assert all(elimination.alive)
    elimination.run(4**5)
    assert elimination.constant == pytest.approx(brute_force(complete(5, 4)).cost)


def test_a_copy_goes_its_own_way():
    elimination = Elimination(complete(4, 3), TableStore())
    twin = elimination.copy()
    elimination.run(NO_LIMIT)
    assert (any(elimination.alive), all(twin.alive), twin.constant) == (False, True, 0.0)
    twin.run(NO_LIMIT)
    assert twin.constant == elimination.constant


@pytest.mark.parametrize(
    ("cost", "edge", "kept"),
    [
        # State 1 costs 3 more, and can save 2 at most.
        ([0, 3], [[2, 0], [0, 0]], (0,)),
        # It can save 4.
        ([0, 3], [[4, 0], [0, 0]], (0, 1)),
        # It can go where state 0 cannot.
        ([0, 3], [[np.inf, 0], [0, 0]], (0, 1)),
        # It cannot go where state 0 can.
        ([0, 3], [[2, 0], [np.inf, np.inf]], (0,)),
        # Equal states: the first stays.
        ([1, 1], [[0, 5], [0, 5]], (0,)),
        # It is legal nowhere by itself.
        ([0, np.inf], [[9, 9], [0, 0]], (0,)),
    ],
)
def test_states_that_cannot_win_are_dropped(cost, edge, kept):
    """The neighbour's two states are told apart by another edge, whose table nothing dominates."""
    problem = problem_of([cost, [0, 0], [0, 0]], {(0, 1): edge, (1, 2): [[0, 50], [50, 0]]})
    elimination = Elimination(problem, TableStore())
    assert elimination.store.undominated(elimination.unary[0], tuple(elimination.pairs[0].values())) == kept


def test_a_node_with_one_state_left_becomes_a_cost_of_its_neighbours():
    problem = problem_of([[0, 9], [1, 1]], {(0, 1): [[5, 0], [0, 0]]})
    elimination = Elimination(problem, TableStore())
    elimination.drop_dominated()
    assert not any(elimination.alive)
    assert elimination.constant == 1
    assert list(elimination.read_back()) == [0, 1]


def test_work_on_equal_parts_is_done_once():
    """20 copies of a problem make no table that 2 copies do not."""
    one = complete(4, 3)
    stores = []
    for copies in (2, 20):
        shift = np.repeat(np.arange(copies), one.num_edges) * one.num_nodes
        problem = Problem(
            one.tables,
            np.tile(one.node_table, copies),
            np.tile(one.edge_u, copies) + shift,
            np.tile(one.edge_v, copies) + shift,
            np.tile(one.edge_table, copies),
        )
        elimination = Elimination(problem, TableStore())
        elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        assert elimination.constant == pytest.approx(copies * brute_force(one).cost)
        stores.append(elimination.store)
    assert len(stores[0].tables) == len(stores[1].tables)


# Tables


def test_a_store_holds_equal_tables_once():
    store = TableStore()
    first = store.intern(np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert store.intern(np.array([[1.0, 3.0], [2.0, 4.0]]).T) == first
    assert store.transpose(store.transpose(first)) == first
    assert store.intern(np.array([1.0, 2.0, 3.0, 4.0])) != first
    assert len(store.tables) == 3  # with the transposed one


def test_arithmetic_of_tables():
    store = TableStore()
    a, b = store.intern(np.array([[1.0, np.inf], [3.0, 4.0]])), store.intern(np.array([[10.0, 20.0], [30.0, np.inf]]))
    assert store.tables[store.add(a, b)].tolist() == [[11, np.inf], [33, np.inf]]
    assert store.add(a, b) == store.add(b, a)
    assert store.tables[store.scale(a, 0.0)].tolist() == [[0, np.inf], [0, 0]]
    assert store.tables[store.scale(a, 2.0)].tolist() == [[2, np.inf], [6, 8]]
    assert store.tables[store.take(a, ((1,), (0, 1)))].tolist() == [[3, 4]]
    assert store.take(a, ((0, 1), (0, 1))) == a


@pytest.mark.parametrize("at_once", [1 << 18, 1], ids=["at once", "state by state"])
def test_the_least_of_a_sum_is_over_the_first_position(at_once, monkeypatch):
    """Also where the sum is too large to be held for all states at once."""
    monkeypatch.setattr(eliminate, "_ENTRIES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    unary, near, wide, far = rng.random(2), rng.random((2, 3)), rng.random((4, 2, 3)), rng.random((3, 4))
    store = TableStore()
    parts = (
        (store.intern(unary), (0,)),
        (store.intern(near), (0, 1)),
        (store.intern(wide), (2, 0, 1)),
        (store.intern(far), (1, 2)),
    )
    found = store.tables[store.least(parts)]
    assert found.shape == (3, 4)
    for j, k in itertools.product(range(3), range(4)):
        assert found[j, k] == pytest.approx(far[j, k] + min(unary[i] + near[i, j] + wide[k, i, j] for i in range(2)))


def test_dominated_states_are_found_in_blocks_as_at_once(monkeypatch):
    monkeypatch.setattr(eliminate, "_ENTRIES_AT_ONCE", 1)
    for seed in BATCHES[0]:
        elimination = Elimination(random_problem(seed), TableStore())
        elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        check(random_problem(seed), elimination, truth(seed))
