"""Rematerialization on a line of ops: what a stretch of it recomputes to hold less.

Of an op and the next, both recomputed, what the first keeps for the backward pass is not kept. A line is made of
blocks, as layers are, and a *run* is ops of one block next to each other, all recomputed: it costs their forward pass,
saves what all but the last of them keep, and holds as much at once when it is recomputed. What has to be saved thus
depends on the largest run: for each size that a run may have at most (`caps`), the search is one of its own.

The best sets of runs in a block are the corners of the convex hull of (seconds, bytes saved); `_corners` finds them by
a price on a second, for each of which the best runs are found by dynamic programming. From corner to corner is an
*increment*, and a stretch takes increments in the order of what they save per second, as often as its blocks have them:
the best there is, but for the last increment, for which it may take less of another (`Increments.choose`). Of a block
that the stretch cuts, it has those that lie inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints

ALIKE: Final = 0.95
"""Of two sizes of the largest run with a ratio above that the smaller one is not looked at."""

NEARLY: Final = 0.7
"""The ratio of what two kinds of increments save per second down to which a bound takes them for one."""

PROOF: Final = 1e-9
"""Relative: by how much a corner must lie over a line to be one, and save more than the one before it, as far as sums
in floating point tell."""


@dataclass(frozen=True, slots=True, eq=False)
class RematLine:
    """A line of ops.

    Shapes: all [ops]; `seconds` of the forward pass, `stash` the bytes kept for the backward pass, `begins` marks where
    blocks begin, `fixed` what cannot be recomputed.
    """

    seconds: Floats
    stash: Floats
    begins: Bools
    fixed: Bools


@dataclass(frozen=True, slots=True)
class _Corner:
    """Runs in a block: (first, last) op of each, from the block's first; what they cost, save, and each holds."""

    runs: tuple[tuple[int, int], ...]
    seconds: float
    saved: float
    held: tuple[float, ...]


@dataclass(slots=True, eq=False)
class _Kind:
    """An increment that many blocks have: `level` of their corners, with the first and the last op it needs of each."""

    pattern: int
    level: int
    seconds: float
    saved: float
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)

    @property
    def saved_per_s(self) -> float:
        """What it saves for a second."""
        return self.saved / self.seconds if self.seconds > 0 else inf


class Increments:
    """What stretches of a line may recompute if no run holds more than `cap` bytes, best first."""

    def __init__(self, line: RematLine, cap: float) -> None:
        self.line, self.cap = line, cap
        self.blocks = list(_blocks(line))
        patterns: dict[bytes, int] = {}
        self.corners: list[tuple[_Corner, ...]] = []
        self.pattern: list[int] = []
        for first, end in self.blocks:
            key = b"".join(some[first:end].tobytes() for some in (line.seconds, line.stash, line.fixed))
            if key not in patterns:
                patterns[key] = len(self.corners)
                self.corners.append(
                    _corners(line.seconds[first:end], line.stash[first:end], line.fixed[first:end], cap)
                )
            self.pattern.append(patterns[key])
        self.kinds = sorted(self._kinds(), key=lambda one: (-one.saved_per_s, one.pattern, one.level))
        self.groups = tuple(self._groups())
        numbers = {(one.pattern, one.level): number for number, one in enumerate(self.kinds)}
        self.below = [numbers.get((one.pattern, one.level - 1), -1) for one in self.kinds]
        # Of kind k, stretches from i to before j have as many as end before j, less those that begin before i.
        places = np.arange(len(line.seconds) + 1)
        self.begun = np.array([np.searchsorted(one.first, places) for one in self.kinds]).reshape(-1, len(places))
        self.ended = np.array([np.searchsorted(one.last, places) for one in self.kinds]).reshape(-1, len(places))

    def _kinds(self) -> Iterator[_Kind]:
        kinds: dict[tuple[int, int], _Kind] = {}
        for (start, _), pattern in zip(self.blocks, self.pattern, strict=True):
            corners = self.corners[pattern]
            first, last = inf, -1.0
            for level in range(1, len(corners)):
                now, before = corners[level], corners[level - 1]
                first = min(first, now.runs[0][0])
                last = max(last, now.runs[-1][1])
                kind = kinds.setdefault(
                    (pattern, level), _Kind(pattern, level, now.seconds - before.seconds, now.saved - before.saved)
                )
                kind.first.append(start + int(first))
                kind.last.append(start + int(last))
        yield from kinds.values()

    def _groups(self) -> Iterator[tuple[float, list[int]]]:
        """Yields kinds that save nearly as much per second, and the most that one of them saves."""
        rates = [one.saved_per_s for one in self.kinds]
        first = 0
        while first < len(rates):
            end = next((n for n in range(first, len(rates)) if rates[n] < rates[first] * NEARLY), len(rates))
            yield rates[first], list(range(first, end))
            first = end

    def count(self, kind: int, start: Ints, end: Ints) -> Ints:
        """Returns how many increments of a kind stretches have."""
        found: Ints = np.maximum(0, self.ended[kind][end] - self.begun[kind][start])
        return found

    def least_s(self, start: Ints, end: Ints, need: Floats) -> Floats:
        """Returns seconds that are no more than `choose` gives, infinite where it finds nothing.

        Shapes: all [stretches]. They are as if all kinds that save nearly as much per second saved as much.
        """
        left, found = np.maximum(need, 0.0), np.zeros(len(need))
        for per_s, kinds in self.groups:
            saved = sum(self.count(number, start, end) * self.kinds[number].saved for number in kinds)
            found += np.minimum(left, saved) / per_s
            left = np.maximum(left - saved, 0.0)
        result: Floats = np.where(left > 0, inf, found)
        return result

    def choose(self, start: Ints, end: Ints, need: Floats) -> tuple[Floats, Ints, Ints]:
        """Returns the seconds of saving so many bytes in stretches from `start` to before `end`, and with what.

        Shapes: all [stretches]. The seconds are infinite where nothing saves enough. A stretch takes all increments
        before the kind of the first number, and of that as many as it needs; or one less than that, and of the kind of
        the second number what is then missing. -1 stands for none.
        """
        num = len(need)
        best, other = np.where(need > 0, inf, 0.0), np.full(num, -1)
        left, spent, last = need.astype(np.float64), np.zeros(num), np.full(num, -1)
        taken, short, paid = np.zeros(num), np.zeros(num), np.zeros(num)
        for number, kind in enumerate(self.kinds):
            have, below = self.count(number, start, end), self.below[number]
            is_over = last >= 0
            if is_over.any():
                # Of a kind that needs another in the same block there are as many as there are of that.
                fewer = np.ceil(short / kind.saved)
                free = np.where(below == last, np.minimum(have, taken), have)
                seconds = paid + fewer * kind.seconds
                better = is_over & (below <= last) & (fewer <= free) & (seconds < best)
                best, other = np.where(better, seconds, best), np.where(better, number, other)
            wanted = np.ceil(np.maximum(left, 0.0) / kind.saved)
            ends = ~is_over & (wanted <= have)
            if ends.any():
                best = np.where(ends, np.minimum(best, spent + wanted * kind.seconds), best)
                less = np.maximum(wanted - 1, 0)
                short = np.where(ends, left - less * kind.saved, short)
                paid = np.where(ends, spent + less * kind.seconds, paid)
                taken = np.where(ends, less, taken)
                last = np.where(ends, number, last)
            left, spent = left - have * kind.saved, spent + have * kind.seconds
        return best, last, other

    def ops(self, start: int, end: int, need: float) -> Bools:
        """Returns which ops of the line a stretch recomputes to save so many bytes, which it can [ops]."""
        at, until, left = np.array([start]), np.array([end]), max(need, 0.0)
        _, (last,), (other,) = self.choose(at, until, np.array([need]))
        levels: dict[tuple[int, int], int] = {}

        def take(number: int, count: int) -> float:
            kind = self.kinds[number]
            levels[kind.pattern, kind.level] = count
            return count * kind.saved

        for number in range(int(last)):
            left -= take(number, int(self.count(number, at, until)[0]))
        left -= take(int(last), ceil(left / self.kinds[last].saved) - (other >= 0))
        if other >= 0:
            take(int(other), ceil(left / self.kinds[other].saved))
        again = np.zeros(len(self.line.seconds), dtype=bool)
        for pattern, corners in enumerate(self.corners):
            # Blocks with more levels inside the stretch come first: of those there are enough for each level.
            inside = [
                (-level, first)
                for (first, _), of in zip(self.blocks, self.pattern, strict=True)
                if of == pattern and (level := self._level(first, corners, start, end))
            ]
            for number, (_, first) in enumerate(sorted(inside)):
                level = max((n for n in range(1, len(corners)) if levels.get((pattern, n), 0) > number), default=0)
                for run_first, run_last in corners[level].runs:
                    again[first + run_first : first + run_last + 1] = True
        return again

    @staticmethod
    def _level(first: int, corners: Sequence[_Corner], start: int, end: int) -> int:
        """Returns up to which corner all runs of a block lie inside a stretch."""
        inside = [first + one.runs[0][0] >= start and first + one.runs[-1][1] < end for one in corners[1:]]
        return inside.index(False) if False in inside else len(inside)


def caps(line: RematLine) -> tuple[float, ...]:
    """Returns sizes that the largest run may have, ascending: those of the corners, of nearly equal ones the larger."""
    corners = [corner for some in Increments(line, inf).corners for corner in some[1:]]
    found: list[float] = []
    for size in sorted((max(one.held) for one in corners), reverse=True):
        if not found or size < found[-1] * ALIKE:
            found.append(size)
    return tuple(found[::-1])


def _blocks(line: RematLine) -> Iterator[tuple[int, int]]:
    """Yields the first op of each block and the op behind its last."""
    firsts = sorted({0, *np.flatnonzero(line.begins).tolist()})
    yield from pairwise([*firsts, len(line.seconds)])


def _corners(seconds: Floats, stash: Floats, fixed: Bools, cap: float) -> tuple[_Corner, ...]:
    """Returns the corners of what a block may recompute, the first of them nothing, each dearer than the one before."""
    nothing = _Corner((), 0.0, 0.0, ())
    most = _best_runs(seconds, stash, fixed, cap, 0.0)

    def between(low: _Corner, high: _Corner) -> Iterator[_Corner]:
        if high.seconds <= low.seconds:
            return
        price = (high.saved - low.saved) / (high.seconds - low.seconds)
        best = _best_runs(seconds, stash, fixed, cap, price)
        gain = (best.saved - low.saved) - price * (best.seconds - low.seconds)
        if gain > PROOF * high.saved and low.seconds < best.seconds < high.seconds:
            yield from between(low, best)
            yield best
            yield from between(best, high)

    found = [nothing]
    for corner in (*between(nothing, most), most):
        if corner.saved - found[-1].saved > PROOF * most.saved:
            found.append(corner)
    return tuple(found)


def _best_runs(seconds: Floats, stash: Floats, fixed: Bools, cap: float, price: float) -> _Corner:
    """Returns the runs of a block that save most, less a price on each second; of equals the cheapest.

    Between two runs there is an op, or they would be one.
    """
    num = len(seconds)
    cost, kept = np.concatenate([[0.0], np.cumsum(seconds)]), np.concatenate([[0.0], np.cumsum(stash)])
    best: list[tuple[float, float, int]] = [(0.0, 0.0, -1)] * (num + 2)
    for first in range(num - 1, -1, -1):
        best[first] = best[first + 1][0], best[first + 1][1], -1
        for last in range(first, num):
            if fixed[last]:
                break
            # What the last op of a block keeps is held with the run if the next block recomputes its first op.
            if kept[last + (last == num - 1)] - kept[first] > cap:
                break
            saved, spent = kept[last] - kept[first], cost[last + 1] - cost[first]
            after = best[min(last + 2, num)]
            value = saved - price * spent + after[0], -spent + after[1], last
            if saved > 0 and value[:2] > best[first][:2]:
                best[first] = value
    runs, at = [], 0
    while at < num:
        last = best[at][2]
        if last >= 0:
            runs.append((at, last))
        at = last + 2 if last >= 0 else at + 1
    held = tuple(float(kept[last + (last == num - 1)] - kept[first]) for first, last in runs)
    return _Corner(
        tuple(runs),
        float(sum(cost[last + 1] - cost[first] for first, last in runs)),
        float(sum(kept[last] - kept[first] for first, last in runs)),
        held,
    )
