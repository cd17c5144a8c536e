"""A graph written anew: its ops in another order, several of them as one, or of other classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import Graph, OpClass, Repeats

Groups = Sequence[tuple[int, ...]]
"""Ops by what is one op, in order; each op is in one group."""


def regrouped(
    graph: Graph, groups: Groups, classes: Sequence[OpClass], op_class: Sequence[int], operands: Sequence[Sequence[int]]
) -> Graph:
    """Returns `graph` with each of `groups` as one op, with the operands and results of its ops one after the other.

    Shapes: `op_class` [groups] are numbers of `classes`; `operands` [ops] those of each op of `graph`. Where ops stand
    for several layers, each is a group of its own.
    """
    found = [sum(len(graph.results(op)) for op in group) for group in groups]
    read = [[value for op in group for value in operands[op]] for group in groups]
    made = [*range(len(graph.arguments)), *chain.from_iterable(graph.results(op) for op in chain.from_iterable(groups))]
    new, place = (
        np.empty(len(made), dtype=np.int64),
        {op: number for number, group in enumerate(groups) for op in group},
    )
    new[made] = np.arange(len(made))
    return replace(
        graph,
        classes=tuple(classes),
        op_class=_ints(op_class),
        use_start=_ints(accumulate(map(len, read), initial=0)),
        uses=new[[*chain.from_iterable(read)]],
        result_start=_ints(accumulate(found, initial=len(graph.arguments))),
        value_type=graph.value_type[made],
        value_op=np.concatenate([graph.value_op[: len(graph.arguments)], np.repeat(np.arange(len(groups)), found)]),
        returns=tuple(new[list(graph.returns)].tolist()),
        loops=tuple([replace(loop, op=place[loop.op], end=place[loop.end]) for loop in graph.loops]),
        zeros=frozenset(new[sorted(graph.zeros)].tolist()),
        repeats=_repeats(graph, [group[0] for group in groups], made),
    )


def _repeats(graph: Graph, order: Sequence[int], values: Sequence[int]) -> Repeats | None:
    """Returns for how many alike ones ops and values stand, in another order."""
    repeats = graph.repeats
    return None if repeats is None else Repeats(repeats.times[order], repeats.copies[values], repeats.run[order])


def _ints(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, dtype=np.int64)
