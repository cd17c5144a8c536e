"""What a pipeline keeps of several micro-batches at a time, as part of a choice problem of one rank.

The problem of a rank's mesh sees the whole step: all stages, and one micro-batch at a time. In a pipeline of d stages with 1F1B the first
stage holds min(m, d) micro-batches of a d-th of the model, beside a d-th of what stays throughout. So, d times over: what stays, and
min(m, d) times what a micro-batch keeps for its way back, have the memory of d ranks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rhino.ir.graph import Graph, Loop, materialized
from rhino.strategies.problem import Floats, Problem, Residents
from rhino.strategies.schedule import schedule


def several_in_flight(problem: Problem, graph: Graph, loop: Loop, count: int) -> Problem:
    """Returns `problem` with what the body of `loop` holds where it turns round counted `count` times while the loop runs."""
    if count <= 1:
        return problem
    begin, end = _times(graph, loop)
    turn = _turn(problem, begin, end)
    tables, number_of = list(problem.tables), dict[int, int]()

    def more(residents: Residents) -> Residents:
        saved = (residents.start > begin) & (residents.start <= turn) & (residents.end > turn) & (residents.end <= end)
        for table in residents.table[saved].tolist():
            if table not in number_of:
                number_of[table] = len(tables)
                tables.append(problem.tables[table] * (count - 1))
        added = np.array([number_of[table] for table in residents.table[saved].tolist()], dtype=np.int64)
        return Residents(
            np.concatenate([residents.owner, residents.owner[saved]]),
            np.concatenate([residents.table, added]),
            np.concatenate([residents.start, np.full(len(added), begin)]),
            np.concatenate([residents.end, np.full(len(added), end)]),
        )

    nodes, edges = more(problem.node_residents), more(problem.edge_residents)
    return replace(problem, tables=tuple(tables), node_residents=nodes, edge_residents=edges)


def _times(graph: Graph, loop: Loop) -> tuple[int, int]:
    """Returns the first and the last time of a loop's body."""
    times = schedule(graph, materialized(graph).tolist())
    body = range(loop.op + 1, loop.end)
    return min(t for op in body if (t := times.start[op]) >= 0), max(times.stop[op] for op in body)


def _turn(problem: Problem, begin: int, end: int) -> int:
    """Returns the time at which the body holds most, each tensor at the most that it can take."""
    change: Floats = np.zeros(problem.num_times + 1)
    residents = problem.node_residents
    inside = (residents.start > begin) & (residents.end <= end)
    most = np.array([problem.tables[table].max() for table in residents.table[inside].tolist()])
    np.add.at(change, residents.start[inside], most)
    np.add.at(change, residents.end[inside] + 1, -most)
    return int(np.argmax(np.cumsum(change)))
