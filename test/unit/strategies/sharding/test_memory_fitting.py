"""Budgets met by the peaks of programs, where rows of the search are something else."""

from dataclasses import replace

import numpy as np
import pytest

from rhino.strategies.sharding.memory_fitting import fit
from rhino.strategies.solver.answer import Answer, Infeasible, Unsolved
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Limits


class Rows:
    """A search whose answers under limits of rows are known: the first whose rows stay within."""

    problem = Problem((np.zeros(5),), np.zeros(1, dtype=np.int64), *(np.zeros(0, dtype=np.int64),) * 3)
    limits, columns = Limits(), ()

    def __init__(self, *answers):
        self.answers, self.asked = answers, []

    def smallest(self, count):
        return []

    def within(self, limit, free):
        self.asked.append(limit)
        return next((one for one in self.answers if one.peak_bytes <= limit), Infeasible(self.answers[-1].peak_bytes))


def answer(number, cost, rows):
    return Answer(np.array([number]), cost, cost, rows, "")


FREE, SECOND, THIRD = answer(0, 1.0, 200.0), answer(1, 2.0, 110.0), answer(2, 3.0, 80.0)
PEAKS = [100.0, 72.0, 58.0]


@pytest.mark.parametrize(
    ("budget", "chosen", "limits"),
    [
        (None, 0, []),
        (100, 0, []),
        (72, 1, [144]),
        (58, 2, [116, 110 * 58 / 72]),  # what stays within the first limit takes too much
    ],
)
def test_rows_are_corrected_by_the_peak_of_the_program(budget, chosen, limits):
    search = Rows(SECOND, THIRD)
    found = fit(search, budget, FREE, lambda states: PEAKS[int(states[0])])
    assert (int(found.states[0]), found.peak_bytes) == (chosen, PEAKS[chosen])
    assert search.asked == pytest.approx(limits)


@pytest.mark.parametrize(
    ("answers", "budget", "limits"),
    [
        # a little less is not enough
        (
            [(118.0, 62.0), (113.0, 61.5), (90.0, 60.0)],
            60,
            [120, 118 * 60 / 62, 113 * (60 / 61.5) ** 2],
        ),
        # and much less is too little: 80 are needed
        (
            [(110.0, 90.0), (80.0, 60.0)],
            60,
            [120, 110 * 60 / 90, (80 * 110) ** 0.5],
        ),
    ],
)
def test_the_limit_of_rows_is_lowered_ever_more_and_raised_again_where_nothing_fits(answers, budget, limits):
    search = Rows(*(answer(number, 2.0, rows) for number, (rows, _) in enumerate(answers, 1)))
    peaks = [100.0, *(peak for _, peak in answers)]
    found = fit(search, budget, FREE, lambda states: peaks[int(states[0])])
    assert found.peak_bytes == 60.0
    assert search.asked == pytest.approx(limits)


def test_the_limit_of_rows_is_raised_where_much_of_the_budget_is_left():
    """Of 60 the first choice takes 40: one of more rows takes too much, one between these fits and is faster."""
    peaks = [100.0, 62.0, 60.0, 40.0]
    search = Rows(*(answer(number, float(number), rows) for number, rows in enumerate((130.0, 122.0, 90.0), 1)))
    found = fit(search, 60, FREE, lambda states: peaks[int(states[0])])
    assert (found.cost, found.peak_bytes) == (2.0, 60.0)
    assert search.asked == pytest.approx([120, 120 * 1.5**0.5, 130 * 60 / 62])


def test_a_lower_limit_is_tried_where_steps_are_spent():
    search, asked = Rows(SECOND), []
    search.within = lambda limit, free: (
        asked.append(limit) or (Rows.within(search, limit, free) if limit < 150 else Unsolved(1.0))
    )
    found = fit(search, 75, FREE, lambda states: [100.0, 75.0][int(states[0])])
    assert (found.cost, asked) == (2.0, pytest.approx([150, 150 / 1.125]))


def test_no_lower_limit_is_tried_where_what_stays_within_one_is_too_slow():
    search, asked = Rows(SECOND), []
    search.within = lambda limit, free: asked.append(limit) or Unsolved(1.5)
    search.limits = Limits(cutoff=1.5)
    assert fit(search, 75, FREE, lambda states: PEAKS[int(states[0])]) == Unsolved(1.5)
    assert asked == pytest.approx([150, 150 * 1.125])


def test_no_limit_is_tried_under_which_the_choice_that_does_not_fit_is_found_again():
    """With a budget just under what the best choice takes, the first limit is close to that choice's rows."""
    nothing, asked = Rows(SECOND), []
    nothing.within = lambda limit, free: asked.append(limit) or Infeasible(None)
    assert fit(nothing, 95, FREE, lambda states: PEAKS[int(states[0])]) == Infeasible(None)
    assert asked == pytest.approx([200 * 0.95**0.5**n for n in range(5)])  # a half, a quarter, ... of what is left


def test_a_refusal_is_in_terms_of_the_budget():
    """Rows may take twice the budget; 80 of theirs are 40 of it, more than the limit widened by an eighth."""
    search = Rows(SECOND, THIRD)
    found = fit(search, 30, FREE, lambda states: PEAKS[int(states[0])])
    assert (found, search.asked) == (Infeasible(40.0, 100.0), [60]), (
        "of programs, that of the best choice alone is known"
    )
    assert fit(search, 30, Unsolved(1.0), len) == Unsolved(1.0)


def test_the_least_that_rows_need_is_tried_once_where_a_wider_limit_took_too_much():
    """Rows may take 72 of a budget of 36, and need 80.

    What stays within 81 takes 58, and what stays within a little more than 80 is no less.
    """
    search = Rows(SECOND, answer(2, 2.5, 80.7), THIRD)
    found = fit(search, 36, FREE, lambda states: [100.0, 72.0, 60.0, 58.0][int(states[0])])
    assert (found, search.asked) == (Infeasible(40.0, 60.0), pytest.approx([72, 81, 80.35], rel=1e-4))


def test_what_is_left_of_the_budget_is_tried_where_much_is_to_be_gained():
    """58 of 60 are taken. A choice of more rows takes 59 and saves a fifth.

    Where none saves much of a large step, no other is tried.
    """
    peaks = [100.0, 59.0, 58.0]
    search = Rows(answer(1, 4.0, 121.0), answer(2, 5.0, 90.0))
    found = fit(search, 60, FREE, lambda states: peaks[int(states[0])])
    assert (found.cost, found.peak_bytes, found.method) == (4.0, 59.0, ", within 122 B of rows")
    search = Rows(
        *(replace(one, states=np.repeat(one.states, 4000)) for one in (answer(1, 1.001, 121.0), answer(2, 1.002, 90.0)))
    )
    free = replace(FREE, states=np.repeat(FREE.states, 4000))
    assert fit(search, 60, free, lambda states: peaks[int(states[0])]).cost == 1.002
    assert search.asked == [120]


def test_choices_of_least_rows_are_asked_where_no_limit_leads_to_one_that_fits():
    """Rows are 118 and 117, the peaks of their programs 62 and 50: no limit between leads to the second."""
    search = Rows(answer(1, 2.0, 118.0))
    search.within = lambda limit, free: answer(1, 2.0, 118.0) if limit >= 118 else Infeasible(117.0)
    search.smallest = lambda count: [answer(2, 3.0, 117.0), answer(1, 2.0, 118.0)][:count]
    found = fit(search, 56, FREE, lambda states: [100.0, 62.0, 50.0][int(states[0])])
    assert (found.cost, found.peak_bytes) == (3.0, 50.0)


def test_a_refusal_names_no_more_than_a_program_that_was_found():
    """Rows may take twice the budget.

    What stays within the first limit takes 62 of it, and nothing stays within less than 116 of rows.
    """
    search = Rows(answer(1, 2.0, 118.0), answer(2, 2.0, 116.0))
    refused = fit(search, 56, FREE, lambda states: [100.0, 62.0, 57.0][int(states[0])])
    assert refused == Infeasible(57.0, 57.0)
