"""Which ranks a step in stages may want, each of a shape of its own: the best cuts of a line on shapes.

What a stretch of the line takes on each kind of rank follows from how the step is sharded there. A stage is taken to
wait for all that it is sent, and to do its share of what is done once a step a little in each micro-batch; temporaries
are not counted. So this is a screen: what it finds is to be estimated stage by stage, and with its schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, product
from math import inf
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats
from rhino.ir.cluster.hardware import Line as Link
from rhino.strategies.pipeline.stages.estimate import StageEstimates
from rhino.strategies.pipeline.stages.line import (
    Line,
    Stretches,
    in_buckets,
    least_work,
    on_devices,
    stretches,
    within_budget,
)
from rhino.strategies.pipeline.stages.shapes import Shape, ShapedLine, best_cut
from rhino.strategies.pipeline.stages.stage_graph import NO_NODE
from rhino.strategies.pipeline.stages.stage_problem import Nets, StageProblem, time_ratios

PLACES: Final = 96
"""In how many stretches a line is cut: a stage of a few of them is told to within some percent."""


@dataclass(frozen=True, slots=True)
class RankKind:
    """A kind of rank: its number of devices, those of the cluster that it may begin with, and what each may hold."""

    devices: int
    starts: tuple[int, ...]
    budget_bytes: float


@dataclass(frozen=True, slots=True)
class Nodes:
    """How many devices are in a node, and what one array takes from a device to another in a node, and between two."""

    devices: int
    inner: Link
    outer: Link


def screen(line: ScreenedLine, stages: Iterable[int], *, recomputes: bool) -> list[tuple[int, ...]]:
    """Returns the best ranks of each of some numbers of `stages`, in that order: the number of each one's kind [ranks].

    All devices are used. With `recomputes` stages may recompute what their memory asks for.
    """
    found = dict[tuple[int, ...], None]()
    for number, sends in product(stages, (True, False)):
        cut = best_cut(line.shaped(number, sends=sends))
        if cut is None and recomputes:
            cut = best_cut(line.recomputing.shaped(number, sends=sends))
        if cut is not None:
            found[tuple([stage.shape for stage in cut.stages])] = None
    return list(found)


def neighbours(ranks: Sequence[int], kinds: Sequence[RankKind]) -> Iterator[tuple[int, ...]]:
    """Yields what ranks, each the number of its kind, become where one or two in a row are others, at most one more.

    So ranks change their places or their meshes, pass devices on to the next, part, and become one.
    """
    firsts = [0, *accumulate(kinds[rank].devices for rank in ranks)]

    def fill(first: int, last: int, most: int) -> Iterator[tuple[int, ...]]:
        if first == last:
            yield ()
        for number, kind in enumerate(kinds) if most and first < last else ():
            if first + kind.devices <= last and first in kind.starts:
                for rest in fill(first + kind.devices, last, most - 1):
                    yield (number, *rest)

    for start, size in product(range(len(ranks)), (1, 2)):
        if start + size <= len(ranks):
            for some in fill(firsts[start], firsts[start + size], size + 1):
                if some != tuple(ranks[start : start + size]):
                    yield (*ranks[:start], *some, *ranks[start + size :])


@dataclass(eq=False)
class ScreenedLine:
    """A step on the line that divides best, sharded for each of `kinds`, which are the groups of `estimates`."""

    estimates: StageEstimates
    kinds: Sequence[RankKind]
    num_devices: int
    nodes: Nodes
    problem: StageProblem = field(init=False)
    parts: Stretches = field(init=False)
    known: dict[tuple[int, bool, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.problem = found = replace(self._with_updates(), num_stages=2, group=(0, 0))
        lines = [in_buckets(found, line.place, line.back, PLACES) for line in self.estimates.lines]
        self.parts = min((_parts(found, line) for line in lines), key=self._least)

    def _enters(self, kind: int) -> Floats:
        """Returns what is sent to a kind of rank per micro-batch, in a node and between nodes [2, places + 1]."""
        links = self.nodes.inner, self.nodes.outer
        return np.stack([self._crossing_s(self.estimates.staging.nets_between((kind,), link)) for link in links])

    def _crossing_s(self, nets: Nets) -> Floats:
        """Returns what crosses each place in a micro-batch [places + 1]."""
        line, count = self.parts.line, self.problem.num_micro_batches
        first, last = np.full(len(nets), line.num_places), np.full(len(nets), -1)
        np.minimum.at(first, nets.owner, line.place[nets.node])
        np.maximum.at(last, nets.owner, line.place[nets.node])
        change = np.zeros(line.num_places + 2)
        np.add.at(change, first + 1, nets.size)
        np.subtract.at(change, last + 1, nets.size)
        found: Floats = np.cumsum(change)[:-1] / count
        return found

    @cached_property
    def recomputing(self) -> ScreenedLine:
        """The same where stages may recompute what their memory asks for."""
        found = copy(self)
        found.problem = replace(
            self.problem, remat=self.estimates.remat_steps(min(self.num_devices, self.problem.num_micro_batches))
        )
        found.known = {}
        return found

    def _least(self, parts: Stretches) -> float:
        pins = parts.pins[:1] * self.problem.num_stages
        return least_work(self.problem, on_devices(self.problem, replace(parts, pins=pins)))

    def _with_updates(self) -> StageProblem:
        """Returns the problem in which nodes do what they do once a step a little in each micro-batch."""
        staging, unlike = self.estimates.staging, self.estimates.unlike
        assert unlike is not None, "kinds of ranks are groups of devices"
        problem, parts = staging.problem, staging.parts
        ops = np.flatnonzero(parts.apply & (staging.node != NO_NODE))
        node, seconds = staging.node[ops], parts.seconds[ops] / problem.num_micro_batches

        def more(ratio: Floats | float) -> Floats:
            return np.bincount(node, weights=seconds * ratio, minlength=problem.num_nodes).astype(np.float64)

        works = [
            problem.work * own + more(of_ops[ops])
            for own, of_ops in zip(problem.time_ratio, unlike.time_ratio, strict=True)
        ]
        work = problem.work + more(1.0)
        return replace(problem, work=work, time_ratio=time_ratios(works, work))

    def shaped(self, stages: int, *, sends: bool) -> ShapedLine:
        """Returns the line cut in so many stages; without `sends` none waits for what it is sent."""
        problem, places = self.problem, len(self.parts.cost) - 1
        nothing = np.zeros((2, places + 1))
        enters = [self._enters(kind) if sends else nothing for kind in range(len(self.kinds))]
        each = [np.diag(self.parts.last_work[number], 1) * kind.devices for number, kind in enumerate(self.kinds)]
        return ShapedLine(
            tuple(
                [Shape(kind.devices, own, nothing, kind.starts) for kind, own in zip(self.kinds, enters, strict=True)]
            ),
            self.stage_s,
            self.bound_s,
            places,
            self.num_devices,
            self.nodes.devices,
            problem.num_micro_batches,
            stages,
            float(np.min(each, axis=0).sum()),
            stages,
        )

    def stage_s(self, behind: int, kind: int, limit_s: float) -> Floats:
        """Returns the seconds of stretches on a kind of rank with so many stages behind it."""
        in_flight = min(self.problem.num_micro_batches, behind + 1)
        key = in_flight, behind == 0, kind
        if key not in self.known:
            budget = self.kinds[kind].budget_bytes
            self.known[key] = within_budget(self.problem, self.parts, self.work(behind, kind), kind, in_flight, budget)
        return self.known[key]

    def over_bytes(self, behind: int, kind: int) -> Floats:
        """Returns by how much stretches that recompute nothing are over the memory of a kind of rank."""
        in_flight = min(self.problem.num_micro_batches, behind + 1)
        held: Floats = self.parts.resident[kind] + in_flight * self.parts.saved[kind]
        return held - self.kinds[kind].budget_bytes

    def least_over(self, behind: int, kind: int) -> Floats:
        """Returns the same of stretches that recompute all they can."""
        over, in_flight = self.over_bytes(behind, kind), min(self.problem.num_micro_batches, behind + 1)
        if not len(self.problem.remat):
            return over
        remat = self.parts.remat_of(self.problem, kind)
        return over - in_flight * self.problem.step_bytes_ratio(kind) * remat.freed[-1]

    @property
    def num_places(self) -> int:
        """How long the line is."""
        return len(self.parts.cost) - 1

    def bound_s(self, behind: int, kind: int, limit_s: float) -> Floats:
        """Returns the seconds of stretches where memory does not count."""
        return self.work(behind, kind)

    def work(self, behind: int, kind: int) -> Floats:
        """Returns the seconds of stretches on a kind of rank, first of none or some stages behind, without memory."""
        work = (self.parts.work if behind else self.parts.last_work)[kind]
        places = np.arange(len(work))
        found: Floats = np.where(places[None, :] > places[:, None], work, inf)  # a stage has something to do
        return found


def _parts(problem: StageProblem, line: Line) -> Stretches:
    found = stretches(problem, line)
    assert found is not None, "nothing is pinned"
    return found
