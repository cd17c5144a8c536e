"""The search under a memory budget against enumeration: exact where it may finish by MILP, bounded where it may not."""

import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from brute_force import brute_force
from joint_problems import random_joint_problem
from problems import random_budget, random_problem

from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.dual.memory_prices import PricedSearch, peaks
from rhino.strategies.solver.problem import Problem, Residents
from rhino.strategies.solver.repair.component_repair import recombination
from rhino.strategies.solver.repair.graph_cut_repair import cut_mixture
from rhino.strategies.solver.search import Limits, Search
from rhino.strategies.solver.solver import Solver

NUM_PROBLEMS, NUM_BATCHES = 320, 8
BATCHES = [range(2000 + first, 2000 + NUM_PROBLEMS, NUM_BATCHES) for first in range(NUM_BATCHES)]
SOME = BATCHES[:4]
CASES = [*SOME, *(pytest.param(batch, marks=pytest.mark.long) for batch in BATCHES[4:])]
PRICES_ALONE = Limits(exact_below_states=0)
ROUNDING = 1e-7
"""Relative: what a bound may exceed the truth by, and a cost too; solvers sum in another order."""
HAIR = 1e-8
"""Relative: a solver of rows cannot tell budgets apart that are nearer, and these problems have bytes beside
gigabytes."""


@dataclass(frozen=True)
class Case:
    """A random problem, a budget for it, its least cost under it, and under a hair less.

    A cost is infinite where nothing fits.
    """

    problem: Problem
    budget: float
    least: float
    least_under_a_hair: float


@cache
def case(seed):
    problem = random_problem(seed)
    budget = random_budget(problem, seed)
    found = [brute_force(problem, limit) for limit in (budget, budget - HAIR * abs(budget))]
    return Case(problem, budget, *(np.inf if best is None else best.cost for best in found))


def check_answer(case, outcome):
    """What holds of every answer: it is legal, it fits, its numbers are its own, and its bound is one."""
    assert outcome.cost == case.problem.cost(outcome.states) < np.inf
    assert outcome.peak_bytes == case.problem.memory(outcome.states).max() <= case.budget
    assert outcome.bound <= outcome.cost
    assert outcome.bound <= case.least_under_a_hair * (1 + ROUNDING)
    assert case.least <= outcome.cost * (1 + ROUNDING)


def test_hairs_decide_few_cases():
    """Else the comparisons below would say little."""
    cases = [case(seed) for batch in SOME for seed in batch]
    assert sum(c.least != c.least_under_a_hair and c.budget > 1000 for c in cases) < NUM_PROBLEMS / 4
    assert 20 < sum(c.least == np.inf for c in cases) < NUM_PROBLEMS / 2


@pytest.mark.parametrize("batch", CASES)
def test_without_a_budget_it_is_the_optimum(batch):
    for seed in batch:
        problem, best = random_problem(seed), brute_force(random_problem(seed))
        outcome = Search(problem).run(None)
        if best is None:
            assert outcome == Infeasible(None)
        else:
            check_answer(Case(problem, np.inf, best.cost, best.cost), outcome)
            assert outcome.cost == pytest.approx(best.cost, rel=ROUNDING)
            assert outcome.is_optimal


@pytest.mark.parametrize("gap", [0.0, Limits().gap])
@pytest.mark.parametrize("batch", CASES)
def test_under_a_budget_it_is_the_optimum_where_milp_may_finish(batch, gap):
    for seed in batch:
        this = case(seed)
        outcome = Search(this.problem, Limits(gap=gap)).run(this.budget)
        if isinstance(outcome, Answer):
            check_answer(this, outcome)
            assert outcome.cost <= this.least_under_a_hair * (1 + gap) * (1 + ROUNDING), seed
        else:
            assert isinstance(outcome, Infeasible), seed
            assert this.least_under_a_hair == np.inf, seed


@pytest.mark.parametrize("batch", CASES)
def test_prices_alone_never_claim_what_is_not_so(batch):
    for seed in batch:
        this = case(seed)
        match Search(this.problem, PRICES_ALONE).run(this.budget):
            case Answer() as outcome:
                check_answer(this, outcome)
            case Infeasible(peak_bytes):
                assert this.least == np.inf, seed
                if peak_bytes is not None:
                    assert peak_bytes > this.budget
                    assert brute_force(this.problem, peak_bytes - HAIR * abs(peak_bytes) - HAIR) is None, seed
            case Unsolved(bound):
                assert bound <= this.least * (1 + ROUNDING), seed


def test_prices_alone_leave_few_gaps():
    """What they cannot do is reported, and rare even on problems as hostile as these."""
    cases = [case(seed) for batch in SOME for seed in batch]
    solvable = [this for this in cases if this.least < np.inf]
    outcomes = [Search(this.problem, PRICES_ALONE).run(this.budget) for this in solvable]
    answers = [(this, outcome) for this, outcome in zip(solvable, outcomes, strict=True) if isinstance(outcome, Answer)]
    good = sum(outcome.cost <= this.least * 1.001 for this, outcome in answers)
    assert len(answers) > 0.9 * len(solvable)
    assert good > 0.7 * len(answers)


@pytest.mark.parametrize("batch", SOME)
def test_where_tables_grow_too_wide_milp_takes_over(batch):
    for seed in batch:
        this = case(seed)
        outcome = Search(this.problem, Limits(table_entries=8)).run(this.budget)
        if isinstance(outcome, Answer):
            check_answer(this, outcome)
            assert outcome.cost <= this.least_under_a_hair * (1 + Limits().gap) * (1 + ROUNDING), seed
        else:
            assert this.least_under_a_hair == np.inf, seed


def test_the_same_problem_gives_the_same_answer():
    for seed in BATCHES[0]:
        this = case(seed)
        for limits in (Limits(), PRICES_ALONE):
            first, second = (Search(this.problem, limits).run(this.budget) for _ in range(2))
            assert type(first) is type(second)
            if isinstance(first, Answer):
                np.testing.assert_array_equal(first.states, second.states)
                assert (first.cost, first.bound, first.method) == (second.cost, second.bound, second.method)


def test_a_replayed_order_gives_the_value_of_a_new_one():
    """Prices change costs, not who is joined to whom: the second solve follows the first one's order."""
    for seed in BATCHES[1]:
        problem, budget = case(seed).problem, case(seed).budget
        prices = {0: 1e-3, problem.num_times - 1: 1e-2}
        solver, fresh = Solver(problem), Solver(problem)
        solver.solve(solver.reduce())
        assert solver.order is not None
        again, other = solver.solve(solver.reduce(prices, budget)), fresh.solve(fresh.reduce(prices, budget))
        value, wanted = again.value, other.value
        assert value == pytest.approx(wanted, rel=1e-9), seed
        if np.isfinite(wanted):
            priced = [
                problem.cost(x) + sum(p * (problem.memory(x)[t] - budget) for t, p in prices.items())
                for x in (again.states, other.states)
            ]
            assert priced == pytest.approx([wanted, wanted], rel=1e-6, abs=1e-9), seed


def test_an_interrupted_search_gives_what_it_has():
    """The user may stop it anywhere.

    Before anything fits it only stops; after that there is a legal answer with a bound that holds.
    """
    stopped = answered = 0
    for seed in BATCHES[0]:
        this = case(seed)
        if this.least == np.inf:
            continue
        for solves in range(1, 12):
            search = Search(this.problem, PRICES_ALONE)
            solve, left = search.solver.solve, [solves]

            def counted(reduced, solve=solve, left=left):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return solve(reduced)

            search.solver.solve = counted
            try:
                outcome = search.run(this.budget)
            except KeyboardInterrupt:
                stopped += 1
                continue
            if isinstance(outcome, Answer) and outcome.method.endswith("interrupted"):
                answered += 1
                check_answer(this, outcome)
    assert stopped > 5
    assert answered > 5


def test_statistics_say_what_was_there_and_what_was_left():
    problem = case(2003).problem
    search = Search(problem)
    search.run(case(2003).budget)
    found = search.statistics
    assert (found.nodes, found.edges, found.states) == (
        problem.num_nodes,
        problem.num_edges,
        problem.num_states().sum(),
    )
    assert found.core_nodes <= found.nodes
    assert found.core_edges <= found.edges
    assert found.solves >= 1


# By hand


def ints(*values):
    return np.array(values, dtype=np.int64)


def parted(costs, sizes, spans, num_times):
    """Nodes without edges: each with the costs and the bytes of its states, alive from and to a time."""
    count = len(costs)
    tables = tuple(np.array(table, dtype=float) for table in (*costs, *sizes))
    start, end = (ints(*(span[k] for span in spans)) for k in range(2))
    kept = Residents(np.arange(count), np.arange(count, 2 * count), start, end)
    return Problem(tables, np.arange(count), ints(), ints(), ints(), num_times, np.zeros(num_times), kept)


def test_memory_is_bought_where_it_is_cheapest():
    """Three tensors of 10 bytes, whose halves cost 5, 1 and 3: for 20 bytes the last two are halved.

    For 25 bytes only the second one is.
    """
    problem = parted([[0, 5], [0, 1], [0, 3]], [[10, 5]] * 3, [(0, 0)] * 3, 1)
    wanted = {30: (0, [0, 0, 0]), 25: (1, [0, 1, 0]), 20: (4, [0, 1, 1]), 15: (9, [1, 1, 1])}
    for limits in (Limits(), PRICES_ALONE):
        for budget, (cost, states) in wanted.items():
            outcome = Search(problem, limits).run(budget)
            assert (outcome.cost, list(outcome.states)) == (cost, states)
            assert outcome.is_optimal
        assert Search(problem, limits).run(14) == Infeasible(15)


def test_only_what_is_alive_at_the_same_time_counts():
    """Two tensors of 10 bytes that never meet fit 10 bytes.

    Where they meet at one time, one is halved under 15 bytes, and both under 10.
    """
    apart = parted([[0, 5], [0, 1]], [[10, 5]] * 2, [(0, 1), (2, 3)], 4)
    assert Search(apart).run(10).cost == 0
    meeting = parted([[0, 5], [0, 1]], [[10, 5]] * 2, [(0, 2), (2, 3)], 4)
    assert Search(meeting).run(15).cost == 1
    assert Search(meeting).run(10).cost == 6


def test_a_budget_that_the_optimum_meets_changes_nothing():
    problem = parted([[0, 5]], [[10, 5]], [(0, 0)], 1)
    outcome = Search(problem).run(10)
    assert (outcome.cost, outcome.bound, outcome.method) == (0, 0, "elimination")


# Mixing two choices


@pytest.mark.parametrize("batch", SOME)
def test_the_best_mixture_is_found(batch):
    """Nodes that differ may follow either choice, if no edge joins two that follow different ones."""
    mixed = 0
    for seed, problem, budget, free, start in bound_by_memory(batch):
        found = recombination(problem, start, free.states, budget)
        got = start if found is None else found
        assert problem.memory(got).max() <= budget
        # HiGHS's tolerance for mixed rows is 1e-6 of the largest number in them.
        shaved = [x for x in mixtures(problem, start, free.states) if problem.memory(x).max() <= budget * (1 - 1e-6)]
        assert problem.cost(got) <= min(map(problem.cost, [start, *shaved])) * (1 + 1e-6), seed
        mixed += not np.array_equal(got, start)
    assert mixed


@pytest.mark.parametrize("batch", SOME)
def test_what_is_mixed_at_seams_fits_and_is_cheaper(batch):
    mixed = 0
    for _, problem, budget, free, start in bound_by_memory(batch):
        found = cut_mixture(problem, start, free.states, budget)
        if found is not None:
            assert problem.memory(found).max() <= budget
            assert problem.cost(found) < problem.cost(start) * (1 + ROUNDING)
            assert ((found == start) | (found == free.states)).all()
            mixed += 1
    assert mixed


def layered(layers, cut, hanging):
    """Layers in a row, each fast with 10 bytes or slow with 1, and nodes that hang on each layer.

    Between two layers of different kinds there is a cut.
    """
    nodes = layers * (1 + hanging)
    at = np.arange(layers)
    ends = [np.stack([at[:-1], at[1:]])] + [np.stack([at + layers * h, at + layers * (h + 1)]) for h in range(hanging)]
    u, v = np.concatenate(ends, axis=1)
    tables = tuple(
        map(np.array, ([0.0, 1.0], [10.0, 1.0], [0.0, 0.0], [[0.0, cut], [cut, 0.0]], [[0.0, np.inf], [np.inf, 0.0]]))
    )
    kinds = np.concatenate([np.full(layers - 1, 3), np.full(layers * hanging, 4)])
    kept = Residents(at, np.full(layers, 1), np.zeros(layers, dtype=np.int64), np.zeros(layers, dtype=np.int64))
    return Problem(tables, np.where(np.arange(nodes) < layers, 0, 2), u, v, kinds, 1, np.zeros(1), kept)


@pytest.mark.parametrize("hanging", [0, 1, 3])
def test_alike_layers_are_parted_at_one_seam(hanging):
    """Prices find all layers fast or all slow.

    With room for 7 fast ones of 30, 23 are slow, and one cut lies between.
    """
    problem = layered(30, 2.0, hanging)
    room = 30 + 7 * 9 + 5
    found = Search(problem, PRICES_ALONE).run(room)
    assert found.cost == pytest.approx(23 + 2)
    assert found.bound <= 23 + 2
    slow, fast = (np.full(problem.num_nodes, state) for state in (1, 0))
    assert problem.cost(cut_mixture(problem, slow, fast, room)) == pytest.approx(25)
    assert cut_mixture(problem, slow, fast, 30) is None  # room for none


def test_no_seam_lies_where_the_choices_do_not_go_together():
    problem = layered(6, np.inf, 1)
    assert cut_mixture(problem, np.ones(12, dtype=np.int64), np.zeros(12, dtype=np.int64), 40) is None


def test_a_search_under_another_budget_begins_with_what_was_found():
    """A budget between two that were searched needs no more solves than prove its bound, and its answer is as good."""
    problem = layered(30, 2.0, 1)
    search = Search(problem, PRICES_ALONE)
    search.within(150.0, search.free(None))
    known = search.statistics.solves
    found = search.within(93.0 + 5, search.free(None))
    fresh = Search(problem, PRICES_ALONE)
    assert found.cost == fresh.run(93.0 + 5).cost == pytest.approx(25)
    assert search.statistics.solves - known < fresh.statistics.solves


@pytest.mark.parametrize("seed", [300, 1218])
def test_a_solve_that_is_cut_off_before_it_has_a_choice_leaves_none(seed):
    """Searches under other budgets begin with what was found.

    An illegal choice would be one that none of them could price.
    """
    problem = random_joint_problem(seed)
    best = brute_force(problem)
    search = Search(problem, Limits(table_entries=4, exact_below_states=0, cutoff=best.cost * (1 + 1e-9)))
    found = search.within(0.9 * problem.memory(best.states).max(), search.free(None))
    assert isinstance(found, Unsolved)
    assert search.columns
    assert all(np.isfinite(cost) for _, cost, _ in search.columns)


def test_small_tensors_are_mixed_under_a_large_budget():
    """Taking over both kilobytes would break the budget of 64 GB by one of them.

    The solver's tolerance is 64 of them.
    """
    large, small = 64e9, 1024.0
    tables = tuple(map(np.array, ([0.0], [large], [2.0, 0.0], [3.0, 0.0], [0.0, small])))
    kept = Residents(ints(0, 1, 2), ints(1, 4, 4), ints(0, 0, 0), ints(0, 0, 0))
    problem = Problem(tables, ints(0, 2, 3), ints(), ints(), ints(), 1, np.zeros(1), kept)
    for times in ((), (0,)):  # known from before to bind, or found out
        assert list(recombination(problem, ints(0, 0, 0), ints(0, 1, 1), large + small, times)) == [0, 0, 1]


def search_of_three():
    """A search under 6 bytes that knows three choices of one node, and of the times 0 and 4 that they bind."""
    tables = tuple(map(np.array, ([0.0, 1.0, 2.0], [9.0, 1.0, 0.0], [8.0, 8.0, 0.0], [1.0, 9.0, 0.0])))
    kept = Residents(ints(0, 0, 0), ints(1, 2, 3), ints(0, 2, 4), ints(0, 2, 4))
    problem = Problem(tables, ints(0), ints(), ints(), ints(), 5, np.zeros(5), kept)
    search = PricedSearch(Solver(problem), 6.0, Answer(ints(0), 0.0, 0.0, 9.0, ""), times=[0, 4])
    search.columns = [(ints(state), float(state), problem.memory([state])) for state in range(3)]
    return search


def test_a_mixture_fits_at_every_time_and_not_only_where_its_choices_are_worst():
    """Two choices take 9 at time 0 or at time 2, where each makes a row, and both 8 between.

    So a mixture of them takes 8 there.
    """
    cost, prices = search_of_three().master()
    # 21, 3 and 8 parts of 32; by the times 0 and 4 alone 5 and 3 of 8 would do, for 3 / 8
    assert cost == pytest.approx(19 / 32)
    assert 2 in prices


def test_the_least_excess_is_in_bytes_and_may_be_negative():
    """Of the choices above any mixture of two takes 8 at time 2, which is 2 over the budget; the third leaves all 6."""
    search = search_of_three()
    third = search.columns.pop()
    excess, weights = search.least_excess()
    assert excess == pytest.approx(2)
    assert weights == pytest.approx({2: 1})
    search.columns.append(third)
    assert search.least_excess()[0] == pytest.approx(-6)


def test_two_choices_that_do_not_fit_are_mixed_to_one_that_does():
    """Each halves one of two tensors, and takes 15 bytes of 10; both halves together take 10, at the cost of both."""
    problem = parted([[0, 5], [0, 1]], [[10, 5]] * 2, [(0, 0)] * 2, 1)
    search = PricedSearch(Solver(problem), 10.0, Answer(ints(0, 0), 0.0, 0.0, 20.0, ""))
    search.columns = [(ints(*states), problem.cost(states), problem.memory(states)) for states in ([0, 1], [1, 0])]
    search.mix_to_fit()
    assert (search.best.cost, list(search.best.states)) == (6, [1, 1])


def test_a_problem_of_just_as_many_states_as_are_allowed_is_finished_by_milp():
    """Prices leave a gap between layers all fast and all slow; 20 nodes of two states have 40."""
    problem = layered(20, 2.0, 0)
    room = 20 + 7 * 9 + 5
    exact, priced = (Search(problem, Limits(gap=0.0, exact_below_states=most)).run(room) for most in (40, 39))
    assert exact.is_optimal
    assert not priced.is_optimal


def test_peaks_are_the_worst_times_of_what_is_over_the_budget():
    """Stretches end where all the budget is taken, which is not over it."""
    assert peaks(np.array([5.0, 7.0, 6.0, 5.0, 8.0, 5.0]), 5.0) == [4, 1]


def bound_by_memory(batch):
    """Yields the problems whose best choice does not fit their budget.

    Each comes with its seed and budget, its best choice without the budget, and a choice that fits.
    """
    for seed in batch:
        this = case(seed)
        free = brute_force(this.problem)
        if this.least < np.inf and this.problem.memory(free.states).max() > this.budget:
            yield seed, this.problem, this.budget, free, fitting(this.problem, this.budget, seed)


def fitting(problem, budget, seed):
    """A legal choice that fits, but need not be good: the first of random ones, or else the best."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        choices = [rng.integers(0, n) for n in problem.num_states()]
        if np.isfinite(problem.cost(choices)) and problem.memory(choices).max() <= budget:
            return ints(*choices)
    return brute_force(problem, budget).states


def mixtures(problem, base, other):
    differing = np.flatnonzero(base != other)
    joined = [(u, v) for u, v in zip(problem.edge_u, problem.edge_v, strict=True) if u in differing and v in differing]
    for picks in itertools.product((False, True), repeat=len(differing)):
        taken = dict(zip(differing.tolist(), picks, strict=True))
        if all(taken[int(u)] == taken[int(v)] for u, v in joined):
            mixed = base.copy()
            mixed[differing] = np.where(picks, other[differing], base[differing])
            yield mixed
