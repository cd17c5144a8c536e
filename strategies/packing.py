"""Where temporaries lie: what a plan takes of a device once buffers that stand empty for a while are used for others.

The rows of the search (`rhino.strategies.memory`) add up what is alive. XLA (`BufferAssigner`) does better, once sizes are known: arguments
and results have buffers throughout, and where one holds nothing for a while, temporaries lie there. The largest temporary comes first, and
takes the smallest such buffer that has room for it as long as it lives; what finds none goes to the heap. So the peak of a plan is at most
that of its rows.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rhino.strategies.problem import Floats, Ints, Problem

Flags = NDArray[np.bool_]

_LEAST_SHARE: Final = 4096
"""For what is smaller than this part of the largest buffer no place is looked for: it would not show."""


def packed_peak(problem: Problem, states: Ints) -> float:
    """Returns the most bytes that a choice `states` [nodes] takes of a device at a time."""
    sizes, start, end = _buffers(problem, states)
    throughout = (start == 0) & (end == problem.num_times - 1)
    kept = float(problem.base_bytes.max(initial=0.0) + sizes[throughout].sum())
    housed = throughout | _housed(problem, states, np.where(throughout, np.inf, sizes), start, end)
    small = ~housed & (sizes * _LEAST_SHARE < sizes[~housed].max(initial=0.0))
    large = ~housed & ~small
    packed = kept + _sum(sizes[small], start[small], end[small]) + _heap_bytes(sizes[large], start[large], end[large])
    return min(packed, float(problem.memory(states).max(initial=0.0)))


def _sum(sizes: Floats, start: Ints, end: Ints) -> float:
    """Returns the most bytes of buffers that are there at a time."""
    change = np.zeros(int(end.max(initial=0)) + 2)
    np.add.at(change, start, sizes)
    np.subtract.at(change, end + 1, sizes)
    return float(np.cumsum(change).max())


def _heap_bytes(sizes: Floats, start: Ints, end: Ints) -> float:
    """Returns how far a heap reaches in which the buffers lie.

    The largest comes first, and takes the smallest gap that has room for it between those that are there with it
    (`GlobalDecreasingSizeBestFitHeap`).
    """
    order = np.lexsort((start, -sizes))
    sizes, start, end = sizes[order], start[order], end[order]
    low, high = np.zeros(len(sizes)), np.zeros(len(sizes))
    for number, size in enumerate(sizes.tolist()):
        beside = np.flatnonzero((start[:number] <= end[number]) & (end[:number] >= start[number]))
        beside = beside[np.argsort(low[beside], kind="stable")]
        ends = np.concatenate([[0.0], np.maximum.accumulate(high[beside])])
        gaps = np.concatenate([low[beside], [np.inf]]) - ends
        best = int(np.argmin(np.where(gaps < size, np.inf, gaps)[:-1])) if (gaps[:-1] >= size).any() else len(gaps) - 1
        low[number], high[number] = ends[best], ends[best] + size
    return float(high.max(initial=0.0))


def _buffers(problem: Problem, states: Ints) -> tuple[Floats, Ints, Ints]:
    """Returns bytes, first and last time of each buffer: residents that follow each other at the same size are one."""
    nodes, edges = problem.node_residents, problem.edge_residents
    sizes = np.concatenate(
        [problem.node_entries(nodes.table, nodes.owner, states), problem.edge_entries(edges.table, edges.owner, states, states)]
    )
    start, end = np.concatenate([nodes.start, edges.start]), np.concatenate([nodes.end, edges.end])
    some = sizes > 0
    sizes, start, end = sizes[some], start[some], end[some]
    new = np.ones(len(sizes) + 1, dtype=bool)
    new[1:-1] = (sizes[1:] != sizes[:-1]) | (start[1:] != end[:-1] + 1)
    return sizes[new[:-1]], start[new[:-1]], end[new[1:]]


def _housed(problem: Problem, states: Ints, sizes: Floats, start: Ints, end: Ints) -> Flags:
    """Returns which buffers lie in others that hold nothing as long as they are there [buffers]."""
    vacant, housed = problem.vacant, np.zeros(len(sizes), dtype=bool)
    if not len(vacant):
        return housed
    room = problem.node_entries(vacant.table, vacant.owner, states)
    large = np.flatnonzero(room > 0)
    by_size = large[np.argsort(room[large], kind="stable")]
    room, opens, closes = room[by_size], vacant.start[by_size], vacant.end[by_size]
    some = np.flatnonzero((sizes <= room.max(initial=0.0)) & (sizes * _LEAST_SHARE >= room.max(initial=0.0)))
    some = some[np.lexsort((start[some], -sizes[some]))]
    fits = (sizes[some] <= room[:, None]) & (start[some] >= opens[:, None]) & (end[some] <= closes[:, None])
    tenants = [_Tenants() for _ in by_size]
    for number in np.flatnonzero(fits.any(axis=0)).tolist():
        since, until = int(start[some[number]]), int(end[some[number]])
        housed[some[number]] = any(tenants[place].take(since, until) for place in np.flatnonzero(fits[:, number]).tolist())
    return housed


class _Tenants:
    """When a buffer is taken: first and last times, in order."""

    def __init__(self) -> None:
        self.since: list[int] = []
        self.until: list[int] = []

    def take(self, since: int, until: int) -> bool:
        """Takes the buffer from a time to another and returns true, or returns false where it is taken."""
        place = bisect_right(self.since, since)
        if (place and self.until[place - 1] >= since) or (place < len(self.since) and self.since[place] <= until):
            return False
        self.since.insert(place, since)
        self.until.insert(place, until)
        return True
