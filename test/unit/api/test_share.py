"""Shares of a plan: what a process is told is its own, and all of it; processes with the same ranks are told one."""

import pytest
from staged_steps import random_step

from rhino.ir.plan.instructions import Feed, Fetch, Run, Transfer
from rhino.ir.plan.parts import part_of
from rhino.ir.plan.plan import Execution
from rhino.runtime.distributed.key_values import KeyValues
from rhino.share import Shares, told_share, with_copies
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order


class Service:
    """A key-value service in this process, which notes what is asked for."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: list[str] = []

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        assert allow_overwrite
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key: str, _: int) -> bytes:
        self.asked.append(key)
        return self.values[key]


def executed(seed: int) -> Execution:
    whole = random_step(seed, 4, 3)
    step = assemble(whole, make_order("1f1b", Pipeline(4, 3)))
    count = len(step.programs)
    modules = {one.module: f"program {one.name}" for one in step.programs}
    return Execution(step, modules, (0.0,) * count, (0,) * count, 0.0, 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_each_process_is_told_its_share(seed: int):
    """Ranks 0 and 1 in process 0, rank 2 in processes 1 and 2, rank 3 in process 3."""
    execution = executed(seed)
    ranks, devices = [(0, 1), (2,), (2,), (3,)], [(0, 0), (0, 0), (1, 2), (3, 3)]
    shares, service = Shares(execution, {0}, ranks, devices), Service()
    told = shares.told(KeyValues(service))
    assert told[1] == told[2]
    assert len(set(told)) == 3
    copied, numbers = with_copies(execution.step, {0}, (0, 2, 3))
    for process, own in enumerate(ranks):
        service.asked.clear()
        share = told_share(told[process], KeyValues(service))
        assert share == shares.share(process)
        assert share.part == part_of(copied, own)
        assert share.copies == {0: numbers[0, own[0]]}
        runs = [one for one in execution.step.instructions if isinstance(one, Run)]
        here = {execution.step.programs[one.program].module for one in runs if on_rank(execution, one) in own}
        assert share.modules == {name: execution.modules[name] for name in here}
        parts = {key.split("/")[2] for key in service.asked}
        assert len(parts) == 2 + len(here), "the share, its part, and its programs"
        check_arguments(execution, share, devices)


def on_rank(execution: Execution, run: Run) -> int:
    return execution.step.slots[run.outputs[0]].rank


def check_arguments(execution: Execution, share, devices) -> None:
    """What is fed, returned and lasting, instruction by instruction."""
    step = execution.step
    fed = {one.target: one.argument for one in step.instructions if isinstance(one, Feed)}
    fetched = {one.source for one in step.instructions if isinstance(one, Fetch)}
    moves = [one for one in step.instructions if isinstance(one, Transfer)]
    crossing = {
        one.source
        for one in moves
        if len({*devices[step.slots[one.source].rank], *devices[step.slots[one.target].rank]}) > 1
    }
    assert share.fed == set(fed.values())
    assert share.returned == {number for slot, number in fed.items() if slot in fetched}
    assert share.lasting == {number for slot, number in fed.items() if slot in fetched | crossing}
