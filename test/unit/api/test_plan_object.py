"""A plan is a file that says what it is of, runs elsewhere as it did here, and is refused where that has changed."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import front_part
import gpt
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from training import abstract_state, make_step

import rhino
from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.plan_json import digest_of, plan_data, plan_of, plan_text
from rhino.passes.planner.explain import explain_text
from rhino.tools.plan import run

ARGUMENTS = (jax.eval_shape(front_part.init, jax.random.key(0)), front_part.host_batch(0), jax.random.key(0))


def planned(fn: Any = front_part.step, **options: Any) -> rhino.Plan:
    return rhino.parallelize(fn, **{"cluster": "cpu8", "donate_argnums": 0, **options}).plan(*ARGUMENTS)


@pytest.fixture(scope="module")
def plan() -> rhino.Plan:
    return planned()


def test_a_saved_plan_is_the_plan(plan: rhino.Plan, tmp_path: Path):
    plan.save(tmp_path / "new" / "plan.json")
    assert rhino.Plan.load(tmp_path / "new" / "plan.json") == plan
    assert text_of(plan_in(text_of(plan))) == text_of(plan)
    assert planned() == plan
    with pytest.raises(RhinoError, match="RHI-PLAN-003"):
        plan.save(tmp_path)


AGAIN = """
import os, sys
from rhino.runtime.executor.devices import request_host_devices
request_host_devices(8, os.environ)
import jax, numpy as np, rhino, front_part
from rhino.passes.sharding.choose_shardings import ChooseShardings
ChooseShardings.run = None  # nothing is searched
fast = rhino.parallelize(front_part.step, donate_argnums=0, plan=rhino.Plan.load(sys.argv[1]))
key = jax.random.key(0)
plan = fast.plan(jax.eval_shape(front_part.init, key), front_part.host_batch(0), key)
state, loss = fast(front_part.init(key), front_part.host_batch(0), key)
assert state["up"].sharding == plan.in_shardings[0]["up"]
plan.save(sys.argv[2])
np.savez(sys.argv[3], loss=loss, **state)
"""


def test_a_loaded_plan_runs_the_same_in_another_process(plan: rhino.Plan, tmp_path: Path):
    plan.save(tmp_path / "a.json")
    files = [str(tmp_path / name) for name in ("a.json", "b.json", "out.npz")]
    folder = str(Path(front_part.__file__).parent)
    subprocess.run([sys.executable, "-c", AGAIN, *files], check=True, cwd=folder, timeout=120)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    state, loss = rhino.parallelize(front_part.step, cluster="cpu8")(front_part.init(ARGUMENTS[2]), *ARGUMENTS[1:])
    out = np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(out["loss"], loss, rtol=1e-6)
    for name, array in state.items():
        np.testing.assert_allclose(out[name], array, rtol=1e-5, atol=1e-6)


def deeper(state: Any, batch: Any, key: Any) -> Any:
    return front_part.step(state, jnp.tanh(batch), key)


def other_constant(state: Any, batch: Any, key: Any) -> Any:
    new, loss = front_part.step(state, batch * 2.0, key)
    return new, loss


def with_more(state: Any, batch: Any, key: Any) -> Any:
    return front_part.step({name: state[name] for name in ("up", "down")}, batch, key)


STALE = {
    "op": (deeper, ARGUMENTS, {}, r"stablehlo\.tanh was 1 times, and is 2 times"),
    "shape": (
        front_part.step,
        (ARGUMENTS[0], ARGUMENTS[1][:8], ARGUMENTS[2]),
        {},
        r"argument batch was float32\[512,32\], and is float32\[8,32\]",
    ),
    "argument": (
        with_more,
        ({**ARGUMENTS[0], "bias": jax.ShapeDtypeStruct((3,), jnp.float32)}, *ARGUMENTS[1:]),
        {},
        r"argument state\['bias'\] \(float32\[3\]\) is new",
    ),
    "cluster": (front_part.step, ARGUMENTS, {"cluster": "cpu4"}, r"another cluster.*\+name = \"cpu4\""),
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_plan_is_refused_and_says_what_has_changed(plan: rhino.Plan, case: str):
    fn, arguments, options, words = STALE[case]
    with pytest.raises(RhinoError, match=rf"(?s)RHI-PLAN-004.*{words}"):
        rhino.parallelize(fn, donate_argnums=0, plan=plan, **options).plan(*arguments)


def test_a_changed_constant_is_a_change():
    plan = rhino.parallelize(lambda x: x * 2.0, cluster="cpu8").plan(jnp.ones(8))
    with pytest.raises(RhinoError, match=r"(?s)RHI-PLAN-004.*constants, or how ops follow"):
        rhino.parallelize(lambda x: x * 3.0, plan=plan).plan(jnp.ones(8))


def test_where_state_lies_is_known_once_a_function_with_a_plan_is_traced(plan: rhino.Plan):
    fast = rhino.parallelize(front_part.step, plan=plan, donate_argnums=0)
    with pytest.raises(RhinoError, match=r"RHI-JAX-006.*step has a plan, but is not traced yet") as refused:
        fast.init(front_part.init, ARGUMENTS[2])
    assert refused.value.fix == (
        "trace it first, which searches nothing: step.plan(jax.eval_shape(init_fn, key), batch)"
    )
    fast.plan(*ARGUMENTS)
    fast.init(front_part.init, ARGUMENTS[2])


def test_a_plan_leaves_nothing_else_to_be_said(plan: rhino.Plan):
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*pins and plan exclude each other"):
        rhino.parallelize(front_part.step, plan=plan, pins=["up=[{}, {x}]"])
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*mesh and plan exclude each other"):
        rhino.parallelize(front_part.step, plan=plan, mesh="2x4")
    for name in ("jobs", "level"):
        with pytest.raises(
            RhinoError, match=rf"RHI-JAX-002.*{name} and plan exclude each other: with a plan, nothing is"
        ):
            rhino.parallelize(front_part.step, plan=plan, **{name: 2})
    rhino.parallelize(front_part.step, plan=plan, mesh="8", donate_argnums=0).plan(*ARGUMENTS)
    loaded = replace(plan, trees=None)
    with pytest.raises(RhinoError, match=r"(?s)RHI-JAX-006.*plan=plan"):
        _ = loaded.in_shardings
    assert loaded.partition_specs() == plan.partition_specs()


def text_of(plan: rhino.Plan) -> str:
    return plan_text(plan.facts, {})


def forged(text: str, **changes: Any) -> str:
    """The text of a plan with other entries, and a hash that fits."""
    data = {**json.loads(text), **changes}
    del data["sha256"]
    return json.dumps({**data, "sha256": digest_of(json.dumps(data).encode())})


def plan_in(text: str) -> rhino.Plan:
    return rhino.Plan(plan_of(plan_data(text, "plan.json"), None, {}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "rhino"}, "its format is not"),
        ({"format": "rhino-spmd-plan"}, "an older Rhino wrote it"),
        ({"version": 2}, "an older Rhino wrote it"),
        ({"version": 99}, "of version 99"),
        ({"arguments": 3}, "malformed"),
        ({"predicted": {}}, "malformed"),
    ],
)
def test_what_is_no_plan_is_refused_when_it_is_read(
    plan: rhino.Plan, tmp_path: Path, changes: dict[str, Any], words: str
):
    (tmp_path / "plan.json").write_text(forged(text_of(plan), **changes))
    with pytest.raises(RhinoError, match=rf"RHI-PLAN-001.*{words}"):
        rhino.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("annotations", "ops", "words"),
    [
        (["{}"], "3x0", "are of 3 ops"),
        ([], "{count}x0", "annotation 0 of 0"),
        (["{sdy.sharding = }"], "{count}x0", "is no annotation"),
        (['{evil = "x"}'], "{count}x0", "is no annotation"),
    ],
)
def test_what_is_no_annotation_is_refused_when_it_is_used(
    plan: rhino.Plan, annotations: list[str], ops: str, words: str
):
    count = str(len(plan.facts.sharding.annotations.ops))
    sharding = {**json.loads(text_of(plan))["sharding"], "annotations": annotations}
    other = plan_in(forged(text_of(plan), sharding={**sharding, "annotation_of_op": ops.replace("{count}", count)}))
    with pytest.raises(RhinoError, match=rf"RHI-PLAN-001.*{words}"):
        rhino.parallelize(front_part.step, donate_argnums=0, plan=other).plan(*ARGUMENTS)


def test_axes_that_the_mesh_has_not_are_refused(plan: rhino.Plan, tmp_path: Path):
    """Those of tensors when the plan is read, those of ops when it is used."""
    data = json.loads(text_of(plan))
    (tmp_path / "plan.json").write_text(forged(text_of(plan).replace('"x"', '"q"'), mesh=data["mesh"]))
    with pytest.raises(RhinoError, match=r"RHI-PLAN-001.*malformed.*split along \['q'\], and the mesh is x=8"):
        rhino.Plan.load(tmp_path / "plan.json")
    sharding = json.loads(json.dumps(data["sharding"]).replace('\\"x\\"', '\\"q\\"'))
    other = plan_in(forged(text_of(plan), sharding=sharding))
    with pytest.raises(RhinoError, match=r"(?s)\.py:\d+.*unknown axis name: \"q\"") as refused:
        rhino.parallelize(front_part.step, donate_argnums=0, plan=other).plan(*ARGUMENTS)
    assert refused.value.id == "RHI-PLAN-001"
    assert "save the new plan" in refused.value.fix


ODD: dict[str, tuple[Callable[[Any], object], str]] = {
    "name": (lambda plan: plan.why(3), "RHI-JAX-002.*name is an int, no text: 3"),
    "pin": (lambda plan: plan.why_not(3), "RHI-JAX-002.*pin is an int, no text: 3"),
    "other": (lambda plan: plan.diff("x"), r"(?s)RHI-JAX-002.*the other plan is a str: 'x'.*Plan\.load"),
    "loaded": (lambda plan: rhino.Plan.load(cast("str", 3)), "RHI-JAX-002.*path is an int, no path: 3"),
    "page": (lambda plan: plan.report("/nope/x.html", reasons=False), "(?s)RHI-CLI-003.*to fix: name a file"),
    "saved": (lambda plan: plan.save("/dev/null/x.json"), "(?s)RHI-PLAN-003.*to fix: name a place"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_asked_of_a_plan_has_to_be_of_its_kind(plan: rhino.Plan, case: str):
    ask, words = ODD[case]
    with pytest.raises(RhinoError, match=words):
        ask(plan)


def test_files_that_are_not_there_or_not_json_are_refused(tmp_path: Path):
    with pytest.raises(RhinoError, match=r"RHI-PLAN-001.*nothing is there"):
        rhino.Plan.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(RhinoError, match=r"RHI-PLAN-001.*no JSON"):
        rhino.Plan.load(tmp_path / "bad.json")


def test_diff_says_what_lies_otherwise_and_what_that_costs(plan: rhino.Plan):
    other = planned(pins={"up": PartitionSpec("x"), "down": PartitionSpec()})
    text = plan.diff(other)
    assert "pin: not asked -> " in text
    moved = [
        one.path for one, new in zip(plan.facts.arguments, other.facts.arguments, strict=True) if one.dims != new.dims
    ]
    assert moved
    assert all(f"argument {path}: " in text for path in moved)
    slower = other.facts.predicted.step_s - plan.facts.predicted.step_s
    assert slower > 0
    assert any(line.startswith("step: ") and "(+" in line for line in text.splitlines())
    assert plan.diff(plan) == ""
    sharding = replace(plan.facts.sharding, communication_s=plan.facts.sharding.communication_s * (1 + 1e-12))
    assert plan.diff(replace(plan, facts=replace(plan.facts, sharding=sharding))) == ""


def test_numbers_stand_for_others_only_where_there_are_several():
    """Of one layer that lies otherwise, and is sent, the name says which; of two that are alike it says [*]."""

    def layers(params: list[Any], x: Any) -> Any:
        for number, w in enumerate(params):
            with jax.named_scope(f"layer{number}"):
                x = jnp.tanh(x @ w)
        return x

    def plan_with(*pins: str, last: str = "params[2]=[{}, {}]") -> rhino.Plan:
        pins = ("x=[{}, {}]", "params[0]=[{}, {}]", last, "params[3]=[{}, {}]", "result:0=[{}, {}]", *pins)
        return rhino.parallelize(layers, cluster="cpu8", mesh="8", pins=pins).plan([jnp.ones((256, 256))] * 4, x)

    x, pin = jnp.ones((256, 256)), "params[{}]=[{{x}}, {{}}]"
    free, one, two = plan_with(), plan_with(pin.format(1)), plan_with(pin.format(1), last=pin.format(2))
    for text in (free.diff(one), free.why_not(pin.format(1))):
        changed = [line for line in text.splitlines() if line.startswith("argument params")]
        assert [line.split(":")[0] for line in changed] == ["argument params[1]"]
        assert "params[*]" not in text
        assert "layer1" in text
        assert "layer[*]" not in text
    assert "argument params[*]: " in free.diff(two)
    assert "layer[*]" in free.diff(two)
    assert "params[1]" in one.explain()


def called(*argv: str) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return run(argv, io.BytesIO(), stdout, stderr), stdout.getvalue(), stderr.getvalue()


def test_the_command_explains_and_compares(plan: rhino.Plan, tmp_path: Path):
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    plan.save(a)
    other = planned(pins={"up": PartitionSpec("x")})
    other.save(b)
    assert called("explain", a) == (0, plan.explain() + "\n", "")
    assert called("explain", a, "--rows=1")[1] == plan.explain(1) + "\n"
    assert called("diff", a, b) == (0, plan.diff(other) + "\n", "")
    assert called("diff", a, a) == (0, "the plans are the same\n", "")
    assert called("diff", a)[0] == 2
    assert called("explain", str(tmp_path))[0] == 1
    assert called("--help")[0] == 0


def test_explain_counts_what_the_program_sends(plan: rhino.Plan):
    """The collectives listed are those that XLA compiles, which joins sums."""
    lowered = rhino.parallelize(front_part.step, plan=plan, donate_argnums=0).lower(*ARGUMENTS)
    from rhino.ir.hlo.collectives import hlo_stats  # noqa: PLC0415
    from rhino.passes.planner.plan_rows import stats_of  # noqa: PLC0415

    listed = stats_of(plan.facts.sharding.costs).counts
    compiled = hlo_stats(lowered.compile().as_text()).counts
    assert listed
    assert {kind: one.num_bytes for kind, one in listed.items()} == {
        kind: one.num_bytes for kind, one in compiled.items()
    }
    assert all(compiled[kind].num == (1 if kind == "all_reduce" else one.num) for kind, one in listed.items())


def test_an_op_of_many_operands_makes_no_row_wide(plan: rhino.Plan):
    first, *others = plan.facts.sharding.works
    wide = replace(first, how=", ".join(['[{"x"}, {}, {}]'] * 40))
    facts = replace(plan.facts, sharding=replace(plan.facts.sharding, works=(wide, *others)))
    narrow = max(map(len, explain_text(plan.facts).splitlines()))
    assert max(map(len, explain_text(facts).splitlines())) < narrow + 90


def test_the_plan_of_a_deep_model_is_small():
    """Rows grow with layers; 72 of them with all of Adam's state stay far below a megabyte."""
    sizes = []
    for layers in (2, 4):
        model = gpt.model(gpt.GPTConfig(layers=layers, hidden=64, heads=8, ffn=128, vocab=128, seq=32, batch=8))
        found = rhino.parallelize(make_step(model), cluster="v100x8", donate_argnums=0).plan(
            abstract_state(model), model.batch
        )
        sizes.append(len(text_of(found)))
        if layers == 4:
            assert "[*]" in found.explain()
    assert sizes[0] + 35 * (sizes[1] - sizes[0]) < 700_000


@pytest.mark.parametrize("given", [{}, {"stages": 2, "micro_batches": 2}])
def test_a_plan_shows_itself_in_five_lines_and_in_a_notebook_as_its_page(given):
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w[0]) @ w[1]).sum())(w)

    plan = rhino.parallelize(step, cluster="cpu4", **given).plan(jnp.ones((2, 64, 64)), jnp.ones((8, 64)))
    lines = repr(plan).splitlines()
    assert len(lines) == 5
    assert max(map(len, lines)) < 240
    assert "arguments" in lines[-1]
    assert plan._repr_html_().startswith("<iframe srcdoc=")


def test_a_plan_has_the_options_of_its_clusters_compiler_and_runs_on_hosts_without_them():
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    w, x = jnp.ones((8, 8)), jnp.ones((16, 8))
    fast = rhino.parallelize(step, cluster="v6e-8")
    options = fast.plan(w, x).compile_options
    assert options == dict(load_cluster("v6e-8").device.compile_options) != {}
    assert jnp.allclose(fast(w, x), step(w, x))
    assert rhino.parallelize(step, cluster="cpu8").plan(w, x).compile_options == {}


@pytest.mark.parametrize("stages", [1, 2])
def test_every_program_is_compiled_with_the_options_of_its_cluster(tmp_path, stages):
    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            return (jnp.tanh(rhino.stage_boundary(x @ w[0])) @ w[1]).sum() if stages > 1 else (x @ w[0] @ w[1]).sum()

        return w - 0.1 * jax.grad(loss)(w)

    def with_options(**options: bool) -> rhino.Parallelized:
        cluster = load_cluster("cpu4")
        device = replace(cluster.device, compile_options=tuple(options.items()))
        file = tmp_path / "own.toml"
        file.write_text(cluster_to_text(replace(cluster, device=device)))
        more = {"stages": 2, "micro_batches": 2} if stages > 1 else {}
        return rhino.parallelize(step, cluster=str(file), **more)

    w, x = jnp.ones((2, 8, 8)), jnp.ones((16, 8))
    known = with_options(xla_cpu_enable_fast_min_max=True)
    assert jnp.allclose(known(w, x), step(w, x))
    with pytest.raises((RhinoError, jax.errors.JaxRuntimeError), match="xla_no_such_option"):
        with_options(xla_no_such_option=True)(w, x)
