"""Micro-batches, rematerialization, stages and autotuning behind the same call.

The answer is that of one device, and state is where its rank is.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.plan import Request, dims_text
from rhino.ir.units import peak_text
from rhino.passes.pipeline.pipeline_stages import PipelineStages

LAYERS, WIDTH, ROWS = 4, 32, 16
Shape = jax.ShapeDtypeStruct


def init(key: jax.Array) -> dict[str, Any]:
    params = {
        f"w{number}": jax.random.normal(one, (WIDTH, WIDTH)) / 6
        for number, one in enumerate(jax.random.split(key, LAYERS))
    }
    return {
        "params": params,
        "mean": jax.tree.map(jnp.zeros_like, params),
        "count": jnp.zeros((), jnp.int32),
        "key": jax.random.fold_in(key, 1),
    }


def step_cut(*behind: int) -> Any:
    """A step of residual layers with momentum and dropout, cut behind some of its layers."""

    def step(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        own, key = jax.random.split(state["key"])

        def loss(params: dict[str, jax.Array]) -> jax.Array:
            h = batch
            for number in range(LAYERS):
                h = h + jnp.tanh(h @ params[f"w{number}"])
                h = rhino.stage_boundary(h) if number in behind else h
            return ((h * jax.random.bernoulli(own, 0.9, h.shape) - 2 * batch) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(state["params"])
        mean = jax.tree.map(lambda m, g: 0.9 * m + g, state["mean"], grads)
        params = jax.tree.map(lambda w, m: w - 0.1 * m, state["params"], mean)
        return {"params": params, "mean": mean, "count": state["count"] + 1, "key": key}, value

    return step


step = step_cut()


def batch_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(ROWS, WIDTH)).astype(np.float32)


KEY = jax.random.key(0)
SHAPES = (jax.eval_shape(init, KEY), batch_of(0))


def plain(leaf: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)


def same(got: Any, expected: Any, relative: float = 2e-5) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert jax.typeof(one).update(sharding=None) == jax.typeof(other).update(sharding=None)
        a, b = plain(one).astype(np.float64), plain(other).astype(np.float64)
        assert np.abs(a - b).max(initial=0) <= relative * max(np.abs(b).max(initial=0), 1e-3)


def train(fn: Any, state: Any, num_steps: int = 3) -> Any:
    losses = []
    for number in range(num_steps):
        state, loss = fn(state, batch_of(number))
        losses.append(loss)
    return state, losses


@pytest.fixture(scope="module")
def expected() -> Any:
    return train(jax.jit(step), init(KEY))


@pytest.fixture(scope="module")
def staged() -> Any:
    """A function in two stages, each on a mesh of two devices, planned."""
    fast = rhino.parallelize(step, cluster="cpu4", stages=np.int64(2), mesh="2", micro_batches=4, donate_argnums=0)
    fast.plan(*SHAPES)
    return fast


@pytest.mark.parametrize("said", [{"micro_batches": np.int64(4), "remat": 1, "batch": "batch"}, {"remat": 0.75}])
def test_micro_batches_and_recomputation_without_stages_are_one_program_of_jit(
    said: dict[str, Any], expected: Any, tmp_path: Path
):
    fast = rhino.parallelize(step, cluster="cpu4", mesh="4", donate_argnums=0, **said)
    plan = fast.plan(*SHAPES)
    state = fast.init(init, KEY)
    first = jax.tree.leaves(state)
    same(train(fast, state), expected)
    assert all(array.is_deleted() for array in first)
    assert {"remat", "batch"} & plan.facts.options.keys() == said.keys() - {"micro_batches"}
    assert plan.facts.num_micro_batches == said.get("micro_batches", 1)
    plan.save(tmp_path / "plan.json")
    loaded = rhino.parallelize(step, donate_argnums=0, plan=rhino.Plan.load(tmp_path / "plan.json"))
    assert loaded.plan(*SHAPES) == plan
    assert fast.lower(*SHAPES).as_text() == loaded.lower(*SHAPES).as_text()
    assert "stablehlo.if" in fast.lower(*SHAPES).as_text()  # what XLA's barriers do not order on a CPU


def test_stages_that_recompute_leave_originals_to_earlier_stages(expected: Any):
    """The last stage, which turns back, reads the residual stream; so does the first one, again and behind barriers."""
    fast = rhino.parallelize(step, cluster="cpu4", stages=4, mesh="1", micro_batches=4, remat=1)
    same(train(fast, init(KEY)), expected)


def test_a_step_in_stages_is_that_of_one_device_and_its_state_stays_where_it_is(staged: Any, expected: Any):
    plan = staged.plan(*SHAPES)
    assert plan.facts.num_stages == 2
    state = staged.init(init, KEY)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(jax.jit(init)(KEY)), strict=True):
        assert plain(one).tobytes() == plain(other).tobytes()
    places = jax.tree.map(lambda array: array.sharding, state)
    assert places == plan.in_shardings[0]
    assert {frozenset(one.device_set) for one in jax.tree.leaves(places)} == {
        frozenset(jax.devices()[n : n + 2]) for n in (0, 2)
    }
    first = jax.tree.leaves(state)
    state, losses = train(staged, state)
    same((state, losses), expected)
    assert all(array.is_deleted() for array in first)
    assert jax.tree.map(lambda array: array.sharding, (state, losses[0])) == plan.out_shardings
    assert isinstance(losses[0].sharding, NamedSharding)
    assert set(plan.rank_of().values()) == {0, 1}
    assert "rank 1 |" in plan.explain()


def test_what_lies_elsewhere_is_moved_and_what_is_gone_is_refused(staged: Any):
    once = train(jax.jit(step), init(KEY), 1)
    on_host = {name: one if name == "key" else jax.tree.map(np.asarray, one) for name, one in init(KEY).items()}
    for state in (init(KEY), jax.device_put(init(KEY), jax.devices()[7]), on_host):
        same(train(staged, state, 1), once)
    state, _ = train(staged, init(KEY), 1)
    staged(state, batch_of(0))
    with pytest.raises(RhinoError, match=r"(?s)RHI-JAX-007.*of step is gone"):
        staged(state, batch_of(0))


def test_a_plan_in_stages_is_a_folder_that_runs_the_same(staged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = staged.plan(*SHAPES)
    plan.save(tmp_path / "plan")
    monkeypatch.setattr(PipelineStages, "run", None)  # nothing is searched
    kept = rhino.Plan.load(tmp_path / "plan")
    loaded = rhino.parallelize(step, plan=kept, donate_argnums=0)
    assert loaded.plan(*SHAPES) == plan == kept
    same(train(loaded, loaded.init(init, KEY), 2), train(staged, staged.init(init, KEY), 2), 0)
    with pytest.raises(
        RhinoError, match=r"(?s)RHI-PLAN-004.*argument batch was float32\[16,32\], and is float32\[8,32\]"
    ):
        loaded.plan(SHAPES[0], SHAPES[1][:8])
    with pytest.raises(RhinoError, match=r"(?s)RHI-PLAN-004.*another cluster"):
        rhino.parallelize(step, plan=kept, cluster="cpu8").plan(*SHAPES)
    with pytest.raises(RhinoError, match=r"(?s)RHI-JAX-006.*plan=plan"):
        _ = kept.in_shardings


def test_state_that_is_not_donated_stays_the_callers():
    cut, said = step_cut(1), {"cluster": "cpu2", "mesh": "1", "micro_batches": 2}
    fast = rhino.parallelize(cut, **said)
    plan = fast.plan(*SHAPES)
    assert plan.in_shardings[0] == plan.out_shardings[0]
    state = fast.init(init, KEY)
    same(train(fast, state, 1), train(fast, state, 1), 0)
    rows = re.findall(r"(?m)^  rank \d .* predicted peak .*$", plan.explain())
    assert len(rows) == 2
    for row, peak in zip(rows, plan.facts.predicted.peak_bytes, strict=True):
        assert peak_text(peak) in row, "old state is counted wherever a peak stands"
    dims = next(one for one in plan.facts.arguments if one.path == "state['params']['w0']").dims
    assert "nothing changes" in plan.why_not(f"params.w0={dims_text(dims)}")
    # Not enough for 16 KiB of old state.
    budget = max(plan.facts.predicted.peak_bytes) - max(plan.facts.predicted.kept_bytes) + 1024
    with pytest.raises(RhinoError, match=r"RHI-SOLVE-001.* of it to keep old state"):
        rhino.parallelize(cut, budget=budget, **said).plan(*SHAPES)


def test_what_does_not_fit_as_shardings_alone_is_found_by_autotuning():
    shapes = (SHAPES[0], Shape((32 * ROWS, WIDTH), jnp.float32))
    said = {"cluster": "cpu2", "mesh": "2", "budget": "300KiB", "donate_argnums": 0}
    with pytest.raises(RhinoError, match=r"(?s)RHI-SOLVE-001.*search='autotune'"):
        rhino.parallelize(step, micro_batches=1, **said).plan(*shapes)
    plan = rhino.parallelize(step, search="autotune", stages=1, jobs=1, **said).plan(*shapes)
    assert plan.facts.num_micro_batches > 1
    assert plan.facts.predicted.largest_peak_bytes <= 300 * 1024


def test_what_is_said_is_kept_by_the_search():
    found = rhino.parallelize(step, cluster="cpu2", stages=2, remat=0.75, jobs=1).plan(
        SHAPES[0], Shape((3, WIDTH), jnp.float32)
    )
    facts = found.facts
    assert (facts.num_micro_batches, facts.num_stages, facts.options["remat"]) == (3, 2, "0.75")
    assert sum(facts.autotuning.num_planned.values()) >= 1


def test_boundaries_in_the_model_are_where_it_is_cut(expected: Any):
    cut = step_cut(0, 2)
    same(train(jax.jit(cut), init(KEY)), expected, 0)
    fast = rhino.parallelize(cut, cluster="cpu4", mesh="1", micro_batches=2)
    ranks = fast.plan(*SHAPES).rank_of()
    for part in ("params", "mean"):
        assert [ranks[f"state['{part}']['w{number}']"] for number in range(LAYERS)] == [0, 1, 1, 2]
    marked = jax.vmap(jax.grad(lambda x: (rhino.stage_boundary({"x": x})["x"] ** 2).sum()))(jnp.ones((2, 3)))
    assert (marked == 2).all()
    with pytest.raises(RhinoError, match=r"RHI-STAGE-003.*boundaries in the model make 3 stages, and 2"):
        rhino.parallelize(cut, cluster="cpu4", mesh="1", stages=2, micro_batches=2).plan(*SHAPES)
    assert rhino.parallelize(cut, cluster="cpu4", mesh="4", stages=1).plan(*SHAPES).facts.is_one_stage

    def looped(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jax.lax.fori_loop(0, 3, lambda _, h: rhino.stage_boundary(jnp.tanh(h @ w)), x)
        return w + x.T @ h, h.sum()

    with pytest.raises(RhinoError, match=r"RHI-STAGE-003.*inside a loop of the model"):
        rhino.parallelize(looped, cluster="cpu2", mesh="1", stages=2, micro_batches=2).plan(
            *(Shape((8, 8), jnp.float32),) * 2
        )

    def early(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x @ rhino.stage_boundary(w))
        return w + x.T @ h, h.sum()

    with pytest.raises(RhinoError, match=r"RHI-STAGE-003.*separate no ops"):
        rhino.parallelize(early, cluster="cpu4", mesh="1", micro_batches=2).plan(jnp.ones((WIDTH, WIDTH)), batch_of(0))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"search": "all"}, r"RHI-JAX-002.*search is 'all'"),
        ({"search": "whole"}, r"(?s)RHI-JAX-002.*search is 'whole'.*'whole' is 'autotune' now"),
        ({"recompute": 0.5}, r"(?s)RHI-JAX-002.*is remat now.*give remat=1 - K"),
        ({"stages": True}, r"RHI-JAX-002.*stages is True"),
        ({"stages": 0}, r"RHI-JAX-002.*stages is 0"),
        ({"micro_batches": 2.0}, r"RHI-JAX-002.*micro_batches is 2\.0"),
        ({"stages": 1, "schedule": "gpipe"}, r"RHI-JAX-002.*schedule is given"),
        ({"schedule": "fast"}, r"RHI-SCHED-001"),
        *(
            (
                {"stages": stages, "schedule": "interleaved", **more},
                rf"(?s)RHI-SCHED-001.*has 2 stages on each of at least 2 ranks, got {stages}.*ask for 4 stages or",
            )
            for stages in (2, 3, 5)
            for more in ({"micro_batches": 2, "mesh": "1"}, {})
        ),
        (
            {"search": "autotune", "remat": "0;0.5"},
            r"RHI-REMAT-001.*2 values, one for each stage, and the search compares plans",
        ),
        ({"search": "autotune", "jobs": 0}, r"RHI-JAX-002.*jobs is 0"),
        ({"batch": "x"}, r"RHI-JAX-002.*batch is given"),
        ({"stages": 5}, r"RHI-MESH-001.*5 ranks need as many devices, cluster 'cpu4' has 4"),
        ({"stages": 2, "mesh": "4"}, r"RHI-MESH-001.*2 ranks of 4 devices each need 8, cluster 'cpu4' has 4"),
        ({"donate_argnums": "state"}, r"RHI-JAX-002.*'state', which is no number"),
        ({"pins": "state.*=[{}, {}]"}, r"RHI-JAX-002.*pins is the text"),
        ({"plan": "plan.json"}, r"(?s)RHI-JAX-002.*plan is a str.*Plan\.load"),
    ],
)
def test_what_is_said_of_stages_has_to_say_something(said: dict[str, Any], words: str):
    with pytest.raises(RhinoError, match=words):
        rhino.parallelize(step, cluster="cpu4", **said).plan(*SHAPES)


def test_stages_are_refused_without_a_batch() -> None:
    with pytest.raises(RhinoError, match=r"RHI-BATCH-002.*no batch"):
        rhino.parallelize(lambda x: x, cluster="cpu4", stages=2).plan(SHAPES[1])


def test_a_scope_without_parentheses_is_refused() -> None:
    with pytest.raises(RhinoError, match="RHI-JAX-002") as refused:
        rhino.split(step)
    assert refused.value.fix == "say @rhino.split()"


def test_what_a_plan_in_stages_cannot_do_is_refused(staged: Any):
    with pytest.raises(RhinoError, match=r"RHI-JAX-009.*no one program"):
        staged.lower(*SHAPES)
    plan = staged.plan(*SHAPES)
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*stages and plan exclude each other"):
        rhino.parallelize(step, plan=plan, stages=2)
    with pytest.raises(RhinoError, match=r"RHI-RUN-004.*4 devices, and 2"):
        rhino.parallelize(step, plan=plan, devices=jax.devices()[:2], donate_argnums=0).plan(*SHAPES)
    assert plan.diff(plan) == ""


def test_a_plan_in_stages_says_why(staged: Any, tmp_path: Path):
    """Where a tensor is and what it takes to have it elsewhere, how it lies and what else adds."""
    plan, pin = staged.plan(*SHAPES), 'params.w0=[{"x"}, {}]'
    said, pinned = plan.why("result:[0].params.w0"), plan.why_not(pin)  # its next value lies where the argument does
    rank = plan.rank_of()["state['params']['w0']"]
    assert f"state['params']['w0'], argument f32[32,32] on rank {rank}\n" in said
    assert re.search(
        rf"in stage {1 - rank} instead of {rank}: transfers [+-]\S+ \S+ in a step, the stage with most work [+-]", said
    )
    assert re.search(r'\+\S+ us .*exact +\[\{"x"\}, \{\}\]', said)
    assert pinned.startswith(f"with {pin}:\n")
    assert re.search(
        r"argument state\['params'\]\['w.*: rank . \S+ \[\{\}, \{\}\] -> rank . \S+ \[\{\"x\"\}, \{\}\]", pinned
    )
    assert "collectives: 0 B in 0 -> " in pinned
    assert "not asked" not in pinned
    assert "nothing else was looked at" in plan.why("plan")
    plan.save(tmp_path / "plan")
    with pytest.raises(RhinoError, match=r"RHI-JAX-006.*does not hold the program"):
        rhino.Plan.load(tmp_path / "plan").why("w0")


def test_plans_of_both_kinds_compare(staged: Any):
    plan = staged.plan(*SHAPES)
    text = rhino.parallelize(step, cluster="cpu4", mesh="4", donate_argnums=0).plan(*SHAPES).diff(plan)
    assert text.startswith("one program on mesh x=4 -> 2 stages on 2 ranks of mesh x=2, 4 micro-batches, 1f1b\n")
    assert "\nstep: " in text
    assert "argument batch: rank 0 float32[16,32] [{}, {}] -> rank 0" not in text, "it is where it was"
    predicted = replace(plan.facts.predicted, step_s=plan.facts.predicted.step_s * (1 + 1e-12))
    options = {**plan.facts.options, "pin": "w0=[{}, {}]"}
    pinned = replace(plan, facts=replace(plan.facts, options=options, predicted=predicted))
    assert plan.diff(pinned) == "pin: not asked -> w0=[{}, {}]"
    assert "made for different programs: step and sin" in plan.diff(
        rhino.parallelize(jnp.sin, cluster="cpu2").plan(jnp.ones(2))
    )


def test_what_a_step_in_stages_hands_back_lives_on() -> None:
    """Donated state that comes back as it was lives on, a key too.

    So do the old count, a result given twice of which one is donated later, and one that is weakly typed."""

    def handing(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], Any]:
        new, loss = step(state, batch)
        return {**new, "key": state["key"]}, (loss, state["count"], new["count"], state["key"], 0.1 * state["count"])

    fast = rhino.parallelize(handing, cluster="cpu4", stages=2, mesh="1", micro_batches=2, donate_argnums=0)
    fast.plan(*SHAPES)
    same(train(fast, fast.init(init, KEY)), train(jax.jit(handing), init(KEY)))


def test_a_plan_keeps_what_was_asked_for(staged: Any, tmp_path: Path) -> None:
    assert staged.plan(*SHAPES).facts.request == Request("shard", "x=2", 2, 4)
    asked = {"search": "autotune", "micro_batches": 2, "remat": 0.5, "budget": "1GiB", "jobs": 1, "mesh": "auto"}
    plan = rhino.parallelize(step, cluster="cpu2", donate_argnums=0, **asked).plan(*SHAPES)
    assert plan.facts.request == Request("autotune", "auto", None, 2, "", (0.5,), 2**30)
    plan.save(tmp_path / "plan")
    assert rhino.Plan.load(tmp_path / "plan") == plan
    assert rhino.parallelize(step, donate_argnums=0).plan(*SHAPES).facts.request == Request(), (
        "of devices that are there"
    )


STAGES = {"stages": 2, "mesh": "1", "micro_batches": 2}


@pytest.mark.parametrize("asked", [{}, STAGES], ids=["one program", "stages"])
def test_a_plan_is_of_what_is_donated(asked: dict[str, Any], tmp_path: Path) -> None:
    donated, kept = (
        rhino.parallelize(step, cluster="cpu2", donate_argnums=given, **asked).plan(*SHAPES) for given in (0, ())
    )
    for plan, own, other, words in (
        (donated, 0, (), "argument state['params']['w[*]'] was donated, and is not donated"),
        (kept, (), 0, "argument state['params']['w[*]'] was not donated, and is donated"),
    ):
        path = tmp_path / f"{len(words)}.json"
        plan.save(path)
        loaded = rhino.Plan.load(path)
        assert loaded == plan
        rhino.parallelize(step, plan=loaded, donate_argnums=own).plan(*SHAPES)
        with pytest.raises(RhinoError, match=r"RHI-PLAN-004.*was made for other donated arguments") as refused:
            rhino.parallelize(step, plan=loaded, donate_argnums=other).plan(*SHAPES)
        assert words in str(refused.value)
        assert "(donate_argnums)" in refused.value.fix
    lines = donated.diff(kept).splitlines()
    assert "argument state['params']['w[*]']: donated -> not donated" in lines
    assert "argument state['count']: donated -> not donated" in lines, "it is one, whose name has no numbers"
    assert not any("different programs" in line for line in lines)
