"""What may lie in a memory nearer to the units, VMEM of a TPU, instead of the device's main memory, and when.

XLA's memory space assignment leaves a value there from one use to the next where that is not too long: no longer than
it takes to fill the near memory so many times (`CostAnalysisPrefetchIntervalPicker`). Otherwise the value is brought to
main memory after the one use, and back before the other, and lies in main memory for as long. So what the forward pass
keeps for the backward pass is not there, nor is what is larger than that memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats
from rhino.ir.graph.graph import Graph
from rhino.strategies.cost.cost_model import PRODUCTS, CostModel
from rhino.strategies.memory.op_order import OpOrder

_MOST_FILLS: Final = 8
"""How many times the near memory is filled meanwhile, at most (`max_overlap_to_mem_size_async_copy_ratio`).

8 is what a public list of libtpu's defaults gives for all chips but the oldest; with 4 and 16 the median of predicted /
compiled peaks is 0.01 more and 0.03 less (63 plans for v5e, 2026-11-26).
"""

_MOST_TRIPS: Final = 5
"""XLA takes all loops to go round so often there (`while_execution_count`)."""

Span = tuple[int, int, int]
"""Bytes, and the first and last time at which they are alive."""


def near_spans(lives: Iterable[tuple[Span, Sequence[int] | None]], clock: Floats, model: CostModel) -> Iterator[Span]:
    """Yields when what is alive may lie in near memory.

    `lives` have the times at which it is read meanwhile, in order; None for what has to lie in main memory.

    Shapes: `clock` [times] are the seconds at which times begin.
    """
    most_bytes = model.device.near_memory_bytes or 0
    most_s = _MOST_FILLS * most_bytes / model.device.memory_bytes_per_s
    for (size, start, end), uses in lives:
        if uses is None or size > most_bytes:
            continue
        times = [start, *(time for time in uses if start < time < end), end]
        long = [(before, after) for before, after in pairwise(times) if clock[after] - clock[before] > most_s]
        if long:
            yield size, start, long[0][0]
            yield size, long[-1][1], end
        else:
            yield size, start, end


def seconds_until(graph: Graph, order: OpOrder, num_bytes: list[int], model: CostModel) -> Floats:
    """Returns when each time begins, in seconds [times]; what a loop takes to go round again is added at its end.

    A kernel takes as long as its product, or as its operands and results in memory of `num_bytes` [values].
    """
    products, moved = np.zeros(order.num_times + 1), np.zeros(order.num_times + 1)
    for op in range(graph.num_ops):
        cls, at = graph.cls(op), order.start[op]
        if cls.name in PRODUCTS:
            products[at] += model.compute_s(cls, 0.0, 1)
        written = sum(num_bytes[value] for value in graph.results(op)) if order.reads[op] else 0
        moved[at] += written + sum(num_bytes[value] for value in order.reads[op])
    seconds = np.maximum(products, moved / model.device.memory_bytes_per_s)
    for loop in sorted(graph.loops, key=lambda loop: -loop.op):  # those inside others first
        start, stop = order.start[loop.op], order.start[loop.end]
        seconds[stop] += (min(loop.trips or 1, _MOST_TRIPS) - 1) * seconds[start:stop].sum()
    return np.cumsum(seconds) - seconds
