"""1F1B: each rank alternates between a forward and a backward as soon as it can.

Idle as long as GPipe, but stage s of d holds min(m, d - s) micro-batches at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.ir.plan.instructions import Task
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule, one_stage_each


def order(pipeline: Pipeline) -> Order:
    """Returns the order of 1F1B."""
    return one_stage_each(pipeline, _tasks)


def alternate(forwards: Sequence[Task], backwards: Sequence[Task], warm_up: int) -> list[Task]:
    """Returns `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left."""
    pairs = [task for pair in zip(forwards[warm_up:], backwards, strict=False) for task in pair]
    return [*forwards[:warm_up], *pairs, *backwards[len(pairs) // 2 :]]


def full_backward_tasks(pipeline: Pipeline, stage: int, warm_up: int) -> list[Task]:
    """Returns the tasks of a stage whose backwards are whole.

    After `warm_up` forwards, a forward and a backward take turns.
    """
    numbers = range(pipeline.num_micro_batches)
    forwards, backwards = [Task("forward", stage, i) for i in numbers], [Task("backward", stage, i) for i in numbers]
    return alternate(forwards, backwards, warm_up)


def _tasks(pipeline: Pipeline, stage: int) -> list[Task]:
    return full_backward_tasks(pipeline, stage, pipeline.num_stages - 1 - stage)


SCHEDULE = Schedule("1f1b", "one forward, one backward in turn; stashes as many micro-batches as stages follow", order)
