"""What compilers hide of the collectives of a step that experts write by hand, without a device."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from others import there
from report import Options, Question, key, option

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.graph.collective_stats import KINDS
from rhino.ir.units import format_seconds
from rhino.passes.planner.aot import step_of
from rhino.runtime.aot.compile import compiler_of
from rhino.strategies.cost.compiled_step import CompiledStep

ABOUT: Final = """What compilers hide of the collectives of a step whose layers are sharded by hand.

Eight layers of a LLaMA, forward and backward, in bf16 with parameters in f32, in `shard_map`: each layer gathers its
weights, and scatters or reduces their gradients. Planned by nobody, compiled for each cluster whose compiler is there.

    way          fsdp: weights are split over the first axis, and gathered; dp: they are whole, and gradients are
                 reduced; on two axes also tensor and sequence parallelism along the second
    form         scanned or unrolled layers, checkpointed or not
    options      of the compiler: the cluster's own, none, or those of --options
    kernels      seconds of kernels, as compiled
    exposed      seconds that the step waits for collectives
    the rest     of each kind of collective, the seconds on the wire, and the part that is asynchronous
"""

Params = dict[str, jax.Array]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the layers."""

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    seq: int
    layers: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters of all layers."""
        kv, own = self.hidden // self.heads * self.kv_heads, (self.hidden, self.hidden)
        wide = (self.hidden, self.ffn)
        each = {"q": own, "k": (self.hidden, kv), "v": (self.hidden, kv), "out": own}
        each |= {"gate": wide, "up": wide, "down": wide[::-1]}
        return {name: (self.layers, *shape) for name, shape in each.items()}


@dataclass(frozen=True, slots=True)
class Row:
    """A way to shard the layers on a cluster and a mesh, as compiled.

    `sent` has by kind the seconds of all collectives, and of asynchronous ones.
    """

    cluster: str
    mesh: str
    way: str
    form: str
    options: str
    step_s: float
    kernels_s: float
    exposed_s: float
    sent: dict[str, tuple[float, float]]


@jax.custom_vjp
def _reduced(weight: jax.Array) -> jax.Array:
    """A whole weight whose gradient is summed over the first axis."""
    return weight


_reduced.defvjp(lambda weight: (weight, None), lambda _, made: (jax.lax.psum(made, "x"),))


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


@dataclass(frozen=True, slots=True)
class HandSharded:
    """The layers on a mesh of one or two axes, sharded by hand."""

    sizes: Sizes
    mesh: tuple[int, ...]
    way: str
    is_scanned: bool
    is_checkpointed: bool

    def weight(self, p: Params, name: str) -> jax.Array:
        """Returns a weight as a device multiplies by it."""
        own = p[name].astype(jnp.bfloat16)
        if self.way == "dp":
            return _reduced(own)
        gathered: jax.Array = jax.lax.all_gather(own, "x", axis=int(name in ("out", "down")), tiled=True)
        return gathered

    def into(self, x: jax.Array) -> jax.Array:
        """Returns a layer's input, of which devices along the second axis have parts of the sequence."""
        return jax.lax.all_gather(x, "y", axis=1, tiled=True) if len(self.mesh) > 1 else x

    def out_of(self, x: jax.Array) -> jax.Array:
        """Returns a layer's output, to which devices along the second axis have added up."""
        return jax.lax.psum_scatter(x, "y", scatter_dimension=1, tiled=True) if len(self.mesh) > 1 else x

    def layer(self, x: jax.Array, p: Params) -> tuple[jax.Array, None]:
        """Attention and the feed-forward part on `x` [batch, seq, hidden]."""
        each, part = self.sizes.hidden // self.sizes.heads, prod(self.mesh[1:])
        w, kv = {name: self.weight(p, name) for name in p}, self.sizes.kv_heads // part
        h = _norm(self.into(x))
        q = (h @ w["q"]).reshape(*h.shape[:2], kv, -1, each)
        k, v = ((h @ w[name]).reshape(*h.shape[:2], kv, each) for name in "kv")
        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k).astype(jnp.float32) / each**0.5
        mixed = jnp.einsum("bkgqs,bskd->bqkgd", jax.nn.softmax(scores, -1).astype(x.dtype), v)
        x = x + self.out_of(mixed.reshape(*h.shape[:2], -1) @ w["out"])
        h = _norm(self.into(x))
        return x + self.out_of((jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]), None

    def loss(self, params: Params, x: jax.Array) -> jax.Array:
        """A loss of all layers."""
        layer = jax.checkpoint(self.layer) if self.is_checkpointed else self.layer
        if self.is_scanned:
            x, _ = jax.lax.scan(layer, x, params)
        for number in range(0 if self.is_scanned else self.sizes.layers):
            x, _ = layer(x, jax.tree.map(lambda p, i=number: p[i], params))
        return (x.astype(jnp.float32) ** 2).sum()

    def step(self, params: Params, x: jax.Array) -> tuple[Params, jax.Array]:
        """A step of gradient descent."""
        loss, made = jax.value_and_grad(self.loss)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, made), loss[None]

    def specs(self) -> dict[str, PartitionSpec]:
        """How the parameters lie."""
        first, second = None if self.way == "dp" else "x", "y" if len(self.mesh) > 1 else None
        ways = {True: (None, second, first), False: (None, first, second)}
        return {name: PartitionSpec(*ways[name in ("out", "down")]) for name in self.sizes.shapes}

    def bytecode(self) -> bytes:
        """Returns the step as MLIR bytecode."""
        axes = ("x", "y")[: len(self.mesh)]
        mesh, specs, batch = AbstractMesh(self.mesh, axes), self.specs(), PartitionSpec(*axes)

        def kind(shape: tuple[int, ...], dtype: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:  # noqa: ANN401
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

        params = {name: kind(shape, np.float32, specs[name]) for name, shape in self.sizes.shapes.items()}
        x = kind((self.mesh[0], self.sizes.seq, self.sizes.hidden), jnp.bfloat16, batch)
        results = (specs, PartitionSpec(axes))
        mapped = jax.shard_map(self.step, mesh=mesh, in_specs=(specs, batch), out_specs=results, check_vma=False)
        lowered = jax.jit(mapped, donate_argnums=0).trace(params, x).lower(lowering_platforms=("cpu",))
        stream = io.BytesIO()
        lowered.compiler_ir().operation.write_bytecode(stream)
        return stream.getvalue()


def compiled(made: HandSharded, name: str, options: str) -> CompiledStep:
    """Returns the step as a cluster's compiler makes it."""
    cluster = load_cluster(name)
    if options != "own":
        own = tuple(json.loads(options).items()) if options else ()
        cluster = replace(cluster, device=replace(cluster.device, compile_options=own))
    compiles = compiler_of(cluster, parse_mesh("x".join(map(str, made.mesh))))
    if isinstance(compiles, str):
        raise ValueError(compiles)
    return step_of(compiles(made.bytecode()), cluster)


def records(options: Options) -> Iterator[Row]:
    """Yields the rows of all clusters, meshes, ways and options."""
    jax.config.update("jax_platforms", "cpu")  # the step is traced, and nothing runs
    sizes = Sizes(*map(int, options.sizes))
    form = ("unrolled" if options.unrolled else "scanned", "" if options.kept else "checkpointed")
    for cluster in filter(there, options.clusters):
        count, own = load_cluster(cluster).num_devices, load_cluster(cluster).device.compile_options
        given = [options.options] if options.options else ["own", ""] if own else [""]
        for mesh in options.meshes:
            shape = parse_mesh(mesh).shape
            for way in options.ways if prod(shape) == count else ():
                made = HandSharded(sizes, shape, way, not options.unrolled, not options.kept)
                for flags in given:
                    step = compiled(made, cluster, flags)
                    words = f"{way} x tp" if len(shape) > 1 else way
                    sent = {kind: _seconds(step, kind) for kind in KINDS}
                    yield Row(
                        cluster,
                        mesh,
                        words,
                        ", ".join(filter(None, form)),
                        flags or "none",
                        step.step_s,
                        step.kernels_s,
                        step.exposed_s,
                        sent,
                    )


def _seconds(step: CompiledStep, kind: str) -> tuple[float, float]:
    ones = [one for one in step.collectives if one.kind == kind]
    return sum(one.seconds for one in ones), sum(one.seconds for one in ones if one.is_async)


def _sent(kind: str, row: Row) -> str:
    every, hidden = row.sent[kind]
    return f"{format_seconds(every)}, {hidden / every:.0%}" if every else "-"


_KINDS: Final[dict[str, Callable[[Any], str]]] = {kind: partial(_sent, kind) for kind in KINDS}
QUESTION: Final = Question(
    ABOUT,
    records,
    {
        "cluster": key("cluster"),
        "mesh": key("mesh"),
        "way": key("way"),
        "form": key("form"),
        "options": key("options"),
        "step": key("step_s", "s"),
        "kernels": key("kernels_s", "s"),
        "exposed": key("exposed_s", "s"),
        **_KINDS,
    },
    (
        option("--clusters", ["v5e-8", "v5p-16", "v6e-8", "h100x8"], "for which the step is compiled"),
        option("--meshes", ["8", "2x4"], "of these clusters"),
        option("--ways", ["fsdp", "dp"], "to shard weights"),
        option("--sizes", ["4096", "14336", "32", "8", "4096", "8"], "hidden, ffn, heads, kv-heads, seq and layers"),
        option("--unrolled", False, "layers are no loop"),
        option("--kept", False, "layers are not checkpointed"),
        option("--options", "", "of the compiler, as JSON, in place of the cluster's and of none"),
    ),
    ("mesh", "way", "form", "options"),
)
