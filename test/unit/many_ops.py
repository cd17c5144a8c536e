"""A program with a result for each kind of op that a plan splits in its own way; none hides the error of another."""

import jax
import jax.numpy as jnp
from jax import lax


def results(x: jax.Array, y: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    """Maps x [16, 32], y [32, 16] (float32) and n [16] (int32, below 8) to a result for each op."""
    z = x @ y
    rows, columns = (lax.broadcasted_iota(jnp.float32, (16, 32), dim) for dim in (0, 1))
    return {**reductions(x, y), **movements(x, y, z, n), **products(x, y, z, n), "iota": x + rows * columns}


def reductions(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {
        "sum": x.sum(1),
        "max": x.max(0),
        "min": y.min(1),
        "prod": (1 + x).prod(0),
        "any": (x > 0.09).any(0),
        "all": (x > -0.09).all(1),
        "argmax": x.argmax(0),
        "argmin": y.argmin(1),
        "sort": jnp.sort(x, 1),
        "cumsum": jnp.cumsum(x, 0),
        "window": lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"),
    }


def movements(x: jax.Array, y: jax.Array, z: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    return {
        "concatenate": jnp.concatenate([x, y.T], 0),
        "slice": x[3:11, ::2],
        "pad": jnp.pad(x, ((1, 7), (0, 8))),
        "reverse": x[::-1],
        "transpose": x.T.reshape(8, 4, 16),
        "split": (x * 2).reshape(4, 4, 32).sum(1),
        "merge": x.reshape(512),
        "gather": y[n],
        "scatter": jnp.zeros((32, 16)).at[n].add(z),
        "dynamic_slice": lax.dynamic_slice(x, (n[0], 0), (8, 32)),
        "dynamic_update_slice": lax.dynamic_update_slice(x, z[:8, :8], (n[1], 4)),
        "select": jnp.where(x > 0, x, -1.0),
    }


def products(x: jax.Array, y: jax.Array, z: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    return {
        "einsum": jnp.einsum("ij,jk,ik->jk", x, y, z),
        "convolution": lax.conv(x.reshape(2, 8, 32, 1), y.reshape(8, 8, 8, 1), (1, 1), "SAME"),
        "bf16": x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16),
        "integer": (n[:, None] * n[None, :]).sum(0),
        "one_hot": jax.nn.one_hot(n, 32) @ y,
        "softmax": jax.nn.softmax(10 * z, 1),
        "logsumexp": jax.nn.logsumexp(z, 0),
        "random": jax.random.uniform(jax.random.key(3), (16, 32)) + x,
    }


def text() -> bytes:
    """Returns the program as StableHLO."""
    x, y, n = (
        jax.ShapeDtypeStruct(s, d) for s, d in (((16, 32), jnp.float32), ((32, 16), jnp.float32), ((16,), jnp.int32))
    )
    return str(jax.jit(results).lower(x, y, n).as_text(debug_info=True)).encode()
