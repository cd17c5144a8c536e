"""Attention and the transformer layer (pre-norm, in plain JAX), shared by the models beside this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from layers import Params, dropout, init_norm, layer_norm, normal

Carry = TypeVar("Carry")


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


def init_attention(cfg: BlockConfig, key: jax.Array) -> Params:
    """Returns the parameters of `attention` and of the norm before it."""
    d = cfg.hidden
    q, k, v, out = jax.random.split(key, 4)
    qkv = (
        {"qkv": normal(q, d, 3 * d)}
        if cfg.fused_qkv
        else {"q": normal(q, d, d), "k": normal(k, d, d), "v": normal(v, d, d)}
    )
    return {"ln1": init_norm(d), **qkv, "out": normal(out, d, d)}


def init_feed_forward(cfg: BlockConfig, key: jax.Array) -> Params:
    """Returns the parameters of `feed_forward` and of the norm before it."""
    d, f = cfg.hidden, cfg.ffn
    up, down = jax.random.split(key)
    return {
        "ln2": init_norm(d),
        "up": normal(up, d, f),
        "up_bias": jnp.zeros(f),
        "down": normal(down, f, d),
        "down_bias": jnp.zeros(d),
    }


def init_block(cfg: BlockConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer."""
    key_attention, key_feed_forward = jax.random.split(key)
    return init_attention(cfg, key_attention) | init_feed_forward(cfg, key_feed_forward)


def init_layers(
    init_layer: Callable[[jax.Array], Params], num: int, key: jax.Array, scan: bool = False
) -> Params | list[Params]:
    """Returns the parameters of `num` layers as a list, or (same values) stacked on a leading dimension for a scan."""
    keys = jax.random.split(key, num)
    return jax.vmap(init_layer)(keys) if scan else [init_layer(k) for k in keys]


def run_layers(
    layer: Callable[[Carry, Params, jax.Array], Carry],
    x: Carry,
    layers: Params | list[Params],
    num: int,
    key: jax.Array,
) -> Carry:
    """Returns `x` after `num` layers, each with a key of its own.

    Stacked parameters run in one loop; a list of parameters is unrolled.
    """
    keys = jax.random.split(key, num)
    if isinstance(layers, dict):
        return jax.lax.scan(lambda h, each: (layer(h, *each), None), x, (layers, keys))[0]
    for index, p in enumerate(layers):
        with jax.named_scope(f"layer{index}"):
            x = layer(x, p, keys[index])
    return x


def causal_mask(seq: int) -> jax.Array:
    """Returns a mask [seq, seq] that hides the future from each query."""
    return jnp.tril(jnp.ones((seq, seq), bool))


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None, bias: jax.Array | None = None
) -> jax.Array:
    """Returns the average of `v`, weighted by a softmax (in float32) of the scores of `q` against `k`.

    Shapes: `q` and the result [batch, queries, heads, ..., head_dim], `k` and `v` [batch, keys, heads, head_dim]. What
    stands between heads and head_dim are queries that share their head's keys and values. `mask` [queries, keys] is
    false for what a query does not see; `bias` [heads, queries, keys] is added to the scores.
    """
    scores = jnp.einsum("bqh...d,bkhd->bh...qk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("bh...qk,bkhd->bqh...d", weights, v)


def attention(cfg: BlockConfig, p: Params, x: jax.Array) -> jax.Array:
    """Multi-head self-attention over `x` [batch, seq, hidden]."""
    batch, seq, hidden = x.shape

    def heads(projected: jax.Array) -> jax.Array:
        return projected.reshape(batch, seq, cfg.heads, hidden // cfg.heads)

    if cfg.fused_qkv:
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    else:
        q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    mixed = attend(heads(q), heads(k), heads(v), causal_mask(seq) if cfg.causal else None)
    return jnp.matmul(mixed.reshape(x.shape), p["out"])


def feed_forward(p: Params, x: jax.Array) -> jax.Array:
    """Two projections of `x` [batch, seq, hidden] with a GELU between."""
    return jnp.add(jax.nn.gelu(x @ p["up"] + p["up_bias"]) @ p["down"], p["down_bias"])


def block(cfg: BlockConfig, x: jax.Array, p: Params, key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, seq, hidden]."""
    key1, key2 = jax.random.split(key)
    x = x + dropout(cfg.dropout, key1, attention(cfg, p, layer_norm(p["ln1"], x)))
    return x + dropout(cfg.dropout, key2, feed_forward(p, layer_norm(p["ln2"], x)))
