"""One transformer layer (pre-norm, in plain JAX), shared by the models beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Sizes of one layer; `fused_qkv` makes one projection of three, `causal` hides the future."""

    hidden: int
    heads: int
    ffn: int
    dropout: float = 0.0
    causal: bool = True
    fused_qkv: bool = False

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) is not divisible by heads ({self.heads})")


def normal(key: jax.Array, *shape: int) -> jax.Array:
    """Returns float32 weights of standard deviation 0.02 (GPT-2's)."""
    return jax.random.normal(key, shape, jnp.float32) * 0.02


def init_norm(hidden: int) -> Params:
    """Returns the parameters of `layer_norm`."""
    return {"scale": jnp.ones(hidden), "bias": jnp.zeros(hidden)}


def init_block(cfg: BlockConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer."""
    d, f = cfg.hidden, cfg.ffn
    q, k, v, out, up, down = jax.random.split(key, 6)
    qkv = {"qkv": normal(q, d, 3 * d)} if cfg.fused_qkv else {"q": normal(q, d, d), "k": normal(k, d, d), "v": normal(v, d, d)}
    mlp = {"up": normal(up, d, f), "up_bias": jnp.zeros(f), "down": normal(down, f, d), "down_bias": jnp.zeros(d)}
    return {"ln1": init_norm(d), **qkv, "out": normal(out, d, d), "ln2": init_norm(d), **mlp}


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    """Normalises the last dimension of `x`, in float32 whatever the type of `x`."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    normalized = ((wide - mean) * jax.lax.rsqrt(variance + 1e-5)).astype(x.dtype)
    return jnp.add(normalized * p["scale"], p["bias"])


def dropout(rate: float, key: jax.Array, x: jax.Array) -> jax.Array:
    """Zeroes each element with probability `rate` (threefry bits) and rescales the others; rate 0 adds no op."""
    if rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def attention(cfg: BlockConfig, p: Params, x: jax.Array) -> jax.Array:
    """Multi-head attention over `x` [batch, seq, hidden], softmax in float32."""
    batch, seq, hidden = x.shape
    head_dim = hidden // cfg.heads

    def heads(projected: jax.Array) -> jax.Array:
        return projected.reshape(batch, seq, cfg.heads, head_dim)

    if cfg.fused_qkv:
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    else:
        q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads(q), heads(k)).astype(jnp.float32) * head_dim**-0.5
    if cfg.causal:
        scores = jnp.where(jnp.tril(jnp.ones((seq, seq), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.matmul(jnp.einsum("bhqk,bkhd->bqhd", weights, heads(v)).reshape(x.shape), p["out"])


def block(cfg: BlockConfig, x: jax.Array, p: Params, key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, seq, hidden]."""
    key1, key2 = jax.random.split(key)
    x = x + dropout(cfg.dropout, key1, attention(cfg, p, layer_norm(p["ln1"], x)))
    hidden = jax.nn.gelu(layer_norm(p["ln2"], x) @ p["up"] + p["up_bias"])
    return x + dropout(cfg.dropout, key2, hidden @ p["down"] + p["down_bias"])
