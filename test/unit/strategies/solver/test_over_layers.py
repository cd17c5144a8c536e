"""Alike layers taken as one against elimination node by node: the value, and states that have it."""

from dataclasses import replace

import numpy as np
import pytest
from problems import random_problem

from rhino.strategies.solver.elimination import in_batches as batches
from rhino.strategies.solver.elimination.by_node import Elimination, TableStore, TooWideError
from rhino.strategies.solver.elimination.over_layers import LEAST_LAYERS, FoldedElimination, folded
from rhino.strategies.solver.elimination.repeated_layers import find_stretch
from rhino.strategies.solver.problem import Residents, no_residents
from rhino.strategies.solver.solver import Solver

NO_LIMIT = 1 << 24
ROUNDING = 1e-9


def stacked(seed, layers):
    """A random problem as a layer, many times: with edges to the next layer or the one after it, to nodes outside, and other ends.

    Nodes are numbered layer by layer, from either end, or column by column, some of these in any order.
    """
    rng, one = np.random.default_rng(seed), random_problem(seed)
    columns, span, ends = one.num_nodes, int(rng.integers(1, 3)), int(rng.integers(0, 3))
    sizes = [*one.num_states().tolist(), *rng.integers(1, 4, int(rng.integers(0, 3))).tolist()]
    across = {
        (int(rng.integers(columns)), int(rng.integers(columns)), int(rng.integers(1, span + 1))): None for _ in range(rng.integers(1, 4))
    }
    beside = {(int(rng.integers(columns)), outside, 0): None for outside in range(columns, len(sizes))}
    tables = [*one.tables, *[rng.uniform(0, 1, size) for size in sizes]]
    places = list(zip(one.edge_u.tolist(), one.edge_v.tolist(), [0] * one.num_edges, one.edge_table.tolist(), strict=True))
    for c, d, way in (*across, *beside):
        places.append((c, d, way, len(tables)))
        tables.append(np.where(rng.random((sizes[c], sizes[d])) < 0.1, np.inf, rng.integers(0, 3, (sizes[c], sizes[d]))))
    nodes = numbered(rng, columns, layers, any(c == d for c, d, *_ in places))
    nodes = np.vstack([nodes, np.repeat(nodes.size + np.arange(len(sizes) - columns)[:, None], layers, axis=1)])
    own = len(one.tables) + np.arange(len(sizes))
    node_table = np.zeros(nodes.max() + 1, dtype=np.int64)
    node_table[nodes] = np.append(one.node_table, own[columns:])[:, None]
    node_table[nodes[:columns, [*range(ends), *range(layers - ends, layers)]]] = own[:columns, None]
    edges = {}
    for c, d, way, table in places:
        for u, v in zip(nodes[c, : layers - way].tolist(), nodes[d, way:].tolist(), strict=True):
            edges.setdefault((u, v) if u < v else (v, u), table if u < v else len(tables) + table)
    u, v = np.array(list(edges), dtype=np.int64).reshape(-1, 2).T
    every = tuple(np.asarray(table, dtype=float) for table in (*tables, *[table.T for table in tables]))
    return replace(
        one,
        tables=every,
        node_table=node_table,
        edge_u=u,
        edge_v=v,
        edge_table=np.array(list(edges.values()), dtype=np.int64),
        node_residents=no_residents(),
        edge_residents=no_residents(),
    )


def numbered(rng, columns, layers, in_order):
    """Numbers of nodes [columns, layers]."""
    every = np.arange(columns * layers)
    if rng.random() < 0.5:
        nodes = every.reshape(layers, columns).T
        return nodes[:, ::-1] if rng.random() < 0.5 else nodes
    nodes = every.reshape(columns, layers)
    for column in () if in_order else range(1, columns):
        if rng.random() < 0.5:
            nodes[column] = rng.permutation(nodes[column])
    return nodes


def with_memory(problem, seed):
    """The problem with bytes that nodes and edges keep, from a time that hangs on where they are numbered on, some of them twice."""
    rng = np.random.default_rng(seed)
    nodes, edges = np.repeat(np.arange(problem.num_nodes), rng.integers(0, 3)), np.flatnonzero(problem.edge_table % 2)
    tables = [*problem.tables, *[np.arange(len(table), dtype=float)[::-1] for table in problem.tables]]
    sizes = len(problem.tables)
    nodes_kept = Residents(nodes, sizes + problem.node_table[nodes], nodes, np.full(len(nodes), problem.num_nodes - 1))
    edges_kept = Residents(edges, problem.edge_table[edges], np.zeros_like(edges), problem.edge_v[edges])
    return replace(
        problem,
        tables=tuple(np.where(np.isinf(table), 0.0, table) if number >= sizes else table for number, table in enumerate(tables)),
        num_times=problem.num_nodes,
        base_bytes=np.zeros(problem.num_nodes),
        node_residents=nodes_kept,
        edge_residents=edges_kept,
    )


def one_by_one(problem):
    single = Elimination(problem, TableStore())
    single.run(NO_LIMIT)
    return single.constant


def taken_as_one(problem, store, max_entries=NO_LIMIT, stretch=None):
    stretch = stretch or find_stretch(problem, LEAST_LAYERS)
    base = np.array([store.intern(table) for table in problem.tables])
    return stretch and folded(problem, stretch, store, base[problem.node_table], base[problem.edge_table], max_entries)


def check(problem, value, states):
    wanted = one_by_one(problem)
    assert value == pytest.approx(wanted, rel=ROUNDING)
    if np.isfinite(wanted):
        assert problem.cost(states) == pytest.approx(wanted, rel=ROUNDING)


def test_alike_layers_taken_as_one_are_worth_what_they_are_worth_node_by_node():
    """Whatever is illegal, alike in cost, outside, or numbered in any order."""
    done = []
    for seed in range(84, 100):  # 99: what is settled costs nodes outside
        problem = stacked(seed, 2 * LEAST_LAYERS + 10)
        elimination = taken_as_one(problem, TableStore(), 1 << 18)
        if elimination is not None:
            twin = elimination.copy()
            twin.remove_chains()
            for one in (elimination, twin):
                one.run(NO_LIMIT)
                check(problem, one.constant, one.read_back())
            done.append(elimination)
    assert len(done) > 11


@pytest.mark.parametrize("differs", ["node", "edge"])
def test_layers_that_differ_part_the_others(differs):
    """One layer in the midst has other costs, of a node or of an edge alone: those before and behind it are taken as one by themselves."""
    for seed in (1, 4, 5):
        problem = stacked(seed, 5 * LEAST_LAYERS)
        stretch = find_stretch(problem, LEAST_LAYERS)
        places, field = (stretch.nodes, "node_table") if differs == "node" else (stretch.edges, "edge_table")
        other, numbers = places[0, places.shape[1] // 2], getattr(problem, field).copy()
        table = problem.tables[numbers[other]]
        drawn = np.random.default_rng(seed).uniform(0, 5, table.shape)
        table = table[::-1] + 1.0 if differs == "node" else np.where(np.isinf(table), table, drawn)
        numbers[other] = len(problem.tables)
        problem = replace(problem, tables=(*problem.tables, table), **{field: numbers})
        elimination = taken_as_one(problem, TableStore(), stretch=stretch)
        assert len(elimination._layers) == 2
        elimination.run(NO_LIMIT)
        check(problem, elimination.constant, elimination.read_back())


def test_a_search_takes_layers_as_one_at_any_prices(monkeypatch):
    """Prices at some times are charged to some of the layers, or more of each."""
    monkeypatch.setattr(batches, "_MANY", 100)
    parted = 0
    for seed in (1, 4, 6):
        problem = with_memory(stacked(seed, 2 * LEAST_LAYERS), seed)
        solver, plain = Solver(problem), Solver(problem)
        plain.__dict__["stretch"] = None
        for times in ((), (0,), (problem.num_nodes // 2,), (problem.num_nodes // 3, problem.num_nodes - 1)):
            prices = dict.fromkeys(times, 0.1)
            reduced, wanted = solver.reduce(prices, 10.0), plain.reduce(prices, 10.0)
            assert not isinstance(wanted.elimination, FoldedElimination)
            parted += isinstance(reduced.elimination, FoldedElimination) and bool(times)
            found, best = solver.solve(reduced), plain.solve(wanted)
            assert found.value == pytest.approx(best.value, rel=ROUNDING)
            if np.isfinite(best.value):
                costs = [
                    problem.cost(one.states) + sum(0.1 * (problem.memory(one.states)[t] - 10.0) for t in times) for one in (found, best)
                ]
                assert costs == pytest.approx([best.value] * 2, rel=ROUNDING)
    assert parted > 3, parted


@pytest.mark.parametrize("kind", [Elimination, FoldedElimination])
def test_where_taking_layers_as_one_is_too_wide_all_goes_as_without(kind, monkeypatch):
    """Both where a layer without its inner nodes is, and where only the rest is."""
    monkeypatch.setattr(batches, "_MANY", 100)
    problem = stacked(4, 3 * LEAST_LAYERS)
    plain, solver = Solver(problem), Solver(problem)
    plain.__dict__["stretch"] = None
    best = plain.solve(plain.reduce())
    assert isinstance(solver.reduce().elimination, FoldedElimination)
    monkeypatch.setattr(kind, "run", refuse)
    found = solver.solve(solver.reduce())
    assert (found.value, solver.statistics.solves) == (best.value, 1)
    np.testing.assert_array_equal(found.states, best.states)


def refuse(elimination, max_entries, first=0):
    """Is too wide, whatever is asked for."""
    raise TooWideError(max_entries + 1)


def test_more_layers_are_hardly_more_tables():
    """Sixteen times as many layers: only their joints are more nodes, and a chain of them is halved four times more."""
    work = []  # operations on tables
    for layers in (2 * LEAST_LAYERS, 32 * LEAST_LAYERS):
        problem, store = stacked(1, layers), TableStore()
        elimination = taken_as_one(problem, store)
        elimination.run(NO_LIMIT)
        assert problem.cost(elimination.read_back()) == pytest.approx(elimination.constant, rel=ROUNDING)
        work.append(len(store.memo))
    assert work[1] < 1.1 * work[0], work
