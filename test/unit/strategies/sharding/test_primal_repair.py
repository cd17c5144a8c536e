"""The last stage of a search under a budget, by programs: what it takes over, asks for, and proves."""

import numpy as np
import pytest
from brute_force import choice_costs, choice_peaks
from problems import random_budget, random_problem

from rhino.strategies.sharding.memory_fitting import fit
from rhino.strategies.sharding.primal_repair import Programs, TakingOver
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.problem import Problem, Residents
from rhino.strategies.solver.search import Limits, Search


def ints(*values):
    return np.array(values, dtype=np.int64)


def apart(count, slow=1.0):
    """So many nodes without edges, each fast (state 0) with 10 bytes of rows, or slow with 9."""
    tables = (np.array([0.0, slow]), np.array([10.0, 9.0]))
    at, zeros = np.arange(count), np.zeros(count, dtype=np.int64)
    return Problem(tables, zeros, ints(), ints(), ints(), 1, np.zeros(1), Residents(at, zeros + 1, zeros, zeros))


def in_a_row(count):
    """So many nodes in a row, each fast (state 0) or slow; a cut between two of different kinds costs two."""
    tables = (np.array([0.0, 1.0]), np.array([[0.0, 2.0], [2.0, 0.0]]))
    at = np.arange(count - 1)
    return Problem(tables, np.zeros(count, dtype=np.int64), at, at + 1, np.ones(count - 1, dtype=np.int64))


def taking(problem, peak_of, budget, choices, known, left=48):
    """A search among choices; of those that are known the programs have been told."""
    programs = Programs(problem, peak_of, left)
    for one in known:
        programs.tell(one)
    return TakingOver(programs, budget, choices)


def test_all_is_taken_over_but_the_part_that_is_too_much():
    """Of 32 parts one is too much: it is found with as many programs as 32 has binary digits, twice."""
    problem, fast, slow = apart(32), np.zeros(32, dtype=np.int64), np.ones(32, dtype=np.int64)
    search = taking(problem, lambda states: 20.0 if states[21] == 0 else 10.0, 10.0, [fast], [slow])
    found = search.bettered(slow)
    assert np.flatnonzero(found).tolist() == [21]
    assert len(search.programs.known) <= 1 + 2 * 5 + 1


def test_a_part_that_is_too_much_as_a_whole_is_taken_over_up_to_a_seam():
    problem, fast, slow = in_a_row(30), np.zeros(30, dtype=np.int64), np.ones(30, dtype=np.int64)
    found = taking(problem, lambda states: float((states == 0).sum()), 7.0, [fast], [slow]).bettered(slow)
    assert (problem.cost(found), int((found == 0).sum())) == (25.0, 7)


def test_of_two_choices_of_which_neither_fits_a_mixture_does():
    """One is too much at one time, the other at another."""
    problem = apart(8)
    first, second = ints(0, 0, 1, 1, 1, 1, 1, 1), ints(1, 1, 1, 1, 1, 1, 0, 0)

    def peak_of(states):
        return max(float((states[:2] == 0).sum()), float((states[-2:] == 0).sum()))

    found = taking(problem, peak_of, 1.0, [first, second], [first, second]).lowered()
    assert peak_of(found) <= 1.0


def test_choices_that_look_too_large_are_not_asked():
    """The cheapest is known to be too large, and so is, by its rows, what is like it.

    Another, of as many rows, fits.
    """
    problem = apart(8)
    free, alike, other, slow = ints(*[0] * 8), ints(*[0] * 7, 1), ints(0, 1, 1, 1, 1, 1, 1, 1), ints(*[1] * 8)
    search = taking(problem, lambda states: 9.5 if states.sum() > 5 else 20.0, 10.0, [free, alike, other], [free, slow])
    assert np.array_equal(search.cheapest_known(slow), other)
    assert alike.tobytes() not in search.programs.known


def test_no_more_programs_are_asked_for_than_there_are_steps_and_none_where_nothing_is_to_be_gained():
    problem, fast, slow = apart(32), np.zeros(32, dtype=np.int64), np.ones(32, dtype=np.int64)
    for left in (0, 3):
        search = taking(problem, lambda states: 20.0 if states[21] == 0 else 10.0, 10.0, [fast], [slow], left)
        search.bettered(slow)
        assert len(search.programs.known) == 1 + left
    content = TakingOver(Programs(problem, lambda states: 0.0, 48), 10.0, [fast], enough_s=32.0)
    assert content.bettered(slow) is slow


def test_a_budget_is_met_by_the_one_part_that_rows_do_not_show():
    """Rows count 10 or 9 bytes a part.

    The program takes 10 less where the last part is slow, whatever the others are: that part will do.
    """
    search = Search(apart(12), Limits(exact_below_states=0))
    found = fit(search, 105.0, search.free(105.0), lambda states: 110.0 - 10.0 * states[-1] + (states == 0).sum() / 10)
    assert isinstance(found, Answer)
    assert np.flatnonzero(found.states).tolist() == [11]
    assert "by programs" in found.method


@pytest.mark.parametrize("seed", range(40))
def test_what_is_found_by_programs_fits_and_its_bound_is_that_of_all_that_has_no_more_rows(seed):
    """Of random problems with programs that take anything between half and all of what rows count."""
    problem, rng = random_problem(seed), np.random.default_rng(seed)
    weights = rng.uniform(0.5, 1.0, int(problem.num_states().max()))
    budget = random_budget(problem, seed) * 0.75
    search = Search(problem, Limits(exact_below_states=0))

    def peak_of(states):
        return float(problem.memory(states).max() * weights[states].mean())

    found = fit(search, budget, search.free(budget), peak_of)
    if isinstance(found, Answer):
        assert found.cost == problem.cost(found.states) < np.inf
        assert found.peak_bytes == peak_of(found.states) <= budget
        rows = problem.memory(found.states).max()
        choices = np.indices(problem.num_states()).reshape(problem.num_nodes, -1)
        assert found.bound <= choice_costs(problem, choices)[choice_peaks(problem, choices) <= rows].min() * (1 + 1e-7)
