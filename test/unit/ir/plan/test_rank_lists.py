"""Lists of ranks: what each rank does stays, an order of all is found where there is one, else the ranks that wait."""

import random

import pytest
from staged_steps import Expressions, chain, execute, meaning, of_ranks, orders, random_step

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instruction_list import InstructionList
from rhino.ir.plan.instructions import Free, Receive, Run, Send, Task, Transfer, reads, writes
from rhino.ir.plan.rank_lists import merged, split
from rhino.strategies.pipeline.assemble import assemble


@pytest.mark.parametrize("seed", range(6))
def test_lists_of_ranks_are_a_step_again(seed: int):
    """The same lists of ranks, and as a whole one that computes what the step means, from whatever order."""
    whole, expression, drawn = random_step(seed, 4, 3), Expressions(), random.Random(seed)
    for _, order in orders(4, 3):
        step = assemble(whole, order)
        lists = split(step)
        assert [list(one) for one in lists] == [list(of_ranks(step, [rank])) for rank in range(step.num_ranks)]
        assert merged(lists) == step.instructions
        other = type(step)(step.meshes, step.programs, step.slots, shuffled(step, drawn), step.constants)
        assert merged(split(other)) == step.instructions
        assert execute(other, expression) == execute(step, expression) == meaning(whole, expression)


def shuffled(step, drawn):
    """Another order of a step's list that keeps that of each rank: neighbours on other ranks change places."""
    found = list(step.instructions)

    def ranks(one):
        slots = one.slots if isinstance(one, Free) else (*reads(one), *writes(one))
        return {step.slots[slot].rank for slot in slots}

    for _ in range(4 * len(found)):
        at = drawn.randrange(len(found) - 1)
        if not ranks(found[at]) & ranks(found[at + 1]):
            found[at], found[at + 1] = found[at + 1], found[at]
    return tuple(found)


def lists(*ranks):
    return [InstructionList.of(one) for one in ranks]


def test_transfers_in_a_circle_are_refused():
    """Rank 0 gives before it takes, and so does rank 1 after rank 0, but the other way round."""
    forward = Run(0, (0,), (1,), Task("forward", 0, 0))
    right = lists([forward, Send(0, 1, 5), Receive(1, 6, 2)], [Receive(0, 1, 5), Send(1, 6, 2)])
    assert [type(one) for one in merged(right)] == [Run, Transfer, Transfer]
    wrong = lists([forward, Send(0, 1, 5), Receive(1, 6, 2)], [Send(1, 6, 2), Receive(0, 1, 5)])
    with pytest.raises(RhinoError, match="RHI-STEP-010") as caught:
        merged(wrong)
    assert caught.value.notes == ("rank 0 waits in transfer 0 for rank 1", "rank 1 waits in transfer 1 for rank 0")


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (([Send(3, 0, 1)], []), "transfer 3 is sent 1 times and received 0 times"),
        (([], [Receive(3, 0, 1)]), "transfer 3 is sent 0 times and received 1 times"),
        (([Send(3, 0, 1), Send(3, 0, 1)], [Receive(3, 0, 1)]), "transfer 3 is sent 2 times and received 1 times"),
    ],
)
def test_a_transfer_of_one_side_is_refused(ranks, says: str):
    with pytest.raises(RhinoError, match="RHI-STEP-007") as caught:
        merged(lists(*ranks))
    assert caught.value.what == says


def test_what_is_freed_on_several_ranks_is_freed_on_each():
    step = assemble(chain(2, 1), next(order for _, order in orders(2, 1)))
    slots = [next(at for at, slot in enumerate(step.slots) if slot.rank == rank) for rank in range(2)]
    both = type(step)(step.meshes, step.programs, step.slots, (Free(tuple(slots)),))
    assert [list(one) for one in split(both)] == [[Free((slots[0],))], [Free((slots[1],))]]
