"""How long a step in stages takes, from what its stages take.

It does what the simulator of `strategies/pipeline/simulate.py` does, before there are programs.

Each rank runs its tasks in the schedule's order, each as soon as what it waits for is there: a forward for the stages
before that give it something, a backward for its own forward and the stages behind, a weight gradient for its input
gradient. What passes between stages goes beside all computing, from one rank to another one after the other, as it was
made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rhino.ir.plan.instructions import Phase
from rhino.strategies.pipeline.schedules.base import Order


class StageTransfer(NamedTuple):
    """The seconds in which what one stage gives to another of a micro-batch is there."""

    giving: int
    taking: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What stages take.

    Shapes, all by stage [stages]: `forward_s`, `input_s` and `weight_s` per micro-batch, the latter two being the
    backward; the last stage's forward counts with its backward. `apply_s` is once a step. `moves` [ways]: what a
    micro-batch takes from a stage to another, from its forward to a later one, from its backward to an earlier one.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    apply_s: tuple[float, ...]
    moves: tuple[StageTransfer, ...]

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.forward_s)

    def busy_s(self, num_micro_batches: int) -> float:
        """Returns the seconds in which all stages compute in a step."""
        each = sum(self.forward_s) + sum(self.input_s) + sum(self.weight_s)
        return num_micro_batches * each + sum(self.apply_s)

    def each_busy_s(self, num_micro_batches: int) -> list[float]:
        """Returns the seconds in which each stage computes in a step [stages]."""
        every = zip(self.forward_s, self.input_s, self.weight_s, self.apply_s, strict=True)
        return [num_micro_batches * (one + two + three) + once for one, two, three, once in every]

    def task_s(self, phase: Phase, stage: int) -> float:
        """Returns the seconds of a task."""
        match phase:
            case "forward":
                return self.forward_s[stage]
            case "input-gradient":
                return self.input_s[stage]
            case "weight-gradient":
                return self.weight_s[stage]
            case "backward":
                return self.input_s[stage] + self.weight_s[stage]
            case _:
                return 0.0


def step_seconds(order: Order, times: StageTimes) -> float:
    """Returns when the last rank has applied its gradients. The order is one of a schedule, for as many stages."""
    kinds = _Kinds(times, order.rank_of)
    free = [0.0] * len(order.tasks)
    at = [0] * len(order.tasks)
    awake = list(range(len(order.tasks)))
    while awake:
        rank = awake.pop()
        now, tasks = free[rank], order.tasks[rank]
        for number in range(at[rank], len(tasks)):
            task = tasks[number]
            kind = kinds[task.phase, task.stage]
            ready = kind.ready_s(task.micro_batch, rank)
            if ready is None:
                break
            now = max(now, ready) + kind.seconds
            kind.ends.end(task.micro_batch, now)
            awake += kind.ends.asleep.pop(task.micro_batch, ())
            at[rank] = number + 1
        free[rank] = now
    assert all(number == len(tasks) for number, tasks in zip(at, order.tasks, strict=True)), (
        "the tasks of a schedule never wait for each other"
    )
    apply_s = [0.0] * len(order.tasks)
    for stage, rank in enumerate(order.rank_of):
        apply_s[rank] += times.apply_s[stage]
    return max(one + more for one, more in zip(free, apply_s, strict=True))


_Times = dict[int | None, float]
"""Seconds by micro-batch."""


@dataclass(slots=True)
class _Link:
    """The way from one rank to another, and when it has done what it was given."""

    free_s: float = 0.0


@dataclass(slots=True)
class _Ends:
    """When tasks of one phase and stage end, by micro-batch, and what then goes to other stages.

    A transfer has when it is there, its seconds, and its link; what stays on the rank has no link. `asleep` are the
    ranks that wait for tasks that have not ended.
    """

    at_s: _Times = field(default_factory=dict)
    sends: dict[int, tuple[_Times, float, _Link | None]] = field(default_factory=dict)
    asleep: dict[int | None, list[int]] = field(default_factory=dict)

    def end(self, micro_batch: int | None, now_s: float) -> None:
        """Notes that a task ends now, and that what it gives follows what was given before."""
        self.at_s[micro_batch] = now_s
        for there_s, seconds, link in self.sends.values():
            if link is None:
                there_s[micro_batch] = now_s
            else:
                link.free_s = there_s[micro_batch] = max(link.free_s, now_s) + seconds


class _Kind(NamedTuple):
    """The tasks of one phase and stage.

    It has what each task takes, when the tasks end, and those they wait for, with when what these give is there.
    """

    seconds: float
    ends: _Ends
    after: tuple[tuple[_Ends, _Times], ...]

    def ready_s(self, micro_batch: int | None, rank: int) -> float | None:
        """Returns when what a task waits for is there; None while that is not known, until when `rank` is asleep."""
        ready = 0.0
        for ends, times_s in self.after:
            end = times_s.get(micro_batch)
            if end is None:
                ends.asleep.setdefault(micro_batch, []).append(rank)
                return None
            ready = max(ready, end)
        return ready


class _Kinds(dict[tuple[Phase, int], _Kind]):
    """The kinds of tasks, each from when it is asked for."""

    def __init__(self, times: StageTimes, rank_of: Sequence[int]) -> None:
        self.times = times
        self.forward = [_Ends() for _ in range(times.num_stages)]
        self.input = [_Ends() for _ in range(times.num_stages)]
        links: dict[tuple[int, int], _Link] = {}
        for giving, taking, seconds in times.moves:
            ranks = rank_of[giving], rank_of[taking]
            link = links.setdefault(ranks, _Link()) if ranks[0] != ranks[1] else None
            (self.forward if giving < taking else self.input)[giving].sends[taking] = ({}, seconds, link)

    def __missing__(self, key: tuple[Phase, int]) -> _Kind:
        self[key] = kind = _Kind(self.times.task_s(*key), self._ends(*key), tuple(self._after(*key)))
        return kind

    def _ends(self, phase: Phase, stage: int) -> _Ends:
        match phase:
            case "forward":
                return self.forward[stage]
            case "backward" | "input-gradient":
                return self.input[stage]
            case _:
                return _Ends()

    def _after(self, phase: Phase, stage: int) -> Iterator[tuple[_Ends, _Times]]:
        """Yields what a task waits for, and when what that gives is there. The last stage has no forward of its own."""
        last = self.times.num_stages - 1
        ends = phase in ("backward", "input-gradient")
        if ends if stage == last else phase == "forward":
            yield from self._given(self.forward[:stage], stage)
        if ends and stage < last:
            yield self.forward[stage], self.forward[stage].at_s
            yield from self._given(self.input[stage + 1 :], stage)
        if phase == "weight-gradient":
            yield self.input[stage], self.input[stage].at_s

    @staticmethod
    def _given(by: Sequence[_Ends], stage: int) -> Iterator[tuple[_Ends, _Times]]:
        return ((one, one.sends[stage][0]) for one in by if stage in one.sends)
