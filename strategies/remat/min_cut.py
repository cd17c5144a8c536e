"""What one piece of the forward pass keeps, for each price of a byte: a minimum cut, exactly.

With a_v = value v is at hand in the backward pass and r_u = unit u is recomputed there,

    minimise   sum of min(price * bytes_v, host_v) over v with a_v and not r_maker(v)   +   sum of seconds_u over r_u
    such that  r_u implies a_v for each value v that u reads, and for each that it makes;  a_v for each v of the stash

where host_v are the seconds in which v goes to host memory and comes back: what is kept lies there if that costs less.
Every term is of one variable or punishes one pair, so one cut between what is 1 and what is 0 is the optimum (Picard
and Ratliff, 1975). As the price goes up, the optimum walks along the convex frontier of bytes and seconds; its corners
are found from chord to chord.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final, NamedTuple

import numpy as np

_TICKS: Final = 1 << 20
"""Into how many parts the seconds of a piece are divided, so that capacities are whole."""

_FINE: Final = 1 << 30
"""In how many parts of a tick the price of a byte is told."""


_MOST: Final = 1 << 62
_ROOM: Final = 1 << 52
"""What all prices of a cut may add up to, in 64 bits, and to what they are scaled down where it is more."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Units by number, in program order.

    `reads` and `makes` are values by number; other values are at hand. Values in `late` are needed in the backward
    pass. `host_s` are the seconds of a value's way to host memory and back, infinite where it cannot lie there; empty
    where none can.
    """

    seconds: tuple[float, ...]
    may_repeat: tuple[bool, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    num_bytes: tuple[int, ...]
    late: frozenset[int]
    host_s: tuple[float, ...] = ()

    def kept(self, repeated: Sequence[int]) -> int:
        """Returns the bytes that are kept where these units are recomputed, here or in host memory."""
        return sum(self.num_bytes[value] for value in self.saved(repeated))

    def saved(self, repeated: Sequence[int]) -> list[int]:
        """Returns the values that are kept where these units are recomputed, here or in host memory."""
        again = {value for unit in repeated for value in self.makes[unit]}
        needed = self.late | {value for unit in repeated for value in self.reads[unit]}
        return sorted(needed - again)


class Label(NamedTuple):
    """What becomes of a piece: the units that are recomputed, and the values that wait in host memory."""

    repeated: tuple[int, ...] = ()
    hosted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Corner:
    """A corner of the frontier: what becomes of the piece, the bytes that stay on the device, the seconds it takes."""

    label: Label
    kept_bytes: int
    seconds: float


def frontier(piece: Piece) -> tuple[Corner, ...]:
    """Returns the corners of the frontier, from all that is kept to the least bytes that can be.

    Seconds rise as bytes fall.
    """
    cut = _Cut(piece)
    least = cut.best(cut.all_ticks + 1, 1)
    corners = {Label(): cut.corner(Label()), least: cut.corner(least)}
    waiting: list[tuple[Label, Label]] = [(Label(), least)]
    while waiting:
        more, less = waiting.pop()
        price = cut.tick_sum(less) - cut.tick_sum(more), corners[more].kept_bytes - corners[less].kept_bytes
        if min(price) <= 0:
            continue
        found = cut.best(*price)
        if cut.cost(found, *price) < cut.cost(more, *price):
            corners[found] = cut.corner(found)
            waiting += [(more, found), (found, less)]
    ordered = sorted(corners.values(), key=lambda one: (one.seconds, one.kept_bytes))
    result: list[Corner] = []
    for one in ordered:
        if not result or one.kept_bytes < result[-1].kept_bytes:
            result.append(one)
    return tuple(result)


def cheapest(piece: Piece, byte_seconds: float) -> Label:
    """Returns what is recomputed, and what waits in host memory, where to keep a byte costs so many seconds.

    As few units are recomputed as can be.
    """
    cut = _Cut(piece)
    if cut.total <= 0:
        return cut.best(1, 0)
    return cut.best(max(1, round(byte_seconds / cut.total * _TICKS * _FINE)), _FINE)


class _Cut:
    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.host_s = piece.host_s or (inf,) * len(piece.num_bytes)
        self.total = sum(piece.seconds) or sum(filter(isfinite, self.host_s))
        self.ticks = [self._ticks(seconds) for seconds in piece.seconds]
        self.host_ticks = [self._ticks(seconds) if isfinite(seconds) else None for seconds in self.host_s]
        self.all_ticks = sum(self.ticks) + sum(ticks for ticks in self.host_ticks if ticks is not None)
        units, values = len(piece.seconds), len(piece.num_bytes)
        self.source, self.sink = units + values, units + values + 1
        always = [(u, units + v) for u in range(units) for v in (*piece.reads[u], *piece.makes[u])]
        always += [(self.source, units + v) for v in sorted(piece.late)]
        always += [(u, self.sink) for u in range(units) if not piece.may_repeat[u]]
        self.kept = [(u, v) for u in range(units) for v in piece.makes[u]]
        self.again = [(u, self.sink) for u in range(units)]
        self.arcs = np.array([*always, *((units + v, u) for u, v in self.kept), *self.again], dtype=np.int32)
        self.arcs = self.arcs.reshape(-1, 2)
        self.num_always = len(always)
        self.bytes = np.array([piece.num_bytes[v] for _, v in self.kept], dtype=np.int64)
        self.units = units

    def _ticks(self, seconds: float) -> int:
        return max(1, round(seconds / self.total * _TICKS)) if seconds > 0 else 0

    def best(self, per_byte: int, per_tick: int) -> Label:
        """Returns what becomes of the piece at a price; as few units are recomputed as can be."""
        from ortools.graph.python import max_flow  # noqa: PLC0415 - slow to load, and only cuts need it

        total = int(self.bytes.sum()) * per_byte + sum(self.ticks) * per_tick
        if total > _MOST:
            per_byte, per_tick = (max(1, price * _ROOM // total) if price else 0 for price in (per_byte, per_tick))
        kept = [self._least(v, per_byte, per_tick) for _, v in self.kept]
        priced = np.array([*kept, *(ticks * per_tick for ticks in self.ticks)], dtype=np.int64)
        endless = np.full(self.num_always, int(priced.sum()) + 1, dtype=np.int64)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self.arcs[:, 0], self.arcs[:, 1], np.concatenate([endless, priced]))
        status = flow.solve(self.source, self.sink)
        assert status == flow.OPTIMAL, status
        repeated = tuple(sorted(node for node in flow.get_source_side_min_cut() if node < self.units))
        hosted = [
            v
            for v in self.piece.saved(repeated)
            if self._least(v, per_byte, per_tick) < self.piece.num_bytes[v] * per_byte
        ]
        return Label(repeated, tuple(hosted))

    def _least(self, value: int, per_byte: int, per_tick: int) -> int:
        """Returns the price of a value that is kept, here or in host memory."""
        here, ticks = self.piece.num_bytes[value] * per_byte, self.host_ticks[value]
        return here if ticks is None else min(here, ticks * per_tick)

    def corner(self, label: Label) -> Corner:
        there = sum(self.piece.num_bytes[value] for value in label.hosted)
        seconds = sum(self.piece.seconds[unit] for unit in label.repeated)
        return Corner(
            label,
            self.piece.kept(label.repeated) - there,
            seconds + sum(self.host_s[value] for value in label.hosted),
        )

    def tick_sum(self, label: Label) -> int:
        return sum(self.ticks[unit] for unit in label.repeated) + sum(
            ticks for value in label.hosted if (ticks := self.host_ticks[value]) is not None
        )

    def cost(self, label: Label, per_byte: int, per_tick: int) -> int:
        return self.corner(label).kept_bytes * per_byte + self.tick_sum(label) * per_tick
