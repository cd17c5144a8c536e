"""Convolutions, their normalisation and pooling (in plain JAX), shared by the models beside this file.

Images are [batch, height, width, channels], sequences [batch, length, channels]; a convolution's weights end in [in,
out].
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from layers import Params


def conv(x: jax.Array, weights: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Convolves `x` [batch, *space, in] with `weights` [*window, in / groups, out]; a stride of 1 keeps its size.

    Channels are in `groups`, each convolved by itself.
    """
    space = "HW"[: x.ndim - 2]
    layouts = f"N{space}C", f"{space}IO", f"N{space}C"
    strides = (stride,) * len(space)
    return jax.lax.conv_general_dilated(
        x, weights, strides, "SAME", dimension_numbers=layouts, feature_group_count=groups
    )


def max_pool(x: jax.Array, window: int, stride: int) -> jax.Array:
    """Returns the largest value of each window of `x` [batch, height, width, channels]."""
    windows, strides = (1, window, window, 1), (1, stride, stride, 1)
    pooled: jax.Array = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, windows, strides, "SAME")
    return pooled


def normalize(x: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    """Gives `x` mean 0 and variance 1 over `dims`."""
    mean = x.mean(dims, keepdims=True)
    variance = ((x - mean) ** 2).mean(dims, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5)


def batch_norm(p: Params, x: jax.Array) -> jax.Array:
    """Normalises each channel of `x` [batch, height, width, channels] over the whole batch.

    Training needs no more; the running averages that serving would need are not kept.
    """
    return jnp.add(normalize(x, (0, 1, 2)) * p["scale"], p["bias"])


def group_norm(groups: int, p: Params, x: jax.Array) -> jax.Array:
    """Normalises each of the `groups` of channels of each image of `x` [batch, height, width, channels]."""
    grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    return jnp.add(normalize(grouped, (1, 2, 4)).reshape(x.shape) * p["scale"], p["bias"])


def sample_images(batch: int, image: int, classes: int, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random images `x` [batch, image, image, 3] and classes `y` [batch] (int32)."""
    key_x, key_y = jax.random.split(key)
    return {
        "x": jax.random.normal(key_x, (batch, image, image, 3), jnp.float32),
        "y": jax.random.randint(key_y, (batch,), 0, classes, jnp.int32),
    }
