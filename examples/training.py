"""Turn a loss function into a whole training step (forward, backward, Adam), and write it as StableHLO.

The models beside this file are plain JAX: a frozen configuration, `init(key)`, `loss(params, batch, key)` and
`sample(key)`. This module adds what every one of them needs to be a training step, so that a model file holds the model
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

Params = Any
Batch = Any

PLATFORM: Final = "cpu"


class Adam(NamedTuple):
    """Hyper-parameters of Adam with bias correction (Kingma and Ba, 2015, algorithm 1)."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8


ADAM: Final = Adam()


class State(NamedTuple):
    """What a training step carries: parameters, both moments of Adam, and the number of steps taken."""

    params: Params
    mu: Params
    nu: Params
    step: jax.Array


class Model(NamedTuple):
    """A model that can be trained: how to start it, its loss, and how to draw a random batch.

    Every function takes a key last. A model that is not trained has a `step` of its own, from a state that `init` gives
    and a batch to the next state and a result; its loss is never asked for. `platform` is what a step is lowered for: a
    vendor's only where the model has its kernels, and otherwise the CPU, whose lowering has no custom calls.
    """

    name: str
    init: Callable[[jax.Array], Params]
    loss: Callable[[Params, Batch, jax.Array], jax.Array]
    sample: Callable[[jax.Array], Batch]
    platform: str = PLATFORM
    step: Callable[[Any, Batch], tuple[Any, Any]] | None = None

    @property
    def batch(self) -> Batch:
        """The shapes of one batch: a pytree of `jax.ShapeDtypeStruct`."""
        return jax.eval_shape(self.sample, jax.random.key(0))


def init_state(model: Model, key: jax.Array) -> Any:  # noqa: ANN401 - `State`, or a model's own
    """Returns the state before the first step: a `State`, or that of a model with a step of its own."""
    params = model.init(key)
    if model.step is not None:
        return params
    return State(
        params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32)
    )


def make_step(model: Model, adam: Adam = ADAM, seed: int = 0) -> Callable[[Any, Batch], tuple[Any, Any]]:
    """Returns `step(state, batch) -> (state, loss)`, or the model's own step, if it has one.

    Dropout keys are folded from `seed` and the step number.
    """
    if model.step is not None:
        return model.step

    def step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        loss, grads = jax.value_and_grad(model.loss)(state.params, batch, key)
        count = state.step + 1
        time = count.astype(jnp.float32)
        scale1, scale2 = 1 / (1 - adam.beta1**time), 1 / (1 - adam.beta2**time)
        mu = jax.tree.map(lambda m, g: adam.beta1 * m + (1 - adam.beta1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: adam.beta2 * v + (1 - adam.beta2) * g * g, state.nu, grads)

        def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            return p - adam.learning_rate * (m * scale1) / (jnp.sqrt(v * scale2) + adam.epsilon)

        return State(jax.tree.map(update, state.params, mu, nu), mu, nu, count), loss

    return step


def abstract_state(model: Model) -> Any:  # noqa: ANN401 - as above
    """Returns the shapes of the state: nothing is allocated, so any size works on a laptop."""
    return jax.eval_shape(lambda: init_state(model, jax.random.key(0)))


def num_params(model: Model) -> int:
    """Returns the number of trained values."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = shapes if model.step is None else shapes["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def jit_step(model: Model, adam: Adam = ADAM, seed: int = 0) -> jax.stages.Wrapped:
    """Returns the training step under `jax.jit`; the old state is donated."""
    return jax.jit(make_step(model, adam, seed), donate_argnums=0)


def lower_step(model: Model, adam: Adam = ADAM, seed: int = 0) -> jax.stages.Lowered:
    """Lowers the training step for its shapes alone: the module is the same on every machine."""
    traced = jit_step(model, adam, seed).trace(abstract_state(model), model.batch)
    lowered: jax.stages.Lowered = traced.lower(lowering_platforms=(model.platform,))
    return lowered


def export_step(model: Model, adam: Adam = ADAM, seed: int = 0) -> str:
    """Returns the training step as StableHLO text, with locations (argument names and scopes)."""
    return str(lower_step(model, adam, seed).as_text(debug_info=True))
