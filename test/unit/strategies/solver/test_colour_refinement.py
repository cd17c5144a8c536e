"""Classes of alike places: what they promise holds, and what is alike is found."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from joint_problems import layered, random_joint_problem
from problems import random_problem

from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.problem import Problem

MANY = 20
"""Rounds after which nothing more is told apart in problems this small."""


def problems():
    for seed in range(60):
        yield random_problem(seed)
        yield layered(random_joint_problem(seed), 3, seed)


@pytest.mark.parametrize("rounds", [1, 2, MANY])
def test_alike_nodes_cost_alike_and_meet_alike_edges(rounds):
    shared = 0
    for problem in problems():
        classes = find_classes(problem, rounds)
        lifted = lift(problem, classes)
        met = [Counter() for _ in range(problem.num_nodes)]
        for e, u, v in zip(classes.edge.tolist(), problem.edge_u.tolist(), problem.edge_v.tolist(), strict=True):
            met[u][e, 0] += 1
            met[v][e, 1] += 1
        for node, c in enumerate(classes.node.tolist()):
            assert problem.node_table[node] == problem.node_table[lifted.node[c]]
            assert classes.group[node] == lifted.group[c]
            assert met[node] == {(e, side): count for e, side, count in lifted.ends[c]}
        for e, (u, v) in zip(classes.edge.tolist(), zip(problem.edge_u, problem.edge_v, strict=True), strict=True):
            assert lifted.edge_groups[e] == (classes.group[u], classes.group[v])
        assert (problem.edge_table == problem.edge_table[lifted.edge][classes.edge]).all()
        assert (sum(lifted.num_nodes), sum(lifted.num_edges)) == (problem.num_nodes, problem.num_edges)
        shared += len(lifted.edge) < problem.num_edges
    assert shared


def test_more_rounds_tell_more_apart():
    for problem in problems():
        found = [find_classes(problem, rounds) for rounds in (1, 2, 3)]
        for coarse, fine in pairwise(found):
            for one, other in ((coarse.node, fine.node), (coarse.edge, fine.edge)):
                assert len(set(zip(one.tolist(), other.tolist(), strict=True))) == len(set(other.tolist()))


def test_alike_layers_are_as_few_however_many():
    """The ends of a row of layers are told from its middle, and the middle is one.

    12 layers make no more classes than 9.
    """
    problem = random_joint_problem(11)
    counts = [len(np.unique(find_classes(layered(problem, layers, 0), 3).node)) for layers in (9, 12)]
    assert counts[0] == counts[1] < 9 * problem.num_nodes


def test_classes_tell_ends_of_an_edge_apart():
    """The same table from either side is another thing: u pays for v's state, not v for u's."""
    ones = np.zeros(4, dtype=np.int64)
    table = np.array([[0.0, 1.0], [5.0, 0.0]])
    problem = Problem((np.zeros(2), table), ones, np.array([0, 2]), np.array([1, 3]), np.array([1, 1]))
    classes = find_classes(problem, 1)
    assert classes.node.tolist() == [0, 1, 0, 1]
    assert classes.edge.tolist() == [0, 0]
