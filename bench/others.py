"""Training steps in styles that the example models do not have, as people write them: for predictions of memory.

Each is a JAX function `step(state, batch)` whose state is donated, with shapes in place of values. None of them was
used to build the memory model. A device's part takes hundreds of MiB: XLA:TPU keeps much of a smaller one in the
on-chip memory, which is not counted.

Printed for each program and cluster: the peak that the plan foresees, and what XLA assigns to the localized program, by
the compiler of the cluster's platform and without a device. Without `--clusters` it is `cpu8`, and `v5e-8` where libtpu
is installed.

Exit code: with `--check` 1 if the median of predicted / compiled is outside 0.95 to 1.15, one of them is under 0.9, or
a program has no plan or is not compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from jax import lax
from report import Options, Question, key, option, say

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.planner.aot import LOCALIZED, program_of
from rhino.passes.planner.unstaged_plan import search
from rhino.runtime.aot.compile import compiler_of

Tree = Any
Loss = Callable[[Tree, Tree], jax.Array]
Step = Callable[[Tree, Tree], tuple[Tree, Tree]]
Program = tuple[Step, Tree, Tree]
"""A step, and the shapes of its state and of its batch."""

PROGRAMS: Final[dict[str, Callable[[], Program]]] = {}

LOW, HIGH = 0.95, 1.15
"""Between them the median of predicted / compiled peaks is to lie."""

LEAST: Final = 0.9
"""No predicted peak is to be under this share of the compiled one."""


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    """Adds a program by the name of its function."""
    PROGRAMS[make.__name__] = make
    return make


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns a tensor's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    """Returns a tensor's shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def trained(loss: Loss, params: Tree, batch: Tree, optimizer: optax.GradientTransformation | None = None) -> Program:
    """Returns the step that lowers a loss by an optimizer of optax; Adam unless another is given."""
    chosen = optimizer or optax.adam(1e-3)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        params, carried = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, carried = chosen.update(grads, carried, params)
        return (optax.apply_updates(params, updates), carried), value

    return step, (params, jax.eval_shape(chosen.init, params)), batch


def descended(loss: Loss, params: Tree, batch: Tree) -> Program:
    """Returns the step that lowers a loss by plain gradient descent."""

    def step(params: Tree, batch: Tree) -> tuple[Tree, Tree]:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    return step, params, batch


def norm(x: jax.Array) -> jax.Array:
    """Returns layer normalization without a scale."""
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def by_index(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the cross-entropy that takes the labels' entries by index."""
    logp = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logp, labels[..., None], axis=-1).mean()


def dense(*sizes: int) -> Tree:
    """Returns the weights of dense layers, each with a bias."""
    return [{"w": f32(m, n), "b": f32(n)} for m, n in pairwise(sizes)]


def forward(layers: Tree, x: jax.Array) -> jax.Array:
    """Returns what dense layers with ReLU between them make of x."""
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return jnp.add(x @ layers[-1]["w"], layers[-1]["b"])


def conv(x: jax.Array, w: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Returns a 2-D convolution of NHWC with HWIO."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


# Sequences


@program
def linear_recurrence() -> Program:
    """A gated linear recurrence by an associative scan over time."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = p["embed"][batch["tokens"]]
        decay, value = jax.nn.sigmoid(x @ p["gate"]), x @ p["value"]
        _, h = lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (decay, value), axis=1)
        return by_index(norm(h) @ p["out"], batch["labels"])

    params = {"embed": f32(4096, 512), "gate": f32(512, 512), "value": f32(512, 512), "out": f32(512, 4096)}
    return trained(loss, params, {"tokens": i32(128, 256), "labels": i32(128, 256)})


@program
def running_mean() -> Program:
    """Tokens see the mean of those before them, by cumsum."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = p["embed"][batch["tokens"]]
        for layer in p["layers"]:
            before = jnp.cumsum(x, axis=1) / jnp.arange(1, x.shape[1] + 1)[:, None]
            x = x + jax.nn.gelu(norm(before) @ layer["up"]) @ layer["down"]
        return by_index(x @ p["embed"].T, batch["labels"])

    layers = [{"up": f32(512, 1024), "down": f32(1024, 512)}] * 2
    params = {"embed": f32(4096, 512), "layers": layers}
    return trained(loss, params, {"tokens": i32(128, 256), "labels": i32(128, 256)})


@program
def rnn() -> Program:
    """A tanh RNN by lax.scan over time."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(x @ p["in"] + h @ p["hidden"])
            return h, h

        start = jnp.zeros((batch["x"].shape[1], 512))
        _, hs = lax.scan(cell, start, batch["x"])
        return jnp.mean((hs @ p["out"] - batch["y"]) ** 2)

    params = {"in": f32(256, 512), "hidden": f32(512, 512), "out": f32(512, 256)}
    return descended(loss, params, {"x": f32(128, 512, 256), "y": f32(128, 512, 256)})


@program
def lstm() -> Program:
    """An LSTM by lax.scan over time, with a loss by index."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        def cell(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = carry
            i, f, g, o = jnp.split(x @ p["in"] + h @ p["hidden"] + p["bias"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        x = p["embed"][batch["tokens"]].swapaxes(0, 1)
        zero = jnp.zeros((x.shape[1], 512))
        _, hs = lax.scan(cell, (zero, zero), x)
        return by_index(hs.swapaxes(0, 1) @ p["out"], batch["labels"])

    params = {
        "embed": f32(4096, 512),
        "in": f32(512, 2048),
        "hidden": f32(512, 2048),
        "bias": f32(2048),
        "out": f32(512, 4096),
    }
    return trained(loss, params, {"tokens": i32(256, 64), "labels": i32(256, 64)})


@program
def checkpointed_gru() -> Program:
    """A GRU whose time is cut in chunks, each recomputed in the backward pass."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            gates = jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p["gates"])
            z, r = jnp.split(gates, 2, axis=-1)
            new = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p["new"])
            return (1 - z) * h + z * new, None

        @jax.checkpoint
        def chunk(h: jax.Array, xs: jax.Array) -> tuple[jax.Array, None]:
            return lax.scan(cell, h, xs)[0], None

        start = jnp.zeros((batch["x"].shape[2], 512))
        h, _ = lax.scan(chunk, start, batch["x"])
        return by_index(h @ p["out"], batch["labels"])

    params = {"gates": f32(768, 1024), "new": f32(768, 512), "out": f32(512, 128)}
    return trained(loss, params, {"x": f32(8, 16, 512, 256), "labels": i32(512)})


@program
def linear_attention() -> Program:
    """Linear attention in chunks: a scan carries the sum of key-value products."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        q, k, v = (jax.nn.elu(x @ p[name]) + 1 for name in ("q", "k", "v"))
        chunks = [one.reshape(x.shape[0], 8, 64, 8, 64).transpose(1, 0, 3, 2, 4) for one in (q, k, v)]

        def chunk(s: jax.Array, qkv: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            q, k, v = qkv
            within = jnp.tril(jnp.einsum("bhqd,bhkd->bhqk", q, k))
            out = jnp.einsum("bhqk,bhkd->bhqd", within, v) + jnp.einsum("bhqd,bhde->bhqe", q, s)
            return s + jnp.einsum("bhkd,bhke->bhde", k, v), out

        _, out = lax.scan(chunk, jnp.zeros((x.shape[0], 8, 64, 64)), tuple(chunks))
        out = out.transpose(1, 0, 3, 2, 4).reshape(x.shape)
        return jnp.mean((norm(out) @ p["out"] - batch["y"]) ** 2)

    params = {name: f32(512, 512) for name in ("q", "k", "v", "out")}
    return trained(loss, params, {"x": f32(128, 512, 512), "y": f32(128, 512, 512)})


@program
def windowed_attention() -> Program:
    """Attention within blocks and to the block before."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        q, k, v = ((x @ p[name]).reshape(x.shape[0], 8, 64, 8, 32) for name in ("q", "k", "v"))
        k, v = (jnp.concatenate([jnp.pad(one, ((0, 0), (1, 0)) + ((0, 0),) * 3)[:, :-1], one], 2) for one in (k, v))
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k) / 32**0.5
        out = jnp.einsum("bnhqk,bnkhd->bnqhd", jax.nn.softmax(scores), v)
        return jnp.mean((out.reshape(x.shape[0], 512, 256) @ p["out"] - batch["y"]) ** 2)

    params = {"q": f32(256, 256), "k": f32(256, 256), "v": f32(256, 256), "out": f32(256, 256)}
    return trained(loss, params, {"x": f32(128, 512, 256), "y": f32(128, 512, 256)})


@program
def library_attention() -> Program:
    """A block with jax.nn.dot_product_attention, causal."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = p["embed"][batch["tokens"]]
        q, k, v = ((norm(x) @ p[name]).reshape(*x.shape[:2], 8, 64) for name in ("q", "k", "v"))
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["out"]
        x = x + jax.nn.silu(norm(x) @ p["gate"]) * (norm(x) @ p["up"]) @ p["down"]
        return by_index(x @ p["head"], batch["labels"])

    params = {name: f32(512, 512) for name in ("q", "k", "v", "out", "gate", "up", "down")}
    params |= {"embed": f32(8192, 512), "head": f32(512, 8192)}
    return trained(loss, params, {"tokens": i32(64, 512), "labels": i32(64, 512)})


def _block(p: Tree, x: jax.Array) -> jax.Array:
    """A layer of attention and feed-forward, 8 heads."""
    q, k, v = jnp.split((norm(x) @ p["qkv"]).reshape(*x.shape[:2], 8, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)
    x = x + out.reshape(x.shape) @ p["out"]
    return jnp.add(x, jax.nn.gelu(norm(x) @ p["up"]) @ p["down"])


_LAYER: Final = {"qkv": (512, 1536), "out": (512, 512), "up": (512, 2048), "down": (2048, 512)}


@program
def checkpointed_layers() -> Program:
    """Eight scanned layers, each recomputed in the backward pass."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        layer = jax.checkpoint(lambda x, one: (_block(one, x), None))
        x, _ = lax.scan(layer, p["embed"][batch["tokens"]], p["layers"])
        return by_index(x @ p["embed"].T, batch["labels"])

    params = {"embed": f32(8192, 512), "layers": {name: f32(8, *shape) for name, shape in _LAYER.items()}}
    return trained(loss, params, {"tokens": i32(128, 256), "labels": i32(128, 256)})


@program
def checkpointed_dots() -> Program:
    """Unrolled layers under jax.checkpoint, which keeps products without batch dims."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        x = p["embed"][batch["tokens"]]
        for layer in p["layers"]:
            x = jax.checkpoint(_block, policy=policy)(layer, x)
        return by_index(x @ p["embed"].T, batch["labels"])

    layers = [{name: f32(*shape) for name, shape in _LAYER.items()}] * 3
    return trained(
        loss, {"embed": f32(8192, 512), "layers": layers}, {"tokens": i32(128, 256), "labels": i32(128, 256)}
    )


@program
def master_weights() -> Program:
    """bf16 layers in a scan, f32 master weights, AdamW."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        low = jax.tree.map(lambda one: one.astype(jnp.bfloat16), p)
        x, _ = lax.scan(lambda x, one: (_block(one, x), None), low["embed"][batch["tokens"]], low["layers"])
        return by_index((x @ low["embed"].T).astype(jnp.float32), batch["labels"])

    params = {"embed": f32(8192, 512), "layers": {name: f32(6, *shape) for name, shape in _LAYER.items()}}
    return trained(loss, params, {"tokens": i32(128, 256), "labels": i32(128, 256)}, optax.adamw(1e-3))


@program
def accumulated() -> Program:
    """Gradients of four micro-batches are added in a scan written by hand."""

    def loss(p: Tree, tokens: jax.Array, labels: jax.Array) -> jax.Array:
        x = p["embed"][tokens]
        for layer in p["layers"]:
            x = _block(layer, x)
        return by_index(x @ p["embed"].T, labels)

    def step(p: Tree, batch: Tree) -> tuple[Tree, Tree]:
        def one(total: Tree, part: Tree) -> tuple[Tree, jax.Array]:
            value, grads = jax.value_and_grad(loss)(p, *part)
            return jax.tree.map(jnp.add, total, grads), value

        total, values = lax.scan(one, jax.tree.map(jnp.zeros_like, p), batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g / 4, p, total), values.mean()

    layers = [{name: f32(*shape) for name, shape in _LAYER.items()}] * 2
    return step, {"embed": f32(8192, 512), "layers": layers}, (i32(4, 64, 256), i32(4, 64, 256))


@program
def fourier_mixer() -> Program:
    """FNet: tokens are mixed by a Fourier transform."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        for layer in p["layers"]:
            x = norm(x + jnp.fft.fft(jnp.fft.fft(x, axis=-1), axis=-2).real)
            x = norm(x + jax.nn.gelu(x @ layer["up"]) @ layer["down"])
        return by_index(x.mean(1) @ p["head"], batch["labels"])

    params = {"layers": [{"up": f32(512, 1024), "down": f32(1024, 512)}] * 2, "head": f32(512, 1024)}
    return trained(loss, params, {"x": f32(128, 256, 512), "labels": i32(128)})


@program
def dilated_convolutions() -> Program:
    """WaveNet: gated 1-D convolutions with growing dilation."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        for number, w in enumerate(p["convs"]):
            made = lax.conv_general_dilated(
                x, w, (1,), [(2**number, 0)], rhs_dilation=(2**number,), dimension_numbers=("NWC", "WIO", "NWC")
            )
            value, gate = jnp.split(made, 2, axis=-1)
            x = x + jnp.tanh(value) * jax.nn.sigmoid(gate)
        return by_index(x @ p["head"], batch["labels"])

    params = {"convs": [f32(2, 128, 256)] * 6, "head": f32(128, 256)}
    return trained(loss, params, {"x": f32(128, 2048, 128), "labels": i32(128, 2048)})


# Images


@program
def small_unet() -> Program:
    """A U-Net with skips by concatenation and resizing by repetition."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x, skips = conv(batch["x"], p["in"]), []
        for w in p["down"]:
            skips.append(x)
            x = jax.nn.silu(conv(x, w, stride=2))
        for w in p["up"]:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = jax.nn.silu(conv(jnp.concatenate([x, skips.pop()], -1), w))
        return jnp.mean((conv(x, p["out"]) - batch["y"]) ** 2)

    params = {
        "in": f32(3, 3, 3, 64),
        "down": [f32(3, 3, 64, 128), f32(3, 3, 128, 256)],
        "up": [f32(3, 3, 384, 128), f32(3, 3, 192, 64)],
        "out": f32(3, 3, 64, 3),
    }
    return trained(loss, params, {"x": f32(256, 64, 64, 3), "y": f32(256, 64, 64, 3)})


@program
def separable_convolutions() -> Program:
    """MobileNet: depthwise and pointwise convolutions."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = conv(batch["x"], p["in"], stride=2)
        for layer in p["layers"]:
            x = jax.nn.relu6(conv(x, layer["depth"], groups=x.shape[-1]))
            x = jax.nn.relu6(conv(x, layer["point"]))
        return by_index(x.mean((1, 2)) @ p["head"], batch["labels"])

    layers = [{"depth": f32(3, 3, 1, size), "point": f32(1, 1, size, 2 * size)} for size in (64, 128)]
    params = {"in": f32(3, 3, 3, 64), "layers": layers, "head": f32(256, 1000)}
    return trained(loss, params, {"x": f32(256, 64, 64, 3), "labels": i32(256)})


@program
def batch_norm() -> Program:
    """Convolutions with batch norm, whose running statistics are in the state; SGD with momentum."""

    def loss(p: Tree, stats: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        x, new = batch["x"], []
        for w, old in zip(p["convs"], stats, strict=True):
            x = conv(x, w)
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            new.append((0.9 * old[0] + 0.1 * mean, 0.9 * old[1] + 0.1 * var))
            x = jax.nn.relu((x - mean) * lax.rsqrt(var + 1e-5))
        return by_index(x.mean((1, 2)) @ p["head"], batch["labels"]), new

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        p, speed, stats = state
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(p, stats, batch)
        speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, grads)
        return (jax.tree.map(lambda p, v: p - 1e-2 * v, p, speed), speed, stats), value

    params = {"convs": [f32(3, 3, 3, 64), f32(3, 3, 64, 64), f32(3, 3, 64, 128)], "head": f32(128, 1000)}
    stats = [(f32(64), f32(64)), (f32(64), f32(64)), (f32(128), f32(128))]
    return step, (params, params, stats), {"x": f32(512, 32, 32, 3), "labels": i32(512)}


@program
def pooled_images() -> Program:
    """Convolutions with max pooling, whose backward pass selects and scatters."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        for w in p["convs"]:
            x = lax.reduce_window(jax.nn.relu(conv(x, w)), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return by_index(forward(p["dense"], x.reshape(x.shape[0], -1)), batch["labels"])

    params = {"convs": [f32(3, 3, 3, 64), f32(3, 3, 64, 128)], "dense": dense(8192, 1024, 100)}
    return trained(loss, params, {"x": f32(512, 32, 32, 3), "labels": i32(512)})


# Tables, graphs and sets


@program
def graph_convolution() -> Program:
    """Messages along edges, added by segment_sum."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["nodes"]
        for w in p["layers"]:
            sent = jax.nn.relu(x[batch["source"]] @ w)
            x = norm(x + jax.ops.segment_sum(sent, batch["target"], num_segments=x.shape[0]))
        return by_index(x @ p["head"], batch["labels"])

    params = {"layers": [f32(256, 256)] * 2, "head": f32(256, 64)}
    batch = {"nodes": f32(65536, 256), "source": i32(262144), "target": i32(262144), "labels": i32(65536)}
    return trained(loss, params, batch)


@program
def graph_attention() -> Program:
    """A softmax over the edges of each node, by segment_max and segment_sum."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        source, target, count = batch["source"], batch["target"], batch["nodes"].shape[0]
        x = batch["nodes"] @ p["in"]
        score = jnp.tanh(jnp.concatenate([x[source], x[target]], -1)) @ p["score"]
        score = jnp.exp(score - jax.ops.segment_max(score, target, num_segments=count)[target])
        weight = score / (jax.ops.segment_sum(score, target, num_segments=count)[target] + 1e-9)
        x = jax.ops.segment_sum(weight[:, None] * x[source], target, num_segments=count)
        return by_index(x @ p["head"], batch["labels"])

    params = {"in": f32(256, 256), "score": f32(512), "head": f32(256, 64)}
    batch = {"nodes": f32(32768, 256), "source": i32(131072), "target": i32(131072), "labels": i32(32768)}
    return trained(loss, params, batch)


@program
def embedding_tables() -> Program:
    """DLRM: a lookup for each of eight features, products of all pairs, a dense top."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        found = [table[batch["ids"][:, number]] for number, table in enumerate(p["tables"])]
        x = jnp.stack([forward(p["bottom"], batch["x"]), *found], axis=1)
        pairs = jnp.einsum("bid,bjd->bij", x, x).reshape(x.shape[0], -1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(forward(p["top"], pairs)[:, 0], batch["y"]))

    params = {"tables": [f32(65536, 64)] * 8, "bottom": dense(64, 512, 64), "top": dense(81, 512, 256, 1)}
    return trained(loss, params, {"x": f32(16384, 64), "ids": i32(16384, 8), "y": f32(16384)}, optax.adagrad(1e-2))


@program
def scattered_experts() -> Program:
    """A mixture of experts that sends tokens to their experts by scatter."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        gate = jax.nn.softmax(x @ p["router"])
        expert, weight = jnp.argmax(gate, -1), gate.max(-1)
        place = jnp.cumsum(jax.nn.one_hot(expert, 8, dtype=jnp.int32), 0) * jax.nn.one_hot(expert, 8, dtype=jnp.int32)
        place = place.sum(-1) - 1
        sent = jnp.zeros((8, 8192, x.shape[-1])).at[expert, place].set(x, mode="drop")
        made = jnp.einsum("ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", sent, p["up"])), p["down"])
        y = x + weight[:, None] * made.at[expert, place].get(mode="fill", fill_value=0)
        return jnp.mean((y - batch["y"]) ** 2)

    params = {"router": f32(512, 8), "up": f32(8, 512, 1024), "down": f32(8, 1024, 512)}
    return trained(loss, params, {"x": f32(32768, 512), "y": f32(32768, 512)})


@program
def set_transport() -> Program:
    """Sinkhorn iterations between two sets of features."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        a, b = forward(p, batch["a"]), forward(p, batch["b"])
        cost = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)

        def iterate(u: jax.Array, _: None) -> tuple[jax.Array, None]:
            v = -jax.nn.logsumexp(u[:, :, None] - cost, axis=1)
            return -jax.nn.logsumexp(v[:, None] - cost, axis=2), None

        u, _ = lax.scan(iterate, jnp.zeros(a.shape[:2]), None, length=10)
        v = -jax.nn.logsumexp(u[:, :, None] - cost, axis=1)
        return (jnp.exp(u[:, :, None] + v[:, None] - cost) * cost).sum((1, 2)).mean()

    return trained(loss, dense(128, 512, 32), {"a": f32(256, 64, 128), "b": f32(256, 64, 128)})


@program
def clusters() -> Program:
    """Online k-means, without gradients: the nearest centre, and sums by cluster."""

    def step(centres: jax.Array, x: jax.Array) -> tuple[Tree, Tree]:
        distance = (x**2).sum(1)[:, None] - 2 * x @ centres.T + (centres**2).sum(1)
        nearest = jax.nn.one_hot(jnp.argmin(distance, 1), centres.shape[0])
        mean = nearest.T @ x / (nearest.sum(0)[:, None] + 1e-6)
        return 0.9 * centres + 0.1 * mean, distance.min(1).mean()

    return step, f32(1024, 512), f32(131072, 512)


# Losses and optimizers


@program
def mixture_density() -> Program:
    """A mixture of 16 Gaussians for each output, by logsumexp."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        made = forward(p, batch["x"]).reshape(batch["x"].shape[0], 64, 16, 3)
        weight, mean, width = jax.nn.log_softmax(made[..., 0]), made[..., 1], made[..., 2]
        logp = -0.5 * ((batch["y"][..., None] - mean) * jnp.exp(-width)) ** 2 - width
        return -jax.nn.logsumexp(weight + logp, axis=-1).mean()

    return trained(loss, dense(256, 1024, 1024, 3072), {"x": f32(16384, 256), "y": f32(16384, 64)})


@program
def contrastive() -> Program:
    """Two towers and the products of all pairs of a batch."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        a, b = (forward(p[name], batch[name]) for name in ("left", "right"))
        a, b = (one / jnp.linalg.norm(one, axis=-1, keepdims=True) for one in (a, b))
        logits = a @ b.T * jnp.exp(p["scale"])
        own = jnp.arange(a.shape[0])
        return by_index(logits, own) + by_index(logits.T, own)

    towers: Tree = {name: dense(512, 2048, 256) for name in ("left", "right")}
    return trained(loss, {**towers, "scale": f32()}, {"left": f32(8192, 512), "right": f32(8192, 512)})


@program
def autoencoder() -> Program:
    """A variational autoencoder that draws noise from a key."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        mean, width = jnp.split(forward(p["encode"], batch["x"]), 2, axis=-1)
        noise = jax.random.normal(jax.random.wrap_key_data(batch["key"]), mean.shape)
        made = forward(p["decode"], mean + jnp.exp(width) * noise)
        kept = optax.sigmoid_binary_cross_entropy(made, batch["x"]).sum(-1)
        return jnp.mean(kept + 0.5 * (mean**2 + jnp.exp(2 * width) - 2 * width - 1).sum(-1))

    params = {"encode": dense(784, 2048, 256), "decode": dense(128, 2048, 784)}
    return trained(loss, params, {"x": f32(32768, 784), "key": jax.ShapeDtypeStruct((2,), jnp.uint32)})


@program
def distilled() -> Program:
    """A student learns from a teacher that is carried along unchanged; its average is kept as well."""

    def loss(p: Tree, teacher: Tree, x: jax.Array) -> jax.Array:
        target = jax.nn.softmax(forward(teacher, x) / 2)
        return -(target * jax.nn.log_softmax(forward(p, x) / 2)).sum(-1).mean()

    def step(state: Tree, x: jax.Array) -> tuple[Tree, Tree]:
        p, average, teacher = state
        value, grads = jax.value_and_grad(loss)(p, teacher, x)
        p = jax.tree.map(lambda p, g: p - 1e-2 * g, p, grads)
        return (p, jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, p), teacher), value

    student, teacher = dense(512, 1024, 1000), dense(512, 4096, 4096, 1000)
    return step, (student, student, teacher), f32(16384, 512)


@program
def adapters() -> Program:
    """Low-rank adapters are trained, the layers below them are not."""

    def loss(p: Tree, base: Tree, batch: Tree) -> jax.Array:
        x = batch["x"]
        for w, (a, b) in zip(base, p, strict=True):
            x = x + jax.nn.gelu(norm(x) @ w + norm(x) @ a @ b)
        return jnp.mean((x - batch["y"]) ** 2)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        p, carried, base = state
        value, grads = jax.value_and_grad(loss)(p, base, batch)
        updates, carried = optimizer.update(grads, carried, p)
        return (optax.apply_updates(p, updates), carried, base), value

    p = [(f32(1024, 8), f32(8, 1024))] * 6
    state = (p, jax.eval_shape(optimizer.init, p), [f32(1024, 1024)] * 6)
    return step, state, {"x": f32(32768, 1024), "y": f32(32768, 1024)}


@program
def factored_moments() -> Program:
    """Adafactor, whose second moments are rows and columns."""

    def loss(p: Tree, batch: Tree) -> jax.Array:
        return by_index(forward(p, batch["x"]), batch["labels"])

    batch = {"x": f32(8192, 1024), "labels": i32(8192)}
    return trained(loss, dense(1024, 4096, 4096, 1024), batch, optax.adafactor(1e-3))


# Measurements


@dataclass(frozen=True, slots=True)
class Row:
    """A program's peaks in bytes of a device, as predicted and as compiled for a cluster; or why there are none."""

    program: str
    cluster: str
    predicted_bytes: int | None = None
    compiled_bytes: int | None = None
    processor_s: float | None = None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted over compiled."""
        return self.predicted_bytes / self.compiled_bytes if self.predicted_bytes and self.compiled_bytes else None


def text_of(name: str) -> bytes:
    """Returns a program as StableHLO text."""
    step, state, batch = PROGRAMS[name]()
    lowered = jax.jit(step, donate_argnums=0).lower(state, batch)
    return str(lowered.as_text(debug_info=True)).encode()


def measure(name: str, cluster: str) -> Row:
    """Returns the row of one program on one cluster, planned on one axis over all of its devices."""
    whole = load_cluster(cluster)
    mesh = parse_mesh(str(whole.num_devices))
    compiles = compiler_of(whole, mesh)
    if isinstance(compiles, str):
        return Row(name, cluster, why=compiles)
    predicted = None
    try:
        module = read_module(text_of(name), name, make_context())
        found = search(module, name, {"cluster": cluster, "mesh": str(mesh)}, Remarks(name))
        predicted = found.plan.predicted.peak_bytes[0]
        code = program_of(found.module, LOCALIZED)
        if code is None:
            return Row(name, cluster, predicted, why="its plan has no localized form")
        compiled = compiles(code)
    except RhinoError as error:
        return Row(name, cluster, predicted, why=f"{error.id}: {error.what}")
    return Row(name, cluster, predicted, compiled.peak_bytes, compiled.processor_s)


def there(wanted: str) -> bool:
    """Says whether programs can be compiled for a cluster."""
    cluster = load_cluster(wanted)
    return not isinstance(compiler_of(cluster, parse_mesh(str(cluster.num_devices))), str)


def records(options: Options) -> Iterator[Row]:
    """Yields the rows of all programs on all clusters."""
    jax.config.update("jax_platforms", "cpu")  # programs are traced, and nothing runs
    clusters = options.clusters or ["cpu8", *filter(there, ["v5e-8"])]
    for cluster in clusters:
        for name in options.programs or PROGRAMS:
            yield measure(name, cluster)
            say(f"{name} on {cluster}")


def off(ratios: Sequence[float]) -> Iterator[str]:
    """Yields what is wrong with predicted / compiled peaks."""
    if not LOW <= median(ratios) <= HIGH:
        yield f"median of predicted / compiled peak {median(ratios):.3f}"
    low = [ratio for ratio in ratios if ratio < LEAST]
    if low:
        yield f"{len(low)} of {len(ratios)} predicted peaks are under {LEAST} of the compiled one, least {min(low):.3f}"


def _ratios(rows: Sequence[Row]) -> Iterator[tuple[str, list[float]]]:
    for cluster in dict.fromkeys(row.cluster for row in rows):
        yield cluster, [row.ratio for row in rows if row.cluster == cluster and row.ratio is not None]


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yields what is wrong with the rows."""
    yield from (f"{row.program} on {row.cluster}: {row.why}" for row in rows if row.why)
    for cluster, ratios in _ratios(rows):
        yield from (f"{cluster}: {what}" for what in off(ratios) if ratios)


def summary(rows: Sequence[Row]) -> str:
    """Returns what the rows come to, by cluster."""
    line = "{}: predicted / compiled peak of {} programs: median {:.3f}, {:.3f} to {:.3f}; {} are under {}"
    return "\n".join(
        line.format(name, len(all_), median(all_), min(all_), max(all_), sum(one < LEAST for one in all_), LEAST)
        for name, all_ in _ratios(rows)
        if all_
    )


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "program": key("program"),
        "cluster": key("cluster"),
        "predicted": key("predicted_bytes", "bytes"),
        "compiled": key("compiled_bytes", "bytes"),
        "ratio": key("ratio", ".3f"),
        "processor": key("processor_s", "s"),
        "why not": lambda row: row.why.partition("\n")[0],
    },
    (
        option("--programs", [], "which programs (default all)"),
        option("--clusters", [], "which clusters (default cpu8, and v5e-8 where libtpu is installed)"),
        option("--check", False, "exit with 1 where something is not as it should be"),
    ),
    ("cluster", "why not"),
    faults,
    summary=summary,
)
