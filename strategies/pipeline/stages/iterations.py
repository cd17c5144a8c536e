"""Where loops over layers are cut for a pipeline: which of their iterations each stage gets.

A step is a line of parts: what stands before the first loop, its iterations, what stands between it and the next, and
so on. A part has what the forward pass does there and what the backward pass does, as both are on one stage. Stages are
cuts of this line. An iteration in which one stage ends and the next begins becomes a piece of its own, and so do those
`BESIDE` it: they are no loops, so that the cut of their ops decides where the stage ends. Iterations are cut at `GRAIN`
places. Where that comes to more than `MOST_PIECES`, and whole iterations make stages as even to `WHOLE`, stages end
between iterations, and each has one piece of a loop: as many as stages, and not as many as layers.

Of all cuts it is one whose largest stage is the smallest, to `TOLERANCE`; of these the one that ends stages in the
fewest iterations, and then the most even one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.ir.graph.graph import Graph

GRAIN: Final = 8
"""At how many places in an iteration a stage may end: of 32 layers in 4 stages a place is a hundredth of a stage."""

BESIDE: Final = 1
"""How many iterations before and behind the end of a stage are pieces of their own, so that it may end in them, too.

A line is an estimate: it knows no transfers, nor that iterations without a loop take less. With none, steps in 4 stages
took 1 to 10 % more (`python bench/search.py staged-loops`, 2026-11-26).
"""

MOST_PIECES: Final = 32
"""In how many pieces loops are cut for stages to end inside of iterations.

A step has as many ops as pieces, and planning takes as long: 126 layers in 16 stages are 61 pieces, or 16.
"""

WHOLE: Final = 0.02
"""By what share the largest stage of whole iterations may be over the least there is, where there are many pieces.

It is less than what a line leaves out: it knows no transfers.
"""

TOLERANCE: Final = 0.005
"""By what share the largest stage may be over the least there is: the smallest of `balance.TOLERANCES`."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the line: its seconds in all, and in how many equal pieces it can be cut.

    `grain` of these are an iteration.
    """

    seconds: float
    num_pieces: int
    grain: int = 1


@dataclass(frozen=True, slots=True)
class LayerLoops:
    """The loops over the same layers, by the numbers of their ops, and how often they run.

    The first of them is that of the forward pass.
    """

    ops: tuple[int, ...]
    trips: int


def cut_iterations(
    graph: Graph, seconds: Floats, counted: Bools, loops: Sequence[LayerLoops], rates: Sequence[float]
) -> list[list[int]]:
    """Returns for each of `loops` the iterations at which it is cut, with 0 and the last: [0, 8, 16] are two pieces.

    `loops` are in the order of their first ops.

    Shapes: `seconds` [ops], of each op in a step; `counted` [ops], which of them stages share; `rates` [stages], how
    much of that each stage does in a second.
    """
    return cut_line(line_of(graph, np.where(counted, seconds, 0.0), loops), rates)


def cut_line(line: Sequence[Part], rates: Sequence[float]) -> list[list[int]]:
    """Returns for each loop of a line, one iteration a piece, the iterations at which it is cut."""
    trips = [part.num_pieces for part in line[1::2]]
    fine, whole = (cut_at(line, grain, len(rates)) for grain in (GRAIN, 1))
    found = [iterations(own, count) for own, count in zip(_places(fine, rates), trips, strict=True)]
    are_many = sum(len(own) - 1 for own in found) > MOST_PIECES
    if are_many and _largest(whole, rates) <= _largest(fine, rates) * (1 + WHOLE):
        return [[0, *own, count] for own, count in zip(_places(whole, rates), trips, strict=True)]
    return found


def _places(line: Sequence[Part], rates: Sequence[float]) -> list[list[int]]:
    """Returns at which places of each loop of a line stages end."""
    borders = even_cut(line, rates)
    return [[at for part, at in borders if part == number] for number in range(1, len(line), 2)]


def _largest(line: Sequence[Part], rates: Sequence[float]) -> float:
    """Returns the seconds of the largest stage of the most even cut."""
    return float(least_largest(line, rates)[-1, -1])


def cut_at(line: Sequence[Part], grain: int, num_stages: int) -> list[Part]:
    """Returns a line that can be cut at `grain` places in iterations, and as often around loops as these are large."""
    total = sum(part.seconds for part in line)
    share = [int(part.seconds * num_stages / total) if total else 0 for part in line]
    return [
        Part(part.seconds, part.num_pieces * grain, grain) if number % 2 else replace(part, num_pieces=max(1, own))
        for number, (part, own) in enumerate(zip(line, share, strict=True))
    ]


def iterations(places: Sequence[int], trips: int) -> list[int]:
    """Returns at which of its `trips` iterations a loop is cut, if stages end at `places`, `GRAIN` of them in each."""
    found = {one for place in places for one in range(place // GRAIN - BESIDE, -(-place // GRAIN) + BESIDE + 1)}
    return sorted({0, trips, *(one for one in found if 0 < one < trips)})


def line_of(graph: Graph, seconds: Floats, loops: Sequence[LayerLoops]) -> list[Part]:
    """Returns the parts of a step: 0, 2, ... are around loops, and 1, 3, ... are the loops.

    An op stands behind the last loop that it follows from; one that follows from a loop of the backward pass, before
    the first of these layers.
    """
    unit: Ints = np.arange(graph.num_ops)
    of_layers = [op for one in loops for op in one.ops]
    for loop in graph.loops[::-1]:
        if not any(loop.op < op < loop.end for op in of_layers):  # as the loop over micro-batches, which is all of it
            unit[loop.op : loop.end + 1] = loop.op
    forward = {one.ops[0]: number for number, one in enumerate(loops)}
    back = {op: number for number, one in enumerate(loops) for op in one.ops[1:]}
    behind, before = np.zeros(graph.num_ops, dtype=np.int64), np.full(graph.num_ops, len(loops), dtype=np.int64)
    taken = [0.0] * (2 * len(loops) + 1)
    for op in range(graph.num_ops):
        own = int(unit[op])
        for value in graph.operands(op).tolist():
            made_by = int(graph.value_op[value])
            if made_by >= 0:
                behind[own] = max(behind[own], behind[unit[made_by]])
                before[own] = min(before[own], before[unit[made_by]])
        if own in forward:
            behind[own] = max(behind[own], forward[own] + 1)
        if own in back:
            before[own] = min(before[own], back[own])
    for op in range(graph.num_ops):
        own = int(unit[op])
        number = forward.get(own, back.get(own))
        place = 2 * number + 1 if number is not None else 2 * int(min(behind[own], before[own]))
        taken[place] += float(seconds[op])
    return [Part(one, loops[number // 2].trips if number % 2 else 1) for number, one in enumerate(taken)]


def even_cut(line: Sequence[Part], rates: Sequence[float]) -> list[tuple[int, int]]:
    """Returns the borders between stages that lie inside of parts: the part, and behind how many of its pieces.

    Each stage does as much of the line's seconds in one as `rates` says [stages].
    """
    num_stages = len(rates)
    places = [(number, piece) for number, part in enumerate(line) for piece in range(part.num_pieces)]
    upto = _upto(line)
    count = len(places)
    largest = least_largest(line, rates)[num_stages, count] * (1 + TOLERANCE)
    # More than all squares come to, for a stage that begins inside an iteration.
    inside = np.array([*(piece % line[number].grain > 0 for number, piece in places), False]) * (
        1 + (upto[-1] / min(rates)) ** 2
    )
    squares = np.full((num_stages + 1, count + 1), inf)
    came = np.zeros((num_stages + 1, count + 1), dtype=np.int64)
    squares[0, 0] = 0.0
    for stage in range(1, num_stages + 1):
        for end in range(count + 1):
            own = (upto[end] - upto[: end + 1]) / rates[stage - 1]
            sums = np.where(own <= largest, squares[stage - 1, : end + 1] + own**2 + inside[: end + 1], inf)
            came[stage, end] = int(sums.argmin())
            squares[stage, end] = sums[came[stage, end]]
    ends = [count]
    for stage in range(num_stages, 0, -1):
        ends.append(int(came[stage, ends[-1]]))
    found = sorted({end for end in ends if 0 < end < count})
    return [places[end] for end in found if places[end][1]]


def least_largest(line: Sequence[Part], rates: Sequence[float]) -> Floats:
    """Returns the seconds of the largest of so many stages of the first pieces of a line [stages + 1, pieces + 1]."""
    upto = _upto(line)
    least = np.full((len(rates) + 1, len(upto)), inf)
    least[0, 0] = 0.0
    for stage, rate in enumerate(rates, 1):
        for end in range(len(upto)):
            own = (upto[end] - upto[: end + 1]) / rate
            least[stage, end] = np.maximum(least[stage - 1, : end + 1], own).min()
    return least


def _upto(line: Sequence[Part]) -> Floats:
    """Returns the seconds of the pieces before each place, and of all [pieces + 1]."""
    size = np.repeat([part.seconds / part.num_pieces for part in line], [part.num_pieces for part in line])
    return np.concatenate([[0.0], np.cumsum(size)])
