"""Every solver against enumeration, on random problems small enough to try every choice."""

import itertools

import numpy as np
import pytest
from brute_force import MAX_CHOICES, brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.math_opt.python import mathopt
from problems import random_budget, random_problem
from scipy import sparse

from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.lp.linear_programs import Point, Rows, solve_rows
from rhino.strategies.solver.lp.local_polytope import Model, build_model, dual_bound, flatten
from rhino.strategies.solver.lp.solve_lp import Relaxed, round_lp, solve_lp, solve_milp
from rhino.strategies.solver.problem import Problem, Residents

NUM_PROBLEMS, NUM_BATCHES = 320, 8
BATCHES = [range(first, NUM_PROBLEMS, NUM_BATCHES) for first in range(NUM_BATCHES)]
# Relative: what a bound may exceed the truth by, and a cost too, for a solver's sums go in another order than ours.
ROUNDING = 1e-7

SOLVERS = {"milp": solve_milp}
examples = settings(deadline=None, derandomize=True, max_examples=60)


def ints(*values):
    return np.array(values, dtype=np.int64)


def pair(cost_u, cost_v, cost_uv):
    """Two nodes and the edge between them."""
    tables = tuple(np.array(table, dtype=float) for table in (cost_u, cost_v, cost_uv))
    return Problem(tables, ints(0, 1), ints(0), ints(1), ints(2))


def single(cost, sizes, num_times=1):
    """One node, alive for all times."""
    tables = (np.array(cost, dtype=float), np.array(sizes, dtype=float))
    kept = Residents(ints(0), ints(1), ints(0), ints(num_times - 1))
    return Problem(tables, ints(0), ints(), ints(), ints(), num_times, np.zeros(num_times), kept)


def check(problem, budget, outcome):
    """Holds what a solver says against the truth: exactly as good, legal, fitting, with a true bound and true sums."""
    truth = brute_force(problem, budget)
    if truth is None:
        assert isinstance(outcome, Infeasible)
        free = brute_force(problem)
        assert (outcome.peak_bytes is None) == (free is None) or outcome.peak_bytes is not None
        if free is not None and outcome.peak_bytes is not None:
            assert brute_force(problem, np.nextafter(outcome.peak_bytes, -np.inf)) is None
        return
    assert isinstance(outcome, Answer)
    assert outcome.cost == problem.cost(outcome.states)
    assert outcome.peak_bytes == problem.memory(outcome.states).max()
    assert budget is None or outcome.peak_bytes <= budget
    assert outcome.cost == pytest.approx(truth.cost, rel=ROUNDING)
    assert outcome.bound <= truth.cost
    assert outcome.is_optimal


@pytest.mark.parametrize("seed", [seed for seed in range(60) if np.prod(random_problem(seed).num_states()) <= 1000])
def test_brute_force_finds_what_plain_loops_find(seed):
    problem = random_problem(seed)
    choices = list(itertools.product(*(range(n) for n in problem.num_states())))
    budget = random_budget(problem, seed)
    for limit in (None, budget):
        fitting = [c for c in choices if limit is None or problem.memory(c).max() <= limit]
        costs = [problem.cost(c) for c in fitting]
        found = brute_force(problem, limit)
        if not costs or min(costs) == np.inf:
            assert found is None
        else:
            assert found is not None
            assert found.cost == pytest.approx(min(costs), rel=1e-12)
            assert tuple(found.states) in fitting
            assert found.gap == 0


def test_brute_force_takes_the_first_of_equals():
    found = brute_force(pair([1, 0, 0], [0, 1, 0], np.zeros((3, 3))))
    assert list(found.states) == [1, 0]


def test_brute_force_refuses_what_it_cannot_finish():
    nodes = np.zeros(23, dtype=np.int64)
    problem = Problem((np.zeros(2),), nodes, ints(), ints(), ints())
    with pytest.raises(ValueError, match=str(MAX_CHOICES)):
        brute_force(problem)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_equals_brute_force_without_a_budget(solver, batch):
    for seed in batch:
        problem = random_problem(seed)
        check(problem, None, SOLVERS[solver](problem))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("solver", SOLVERS)
def test_equals_brute_force_within_a_budget(solver, batch):
    for seed in batch:
        problem = random_problem(seed)
        budget = random_budget(problem, seed)
        check(problem, budget, SOLVERS[solver](problem, budget))


def test_the_random_problems_hold_every_case():
    """Without infeasible, binding and slack budgets, and LPs that are not whole, the comparisons would show little."""
    seen = {"no choice": 0, "does not fit": 0, "costs more": 0, "fits as it is": 0, "LP is split": 0, "carries": 0}
    for seed in range(NUM_PROBLEMS):
        problem = random_problem(seed)
        free, bound = brute_force(problem), brute_force(problem, random_budget(problem, seed))
        relaxed = solve_lp(problem)
        seen["no choice"] += free is None
        seen["does not fit"] += free is not None and bound is None
        seen["costs more"] += bound is not None and bound.cost > free.cost
        seen["fits as it is"] += bound is not None and bound.cost == free.cost
        seen["LP is split"] += isinstance(relaxed, Relaxed) and not relaxed.is_integral
        seen["carries"] += len(problem.edge_residents) > 0
    assert min(seen.values()) >= 10, seen


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_same_problem_same_answer(solver, seed):
    problem = random_problem(seed)
    budget = random_budget(problem, seed)
    first, second = (SOLVERS[solver](problem, budget) for _ in range(2))
    assert type(first) is type(second)
    if isinstance(first, Answer):
        assert list(first.states) == list(second.states)
        assert (first.cost, first.bound, first.method) == (second.cost, second.bound, second.method)


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_node_is_the_empty_choice(solver):
    empty = Problem((), ints(), ints(), ints(), ints())
    assert len(brute_force(empty).states) == 0
    check(empty, None, SOLVERS[solver](empty))
    check(empty, 0.0, SOLVERS[solver](empty, 0.0))
    check(empty, -1.0, SOLVERS[solver](empty, -1.0))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_byte_over_budget_is_over_budget(solver):
    """A solver's tolerance would let the cheap state through."""
    problem = single([1, 0], [0, 10**9 + 1])
    assert list(SOLVERS[solver](problem, 10.0**9).states) == [0]
    assert list(SOLVERS[solver](problem, 10.0**9 + 1).states) == [1]


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_alive_anyway_counts(solver):
    kept = single([1, 0], [2, 5])
    problem = Problem(kept.tables, kept.node_table, ints(), ints(), ints(), 1, np.array([10.0]), kept.node_residents)
    assert list(SOLVERS[solver](problem, 15.0).states) == [1]
    assert list(SOLVERS[solver](problem, 14.0).states) == [0]
    assert SOLVERS[solver](problem, 11.0) == Infeasible(12.0)


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_legal_choice_is_not_blamed_on_memory(solver):
    problem = pair([0, 1], [0, 1], np.full((2, 2), np.inf))
    assert SOLVERS[solver](problem) == Infeasible(None)
    assert SOLVERS[solver](problem, 1e9) == Infeasible(None)


def test_a_gap_is_what_could_be_saved():
    states = ints(0)
    assert Answer(states, 4.0, 3.0, 0.0, "").gap == 0.25
    assert Answer(states, 0.0, 0.0, 0.0, "").gap == 0.0
    assert Answer(states, 0.0, -1.0, 0.0, "").gap == np.inf
    assert not Answer(states, 4.0, 3.0, 0.0, "").is_optimal


@examples
@given(seed=st.integers(0, 10**6), with_budget=st.booleans())
def test_the_relaxation_is_a_bound_and_rounds_to_a_legal_choice(seed, with_budget):
    problem = random_problem(seed)
    budget = random_budget(problem, seed) if with_budget else None
    truth = brute_force(problem, budget)
    relaxed = solve_lp(problem, budget)
    if isinstance(relaxed, Infeasible):
        assert truth is None
        return
    assert relaxed.x.sum(axis=1) == pytest.approx(1)
    if truth is not None:
        assert relaxed.bound <= truth.cost * (1 + ROUNDING)
    states = round_lp(problem, relaxed.x)
    if states is not None:
        assert np.isfinite(problem.cost(states))
    if relaxed.is_integral:
        assert list(states) == list(np.argmax(relaxed.x, axis=1))
        assert problem.cost(states) == pytest.approx(relaxed.bound, rel=ROUNDING)


@examples
@given(seed=st.integers(0, 10**6), price_seed=st.integers(0, 10**6))
def test_any_prices_prove_a_bound(seed, price_seed):
    problem = random_problem(seed)
    budget = random_budget(problem, seed)
    truth = brute_force(problem, budget)
    model = build_model(flatten(problem), budget, tuple(range(problem.num_times)))
    if truth is None or isinstance(model, Infeasible):
        assert truth is None or isinstance(model, Model)
        return
    prices = np.random.default_rng(price_seed).normal(size=len(model.rows.high))
    assert dual_bound(model, prices) <= truth.cost + 1e-9 * model.scale


@pytest.mark.parametrize("step_limit", [0, 1, 2])
def test_a_spent_budget_of_steps_gives_a_true_bound(step_limit):
    kinds = set()
    for seed in range(60):
        problem = random_problem(seed)
        budget = random_budget(problem, seed)
        truth = brute_force(problem, budget)
        outcome = solve_milp(problem, budget, step_limit)
        kinds.add(type(outcome))
        if truth is None:
            assert not isinstance(outcome, Answer)
            continue
        assert not isinstance(outcome, Infeasible)
        assert outcome.bound <= truth.cost * (1 + ROUNDING)
        if isinstance(outcome, Answer):
            assert problem.memory(outcome.states).max() <= budget
            assert outcome.cost >= truth.cost * (1 - ROUNDING)
    assert Unsolved in kinds
    assert step_limit == 0 or Answer in kinds


def test_sums_need_no_pair_variables():
    problem = pair([1, 0], [0, 1], [[0, 2], [1, 3]])
    assert len(build_model(flatten(problem)).y_flat) == 0
    check(problem, None, solve_milp(problem))


def test_a_sum_that_decides_memory_keeps_its_pair_variables():
    """The transfer takes memory only where both ends are split, which no sum over the ends says."""
    tables = tuple(np.array(t, dtype=float) for t in ([1, 0], [1, 0], [[0, 0], [0, 0]], [[0, 0], [0, 8]]))
    kept = Residents(ints(0), ints(3), ints(0), ints(0))
    problem = Problem(tables, ints(0, 1), ints(0), ints(1), ints(2), edge_residents=kept)
    assert len(build_model(flatten(problem), 4.0, (0,)).y_flat) == 4
    assert solve_milp(problem).cost == 0
    assert solve_milp(problem, 4.0).cost == 1


def test_an_odd_cycle_needs_branching():
    """Three nodes that all want to differ from each other with two states: the LP splits them at no cost."""
    table = np.array([[1.0, 0.0], [0.0, 1.0]])
    problem = Problem((np.zeros(2), table), ints(0, 0, 0), ints(0, 0, 1), ints(1, 2, 2), ints(1, 1, 1))
    relaxed, answer = solve_lp(problem), solve_milp(problem)
    assert not relaxed.is_integral
    assert relaxed.bound == pytest.approx(0)
    assert (answer.cost, answer.method) == (1.0, "MILP")
    assert answer.is_optimal


def rows(cost, matrix, low, high):
    return Rows(
        np.array(cost, dtype=float),
        sparse.csr_matrix(np.array(matrix, dtype=float)),
        np.array(low),
        np.array(high),
        len(cost),
    )


@pytest.mark.parametrize("highs_fails", [False, True])
def test_rows_tell_the_four_cases_apart(highs_fails, monkeypatch):
    solve = mathopt.solve

    def without_highs(model, solver, **options):
        if highs_fails and solver == mathopt.SolverType.HIGHS:
            raise RuntimeError("internal")
        return solve(model, solver, **options)

    monkeypatch.setattr(mathopt, "solve", without_highs)
    knapsack = rows([-3, -2, -2], [[2, 1, 1.5]], [-np.inf], [2.6])
    split, whole = (solve_rows(knapsack, integer=integer, step_limit=100) for integer in (False, True))
    assert isinstance(split, Point)
    assert isinstance(whole, Point)
    assert split.bound == pytest.approx(-2 - 0.8 * 3)
    assert split.duals == pytest.approx([-1.5])
    assert whole.values == pytest.approx([0, 1, 1])
    assert whole.bound == pytest.approx(-4)
    assert whole.is_optimal
    nothing = rows([1, 1], [[1, 1]], [3.0], [3.0])
    assert all(
        isinstance(solve_rows(nothing, integer=integer, step_limit=100), Infeasible) for integer in (False, True)
    )


def test_rows_stop_at_the_step_limit():
    """A market split: hard for branch and bound, with no choice that is easy to find."""
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 100, (3, 24)).astype(float)
    half = np.floor(weights.sum(axis=1) / 2)
    split = Rows(np.zeros(24), sparse.csr_matrix(weights), half, half, 24)
    assert isinstance(solve_rows(split, integer=True, step_limit=3), Unsolved)
