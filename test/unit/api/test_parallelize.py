"""A parallelized function gives the answer of one device and is called as the function is.

Where it cannot be, the error says so.
"""

import dataclasses
import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

import rhino
from rhino import planner
from rhino.ir.diagnostics import RhinoError
from rhino.plan_options import PlanOptions
from rhino.planner import Planned
from rhino.traced import Traced

Shape = jax.ShapeDtypeStruct
RELATIVE = 2e-5


class Moments(NamedTuple):
    mean: Any
    square: Any


@partial(jax.tree_util.register_dataclass, data_fields=["params", "moments", "count", "unused"], meta_fields=["rate"])
@dataclasses.dataclass
class State:
    params: Any
    moments: Moments
    count: jax.Array
    unused: Any = None
    rate: float = 0.05


def make_state(key: jax.Array, dtype: Any = jnp.float32) -> State:
    keys = jax.random.split(key, 3)
    params = {
        "layers": [
            {"up": jax.random.normal(keys[0], (32, 64), dtype) / 6, "bias": None},
            {"up": jax.random.normal(keys[1], (64, 16), dtype) / 8, "bias": jnp.zeros(16, dtype)},
        ],
        "scale": jnp.ones((), dtype),
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(params, Moments(zeros, zeros), jnp.zeros((), jnp.int32))


def make_batch(key: jax.Array, size: int = 16) -> dict[str, jax.Array]:
    return {"x": jax.random.normal(key, (size, 32)), "y": jnp.arange(size) % 16}


def step(
    state: State, batch: dict[str, jax.Array], key: jax.Array, rate: float = 0.1
) -> tuple[State, dict[str, jax.Array]]:
    def loss(params: Any) -> jax.Array:
        first, second = params["layers"]
        h = jax.nn.gelu(batch["x"].astype(first["up"].dtype) @ first["up"])
        h = h * jax.random.bernoulli(key, 1 - rate, h.shape) / (1 - rate)
        logits = ((h @ second["up"] + second["bias"]) * params["scale"]).astype(jnp.float32)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)
        return -picked.mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state.moments.mean, grads)
    square = jax.tree.map(lambda m, g: 0.99 * m + 0.01 * g * g, state.moments.square, grads)
    params = jax.tree.map(lambda p, m, s: p - state.rate * m / (jnp.sqrt(s) + 1e-3), state.params, mean, square)
    return State(params, Moments(mean, square), state.count + 1, None, state.rate), {"loss": value}


def same(got: Any, expected: Any, relative: float = RELATIVE) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        a, b = (np.asarray(x, np.float64) for x in (one, other))
        assert np.abs(a - b).max(initial=0) <= relative * max(np.abs(b).max(initial=0), 1e-3)


def copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def train(fn: Callable[..., Any], state: Any, num_steps: int = 4, **kwargs: Any) -> tuple[Any, list[float]]:
    losses = []
    for number in range(num_steps):
        key = jax.random.key(number)
        state, out = fn(state, make_batch(key), key, **kwargs)
        losses.append(out["loss"])
    return state, losses


@pytest.mark.parametrize(("dtype", "relative"), [(jnp.float32, RELATIVE), (jnp.bfloat16, 3e-2)])
@pytest.mark.parametrize("mesh", ["8", "2x4"])
def test_some_steps_are_those_of_one_device(mesh: str, dtype: Any, relative: float):
    state = make_state(jax.random.key(0), dtype)
    expected = train(jax.jit(step), state)
    fast = rhino.parallelize(step, cluster="cpu8", mesh=mesh, donate_argnums=0)
    same(train(fast, copied(state)), expected, relative)
    assert fast.plan(state, make_batch(jax.random.key(0)), jax.random.key(0)).facts.sharding.form == "localized"


def test_results_are_arrays_with_the_shardings_of_the_plan():
    state, batch, key = make_state(jax.random.key(0)), make_batch(jax.random.key(1)), jax.random.key(2)
    fast = rhino.parallelize(step, cluster="cpu8", pins={"state.params.layers.0.up": PartitionSpec(None, "x")})
    plan = fast.plan(state, batch, key)
    results = fast(state, batch, key)
    assert jax.tree.structure(plan.out_shardings) == jax.tree.structure(results)
    assert jax.tree.all(jax.tree.map(lambda array, sharding: array.sharding == sharding, results, plan.out_shardings))
    new, _ = results
    assert new.params["layers"][0]["up"].sharding == NamedSharding(plan.mesh, PartitionSpec(None, "x"))
    assert jax.tree.map(lambda array: array.sharding, new) == plan.in_shardings[0]
    assert new.params["layers"][0]["up"].addressable_shards[0].data.shape == (32, 8)


def test_state_lies_in_its_next_step_as_in_this_one_though_nothing_is_donated():
    fast = rhino.parallelize(step, cluster="cpu8")
    state, batch = make_state(jax.random.key(0)), make_batch(jax.random.key(1))
    plan = fast.plan(state, batch, jax.random.key(2))
    assert plan.out_shardings[0] == plan.in_shardings[0]


def test_donated_arrays_are_gone_and_others_stay():
    fast = rhino.parallelize(step, cluster="cpu8", donate_argnums=0)
    batch, key = make_batch(jax.random.key(1)), jax.random.key(2)
    state, _ = fast(make_state(jax.random.key(0)), batch, key)
    kept = jax.tree.leaves(state)
    fast(state, batch, key)
    assert all(array.is_deleted() for array in kept)
    assert not batch["x"].is_deleted()
    by_name = rhino.parallelize(step, cluster="cpu8", donate_argnames="state")
    state, _ = by_name(make_state(jax.random.key(0)), batch, key=key)
    by_name(batch=batch, state=state, key=key)
    assert jax.tree.leaves(state)[0].is_deleted()


def test_a_donated_state_is_not_taken_twice():
    fast = rhino.parallelize(step, cluster="cpu8", donate_argnums=0)
    batch, key = make_batch(jax.random.key(1)), jax.random.key(2)
    state, _ = fast(make_state(jax.random.key(0)), batch, key)  # whose moments are one array, at first
    after, _ = fast(state, batch, key)
    with pytest.raises(
        RhinoError, match=r"(?s)RHI-JAX-007.*state\.params\['layers'\]\[0\]\['up'\] of step is gone.*state = step"
    ):
        fast(state, batch, key)
    with pytest.raises(RhinoError, match="RHI-JAX-007"):
        fast(dataclasses.replace(state), batch, key)
    after, _ = fast(after, batch, key)
    assert int(fast(after, batch, key)[0].count) == 4


def test_what_is_kept_beside_the_new_state_counts_as_memory():
    shapes = (Shape((1024, 1024), jnp.float32), Shape((8,), jnp.float32))

    def scale(w: jax.Array, x: jax.Array) -> jax.Array:
        return w * x.sum()

    donated, kept = (
        rhino.parallelize(scale, cluster="cpu8", mesh="8", donate_argnums=given).plan(*shapes) for given in (0, ())
    )
    assert kept.facts.predicted.largest_peak_bytes == donated.facts.predicted.largest_peak_bytes + 1024 * 1024 * 4 // 8
    with pytest.raises(RhinoError, match="RHI-SOLVE-001"):
        rhino.parallelize(scale, cluster="cpu8", mesh="8", budget=donated.facts.predicted.largest_peak_bytes).plan(
            *shapes
        )


def test_as_a_decorator_with_constants_and_keywords():
    calls = []

    @rhino.parallelize(cluster="cpu8", static_argnames=("activation", "times"))
    def apply(w: jax.Array, x: jax.Array, activation: str, *, times: int = 1, shift: jax.Array) -> jax.Array:
        """Says what it does."""
        calls.append(activation)
        for _ in range(times):
            x = getattr(jnp, activation)(x @ w) + shift
        return x

    assert (apply.__name__, apply.__doc__) == ("apply", "Says what it does.")
    w, x = jax.random.normal(jax.random.key(0), (16, 16)), jnp.ones((8, 16))
    for activation, times in [("tanh", 1), ("sin", 2), ("tanh", 1), ("tanh", 2)]:
        expected = apply.__wrapped__(w, x, activation, times=times, shift=0.5)
        same(apply(w, x, activation, times=times, shift=0.5), expected)
        same(apply(w, activation=activation, shift=0.5, x=x, times=times), expected)
    assert len(calls) == 4 + 3  # four by hand, and a trace for each set of constants


def test_calls_after_the_first_are_calls_of_jit():
    traces = []

    def counted(*args: Any) -> Any:
        traces.append(None)
        return step(*args)

    fast = rhino.parallelize(counted, cluster="cpu8", donate_argnums=0)
    train(fast, make_state(jax.random.key(0)), num_steps=5)
    assert len(traces) == 1
    assert fast._run._cache_size() <= 2  # of arrays that lie anywhere, and of its own


def test_other_shapes_are_planned_for_and_both_are_kept():
    fast = rhino.parallelize(step, cluster="cpu8")
    state, key = make_state(jax.random.key(0)), jax.random.key(1)
    for size in (16, 24, 16, 7):
        batch = make_batch(key, size)
        same(fast(state, batch, key), jax.jit(step)(state, batch, key))
    assert len(fast._entries) == 3
    lone = {"x": jnp.ones((16, 32)), "y": jnp.zeros(16, int), "more": None}
    same(fast(state, lone, key), jax.jit(step)(state, lone, key))


def test_a_log_says_when_and_why_a_function_is_planned(caplog: pytest.LogCaptureFixture):
    def scaled(x: jax.Array, by: float) -> jax.Array:
        return x * by

    fast = rhino.parallelize(scaled, cluster="cpu8", mesh="4", static_argnames="by")
    with caplog.at_level(logging.INFO, logger="rhino"):
        for size, by in ((8, 2.0), (8, 2.0), (16, 2.0), (8, 2.0), (16, 3.0)):
            fast(jnp.ones(size), by=by)
        rhino.parallelize(scaled, cluster="cpu8", mesh="7", static_argnames="by").plan(jnp.ones(7), by=1.0)
    texts = [re.sub(r"after \S+ \S+:", "after T:", record.getMessage()) for record in caplog.records]
    made = "scaled, after T: one program on mesh x=4, for cpu8; devices 4 to 7 stay idle"
    assert texts == [
        "scaled is planned for its first arguments",
        made,
        "scaled is planned again: x was float32[8], and is float32[16]",
        made,
        "scaled is planned again: constant by was 2.0, and is 3.0",
        made,
        "scaled is planned for its first arguments",
        "scaled, after T: one program on mesh x=7, for cpu8; device 7 stays idle",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def gradient_step(params: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jax.nn.gelu(batch @ params["up"]) @ params["down"] - batch) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def test_a_state_stays_where_it_lies_when_another_batch_size_is_planned_for():
    """The best plan for the large batch would place the parameters otherwise, as plans for shapes alone show."""
    params = {"up": jnp.ones((128, 512)) / 23, "down": jnp.ones((512, 128)) / 45}
    small, large = jnp.ones((8, 128)), jnp.ones((4096, 128))
    free = rhino.parallelize(gradient_step, cluster="cpu8")
    shapes = jax.eval_shape(lambda: params)
    alone = [free.plan(shapes, Shape(batch.shape, batch.dtype)).in_shardings[0]["up"].spec for batch in (small, large)]
    fast = rhino.parallelize(gradient_step, cluster="cpu8")
    state, _ = fast(params, small)
    lies = fast.plan(params, small).in_shardings[0]
    plan = fast.plan(state, large)
    assert alone[0] != alone[1]
    assert plan.in_shardings[0] == lies
    assert "up" in plan.facts.options["pin"]
    same(fast(state, large), jax.jit(gradient_step)(state, large))
    fast.lower(state, large).compile()


def test_a_program_is_lowered_for_arrays_that_another_plan_has_placed():
    params = {"up": jnp.ones((128, 512)) / 23, "down": jnp.ones((512, 128)) / 45}
    fast = rhino.parallelize(gradient_step, cluster="cpu8")
    state, _ = fast(params, jnp.ones((8, 128)))
    elsewhere = jax.device_put(state, jax.devices()[1])
    fast.lower(elsewhere, jnp.ones((8, 128))).compile()


@pytest.mark.parametrize("name", ["result:1", "result:result['y']", "result:y"])
def test_a_pin_of_a_result_leaves_out_dims_at_its_end_that_are_whole(name):
    def both(x):
        return {"sum": x.sum(), "y": x @ x}

    plan = rhino.parallelize(both, cluster="cpu8", pins={name: PartitionSpec("x")}).plan(jnp.ones((16, 16)))
    assert plan.out_shardings["y"].spec == PartitionSpec("x")


def test_a_pin_of_results_of_several_ranks_is_written_for_each():
    plan = rhino.parallelize(lambda x: [x, x[0], x[:, 0]], cluster="cpu8", pins={"result:*": PartitionSpec("x")}).plan(
        jnp.ones((8, 8))
    )
    assert [one.spec[0] for one in plan.out_shardings] == ["x"] * 3


def test_where_no_plan_fits_with_the_state_where_it_lies_it_is_moved(monkeypatch: pytest.MonkeyPatch):
    def plan_function(traced: Traced, request: PlanOptions) -> Planned:
        if request.pins([]):
            raise RhinoError("RHI-SOLVE-001", "too large")
        return planner.plan_function(traced, request)

    params = {"up": jnp.ones((128, 512)) / 23, "down": jnp.ones((512, 128)) / 45}
    fast = rhino.parallelize(gradient_step, cluster="cpu8")
    state, _ = fast(params, jnp.ones((8, 128)))
    monkeypatch.setattr("rhino.entry.plan_function", plan_function)
    assert "pin" not in fast.plan(state, jnp.ones((4096, 128))).facts.options
    same(fast(state, jnp.ones((4096, 128))), jax.jit(gradient_step)(state, jnp.ones((4096, 128))))


def test_other_shapes_are_refused_where_that_is_asked():
    fast = rhino.parallelize(step, cluster="cpu8", on_new_shapes="error")
    state, key = make_state(jax.random.key(0)), jax.random.key(1)
    fast(state, make_batch(key), key)
    with pytest.raises(
        RhinoError, match=r"(?s)RHI-JAX-003.*batch\['x'\] was float32\[16,32\], and is float32\[24,32\]"
    ):
        fast(state, make_batch(key, 24), key)
    fast(state, make_batch(key), key)


def test_arrays_that_lie_elsewhere_are_moved():
    fast = rhino.parallelize(step, cluster="cpu8", donate_argnums=0)
    state, batch, key = make_state(jax.random.key(0)), make_batch(jax.random.key(1)), jax.random.key(2)
    expected = jax.jit(step)(state, batch, key)
    mesh = Mesh(np.array(jax.devices()), ("other",))
    for where in (jax.devices()[3], NamedSharding(mesh, PartitionSpec()), jax.devices()[0]):
        same(fast(jax.device_put(copied(state), where), jax.device_put(batch, where), key), expected)
    same(fast(jax.tree.map(np.asarray, state), jax.tree.map(np.asarray, batch), key), expected)


def test_state_is_made_where_it_lies_with_the_bits_of_one_device():
    fast = rhino.parallelize(step, cluster="cpu8", mesh="2x4", donate_argnums=0)
    key, batch = jax.random.key(5), make_batch(jax.random.key(1))
    plan = fast.plan(jax.eval_shape(make_state, key), batch, key)
    state = fast.init(make_state, key)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(jax.jit(make_state)(key)), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert jax.tree.map(lambda array: array.sharding, state) == plan.in_shardings[0]
    pair = fast.init(lambda key: (make_state(key), make_batch(key)), key, argnums=(0, 1))
    assert jax.tree.map(lambda array: array.sharding, pair) == plan.in_shardings[:2]


def test_plans_need_no_devices():
    shapes = (
        jax.eval_shape(make_state, jax.random.key(0)),
        jax.eval_shape(make_batch, jax.random.key(0)),
        jax.random.key(0),
    )
    fast = rhino.parallelize(step, cluster="v100x8x2", mesh="16")
    plan = fast.plan(*shapes)
    assert plan.facts.mesh.axes == (("x", 16),)
    assert set(plan.partition_specs()) >= {"state.params['layers'][0]['up']", "state.count", "batch['x']", "key"}
    with pytest.raises(RhinoError, match=r"(?s)RHI-RUN-004.*16 devices, and 8"):
        fast(make_state(jax.random.key(0)), make_batch(jax.random.key(0)), jax.random.key(0))


@pytest.mark.parametrize("is_named", [False, True])
def test_sharding_constraints_in_the_function_are_honoured(is_named: bool):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))

    def constrained(w: jax.Array, x: jax.Array) -> jax.Array:
        spec = PartitionSpec("model", "data")
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, spec) if is_named else spec)

    w, x = jnp.ones((16, 8)) / 16, jnp.arange(128.0).reshape(8, 16)
    given = mesh if is_named else AbstractMesh((2, 4), ("data", "model"))
    fast = rhino.parallelize(constrained, cluster="cpu8", mesh=given)
    assert fast(w, x).sharding.spec == PartitionSpec("model", "data")
    same(fast(w, x), jnp.tanh(x @ w))


@pytest.mark.parametrize("given", [None, "mesh", "x=8"])
def test_parts_that_are_parallel_by_hand_are_kept(given: str | None):
    mesh = Mesh(np.array(jax.devices()), ("x",))
    by_hand = jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec()
    )
    x = jnp.arange(64.0).reshape(16, 4)
    fast = rhino.parallelize(
        lambda x, rate: jnp.sin(by_hand(x)) * rate, cluster="cpu8", mesh=mesh if given == "mesh" else given
    )
    same(fast(x, 2.0), jnp.sin(x.reshape(8, 2, 4).sum(0)) * 2)


def test_one_micro_batch_is_the_whole_batch_to_a_part_by_hand_and_several_are_refused():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    by_hand = jax.shard_map(
        lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec()
    )
    x = jnp.arange(64.0).reshape(16, 4)
    same(rhino.parallelize(by_hand, cluster="cpu8", micro_batches=1, batch="x")(x), x.reshape(8, 2, 4).sum(0))
    words = r"(?s)RHI-BATCH-006.*parallel by hand \(shard_map\).*to fix: leave micro_batches and stages out"
    with pytest.raises(RhinoError, match=words):
        rhino.parallelize(by_hand, cluster="cpu8", micro_batches=2).plan(x)


def test_a_part_by_hand_on_a_mesh_of_other_axes_is_planned_where_only_their_types_differ():
    mesh = jax.make_mesh((4, 2), ("x", "y"))  # of explicit axes
    by_hand = jax.shard_map(
        lambda x: jax.lax.psum(x, "x"),
        mesh=mesh,
        in_specs=PartitionSpec("x"),
        out_specs=PartitionSpec(),
        axis_names={"x"},
    )
    x = jnp.arange(64.0).reshape(16, 4)
    same(
        rhino.parallelize(lambda x: jnp.sin(by_hand(x)), cluster="cpu8", mesh="x=4,y=2")(x),
        jnp.sin(x.reshape(4, 4, 4).sum(0)),
    )
    with pytest.raises(
        RhinoError, match=r"(?s)RHI-MESH-002.*mesh x=2,y=4, and a shard_map in it is of another: x=4,y=2.*AxisType.Auto"
    ):
        rhino.parallelize(by_hand, cluster="cpu8", mesh="2x4").plan(x)
    strict = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    with pytest.raises(
        RhinoError, match=r"(?s)RHI-MESH-002.*mesh x=4,y=2.*axis_types=\(Explicit, Explicit\).*in_specs"
    ):
        rhino.parallelize(strict, cluster="cpu8", mesh="4x2").plan(x)


def test_devices_are_those_of_a_mesh_or_those_given():
    devices = jax.devices()[::-1]
    mesh = Mesh(np.array(devices), ("x",))
    x = jnp.arange(64.0).reshape(8, 8)
    for given in ({"mesh": mesh}, {"mesh": "8", "devices": devices}):
        result = rhino.parallelize(lambda x: x + 1, cluster="cpu8", pins={"x": PartitionSpec("x")}, **given)(x)
        assert result.sharding.device_set == set(devices)
        assert next(s for s in result.addressable_shards if s.device == devices[0]).index[0] == slice(0, 1)
    with pytest.raises(RhinoError, match=r"RHI-RUN-004.*8 devices, and 2"):
        rhino.parallelize(lambda x: x + 1, cluster="cpu8", mesh="8", devices=devices[:2]).plan(x)


def test_typed_keys_are_arguments_results_and_arrays_of_their_own():
    def draw(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(jax.random.split, out_axes=0)(keys), jax.vmap(lambda key: jax.random.normal(key, (16,)))(keys)

    keys = jax.random.split(jax.random.key(3), 8)
    fast = rhino.parallelize(draw, cluster="cpu8", mesh="2x4", pins={"keys": "[{x, y}, {}]"})
    got, expected = fast(keys), jax.jit(draw)(keys)
    assert got[0].dtype == expected[0].dtype
    assert (jax.random.key_data(got[0]) == jax.random.key_data(expected[0])).all()
    same(got[1], expected[1])
    assert fast.plan(keys).partition_specs() == {"keys": PartitionSpec(("x", "y"))}


def test_it_lowers_and_compiles_ahead_as_jit_does():
    fast = rhino.parallelize(step, cluster="cpu8")
    state, batch, key = make_state(jax.random.key(0)), make_batch(jax.random.key(1)), jax.random.key(2)
    compiled = fast.lower(*jax.eval_shape(lambda *args: args, state, batch, key)).compile()
    assert "all-" in compiled.as_text()
    placed = jax.device_put((state, batch, key), fast.plan(state, batch, key).in_shardings)
    same(compiled(*placed), jax.jit(step)(state, batch, key))


def test_functions_of_any_kind():
    class Scale:
        def __call__(self, x: jax.Array) -> jax.Array:
            return x * 3

        def method(self, x: jax.Array, *rest: jax.Array, **named: jax.Array) -> jax.Array:
            return x + sum(rest) + named["z"]

    x = jnp.arange(8.0)
    for fn in (Scale(), partial(lambda a, x: a * x, 3.0), jax.jit(lambda x: x * 3), partial(Scale().method, z=x)):
        same(rhino.parallelize(fn, cluster="cpu8")(x), fn(x))
    same(rhino.parallelize(Scale().method, cluster="cpu8")(x, 1.0, x, z=2), x + 1.0 + x + 2)
    assert rhino.parallelize(lambda: jnp.arange(8.0).sum(), cluster="cpu8")() == 28
    assert rhino.parallelize(lambda x: None, cluster="cpu8")(x) is None
    with jax.enable_x64(True):
        assert rhino.parallelize(lambda x: x + 1, cluster="cpu8")(np.int64(2**40)) == 2**40 + 1


def test_errors_of_the_function_come_out_as_they_are():
    def fails(x: jax.Array) -> jax.Array:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        rhino.parallelize(fails, cluster="cpu8")(1.0)


def test_where_a_program_cannot_be_localized_xla_chooses_the_collectives(monkeypatch: pytest.MonkeyPatch):
    def refuse(module: object) -> None:
        raise RhinoError("RHI-LOCAL-001", "not this one")

    monkeypatch.setattr("rhino.passes.planner.aot.localized_copy", refuse)
    state, batch, key = make_state(jax.random.key(0)), make_batch(jax.random.key(1)), jax.random.key(2)
    fast = rhino.parallelize(step, cluster="cpu8", mesh="2x4")
    same(fast(state, batch, key), jax.jit(step)(state, batch, key))
    assert fast.plan(state, batch, key).facts.sharding.form == "annotated"


def test_without_a_cluster_the_host_devices_are_one():
    fast = rhino.parallelize(lambda x: (x * 2).sum())
    assert fast(jnp.ones((8, 8))) == 128
    assert fast.plan(jnp.ones((8, 8))).facts.mesh.axes == (("x", 8),)


BAD = {
    "leaf": (
        lambda: rhino.parallelize(step, cluster="cpu8")({"w": "text"}, {}, 0),
        r"RHI-JAX-001\] state\['w'\] of step is a str",
    ),
    "object": (lambda: rhino.parallelize(jnp.sin, cluster="cpu8")(object()), r"RHI-JAX-001.*is an object"),
    "traced": (lambda: jax.jit(rhino.parallelize(lambda x: x, cluster="cpu8"))(1.0), r"RHI-JAX-005.*inside jit"),
    "pin": (
        lambda: rhino.parallelize(lambda weight: weight, cluster="cpu8", pins={"wieght": PartitionSpec("x")}).plan(
            jnp.ones(8)
        ),
        r"(?s)RHI-PIN-002.*did you mean weight",
    ),
    "axis": (
        lambda: rhino.parallelize(lambda w: w, cluster="cpu8", pins={"w": PartitionSpec("q")}).plan(jnp.ones(8)),
        "RHI-PIN-002",
    ),
    "spec": (
        lambda: rhino.parallelize(lambda w: w, cluster="cpu8", pins={"w": 3}).plan(jnp.ones(8)),
        r"(?s)RHI-JAX-002.*PartitionSpec",
    ),
    "entry": (
        lambda: rhino.parallelize(lambda w: w, cluster="cpu8", pins={"w": PartitionSpec(3)}).plan(jnp.ones(8)),
        "RHI-JAX-002.*entry 3",
    ),
    "donated number": (
        lambda: rhino.parallelize(step, donate_argnums=7),
        r"RHI-JAX-002.*argument 7 of step, which takes 4",
    ),
    "donated name": (lambda: rhino.parallelize(step, donate_argnames="sate"), r"(?s)RHI-JAX-002.*'sate'.*state, batch"),
    "donated constant": (
        lambda: rhino.parallelize(step, donate_argnums=0, static_argnames="state"),
        "RHI-JAX-002.*both",
    ),
    "unhashable": (
        lambda: rhino.parallelize(lambda x, s: x, cluster="cpu8", static_argnums=1)(1.0, [2]),
        "RHI-JAX-002.*no hash",
    ),
    "no function": (lambda: rhino.parallelize(3), "RHI-JAX-002.*an int"),
    "unhashable array": (
        lambda: rhino.parallelize(lambda x, s: x, static_argnums=1)(1.0, jnp.ones(2)),
        "s of <lambda> is an array, which",
    ),
    "a device twice": (
        lambda: rhino.parallelize(step, devices=jax.devices()[:1] * 8),
        "RHI-RUN-004.*devices has .* more than once",
    ),
    "no device": (
        lambda: rhino.parallelize(step, devices=["a"] * 8),
        r"(?s)RHI-JAX-002.*'a', which is a str.*jax\.devices",
    ),
    "pad": (lambda: rhino.parallelize(step, pad=3), r"(?s)RHI-JAX-002\] pad is an int: 3.*names of arguments"),
    "pinned number": (
        lambda: rhino.parallelize(lambda w: w, cluster="cpu8", pins={0: PartitionSpec("x")}).plan(jnp.ones(8)),
        r"RHI-JAX-002\] a name of pins is an int, no text: 0",
    ),
    "cluster number": (lambda: rhino.parallelize(step, cluster=8), r"RHI-JAX-002\] cluster is an int, no path: 8"),
    "forbid": (
        lambda: rhino.parallelize(step, forbid="w=x"),
        r"(?s)RHI-JAX-002\] forbid is the text 'w=x'.*give a list",
    ),
    "no mesh": (lambda: rhino.parallelize(step, mesh=""), "RHI-CLI-001.*mesh: got ''"),
    "negative budget": (
        lambda: rhino.parallelize(step, budget=-5),
        r"(?s)RHI-JAX-002\] budget is -5, no memory size.*16GiB",
    ),
    "part of a byte": (lambda: rhino.parallelize(step, budget=1.5), r"RHI-JAX-002\] budget is 1\.5, no memory size"),
    "more than all": (lambda: rhino.parallelize(step, remat=1.5), r"RHI-REMAT-001\] remat is 1\.5, not between"),
    "shares": (
        lambda: rhino.parallelize(step, remat="0;0;0", stages=2),
        "RHI-REMAT-001.*3 shares, and stages is 2",
    ),
    "constraints": (
        lambda: rhino.parallelize(lambda x: x, cluster="cpu8", constraints="/nope.toml")(1.0),
        "(?s)RHI-CLI-002.*No such file.*to fix: give a TOML file",
    ),
    "new shapes": (lambda: rhino.parallelize(step, on_new_shapes="maybe"), "RHI-JAX-002.*maybe"),
    "mesh": (lambda: rhino.parallelize(step, mesh=8), "RHI-JAX-002.*no mesh, but 8"),
    "cluster": (lambda: rhino.parallelize(lambda x: x, cluster="v100x9")(1.0), "RHI-CLUSTER-001"),
    "budget": (lambda: rhino.parallelize(lambda x: x + 1, cluster="cpu8", budget=1e2)(jnp.ones(1000)), "RHI-SOLVE-001"),
    "callback": (
        lambda: rhino.parallelize(lambda x: (jax.debug.print("{}", x), x)[1], cluster="cpu8")(jnp.ones(8)),
        r"(?s)RHI-READ-003.*jax\.debug\.print",
    ),
    "keys on any mesh": (
        lambda: rhino.parallelize(lambda k: k, cluster="cpu8", mesh="auto")(jax.random.key(0)),
        "RHI-MESH-002.*typed keys",
    ),
    "init first": (
        lambda: rhino.parallelize(step, cluster="cpu8").init(make_state, jax.random.key(0)),
        r"(?s)RHI-JAX-006.*step\.plan",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_refused_in_a_jax_users_words(case: str):
    call, words = BAD[case]
    with pytest.raises(RhinoError, match=words):
        call()


def test_wrong_arguments_are_pythons_errors():
    fast = rhino.parallelize(step, cluster="cpu8")
    with pytest.raises(TypeError, match="step: missing a required argument: 'key'"):
        fast({}, {})
    with pytest.raises(TypeError, match="unexpected keyword argument 'seed'"):
        fast({}, {}, 0, seed=1)


def test_state_of_another_kind_is_refused():
    fast = rhino.parallelize(step, cluster="cpu8")
    key = jax.random.key(0)
    fast.plan(jax.eval_shape(make_state, key), jax.eval_shape(make_batch, key), key)
    with pytest.raises(
        RhinoError, match=r"(?s)RHI-JAX-004.*state\.params\['scale'\]: .* gives bfloat16\[\], step takes float32\[\]"
    ):
        fast.init(partial(make_state, dtype=jnp.bfloat16), key)
    with pytest.raises(RhinoError, match=r"(?s)RHI-JAX-004.*tuple of 2"):
        fast.init(make_state, key, argnums=(0, 1))
    with pytest.raises(RhinoError, match=r"RHI-JAX-002.*argument 9"):
        fast.init(make_state, key, argnums=9)
