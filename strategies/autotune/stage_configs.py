"""Configurations stage by stage: ops, devices and recomputation of each, and what a step takes so.

A *division* is how the devices of a rank share a stage: copies by data (`dp`) times parts of tensors (`tp`). A model
says what stretches of its line take under each (`StageModel`), from which every configuration is estimated in
microseconds (`StageEstimates`):

    seconds of a stage     what it computes, its collectives, what it recomputes, the transfers to and from it
    step                   (micro-batches - 1) x the longest stage + all stages once

Where a stage `recomputes`, that is what its memory asks for: the least that makes it fit, or all that it can where it
does not fit then either. Devices are numbered along the line, `per_node` to a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import inf
from typing import Final, Protocol

import numpy as np

from rhino.ir.arrays import Floats
from rhino.strategies.pipeline.stages.shapes import Shape

EVEN: Final = 1e-4
"""Relative: how closely the least that the longest stage can be is found."""

_DOUBLINGS: Final = 6
"""How often the longest stage may be doubled to find one with which a configuration fits."""

_SHORTER: Final = 0.8
"""Times the longest stage: what is tried next, as long as no limit is known to be too low."""

_OVER: Final = 1.0
"""What is missing at least where nothing fits, whatever the model estimates; in bytes."""

Rank = tuple[float, float]
"""Orders configurations, best first: by how much is missing in the memory of a device, then by step."""


@dataclass(frozen=True, slots=True, order=True)
class Division:
    """How a rank shares a stage; where single ops are shared otherwise than that, `variant` says how."""

    dp: int
    tp: int
    variant: int = 0

    @property
    def devices(self) -> int:
        """The devices of the rank."""
        return self.dp * self.tp


@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """A stage up to before the place `end`, from where the stage before it ends."""

    end: int
    division: Division
    recomputes: bool = False


@dataclass(frozen=True, slots=True, order=True)
class StageConfig:
    """Stages in the order of the line, and the number of micro-batches."""

    micro_batches: int
    stages: tuple[Stage, ...]

    @property
    def bounds(self) -> tuple[int, ...]:
        """Where stages begin, and where the last one ends [stages + 1]."""
        return 0, *(one.end for one in self.stages)

    @property
    def divisions(self) -> tuple[Division, ...]:
        """The division of each stage."""
        return tuple([one.division for one in self.stages])


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """What stretches of a line that begin at one place take as stages on one division, by where they end.

    Shapes: all [places + 1]. Units: seconds per micro-batch; bytes of a device. `again_s` is what recomputing takes
    that memory asks for, infinite where nothing fits; `over_bytes` is by how much a stage that recomputes nothing is
    over the memory of a device, below 0 where it fits.
    """

    compute_s: Floats
    collectives_s: Floats
    again_s: Floats
    over_bytes: Floats


class StageModel(Protocol):
    """A line of `num_places` ops on `num_devices` devices, `per_node` to a node.

    `micro_batches` are the possible numbers of them, ascending. No stretches are asked for twice.
    """

    num_places: int
    num_devices: int
    per_node: int
    micro_batches: tuple[int, ...]

    def divisions(self, micro_batches: int) -> tuple[Division, ...]:
        """Returns how a rank can share a stage, sorted."""

    def placed(self, division: Division, first: int) -> Division | None:
        """Returns the division as it is on devices from `first` on, None where a rank may not begin there."""

    def stretches(self, micro_batches: int, division: Division, behind: int, start: int) -> Stretches:
        """Returns what stretches from a place take that have so many stages behind them."""

    def least_over(self, micro_batches: int, division: Division, behind: int, start: int, end: int) -> float:
        """Returns by how many bytes a stage of which nothing fits is over the memory, if it recomputes all it can."""

    def shape(self, micro_batches: int, division: Division) -> Shape:
        """Returns what the transfers of a stage take."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What a stage comes to: seconds per micro-batch, transfers among its collectives; bytes over a device's memory."""

    compute_s: float
    collectives_s: float
    again_s: float
    over_bytes: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute_s + self.collectives_s + self.again_s


@dataclass(frozen=True, slots=True)
class Figures:
    """What a configuration comes to."""

    step_s: float
    over_bytes: float
    stages: tuple[StageFigures, ...]

    @property
    def rank(self) -> Rank:
        """Its place among others."""
        return self.over_bytes, self.step_s


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """Stretches with transfers: seconds where they recompute what memory asks for, and the least of all longer ones."""

    of: Stretches
    transfers_s: Floats
    seconds: Floats
    reach: Floats


@dataclass(slots=True, eq=False)
class RankLine:
    """The stretches of a line as stages on one rank.

    So many stages are `behind`; `enters` and `leaves` say whether the neighbours are in other nodes.
    """

    model: StageModel
    micro_batches: int
    division: Division
    behind: int
    enters: int
    leaves: int
    known: dict[int, _Fitted] = field(default_factory=dict)

    def seconds(self, start: int, end: int) -> float:
        """Returns what a stage takes that recomputes what its memory asks for, infinite where it does not fit."""
        return float(self.ends(start).seconds[end])

    def least_over(self, start: int, end: int) -> float:
        """Returns by how many bytes a stage is over its memory that recomputes what this asks for, or all it can."""
        of = self.ends(start).of
        if of.again_s[end] < inf:
            return min(float(of.over_bytes[end]), 0.0)
        least = self.model.least_over(self.micro_batches, self.division, self.behind, start, end)
        return max(least, _OVER)

    def recomputes(self, start: int, end: int) -> bool:
        """Says whether memory asks a stage to recompute."""
        return bool(self.ends(start).of.over_bytes[end] > 0)

    def longest(self, start: int, most: int, limit_s: float) -> int:
        """Returns where the longest stage within a limit ends, at most so far on; its start where there is none."""
        ends = self.ends(start)
        end = min(most, int(ends.reach.searchsorted(limit_s, "right")) - 1)
        while end > start and ends.seconds[end] > limit_s:
            end -= 1
        return max(start, end)

    def figures(self, start: int, end: int, *, recomputes: bool) -> StageFigures:
        """Returns what a stage comes to."""
        ends = self.ends(start)
        of, again_s = ends.of, float(ends.of.again_s[end])
        collectives_s = float(of.collectives_s[end] + ends.transfers_s[end])
        over = self.least_over(start, end) if recomputes else float(of.over_bytes[end])
        return StageFigures(
            float(of.compute_s[end]), collectives_s, again_s if recomputes and again_s < inf else 0.0, over
        )

    def ends(self, start: int) -> _Fitted:
        """Returns what stretches from a place take, by where they end."""
        if (found := self.known.get(start)) is None:
            of = self.model.stretches(self.micro_batches, self.division, self.behind, start)
            shape = self.model.shape(self.micro_batches, self.division)
            transfers_s = shape.enters[self.enters][start] + shape.leaves[self.leaves]
            seconds = of.compute_s + of.collectives_s + of.again_s + transfers_s
            reach = np.minimum.accumulate(seconds[::-1])[::-1].copy()
            reach[: start + 1] = -inf
            self.known[start] = found = _Fitted(of, transfers_s, seconds, reach)
        return found


Ranks = tuple[RankLine, ...]


@dataclass(eq=False)
class StageEstimates:
    """Estimates configurations of a model."""

    model: StageModel
    known: dict[StageConfig, Figures] = field(default_factory=dict)
    _even: dict[tuple[int, tuple[Division, ...]], StageConfig | None] = field(default_factory=dict)
    _ranks: dict[tuple[int, tuple[Division, ...]], Ranks] = field(default_factory=dict)
    _lines: dict[tuple[int, Division, int, int, int], RankLine] = field(default_factory=dict)

    def figures(self, config: StageConfig) -> Figures:
        """Returns what a configuration comes to."""
        if (known := self.known.get(config)) is not None:
            return known
        stages = tuple(
            [
                rank.figures(start, one.end, recomputes=one.recomputes)
                for rank, start, one in zip(self.ranks(config), config.bounds, config.stages, strict=False)
            ]
        )
        seconds = [one.seconds for one in stages]
        over = max(0.0, max(one.over_bytes for one in stages))
        found = Figures((config.micro_batches - 1) * max(seconds) + sum(seconds), over, stages)
        self.known[config] = found
        return found

    def fitted(self, config: StageConfig, bounds: Sequence[int] | None = None) -> StageConfig:
        """Returns a configuration whose stages recompute where their memory asks for it, in other bounds if given."""
        pairs = list(pairwise(bounds or config.bounds))
        stages = [
            Stage(end, rank.division, rank.recomputes(start, end))
            for rank, (start, end) in zip(self.ranks(config), pairs, strict=True)
        ]
        return StageConfig(config.micro_batches, tuple(stages))

    def even(self, config: StageConfig) -> StageConfig | None:
        """Returns a configuration with the bounds that make its longest stage least; None where none fit."""
        key = config.micro_batches, config.divisions
        if key not in self._even:
            bounds = self._even_bounds(config)
            self._even[key] = self.fitted(config, bounds) if bounds else None
        return self._even[key]

    def _even_bounds(self, config: StageConfig) -> tuple[int, ...] | None:
        ranks = self.ranks(config)
        low_s, high_s = 0.0, max(one.seconds for one in self.figures(config).stages)
        for _ in range(_DOUBLINGS if high_s < inf else 0):
            if bounds := self.within(ranks, high_s):
                break
            low_s, high_s = high_s, 2 * high_s
        else:
            return None
        high_s = _longest_s(ranks, bounds)
        while high_s > low_s * (1 + EVEN):
            limit_s = max((low_s + high_s) / 2, _SHORTER * high_s)
            if found := self.within(ranks, limit_s):
                bounds, high_s = found, _longest_s(ranks, found)
            else:
                low_s = limit_s
        return bounds

    def within(self, ranks: Ranks, limit_s: float) -> tuple[int, ...] | None:
        """Returns bounds with no stage over a limit, each as far as it goes; None if the line is longer than that."""
        bounds, num = [0], self.model.num_places
        for number, rank in enumerate(ranks[:-1], 1):
            # Each stage behind has at least one op.
            end = rank.longest(bounds[-1], num - (len(ranks) - number), limit_s)
            if end == bounds[-1]:
                return None
            bounds.append(end)
        return (*bounds, num) if ranks[-1].seconds(bounds[-1], num) <= limit_s else None

    def quickest(self, config: StageConfig, number: int, micro_batches: int) -> Division | None:
        """Returns the division on as many devices that is quickest for a stage with other micro-batches, if any."""
        bounds, rank = config.bounds, self.ranks(config)[number]
        alike = [one for one in self.model.divisions(micro_batches) if one.devices == rank.division.devices]
        seconds = {
            one: self.line(micro_batches, one, rank.behind, rank.enters, rank.leaves).seconds(
                *bounds[number : number + 2]
            )
            for one in alike
        }
        return min(alike, key=lambda one: (seconds[one], one), default=None)

    def ranks(self, config: StageConfig) -> Ranks:
        """Returns the line as it is on the rank of each stage."""
        key = config.micro_batches, config.divisions
        if (found := self._ranks.get(key)) is None:
            per_node, first, some = self.model.per_node, 0, []
            for number, division in enumerate(config.divisions):
                enters, leaves = first > 0 and first % per_node == 0, (first + division.devices) % per_node == 0
                behind = len(config.stages) - 1 - number
                some.append(self.line(config.micro_batches, division, behind, int(enters), int(leaves)))
                first += division.devices
            self._ranks[key] = found = tuple(some)
        return found

    def line(self, *rank: *tuple[int, Division, int, int, int]) -> RankLine:
        """Returns the line on a rank: see `RankLine`."""
        if rank not in self._lines:
            self._lines[rank] = RankLine(self.model, *rank)
        return self._lines[rank]


def _longest_s(ranks: Ranks, bounds: Sequence[int]) -> float:
    return max(rank.seconds(start, end) for rank, (start, end) in zip(ranks, pairwise(bounds), strict=True))


def placed(model: StageModel, config: StageConfig) -> StageConfig | None:
    """Returns a configuration with its stages on all devices; None where they are more or fewer, or lie wrong."""
    stages, first = [], 0
    for stage in config.stages:
        if first >= model.num_devices or (division := model.placed(stage.division, first)) is None:
            return None
        stages.append(replace(stage, division=division))
        first += division.devices
    return replace(config, stages=tuple(stages)) if first == model.num_devices else None


def balanced(model: StageModel, stages: int) -> StageConfig | None:
    """Returns a configuration to begin with: devices and ops shared evenly, micro-batches as small as they can be.

    Devices are as even as they can be where each stage has some that lie together; early stages have more of them
    where that is all the same. None where there is none.
    """
    micro_batches = model.micro_batches[-1]
    known = [one for one in model.divisions(micro_batches) if one.variant == 0]
    widths = sorted({one.devices for one in known}, reverse=True)
    chosen = {width: min((one for one in known if one.devices == width), key=_squareness) for width in widths}

    @cache
    def most_even(left: int, first: int) -> tuple[int, tuple[int, ...]] | None:
        """Returns how uneven the devices from one on are on so many stages at least, and how many each has."""
        if not left:
            return (0, ()) if first == model.num_devices else None
        best: tuple[int, tuple[int, ...]] | None = None
        for width in widths:
            if first + width > model.num_devices or model.placed(chosen[width], first) is None:
                continue
            if (rest := most_even(left - 1, first + width)) is not None:
                uneven = rest[0] + (width * stages - model.num_devices) ** 2
                if best is None or uneven < best[0]:
                    best = uneven, (width, *rest[1])
        return best

    found = most_even(stages, 0)
    ends = [round(model.num_places * (number + 1) / stages) for number in range(stages)]
    if found is None or len({0, *ends}) <= stages:
        return None
    each = [Stage(end, chosen[width]) for end, width in zip(ends, found[1], strict=True)]
    return placed(model, StageConfig(micro_batches, tuple(each)))


def _squareness(one: Division) -> tuple[int, Division]:
    return max(one.dp, one.tp), one
