"""Nodes of one problem that stand where nodes of another do, so that its ascent may begin with the prices of that.

Two forms of a step differ in a few places, and prices are good that were good there. Nodes are alike whose surroundings
are, by colour refinement of both problems at once; from these on, neighbours are alike that the same table leads to,
and then those with as many states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.solver.dual.colour_refinement import refinements
from rhino.strategies.solver.dual.dual_ascent import Stage
from rhino.strategies.solver.problem import Problem

_ROUNDS: Final = 4


def stages_of_other(problem: Problem, other: Problem, stages: Sequence[Stage]) -> list[Stage]:
    """Returns the stages of an ascent on `other` at the edges of `problem`: no prices where nothing is alike."""
    twin = alike_nodes(problem, other)
    edges = {ends: e for e, ends in enumerate(zip(other.edge_u.tolist(), other.edge_v.tolist(), strict=True))}
    num_states = problem.num_states()

    def at(stage: Stage, edge: int) -> tuple[Floats, Floats] | None:
        u, v = int(problem.edge_u[edge]), int(problem.edge_v[edge])
        ends = int(twin[u]), int(twin[v])
        found = edges.get(ends, edges.get(ends[::-1]))
        given = None if found is None else stage.prices(found)
        if given is None:
            return None
        first, second = given if ends in edges else given[::-1]
        return (first, second) if (len(first), len(second)) == (num_states[u], num_states[v]) else None

    def left(stage: Stage, node: int) -> Ints:
        return stage.left(int(twin[node])) if twin[node] >= 0 else np.arange(num_states[node])

    return [Stage(partial(at, stage), partial(left, stage)) for stage in stages]


def alike_nodes(problem: Problem, other: Problem) -> Ints:
    """Returns for each node of `problem` one of `other` in its place, -1 where there is none [nodes].

    No two have the same.
    """
    tables = {id(table): number for number, table in reversed(list(enumerate((*problem.tables, *other.tables))))}
    both = [
        _Side.of(one, np.array([tables[id(table)] for table in one.tables], dtype=np.int64)) for one in (problem, other)
    ]
    own, there = both
    count = problem.num_nodes
    joint = Problem(
        (*problem.tables, *other.tables),
        np.concatenate([own.node_table, there.node_table]),
        np.concatenate([problem.edge_u, other.edge_u + count]),
        np.concatenate([problem.edge_v, other.edge_v + count]),
        np.concatenate([own.edge_table, there.edge_table]),
    )
    colour = refinements(joint, (_ROUNDS,))[0].node
    waiting: dict[int, list[int]] = {}
    for node, number in enumerate(colour[count:].tolist()):
        waiting.setdefault(number, []).append(node)
    twin = np.full(count, -1, dtype=np.int64)
    taken = np.zeros(other.num_nodes, dtype=bool)
    found = []
    for node, number in enumerate(colour[:count].tolist()):
        if waiting.get(number):
            twin[node] = waiting[number].pop(0)
            taken[twin[node]] = True
            found.append(node)
    sizes = problem.num_states(), other.num_states()
    for node in found:  # grows while it is walked
        for is_exact in (True, False):
            for table, near in own.around[node]:
                if twin[near] >= 0:
                    continue
                for candidate, at in there.around[int(twin[node])]:
                    is_alike = candidate == table or not is_exact
                    if not taken[at] and is_alike and sizes[0][near] == sizes[1][at]:
                        twin[near], taken[at] = at, True
                        found.append(near)
                        break
    return twin


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """One of two problems with tables that both number alike.

    `around` has for each node the table, as it is seen from there, and the other end of each edge.
    """

    node_table: Ints
    edge_table: Ints
    around: list[list[tuple[int, int]]]

    @classmethod
    def of(cls, problem: Problem, numbers: Ints) -> _Side:
        around: list[list[tuple[int, int]]] = [[] for _ in range(problem.num_nodes)]
        edge_table = numbers[problem.edge_table]
        for table, u, v in zip(edge_table.tolist(), problem.edge_u.tolist(), problem.edge_v.tolist(), strict=True):
            around[u].append((2 * table, v))
            around[v].append((2 * table + 1, u))
        return cls(numbers[problem.node_table], edge_table, around)
