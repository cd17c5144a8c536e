"""A step of three parts, each of which may be in a scope, for tests of scopes, stages and replicas."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

BATCH = 24
Scope = Callable[[], Any]
Params = dict[str, jax.Array]
Made = tuple[Callable[..., Any], Params]


def normal(number: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(jax.random.key(7), number), shape) / (shape[0] ** 0.5)


def tied_batch() -> jax.Array:
    return normal(9, BATCH, 16)


def tied(scopes: Sequence[Scope]) -> Made:
    """Dropout, a residual, a part that is recomputed, and a weight that the first and last of three scopes share."""
    params = {"ends": normal(1, 16, 48), "own": normal(2, 48, 48), "up": normal(3, 48, 24), "down": normal(4, 24, 48)}

    def step(params: Params, x: jax.Array, number: jax.Array) -> tuple[Params, jax.Array]:
        key = jax.random.fold_in(jax.random.key(1), number)

        def loss(params: Params) -> jax.Array:
            with scopes[0]():
                h = jax.nn.relu(x @ params["ends"])
                h = kept = h * jax.random.bernoulli(key, 0.9, h.shape)
            with scopes[1]():
                h = jax.checkpoint(lambda h, up, down: jnp.tanh(h @ up) @ down)(h, params["up"], params["down"])
            h = h + kept
            with scopes[2]():
                h = jnp.tanh(h @ params["own"]) @ params["ends"].T
            return ((h - x) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda a, g: a - 0.1 * g, params, grads), value

    return step, params
