"""What a schedule is: the order in which each rank runs its tasks in the micro-batches.

A schedule knows nothing of programs, values or times. It may name tasks for which a step has no program, such as the
forward of a last stage that does both at once: they are left out later, which never harms, for nothing waits for them.
All schedules take the micro-batches of a stage's backward (and weight gradient) in ascending order, so their sums agree
to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rhino.ir.plan.instructions import Task


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a schedule is made for: each of the `num_stages / chunks` ranks holds `chunks` stages."""

    num_stages: int
    num_micro_batches: int
    chunks: int = 1

    @property
    def num_ranks(self) -> int:
        """The number of ranks; `chunks` divides the number of stages."""
        return self.num_stages // self.chunks


@dataclass(frozen=True, slots=True)
class Order:
    """`tasks[r]` are the tasks of rank r, first to last; `rank_of[s]` is the rank that holds stage s."""

    tasks: tuple[tuple[Task, ...], ...]
    rank_of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A way to order the tasks of any pipeline.

    `splits_backward`: its tasks are input gradients and weight gradients instead of whole backwards. `chunked`: a rank
    may hold several stages. `runs_ahead`: it is another one with more micro-batches in flight. `order` may rely on the
    pipeline being one that the schedule takes.
    """

    name: str
    summary: str
    order: Callable[[Pipeline], Order]
    splits_backward: bool = False
    chunked: bool = False
    runs_ahead: bool = False

    @property
    def stages_per_rank(self) -> int:
        """How many stages a rank has where nobody gives another number: two where it may hold several."""
        return 2 if self.chunked else 1

    def idle_share(self, num_ranks: int, num_micro_batches: int) -> float:
        """Returns how long ranks wait at both ends of a step, relative to what they compute (docs/pipelines.md).

        That holds for equal stages, and transfers that take no time.
        """
        return (num_ranks - 1) / ((3 if self.splits_backward else self.stages_per_rank) * num_micro_batches)


def one_stage_each(pipeline: Pipeline, tasks: Callable[[Pipeline, int], list[Task]]) -> Order:
    """Returns the order in which rank s holds stage s alone and runs `tasks(pipeline, s)`."""
    stages = range(pipeline.num_stages)
    return Order(tuple([tuple(tasks(pipeline, stage)) for stage in stages]), tuple(stages))
