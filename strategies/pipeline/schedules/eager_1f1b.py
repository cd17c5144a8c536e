"""Eager 1F1B: 1F1B with twice as many forwards before the first backward, so that transfers overlap computing.

In 1F1B a micro-batch goes from stage s to the last and back while d - s are in flight: stages that are as even as can
be wait for every transfer on that way. Here there is one more for each transfer. Stage s of d holds min(m, 2 (d - s) -
1) micro-batches at a time; where transfers take no time it idles as long as 1F1B.

Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism" (2023).
"""

from __future__ import annotations

from rhino.ir.plan.instructions import Task
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule, one_stage_each
from rhino.strategies.pipeline.schedules.one_f_one_b import full_backward_tasks


def order(pipeline: Pipeline) -> Order:
    """Returns the order of eager 1F1B."""
    return one_stage_each(pipeline, _tasks)


def _tasks(pipeline: Pipeline, stage: int) -> list[Task]:
    return full_backward_tasks(pipeline, stage, 2 * (pipeline.num_stages - 1 - stage))


SCHEDULE = Schedule(
    "eager-1f1b",
    "1F1B with a longer warm-up, which hides transfers; stashes nearly twice as much",
    order,
    runs_ahead=True,
)
