"""Virtual stages and the stages that they are on, by hand."""

import numpy as np

from rhino.ir.plan.stages import Stage, VirtualStages


def test_three_stages_have_five_virtual_ones_that_go_there_and_back():
    virtual = VirtualStages(3)
    assert virtual.last == 4
    assert [virtual.stage(one) for one in range(5)] == [Stage(0, 0), Stage(1, 1), Stage(2, 2), Stage(3, 1), Stage(4, 0)]
    assert virtual.device(np.arange(5)).tolist() == [0, 1, 2, 1, 0]
    assert [virtual.opposite(one) for one in range(5)] == [4, 3, 2, 1, 0]


def test_one_stage_has_one_virtual_one():
    assert VirtualStages(1).last == 0
    assert VirtualStages(1).stage(0) == Stage(0, 0)
