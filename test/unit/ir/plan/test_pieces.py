"""Pieces that devices of unlike meshes send each other make the array of the other rank, with no byte too much."""

import math
from itertools import product

import numpy as np
import pytest

from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.plan.instructions import Feed, Fetch, Free, Layout, Slot, Step, Transfer
from rhino.ir.plan.pieces import pieces, sent_bytes

MESHES = [mesh_of_shape(shape) for shape in ((1,), (2,), (3,), (4,), (2, 2), (2, 3), (3, 2))]
SHAPE = (12, 24)


def drawn_layout(random: np.random.Generator, mesh: Mesh) -> Layout:
    dims: list[list[str]] = [[], []]
    for axis in mesh.names:
        if (dim := int(random.integers(3))) < 2:
            dims[dim].append(axis)
    return Layout(SHAPE, "f32", tuple(map(tuple, dims)))


def parts(array: np.ndarray, layout: Layout, mesh: Mesh) -> list[np.ndarray]:
    """What each device holds, by splitting the array along one axis of the mesh after the other."""
    found = []
    for place in product(*map(range, mesh.shape)):
        part = array
        for dim, axes in enumerate(layout.dims):
            for axis in axes:
                at = mesh.names.index(axis)
                part = np.split(part, mesh.shape[at], dim)[place[at]]
        found.append(part)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_pieces_make_each_part(seed: int):
    random = np.random.default_rng(seed)
    one, other = (MESHES[number] for number in random.choice(len(MESHES), 2, replace=False))
    source, target = drawn_layout(random, one), drawn_layout(random, other)
    array = np.arange(math.prod(SHAPE)).reshape(SHAPE)
    given, wanted = parts(array, source, one), parts(array, target, other)
    found = pieces(source, one, target, other)
    assert [piece.target for piece in found] == sorted(piece.target for piece in found)
    for device, part in enumerate(wanted):
        own = {piece.place: piece for piece in found if piece.target == device}
        cut = {
            place: given[piece.source][tuple(slice(a, a + b) for a, b in zip(piece.start, piece.shape, strict=True))]
            for place, piece in own.items()
        }
        rows, columns = (1 + max(place[dim] for place in cut) for dim in (0, 1))
        made = np.block([[cut[row, column] for column in range(columns)] for row in range(rows)])
        assert (made == part).all()
        assert sum(math.prod(piece.shape) for piece in own.values()) == part.size


def test_replicas_share_what_is_sent():
    """Each of four devices that hold the whole sends half of what the two others take."""
    whole, rows = Layout((8, 4), "f32", ((), ())), Layout((8, 4), "f32", (("x",), ()))
    found = pieces(whole, mesh_of_shape((4,)), rows, mesh_of_shape((2,)))
    assert [(piece.source, piece.target, piece.start) for piece in found] == [(0, 0, (0, 0)), (1, 1, (4, 0))]
    found = pieces(rows, mesh_of_shape((2,)), whole, mesh_of_shape((4,)))
    assert [piece.source for piece in found] == [0, 1] * 4


def test_an_array_without_elements_is_one_empty_piece():
    empty = Layout((0, 4), "f32", ((), ()))
    found = pieces(empty, mesh_of_shape((2,)), empty, mesh_of_shape((3,)))
    assert [(piece.target, piece.shape) for piece in found] == [(0, (0, 4)), (1, (0, 4)), (2, (0, 4))]


def test_a_transfer_takes_as_long_as_the_device_that_has_most_to_send_or_to_receive():
    rows, whole = Layout((8, 4), "f32", (("x",), ())), Layout((8, 4), "f32", ((), ()))
    meshes = mesh_of_shape((4,)), mesh_of_shape((2,)), mesh_of_shape((4,))
    slots = (Slot(0, rows), Slot(1, whole), Slot(2, rows), Slot(2, rows))
    moves = (Transfer(0, 0, 1), Transfer(1, 1, 2), Transfer(2, 0, 3))
    step = Step(meshes, (), slots, (Feed(0, 0), *moves, Fetch(2, 0), Free((0, 1, 3))))
    # Each device of rank 1 takes all 128 bytes, each of rank 2 a quarter: 64 from each of the two.
    assert [sent_bytes(step, one) for one in moves] == [128, 64, 32]
