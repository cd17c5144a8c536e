"""Orders by hand and by their definition; what is assembled from them computes what the staged step means."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staged_steps import ROW, SMALL, WEIGHT, Builder, Expressions, chain, execute, meaning, orders, random_step, staged

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Feed, Fetch, Free, Run, Task, Transfer, reads
from rhino.ir.plan.parts import project
from rhino.ir.plan.stage_programs import ONCE
from rhino.ir.plan.verify import verify
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.placed_values import RECEIVE_AHEAD
from rhino.strategies.pipeline.schedules import DEFAULT, SCHEDULES, Pipeline, Schedule, find_schedule, make_order
from rhino.strategies.pipeline.schedules.base import Order
from rhino.strategies.pipeline.sequence import queues, sequence

LETTERS = {"forward": "F", "backward": "B", "input-gradient": "I", "weight-gradient": "W"}


def text(order):
    return [
        " ".join(f"{LETTERS[task.phase]}{task.stage}.{task.micro_batch}" for task in tasks) for tasks in order.tasks
    ]


def test_table():
    files = {
        path.stem for path in (Path(__file__).parents[4] / "strategies" / "pipeline" / "schedules").glob("*.py")
    } - {
        "__init__",
        "base",
    }
    assert len(SCHEDULES) == len(files)
    assert list(SCHEDULES) == sorted(SCHEDULES)
    assert all(name == schedule.name and isinstance(schedule, Schedule) for name, schedule in SCHEDULES.items())
    assert find_schedule(DEFAULT).name == "1f1b"


def test_1f1b_by_hand():
    assert text(make_order("1f1b", Pipeline(3, 4))) == [
        "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3",
        "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3",
        "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3",
    ]


def test_eager_1f1b_by_hand():
    assert text(make_order("eager-1f1b", Pipeline(3, 6))) == [
        "F0.0 F0.1 F0.2 F0.3 F0.4 B0.0 F0.5 B0.1 B0.2 B0.3 B0.4 B0.5",
        "F1.0 F1.1 F1.2 B1.0 F1.3 B1.1 F1.4 B1.2 F1.5 B1.3 B1.4 B1.5",
        "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3 F2.4 B2.4 F2.5 B2.5",
    ]


def test_gpipe_by_hand():
    assert text(make_order("gpipe", Pipeline(2, 3))) == [
        "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2",
        "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2",
    ]


def test_zero_bubble_by_hand():
    assert text(make_order("zero-bubble", Pipeline(3, 4))) == [
        "F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3",
        "F1.0 F1.1 I1.0 F1.2 I1.1 W1.0 F1.3 I1.2 W1.1 I1.3 W1.2 W1.3",
        "F2.0 I2.0 F2.1 I2.1 F2.2 I2.2 W2.0 F2.3 I2.3 W2.1 W2.2 W2.3",
    ]


def test_zero_bubble_h2_by_hand():
    assert text(make_order("zero-bubble-h2", Pipeline(2, 4))) == [
        "F0.0 F0.1 F0.2 I0.0 W0.0 F0.3 I0.1 W0.1 I0.2 W0.2 I0.3 W0.3",
        "F1.0 I1.0 F1.1 I1.1 F1.2 I1.2 W1.0 F1.3 I1.3 W1.1 W1.2 W1.3",
    ]


def test_interleaved_by_hand():
    order = make_order("interleaved", Pipeline(4, 3, chunks=2))
    assert order.rank_of == (0, 1, 0, 1)
    # The second round has one micro-batch; four were planned.
    assert text(order) == [
        "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 B2.1 F2.2 B0.0 B0.1 B2.2 B0.2",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 B1.1 F3.2 B3.2 B1.2",
    ]


@pytest.mark.parametrize("num_micro_batches", range(1, 10))
@pytest.mark.parametrize("num_stages", range(1, 7))
def test_orders_by_definition(num_stages, num_micro_batches):
    """Every task once, on its stage's rank, micro-batches in ascending order; and by turns all can be done."""
    for name, order in orders(num_stages, num_micro_batches):
        splits = SCHEDULES[name.partition("/")[0]].splits_backward
        phases = ("forward", "input-gradient", "weight-gradient") if splits else ("forward", "backward")
        everything = {
            Task(phase, s, i) for phase in phases for s in range(num_stages) for i in range(num_micro_batches)
        }
        listed = [task for tasks in order.tasks for task in tasks]
        assert len(listed) == len(everything)
        assert set(listed) == everything
        for rank, tasks in enumerate(order.tasks):
            assert all(order.rank_of[task.stage] == rank for task in tasks)
            for phase in phases:
                for stage in range(num_stages):
                    numbers = [task.micro_batch for task in tasks if (task.phase, task.stage) == (phase, stage)]
                    assert numbers == sorted(numbers)
        assert finishes(order, phases[1], num_stages), name


def finishes(order, backward, num_stages):
    """Whether the ranks, each taking its next task when it can, get to the end."""

    def needs(task):
        if task.phase == "forward":
            return [replace(task, stage=task.stage - 1)] if task.stage else []
        if task.phase == "weight-gradient":
            return [replace(task, phase=backward)]
        return [
            replace(task, phase="forward"),
            *([replace(task, stage=task.stage + 1)] if task.stage + 1 < num_stages else []),
        ]

    done, at, moved = set(), [0] * len(order.tasks), True
    while moved:
        moved = False
        for rank, tasks in enumerate(order.tasks):
            while at[rank] < len(tasks) and all(one in done for one in needs(tasks[at[rank]])):
                done.add(tasks[at[rank]])
                at[rank] += 1
                moved = True
    return at == [len(tasks) for tasks in order.tasks]


@pytest.mark.parametrize(
    ("name", "pipeline", "says"),
    [
        ("2f2b", Pipeline(2, 2), "expected one of 1f1b, eager-1f1b, gpipe, interleaved, zero-bubble, zero-bubble-h2"),
        ("gpipe", Pipeline(4, 4, chunks=2), "'gpipe' holds one stage on a rank, got 2"),
        ("interleaved", Pipeline(5, 4, chunks=2), "5 stages cannot be dealt"),
        ("1f1b", Pipeline(2, 0), "at least one"),
    ],
)
def test_pipelines_that_a_schedule_does_not_take(name, pipeline, says):
    with pytest.raises(RhinoError, match="RHI-SCHED-001") as caught:
        make_order(name, pipeline)
    assert says in str(caught.value)


def test_deadlock_names_who_waits_for_what():
    step, order = chain(2, 2), make_order("1f1b", Pipeline(2, 2))
    first = order.tasks[0]
    wrong = Order(((*first[2:], *first[:2]), order.tasks[1]), order.rank_of)
    with pytest.raises(RhinoError, match="RHI-SCHED-002") as caught:
        assemble(step, wrong)
    assert caught.value.notes == (
        "rank 0 waits in backward of stage 0, micro-batch 0 for 'kept0-0' of forward of stage 0, micro-batch 0, "
        "which stands 2 behind what rank 0 waits in",
        "rank 1 waits in forward of stage 1, micro-batch 0 for 'out0' of forward of stage 0, micro-batch 0, "
        "which stands 2 behind what rank 0 waits in",
    )


def test_deadlock_over_a_part_that_nobody_runs():
    step, order = chain(2, 1), make_order("1f1b", Pipeline(2, 1))
    lists = queues(step, order)
    with pytest.raises(RhinoError, match="RHI-SCHED-002") as caught:
        sequence(step, (lists[0][:1], lists[1]), [1.0] * len(step.programs))
    assert "'out0' of forward of stage 0, micro-batch 0, which no rank runs" in caught.value.notes[0]


def checked(staged_step, order):
    step = assemble(staged_step, order)
    verify(step, len(staged_step.arguments), len(staged_step.results))
    return step


@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(seed=st.integers(0, 10**6), num_stages=st.integers(1, 6), num_micro_batches=st.integers(1, 9))
def test_every_schedule_computes_the_step(seed, num_stages, num_micro_batches):
    """Skips over stages, towers, tied parameters, several losses, split and whole backwards, a fused last stage."""
    whole, expression = random_step(seed, num_stages, num_micro_batches), Expressions()
    expected = meaning(whole, expression)
    for name, order in orders(num_stages, num_micro_batches):
        step = checked(whole, order)
        assert execute(step, expression) == expected, name
        check_moves(step)


def check_moves(step):
    """No array moves twice to one rank; what waits on a rank is read soon; an argument is fed once."""
    moves = [one for one in step.instructions if isinstance(one, Transfer)]
    assert len({(one.source, step.slots[one.target].rank) for one in moves}) == len(moves)
    fed = [one.argument for one in step.instructions if isinstance(one, Feed)]
    assert len(set(fed)) == len(fed)
    place, first = {}, {}
    for one in step.instructions:
        if isinstance(one, Run):
            rank = step.slots[one.outputs[0]].rank
            place[rank] = place.get(rank, 0) + 1
            for slot in one.inputs:
                first.setdefault(slot, place[rank] - 1)
    place = dict.fromkeys(place, 0)
    for one in step.instructions:
        if isinstance(one, Run):
            place[step.slots[one.outputs[0]].rank] += 1
        elif isinstance(one, Transfer):
            assert first[one.target] - place[step.slots[one.target].rank] <= RECEIVE_AHEAD


def test_two_towers_and_a_skip_over_two_stages():
    """Stages 0 and 1 read the data, 2 reads both, 3 reads stage 0 too.

    In a micro-batch stage 0 has one transfer to each of 2 and 3.
    """
    whole = staged(4, 3, {2: [0, 1], 3: [0, 2]}, tied=(0, 3), norm=True)
    step = checked(whole, make_order("1f1b", Pipeline(4, 3)))
    ways = {}
    for one in step.instructions:
        if isinstance(one, Transfer):
            way = (step.slots[one.source].rank, step.slots[one.target].rank)
            ways[way] = ways.get(way, 0) + 1
    assert ways == {
        (0, 2): 3 + 1,  # in each micro-batch the output; the norm once
        (0, 3): 3 + 1 + 1,  # the output; the shared parameter and the norm once
        (1, 2): 3,
        (2, 3): 3,
        (3, 2): 3,
        (3, 0): 3 + 3 + 1,  # the gradients of the output and of the parameter; a norm
        (2, 0): 3 + 1,
        (2, 1): 3,
        (1, 0): 1,
        (0, 1): 1 + 1,  # the data, which is fed to rank 0; the norm
    }


def test_a_sum_and_a_parameter_are_updated_in_place():
    whole = chain(1, 3)
    step = checked(whole, make_order("1f1b", Pipeline(1, 3)))
    donated = {program.name[:-1]: program.donated for program in step.programs}
    assert donated == {"setup": (), "forward": ((3, 1),), "backward": ((2, 0),), "update": ((0, 0),), "loss": ()}
    sums = [one for one in step.instructions if isinstance(one, Run) and one.task.phase == "backward"]
    assert [one.inputs[2] for one in sums[1:]] == [one.outputs[0] for one in sums[:-1]]
    assert not any(sums[0].inputs[2] in one.slots for one in step.instructions if isinstance(one, Free))


def wishes(**changes):
    """A program whose output may take over its input, run on an argument, whose buffer may be consumed."""
    b = Builder()
    b.argument("a", WEIGHT, consumed=changes.get("consumed", True))
    b.part("apply", 0, ["a"], [("b", WEIGHT)], takes_over=[("a", "b")])
    if changes.get("other"):
        b.part("apply", changes["other"] - 1, ["a"], [("c", SMALL)])
    b.results += ["b", *(["c"] if changes.get("other") else []), *(["a"] if changes.get("returned") else [])]
    return b.step(2, 1)


@pytest.mark.parametrize(
    ("changes", "donated"),
    [
        ({}, ((0, 0),)),
        ({"consumed": False}, ()),
        ({"returned": True}, ()),
        ({"other": 1}, ()),  # read later on the same rank
        ({"other": 2}, ()),  # sent to another
    ],
)
def test_takeovers_that_hold(changes, donated):
    whole = wishes(**changes)
    step = checked(whole, make_order("gpipe", Pipeline(2, 1)))
    assert step.programs[0].donated == donated


def test_a_takeover_holds_at_every_run_of_a_program_or_at_none():
    b = Builder()
    for name in "ab":
        b.argument(name, WEIGHT, consumed=name == "a")
    for stage, name in enumerate("ab"):
        b.part("apply", stage, [name], [(f"new-{name}", WEIGHT)], takes_over=[(name, f"new-{name}")])
    b.results += ["new-a", "new-b"]
    step = checked(b.step(2, 1), make_order("gpipe", Pipeline(2, 1)))
    assert len(step.programs) == 1
    assert step.programs[0].donated == ()


def test_frees_follow_the_last_use_and_results_come_last():
    step = checked(chain(2, 2), make_order("1f1b", Pipeline(2, 2)))
    last = {}
    for at, one in enumerate(step.instructions):
        if not isinstance(one, Free):
            last |= dict.fromkeys(reads(one), at)
    for at, one in enumerate(step.instructions):
        if isinstance(one, Free):
            assert {last.get(slot, at - 1) for slot in one.slots} == {at - 1}
    for rank in range(step.num_ranks):
        own = project(step, [rank])
        assert all(isinstance(one, Fetch) for one in own[[isinstance(one, Fetch) for one in own].index(True) :])
    assert sorted(one.result for one in step.instructions if isinstance(one, Fetch)) == [0, 1, 2, 3]


def test_an_argument_that_nobody_reads_is_not_fed():
    b = Builder()
    b.argument("unused", ROW)
    b.argument("returned", ROW)
    b.part("apply", 0, [], [("one", SMALL)])
    b.results += ["returned", "one"]
    step = checked(b.step(1, 1), make_order("gpipe", Pipeline(1, 1)))
    assert [one.argument for one in step.instructions if isinstance(one, Feed)] == [1]


def test_the_apply_of_a_rank_stands_after_all_its_micro_batches():
    whole = random_step(7, 4, 5)
    for _, order in orders(4, 5):
        step = checked(whole, order)
        for rank in range(step.num_ranks):
            phases = [
                one.task.phase
                for one in step.instructions
                if isinstance(one, Run) and step.slots[one.outputs[0]].rank == rank
            ]
            places = [ONCE.index(phase) * 2 if phase in ONCE else 1 for phase in phases]
            assert places == sorted(places)
