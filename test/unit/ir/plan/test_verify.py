"""Lists that cannot run are refused, with the instruction and the reason; others compute what they should.

The mutations of valid lists are judged by a machine of its own, `staged_steps.execute`, which runs the list on
expressions.
"""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from long_cases import one_in
from staged_steps import (
    MESH,
    ROW,
    SMALL,
    WEIGHT,
    Expressions,
    UnsafeError,
    chain,
    execute,
    meaning,
    orders,
    play,
    random_step,
    staged,
)

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Feed, Fetch, Free, Run, Slot, Step, StepProgram, Task, Transfer
from rhino.ir.plan.parts import project
from rhino.ir.plan.step_memory import memory_of
from rhino.ir.plan.verify import Limits, verify
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order

STEPS = {
    "chain": chain(3, 3),
    "split": chain(3, 2, split=True),
    "one": chain(1, 2),
    "skips": staged(4, 2, {1: [0], 2: [0, 1], 3: [0, 2]}, fused=True, tied=(0, 3), norm=True),
    "random": random_step(11, 4, 3),
}
CASES = [
    (name, schedule) for name, step in STEPS.items() for schedule, _ in orders(step.num_stages, step.num_micro_batches)
]


def assembled(name, schedule):
    step = STEPS[name]
    order = dict(orders(step.num_stages, step.num_micro_batches))[schedule]
    return step, assemble(step, order)


def is_refused(step, whole):
    try:
        verify(step, len(whole.arguments), len(whole.results))
    except RhinoError as error:
        return error.id.startswith("RHI-STEP-")
    return False


def is_harmless(step, expected, expression):
    try:
        return execute(step, expression) == expected
    except UnsafeError:
        return False


def swapped(instructions, a, b):
    changed = list(instructions)
    changed[a], changed[b] = changed[b], changed[a]
    return tuple(changed)


@pytest.mark.parametrize(("name", "schedule"), one_in(3, CASES))
def test_no_instruction_can_be_dropped(name, schedule):
    whole, step = assembled(name, schedule)
    for at in range(len(step.instructions)):
        assert is_refused(replace(step, instructions=step.instructions[:at] + step.instructions[at + 1 :]), whole), (
            step.instructions[at]
        )


@pytest.mark.parametrize(("name", "schedule"), one_in(3, CASES))
def test_no_instruction_can_be_there_twice(name, schedule):
    """Neither right behind itself, nor anywhere later or earlier."""
    whole, step = assembled(name, schedule)
    rng = random.Random(f"{name} {schedule}")
    for at, one in enumerate(step.instructions):
        for to in (at, rng.randrange(len(step.instructions) + 1)):
            assert is_refused(
                replace(step, instructions=(*step.instructions[:to], one, *step.instructions[to:])), whole
            ), one


@pytest.mark.parametrize(("name", "schedule"), one_in(3, CASES))
def test_instructions_that_swap_are_independent(name, schedule):
    """All neighbours, and pairs at random: the swap is refused exactly where it does harm."""
    whole, step = assembled(name, schedule)
    expression = Expressions()
    expected = meaning(whole, expression)
    rng = random.Random(f"{name} {schedule}")
    count, found = len(step.instructions), set()
    far = [tuple(rng.sample(range(count), 2)) for _ in range(60)]
    near = [(at, min(at + rng.randint(2, 6), count - 1)) for at in range(0, count, 3)]
    for a, b in (*pairwise(range(count)), *near, *far):
        changed = replace(step, instructions=swapped(step.instructions, a, b))
        refused = is_refused(changed, whole)
        assert refused != is_harmless(changed, expected, expression), (a, b)
        found.add(refused)
    assert found == {True, False}


@pytest.mark.parametrize(("name", "schedule"), one_in(3, CASES))
def test_a_changed_operand_is_refused_or_safe(name, schedule):
    """One slot of each instruction is another at random.

    What passes may compute something else, but touches nothing that is not there.
    """
    whole, step = assembled(name, schedule)
    rng = random.Random(f"{name} {schedule}")
    for at, one in enumerate(step.instructions):
        changed = replace(
            step, instructions=(*step.instructions[:at], altered(one, step, rng), *step.instructions[at + 1 :])
        )
        if not is_refused(changed, whole):
            execute(changed, Expressions())


def altered(one, step, rng):
    """An instruction with one operand changed."""
    slot = rng.randrange(len(step.slots))
    match one:
        case Run(inputs=inputs, outputs=outputs):
            at = rng.randrange(len(inputs) + len(outputs))
            if at < len(inputs):
                return replace(one, inputs=(*inputs[:at], slot, *inputs[at + 1 :]))
            at -= len(inputs)
            return replace(one, outputs=(*outputs[:at], slot, *outputs[at + 1 :]))
        case Transfer():
            return replace(one, **{rng.choice(["source", "target"]): slot})
        case Free(slots=slots):
            at = rng.randrange(len(slots))
            return Free((*slots[:at], slot, *slots[at + 1 :]))
        case Feed():
            return replace(one, target=slot)
        case Fetch():
            return replace(one, source=slot)


def ping():
    """Rank 0 makes a row of an argument for rank 1, which updates its own argument with it and gives a number."""
    programs = (
        StepProgram("make", "make.mlir", (WEIGHT,), (ROW,)),
        StepProgram("update", "update.mlir", (WEIGHT, ROW), (WEIGHT, SMALL), ((0, 0),)),
    )
    slots = (
        Slot(0, WEIGHT),
        Slot(1, WEIGHT),
        Slot(0, ROW),
        Slot(1, ROW),
        Slot(1, WEIGHT),
        Slot(1, SMALL),
        Slot(0, WEIGHT),
    )
    instructions = (
        Feed(0, 0),
        Feed(1, 1),
        Run(0, (0,), (2,), Task("forward", 0, 0)),
        Free((0,)),
        Transfer(0, 2, 3),
        Free((2,)),
        Run(1, (1, 3), (4, 5), Task("backward", 1, 0)),
        Free((3,)),
        Fetch(4, 0),
        Fetch(5, 1),
    )
    return Step((MESH, MESH), programs, slots, instructions)


def at(number, *new):
    """The list of `ping` with the instruction at `number` replaced."""
    step = ping()
    return replace(step, instructions=(*step.instructions[:number], *new, *step.instructions[number + 1 :]))


def before(number, *new):
    return at(number, *new, ping().instructions[number])


def slot_is(number, slot):
    step = ping()
    return replace(step, slots=(*step.slots[:number], slot, *step.slots[number + 1 :]))


def programs_are(**changes):
    step = ping()
    return replace(step, programs=(step.programs[0], replace(step.programs[1], **changes)))


def twice():
    """The updating program takes the weight twice."""
    programs = programs_are(inputs=(WEIGHT, WEIGHT), donated=((0, 0),))
    return replace(programs, instructions=at(6, replace(RUN, inputs=(1, 1))).instructions)


MAKE, RUN = ping().instructions[2], ping().instructions[6]
WRONG = {
    "slot": (at(4, Transfer(0, 2, 9)), "RHI-STEP-001", "instruction 4, transfer 0 from slot 2 to slot 9: slot 9 of 7"),
    "negative slot": (at(3, Free((-1,))), "RHI-STEP-001", "slot -1 of 7"),
    "program": (
        at(2, Run(7, (0,), (2,), Task("apply", 0))),
        "RHI-STEP-001",
        "instruction 2, apply of stage 0, program 7: there are 2",
    ),
    "argument": (at(0, Feed(2, 0)), "RHI-STEP-001", "argument 2 of 2"),
    "result": (at(9, Fetch(5, 2)), "RHI-STEP-001", "result 2 of 2"),
    "type": (slot_is(6, Slot(0, replace(WEIGHT, dtype="text"))), "RHI-STEP-001", "an array is text[16, 16]"),
    "axis": (
        slot_is(6, Slot(0, replace(WEIGHT, dims=(("z",), ())))),
        "RHI-STEP-001",
        "f32[16, 16] split [z, -], on a mesh with axes",
    ),
    "rank": (slot_is(5, Slot(2, SMALL)), "RHI-STEP-001", "slot 5 is on rank 2 of 2"),
    "constants": (replace(ping(), constants=((7, 0),)), "RHI-STEP-001", "the constants' slots [7]"),
    "constant twice": (replace(ping(), constants=((0, 0), (0, 1))), "RHI-STEP-001", "the constants' slots [0, 0]"),
    "takeover": (
        programs_are(donated=((2, 0),)),
        "RHI-STEP-001",
        "program 1 (update): [2] are not different ones of 2 inputs",
    ),
    "two takeovers": (
        programs_are(donated=((0, 0), (1, 0))),
        "RHI-STEP-001",
        "[0, 0] are not different ones of 2 outputs",
    ),
    "nothing": (at(3, Free(())), "RHI-STEP-001", "it touches no slot"),
    "early": (before(2, Transfer(1, 2, 3)), "RHI-STEP-002", "slot 2 is empty"),
    "after free": (before(6, Transfer(1, 2, 5)), "RHI-STEP-002", "slot 2 is freed since instruction 5"),
    "after takeover": (before(7, Fetch(1, 1)), "RHI-STEP-002", "slot 1 is taken over since instruction 6"),
    "freed twice": (
        at(3, Free((0, 0))),
        "RHI-STEP-002",
        "instruction 3, free of slots 0, 0: slot 0 is freed since instruction 3",
    ),
    "write twice": (
        before(3, MAKE),
        "RHI-STEP-003",
        "instruction 3, forward of stage 0, micro-batch 0, program 0 (make): slot 2 is held",
    ),
    "fed twice": (before(1, Feed(1, 0)), "RHI-STEP-003", "slot 0 is held since instruction 0"),
    "constant written": (replace(ping(), constants=((0, 3),)), "RHI-STEP-003", "slot 0 is constant"),
    "sent and taken over": (before(6, Transfer(1, 1, 6)), "RHI-STEP-004", "slot 1 is sent by instruction 6"),
    "read twice and taken over": (twice(), "RHI-STEP-004", "it takes over slot 1, which it reads twice"),
    "constant fetched": (replace(at(1), constants=((1, 0),)), "RHI-STEP-004", "slot 1 is constant"),
    "constant as a result": (
        replace(at(8, Fetch(6, 0), Free((4,))), constants=((6, 0),)),
        "RHI-STEP-004",
        "slot 6 is a constant",
    ),
    "transfer twice": (before(6, Transfer(0, 1, 6)), "RHI-STEP-007", "transfer 0 is instruction 4's"),
    "fetched and freed": (before(9, Free((4,))), "RHI-STEP-004", "slot 4 is fetched since instruction 8"),
    "fetched and taken over": (before(6, Fetch(1, 0)), "RHI-STEP-004", "slot 1 is fetched since instruction 6"),
    "left over": (at(7), "RHI-STEP-005", "slot 3 is held since instruction 4: it is never freed, donated or fetched"),
    "no result": (at(8, Free((4,))), "RHI-STEP-005", "no instruction fetches result 0"),
    "layout": (
        slot_is(2, Slot(0, WEIGHT)),
        "RHI-STEP-006",
        "output 0, slot 2, is f32[16, 16], expected f32[8, 16] split [x, -]",
    ),
    "transfer's layout": (slot_is(3, Slot(1, WEIGHT)), "RHI-STEP-006", "from f32[8, 16] split [x, -] to f32[16, 16]"),
    "transfer's type": (
        slot_is(3, Slot(1, replace(ROW, dtype="i32"))),
        "RHI-STEP-006",
        "split [x, -] to i32[8, 16] split [x, -]",
    ),
    "transfer's sharding": (
        slot_is(3, Slot(1, replace(ROW, dims=((), ("x",))))),
        "RHI-STEP-006",
        "split [x, -] to f32[8, 16] split [-, x]",
    ),
    "transfer at home": (slot_is(3, Slot(0, ROW)), "RHI-STEP-006", "both slots are on rank 0"),
    "two ranks": (slot_is(1, Slot(0, WEIGHT)), "RHI-STEP-006", "its slots are on ranks [0, 1]"),
    "too few": (at(6, replace(RUN, inputs=(1,))), "RHI-STEP-006", "1 inputs, the program has 2"),
    "takeover's layout": (
        programs_are(donated=((1, 0),)),
        "RHI-STEP-006",
        "output 0 is f32[16, 16] and takes over f32[8, 16]",
    ),
    "argument twice": (at(1, Feed(0, 6)), "RHI-STEP-007", "argument 0 on rank 0 is instruction 0's"),
    "result twice": (at(9, Fetch(5, 0)), "RHI-STEP-007", "result 0 is instruction 8's"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lists(case):
    step, id, says = WRONG[case]
    with pytest.raises(RhinoError) as caught:
        verify(step, 2, 2)
    assert caught.value.id == id
    assert says in caught.value.what
    assert "-1" not in caught.value.what or "slot -1" in says  # what has been so from the start is since no instruction


def test_a_right_list():
    verify(ping(), 2, 2)
    assert {id for _, id, _ in WRONG.values()} == {f"RHI-STEP-00{number}" for number in range(1, 8)}


def test_memory():
    """Rank 1 holds two weights of 1024 bytes, a row of 256 and a number when it updates, one of them in place."""
    needed = 1024 + 256 + 4
    assert [one.peak_bytes for one in memory_of(ping())] == [1024 + 256, needed]
    verify(ping(), 2, 2, Limits((needed,) * 2))
    verify(ping(), 2, 2, Limits((needed + 50,) * 2, (0, 50)))
    with pytest.raises(RhinoError, match="RHI-STEP-008") as caught:
        verify(ping(), 2, 2, Limits((needed + 49,) * 2, (0, 50)))
    assert str(caught.value).splitlines() == [
        "error: [RHI-STEP-008] rank 1 has a predicted peak of 1.3 KiB on each device at instruction 6, "
        "backward of stage 1, micro-batch 0, "
        "program 1 (update): 1 B more than it has",
        "  note: 3 arrays are live at that time",
        "  note: slot 4, f32[16, 16]: 1 KiB, output 0 of update",
        "  note: slot 3, f32[8, 16] split [x, -]: 256 B, output 0 of make",
        "  note: slot 5, f32[]: 4 B, output 1 of update",
        "  note: temporaries of program update: 50 B",
        "  note: to fix: take more stages, more micro-batches, a schedule that holds fewer of them, "
        "or devices with more memory",
    ]


def shares(num_ranks):
    """Every way to give ranks to processes, each a run of neighbours; and all odd ranks to one process."""
    ways = [
        [range(a, b) for a, b in pairwise((0, *cuts, num_ranks))]
        for k in range(num_ranks)
        for cuts in combinations(range(1, num_ranks), k)
    ]
    return [*ways, *([[range(0, num_ranks, 2), range(1, num_ranks, 2)]] if num_ranks > 1 else [])]


@pytest.mark.parametrize(("name", "schedule"), one_in(3, CASES))
def test_processes_finish_with_any_queue(name, schedule):
    """Lists that are proven end with the step's results, at any speeds of processes and with queues of one launch."""
    whole, step = assembled(name, schedule)
    expression, rng = Expressions(), random.Random(f"{name} {schedule}")
    expected = meaning(whole, expression)
    for share in shares(step.num_ranks):
        parts = [(ranks, project(step, ranks)) for ranks in share]
        for bound in (1, 32):
            assert play(step, parts, bound, rng, expression) == expected


def test_processes_in_another_order_can_get_stuck():
    """What the proof is for: with a queue of one launch, two launches in the wrong order wait for ever."""
    whole, step = assembled("chain", "1f1b/1")
    parts = [([rank], list(project(step, [rank]))) for rank in range(3)]
    runs = [at for at, one in enumerate(parts[0][1]) if isinstance(one, Run)]
    first, last = runs[1], next(at for at in runs if parts[0][1][at].task.phase == "backward")
    parts[0][1][first], parts[0][1][last] = parts[0][1][last], parts[0][1][first]
    with pytest.raises(UnsafeError, match="stuck"):
        play(step, parts, 1, random.Random(0), Expressions())
    assert whole.num_stages == 3


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_within_their_own_memory(seed):
    """The peak that is counted is the least budget that passes."""
    whole = random_step(seed, 3, 3)
    step = assemble(whole, make_order("1f1b", Pipeline(3, 3)))
    needed = max(one.peak_bytes for one in memory_of(step))
    verify(step, len(whole.arguments), len(whole.results), Limits((needed,) * step.num_ranks))
    with pytest.raises(RhinoError, match="RHI-STEP-008"):
        verify(step, len(whole.arguments), len(whole.results), Limits((needed - 1,) * step.num_ranks))
