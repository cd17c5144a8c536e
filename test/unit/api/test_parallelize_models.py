"""Models of flax and optimizers of optax train under `rhino.parallelize` as under jit.

Losses are the same, and state is where the plan wants it.
"""

import logging
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rhino

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what they warn of when they are loaded
    import flax_gpt
    import optax
    from flax import nnx


@pytest.mark.long
def test_a_linen_gpt_with_optax_trains_for_twenty_steps():
    losses = list(flax_gpt.train(flax_gpt.TINY, 20))
    np.testing.assert_allclose([loss for _, loss in losses], [wanted for wanted, _ in losses], rtol=2e-4)
    assert losses[-1][1] < losses[0][1] - 0.5


def test_a_linen_gpt_with_optax_trains_in_two_stages():
    training, key = flax_gpt.Training(flax_gpt.TINY), jax.random.key(0)
    fast = rhino.parallelize(training.step, cluster="cpu2", stages=2, mesh="1", micro_batches=2, donate_argnums=0)
    plan = fast.plan(jax.eval_shape(training.init, key), *training.batch(0))
    one, expected = jax.jit(training.step), jax.jit(training.init)(key)
    state = fast.init(training.init, key)
    for number in range(20):
        expected, wanted = one(expected, *training.batch(number))
        state, loss = fast(state, *training.batch(number))
        np.testing.assert_allclose(float(loss), float(wanted), rtol=2e-5)
    assert jax.tree.map(lambda array: array.sharding, state) == plan.in_shardings[0]


TX = optax.adam(1e-2)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(16, 64, rngs=rngs)
        self.norm = nnx.LayerNorm(64, rngs=rngs)
        self.outer = nnx.Linear(64, 16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer(nnx.relu(self.norm(self.inner(x))))


def nnx_loss(model: Net, x: jax.Array) -> jax.Array:
    return ((model(x) - x) ** 2).mean()


def test_nnx_modules_are_split_and_merged():
    model = Net(nnx.Rngs(0))
    graph, params = nnx.split(model, nnx.Param)
    tx = optax.adam(1e-2)

    def step(params: Any, moments: Any, x: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, grads = jax.value_and_grad(lambda params: nnx_loss(nnx.merge(graph, params), x))(params)
        updates, moments = tx.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, value

    fast, reference = rhino.parallelize(step, cluster="cpu8", mesh="2x4", donate_argnums=(0, 1)), jax.jit(step)
    ours = theirs = (params, tx.init(params))
    ours = jax.tree.map(jnp.copy, ours)
    for number in range(5):
        x = jax.random.normal(jax.random.key(number), (32, 16))
        *ours, got = fast(*ours, x)
        *theirs, expected = reference(*theirs, x)
        assert got == pytest.approx(float(expected), rel=2e-5)


def test_nnx_modules_and_optimizers_are_arguments(caplog: pytest.LogCaptureFixture):
    def step(model: Net, optimizer: nnx.Optimizer, x: jax.Array) -> tuple[Net, nnx.Optimizer, jax.Array]:
        value, grads = nnx.value_and_grad(nnx_loss)(model, x)
        optimizer.update(model, grads)
        return model, optimizer, value

    def made(tx: optax.GradientTransformation = TX) -> tuple[Net, nnx.Optimizer]:
        model = Net(nnx.Rngs(0))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    fast, reference = rhino.parallelize(step, cluster="cpu8", donate_argnums=(0, 1)), jax.jit(step)
    ours, theirs = made(), made()
    for number in range(3):
        x = jax.random.normal(jax.random.key(number), (32, 16))
        *ours, got = fast(*ours, x)
        *theirs, expected = reference(*theirs, x)
        assert got == pytest.approx(float(expected), rel=2e-5)
    assert len(fast._entries) == 1
    with caplog.at_level(logging.INFO, logger="rhino"):
        fast.plan(*made(), x)
        assert not caplog.records
        fast.plan(*made(optax.adam(1e-2)), x)
    words = "step is planned again: optimizer: a node of type Optimizer differs in what is no array; functions that are"
    assert caplog.records[0].getMessage().startswith(words)


@pytest.mark.parametrize("name", ["sgd", "adafactor", "lion"])
def test_optimizers_of_optax_carry_their_state(name: str):
    tx = getattr(optax, name)(1e-2, **({"momentum": 0.9} if name == "sgd" else {}))

    def init(key: jax.Array) -> tuple[Any, Any]:
        params = {"w": jax.random.normal(key, (128, 256)) / 12, "b": jnp.zeros(256)}
        return params, tx.init(params)

    def step(state: tuple[Any, Any], x: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        params, moments = state
        value, grads = jax.value_and_grad(lambda p: (jnp.tanh(x @ p["w"] + p["b"]) ** 2).mean())(params)
        updates, moments = tx.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    fast, reference = rhino.parallelize(step, cluster="cpu8"), jax.jit(step)
    x = jax.random.normal(jax.random.key(1), (16, 128))
    plan = fast.plan(jax.eval_shape(init, jax.random.key(0)), x)
    assert plan.in_shardings[0] == plan.out_shardings[0]
    ours, theirs = fast.init(init, jax.random.key(0)), init(jax.random.key(0))
    for _ in range(3):
        ours, got = fast(ours, x)
        theirs, expected = reference(theirs, x)
        assert got == pytest.approx(float(expected), rel=2e-5)
