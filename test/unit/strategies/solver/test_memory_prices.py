"""What solves at memory prices tell of other budgets."""

import numpy as np
from problems import random_problem

from rhino.strategies.solver.dual.memory_prices import KnownSolves
from rhino.strategies.solver.solver import Solved, Solver


def test_a_solve_at_prices_is_the_same_under_another_budget_but_for_what_that_is_worth():
    seen = 0
    for seed in range(30):
        problem = random_problem(seed)
        prices, known = {0: 0.5, problem.num_times - 1: 0.25}, KnownSolves()

        def solved(budget, problem=problem, prices=prices):
            solver = Solver(problem)
            return solver.solve(solver.reduce(prices, budget))

        first = solved(4.0)
        if not np.isfinite(first.value):
            continue
        known.note(prices, 4.0, first)
        found, again = known.at(prices, 7.0, np.inf), solved(7.0)
        assert np.isclose(found.value, again.value)
        assert np.isclose(found.bound, again.bound)
        assert known.at({0: 0.5}, 7.0, np.inf) is None
        seen += 1
    assert seen > 20


def test_a_solve_that_was_given_up_says_nothing_where_it_would_not_be():
    """Its bound reached the cutoff under one budget; under a larger one it does not."""
    known = KnownSolves()
    known.note({0: 1.0}, 4.0, Solved(np.zeros(1, dtype=np.int64), 9.0, 6.0))
    assert known.at({0: 1.0}, 6.0, 5.0) is None
    assert known.at({0: 1.0}, 5.0, 5.0).bound == 5.0
