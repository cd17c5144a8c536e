"""Configurations stage by stage: ops, devices and recomputation of each, and what a step takes so.

A *division* is how the devices of a rank share a stage: copies by data (`dp`) times parts of tensors (`tp`). A model
says what stretches of its line take under each (`StageModel`), from which every configuration is estimated in
microseconds (`StageEstimates`):

    seconds of a stage     what it computes, its collectives, what it recomputes, the transfers to and from it
    step                   (micro-batches - 1) x the longest stage + all stages once

Where a stage `recomputes`, that is what its memory asks for: the least that makes it fit, or all that it can where it
does not fit then either. Devices are numbered along the line, `per_node` to a node, and no stage begins inside a node
and ends in another.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import inf
from typing import Final, Protocol

import numpy as np

from rhino.ir.arrays import Floats
from rhino.strategies.pipeline.stages.shapes import Shape, is_placed

EVEN: Final = 1e-4
"""Relative: how closely the least that the longest stage can be is found."""

_DOUBLINGS: Final = 6
"""How often the longest stage may be doubled to find one with which a configuration fits."""

_SHORTER: Final = 0.8
"""Times the longest stage: what is tried next, as long as no limit is known to be too low."""

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
    that memory asks for, infinite where nothing fits; `needs_bytes` is what a stage needs that recomputes nothing,
    `least_bytes` where it recomputes all it can.
    """

    compute_s: Floats
    collectives_s: Floats
    again_s: Floats
    needs_bytes: Floats
    least_bytes: Floats


class StageModel(Protocol):
    """A line of ops on devices. What it gives is not asked for twice."""

    @property
    def num_places(self) -> int:
        """How long the line is."""

    @property
    def num_devices(self) -> int:
        """The devices of all stages together."""

    @property
    def per_node(self) -> int:
        """The devices of a node."""

    @property
    def budget_bytes(self) -> float:
        """What a device may hold."""

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """The possible numbers of micro-batches, ascending."""

    def divisions(self, micro_batches: int) -> tuple[Division, ...]:
        """Returns how a rank can share a stage, sorted."""

    def stretches(self, micro_batches: int, division: Division, behind: int, start: int) -> Stretches:
        """Returns what stretches from a place take that have so many stages behind them."""

    def shape(self, micro_batches: int, division: Division) -> Shape:
        """Returns what the transfers of a stage take."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What a stage comes to: seconds per micro-batch, transfers among its collectives; bytes of a device."""

    compute_s: float
    collectives_s: float
    again_s: float
    bytes: float

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
    reach: list[float]


@dataclass(eq=False)
class StageEstimates:
    """Estimates configurations of a model."""

    model: StageModel
    known: dict[StageConfig, Figures] = field(default_factory=dict)
    _even: dict[tuple[int, tuple[Division, ...]], StageConfig | None] = field(default_factory=dict)
    _fitted: dict[tuple[int, Division, int, int, int, int], _Fitted] = field(default_factory=dict)

    def figures(self, config: StageConfig) -> Figures:
        """Returns what a configuration comes to."""
        if config not in self.known:
            stages = tuple([self.stage(config, number) for number in range(len(config.stages))])
            seconds = [one.seconds for one in stages]
            over = max(0.0, max(one.bytes for one in stages) - self.model.budget_bytes)
            self.known[config] = Figures((config.micro_batches - 1) * max(seconds) + sum(seconds), over, stages)
        return self.known[config]

    def stage(self, config: StageConfig, number: int) -> StageFigures:
        """Returns what one stage comes to."""
        bounds = config.bounds
        ends = self.ends(config.micro_batches, config.divisions, number, bounds[number])
        end, of, budget = bounds[number + 1], ends.of, self.model.budget_bytes
        collectives_s = float(of.collectives_s[end] + ends.transfers_s[end])
        compute_s, again_s, needs = float(of.compute_s[end]), float(of.again_s[end]), float(of.needs_bytes[end])
        if not config.stages[number].recomputes:
            return StageFigures(compute_s, collectives_s, 0.0, needs)
        if again_s == inf:
            return StageFigures(compute_s, collectives_s, 0.0, max(float(of.least_bytes[end]), np.nextafter(budget, inf)))
        return StageFigures(compute_s, collectives_s, again_s, min(needs, budget))

    def is_placed(self, divisions: Sequence[Division]) -> bool:
        """Says whether stages have all devices, and none begins inside a node and ends in another."""
        firsts = list(accumulate((one.devices for one in divisions), initial=0))
        inside = all(is_placed(first, end, self.model.per_node) for first, end in pairwise(firsts))
        return inside and firsts[-1] == self.model.num_devices

    def fitted(self, config: StageConfig, bounds: Sequence[int] | None = None) -> StageConfig:
        """Returns a configuration whose stages recompute where their memory asks for it, in other bounds if given."""
        bounds, budget = bounds or config.bounds, self.model.budget_bytes
        stages = []
        for number, (start, end) in enumerate(pairwise(bounds)):
            ends = self.ends(config.micro_batches, config.divisions, number, start)
            recomputes = bool(ends.of.needs_bytes[end] > budget)
            stages.append(Stage(end, config.stages[number].division, recomputes))
        return replace(config, stages=tuple(stages))

    def even(self, config: StageConfig) -> StageConfig | None:
        """Returns a configuration with the bounds that make its longest stage least; None where none fit."""
        key = config.micro_batches, config.divisions
        if key not in self._even:
            self._even[key] = self._evened(config)
        return self._even[key]

    def _evened(self, config: StageConfig) -> StageConfig | None:
        low_s, high_s = 0.0, max(one.seconds for one in self.figures(config).stages)
        for _ in range(_DOUBLINGS if high_s < inf else 0):
            if bounds := self.within(config, high_s):
                break
            low_s, high_s = high_s, 2 * high_s
        else:
            return None
        high_s = self.longest(config, bounds)
        while high_s > low_s * (1 + EVEN):
            limit_s = max((low_s + high_s) / 2, _SHORTER * high_s)
            if found := self.within(config, limit_s):
                bounds, high_s = found, self.longest(config, found)
            else:
                low_s = limit_s
        return self.fitted(config, bounds)

    def within(self, config: StageConfig, limit_s: float) -> tuple[int, ...] | None:
        """Returns bounds with no stage over a limit, each as far as it goes; None if the line is longer than that."""
        start, bounds, last = 0, [0], len(config.stages) - 1
        for number in range(last + 1):
            ends = self.ends(config.micro_batches, config.divisions, number, start)
            if number == last:
                return (*bounds, self.model.num_places) if ends.seconds[-1] <= limit_s else None
            # Each stage behind has at least one op.
            most = self.model.num_places - (last - number)
            end = bisect_right(ends.reach, limit_s) - 1
            while end > most or (end > start and ends.seconds[end] > limit_s):
                end -= 1
            if end <= start:
                return None
            bounds.append(end)
            start = end
        return None

    def longest(self, config: StageConfig, bounds: Sequence[int]) -> float:
        """Returns the seconds of the longest stage in some bounds."""
        return max(
            float(self.ends(config.micro_batches, config.divisions, number, start).seconds[end])
            for number, (start, end) in enumerate(pairwise(bounds))
        )

    def ends(self, micro_batches: int, divisions: Sequence[Division], number: int, start: int) -> _Fitted:
        """Returns what stretches from a place take as the stage of a number."""
        first = sum([one.devices for one in divisions[:number]])
        division, per_node = divisions[number], self.model.per_node
        enters, leaves = int(first > 0 and first % per_node == 0), int((first + division.devices) % per_node == 0)
        behind = len(divisions) - 1 - number
        key = micro_batches, division, behind, start, enters, leaves
        if (found := self._fitted.get(key)) is None:
            of = self.model.stretches(micro_batches, division, behind, start)
            shape = self.model.shape(micro_batches, division)
            transfers_s = shape.enters[enters][start] + shape.leaves[leaves]
            seconds = of.compute_s + of.collectives_s + of.again_s + transfers_s
            reach = np.minimum.accumulate(seconds[::-1])[::-1].copy()
            reach[: start + 1] = -inf
            self._fitted[key] = found = _Fitted(of, transfers_s, seconds, reach.tolist())
        return found


def balanced(model: StageModel, stages: int) -> StageConfig | None:
    """Returns a configuration to begin with: devices and ops shared evenly, micro-batches as small as they can be.

    Where devices are not a multiple of the stages, early stages have more of them. None where there is none.
    """
    micro_batches = model.micro_batches[-1]
    known = [one for one in model.divisions(micro_batches) if one.variant == 0]
    widths = sorted({one.devices for one in known})
    place = bisect_left(widths, model.num_devices / stages)
    for wide, narrow in ((place, place), (place, place - 1)):
        if not 0 <= narrow <= wide < len(widths):
            continue
        over = model.num_devices - widths[narrow] * stages
        more = widths[wide] - widths[narrow]
        if over and (not more or over % more or over // more > stages):
            continue
        many = over // more if more else 0
        some = [widths[wide]] * many + [widths[narrow]] * (stages - many)
        ends = [round(model.num_places * (number + 1) / stages) for number in range(stages)]
        chosen = [min((one for one in known if one.devices == width), key=_squareness) for width in some]
        config = StageConfig(micro_batches, tuple([Stage(*one) for one in zip(ends, chosen, strict=True)]))
        if StageEstimates(model).is_placed(config.divisions) and len({0, *ends}) == stages + 1:
            return config
    return None


def _squareness(one: Division) -> tuple[int, Division]:
    return max(one.dp, one.tp), one
