"""A step whose first layers have large activations and few parameters, and the last ones the other way round."""

import jax
import jax.numpy as jnp

SHAPE = jax.ShapeDtypeStruct


def step_of(tokens, hidden, wide, layers, batch):
    """Returns the step, its state and its batch; between both kinds of layers there is a number for each token."""
    sizes = [(hidden, hidden)] * layers, [(tokens, wide), *[(wide, wide)] * (layers - 1)]
    state = tuple([[SHAPE(size, jnp.float32) for size in some] for some in sizes])
    return train, state, SHAPE((batch, tokens, hidden), jnp.float32)


def loss(state, batch):
    narrow, wide = state
    hidden = batch
    for weight in narrow:
        hidden = jax.nn.gelu(hidden @ weight)
    pooled = hidden.mean(axis=-1)
    for weight in wide:
        pooled = jnp.tanh(pooled @ weight)
    return (pooled**2).mean()


def train(state, batch):
    value, grads = jax.value_and_grad(loss)(state, batch)
    return jax.tree.map(lambda one, grad: one - 0.1 * grad, state, grads), value
