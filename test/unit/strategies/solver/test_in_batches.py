"""Elimination in batches against enumeration and against elimination node by node.

Alike layers are no work of their own.
"""

import numpy as np
import pytest
from brute_force import brute_force
from joint_problems import layered, random_joint_problem
from problems import random_budget, random_problem

from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.elimination import in_batches as batches
from rhino.strategies.solver.elimination.by_node import Elimination, TableStore, TooWideError
from rhino.strategies.solver.elimination.in_batches import BatchElimination, alike, elimination_of
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Search

NO_LIMIT = 1 << 40
ROUNDING = 1e-12
"""Relative: sums go in another order than those of enumeration."""


def least_cost(problem):
    found = brute_force(problem)
    return np.inf if found is None else found.cost


def check(problem, elimination, wanted):
    """The value is the least cost, and the states that are read back have it."""
    assert not elimination.alive.any()
    assert elimination.constant == pytest.approx(wanted, rel=ROUNDING)
    if np.isfinite(wanted):
        assert problem.cost(elimination.read_back()) == pytest.approx(wanted, rel=ROUNDING)


@pytest.mark.parametrize(
    ("first", "by_node"),
    [("nothing", False), ("dominated", False), ("dominated", True), ("chains", False), ("chains", True)],
)
def test_removing_every_node_finds_the_optimum(first, by_node, monkeypatch):
    """Also where dominated states are found node by node from the first round on."""
    if by_node:
        monkeypatch.setattr(batches, "_ROUNDS", 0)
    for seed in range(1000, 1120):
        problem = random_problem(seed)
        elimination = BatchElimination(problem, TableStore())
        if first != "nothing":
            elimination.drop_dominated()
        if first == "chains":  # states that go afterwards are not those that the chains' tables are over
            elimination.remove_chains()
            elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        check(problem, elimination, least_cost(problem))


def test_layers_are_worth_what_they_are_worth_node_by_node():
    for seed in range(24):
        problem = layered(random_joint_problem(seed), 6, seed)
        single = Elimination(problem, TableStore())
        single.run(NO_LIMIT)
        elimination = BatchElimination(problem, TableStore())
        elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        check(problem, elimination, single.constant)


def test_what_is_left_after_chains_has_degree_three_and_the_same_optimum():
    """Also where only some states are allowed: the same as node by node."""
    cores = 0
    for seed in range(1000, 1100):
        problem, rng = random_problem(seed), np.random.default_rng(seed)
        masks = [
            tuple(sorted(rng.choice(n, rng.integers(1, n + 1), replace=False).tolist())) for n in problem.num_states()
        ]
        single = Elimination(problem, TableStore(), masks=masks)
        single.run(NO_LIMIT)
        elimination = BatchElimination(problem, TableStore(), masks=masks)
        elimination.drop_dominated()
        elimination.remove_chains()
        nodes, core = elimination.core_problem()
        assert (np.bincount(np.concatenate([core.edge_u, core.edge_v]), minlength=len(nodes)) >= 3).all()
        assert (elimination.core().nodes, elimination.core().num_edges) == (tuple(nodes), core.num_edges)
        assert [len(elimination.left(node)) for node in nodes] == core.num_states().tolist()
        assert elimination.constant + least_cost(core) == pytest.approx(single.constant, rel=ROUNDING)
        if np.isfinite(single.constant):
            states = elimination.read_back(dict(zip(nodes, brute_force(core).states.tolist(), strict=True)))
            assert problem.cost(states) == pytest.approx(single.constant, rel=ROUNDING)
            assert all(state in mask for state, mask in zip(states.tolist(), masks, strict=True))
        cores += bool(nodes)
    assert cores > 3


def test_many_alike_layers_take_few_rounds_and_few_tables():
    """Sixteen times as many layers: four more halvings of their chain, with few tables each, and no more else."""
    one = complete(4, 3)
    work = []
    for layers in (64, 1024):
        problem = chained(one, layers)
        elimination = BatchElimination(problem, TableStore())
        elimination.drop_dominated()
        elimination.run(NO_LIMIT)
        assert problem.cost(elimination.read_back()) == pytest.approx(elimination.constant)
        work.append((len(elimination.store.tables), len(elimination._kinds), len(elimination._batches)))
    single = Elimination(chained(one, 64), TableStore())
    single.run(NO_LIMIT)
    assert work[0][0] <= len(single.store.tables)
    for few, many in zip(*work, strict=True):
        assert many <= 2 * few, work


def test_a_loss_that_travels_down_a_chain_takes_few_rounds(monkeypatch):
    """Each node loses a state once the one before it has: many steps, but not many rounds over the whole graph."""
    count, rounds = 400, []
    agree = np.array([[0.0, 1.0], [1.0, 0.0]])
    links = np.arange(count - 1)
    problem = Problem(
        (np.zeros(1), np.zeros(2), agree[:1], agree),
        np.minimum(np.arange(count), 1),
        links,
        links + 1,
        np.minimum(links, 1) + 2,
    )
    undominated = BatchElimination._undominated
    monkeypatch.setattr(
        BatchElimination, "_undominated", lambda self, work: rounds.append(work.sum()) or undominated(self, work)
    )
    elimination = BatchElimination(problem, TableStore())
    assert elimination.drop_dominated() == count - 1
    assert len(rounds) < count / 10
    assert [elimination.left(node) for node in range(count)] == [(0,)] * count
    elimination.run(NO_LIMIT)
    check(problem, elimination, 0.0)


def test_a_table_that_is_too_wide_is_refused_before_anything_is_removed():
    elimination = BatchElimination(complete(5, 4), TableStore())
    with pytest.raises(TooWideError) as caught:
        elimination.run(4**5 - 1)
    assert caught.value.entries == 4**5
    assert elimination.alive.all()
    twin = elimination.copy()
    elimination.run(4**5)
    assert elimination.widest == 4**5
    assert elimination.constant == pytest.approx(least_cost(complete(5, 4)))
    assert (twin.alive.all(), twin.constant) == (True, 0.0)
    twin.run(NO_LIMIT)
    np.testing.assert_array_equal(twin.read_back(), elimination.read_back())


def test_a_search_in_batches_finds_what_one_node_by_node_finds(monkeypatch):
    """Its first solve, and those at prices of memory."""
    fitted = 0
    for seed in range(2000, 2030):
        problem, budget = random_problem(seed), random_budget(random_problem(seed), seed)
        with monkeypatch.context() as patched:
            patched.setattr(batches, "_MANY", 1)
            assert isinstance(elimination_of(problem, TableStore()), BatchElimination)
            free, within = Search(problem).run(None), Search(problem).run(budget)
        assert isinstance(elimination_of(problem, TableStore()), Elimination)
        wanted, wanted_within = Search(problem).run(None), Search(problem).run(budget)
        assert type(free) is type(wanted)
        assert type(within) is type(wanted_within), seed
        if isinstance(free, Answer):
            assert free.cost == pytest.approx(wanted.cost, rel=1e-9)
        if isinstance(within, Answer):
            assert within.cost == pytest.approx(wanted_within.cost, rel=2e-4), seed
            fitted += within.cost > free.cost
    assert fitted > 3


def test_rows_are_alike_where_every_number_is():
    """Also where the numbers of a row are too large to be one number."""
    rng = np.random.default_rng(0)
    for most in (3, 1 << 40):
        rows = rng.integers(0, 3, (200, 5)) * (most // 3)
        first, number = alike(rows)
        np.testing.assert_array_equal(rows[first][number], rows)
        assert len(first) == len(set(map(tuple, rows.tolist())))


def complete(num_nodes, num_states):
    """Every node joined to every other, with costs of its own."""
    rng = np.random.default_rng(0)
    ends = np.array([(u, v) for u in range(num_nodes) for v in range(u + 1, num_nodes)], dtype=np.int64)
    tables = [rng.uniform(0, 1, num_states) for _ in range(num_nodes)] + [
        rng.uniform(0, 1, (num_states, num_states)) for _ in ends
    ]
    return Problem(tuple(tables), np.arange(num_nodes), ends[:, 0], ends[:, 1], np.arange(num_nodes, len(tables)))


def chained(one, layers):
    """Copies of a problem, of which each has its last node joined to the next one's first."""
    step = one.num_nodes
    shift = np.repeat(np.arange(layers), one.num_edges) * step
    last = np.arange(layers - 1) * step + step - 1
    states = len(one.tables[int(one.node_table[-1])]), len(one.tables[int(one.node_table[0])])
    between = np.random.default_rng(1).uniform(0, 1, states)
    return Problem(
        (*one.tables, between),
        np.tile(one.node_table, layers),
        np.append(np.tile(one.edge_u, layers) + shift, last),
        np.append(np.tile(one.edge_v, layers) + shift, last + 1),
        np.append(np.tile(one.edge_table, layers), np.full(layers - 1, len(one.tables))),
    )
