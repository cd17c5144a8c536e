"""The memory of a step, instruction by instruction.

The planner predicts it, the verifier bounds it, and the executor allocates it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.graph.elements import element_bytes
from rhino.ir.graph.graph import DEVICE, HOST, MemoryKind
from rhino.ir.plan.instructions import Free, Global, Layout, Run, Step, rank_of, writes


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


def memory_of(step: Step, temp_bytes: Sequence[int] = ()) -> tuple[RankMemory, ...]:
    """Returns the peak memory of each rank.

    `temp_bytes` are each program's temporaries, on a device (none if not given).

    The step's slots are written once and given up once, as the verifier proves.
    """
    peaks = [RankMemory(0, 0, 0)] * step.num_ranks
    for rank, micro_batches in enumerate(_peak_micro_batches(step)):
        peaks[rank] = RankMemory(0, 0, micro_batches)
    for at, rank, used_bytes in memory_over_time(step, temp_bytes):
        if used_bytes > peaks[rank].peak_bytes:
            peaks[rank] = RankMemory(used_bytes, at, peaks[rank].peak_micro_batches)
    return tuple(peaks)


def host_peaks(step: Step) -> tuple[int, ...]:
    """Returns the most bytes of host memory that a device of each rank takes at a time."""
    peaks = [0] * step.num_ranks
    for _, rank, used_bytes in memory_over_time(step, (), HOST):
        peaks[rank] = max(peaks[rank], used_bytes)
    return tuple(peaks)


def live_slots(step: Step, at: int, rank: int) -> tuple[int, ...]:
    """Returns the slots of a rank that hold an array after instruction `at`."""
    live = dict.fromkeys(slot for slot, _ in step.constants)
    for one in step.instructions[: at + 1]:
        live |= dict.fromkeys(writes(one))
        for slot in given_up(step, one):
            live.pop(slot)
    return tuple([slot for slot in live if step.slots[slot].rank == rank])


def given_up(step: Step, one: Global) -> tuple[int, ...]:
    """Returns the slots that hold nothing after an instruction: freed, or taken over by a program's output."""
    match one:
        case Free(slots=slots):
            return slots
        case Run(program=program, inputs=inputs):
            return tuple([inputs[taken] for taken, _ in step.programs[program].donated])
        case _:
            return ()


def memory_over_time(
    step: Step, temp_bytes: Sequence[int], memory: MemoryKind = DEVICE
) -> Iterator[tuple[int, int, int]]:
    """Yields each instruction that writes, with its rank and the bytes of a memory that a device holds meanwhile."""
    sizes = [local_bytes(slot.layout, step.meshes[slot.rank], memory) for slot in step.slots]
    used = [0] * step.num_ranks
    for slot, _ in step.constants:
        used[step.slots[slot].rank] += sizes[slot]
    for at, one in enumerate(step.instructions):
        gone, written = given_up(step, one), writes(one)
        if written:
            rank = step.slots[written[0]].rank
            taken_over = sum(sizes[slot] for slot in gone)
            used[rank] += sum(sizes[slot] for slot in written) - taken_over
            yield at, rank, used[rank] + (temp_bytes[one.program] if temp_bytes and isinstance(one, Run) else 0)
        else:
            for slot in gone:
                used[step.slots[slot].rank] -= sizes[slot]


def _peak_micro_batches(step: Step) -> list[int]:
    """The most micro-batches that are on each rank at a time: in some stage of it they are begun and not finished.

    A step without micro-batches counts as one.
    """
    runs = [
        one
        for one in step.instructions
        if isinstance(one, Run) and (one.task.micro_batch is not None or one.task.phase in ("accumulate", "step"))
    ]
    last = {(one.task.stage, one.task.micro_batch): at for at, one in enumerate(runs)}
    peaks = [0] * step.num_ranks
    begun: defaultdict[int, dict[tuple[int, int | None], None]] = defaultdict(dict)
    for at, one in enumerate(runs):
        rank, which = rank_of(step, one), (one.task.stage, one.task.micro_batch)
        begun[rank][which] = None
        peaks[rank] = max(peaks[rank], len({micro_batch for _, micro_batch in begun[rank]}))
        if last[which] == at:
            del begun[rank][which]
    return peaks
