"""A training step of two layers with momentum, whose state is parameters and moments."""

import jax
import jax.numpy as jnp


def step(state, x):
    def loss(params):
        h = x
        for w in params:
            h = jnp.tanh(h @ w)
        return (h**2).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, state["moments"], grads)
    return {"params": jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], moments), "moments": moments}, value
