"""Cones: ops whose strategy follows from that of one op behind them (Rhino 4.3.2, level 1).

A *cone root* is an op that reads several tensors. A cone is its root and what leads to it through ops that read one
tensor at most, up to the roots in front. So that cones do not overlap, an op is a root too if its readers are in
different cones, or if its result is read by no op, returned, or carried by a loop, or read in a loop that the op is not
in. Within a cone every op but the root then has one reader or readers that all are in the cone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import WHILE, YIELD, Graph
from rhino.strategies.structure.dependences import Flow
from rhino.strategies.structure.loop_nesting import regions

_NONE, _SEVERAL = -1, -2


@dataclass(frozen=True, slots=True, eq=False)
class Cones:
    """The cones of a program.

    Shapes: `number` [ops], in the order of their roots, -1 for an op that does not count in the flow; `root` [cones] is
    the op of each.
    """

    number: Ints
    root: Ints


def cones_of(graph: Graph, flow: Flow) -> Cones:
    """Returns the cones of `graph`, in time linear in its uses."""
    alone = _stands_alone(graph, flow).tolist()
    body, producer, start = regions(graph), flow.producer.tolist(), flow.start.tolist()
    readers = [_NONE] * graph.num_ops  # the cone that all readers seen so far are in
    cone = [_NONE] * graph.num_ops
    for op in np.flatnonzero(flow.counts)[::-1].tolist():
        cone[op] = op if alone[op] or readers[op] < 0 else readers[op]
        for source in producer[start[op] : start[op + 1]]:
            if source >= 0:
                agree = body[source] == body[op] and readers[source] in (_NONE, cone[op])
                readers[source] = cone[op] if agree else _SEVERAL
    number = np.array(cone, dtype=np.int64)
    roots, number[flow.counts] = np.unique(number[flow.counts], return_inverse=True)
    return Cones(number, roots)


def _stands_alone(graph: Graph, flow: Flow) -> NDArray[np.bool_]:
    """Returns, for each op, whether it reads several tensors, or gives one whose layout is that of another [ops]."""
    distinct = np.unique(np.stack([flow.reader, flow.value]), axis=1)
    several = np.bincount(distinct[0], minlength=graph.num_ops) > 1
    carries = np.array([cls.name in (WHILE, YIELD) for cls in graph.classes], dtype=bool)[graph.op_class]
    reader = np.repeat(np.arange(graph.num_ops), np.diff(graph.use_start))
    tied = graph.value_op[np.concatenate([graph.uses[carries[reader]], np.array(graph.returns, dtype=np.int64)])]
    several[tied[tied >= 0]] = True
    result: NDArray[np.bool_] = several
    return result
