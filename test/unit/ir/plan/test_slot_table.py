"""A table of slots is the sequence that it was made of."""

import random

import numpy as np
import pytest

from rhino.ir.plan.instructions import Layout, Slot
from rhino.ir.plan.slot_table import SlotTable


def drawn(seed: int) -> list[Slot]:
    """Returns slots of a few kinds, some of which are equal."""
    rng = random.Random(seed)
    kinds = [Slot(rng.randrange(3), Layout((rng.randrange(1, 3),), "f32", ((),))) for _ in range(8)]
    return [rng.choice(kinds) for _ in range(rng.randrange(40))]


@pytest.mark.parametrize("seed", range(8))
def test_a_table_is_its_slots(seed: int):
    slots, more = drawn(seed), drawn(seed + 100)
    table = SlotTable.of(slots)
    assert SlotTable.of(table) is table
    assert list(table) == [table[at] for at in range(len(table))] == slots
    assert table == slots
    assert table != [*slots, Slot(0, Layout((9,), "f32", ((),)))]
    assert table.ranks.tolist() == [slot.rank for slot in slots]
    assert list(table.extended(more)) == [*slots, *more]
    assert list(table[1:7:2]) == slots[1:7:2]
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(len(slots))[: len(slots) // 2]
    taken = table.taken(numbers)
    assert list(taken) == [slots[number] for number in numbers]
    firsts = [next(at for at, slot in enumerate(taken) if slot is kind) for kind in taken.kinds]
    assert firsts == sorted(firsts), "kinds stand in the order of their first slots, and none without"
