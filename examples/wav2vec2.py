"""wav2vec 2.0: convolutions over raw sound, a transformer, and the loss of finding what stood where it was masked.

Source: Baevski et al. (2020), sections 2 and 3. Distractors are drawn from all steps of a sound, not from its masked
ones alone, and the convolutions pad, so that a sound of n samples has n / 320 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
from convnet import conv
from layers import Params, dropout, he_normal, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, block, init_block, init_layers, run_layers
from two_tower import unit

MASKED_SHARE: Final = 0.49  # section 4.2: spans of 10 steps from 6.5 % of all steps
TEMPERATURE: Final = 0.1  # of the contrast (section 4.2)
GUMBEL_TEMPERATURE: Final = 2.0  # of the choice of codes, where training starts (section 4.2)
DIVERSITY: Final = 0.1  # the weight of the loss by which all codes are used (section 4.2)


@dataclass(frozen=True, slots=True)
class Wav2Vec2Config:
    """Sizes of a wav2vec 2.0.

    `windows` and `strides` are those of the convolutions, all of `channels`. `codes` of `entries` each say what a step
    is, in `coded` values; one convolution over `position_window` steps in `position_groups` says where. `scan` rolls
    the layers into one loop.
    """

    windows: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    channels: int = 512
    layers: int = 2
    hidden: int = 768
    heads: int = 8
    ffn: int = 3072
    position_window: int = 128
    position_groups: int = 16
    codes: int = 2
    entries: int = 320
    coded: int = 256
    distractors: int = 100
    samples: int = 256_000
    batch: int = 4
    dropout: float = 0.0
    scan: bool = False

    def __post_init__(self) -> None:
        _ = self.block  # Made here so that bad sizes are refused here.
        if self.samples % prod(self.strides):
            raise ValueError(f"samples ({self.samples}) is not divisible by the product of strides")
        if self.coded % self.codes:
            raise ValueError(f"coded ({self.coded}) is not divisible by codes ({self.codes})")

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer."""
        return BlockConfig(self.hidden, self.heads, self.ffn, self.dropout, causal=False)

    @property
    def steps(self) -> int:
        """The steps of a sound that the transformer sees."""
        return self.samples // prod(self.strides)


PRESETS: Final = {
    # Baevski et al. (2020), section 4.2; large is TAP's table I: 317 M parameters, 7 convolutions and 24 layers. Sounds
    # of 16 and 20 s, as many as a V100 took.
    "wav2vec2-base": Wav2Vec2Config(layers=12, batch=6),
    "wav2vec2-large": Wav2Vec2Config(layers=24, hidden=1024, heads=16, ffn=4096, coded=768, samples=320_000, batch=4),
}


def init(cfg: Wav2Vec2Config, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    convs, into, positions, layers, masked, choose, codes, seen, said = jax.random.split(key, 9)
    inputs = (1, *[cfg.channels] * (len(cfg.windows) - 1))
    keys = jax.random.split(convs, len(cfg.windows))
    return {
        "convs": [
            {"weight": he_normal(k, window, size, cfg.channels), "norm": init_norm(cfg.channels)}
            for k, window, size in zip(keys, cfg.windows, inputs, strict=True)
        ],
        "features": init_norm(cfg.channels),
        "in": normal(into, cfg.channels, cfg.hidden),
        "masked": normal(masked, cfg.hidden),
        "positions": {
            "weight": normal(positions, cfg.position_window, cfg.hidden // cfg.position_groups, cfg.hidden),
            "bias": jnp.zeros(cfg.hidden),
        },
        "layers": init_layers(partial(init_block, cfg.block), cfg.layers, layers, cfg.scan),
        "final": init_norm(cfg.hidden),
        "choose": normal(choose, cfg.channels, cfg.codes, cfg.entries),
        "codes": normal(codes, cfg.codes, cfg.entries, cfg.coded // cfg.codes),
        "said": normal(said, cfg.coded, cfg.coded),
        "seen": normal(seen, cfg.hidden, cfg.coded),
    }


def listen(cfg: Wav2Vec2Config, params: Params, sound: jax.Array) -> jax.Array:
    """Maps `sound` [batch, samples] to features [batch, steps, channels]."""
    x = sound[..., None]
    for index, (p, stride) in enumerate(zip(params["convs"], cfg.strides, strict=True)):
        with jax.named_scope(f"conv{index}"):
            x = jax.nn.gelu(layer_norm(p["norm"], conv(x, p["weight"], stride)))
    return layer_norm(params["features"], x)


def quantize(cfg: Wav2Vec2Config, params: Params, features: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns what codes say of `features` [batch, steps, channels], and how unevenly codes are used (0 to 1).

    Shapes: the codes [batch, steps, coded]. A code is chosen at random, by softmax with Gumbel noise; gradients are
    those of the softmax.
    """
    logits = jnp.einsum("btc,cge->btge", features, params["choose"])
    soft = jax.nn.softmax((logits + jax.random.gumbel(key, logits.shape)) / GUMBEL_TEMPERATURE, axis=-1)
    chosen = jax.nn.one_hot(soft.argmax(-1), cfg.entries)
    codes = jnp.einsum("btge,gec->btgc", soft + jax.lax.stop_gradient(chosen - soft), params["codes"])
    used = jax.nn.softmax(logits, axis=-1).mean((0, 1))
    entropy = -(used * jnp.log(used + 1e-7)).sum(-1)
    return codes.reshape(*codes.shape[:2], cfg.coded), 1 - jnp.exp(entropy).mean() / cfg.entries


def encode(cfg: Wav2Vec2Config, params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `x` [batch, steps, hidden] to what the transformer makes of it."""
    p = params["positions"]
    x = x + jax.nn.gelu(conv(x, p["weight"], groups=cfg.position_groups) + p["bias"])
    return layer_norm(params["final"], run_layers(partial(block, cfg.block), x, params["layers"], cfg.layers, key))


def loss(cfg: Wav2Vec2Config, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of finding a masked step's code among distractors, plus the weighted loss of uneven codes.

    Shapes: `batch["sound"]` [batch, samples] (float32), `batch["masked"]` [batch, steps] (bool).
    """
    key_start, key_layers, key_codes, key_others = jax.random.split(key, 4)
    features = listen(cfg, params, batch["sound"])
    codes, uneven = quantize(cfg, params, features, key_codes)
    x = jnp.where(batch["masked"][..., None], params["masked"], features @ params["in"])
    seen = unit(encode(cfg, params, dropout(cfg.dropout, key_start, x), key_layers) @ params["seen"])
    said = unit(codes @ params["said"])
    shape = (cfg.batch, cfg.steps, cfg.distractors)
    others = (jnp.arange(cfg.steps)[:, None] + jax.random.randint(key_others, shape, 1, cfg.steps)) % cfg.steps
    scores = jnp.einsum("btc,bsc->bts", seen, said) / TEMPERATURE
    right = jnp.einsum("btc,btc->bt", seen, said) / TEMPERATURE
    wrong = jnp.take_along_axis(scores, others, axis=-1)
    losses = jnp.logaddexp(jax.nn.logsumexp(wrong, axis=-1), right) - right
    masked = batch["masked"]
    return jnp.where(masked, losses, 0).sum() / jnp.maximum(masked.sum(), 1) + DIVERSITY * uneven


def sample(cfg: Wav2Vec2Config, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random `sound` [batch, samples] (float32), and which steps are `masked` [batch, steps] (bool)."""
    key_sound, key_masked = jax.random.split(key)
    return {
        "sound": jax.random.normal(key_sound, (cfg.batch, cfg.samples), jnp.float32),
        "masked": jax.random.bernoulli(key_masked, MASKED_SHARE, (cfg.batch, cfg.steps)),
    }


def model(cfg: Wav2Vec2Config) -> Model:
    """Returns the wav2vec 2.0 as a model to train."""
    return Model("wav2vec2", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
