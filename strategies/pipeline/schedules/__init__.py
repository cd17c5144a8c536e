"""Schedules: one file each, and the one table of their names."""

from __future__ import annotations

from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.strategies.pipeline.schedules import eager_1f1b, gpipe, interleaved, one_f_one_b, zero_bubble, zero_bubble_h2
from rhino.strategies.pipeline.schedules.base import Order, Pipeline, Schedule

__all__ = ["DEFAULT", "SCHEDULES", "Order", "Pipeline", "Schedule", "find_schedule", "make_order", "num_ranks_of"]

SCHEDULES: Final[dict[str, Schedule]] = {
    one.name: one
    for one in (
        one_f_one_b.SCHEDULE,
        eager_1f1b.SCHEDULE,
        gpipe.SCHEDULE,
        interleaved.SCHEDULE,
        zero_bubble.SCHEDULE,
        zero_bubble_h2.SCHEDULE,
    )
}
"""Every schedule by its name, sorted."""

DEFAULT: Final = one_f_one_b.SCHEDULE.name


def find_schedule(name: str) -> Schedule:
    """Returns the schedule of that name.

    Raises:
        RhinoError: RHI-SCHED-001 where there is none.
    """
    if name not in SCHEDULES:
        raise RhinoError(
            "RHI-SCHED-001", f"got schedule {name!r}, expected one of {', '.join(SCHEDULES)}", fix=f"take {DEFAULT}"
        )
    return SCHEDULES[name]


def num_ranks_of(schedule: Schedule, num_stages: int) -> int:
    """Returns the number of ranks that `num_stages` stages are on where nobody says how many a rank has.

    Raises:
        RhinoError: RHI-SCHED-001 where they would all be on one rank, or not as many on each.
    """
    chunks = schedule.stages_per_rank
    if num_stages > 1 and (num_stages == chunks or num_stages % chunks):
        what = f"schedule {schedule.name!r} has {chunks} stages on each of at least 2 ranks, got {num_stages} stages"
        fix = f"ask for {2 * chunks} stages or another multiple of {chunks}, or take {DEFAULT}"
        raise RhinoError("RHI-SCHED-001", what, fix=fix)
    return max(1, num_stages // chunks)


def make_order(name: str, pipeline: Pipeline) -> Order:
    """Returns the order in which the schedule of that name runs a pipeline.

    Raises:
        RhinoError: RHI-SCHED-001 where there is no such schedule, or it does not take such a pipeline.
    """
    schedule = find_schedule(name)
    if min(pipeline.num_stages, pipeline.num_micro_batches, pipeline.chunks) < 1:
        got = (
            f"{pipeline.num_stages} stages, {pipeline.num_micro_batches} micro-batches, "
            f"{pipeline.chunks} stages on a rank"
        )
        raise RhinoError("RHI-SCHED-001", f"got {got}, expected at least one of each", fix="give positive numbers")
    if pipeline.chunks > 1 and not schedule.chunked:
        chunked = ", ".join(one.name for one in SCHEDULES.values() if one.chunked)
        what = f"schedule {name!r} holds one stage on a rank, got {pipeline.chunks}"
        raise RhinoError("RHI-SCHED-001", what, fix=f"give as many ranks as stages, or take {chunked}")
    if pipeline.num_stages % pipeline.chunks:
        what = f"{pipeline.num_stages} stages cannot be dealt to ranks of {pipeline.chunks} stages each"
        raise RhinoError("RHI-SCHED-001", what, fix="ask for a number of stages that the stages of a rank divide")
    return schedule.order(pipeline)
