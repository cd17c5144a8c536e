"""What stages are predicted to need and to take before their programs are there: by hand, and against the programs."""

from dataclasses import replace

import gpt
import pytest
from pipelines import Setting, plan
from training import export_step
from zoo import GPT

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.setup import Setup
from rhino.strategies.autotune.base import CutOff, Estimate, PlanConfig
from rhino.strategies.pipeline.schedules import Pipeline, make_order
from rhino.strategies.pipeline.stages.estimate import StageEstimates
from rhino.strategies.pipeline.stages.needs import StageNeeds

OFF = 0.08
"""By how much, relatively, the need of a rank may be off."""


class Given(StageNeeds):
    """Equal stages with every quantity given."""

    def __init__(self, stages):
        self.kept_bytes = (1000.0,) * stages

    def saved_bytes(self, stage):
        return 100.0

    def waiting_bytes(self, stage):
        return 60.0

    def ahead_bytes(self, stage):
        return 1.0

    def passing_bytes(self, phase, stage):
        return {"forward": 10.0, "backward": 30.0, "input-gradient": 20.0, "weight-gradient": 5.0, "apply": 250.0}[
            phase
        ]


def needs(name, stages, micro_batches, chunks=1):
    return Given(stages).peak_bytes(make_order(name, Pipeline(stages, micro_batches, chunks)))


def test_what_is_held_of_each_micro_batch_and_the_most_that_a_program_needs_then():
    # the last two hold most when they apply the gradients
    assert needs("1f1b", 4, 8) == (
        1431.0,
        1331.0,
        1251.0,
        1251.0,
    )
    assert needs("1f1b", 4, 2) == (1251.0, 1251.0, 1251.0, 1251.0)
    assert needs("gpipe", 3, 8) == (1831.0,) * 3
    # the last has one micro-batch, and three that wait
    assert needs("zero-bubble", 4, 8) == (
        1421.0,
        1381.0,
        1341.0,
        1301.0,
    )


def gpt_step(**changed):
    small = {"hidden": 64, "vocab": 128, "seq": 64, "batch": 16}
    return export_step(gpt.model(replace(GPT, **{**small, **changed}))).encode()


def setup_of(text, *schedules):
    module = read_module(text, "gpt", make_context())
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks("gpt"))
    return Setup(bytecode(module), "gpt", "v100x8", 1e12, {}, schedules)


def test_ranks_need_what_the_proof_of_their_programs_says():
    text = gpt_step(layers=2)
    estimate = Evaluator(replace(setup_of(text, "zero-bubble"), tolerances=(0.05,))).outcome(PlanConfig(2, (2,), 4))
    proven = plan(text, "gpt", Setting(2, 4, "zero-bubble", "2", tolerance="0.05")).simulation.memory
    assert estimate.peak_bytes == pytest.approx([one.peak_bytes for one in proven], rel=OFF)


@pytest.mark.parametrize("dropout", [0.1, pytest.param(0.0, marks=pytest.mark.long)])
def test_a_stage_takes_what_its_programs_do(monkeypatch, dropout):
    """It takes what the backward pass makes again, and what is written to be stashed: nothing in the last stage."""
    text = gpt_step(layers=4, hidden=256, vocab=512, seq=256, batch=32, dropout=dropout)
    cuts = []
    plain = StageEstimates.cuts
    monkeypatch.setattr(
        StageEstimates, "cuts", lambda self, number: cuts.append((self, plain(self, number))) or cuts[-1][1]
    )
    Evaluator(replace(setup_of(text, "1f1b"), tolerances=(0.05,))).outcome(PlanConfig(2, (2,), 4))
    estimates, (cut,) = cuts[-1]
    assert estimates.staging.problem.apart.sum() > 0.05 * estimates.staging.problem.work.sum()
    made = plan(text, "gpt", Setting(2, 4, "1f1b", "2", tolerance="0.05"))
    taken = {
        program.module: seconds
        for program, seconds in zip(made.execution.step.programs, made.execution.run_s, strict=True)
    }
    times = cut.times
    assert times.forward_s[0] == pytest.approx(taken["forward_0"], rel=0.02)
    assert times.input_s[0] + times.weight_s[0] == pytest.approx(taken["backward_0"], rel=0.02)
    assert times.input_s[1] + times.weight_s[1] == pytest.approx(taken["backward_1"], rel=0.02)


def test_running_ahead_is_looked_at_where_it_fits():
    text = gpt_step(layers=4)
    config = PlanConfig(4, (2,), 8)
    found = Evaluator(setup_of(text, "1f1b", "eager-1f1b")).outcome(config)
    assert found.schedule == "1f1b"
    assert (found.quickest, found.ahead.schedule) == (found.ahead, "eager-1f1b")
    assert found.ahead.step_s < found.step_s
    assert max(found.ahead.peak_bytes) > max(found.peak_bytes)
    budget = max(*found.peak_bytes, max(found.ahead.peak_bytes) / 1.2)
    small = Evaluator(replace(setup_of(text, "1f1b", "eager-1f1b"), budget_bytes=budget)).outcome(config)
    assert (small.schedule, small.ahead, small.quickest) == ("1f1b", None, small)
    (nearly,) = small.others
    assert (nearly.schedule, nearly.peak_bytes) == ("eager-1f1b", found.ahead.peak_bytes)
    alone = Evaluator(setup_of(text, "eager-1f1b")).outcome(config)
    assert (alone.schedule, alone.step_s) == ("eager-1f1b", found.ahead.step_s)


@pytest.mark.long
def test_what_is_quick_enough_by_running_ahead_is_not_cut_off_where_that_fits():
    config, setup = PlanConfig(4, (2,), 8), setup_of(gpt_step(layers=4), "1f1b", "eager-1f1b")
    whole = Evaluator(setup).outcome(config)
    between_s = (whole.ahead.step_s + whole.step_s) / 2
    assert Evaluator(setup).outcome(config, between_s) == whole
    assert isinstance(Evaluator(setup).outcome(config, whole.ahead.step_s), CutOff)
    small = replace(setup, budget_bytes=max(*whole.peak_bytes, max(whole.ahead.peak_bytes) / 1.2))
    assert isinstance(Evaluator(small).outcome(config, between_s), CutOff)


def test_a_tolerance_that_is_said_is_the_one_of_the_search():
    setup = setup_of(gpt_step(layers=4), "1f1b")
    even, uneven, any_of_both = (
        Evaluator(replace(setup, tolerances=some)).outcome(PlanConfig(2, (2,), 4)).step_s
        for some in ((0.0,), (0.5,), (0.0, 0.5))
    )
    assert even != uneven
    assert any_of_both == min(even, uneven)


def test_an_early_stage_recomputes_what_memory_asks_for_where_that_takes_least():
    """Within memory that the best plan does not fit, no share for all stages is as good; bounds hold for both."""
    setup, config = setup_of(gpt_step(layers=4, seq=256), "1f1b"), PlanConfig(4, (2,), 8)
    free = Evaluator(setup).outcome(config)
    small = replace(setup, budget_bytes=0.8 * max(free.peak_bytes))
    found = Evaluator(replace(small, recomputes=True)).outcome(config)
    assert found.recomputes
    assert max(found.peak_bytes) <= small.budget_bytes
    assert found.bound_s <= found.step_s < 1.05 * free.step_s
    uniform = [Evaluator(small).outcome(replace(config, remat=remat)) for remat in (0.0, 0.5)]
    assert all(found.step_s < 0.95 * one.step_s for one in uniform if isinstance(one, Estimate))
