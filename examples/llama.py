"""LLaMA: RMS norms, rotary positions, grouped-query attention, a SwiGLU feed-forward part, an untied head; no biases.

Source: LLaMA (Touvron et al., 2023), section 2.2; The Llama 3 Herd of Models (2024), table 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Final, Literal

import jax
import jax.numpy as jnp
from layers import DTYPES, DType, Params, cast, cross_entropy, normal, rms_norm
from training import Model
from transformer import attend, causal_mask, init_layers, run_layers

Attention = Literal["plain", "splash", "cudnn"]
Phase = Literal["train", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a LLaMA; each of the `kv_heads` keys and values is shared by heads / kv_heads queries.

    `scan` rolls the layers into one loop, `remat` keeps only what goes from layer to layer for the backward pass,
    `fused_qkv` makes one projection of three, and `fused_gate_up` one of two. In `parallel` layers attention and the
    feed-forward have the same input, as in PaLM (Chowdhery et al., 2022), and one projection where both are fused.
    `rope_theta` is the base of the rotary positions' wave lengths. `attention` is written out, JAX's splash attention
    (a Pallas kernel for TPUs) or cuDNN's fused attention (for GPUs; to lower it, JAX asks for the library); with a
    kernel the step is lowered for its platform. `phase` is the step: training, or inference with a cache of the keys
    and values of `seq` positions, which `prefill` fills with those of `prompt` tokens a sequence, and `decode` with one
    more each. `dtype` is what the layers compute in: parameters that are trained, their updates, normalisation, softmax
    and the loss are float32 in all.
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
    fused_qkv: bool = False
    fused_gate_up: bool = False
    parallel: bool = False
    scan: bool = False
    remat: bool = False
    attention: Attention = "plain"
    phase: Phase = "train"
    prompt: int = 512
    dtype: DType = "f32"

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden ({self.hidden}) is not divisible by twice the heads ({self.heads}): positions rotate pairs"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not divisible by kv-heads ({self.kv_heads})")
        if self.phase != "train" and self.attention != "plain":
            raise ValueError(f"attention ({self.attention}) is a kernel for training; inference has plain attention")
        if self.phase == "prefill" and self.prompt > self.seq:
            raise ValueError(f"prompt ({self.prompt}) is longer than seq ({self.seq}), the positions of the cache")

    @property
    def head_dim(self) -> int:
        """The size of one head."""
        return self.hidden // self.heads

    @property
    def projections(self) -> dict[str, dict[str, int]]:
        """What each weight projects a layer's input to, with the width of each."""
        kv = self.kv_heads * self.head_dim
        attention, forward = {"q": self.hidden, "k": kv, "v": kv}, {"gate": self.ffn, "up": self.ffn}
        if self.parallel and self.fused_qkv and self.fused_gate_up:
            return {"qkv_gate_up": {**attention, **forward}}
        parts = (("qkv", attention, self.fused_qkv), ("gate_up", forward, self.fused_gate_up))
        return {
            name: each
            for fused_name, widths, fused in parts
            for name, each in ({fused_name: widths} if fused else {n: {n: size} for n, size in widths.items()}).items()
        }


# The Llama 3 Herd of Models, table 3, with the sequence length of its pre-training and the vocabulary of its weights;
# the batch is ours.
_LLAMA3: Final = LlamaConfig(kv_heads=8, seq=8192, dtype="bf16")
PRESETS: Final = {
    "llama-3-8b": replace(_LLAMA3, layers=32, hidden=4096, heads=32, ffn=14336),
    "llama-3-70b": replace(_LLAMA3, layers=80, hidden=8192, heads=64, ffn=28672),
    "llama-3-405b": replace(_LLAMA3, layers=126, hidden=16384, heads=128, ffn=53248),
}


def init_layer(cfg: LlamaConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer."""
    d, names = cfg.hidden, ("q", "k", "v", "out", "gate", "up", "down")
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    own = {name: normal(keys[next(iter(each))], d, sum(each.values())) for name, each in cfg.projections.items()}
    back = {"out": normal(keys["out"], d, d), "down": normal(keys["down"], cfg.ffn, d)}
    norms = {"norm1": jnp.ones(d)} | ({} if cfg.parallel else {"norm2": jnp.ones(d)})
    return norms | own | back


def init(cfg: LlamaConfig, key: jax.Array, init_one: Callable[..., Params] = init_layer) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`.

    `init_one` makes those of a layer.
    """
    embed, layers, head = jax.random.split(key, 3)
    return {
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "layers": init_layers(partial(init_one, cfg), cfg.layers, layers, cfg.scan),
        "final": jnp.ones(cfg.hidden),
        "head": normal(head, cfg.hidden, cfg.vocab),
    }


def project(cfg: LlamaConfig, p: Params, x: jax.Array, names: Container[str]) -> dict[str, jax.Array]:
    """Returns by name what the weights that give any of `names` make of `x` [batch, seq, hidden]."""
    found: dict[str, jax.Array] = {}
    for weight, widths in cfg.projections.items():
        if any(name in names for name in widths):
            parts = jnp.split(x @ p[weight], list(accumulate(widths.values()))[:-1], axis=-1)
            found |= zip(widths, parts, strict=True)
    return found


def rotary_angles(cfg: LlamaConfig, positions: jax.Array) -> jax.Array:
    """Returns by how much each of `positions` [seq] turns each pair of a head's values: radians [seq, head_dim / 2]."""
    half = cfg.head_dim // 2
    frequencies = cfg.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    return positions.astype(jnp.float32)[:, None] * frequencies


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Turns the pairs (i, i + head_dim / 2) of `x` [batch, seq, ..., head_dim] by `angles` [seq, head_dim / 2]."""
    angles = jnp.expand_dims(angles, tuple(range(1, x.ndim - 2)))
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


Mix = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""From queries, keys and values, whose shapes are those of `plain`, to what each query attends to."""


def attention(
    cfg: LlamaConfig, angles: jax.Array, p: Params, made: dict[str, jax.Array], mix: Mix | None = None
) -> jax.Array:
    """Grouped-query attention of the projections `q`, `k` and `v`, causal where `mix` says nothing else."""
    batch, seq, hidden = made["q"].shape
    group = cfg.heads // cfg.kv_heads
    q = made["q"].reshape(batch, seq, cfg.kv_heads, group, cfg.head_dim)
    k, v = (made[name].reshape(batch, seq, cfg.kv_heads, cfg.head_dim) for name in ("k", "v"))
    mixed = (mix or _MIXES[cfg.attention])(rotate(q, angles), rotate(k, angles), v)
    return jnp.matmul(mixed.reshape(batch, seq, hidden), p["out"])


def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention as products and a softmax; shapes are those of `transformer.attend`."""
    return attend(q, k, v, causal_mask(q.shape[1]))


def cudnn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention as a call of cuDNN; shapes are those of `plain`."""
    batch, seq, kv_heads, group, head_dim = q.shape
    heads = q.reshape(batch, seq, kv_heads * group, head_dim)
    return jax.nn.dot_product_attention(heads, k, v, is_causal=True, implementation="cudnn").reshape(q.shape)


def splash(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention as a kernel for TPUs; shapes are those of `plain`, but that heads of the result are one dim."""
    from jax.experimental.pallas.ops.tpu import splash_attention  # noqa: PLC0415 - it loads Pallas

    batch, seq, kv_heads, group, head_dim = q.shape
    mask = splash_attention.CausalMask((seq, seq))
    block = min(512, seq)
    kernel = splash_attention.make_splash_mha_single_device(
        splash_attention.MultiHeadMask([mask] * (kv_heads * group)),
        block_sizes=splash_attention.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
    )
    queries = q.reshape(batch, seq, kv_heads * group, head_dim) / math.sqrt(head_dim)
    turned = (one.swapaxes(1, 2) for one in (queries.astype(q.dtype), k, v))
    mixed: jax.Array = jax.vmap(kernel)(*turned)
    return mixed.swapaxes(1, 2)


_MIXES: Final = {"plain": plain, "splash": splash, "cudnn": cudnn}
PLATFORMS: Final = {"plain": "cpu", "splash": "tpu", "cudnn": "cuda"}


def feed_forward(p: Params, made: dict[str, jax.Array]) -> jax.Array:
    """SwiGLU of the projections `gate` and `up`."""
    return jnp.matmul(jax.nn.silu(made["gate"]) * made["up"], p["down"])


def layer(
    cfg: LlamaConfig, angles: jax.Array, x: jax.Array, p: Params, _key: jax.Array | None, mix: Mix | None = None
) -> jax.Array:
    """One layer over `x` [batch, seq, hidden]; nothing in it is random."""
    made = project(cfg, p, rms_norm(p["norm1"], x), ("q", "k", "v", *(("gate", "up") if cfg.parallel else ())))
    x = x + attention(cfg, angles, p, made, mix)
    if not cfg.parallel:
        made = project(cfg, p, rms_norm(p["norm2"], x), ("gate", "up"))
    return x + feed_forward(p, made)


def loss(cfg: LlamaConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens` [batch, seq + 1] (int32)."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    params = cast(params, cfg.dtype)
    each = partial(layer, cfg, rotary_angles(cfg, jnp.arange(cfg.seq)))
    x = run_layers(
        jax.checkpoint(each) if cfg.remat else each, params["embed"][inputs], params["layers"], cfg.layers, key
    )
    return cross_entropy(rms_norm(params["final"], x) @ params["head"], targets).mean()


def sample(cfg: LlamaConfig, key: jax.Array) -> jax.Array:
    """Returns random tokens (int32): [batch, seq + 1], of a prompt [batch, prompt], to decode behind [batch, 1]."""
    length = {"train": cfg.seq + 1, "prefill": cfg.prompt, "decode": 1}[cfg.phase]
    return jax.random.randint(key, (cfg.batch, length), 0, cfg.vocab, jnp.int32)


def model(cfg: LlamaConfig) -> Model:
    """Returns the LLaMA as a model to train, or to run with a cache."""
    if cfg.phase != "train":
        step = partial(infer, cfg, partial(layer_over_cache, cfg))
        return Model("llama", partial(init_cached, cfg, partial(init, cfg)), no_loss, partial(sample, cfg), step=step)
    return Model("llama", partial(init, cfg), partial(loss, cfg), partial(sample, cfg), PLATFORMS[cfg.attention])


# Inference


Carry = tuple[jax.Array, jax.Array, jax.Array]
"""What goes from layer to layer, and the keys and values of all of them."""
Cached = Callable[[jax.Array, Mix, jax.Array, Params], jax.Array]
"""A layer over `x` at positions of some angles, with keys and values of a cache: (angles, mix, x, params) -> x."""


def no_loss(_params: Params, _batch: jax.Array, _key: jax.Array) -> jax.Array:
    """Raises, for inference has no loss."""
    raise ValueError("a step of inference has no loss")


def init_cached(cfg: LlamaConfig, init_params: Callable[[jax.Array], Params], key: jax.Array) -> Params:
    """Returns the state of inference: parameters in the type of the layers, an empty cache, and its length.

    Shapes: `keys` and `values` are [layers, batch, seq, kv_heads, head_dim], `length` is one for all sequences.
    """
    kind, shape = DTYPES[cfg.dtype], (cfg.layers, cfg.batch, cfg.seq, cfg.kv_heads, cfg.head_dim)
    cache = {"keys": jnp.zeros(shape, kind), "values": jnp.zeros(shape, kind), "length": jnp.zeros((), jnp.int32)}
    return {"params": cast(init_params(key), cfg.dtype), "cache": cache}


def infer(cfg: LlamaConfig, each: Cached, state: Params, tokens: jax.Array) -> tuple[Params, jax.Array]:
    """Runs `tokens` [batch, new] behind what the cache holds, and adds their keys and values to it.

    Returns the next state, and the logits after the last of them [batch, vocab] in float32.
    """
    params, cache = state["params"], state["cache"]
    new, length = tokens.shape[1], cache["length"]
    positions = length + jnp.arange(new)
    angles, mask = rotary_angles(cfg, positions), jnp.arange(cfg.seq) <= positions[:, None]

    def run(carry: Carry, one: tuple[jax.Array, Params]) -> tuple[Carry, None]:
        x, keys, values = carry
        number, p = one

        def mix(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            nonlocal keys, values
            keys, values = (
                jax.lax.dynamic_update_slice(whole, part[None], (number, 0, length, 0, 0))
                for whole, part in ((keys, k), (values, v))
            )
            own, theirs = (jax.lax.dynamic_index_in_dim(whole, number, keepdims=False) for whole in (keys, values))
            return attend(q, own, theirs, mask)

        x = each(angles, mix, x, p)
        return (x, keys, values), None

    carry: Carry = params["embed"][tokens], cache["keys"], cache["values"]
    if isinstance(params["layers"], dict):
        carry, _ = jax.lax.scan(run, carry, (jnp.arange(cfg.layers), params["layers"]))
    else:
        for number, p in enumerate(params["layers"]):
            with jax.named_scope(f"layer{number}"):
                carry, _ = run(carry, (jnp.asarray(number), p))
    x, keys, values = carry
    logits = rms_norm(params["final"], x[:, -1]) @ params["head"]
    cache = {"keys": keys, "values": values, "length": length + new}
    return {"params": params, "cache": cache}, logits.astype(jnp.float32)


def layer_over_cache(cfg: LlamaConfig, angles: jax.Array, mix: Mix, x: jax.Array, p: Params) -> jax.Array:
    """One layer over `x` [batch, new, hidden], with the keys and values that `mix` has."""
    return layer(cfg, angles, x, p, None, mix)
