"""ZB-H2: ZB-H1 with twice as many micro-batches in flight, so that no rank waits for transfers or the ranks behind.

Rank s begins with 2 (d - 1 - s) + 1 forwards and puts off each weight gradient by 2 s micro-batches. Each rank is busy
from its first task to its last, as long as a backward pass takes no longer than a forward pass; those that begin later
end later, when others may be a step on. A rank holds the inputs of at most min(m, 2 d - 1) micro-batches, those that
wait for their weight gradients included.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", section 2.
"""

from __future__ import annotations

from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule, one_stage_each
from rhino.strategies.pipeline.schedules.zero_bubble import split_tasks


def order(pipeline: Pipeline) -> Order:
    """Returns the order of ZB-H2."""
    return one_stage_each(pipeline, lambda pipe, stage: split_tasks(pipe, stage, 2))


SCHEDULE = Schedule(
    "zero-bubble-h2",
    "zero-bubble with a longer warm-up, which hides transfers; stashes twice as much",
    order,
    splits_backward=True,
    runs_ahead=True,
)
