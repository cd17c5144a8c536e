"""The programs that a profile times: each is one kind of work, alone, on every device at once.

A program is written for one device and mapped over all of them, as a step is: devices that share cores, memory or links
are measured while all of them are busy. Work is repeated in a chain, each link of which needs the one before, so that
the compiler neither joins nor drops any; `work` and `repeats` are of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

Arrays = tuple[jax.Array, ...]

DTYPES: Final = {"f64": jnp.float64, "f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


@dataclass(frozen=True, slots=True)
class Probe:
    """One program to time.

    `group` is the kind of work, `work` what each of `repeats` links of the chain does on a device: FLOPs, elements or
    bytes; 0 `repeats` stand for as many as the program has kernels, 0 `work` for the bytes that these move. `local`
    takes and gives arrays of `shapes`, one device's. `inner` is the size of the groups that collectives run in (axis
    "inner").
    """

    group: str
    work: float
    repeats: int
    local: Callable[..., Arrays]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = "f32"
    inner: int = 1


Family = Iterator[Probe]
"""The programs of one kind of work, from small to large; to be taken until one takes too long."""


def launch(count: int) -> Family:
    """Yields a program that does next to nothing with `count` arrays; work is how many it takes and gives."""
    yield Probe("launch", 2.0 * count, 1, lambda *arrays: tuple(a + 1 for a in arrays), ((8,),) * count)


_LAYERS: Final = 24
"""Enough for two hundred kernels, no two of them alike.

One that has just run, as in a loop, takes a fraction of one that has not.
"""


def ops() -> Family:
    """Yields the training step of a net whose layers are too small to take time.

    Its kernels are counted when it is compiled.
    """
    widths = [8 + layer for layer in range(_LAYERS + 1)]
    yield Probe("op", 1.0, 0, _train_net, ((16, widths[0]), *pairwise(widths)))


def _train_net(x: jax.Array, *weights: jax.Array) -> Arrays:
    def net(x: jax.Array, *weights: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
            x = x - jnp.max(x, axis=1, keepdims=True)
        return x

    y, back = jax.vjp(net, x, *weights)
    return (y, *back(y))


def products(dtype: str) -> Family:
    """Yields the three products of a layer's training, alone and in batches as attention has them."""
    for size in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        yield Probe(f"product {dtype}", 2.0 * size**3, 6, _chain(2, _three_products), ((size, size),) * 2, dtype)
        batch = (16, size // 4, size // 4)
        yield Probe(f"product {dtype}", 2.0 * 16 * (size // 4) ** 3, 6, _chain(2, _three_products), (batch,) * 2, dtype)


def _three_products(y: jax.Array, w: jax.Array) -> jax.Array:
    batch = tuple(range(y.ndim - 2))
    rows, columns = y.ndim - 2, y.ndim - 1

    def product(a: jax.Array, b: jax.Array, over: tuple[int, int]) -> jax.Array:
        return lax.dot_general(a, b, (((over[0],), (over[1],)), (batch, batch)))

    y = product(y, w, (columns, rows))
    y = product(y, w, (columns, columns))
    return product(y, w, (rows, rows))


def elementwise() -> Family:
    """Yields sums of two arrays: two reads and a write."""
    for size in _SIZES:
        yield Probe("memory", 12.0 * size, 4, lambda x, *ys: tuple(x + y for y in ys), ((size,),) * 5)


def copies() -> Family:
    """Yields transposes: a read and a write."""
    for size in _SIZES:
        shape = (size // 256, 256)
        yield Probe("memory", 8.0 * size, 4, lambda *xs: tuple(x.T for x in xs), (shape,) * 4)


def reductions() -> Family:
    """Yields sums of rows: a read."""
    for size in _SIZES:
        shape = (size // 256, 256)
        yield Probe("memory", 4.0 * size, 4, lambda *xs: tuple(jnp.sum(x, axis=1) for x in xs), (shape,) * 4)


_SIZES: Final = (1 << 20, 1 << 21, 1 << 22)
"""Elements: more than caches hold."""

_ELEMENTS: Final = (1 << 12, 1 << 14, 1 << 16)


def norms() -> Family:
    """Yields the training step of a net that has norms alone.

    Its kernels move memory, among values that a step keeps for long.
    """
    for rows in (1024, 4096):
        yield Probe("step memory", 0.0, 1, _train_norms, ((rows, 1024), *((1024,) for _ in range(12))))


def _train_norms(x: jax.Array, *scales: jax.Array) -> Arrays:
    def net(x: jax.Array, *scales: jax.Array) -> jax.Array:
        for scale in scales:
            centred = x - jnp.mean(x, axis=1, keepdims=True)
            x = x + jnp.maximum(centred * lax.rsqrt(jnp.mean(centred * centred, axis=1, keepdims=True) + 1) * scale, 0)
        return x

    y, back = jax.vjp(net, x, *scales)
    return tuple(back(y))


def arithmetic() -> Family:
    """Yields long chains of multiplications and additions that become one kernel."""
    for size in _ELEMENTS:
        yield Probe("vector", float(size), 64, _chain(32, lambda y, w: y * w + w), ((size,), (size,)))


def roots() -> Family:
    """Yields chains of what XLA calls expensive: exponentials, logarithms, roots and divisions."""
    for size in _ELEMENTS:
        yield Probe("costly", float(size), 20, _chain(4, _five_costly), ((size,), (size,)))


def _five_costly(y: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.log(w / (lax.rsqrt(jnp.exp(jnp.tanh(y)) + 1)) + 1)


def convolutions(dtype: str) -> Family:
    """Yields the three convolutions of a layer's training: forward, and the gradients of input and kernel."""
    for channels in (8, 16, 32, 64, 128, 256):
        image, kernel = (4, 16, 16, channels), (3, 3, channels, channels)
        flops = 2.0 * 4 * 16 * 16 * 9 * channels**2
        yield Probe(f"convolution {dtype}", flops, 3, _train_convolution, (image, kernel), dtype)


def _train_convolution(x: jax.Array, w: jax.Array) -> Arrays:
    def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    y, back = jax.vjp(convolve, x, w)
    return (y, *back(y))


_LINKS: Final = 4
"""How many collectives a chain has."""

_WIDTH: Final = 256
"""Rows and columns of what is computed between collectives, one product each."""


def collective(kind: str, inner: int) -> Family:
    """Yields chains of one kind of collective in groups of `inner` devices, all groups at once.

    Between two of them each device computes, as in a step: devices that share cores do not arrive at the same time. The
    work of a chain is the payload in bytes; what `computing` takes is to be taken off its time.
    """
    for size in (1 << 8, 1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 1 << 24):
        yield _beside_products(kind, size, lambda y: _collective(kind, y, inner), inner)


def computing() -> Family:
    """Yields the chain of `collective` without collectives."""
    yield _beside_products("between", 1 << 8, lambda y: y, 1)


def _beside_products(group: str, size: int, link: Callable[[jax.Array], jax.Array], inner: int) -> Probe:
    """Returns a chain of links, a product before each, which waits for the link before and is waited for."""

    def local(y: jax.Array, z: jax.Array, w: jax.Array) -> Arrays:
        for _ in range(_LINKS):
            z = (z * (2 * y[0])) @ w
            y = link(lax.dynamic_update_slice_in_dim(y, y[:1] * z[0, 0], 0, 0))
        return (y, z)

    return Probe(group, 4.0 * size, _LINKS, local, ((size,), (_WIDTH, _WIDTH), (_WIDTH, _WIDTH)), inner=inner)


def _collective(kind: str, y: jax.Array, inner: int) -> jax.Array:
    """One collective whose result has the operand's shape; where it has not, a copy makes it so."""
    found: jax.Array
    match kind:
        case "all_reduce":
            found = lax.psum(y, "inner") * (1 / inner)
        case "all_gather":  # the payload is the result
            found = lax.all_gather(y[: y.shape[0] // inner], "inner", tiled=True)
        case "reduce_scatter":
            found = jnp.tile(lax.psum_scatter(y, "inner", tiled=True), inner)
        case "all_to_all":
            found = lax.all_to_all(y, "inner", 0, 0, tiled=True)
        case _:
            found = lax.ppermute(y, "inner", [(i, (i + 1) % inner) for i in range(inner)])
    return found


def _chain(repeats: int, link: Callable[..., jax.Array]) -> Callable[..., Arrays]:
    def local(y: jax.Array, *others: jax.Array) -> Arrays:
        for _ in range(repeats):
            y = link(y, *others)
        return (y,)

    return local
