"""Interleaved 1F1B: rank r of p has the stages r, p + r, 2p + r, ... as its chunks.

So a micro-batch passes each rank several times.

With v chunks of a v-th of the work the pipeline fills v times faster: the share of idle time is (p - 1) / (v m + p -
1), paid with v times the transfers and more micro-batches in memory. The forwards go in rounds of p micro-batches,
every chunk of a round before the next round; the backwards likewise, last chunk first.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section
2.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhino.ir.plan.instructions import Phase, Task
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule
from rhino.strategies.pipeline.schedules.one_f_one_b import alternate


def order(pipeline: Pipeline) -> Order:
    """Returns the interleaved order; the last round may be short of micro-batches.

    A short round is planned as a full one, whose micro-batches that are not there are then left out. Tasks depend only
    on tasks of their own micro-batch, so whatever is left of an order that can finish can finish too.
    """
    num_ranks = pipeline.num_ranks
    ranks = [_tasks(pipeline, rank) for rank in range(num_ranks)]
    there = range(pipeline.num_micro_batches)
    kept = tuple([tuple([task for task in tasks if task.micro_batch in there]) for tasks in ranks])
    return Order(kept, tuple([stage % num_ranks for stage in range(pipeline.num_stages)]))


def _tasks(pipeline: Pipeline, rank: int) -> list[Task]:
    p, v = pipeline.num_ranks, pipeline.chunks
    forwards = _in_rounds(pipeline, rank, "forward", range(v))
    backwards = _in_rounds(pipeline, rank, "backward", range(v)[::-1])
    # The first backward of the last chunk needs p rounds less one of forwards; behind it, each rank further from the
    # end has two tasks more to wait for: a forward on the way down and a backward on the way up. With one chunk the two
    # overlap: plain 1F1B.
    warm_up = (v - 1) * p + (2 if v > 1 else 1) * (p - 1 - rank)
    return alternate(forwards, backwards, min(warm_up, len(forwards)))


def _in_rounds(pipeline: Pipeline, rank: int, phase: Phase, chunks: Sequence[int]) -> list[Task]:
    p = pipeline.num_ranks
    starts = range(0, pipeline.num_micro_batches, p)
    return [Task(phase, chunk * p + rank, start + i) for start in starts for chunk in chunks for i in range(p)]


SCHEDULE = Schedule(
    "interleaved", "1F1B with several stages on a rank; less idle time, more transfers", order, chunked=True
)
