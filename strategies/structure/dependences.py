"""Who needs whose result: the one relation behind critical paths, cones and segments.

Left out is what ties no two decisions together, as it makes no edge of the choice problem either
(strategies/sharding/choice_problem.py): free ops, scalars, and the ops that begin and end a loop. What a loop carries
is, inside, what it started with and, behind it, what the body returned; so a reader is led to the op that made the
value, through any number of loops, and program order stays a topological order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import WHILE, YIELD, Graph, Loop


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """The reads that count.

    Shapes: `counts` [ops] says which ops take part. Read number `e` is `reader[e]` taking `value[e]`, made by op
    `producer[e]` (-1: an argument), as its operand number `operand[e]`; reads are in order of their readers, those of
    op `o` are `start[o] .. start[o + 1] - 1`.
    """

    counts: NDArray[np.bool_]
    start: Ints
    reader: Ints
    operand: Ints
    value: Ints
    producer: Ints


def flow_of(graph: Graph) -> Flow:
    """Returns the reads of `graph` that count."""
    counts = np.array([not cls.free and cls.name not in (WHILE, YIELD) for cls in graph.classes], dtype=bool)[
        graph.op_class
    ]
    reader, value = values_read(graph)
    operand = np.arange(len(reader)) - graph.use_start[reader]
    producer = graph.value_op[value]
    ranked = np.array([bool(kind.shape) for kind in graph.types], dtype=bool)[graph.value_type[value]]
    kept = counts[reader] & ranked & ((producer < 0) | counts[producer])
    start = np.searchsorted(reader[kept], np.arange(graph.num_ops + 1))
    return Flow(counts, start, reader[kept], operand[kept], value[kept], producer[kept])


def values_read(graph: Graph) -> tuple[Ints, Ints]:
    """Returns the reader of every use, and the value that is read there once loops are seen through [uses]."""
    reader, value = np.repeat(np.arange(graph.num_ops), np.diff(graph.use_start)), graph.uses.copy()
    loops = {loop.op: loop for loop in graph.loops}
    carried = np.isin(graph.value_op[value], np.array(sorted(loops), dtype=np.int64))
    for use in np.flatnonzero(carried).tolist():
        value[use] = _seen_through(graph, loops, int(value[use]), int(reader[use]))
    return reader, value


def _seen_through(graph: Graph, loops: dict[int, Loop], value: int, reader: int) -> int:
    while (loop := loops.get(int(graph.value_op[value]))) is not None:
        offset = value - int(graph.result_start[loop.op])
        reader = loop.op if loop.op < reader <= loop.end else loop.end
        value = int(graph.operands(reader)[offset])
    return value
