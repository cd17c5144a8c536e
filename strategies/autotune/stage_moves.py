"""Reconfiguration primitives: the ten of Aceso's Table 1 on single stages, with their partners.

| primitive | what it does to the stage | partner |
| --- | --- | --- |
| dec-op# | gives ops from one of its ends | inc-op#: stages between pass on as many as they get, up to the partner |
| inc-op# | takes ops, as the partner of dec-op# | the stage that gives them |
| inc-mbs, dec-mbs | fewer or more micro-batches, for all stages | none |
| inc-dp, inc-tp | more copies, or more parts | dec-dp or dec-tp of itself, of another stage or of two neighbours |
| dec-dp, dec-tp | fewer copies, or fewer parts | inc-dp or inc-tp of itself, of another stage or of two neighbours |
| inc-rc | recomputes what its memory asks for | none |
| dec-rc | recomputes nothing where memory does not ask for it | none |

*Combinations*, as in section 4.3: inc-rc and dec-rc go with all others, for the stages that change; ops are passed on
from stage to stage; and where devices or micro-batches change, ops are moved so that stages are even again, for which a
chain of dec-op# would be needed otherwise. With other micro-batches each stage is divided as is quickest then.

How many ops dec-op# moves: as few as bring all stages concerned under a goal, the tightest first: what the partner
takes as it is, then ever more of the way up to what the stage takes.

Source: Aceso sections 3.2.1, 4.1 and 4.3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final, Literal

from rhino.strategies.autotune.stage_configs import Division, StageConfig, StageEstimates, placed

Resource = Literal["memory", "compute", "collectives"]

GOALS: Final = 8
"""How many goals dec-op# has between what its partner takes and what the stage takes."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A kind of move: what it relieves in a stage, and the configurations that it leads to, by a stage's number."""

    name: str
    relieves: tuple[Resource, ...]
    apply: Callable[[StageEstimates, StageConfig, int], Iterator[StageConfig]]


def _fewer_ops(estimates: StageEstimates, config: StageConfig, number: int) -> Iterator[StageConfig]:
    figures = estimates.figures(config)
    is_over = figures.over_bytes > 0
    for side in (range(number), range(number + 1, len(config.stages))):
        if side:
            idlest = min(
                side, key=lambda one: figures.stages[one].over_bytes if is_over else figures.stages[one].seconds
            )
            if (found := _relayed(estimates, config, number, idlest)) is not None:
                yield found
    yield _evened(estimates, config)


def _relayed(estimates: StageEstimates, config: StageConfig, number: int, partner: int) -> StageConfig | None:
    """Returns a configuration with ops moved from a stage to its partner, from stage to stage between them."""
    bounds, is_over = config.bounds, estimates.figures(config).over_bytes > 0
    takes = [one.least_over if is_over else one.seconds for one in estimates.ranks(config)]
    low, high = (takes[stage](bounds[stage], bounds[stage + 1]) for stage in (partner, number))
    for step in range(GOALS):
        found = _moved(takes, bounds, number, partner, low + (high - low) * step / GOALS)
        if found is not None and found != bounds:
            return estimates.fitted(config, found)
    return None


def _moved(
    takes: Sequence[Callable[[int, int], float]], bounds: Sequence[int], number: int, partner: int, goal: float
) -> tuple[int, ...] | None:
    """Returns bounds with as few ops moved as bring a stage, its partner and those between them under a goal."""
    found, forward = list(bounds), partner > number
    for stage in range(number, partner, 1 if forward else -1):
        start, end = found[stage : stage + 2]
        left = [(start, one) for one in range(end, start, -1)] if forward else [(one, end) for one in range(start, end)]
        few = bisect_left(left, True, key=partial(_is_within, takes[stage], goal))
        if few == len(left):
            return None
        found[stage], found[stage + 1] = left[few]
    return tuple(found) if takes[partner](found[partner], found[partner + 1]) <= goal else None


def _is_within(take: Callable[[int, int], float], goal: float, stretch: tuple[int, int]) -> bool:
    return take(*stretch) <= goal


def _evened(estimates: StageEstimates, config: StageConfig) -> StageConfig:
    """Returns a configuration with its ops shared evenly; as it is where that does not fit."""
    return estimates.even(config) or estimates.fitted(config)


def _other_micro_batches(step: int) -> Callable[[StageEstimates, StageConfig, int], Iterator[StageConfig]]:
    def apply(estimates: StageEstimates, config: StageConfig, _: int) -> Iterator[StageConfig]:
        numbers = estimates.model.micro_batches
        place = numbers.index(config.micro_batches) + step
        if 0 <= place < len(numbers):
            divisions = [estimates.quickest(config, stage, numbers[place]) for stage in range(len(config.stages))]
            stages = [
                replace(one, division=other) for one, other in zip(config.stages, divisions, strict=True) if other
            ]
            if len(stages) == len(config.stages):
                yield _evened(estimates, StageConfig(numbers[place], tuple(stages)))

    return apply


def _other_division(axis: Literal["dp", "tp"], *, up: bool) -> Callable[..., Iterator[StageConfig]]:
    def apply(estimates: StageEstimates, config: StageConfig, number: int) -> Iterator[StageConfig]:
        known = estimates.model.divisions(config.micro_batches)
        now = config.stages[number].division
        for other in _next(known, now, axis, up=up):
            for partners in _partners(known, config, number, other.devices - now.devices):
                yield from _divided(estimates, config, {number: other, **partners})
        # Devices of its own: one number is larger, the other smaller.
        for other in known:
            grows = other.dp > now.dp if (axis == "dp") == up else other.tp > now.tp
            if other.devices == now.devices and (grows or other.variant != now.variant) and other != now:
                yield from _divided(estimates, config, {number: other})

    return apply


def _divided(estimates: StageEstimates, config: StageConfig, divisions: dict[int, Division]) -> Iterator[StageConfig]:
    stages = list(config.stages)
    for number, division in divisions.items():
        stages[number] = replace(stages[number], division=division)
    other = replace(config, stages=tuple(stages))
    if (found := placed(estimates.model, other)) is not None:
        yield _evened(estimates, found)


def _next(known: Sequence[Division], now: Division, axis: str, *, up: bool) -> list[Division]:
    """Returns the division with the next larger or smaller number along one axis, none at the end."""
    same = "tp" if axis == "dp" else "dp"
    number = getattr(now, axis)
    found = [
        one
        for one in known
        if one.variant == 0
        and getattr(one, same) == getattr(now, same)
        and (getattr(one, axis) > number if up else getattr(one, axis) < number)
    ]
    return sorted(found, key=lambda one: abs(one.devices - now.devices))[:1]


def _partners(
    known: Sequence[Division], config: StageConfig, number: int, needed: int
) -> Iterator[dict[int, Division]]:
    """Yields other stages with the divisions by which they give so many devices, or take them if it is below 0."""
    up = needed < 0

    def ways(stage: int, count: int) -> list[Division]:
        now = config.stages[stage].division
        found = [one for axis in ("dp", "tp") for one in _next(known, now, axis, up=up)]
        return [one for one in dict.fromkeys(found) if now.devices - one.devices == count]

    others = [stage for stage in range(len(config.stages)) if stage != number]
    for stage in others:
        for one in ways(stage, needed):
            yield {stage: one}
    for stage, after in pairwise(others):
        if needed % 2 == 0:
            for one, other in zip(ways(stage, needed // 2), ways(after, needed // 2), strict=False):
                yield {stage: one, after: other}


def _recompute(*, more: bool) -> Callable[[StageEstimates, StageConfig, int], Iterator[StageConfig]]:
    def apply(_: StageEstimates, config: StageConfig, number: int) -> Iterator[StageConfig]:
        stages = list(config.stages)
        if stages[number].recomputes != more:
            stages[number] = replace(stages[number], recomputes=more)
            yield replace(config, stages=tuple(stages))

    return apply


PRIMITIVES: Final = (
    Primitive("dec-op#", ("memory", "compute"), _fewer_ops),
    Primitive("inc-mbs", ("compute",), _other_micro_batches(-1)),
    Primitive("dec-mbs", ("memory",), _other_micro_batches(1)),
    Primitive("inc-dp", ("memory", "compute"), _other_division("dp", up=True)),
    Primitive("dec-dp", ("collectives",), _other_division("dp", up=False)),
    Primitive("inc-tp", ("memory", "compute"), _other_division("tp", up=True)),
    Primitive("dec-tp", ("collectives",), _other_division("tp", up=False)),
    Primitive("inc-rc", ("memory",), _recompute(more=True)),
    Primitive("dec-rc", ("compute",), _recompute(more=False)),
)
"""Every kind of move; inc-op# is what happens to the partner of dec-op#."""
