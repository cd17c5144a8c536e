"""Every choice tried: the truth that other solvers are tested against, and the quickest for a handful of nodes."""

from __future__ import annotations

from math import prod

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.answer import Answer, make_answer
from rhino.strategies.solver.problem import Problem

CHUNK = 1 << 14
MAX_CHOICES = 1 << 22


def choice_costs(problem: Problem, choices: Ints) -> Floats:
    """Returns the cost of each choice [choices], in seconds; `choices` is [nodes, choices]."""
    costs = np.zeros(choices.shape[1])
    for table, states in zip(problem.node_table, choices, strict=True):
        costs += problem.tables[table][states]
    for table, u, v in zip(problem.edge_table, problem.edge_u, problem.edge_v, strict=True):
        costs += problem.tables[table][choices[u], choices[v]]
    return costs


def choice_peaks(problem: Problem, choices: Ints) -> Floats:
    """Returns the memory peak of each choice [choices], in bytes; `choices` is [nodes, choices]."""
    used = np.repeat(problem.base_bytes[:, None], choices.shape[1], axis=1)
    nodes, edges = problem.node_residents, problem.edge_residents
    for u, table, start, end in zip(nodes.owner, nodes.table, nodes.start, nodes.end, strict=True):
        used[start : end + 1] += problem.tables[table][choices[u]]
    for e, table, start, end in zip(edges.owner, edges.table, edges.start, edges.end, strict=True):
        used[start : end + 1] += problem.tables[table][choices[problem.edge_u[e]], choices[problem.edge_v[e]]]
    peaks: Floats = used.max(axis=0, initial=0.0)
    return peaks


def brute_force(problem: Problem, budget_bytes: float | None = None) -> Answer | None:
    """Returns the cheapest legal choice that fits the budget, or None if there is none.

    Of equal costs it is the smallest choice, node by node.

    Raises:
        ValueError: more than `MAX_CHOICES` choices.
    """
    sizes = tuple(int(n) for n in problem.num_states())
    count = prod(sizes)
    if count > MAX_CHOICES:
        raise ValueError(f"{count} choices are too many to try: the limit is {MAX_CHOICES}")
    best_cost, best = np.inf, None
    for first in range(0, count, CHUNK):
        numbers = np.arange(first, min(first + CHUNK, count))
        # The leading 1 makes room for a problem without nodes.
        choices = np.array(np.unravel_index(numbers, (1, *sizes)), dtype=np.int64)[1:]
        costs = choice_costs(problem, choices)
        if budget_bytes is not None:
            costs[choice_peaks(problem, choices) > budget_bytes] = np.inf
        place = int(np.argmin(costs))
        if costs[place] < best_cost:
            best_cost, best = costs[place], choices[:, place].copy()
    return None if best is None else make_answer(problem, best, problem.cost(best), "every choice tried")
