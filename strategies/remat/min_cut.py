"""What one piece of the forward pass keeps, for each price of a byte: a minimum cut, exactly.

With a_v = value v is at hand in the backward pass and r_u = unit u is recomputed there,

    minimise   price * sum of bytes_v over v with a_v and not r_maker(v)   +   sum of seconds_u over u with r_u
    such that  r_u implies a_v for each value v that u reads, and for each that it makes;  a_v for each v of the stash

Every term is of one variable or punishes one pair, so one cut between what is 1 and what is 0 is the optimum (Picard
and Ratliff, 1975). As the price goes up, the optimum walks along the convex frontier of bytes and seconds; its corners
are found from chord to chord.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
    pass.
    """

    seconds: tuple[float, ...]
    may_repeat: tuple[bool, ...]
    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    num_bytes: tuple[int, ...]
    late: frozenset[int]

    def kept(self, repeated: Sequence[int]) -> int:
        """Returns the bytes that are kept where these units are recomputed."""
        again = {value for unit in repeated for value in self.makes[unit]}
        needed = self.late | {value for unit in repeated for value in self.reads[unit]}
        return sum(self.num_bytes[value] for value in needed - again)


@dataclass(frozen=True, slots=True)
class Corner:
    """A corner of the frontier: the recomputed units, the bytes that are kept, and the seconds that it takes."""

    repeated: tuple[int, ...]
    kept_bytes: int
    seconds: float


def frontier(piece: Piece) -> tuple[Corner, ...]:
    """Returns the corners of the frontier, from all that is kept to the least bytes that can be.

    Seconds rise as bytes fall.
    """
    cut = _Cut(piece)
    least = cut.best(sum(cut.ticks) + 1, 1)
    corners = {(): cut.corner(()), least: cut.corner(least)}
    waiting: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), least)]
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


def cheapest(piece: Piece, byte_seconds: float) -> tuple[int, ...]:
    """Returns the units that are recomputed where to keep a byte costs so many seconds; as few as can be."""
    total = sum(piece.seconds)
    if total <= 0:
        return _Cut(piece).best(1, 0)
    return _Cut(piece).best(max(1, round(byte_seconds / total * _TICKS * _FINE)), _FINE)


class _Cut:
    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        total = sum(piece.seconds)
        self.ticks = [max(1, round(seconds / total * _TICKS)) if seconds > 0 else 0 for seconds in piece.seconds]
        units, values = len(piece.seconds), len(piece.num_bytes)
        self.source, self.sink = units + values, units + values + 1
        always = [(u, units + v) for u in range(units) for v in (*piece.reads[u], *piece.makes[u])]
        always += [(self.source, units + v) for v in sorted(piece.late)]
        always += [(u, self.sink) for u in range(units) if not piece.may_repeat[u]]
        kept = [(units + v, u, piece.num_bytes[v]) for u in range(units) for v in piece.makes[u]]
        self.again = [(u, self.sink) for u in range(units)]
        self.arcs = np.array([*always, *((a, b) for a, b, _ in kept), *self.again], dtype=np.int32).reshape(-1, 2)
        self.num_always = len(always)
        self.bytes = np.array([size for _, _, size in kept], dtype=np.int64)
        self.units = units

    def best(self, per_byte: int, per_tick: int) -> tuple[int, ...]:
        """Returns the units that are recomputed at a price; as few as can be."""
        from ortools.graph.python import max_flow  # noqa: PLC0415 - slow to load, and only cuts need it

        total = int(self.bytes.sum()) * per_byte + sum(self.ticks) * per_tick
        if total > _MOST:
            per_byte, per_tick = (max(1, price * _ROOM // total) if price else 0 for price in (per_byte, per_tick))
        priced = np.concatenate([self.bytes * per_byte, np.array(self.ticks, dtype=np.int64) * per_tick])
        endless = np.full(self.num_always, int(priced.sum()) + 1, dtype=np.int64)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self.arcs[:, 0], self.arcs[:, 1], np.concatenate([endless, priced]))
        status = flow.solve(self.source, self.sink)
        assert status == flow.OPTIMAL, status
        return tuple(sorted(node for node in flow.get_source_side_min_cut() if node < self.units))

    def corner(self, repeated: tuple[int, ...]) -> Corner:
        return Corner(repeated, self.piece.kept(repeated), sum(self.piece.seconds[unit] for unit in repeated))

    def tick_sum(self, repeated: tuple[int, ...]) -> int:
        return sum(self.ticks[unit] for unit in repeated)

    def cost(self, repeated: tuple[int, ...], per_byte: int, per_tick: int) -> int:
        return self.piece.kept(repeated) * per_byte + self.tick_sum(repeated) * per_tick
