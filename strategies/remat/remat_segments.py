"""Where the forward pass is cut.

What crosses a cut is kept, and each piece between two is recomputed before its backward pass.

All of it at once would save nothing, for when the backward pass begins all of it would be there again. With pieces,
what is held at most is what crosses the cuts, once for each micro-batch in flight, and the stash of the largest piece.
Cuts can stand where fewer bytes cross than on either side, which in a model of layers is between them; the critical
nodes (strategies/structure/critical_path.py) lie within layers, where more does. Among these places the choice is
exact: for each limit on the largest piece a shortest path, from the loosest limit down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats, Ints
from rhino.strategies.remat.remat_graph import Stash, Unit

_FAR: Final = 2**61
"""More than any way is long, and twice as much is a number still."""

_MOST_PLACES: Final = 192
"""More places than these add little and cost time with their square: a model of 96 layers has two in each."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Units of one stage in pieces, in program order, and what stays of each when the others are computed.

    `crossing[p]` are the values of piece p that later pieces read. `alive_bytes` is what is held at most.
    """

    units: tuple[tuple[Unit, ...], ...]
    crossing: tuple[frozenset[int], ...]
    alive_bytes: float


def cut_in_pieces(stash: Stash, units: Sequence[Unit], in_flight: int) -> Pieces:
    """Returns the pieces of the units of one stage, of which `in_flight` micro-batches are held at a time."""
    at = {value: number for number, unit in enumerate(units) for value in unit.makes}
    last = np.arange(len(units))
    spans: list[tuple[int, int, int, bool]] = []
    readers: dict[int, int] = {}
    for number, unit in enumerate(units):
        for value in unit.reads:
            if value in at:
                readers[value] = number
    for value, made in at.items():
        spans.append((made, readers.get(value, made), stash.num_bytes[value], value in stash.late))
    places = _places(spans, len(last))
    path, alive_bytes = _best_path(*_tables(spans, places), in_flight)
    bounds = [places[number] for number in path]
    pieces = tuple(tuple(units[a:b]) for a, b in zip([0, *bounds[:-1]], bounds, strict=True))
    piece_of = {value: p for p, piece in enumerate(pieces) for unit in piece for value in unit.makes}
    crossing: list[set[int]] = [set() for _ in pieces]
    for p, piece in enumerate(pieces):
        for value in (value for unit in piece for value in unit.reads):
            if piece_of.get(value, p) != p:
                crossing[piece_of[value]].add(value)
    return Pieces(pieces, tuple(map(frozenset, crossing)), alive_bytes)


def _places(spans: Sequence[tuple[int, int, int, bool]], num_units: int) -> list[int]:
    """Returns after how many units a cut can stand, the end last."""
    change = np.zeros(num_units + 2, dtype=np.int64)
    for made, read, size, _ in spans:
        change[made + 1] += size
        change[max(made, read) + 1] -= size
    width = np.cumsum(change)[: num_units + 1]  # [n]: what the first n units make and later ones read
    inner = [n for n in range(1, num_units) if width[n] <= width[n - 1] and width[n] < width[n + 1]]
    if len(inner) > _MOST_PLACES:
        narrow = sorted(sorted(inner, key=lambda n: (width[n], n))[: 2 * _MOST_PLACES])
        inner = [narrow[i * len(narrow) // _MOST_PLACES] for i in range(_MOST_PLACES)]
    return [*inner, num_units]


def _tables(spans: Sequence[tuple[int, int, int, bool]], places: Sequence[int]) -> tuple[Floats, Floats]:
    """Returns, for each piece from place a to b, what crosses its end and what else of the stash it makes [a, b].

    Place 0 is the start.
    """
    bounds = np.array([0, *places])
    count = len(bounds)
    total, stash = np.zeros((count, count)), np.zeros((count, count))
    for made, read, size, is_late in spans:
        piece = int(np.searchsorted(bounds, made, side="right"))  # made in (bounds[piece - 1], bounds[piece]]
        until = int(np.searchsorted(bounds, read, side="right"))
        total[piece, until] += size
        if is_late:
            stash[piece, until] += size
    crossing, inside = np.zeros((count, count)), np.zeros((count, count))
    for b in range(1, count):
        beyond, within = total[: b + 1, b + 1 :].sum(axis=1), stash[: b + 1, : b + 1].sum(axis=1)
        for a in range(b):
            crossing[a, b] = beyond[a + 1 : b + 1].sum()
            inside[a, b] = within[a + 1 : b + 1].sum()
    return crossing, inside


def _best_path(crossing: Floats, inside: Floats, in_flight: int) -> tuple[list[int], float]:
    """Returns the numbers of the places at which pieces end, and the bytes that are held at most."""
    best: tuple[float, list[int]] = (np.inf, [])
    limit = np.inf
    # a step more weighs less than a byte more
    lengths, within = (
        crossing.T.astype(np.int64) * len(crossing) + 1,
        inside.T,
    )
    while (path := _shortest(np.where(within <= limit, lengths, _FAR))) is not None:
        pairs = list(zip([0, *path[:-1]], path, strict=True))
        largest = max(float(inside[a, b]) for a, b in pairs)
        kept = in_flight * sum(float(crossing[a, b]) for a, b in pairs)
        best = min(best, (kept + largest, path), key=lambda one: one[0])
        limit = np.nextafter(largest, 0.0)
        if largest <= 0.0 or kept >= best[0]:  # with smaller pieces no less is kept
            break
    return [number - 1 for number in best[1]], best[0]


def _shortest(lengths: Ints) -> list[int] | None:
    """Returns the places on the shortest path from the first to the last, the first of equals, or None.

    `lengths` [b, a] are from a to b.
    """
    count = len(lengths)
    shortest: Ints = np.full(count, _FAR)
    before = [0] * count
    shortest[0] = 0
    for b in range(1, count):
        reached = shortest[:b] + lengths[b, :b]
        before[b] = int(reached.argmin())
        shortest[b] = min(_FAR, reached[before[b]])
    if shortest[-1] >= _FAR:
        return None
    path = [count - 1]
    while before[path[-1]]:
        path.append(before[path[-1]])
    return path[::-1]
