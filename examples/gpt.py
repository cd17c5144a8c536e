"""GPT (decoder-only transformer, pre-norm) with the sizes of Rhino Table 1, tied to nothing but jax.numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from training import Model

Params = dict[str, Any]


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT. `scan` rolls the layers into one loop; `fused_qkv` makes one projection of three."""

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


# Rhino Table 1. Its SPMD-only tests use a global batch of 4, its full-parallelism tests 64.
TABLE1 = {
    "gpt-medium": GPTConfig(layers=24, hidden=1024, heads=16, ffn=4096),
    "gpt-large": GPTConfig(layers=24, hidden=1536, heads=16, ffn=6144),
    "gpt-xl": GPTConfig(layers=24, hidden=2048, heads=32, ffn=8192),
    "gpt-2.7b": GPTConfig(layers=32, hidden=2560, heads=32, ffn=10240),
    "gpt-6.7b": GPTConfig(layers=32, hidden=4096, heads=32, ffn=16384),
}


def init(cfg: GPTConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or stacked on a leading dimension when `cfg.scan`."""
    d, f = cfg.hidden, cfg.ffn
    keys = iter(jax.random.split(key, 2 + 6 * cfg.layers))

    def dense(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), shape, jnp.float32) * 0.02

    def norm() -> Params:
        return {"scale": jnp.ones(d), "bias": jnp.zeros(d)}

    def layer() -> Params:
        qkv = {"qkv": dense(d, 3 * d)} if cfg.fused_qkv else {"q": dense(d, d), "k": dense(d, d), "v": dense(d, d)}
        mlp = {"up": dense(d, f), "up_bias": jnp.zeros(f), "down": dense(f, d), "down_bias": jnp.zeros(d)}
        return {"ln1": norm(), **qkv, "out": dense(d, d), "ln2": norm(), **mlp}

    layers: Any = [layer() for _ in range(cfg.layers)]
    if cfg.scan:
        layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return {"embed": dense(cfg.vocab, d), "positions": dense(cfg.seq, d), "layers": layers, "final": norm()}


def layer_norm(p: Params, x: jax.Array) -> jax.Array:
    """Normalises the last dimension of `x` [batch, seq, hidden]."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]


def dropout(rate: float, key: jax.Array, x: jax.Array) -> jax.Array:
    """Zeroes each element with probability `rate` and rescales the others."""
    if rate == 0.0:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def attention(cfg: GPTConfig, p: Params, x: jax.Array) -> jax.Array:
    """Causal multi-head attention over `x` [batch, seq, hidden]."""
    if cfg.fused_qkv:
        q, k, v = jnp.split(x @ p["qkv"], 3, axis=-1)
    else:
        q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    heads = lambda t: t.reshape(*t.shape[:2], cfg.heads, cfg.hidden // cfg.heads)  # noqa: E731
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads(q), heads(k)) * (cfg.hidden // cfg.heads) ** -0.5
    causal = jnp.tril(jnp.ones((cfg.seq, cfg.seq), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, heads(v))
    return mixed.reshape(x.shape) @ p["out"]


def block(cfg: GPTConfig, x: jax.Array, p: Params, key: jax.Array) -> jax.Array:
    """One transformer layer."""
    key1, key2 = jax.random.split(key)
    x = x + dropout(cfg.dropout, key1, attention(cfg, p, layer_norm(p["ln1"], x)))
    hidden = jax.nn.gelu(layer_norm(p["ln2"], x) @ p["up"] + p["up_bias"])
    return x + dropout(cfg.dropout, key2, hidden @ p["down"] + p["down_bias"])


def loss(cfg: GPTConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens` [batch, seq + 1] (int32)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = params["embed"][inputs] + params["positions"]
    keys = jax.random.split(key, cfg.layers)
    if cfg.scan:
        x, _ = jax.lax.scan(lambda h, layer: (block(cfg, h, *layer), None), x, (params["layers"], keys))
    else:
        for index, layer in enumerate(params["layers"]):
            with jax.named_scope(f"layer{index}"):
                x = block(cfg, x, layer, keys[index])
    logits = layer_norm(params["final"], x) @ params["embed"].T
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def model(cfg: GPTConfig) -> Model:
    """Returns the GPT as a model to train."""
    tokens = jax.ShapeDtypeStruct((cfg.batch, cfg.seq + 1), jnp.int32)
    return Model("gpt", partial(init, cfg), partial(loss, cfg), tokens)
