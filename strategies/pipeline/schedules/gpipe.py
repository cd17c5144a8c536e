"""GPipe: all forwards, then all backwards.

A stage holds all m micro-batches; the share of idle time is (d - 1) / (m + d - 1).
"""

from __future__ import annotations

from rhino.ir.plan.instructions import Task
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule, one_stage_each


def order(pipeline: Pipeline) -> Order:
    """Returns GPipe's order."""
    return one_stage_each(pipeline, _tasks)


def _tasks(pipeline: Pipeline, stage: int) -> list[Task]:
    numbers = range(pipeline.num_micro_batches)
    return [*(Task("forward", stage, i) for i in numbers), *(Task("backward", stage, i) for i in numbers)]


SCHEDULE = Schedule("gpipe", "all forwards, then all backwards; stashes every micro-batch", order)
