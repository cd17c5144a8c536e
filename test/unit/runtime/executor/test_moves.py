"""An array that a rank sends to one of another mesh comes there as it was."""

import jax
import numpy as np
import pytest

from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.plan.instructions import Layout
from rhino.runtime.executor.moves import Move, bind_giving, bind_taking
from rhino.runtime.executor.rank_program import RankDevices, dtype_of
from rhino.runtime.executor.transport import bind_copy

SHAPE = (12, 8)
CASES = [
    ((4,), (2,), "f32"),
    ((2, 2), (4,), "bf16"),
    ((1,), (3,), "i1"),
    ((3,), (2, 2), "i64"),
    ((2, 2), (1,), "f32"),
    ((2,), (2,), "f32"),  # of equal meshes each device gives what it has
]


def drawn_layout(random: np.random.Generator, mesh: Mesh, dtype: str) -> Layout:
    dims: list[list[str]] = [[], []]
    for axis, size in mesh.axes:
        if (dim := int(random.integers(3))) < 2 and SHAPE[dim] % size == 0:
            dims[dim].append(axis)
    return Layout(SHAPE, dtype, tuple(map(tuple, dims)))


@pytest.mark.parametrize(("shape", "other", "dtype"), CASES)
def test_moved_arrays_are_whole(shape: tuple[int, ...], other: tuple[int, ...], dtype: str):
    """By a copy inside a process, and as the parts that go between two, all at once or some of them at a time."""
    random = np.random.default_rng(len(shape) + other[0])
    meshes = mesh_of_shape(shape), mesh_of_shape(other)
    source, target = (
        RankDevices(rank, mesh, jax.devices()[start : start + mesh.num_devices])
        for rank, (mesh, start) in enumerate(zip(meshes, (0, 4), strict=True))
    )
    given, wanted = (drawn_layout(random, mesh, dtype) for mesh in meshes)
    if meshes[0] == meshes[1]:
        wanted = given
    move = Move(given, meshes[0], wanted, meshes[1])
    values = random.integers(0, 2, SHAPE).astype(dtype_of(given)) * (1 if dtype == "i1" else 7)
    values = values.astype(dtype_of(given))
    with jax.enable_x64(True):
        array = jax.device_put(values, source.placement(given))
    taking = bind_taking(move, target)
    shares = [tuple(number for number in taking.numbers if number % 3 == rest) for rest in range(3)]
    joined = []
    for some in ([taking.numbers], [share for share in shares if share]):
        parts = {
            number: np.asarray(part)
            for own in some
            for number, part in zip(own, bind_giving(move, source, own)(array), strict=True)
        }
        assert [parts[number].shape for number in taking.numbers] == [kind.shape for kind in taking.kinds]
        with jax.enable_x64(True):
            placed = [
                jax.device_put(parts[number], kind.sharding)
                for number, kind in zip(taking.numbers, taking.kinds, strict=True)
            ]
            joined.append(taking.join(placed))
    for found in (bind_copy(move, source, target)(array), *joined):
        assert found.sharding == target.placement(wanted)
        assert found.dtype == values.dtype
        assert (np.asarray(found) == values).all()
