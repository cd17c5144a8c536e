"""Tables whose equal rows and columns are one: the same costs, the same bounds, the same tables of eliminations."""

from dataclasses import replace

import numpy as np
import pytest
from joint_problems import random_joint_problem

from rhino.strategies.solver import tables
from rhino.strategies.solver.dual import merged_tables
from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.dual.merged_tables import MergedTable
from rhino.strategies.solver.elimination import by_node
from rhino.strategies.solver.elimination.by_node import TableStore
from rhino.strategies.solver.tables import distinct_rows


@pytest.fixture
def merging(monkeypatch):
    """Has a single entry be worth it."""
    monkeypatch.setattr(tables, "WORTH", 1)
    monkeypatch.setattr(merged_tables, "WORTH", 1)


def repeating(seed):
    """A table of which rows and columns occur several times, in any order."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 3, (4, 5)) / 7
    small[rng.random(small.shape) < 0.1] = np.inf
    return small[rng.integers(0, 4, 9)][:, rng.integers(0, 5, 11)].copy()


def whole(table):
    rows = table.costs if table.u is None else table.costs[table.u]
    return rows if table.v is None else rows[:, table.v]


@pytest.mark.usefixtures("merging")
def test_costs_are_those_of_the_table_and_of_any_part_of_it():
    rng = np.random.default_rng(0)
    for seed in range(40):
        table = repeating(seed)
        merged = MergedTable.of(table)
        assert merged.costs.size <= 20
        assert np.array_equal(whole(merged), table)
        assert np.array_equal(whole(merged.turned()), table.T)
        assert all(np.array_equal(merged.row(state), table[state]) for state in range(len(table)))
        rows, columns = (np.flatnonzero(rng.random(size) < 0.5) for size in table.shape)
        if len(rows) and len(columns):
            part = merged.part(rows, columns)
            assert np.array_equal(whole(part), table[np.ix_(rows, columns)])
            assert part.costs.size <= len(rows) * len(columns)


def test_what_is_hardly_smaller_stays_as_it_is():
    table = np.random.default_rng(0).random((100, 100))
    table[7] = table[3]
    merged = MergedTable.of(table)
    assert merged.u is None
    assert merged.costs is table
    assert distinct_rows(np.repeat(table, 2, axis=0)) is not None


def test_passes_over_merged_tables_prove_the_same(monkeypatch):
    """Each state occurs twice."""
    for seed in range(20):
        problem = random_joint_problem(seed)
        doubled = tuple(
            np.repeat(np.repeat(table, 2, axis=0), 2, axis=1) if table.ndim == 2 else np.repeat(table, 2)
            for table in problem.tables
        )
        twice = replace(problem, tables=doubled, coordinates=())
        classes = find_classes(twice, 2)
        plain = Ascent(lift(twice, classes)).run(12)
        monkeypatch.setattr(tables, "WORTH", 1)
        monkeypatch.setattr(merged_tables, "WORTH", 1)
        ascent = Ascent(lift(twice, classes))
        merged = ascent.run(12)
        monkeypatch.undo()
        assert all(table.costs.size <= table.u.size * table.v.size / 4 for table in ascent.tables)
        assert merged == pytest.approx(plain, rel=1e-9)


@pytest.mark.usefixtures("merging")
def test_removing_a_node_leaves_the_same_table_whichever_columns_are_equal(monkeypatch):
    """Between three neighbours, of which one is the first side of its table."""
    for seed in range(20):
        one, other, third = repeating(seed), repeating(seed + 100), repeating(seed + 200).T[:9]
        costs = np.random.default_rng(seed).random(9)
        found = []
        for at_once in (1 << 20, 0):
            monkeypatch.setattr(by_node, "_ENTRIES_AT_ONCE", at_once)
            store = TableStore()
            parts = ((costs, (0,)), (one, (0, 1)), (other.T, (2, 0)), (third, (0, 3)))
            found.append(store.tables[store.least(tuple((store.intern(table), at) for table, at in parts))])
        assert np.array_equal(*found), seed
        assert found[0].shape == (11, 11, 9)
