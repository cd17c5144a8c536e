"""Sweeps over mesh axes against enumeration, and the search where elimination is too wide.

There are cases with a budget and without.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from brute_force import brute_force
from joint_problems import layered, random_joint_problem
from problems import random_budget

from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.dual import wide
from rhino.strategies.solver.dual.axis_sweeps import Sweep
from rhino.strategies.solver.dual.colour_refinement import find_classes, lift
from rhino.strategies.solver.dual.dual_ascent import Ascent
from rhino.strategies.solver.dual.price_passes import Passes
from rhino.strategies.solver.dual.wide import Wide
from rhino.strategies.solver.elimination.by_node import TableStore
from rhino.strategies.solver.search import Limits, Search
from rhino.strategies.solver.solver import Solver

NUM_PROBLEMS, NUM_BATCHES = 240, 4
BATCHES = [range(first, NUM_PROBLEMS, NUM_BATCHES) for first in range(NUM_BATCHES)]
SOME = BATCHES[:2]
CASES = [*SOME, *(pytest.param(batch, marks=pytest.mark.long) for batch in BATCHES[2:])]
ROUNDING = 1e-7
HAIR = 1e-8
"""Relative: budgets nearer to each other than this are the same to a solver of rows."""


@cache
def case(seed):
    """A problem, the least cost of a choice, a budget, and the least cost under it and under a hair less.

    A cost is infinite where there is no choice.
    """
    problem = random_joint_problem(seed)
    budget = random_budget(problem, seed)
    found = [brute_force(problem, limit) for limit in (None, budget, budget - HAIR * abs(budget))]
    return problem, budget, *(np.inf if best is None else best.cost for best in found)


def sweep_of(problem, entries=1 << 20):
    return Sweep(problem, TableStore(), entries)


def restricted(problem, masks):
    """The problem with all states but those in `masks` illegal."""
    tables, nodes = list(problem.tables), []
    for table, mask in zip(problem.node_table.tolist(), masks, strict=True):
        left = np.full(len(problem.tables[table]), np.inf)
        left[list(mask)] = problem.tables[table][list(mask)]
        nodes.append(len(tables))
        tables.append(left)
    return replace(problem, tables=tuple(tables), node_table=np.array(nodes, dtype=np.int64))


# Sweeps


@pytest.mark.parametrize("batch", CASES)
def test_a_sweep_is_never_below_the_optimum_and_stops_where_no_axis_helps(batch):
    at_best = legal = 0
    for seed in batch:
        problem, _, least, *_ = case(seed)
        sweep = sweep_of(problem)
        states = sweep.best()
        cost = problem.cost(states)
        assert cost >= least * (1 - ROUNDING), seed
        if not np.isfinite(cost):
            continue
        for axis in range(2):
            line = sweep.line(states, axis)
            assert all(state in mask for state, mask in zip(states.tolist(), line, strict=True))
            assert brute_force(restricted(problem, line)).cost >= cost * (1 - ROUNDING), seed
        legal, at_best = legal + 1, at_best + (cost <= least * (1 + ROUNDING))
    assert at_best > 0.6 * legal > 30


@pytest.mark.parametrize("entries", [1 << 20, 30])
def test_within_masks_it_is_the_best(entries):
    """Where tables are too large, it is the best found near a bound.

    It is never better than the best, and most often as good.
    """
    guided = 0
    for seed in BATCHES[0]:
        problem, rng = case(seed)[0], np.random.default_rng(seed)
        masks = [
            tuple(sorted({0, *rng.choice(n, rng.integers(1, n + 1), replace=False).tolist()}))
            for n in problem.num_states()
        ]
        best = brute_force(restricted(problem, masks))
        found = sweep_of(problem, entries).within(masks, np.array([one[0] for one in masks]))
        if best is None:
            assert not np.isfinite(problem.cost(found))
            continue
        assert all(state in mask for state, mask in zip(found.tolist(), masks, strict=True))
        assert problem.cost(found) >= best.cost * (1 - ROUNDING), seed
        guided += problem.cost(found) == pytest.approx(best.cost, rel=ROUNDING)
    assert guided > 35


def test_a_line_holds_what_differs_along_one_axis():
    problem = random_joint_problem(3)
    sweep, states = sweep_of(problem), np.zeros(problem.num_nodes, dtype=np.int64)
    for axis, (node, mask) in product(range(2), enumerate(sweep.line(states, 0))):
        others = problem.coordinates[node][list(sweep.line(states, axis)[node])]
        assert (others[:, 1 - axis] == problem.coordinates[node][0, 1 - axis]).all()
        assert len(mask) >= 1


def test_a_descent_from_anywhere_is_no_worse_than_its_start():
    for seed in BATCHES[1]:
        problem, rng = case(seed)[0], np.random.default_rng(seed)
        start = np.array([rng.integers(n) for n in problem.num_states()], dtype=np.int64)
        sweep = sweep_of(problem)
        for axes in ([0, 1], [1, 0]):
            assert problem.cost(sweep.descend(start, axes)) <= problem.cost(start)
        both = [sweep.descend(start, [0, 1]), sweep.descend(start, [1, 0])]
        assert problem.cost(sweep.fuse(both)) <= min(map(problem.cost, both))


# The search where elimination is too wide


def limits(entries, **other):
    return Limits(table_entries=entries, **other)


@pytest.mark.parametrize("entries", [8, 60])
@pytest.mark.parametrize("batch", CASES)
def test_without_a_budget_its_gap_is_true(batch, entries):
    for seed in batch:
        problem, _, least, *_ = case(seed)
        match Search(problem, limits(entries)).run(None):
            case Answer() as outcome:
                check_answer(problem, outcome, np.inf, least, least)
            case Infeasible():
                assert least == np.inf, seed
            case Unsolved(bound):
                assert bound <= least * (1 + ROUNDING), seed


@pytest.mark.parametrize("exact", [0, 400])
@pytest.mark.parametrize("entries", [8, 60])
@pytest.mark.parametrize("batch", [CASES[0], pytest.param(CASES[1], marks=pytest.mark.long), *CASES[2:]])
def test_within_a_budget_it_claims_nothing_that_is_not_so(batch, entries, exact):
    """With MILP to finish and without."""
    for seed in batch:
        problem, budget, _, least, least_under_a_hair = case(seed)
        match Search(problem, limits(entries, exact_below_states=exact)).run(budget):
            case Answer() as outcome:
                check_answer(problem, outcome, budget, least, least_under_a_hair)
            case Infeasible(peak_bytes):
                assert least_under_a_hair == np.inf, seed
                if peak_bytes is not None:
                    assert brute_force(problem, peak_bytes - HAIR * abs(peak_bytes) - HAIR) is None, seed
            case Unsolved(bound):
                assert bound <= least * (1 + ROUNDING), seed


def check_answer(problem, outcome, budget, least, least_under_a_hair):
    assert outcome.cost == problem.cost(outcome.states) < np.inf
    assert outcome.peak_bytes == problem.memory(outcome.states).max() <= budget
    assert outcome.bound <= least_under_a_hair * (1 + ROUNDING)
    assert outcome.cost >= least * (1 - ROUNDING)


@pytest.mark.parametrize("with_budget", [False, True])
def test_most_answers_are_the_optimum(with_budget):
    """Problems of this size without structure are the hardest; real ones have more."""
    cases = [case(seed) for batch in SOME for seed in batch]
    count = wide = answered = best = proven = 0
    for problem, budget, free, least, _ in cases:
        truth = least if with_budget else free
        if truth == np.inf:
            continue
        count += 1
        search = Search(problem, limits(60, exact_below_states=0))
        outcome = search.run(budget if with_budget else None)
        if isinstance(outcome, Answer):
            answered += 1
            best += outcome.cost <= truth * 1.001
            proven += outcome.gap <= 0.001
        wide += search.solver.is_wide
    assert count > 60
    assert wide > 15
    assert answered > 0.95 * count, (answered, count)
    assert best > 0.75 * answered, (best, answered)
    assert proven > (0.25 if with_budget else 0.8) * answered, (proven, answered)


def test_the_same_problem_gives_the_same_answer():
    for seed in BATCHES[0][::2]:
        problem, budget, *_ = case(seed)
        first, second = (Search(problem, limits(8)).run(budget) for _ in range(2))
        assert type(first) is type(second)
        if isinstance(first, Answer):
            np.testing.assert_array_equal(first.states, second.states)
            assert (first.cost, first.bound, first.method) == (second.cost, second.bound, second.method)


def test_the_next_solve_begins_with_the_prices_of_the_last_one():
    """Solved again at the same prices of memory, all that was proven is proven before the first pass."""
    begun = 0
    for seed in range(40):
        solver = Solver(layered(random_joint_problem(seed), 3, seed), limits(8))
        first = solver.solve(solver.reduce())
        if solver.charged is None or not np.isfinite(first.bound):
            continue
        reduced = solver.reduce()
        elimination, base = reduced.elimination, reduced.elimination.constant + reduced.offset
        nodes, core = elimination.core_problem()
        classes = find_classes(core, solver.limits.rounds[0])
        again = Ascent(lift(core, classes), (solver.charged.on(elimination, nodes, core),))
        assert again.bound + base >= first.bound - ROUNDING * abs(first.bound)
        begun += 1
    assert begun > 10


def test_an_ascent_that_ended_after_its_first_passes_goes_on_for_the_proof(monkeypatch):
    """At new prices of memory a few passes are made from the old ones; where a proof is asked for, more are made."""
    monkeypatch.setattr(wide, "_PROGRESS", 1e3)  # any leg is the last
    monkeypatch.setattr(Wide, "finish", lambda self: None)
    raised = count = 0
    for seed in range(60):
        problem, budget, free, *_ = case(seed)
        solver = Solver(layered(problem, 2, seed), limits(8))
        solver.solve(solver.reduce())
        if solver.charged is None or not budget or free <= 0 or free == np.inf:
            continue
        solved = solver.solve(solver.reduce({0: free / budget}, budget))
        count += solved.left is not None and not solved.left.wide.is_done
        raised += solver.tighten(solved).bound > solved.bound + 1e-6 * abs(solved.bound)
    assert raised > 0.3 * count > 3, (raised, count)


@pytest.mark.parametrize("with_budget", [False, True])
def test_a_search_ends_at_its_cutoff_and_not_before(with_budget):
    """Below the bound it ends without an answer, in fewer solves and passes; above the cost it changes nothing."""
    ended = shorter = 0
    for seed in range(24):
        problem, budget, free, least, _ = case(seed)
        budget, truth = (budget, least) if with_budget else (None, free)
        if truth == np.inf or truth <= 0:
            continue
        whole, work = counted(problem, budget, np.inf)
        if isinstance(whole, Answer):
            again, same = counted(problem, budget, whole.cost * 1.01)
            assert (again.cost, again.bound, same) == (whole.cost, whole.bound, work), seed
        cutoff = truth * 0.9
        outcome, less = counted(problem, budget, cutoff)
        assert less <= work, seed
        assert outcome.bound <= truth * (1 + ROUNDING), seed
        if outcome.bound >= cutoff:
            assert isinstance(outcome, Unsolved), seed
            ended += 1
            shorter += less < work
    assert ended > 10, ended
    assert shorter > 5, shorter


def counted(problem, budget, cutoff):
    """What a search with a cut-off says, and the solves and the passes of ascents that it takes."""
    search, passes = Search(problem, limits(8, exact_below_states=0, cutoff=cutoff)), []
    with pytest.MonkeyPatch.context() as patched:
        one = Passes.run
        patched.setattr(Passes, "run", lambda self, most: (passes.append(None), one(self, most))[1])
        outcome = search.run(budget)
    return outcome, (search.statistics.solves, len(passes))
