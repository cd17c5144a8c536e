"""Mixtral: the layers of a LLaMA, with SwiGLU experts of which each token goes to its two best, weighed by a softmax.

Experts take at most their capacity of each group of tokens, as those of `moe.py` do: who comes later keeps only the
residual.

Source: Mixtral of Experts (Jiang et al., 2024), section 2 and table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import llama
from layers import Params, cast, cross_entropy, normal, rms_norm
from llama import LlamaConfig, Mix, attention, project, rotary_angles
from moe import route
from training import Model
from transformer import run_layers


@dataclass(frozen=True, slots=True)
class MixtralConfig(LlamaConfig):
    """Sizes of a Mixtral: those of a LLaMA, whose `ffn` is of each of `experts` experts.

    `capacity` is an expert's share of places in units of an even one, in each group of `group` tokens of a sequence
    (all of it where it is shorter); `balance` weighs the auxiliary loss.
    """

    rope_theta: float = 1000000.0
    experts: int = 8
    capacity: float = 1.25
    group: int = 1024
    balance: float = 0.02

    def __post_init__(self) -> None:
        LlamaConfig.__post_init__(self)
        if self.experts < 2:
            raise ValueError(f"experts ({self.experts}) must be 2 or more: each token goes to two")
        if self.parallel or self.fused_gate_up:
            raise ValueError("experts have one input each, so parallel and fused-gate-up are false")
        if self.num_tokens % self.group_size:
            raise ValueError(f"a sequence of {self.num_tokens} tokens is not divisible by group ({self.group})")

    @property
    def num_tokens(self) -> int:
        """The tokens of a sequence that a step takes."""
        return {"train": self.seq, "prefill": self.prompt, "decode": 1}[self.phase]

    @property
    def group_size(self) -> int:
        """The tokens of a group."""
        return min(self.group, self.num_tokens)

    @property
    def places(self) -> int:
        """The tokens of one group that one expert takes."""
        return max(1, round(self.capacity * 2 * self.group_size / self.experts))


# Table 1; the vocabulary, too. Sequences are of 32,768 tokens there; of 4,096 where its speed is published.
PRESETS: Final = {
    "mixtral-8x7b": MixtralConfig(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, seq=4096, dtype="bf16"
    ),
}


def init_layer(cfg: MixtralConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer."""
    attends, gate, first, second, third = jax.random.split(key, 5)
    own = llama.init_layer(cfg, attends)
    d, f, e = cfg.hidden, cfg.ffn, cfg.experts
    experts = {"gate": normal(first, e, d, f), "up": normal(second, e, d, f), "down": normal(third, e, f, d)}
    kept = {name: value for name, value in own.items() if name not in ("gate", "up", "down")}
    return kept | {"router": normal(gate, d, e), "experts": experts}


def init(cfg: MixtralConfig, key: jax.Array) -> Params:
    """Returns the parameters: those of a LLaMA with other layers."""
    return llama.init(cfg, key, init_layer)


def experts(cfg: MixtralConfig, p: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns each token of `x` [batch, seq, hidden] through its two experts, and the auxiliary loss (float32)."""
    groups = x.reshape(-1, cfg.group_size, cfg.hidden)
    gates = jax.nn.softmax(groups.astype(jnp.float32) @ p["router"].astype(jnp.float32), axis=-1)
    weights, balance = route(cfg.places, gates)
    sent = jnp.einsum("bsep,bsd->ebpd", (weights > 0).astype(x.dtype), groups)
    own = p["experts"]
    made = jax.nn.silu(jnp.einsum("ebpd,edf->ebpf", sent, own["gate"]))
    made = made * jnp.einsum("ebpd,edf->ebpf", sent, own["up"])
    back = jnp.einsum("ebpf,efd->ebpd", made, own["down"])
    return jnp.einsum("bsep,ebpd->bsd", weights.astype(x.dtype), back).reshape(x.shape), balance


def mixed(cfg: MixtralConfig, angles: jax.Array, x: jax.Array, p: Params, mix: Mix | None = None) -> jax.Array:
    """The half of a layer that attends, over `x` [batch, seq, hidden]."""
    return x + attention(cfg, angles, p, project(cfg, p, rms_norm(p["norm1"], x), ("q", "k", "v")), mix)


def layer(
    cfg: MixtralConfig, angles: jax.Array, carry: tuple[jax.Array, jax.Array], p: Params, _key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One layer over `x` [batch, seq, hidden] and the sum of the auxiliary losses so far."""
    x, balance = carry
    x = mixed(cfg, angles, x, p)
    out, extra = experts(cfg, p, rms_norm(p["norm2"], x))
    return x + out, balance + extra


def layer_over_cache(cfg: MixtralConfig, angles: jax.Array, mix: Mix, x: jax.Array, p: Params) -> jax.Array:
    """One layer over `x` [batch, new, hidden], with the keys and values that `mix` has."""
    x = mixed(cfg, angles, x, p, mix)
    return x + experts(cfg, p, rms_norm(p["norm2"], x))[0]


def loss(cfg: MixtralConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens` [batch, seq + 1] (int32), plus the weighted auxiliary loss."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    params = cast(params, cfg.dtype)
    each = partial(layer, cfg, rotary_angles(cfg, jnp.arange(cfg.seq)))
    start = params["embed"][inputs], jnp.zeros(())
    x, balance = run_layers(jax.checkpoint(each) if cfg.remat else each, start, params["layers"], cfg.layers, key)
    lost = cross_entropy(rms_norm(params["final"], x) @ params["head"], targets).mean()
    return jnp.add(lost, cfg.balance * balance)


def model(cfg: MixtralConfig) -> Model:
    """Returns the Mixtral as a model to train, or to run with a cache."""
    sample = partial(llama.sample, cfg)
    if cfg.phase != "train":
        step = partial(llama.infer, cfg, partial(layer_over_cache, cfg))
        start = partial(llama.init_cached, cfg, partial(init, cfg))
        return Model("mixtral", start, llama.no_loss, sample, step=step)
    return Model("mixtral", partial(init, cfg), partial(loss, cfg), sample, llama.PLATFORMS[cfg.attention])
