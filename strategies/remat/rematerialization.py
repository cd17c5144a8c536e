"""Which values of the forward pass a step keeps for its backward pass, and which it computes again.

Per stage: the forward pass is cut in pieces (strategies/remat/remat_segments.py). What later pieces read of a piece is
kept. Of the rest of each piece, except of one that the backward pass begins with, whatever is kept must fit into the
share of the stash that may be: with s_p the seconds and b_p the bytes at the corner of its frontier
(strategies/remat/min_cut.py) that piece p takes,

    minimise  sum of s_p   such that   sum of b_p <= (1 - remat) * stash - what is kept in any case

Where values may wait in host memory (`Stash.host_s`), one that is kept stays on the device or goes there, whatever
costs less; so does each value that is kept in any case, which is a piece of its own.

The corners' convex hull gives a lower bound (`_bound`); the choice of one corner each is a small integer program
(`_corners`). Where the whole problem is small it is solved as one over all units (`_units`), for the frontier leaves
out what lies above the hull. A share for which nothing more can be done is met as far as it can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Final

import numpy as np
from scipy import sparse

from rhino.strategies.remat.min_cut import Corner, Label, Piece, frontier
from rhino.strategies.remat.remat_graph import Stash, Unit
from rhino.strategies.remat.remat_segments import Pieces, cut_in_pieces
from rhino.strategies.solver.lp.linear_programs import Point, Rows, solve_rows

_STEPS: Final = 200

_FEW_UNITS: Final = 400
"""Up to so many units that may be repeated the choice is solved over all of them."""

_LEAST_GAIN: Final = 0.05
"""Recomputation of a stage that saves less than this share of what its stash holds is left alone."""


@dataclass(frozen=True, slots=True)
class Block:
    """Ops of one piece that are recomputed together, in program order.

    The piece begins with op `first` and ends with `last`.
    """

    stage: int
    ops: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StageChoice:
    """What one stage does. Bytes are of one micro-batch, seconds are added to each.

    `kept_bytes` stay on the device, `hosted` are the values that wait in host memory, `host_bytes` of them, and
    `host_s` what it takes to bring them there and back. `alive_bytes` is what the device holds of the stash at most,
    for `in_flight` micro-batches: what is kept, and the largest that is made again. `bound_s`: no choice with these
    pieces that keeps as little takes less than that (`added_s`, transfers included).
    """

    stage: int
    stash_bytes: int
    kept_bytes: int
    in_flight: int
    alive_bytes: int
    added_s: float
    bound_s: float
    blocks: tuple[Block, ...]
    hosted: tuple[int, ...] = ()
    host_bytes: int = 0
    host_s: float = 0.0

    @property
    def gap(self) -> float:
        """Returns the share of the added seconds that a better choice could save at most."""
        return (self.added_s - self.bound_s) / self.added_s if self.added_s > self.bound_s else 0.0


@dataclass(frozen=True, slots=True)
class RematStep:
    """A step along the frontier of a piece of the forward pass, of a micro-batch.

    To recompute the units of `ops` in place of those of the step `previous`, by its number, None for the first of a
    piece, frees `freed_bytes` and adds `added_s`. While the piece is recomputed, `alive_bytes` of it are there again.
    """

    ops: tuple[int, ...]
    freed_bytes: int
    added_s: float
    alive_bytes: int
    previous: int | None


def choose(stash: Stash, remat: Mapping[int, float], in_flight: Mapping[int, int]) -> tuple[StageChoice, ...]:
    """Returns what each stage in `remat` computes again.

    `remat` has the least share of its stash that each stage recomputes.
    """
    corners = _Frontiers()
    return tuple(
        _Stage(stash, stage, in_flight[stage], corners).choose(share) for stage, share in sorted(remat.items())
    )


def choose_pieces(pieces: Sequence[Piece], remat: float) -> list[Label]:
    """Returns what becomes of each piece, of pieces that read nothing of each other.

    `remat` is the least share of what all of them keep where nothing is recomputed. A piece that would keep hardly less
    is left as it is.
    """
    if not pieces:
        return []
    corners = [frontier(piece) for piece in pieces]
    room = (1 - remat) * sum(one[0].kept_bytes for one in corners)
    room = max(room, float(sum(one[-1].kept_bytes for one in corners)))
    labels = [one[number].label for one, number in zip(corners, _corners(corners, room), strict=True)]
    if sum(sum(piece.may_repeat) for piece in pieces) <= _FEW_UNITS:
        labels = min([labels, _units(pieces, room) or labels], key=lambda found: _seconds(pieces, found))
    return [
        label if piece.kept(label.repeated) < (1 - _LEAST_GAIN) * piece.kept(()) else Label()
        for piece, label in zip(pieces, labels, strict=True)
    ]


def _seconds(pieces: Sequence[Piece], labels: Sequence[Label]) -> float:
    return sum(
        sum(piece.seconds[unit] for unit in label.repeated) + sum(piece.host_s[value] for value in label.hosted)
        for piece, label in zip(pieces, labels, strict=True)
    )


def steps_of(stash: Stash, in_flight: int) -> tuple[RematStep, ...]:
    """Returns the steps of all pieces of a program without stages, of which `in_flight` micro-batches are held.

    Those of a piece follow each other, and each frees its bytes for more seconds than the one before. What the backward
    pass begins with is not recomputed.
    """
    stage = _Stage(stash, 0, in_flight, _Frontiers())
    found: list[RematStep] = []
    last = len(stage.pieces.units) - 1
    for number, piece, corners in zip(stage.open, stage.local, stage.corners, strict=False):
        units, previous = stage.pieces.units[number], None
        for less, more in pairwise(corners if number != last else ()):
            again = more.label.repeated
            kept = set(piece.saved(again))
            alive = {value for unit in again for value in piece.makes[unit] if value in piece.late} - kept
            found.append(
                RematStep(
                    tuple(units[unit].op for unit in again),
                    less.kept_bytes - more.kept_bytes,
                    more.seconds - less.seconds,
                    sum(piece.num_bytes[value] for value in alive),
                    previous,
                )
            )
            previous = len(found) - 1
    return tuple(found)


class _Frontiers(dict[Piece, tuple[Corner, ...]]):
    """The frontier of each piece, found once for all that are equal."""

    def __missing__(self, piece: Piece) -> tuple[Corner, ...]:
        self[piece] = found = frontier(piece)
        return found


class _Stage:
    def __init__(self, stash: Stash, stage: int, in_flight: int, corners: _Frontiers) -> None:
        self.stash, self.stage, self.in_flight = stash, stage, in_flight
        self.units = [unit for unit in stash.units if unit.stage == stage]
        self.total = stash.total_bytes(stage)
        self.pieces: Pieces = cut_in_pieces(stash, self.units, in_flight)
        count = len(self.pieces.units)
        self.open = list(range(count if in_flight > 1 else count - 1))
        """Pieces that may be recomputed; not what a backward pass begins with that follows at once."""
        self.crossing = {value for values in self.pieces.crossing for value in values}
        self.values = [self._values(number) for number in self.open]
        """The values of each piece that are kept or not [pieces]."""
        self.local = [self._piece(number) for number in self.open]
        self.corners = [corners[piece] for piece in self.local]
        for value in self._kept_anyway():
            kept = (self.stash.num_bytes[value],)
            alone = Piece((0.0,), (False,), ((),), ((0,),), kept, frozenset({0}), (self.stash.host_s[value],))
            self.values.append([value])
            self.local.append(alone)
            self.corners.append(corners[alone])

    def _values(self, number: int) -> list[int]:
        units, crossing = self.pieces.units[number], self.pieces.crossing[number]
        return [
            value for unit in units for value in unit.makes if value not in crossing and value not in self.stash.saved
        ]

    def _kept_anyway(self) -> list[int]:
        """Returns what is kept in any case, and may wait in host memory, where as much as can be is recomputed.

        What the backward pass begins with that follows at once stays, unless it leaves a loop in many parts.
        """
        if not self.stash.host_s:
            return []
        needed = self._needed([one[-1].label for one in self.corners])
        begun = {value for unit in self.pieces.units[-1] for value in unit.makes} if self.in_flight == 1 else set()
        begun = {value for value in begun if self.stash.waiting.get(value, 1) == 1}
        known = {value for values in self.values for value in values}
        return [value for value in sorted(needed - known - begun) if value in self.stash.host_s]

    def _piece(self, number: int) -> Piece:
        units, own = self.pieces.units[number], self._values(number)
        name = {value: k for k, value in enumerate(own)}
        return Piece(
            tuple(unit.seconds for unit in units),
            tuple(unit.may_repeat for unit in units),
            tuple(tuple(name[value] for value in unit.reads if value in name) for unit in units),
            tuple(tuple(name[value] for value in unit.makes if value in name) for unit in units),
            tuple(self.stash.num_bytes[value] for value in own),
            frozenset(name[value] for value in own if value in self.stash.late),
            tuple(self.stash.host_s.get(value, inf) for value in own) if self.stash.host_s else (),
        )

    def choose(self, remat: float) -> StageChoice:
        """Returns the choice for the least share of the stash that does not stay on the device."""
        nothing = self._made([Label() for _ in self.local], 0.0)
        if remat <= 0 or not self.total or not self.local:
            return nothing
        least = [one[-1] for one in self.corners]
        fixed = self._kept([one.label for one in least]) - sum(one.kept_bytes for one in least)
        room = max((1 - remat) * self.total - fixed, float(sum(one.kept_bytes for one in least)))
        bound = _bound(self.corners, room)
        labels = [one[number].label for one, number in zip(self.corners, _corners(self.corners, room), strict=True)]
        if sum(sum(piece.may_repeat) for piece in self.local) <= _FEW_UNITS:
            labels = min([labels, _units(self.local, room) or labels], key=lambda found: _seconds(self.local, found))
        made = self._made(labels, bound)
        return made if nothing.alive_bytes - made.alive_bytes > _LEAST_GAIN * nothing.alive_bytes else nothing

    def _again(self, labels: Sequence[Label]) -> list[list[Unit]]:
        """Returns the units of each piece that are recomputed."""
        found: list[list[Unit]] = [[] for _ in self.pieces.units]
        for number, label in zip(self.open, labels, strict=False):
            found[number] = [self.pieces.units[number][unit] for unit in label.repeated]
        return found

    def _hosted(self, labels: Sequence[Label]) -> frozenset[int]:
        """Returns the values that wait in host memory."""
        return frozenset(
            values[value] for values, label in zip(self.values, labels, strict=True) for value in label.hosted
        )

    def _needed(self, labels: Sequence[Label]) -> frozenset[int]:
        """Returns the values of this stage that are kept; of those kept in any case, what the backward pass reads."""
        again = [unit for units in self._again(labels) for unit in units]
        own = set(self.stash.num_bytes) & {value for unit in self.units for value in unit.makes}
        needed = (self.stash.late & own) | {value for unit in again for value in unit.reads if value in own}
        made = {
            value
            for unit in again
            for value in unit.makes
            if value not in self.crossing and value not in self.stash.saved
        }
        return frozenset(needed - made)

    def _kept(self, labels: Sequence[Label]) -> int:
        """Returns the bytes that stay on the device."""
        return sum(self.stash.num_bytes[value] for value in self._needed(labels) - self._hosted(labels))

    def _made(self, labels: Sequence[Label], bound: float) -> StageChoice:
        needed, hosted = self._needed(labels), self._hosted(labels)
        kept, there = needed - hosted, sorted(needed & hosted)
        again = self._again(labels)
        largest = max(
            (
                sum(
                    self.stash.num_bytes[v]
                    for unit in units
                    for v in unit.makes
                    if v in self.stash.late and v not in needed
                )
                for units in again
            ),
            default=0,
        )
        num_kept = sum(self.stash.num_bytes[value] for value in kept)
        alive_bytes = self.in_flight * num_kept + largest
        if self.in_flight == 1:  # what the backward pass begins with is gone when pieces are made again
            begun = {value for unit in self.pieces.units[-1] for value in unit.makes} if self.units else set()
            alive_bytes = max(num_kept, alive_bytes - sum(self.stash.num_bytes[value] for value in kept & begun))
        blocks = tuple(
            Block(self.stage, tuple(unit.op for unit in units), piece[0].op, piece[-1].op)
            for units, piece in zip(again, self.pieces.units, strict=True)
            if units
        )
        host_s = sum(self.stash.host_s[value] for value in there)
        added_s = sum(unit.seconds for units in again for unit in units) + host_s
        return StageChoice(
            self.stage,
            self.total,
            num_kept,
            self.in_flight,
            alive_bytes,
            added_s,
            bound,
            blocks,
            tuple(there),
            sum(self.stash.num_bytes[value] for value in there),
            host_s,
        )


def _bound(corners: Sequence[tuple[Corner, ...]], room: float) -> float:
    """Returns the least seconds on the convex hull: from all kept, the bytes that cost least first."""
    steps = [
        (more.kept_bytes - less.kept_bytes, less.seconds - more.seconds)
        for one in corners
        for more, less in pairwise(one)
    ]
    over = sum(one[0].kept_bytes for one in corners) - room
    seconds = sum(one[0].seconds for one in corners)
    for freed, added in sorted(steps, key=lambda step: step[1] / step[0]):
        if over <= 0:
            break
        seconds += added * min(1.0, over / freed)
        over -= freed
    return seconds


def _corners(corners: Sequence[tuple[Corner, ...]], room: float) -> list[int]:
    """Returns which corner each piece takes: the fewest seconds with at most `room` bytes in all, which can be met."""
    sizes = [len(one) for one in corners]
    owner = np.repeat(np.arange(len(corners)), sizes)
    width = len(owner)
    scale = max(1.0, float(sum(one[0].kept_bytes for one in corners)))
    seconds = np.array([corner.seconds for one in corners for corner in one])
    kept = np.array([corner.kept_bytes for one in corners for corner in one]) / scale
    matrix = sparse.vstack(
        [sparse.csr_matrix((np.ones(width), (owner, np.arange(width))), (len(corners), width)), sparse.csr_matrix(kept)]
    )
    low = np.concatenate([np.ones(len(corners)), [-np.inf]])
    high = np.concatenate([np.ones(len(corners)), [room / scale]])
    found = solve_rows(
        Rows(seconds / max(float(seconds.max()), 1e-300), matrix.tocsr(), low, high, width),
        integer=True,
        step_limit=_STEPS,
    )
    starts = np.cumsum([0, *sizes[:-1]])
    chosen = [size - 1 for size in sizes]  # the least bytes: it always fits
    if isinstance(found, Point):
        solved = [int(np.argmax(found.values[a : a + size])) for a, size in zip(starts, sizes, strict=True)]
        if sum(one[k].kept_bytes for one, k in zip(corners, solved, strict=True)) <= room:
            chosen = solved
    return _relaxed(corners, chosen, room)


def _relaxed(corners: Sequence[tuple[Corner, ...]], chosen: list[int], room: float) -> list[int]:
    """Returns the choice with what still fits taken back: most seconds a byte first."""
    kept = sum(one[k].kept_bytes for one, k in zip(corners, chosen, strict=True))
    while True:
        fitting = [
            ((one[k].seconds - one[k - 1].seconds) / (one[k - 1].kept_bytes - one[k].kept_bytes), -number)
            for number, (one, k) in enumerate(zip(corners, chosen, strict=True))
            if k and kept + one[k - 1].kept_bytes - one[k].kept_bytes <= room
        ]
        if not fitting:
            return chosen
        number = -max(fitting)[1]
        kept += corners[number][chosen[number] - 1].kept_bytes - corners[number][chosen[number]].kept_bytes
        chosen[number] -= 1


def _units(pieces: Sequence[Piece], room: float) -> list[Label] | None:
    """Returns what becomes of each piece, solved over all units and values.

    The result is None where it is not proven to be the best.

    Variables: r of each unit, then a of each value that the backward pass may do without, then h of each that may wait
    in host memory. Rows: r_u <= a_v for what u reads; a_v >= r_u for what it makes; h_v + r_u <= a_v for what may wait
    there, which is made by u; the bytes with a_v - r_u - h_v that stay.
    """
    first = np.cumsum([0, *(len(piece.seconds) for piece in pieces)])
    num_units = int(first[-1])
    places = [
        (p, value) for p, piece in enumerate(pieces) for value in range(len(piece.num_bytes)) if value not in piece.late
    ]
    column = {place: num_units + k for k, place in enumerate(places)}
    waiting = [
        (p, value) for p, piece in enumerate(pieces) for value, seconds in enumerate(piece.host_s) if isfinite(seconds)
    ]
    there = {place: num_units + len(places) + k for k, place in enumerate(waiting)}
    width = num_units + len(places) + len(waiting)
    scale = max(1.0, float(sum(sum(piece.num_bytes) for piece in pieces)))
    entries: list[tuple[int, int, float]] = []
    high: list[float] = []
    budget, spent = np.zeros(width), 0.0
    cost = np.zeros(width)
    for p, piece in enumerate(pieces):
        for unit, seconds in enumerate(piece.seconds):
            r = int(first[p]) + unit
            cost[r] = seconds
            if not piece.may_repeat[unit]:
                entries.append((len(high), r, 1.0))
                high.append(0.0)
            for value in (*piece.reads[unit], *piece.makes[unit]):
                if (p, value) in column:
                    entries += [(len(high), r, 1.0), (len(high), column[p, value], -1.0)]
                    high.append(0.0)
            for value in piece.makes[unit]:
                budget[r] -= piece.num_bytes[value] / scale
                if (p, value) in column:
                    budget[column[p, value]] += piece.num_bytes[value] / scale
                else:
                    spent += piece.num_bytes[value] / scale
                if (p, value) in there:
                    h = there[p, value]
                    cost[h] = piece.host_s[value]
                    budget[h] -= piece.num_bytes[value] / scale
                    entries += [(len(high), h, 1.0), (len(high), r, 1.0)]
                    if (p, value) in column:
                        entries.append((len(high), column[p, value], -1.0))
                    high.append(0.0 if (p, value) in column else 1.0)
    entries += [(len(high), k, float(budget[k])) for k in np.flatnonzero(budget).tolist()]
    high.append(room / scale - spent)
    rows, columns, values = zip(*entries, strict=True) if entries else ((), (), ())
    matrix = sparse.csr_matrix((values, (rows, columns)), (len(high), width))
    unit_cost = cost / max(float(cost.max()), 1e-300)
    integers = width if waiting else num_units
    found = solve_rows(
        Rows(unit_cost, matrix, np.full(len(high), -np.inf), np.array(high), integers), integer=True, step_limit=_STEPS
    )
    if not isinstance(found, Point):
        return None
    chosen = []
    for p, piece in enumerate(pieces):
        repeated = tuple(u for u in range(len(piece.seconds)) if found.values[first[p] + u] > 0.5)
        at_hand = [v for v in piece.saved(repeated) if (p, v) in there and found.values[there[p, v]] > 0.5]
        chosen.append(Label(repeated, tuple(at_hand)))
    stays = sum(
        piece.kept(label.repeated) - sum(piece.num_bytes[value] for value in label.hosted)
        for piece, label in zip(pieces, chosen, strict=True)
    )
    return chosen if stays <= room else None
