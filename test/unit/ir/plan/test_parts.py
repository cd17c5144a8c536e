"""The part of a process is all that it runs, says the same in a file, and stays small."""

import json
from dataclasses import replace
from itertools import chain as together

import pytest
from staged_steps import MESH, chain, of_ranks, orders, random_step

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import Fetch, Receive, Run, Send, Step
from rhino.ir.plan.parts import part_of, parts_of, program_meshes, program_ranks, project
from rhino.ir.plan.step_json import part_text, read_part, read_step, step_text
from rhino.ir.plan.step_memory import memory_of
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order


def resolved(listed, one):
    """An instruction with what its numbers stand for: programs, and slots by rank and layout."""
    if isinstance(one, Run):
        slots = [listed.slots[slot] for slot in (*one.inputs, *one.outputs)]
        return listed.programs[one.program], slots, one.task
    if isinstance(one, Send | Receive):
        return type(one), one.uid, listed.slots[one.source], listed.slots[one.target]
    return type(one), [listed.slots[slot] for slot in getattr(one, "slots", ())]


@pytest.mark.parametrize("seed", range(4))
def test_a_part_is_the_list_of_its_ranks(seed: int):
    whole = random_step(seed, 4, 3)
    for _, order in orders(4, 3):
        step = assemble(whole, order)
        holders = [[0], [step.num_ranks - 1], [0, step.num_ranks - 1], list(range(step.num_ranks))]
        for ranks, part in zip(holders, parts_of(step, holders), strict=True):
            listed = list(of_ranks(step, ranks))
            assert list(project(step, ranks)) == listed
            assert [resolved(part, one) for one in part.instructions] == [resolved(step, one) for one in listed]
            count = sum(slot.rank in ranks for slot in step.slots)
            assert {slot.rank for slot in part.slots[:count]} <= set(ranks)
            assert not {slot.rank for slot in part.slots[count:]} & set(ranks)
            fetched = sorted(fetches(step), key=lambda one: one.result)
            assert part.results == tuple(step.slots[one.source] for one in fetched)
            assert sorted(number for _, number in part.constants) == sorted(
                number for slot, number in step.constants if step.slots[slot].rank in ranks
            )
            assert read_part(json.loads(part_text(part))) == part
            own, every = memory_of(part), memory_of(step)
            assert [own[rank].peak_bytes for rank in ranks] == [every[rank].peak_bytes for rank in ranks]
        assert read_step(json.loads(step_text(step))) == step


def fetches(step):
    return [one for one in step.instructions if isinstance(one, Fetch)]


def test_far_ends_that_are_alike_are_one():
    step = assemble(chain(3, 12), make_order("1f1b", Pipeline(3, 12)))
    part = part_of(step, [1])
    moves = [one for one in part.instructions if isinstance(one, Send | Receive)]
    far = {one.target if isinstance(one, Send) else one.source for one in moves}
    assert len(moves) > 4 * 11
    assert len({part.slots[slot] for slot in far}) == len(far) <= 4
    assert {part.slots[slot].rank for slot in far} == {0, 2}


def test_programs_and_their_ranks():
    """Rank 1 runs program 0 first; program 1 runs nowhere."""
    step = assemble(chain(2, 1), make_order("1f1b", Pipeline(2, 1)))
    runs = [one for one in step.instructions if isinstance(one, Run)]
    for program, ranks in enumerate(program_ranks(step)):
        own = dict.fromkeys(step.slots[one.outputs[0]].rank for one in runs if one.program == program)
        assert ranks == tuple(own)
    idle = replace(step, programs=(*step.programs, step.programs[0]), meshes=(MESH, Mesh((("y", 2),))))
    assert program_ranks(idle)[-1] == (0,)
    assert program_meshes(idle)[-1] == MESH


def sizes(num_stages: int, num_micro_batches: int) -> tuple[int, int]:
    """The bytes of a step's file, and of the largest part of a rank."""
    step = assemble(chain(num_stages, num_micro_batches), make_order("1f1b", Pipeline(num_stages, num_micro_batches)))
    return len(step_text(step)), max(len(part_text(part_of(step, [rank]))) for rank in range(num_stages))


def test_files_grow_with_the_stages_alone():
    """With four times as many micro-batches some numbers have a digit more."""
    few, many = sizes(6, 30), sizes(6, 120)
    assert all(after < 1.1 * before for before, after in zip(few, many, strict=True))
    assert max(together(few, many)) < 2**14


@pytest.mark.long
def test_a_hundred_stages_of_400_micro_batches_are_small():
    whole, part = sizes(100, 400)
    assert whole < 2**18
    assert part < 2**13


def test_forged_parts_are_refused():
    step = assemble(chain(2, 3), make_order("1f1b", Pipeline(2, 3)))
    data = json.loads(step_text(step))
    assert isinstance(read_step(data), Step)
    too_many, too_large, too_few = [2**40, [0], [0, 0], [1, 1]], [2, [0], [0, 0], [2**31, 1]], [2, [0], [0], [1]]
    for row in (too_many, too_large, too_few, [0, [0], [0, 0]], [3, [], [], []]):
        with pytest.raises((TypeError, ValueError)):
            read_step({**data, "rank 0": [row, *data["rank 0"]]})
