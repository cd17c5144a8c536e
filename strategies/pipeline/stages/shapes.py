"""Stages of a line on ranks of unlike shapes: how many stages, where each ends, and on which shape it runs.

A rank's *shape* is a number of devices and how they divide a stage. A stretch of the line takes so many seconds per
micro-batch as a stage on a shape; where memory binds, these depend on how many stages are behind it, for which it holds
micro-batches. A pipeline that is filled, runs and drains takes

    (micro-batches - 1) x the longest stage + all stages once

The least is found by dynamic programming over (stages behind, devices behind, place), from the end of the line:

1. Under a limit on the longest stage, whether there is a cut (`_Search.stages_within`). With how many devices all that
   is behind a place can be done is a set, the bits of an integer, so that a limit takes one pass over the stretches.
2. The least limit of each number of stages, by bisection, the lowest first (`_Search.run`), as long as a step so long
   can be better than the best known.
3. Within that limit, and within others a little over it, the cut whose stages take least in all (`_Search.least_sum`).

Devices are numbered along the line, `per_node` to a node, and no stage begins inside a node and ends in another.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from math import ceil, inf, log
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints

_RATIO: Final = 1 + 2**-13
"""Of two limits that are told apart: the longest stage is within an eighth of a thousandth of the least it can be."""

_WIDER: Final = (0, 8, 32, 96, 256, 640, 1536, 4096)
"""By how many limits the longest stage may be over the least one, where all stages together take less for it.

That pays in small steps: the last is 1.65 times the first.
"""

MOST_DEVICES: Final = 62
"""On how many devices a line can be cut at most.

Numbers of devices, none to all, are bits of 64-bit integers, one of which is the sign.
"""

_TIMES_EVEN: Final = (1.15, 1.4, 2.0, 4.0, 16.0)
"""Times what even stages would take, each device always busy: up to where limits are looked at, one after the other.

Where memory binds, or a few ops take long, stages are uneven.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Devices of a rank, and what the transfers of a stage take on it.

    Shapes: `enters` [2, places + 1] by where the stage begins, `leaves` [2, places + 1] by where it ends; the second
    row is between nodes. Units: seconds per micro-batch. `starts` are the devices that a rank may begin with, where
    these are not all with which it lies in a node, or is whole nodes.
    """

    devices: int
    enters: Floats
    leaves: Floats
    starts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ShapedLine:
    """A line of which every stage runs on one of some shapes, and all together on `num_devices` devices.

    It has from `least_stages` to `most_stages`.

    `stage_s(behind, shape, limit_s)` gives the seconds per micro-batch of each stretch as a stage, without transfers,
    with so many stages behind it [places + 1, places + 1]: infinite where it ends before it begins or does not fit, and
    anything over the limit where it takes longer. `bound_s` gives seconds that are no more than those, and soon found.
    `busy_s` is the least of all devices together, per micro-batch.
    """

    shapes: tuple[Shape, ...]
    stage_s: Callable[[int, int, float], Floats]
    bound_s: Callable[[int, int, float], Floats]
    num_places: int
    num_devices: int
    per_node: int
    num_micro_batches: int
    most_stages: int
    busy_s: float
    least_stages: int = 1


@dataclass(frozen=True, slots=True)
class ShapedStage:
    """A stage: its first place, the place behind its last, its shape, and its seconds per micro-batch."""

    start: int
    end: int
    shape: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ShapedCut:
    """Stages in the order of the line, and what a step takes in them."""

    step_s: float
    stages: tuple[ShapedStage, ...]


def best_cut(line: ShapedLine, below_s: float = inf) -> ShapedCut | None:
    """Returns the cut whose step takes least, None where none was found below so many seconds.

    It is looked for under ever higher limits on the longest stage, until what is over them cannot be better, and where
    bounds do not say that there is none.
    """
    best: ShapedCut | None = None
    for times in _TIMES_EVEN:
        bounds = _Search(replace(line, stage_s=line.bound_s), times, below_s)
        if not bounds.stages_within(bounds.highest) & bounds.allowed:
            if bounds.least_step_s(bounds.highest) >= below_s:
                break
            continue
        search = _Search(line, times, below_s)
        if (found := search.run()) is not None:
            best, below_s = found, found.step_s
        if search.least_step_s(search.highest) >= below_s:
            break
    return best


def is_placed(first: int, end: int, per_node: int) -> bool:
    """Says whether devices up to before `end` lie within a node, or are whole nodes."""
    return first // per_node == (end - 1) // per_node or not (first % per_node or end % per_node)


def crossings(line: ShapedLine, devices: int, starts: Collection[int] | None = None) -> dict[tuple[int, int], int]:
    """Returns behind which numbers of devices a stage on so many may stand, where it may begin with one of `starts`.

    They are the bits of integers, by whether what enters and what leaves the stage is between nodes.
    """
    found: dict[tuple[int, int], int] = {}
    for behind in range(line.num_devices - devices + 1):
        first, end = line.num_devices - behind - devices, line.num_devices - behind
        if first not in starts if starts is not None else not is_placed(first, end, line.per_node):
            continue
        key = int(first > 0 and first % line.per_node == 0), int(end % line.per_node == 0)
        found[key] = found.get(key, 0) | 1 << behind
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Stretches:
    """Stretches on one shape, and the numbers of devices that may be behind them: the bits of `mask`.

    Shapes: `start`, `end` and `seconds` [stretches], by start; those of one start begin at `first` [starts].
    """

    shape: int
    mask: int
    start: Ints
    end: Ints
    seconds: Floats
    first: Ints


class _Search:
    def __init__(self, line: ShapedLine, times_even: float, below_s: float) -> None:
        self.line, self.best_s, self.rounds = line, below_s, line.num_micro_batches - 1
        self.most = min(line.most_stages, line.num_devices)
        self.low_s = line.busy_s / line.num_devices
        # All stages take as much in all as the devices are busy, on as many devices as a shape may have.
        self.least_sum_s = line.busy_s / max(shape.devices for shape in line.shapes)
        self.crossings = [crossings(line, shape.devices, shape.starts) for shape in line.shapes]
        self.allowed = (1 << self.most + 1) - (1 << line.least_stages)
        self.stretches: dict[int, list[_Stretches]] = {}
        self.found: dict[int, int] = {}
        self.highest = self.number(self.low_s * times_even)
        if below_s < inf:
            self.highest = max(0, min(self.highest, self.number(self.highest_useful_s)))

    @property
    def highest_useful_s(self) -> float:
        """The longest stage of a step that takes no longer than the best known."""
        return (self.best_s - self.least_sum_s) / max(1, self.rounds)

    def run(self) -> ShapedCut | None:
        """Returns the best cut below the best known."""
        best: ShapedCut | None = None
        least, left = 0, self.allowed
        while left:
            # Of the numbers of stages that are left, that one first which has the least limit.
            highest = min(self.highest, self.number(self.highest_useful_s)) if self.best_s < inf else self.highest
            least = bisect_left(range(highest + 1), True, least, key=lambda one: bool(self.stages_within(one) & left))
            if least > highest:
                break
            stages = (self.stages_within(least) & left).bit_length() - 1
            left &= ~(1 << stages)
            for wider in _WIDER:
                if least + wider > self.highest or self.least_step_s(least + wider - 1) >= self.best_s:
                    break
                cut = self.least_sum(stages, self.limit_s(least + wider))
                if cut.step_s < self.best_s:
                    best, self.best_s = cut, cut.step_s
        return best

    def limit_s(self, number: int) -> float:
        """Returns one of the limits that are told apart, ascending."""
        return self.low_s * _RATIO**number

    def number(self, limit_s: float) -> int:
        """Returns which of them is the first that is not below so many seconds."""
        return ceil(log(limit_s / self.low_s) / log(_RATIO)) if limit_s > self.low_s else 0

    def least_step_s(self, number: int) -> float:
        """Returns what a step takes at least whose longest stage is over one of the limits."""
        return self.rounds * self.limit_s(number) + self.least_sum_s

    def stages_within(self, number: int) -> int:
        """Returns in how many stages the line can be cut under a limit: the bits of an integer."""
        if number not in self.found:
            limit_s, everything = self.limit_s(number), 1 << self.line.num_devices
            reached = np.zeros(self.line.num_places + 1, dtype=np.int64)
            reached[-1] = 1
            self.found[number] = 0
            for behind in range(self.most):
                before, reached = reached, np.zeros_like(reached)
                for some in self.every_stretch(behind):
                    fair = np.where(some.seconds <= limit_s, before[some.end] & some.mask, 0)
                    joined = np.bitwise_or.reduceat(fair, some.first)
                    reached[some.start[some.first]] |= joined << self.line.shapes[some.shape].devices
                self.found[number] |= bool(reached[0] & everything) << behind + 1
                if not reached.any():
                    break
        return self.found[number]

    def every_stretch(self, behind: int) -> list[_Stretches]:
        """Returns all stretches that may be a stage with so many stages behind it, under the highest limit."""
        if behind not in self.stretches:
            self.stretches[behind] = list(self.make_stretches(behind))
        return self.stretches[behind]

    def make_stretches(self, behind: int) -> Iterator[_Stretches]:
        limit_s = self.limit_s(self.highest)
        for number, shape in enumerate(self.line.shapes):
            table = self.line.stage_s(behind, number, limit_s)
            start, end = np.nonzero(table <= limit_s)
            seconds = table[start, end]
            for (enters, leaves), mask in self.crossings[number].items():
                taken = seconds + shape.enters[enters][start] + shape.leaves[leaves][end]
                kept = taken <= limit_s
                if kept.any():
                    first = np.flatnonzero(np.diff(start[kept], prepend=-1))
                    yield _Stretches(number, mask, start[kept], end[kept], taken[kept], first)

    def least_sum(self, stages: int, limit_s: float) -> ShapedCut:
        """Returns the cut in so many stages within a limit whose stages take least in all: there is one."""
        size = self.line.num_places + 1
        last = np.full(size, inf)
        last[-1] = 0.0
        tables = [{0: last}]
        for behind in range(stages):
            table: dict[int, Floats] = {}
            for some in self.every_stretch(behind):
                devices = self.line.shapes[some.shape].devices
                within = np.where(some.seconds <= limit_s, some.seconds, inf)
                for used, least in tables[-1].items():
                    if some.mask >> used & 1:
                        sums = np.minimum.reduceat(within + least[some.end], some.first)
                        into = table.setdefault(used + devices, np.full(size, inf))
                        at = some.start[some.first]
                        into[at] = np.minimum(into[at], sums)
            tables.append(table)
        found = tuple(self.traced(tables, limit_s))
        seconds = [one.seconds for one in found]
        return ShapedCut(self.rounds * max(seconds) + sum(seconds), found)

    def traced(self, tables: list[dict[int, Floats]], limit_s: float) -> Iterator[ShapedStage]:
        """Yields the stages that `tables` come from: by stages behind and devices used, the least from each place."""
        used, place = self.line.num_devices, 0
        for behind in range(len(tables) - 2, -1, -1):
            best = inf, ShapedStage(0, 0, 0, 0.0)
            for some in self.every_stretch(behind):
                left = used - self.line.shapes[some.shape].devices
                if left not in tables[behind] or not some.mask >> left & 1:
                    continue
                low, high = np.searchsorted(some.start, [place, place + 1])
                taken, end = some.seconds[low:high], some.end[low:high]
                sums = np.where(taken <= limit_s, taken, inf) + tables[behind][left][end]
                if high > low and sums.min() < best[0]:
                    at = int(sums.argmin())
                    best = float(sums[at]), ShapedStage(place, int(end[at]), some.shape, float(taken[at]))
            stage = best[1]
            yield stage
            used, place = used - self.line.shapes[stage.shape].devices, stage.end
