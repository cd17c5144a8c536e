"""The two sides of a transfer: what the giving rank cuts its array into, and what the taking rank makes of these parts.

Between ranks of equal meshes each device gives what it has, to the device of its number. Between others each gives the
pieces that `rhino.ir.plan.pieces` says: one program on a device that gives cuts them, and one on a device that takes
puts its part together. These programs are of one device each, compiled before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import Layout
from rhino.ir.plan.pieces import Piece, pieces
from rhino.runtime.executor.rank_program import RankDevices, dtype_of

Parts: TypeAlias = list[jax.Array]
"""Arrays of one device each."""


@dataclass(frozen=True, slots=True)
class Move:
    """An array of `source` on a mesh, that another rank is to have as `target` on a mesh of its own."""

    source: Layout
    source_mesh: Mesh
    target: Layout
    target_mesh: Mesh

    def pieces(self) -> tuple[Piece, ...]:
        """Returns what is sent, by the device that takes it; nothing where every device gives what it has."""
        if self.source_mesh == self.target_mesh:
            return ()
        return pieces(self.source, self.source_mesh, self.target, self.target_mesh)


@dataclass(frozen=True, slots=True, eq=False)
class Taking:
    """What a rank takes: parts of these `shapes` and one `dtype` on `devices`, of which `join` makes the array."""

    shapes: tuple[tuple[int, ...], ...]
    dtype: np.dtype[np.generic]
    devices: tuple[jax.Device, ...]
    join: Callable[[Parts], jax.Array]


def bind_giving(move: Move, rank: RankDevices) -> Callable[[jax.Array], Parts]:
    """Returns a function that cuts an array of `rank` into what the other rank takes; it waits for nothing."""
    found = move.pieces()
    if not found:
        return parts_of
    placement = rank.placement(move.source)
    part_shape = placement.shard_shape(move.source.shape)
    order = sorted(range(len(found)), key=lambda number: found[number].source)
    cutters: list[tuple[int, list[int], Callable[..., Parts] | None]] = []
    for source, numbers in groupby(order, key=lambda number: found[number].source):
        own = list(numbers)
        spans = [found[number] for number in own]
        if all(one.shape == part_shape for one in spans):
            cutters.append((source, own, None))
            continue
        shape = jax.ShapeDtypeStruct(
            part_shape, dtype_of(move.source), sharding=jax.sharding.SingleDeviceSharding(rank.devices[source])
        )
        cutters.append((source, own, _compiled(_cutter(spans), shape)))

    def cut(array: jax.Array) -> Parts:
        parts = parts_of(array)
        given: dict[int, jax.Array] = {}
        for source, own, cutter in cutters:
            made = [parts[source]] * len(own) if cutter is None else cutter(parts[source])
            given.update(zip(own, made, strict=True))
        return [given[number] for number in range(len(found))]

    return cut


def bind_taking(move: Move, rank: RankDevices) -> Taking:
    """Returns what `rank` takes of a move."""
    found, handler, dtype = move.pieces(), rank.handler(move.target), dtype_of(move.target)
    if not found:
        shape = rank.placement(move.target).shard_shape(move.target.shape)
        return Taking((shape,) * len(rank.devices), dtype, rank.devices, handler)
    joiners = []
    for target, own in groupby(found, key=lambda one: one.target):
        sharding = jax.sharding.SingleDeviceSharding(rank.devices[target])
        group = list(own)
        shapes = [jax.ShapeDtypeStruct(one.shape, dtype, sharding=sharding) for one in group]
        joiners.append((len(group), _compiled(_joiner(group), *shapes) if len(group) > 1 else None))

    def join(parts: Parts) -> jax.Array:
        made, start = [], 0
        for count, joiner in joiners:
            made.append(parts[start] if joiner is None else joiner(*parts[start : start + count]))
            start += count
        return handler(made)

    devices = tuple([rank.devices[one.target] for one in found])
    return Taking(tuple([one.shape for one in found]), dtype, devices, join)


def parts_of(array: jax.Array) -> Parts:
    """Returns what each device holds of an array, in the order of its mesh."""
    return [shard.data for shard in array.addressable_shards]


def _compiled(function: Callable[..., Any], *shapes: jax.ShapeDtypeStruct) -> Callable[..., Any]:
    with jax.enable_x64(True):  # else 64-bit values would be narrowed
        found: Callable[..., Any] = jax.jit(function).lower(*shapes).compile()
    return found


def _cutter(spans: Sequence[Piece]) -> Callable[[jax.Array], Parts]:
    """Returns what cuts pieces out of a part."""

    def cut(part: jax.Array) -> Parts:
        ends = [tuple([at + size for at, size in zip(one.start, one.shape, strict=True)]) for one in spans]
        return [lax.slice(part, one.start, end) for one, end in zip(spans, ends, strict=True)]

    return cut


def _joiner(group: Sequence[Piece]) -> Callable[..., jax.Array]:
    """Returns what puts the pieces of a part together, those of the last dim first."""

    def join(*parts: jax.Array) -> jax.Array:
        rows = [(one.place, part) for one, part in zip(group, parts, strict=True)]
        while rows[0][0]:
            grouped = groupby(rows, key=lambda row: row[0][:-1])
            rows = [
                (place, lax.concatenate(row, len(place)) if len(row := [part for _, part in own]) > 1 else row[0])
                for place, own in grouped
            ]
        return rows[0][1]

    return join
