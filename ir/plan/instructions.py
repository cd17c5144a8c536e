"""One training step as a static list of instructions over numbered slots: what a planner writes and the executor runs.

A *rank* is one pipeline device: a sub-mesh that runs one stage program at a time. Each rank has a mesh of its own. A
*slot* holds one array on one rank; slots are numbered over the whole step, and each is written once (a donated
buffer moves to the slot that takes it over). The list is in one global order in which every instruction stands after
those whose slots it reads; a process runs the part of it that belongs to its ranks, in that order, with each transfer
replaced by what it is there: a copy, a send or a receive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, assert_never

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.cluster.placement import Devices
from rhino.ir.graph.graph import DEVICE, MemoryKind

Phase = Literal["setup", "forward", "backward", "input-gradient", "weight-gradient", "accumulate", "apply", "step"]
"""What a program does: once before the micro-batches, once per micro-batch (the next four), all micro-batches of a
replica in one program, once after them, or all of it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor on a rank's mesh, with its global `shape`.

    `dtype` is MLIR's name for it; `dims[d]` are the axes that split dim `d`, outermost first. `memory` is its own.
    """

    shape: tuple[int, ...]
    dtype: str
    dims: tuple[tuple[str, ...], ...]
    memory: MemoryKind = DEVICE


@dataclass(frozen=True, slots=True)
class StepProgram:
    """A compiled unit, the same on every rank that runs it; these have equal meshes.

    `module` names its text; `donated` are pairs (input, output): the output takes over the input's buffer.
    """

    name: str
    module: str
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    donated: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one array lives during a step."""

    rank: int
    layout: Layout


@dataclass(frozen=True, slots=True)
class Task:
    """What a run is for; `micro_batch` is None outside the micro-batches."""

    phase: Phase
    stage: int
    micro_batch: int | None = None

    def __str__(self) -> str:
        return f"{self.phase} of stage {self.stage}" + (
            "" if self.micro_batch is None else f", micro-batch {self.micro_batch}"
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Launch a program: `inputs` and `outputs` are slots in the program's order, all on one rank."""

    program: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    task: Task


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move an array to another rank; `uid` is its number within the step.

    Between ranks of equal meshes both slots have the same layout. Between others they have the same shape and element
    type, and each device of the target is sent its part of what the source's devices hold (`rhino.ir.plan.pieces`).
    """

    uid: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A transfer between two ranks of this process."""

    uid: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Send:
    """The giving half of a transfer to a rank of another process, where `target` is; never waits."""

    uid: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Receive:
    """The taking half of a transfer from a rank of another process, where `source` is.

    It never waits: what reads the slot does.
    """

    uid: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Free:
    """Drop the reference that each of these slots holds."""

    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Feed:
    """Put step argument `argument` into a slot: as it lies, if it lies there already."""

    argument: int
    target: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Give a slot's array back as step result `result`."""

    source: int
    result: int


Global: TypeAlias = Run | Transfer | Free | Feed | Fetch
"""What stands in a step's list."""

Local: TypeAlias = Run | Copy | Send | Receive | Free | Feed | Fetch
"""What stands in the list of one process."""


@dataclass(frozen=True, slots=True)
class Step:
    """A whole step on ranks of these `meshes` [ranks].

    `constants` are slots that hold an integer for ever. `devices` are those of each rank, by their numbers in the
    cluster and in its mesh's order [ranks][devices]; empty where ranks follow one another as devices are numbered.
    """

    meshes: tuple[Mesh, ...]
    programs: tuple[StepProgram, ...]
    slots: Sequence[Slot]
    instructions: Sequence[Global]
    constants: tuple[tuple[int, int], ...] = ()
    devices: Devices = ()

    @property
    def num_ranks(self) -> int:
        """How many ranks the step is on."""
        return len(self.meshes)

    def mesh_of(self, slot: int) -> Mesh:
        """Returns the mesh of the rank that a slot is on."""
        return self.meshes[self.slots[slot].rank]


class Listed(Protocol):
    """A list of instructions with what they speak of: of a whole step, or of the part that a process runs."""

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each rank of the step [ranks]."""

    @property
    def programs(self) -> tuple[StepProgram, ...]:
        """The programs, by the numbers that runs have for them."""

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots, by the numbers that instructions have for them."""

    @property
    def instructions(self) -> Sequence[Global] | Sequence[Local]:
        """The list."""

    @property
    def constants(self) -> tuple[tuple[int, int], ...]:
        """The slots that hold an integer for ever."""


def reads(instruction: Global | Local) -> tuple[int, ...]:
    """Returns the slots that an instruction reads."""
    match instruction:
        case Run(inputs=inputs):
            return inputs
        case Transfer(source=source) | Copy(source=source) | Send(source=source) | Fetch(source=source):
            return (source,)
        case Receive() | Feed() | Free():
            return ()
        case _:
            assert_never(instruction)


def writes(instruction: Global | Local) -> tuple[int, ...]:
    """Returns the slots that an instruction fills."""
    match instruction:
        case Run(outputs=outputs):
            return outputs
        case Transfer(target=target) | Copy(target=target) | Receive(target=target) | Feed(target=target):
            return (target,)
        case Send() | Fetch() | Free():
            return ()
        case _:
            assert_never(instruction)


def rank_of(step: Listed, run: Run) -> int:
    """Returns the rank that a run is on."""
    return step.slots[(*run.inputs, *run.outputs)[0]].rank
