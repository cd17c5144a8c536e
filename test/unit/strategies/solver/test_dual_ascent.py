"""Prices against enumeration and against the LP whose duals they are.

Bounds are never above the optimum, and nearly as high as the LP.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from brute_force import brute_force
from joint_problems import layered, random_joint_problem
from long_cases import one_in
from problems import random_problem

from rhino.strategies.solver.answer import Infeasible
from rhino.strategies.solver.dual import dual_ascent
from rhino.strategies.solver.dual.bounded_elimination import best_near, greedy, states_within
from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.dual.price_passes import Passes
from rhino.strategies.solver.dual.wide import Wide
from rhino.strategies.solver.elimination.by_node import TableStore
from rhino.strategies.solver.lp.solve_lp import Relaxed, solve_lp
from rhino.strategies.solver.problem import Problem

BATCHES = [range(first, 120, 4) for first in range(4)]
ROUNDING = 1e-9
PASSES = 60
MANY = 20
"""Rounds after which nothing more is told apart in problems this small."""


def raised(problem, rounds, passes=PASSES, stages=()):
    """Prices after so many passes."""
    ascent = Ascent(lift(problem, find_classes(problem, rounds)), stages)
    ascent.run(passes)
    return ascent


def problems_of(seed):
    """One without structure, one on two axes, and one of three alike layers of that."""
    joint = random_joint_problem(seed)
    small = layered(joint, 3, seed) if np.prod(joint.num_states(), dtype=float) ** 3 < 60_000 else joint
    return random_problem(seed), joint, small


@pytest.mark.parametrize(("batch", "rounds"), one_in(2, product(BATCHES, [1, 2, 3, MANY])))
def test_no_bound_is_above_the_optimum(batch, rounds):
    """After the first round already: alike nodes then have alike edges."""
    for seed in batch:
        for problem in problems_of(seed):
            best = brute_force(problem)
            if best is not None:
                assert raised(problem, rounds).bound <= best.cost + ROUNDING * abs(best.cost), seed


@pytest.mark.parametrize("batch", BATCHES)
def test_it_comes_near_the_bound_of_the_lp_and_not_above(batch):
    near = met = 0
    for seed in batch:
        for problem in problems_of(seed):
            relaxed = solve_lp(problem)
            if not isinstance(relaxed, Relaxed):
                continue
            bound = raised(problem, MANY).bound
            assert bound <= relaxed.bound + 1e-6 * abs(relaxed.bound), seed
            near, met = near + (bound >= relaxed.bound - 1e-3 * abs(relaxed.bound)), met + 1
    assert near > 0.9 * met > 40, (near, met)


def test_passes_in_single_precision_prove_as_much(monkeypatch):
    """No more than is true, and as much as passes in double precision but for little."""
    near = met = 0
    for seed in BATCHES[0]:
        for problem in problems_of(seed):
            best, whole = brute_force(problem), raised(problem, 2).bound
            monkeypatch.setattr(dual_ascent, "_LARGE", 0)
            ascent = raised(problem, 2)
            more = ascent.run(PASSES)
            monkeypatch.undo()
            if best is None:
                continue
            assert ascent._rough is not None
            assert more <= best.cost + ROUNDING * abs(best.cost), seed
            assert more <= Ascent(ascent.lifted, ascent.stages).bound + ROUNDING * ascent.barred, seed
            near, met = near + (more >= whole - 1e-3 * abs(whole)), met + 1
    assert near > 0.9 * met > 30, (near, met)


@pytest.mark.parametrize("seed", [13, 235, 272])
def test_where_prices_are_over_the_limit_of_single_precision_no_proof_is_lost(seed, monkeypatch):
    """The first pass in double precision takes back what is over it, and the bound with that; the next make it good."""
    problem = random_joint_problem(seed)
    whole = raised(problem, 2, 30).bound
    monkeypatch.setattr(dual_ascent, "_LARGE", 0)
    monkeypatch.setattr(dual_ascent, "_MOST", 0.25)
    assert raised(problem, 2, 30).bound >= whole - 1e-3 * abs(whole)


@pytest.mark.parametrize("batch", BATCHES)
def test_the_bound_is_what_the_prices_say(batch):
    """Every node and every edge of the whole problem takes its least."""
    for seed in batch:
        for problem in problems_of(seed):
            ascent = raised(problem, 2, 9)
            if ascent.bound == np.inf:
                continue
            left = [problem.tables[table].copy() for table in problem.node_table]
            total = 0.0
            for e, (table, u, v) in enumerate(zip(problem.edge_table, problem.edge_u, problem.edge_v, strict=True)):
                one, two = ascent.prices[ascent.lifted.classes.edge[e]]
                total += (problem.tables[table] - one[:, None] - two[None, :]).min()
                left[u], left[v] = left[u] + one, left[v] + two
            total += sum(costs.min() for costs in left)
            assert ascent.bound <= total + ROUNDING * ascent.barred, seed


def test_more_passes_never_lower_it():
    for seed in BATCHES[0]:
        for problem in problems_of(seed):
            ascent = raised(problem, 2, 0)
            bounds = [ascent.bound, *(ascent.run(3) for _ in range(5))]
            assert bounds == sorted(bounds), seed


def test_finer_classes_go_on_from_the_prices_of_coarser_ones():
    for seed in BATCHES[1]:
        problem = layered(random_joint_problem(seed), 3, seed)
        coarse = raised(problem, 1)
        fine = raised(problem, 3, 0, coarse.stages)
        if np.isfinite(coarse.bound):
            assert fine.bound == pytest.approx(coarse.bound, rel=1e-9, abs=1e-9 * coarse.barred)


def test_where_nothing_is_legal_it_says_so_or_stays_below():
    said = seen = 0
    for seed in range(240):
        problem = random_joint_problem(seed)
        if brute_force(problem) is None and isinstance(solve_lp(problem), Infeasible):
            said, seen = said + (raised(problem, MANY).bound == np.inf), seen + 1
    assert said > 0.5 * seen > 0


def test_without_costs_nothing_is_lost_by_rounding():
    """Three nodes that must differ in pairs: there is a choice, and it is free."""
    apart = np.where(np.eye(3, dtype=bool), np.inf, 0.0)
    ends = np.array([[0, 1], [0, 2], [1, 2]])
    problem = Problem(
        (np.zeros(3), apart), np.zeros(3, dtype=np.int64), ends[:, 0], ends[:, 1], np.ones(3, dtype=np.int64)
    )
    assert raised(problem, 1).bound == pytest.approx(0.0, abs=1e-12)
    assert problem.cost(greedy(raised(problem, 1))) == 0.0


# States and choices


@pytest.mark.parametrize("batch", BATCHES)
def test_a_state_costs_its_excess_at_least(batch):
    for seed in batch:
        problem = random_joint_problem(seed)
        best = brute_force(problem)
        if best is None:
            continue
        ascent = raised(problem, 2, 9)
        excess = ascent.excess()
        for node, c in enumerate(ascent.lifted.classes.node.tolist()):
            for state, more in enumerate(excess[c]):
                found = brute_force(with_state(problem, node, state))
                if found is not None:
                    assert ascent.bound + more <= found.cost + ROUNDING * ascent.barred, seed


def with_state(problem, node, state):
    """The problem with all states but one of a node illegal."""
    table = np.full(len(problem.tables[problem.node_table[node]]), np.inf)
    table[state] = problem.tables[problem.node_table[node]][state]
    nodes = problem.node_table.copy()
    nodes[node] = len(problem.tables)
    return replace(problem, tables=(*problem.tables, table), node_table=nodes)


def test_choices_near_the_bound_are_good():
    """By elimination nearly always the best; node by node, legal more often than not."""
    legal = best_found = count = 0
    for seed in range(120):
        problem = random_joint_problem(seed)
        best = brute_force(problem)
        if best is None:
            continue
        ascent = raised(problem, MANY)
        near, quick = (
            problem.cost(choice) for choice in (best_near(ascent, TableStore(), 1 << 20, -np.inf), greedy(ascent))
        )
        assert best.cost * (1 - ROUNDING) <= near <= quick, seed
        count, legal, best_found = (
            count + 1,
            legal + np.isfinite(quick),
            best_found + (near <= best.cost * (1 + ROUNDING)),
        )
    assert legal > 0.5 * count, (legal, count)
    assert best_found > 0.9 * count, (best_found, count)


def test_states_within_room_are_those_of_better_choices():
    for seed in range(60):
        problem = random_joint_problem(seed)
        best = brute_force(problem)
        if best is None:
            continue
        ascent = raised(problem, 2)
        masks = states_within(ascent, ascent.excess(), best.cost - ascent.bound + ROUNDING * ascent.barred, least=False)
        assert all(state in mask for state, mask in zip(best.states.tolist(), masks, strict=True)), seed


def test_states_that_cost_too_much_are_left_out_and_no_better_choice_with_them(monkeypatch):
    """The best choice keeps its states, and the bound of what is left is one of it; finer classes go on from there."""
    monkeypatch.setattr(dual_ascent, "_LARGE", 0)
    monkeypatch.setattr(dual_ascent, "_WORTH", 1.0)
    fewer = legal = 0
    for seed in range(80):
        problem = problems_of(seed)[2]
        best = brute_force(problem)
        if best is None:
            continue
        ascent = raised(problem, 1)
        ascent.narrow(best.cost - ascent.bound + ROUNDING * ascent.barred)
        before = ascent.bound
        finer = Ascent(lift(problem, find_classes(problem, 3)), ascent.stages)
        for one in (ascent, finer):
            one.run(PASSES)
            assert before - ROUNDING * one.barred <= one.bound <= best.cost + ROUNDING * one.barred, seed
            excess, classes = one.excess(), one.lifted.classes.node.tolist()
            assert all(excess[c][state] < np.inf for c, state in zip(classes, best.states.tolist(), strict=True)), seed
            legal += problem.cost(greedy(one)) < np.inf
        fewer += sum(np.isinf(more).sum() for more in ascent.excess()) > 0
    assert fewer > 20, fewer
    assert legal > 40, legal


def test_what_is_finished_is_the_optimum():
    finished = 0
    for seed in range(120):
        problem = random_joint_problem(seed)
        best = brute_force(problem)
        if best is None:
            continue
        wide = Wide(problem, TableStore(), 1 << 20, 0.0, np.zeros(problem.num_nodes, dtype=np.int64))
        wide.ascend(next(wide.lifted((2,))), 3)
        wide.finish()
        assert wide.bound <= best.cost * (1 + ROUNDING), seed
        if wide.is_done:
            finished += 1
            assert wide.cost == pytest.approx(best.cost, rel=ROUNDING), seed
    assert finished > 60


def test_an_ascent_ends_where_its_bound_is_enough():
    """The bound that ends it is proven by fewer passes than the highest one, and by the prices that are left."""
    ended = 0
    for seed in range(20):
        problem = problems_of(seed)[2]
        lifted = lift(problem, find_classes(problem, 2))
        first, highest = Ascent(lifted).bound, Ascent(lifted).run(PASSES)
        if not np.isfinite(highest) or highest <= first:
            continue
        enough = first + 0.5 * (highest - first)
        ascent, passes = Ascent(lifted), []
        with pytest.MonkeyPatch.context() as patched:
            one = Passes.run
            patched.setattr(Passes, "run", lambda self, most, one=one, to=passes: (to.append(None), one(self, most))[1])
            assert enough <= ascent.run(PASSES, enough) <= highest
        assert ascent.bound == pytest.approx(Ascent(lifted, ascent.stages).bound, rel=ROUNDING)
        ended += len(passes) < PASSES
    assert ended > 10
