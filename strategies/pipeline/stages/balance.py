"""How even a cut in stages has to be: of some tolerances, the one within whose cut a step takes least.

What moves least within a wide tolerance makes the largest stage larger, and every micro-batch waits for that. What
passes between stages goes beside their computing, but 1F1B has so few micro-batches in flight that stages as even as
can be wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Floats, Ints
from rhino.strategies.pipeline.schedules import Order, Pipeline, make_order
from rhino.strategies.pipeline.stages.stage_problem import ROUNDING, StageProblem
from rhino.strategies.pipeline.stages.stage_remat import stage_remat
from rhino.strategies.pipeline.step_time import StageTimes, StageTransfer, step_seconds

TOLERANCES: Final = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""By what share of the best balance the largest work of a stage may be over it, where no tolerance is given.

The wide ones are for small steps, in which it matters most how many transfers there are, and for devices of several
kinds, among which stages of few transfers are seldom even: nine tenths of the step of a tiny GPT on a V100 and a P100
are transfers, and the stages that take least are 0.37 over the best balance (2026-11-28).
"""

WITHOUT_SECONDS: Final = 0.05
"""The tolerance where it is not known what moving takes."""


def tolerance_of(
    problem: StageProblem, order: Order | None, least_s: float, cut: Callable[[float], Ints | None]
) -> float:
    """Returns the tolerance within whose `cut` a step takes least, of equals the least.

    Wider ones are not tried where their largest stage alone, over `least_s` by the tolerance before, takes as long as
    the best step, or once a stage is left without work: fewer stages were asked for then.

    Shapes: `cut` gives the virtual stage of each node [nodes], or None where there is no such cut. Without an `order`
    it is that of 1F1B.
    """
    order = order or make_order("1f1b", Pipeline(problem.num_stages, problem.num_micro_batches))
    best_s, found, before = inf, WITHOUT_SECONDS, 0.0
    for tolerance in TOLERANCES if problem.in_seconds else ():
        if problem.num_micro_batches * least_s * (1 + before) >= best_s:
            break
        stage, before = cut(tolerance), tolerance
        if stage is None:
            continue
        if leaves_idle(problem, stage) and best_s < inf:
            break
        added_s = stage_remat(problem, problem.device(stage)).added_s
        step_s = step_seconds(order, stage_times(problem, stage, awaited_nodes(problem, stage), added_s))
        if step_s < best_s * (1 - ROUNDING):
            best_s, found = step_s, tolerance
    return found


def leaves_idle(problem: StageProblem, stage: Ints) -> bool:
    """Says whether a device has no work, where node i is of the virtual stage `stage[i]`."""
    return bool(problem.device_work(problem.device(stage)).min() <= 0.0)


def stage_times(problem: StageProblem, stage: Ints, awaited: Bools, added_s: Floats) -> StageTimes:
    """Returns what the micro-batches of a step take in stages, where nets are in seconds; not what comes once a step.

    Shapes: `stage` [nodes], virtual; `awaited` [nodes] as `awaited_nodes` has it; `added_s` [stages], what
    rematerialization adds to each micro-batch.
    """
    num, device = problem.num_stages, problem.device(stage)
    again = problem.again if len(problem.again) else np.zeros(problem.num_nodes)
    apart = problem.apart if len(problem.apart) else 0.0
    time_ratio = problem.time_ratio_at(device)
    taken = np.where(device < num - 1, problem.work + apart - again, problem.work) * time_ratio
    again = again * time_ratio

    def by_stage(seconds: Floats) -> Floats:
        return np.bincount(stage, weights=seconds, minlength=problem.virtual.last + 1).astype(np.float64)

    back = problem.virtual.opposite(np.arange(num))
    again_s = by_stage(again)[:num]
    again_s[-1] = 0.0
    again_s += added_s
    taken_s, awaited_s = by_stage(taken), by_stage(np.where(awaited, taken, 0.0))
    return StageTimes(
        forward_s=(*taken_s[: num - 1].tolist(), 0.0),
        input_s=tuple((awaited_s[back] + again_s).tolist()),
        weight_s=tuple((taken_s - awaited_s)[back].tolist()),
        apply_s=(0.0,) * num,
        moves=_moves(problem, stage, device),
    )


def _moves(problem: StageProblem, stage: Ints, device: Ints) -> tuple[StageTransfer, ...]:
    """Returns what a micro-batch takes from each device to each other.

    Every net goes from where it is first to all others that have it.
    """
    nets, num = problem.nets, problem.num_stages
    first = np.full(len(nets), problem.virtual.last + 1, dtype=np.int64)
    np.minimum.at(first, nets.owner, stage[nets.node])
    given = problem.device(first)
    net, taking = np.nonzero(nets.present(device, num))
    is_sent = taking != given[net]
    net, taking = net[is_sent], taking[is_sent]
    seconds = (
        np.bincount(given[net] * num + taking, weights=nets.size[net], minlength=num * num) / problem.num_micro_batches
    )
    return tuple([StageTransfer(*divmod(pair, num), float(seconds[pair])) for pair in np.flatnonzero(seconds).tolist()])


def awaited_nodes(problem: StageProblem, stage: Ints) -> Bools:
    """Returns which nodes something of a later virtual stage waits for [nodes]."""
    awaited, at = [False] * problem.num_nodes, stage.tolist()
    order = np.argsort(-problem.before, kind="stable")
    for source, target in zip(problem.before[order].tolist(), problem.after[order].tolist(), strict=True):
        if awaited[target] or at[target] > at[source]:
            awaited[source] = True
    return np.array(awaited, dtype=bool)
