"""ZB-H1: 1F1B with the backward split, so that weight gradients, for which nobody waits, fill idle time.

The input gradients take the places of 1F1B's backwards. Rank s puts off each weight gradient by s micro-batches: those
fill the end, where 1F1B waits for the backwards of the ranks behind. Idle are (d - 1) (F + B - W) instead of (d - 1) (F
+ B + W) of the time. A rank holds the inputs of at most min(m, d) micro-batches, those that wait for their weight
gradients included.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", section 2.3.
"""

from __future__ import annotations

from rhino.ir.plan.instructions import Task
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule, one_stage_each
from rhino.strategies.pipeline.schedules.one_f_one_b import alternate


def order(pipeline: Pipeline) -> Order:
    """Returns the order of ZB-H1."""
    return one_stage_each(pipeline, lambda pipe, stage: split_tasks(pipe, stage, 1))


def split_tasks(pipeline: Pipeline, stage: int, ahead: int) -> list[Task]:
    """Returns the tasks of a stage that runs `ahead` more forwards than the next one before its first input gradient.

    Its weight gradients follow as many more micro-batches behind their input gradients than those of the stage before
    it.
    """
    numbers, later = range(pipeline.num_micro_batches), ahead * stage
    forwards, inputs = [Task("forward", stage, i) for i in numbers], [Task("input-gradient", stage, i) for i in numbers]
    tasks: list[Task] = []
    for task in alternate(forwards, inputs, ahead * (pipeline.num_stages - 1 - stage)):
        tasks.append(task)
        if task.phase == "input-gradient" and task.micro_batch is not None and task.micro_batch >= later:
            tasks.append(Task("weight-gradient", stage, task.micro_batch - later))
    return [*tasks, *(Task("weight-gradient", stage, i) for i in numbers[-later:] if later)]


SCHEDULE = Schedule(
    "zero-bubble", "1F1B whose weight gradients fill idle time; the backward is split", order, splits_backward=True
)
