"""LLaMA: RMS norms, rotary positions, grouped-query attention, a SwiGLU feed-forward part, an untied head; no biases.

Source: LLaMA (Touvron et al., 2023), section 2.2; The Llama 3 Herd of Models (2024), table 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import DType, Params, cast, cross_entropy, normal, rms_norm
from training import Model
from transformer import attend, causal_mask, init_layers, run_layers


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a LLaMA; each of the `kv_heads` keys and values is shared by heads / kv_heads queries.

    `scan` rolls the layers into one loop, `remat` keeps only what goes from layer to layer for the backward pass,
    `fused_gate_up` makes one projection of two. `rope_theta` is the base of the rotary positions' wave lengths. `dtype`
    is what the layers compute in: parameters, their updates, normalisation, softmax and the loss are float32 in all.
    """

    layers: int = 2
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    ffn: int = 3584
    vocab: int = 128256
    seq: int = 1024
    batch: int = 8
    rope_theta: float = 500000.0
    fused_gate_up: bool = False
    scan: bool = False
    remat: bool = False
    dtype: DType = "f32"

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden ({self.hidden}) is not divisible by twice the heads ({self.heads}): positions rotate pairs"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv-heads ({self.kv_heads})")

    @property
    def head_dim(self) -> int:
        """The size of one head."""
        return self.hidden // self.heads


# The Llama 3 Herd of Models, table 3, with the sequence length of its pre-training; the batch is ours.
PRESETS: Final = {
    "llama-3-8b": LlamaConfig(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, seq=8192, dtype="bf16"),
}


def init_layer(cfg: LlamaConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer."""
    d, f, kv = cfg.hidden, cfg.ffn, cfg.kv_heads * cfg.head_dim
    q, k, v, out, gate, up, down = jax.random.split(key, 7)
    gate_up = (
        {"gate_up": normal(gate, d, 2 * f)}
        if cfg.fused_gate_up
        else {"gate": normal(gate, d, f), "up": normal(up, d, f)}
    )
    attention = {"q": normal(q, d, d), "k": normal(k, d, kv), "v": normal(v, d, kv), "out": normal(out, d, d)}
    return {"norm1": jnp.ones(d), **attention, "norm2": jnp.ones(d), **gate_up, "down": normal(down, f, d)}


def init(cfg: LlamaConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    embed, layers, head = jax.random.split(key, 3)
    return {
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "layers": init_layers(partial(init_layer, cfg), cfg.layers, layers, cfg.scan),
        "final": jnp.ones(cfg.hidden),
        "head": normal(head, cfg.hidden, cfg.vocab),
    }


def rotary_angles(cfg: LlamaConfig) -> jax.Array:
    """Returns by how much each position turns each pair of a head's values: radians [seq, head_dim / 2]."""
    half = cfg.head_dim // 2
    frequencies = cfg.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    return jnp.arange(cfg.seq, dtype=jnp.float32)[:, None] * frequencies


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turns the pairs (i, i + head_dim / 2) of `x` [batch, seq, ..., head_dim] by `angles` [seq, head_dim / 2]."""
    angles = jnp.expand_dims(angles, tuple(range(1, x.ndim - 2)))
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def attention(cfg: LlamaConfig, angles: jax.Array, p: Params, x: jax.Array) -> jax.Array:
    """Causal grouped-query attention over `x` [batch, seq, hidden]."""
    batch, seq, _ = x.shape
    group = cfg.heads // cfg.kv_heads
    q = (x @ p["q"]).reshape(batch, seq, cfg.kv_heads, group, cfg.head_dim)
    k, v = ((x @ p[name]).reshape(batch, seq, cfg.kv_heads, cfg.head_dim) for name in ("k", "v"))
    mixed = attend(rotate(q, angles), rotate(k, angles), v, causal_mask(seq))
    return jnp.matmul(mixed.reshape(x.shape), p["out"])


def feed_forward(cfg: LlamaConfig, p: Params, x: jax.Array) -> jax.Array:
    """SwiGLU over `x` [batch, seq, hidden]."""
    gate, up = jnp.split(x @ p["gate_up"], 2, axis=-1) if cfg.fused_gate_up else (x @ p["gate"], x @ p["up"])
    return jnp.matmul(jax.nn.silu(gate) * up, p["down"])


def layer(cfg: LlamaConfig, angles: jax.Array, x: jax.Array, p: Params, _key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, seq, hidden]; nothing in it is random."""
    x = x + attention(cfg, angles, p, rms_norm(p["norm1"], x))
    return x + feed_forward(cfg, p, rms_norm(p["norm2"], x))


def loss(cfg: LlamaConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens` [batch, seq + 1] (int32)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    params = cast(params, cfg.dtype)
    each = partial(layer, cfg, rotary_angles(cfg))
    x = run_layers(
        jax.checkpoint(each) if cfg.remat else each, params["embed"][inputs], params["layers"], cfg.layers, key
    )
    return cross_entropy(rms_norm(params["final"], x) @ params["head"], targets).mean()


def sample(cfg: LlamaConfig, key: jax.Array) -> jax.Array:
    """Returns random tokens [batch, seq + 1] (int32)."""
    return jax.random.randint(key, (cfg.batch, cfg.seq + 1), 0, cfg.vocab, jnp.int32)


def model(cfg: LlamaConfig) -> Model:
    """Returns the LLaMA as a model to train."""
    return Model("llama", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
