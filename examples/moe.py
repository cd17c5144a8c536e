"""Mixture-of-experts transformer in the manner of GShard, with the sizes of Rhino Table 2.

The feed-forward part of every second layer is a set of experts. A token goes to its two best ones, and no expert takes
more than its capacity: who comes later keeps only the residual. Dispatch and combine are dense einsums over [token,
expert, place], so an expert's tokens can be moved to where it lives by one all-to-all.

Source: GShard (Lepikhin et al., 2020), section 2.2 and algorithm 1. Left out: a random drop of the second expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import Params, cross_entropy, dropout, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, attention, feed_forward, init_attention, init_block, run_layers


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """Sizes of a mixture of experts; each sequence is one of GShard's groups.

    `capacity` is an expert's share of places in units of an even one (2 x tokens / experts); `balance` weighs the
    auxiliary loss. Every layer whose number `every` divides has experts. Each sequence begins with `patches` of an
    image, of `pixels` values each, which all tokens see and nobody predicts.
    """

    layers: int = 2
    hidden: int = 768
    heads: int = 16
    ffn: int = 6144
    experts: int = 8
    vocab: int = 32000
    seq: int = 1024
    batch: int = 8
    capacity: float = 1.0
    balance: float = 0.01
    dropout: float = 0.0
    every: int = 2
    patches: int = 0
    pixels: int = 2048

    def __post_init__(self) -> None:
        _ = self.block  # Made here so that bad sizes are refused here.
        if self.experts < 2:
            raise ValueError(f"experts ({self.experts}) must be 2 or more: each token goes to two")

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer."""
        return BlockConfig(self.hidden, self.heads, self.ffn, self.dropout)

    @property
    def places(self) -> int:
        """The tokens of one sequence that one expert takes."""
        return max(1, round(self.capacity * 2 * (self.patches + self.seq) / self.experts))


M6_PRESETS: Final = {
    # M6 (Lin et al., 2021): 24 layers, hidden size 1024, an image as 4 x 4 patches of a ResNet's features, texts of 128
    # tokens. Whale 5.3.2 leaves experts to M6-T (Yang et al., 2021), table 1: 512 in each layer of hidden size 4096
    # give 100 billion parameters. There a token goes to one or more of them; here to two.
    "m6-100b": MoEConfig(layers=24, hidden=1024, ffn=4096, experts=512, seq=128, batch=1024, every=1, patches=16),
}

# Rhino Table 2. The batch is that of the full-parallelism tests; the SPMD-only tests use 8. Vocabulary and sequence
# length are not in the table: the defaults above, which are those of Alpa's MoE models, give its parameter counts.
TABLE2: Final = {
    "moe-8e-380m": MoEConfig(layers=8, batch=256),
    "moe-8e-760m": MoEConfig(layers=16, batch=256),
    "moe-16e-1.3b": MoEConfig(layers=16, experts=16, batch=256),
    "moe-16e-2.4b": MoEConfig(layers=16, hidden=1024, ffn=8192, experts=16, batch=256),
    "moe-32e-10b": MoEConfig(layers=16, hidden=1536, ffn=12288, experts=32, batch=256),
}


def init_experts(cfg: MoEConfig, key: jax.Array) -> Params:
    """Returns the parameters of `experts` and of the norm before them."""
    gate, up, down = jax.random.split(key, 3)
    return {
        "ln2": init_norm(cfg.hidden),
        "gate": normal(gate, cfg.hidden, cfg.experts),
        "experts": {
            "up": normal(up, cfg.experts, cfg.hidden, cfg.ffn),
            "down": normal(down, cfg.experts, cfg.ffn, cfg.hidden),
        },
    }


def init_layer(cfg: MoEConfig, index: int, key: jax.Array) -> Params:
    """Returns the parameters of one layer, with experts or without."""
    if (index + 1) % cfg.every:
        return init_block(cfg.block, key)
    key_attention, key_experts = jax.random.split(key)
    return init_attention(cfg.block, key_attention) | init_experts(cfg, key_experts)


def init(cfg: MoEConfig, key: jax.Array) -> Params:
    """Returns the parameters."""
    embed, positions, layers = jax.random.split(key, 3)
    patches = {"patches": normal(jax.random.fold_in(key, 3), cfg.pixels, cfg.hidden)} if cfg.patches else {}
    return {
        **patches,
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "positions": normal(positions, cfg.patches + cfg.seq, cfg.hidden),
        "layers": [init_layer(cfg, index, k) for index, k in enumerate(jax.random.split(layers, cfg.layers))],
        "final": init_norm(cfg.hidden),
    }


def route(places: int, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the weights that combine the experts' outputs, and the auxiliary loss; `gates` is [batch, seq, experts].

    Shapes: weights [batch, seq, experts, places], zero but for a token's two experts, at its place there. First choices
    come before all second ones, then who stands earlier in the sequence. The loss is 1 where all experts are chosen
    evenly, and more elsewhere.
    """
    num_experts = gates.shape[-1]
    first = jax.nn.one_hot(gates.argmax(-1), num_experts)
    second = jax.nn.one_hot((gates * (1 - first)).argmax(-1), num_experts)
    balance = (gates.mean(1) * first.mean(1)).sum(-1).mean() * num_experts

    before_first = jnp.cumsum(first, axis=1) - first
    before_second = jnp.cumsum(second, axis=1) - second + first.sum(1, keepdims=True)
    total = (gates * (first + second)).sum(-1, keepdims=True)

    def combine(chosen: jax.Array, before: jax.Array) -> jax.Array:
        # A place past the last is the one-hot of nothing: such a token is dropped.
        place = jax.nn.one_hot((before * chosen).sum(-1).astype(jnp.int32), places)
        return jnp.einsum("bse,bsp->bsep", gates / total * chosen, place)

    return combine(first, before_first) + combine(second, before_second), balance


def feed(p: Params, inputs: jax.Array) -> jax.Array:
    """Returns what each expert makes of its tokens; `inputs` and the result are [experts, batch, places, hidden]."""
    hidden = jax.nn.relu(jnp.einsum("ebpd,edf->ebpf", inputs, p["up"]))
    return jnp.einsum("ebpf,efd->ebpd", hidden, p["down"])


Feed = Callable[[Params, jax.Array], jax.Array]


def experts(cfg: MoEConfig, p: Params, x: jax.Array, feed: Feed = feed) -> tuple[jax.Array, jax.Array]:
    """Returns each token of `x` [batch, seq, hidden] through its two experts, and the auxiliary loss."""
    combine, balance = route(cfg.places, jax.nn.softmax(x @ p["gate"], axis=-1))
    inputs = jnp.einsum("bsep,bsd->ebpd", (combine > 0).astype(x.dtype), x)
    return jnp.einsum("bsep,ebpd->bsd", combine, feed(p["experts"], inputs)), balance


def layer(
    cfg: MoEConfig, feed: Feed, carry: tuple[jax.Array, jax.Array], p: Params, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One layer over `x` [batch, seq, hidden] and the sum of the auxiliary losses so far."""
    x, balance = carry
    key1, key2 = jax.random.split(key)
    x = x + dropout(cfg.dropout, key1, attention(cfg.block, p, layer_norm(p["ln1"], x)))
    normed = layer_norm(p["ln2"], x)
    out, extra = experts(cfg, p, normed, feed) if "experts" in p else (feed_forward(p, normed), 0.0)
    return x + dropout(cfg.dropout, key2, out), balance + extra


def loss(
    cfg: MoEConfig, params: Params, batch: dict[str, jax.Array] | jax.Array, key: jax.Array, feed: Feed = feed
) -> jax.Array:
    """Mean next-token cross entropy of a batch as `sample` gives it, plus the experts' weighted auxiliary loss."""
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embed"][inputs]
    if isinstance(batch, dict):
        x = jnp.concatenate([batch["patches"] @ params["patches"], x], axis=1)
    start = x + params["positions"], jnp.zeros(())
    x, balance = run_layers(partial(layer, cfg, feed), start, params["layers"], cfg.layers, key)
    x = layer_norm(params["final"], x[:, cfg.patches :])
    return cross_entropy(x @ params["embed"].T, targets).mean() + cfg.balance * balance


def sample(cfg: MoEConfig, key: jax.Array) -> dict[str, jax.Array] | jax.Array:
    """Returns random tokens [batch, seq + 1] (int32); with images `tokens` and `patches` [batch, patches, pixels]."""
    tokens = jax.random.randint(key, (cfg.batch, cfg.seq + 1), 0, cfg.vocab, jnp.int32)
    if not cfg.patches:
        return tokens
    shape = cfg.batch, cfg.patches, cfg.pixels
    return {"tokens": tokens, "patches": jax.random.normal(jax.random.fold_in(key, 1), shape, jnp.float32)}


def model(cfg: MoEConfig) -> Model:
    """Returns the mixture of experts as a model to train."""
    return Model("moe", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
