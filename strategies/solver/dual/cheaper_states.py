"""What may still be chosen where a choice is known: no state that makes every choice as dear as that, or dearer.

At any prices of memory the least value with a node held at a state is a bound on all choices with that state that fit.
It is exact at those prices (`rhino.strategies.solver.conditional_optimum`), so more goes than by reduced costs of a
linear program: of two-layer steps with moments in host memory about half of all states, where reduced costs rule out
one in thirty (2026-11-27).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.conditional_optimum import HeldChoices
from rhino.strategies.solver.elimination.by_node import TooWideError
from rhino.strategies.solver.problem import Problem

_MOST_ENTRIES: Final = 1 << 14
"""Wider tables are not made: each state is a question that makes some of them again."""


def with_cheaper_states(problem: Problem, priced: Problem, near: Ints, most: float) -> Problem:
    """Returns a problem in which states of nodes are not legal with which `priced` takes `most` or more.

    `priced` is the problem with memory in its costs, `near` a choice [nodes]. Where its tables are too wide all stays.
    """
    try:
        held = HeldChoices(priced, near, _MOST_ENTRIES)
    except TooWideError:
        return problem
    tables, places = list(problem.tables), dict[tuple[int, bytes], int]()
    node_table = problem.node_table.copy()
    for node, number in enumerate(problem.node_table.tolist()):
        costs = problem.tables[number]
        value = np.array([held.hold([node], state)[0] for state in range(len(costs))])
        kept: Floats = np.where(value < most, costs, np.inf)
        key = number, kept.tobytes()
        if key not in places:
            places[key] = len(tables)
            tables.append(kept)
        node_table[node] = places[key]
    return replace(problem, tables=tuple(tables), node_table=node_table)
