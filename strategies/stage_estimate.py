"""What a sharded step comes to when it is cut in stages, without making their programs: the best cut along a line, in time and memory.

The figures are of the plan: an op takes what it takes as sharded, collectives and all, and a value is as large as its part on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rhino.ir.graph import Loop
from rhino.strategies.handed_on import Handing
from rhino.strategies.plan import Plan
from rhino.strategies.problem import Floats, Ints
from rhino.strategies.sharded import local_bytes, runs_alone
from rhino.strategies.simulate import Link
from rhino.strategies.stage_graph import make_staging
from rhino.strategies.stage_line import Line, Stretches, cut, least_limit, least_work, lines_of, stretches
from rhino.strategies.stage_needs import StageNeeds
from rhino.strategies.stage_parts import parts_of
from rhino.strategies.stage_places import op_stages
from rhino.strategies.stage_problem import Bools, StageProblem
from rhino.strategies.step_time import StageTimes

TOLERANCE = 0.05
"""By what share of the best balance the largest work of a stage may be over it, where nothing else is said."""


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """A sharded step as its stages see it.

    Shapes: `seconds` [ops], per step. `total_s` is the cost of the whole step.
    """

    plan: Plan
    loop: Loop
    seconds: Floats
    total_s: float


@dataclass(frozen=True, slots=True, eq=False)
class StageEstimate:
    """A cut in stages: what they take, and what devices of each need."""

    times: StageTimes
    needs: StageNeeds


class StageEstimates:
    """The cuts of a sharded step in any number of stages: those that move the fewest bytes within the tolerance of the best balance.

    What the number does not change is found once. `link` is that between a stage and the next.
    """

    def __init__(self, sharded: Sharded, num_micro_batches: int, link: Link) -> None:
        plan = sharded.plan
        self.sharded, self.num_micro_batches, self.link = sharded, num_micro_batches, link
        value_bytes, alone = local_bytes(plan), runs_alone(plan)
        parts = parts_of(plan.graph, sharded.loop, sharded.seconds)
        self.staging = make_staging(plan.graph, parts, 1, num_micro_batches, value_bytes=value_bytes, alone=alone)
        self.lines = lines_of(self.staging.problem)
        self.pieces = [_pieces(self.staging.problem, line) for line in self.lines]
        self.handing = Handing(plan.graph, parts, value_bytes * plan.graph.copies(), alone)
        self.temporaries: dict[object, float] = {}
        self.found: dict[int, StageEstimate | None] = {}

    def cut(self, num_stages: int) -> StageEstimate | None:
        """Returns the cut in so many stages; None where no line can be cut so."""
        if num_stages not in self.found:
            problem = replace(self.staging.problem, num_stages=num_stages)
            stage = self._best_on_lines(problem)
            self.found[num_stages] = None if stage is None else self._estimate(problem, stage)
        return self.found[num_stages]

    def _estimate(self, problem: StageProblem, stage: Ints) -> StageEstimate:
        """Returns what stages take and need, where `stage` [nodes] are virtual stages."""
        parts, num_stages, device = self.staging.parts, problem.num_stages, problem.device(stage)
        by_op = op_stages(replace(self.staging, problem=problem), stage)
        apply_s = np.zeros(num_stages)
        np.add.at(apply_s, by_op[parts.apply], parts.seconds[parts.apply])
        work = np.bincount(stage, weights=problem.work, minlength=problem.last + 1)
        # Before the loop, and what costs nothing.
        once_s = self.sharded.total_s - self.num_micro_batches * float(work.sum()) - float(apply_s.sum())
        asked = _asked_for(problem, stage)
        asked_work = np.bincount(stage[asked], weights=problem.work[asked], minlength=problem.last + 1)
        back = problem.last - np.arange(num_stages)
        crossing = _crossing_bytes(problem, device) / self.num_micro_batches / 2  # half there, half back
        moves_s = [float(self.link.latency_s + size / self.link.bytes_per_s) for size in crossing]
        times = StageTimes(
            forward_s=(*work[: num_stages - 1].tolist(), 0.0),
            input_s=tuple(asked_work[back].tolist()),
            weight_s=tuple((work - asked_work)[back].tolist()),
            apply_s=tuple((apply_s + max(0.0, once_s) / num_stages).tolist()),
            there_s=tuple(moves_s),
            back_s=tuple(moves_s),
        )
        own = np.bincount(device, weights=problem.own_bytes, minlength=num_stages)
        kept = own + problem.held.size @ problem.held.present(device, num_stages)
        asked_ops = (self.staging.node >= 0) & asked[self.staging.node]
        needs = StageNeeds(self.sharded.plan, self.handing, by_op, asked_ops, tuple(kept.tolist()), self.temporaries)
        return StageEstimate(times, needs)

    def _best_on_lines(self, problem: StageProblem) -> Ints | None:
        """Returns the virtual stage of each node in the best cut of a line, with the best balance that it can have."""
        pieces = [replace(one, pins=one.pins * problem.num_stages) for one in self.pieces]  # any may be any stage
        limit_s = min(least_work(problem, parts) for parts in pieces) * (1 + TOLERANCE)
        found = [(one[0], number) for number, parts in enumerate(pieces) if (one := cut(problem, parts, limit_s)) is not None]
        moved, number = min(found)
        best = cut(problem, pieces[number], least_limit(problem, pieces[number], limit_s, moved))
        assert best is not None, "the least limit is one under which a cut exists"
        return self.lines[number].stages(problem, best[1])


def _pieces(problem: StageProblem, line: Line) -> Stretches:
    """Returns the stretches of a line, which nothing is pinned to."""
    found = stretches(problem, line)
    assert found is not None, "only pins go against a line"
    return found


def _asked_for(problem: StageProblem, stage: Ints) -> Bools:
    """Returns which nodes something of a later virtual stage waits for [nodes]."""
    asked = np.zeros(problem.num_nodes, dtype=bool)
    order = np.argsort(-problem.before, kind="stable")
    for source, target in zip(problem.before[order].tolist(), problem.after[order].tolist(), strict=True):
        asked[source] |= bool(stage[target] > stage[source] or asked[target])
    return asked


def _crossing_bytes(problem: StageProblem, device: Ints) -> Floats:
    """Returns the bytes per step that pass between each stage and the next, either way [stages - 1]."""
    present = problem.nets.present(device, problem.num_stages)
    first, last = present.argmax(axis=1), problem.num_stages - 1 - present[:, ::-1].argmax(axis=1)
    crossing = [problem.nets.size @ ((first < s) & (s <= last)) for s in range(1, problem.num_stages)]
    return np.array(crossing, dtype=np.float64)
