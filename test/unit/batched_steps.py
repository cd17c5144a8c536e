"""Training steps that use a batch in one way each: what micro-batches have to keep.

Every step is (function, state, batch).
"""

import jax
import jax.numpy as jnp

KEY = jax.random.key(0)
SHAPE = jax.ShapeDtypeStruct


def params(dtype=jnp.float32):
    keys = jax.random.split(KEY, 3)
    return {
        "up": (jax.random.normal(keys[0], (6, 10)) * 0.3).astype(dtype),
        "down": (jax.random.normal(keys[1], (10, 4)) * 0.3).astype(dtype),
        "scale": jnp.ones((), dtype),
    }


BATCH = {"x": SHAPE((8, 6), jnp.float32), "y": SHAPE((8, 4), jnp.float32)}


def hidden(p, x):
    return jnp.tanh(x @ p["up"])


def errors(p, batch):
    return ((hidden(p, batch["x"]) @ p["down"]) * p["scale"] - batch["y"]) ** 2


def descend(p, grads, rate=0.1):
    return jax.tree.map(lambda a, g: a - rate * g.astype(a.dtype), p, grads)


def mean_loss(p, batch):
    loss, grads = jax.value_and_grad(lambda p: errors(p, batch).mean())(p)
    return descend(p, grads), loss


def sum_loss(p, batch):
    loss, grads = jax.value_and_grad(lambda p: errors(p, batch).sum())(p)
    return descend(p, grads, 0.01), loss


def clipped(p, batch):
    """Clips the gradient by its global norm, which is returned too."""
    loss, grads = jax.value_and_grad(lambda p: errors(p, batch).mean())(p)
    norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
    return descend(p, jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.1 / norm), grads)), (loss, norm)


def keyed_by_batch(p, batch):
    """Drops features at random, by a key that the first example of the batch gives."""
    key = jax.random.key(batch["x"].astype(jnp.int32)[0, 0])
    kept = jax.random.bernoulli(key, 0.7, (batch["x"].shape[0], p["up"].shape[1]))

    def loss(p):
        x = jnp.where(kept, hidden(p, batch["x"]), 0)
        return ((x @ p["down"] - batch["y"]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


def several_losses(p, batch):
    """An auxiliary loss, a regulariser, and metrics: a count, a maximum, and what each example lost."""

    def loss(p):
        e = errors(p, batch)
        auxiliary = jnp.abs(hidden(p, batch["x"])).mean(axis=1).sum()
        decay = sum((w * w).sum() for w in jax.tree.leaves(p))
        return e.mean() + 0.01 * auxiliary + 1e-3 * decay, (e, auxiliary)

    (total, (e, auxiliary)), grads = jax.value_and_grad(loss, has_aux=True)(p)
    metrics = {
        "near": (e.sum(1) < 1.0).sum(),
        "worst": e.max(),
        "least": e.min(),
        "each": e.mean(1),
        "any": (e > 2.0).any(),
    }
    return descend(p, grads), (total, auxiliary, metrics)


def counted(p, batch):
    """Means over the examples that count, how many being known when all of the batch is."""
    counts = (batch["y"][:, 0] > 0).astype(jnp.float32)
    loss, grads = jax.value_and_grad(
        lambda p: (errors(p, batch).mean(1) * counts).sum() / jnp.maximum(counts.sum(), 1.0)
    )(p)
    return descend(p, grads), (loss, counts.sum())


def ranked(p, batch):
    """Metrics that need what each example lost, all of it: a median."""
    e, grads = jax.value_and_grad(lambda p: errors(p, batch).mean())(p)
    return descend(p, grads), (e, jnp.median(errors(p, batch).sum(1)))


def narrow(p, batch):
    """Computes in bf16 on parameters of f32."""

    def loss(p):
        low = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (p, batch))
        return errors(*low).astype(jnp.float32).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


def dropped(p, batch):
    """Drops values by bits that are drawn for the whole batch."""
    key = jax.random.wrap_key_data(jnp.array([1, 2, 3, 4], jnp.uint32), impl="rbg")
    mask = jax.random.bernoulli(key, 0.7, (8, 10))
    value, grads = jax.value_and_grad(
        lambda p: (jnp.where(mask, hidden(p, batch["x"]), 0.0) @ p["down"] - batch["y"]).sum() ** 1
    )(p)
    return descend(p, grads, 0.01), value


def scanned(p, batch):
    """A scan whose carry is a block of the batch and a sum over it, with dropout in its body."""

    def layer(carry, key):
        x, total = carry
        x = jnp.tanh(x @ p["up"] @ p["up"].T) * jax.random.bernoulli(key, 0.8, x.shape)
        return (x, total + (x * x).mean()), x.mean()

    def loss(w):
        p["up"] = w
        (x, total), means = jax.lax.scan(layer, (batch["x"], jnp.zeros(())), jax.random.split(KEY, 3))
        return (x**2).mean() + 0.1 * total, means

    (value, means), grad = jax.value_and_grad(loss, has_aux=True)(p["up"])
    return {**p, "up": p["up"] - 0.1 * grad}, (value, means)


def adam(state, batch):
    p, mu, nu, count = state
    loss, grads = jax.value_and_grad(lambda p: errors(p, batch).mean())(p)
    count = count + 1
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, grads)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, nu, grads)
    new = jax.tree.map(
        lambda a, m, v: a - 0.01 * m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8), p, mu, nu
    )
    return (new, mu, nu, count), loss


def orthogonal(p, batch):
    """An optimizer that multiplies gradients with themselves, in a loop."""
    loss, grads = jax.value_and_grad(lambda p: errors(p, batch).mean())(p)

    def sharpen(_, g):
        return 1.5 * g - 0.5 * g @ g.T @ g

    up = jax.lax.fori_loop(0, 3, sharpen, grads["up"] / jnp.linalg.norm(grads["up"]))
    return {**p, "up": p["up"] - 0.1 * up}, loss


def sideways(p, batch):
    """The batch is the last dim."""
    loss, grads = jax.value_and_grad(lambda p: ((p["up"].T @ batch["x"]) ** 2).mean())(p)
    return descend(p, grads), (loss, p["up"].T @ batch["x"])


def two_batches(p, batch):
    """Two losses, each with inputs of its own."""

    def loss(p):
        return errors(p, batch["first"]).mean() + 0.5 * hidden(p, batch["second"]).sum()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


def towers(p, batch):
    """Two towers that meet example by example."""

    def loss(p):
        left, right = hidden(p, batch["x"]) @ p["down"], jnp.sin(batch["y"] @ p["down"].T) @ p["down"]
        return jax.nn.softplus(-(left * right).sum(-1)).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


def remembered(state, batch):
    """Carries a value for each example from step to step."""
    p, memory = state
    value, grads = jax.value_and_grad(lambda p: ((hidden(p, batch["x"]) + memory) ** 2).mean())(p)
    return (descend(p, grads), 0.9 * memory + hidden(p, batch["x"])), value


def rematerialized(p, batch):
    """Computes the hidden layer again for the backward pass."""
    loss, grads = jax.value_and_grad(
        lambda p: ((jax.checkpoint(hidden)(p, batch["x"]) @ p["down"] - batch["y"]) ** 2).mean()
    )(p)
    return descend(p, grads), loss


def fenced(p, batch):
    """Sums the batch behind a barrier that passes on a part of it too.

    There is a barrier in the micro-batches, and one before them.
    """

    def loss(p):
        h, x = jax.lax.optimization_barrier((hidden(p, batch["x"]), batch["x"]))
        return (((h + 0.1 * x.sum()) @ p["down"] - batch["y"]) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


def skipped(p, batch):
    """Leaves the state as it is where the loss is not finite."""
    loss, grads = jax.value_and_grad(lambda p: errors(p, batch).mean())(p)
    return jax.lax.cond(jnp.isfinite(loss), lambda: descend(p, grads), lambda: p), loss


def keyed(state, batch):
    """A scan that carries a random key beside a block of the batch; the key is returned."""
    p, key = state

    def layer(carry, _):
        x, key = carry
        key, mine = jax.random.split(key)
        return (jnp.tanh(x @ p["up"] @ p["up"].T) * jax.random.bernoulli(mine, 0.8, x.shape), key), None

    def loss(up):
        p["up"] = up
        (x, last), _ = jax.lax.scan(layer, (batch["x"], jax.random.wrap_key_data(key)), None, length=3)
        return (x**2).mean(), jax.random.key_data(last)

    (value, last), grad = jax.value_and_grad(loss, has_aux=True)(p["up"])
    return ({**p, "up": p["up"] - 0.1 * grad}, last), value


def looked_up(p, batch):
    """Rows of a table, gathered twice, and a histogram that is added to in two scatters."""

    def loss(p):
        first, second = p["up"][batch["i"][:, 0]], p["up"][batch["i"][:, 1:]].sum(1)
        return ((first * second) @ p["down"]).mean()

    value, grads = jax.value_and_grad(loss)(p)
    seen = jnp.zeros(6, jnp.int32).at[batch["i"][:, 0]].add(1).at[batch["i"][:, 1]].add(2)
    return descend(p, grads), (value, seen)


def placed(p, batch):
    """Adds a table with a row for each example, and one that the places in the batch make.

    It returns what scales them.
    """
    table = jnp.asarray(jax.device_get(jax.random.normal(KEY, (8, 6))))
    scale = jnp.full((8, 6), 0.5)
    x = batch["x"] + scale * (table + jnp.sin(jnp.arange(48.0)).reshape(8, 6))
    new, loss = mean_loss(p, {**batch, "x": x})
    return new, (loss, scale[0])


def ordered(p, batch):
    """Weighs examples by a running sum over the batch of what the batch alone says."""
    weights = jnp.cumsum(batch["y"][:, 0])
    loss, grads = jax.value_and_grad(lambda p: (errors(p, batch).mean(1) * weights).sum())(p)
    return descend(p, grads, 0.01), loss


def chosen(p, batch):
    """One output of each example, as of an action that was taken, and a loss that is not linear in it."""

    def loss(p):
        values = hidden(p, batch["x"]) @ p["down"]
        return jnp.tanh(values[jnp.arange(values.shape[0]), batch["i"]]).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


def length_first(p, batch):
    """All rows are one dim, [length * batch, width], in a loop and outside; the batch is merged with heads, too."""

    def rows(h, w):  # [length, batch, width]
        return (jnp.tanh(h.reshape(-1, h.shape[-1]) @ w) + w[0]).reshape(*h.shape[:-1], w.shape[-1])

    def attended(h):
        heads = h.reshape(len(h), -1, 5).swapaxes(0, 1)  # [batch * heads, length, 5]
        chances = jax.nn.softmax(heads @ heads.swapaxes(1, 2))
        return (chances @ heads).swapaxes(0, 1).reshape(h.shape)

    def loss(p):
        h, between = p["up"][batch["i"]].swapaxes(0, 1), p["down"] @ p["up"][:4]
        h, _ = jax.lax.scan(lambda h, w: (rows(attended(h), w), None), h, jnp.stack([between, between.T]))
        h = rows(h[::-1], p["down"])
        return (h.reshape(-1, 4) ** 2).sum(axis=1).mean()

    value, grads = jax.value_and_grad(loss)(p)
    return descend(p, grads), value


STEPS = {
    "mean-loss": (mean_loss, params(), BATCH),
    "sum-loss": (sum_loss, params(), BATCH),
    "clipped": (clipped, params(), BATCH),
    "several-losses": (several_losses, params(), BATCH),
    "counted": (counted, params(), BATCH),
    "keyed-by-batch": (keyed_by_batch, params(), BATCH),
    "ranked": (ranked, params(), BATCH),
    "bf16": (narrow, params(), BATCH),
    "dropped": (dropped, params(), BATCH),
    "scanned": (scanned, params(), BATCH),
    "adam": (
        adam,
        (
            params(),
            jax.tree.map(jnp.zeros_like, params()),
            jax.tree.map(jnp.zeros_like, params()),
            jnp.zeros((), jnp.int32),
        ),
        BATCH,
    ),
    "orthogonal": (orthogonal, params(), BATCH),
    "sideways": (sideways, params(), {"x": SHAPE((6, 8), jnp.float32)}),
    "two-batches": (two_batches, params(), {"first": BATCH, "second": SHAPE((16, 6), jnp.float32)}),
    "towers": (towers, params(), BATCH),
    "fenced": (fenced, params(), BATCH),
    "skipped": (skipped, params(), BATCH),
    "keyed": (keyed, (params(), jnp.zeros(2, jnp.uint32)), BATCH),
    "looked-up": (looked_up, params(), {"i": SHAPE((8, 3), jnp.int32)}),
    "placed": (placed, params(), BATCH),
    "ordered": (ordered, params(), BATCH),
    "length-first": (length_first, params(), {"i": SHAPE((8, 3), jnp.int32)}),
    "chosen": (chosen, params(), {"x": BATCH["x"], "i": SHAPE((8,), jnp.int32)}),
    "rematerialized": (rematerialized, params(), BATCH),
}
MEMORY = (remembered, (params(), jnp.zeros((8, 10))), BATCH)


def text(step, *, donate=True):
    """The step as StableHLO."""
    function, state, batch = step
    lowered = (
        jax.jit(function, donate_argnums=0 if donate else ()).trace(state, batch).lower(lowering_platforms=("cpu",))
    )
    return lowered.as_text(debug_info=True).encode()
