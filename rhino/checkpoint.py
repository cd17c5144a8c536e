"""Checkpoints of any plan by orbax, which any other plan can restore.

A state is kept as its own tree of whole arrays, whatever held which part of them, in the files that orbax writes: plain
JAX reads them without this package. What is here is orbax's `handler` of trees with two more kinds of arrays, those
that lie in some processes of a job alone and those whose rows lie on several ranks (`rhino.SplitArray`), and what
restores a state with the shardings of a plan. When and where is saved, what is kept, and that a save which is cut off
leaves the last whole one, is orbax's `CheckpointManager`:

    with ocp.CheckpointManager(folder, item_handlers=rhino.checkpoint.handler()) as manager:
        manager.save(number, args=rhino.checkpoint.save_args(state))
        state = manager.restore(number, args=rhino.checkpoint.restore_args(fast.plan(...).in_shardings[0]))

Every process of a job calls each of these. Saving returns once the arrays are in host memory; writing goes on.

The kinds of arrays stand in orbax's registry of type handlers; how it writes their parts is not public there, and may
change with its releases (`orbax-checkpoint` 0.12.8).

Source: https://orbax.readthedocs.io, "Custom type handlers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from orbax.checkpoint._src.futures import future
from orbax.checkpoint._src.metadata import array_metadata, array_metadata_store
from orbax.checkpoint._src.serialization import jax_array_handlers, replica_slices, tensorstore_utils
from orbax.checkpoint._src.serialization.type_handler_registry import create_type_handler_registry
from orbax.checkpoint.type_handlers import ArrayHandler, NumpyHandler, ScalarHandler, StringHandler

from rhino.runtime.distributed.jax_job import await_others, end_job
from rhino.split_array import SplitArray, SplitSharding

Tree: TypeAlias = Any
"""A pytree."""

Shape: TypeAlias = tuple[int, ...]

_Bounds: TypeAlias = tuple[tuple[int, int], ...]
"""Where a part lies: along each dim from, and to."""


def handler() -> ocp.PyTreeCheckpointHandler:
    """Returns orbax's handler of trees, for `CheckpointManager` or `Checkpointer`, that takes the state of any plan."""
    arrays = _StateHandler(array_metadata_store=array_metadata_store.Store(), enable_write_sharding_file=False)
    others = ((int, ScalarHandler()), (float, ScalarHandler()), (np.number, ScalarHandler()), (str, StringHandler()))
    registry = create_type_handler_registry(
        (np.ndarray, NumpyHandler()), (SplitArray, arrays), (jax.Array, arrays), *others
    )
    return ocp.PyTreeCheckpointHandler(type_handler_registry=registry)


def save_args(state: Tree) -> ocp.args.PyTreeSave:
    """Returns what `manager.save(number, args=...)` takes of a state, once all processes have it.

    Orbax's processes meet in a collective, which on hosts would wait before a transfer of the step that another process
    waits for.
    """
    jax.block_until_ready(state)
    await_others()
    return ocp.args.PyTreeSave(state)


def restore_args(shardings: Tree) -> ocp.args.PyTreeRestore:
    """Returns what `manager.restore(number, args=...)` takes to give a state laid out so.

    `shardings` has the state's tree, with a sharding or a `rhino.SplitSharding` for each array: of a plan they are
    `plan.in_shardings[i]`, where the state is argument i. Shapes, types and random keys are those that were saved.
    """
    args = jax.tree.map(lambda one: ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=one), shardings)
    return ocp.args.PyTreeRestore(item=shardings, restore_args=args)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an array, from `start`, with the sharding of these alone, and what of them lies here."""

    start: int
    shape: Shape
    sharding: Sharding
    here: jax.Array | None = None


class _StateHandler(ArrayHandler):
    """Orbax's handler of arrays, for those of ranks too.

    All processes agree on the blocks that an array is written in: the largest ones of which the part of each device is
    made, so that no two processes write to one.
    """

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> Sequence[Any]:
        """Copies what this process is to write of each array to the host, and returns a future of its writing."""
        names = {info.name: value for info, value in zip(infos, values, strict=True)}
        keys = {name: str(jax.random.key_impl(value)) for name, value in names.items() if _is_key(value)}
        plain = [jax.random.key_data(value) if _is_key(value) else value for value in values]
        for one in plain:
            for part in _local_parts(one):
                part.copy_to_host_async()
        writing = jax_array_handlers._async_serialize_replica_slices(
            [_slices(one) for one in plain],
            infos,
            args or [ocp.SaveArgs()] * len(plain),
            primary_host=self._primary_host,
            metadata_key=self._metadata_key,
            array_metadata_store=self._array_metadata_store,
            enable_replica_parallel_separate_folder=False,
            use_replica_parallel=False,
            ext_metadata={name: {array_metadata.RANDOM_KEY_IMPL: impl} for name, impl in keys.items()},
        )
        return [future.CommitFutureAwaitingContractedSignals(_told(writing), name="rhino_state")]

    async def deserialize(self, infos: Sequence[Any], args: Sequence[Any] | None = None) -> Sequence[Any]:
        """Returns the arrays as `restore_args` asks for them; each process reads what lies on its devices."""
        assert args is not None, "restore_args gives them"
        await asyncio.gather(*[info.await_path_creation() for info in infos])
        found = await self._array_metadata_store.read(checkpoint_dir=infos[0].parent_dir)
        known = [one for each in (found.values() if isinstance(found, dict) else [found or ()]) for one in each]
        impls = {one.param_name: (one.ext_metadata or {}).get(array_metadata.RANDOM_KEY_IMPL) for one in known}
        return await asyncio.gather(
            *[self._read(info, arg.sharding, impls.get(info.name)) for info, arg in zip(infos, args, strict=True)]
        )

    async def _read(self, info: Any, sharding: Sharding | SplitSharding, impl: str | None) -> Any:  # noqa: ANN401
        spec = tensorstore_utils.build_array_read_spec(
            info, use_ocdbt=info.is_ocdbt_checkpoint, metadata_key=self._metadata_key
        )
        stored = await tensorstore.open(tensorstore.Spec(spec.json), open=True, read=True, context=info.ts_context)
        shape = tuple(stored.shape)
        if not isinstance(sharding, SplitSharding):
            if impl is None:
                return await _read_rows(stored, _Rows(0, shape, sharding))
            data = await _read_rows(stored, _Rows(0, shape, _of_key_data(sharding, len(shape))))
            return jax.random.wrap_key_data(data, impl=impl)
        pieces = [
            _Rows(start, (end - start, *shape[1:]), own)
            for (start, end), own in zip(sharding.rows, sharding.shardings, strict=True)
        ]
        return SplitArray(await asyncio.gather(*[_read_rows(stored, piece) for piece in pieces]))


async def _told(writing: Awaitable[Any]) -> Any:  # noqa: ANN401 - of no use
    """Writes, and ends the job where that fails, as on a full disk: the others would wait in Orbax's barriers."""
    try:
        return await writing
    except Exception as error:
        end_job(error)
        raise


async def _read_rows(stored: Any, rows: _Rows) -> jax.Array:  # noqa: ANN401
    """Returns rows of a stored array, of which this process reads what lies on its devices, once."""
    devices: dict[_Bounds, list[jax.Device]] = {}
    for device, index in rows.sharding.addressable_devices_indices_map(rows.shape).items():
        assert index is not None, "it is one of the sharding's own devices"
        devices.setdefault(_placed(index, rows), []).append(device)
    read = await asyncio.gather(*[stored[tuple(slice(*one) for one in bounds)].read() for bounds in devices])
    with jax.enable_x64(True):  # else 64-bit values would be narrowed
        parts = {
            device: jax.device_put(part, device)
            for part, own in zip(read, devices.values(), strict=True)
            for device in own
        }
        order = [device for device in rows.sharding._device_assignment if device in parts]
        return jax.make_array_from_single_device_arrays(
            rows.shape, rows.sharding, [parts[device] for device in order], dtype=stored.dtype.numpy_dtype
        )


def _slices(value: jax.Array | SplitArray) -> replica_slices.ReplicaSlices:
    """Returns what this process writes of an array, on the host: of what several devices hold, the first one's."""
    every = _rows_of(value)
    shards = [one.sharding.shard_shape(one.shape) for one in every]
    block = tuple(gcd(*sizes) for sizes in zip(*shards, strict=True))
    written = list[replica_slices.ReplicaSlice]()
    for rows in every:
        for shard in rows.here.addressable_shards if rows.here is not None else ():
            if shard.replica_id == 0:
                written += _blocks(np.asarray(shard.data), _placed(shard.index, rows), block)
    first = every[0].sharding
    whole = NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first
    return replica_slices.ReplicaSlices(tuple(value.shape), block, whole, value.dtype, True, written)


def _blocks(data: Any, bounds: _Bounds, block: Shape) -> Iterator[replica_slices.ReplicaSlice]:  # noqa: ANN401
    """Yields a part that lies at `bounds` in blocks of one shape."""
    counts = [size // own if own else 1 for size, own in zip(data.shape, block, strict=True)]
    for place in product(*map(range, counts)):
        starts = [at * own for at, own in zip(place, block, strict=True)]
        # A copy: on hosts `data` may be the device's own memory, which the next step is given while this is written.
        part = np.array(data[tuple(slice(start, start + own) for start, own in zip(starts, block, strict=True))])
        where = tuple(
            slice(begin + start, begin + start + own)
            for (begin, _), start, own in zip(bounds, starts, block, strict=True)
        )
        yield replica_slices.ReplicaSlice(where, part, None)


def _rows_of(value: jax.Array | SplitArray) -> list[_Rows]:
    if isinstance(value, SplitArray):
        return [
            _Rows(start, piece.shape, piece.sharding, piece)
            for (start, _), piece in zip(value.rows, value.pieces, strict=True)
        ]
    return [_Rows(0, value.shape, value.sharding, value)]


def _local_parts(value: jax.Array | SplitArray) -> list[jax.Array]:
    return [shard.data for rows in _rows_of(value) if rows.here is not None for shard in rows.here.addressable_shards]


def _placed(index: tuple[slice, ...], rows: _Rows) -> _Bounds:
    """Returns where a part of rows lies in the whole array."""
    bounds = [one.indices(size)[:2] for one, size in zip(index, rows.shape, strict=True)]
    starts = [rows.start] + [0] * (len(bounds) - 1)
    return tuple((begin + start, end + start) for (begin, end), start in zip(bounds, starts, strict=False))


def _of_key_data(sharding: Sharding, rank: int) -> Sharding:
    """Returns the sharding of the numbers of random keys, which have dims behind those of the keys."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec, *[None] * (rank - len(sharding.spec))))


def _is_key(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))
