"""Lists as loops: the same list again, few loops where a pipeline repeats, whatever the list is."""

import random

import pytest
from staged_steps import chain, orders, random_step

from rhino.ir.plan.instruction_list import Form, InstructionList
from rhino.ir.plan.instructions import Feed, Fetch, Free, Run, Task, Transfer
from rhino.ir.plan.rank_lists import split
from rhino.ir.plan.strides import Loop, list_of_loops, loops_of
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order


def test_loops_by_hand():
    """Three feeds of neighbours, then four times a run and a free that go two slots on; and a fetch."""
    runs = [(Run(0, (3 + 2 * i,), (4 + 2 * i,), Task("forward", 1, i)), Free((3 + 2 * i,))) for i in range(4)]
    fed = [Feed(number, 5 + number) for number in range(3)]
    listed = InstructionList.of([*fed, *(one for pair in runs for one in pair), Fetch(9, 0)])
    assert listed.forms[0] == Form("feed", writes=1, others=1)
    assert loops_of(listed) == (
        Loop(3, (0,), (5, 0), (1, 1)),
        Loop(4, (1, 2), (3, 4, 0, 3), (2, 2, 1, 2)),
        Loop(1, (3,), (9, 0), (0, 0)),
    )


def instruction(drawn: random.Random):
    slots = [drawn.randrange(4) for _ in range(3)]
    return drawn.choice(
        [
            Feed(slots[0], slots[1]),
            Fetch(slots[0], slots[1]),
            Transfer(*slots),
            Free(tuple(slots[: drawn.randrange(3)])),
            Run(0, tuple(slots[: drawn.randrange(4)]), (), Task("forward", drawn.randrange(2), drawn.randrange(3))),
            Run(1, (), tuple(slots), Task("apply", 0)),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_list_is_its_loops(seed: int):
    """Drawn from few instructions, and with parts of it again and again, so that much looks like a loop."""
    drawn = random.Random(seed)
    listed = [instruction(drawn) for _ in range(drawn.randrange(12))]
    for _ in range(drawn.randrange(4)):
        at, end = sorted(drawn.randrange(len(listed) + 1) for _ in range(2))
        listed[at:at] = listed[at:end] * drawn.randrange(4)
    columns = InstructionList.of(listed)
    assert list(columns) == listed
    assert [columns[at] for at in range(len(listed))] == listed
    loops = loops_of(columns)
    assert list_of_loops(columns.forms, loops) == columns
    assert sum(one.times * len(one.forms) for one in loops) == len(listed)


def num_rows(num_stages: int, num_micro_batches: int) -> dict[str, int]:
    """By schedule, how many instructions stand in the loops of the rank that has most."""
    step, found = chain(num_stages, num_micro_batches), {}
    for name, order in orders(num_stages, num_micro_batches):
        lists = split(assemble(step, order))
        found[name] = max(sum(len(loop.forms) for loop in loops_of(one)) for one in lists)
    return found


def test_loops_do_not_grow_with_the_micro_batches():
    few, many = num_rows(4, 24), num_rows(4, 96)
    assert few == many
    assert max(few.values()) < 400


@pytest.mark.parametrize("seed", range(5))
def test_lists_of_random_steps(seed: int):
    for one in split(assemble(random_step(seed, 3, 7), make_order("1f1b", Pipeline(3, 7)))):
        assert list_of_loops(one.forms, loops_of(one)) == one
