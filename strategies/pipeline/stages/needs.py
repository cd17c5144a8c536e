"""What devices of each stage need while its programs run, found from the plan of the step before these are written.

A program of a stage is a part of the plan (`strategies/pipeline/plan_part.py`): the ops of a virtual stage or a half of
one, with what they make again. Beside what the stage keeps throughout and what is stashed, it needs its temporaries,
and what it takes from and gives to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeAlias

import numpy as np

from rhino.ir.arrays import Bools
from rhino.ir.graph.spec import Spec, num_parts
from rhino.ir.plan.instructions import Phase, Task
from rhino.ir.plan.stages import VirtualStages
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.pipeline.activation_stash import ActivationStash, SplitMicroBatch
from rhino.strategies.pipeline.plan_part import PlanPart, bytes_of, plan_of, structure, temporary_bytes
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.pipeline.stages.places import OpStages

_PHASES: Final[tuple[Phase, ...]] = ("forward", "backward")
"""The programs of a stage in a micro-batch, where the backward pass is one."""

_Key: TypeAlias = tuple[Phase, int]
"""A program of each micro-batch, or `apply`: its phase and its stage."""


def rank_peaks(needs: Sequence[StageNeeds], order: Order, limit_bytes: float = inf) -> tuple[float, ...]:
    """Returns what a device of each rank needs at most as it goes through its tasks, by its own `needs` [ranks].

    Where a rank is over the limit, it returns that rank alone. Most of the work is to find what programs need by
    themselves. So what is stored between them is found first, and ranks come first that store most.
    """
    stages_of = [[stage for stage, rank in enumerate(order.rank_of) if rank == one] for one in range(len(order.tasks))]
    used = [own.used_bytes(stages, tasks) for own, stages, tasks in zip(needs, stages_of, order.tasks, strict=True)]
    found = [0.0] * len(used)
    for rank in sorted(range(len(used)), key=lambda one: -max(used[one].values())):
        if max(used[rank].values()) > limit_bytes:
            return (max(used[rank].values()),)
        found[rank] = max(size + needs[rank].passing_bytes(*key) for key, size in used[rank].items())
        if found[rank] > limit_bytes:
            return (found[rank],)
    return tuple(found)


@dataclass(eq=False)
class StageNeeds:
    """What devices of the stages of a step need, program by program, each told when it is first asked for.

    Shapes: `stages` [ops], where ops are; `awaited` [ops], which ops another stage waits for; `kept_bytes` [stages],
    what a device holds throughout a step; `freed_bytes` [stages], what of a micro-batch is recomputed, and
    `again_bytes` [stages], what of that is there again at once. `temporaries` are those of programs by their structure,
    which cuts of one plan may share.
    """

    plan: ShardingPlan
    split: SplitMicroBatch
    stages: OpStages
    awaited: Bools
    kept_bytes: tuple[float, ...]
    freed_bytes: tuple[float, ...]
    again_bytes: tuple[float, ...]
    temporaries: dict[object, float] = field(default_factory=dict)
    virtual_of: list[int] = field(init=False)
    device_of: list[int] = field(init=False)
    in_body: list[bool] = field(init=False)
    """`stages`, and which ops are of the micro-batch [ops]; lists are faster to ask op by op."""

    parts: dict[_Key, PlanPart] = field(init=False, default_factory=dict)
    stashes: dict[int, ActivationStash] = field(init=False, default_factory=dict)
    passing: dict[_Key, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.virtual_of, self.device_of = self.stages.virtual.tolist(), self.stages.device.tolist()
        self.in_body = self.split.parts.body.tolist()

    @property
    def virtual(self) -> VirtualStages:
        """The virtual stages of the micro-batch."""
        return VirtualStages(len(self.kept_bytes))

    def peak_bytes(self, order: Order, limit_bytes: float = inf) -> tuple[float, ...]:
        """Returns what a device of each rank needs at most as it goes through its tasks [ranks], as `rank_peaks`."""
        return rank_peaks([self] * len(order.tasks), order, limit_bytes)

    def used_bytes(self, stages: Sequence[int], tasks: Sequence[Task]) -> dict[_Key, float]:
        """Returns the most that a device of a rank with these stages stores while each program runs.

        What the program itself needs is not counted.
        """
        halves = any(task.phase == "weight-gradient" for task in tasks)
        saves = {stage: self.saved_bytes(stage) for stage in stages}
        waits = {stage: self.waiting_bytes(stage) if halves else 0.0 for stage in stages}
        used = sum(self.kept_bytes[stage] + self.ahead_bytes(stage) for stage in stages)
        found: dict[_Key, float] = {("apply", stage): used for stage in stages}
        for task in tasks:
            key, saved = (task.phase, task.stage), saves[task.stage]
            if task.phase == "forward":
                used += saved
            found[key] = max(found.get(key, 0.0), used)
            match task.phase:
                case "backward":
                    used -= saved
                case "input-gradient":
                    used += waits[task.stage] - saved
                case "weight-gradient":
                    used -= waits[task.stage]
        return found

    def saved_bytes(self, stage: int) -> float:
        """Returns what is held of a micro-batch from its forward pass to its backward pass."""
        return max(0.0, self.split.size(self.activation_stash(stage)) - self.freed_bytes[stage])

    def ahead_bytes(self, stage: int) -> float:
        """Returns what comes in from other stages for the next program while one runs."""
        return max(self.received_bytes(phase, stage) for phase in _PHASES)

    def passing_bytes(self, phase: Phase, stage: int) -> float:
        """Returns what a program needs beside what is kept and stashed.

        That is its temporaries, and what it takes from and gives to others.
        """
        key = (phase, stage)
        if key not in self.passing:
            part = self.program(phase, stage)
            stored = set(self.waiting(stage) if phase == "weight-gradient" else self.activation_stash(stage).kept)
            reads = {
                value: self.plan.specs[value]
                for value in part.arguments(self.plan.graph)
                if self.is_of_micro_batch(value)
            }
            gives = {value: spec for value, spec in part.returns.items() if value not in part.into}
            stays = set(self.waiting(stage) if phase == "input-gradient" else ())
            crossing = {value: spec for value, spec in {**reads, **gives}.items() if value not in stored}
            sizes = [
                bytes_of(self.plan, v, spec) if v in stays else self.sent_bytes(v, spec) for v, spec in crossing.items()
            ]
            self.passing[key] = self.temporary_bytes(part) + self.recomputed_bytes(phase, stage) + sum(sizes)
        return self.passing[key]

    def sent_bytes(self, value: int, spec: Spec) -> float:
        """Returns the bytes of a value as it goes from one stage to another.

        Of the tensors that it stands for, one goes.
        """
        return self.plan.graph.type_of(value).num_bytes / num_parts(spec, self.plan.sizes)

    def recomputed_bytes(self, phase: Phase, stage: int) -> float:
        """Returns the bytes that rematerialization adds to the temporaries of a program.

        The last stage does both ways in one program, of which what is recomputed is a temporary less.
        """
        if phase not in ("backward", "input-gradient"):
            return 0.0
        return self.again_bytes[stage] - (self.freed_bytes[stage] if stage == self.virtual.num_stages - 1 else 0.0)

    def temporary_bytes(self, part: PlanPart) -> float:
        """Returns the bytes of a program's temporaries.

        Those of equal programs, as of alike layers, are worked out once.
        """
        if not part.ops:
            return 0.0
        plan = plan_of(self.plan, part)
        key = structure(plan)
        if key not in self.temporaries:
            self.temporaries[key] = temporary_bytes(plan)
        return self.temporaries[key]

    def received_bytes(self, phase: Phase, stage: int) -> float:
        """Returns the bytes that a program of the micro-batch reads of other stages."""
        part = self.program(phase, stage)
        found = [value for value in part.arguments(self.plan.graph) if self.is_of_micro_batch(value)]
        received = [value for value in found if self.device_of[self.split.value_op[value]] != stage]
        return sum(self.sent_bytes(value, self.plan.specs[value]) for value in received)

    def waiting_bytes(self, stage: int) -> float:
        """Returns what is held of a micro-batch between the halves of its backward pass."""
        return sum(self.split.num_bytes[value] for value in self.waiting(stage))

    def waiting(self, stage: int) -> list[int]:
        """Returns what the second half of a backward pass reads of the micro-batch."""
        return [
            value
            for value in self.program("weight-gradient", stage).arguments(self.plan.graph)
            if self.is_of_micro_batch(value)
        ]

    def is_of_micro_batch(self, value: int) -> bool:
        """Says whether a value is made anew in each micro-batch."""
        op = self.split.value_op[value]
        return op >= 0 and self.in_body[op]

    # Programs

    def activation_stash(self, stage: int) -> ActivationStash:
        """Returns what the forward pass of a stage stashes for its backward pass.

        The last stage does both in one program.
        """
        if stage not in self.stashes:
            back = self.virtual.opposite(stage)
            self.stashes[stage] = (
                self.split.between(self.stages.virtual, stage, back)
                if stage < back
                else ActivationStash({}, frozenset())
            )
        return self.stashes[stage]

    def program(self, phase: Phase, stage: int) -> PlanPart:
        """Returns the ops of a program, with what it makes again."""
        key = (phase, stage)
        if key not in self.parts:
            self.parts[key] = self.applied(stage) if phase == "apply" else self.part(phase, stage)
        return self.parts[key]

    def part(self, phase: Phase, stage: int) -> PlanPart:
        """Returns a program of the micro-batch."""
        graph, stash, opposite = self.plan.graph, self.activation_stash(stage), self.virtual.opposite(stage)
        back = self.ops_in(opposite)
        again = {int(graph.value_op[value]) for value in stash.again}
        match phase:
            case "forward":
                ops, again = (self.ops_in(stage) if stage < opposite else []), set()
            case "input-gradient":
                ops = [op for op in back if self.awaited[op]]
            case "weight-gradient":
                ops, again = (
                    [op for op in back if not self.awaited[op]],
                    again.difference(self.program("input-gradient", stage).ops),
                )
            case _:
                ops = back
        return self.given(ops, again, stash)

    def ops_in(self, virtual: int) -> list[int]:
        """Returns the ops of a virtual stage that cost something."""
        return np.flatnonzero(~self.split.parts.free & (self.stages.virtual == virtual)).tolist()

    def given(self, ops: list[int], again: set[int], stash: ActivationStash) -> PlanPart:
        """Returns the program of `ops` and what they make again, its results in the order in which others read them."""
        own, graph = set(ops), self.plan.graph
        every = self.closed(ops, again)
        inside = frozenset(every)
        made = [value for op in every if op in own or op in again for value in graph.results(op)]
        there = set(made)
        sums = [value for value in self.split.ends if value in there]
        readers = {
            value: self.readers_beyond(value, inside, again, stash) for value in made if value not in self.split.ends
        }
        given = sorted((min((self.virtual_of[op], op) for op in ops), value) for value, ops in readers.items() if ops)
        returns = {
            value: self.plan.specs[self.split.ends.get(value, value)]
            for value in (*sums, *(value for _, value in given))
        }
        return PlanPart(every, returns, {value: self.split.ends[value] for value in sums})

    def readers_beyond(self, value: int, inside: Set[int], again: set[int], stash: ActivationStash) -> list[int]:
        """Returns the ops of other programs to which a program, with the ops `inside`, gives a value that it makes."""
        readers = [op for op in self.split.readers.get(value, ()) if op not in inside and self.in_body[op]]
        made = self.split.value_op[value]
        here, back = self.virtual_of[made], self.virtual.opposite(self.virtual_of[made])
        if made in again:  # only the other half of the backward pass may take it from here
            return [op for op in readers if self.virtual_of[op] == back]
        beyond = [op for op in readers if here == back or self.virtual_of[op] != back]
        return [*beyond, *(stash.kept.get(value, ()) if here < back else ())]

    def applied(self, stage: int) -> PlanPart:
        """Returns what a stage does after all micro-batches, as one program."""
        graph = self.plan.graph
        parts = self.split.parts
        every = self.closed(np.flatnonzero(parts.apply & ~parts.free & (self.stages.device == stage)).tolist(), set())
        result = {value: number for number, value in enumerate(graph.returns)}
        taken = {one.alias: number for number, one in enumerate(graph.arguments) if one.alias is not None}
        returns: dict[int, Spec] = {}
        into: dict[int, int] = {}
        for value in (value for op in every for value in graph.results(op)):
            if value in result:
                returns[value] = self.plan.returned[result[value]]
                if result[value] in taken:
                    into[value] = taken[result[value]]
            elif any(self.device_of[reader] != stage for reader in self.split.readers.get(value, ())):
                returns[value] = self.plan.specs[value]
        return PlanPart(every, returns, into)

    def closed(self, ops: Iterable[int], again: set[int]) -> list[int]:
        """Returns ops with what costs nothing and what is made again for them, in program order."""
        graph, free = self.plan.graph, self.split.parts.free
        found = set(ops)
        waiting = sorted(found)
        while waiting:
            for value in graph.operands(waiting.pop()).tolist():
                op = int(graph.value_op[value])
                if op >= 0 and op not in found and (free[op] or op in again):
                    found.add(op)
                    waiting.append(op)
        return sorted(found)
