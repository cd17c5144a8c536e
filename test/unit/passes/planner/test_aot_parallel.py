"""The target's compiler chooses among plans in stages, and those in one program: fake ones, and XLA's for hosts."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clusters import of_two_kinds
from fake_compiler import FakeCompiler
from momentum_step import step

import rhino
from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.parts import program_ranks
from rhino.ir.plan.plan import Predicted
from rhino.passes.planner.aot_parallel import Compiles, compile_stages, compilers_of
from rhino.passes.planner.explain import explain_text
from rhino.runtime.aot.compile import compiler_of

CLUSTER = load_cluster("cpu4")
SHAPES = (
    {name: [jax.ShapeDtypeStruct((128, 128), jnp.float32)] * 2 for name in ("params", "moments")},
    jax.ShapeDtypeStruct((64, 128), jnp.float32),
)
STAGED = {"cluster": "cpu4", "donate_argnums": 0, "stages": 2, "micro_batches": 2, "mesh": "2"}


@pytest.fixture(scope="module")
def facts():
    """A plan in two stages."""
    return rhino.parallelize(step, **STAGED).plan(*SHAPES).facts


class Plans:
    """Gives a plan that is predicted to take what it may; `asked` are the budgets."""

    def __init__(self, facts, least=1):
        self.facts, self.least, self.asked = facts, least, []

    def __call__(self, budget):
        self.asked.append(budget)
        if budget < self.least:
            raise RhinoError("RHI-STEP-008", "it does not fit")
        predicted = self.facts.predicted
        peaks = tuple(min(one, budget) for one in predicted.peak_bytes)
        return replace(self.facts, predicted=Predicted(predicted.step_s, 0.0, peaks, budget, (0, 0)))


def compiles(compiler, facts, times=1.0, **options):
    budget = int(facts.predicted.largest_peak_bytes * times)
    return Compiles(lambda _cluster, _mesh: compiler, budget, **options)


def test_stages_are_compiled_by_xla_to_about_what_is_predicted(facts):
    found = compile_stages(facts, compiler_of)
    assert found.peak_bytes == pytest.approx(facts.predicted.peak_bytes, rel=0.2)
    assert len(found.run_s) == len(facts.execution.step.programs)
    assert found.step_s >= max(found.run_s)


def test_the_step_of_stages_is_simulated_with_the_seconds_of_their_programs(facts):
    compilers = (FakeCompiler(peaks=(0,), steps=(size,)) for size in (10, 20))
    fast, slow = (compile_stages(facts, lambda _cluster, _mesh, one=one: one) for one in compilers)
    transfers_s = 2 * fast.step_s - slow.step_s
    assert 0 <= transfers_s < fast.step_s
    assert fast.step_s > 2 * fast.run_s[0], "two micro-batches, forward and backward"


def test_stages_on_unlike_devices_are_compiled_priced_and_held_for_their_own():
    own = {**STAGED, "cluster": of_two_kinds("cpu2", 3)}
    facts, asked = rhino.parallelize(step, **own).plan(*SHAPES).facts, []

    def compiler_for(cluster, _mesh):
        asked.append(cluster.name)
        return FakeCompiler(peaks=(3 << 30,), steps=(10,))

    found, ranks = compile_stages(facts, compiler_for), program_ranks(facts.execution.step)
    assert asked == [["quick", "cpu2"][one] for (one,) in ranks]
    seconds = [{found.run_s[number] for number, own in enumerate(ranks) if own == (rank,)} for rank in range(2)]
    assert [len(one) for one in seconds] == [1, 1], "it is the same program in each"
    assert seconds[1].pop() > 2 * seconds[0].pop()
    with pytest.raises(RhinoError, match=r"RHI-STEP-008.* per device, of 2 GiB"):
        Compiles(compiler_for, 4 << 30).staged("two stages", Plans(facts), lambda plan: plan)


def test_stages_that_fit_once_compiled_are_taken(facts):
    plans, one = Plans(facts), compiles(FakeCompiler(peaks=(0,)), facts)
    _, row = one.staged("two stages", plans, lambda plan: plan)
    assert plans.asked == [one.budget_bytes]
    assert one.comparison(row).plans == (row,)
    assert row.compiled_bytes <= one.budget_bytes
    assert row.predicted_s == facts.predicted.step_s


def test_stages_that_take_too_much_once_compiled_are_planned_within_less_and_so_are_the_next(facts):
    much = 2 * facts.predicted.largest_peak_bytes
    count = len(facts.execution.step.programs)
    plans, one = Plans(facts), compiles(FakeCompiler(peaks=(*[much] * count, 0)), facts)
    _, row = one.staged("two stages", plans, lambda plan: plan)
    first, second = plans.asked
    assert second < 0.6 * first, "it took more than twice of what it may"
    assert [plan.compiled_bytes <= first for plan in one.comparison(row).plans] == [False, True]
    one.staged("others", plans, lambda plan: plan)
    assert plans.asked[2:] == [second]


def test_what_was_learned_from_others_rules_out_nothing(facts):
    plans, one = Plans(facts, least=facts.predicted.largest_peak_bytes), compiles(FakeCompiler(peaks=(0,)), facts)
    one.within = 1
    one.staged("two stages", plans, lambda plan: plan)
    assert plans.asked == [1, one.budget_bytes]


def test_stages_that_never_fit_are_refused_with_both_figures(facts):
    one = compiles(FakeCompiler(peaks=(4 * facts.predicted.largest_peak_bytes,)), facts)
    with pytest.raises(RhinoError, match=r"RHI-STEP-008.*once compiled \(a compiler 1\.0\); predicted"):
        one.staged("two stages", Plans(facts), lambda plan: plan)
    assert one.left == one.most - 2


def test_half_of_the_compiles_are_left_for_experts_once_a_plan_fits(facts):
    one = compiles(FakeCompiler(peaks=(0,)), facts, most=4)
    one.staged("a", Plans(facts), lambda plan: plan)
    assert one.is_open
    one.staged("b", Plans(facts), lambda plan: plan)
    assert not one.is_open
    memory = compiles(FakeCompiler(peaks=(0,)), facts, most=4, memory_only=True)
    memory.compiled = list(one.compiled)
    assert memory.is_open


def test_without_a_compiler_a_line_says_why():
    assert compilers_of(CLUSTER, lambda _cluster, _mesh: "libtpu is not installed") == "libtpu is not installed"


@pytest.mark.long
def test_xla_for_hosts_chooses_among_stages_and_one_program_and_the_plan_computes_what_one_device_does():
    rng = np.random.default_rng(5)
    weights = [rng.random((128, 128), np.float32) / 10 for _ in range(2)]
    state = {"params": weights, "moments": [np.zeros_like(one) for one in weights]}
    x = rng.random((64, 128), np.float32)
    f = rhino.parallelize(step, cluster="cpu4", donate_argnums=0, search="autotune", jobs=1, aot=True)
    expected = jax.jit(step)(state, x)
    found = f.plan(state, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), f(state, x), expected)
    compared = found.facts.compared
    assert 1 < len(compared.plans) <= 10
    fit = [one for one in compared.plans if one.compiled_bytes <= found.facts.predicted.budget_bytes]
    assert compared.plans[compared.chosen].compiled_s == min(one.compiled_s for one in fit)
    assert any(one.name.endswith(": searched") for one in compared.plans)
    assert any(one.name.endswith(": zero-3") for one in compared.plans)
    assert "compiled by XLA:CPU of jaxlib" in explain_text(found.facts)


@pytest.mark.parametrize("budget", [pytest.param("200KiB", marks=pytest.mark.long), "230KiB"])
def test_an_autotuned_plan_is_within_its_budget_once_compiled(budget, caplog):
    caplog.set_level(logging.INFO, "rhino")
    f = rhino.parallelize(
        step, cluster="cpu4", donate_argnums=0, search="autotune", jobs=1, aot="memory", budget=budget
    )
    facts = f.plan(*SHAPES).facts
    compared = facts.compared
    chosen = compared.plans[compared.chosen]
    assert chosen.compiled_bytes <= facts.predicted.budget_bytes == int(budget[:3]) << 10
    assert "compiling" in caplog.text
