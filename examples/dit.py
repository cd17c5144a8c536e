"""Diffusion transformer (DiT): a transformer over patches that removes noise, told the time and the class by its norms.

Each layer shifts, scales and gates what it computes by six vectors that follow from time and class (adaLN-Zero). Noise
is that of `unet.py`, on images that may as well be an encoder's; what the paper's model says of its variance is left
out.

Source: Peebles and Xie (2023), section 3.2 and table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import DType, Params, cast, normal
from training import Model
from transformer import attend, init_layers, run_layers
from unet import embed_time, noised
from vit import cut

_PARTS: Final = 6  # shift, scale and gate of both halves of a layer


@dataclass(frozen=True, slots=True)
class DiTConfig:
    """Sizes of a DiT: an image of `image` squared pixels of `channels` values is cut in patches of `patch` squared.

    `scan` rolls the layers into one loop, `remat` keeps only what goes from layer to layer for the backward pass.
    `dtype` is what the layers compute in: parameters, their updates, normalisation, softmax and the loss are float32.
    """

    image: int = 32
    channels: int = 4
    patch: int = 2
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    classes: int = 1000
    batch: int = 256
    scan: bool = False
    remat: bool = False
    dtype: DType = "f32"

    def __post_init__(self) -> None:
        if self.image % self.patch:
            raise ValueError(f"image ({self.image}) is not divisible by patch ({self.patch})")
        if self.hidden % self.heads or self.hidden % 2:
            raise ValueError(f"hidden ({self.hidden}) is not even, or not divisible by heads ({self.heads})")

    @property
    def seq(self) -> int:
        """The number of patches."""
        return (self.image // self.patch) ** 2

    @property
    def pixels(self) -> int:
        """The values of a patch."""
        return self.channels * self.patch**2


# Table 1, with the patches of 2 x 2 of the model that section 5 ends with; 130 and 675 million parameters.
PRESETS: Final = {
    "dit-b-2": DiTConfig(scan=True, dtype="bf16"),
    "dit-xl-2": DiTConfig(layers=28, hidden=1152, heads=16, ffn=4608, scan=True, dtype="bf16"),
}


def init_layer(cfg: DiTConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer, whose gates are closed to begin with."""
    d = cfg.hidden
    q, k, v, out, up, down = jax.random.split(key, 6)
    return {
        "q": normal(q, d, d),
        "k": normal(k, d, d),
        "v": normal(v, d, d),
        "out": normal(out, d, d),
        "up": normal(up, d, cfg.ffn),
        "up_bias": jnp.zeros(cfg.ffn),
        "down": normal(down, cfg.ffn, d),
        "down_bias": jnp.zeros(d),
        "told": jnp.zeros((d, _PARTS * d)),
        "told_bias": jnp.zeros(_PARTS * d),
    }


def init(cfg: DiTConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    d = cfg.hidden
    patches, positions, classes, first, second, layers = jax.random.split(key, 6)
    return {
        "patches": normal(patches, cfg.pixels, d),
        "positions": normal(positions, cfg.seq, d),
        "classes": normal(classes, cfg.classes, d),
        "time": [{"weight": normal(one, d, d), "bias": jnp.zeros(d)} for one in (first, second)],
        "layers": init_layers(partial(init_layer, cfg), cfg.layers, layers, cfg.scan),
        "told": jnp.zeros((d, 2 * d)),
        "told_bias": jnp.zeros(2 * d),
        "head": jnp.zeros((d, cfg.pixels)),
    }


def told_norm(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """Normalises `x` [batch, seq, hidden] in float32, and shifts and scales each sequence by [batch, hidden]."""
    wide = x.astype(jnp.float32)
    centered = wide - wide.mean(-1, keepdims=True)
    normalized = centered * jax.lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-6)
    return jnp.add(normalized.astype(x.dtype) * (1 + scale[:, None]), shift[:, None])


def layer(cfg: DiTConfig, told: jax.Array, x: jax.Array, p: Params, _key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, seq, hidden], told [batch, hidden] what it follows; nothing in it is random."""
    parts = jnp.split(jax.nn.silu(told) @ p["told"] + p["told_bias"], _PARTS, axis=-1)
    normed = told_norm(x, parts[0], parts[1])
    q, k, v = ((normed @ p[name]).reshape(*x.shape[:2], cfg.heads, -1) for name in ("q", "k", "v"))
    x = x + parts[2][:, None] * (attend(q, k, v).reshape(x.shape) @ p["out"])
    normed = told_norm(x, parts[3], parts[4])
    made = jax.nn.gelu(normed @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"]
    return jnp.add(x, parts[5][:, None] * made)


def predict(cfg: DiTConfig, params: Params, x: jax.Array, time: jax.Array, classes: jax.Array) -> jax.Array:
    """Returns the noise in `x` [batch, image, image, channels], in patches [batch, seq, pixels].

    `time` [batch] is from 0 to 1, `classes` [batch] are int32.
    """
    params = cast(params, cfg.dtype)
    told = embed_time(params["time"], time) + params["classes"][classes]
    x = cut(cfg.patch, x.astype(told.dtype)) @ params["patches"] + params["positions"]
    each = partial(layer, cfg, told)
    key = jax.random.key(0)  # which nothing in a layer reads
    x = run_layers(jax.checkpoint(each) if cfg.remat else each, x, params["layers"], cfg.layers, key)
    shift, scale = jnp.split(jax.nn.silu(told) @ params["told"] + params["told_bias"], 2, axis=-1)
    return jnp.matmul(told_norm(x, shift, scale), params["head"]).astype(jnp.float32)


def loss(cfg: DiTConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean squared error of the predicted noise in the images `batch["x"]` of the classes `batch["y"]`.

    Noise and times are drawn from `key`.
    """
    noisy, noise, time = noised(batch["x"], key)
    return jnp.mean((predict(cfg, params, noisy, time, batch["y"]) - cut(cfg.patch, noise)) ** 2)


def sample(cfg: DiTConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random images `x` [batch, image, image, channels] and classes `y` [batch] (int32)."""
    images, classes = jax.random.split(key)
    shape = cfg.batch, cfg.image, cfg.image, cfg.channels
    labels = jax.random.randint(classes, (cfg.batch,), 0, cfg.classes, jnp.int32)
    return {"x": jax.random.normal(images, shape), "y": labels}


def model(cfg: DiTConfig) -> Model:
    """Returns the DiT as a model to train."""
    return Model("dit", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
