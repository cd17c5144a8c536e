"""LP and MILP over the local polytope, with memory rows added where an answer does not fit.

Most problems' LP is whole, and then it is the proven optimum; branch and bound is for the rest. Memory is one row for
each time of the schedule, of which few bind: start with none, solve, add the time that is over budget the most, until
the answer fits. Leaving rows out can only lower the optimum, so every round's bound holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.answer import Answer, Infeasible, Outcome, Unsolved, fits, make_answer
from rhino.strategies.solver.lp.linear_programs import Point, solve_rows
from rhino.strategies.solver.lp.local_polytope import (
    Flat,
    Model,
    alike,
    alive,
    build_model,
    dual_bound,
    flatten,
    node_values,
)
from rhino.strategies.solver.problem import Problem, Residents

STEP_LIMIT = 2000
# How far from 0 or 1 a solver leaves a whole variable.
INTEGER_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum of the LP with memory rows at `times`, which may split a node between states.

    Shapes: `x` [nodes, most states of a node]. Units: `bound` in seconds; proven, whatever the solver's tolerances.
    `steps`: spent.
    """

    x: Floats
    bound: float
    is_integral: bool
    times: tuple[int, ...]
    steps: int


def sharers(problem: Problem, residents: Residents, x: Floats) -> Floats:
    """Returns the expected bytes of each node resident [residents] under x [nodes, most states of a node]."""
    sizes = np.zeros(len(residents))
    for table, places in alike(residents.table):
        sizes[places] = x[residents.owner[places], : len(problem.tables[table])] @ finite(problem.tables[table])
    return sizes


def edge_sharers(problem: Problem, residents: Residents, x: Floats) -> Floats:
    """Returns the expected bytes of each edge resident [residents] if both ends chose on their own.

    It is a guess, exact where x is whole.
    """
    sizes = np.zeros(len(residents))
    for table, places in alike(residents.table):
        width_u, width_v = problem.tables[table].shape
        u, v = problem.edge_u[residents.owner[places]], problem.edge_v[residents.owner[places]]
        sizes[places] = ((x[u, :width_u] @ finite(problem.tables[table])) * x[v, :width_v]).sum(axis=1)
    return sizes


def finite(table: Floats) -> Floats:
    """Returns the table with zeros for what is not legal, so that it can be weighed with probabilities."""
    return np.where(np.isfinite(table), table, 0.0)


def expected_memory(problem: Problem, x: Floats) -> Floats:
    """Returns the bytes alive at every time [times] under x [nodes, most states of a node]; exact where x is whole."""
    change = np.zeros(problem.num_times + 1)
    for residents, weigh in ((problem.node_residents, sharers), (problem.edge_residents, edge_sharers)):
        sizes = weigh(problem, residents, x)
        np.add.at(change, residents.start, sizes)
        np.subtract.at(change, residents.end + 1, sizes)
    result: Floats = problem.base_bytes + np.cumsum(change)[:-1]
    return result


def worst_time(memory: Floats, budget_bytes: float, skip: tuple[int, ...] = ()) -> int | None:
    """Returns the time that is over budget the most, the first of equals, or None if none outside `skip` is."""
    over = memory - budget_bytes
    over[list(skip)] = 0.0
    time = int(np.argmax(over)) if len(over) else 0
    return time if len(over) and over[time] > 0 else None


def does_not_fit(problem: Problem, budget: float, found: Infeasible, has_choice: bool) -> Infeasible:
    """Returns the proof with what is known of the peak: no less than the budget, if there is a legal choice at all."""
    if not has_choice:
        return Infeasible(None)
    return Infeasible(max(budget, found.peak_bytes or 0.0, float(problem.base_bytes.max(initial=0.0))))


def solve_lp(
    problem: Problem, budget_bytes: float | None = None, step_limit: int = STEP_LIMIT
) -> Relaxed | Infeasible | Unsolved:
    """Returns the LP's optimum with memory rows where they bind, a proof that no choice exists or fits, or a bound.

    Where the steps are spent or the solver gives up after some rounds: the optimum of the last round that was solved, a
    bound all the same.
    """
    flat, budget = flatten(problem), np.inf if budget_bytes is None else budget_bytes
    times: tuple[int, ...] = ()
    found: Relaxed | Unsolved = Unsolved(-np.inf)
    steps = 0
    while steps < step_limit:
        model = build_model(flat, budget, times)
        point = (
            model
            if isinstance(model, Infeasible)
            else solve_rows(model.rows, integer=False, step_limit=step_limit - steps)
        )
        match model, point:
            case Infeasible(), _:
                return does_not_fit(problem, budget, model, bool(times))
            case _, Infeasible():
                return does_not_fit(problem, budget, point, bool(times))
            case Model(), Unsolved():
                return (
                    found if isinstance(found, Relaxed) else Unsolved(dual_bound(model, np.zeros(len(model.rows.high))))
                )
            case Model(), Point():
                bound, steps = max(found.bound, dual_bound(model, point.duals)), steps + point.steps
                x = node_values(model, point)
                is_integer = bool((np.abs(x - np.round(x)) <= INTEGER_TOLERANCE).all())
                found = Relaxed(x, bound, is_integer, times, steps)
        time = worst_time(expected_memory(problem, np.round(x) if is_integer else x), budget, times)
        if time is None:
            return found
        times = (*times, time)
    return found


def neighbours(problem: Problem) -> list[list[tuple[int, Floats]]]:
    """Returns for every node its neighbours, each with the cost table.

    The table is turned to [states of the node, states of the neighbour].
    """
    found: list[list[tuple[int, Floats]]] = [[] for _ in range(problem.num_nodes)]
    for table, u, v in zip(problem.edge_table, problem.edge_u, problem.edge_v, strict=True):
        found[u].append((int(v), problem.tables[table]))
        found[v].append((int(u), problem.tables[table].T))
    return found


def round_lp(problem: Problem, x: Floats) -> Ints | None:
    """Returns a legal choice [nodes] near x [nodes, most states of a node], or None at a dead end.

    In node order, each node takes the state that is legal with the decided neighbours, leaves the least of the others'
    probability without a legal pair, has some probability itself, and costs least: exactly for decided neighbours,
    expected for the others. That order may lead into a dead end.
    """
    states = np.full(problem.num_nodes, -1, dtype=np.int64)
    for u, around in enumerate(neighbours(problem)):
        cost = problem.tables[problem.node_table[u]].copy()
        lost = np.zeros(len(cost))
        for v, table in around:
            if states[v] >= 0:
                cost += table[:, states[v]]
                continue
            weight = x[v, : table.shape[1]]
            cost += finite(table) @ weight
            lost += ~np.isfinite(table) @ weight
        if not np.isfinite(cost).any():
            return None
        unlikely = x[u, : len(cost)] <= INTEGER_TOLERANCE
        order = np.lexsort((cost, np.round(lost, 6), unlikely, ~np.isfinite(cost)))
        states[u] = order[0]
    return states


def rounded(problem: Problem, relaxed: Relaxed, budget_bytes: float | None) -> Answer | None:
    """Returns the LP's rounding as an answer, if there is one that fits."""
    if relaxed.is_integral:
        states = np.argmax(relaxed.x, axis=1).astype(np.int64)
    elif (greedy := round_lp(problem, relaxed.x)) is not None:
        states = greedy
    else:
        return None
    if not np.isfinite(problem.cost(states)) or not fits(problem, states, budget_bytes):
        return None
    return make_answer(problem, states, relaxed.bound, "LP" if relaxed.is_integral else "LP, rounded")


def cover(flat: Flat, states: Ints, time: int) -> Ints:
    """Returns the chosen states (indices into `Flat`'s) that decide what is alive at `time`: together they do not fit.

    For the choices that a solver's tolerance lets through although they break a memory row by a hair.
    """
    problem = flat.problem
    edges = problem.edge_residents.owner[alive(problem.edge_residents, [time])]
    owners = problem.node_residents.owner[alive(problem.node_residents, [time])]
    nodes = np.unique(np.concatenate([owners, problem.edge_u[edges], problem.edge_v[edges]]))
    chosen: Ints = flat.first_state[nodes] + states[nodes]
    return chosen


def solve_milp(
    problem: Problem, budget_bytes: float | None = None, step_limit: int = STEP_LIMIT, *, rounds: bool = True
) -> Outcome:
    """Returns the optimum, by the LP alone where that is whole, else by branch and bound.

    `rounds` is as in `rhino.strategies.solver.lp.linear_programs.parameters`. At the step limit: the cheaper of what
    branch and bound and rounding found, with the bound proven so far, or `Unsolved`.
    """
    if not problem.num_nodes:
        empty = np.zeros(0, dtype=np.int64)
        return (
            make_answer(problem, empty, 0.0, "LP")
            if fits(problem, empty, budget_bytes)
            else Infeasible(float(problem.base_bytes.max()))
        )
    relaxed = solve_lp(problem, budget_bytes, step_limit)
    if not isinstance(relaxed, Relaxed):
        return relaxed
    greedy = rounded(problem, relaxed, budget_bytes)
    if greedy is not None and greedy.is_optimal:
        return greedy
    exact = branch(problem, relaxed, budget_bytes, step_limit - relaxed.steps, rounds=rounds)
    if isinstance(exact, Infeasible) or greedy is None:
        return exact
    if isinstance(exact, Answer) and exact.cost <= greedy.cost:
        return exact
    return make_answer(problem, greedy.states, exact.bound, greedy.method)


def branch(
    problem: Problem, relaxed: Relaxed, budget_bytes: float | None, step_limit: int, *, rounds: bool = True
) -> Outcome:
    """Returns the MILP's optimum, or its best choice at the step limit.

    Memory rows are added to the LP's until the choice fits.
    """
    flat, budget = flatten(problem), np.inf if budget_bytes is None else budget_bytes
    covers: list[Ints] = []
    times, bound, steps = relaxed.times, relaxed.bound, 0
    while steps < step_limit:
        model = build_model(flat, budget, times, covers)
        if isinstance(model, Infeasible):
            return does_not_fit(problem, budget, model, True)
        match solve_rows(model.rows, integer=True, step_limit=step_limit - steps, rounds=rounds):
            case Infeasible() as found:
                return does_not_fit(problem, budget, found, bool(times or covers))
            case Unsolved(at_limit):
                return Unsolved(max(bound, at_limit * model.scale))
            case Point() as point:
                bound, steps = max(bound, point.bound * model.scale), steps + point.steps
                states = np.argmax(node_values(model, point), axis=1).astype(np.int64)
        if not np.isfinite(problem.cost(states)):
            return Unsolved(bound)
        time = worst_time(problem.memory(states), budget)
        if time is None:
            return make_answer(problem, states, bound, "MILP")
        if time in times:
            covers.append(cover(flat, states, time))
        else:
            times = (*times, time)
    return Unsolved(bound)
