"""Steps with arguments in host memory: the answers of one device, in one program and in stages, and plans kept."""

import random
import re
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from long_cases import one_in

import rhino
from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.presets import PRESETS
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import HOST
from rhino.ir.units import format_bytes
from rhino.passes.pipeline.rematerialize import Rematerialize
from rhino.passes.planner.plan_rows import in_host_memory
from rhino.strategies.cost.cost_model import HOST_TRANSFER_S
from rhino.strategies.memory.host_memory import waiting_arguments

WIDTH, BATCH, RATE = 48, 8, 0.9


def step(state, x):
    """Adam's step of two layers with dropout; it does not change where the state lies."""
    params, key = state["params"], jax.random.fold_in(jax.random.key(7), state["count"])

    def loss(params):
        kept = jax.random.bernoulli(key, RATE, x.shape)
        h = jnp.tanh(jnp.where(kept, x, 0) @ params["up"])
        return jnp.mean((h @ params["down"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, state["nu"], grads)
    new = jax.tree.map(lambda p, m, n: p - 0.01 * m / (jnp.sqrt(n) + 1e-3), params, mu, nu)
    return {"params": new, "mu": mu, "nu": nu, "count": state["count"] + 1}, value


def init():
    up, down = (jax.random.normal(jax.random.key(n), (WIDTH, WIDTH)) / 7 for n in range(2))
    params = {"up": up, "down": down}
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "mu": zeros, "nu": jax.tree.map(jnp.zeros_like, params), "count": jnp.int32(0)}


def batch():
    return jax.random.normal(jax.random.key(3), (BATCH, WIDTH))


def wanted(count=3):
    """State and losses of one device."""
    state, losses = init(), []
    for _ in range(count):
        state, loss = jax.jit(step)(state, batch())
        losses.append(float(loss))
    return state, losses


def on_host(state):
    return [leaf.sharding.memory_kind for leaf in jax.tree.leaves(state)].count(HOST)


def drawn(seed):
    """What lays some of the arguments that may wait in host memory, whatever that costs."""

    def draw(graph, barred=()):
        free = sorted(waiting_arguments(graph) - set(barred))
        there = random.Random(seed).sample(free, k=1 + seed % len(free))
        arguments = [replace(one, memories=(HOST,)) if n in there else one for n, one in enumerate(graph.arguments)]
        return replace(graph, arguments=tuple(arguments))

    return draw


CASES = {
    "one device": {"mesh": "1"},
    "whole": {"mesh": "4", "pins": ["state.*.*=[{},{}]"]},
    "zero": {"mesh": "4", "pins": ['state.mu.*=[{"x"},{}]', 'state.nu.*=[{},{"x"}]']},
    "two axes": {"mesh": "2x2"},
    "remat": {"mesh": "2", "remat": 1.0},
    "amp": {"mesh": "2", "amp": "bf16"},
    "parts": {"mesh": "2", "micro_batches": 2},
    "kept": {"mesh": "2", "donate_argnums": ()},
    "stages": {"mesh": "1", "stages": 2, "micro_batches": 2},
    "stages of two": {"mesh": "2", "stages": 2, "micro_batches": 4, "remat": 1.0},
    "unlike stages": {"stages": "2+1", "micro_batches": 2},
}
LONG = {"autotuned": {"mesh": "2", "search": "autotune"}}


@pytest.mark.parametrize(
    "options",
    [
        *one_in(2, [pytest.param(one, id=name) for name, one in CASES.items()]),
        *(pytest.param(one, id=name, marks=pytest.mark.long) for name, one in LONG.items()),
    ],
)
def test_moments_in_host_memory_change_no_answer(options, tmp_path, monkeypatch):
    seed = [*CASES.values(), *LONG.values()].index(options)
    monkeypatch.setattr("rhino.passes.sharding.planning_pass.with_host_choice", drawn(seed))
    options = {"cluster": "cpu4", "donate_argnums": 0, **options}
    made = rhino.parallelize(step, offload=True, verify=True, **options)
    plan = made.plan(init(), batch())
    there = {one.path for one in plan.facts.arguments if one.memory == HOST}
    assert there
    assert all("mu" in path or "nu" in path for path in there)
    assert "in host memory" in plan.explain()
    state, (_, losses) = made.init(init), wanted()
    for want in losses:
        assert on_host(state) == len(there)
        state, loss = made(state, batch())
        assert float(loss) == pytest.approx(want, rel=1e-2 if "amp" in options else 1e-5)
    plan.save(tmp_path / "plan")
    kept = rhino.Plan.load(tmp_path / "plan")
    assert kept == plan
    again = rhino.parallelize(step, donate_argnums=options["donate_argnums"], plan=kept)
    found, _ = again(jax.tree.map(np.asarray, state), batch())  # from the host: it goes where it is to lie
    assert on_host(found) == len(there)


LAYERS, WIDE = 3, 32


def layered_step(form, state, x):
    """A step of layers with dropout, whose activations are much of what it holds."""

    def layer(h, given):
        params, key = given
        kept = jax.random.bernoulli(key, RATE, h.shape)
        return jnp.tanh(jnp.where(kept, h, 0) @ params["up"]) @ params["down"] + h, None

    def loss(params):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(7), state["count"]), LAYERS)
        h = x
        if form == "scan":
            h, _ = jax.lax.scan(layer, h, (params, keys))
        else:
            for n in range(LAYERS):
                h, _ = layer(h, (params[n], keys[n]))
                h = rhino.stage_boundary(h) if form == "stages" and n == 0 else h
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    new = jax.tree.map(lambda p, g: p - 0.5 * g, state["params"], grads)
    return {"params": new, "count": state["count"] + 1}, value


def layered_init(form):
    def one(n):
        return {k: jax.random.normal(jax.random.key(2 * n + i), (WIDE, WIDE)) / 7 for i, k in enumerate(("up", "down"))}

    params = [one(n) for n in range(LAYERS)]
    return {"params": jax.tree.map(lambda *a: jnp.stack(a), *params) if form == "scan" else params, "count": 0}


def layered_batch():
    return jax.random.normal(jax.random.key(3), (64, WIDE))


SAVED = {
    "one device": {"mesh": "1"},
    "two axes": {"mesh": "2x2"},
    "amp": {"mesh": "2", "amp": "bf16"},
    "parts": {"mesh": "2", "micro_batches": 2},
    "remat": {"mesh": "2", "remat": 0.5},
    "stages": {"mesh": "1", "stages": 2, "micro_batches": 2},
    "stages of two": {"mesh": "2", "stages": 2, "micro_batches": 4, "remat": 0.5},
    "unlike stages": {"stages": "2+1", "micro_batches": 2},
}


@cache
def on_one_device(form):
    """Losses of two steps, and the leaves of the state after them."""
    step, state, x = jax.jit(partial(layered_step, form)), layered_init(form), layered_batch()
    losses = []
    for _ in range(2):
        state, loss = step(state, x)
        losses.append(float(loss))
    return losses, jax.tree.leaves(state)


@pytest.mark.parametrize(
    ("form", "options"),
    one_in(
        3,
        [
            pytest.param(form, one, id=f"{name}-{form}")
            for name, one in SAVED.items()
            for form in (("scan", "stages") if "stages" in one else ("scan", "unrolled"))
        ],
    ),
)
def test_activations_in_host_memory_change_no_answer(form, options, tmp_path, monkeypatch):
    """All that may wait there does: in loops row by row, in stages between programs."""

    def all_there(self, program, begun, remarks):
        write(replace(self, host_share="" if "remat" in options else "1", offload=True), program, begun, remarks)

    write = Rematerialize.write
    monkeypatch.setattr(Rematerialize, "write", all_there)
    fun, x = partial(layered_step, form), layered_batch()
    given = {"remat": 1.0, **options}
    made = rhino.parallelize(fun, cluster="cpu4", donate_argnums=0, offload=True, **given)
    state = layered_init(form)
    facts = made.plan(state, x).facts
    if facts.execution:
        there = [one.rank for one in facts.execution.step.slots if one.layout.memory == HOST]
        assert there or form == "scan" or "remat" in options
    else:
        assert facts.sharding.waiting or "remat" in options
    losses, leaves = on_one_device(form)
    for value in losses:
        state, loss = made(state, x)
        assert float(loss) == pytest.approx(value, rel=1e-2 if "amp" in options else 1e-6)
    for one, other in zip(jax.tree.leaves(state), leaves, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-2 if "amp" in options else 1e-6)
    made.plan(state, x).save(tmp_path / "plan")
    again = rhino.parallelize(fun, donate_argnums=0, plan=rhino.Plan.load(tmp_path / "plan"))
    again(layered_init(form), x)


def test_the_budget_decides_how_many_lie_in_host_memory():
    free = rhino.parallelize(step, cluster="cpu4", mesh="1", donate_argnums=0).plan(init(), batch()).facts.predicted
    moment = WIDTH * WIDTH * 4
    budgets = [free.largest_peak_bytes - int(spared * moment) for spared in (-1, 0.2, 0.6)]
    plans = [
        rhino.parallelize(step, cluster="cpu4", mesh="1", donate_argnums=0, budget=budget, offload=True).plan(
            init(), batch()
        )
        for budget in budgets
    ]
    counts = [sum(one.memory == HOST for one in plan.facts.arguments) for plan in plans]
    assert counts[0] == 0 < counts[1] <= counts[2]
    device = load_cluster("cpu4").device
    way_s = 2 * (HOST_TRANSFER_S + moment / device.host_bytes_per_s)
    for plan, count, budget in zip(plans, counts, budgets, strict=True):
        assert plan.facts.predicted.largest_peak_bytes <= budget
        assert plan.facts.predicted.step_s == pytest.approx(free.step_s + count * way_s)
        there = f"host memory {format_bytes(count * moment)} of 2 GiB per device"
        assert (there in plan.explain()) == (count > 0)


@pytest.mark.long
def test_the_budget_decides_what_ranks_of_unlike_meshes_leave_in_host_memory():
    given = {"cluster": "cpu4", "stages": "2+1", "micro_batches": 2, "donate_argnums": 0}
    most = rhino.parallelize(step, **given).plan(init(), batch()).facts.predicted.largest_peak_bytes
    made = rhino.parallelize(step, **given, budget=most * 4 // 5, offload=True)
    facts = made.plan(init(), batch()).facts
    assert facts.predicted.largest_peak_bytes <= most * 4 // 5
    assert any(one.memory == HOST for one in facts.arguments)
    state, (_, losses) = made.init(init), wanted()
    for want in losses:
        state, loss = made(state, batch())
        assert float(loss) == pytest.approx(want, rel=1e-6)


def _with_host_bytes(file, size):
    file.write_text(re.sub(r"(host_bytes = { value = )\d+", rf"\g<1>{size}", PRESETS["cpu4"]))
    return str(file)


@pytest.mark.parametrize(
    ("form", "options"), [("scan", {"micro_batches": 1}), ("stages", {"stages": 2, "micro_batches": 2})]
)
def test_no_more_lies_in_host_memory_than_that_holds(form, options, tmp_path, monkeypatch):
    """Whatever would wait there for the backward pass: it is counted, and refused by a byte."""
    write = Rematerialize.write
    monkeypatch.setattr(
        Rematerialize, "write", lambda self, *args: write(replace(self, host_share="1", offload=True), *args)
    )
    given = {"mesh": "1", "remat": 1.0, "donate_argnums": 0, "offload": True, **options}
    state, x = layered_init(form), layered_batch()

    def plan(size):
        cluster = _with_host_bytes(tmp_path / f"{size}.toml", size)
        return rhino.parallelize(partial(layered_step, form), cluster=cluster, **given).plan(state, x)

    most = max(in_host_memory(plan(1 << 31).facts))
    assert most
    assert f"host memory {format_bytes(most)} of {format_bytes(most)} per device" in plan(most).explain()
    with pytest.raises(RhinoError, match=r"RHI-SOLVE-001.*in host memory, which holds"):
        plan(most - 1)


def test_a_step_that_fits_keeps_all_on_the_devices():
    made = rhino.parallelize(step, cluster="cpu4", offload=True, donate_argnums=0)
    plan = made.plan(init(), batch())
    assert {one.memory for one in plan.facts.arguments} == {"device"}
    assert "host" not in plan.explain()


@pytest.mark.long
def test_host_memory_makes_no_plan_slower():
    given = {"cluster": "cpu4", "mesh": "2", "donate_argnums": 0}

    def predicted(**options):
        return rhino.parallelize(step, **given, **options).plan(init(), batch()).facts.predicted

    budget = int(0.95 * predicted().largest_peak_bytes)
    assert predicted(budget=budget, offload=True).step_s <= predicted(budget=budget).step_s


def test_what_does_not_fit_is_planned_with_offloading_unasked(caplog):
    made = rhino.parallelize(step, cluster="cpu4", mesh="1", donate_argnums=0)
    given = {"mesh": "1", "budget": made.plan(init(), batch()).facts.predicted.largest_peak_bytes - 1}
    facts = rhino.parallelize(step, cluster="cpu4", donate_argnums=0, **given).plan(init(), batch()).facts
    assert max(in_host_memory(facts))
    assert facts.predicted.largest_peak_bytes <= given["budget"]
    assert [one for one in caplog.messages if one.endswith(": planned with offloading")]


def test_a_cluster_that_does_not_say_how_fast_host_memory_is_has_none(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text("\n".join(line for line in PRESETS["cpu4"].splitlines() if not line.startswith("host_bytes")))
    with pytest.raises(RhinoError, match=r"RHI-OFFLOAD-001.*\n.*host_bytes_per_s"):
        rhino.parallelize(step, cluster=str(file), offload=True).plan(init(), batch())


def test_a_refusal_with_offload_names_the_share_that_came_nearest():
    given = {"cluster": "cpu4", "mesh": "1", "donate_argnums": 0}
    fun, state, x = partial(layered_step, "unrolled"), layered_init("unrolled"), jnp.zeros((64, WIDE))
    free = rhino.parallelize(fun, **given).plan(state, x).facts.predicted.largest_peak_bytes
    with pytest.raises(RhinoError) as refused:
        rhino.parallelize(fun, **given, offload=True, budget=free // 3).plan(state, x)
    what, *rest = str(refused.value).splitlines()
    assert re.search(r"RHI-SOLVE-00[12].*, whatever lies in host memory;.*, with \d+% of what is saved", what)
    assert any("with nothing of what is saved for the backward pass in host memory: " in line for line in rest)
    assert "offload" not in rest[-1]
