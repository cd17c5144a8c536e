"""Two different encoders that meet in one loss (as in `clip.py`).

One is a perceptron over features, the other a transformer over tokens.

The graph is no line: the towers share nothing until the loss, which compares every pair of the batch (in-batch
softmax), or with `pairs` each row with its own partner alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import mlp
from layers import Params, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, block, init_block, init_layers, run_layers

LOG_SCALE: Final = math.log(1 / 0.07)  # what the temperature starts from (Radford et al., 2021, section 2.5)


@dataclass(frozen=True, slots=True)
class TwoTowerConfig:
    """Sizes of both towers; both end in `embed` values per example.

    `hidden`, `heads`, `ffn`, `layers` are the token tower's.
    """

    features: int = 1024
    feature_sizes: tuple[int, ...] = (4096, 4096, 2048)
    vocab: int = 49408
    seq: int = 77
    layers: int = 4
    hidden: int = 512
    heads: int = 8
    ffn: int = 2048
    embed: int = 512
    batch: int = 256
    dropout: float = 0.0
    pairs: bool = False

    def __post_init__(self) -> None:
        _ = self.block  # Made here so that bad sizes are refused here.

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer of the token tower."""
        return BlockConfig(self.hidden, self.heads, self.ffn, self.dropout, causal=False)


PRESETS: Final = {
    # Towers of unlike depth and width.
    "two-tower-uneven": TwoTowerConfig(feature_sizes=(8192,) * 8, layers=12, batch=4096),
}


def init_tokens(cfg: TwoTowerConfig, key: jax.Array) -> Params:
    """Returns the parameters of the tower over tokens."""
    embed, positions, layers, project = jax.random.split(key, 4)
    return {
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "positions": normal(positions, cfg.seq, cfg.hidden),
        "layers": init_layers(partial(init_block, cfg.block), cfg.layers, layers),
        "final": init_norm(cfg.hidden),
        "project": normal(project, cfg.hidden, cfg.embed),
    }


def init(cfg: TwoTowerConfig, key: jax.Array) -> Params:
    """Returns the parameters of both towers and of the softmax's temperature."""
    features, tokens = jax.random.split(key)
    return {
        "features": mlp.init_layers((cfg.features, *cfg.feature_sizes, cfg.embed), features),
        "tokens": init_tokens(cfg, tokens),
        "log_scale": jnp.float32(LOG_SCALE),
    }


def encode_tokens(cfg: TwoTowerConfig, p: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `tokens` [batch, seq] to [batch, embed]: the mean over positions, projected."""
    x = p["embed"][tokens] + p["positions"]
    x = run_layers(partial(block, cfg.block), x, p["layers"], cfg.layers, key)
    return jnp.matmul(layer_norm(p["final"], x).mean(axis=1), p["project"])


def unit(x: jax.Array) -> jax.Array:
    """Scales the rows of `x` to length 1."""
    return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-12)


def contrast(left: jax.Array, right: jax.Array, log_scale: jax.Array, pairs: bool = False) -> jax.Array:
    """Mean cross entropy of finding each row's partner, over both directions; with `pairs`, of being one's partner.

    Shapes: `left` and `right` [batch, embed], rows of length 1.
    """
    scale = jnp.exp(log_scale)
    partner = (left * right).sum(-1) * scale  # The diagonal of `logits` below, without the gather.
    if pairs:
        return jax.nn.softplus(-partner).mean()
    logits = left @ right.T * scale
    return ((jax.nn.logsumexp(logits, axis=0) + jax.nn.logsumexp(logits, axis=1)) / 2 - partner).mean()


def loss(cfg: TwoTowerConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of finding each row's partner in the batch, over both directions.

    With `pairs`, it is the cross entropy of whether a row is the partner of the other.
    """
    key_features, key_tokens = jax.random.split(key)
    with jax.named_scope("features"):
        left = unit(mlp.forward(cfg.dropout, params["features"], batch["features"], key_features))
    with jax.named_scope("tokens"):
        right = unit(encode_tokens(cfg, params["tokens"], batch["tokens"], key_tokens))
    return contrast(left, right, params["log_scale"], cfg.pairs)


def sample(cfg: TwoTowerConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random pairs: `features` [batch, features] (float32) and `tokens` [batch, seq] (int32)."""
    key_features, key_tokens = jax.random.split(key)
    return {
        "features": jax.random.normal(key_features, (cfg.batch, cfg.features), jnp.float32),
        "tokens": jax.random.randint(key_tokens, (cfg.batch, cfg.seq), 0, cfg.vocab, jnp.int32),
    }


def model(cfg: TwoTowerConfig) -> Model:
    """Returns the two towers as a model to train."""
    return Model("two-tower", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
