"""The target's compiler chooses: by steps and bytes that a fake compiler gives, and by XLA's for hosts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from fake_compiler import FakeCompiler
from momentum_step import step

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.files import load_plan, save_plan
from rhino.passes.planner.aot import LOCALIZED, SEARCHED, Comparer, smaller_budget
from rhino.passes.planner.explain import explain_text
from rhino.passes.planner.unstaged_plan import ANNOTATED
from rhino.passes.planner.why import again, why_not_text, why_text
from rhino.runtime.aot.compile import compiler_of

CLUSTER = load_cluster("cpu8")
EXPERTS = ("dp", "zero-1", "zero-3", "tp")


def shapes_of(batch=64, size=128):
    weights = [jax.ShapeDtypeStruct((size, size), jnp.float32)] * 2
    return {"params": weights, "moments": weights}, jax.ShapeDtypeStruct((batch, size), jnp.float32)


def text_of(donated=True):
    return jax.jit(step, donate_argnums=0 if donated else ()).lower(*shapes_of()).as_text().encode()


TEXT = text_of()


def comparer(compiler, budget=1 << 30, text=TEXT, **options):
    return Comparer(
        read=lambda: read_module(text, "step.mlir", make_context()),
        name="step.mlir",
        options={"cluster": "cpu8", "mesh": "8", "budget": str(budget)},
        cluster=CLUSTER,
        budget_bytes=float(budget),
        compiler_for=lambda _mesh: compiler,
        **options,
    )


def test_the_fastest_compiled_plan_that_fits_is_taken():
    compiler = FakeCompiler(peaks=(100, 100, 1 << 40, 100, 100), steps=(9, 5, 1, 3, 7, 8))
    judged = comparer(compiler, forms=(LOCALIZED,)).run()
    assert [one.name for one in judged.candidates if one.peak_bytes < 1 << 40][:1] == [SEARCHED]
    assert judged.best.step_s == min(one.step_s for one in judged.candidates if one.peak_bytes <= 1 << 30)
    assert judged.best.peak_bytes <= 1 << 30


def test_experts_plans_and_both_forms_compete():
    judged = comparer(FakeCompiler(steps=range(9, 0, -1))).run()
    found = [(one.name, one.form) for one in judged.candidates]
    assert found[: 1 + len(EXPERTS)] == [(name, LOCALIZED) for name in (SEARCHED, *EXPERTS)]
    assert {form for _, form in found} == {LOCALIZED, ANNOTATED}
    assert len(found) == 10


def test_experts_plans_lie_as_experts_say():
    judged = comparer(FakeCompiler()).run()
    lie = {
        one.name: {tensor.path: tensor.dims for tensor in one.found.plan.arguments}
        for one in judged.candidates
        if one.form == LOCALIZED
    }
    paths = list(lie["dp"])
    moments, params, batch = paths[:2], paths[2:4], paths[4]
    state = [*moments, *params]

    def is_split(name, path):
        return any(lie[name][path])

    assert lie["dp"][batch] == lie["zero-3"][batch] == (("x",), ())
    assert not any(is_split("dp", path) for path in state)
    assert all(is_split("zero-3", path) for path in state)
    assert all(is_split("zero-1", path) for path in moments)
    assert not any(is_split("zero-1", path) for path in params)
    assert not is_split("tp", batch)
    columns_and_rows = [((), ("x",)), (("x",), ())]
    assert [lie[SEARCHED][path] for path in state] == columns_and_rows * 2, "Megatron's plan is the search's own here"


def test_a_plan_that_is_compiled_to_too_much_is_searched_again_within_less():
    compiler = FakeCompiler(peaks=(1 << 20, 1 << 10))
    judged = comparer(compiler, budget=700_000, memory_only=True).run()
    first, second = judged.candidates
    assert first.peak_bytes > 700_000 >= second.peak_bytes
    assert judged.best is second
    allowed = first.found.plan.predicted.peak_bytes[0] * 700_000 / first.peak_bytes
    assert second.found.plan.predicted.peak_bytes[0] <= allowed


def test_what_never_fits_is_refused_with_both_figures_and_what_takes_most():
    with pytest.raises(RhinoError) as caught:
        comparer(FakeCompiler(peaks=(1 << 40,)), most=4).run()
    error = caught.value
    assert error.exit_code == ExitCode.DOES_NOT_FIT
    assert "once compiled: the least takes 1 TiB (a compiler 1.0), predicted" in error.what
    assert error.notes[0] == "512 GiB hold f32[64,128]"


def test_a_plan_that_is_predicted_not_to_fit_is_taken_where_it_does():
    least = comparer(FakeCompiler(), memory_only=True).run().best.found.plan.predicted.peak_bytes[0]
    budget = int(least * 0.55)
    with pytest.raises(RhinoError, match="RHI-SOLVE-001"):
        comparer("nothing compiles", budget=budget // 4).run()
    judged = comparer(FakeCompiler(peaks=(budget - 1,)), budget=budget, memory_only=True).run()
    assert judged.best.peak_bytes < budget


def test_compiles_are_counted():
    compiler = FakeCompiler()
    judged = comparer(compiler, most=3).run()
    assert (compiler.num, len(judged.candidates)) == (3, 3)


def test_a_plan_that_does_not_compile_is_passed_over():
    judged = comparer(FakeCompiler(refused=(0,), steps=(1, 2, 3))).run()
    assert judged.candidates[0].why == "it does not compile"
    assert judged.best is not judged.candidates[0]
    with pytest.raises(RhinoError, match="RHI-AOT-001"):
        comparer(FakeCompiler(refused=range(99))).run()


def test_without_a_compiler_the_plan_is_the_searchs_own():
    judged = comparer("libtpu is not installed").run()
    assert (judged.best.name, judged.missing, judged.plan().compared) == (SEARCHED, "libtpu is not installed", None)


def test_without_a_state_there_are_no_experts():
    names = {one.name for one in comparer(FakeCompiler(), text=text_of(donated=False)).run().candidates}
    assert names == {SEARCHED}


def test_a_users_roles_of_axes_stay():
    compiler = FakeCompiler()
    one = comparer(compiler)
    one.options = {**one.options, "axis-role": "x=batch"}
    assert {found.found.plan.options.get("axis-role") for found in one.run().candidates} == {"x=batch"}


def test_the_plan_tells_what_was_compared(tmp_path):
    judged = comparer(FakeCompiler(steps=(3, 2, 1, 4), refused=(3,))).run()
    plan = judged.plan()
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    compared = plan.compared
    assert compared.plans[compared.chosen].name == judged.best.name
    lines = explain_text(plan).splitlines()
    start = lines.index("compiled by a compiler 1.0:")
    marked = [line for line in lines[start:] if line.startswith("  *")]
    assert len(marked) == 1
    assert judged.best.name in marked[0]
    assert "it does not compile" in "\n".join(lines[start:])
    with pytest.raises(ValueError, match="chosen"):
        load_broken(plan, tmp_path)


def load_broken(plan, folder):
    """Raises what a plan raises whose chosen row is not there."""
    from rhino.ir.plan.plan_json import plan_data, plan_of, plan_text  # noqa: PLC0415 - here alone

    broken = replace(plan, compared=replace(plan.compared, chosen=99))
    plan_of(plan_data(plan_text(broken, {}), str(folder)), None, {})


def test_xla_for_hosts_is_asked_and_every_chosen_plan_fits_what_it_says():
    def compiler_for(mesh):
        return compiler_of(CLUSTER, mesh)

    one = comparer(None, budget=600_000, most=4)
    one.compiler_for = compiler_for
    judged = one.run()
    assert judged.best.compiled.compiler.startswith("XLA:CPU of jaxlib")
    assert judged.best.peak_bytes <= 600_000


def test_an_expert_plan_that_never_fits_leaves_compiles_for_the_others():
    peaks = (100, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 100)
    judged = comparer(FakeCompiler(peaks=peaks), forms=(LOCALIZED,)).run()
    names = [one.name for one in judged.candidates]
    assert all(names.count(name) <= 2 for name in EXPERTS)
    assert {SEARCHED, "dp", "zero-1"} <= set(names)


@pytest.mark.parametrize(("predicted", "compiled"), [(90, 200), (99, 101), (150, 101), (1, 10**9)])
def test_the_next_budget_is_less_than_the_plan_was_predicted_to_take(predicted, compiled):
    found = smaller_budget(predicted, compiled, 100)
    assert 1 <= found < max(2, predicted)
    assert found <= max(1, predicted * 100 / compiled)


def chosen(name, text, **options):
    """The plan that a comparer would have taken, had that been the fastest."""
    judged = comparer(FakeCompiler(), text=text, forms=(LOCALIZED,), **options).run()
    return replace(judged, best=next(one for one in judged.candidates if one.name == name)).plan()


@pytest.mark.parametrize("name", ["dp", "zero-3", "tp"])
def test_why_searches_within_the_experts_plan_that_was_taken(name):
    text = jax.jit(step, donate_argnums=0).lower(*shapes_of(batch=128)).as_text(debug_info=True).encode()
    plan = chosen(name, text)
    assert plan.compared.best.seed == name

    def read():
        return read_module(text, "step.mlir", make_context())

    found = again(read(), plan).plan
    assert [one.dims for one in found.arguments] == [one.dims for one in plan.arguments]
    assert found.predicted.step_s == pytest.approx(plan.predicted.step_s)
    weight = plan.arguments[2].path
    words = why_text(read(), plan, weight)
    assert words.endswith(f"the expert's plan {name}: arguments lie as that says, the rest was searched for")
    other = why_not_text(read(), plan, f"{weight}=[{{x}}, {{}}]" if name != "zero-3" else f"{weight}=[{{}}, {{}}]")
    assert weight in other
    assert "cannot be" not in other


def test_why_searches_within_what_a_plan_was_found_within():
    judged = comparer(FakeCompiler(peaks=(1 << 20, 1 << 10)), budget=700_000, memory_only=True).run()
    plan = judged.plan()
    assert plan.predicted.budget_bytes == 700_000 > plan.compared.best.within_bytes
    found = again(read_module(TEXT, "step.mlir", make_context()), plan).plan
    assert [one.dims for one in found.arguments] == [one.dims for one in plan.arguments]
    assert found.predicted.step_s == pytest.approx(plan.predicted.step_s)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_interruption_leaves_the_best_of_what_was_compiled(after):
    started = []

    def interrupt(name):
        if len(started) == after:
            raise KeyboardInterrupt
        started.append(name)

    one = comparer(FakeCompiler())
    one.on_compile = interrupt
    if after:
        judged = one.run()
        assert judged.is_interrupted
        assert judged.best in judged.candidates
        assert len(judged.candidates) == after
    else:
        with pytest.raises(KeyboardInterrupt):
            one.run()
