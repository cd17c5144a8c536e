"""The memory of a step, instruction by instruction.

The planner predicts it, the verifier bounds it, and the executor allocates it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import DEVICE, HOST, MemoryKind
from rhino.ir.plan.instruction_list import Group, in_columns
from rhino.ir.plan.instructions import Layout, Listed
from rhino.ir.plan.slot_table import SlotTable, slot_ranks


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peak memory on each device of a rank: arrays, and the temporaries of the program that runs then.

    The peak is at instruction `peak_at`.

    `peak_micro_batches` counts the micro-batches that are on the rank at a time: those that some stage of it has begun
    and not finished.
    """

    peak_bytes: int
    peak_at: int
    peak_micro_batches: int


def local_bytes(layout: Layout, mesh: Mesh, memory: MemoryKind = DEVICE) -> int:
    """Returns the bytes of a memory that a device's part of an array takes: none where it lies in the other."""
    return math.prod(local_shape(layout, mesh)) * element_bytes(layout.dtype) if layout.memory == memory else 0


def local_shape(layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """Returns the shape of a device's part of an array."""
    sizes = dict(mesh.axes)
    return tuple(
        [
            -(-size // math.prod(sizes[axis] for axis in axes))
            for size, axes in zip(layout.shape, layout.dims, strict=True)
        ]
    )


def memory_of(step: Listed, temp_bytes: Sequence[int] = ()) -> tuple[RankMemory, ...]:
    """Returns the peak memory of each rank.

    `temp_bytes` are each program's temporaries, on a device (none if not given).

    The step's slots are written once and given up once, as the verifier proves.
    """
    used = _used_over_time(step, temp_bytes, DEVICE)
    peaks = [RankMemory(0, 0, micro_batches) for micro_batches in _peak_micro_batches(step)]
    for rank in range(len(peaks)):
        own = np.flatnonzero(used.rank == rank)
        if len(own) and (most := int(used.num_bytes[own].max())) > 0:
            at = int(used.place[own[used.num_bytes[own].argmax()]])
            peaks[rank] = RankMemory(most, at, peaks[rank].peak_micro_batches)
    return tuple(peaks)


def host_peaks(step: Listed) -> tuple[int, ...]:
    """Returns the most bytes of host memory that a device of each rank takes at a time."""
    peaks = np.zeros(len(step.meshes), dtype=np.int64)
    used = _used_over_time(step, (), HOST)
    np.maximum.at(peaks, used.rank, used.num_bytes)
    return tuple(peaks.tolist())


def live_slots(step: Listed, at: int, rank: int) -> tuple[int, ...]:
    """Returns the slots of a rank that hold an array after instruction `at`, as they were written."""
    every = in_columns(step.instructions)
    written, gone = (np.full(len(step.slots), len(every), dtype=np.int64) for _ in range(2))
    for group in every.groups:
        for slots, places in ((group.writes, written), (_given_up(step, group), gone)):
            places[slots] = group.places[:, None]
    written[[slot for slot, _ in step.constants]] = -1
    live = np.flatnonzero((written <= at) & (gone > at) & (slot_ranks(step) == rank))
    return tuple(live[np.argsort(written[live], kind="stable")].tolist())


def memory_over_time(
    step: Listed, temp_bytes: Sequence[int], memory: MemoryKind = DEVICE
) -> Iterator[tuple[int, int, int]]:
    """Yields each instruction that writes, with its rank and the bytes of a memory that a device holds meanwhile."""
    used = _used_over_time(step, temp_bytes, memory)
    order = np.argsort(used.place, kind="stable")
    yield from zip(*(one[order].tolist() for one in (used.place, used.rank, used.num_bytes)), strict=True)


@dataclass(frozen=True, slots=True)
class _Used:
    """The instructions that write, rank by rank, and the bytes that a device of the rank holds meanwhile."""

    place: Ints
    rank: Ints
    num_bytes: Ints


def _used_over_time(step: Listed, temp_bytes: Sequence[int], memory: MemoryKind) -> _Used:
    every = in_columns(step.instructions)
    ranks, sizes = slot_ranks(step), _sizes(step, memory)
    rows = [np.zeros((0, 5), dtype=np.int64), _constant_rows(step, ranks, sizes)]
    for group in every.groups:
        written, gone = group.writes, _given_up(step, group)
        for slots, sign in ((written, 1), (gone, -1)):
            if slots.shape[1]:
                rows.append(_rows(group, slots, ranks, sign * sizes[slots], 0))
        if written.shape[1]:
            temp = temp_bytes[group.form.program] if temp_bytes and group.form.kind == "run" else 0
            rows.append(_rows(group, written[:, :1], ranks, np.zeros((len(written), 1), dtype=np.int64), 1, temp))
    rank, place, is_write, change, temp_of = np.concatenate(rows).T
    order = np.lexsort((is_write, place, rank))
    total = np.cumsum(change[order])
    first = np.searchsorted(rank[order], np.arange(len(step.meshes)))
    before = np.concatenate([[0], total])[first]
    used = total - before[rank[order]] + temp_of[order]
    chosen = is_write[order] == 1
    return _Used(place[order][chosen], rank[order][chosen], used[chosen])


def _rows(group: Group, slots: Ints, ranks: Ints, change: Ints, is_write: int, temp: int = 0) -> Ints:
    """Returns changes of memory: rank, place, whether what is held then counts, the change, and temporaries."""
    found = np.empty((*slots.shape, 5), dtype=np.int64)
    found[:, :, 0], found[:, :, 1], found[:, :, 3] = ranks[slots], group.places[:, None], change
    found[:, :, 2], found[:, :, 4] = is_write, temp
    return found.reshape(-1, 5)


def _constant_rows(step: Listed, ranks: Ints, sizes: Ints) -> Ints:
    slots = np.array([slot for slot, _ in step.constants], dtype=np.int64)
    found = np.zeros((len(slots), 5), dtype=np.int64)
    found[:, 0], found[:, 1], found[:, 3] = ranks[slots], -1, sizes[slots]
    return found


def _sizes(step: Listed, memory: MemoryKind) -> Ints:
    """Returns the bytes of a memory that each slot takes of a device."""
    slots = SlotTable.of(step.slots)
    known = [local_bytes(slot.layout, step.meshes[slot.rank], memory) for slot in slots.kinds]
    return np.array(known, dtype=np.int64)[slots.kind_of]


def _given_up(step: Listed, group: Group) -> Ints:
    """Returns the slots that hold nothing after each of some instructions: freed, or taken over by an output."""
    if group.form.kind == "free":
        return group.others
    taken = [pair[0] for pair in step.programs[group.form.program].donated] if group.form.kind == "run" else []
    return group.reads[:, taken]


def _peak_micro_batches(step: Listed) -> list[int]:
    """The most micro-batches that are on each rank at a time: in some stage of it they are begun and not finished.

    A step without micro-batches counts as one.
    """
    spans = _spans(step)
    peaks = [0] * len(step.meshes)
    if not len(spans):
        return peaks
    rank, begins, ends = _joined(spans).T
    ranks, times = np.concatenate([rank, rank]), np.concatenate([2 * begins, 2 * ends + 1])
    change = np.repeat([1, -1], len(rank))
    order = np.lexsort((times, ranks))
    counts = np.cumsum(change[order])  # each rank's changes add up to none
    found = np.zeros(len(peaks), dtype=np.int64)
    np.maximum.at(found, ranks[order], counts)
    return list(map(int, found))


def _spans(step: Listed) -> Ints:
    """Returns the rank, micro-batch, first run and last run of each micro-batch of each stage, sorted."""
    ranks, rows = slot_ranks(step), []
    for group in in_columns(step.instructions).of_kind("run"):
        form = group.form
        if form.others or form.phase in ("accumulate", "step"):
            number = group.others[:, 0] if form.others else np.full(len(group.places), -1)
            own = np.stack([ranks[group.numbers[:, 0]], np.full(len(number), form.stage), number, group.places])
            rows.append(own.T)
    if not rows:
        return np.zeros((0, 4), dtype=np.int64)
    every = np.concatenate(rows)
    every = every[np.lexsort(every.T[::-1])]
    is_first = _differs(every[:, :3])
    starts = np.flatnonzero(is_first)
    ends = np.concatenate([starts[1:], [len(every)]]) - 1
    found = np.stack([every[starts, 0], every[starts, 2], every[starts, 3], every[ends, 3]], axis=1)
    return found[np.lexsort(found.T[::-1])]


def _joined(spans: Ints) -> Ints:
    """Returns the rank, begin and end of spans of one micro-batch that overlap, as one."""
    is_new = _differs(spans[:, :2])
    group = np.cumsum(is_new) * (int(spans[:, 3].max()) + 1)
    reached = np.maximum.accumulate(spans[:, 3] + group)
    is_new[1:] |= spans[1:, 2] + group[1:] > reached[:-1]
    starts = np.flatnonzero(is_new)
    ends = np.concatenate([starts[1:], [len(spans)]]) - 1
    return np.stack([spans[starts, 0], spans[starts, 2], (reached - group)[ends]], axis=1)


def _differs(rows: Ints) -> Bools:
    """Says of each row whether it is another than the one before."""
    found = np.ones(len(rows), dtype=bool)
    found[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return found
