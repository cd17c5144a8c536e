"""What a pipeline keeps of several micro-batches at a time, as part of a choice problem of one rank.

The problem of a rank's mesh sees the whole step: all stages, and one micro-batch at a time. In a pipeline of d stages
with 1F1B the first stage holds min(m, d) micro-batches of a d-th of the model, beside a d-th of what stays throughout.
So, d times over: what stays, and min(m, d) times what a micro-batch keeps for its backward pass, have the memory of d
ranks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rhino.ir.arrays import Floats
from rhino.ir.graph.graph import Graph, Loop
from rhino.ir.graph.spec import num_parts
from rhino.strategies.choice.choice import Choice
from rhino.strategies.memory.op_order import schedule_of
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.solver.problem import Problem, Residents
from rhino.strategies.structure.training_phases import parts_of


def several_in_flight(choice: Choice, loop: Loop, count: int) -> Problem:
    """Returns `choice`'s problem with a micro-batch's activation stash counted `count` times while the loop runs.

    The stash is what a micro-batch keeps where its backward pass begins. Its values are chosen by their whole sizes,
    for nothing is sharded yet.
    """
    problem, graph = choice.problem, choice.graph
    if count <= 1:
        return problem
    begin, end = _times(graph, loop)
    copies: list[int] = graph.copies().tolist()
    node_of = {(node.kind, node.number): number for number, node in enumerate(choice.nodes)}
    tables, number_of = list(problem.tables), dict[tuple[int, int, int, int], int]()
    added: list[tuple[int, int]] = []
    for value in _stashed_values(graph, loop):
        op, kind = int(graph.value_op[value]), graph.type_of(value)
        node = node_of.get(("value", value))
        result = 0 if node is not None else value - graph.results(op).start
        node = node_of.get(("op", op)) if node is None else node
        if node is None:
            continue  # It is free: who reads it makes it for itself.
        states = choice.nodes[node].states
        key = (id(states), result, int(graph.value_type[value]), copies[value])
        if key not in number_of:
            number_of[key] = len(tables)
            parts = np.array(
                [num_parts(state.result_specs[result], choice.model.sizes) for state in states], dtype=np.float64
            )
            tables.append((count - 1) * copies[value] * kind.num_bytes / parts)
        added.append((node, number_of[key]))
    owner, table = np.array(added, dtype=np.int64).reshape(-1, 2).T
    more = Residents(owner, table, np.full(len(added), begin), np.full(len(added), end))
    return replace(problem, tables=tuple(tables), node_residents=_joined(problem.node_residents, more))


def _joined(one: Residents, other: Residents) -> Residents:
    pairs = [(one.owner, other.owner), (one.table, other.table), (one.start, other.start), (one.end, other.end)]
    return Residents(*(np.concatenate(pair) for pair in pairs))


def _stashed_values(graph: Graph, loop: Loop) -> list[int]:
    """Returns the values that would be stashed if a micro-batch were two programs, which part where most is held."""
    unknown: Floats = np.zeros(graph.num_ops)
    split = SplitMicroBatch(graph, parts_of(graph, loop, unknown), graph.value_bytes() * graph.copies())
    return [value for value in split.halves.kept if graph.type_of(value).shape]


def _times(graph: Graph, loop: Loop) -> tuple[int, int]:
    """Returns the first and the last time of a loop's body."""
    times = schedule_of(graph)
    body = range(loop.op + 1, loop.end)
    return min(t for op in body if (t := times.start[op]) >= 0), max(times.stop[op] for op in body)
