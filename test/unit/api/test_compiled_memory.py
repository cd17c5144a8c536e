"""What is compiled has the last word: at a call against the budget, and when a plan is made with `aot`."""

import logging

import jax
import jax.monitoring
import numpy as np
import pytest
from momentum_step import step as mlp_step

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.hlo.compiled import Compiled
from rhino.runtime.distributed.jax_job import most_of_processes

COMPILES = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, _seconds, **_: COMPILES.append(name) if name.endswith("backend_compile_duration") else None
)


def scan_step(p, x):
    """An associative scan, of which the predicted peak is a fraction of what XLA takes."""

    def loss(p):
        pairs = jax.nn.sigmoid(x @ p), x
        _, h = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), pairs, axis=1)
        return (h**2).mean()

    return p - jax.grad(loss)(p)


P = np.full((64, 64), 0.01, np.float32)
X = np.random.default_rng(0).random((16, 64, 64), np.float32)


def state():
    rng = np.random.default_rng(1)
    weights = [rng.random((128, 128), np.float32) / 10 for _ in range(2)]
    return {"params": weights, "moments": [np.zeros_like(w) for w in weights]}


def planned(f, *args):
    return f.plan(*args).facts


def compiled_bytes(f, *args):
    stats = f.lower(*args).compile().memory_analysis()
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return kept + stats.temp_size_in_bytes


@pytest.fixture(scope="module")
def free_bytes():
    """The scan without a budget: what is predicted, and what its compiled program takes."""
    free = rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0)
    return planned(free, P, X).predicted.peak_bytes[0], compiled_bytes(free, P, X)


def refusal(f):
    """What a call is refused for; None where it runs."""
    try:
        f(P, X)
    except RhinoError as error:
        return error
    return None


def test_the_first_call_compiles_once_and_later_calls_not_at_all():
    f = rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0)
    f.plan(P, X)
    COMPILES.clear()
    first = f(P, X)
    assert len(COMPILES) == 1
    np.testing.assert_array_equal(f(P, X), first)
    assert len(COMPILES) == 1


def test_a_program_that_takes_more_than_the_budget_is_never_run(caplog, free_bytes):
    predicted, needed = free_bytes
    assert predicted < needed, "the case is of a prediction that is too small"
    caplog.set_level(logging.INFO, "rhino")
    for budget in np.linspace(predicted * 1.01, needed * 1.01, 3).astype(int).tolist():
        f = rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0, budget=budget, micro_batches=1)
        error = refusal(f)
        if error is None:
            assert compiled_bytes(f, P, X) <= budget
        else:
            assert error.id == "RHI-SOLVE-001"
            assert error.what.startswith("the compiled program of scan_step takes ")
            assert "it was predicted to take" in error.notes[0]
            assert budget < needed
    assert "scan_step is planned again: the compiled program of scan_step takes" in caplog.text


def test_what_was_refused_is_refused_again_without_a_search_or_a_compile(caplog, free_bytes):
    caplog.set_level(logging.INFO, "rhino")
    budget = int(free_bytes[0] * 1.01)
    f = rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0, budget=budget)
    first = refusal(f)
    assert first is not None
    caplog.clear()
    COMPILES.clear()
    second = refusal(f)
    assert (second.id, second.what, COMPILES, caplog.text) == (first.id, first.what, [], "")


def test_what_init_has_made_is_said_to_be_moved(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "rhino")
    free = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0)
    x = np.random.default_rng(4).random((64, 128), np.float32)
    budget = planned(free, state(), x).predicted.peak_bytes[0]
    f = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0, budget=budget)
    f.plan(state(), x)
    made = f.init(state)
    taken = iter([2 * budget, budget])
    monkeypatch.setattr("rhino.jit_program.JitProgram.compiled_bytes", lambda _self, _values: next(taken))
    monkeypatch.setattr("rhino.parallelized.smaller_budget", lambda *_: budget)
    f(made, x)
    assert "step: what init has made is moved where the new plan wants it" in caplog.text


def test_a_program_of_which_xla_says_nothing_runs_unchecked_and_says_so(caplog, monkeypatch):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda _self: None)
    rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0)(P, X)
    assert "scan_step: XLA does not say what its compiled program takes: not checked" in caplog.text


def test_processes_decide_by_the_one_that_takes_most(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    other = 5 << 32
    monkeypatch.setattr("rhino.runtime.distributed.jax_job.gather_texts", lambda own: [own, str(other)])
    assert [most_of_processes(one) for one in (0, other + 1)] == [other, other + 1]


def test_a_kept_plan_whose_program_is_over_its_budget_is_refused(free_bytes):
    budget = int(free_bytes[0] * 1.01)
    plan = rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0, budget=budget).plan(P, X)
    f = rhino.parallelize(scan_step, plan=plan, donate_argnums=0)
    with pytest.raises(RhinoError, match=r"(?s)RHI-SOLVE-001.*the compiled program.*plan again with budget="):
        f(P, X)


@pytest.mark.long
def test_a_plan_that_its_compiler_chose_computes_what_one_device_does(tmp_path):
    x = np.random.default_rng(2).random((64, 128), np.float32)
    f = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0, aot=True)
    expected = jax.jit(mlp_step)(state(), x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), f(state(), x), expected)
    plan = f.plan(state(), x)
    compared = plan.facts.compared
    assert [one.name for one in compared.plans][:5] == ["searched", "dp", "zero-1", "zero-3", "tp"]
    assert compared.plans[compared.chosen].compiled_s == min(one.compiled_s for one in compared.plans)
    assert "compiled by XLA:CPU of jaxlib" in plan.explain()
    plan.save(tmp_path / "plan.json")
    kept = rhino.parallelize(mlp_step, plan=rhino.Plan.load(tmp_path / "plan.json"), donate_argnums=0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), kept(state(), x), expected)
    assert planned(kept, state(), x).sharding.form == compared.plans[compared.chosen].form


def saved(plan, folder):
    plan.save(folder / "plan.json")
    return rhino.Plan.load(folder / "plan.json")


def test_every_form_that_a_compiler_may_choose_computes_what_one_device_does(monkeypatch, tmp_path):
    x = np.random.default_rng(3).random((64, 128), np.float32)
    expected = jax.jit(mlp_step)(state(), x)
    text = "HloModule m\n\nENTRY %main () -> f32[] {\n  %a = f32[8] parameter(0)\n  %n = f32[8] negate(%a)\n}\n"
    compiled = Compiled(1, (), text, "a compiler", False, 0.0)
    monkeypatch.setattr("rhino.planner.compiler_of", lambda _cluster, _mesh, by_jit: lambda _code: compiled)
    chosen = set()
    for number in (0, 1, 3, 5, 7, 8):
        monkeypatch.setattr("rhino.passes.planner.aot.fastest", lambda fit, number=number: fit[number])
        f = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0, aot=True)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), f(state(), x), expected)
        kept = rhino.parallelize(mlp_step, plan=saved(f.plan(state(), x), tmp_path), donate_argnums=0)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), kept(state(), x), expected)
        one = planned(f, state(), x).compared
        chosen.add((one.plans[one.chosen].name, one.plans[one.chosen].form))
    assert len(chosen) == 6
    assert {form for _, form in chosen} == {"localized", "annotated"}


@pytest.mark.long
def test_stage_programs_over_the_budget_are_not_run(monkeypatch):
    x = np.random.default_rng(4).random((64, 128), np.float32)
    f = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0, stages=2, micro_batches=2, mesh="4")
    predicted = planned(f, state(), x).predicted
    f(state(), x)
    program = next(iter(f._entries.values())).program
    needed = program.compiled_bytes(())
    assert needed == pytest.approx(predicted.largest_peak_bytes, rel=0.2)
    budget = int(predicted.largest_peak_bytes * 1.001)
    monkeypatch.setattr("rhino.stage_programs.StagePrograms.compiled_bytes", lambda _self, _values: 2 * budget)
    small = rhino.parallelize(
        mlp_step, cluster="cpu8", donate_argnums=0, stages=2, micro_batches=2, mesh="4", budget=budget
    )
    with pytest.raises(RhinoError, match=r"RHI-SOLVE-001.*the compiled program of step takes"):
        small(state(), x)


def test_what_is_compiled_beforehand_takes_what_the_call_takes():
    f = rhino.parallelize(scan_step, cluster="cpu8", donate_argnums=0, aot="memory")
    compared = planned(f, P, X).compared
    called = compiled_bytes(f, P, X)  # which counts no constants
    assert compared.best.compiled_bytes == pytest.approx(called, abs=64)


def test_so_many_plans_are_compiled_as_are_allowed():
    x = np.random.default_rng(2).random((64, 128), np.float32)
    f = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0, aot=True, compiles=2)
    assert len(planned(f, state(), x).compared.plans) == 2


@pytest.mark.long
def test_a_refusal_speaks_of_keywords():
    x = np.random.default_rng(2).random((64, 128), np.float32)
    f = rhino.parallelize(mlp_step, cluster="cpu8", donate_argnums=0, aot=True, compiles=1, budget="70KiB")
    with pytest.raises(RhinoError) as caught:
        f.plan(state(), x)
    assert "once compiled" in caught.value.what
    assert "raise budget" in caught.value.fix
    assert "with compiles" in caught.value.fix
    assert "--" not in caught.value.render()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aot": "speed"}, "aot is 'speed'"),
        ({"compiles": 3}, "compiles is given, and nothing is compiled"),
        ({"aot": True, "compiles": 0}, "compiles is 0"),
    ],
)
def test_what_aot_does_not_take_is_refused(options, words):
    with pytest.raises(RhinoError, match=f"RHI-JAX-002.*{words}"):
        rhino.parallelize(mlp_step, cluster="cpu8", **options)
