"""A transfer between ranks of unlike meshes, piece by piece: which device sends which block to which device.

Each device of the target is sent what its part takes of the source's parts, and nothing twice. Where several devices of
the source hold a block, the one that has sent least so far sends it. A piece is a block of one part on either side, so
those of a device of the target are a grid, and its part is their concatenation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.graph.elements import element_bytes
from rhino.ir.plan.instructions import Layout, Step, Transfer
from rhino.ir.plan.step_memory import local_bytes, local_shape


@dataclass(frozen=True, slots=True)
class Piece:
    """A block that device `source` of one mesh sends to device `target` of another.

    Shapes: `start` is where it begins in the source's part and `shape` its size [rank]; `place` is its place in the
    grid of the target's pieces [rank].
    """

    source: int
    target: int
    start: tuple[int, ...]
    shape: tuple[int, ...]
    place: tuple[int, ...]


@lru_cache(maxsize=1 << 12)
def pieces(source: Layout, source_mesh: Mesh, target: Layout, target_mesh: Mesh) -> tuple[Piece, ...]:
    """Returns the pieces that make an array of `target` of one of `source`, by device of the target.

    Those of one device stand in the order of their places. Both layouts have one shape.
    """
    holders: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for device, block in enumerate(_blocks(source, source_mesh)):
        holders[block].append(device)
    sizes = _steps(source, source_mesh)
    sent = [0] * source_mesh.num_devices
    found = []
    for device, block in enumerate(_blocks(target, target_mesh)):
        spans = [
            list(_spans(at * own, min((at + 1) * own, size), step))
            for at, own, size, step in zip(block, _steps(target, target_mesh), source.shape, sizes, strict=True)
        ]
        for place in product(*(range(len(one)) for one in spans)):
            chosen = [one[at] for one, at in zip(spans, place, strict=True)]
            holder = min(holders[tuple([at for at, _, _ in chosen])], key=lambda one: (sent[one], one))
            shape = tuple([size for _, _, size in chosen])
            sent[holder] += math.prod(shape)
            found.append(Piece(holder, device, tuple([start for _, start, _ in chosen]), shape, place))
    return tuple(found)


def sent_bytes(step: Step, one: Transfer) -> int:
    """Returns the bytes that a device sends or receives in a transfer, of the device that has most."""
    source, target = step.slots[one.source].layout, step.slots[one.target].layout
    meshes = step.mesh_of(one.source), step.mesh_of(one.target)
    if meshes[0] == meshes[1]:
        return local_bytes(source, meshes[0], source.memory)
    size = element_bytes(source.dtype)
    sent, received = [0] * meshes[0].num_devices, [0] * meshes[1].num_devices
    for piece in pieces(source, meshes[0], target, meshes[1]):
        sent[piece.source] += math.prod(piece.shape) * size
        received[piece.target] += math.prod(piece.shape) * size
    return max(*sent, *received)


def _steps(layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """Returns at what multiples, along each dim, the next part begins."""
    return tuple([max(1, size) for size in local_shape(layout, mesh)])


def _blocks(layout: Layout, mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """Yields the number, along each dim, of each device's part."""
    sizes = dict(mesh.axes)
    for at in product(*map(range, mesh.shape)):
        own = dict(zip(mesh.names, at, strict=True))
        block = []
        for axes in layout.dims:
            number = 0
            for axis in axes:
                number = number * sizes[axis] + own[axis]
            block.append(number)
        yield tuple(block)


def _spans(start: int, end: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Yields the pieces of a range that is cut at multiples of `step`: which block, where it begins in it, its size.

    An empty range is one empty piece.
    """
    at = start
    while at < end or at == start:
        block = at // step
        size = max(0, min(end, (block + 1) * step) - at)
        yield block, at - block * step, size
        at += max(1, size)
