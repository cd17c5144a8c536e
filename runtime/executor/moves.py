"""The two sides of a transfer: what the giving rank cuts its array into, and what the taking rank makes of these parts.

Between ranks of equal meshes each device gives what it has, to the device of its number. Between others each gives the
pieces that `rhino.ir.plan.pieces` says: one program on a device that gives cuts them, and one on a device that takes
puts its part together. These programs are of one device each, compiled before the first step.

Ranks may lie in several processes. Then each process cuts and takes the pieces of its own devices, and a piece goes
from the process of the one device to that of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import jax
from jax import lax

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import Layout
from rhino.ir.plan.pieces import Piece, pieces
from rhino.ir.plan.step_memory import local_shape
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

    @property
    def is_whole(self) -> bool:
        """Says whether every device gives what it has to the device of its number."""
        return self.source_mesh == self.target_mesh

    def pieces(self) -> tuple[Piece, ...]:
        """Returns what is sent, by the device that takes it."""
        if self.is_whole:
            shape, start = local_shape(self.source, self.source_mesh), (0,) * len(self.source.shape)
            return tuple([Piece(one, one, start, shape, start) for one in range(self.source_mesh.num_devices)])
        return pieces(self.source, self.source_mesh, self.target, self.target_mesh)


@dataclass(frozen=True, slots=True, eq=False)
class Taking:
    """What a rank takes on its devices of this process: the pieces of these `numbers`, of which `join` makes the array.

    `kinds` has the shape, dtype and device of each.
    """

    numbers: tuple[int, ...]
    kinds: tuple[jax.ShapeDtypeStruct, ...]
    join: Callable[[Parts], jax.Array]


def bind_giving(move: Move, rank: RankDevices, numbers: Sequence[int]) -> Callable[[jax.Array], Parts]:
    """Returns a function that cuts the pieces of these numbers out of an array of `rank`; it waits for nothing.

    They lie on devices of this process.
    """
    if move.is_whole and len(numbers) == len(rank.here):
        return parts_of
    every, place = move.pieces(), {device: at for at, device in enumerate(rank.here)}
    part_shape = rank.placement(move.source).shard_shape(move.source.shape)
    order = sorted(range(len(numbers)), key=lambda at: every[numbers[at]].source)
    cutters: list[tuple[int, list[int], Callable[..., Parts] | None]] = []
    for source, group in groupby(order, key=lambda at: every[numbers[at]].source):
        own = list(group)
        spans = [every[numbers[at]] for at in own]
        if all(one.shape == part_shape for one in spans):
            cutters.append((place[source], own, None))
            continue
        cutters.append((place[source], own, _compiled(_cutter(spans), _kind(move.source, part_shape, rank, source))))

    def cut(array: jax.Array) -> Parts:
        parts = parts_of(array)
        given: dict[int, jax.Array] = {}
        for source, own, cutter in cutters:
            made = [parts[source]] * len(own) if cutter is None else cutter(parts[source])
            given.update(zip(own, made, strict=True))
        return [given[at] for at in range(len(numbers))]

    return cut


def bind_taking(move: Move, rank: RankDevices) -> Taking:
    """Returns what `rank` takes of a move on its devices of this process."""
    every, handler, here = move.pieces(), rank.handler(move.target), frozenset(rank.here)
    numbers = tuple([number for number, one in enumerate(every) if one.target in here])
    kinds = {number: _kind(move.target, every[number].shape, rank, every[number].target) for number in numbers}
    joiners = []
    for _, own in groupby(numbers, key=lambda number: every[number].target):
        group = list(own)
        joiner = _joiner([every[number] for number in group])
        joiners.append(
            (len(group), _compiled(joiner, *[kinds[number] for number in group]) if len(group) > 1 else None)
        )

    def join(parts: Parts) -> jax.Array:
        made, start = [], 0
        for count, joiner in joiners:
            made.append(parts[start] if joiner is None else joiner(*parts[start : start + count]))
            start += count
        return handler(made)

    return Taking(numbers, tuple(kinds.values()), handler if move.is_whole else join)


def parts_of(array: jax.Array) -> Parts:
    """Returns what each device of this process holds of an array, in the order of its mesh."""
    return [shard.data for shard in array.addressable_shards]


def _kind(layout: Layout, shape: tuple[int, ...], rank: RankDevices, device: int) -> jax.ShapeDtypeStruct:
    """Returns the kind of a block of an array on one device of a rank."""
    sharding = jax.sharding.SingleDeviceSharding(rank.devices[device])
    return jax.ShapeDtypeStruct(shape, dtype_of(layout), sharding=sharding)


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
