"""Parts that models of every kind share.

These are initial weights, normalisation, dropout, compute types and the loss of a classifier.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp

Params = dict[str, Any]
DType = Literal["f32", "bf16", "f16"]

DTYPES: Final = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def cast(params: Params, dtype: DType) -> Params:
    """Returns the parameters in the type that a model computes in."""
    cast_params: Params = jax.tree.map(lambda p: p.astype(DTYPES[dtype]), params)
    return cast_params


def normal(key: jax.Array, *shape: int) -> jax.Array:
    """Returns float32 weights of standard deviation 0.02 (GPT-2's)."""
    return jax.random.normal(key, shape, jnp.float32) * 0.02


def he_normal(key: jax.Array, *shape: int) -> jax.Array:
    """Returns float32 weights of `shape` [..., out] that keep the scale through a ReLU.

    Their variance is 2 / inputs (He et al., 2015).
    """
    return jax.random.normal(key, shape, jnp.float32) * math.sqrt(2 / math.prod(shape[:-1]))


def init_norm(features: int) -> Params:
    """Returns the parameters of a normalisation with scale and bias."""
    return {"scale": jnp.ones(features), "bias": jnp.zeros(features)}


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    """Normalises the last dimension of `x`, in float32 whatever the type of `x`."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    normalized = ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)
    return jnp.add(normalized * p["scale"], p["bias"])


def rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    """Divides the last dimension of `x` by its root mean square, in float32 whatever the type of `x`."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def dropout(rate: float, key: jax.Array, x: jax.Array) -> jax.Array:
    """Zeroes each element with probability `rate` (threefry bits) and rescales the others; rate 0 adds no op."""
    if rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the cross entropy, in float32, of `logits` [..., classes] against `labels` [...] (int32)."""
    wide = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(wide, labels[..., None], axis=-1)[..., 0]
    return jnp.subtract(jax.nn.logsumexp(wide, axis=-1), chosen)
