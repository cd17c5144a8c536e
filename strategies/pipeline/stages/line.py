"""Stages along a line: every node gets a place, and a stage is a stretch of it.

The search of stages begins there, and is measured by it.

The line is the program's own order, folded where the backward pass begins: a node in the backward pass stands where the
tensors and parameters that it shares with the forward pass are used last there, but not behind one that it follows.
Cutting a line is exact: the best stretches under given limits by dynamic programming.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.strategies.pipeline.stages.stage_problem import NO_NETS, OPEN, ROUNDING, Nets, StageProblem, make_nets
from rhino.strategies.pipeline.stages.stage_remat import StretchRemat, stretch_remat

MOST_BUCKETS = 400
"""Into how many stretches a line is cut first, each ending at its cheapest place.

Stages are made of whole stretches.
"""

MOST_SHARES = 2.0
"""Times its even share of all work, with all that can be recomputed: what a stage that recomputes has at most."""

NEGLIGIBLE = 1e-3
"""The share of all work below which what leads to a node says nothing of its place.

The node stands where it is read first.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Nodes in stretches of a line, and which of them run in the backward pass.

    Shapes: `place` [nodes], 0 .. num_places - 1; `back` [nodes].
    """

    place: Ints
    num_places: int
    back: Bools

    def stages(self, problem: StageProblem, ends: Ints) -> Ints:
        """Returns the virtual stage of each node, where stage s ends before place `ends[s]`."""
        device = np.searchsorted(ends, self.place, side="right").astype(np.int64)
        return np.where(self.back, problem.virtual.opposite(device), device)


def lines_of(problem: StageProblem) -> tuple[Line, ...]:
    """Returns the lines folded by each kind of tellers, and the unfolded one."""
    never = np.zeros(problem.num_nodes, dtype=bool)
    folded = [(problem.late, tellers) for tellers in _tellers(problem)] if problem.late.any() else []
    lines = [(back, keys_on_line(problem, back, tellers)) for back, tellers in [*folded, (never, NO_NETS)]]
    return tuple(in_buckets(problem, key, back) for back, key in lines)


def _tellers(problem: StageProblem) -> tuple[Nets, ...]:
    """Returns three sets of nets that may tell where a node of the backward pass belongs.

    The first has all nets, the second those used twice in the forward pass, the third what devices hold. What the
    forward pass makes for the backward pass alone may be of an end of it, as what one of two towers gives is, and then
    tells nothing of where it is used. What skips layers, or is compared with the result in the end, tells nothing
    either; parameters do.
    """
    nets = problem.nets
    twice = np.bincount(nets.owner, weights=~problem.late[nets.node], minlength=len(nets)) >= 2
    members = ((nets.nodes(net).tolist(), float(nets.size[net])) for net in np.flatnonzero(twice).tolist())
    return nets, make_nets(members), problem.resident


def keys_on_line(problem: StageProblem, back: Bools, tellers: Nets) -> Ints:
    """Returns the place of each node on the line of all nodes, those in `back` in the backward pass [nodes]."""
    floating = _floating(problem) & ~back
    key = np.arange(problem.num_nodes, dtype=np.int64)
    largest = _largest_key(tellers, key, ~back & ~floating)
    tellers_key = np.full(problem.num_nodes, -1, dtype=np.int64)
    np.maximum.at(tellers_key, tellers.node, largest[tellers.owner])
    tellers_key[tellers_key < 0] = problem.num_nodes - 1
    before = _neighbours(problem.after, problem.before, problem.num_nodes)
    for node in np.flatnonzero(back).tolist():
        key[node] = min([int(tellers_key[node]), *(int(key[other]) for other in before[node] if back[other])])
    after = _neighbours(problem.before, problem.after, problem.num_nodes)
    for node in np.flatnonzero(floating)[::-1].tolist():
        readers = [other for other in after[node] if not back[other]] or after[node]
        key[node] = min((int(key[other]) for other in readers), default=node)
    return key


def _floating(problem: StageProblem) -> Bools:
    """Returns which nodes have hardly any work behind them [nodes].

    Work that several ways lead from counts once for each.
    """
    total, limit = problem.work.tolist(), NEGLIGIBLE * float(problem.work.sum())
    order = np.argsort(problem.after, kind="stable")
    for source, target in zip(problem.before[order].tolist(), problem.after[order].tolist(), strict=True):
        total[target] = min(total[target] + total[source], limit)
    return np.array(total) < limit


def _largest_key(nets: Nets, key: Ints, speaks: Bools) -> Ints:
    """Returns the largest key among the nodes of each net that speak, -1 where none does."""
    largest = np.full(len(nets), -1, dtype=np.int64)
    np.maximum.at(largest, nets.owner, np.where(speaks[nets.node], key[nets.node], -1))
    return largest


def _neighbours(at: Ints, other: Ints, num_nodes: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(num_nodes)]
    for node, beside in zip(at.tolist(), other.tolist(), strict=True):
        found[node].append(beside)
    return found


def in_buckets(problem: StageProblem, key: Ints, back: Bools, buckets: int = MOST_BUCKETS) -> Line:
    """Returns the line whose stretches end at the cheapest cut of each of some equal shares of the work."""
    size = problem.num_nodes
    keys = np.full(len(problem.nets), size, dtype=np.int64), np.full(len(problem.nets), -1, dtype=np.int64)
    np.minimum.at(keys[0], problem.nets.owner, key[problem.nets.node])
    np.maximum.at(keys[1], problem.nets.owner, key[problem.nets.node])
    change = np.zeros(size + 2)
    np.add.at(change, keys[0] + 1, problem.nets.size)
    np.subtract.at(change, keys[1] + 1, problem.nets.size)
    crossing = np.cumsum(change)  # [k]: what a cut before key k costs
    # before keys 1, 2, ...
    done = np.cumsum(np.bincount(key, weights=problem.work, minlength=size))[: int(key.max(initial=0))]
    share = (done / max(float(problem.work.sum()), 1e-300) * buckets).astype(np.int64)
    cuts = [1 + int(first + np.argmin(crossing[1 + first : 1 + end])) for first, end in _runs(share)]
    return Line(np.searchsorted(np.array(cuts), key, side="right").astype(np.int64), len(cuts) + 1, back)


def _runs(values: Ints) -> Iterator[tuple[int, int]]:
    """Yields start and end of each run of equal values."""
    if len(values):
        yield from pairwise([0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)])


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """What each stretch of a line, from place i to before place j, takes as a stage [places + 1, places + 1].

    Units: `cost` in that of the problem's nets, less a constant of the line: that of nets in the stretch; `work` in
    seconds by group of devices, of the last stage `last_work`; `resident` and `saved` in bytes by group. `pins[s]` says
    whether a stretch can be stage s. `remat` is what stretches can recompute, by number of stages and group.
    """

    line: Line
    cost: Floats
    work: tuple[Floats, ...]
    last_work: tuple[Floats, ...]
    resident: tuple[Floats, ...]
    saved: tuple[Floats, ...]
    pins: tuple[Bools, ...]
    remat: dict[tuple[int, int], StretchRemat] = field(default_factory=dict)

    def remat_of(self, problem: StageProblem, group: int) -> StretchRemat:
        """Returns what stretches can recompute on devices of a group, which is found once for a number of stages."""
        key = problem.num_stages, group
        if key not in self.remat:
            self.remat[key] = stretch_remat(problem, self.line.place, self.line.num_places, group)
        return self.remat[key]


@dataclass(frozen=True, slots=True, eq=False)
class StageStretches:
    """What each stretch of a line takes as each stage, as `Stretches` has it.

    Shapes: `work` [devices], each [places + 1, places + 1]: with what has to be recomputed, infinite where a device
    holds too much. Those of devices that take the same are one array.
    """

    cost: Floats
    work: tuple[Floats, ...]
    pins: tuple[Bools, ...]


def stretches(problem: StageProblem, line: Line) -> Stretches | None:
    """Returns the stretches of a line, or None where the pins go against it."""
    num = line.num_places
    start, end = np.meshgrid(np.arange(num + 1), np.arange(num + 1), indexing="ij")

    def along(weights: Floats) -> Floats:
        total = np.concatenate([[0.0], np.cumsum(np.bincount(line.place, weights=weights, minlength=num))])
        result: Floats = np.where(end >= start, total[None, :] - total[:, None], np.inf)
        return result

    pins = [end >= start for _ in range(problem.num_stages)]
    for node in np.flatnonzero(problem.pinned != OPEN).tolist():
        stage = int(problem.pinned[node])
        if stage != problem.num_stages - 1 and bool(line.back[node]) != (stage >= problem.num_stages):
            return None
        device = problem.virtual.stage(stage).device
        pins[device] = pins[device] & (start <= line.place[node]) & (line.place[node] < end)
    every = [problem.bytes_of_group(group) for group in range(problem.num_groups if problem.group_bytes else 1)]
    resident = [_present(replace(problem.resident, size=own.resident), line) + along(own.own) for own in every]
    saved = [_present(replace(problem.saved, size=own.saved), line) for own in every]
    again = 1 if problem.group_bytes else problem.num_groups  # those of groups that hold as much are one array
    work, last_work = (
        tuple([along(problem.work_of_group(group, is_last=is_last)) for group in range(problem.num_groups)])
        for is_last in (False, True)
    )
    return Stretches(
        line, crossing_cost(problem, line), work, last_work, tuple(resident * again), tuple(saved * again), tuple(pins)
    )


def crossing_cost(problem: StageProblem, line: Line) -> Floats:
    """Returns what the nets of each stretch cost where they go on [places + 1, places + 1], as `Stretches` has it."""
    return _present(problem.nets, line)


def on_devices(problem: StageProblem, parts: Stretches) -> StageStretches:
    """Returns what stretches take as stages on the devices of a problem, within their budgets."""
    last = problem.num_stages - 1
    budgets = problem.budget_bytes or (np.inf,) * problem.num_stages
    found: dict[tuple[int, bool, float, float], Floats] = {}
    keys = [
        (problem.group_of(device), device == last, in_flight, budget)
        for device, (in_flight, budget) in enumerate(zip(problem.in_flight().tolist(), budgets, strict=True))
    ]
    for group, is_last, in_flight, budget in dict.fromkeys(keys):
        work = (parts.last_work if is_last else parts.work)[group]
        found[group, is_last, in_flight, budget] = within_budget(problem, parts, work, group, in_flight, budget)
    return StageStretches(parts.cost, tuple([found[key] for key in keys]), parts.pins)


def within_budget(
    problem: StageProblem, parts: Stretches, work: Floats, group: int, in_flight: float, budget: float
) -> Floats:
    """Returns the seconds of stretches with what they recompute to hold no more than a budget."""
    if not np.isfinite(budget):
        return work
    over = parts.resident[group] + in_flight * parts.saved[group] - budget * (1 + ROUNDING)
    found = np.where(over <= 0, work, np.inf)
    if len(problem.remat):
        most_s = MOST_SHARES * float(work[0, -1] + problem.step_seconds(group).sum()) / problem.num_stages
        start, end = np.nonzero((over > 0) & (work <= most_s))
        freed = over[start, end] / problem.step_bytes_ratio(group)
        found[start, end] = work[start, end] + parts.remat_of(problem, group).added_s(freed, in_flight, start, end)
    return found


def _present(nets: Nets, line: Line) -> Floats:
    """Returns the size of the nets with a node in each stretch [places + 1, places + 1].

    Net by net, a stretch from i to j has its place r and none before if i is in (the place before r, r] and j behind r.
    """
    seen = (
        np.unique(np.stack([nets.owner, line.place[nets.node]]), axis=1)
        if len(nets.node)
        else np.zeros((2, 0), dtype=np.int64)
    )
    owner, place = seen
    again = np.concatenate([[False], owner[1:] == owner[:-1]]) if len(owner) else np.zeros(0, dtype=bool)
    previous = np.where(again, np.concatenate([[0], place[:-1]]) + 1, 0) if len(owner) else place
    change = np.zeros((line.num_places + 2, line.num_places + 2))
    np.add.at(change, (previous, place + 1), nets.size[owner])
    np.subtract.at(change, (place + 1, place + 1), nets.size[owner])
    result: Floats = np.cumsum(np.cumsum(change, axis=0), axis=1)[:-1, :-1]
    return result


def cut(problem: StageProblem, parts: StageStretches, limit_s: float) -> tuple[float, Ints] | None:
    """Returns the cost and the stage ends of the best cut whose stages have at most `limit_s` of work and fit."""
    fair = _fair(parts, limit_s)
    if not _may_be_cut(fair):
        return None
    # A stretch to an end that is fair starts in a window before it: of the stretches [start, end], those are looked at
    # [window, end].
    end = np.arange(len(parts.cost))
    kinds = {id(some): some for some in fair}
    width = max(int((end - some.argmax(axis=0)).max()) for some in kinds.values()) + 1
    start = end + np.arange(1 - width, 1)[:, None]
    is_there = start >= 0
    start = np.maximum(start, 0)
    costs = {
        kind: np.where(is_there & some[start, end], parts.cost[start, end], np.inf) for kind, some in kinds.items()
    }
    best, choices = np.full(len(end), np.inf), []
    best[0] = 0.0
    in_windows: dict[tuple[int, int], Floats] = {}
    for some, pins in zip(fair, parts.pins, strict=True):
        key = id(pins), id(some)
        if key not in in_windows:
            in_windows[key] = np.where(pins[start, end], costs[key[1]], np.inf)
        total = best[start] + in_windows[key]
        choice = np.argmin(total, axis=0)
        choices.append(start[choice, end])
        best = total[choice, end]
    if not np.isfinite(best[-1]):
        return None
    ends = [len(best) - 1]
    for starts in choices[:0:-1]:
        ends.insert(0, int(starts[ends[0]]))
    return float(best[-1] - problem.nets.size.sum()), np.array(ends, dtype=np.int64)


def _fair(parts: StageStretches, limit_s: float) -> list[Bools]:
    """Returns which stretches have at most `limit_s` of work on each device [devices, start, end].

    Those of devices that take the same are one array.
    """
    found = {id(work): work <= limit_s * (1 + ROUNDING) for work in parts.work}
    return [found[id(work)] for work in parts.work]


def _may_be_cut(fair: Sequence[Bools]) -> bool:
    """Says whether as many stretches as there are devices, each fair, reach from the first place to the last."""
    at = fair[0][0]
    for some in fair[1:]:
        at = some[at].any(axis=0)
    return bool(at[-1])


def least_limit(problem: StageProblem, parts: StageStretches, high_s: float, most_cost: float) -> float:
    """Returns the least limit of work, to within rounding, under which a cut exists that costs at most `most_cost`.

    There is one for `high_s`.
    """

    def is_met(limit_s: float) -> bool:
        found = cut(problem, parts, limit_s)
        return found is not None and found[0] <= most_cost

    return _least(problem, parts, high_s, is_met)


def least_work(problem: StageProblem, parts: StageStretches) -> float:
    """Returns the least that the largest work of a stage can be, to within rounding, infinite where there is no cut.

    Any stretch may be any stage.
    """

    def is_met(limit_s: float) -> bool:
        return _may_be_cut(_fair(parts, limit_s))

    high_s = max(float(work[np.isfinite(work)].max(initial=0.0)) for work in parts.work)
    return _least(problem, parts, high_s, is_met) if is_met(high_s) else np.inf


def _least(problem: StageProblem, parts: StageStretches, high_s: float, is_met: Callable[[float], bool]) -> float:
    """Returns the least limit that meets `is_met`.

    It is an equal share, or else the work of a stretch, for it depends on nothing else.
    """
    least = problem.work * problem.time_ratio.min(axis=0) if len(problem.time_ratio) else problem.work
    low_s = float(least.sum()) / problem.num_stages
    if is_met(low_s):
        return low_s
    works = np.concatenate([work[(low_s < work) & (work < high_s)] for work in {id(w): w for w in parts.work}.values()])
    between_s = np.unique(works)
    found = bisect_left(range(len(between_s)), True, key=lambda number: is_met(float(between_s[number])))
    return float(between_s[found]) if found < len(between_s) else high_s


def equal_cut(parts: Stretches, num_stages: int) -> Ints:
    """Returns the end of each stage where each starts as soon as its equal share of all work is done.

    That is the split of equal layers.
    """
    done = parts.work[0][0]
    shares = done[-1] * np.arange(1, num_stages + 1) / num_stages
    return np.array([*(np.argmin(np.abs(done - share)) for share in shares[:-1]), len(done) - 1], dtype=np.int64)
