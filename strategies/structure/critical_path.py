"""The critical path: when each op can run and must run, and the critical nodes (Rhino 4.3.1).

An op's earliest time is how long the longest way to it takes, its latest time the one that delays nothing; moving data
takes no time. The *backbone* is where both agree. *Critical nodes* are the compute-intensive ops on the backbone: those
that run on matrix units.

In Rhino every op takes one unit of time. A normalisation beside two small matrix products is then the longer way, and
the products are no critical nodes. Where they have to be found, only products take time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import Graph
from rhino.strategies.cost.cost_model import PRODUCTS
from rhino.strategies.structure.dependences import Flow


@dataclass(frozen=True, slots=True, eq=False)
class CriticalPath:
    """When ops start, in units of the ops that take time, and which are critical nodes.

    Shapes: `earliest`, `latest` [ops], -1 for an op that does not count in the flow; `critical` [ops].
    """

    earliest: Ints
    latest: Ints
    critical: NDArray[np.bool_]
    length: int


def critical_path(graph: Graph, flow: Flow, only_products: bool = False) -> CriticalPath:
    """Returns the times of every op of `graph`, in time linear in its uses.

    Each op takes one unit, or else each product alone.
    """
    product = flow.counts & np.array([cls.name in PRODUCTS for cls in graph.classes], dtype=bool)[graph.op_class]
    duration = (product if only_products else flow.counts).astype(np.int64)
    earliest = _earliest(flow, duration)
    length = int((earliest + duration).max(initial=0))
    latest = _latest(flow, duration, length)
    early, late = (np.where(flow.counts, times, -1) for times in (earliest, latest))
    return CriticalPath(early, late, product & (early == late), length)


def _earliest(flow: Flow, duration: Ints) -> Ints:
    start, takes = [0] * len(duration), duration.tolist()
    for reader, producer in zip(flow.reader.tolist(), flow.producer.tolist(), strict=True):
        if producer >= 0:
            start[reader] = max(start[reader], start[producer] + takes[producer])
    return np.array(start, dtype=np.int64)


def _latest(flow: Flow, duration: Ints, length: int) -> Ints:
    start, takes = (length - duration).tolist(), duration.tolist()
    for reader, producer in zip(flow.reader[::-1].tolist(), flow.producer[::-1].tolist(), strict=True):
        if producer >= 0:
            start[producer] = min(start[producer], start[reader] - takes[producer])
    return np.array(start, dtype=np.int64)
