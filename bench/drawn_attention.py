"""Draw training steps with attention, rewrite it into loops over blocks of keys, and compare with one device.

What is drawn: how many queries and keys there are, grouped queries, the dtype, where scores are scaled, how they are
masked (by iotas, by an argument, with a bias, with minus infinity, whole rows of it too), how the softmax is written,
dropout, and whether layers are checkpointed and in a loop. The rewritten step runs on one device, and under a plan that
nobody would choose (`drawn_plans.py`). What computes in bf16 or f32 is rewritten so, and then compared in f64, where
rounding hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from drawn_plans import NotDrawnError, drawable, one_device
from longer_floats import in_f64

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager

Array = jax.Array
_FILE: Final = "attention.mlir"
_DTYPES: Final = {"f32": jnp.float32, "bf16": jnp.bfloat16}
_RATE: Final = 0.2
TOLERANCE: Final = 1e-12
"""The relative error of a result in f64: both ways to sum up are off by some roundings."""
LIBRARY: Final = "library"
"""A softmax that JAX's own function for attention takes, which knows of no mask but the causal one here."""
BATCH: Final = 2
HEAD_DIM: Final = 4


@dataclass(frozen=True, slots=True)
class Form:
    """What a step does; `queries` and `keys` are how many there are, `most_keys` how many a block has at most."""

    queries: int
    keys: int
    most_keys: int
    heads: int
    groups: int
    dtype: str
    scale: str
    mask: str
    softmax: str
    is_dropped: bool
    is_checkpointed: bool
    is_scanned: bool

    def __str__(self) -> str:
        flags = [name for name in ("dropped", "checkpointed", "scanned") if getattr(self, f"is_{name}")]
        sizes = f"{self.queries}x{self.keys} by {self.most_keys}, {self.heads}/{self.groups} heads"
        return " ".join([sizes, self.dtype, self.scale, self.mask, self.softmax, *flags])


def _scores(form: Form, q: Array, k: Array) -> Array:
    q = q * HEAD_DIM**-0.5 if form.scale == "queries" else q
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32)
    return scores / HEAD_DIM**0.5 if form.scale == "scores" else scores


def _masked(form: Form, scores: Array, given: Array) -> Array:
    rows, columns = jnp.arange(form.queries)[:, None], jnp.arange(form.keys)[None]
    masks: Mapping[str, Callable[[], Array]] = {
        "none": lambda: scores,
        "causal": lambda: jnp.where(jnp.tril(jnp.ones((form.queries, form.keys), bool)), scores, -1e9),
        "window": lambda: jnp.where(abs(rows * form.keys // form.queries - columns) < 2, scores, -jnp.inf),
        "added": lambda: scores + jnp.where(rows >= columns, 0.0, -1e9),
        "bias": lambda: scores + given,
        "padding": lambda: jnp.where(given[:, None, None, None, :] > 0, scores, -1e9),
        "given": lambda: jnp.where((given[:, None, None] > 0) | (columns == 3), scores, -jnp.inf),
        "distance": lambda: scores - jnp.abs(rows - columns) * 0.1,
    }
    return masks[form.mask]()


_SOFTMAX: Final[Mapping[str, Callable[[Array], Array]]] = {
    "jax": lambda scores: jax.nn.softmax(scores, axis=-1),
    "log": lambda scores: jnp.exp(jax.nn.log_softmax(scores, axis=-1)),
    "by hand": lambda scores: _by_hand(scores),
    "sinks": lambda scores: _beside_sinks(scores),
    "safe": lambda scores: jnp.where((scores == -jnp.inf).all(-1, keepdims=True), 0, jax.nn.softmax(scores, axis=-1)),
}
MASKS: Final = ("none", "causal", "window", "added", "bias", "padding", "given", "distance")
_GIVEN: Final[Mapping[str, Callable[[Form], tuple[int, ...]]]] = {
    "bias": lambda form: (form.heads // form.groups, 1, form.queries, form.keys),
    "padding": lambda form: (BATCH, form.keys),
    "given": lambda form: (BATCH, form.queries, form.keys),
}


def _by_hand(scores: Array) -> Array:
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return weights / weights.sum(-1, keepdims=True)


def _beside_sinks(scores: Array) -> Array:
    """Weights beside those of a sink, as gpt-oss has it: keys that nobody reads."""
    sinks = jnp.broadcast_to(jnp.linspace(-1.0, 1.0, scores.shape[-2])[:, None], (*scores.shape[:-1], 1))
    return jax.nn.softmax(jnp.concatenate([scores, sinks], axis=-1), axis=-1)[..., :-1]


def draw_form(random: np.random.Generator) -> Form:
    """Returns a form of a step."""
    queries, keys, most_keys = ((8, 8, 2), (8, 8, 4), (8, 16, 4), (12, 6, 2), (8, 7, 3), (10, 7, 2))[
        int(random.integers(6))
    ]
    heads, groups = ((2, 1), (4, 2), (2, 2))[int(random.integers(3))]
    dtype = "bf16" if random.integers(4) == 0 else "f32"
    scale, mask = str(random.choice(["queries", "scores"])), str(random.choice(MASKS))
    softmax = str(random.choice([*_SOFTMAX, LIBRARY]))
    dropped, checkpointed, scanned = (bool(one) for one in random.integers(2, size=3))
    return Form(queries, keys, most_keys, heads, groups, dtype, scale, mask, softmax, dropped, checkpointed, scanned)


def _layer(form: Form, x: Array, p: Mapping[str, Array], key: Array, given: Array) -> Array:
    dtype = _DTYPES[form.dtype]
    kept = form.heads // form.groups

    def projected(name: str, length: int, *heads: int) -> Array:
        rows = jnp.resize(x, (BATCH, length, x.shape[-1])).astype(dtype)
        return (rows @ p[name].astype(dtype)).reshape(BATCH, length, *heads, HEAD_DIM)

    q = projected("q", form.queries, kept, form.groups)
    k, v = projected("k", form.keys, kept), projected("v", form.keys, kept)
    if form.softmax == LIBRARY:
        heads = q.reshape(BATCH, form.queries, form.heads, HEAD_DIM)
        mixed = jax.nn.dot_product_attention(heads, k, v, is_causal=form.mask == "causal")
    else:
        weights = _SOFTMAX[form.softmax](_masked(form, _scores(form, q, k), given)).astype(dtype)
        if form.is_dropped:
            weights = jnp.where(jax.random.bernoulli(key, 1 - _RATE, weights.shape), weights / (1 - _RATE), 0)
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, v)
    mixed = mixed.reshape(x.shape)
    return x + jnp.tanh((mixed @ p["out"].astype(dtype)).astype(x.dtype))


def step_of(form: Form) -> bytes:
    """Returns the loss of two layers and its gradients as StableHLO text."""
    layer = jax.checkpoint(_layer, static_argnums=0) if form.is_checkpointed else _layer
    width, kept = form.heads * HEAD_DIM, form.heads // form.groups * HEAD_DIM
    widths = {"q": width, "k": kept, "v": kept, "out": width}
    given = jax.ShapeDtypeStruct(_GIVEN[form.mask](form) if form.mask in _GIVEN else (), jnp.float32)

    def loss(p: Mapping[str, Array], x: Array, given: Array) -> Array:
        keys = jax.random.split(jax.random.key(0), 2)
        p = {name: 0.3 * one for name, one in p.items()}
        if form.is_scanned:
            x, _ = jax.lax.scan(lambda h, each: (layer(form, h, *each, given), None), x, (p, keys))
        else:
            for number in range(2):
                x = layer(form, x, {name: one[number] for name, one in p.items()}, keys[number], given)
        return jnp.mean(x**2)

    params = {name: jax.ShapeDtypeStruct((2, width, size), jnp.float32) for name, size in widths.items()}
    x = jax.ShapeDtypeStruct((BATCH, form.queries, width), jnp.float32)
    learned = (0, 2) if form.mask == "bias" else 0
    return str(jax.jit(jax.value_and_grad(loss, learned)).lower(params, x, given).as_text()).encode()


def blockwise(text: bytes, most_keys: int) -> tuple[ir.Module, list[str]]:
    """Returns a step whose attention is in loops over blocks, and the remarks of the pass."""
    module, remarks = read_module(text, _FILE, make_context()), Remarks(_FILE)
    with module.context, ir.Location.unknown():
        pipeline = f"rhino-normalize,rhino-attention{{attention=blockwise:{most_keys}}}"
        build_pass_manager(pipeline, module.context, remarks).run(module.operation)
    return module, [one.text for one in remarks.items]


def try_attention(form: Form, seed: int = 0, mood: str = "", mesh: str = "1") -> tuple[bool, str]:
    """Returns whether the rewritten step gives the results of the step on one device, and a line about it.

    It runs under a random plan on a mesh of several devices.
    """
    text = step_of(form)
    expected = one_device(in_f64(text.decode()))
    module, remarks = blockwise(text, form.most_keys)
    rewritten = [one for one in remarks if "is computed in" in one]
    if not rewritten:
        return False, f"nothing is rewritten: {'; '.join(remarks)}"
    wide = in_f64(str(module))
    drawn = drawable(wide, mesh)
    try:
        chosen = drawn.plan(seed, mood)
    except NotDrawnError:  # loops in loops on several axes: on one of as many devices
        drawn = drawable(wide, str(prod(map(int, mesh.split("x")))))
        chosen = drawn.plan(seed, mood)
    found = expected.difference(chosen, drawn.module, own_collectives=True)
    line = f"{'; '.join(rewritten)}; worst result {found.value.label}, relative error {found.max_rel:.2g}"
    return found.max_rel <= TOLERANCE, line


def drawn(seed: int) -> Form:
    """Returns the form of a seed."""
    return draw_form(np.random.default_rng(seed))
