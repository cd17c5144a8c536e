"""What each device recomputes of what it saves for the backward pass: as little work as its memory asks for.

Given where nodes are, each device takes steps of rematerialization whose nodes it has, each after the one before it:

    minimise    sum of seconds of the steps taken
    such that   own + resident + c * (saved - freed by the steps taken) + the most that one is there again <= budget

with c micro-batches in flight. What is there again at once is of one step, so for each size up to which steps may be
taken there is a knapsack (`_least`): the cheapest bytes first, which is a bound too, and where that leaves a gap, an
integer program. So an early stage, which holds more micro-batches, recomputes what a late one saves.

For stretches of a line (`stretch_remat`) it is told what suffices for certain: by steps in some levels of seconds for
a byte, and one step more than are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.strategies.pipeline.stages.stage_problem import OPEN, ROUNDING, RematSteps, StageProblem

LEVELS: Final = 12
"""In how many levels of seconds for a byte the steps of stretches are."""

CONTENT: Final = 1e-3
"""The share of a device's work that a better choice of steps would have to save to be looked for."""

DECIMALS: Final = 1e6
"""The parts of one in which shares are written."""


@dataclass(frozen=True, slots=True, eq=False)
class StageRemat:
    """What devices recompute.

    Shapes: `taken` [steps]; `added_s` [devices] per micro-batch, infinite where no steps suffice; `held_bytes`
    [devices] with what is recomputed at once; `freed_bytes` and `alive_bytes` [devices], the part of that which is
    freed of each micro-batch, and which is there again at once.
    """

    taken: Bools
    added_s: Floats
    held_bytes: Floats
    freed_bytes: Floats
    alive_bytes: Floats


def stage_remat(problem: StageProblem, device: Ints) -> StageRemat:
    """Returns what devices recompute, where node i is on `device[i]`, to stay within their budgets."""
    remat, num = problem.remat, problem.num_stages
    taken, held = np.zeros(len(remat), dtype=bool), problem.device_memory(device)
    added_s, freed, alive = np.zeros(num), np.zeros(num), np.zeros(num)
    over = np.zeros(num) if problem.budget_bytes is None else held - _limits(problem)
    at = step_devices(remat, device) if (over > 0).any() else np.zeros(0, dtype=np.int64)
    work = problem.device_work(device)
    for stage in np.flatnonzero(over > 0).tolist():
        seconds, in_flight = problem.step_seconds(problem.group_of(stage)), float(problem.in_flight()[stage])
        there = np.flatnonzero(at == stage)
        ratio = problem.step_bytes_ratio(problem.group_of(stage))
        found = _least(remat, there, seconds, over[stage] / ratio, in_flight, CONTENT * float(work[stage]))
        if found is None:
            added_s[stage] = np.inf
            continue
        taken[found] = True
        added_s[stage] = seconds[found].sum()
        freed[stage] = ratio * remat.nets.size[found].sum()
        alive[stage] = ratio * remat.alive_bytes[found].max(initial=0.0)
        held[stage] += alive[stage] - in_flight * freed[stage]
    return StageRemat(taken, added_s, held, freed, alive)


def remat_shares(problem: StageProblem, stage: Ints) -> tuple[float, ...]:
    """Returns the share of its activation stash that each stage recomputes, rounded down [stages].

    Shapes: `stage` [nodes], virtual.
    """
    device = problem.device(stage)
    freed = stage_remat(problem, device).freed_bytes
    ratio = np.array([problem.step_bytes_ratio(problem.group_of(one)) for one in range(problem.num_stages)])
    stash: Floats = np.ones(problem.num_stages)
    if freed.any():
        stash = ratio * np.bincount(device, weights=problem.remat.stash_bytes, minlength=problem.num_stages)
    shares: Floats = np.floor(np.minimum(freed / np.maximum(stash, 1e-300), 1.0) * DECIMALS) / DECIMALS
    return tuple(shares.tolist())


def fits(problem: StageProblem, device: Ints, limit_s: float) -> bool:
    """Says whether no device has more work than `limit_s`, nor holds more than the budget."""
    return bool((device_loads(problem, device) <= limit_s * (1 + ROUNDING)).all())


def device_loads(problem: StageProblem, device: Ints) -> Floats:
    """Returns the seconds of each device per micro-batch, infinite where it holds too much [devices]."""
    result: Floats = problem.device_work(device) + stage_remat(problem, device).added_s
    return result


def step_devices(remat: RematSteps, device: Ints) -> Ints:
    """Returns the device that has the nodes of each step, and of those before it; `OPEN` where none has [steps]."""
    found = np.full(len(remat), OPEN, dtype=np.int64)
    for step, previous in enumerate(remat.previous.tolist()):
        own = np.unique(device[remat.nets.nodes(step)])
        if len(own) == 1 and (previous == OPEN or found[previous] == own[0]):
            found[step] = own[0]
    return found


def _limits(problem: StageProblem) -> Floats:
    result: Floats = np.array(problem.budget_bytes) * (1 + ROUNDING)
    return result


def _least(
    remat: RematSteps, steps: Ints, seconds: Floats, over_bytes: float, in_flight: float, content_s: float
) -> Ints | None:
    """Returns those of `steps` of the fewest seconds that free so much, None where they cannot.

    `over_bytes` is what has to be freed of all micro-batches in flight, and what the steps are there again with.
    """
    best_s, best = np.inf, None
    for most in np.unique(remat.alive_bytes[steps]).tolist():
        allowed, wanted = _closed(remat, steps, most), (over_bytes + most) / in_flight
        size = remat.nets.size
        if size[allowed].sum() < wanted:
            continue
        least_s = _relaxed(seconds[allowed], size[allowed], wanted)
        if least_s >= best_s:
            continue
        found = _cheapest_first(remat, allowed, seconds, wanted)
        if seconds[found].sum() > max(least_s * (1 + ROUNDING), least_s + content_s):
            found = _solved(remat, allowed, seconds, wanted, found)
        if seconds[found].sum() < best_s:
            best_s, best = float(seconds[found].sum()), found
    return best


def _closed(remat: RematSteps, steps: Ints, most_bytes: float) -> Ints:
    """Returns the steps of which at most so much is there again, as for those before them."""
    kept: dict[int, None] = {}
    for step in steps.tolist():
        previous = int(remat.previous[step])
        if remat.alive_bytes[step] <= most_bytes and (previous == OPEN or previous in kept):
            kept[step] = None
    return np.array(list(kept), dtype=np.int64)


def _relaxed(seconds: Floats, size: Floats, wanted: float) -> float:
    """Returns a bound on the seconds: the cheapest bytes, whatever step comes before another."""
    order = np.argsort(seconds / np.maximum(size, 1e-300), kind="stable")
    freed = np.cumsum(size[order])
    last = int(np.searchsorted(freed, wanted))
    if last >= len(order):
        return float(seconds.sum())
    part = 1 - (freed[last] - wanted) / max(float(size[order[last]]), 1e-300)
    return float(seconds[order[:last]].sum() + part * seconds[order[last]])


def _cheapest_first(remat: RematSteps, steps: Ints, seconds: Floats, wanted: float) -> Ints:
    """Returns steps that free so much, the cheapest bytes first, without those that can be left out again."""
    order = steps[np.argsort(step_prices(remat, seconds)[steps], kind="stable")]
    size = remat.nets.size
    taken = dict.fromkeys(order[: 1 + int(np.searchsorted(np.cumsum(size[order]), wanted))].tolist())
    spare = float(size[list(taken)].sum()) - wanted
    for step in reversed(list(taken)):
        if size[step] <= spare and not any(remat.previous[other] == step for other in taken):
            del taken[step]
            spare -= float(size[step])
    return np.array(list(taken), dtype=np.int64)


def step_prices(remat: RematSteps, seconds: Floats) -> Floats:
    """Returns the seconds for a byte at which each step is taken, no less than that of the one before [steps]."""
    price = seconds / np.maximum(remat.nets.size, 1e-300)
    for step, previous in enumerate(remat.previous.tolist()):
        if previous != OPEN:
            price[step] = max(price[step], price[previous])
    return price


def _solved(remat: RematSteps, steps: Ints, seconds: Floats, wanted: float, known: Ints) -> Ints:
    """Returns steps that free so much by an integer program, or those that are known."""
    from rhino.strategies.solver.lp.small_programs import solve_small  # noqa: PLC0415 - loads LP solvers

    column = {step: number for number, step in enumerate(steps.tolist())}
    pairs = [(column[int(remat.previous[step])], at) for step, at in column.items() if remat.previous[step] != OPEN]
    matrix = np.zeros((1 + len(pairs), len(column)))
    matrix[0] = remat.nets.size[steps] / wanted
    for row, (before, after) in enumerate(pairs, 1):
        matrix[row, [before, after]] = 1.0, -1.0
    cost = seconds[steps] / max(float(seconds[steps].max()), 1e-300)
    low, high = np.array([1.0, *(0.0 for _ in pairs)]), np.full(1 + len(pairs), np.inf)
    found = solve_small(cost, matrix, low, high, np.ones(len(column)), integer=True)
    if found is None:
        return known
    taken = steps[found.values.round() > 0]
    is_enough = float(remat.nets.size[taken].sum()) >= wanted * (1 - ROUNDING)
    return taken if is_enough and seconds[taken].sum() < seconds[known].sum() else known


@dataclass(frozen=True, slots=True, eq=False)
class StretchRemat:
    """What stretches of a line can recompute, level by level: the cheapest bytes first.

    Shapes: `price` and `largest` [levels], the most seconds for a byte and the largest step of a level; `freed`,
    `seconds` and `alive` [levels, start, end], of all steps in a stretch up to a level.
    """

    price: tuple[float, ...]
    largest: tuple[float, ...]
    freed: tuple[Floats, ...]
    seconds: tuple[Floats, ...]
    alive: tuple[Floats, ...]

    def added_s(self, over_bytes: Floats, in_flight: float, start: Ints, end: Ints) -> Floats:
        """Returns the seconds that suffice for stretches to free `over_bytes`, infinite where none do [stretches].

        They are enough for steps taken in the order of levels: the last that is needed frees at most a `largest` more.
        """
        result = np.full(len(start), np.inf)
        open_ = np.arange(len(start))
        before_s, before = np.zeros(len(start)), np.zeros(len(start))
        for price, largest, *grids in zip(self.price, self.largest, self.freed, self.seconds, self.alive, strict=True):
            freed, seconds, alive = (grid[start[open_], end[open_]] for grid in grids)
            wanted = (over_bytes[open_] + alive) / in_flight
            within_s = before_s[open_] + price * (np.maximum(wanted - before[open_], 0.0) + largest)
            enough = freed >= wanted
            result[open_[enough]] = np.minimum(within_s, seconds)[enough]
            before_s[open_], before[open_] = seconds, freed
            open_ = open_[~enough]
        return result


def stretch_remat(problem: StageProblem, place: Ints, num_places: int, group: int) -> StretchRemat:
    """Returns what stretches of a line can recompute on devices of a group, where node i is at `place[i]`."""
    remat, seconds = problem.remat, problem.step_seconds(group)
    size, price = remat.nets.size, step_prices(remat, seconds)
    first, last = _step_places(remat, place)
    _, number = np.unique(price, return_inverse=True)
    share = np.cumsum(np.bincount(number, weights=size)) / max(float(size.sum()), 1e-300)
    level = np.minimum((np.concatenate([[0.0], share[:-1]]) * LEVELS).astype(np.int64), LEVELS - 1)[number]
    shape = num_places + 1, num_places + 1
    grids = [np.zeros(shape) for _ in range(3)]
    found: list[tuple[float, float, Floats, Floats, Floats]] = []
    for one in np.unique(level).tolist():
        own = np.flatnonzero(level == one)
        at = first[own], last[own] + 1
        for grid, weights in zip(grids[:2], (size, seconds), strict=True):
            more = np.zeros(shape)
            np.add.at(more, at, weights[own])
            grid += np.cumsum(np.cumsum(more, axis=1)[::-1], axis=0)[::-1]
        most = np.zeros(shape)
        np.maximum.at(most, at, remat.alive_bytes[own])
        most = np.maximum.accumulate(np.maximum.accumulate(most, axis=1)[::-1], axis=0)[::-1]
        grids[2] = np.maximum(grids[2], most)
        freed, added, alive = (grid.copy() for grid in grids)
        found.append((float(price[own].max()), float(size[own].max()), freed, added, alive))
    return StretchRemat(*zip(*found, strict=True)) if found else StretchRemat((), (), (), (), ())


def _step_places(remat: RematSteps, place: Ints) -> tuple[Ints, Ints]:
    """Returns the first and the last place of the nodes of each step and of those before it [steps]."""
    nets = remat.nets
    first, last = np.full(len(nets), np.iinfo(np.int64).max), np.full(len(nets), -1)
    np.minimum.at(first, nets.owner, place[nets.node])
    np.maximum.at(last, nets.owner, place[nets.node])
    for step, previous in enumerate(remat.previous.tolist()):
        if previous != OPEN:
            first[step], last[step] = min(first[step], first[previous]), max(last[step], last[previous])
    return first, last
