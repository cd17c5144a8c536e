"""The least cost of a choice problem, by plain variable elimination.

Under a budget, choices are gone through in order of their cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf, prod

import numpy as np
from numpy.typing import NDArray
from oracle_model import Problem

Floats = NDArray[np.float64]

_MOST_ENTRIES = 50_000_000
_MOST_STEPS = 100_000


class TooLargeError(Exception):
    """A table, or the list of choices, would be too large for a check."""


@dataclass(frozen=True)
class Removed:
    """A node that was removed, the nodes it was joined to, and the cost of its states and theirs.

    The cost contains all that was removed before it.
    """

    node: int
    others: tuple[int, ...]
    table: Floats


@dataclass(frozen=True)
class Kept:
    """Bytes of one or two nodes' states, at times `first` to `last`."""

    nodes: tuple[int, ...]
    table: Floats
    first: int
    last: int


def eliminate(problem: Problem) -> tuple[float, list[Removed]]:
    """Returns the least cost of a choice, and the nodes in the order of their removal.

    The node that makes the smallest table is removed first.
    """
    sizes = [len(node.states) for node in problem.nodes]
    factors: list[dict[tuple[int, ...], Floats]] = [
        {(number,): node.seconds} for number, node in enumerate(problem.nodes)
    ]
    for pair, costs in problem.edges.items():
        for node in pair:
            factors[node][pair] = costs
    entries = {node: prod(sizes[other] for other in _scope(node, factors[node])) for node in range(len(sizes))}
    removed, total = list[Removed](), 0.0
    while entries:
        node = min(entries, key=lambda one: (entries[one], one))
        if entries.pop(node) > _MOST_ENTRIES:
            raise TooLargeError
        scope = _scope(node, factors[node])
        table = np.zeros([sizes[other] for other in scope])
        for part, costs in factors[node].items():
            table = table + _spread(costs, part, scope)
            for other in part:
                if other != node:
                    del factors[other][part]
        removed.append(Removed(node, scope[1:], table))
        least = table.min(axis=0)
        if scope[1:]:
            for other in scope[1:]:
                factors[other][scope[1:]] = factors[other].get(scope[1:], 0.0) + least
        else:
            total += float(least)
        for other in scope[1:]:
            entries[other] = prod(sizes[one] for one in _scope(other, factors[other]))
    return total, removed


def _scope(node: int, factors: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns a node, and then those that share a factor with it."""
    return (node, *sorted({other for part in factors for other in part} - {node}))


def _spread(costs: Floats, part: Sequence[int], scope: Sequence[int]) -> Floats:
    """Returns a table with its sides where the nodes stand in `scope`."""
    order = sorted(range(len(part)), key=lambda side: scope.index(part[side]))
    shape = [1] * len(scope)
    for side in order:
        shape[scope.index(part[side])] = costs.shape[side]
    return costs.transpose(order).reshape(shape)


def least_within(problem: Problem, kept: Sequence[Kept], num_times: int, budget: float) -> float:
    """Returns the least cost of a choice that keeps no more than `budget` bytes at any time.

    It is infinite where there is none.

    Nodes are chosen in the opposite order of their removal, so that what a choice of some will cost at least is known
    exactly; the cheapest is gone on with first, and what is already over the budget is dropped.
    """
    least, removed = eliminate(problem)
    if least == inf:
        return inf
    order = [one.node for one in reversed(removed)]
    place = {node: number for number, node in enumerate(order)}
    decided: list[list[Kept]] = [[] for _ in order]
    memory = np.zeros(num_times)
    for one in kept:
        decided[max(place[node] for node in one.nodes)].append(one)
        memory[one.first : one.last + 1] += one.table.min()
    serial = count()
    heap: list[tuple[float, int, int, tuple[int, ...], Floats]] = [(least, 0, next(serial), (), memory)]
    steps = 0
    while heap:
        cost, depth, _, states, memory = heappop(heap)
        if depth == -len(order):
            return cost
        steps += 1
        if steps > _MOST_STEPS:
            raise TooLargeError
        step = removed[len(order) - 1 + depth]
        chosen = dict(zip(order, states, strict=False))
        about: tuple[slice | int, ...] = (slice(None), *[chosen[other] for other in step.others])
        costs = step.table[about]
        after = np.repeat(memory[None, :], len(costs), axis=0)
        for one in decided[-depth]:
            index = tuple(slice(None) if node == step.node else chosen[node] for node in one.nodes)
            after[:, one.first : one.last + 1] += (one.table[index] - one.table.min())[:, None]
        for state in np.flatnonzero(np.isfinite(costs) & (after.max(axis=1, initial=0.0) <= budget)).tolist():
            heappush(
                heap,
                (cost + float(costs[state] - costs.min()), depth - 1, next(serial), (*states, state), after[state]),
            )
    return inf
