"""A training step in stages on ranks of unlike meshes gives the answer of one device.

More steps, meshes and schedules: `bench/correctness.py ranks`.
"""

import io
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scanned_steps
from batched_steps import STEPS, text
from models import step_text
from pipelines import Setting, difference, plan, run
from planning import reference
from traffic import splitting_cluster

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.files import load_plan
from rhino.ir.plan.instructions import Transfer
from rhino.tools import opt
from rhino.tools import plan as plan_tool
from rhino.tools import run as run_tool

NUM_STEPS = 2


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster on which it pays to split the tiniest tensor, and to send little."""
    file: Path = tmp_path_factory.mktemp("cluster") / "splitting.toml"
    file.write_text(splitting_cluster(1e13, 1e8), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("name", "mesh", "num", "schedule", "more"),
    [
        ("dropped", "4;2;2", 4, "1f1b", {}),
        ("adam", "5;1;2", 4, "gpipe", {"remat": "0.5"}),
        pytest.param("keyed", "2x2;1;3", 2, "zero-bubble", {}, marks=pytest.mark.long),
        pytest.param("clipped layers", "4;2", 4, "eager-1f1b", {}, marks=pytest.mark.long),
        # Here a partial sum would cross.
        pytest.param("llama", "2;4;2", 2, "1f1b", {"axis-role": "x=model"}, marks=pytest.mark.long),
    ],
)
def test_ranks_of_unlike_meshes_give_the_answer_of_one_device(
    splitting: str, name: str, mesh: str, num: int, schedule: str, more: dict[str, str]
):
    """Random bits, keys, tied weights, recomputed activations, layers in a loop; state is taken over in place."""
    if name == "llama":
        step = step_text(name)
    else:
        scan = name.removesuffix(" layers")
        step = text(STEPS[name]) if scan == name else scanned_steps.text(scanned_steps.STEPS[scan])
    made = plan(step, name, Setting(mesh.count(";") + 1, num, schedule, mesh, splitting, more=tuple(more.items())))
    assert [str(one) for one in made.plan.meshes] == [
        ",".join(f"{axis}={size}" for axis, size in zip("xy", one.split("x"), strict=False)) for one in mesh.split(";")
    ]
    sizes = [one.num_devices for one in made.plan.meshes]
    slots = made.execution.step.slots
    moves = [one for one in made.execution.step.instructions if isinstance(one, Transfer)]
    assert any(sizes[slots[one.source].rank] != sizes[slots[one.target].rank] for one in moves)
    expected = reference(step, name, NUM_STEPS)
    assert difference(made, run(made, expected.inputs, NUM_STEPS), expected, name).passes


def test_more_devices_get_more_of_the_work(tmp_path: Path):
    """Of layers in a loop, four devices take more than one does among three."""
    layers, cluster = scanned_steps.text(scanned_steps.STEPS["plain"]), tmp_path / "splitting.toml"
    cluster.write_text(splitting_cluster(), encoding="utf-8")
    alike, unlike = (
        plan(layers, "plain", Setting(3, 4, "1f1b", mesh, str(cluster))).plan.arguments for mesh in ("1", "4;1;1")
    )
    rows = [sum(one.rows[1] - one.rows[0] for one in side if one.rows and one.rank == 0) for side in (alike, unlike)]
    assert rows[1] > rows[0]


def optimize(path: Path, *options: str) -> tuple[int, str]:
    """Exit code and stderr of the planning command."""
    stderr = io.StringIO()
    words = ["--auto-parallel", "--micro-batches=4", "--cluster=cpu8", *options, str(path / "step.mlir")]
    return opt.run(words, io.BytesIO(), io.BytesIO(), stderr), stderr.getvalue()


@pytest.mark.long
def test_a_plan_that_was_kept_gives_the_answer_in_one_process_and_in_three(tmp_path: Path):
    (tmp_path / "step.mlir").write_bytes(text(STEPS["adam"]))
    for name, words in (("plan", ("--stages=4+2+2",)), ("again", ("--stages=3", "--mesh=4;2;2"))):
        code, err = optimize(tmp_path, *words, f"--plan={tmp_path / name}")
        assert code == 0, err
        assert err.startswith("3 stages on 3 ranks of meshes x=4; x=2; x=2, 4 micro-batches, 1f1b"), err
    assert (tmp_path / "plan" / "step.json").read_bytes() == (tmp_path / "again" / "step.json").read_bytes()
    assert load_plan(tmp_path / "plan").num_devices == 8
    trace = tmp_path / "trace.json"
    for more in ((), ("--processes=3", f"--trace={trace}")):
        out, err = io.StringIO(), io.StringIO()
        words = [str(tmp_path / "plan"), f"--compare={tmp_path / 'step.mlir'}", "--steps=3", *more]
        assert run_tool.run(words, io.BytesIO(), out, err) == 0, err.getvalue()
        assert "the results agree with the one-device program" in out.getvalue()
    names = {event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]}
    assert any("transfer" in name for name in names)
    kept, module = str(tmp_path / "plan"), f"--module={tmp_path / 'step.mlir'}"
    for words, code in (
        (["explain", kept], 0),
        (["explain", kept, module, "--why=plan"], 0),
        (["explain", kept, module, "--why=dot_general"], 2),
        (["report", kept, module, f"-o{tmp_path / 'page.html'}"], 0),
        (["diff", kept, str(tmp_path / "again")], 0),
    ):
        out, err = io.StringIO(), io.StringIO()
        assert plan_tool.run(words, io.BytesIO(), out, err) == code, err.getvalue()
        assert ("RHI-STAGE-007" in err.getvalue()) == (code == 2)


def test_ranks_whose_meshes_are_alike_are_planned_as_ranks_of_one_mesh(tmp_path: Path):
    (tmp_path / "step.mlir").write_bytes(text(STEPS["mean-loss"]))
    for name, mesh in (("one", "2"), ("each", "2;2")):
        assert optimize(tmp_path, "--stages=2", f"--mesh={mesh}", f"--plan={tmp_path / name}")[0] == 0
    assert (tmp_path / "one" / "step.json").read_bytes() == (tmp_path / "each" / "step.json").read_bytes()
    code, err = optimize(tmp_path, "--mesh=2;2", "--jobs=1", "--candidates=1", f"--plan={tmp_path / 'asked'}")
    assert (code, err.partition(",")[0]) == (0, "2 stages of 2"), err


@pytest.mark.parametrize(
    ("options", "what", "code"),
    [
        (("--stages=3", "--mesh=4;4;4"), "RHI-MESH-001] ranks of 4, 4, 4 devices have 12", 1),
        (("--stages=3", "--mesh=4;2"), "RHI-STAGE-001] the devices or meshes of 2 ranks were given, and schedule", 1),
        (("--stages=4+2+2", "--mesh=2"), "RHI-CLI-001] stages of 4+2+2 devices", 2),
        (("--stages=4+0",), "RHI-CLI-001] stages: got '4+0'", 2),
        (("--replicas=2", "--mesh=4;2"), "RHI-STAGE-007] replicas run the same programs", 2),
        (("--mesh=4;2", "--offload"), "RHI-STAGE-007] ranks of unlike meshes are asked for", 2),
        (("--mesh=4;4;2",), "RHI-MESH-001] ranks of 4, 4, 2 devices have 10", 1),
    ],
)
def test_what_cannot_be_planned_is_refused(tmp_path: Path, options: tuple[str, ...], what: str, code: int):
    (tmp_path / "step.mlir").write_bytes(text(STEPS["mean-loss"]))
    got, err = optimize(tmp_path, *options)
    assert (got, what in err) == (code, True), err


@pytest.mark.parametrize(
    "asked", [pytest.param(("--stages=4+2+2",), marks=pytest.mark.long), ("--mesh=4;2;2", "--schedule=gpipe")]
)
def test_micro_batches_and_the_schedule_of_unlike_ranks_are_searched_for(tmp_path: Path, asked: tuple[str, ...]):
    (tmp_path / "step.mlir").write_bytes(text(STEPS["adam"]))
    err, report = io.StringIO(), tmp_path / "report.json"
    words = ["--auto-parallel", "--cluster=cpu8", *asked, f"--plan={tmp_path / 'plan'}", f"--plan-json={report}"]
    assert opt.run([*words, str(tmp_path / "step.mlir")], io.BytesIO(), io.BytesIO(), err) == 0, err.getvalue()
    found, said = load_plan(tmp_path / "plan"), json.loads(report.read_text())
    assert [mesh.num_devices for mesh in found.meshes] == [4, 2, 2]
    assert said["plan"]["meshes"] == [[4], [2], [2]]
    assert said["plan"]["micro_batches"] == found.num_micro_batches > 1
    assert len(said["estimated_peak_bytes"]) == 3
    assert all(one["meshes"] == [[4], [2], [2]] for one in said["alternatives"])
    assert said["bound_s"] <= min(one["bound_s"] for one in said["alternatives"])


def test_a_function_of_typed_keys_trains_on_unlike_ranks():
    """Words of keys stay whole on every mesh; the state is given away, and lies on the ranks' own meshes."""

    def step(state, batch):
        key, own = jax.random.split(state["key"])

        def loss(weights):
            hidden = jnp.tanh(batch @ weights[0])
            kept = hidden * jax.random.bernoulli(own, 0.9, hidden.shape)
            return ((jnp.tanh(kept @ weights[1]) @ weights[0].T - batch) ** 2).mean()  # a tied weight

        value, grads = jax.value_and_grad(loss)(state["weights"])
        return {"weights": jax.tree.map(lambda w, g: w - 0.1 * g, state["weights"], grads), "key": key}, value

    def init():
        drawn = np.random.default_rng(0).standard_normal((2, 16, 16), dtype=np.float32)
        return {"weights": list(drawn / 4), "key": jax.random.key(1)}

    batch = np.random.default_rng(1).standard_normal((8, 16), dtype=np.float32)
    fast = rhino.parallelize(step, cluster="cpu8", stages="4+2", micro_batches=2, donate_argnums=0)
    alone, state, expected = jax.jit(step), init(), init()
    for _ in range(NUM_STEPS):
        (state, value), (expected, wanted) = fast(state, batch), alone(expected, batch)
        assert float(value) == pytest.approx(float(wanted), rel=1e-6)
    for one, other in zip(state["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)
    assert (jax.random.key_data(state["key"]) == jax.random.key_data(expected["key"])).all()
    made = fast.plan(init(), batch)
    assert [mesh.size for mesh in made.meshes] == [4, 2]
    with pytest.raises(RhinoError, match="RHI-JAX-009"):
        _ = made.axes


@pytest.mark.long
def test_stages_recompute_what_their_budget_asks_for():
    """What a stage recomputes is put in after shardings were chosen, and lies on its own mesh."""
    budget = (("budget", "250KiB"),)
    made = plan(step_text("gpt"), "gpt", Setting(3, 4, "1f1b", "4;2;2", "cpu8", remat="auto", more=budget))
    without = plan(step_text("gpt"), "gpt", Setting(3, 4, "1f1b", "4;2;2", "cpu8"))
    assert made.execution.modules != without.execution.modules
    expected = reference(step_text("gpt"), "gpt", NUM_STEPS)
    assert difference(made, run(made, expected.inputs, NUM_STEPS), expected, "gpt").passes
