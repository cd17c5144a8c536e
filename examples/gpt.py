"""GPT (decoder-only transformer, tied embedding) with the sizes of Rhino Table 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import DType, Params, cast, cross_entropy, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, block, init_block, init_layers, run_layers


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes of a GPT.

    `scan` rolls the layers into one loop, `fused_qkv` makes one projection of three. `dtype` is what the layers compute
    in: parameters, their updates, normalisation, softmax and the loss are float32 in all.
    """

    layers: int = 2
    hidden: int = 1024
    heads: int = 16
    ffn: int = 4096
    vocab: int = 51200
    seq: int = 1024
    batch: int = 8
    dropout: float = 0.0
    fused_qkv: bool = False
    scan: bool = False
    dtype: DType = "f32"

    def __post_init__(self) -> None:
        _ = self.block  # Made here so that bad sizes are refused here.

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer."""
        return BlockConfig(self.hidden, self.heads, self.ffn, self.dropout, causal=True, fused_qkv=self.fused_qkv)


# Rhino Table 1. The batch is that of the full-parallelism tests; the SPMD-only tests use 4. Vocabulary and sequence
# length are not in the table: the defaults above give its parameter counts.
TABLE1: Final = {
    "gpt-medium": GPTConfig(layers=24, hidden=1024, heads=16, ffn=4096, batch=64),
    "gpt-large": GPTConfig(layers=24, hidden=1536, heads=16, ffn=6144, batch=64),
    "gpt-xl": GPTConfig(layers=24, hidden=2048, heads=32, ffn=8192, batch=64),
    "gpt-2.7b": GPTConfig(layers=32, hidden=2560, heads=32, ffn=10240, batch=64),
    "gpt-6.7b": GPTConfig(layers=32, hidden=4096, heads=32, ffn=16384, batch=64),
}


def init(cfg: GPTConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    embed, positions, layers = jax.random.split(key, 3)
    return {
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "positions": normal(positions, cfg.seq, cfg.hidden),
        "layers": init_layers(partial(init_block, cfg.block), cfg.layers, layers, cfg.scan),
        "final": init_norm(cfg.hidden),
    }


def loss(cfg: GPTConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens` [batch, seq + 1] (int32)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    params = cast(params, cfg.dtype)
    x = params["embed"][inputs] + params["positions"]
    x = run_layers(partial(block, cfg.block), x, params["layers"], cfg.layers, key)
    return cross_entropy(layer_norm(params["final"], x) @ params["embed"].T, targets).mean()


def sample(cfg: GPTConfig, key: jax.Array) -> jax.Array:
    """Returns random tokens [batch, seq + 1] (int32)."""
    return jax.random.randint(key, (cfg.batch, cfg.seq + 1), 0, cfg.vocab, jnp.int32)


def model(cfg: GPTConfig) -> Model:
    """Returns the GPT as a model to train."""
    return Model("gpt", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
