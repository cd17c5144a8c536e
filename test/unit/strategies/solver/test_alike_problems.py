"""An ascent on one form of a problem begins with what that on another came to, and proves no more than is true."""

from dataclasses import replace

import numpy as np
import pytest
from brute_force import brute_force
from joint_problems import layered, random_joint_problem

from rhino.strategies.solver.dual import dual_ascent
from rhino.strategies.solver.dual.alike_problems import alike_nodes, stages_of_other
from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.dual.wide import Wide
from rhino.strategies.solver.elimination.by_node import TableStore
from rhino.strategies.solver.search import Limits, Search

ROUNDING = 1e-9


def with_other_edge(problem, seed):
    """The problem with one edge cheaper or dearer by a little."""
    rng = np.random.default_rng(seed)
    edge = int(rng.integers(problem.num_edges))
    changed = problem.tables[problem.edge_table[edge]] * rng.uniform(0.9, 1.1)
    edge_table = problem.edge_table.copy()
    edge_table[edge] = len(problem.tables)
    return replace(problem, tables=(*problem.tables, changed), edge_table=edge_table)


def test_each_node_has_a_place_of_its_own_with_as_many_states():
    exact = 0
    for seed in range(40):
        problem = layered(random_joint_problem(seed), 3, seed)
        other = with_other_edge(problem, seed)
        twin = alike_nodes(other, problem)
        found = twin[twin >= 0]
        assert len(set(found.tolist())) == len(found)
        assert (other.num_states()[twin >= 0] == problem.num_states()[found]).all()
        exact += (twin == np.arange(problem.num_nodes)).mean() > 0.9
    assert exact > 20, exact


def test_the_same_problem_begins_where_the_other_ended(monkeypatch):
    """At once with what was proven, whether states were left out on the way or not."""
    for large in (dual_ascent._LARGE, 0):
        monkeypatch.setattr(dual_ascent, "_LARGE", large)
        monkeypatch.setattr(dual_ascent, "_WORTH", 1.0)
        for seed in range(10):
            problem = random_joint_problem(seed)
            best = brute_force(problem)
            if best is None:
                continue
            first = Ascent(lift(problem, find_classes(problem, 2)))
            for _ in range(3):
                first.run(6)
                first.narrow(best.cost - first.bound + ROUNDING * first.barred)
            stages = stages_of_other(problem, problem, first.stages)
            again = Wide(problem, TableStore(), 1, 0.0, np.zeros(problem.num_nodes, dtype=np.int64), best.cost * 1.001)
            again.stages = stages
            again.ascend(first.lifted, 3)
            assert again.bound >= min(first.bound, best.cost) - ROUNDING * first.barred, seed


@pytest.mark.parametrize("large", [1 << 20, 0])
def test_another_form_is_solved_as_it_is_alone(monkeypatch, large):
    """The same bound and no worse a choice, where elimination is too wide."""
    monkeypatch.setattr(dual_ascent, "_LARGE", large)
    begun = 0
    for seed in range(12):
        problem = layered(random_joint_problem(seed), 2, seed)
        limits = Limits(table_entries=8, exact_below_states=0)
        first = Search(problem, limits)
        first.run(None)
        other = with_other_edge(problem, seed)
        exact = Search(other).run(None)
        found = Search(other, limits, first.solver).run(None)
        if not hasattr(exact, "cost"):
            continue
        assert found.bound <= exact.cost * (1 + ROUNDING), seed
        assert found.cost >= exact.cost * (1 - ROUNDING), seed
        assert found.cost - found.bound <= 0.2 * found.cost, seed
        begun += first.solver.begun is not None
    assert begun > 3, begun
