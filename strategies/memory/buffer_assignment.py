"""Where buffers lie: what a device's program takes once buffers that stand empty for a while are used for others.

XLA (`BufferAssigner`) gives arguments and results buffers throughout. Where one of these holds nothing for a while,
temporaries lie there: the largest comes first, and of one size what XLA comes to first as it goes from the results
through all operands, whenever that runs. It takes the smallest such buffer that has room for it as long as it lives.
What finds none goes to one heap, the largest first, each to the smallest gap that has room for it; of one size what is
there for long comes first, counted in buffers that come and go meanwhile. What is written over another lies there: both
go to a gap that is free as long as either is there, but their turn is that of the first alone. So what is soon written
over comes late, and may find every gap taken by what is there behind it. If less is taken when those come first that
are there for longest, with all that is written over them and whatever their size, that counts
(`GlobalDecreasingSizeBestFitHeap`, of which the better of two orders is taken; jaxlib 0.10.2 on a CPU, 2026-11-22).

What is too small to show is not counted among what comes and goes, for of that too little is known. So which of one
size comes first is half an accident, and may be worth a tenth of the heap. Where orders in which chance says it take
more in the mean, that is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Floats, Ints

Flags = NDArray[np.bool_]

_LEAST_SHARE: Final = 4096
"""For what is smaller than this part of the largest buffer no place is looked for: it would not show."""

_MOST_DRAWN: Final = 4
_MOST_PAIRS: Final = 4000**2
"""So many orders are drawn, or as many as come to so many pairs of buffers."""


class Buffer(NamedTuple):
    """Bytes between two times, both included.

    Of one size, what has the least rank is laid out first in what stands empty. `value` is what lies there, and `over`
    what that is written over, by number; -1 where that is nothing.
    """

    num_bytes: int
    start: int
    end: int
    rank: int = 0
    value: int = -1
    over: int = -1


@dataclass(frozen=True, slots=True)
class Packed:
    """What a program takes of a device, in bytes.

    These are the bytes taken throughout, those of the heap of temporaries, and the most of these that are there at a
    time.
    """

    kept_bytes: float
    heap_bytes: float
    live_bytes: float


def packed(buffers: Sequence[Buffer], vacant: Sequence[Buffer], num_times: int) -> Packed:
    """Returns what buffers take, some of which hold nothing for a while (`vacant`).

    A buffer that is there at all times keeps its own memory.
    """
    sizes, start, end, rank, value, over = _columns(buffers)
    throughout = (start == 0) & (end == num_times - 1)
    housed = throughout | _housed(_columns(vacant)[:3], np.where(throughout, np.inf, sizes), start, end, rank)
    small = ~housed & (sizes * _LEAST_SHARE < sizes[~housed].max(initial=0.0))
    large = ~housed & ~small
    heap = _Heap(sizes[large], start[large], end[large], rank[large], _first_written(value[large], over[large]))
    heap_bytes = _sum(sizes[small], start[small], end[small]) + heap.num_bytes()
    return Packed(float(sizes[throughout].sum()), heap_bytes, _sum(sizes[~housed], start[~housed], end[~housed]))


def _columns(buffers: Sequence[Buffer]) -> tuple[Floats, Ints, Ints, Ints, Ints, Ints]:
    """Returns bytes, first and last times, ranks, and what is written and written over [buffers].

    Empty buffers are left out.
    """
    rows = np.array([one for one in buffers if one.num_bytes and one.start <= one.end], dtype=np.int64).reshape(-1, 6)
    return rows[:, 0].astype(np.float64), rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 4], rows[:, 5]


def _first_written(value: Ints, over: Ints) -> Ints:
    """Returns which buffer each lies in: of those that are written over one another, the first [buffers]."""
    place = {number: n for n, number in enumerate(value.tolist()) if number >= 0}
    found = [place.get(number, n) for n, number in enumerate(over.tolist())]
    for n, first in enumerate(found):
        while found[first] != first:
            first = found[first]
        found[n] = first
    return np.array(found, dtype=np.int64)


def _sum(sizes: Floats, start: Ints, end: Ints) -> float:
    """Returns the most bytes of buffers that are there at a time."""
    change = np.zeros(int(end.max(initial=0)) + 2)
    np.add.at(change, start, sizes)
    np.subtract.at(change, end + 1, sizes)
    return float(np.cumsum(change).max())


class _Heap:
    """Buffers that go to a heap: their bytes, first and last times, ranks, and which buffer each lies in [buffers]."""

    def __init__(self, sizes: Floats, start: Ints, end: Ints, rank: Ints, buffer: Ints) -> None:
        opens, closes = _moments(start, end, rank)
        first, group = np.unique(buffer, return_inverse=True)
        self.sizes, self.rank, self.own = sizes[first], rank[first], (closes - opens)[first]
        self.start, self.end = _reach(start, end, group, len(first))
        since, until = _reach(opens, closes, group, len(first))
        self.lifetime = until - since

    def num_bytes(self) -> float:
        """Returns how far the heap reaches.

        It is the better one of two orders, or the mean of orders that are drawn, if that is more.
        """
        count = len(self.sizes)
        num_drawn = min(_MOST_DRAWN, _MOST_PAIRS // max(count, 1) ** 2)
        largest = self.reach(np.inf, self.rank, -self.own, -self.sizes)
        longest = self.reach(np.inf if num_drawn else largest, self.rank, -self.sizes, -self.lifetime)
        drawn = np.random.PCG64(0)
        found = [self.reach(longest, drawn.random_raw(count), -self.sizes) for _ in range(num_drawn)]
        return max(min(largest, longest), fmean(found) if found else 0.0)

    def reach(self, most: float, *keys: NDArray[np.generic]) -> float:
        """Returns how far the heap reaches in the order of some keys, the last first, or `most` if that is less."""
        order = np.lexsort(keys)
        return _heap_bytes(self.sizes[order], self.start[order], self.end[order], most)


def _moments(start: Ints, end: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Returns how many buffers have come or gone before each comes, and before it goes [buffers]."""
    count, goes = len(start), np.repeat([0, 1], len(start))
    order = np.lexsort((np.tile(rank, 2), np.concatenate((end, start)), goes, np.concatenate((start, end))))
    found = np.empty(2 * count, dtype=np.int64)
    found[order] = np.arange(2 * count)
    return found[:count], found[count:]


def _reach(start: Ints, end: Ints, group: Ints, count: int) -> tuple[Ints, Ints]:
    """Returns when the first of each group comes and the last goes [groups]."""
    first, last = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    return first, last


def _heap_bytes(sizes: Floats, start: Ints, end: Ints, most: float) -> float:
    """Returns how far a heap reaches in which the buffers lie, or `most` if that is less.

    Each takes the smallest gap that has room for it between those before it that are there with it.
    """
    # where each begins and ends, its first and last times, in the order of where they begin
    placed = np.zeros((4, len(sizes)))
    reach = 0.0
    for number, (size, first, last) in enumerate(zip(sizes.tolist(), start.tolist(), end.tolist(), strict=True)):
        low, high, since, until = placed[:, :number]
        beside = (since <= last) & (until >= first)
        ends = np.concatenate(([0.0], np.maximum.accumulate(high[beside])))
        gaps = low[beside] - ends[:-1]
        gaps[gaps < size] = np.inf
        best = int(gaps.argmin()) if np.isfinite(gaps).any() else -1
        place = float(ends[best])
        reach = max(reach, place + size)
        if reach >= most:
            return most
        turn = int(low.searchsorted(place, side="right"))
        placed[:, turn + 1 : number + 1] = placed[:, turn:number]
        placed[:, turn] = place, place + size, first, last
    return reach


class _Rooms:
    """Buffers of one size that hold nothing between `opens` and `closes` [rooms], and who lies in them meanwhile."""

    def __init__(self, opens: Ints, closes: Ints, most: int) -> None:
        self.opens, self.closes = opens, closes
        self.start, self.end, self.place = (np.zeros(most, dtype=np.int64) for _ in range(3))
        self.count = 0

    def take(self, since: int, until: int) -> bool:
        """Says whether the first that is free between two times, both included, is taken now."""
        free = (self.opens <= since) & (self.closes >= until)
        if not free.any():
            return False
        count = self.count
        free[self.place[:count][(self.start[:count] <= until) & (self.end[:count] >= since)]] = False
        first = int(free.argmax())
        if not free[first]:
            return False
        self.start[count], self.end[count], self.place[count] = since, until, first
        self.count += 1
        return True


def _housed(vacant: tuple[Floats, Ints, Ints], sizes: Floats, start: Ints, end: Ints, rank: Ints) -> Flags:
    """Returns which buffers lie in others that hold nothing as long as they are there [buffers]."""
    housed = np.zeros(len(sizes), dtype=bool)
    room, opens, closes = vacant
    if not len(room):
        return housed
    by_size = np.argsort(room, kind="stable")
    room, opens, closes = room[by_size], opens[by_size], closes[by_size]
    some = np.flatnonzero((sizes <= room[-1]) & (sizes * _LEAST_SHARE >= room[-1]))
    some = some[np.lexsort((rank[some], -sizes[some]))]
    begin = np.flatnonzero(np.diff(room, prepend=-1.0))
    alike = [_Rooms(opens[a:b], closes[a:b], len(some)) for a, b in pairwise([*begin.tolist(), len(room)])]
    first = np.searchsorted(room[begin], sizes[some])  # the smallest with room for it
    for number, since, until, least in zip(
        some.tolist(), start[some].tolist(), end[some].tolist(), first.tolist(), strict=True
    ):
        housed[number] = any(rooms.take(since, until) for rooms in alike[least:])
    return housed
