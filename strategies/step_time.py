"""How long a step in stages takes, from what its stages take: the simulator of `strategies/simulate.py` before there are programs.

Each rank runs its tasks in the schedule's order, each as soon as what it waits for is there: a forward for the stage before, a backward for
its own forward and the stage behind, a weight gradient for its input gradient. What passes between stages goes beside all computing.
"""

from __future__ import annotations

from dataclasses import dataclass

from rhino.ir.instructions import Phase, Task
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

    def task_s(self, task: Task) -> float:
        """Returns the seconds of a task."""
        match task.phase:
            case "forward":
                return self.forward_s[task.stage]
            case "input-gradient":
                return self.input_s[task.stage]
            case "weight-gradient":
                return self.weight_s[task.stage]
            case "backward":
                return self.input_s[task.stage] + self.weight_s[task.stage]
            case _:
                return 0.0


def step_seconds(order: Order, times: StageTimes) -> float:
    """Returns when the last rank has applied its gradients. The order is one of a schedule, for as many stages."""
    done: dict[tuple[Phase, int, int | None], float] = {}
    free = [0.0] * len(order.tasks)
    at = [0] * len(order.tasks)
    waiting = sum(map(len, order.tasks))
    while waiting:
        before = waiting
        for rank, tasks in enumerate(order.tasks):
            while at[rank] < len(tasks) and (ready := _ready_s(tasks[at[rank]], times, done)) is not None:
                task = tasks[at[rank]]
                free[rank] = max(free[rank], ready) + times.task_s(task)
                for phase in _COUNTS_AS.get(task.phase, (task.phase,)):
                    done[phase, task.stage, task.micro_batch] = free[rank]
                at[rank] += 1
                waiting -= 1
        assert waiting < before, "the tasks of a schedule never wait for each other"
    apply_s = [0.0] * len(order.tasks)
    for stage, rank in enumerate(order.rank_of):
        apply_s[rank] += times.apply_s[stage]
    return max(one + more for one, more in zip(free, apply_s, strict=True))


_COUNTS_AS: dict[Phase, tuple[Phase, ...]] = {"backward": ("input-gradient", "weight-gradient")}


def _ready_s(task: Task, times: StageTimes, done: dict[tuple[Phase, int, int | None], float]) -> float | None:
    """Returns when what a task waits for is there; None while that is not known. The last stage has no forward of its own."""
    stage, number, last = task.stage, task.micro_batch, times.num_stages - 1
    starts = task.phase == "forward"
    ends = task.phase in ("backward", "input-gradient")
    found: list[float | None] = [0.0]
    if stage and (ends if stage == last else starts):
        found.append(_after(done.get(("forward", stage - 1, number)), times.there_s[stage - 1]))
    if ends and stage < last:
        found.append(done.get(("forward", stage, number)))
        found.append(_after(done.get(("input-gradient", stage + 1, number)), times.back_s[stage]))
    if task.phase == "weight-gradient":
        found.append(done.get(("input-gradient", stage, number)))
    known = [one for one in found if one is not None]
    return max(known) if len(known) == len(found) else None


def _after(end_s: float | None, seconds: float) -> float | None:
    return None if end_s is None else end_s + seconds
