"""UNet that learns to remove noise from images (diffusion).

Its skip connections reach from the first layers to the last.

Source: Ronneberger et al. (2015), figure 1, with the blocks of Ho et al. (2020), appendix B, and attention at the
smallest size. Time runs from 0 to 1, and noise grows with it as in the cosine schedule of Nichol and Dhariwal (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Final

import jax
import jax.numpy as jnp
from convnet import conv, group_norm
from layers import Params, he_normal, init_norm, normal
from training import Model
from transformer import attend

EXPANSION: Final = 4  # of channels in the embedding of time
TIME_SCALE: Final = 1000.0  # steps of the discrete process, in which the embedding's wave lengths are given


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """Sizes of a UNet: `channels` times a multiplier at each size of the image, which is half of the size before.

    `blocks` is how many residual blocks each size has on the way down, and as many on the way up; the smallest has two,
    and attention between them. `groups` is how many groups of channels are normalised, each by itself.
    """

    channels: int = 128
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    blocks: int = 2
    groups: int = 32
    image: int = 64
    batch: int = 16

    def __post_init__(self) -> None:
        if self.image % 2 ** (len(self.multipliers) - 1):
            raise ValueError(f"image ({self.image}) cannot be halved {len(self.multipliers) - 1} times")
        if self.channels % self.groups:
            raise ValueError(f"channels ({self.channels}) is not divisible by groups ({self.groups})")

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels at each size, the largest image first."""
        return tuple(self.channels * multiplier for multiplier in self.multipliers)


PRESETS: Final = {
    # Rhino Table 3 gives 33 M parameters and batch 16 a device. The sizes are ours, and give that number of parameters.
    "unet-33m": UNetConfig(multipliers=(1, 2, 2, 4), blocks=3),
}


def init_conv(key: jax.Array, *shape: int) -> Params:
    """Returns the weights [*window, in, out] and the bias of a convolution; with an empty window, of a projection."""
    return {"weight": he_normal(key, *shape), "bias": jnp.zeros(shape[-1])}


def init_block(cfg: UNetConfig, keys: Iterator[jax.Array], before: int, after: int) -> Params:
    """Returns the parameters of one residual block; its input is projected where it has another number of channels."""
    p = {
        "norm1": init_norm(before),
        "conv1": init_conv(next(keys), 3, 3, before, after),
        "time": init_conv(next(keys), EXPANSION * cfg.channels, after),
        "norm2": init_norm(after),
        "conv2": init_conv(next(keys), 3, 3, after, after),
    }
    return p if before == after else p | {"project": init_conv(next(keys), 1, 1, before, after)}


def init_attention(keys: Iterator[jax.Array], width: int) -> Params:
    """Returns the parameters of `attention`."""
    return {"norm": init_norm(width), **{name: normal(next(keys), width, width) for name in ("q", "k", "v", "out")}}


def init_down(cfg: UNetConfig, keys: Iterator[jax.Array], before: int, width: int) -> Params:
    """Returns the parameters of one size on the way down, for an input of `before` channels."""
    blocks = [init_block(cfg, keys, each, width) for each in (before, *(width,) * (cfg.blocks - 1))]
    return {"blocks": blocks, "halve": init_conv(next(keys), 3, 3, width, width)}


def init_up(cfg: UNetConfig, keys: Iterator[jax.Array], before: int, width: int) -> Params:
    """Returns the parameters of one size on the way up, for an input of `before` channels."""
    blocks = [init_block(cfg, keys, each, width) for each in (2 * width, *(width,) * (cfg.blocks - 1))]
    return {"double": init_conv(next(keys), 3, 3, before, width), "blocks": blocks}


def init(cfg: UNetConfig, key: jax.Array) -> Params:
    """Returns the parameters."""
    keys = (jax.random.fold_in(key, index) for index in count())
    embedding, widths = EXPANSION * cfg.channels, (cfg.channels, *cfg.widths)
    *_, above, width = widths
    return {
        "time": [init_conv(next(keys), cfg.channels, embedding), init_conv(next(keys), embedding, embedding)],
        "start": init_conv(next(keys), 3, 3, 3, cfg.channels),
        "down": [init_down(cfg, keys, *pair) for pair in pairwise(widths[:-1])],
        "middle": [
            init_block(cfg, keys, above, width),
            init_attention(keys, width),
            init_block(cfg, keys, width, width),
        ],
        "up": [init_up(cfg, keys, *pair) for pair in pairwise(reversed(cfg.widths))],
        "norm": init_norm(cfg.widths[0]),
        "end": init_conv(next(keys), 3, 3, cfg.widths[0], 3),
    }


def linear(p: Params, x: jax.Array) -> jax.Array:
    """Projects the last dimension of `x`."""
    return jnp.add(x @ p["weight"], p["bias"])


def convolve(p: Params, x: jax.Array, stride: int = 1) -> jax.Array:
    """Convolves `x` [batch, height, width, channels]."""
    return jnp.add(conv(x, p["weight"], stride), p["bias"])


def double(x: jax.Array) -> jax.Array:
    """Doubles height and width of `x` [batch, height, width, channels]: each pixel becomes four."""
    return x.repeat(2, axis=1).repeat(2, axis=2)


def embed_time(layers: list[Params], time: jax.Array) -> jax.Array:
    """Maps `time` [batch], from 0 to 1, through sines and cosines of many wave lengths to [batch, embedding]."""
    half = layers[0]["weight"].shape[0] // 2
    phases = time[:, None] * TIME_SCALE * 10000.0 ** -(jnp.arange(half) / half)
    waves = jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], axis=-1).astype(layers[0]["weight"].dtype)
    return linear(layers[1], jax.nn.silu(linear(layers[0], waves)))


def block(groups: int, p: Params, x: jax.Array, time: jax.Array) -> jax.Array:
    """One residual block over `x` [batch, height, width, channels], told the `time` [batch, embedding]."""
    y = convolve(p["conv1"], jax.nn.silu(group_norm(groups, p["norm1"], x)))
    y = y + linear(p["time"], time)[:, None, None]
    y = convolve(p["conv2"], jax.nn.silu(group_norm(groups, p["norm2"], y)))
    return y + (convolve(p["project"], x) if "project" in p else x)


def attention(groups: int, p: Params, x: jax.Array) -> jax.Array:
    """Attention with one head between all pixels of images `x` [batch, height, width, channels], plus the residual."""
    batch, height, width, channels = x.shape
    pixels = group_norm(groups, p["norm"], x).reshape(batch, height * width, 1, channels)
    mixed = attend(pixels @ p["q"], pixels @ p["k"], pixels @ p["v"])
    return jnp.add(x, mixed.reshape(x.shape) @ p["out"])


def predict(cfg: UNetConfig, params: Params, x: jax.Array, time: jax.Array) -> jax.Array:
    """Returns the noise that was added to `x` [batch, image, image, 3], given the `time` [batch] from 0 to 1."""
    apply, told = partial(block, cfg.groups), jax.nn.silu(embed_time(params["time"], time))
    x = convolve(params["start"], x)
    skips = []
    for index, size in enumerate(params["down"]):
        with jax.named_scope(f"down{index}"):
            for p in size["blocks"]:
                x = apply(p, x, told)
            skips.append(x)
            x = convolve(size["halve"], x, 2)
    with jax.named_scope("middle"):
        first, between, second = params["middle"]
        x = apply(second, attention(cfg.groups, between, apply(first, x, told)), told)
    for index, size in enumerate(params["up"]):
        with jax.named_scope(f"up{index}"):
            x = jnp.concatenate([convolve(size["double"], double(x)), skips.pop()], axis=-1)
            for p in size["blocks"]:
                x = apply(p, x, told)
    return convolve(params["end"], jax.nn.silu(group_norm(cfg.groups, params["norm"], x)))


def noised(images: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns `images` [batch, ...] with noise, the noise, and the times [batch] from 0 to 1 by which it grows."""
    key_time, key_noise = jax.random.split(key)
    time = jax.random.uniform(key_time, (len(images),))
    noise = jax.random.normal(key_noise, images.shape)
    angle = time[:, None, None, None] * (jnp.pi / 2)
    return jnp.cos(angle) * images + jnp.sin(angle) * noise, noise, time


def loss(cfg: UNetConfig, params: Params, images: jax.Array, key: jax.Array) -> jax.Array:
    """Mean squared error of the predicted noise in `images` [batch, image, image, 3].

    Noise and times are drawn from `key`.
    """
    noisy, noise, time = noised(images, key)
    return jnp.mean((predict(cfg, params, noisy, time) - noise) ** 2)


def sample(cfg: UNetConfig, key: jax.Array) -> jax.Array:
    """Returns random images [batch, image, image, 3]."""
    return jax.random.normal(key, (cfg.batch, cfg.image, cfg.image, 3), jnp.float32)


def model(cfg: UNetConfig) -> Model:
    """Returns the UNet as a model to train."""
    return Model("unet", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
