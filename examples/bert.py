"""BERT, trained to find masked tokens; optionally with convolutions before the transformer, as in Rhino's DNABERT.

Source: Devlin et al. (2018), section 3; as in RoBERTa, sentence pairs and their loss are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from convnet import conv
from layers import Params, cross_entropy, dropout, he_normal, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, attention, feed_forward, init_block, init_layers, run_layers

MASKED_SHARE: Final = 0.15  # Devlin et al., section 3.1


@dataclass(frozen=True, slots=True)
class BERTConfig:
    """Sizes of a BERT.

    `convs` is how many convolutions over the sequence, each over `window` tokens, come before the layers; `scan` rolls
    the layers into one loop. The last token of the vocabulary is the mask.
    """

    layers: int = 2
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    vocab: int = 30522
    seq: int = 512
    batch: int = 32
    convs: int = 0
    window: int = 3
    dropout: float = 0.0
    scan: bool = False

    def __post_init__(self) -> None:
        _ = self.block  # Made here so that bad sizes are refused here.

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer."""
        return BlockConfig(self.hidden, self.heads, self.ffn, self.dropout, causal=False)


PRESETS: Final = {
    "bert-base": BERTConfig(layers=12),
    "bert-large": BERTConfig(layers=24, hidden=1024, heads=16, ffn=4096),
    # Rhino 7.4 and Table 3 say: 162 M parameters, batch 32 a device, transformers and convolutions. Tokens are runs of
    # six bases, and sequences of at most 512 of them, as in Ji et al. (2021), with five special ones. The other sizes
    # are ours, and give that number of parameters.
    "dnabert": BERTConfig(layers=12, hidden=1024, heads=16, ffn=4096, vocab=4**6 + 5, seq=512, convs=1),
}


def init(cfg: BERTConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    embed, positions, convs, layers, head = jax.random.split(key, 5)
    d = cfg.hidden
    return {
        "embed": normal(embed, cfg.vocab, d),
        "positions": normal(positions, cfg.seq, d),
        "convs": [
            {"weight": he_normal(k, cfg.window, d, d), "bias": jnp.zeros(d)} for k in jax.random.split(convs, cfg.convs)
        ],
        "start": init_norm(d),
        "layers": init_layers(partial(init_block, cfg.block), cfg.layers, layers, cfg.scan),
        "head": {
            "weight": normal(head, d, d),
            "bias": jnp.zeros(d),
            "norm": init_norm(d),
            "vocab_bias": jnp.zeros(cfg.vocab),
        },
    }


def layer(cfg: BlockConfig, x: jax.Array, p: Params, key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, seq, hidden]; unlike in later models the norms come after the sums."""
    key1, key2 = jax.random.split(key)
    x = layer_norm(p["ln1"], x + dropout(cfg.dropout, key1, attention(cfg, p, x)))
    return layer_norm(p["ln2"], x + dropout(cfg.dropout, key2, feed_forward(p, x)))


def encode(cfg: BERTConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `tokens` [batch, seq] to [batch, seq, hidden]."""
    key_start, key_layers = jax.random.split(key)
    x = params["embed"][tokens] + params["positions"]
    for index, p in enumerate(params["convs"]):
        with jax.named_scope(f"conv{index}"):
            x = x + jax.nn.gelu(conv(x, p["weight"]) + p["bias"])
    x = dropout(cfg.dropout, key_start, layer_norm(params["start"], x))
    return run_layers(partial(layer, cfg.block), x, params["layers"], cfg.layers, key_layers)


def loss(cfg: BERTConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of those `batch["tokens"]` [batch, seq] (int32) that are masked.

    `batch["masked"]` [batch, seq] (bool) is true for the tokens that the model does not see.
    """
    tokens, masked = batch["tokens"], batch["masked"]
    x = encode(cfg, params, jnp.where(masked, cfg.vocab - 1, tokens), key)
    head = params["head"]
    x = layer_norm(head["norm"], jax.nn.gelu(x @ head["weight"] + head["bias"]))
    losses = cross_entropy(x @ params["embed"].T + head["vocab_bias"], tokens)
    return jnp.where(masked, losses, 0).sum() / jnp.maximum(masked.sum(), 1)


def sample(cfg: BERTConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random `tokens` [batch, seq] (int32), and which are `masked` [batch, seq] (bool)."""
    key_tokens, key_masked = jax.random.split(key)
    shape = cfg.batch, cfg.seq
    return {
        "tokens": jax.random.randint(key_tokens, shape, 0, cfg.vocab - 1, jnp.int32),
        "masked": jax.random.bernoulli(key_masked, MASKED_SHARE, shape),
    }


def model(cfg: BERTConfig) -> Model:
    """Returns the BERT as a model to train."""
    return Model("bert", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
