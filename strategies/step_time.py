"""How long a step in stages takes, from what its stages take: the simulator of `strategies/simulate.py` before there are programs.

Each rank runs its tasks in the schedule's order, each as soon as what it waits for is there: a forward for the stage before, a backward for
its own forward and the stage behind, a weight gradient for its input gradient. What passes between stages goes beside all computing, one
micro-batch after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rhino.ir.instructions import Phase
from rhino.strategies.schedules.base import Order


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What stages take.

    Shapes, all by stage [stages]: `forward_s`, `input_s` and `weight_s` per micro-batch, the latter two being the backward; the last
    stage's forward counts with its backward. `apply_s` is once a step. `there_s[s]` and `back_s[s]` [stages - 1] are between s and s + 1.
    """

    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    apply_s: tuple[float, ...]
    there_s: tuple[float, ...]
    back_s: tuple[float, ...]

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.forward_s)

    def busy_s(self, num_micro_batches: int) -> float:
        """Returns the seconds in which all stages compute in a step."""
        each = sum(self.forward_s) + sum(self.input_s) + sum(self.weight_s)
        return num_micro_batches * each + sum(self.apply_s)

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
    kinds = _Kinds(times)
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


@dataclass(slots=True)
class _Ends:
    """When tasks of one phase and stage end, and what they give is at the next stage, which takes `moves_s`: both by micro-batch.

    `asleep` are the ranks that wait for those that have not ended.
    """

    moves_s: float = 0.0
    at_s: dict[int | None, float] = field(default_factory=dict)
    there_s: dict[int | None, float] = field(default_factory=dict)
    last_s: float = 0.0
    asleep: dict[int | None, list[int]] = field(default_factory=dict)

    def end(self, micro_batch: int | None, now_s: float) -> None:
        """Notes that a task ends now, and that what it gives follows what was given before."""
        self.at_s[micro_batch] = now_s
        self.last_s = self.there_s[micro_batch] = max(self.last_s, now_s) + self.moves_s


class _Kind(NamedTuple):
    """The tasks of one phase and stage: what each takes, when they end, and those they wait for, with what passes in between takes."""

    seconds: float
    ends: _Ends
    after: tuple[tuple[_Ends, bool], ...]

    def ready_s(self, micro_batch: int | None, rank: int) -> float | None:
        """Returns when what a task waits for is there; None while that is not known, until when `rank` is asleep."""
        ready = 0.0
        for ends, moves in self.after:
            end = (ends.there_s if moves else ends.at_s).get(micro_batch)
            if end is None:
                ends.asleep.setdefault(micro_batch, []).append(rank)
                return None
            ready = max(ready, end)
        return ready


class _Kinds(dict[tuple[Phase, int], _Kind]):
    """The kinds of tasks, each from when it is asked for."""

    def __init__(self, times: StageTimes) -> None:
        self.times = times
        self.forward = [_Ends(moves_s) for moves_s in (*times.there_s, 0.0)]
        self.input = [_Ends(moves_s) for moves_s in (0.0, *times.back_s)]

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

    def _after(self, phase: Phase, stage: int) -> Iterator[tuple[_Ends, bool]]:
        """Yields what a task waits for, and whether that comes from another stage. The last stage has no forward of its own."""
        last = self.times.num_stages - 1
        starts = phase == "forward"
        ends = phase in ("backward", "input-gradient")
        if stage and (ends if stage == last else starts):
            yield self.forward[stage - 1], True
        if ends and stage < last:
            yield self.forward[stage], False
            yield self.input[stage + 1], True
        if phase == "weight-gradient":
            yield self.input[stage], False
