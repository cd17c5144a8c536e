"""A training step on replicas that take unequal numbers of micro-batches gives the answer of one device."""

import io
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batched_steps import MEMORY, STEPS, text
from clusters import of_two_kinds
from long_cases import one_in
from pipelines import Setting, difference, plan, run
from planning import reference
from traffic import splitting_cluster

import rhino
from rhino.ir.plan.files import load_plan
from rhino.ir.plan.instructions import Feed, Run
from rhino.tools import opt
from rhino.tools import plan as plan_tool
from rhino.tools import run as run_tool

NUM_STEPS = 3
TOLERANCE = 1e-6

CASES = {name: STEPS[name] for name in ("clipped", "several-losses", "ranked", "dropped", "adam", "sideways", "keyed")}


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster on which it pays to split the tiniest tensor, and to send little."""
    file: Path = tmp_path_factory.mktemp("cluster") / "splitting.toml"
    file.write_text(splitting_cluster(1e13, 1e8), encoding="utf-8")
    return str(file)


def planned(step: bytes, replicas: str, num: int, mesh: str, cluster: str = "cpu8"):
    return plan(step, "step", Setting(1, num, "1f1b", mesh, cluster, more=(("replicas", replicas),)))


def is_equal(step: bytes, made, *, is_joined: bool = False) -> bool:
    expected = reference(step, "step", NUM_STEPS)
    steps = run(made, expected.inputs, NUM_STEPS, is_joined=is_joined)
    return difference(made, steps, expected, "step", TOLERANCE).passes


@pytest.mark.parametrize("name", one_in(2, [*CASES, "remembered"]))
def test_shares_of_drawn_sizes_give_the_answer_of_one_device(name: str, splitting: str):
    """Sums, extremes, rows of examples, random bits, state for each example; updates in place; one device and more."""
    step = text(CASES.get(name, MEMORY))
    random = np.random.default_rng(len(name))
    count = int(random.integers(2, 4))
    cuts = np.sort(random.choice(np.arange(1, 8), count - 1, replace=False))
    shares = ";".join(map(str, np.diff([0, *cuts, 8])))
    made = planned(step, shares, 8, "1")
    assert ";".join(map(str, made.plan.shares)) == shares
    assert is_equal(step, made)
    assert is_equal(step, planned(step, "3;1", 4, "2", splitting), is_joined=True)


def optimize(path: Path, *options: str) -> tuple[int, str]:
    """Exit code and stderr of the planning command."""
    stderr = io.StringIO()
    words = ["--auto-parallel", "--mesh=2", "--micro-batches=8", "--cluster=cpu4", *options, str(path / "step.mlir")]
    return opt.run(words, io.BytesIO(), io.BytesIO(), stderr), stderr.getvalue()


def test_a_plan_that_was_kept_gives_the_answer_in_one_process_and_in_two(tmp_path: Path):
    (tmp_path / "step.mlir").write_bytes(text(CASES["dropped"]))
    code, err = optimize(tmp_path, "--replicas=5;3", f"--plan={tmp_path / 'plan'}")
    assert (code, err.splitlines()[0].partition(":")[0]) == (0, "2 replicas of mesh x=2, 8 micro-batches"), err
    kept = load_plan(tmp_path / "plan")
    assert (kept.shares, kept.num_stages, kept.schedule, kept.is_one_stage) == ((5, 3), 1, "", False)
    step = kept.execution.step
    tasks = [one.task for one in step.instructions if isinstance(one, Run) and one.task.phase == "accumulate"]
    assert [task.stage for task in tasks] == [0, 1]
    fed = [(one.argument, step.slots[one.target].rank) for one in step.instructions if isinstance(one, Feed)]
    batch = [number for number, one in enumerate(kept.arguments) if one.alias is None]
    assert [ranks for number in batch if (ranks := [r for n, r in fed if n == number])] == [[0, 1], [0, 1]]
    err = io.StringIO()
    words = ["explain", str(tmp_path / "plan"), f"--module={tmp_path / 'step.mlir'}", "--why=p.up"]
    assert plan_tool.run(words, io.BytesIO(), io.StringIO(), err) == 0, err.getvalue()
    for more in ((), ("--processes=2",)):
        out, err = io.StringIO(), io.StringIO()
        words = [str(tmp_path / "plan"), f"--compare={tmp_path / 'step.mlir'}", "--steps=3", *more]
        assert run_tool.run(words, io.BytesIO(), out, err) == 0, err.getvalue()


def test_an_uneven_cluster_gets_shares_by_speed_where_they_are_best(tmp_path: Path):
    """Two groups of two devices, the first three times as fast: the search takes replicas, asked for and unasked."""

    def wide(w, x):
        return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 512), (4096, 512))]
    (tmp_path / "step.mlir").write_bytes(text((wide, *shapes)))
    for asked in ([], ["--replicas=2"]):
        stderr = io.StringIO()
        words = ["--auto-parallel", f"--cluster={of_two_kinds('cpu2', 3)}", f"--plan={tmp_path / 'plan'}", *asked]
        words += ["--jobs=1", "--strategy=tap", str(tmp_path / "step.mlir")]
        assert opt.run(words, io.BytesIO(), io.BytesIO(), stderr) == 0, stderr.getvalue()
        found = load_plan(tmp_path / "plan")
        assert len(found.shares) == 2, stderr.getvalue()
        assert found.shares[0] / sum(found.shares) == pytest.approx(0.75, abs=0.1)


def test_what_cannot_be_shared_is_refused(tmp_path: Path):
    (tmp_path / "step.mlir").write_bytes(text(CASES["dropped"]))
    for options, code, words in (
        (["--replicas=5;4"], 2, "RHI-REPLICA-001"),
        (["--replicas=1"], 2, "RHI-REPLICA-001"),
        (["--replicas=2", "--stages=2"], 2, "RHI-CLI-001"),
        (["--replicas=8"], 1, "RHI-MESH-001"),
    ):
        found, err = optimize(tmp_path, *options, f"--plan={tmp_path / 'plan'}")
        assert (found, words in err) == (code, True), err


def test_a_parallelized_function_runs_on_replicas_and_keeps_its_plan(tmp_path: Path):
    function, given, _ = CASES["adam"]
    state = jax.tree.map(np.asarray, given)  # of the host, so that a step cannot take it
    batch = {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6), "y": np.ones((8, 4), np.float32)}
    fast = rhino.parallelize(function, cluster="cpu4", mesh="2", replicas="5;3", donate_argnums=0, verify=True)
    mine, theirs = state, state
    for _ in range(NUM_STEPS):
        mine, loss = fast(mine, batch)
        theirs, wanted = jax.jit(function)(theirs, batch)
    np.testing.assert_allclose(loss, wanted, rtol=TOLERANCE)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mine, theirs)
    assert fast.plan(state, batch).facts.request.micro_batches == 8, "nothing was open"
    fast.plan(state, batch).save(tmp_path / "plan")
    again = rhino.parallelize(function, plan=rhino.Plan.load(tmp_path / "plan"), donate_argnums=0)
    jax.tree.map(np.testing.assert_array_equal, again(state, batch), fast(state, batch))
