"""What a sharded step comes to when it is cut in stages, without making their programs: the best cut along a line, in time and memory.

The figures are of the plan: an op takes what it takes as sharded, collectives and all, and a value is as large as its part on a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rhino.ir.graph import Loop
from rhino.strategies.handed_on import Handing
from rhino.strategies.plan import Plan
from rhino.strategies.problem import Floats, Ints
from rhino.strategies.sharded import local_bytes, runs_alone
from rhino.strategies.simulate import Link
from rhino.strategies.stage_graph import make_staging
from rhino.strategies.stage_line import cut, least_limit, lines_of, stretches
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


def estimate_stages(sharded: Sharded, num_stages: int, num_micro_batches: int, link: Link) -> StageEstimate | None:
    """Returns the cut that moves the fewest bytes within the tolerance of the best balance; None where no line can be cut so."""
    graph, value_bytes, alone = sharded.plan.graph, local_bytes(sharded.plan), runs_alone(sharded.plan)
    parts = parts_of(graph, sharded.loop, sharded.seconds)
    staging = make_staging(graph, parts, num_stages, num_micro_batches, value_bytes=value_bytes, alone=alone)
    stage = _best_on_lines(staging.problem)
    if stage is None:
        return None
    problem, device = staging.problem, staging.problem.device(stage)
    by_op = op_stages(staging, stage)
    apply_s = np.zeros(num_stages)
    np.add.at(apply_s, by_op[parts.apply], parts.seconds[parts.apply])
    work = np.bincount(stage, weights=problem.work, minlength=problem.last + 1)
    once_s = sharded.total_s - num_micro_batches * float(work.sum()) - float(apply_s.sum())  # before the loop, and what costs nothing
    asked = _asked_for(problem, stage)
    asked_work = np.bincount(stage[asked], weights=problem.work[asked], minlength=problem.last + 1)
    back = problem.last - np.arange(num_stages)
    crossing = _crossing_bytes(problem, device) / num_micro_batches / 2  # half there, half back
    moves_s = [float(link.latency_s + size / link.bytes_per_s) for size in crossing]
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
    asked_ops = (staging.node >= 0) & asked[staging.node]
    handing = Handing(graph, parts, value_bytes * graph.copies(), alone)
    needs = StageNeeds(sharded.plan, handing, by_op, asked_ops, tuple(kept.tolist()))
    return StageEstimate(times, needs)


def _best_on_lines(problem: StageProblem) -> Ints | None:
    """Returns the virtual stage of each node in the best cut of a line, with the best balance that it can have."""
    every = float(problem.work.sum())
    lines = [(line, parts) for line in lines_of(problem) if (parts := stretches(problem, line)) is not None]
    least = [least_limit(problem, parts, every, np.inf) for _, parts in lines if cut(problem, parts, every) is not None]
    if not least:
        return None
    limit_s = min(least) * (1 + TOLERANCE)
    found = [(one[0], number) for number, (_, parts) in enumerate(lines) if (one := cut(problem, parts, limit_s)) is not None]
    moved, number = min(found)
    line, parts = lines[number]
    best = cut(problem, parts, least_limit(problem, parts, limit_s, moved))
    assert best is not None, "the least limit is one under which a cut exists"
    return line.stages(problem, best[1])


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
    cuts = [problem.nets.size @ (present[:, :s].any(axis=1) & present[:, s:].any(axis=1)) for s in range(1, problem.num_stages)]
    return np.array(cuts, dtype=np.float64)
