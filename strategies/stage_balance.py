"""How even a cut in stages has to be: of some tolerances, the one within whose cut a step takes least.

What moves least within a wide tolerance makes the largest stage larger, and every micro-batch waits for that. What passes between stages
goes beside their computing, but 1F1B has so few micro-batches in flight that stages as even as can be wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import numpy as np

from rhino.strategies.problem import Ints
from rhino.strategies.schedules import Pipeline, make_order
from rhino.strategies.stage_problem import ROUNDING, StageProblem
from rhino.strategies.step_time import StageTimes, step_seconds

TOLERANCES: Final = (0.005, 0.02, 0.05)
"""By what share of the best balance the largest work of a stage may be over it, where nothing is said."""


def tolerance_of(problem: StageProblem, cut: Callable[[float], Ints | None]) -> float:
    """Returns the tolerance within whose `cut` a step by 1F1B takes least, of equals the least; the widest where moving has no seconds.

    Shapes: `cut` gives the virtual stage of each node [nodes], or None where there is no such cut.
    """
    best_s, found = inf, TOLERANCES[-1]
    for tolerance in TOLERANCES if problem.in_seconds else ():
        stage = cut(tolerance)
        step_s = inf if stage is None else micro_batches_s(problem, stage)
        if step_s < best_s * (1 - ROUNDING):
            best_s, found = step_s, tolerance
    return found


def micro_batches_s(problem: StageProblem, stage: Ints) -> float:
    """Returns the seconds in which the micro-batches of a step go through stages by 1F1B, where nets are in seconds.

    Shapes: `stage` [nodes], virtual. What crosses is taken as half there and half back.
    """
    num, device = problem.num_stages, problem.device(stage)
    work = np.where(device < num - 1, problem.work_on(0), problem.work)
    by_stage = np.bincount(stage, weights=work, minlength=problem.last + 1).tolist()
    none = (0.0,) * num
    moves = tuple((problem.crossing(device, problem.nets.size) / problem.num_micro_batches / 2).tolist())
    times = StageTimes((*by_stage[: num - 1], 0.0), tuple(by_stage[: -num - 1 : -1]), none, none, moves, moves)
    return step_seconds(make_order("1f1b", Pipeline(num, problem.num_micro_batches)), times)
