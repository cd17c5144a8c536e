"""About what a pipeline takes, told by whole loops: against what planning it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from scanned_steps import STEPS, text

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.search_space import make_space
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.staged_outcomes import best_placed
from rhino.passes.planner.step_programs import StepPrograms
from rhino.strategies.autotune.base import ABOUT, CutOff, Estimate, Evaluations, Explored, Outcome, PlanConfig, Space


def setup_of(name: str) -> Setup:
    context = make_context()
    module = read_module(text(STEPS[name]), "scanned", context)
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    return Setup(bytecode(module), "scanned", "cpu8", 2.0**31, {})


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(setup_of("plain"))


def test_pipelines_take_no_less_than_whole_loops_say(evaluator: Evaluator):
    """Six layers in two stages, three each: sharded in pieces, a step takes about as long as with whole loops."""
    for mesh, number in (((2, 2), 2), ((2, 2), 4), ((4,), 4)):
        config = PlanConfig(2, mesh, number)
        planned = evaluator.outcome(config)
        assert isinstance(planned, Estimate)
        with evaluator.context:
            about_s = evaluator.about_s(config)
        assert 0 < about_s * (1 - ABOUT) <= planned.quickest.step_s


def test_what_is_about_too_slow_is_not_cut_in_pieces(evaluator: Evaluator):
    config = PlanConfig(3, (2,), 4)
    with evaluator.context:
        about_s = evaluator.about_s(config)
    found = evaluator.outcome(config, about_s / 2)
    assert isinstance(found, CutOff)
    assert found.estimated_s == about_s
    assert found.bound_s < about_s
    assert "step-3" not in evaluator.steps.modules
    more = PlanConfig(3, (2,), 8)
    with evaluator.context:
        assert evaluator.about_s(more, about_s / 2) <= evaluator.about_s(more)


def test_a_step_without_loops_has_to_be_planned_to_tell(evaluator: Evaluator):
    with evaluator.context:
        assert evaluator.about_s(PlanConfig(2, (2,), 4, meshes=((2,), (4,)))) == 0.0


def test_no_stage_has_less_than_a_layer(evaluator: Evaluator):
    """Of six layers, and what is around them, a step on 16 devices is looked at in eight stages at most."""
    assert sorted(make_space(replace(evaluator.setup, cluster="v100x8x2")).meshes) == [1, 2, 4, 8]


def test_unlike_ranks_are_looked_at_on_as_many_devices_as_can_be_told_apart(evaluator: Evaluator):
    assert make_space(replace(evaluator.setup, cluster="h100x8x4")).unlike_stages[-1] == 31
    assert make_space(replace(evaluator.setup, cluster="h100x8x8")).unlike_stages == ()


def test_promising_configurations_come_first_and_of_alike_ones_those_of_few_stages():
    seconds = {1: 9.0, 2: 4.0, 4: 3.03, 8: 3.0, 16: 3.01}
    groups = [[PlanConfig(stages, (1,), 32)] for stages in seconds]
    trials = Evaluations(
        Space({}, (32,), 1.0), lambda _, __: [], look=lambda asked: [seconds[one.stages] for one in asked]
    )
    assert [one.stages for one in trials.promising_first(groups)] == [4, 8, 16, 2, 1]
    assert trials.looked[groups[0][0]] == 9.0
    assert Evaluations(Space({}, (32,), inf), lambda _, __: []).promising_first(groups) == [one for (one,) in groups]


def test_each_number_of_stages_is_begun_on_its_most_promising_mesh():
    """What nobody knows comes behind what somebody knows, and of what takes about the same the squarest mesh."""
    seconds = {(1, (4, 4)): 9.0, (1, (2, 8)): 5.0, (2, (2, 4)): 5.05, (2, (8,)): 5.0, (4, (2, 2)): 0.0, (4, (4,)): 7.0}
    groups = [[PlanConfig(n, mesh, 32) for n, mesh in seconds if n == stages] for stages in (1, 2, 4)]
    trials = Evaluations(
        Space({}, (32,), 1.0), lambda _, __: [], look=lambda asked: [seconds[one.stages, one.mesh] for one in asked]
    )
    assert [one.mesh for one in trials.promising_first(groups)] == [(2, 8), (2, 4), (4,)]


def test_what_is_cut_off_by_a_look_keeps_what_others_of_its_mesh_prove():
    known = PlanConfig(2, (4,), 8)

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        least_s = {known: 5.0}
        return [CutOff(one, least_s.get(one, 1.0), least_s.get(one, 1.0), by_memory=False) for one in configs]

    trials = Evaluations(Space({}, (4, 8, 16), 1.0), evaluate, lambda _: None, Explored(below_s=9.0))
    trials.outcomes([known])
    more, fewer, other = trials.outcomes([PlanConfig(2, (4,), 16), PlanConfig(2, (4,), 4), PlanConfig(2, (2, 2), 16)])
    assert [one.bound_s for one in (more, fewer, other)] == [5.0, 1.0, 1.0]


def test_an_order_of_devices_that_is_bound_to_be_slow_stays_so_beside_one_that_is_estimated_to_be():
    """Devices in one order take 8 s at least, in the other about 9: neither is taken to come to the other's bound."""
    config = PlanConfig(2, (4,), 8)
    proven = CutOff(config, 8.0, 8.0, by_memory=False)
    found = best_placed([proven, CutOff(config, 6.0, 6.0, by_memory=False, estimated_s=9.0)])
    assert (found.bound_s, found.step_s) == (6.0, 8.0)
    assert best_placed([proven, proven]) == proven


def test_a_step_that_recomputes_all_it_can_is_looked_at_with_one_share():
    """In one stage: pieces of a loop in stages may run again, each right before its own backward pass."""
    setup = setup_of("checkpointed")
    space, steps = make_space(setup), StepPrograms(setup)
    assert space.remats_of(1) == space.remats[:1]
    assert space.remats_of(2) == space.remats
    alone, staged = (
        {str(steps.prepared(PlanConfig(stages, (2,), 4, remat))) for remat in space.remats} for stages in (1, 2)
    )
    assert len(alone) == 1
    assert len(staged) > 1


def test_a_step_that_keeps_something_is_looked_at_with_every_share(evaluator: Evaluator):
    space = make_space(evaluator.setup)
    assert space.remats_of(1) == space.remats


def test_other_meshes_are_looked_at_where_a_look_tells_that_they_may_pay():
    """The best takes 100 s: 99.7 s in one stage do not pay, in stages what is about that may be 2 % less."""
    seconds = {(1, (8,)): 99.7, (1, (2, 4)): 99.0, (2, (4,)): 101.0, (2, (2, 2)): 102.0, (4, (2,)): 0.0}
    configs = [PlanConfig(stages, mesh, 4) for stages, mesh in seconds]
    trials = Evaluations(
        Space({}, (4,), 1.0),
        lambda _, __: [],
        explored=Explored(below_s=100.0),
        look=lambda asked: [seconds[one.stages, one.mesh] for one in asked],
    )
    assert [(one.stages, one.mesh) for one in trials.promising(configs)] == [(1, (2, 4)), (2, (4,)), (4, (2,))]
    assert Evaluations(Space({}, (4,), 1.0), lambda _, __: []).promising(configs) == configs
