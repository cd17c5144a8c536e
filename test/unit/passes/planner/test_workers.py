"""Processes that evaluate configurations give what one gives, run no code of their caller, and end."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from math import ceil, inf
from pathlib import Path

import jax
import jax.numpy as jnp
import psutil
import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner import autotune as whole_choice
from rhino.passes.planner import workers as whole_workers
from rhino.passes.planner.autotune import Made, choose_plan
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.request import Decided, PlanRequest
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.workers import Workers
from rhino.strategies.autotune import STRATEGIES
from rhino.strategies.autotune.base import (
    CutOff,
    Estimate,
    Evaluations,
    Explored,
    Outcome,
    PlanConfig,
    Refused,
    Strategy,
)
from rhino.strategies.solver.answer import INTERRUPTED, Answer
from rhino.strategies.solver.search import Search

CONFIGS = [PlanConfig(1, (2,), 1), PlanConfig(1, (2,), 2), PlanConfig(1, (2,), 4)]

SCRIPT = """
import jax, jax.numpy as jnp, rhino
from rhino.passes.planner.workers import Workers

print("the script runs")
asked = []
evaluate = Workers.evaluate
Workers.evaluate = lambda self, *configs: (evaluate(self, *configs), asked.append((self.most, self.local)))[0]

def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - 0.1 * grad, loss

array = jax.ShapeDtypeStruct((8, 8), jnp.float32)
rhino.parallelize(step, cluster="cpu2", stages=1, search="autotune", jobs=2, donate_argnums=0).plan(array, array)
print(set(asked))
"""


@pytest.fixture(scope="module")
def setup() -> Setup:
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)

    context = make_context()
    module = read_module(
        jax.jit(step).lower(*[jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2).as_text().encode(), "step", context
    )
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    return Setup(bytecode(module), "step", "cpu2", 2.0**31, {})


def test_ctrl_c_is_for_the_one_that_asks_and_the_others_end_with_it(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    workers, wait, ids = Workers(setup, 2), whole_workers.wait, list[int]()

    def interrupting(lines: list[object]) -> list[object]:
        if not ids:  # while they start: Python has not set up its own way with interrupts then
            ids[:] = [worker.process.pid for worker in workers.workers]
            for one in ids:
                os.kill(one, signal.SIGINT)
        return wait(lines)

    monkeypatch.setattr(whole_workers, "wait", interrupting)
    evaluator = Evaluator(setup)
    workers.foresee(iter(CONFIGS))
    first = workers.evaluate(CONFIGS[:1])
    begun = [*workers.early, *(worker.request for worker in workers.workers)]
    assert any((config, 0.0) in begun for config in CONFIGS[1:]), (
        "the other process reads the steps of what is foreseen"
    )
    assert [first, workers.evaluate(CONFIGS)] == [
        [evaluator.outcome(config) for config in CONFIGS[:count]] for count in (1, 3)
    ]
    assert (len(ids), workers.local) == (2, None)

    def interrupted(_: object) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_workers, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.evaluate(CONFIGS)
    workers.close()
    assert not any(map(psutil.pid_exists, ids))


def test_what_interrupts_the_choice_of_shardings_interrupts_the_search(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    """Which by itself would make do with what it has, and the next configuration would be planned."""
    free = Search.free

    def interrupted(search: Search, budget: float) -> Answer:
        found = free(search, budget)
        assert isinstance(found, Answer)
        return replace(found, method=f"{found.method}, {INTERRUPTED}")

    monkeypatch.setattr(Search, "free", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Evaluator(setup).outcome(CONFIGS[0])


def test_interrupted_while_programs_are_made_the_best_that_was_made_is_left(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
):
    made: list[Decided] = []
    outcomes = [Estimate(config, "", 1.0, 1.0, 1.0, 1.0, 0.0, (1.0,)) for config in CONFIGS]
    explored = Explored(outcomes=list(outcomes), requested_by=dict.fromkeys(CONFIGS, "aceso"))
    monkeypatch.setattr(whole_choice, "explore", lambda *_, **__: explored)

    def make(plan: Decided) -> Made[Decided]:
        if made:
            raise KeyboardInterrupt
        made.append(plan)
        return Made(plan, inf, (0.0,))  # so slow that the next best is made too

    plan, report = choose_plan(setup, PlanRequest("v100x8", 0, jobs=1), make)
    assert [plan] == made
    assert not report.explored.is_complete


def test_other_schedules_and_what_nearly_fits_are_made_where_their_estimates_are_below_what_was_made(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
):
    """Of each configuration the best schedule by its estimate is not always the best once its programs are made."""
    pipeline, alone, nearly, slow = (
        PlanConfig(2, (1,), 4),
        PlanConfig(1, (2,), 4),
        PlanConfig(2, (1,), 2),
        PlanConfig(2, (1,), 8),
    )

    def estimate(config: PlanConfig, schedule: str, step_s: float, share: float = 0.5) -> Estimate:
        return Estimate(config, schedule, step_s, 1.0, 1.0, 1.0, 0.0, (share * setup.budget_bytes,))

    others = (
        estimate(pipeline, "interleaved", 2.1),
        estimate(pipeline, "gpipe", 2.2),
        estimate(pipeline, "zero-bubble", 9.0),
    )
    outcomes = [
        replace(estimate(pipeline, "1f1b", 2.0), others=others),
        estimate(alone, "", 2.5),
        Refused(nearly, "", True, nearly=(estimate(nearly, "1f1b", 1.0, 1.01),)),
        CutOff(slow, 1.0, 1.0, by_memory=False, estimated_s=2.0, plans=(estimate(slow, "zero-bubble", 2.0, 0.0),)),
    ]
    explored = Explored(outcomes=list(outcomes), requested_by=dict.fromkeys([one.config for one in outcomes], "rhino"))
    monkeypatch.setattr(whole_choice, "explore", lambda *_, **__: explored)
    steps = {"1f1b": 3.0, "interleaved": 2.3, "gpipe": 2.4, "zero-bubble": 5.0}
    made: list[Decided] = []

    def make(plan: Decided) -> Made[Decided]:
        made.append(plan)
        if plan.micro_batches == nearly.micro_batches:
            raise RhinoError("RHI-STEP-008", "it does not fit")
        return Made(plan, steps[plan.schedule], (0.0,))

    plan, report = choose_plan(setup, PlanRequest("v100x8", 0, jobs=1), make)
    assert [(one.schedule, one.micro_batches) for one in made] == [
        ("1f1b", 4),
        ("interleaved", 4),
        ("gpipe", 4),
        ("1f1b", 2),
        ("zero-bubble", 8),
    ]
    assert (plan.schedule, plan.chunks, report.chosen.step_s) == ("interleaved", 2, 2.3)
    assert [one.config for one in report.failed] == [nearly]
    assert [(one.estimate.config, one.step_s, one.why.partition(":")[0]) for one in report.lost()] == [
        (alone, 2.5, "by estimates 19.0% slower"),
        (slow, 5.0, "117.4% slower once its programs were made"),
    ]
    assert not report.cut_off(), "what was made was planned to its end"
    about, made = report.json()["alternatives"]
    assert (about["estimated_step_s"], about["estimated_peak_bytes"]) == (2.5, [ceil(0.5 * setup.budget_bytes)])
    assert not about.keys() & {"predicted_step_s", "predicted_peak_bytes"}, "its programs were not made"
    assert (made["predicted_step_s"], made["predicted_peak_bytes"], made["estimated_step_s"]) == (5.0, [0.0], 2.0)
    assert "  about 2.1 s by its estimate: " in report.text()
    assert "mesh 2, 4 micro-batches: about 2.5 s, by estimates 19.0% slower" in report.text()
    assert (
        "2 stages of 1, 8 micro-batches, zero-bubble: 5 s, 117.4% slower once its programs were made" in report.text()
    )


def test_what_runs_ahead_is_made_first_where_it_takes_less(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    config = PlanConfig(2, (1,), 4)
    plain = Estimate(config, "1f1b", 2.0, 1.0, 1.0, 1.0, 0.0, (1.0,))
    explored = Explored(outcomes=[replace(plain, ahead=replace(plain, schedule="eager-1f1b", step_s=1.9))])
    explored.requested_by[config] = "rhino"
    monkeypatch.setattr(whole_choice, "explore", lambda *_, **__: explored)
    made: list[Decided] = []

    def make(plan: Decided) -> Made[Decided]:
        made.append(plan)
        return Made(plan, 2.1 - 0.1 * len(made), (0.0,))

    plan, report = choose_plan(setup, PlanRequest("v100x8", 0, jobs=1), make)
    assert [one.schedule for one in made] == ["eager-1f1b"]
    assert (plan, report.chosen.estimate) == (made[0], explored.ranked[0].ahead)


def test_what_came_near_is_made_where_nothing_fits(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    far, near, nearest = (PlanConfig(1, (2,), number) for number in (1, 2, 4))
    needs = {far: 1.2, near: 1.05, nearest: 1.01}
    refused = [
        Refused(one, "too much", True, 1.5, found_bytes=more * setup.budget_bytes) for one, more in needs.items()
    ]
    explored = Explored(outcomes=list(refused), requested_by=dict.fromkeys(needs, "rhino"))
    monkeypatch.setattr(whole_choice, "explore", lambda *_, **__: explored)
    made: list[int] = []

    def make(plan: Decided) -> Made[Decided]:
        made.append(plan.micro_batches)
        if plan.micro_batches == nearest.micro_batches:
            raise RhinoError("RHI-SOLVE-001", "it does not fit")
        return Made(plan, 2.0, (0.0,))

    plan, report = choose_plan(setup, PlanRequest("v100x8", 0, jobs=1), make)
    assert (made, plan.micro_batches) == ([4, 2], 2)
    assert report.chosen.step_s == 2.0
    assert "2 micro-batches" in report.text()
    assert report.json()["plan"]["micro_batches"] == 2


def test_a_process_begins_with_what_it_has_read_the_step_for_and_only_reads_for_what_may_be_in_vain(setup: Setup):
    def config(micro_batches: int) -> PlanConfig:
        return PlanConfig(2, (2,), micro_batches)

    with closing(Workers(setup, 2)) as workers:
        free, other = workers.workers
        free.has_read, other.has_read = {(4, 0.0)}, {(2, 0.0)}
        asked = [(config(number), 1.0) for number in (2, 8, 4)]
        for left in (asked[2], asked[1], asked[0]):
            assert workers._next(free, asked, 1.0) == left
            asked.remove(left)
        workers.foresee(iter([config(2), config(8), config(4)]))
        assert workers._next(free, [], 1.0) == (config(4), 1.0)
        assert workers._next(free, [], inf) == (config(8), 0.0), "while nothing cuts off, only to read is of use"
        workers.early[config(4), 1.0] = Refused(config(4), "", by_memory=True)
        assert workers._next(free, [], 1.0) == (config(8), 0.0)
        free.has_read = {(number, 0.0) for number in (2, 4, 8)}
        assert workers._next(free, [], inf) is None


def test_where_a_process_is_gone_the_one_that_asks_goes_on_alone(setup: Setup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(whole_workers, "_SERVE", "")
    workers = Workers(setup, 2)
    try:
        assert [one.config for one in workers.evaluate(CONFIGS)] == CONFIGS
        assert workers.local is not None
    finally:
        workers.close()


@pytest.mark.parametrize("how", ["a file without a guard", pytest.param("stdin", marks=pytest.mark.long)])
def test_the_callers_script_runs_once(tmp_path: Path, how: str):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    with file.open() as script:
        command = [sys.executable, "-" if how == "stdin" else str(file)]
        done = subprocess.run(command, stdin=script, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == ["the script runs", "{(2, None)}"], done.stderr


def test_what_was_cut_off_at_less_than_the_programs_of_the_best_take_is_looked_at_again(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
):
    """An estimate that programs do not keep cuts off what would have been faster.

    What was made cuts off no less than it takes.
    """
    first, better, slower, never = (
        PlanConfig(2, (1,), 4),
        PlanConfig(1, (2,), 1),
        PlanConfig(1, (2, 1), 1),
        PlanConfig(1, (1, 2), 1),
    )
    steps, estimates, asked = {first: 3.0, better: 2.4, slower: 2.9}, {first: 2.0, better: 2.5, slower: 2.9}, []

    def outcome(config: PlanConfig, cutoff_s: float) -> Outcome:
        asked.append((config, cutoff_s))
        step_s = estimates.get(config, 3.5)
        if step_s >= cutoff_s:
            return CutOff(config, step_s, step_s, by_memory=False)
        return Estimate(config, "1f1b" if config.stages > 1 else "", step_s, 1.0, 1.0, 1.0, 0.0, (0.0,))

    def search(trials: Evaluations) -> None:
        trials.outcomes([first])
        trials.outcomes([never, slower, better])

    monkeypatch.setitem(STRATEGIES, "two rounds", Strategy("two rounds", "", search))
    monkeypatch.setattr(
        Workers, "evaluate", lambda _, configs, cutoff_s: [outcome(config, cutoff_s) for config in configs]
    )
    made: list[PlanConfig] = []

    def make(plan: Decided) -> Made[Decided]:
        made.append(PlanConfig(plan.stages, plan.meshes[0], plan.micro_batches))
        return Made(plan, steps[made[-1]], (0.0,))

    plan, report = choose_plan(setup, PlanRequest("v100x8", 0, jobs=1, strategy="two rounds"), make)
    assert (plan.meshes[0], report.chosen.step_s) == ((2,), 2.4)
    assert made == [first, better]
    again = [(config, cutoff_s) for config, cutoff_s in asked if cutoff_s == 3.0]
    assert sorted(again) == [(better, 3.0), (slower, 3.0)], "not what was made, and what is proven to take no less"
    assert [(one.estimate.config, one.step_s) for one in report.lost()] == [(slower, 2.9), (first, 3.0)]
    assert [one.config for one, _ in report.cut_off()] == [never]
