"""Training steps whose layers are a `lax.scan`: what a loop over layers may do.

Every step is a function of a state and a batch; `LAYERS` layers of `WIDTH` features.
"""

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, BATCH = 6, 8, 8


def state():
    keys = jax.random.split(jax.random.key(0), 3)
    params = {
        "in": jax.random.normal(keys[0], (4, WIDTH)) * 0.5,
        "layers": {
            "up": jax.random.normal(keys[1], (LAYERS, WIDTH, 2 * WIDTH)) * 0.3,
            "down": jax.random.normal(keys[2], (LAYERS, 2 * WIDTH, WIDTH)) * 0.3,
            "scale": jnp.ones((LAYERS, WIDTH)),
        },
        "out": jnp.ones((WIDTH, 3)) * 0.2,
    }
    return params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)


def batch():
    keys = jax.random.split(jax.random.key(1), 2)
    return {"x": jax.random.normal(keys[0], (BATCH, 4)), "y": jax.random.normal(keys[1], (BATCH, 3))}


def layer(x, p):
    return x + jnp.tanh(x * p["scale"] @ p["up"]) @ p["down"]


def adam(state, batch, run, clip=False, narrow=False):
    """Adam with `run` for the layers, clipped by the norm of the gradient if that is asked for."""
    params, mu, nu = state

    def loss(params):
        layers = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params["layers"]) if narrow else params["layers"]
        x = run((batch["x"] @ params["in"]).astype(layers["up"].dtype), layers).astype(jnp.float32)
        return jnp.mean((x @ params["out"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
    if clip:
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.1 / norm), grads)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, grads)
    params = jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(v) + 1e-6), params, mu, nu)
    return (params, mu, nu), (value, norm)


def plain(state, batch):
    return adam(state, batch, lambda x, layers: jax.lax.scan(lambda h, p: (layer(h, p), None), x, layers)[0])


def clipped(state, batch):
    """The norm of the gradient scales it: a sum over the rows of stacks that all rows wait for."""

    def run(x, layers):
        return jax.lax.scan(lambda h, p: (layer(h, p), None), x, layers)[0]

    return adam(state, batch, run, clip=True)


def narrow(state, batch):
    """Layers in bf16: the stacks that the loop reads are converted before it."""

    def run(x, layers):
        return jax.lax.scan(lambda h, p: (layer(h, p), None), x, layers)[0]

    return adam(state, batch, run, narrow=True)


def dropped(state, batch):
    """Dropout by a key for each layer."""

    def one(h, each):
        p, key = each
        return layer(h, p) * jax.random.bernoulli(key, 0.8, h.shape), None

    def run(x, layers):
        return jax.lax.scan(one, x, (layers, jax.random.split(jax.random.key(0), LAYERS)))[0]

    return adam(state, batch, run)


def checkpointed(state, batch):
    """Only what goes from layer to layer is kept."""

    def run(x, layers):
        return jax.lax.scan(lambda h, p: (jax.checkpoint(layer)(h, p), None), x, layers)[0]

    return adam(state, batch, run)


def counted(state, batch):
    """The number of the layer is read in it, and an index that is carried."""

    def one(carry, p):
        h, number = carry
        return (layer(h, p) * (1 + 0.1 * number), number + 1), None

    def run(x, layers):
        (h, number), _ = jax.lax.scan(one, (x, jnp.float32(0)), layers)
        return h + number

    return adam(state, batch, run)


def indexed(state, batch):
    """A loop whose counter is read beside the rows, and that gives a value of each layer."""

    def one(index, carry):
        h, means = carry
        p = jax.tree.map(lambda stack: stack[index], state[0]["layers"])
        h = layer(h, p) / (1 + index)
        return h, means.at[index].set(h.mean())

    h, means = jax.lax.fori_loop(0, LAYERS, one, (batch["x"] @ state[0]["in"], jnp.zeros(LAYERS)))
    params = {**state[0], "layers": jax.tree.map(lambda p: p * 0.9, state[0]["layers"])}
    return (params, state[1], state[2]), (h.sum(), means)


def turned(state, batch):
    """Rows are read from the last to the first by a loop of the model's own."""

    def run(x, layers):
        return jax.lax.scan(lambda h, p: (layer(h, p), None), x, layers, reverse=True)[0]

    return adam(state, batch, run)


def twice(state, batch):
    """Two loops read the same stacks."""

    def run(x, layers):
        for _ in range(2):
            x = jax.lax.scan(lambda h, p: (layer(h, p), None), x, layers)[0]
        return x

    return adam(state, batch, run)


def apart(state, batch):
    """Two loops over stacks of their own, the second of which reads what the first gives in each iteration."""

    def run(x, layers):
        own = {name: layers[name] for name in ("up", "down")}
        first = jax.lax.scan(lambda h, p: (h + jnp.tanh(h @ p["up"]) @ p["down"], None), x, own)[0]
        return jax.lax.scan(lambda h, scale: (jnp.sin(h * scale + first), None), x, layers["scale"])[0]

    return adam(state, batch, run)


STEPS = {
    one.__name__: one for one in (plain, clipped, narrow, dropped, checkpointed, counted, indexed, turned, twice, apart)
}


def text(step) -> bytes:
    """Returns a step as StableHLO."""
    return (
        jax.jit(step, donate_argnums=0, keep_unused=True)
        .lower(*jax.eval_shape(lambda: (state(), batch())))
        .as_text()
        .encode()
    )


def values() -> list[np.ndarray]:
    """Returns the arguments of a step, by leaf."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves((state(), batch()))]
