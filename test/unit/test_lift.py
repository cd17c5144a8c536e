"""The lifted LP against enumeration and against the LP that it folds: never above the optimum, and with enough rounds as high as that."""

import numpy as np
import pytest
from joint_problems import layered, random_joint_problem
from problems import random_problem

from rhino.strategies.answer import Infeasible
from rhino.strategies.brute import brute_force
from rhino.strategies.lift import find_classes, floor_bound, lifted_bound
from rhino.strategies.lp import Relaxed, solve_lp
from rhino.strategies.problem import Problem

BATCHES = [range(first, 120, 4) for first in range(4)]
ROUNDING = 1e-7
STEPS = 1000
MANY = 20
"""Rounds after which nothing more is told apart in problems this small."""


def lifted(problem, rounds, steps=STEPS):
    """The bound, and the states behind it; None where the solver has none."""
    return lifted_bound(problem, find_classes(problem, rounds), steps)


def problems_of(seed):
    """One without structure, one on two axes, and one of three alike layers of that."""
    joint = random_joint_problem(seed)
    small = layered(joint, 3, seed) if np.prod(joint.num_states(), dtype=float) ** 3 < 60_000 else joint
    return random_problem(seed), joint, small


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
@pytest.mark.parametrize("batch", BATCHES)
def test_no_bound_is_above_the_optimum(batch, rounds):
    """After the first round already: alike nodes then have alike edges."""
    for seed in batch:
        for problem in problems_of(seed):
            best, found = brute_force(problem), lifted(problem, rounds)
            if best is not None and found is not None:
                assert found.bound <= best.cost + ROUNDING * abs(best.cost), seed


@pytest.mark.parametrize("batch", BATCHES)
def test_with_many_rounds_it_is_the_bound_of_the_whole_polytope(batch):
    """And with fewer it is no higher."""
    met = 0
    for seed in batch:
        for problem in problems_of(seed):
            relaxed = solve_lp(problem)
            if not isinstance(relaxed, Relaxed):
                continue
            bounds = [lifted(problem, rounds).bound for rounds in (1, 2, MANY)]
            assert bounds[2] == pytest.approx(relaxed.bound, rel=1e-6, abs=1e-9), seed
            assert max(bounds) <= relaxed.bound + 1e-6 * abs(relaxed.bound), seed
            met += 1
    assert met > 40


def test_where_the_solution_is_whole_its_states_are_the_optimum():
    whole = 0
    for seed in range(60):
        problem = random_joint_problem(seed)
        relaxed, best = solve_lp(problem), brute_force(problem)
        if isinstance(relaxed, Relaxed) and relaxed.is_integral and best is not None:
            found = lifted(problem, MANY)
            if all(len(states) == 1 for states in found.used):
                whole += 1
                assert problem.cost([states[0] for states in found.used]) == pytest.approx(best.cost, rel=1e-6)
    assert whole > 20


def test_with_hardly_any_steps_it_is_a_bound_still():
    for seed in range(40):
        problem = random_joint_problem(seed)
        best, found = brute_force(problem), lifted(problem, 2, steps=0)
        assert found is None or best is None or found.bound <= best.cost * (1 + ROUNDING), seed


def test_where_nothing_is_legal_the_lp_says_so_or_stays_below():
    seen = 0
    for seed in range(120):
        problem = random_joint_problem(seed)
        if brute_force(problem) is None and isinstance(solve_lp(problem), Infeasible):
            assert lifted(problem, MANY).bound == np.inf, seed
            seen += 1
    assert seen


@pytest.mark.parametrize("batch", BATCHES)
def test_the_floor_is_below_the_lp(batch):
    for seed in batch:
        for problem in problems_of(seed):
            found = lifted(problem, 1)
            assert found is None or floor_bound(problem) <= found.bound + ROUNDING * abs(found.bound), seed


def test_alike_layers_are_solved_as_few():
    """The ends of a row of layers are told from its middle, and the middle is one: 12 layers make no more classes than 9."""
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
