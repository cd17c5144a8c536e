"""The one global order of a step's launches.

Each rank has a queue by the schedule, and the queues are merged by when each launch can start.

The merge runs the step in estimated time. A launch starts when its rank is free and what it reads is there; the next in
the order is always the earliest to start. A step whose ranks all wait is refused, with what each waits for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Phase, Task
from rhino.ir.plan.stage_programs import ONCE, StagedStep
from rhino.strategies.pipeline.schedules.base import Order


class Launch(NamedTuple):
    """Part `part` of a staged step, for one micro-batch or outside them."""

    part: int
    micro_batch: int | None


_Key: TypeAlias = tuple[int, int | None]
"""A launch where it is looked up: a plain tuple is made in a third of the time."""

_STANDS_FOR: dict[Phase, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "backward": ("backward", "input-gradient", "weight-gradient"),
    "input-gradient": ("backward", "input-gradient"),
    "weight-gradient": ("weight-gradient",),
}
"""The phases whose parts a schedule's task runs.

With these, each schedule takes a step with split backwards as well as one with whole ones.
"""


def default_seconds(staged: StagedStep) -> tuple[float, ...]:
    """Returns for each program what its phase usually takes, where a forward takes one.

    These seconds are for an order without a cost model.
    """
    ones: tuple[Phase, ...] = ("forward", "input-gradient", "weight-gradient", "accumulate", "apply", "step")
    taken: dict[Phase, float] = {"setup": 0.0, "backward": 2.0, **dict.fromkeys(ones, 1.0)}
    seconds = [0.0] * len(staged.programs)
    for part in staged.parts:
        seconds[part.program] = taken[part.phase]
    return tuple(seconds)


def queues(staged: StagedStep, order: Order) -> tuple[tuple[Launch, ...], ...]:
    """Returns what each rank launches, first to last: its parts of `setup`, its tasks, its parts of `apply`.

    A step in one program is launched whole. Tasks for which the step has no part are left out.
    """
    parts = {(part.phase, part.stage): number for number, part in enumerate(staged.parts)}

    def once(rank: int, phase: Phase) -> Iterator[Launch]:
        for number, part in enumerate(staged.parts):
            if part.phase == phase and order.rank_of[part.stage] == rank:
                yield Launch(number, None)

    run_by = {
        (task, stage): [parts[phase, stage] for phase in phases if (phase, stage) in parts]
        for task, phases in _STANDS_FOR.items()
        for stage in range(staged.num_stages)
    }

    def often(tasks: Sequence[Task]) -> Iterator[Launch]:
        for task in tasks:
            for part in run_by[task.phase, task.stage]:
                yield Launch(part, task.micro_batch)

    found = tuple(
        [
            (
                *once(rank, "setup"),
                *often(tasks),
                *once(rank, "accumulate"),
                *once(rank, "apply"),
                *once(rank, "step"),
            )
            for rank, tasks in enumerate(order.tasks)
        ]
    )
    launches = [launch for rank in found for launch in rank]
    expected = sum(1 if part.phase in ONCE else staged.num_micro_batches for part in staged.parts)
    assert len(launches) == len(set(launches)) == expected, "a schedule runs every part of every micro-batch once"
    return found


def sequence(staged: StagedStep, lists: Sequence[Sequence[Launch]], seconds: Sequence[float]) -> tuple[Launch, ...]:
    """Returns all launches of the ranks' `lists` in one order, by estimated start and then by rank.

    `seconds` is what each program takes.

    Raises:
        RhinoError: RHI-SCHED-002 where the lists wait for each other.
    """
    merge = _Merge(staged, lists, seconds, _waits(staged))
    return merge.run()


class _Merge:
    """The ranks as they go through their lists: which launches have ended, and who waits for which."""

    def __init__(
        self,
        staged: StagedStep,
        lists: Sequence[Sequence[Launch]],
        seconds: Sequence[float],
        waits: Sequence[dict[int, str]],
    ) -> None:
        self.staged = staged
        self.lists = lists
        self.part_s = [seconds[part.program] for part in staged.parts]
        self.waits = waits
        self.once: list[list[_Key]] = [[(one, None) for one in own if staged.parts[one].phase in ONCE] for own in waits]
        self.each = [[one for one in own if staged.parts[one].phase not in ONCE] for own in waits]
        self.end_s: dict[_Key, float] = {}
        self.free_s = [0.0] * len(lists)
        self.done = [0] * len(lists)
        self.start_s = [0.0] * len(lists)
        """When the next launch of each rank can start, by those of what it needs that have ended."""
        self.missing = [0] * len(lists)
        """How many of what that launch needs have not."""
        self.waiting: defaultdict[_Key, list[int]] = defaultdict(list)
        self.ready: list[tuple[float, int]] = []

    def run(self) -> tuple[Launch, ...]:
        """Returns all launches, always the next one of the rank that can start first."""
        merged: list[Launch] = []
        for rank in range(len(self.lists)):
            self.look(rank)
        while self.ready:
            start_s, rank = heappop(self.ready)
            launch = self.lists[rank][self.done[rank]]
            merged.append(launch)
            self.done[rank] += 1
            end_s = self.free_s[rank] = self.end_s[launch] = start_s + self.part_s[launch.part]
            for other in self.waiting.pop(launch, ()):
                self.start_s[other] = max(self.start_s[other], end_s)
                self.missing[other] -= 1
                if not self.missing[other]:
                    heappush(self.ready, (self.start_s[other], other))
            self.look(rank)
        if any(done < len(launches) for done, launches in zip(self.done, self.lists, strict=True)):
            raise _deadlock(self.staged, self.lists, self.done, self.waits)
        return tuple(merged)

    def needs(self, launch: Launch) -> list[_Key]:
        """What a launch waits for."""
        part, number = launch
        if number is not None:
            return self.once[part] + [(one, number) for one in self.each[part]]
        return self.once[part] + [(one, i) for one in self.each[part] for i in range(self.staged.num_micro_batches)]

    def look(self, rank: int) -> None:
        """Has a rank wait for what its next launch needs."""
        if self.done[rank] == len(self.lists[rank]):
            return
        start_s, missing = self.free_s[rank], 0
        for launch in self.needs(self.lists[rank][self.done[rank]]):
            if (end_s := self.end_s.get(launch)) is None:
                self.waiting[launch].append(rank)
                missing += 1
            elif end_s > start_s:
                start_s = end_s
        self.start_s[rank], self.missing[rank] = start_s, missing
        if not missing:
            heappush(self.ready, (start_s, rank))


def task_of(staged: StagedStep, launch: Launch) -> Task:
    """Returns what a launch is for."""
    part = staged.parts[launch.part]
    return Task(part.phase, part.stage, launch.micro_batch)


def _waits(staged: StagedStep) -> list[dict[int, str]]:
    """For each part, the other parts that must run before it, and the first value of each that it reads.

    An accumulator has two producers. Who reads it after the micro-batches waits for both, and so for its last value.
    """
    producers: dict[str, list[int]] = defaultdict(list)
    for number, part in enumerate(staged.parts):
        for name in part.gives:
            producers[name].append(number)
    waits: list[dict[int, str]] = [{} for _ in staged.parts]
    for number, part in enumerate(staged.parts):
        for name in part.reads:
            for producer in producers[name]:
                if producer != number:
                    waits[number].setdefault(producer, name)
    return waits


def _awaited(staged: StagedStep, waits: Sequence[dict[int, str]], launch: Launch) -> Iterator[tuple[Launch, str]]:
    """The launches that one waits for, each with a value that it reads.

    They are those of its own micro-batch, or those of all.
    """
    for producer, name in waits[launch.part].items():
        if staged.parts[producer].phase in ONCE:
            yield Launch(producer, None), name
        elif launch.micro_batch is not None:
            yield Launch(producer, launch.micro_batch), name
        else:
            yield from ((Launch(producer, i), name) for i in range(staged.num_micro_batches))


def _deadlock(
    staged: StagedStep, lists: Sequence[Sequence[Launch]], done: Sequence[int], waits: Sequence[dict[int, str]]
) -> RhinoError:
    """Names for each rank what it waits in, for which value of which launch, and where that launch stands."""
    place = {launch: (rank, at) for rank, launches in enumerate(lists) for at, launch in enumerate(launches)}
    notes = []
    for rank, launches in enumerate(lists):
        for launch in launches[done[rank] : done[rank] + 1]:
            other, name = next(
                (one, name) for one, name in _awaited(staged, waits, launch) if not _is_done(one, place, done)
            )
            where = "which no rank runs"
            if other in place:
                by, at = place[other]
                where = (
                    f"which stands {at - done[by]} behind what rank {by} waits in"
                    if at > done[by]
                    else f"in which rank {by} waits"
                )
            notes.append(
                f"rank {rank} waits in {task_of(staged, launch)} for {name!r} of {task_of(staged, other)}, {where}"
            )
    return RhinoError(
        "RHI-SCHED-002", "the ranks wait for each other", notes=tuple(notes), fix="correct the order of the tasks"
    )


def _is_done(launch: Launch, place: Mapping[Launch, tuple[int, int]], done: Sequence[int]) -> bool:
    return launch in place and place[launch][1] < done[place[launch][0]]
