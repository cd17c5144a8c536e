"""Run a step: everything is compiled, bound and connected before the first time, and nothing is decided while it runs.

A step is dispatched as fast as Python calls the bound instructions; the devices follow. A step starts when the one
before has ended on the devices of this process, so that two never hold memory at the same time. The first step looks at
every argument of every program, later ones rely on the proof that the step was given and on that look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Any, Protocol

import jax
import numpy as np

from rhino.ir.cluster.hardware import CompileOption
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.cluster.placement import Devices, num_reached
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.instruction_list import Kind, in_columns
from rhino.ir.plan.instructions import (
    Copy,
    Feed,
    Fetch,
    Free,
    Layout,
    Listed,
    Local,
    Receive,
    Run,
    Send,
    Step,
    rank_of,
)
from rhino.ir.plan.parts import Part, part_of
from rhino.ir.plan.plan import meshes_text
from rhino.ir.plan.step_memory import memory_of
from rhino.ir.plan.verify import verify
from rhino.runtime.executor.binding import Binder, DispatchQueue, Memory, Observer
from rhino.runtime.executor.compile_cache import CompileCache
from rhino.runtime.executor.executable import Host, failed_run, off_host, put, same_placement
from rhino.runtime.executor.rank_program import RankDevices, compile_programs, dtype_of
from rhino.runtime.executor.transport import Transport

Argument = Host | jax.Array | None


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A slot that a step argument is fed to, and how it lies there."""

    argument: int
    layout: Layout
    sharding: jax.sharding.NamedSharding


@dataclass(frozen=True, slots=True)
class Progress:
    """Where an executor is: in step `step`, dispatching the instruction at `place` of the list, None past the end.

    Steps count from 0; before the first, `step` is -1. If it is not `running`, dispatch is between steps.
    """

    step: int
    running: bool
    place: int | None


class Executor:
    """A step, or the part of it that this process runs, on the devices of this process's ranks.

    Every process runs its part of the step's list in the list's order, so programs of ranks in several processes start
    in one order everywhere, and none waits for what stands behind it. One thread does that: no backend computes in the
    thread that launches, but XLA's for hosts what is next to nothing (jaxlib 0.10.2).

    Shapes: arguments and results are global, in their stored shape.
    """

    def __init__(
        self,
        step: Step | Part,
        modules: Mapping[str, ir.Module | str],
        devices: Mapping[int, Sequence[jax.Device]],
        transport: Transport | None = None,
        processes: Sequence[Sequence[int]] = (),
        *,
        cache: CompileCache | None = None,
        options: tuple[CompileOption, ...] = (),
        recorder: Observer | None = None,
    ) -> None:
        """Compiles, binds and connects.

        Args:
            step: what to run; of a part it was proven where it was taken of the step.
            modules: the programs' modules, by the names that the step has for them.
            devices: the ranks of this process, and the devices of each in its mesh's order. A rank may be of several
                processes: each has it with all of its devices.
            transport: moves arrays to and from other processes.
            processes: the process of each device of each rank [ranks][devices], where there is a transport.
            cache: what has been compiled before.
            options: more of the compiler's options.
            recorder: notes what is done; it costs time and memory.

        Raises:
            RhinoError: RHI-STEP-001 to RHI-STEP-007 and RHI-STEP-009 where the step is not safe to run, RHI-RUN-001 and
                RHI-RUN-006 for a program, RHI-RUN-004 for the devices.
        """
        part = step if isinstance(step, Part) else _proven_part(step, sorted(devices))
        if transport is not None and len(processes) != step.num_ranks:
            raise RhinoError(
                "RHI-RUN-004",
                f"the step has {step.num_ranks} ranks, and the processes of {len(processes)} are given",
                fix="say in which process each device of each rank is",
            )
        self.part = part
        self.ranks = part.ranks
        self.instructions = tuple(part.instructions)
        self.transport = transport
        rank_devices = {rank: RankDevices(rank, part.meshes[rank], devices[rank]) for rank in self.ranks}
        runs = [(one.program, rank_of(part, one)) for one in self.instructions if isinstance(one, Run)]
        pairs = list(dict.fromkeys(runs))
        compiled = compile_programs(
            [(part.programs[program], rank_devices[rank]) for program, rank in pairs],
            modules,
            cache or CompileCache(),
            options,
        )
        self.programs = dict(zip(pairs, compiled, strict=True))
        self._targets = [
            Target(
                one.argument,
                part.slots[one.target].layout,
                rank_devices[part.slots[one.target].rank].placement(part.slots[one.target].layout),
            )
            for one in self.instructions
            if isinstance(one, Feed)
        ]
        self._empty = [None] * len(part.slots)
        for slot, number in part.constants:
            self._empty[slot] = _constant(number, part.slots[slot].layout, rank_devices[part.slots[slot].rank])
        self.memory = Memory(list(self._empty), [], [], [None] * len(self.instructions))
        if recorder is not None:
            recorder.attach(part, self.instructions)
        binder = Binder(part, rank_devices, self.programs, transport, processes, self.memory, recorder)
        self._checked, self._fast = (binder.bind(self._numbered(), checked=checked) for checked in (True, False))
        self._num_steps = 0
        self._position = 0
        self._broken = False
        self._running = False

    def peak_bytes(self) -> dict[int, int]:
        """Returns the bytes that a step takes at most of a device, by rank: arrays, and temporaries as XLA assigned."""
        temp_bytes = [0] * len(self.part.programs)
        for (program, _), one in self.programs.items():
            temp_bytes[program] = max(temp_bytes[program], one.executable.temp_bytes())
        memory = memory_of(self.part, temp_bytes)
        return {rank: memory[rank].peak_bytes for rank in self.ranks}

    def _numbered(self) -> tuple[Local, ...]:
        """The list with each feed's argument numbered as this process places it."""
        number = iter(range(len(self._targets)))
        return tuple(Feed(next(number), one.target) if isinstance(one, Feed) else one for one in self.instructions)

    def run(self, arguments: Sequence[Argument]) -> list[jax.Array | None]:
        """Dispatches one step and returns its results, which may not be computed yet.

        A result that another process has is None. Arguments that only other processes are fed may be None. An array
        that is on the devices as the step needs it is used as it is, and is gone if the step donates it; anything else
        is placed first.

        Raises:
            RhinoError: RHI-RUN-002 where an argument does not match, RHI-RUN-005 where a program of this step or of the
                one before fails.
        """
        if self._broken:
            raise RhinoError(
                "RHI-RUN-005",
                "an earlier step failed, and the state of its arrays is unknown",
                fix="make a new executor",
            )
        placed = self._place(arguments)
        self.wait()
        memory = self.memory
        memory.arguments[:] = placed
        memory.results[:] = [None] * len(self.part.results)
        memory.tokens[:] = [None] * len(memory.tokens)
        memory.step = self.transport.next_step() if self.transport else self._num_steps
        del placed
        queue = self._fast if self._num_steps else self._checked
        self._num_steps += 1
        self._running, self._broken = True, True
        try:
            error = self._dispatch(queue)
        finally:
            self._running = False
        if error is not None:
            self._fail(queue.places[self._position], error)
        self._broken = False
        results = list(memory.results)
        memory.results.clear()
        memory.slots[:] = self._empty
        return results

    def _dispatch(self, queue: DispatchQueue) -> Exception | None:
        """Runs all actions; returns what the one at `_position` raised, after which nothing may be run again."""
        try:
            for position, action in enumerate(queue.actions):
                self._position = position
                action()
        except Exception as error:
            return error
        self._position = len(queue.actions)
        return None

    def place(self, arguments: Sequence[Argument]) -> list[Argument]:
        """Returns `arguments` with those that ranks of this process are fed placed where the step needs them.

        Then `run` moves nothing.

        Raises:
            RhinoError: RHI-RUN-002 where one does not match.
        """
        placed = list(arguments)
        for target, array in zip(reversed(self._targets), reversed(self._place(arguments)), strict=True):
            placed[target.argument] = array
        return placed

    def wait(self) -> None:
        """Returns when the last step has ended on the devices of this process.

        Raises:
            RhinoError: RHI-RUN-005 where one of its programs failed.
        """
        for place, token in enumerate(self.memory.tokens):
            if token is not None:
                try:
                    token.block_until_ready()
                except jax.errors.JaxRuntimeError as error:
                    self._fail(place, error)

    def close(self) -> None:
        """Drops the executor's arrays; the transport stays."""
        self._broken = True
        self.memory.slots.clear()
        self.memory.tokens.clear()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def progress(self) -> Progress:
        """Returns where the executor is; from any thread."""
        place = self._fast.place(self._position)  # the checked actions are of the same places
        return Progress(self._num_steps - 1, self._running, place)

    def launched(self) -> dict[int, list[tuple[int, Any]]]:
        """Returns, by rank, the runs dispatched in the current step.

        Each run is its place, and the token that tells when it has ended.
        """
        runs: dict[int, list[tuple[int, Any]]] = {rank: [] for rank in self.ranks}
        for place, (one, token) in enumerate(zip(self.instructions, list(self.memory.tokens), strict=False)):
            if isinstance(one, Run) and token is not None:
                runs[rank_of(self.part, one)].append((place, token))
        return runs

    def memory_bytes(self) -> dict[str, int]:
        """Returns what each program takes of one device's memory, as XLA has assigned its buffers."""
        return {
            self.part.programs[program].name: one.executable.memory_bytes()
            for (program, _), one in self.programs.items()
        }

    def _fail(self, place: int, error: Exception) -> None:
        """Raises what went wrong at a place of the list."""
        self._broken = True
        if isinstance(error, RhinoError):
            raise error
        if not isinstance(error, jax.errors.JaxRuntimeError | OSError):
            raise error
        if self.transport is not None:
            self.transport.explain()
        failed = failed_run(error)
        raise RhinoError(
            failed.id,
            failed.what,
            notes=(f"it was {describe(self.part, self.instructions[place])}",),
            fix=failed.fix,
        ) from None

    def _place(self, arguments: Sequence[Argument]) -> list[jax.Array]:
        """Returns the array of each feed, all placed before the step starts.

        A program may take an argument that is fed twice.
        """
        placed: list[jax.Array | None] = []
        late: list[tuple[int, Host | jax.Array, jax.sharding.Sharding]] = []
        seen: set[int] = set()
        for target in self._targets:
            value = _checked_argument(target, arguments)
            if isinstance(value, jax.Array) and id(value) not in seen and _is_placed(value, target):
                seen.add(id(value))
                placed.append(value)
            else:
                late.append((len(placed), value, target.sharding))
                placed.append(None)
        if late:
            arrays = put([off_host(value) for _, value, _ in late], [sharding for _, _, sharding in late])
            for (number, _, _), array in zip(late, arrays, strict=True):
                placed[number] = array
        return placed  # type: ignore[return-value]


class OnRanks(Protocol):
    """A step, or its plan: the meshes of its ranks, and the devices that these have by number."""

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each rank."""

    @property
    def devices(self) -> Devices:
        """The devices of each rank by number, nothing where ranks follow one another."""

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""


def devices_of_ranks(
    step: OnRanks, devices: Sequence[jax.Device], ranks: Sequence[int] | None = None
) -> dict[int, tuple[jax.Device, ...]]:
    """Returns the devices of each of `ranks` (None is all), taken from `devices`.

    All ranks have theirs by number, or one rank after another where the step has no numbers. Some ranks have those that
    are theirs alone, in the order of the numbers.

    Raises:
        RhinoError: RHI-RUN-004 where there are too few.
    """
    chosen = range(step.num_ranks) if ranks is None else ranks
    meshes = [step.meshes[rank] for rank in chosen]
    ends = list(accumulate(mesh.num_devices for mesh in meshes))
    own = tuple([step.devices[rank] for rank in chosen]) if step.devices else ()
    there = sorted(number for one in own for number in one)
    needed = num_reached(ends[-1:], own if ranks is None else ())
    if len(devices) < needed:
        what = f"{len(chosen)} ranks of {meshes_text(meshes)} need {needed} devices, not {len(devices)}"
        raise RhinoError("RHI-RUN-004", what, fix="give more devices, or plan for fewer")
    if own:
        place = {number: number if ranks is None else at for at, number in enumerate(there)}
        return {rank: tuple([devices[place[one]] for one in step.devices[rank]]) for rank in chosen}
    return {
        rank: tuple(devices[end - mesh.num_devices : end]) for rank, mesh, end in zip(chosen, meshes, ends, strict=True)
    }


def describe(step: Listed, one: Local) -> str:
    """Returns an instruction in words."""
    match one:
        case Run(program, task=task):
            return f"program {step.programs[program].name} on rank {rank_of(step, one)}, {task}"
        case Copy(uid, source, target) | Send(uid, source, target) | Receive(uid, source, target):
            return f"transfer {uid} from rank {step.slots[source].rank} to rank {step.slots[target].rank}"
        case Free(slots):
            return f"the end of slots {', '.join(map(str, slots))}"
        case Feed(argument, target):
            return f"argument {argument} for rank {step.slots[target].rank}"
        case Fetch(source, result):
            return f"result {result} of rank {step.slots[source].rank}"


def _proven_part(step: Step, ranks: Sequence[int]) -> Part:
    """Returns the part of a step that ranks run. Raises as `verify`."""
    verify(step, _count(step, "feed"), _count(step, "fetch"))
    return part_of(step, ranks)


def _count(step: Step, kind: Kind) -> int:
    """Returns how many arguments are fed, or results fetched, by the largest of their numbers."""
    return 1 + max((int(group.others.max()) for group in in_columns(step.instructions).of_kind(kind)), default=-1)


def _constant(number: int, layout: Layout, rank: RankDevices) -> Any:  # noqa: ANN401
    return put([np.full(layout.shape, number, dtype_of(layout))], [rank.placement(layout)])[0]


def _checked_argument(target: Target, arguments: Sequence[Argument]) -> Host | jax.Array:
    """The argument that is fed; one that does not match, or is gone, would end the process."""
    number, layout = target.argument, target.layout
    value = arguments[number] if number < len(arguments) else None
    if value is None:
        raise RhinoError(
            "RHI-RUN-002",
            f"argument {number} of the step is missing, and a rank of this process reads it",
            fix="pass it in this process, too",
        )
    if tuple(value.shape) != layout.shape or value.dtype != dtype_of(layout):
        wanted = f"{dtype_of(layout)}{list(layout.shape)}"
        raise RhinoError(
            "RHI-RUN-002",
            f"argument {number} of the step: got {value.dtype}{list(value.shape)}, expected {wanted}",
            fix="pass the expected array",
        )
    if isinstance(value, jax.Array) and value.is_deleted():
        raise RhinoError(
            "RHI-RUN-002",
            f"argument {number} of the step was deleted or donated",
            fix="pass the array that the last step returned",
        )
    return value


def _is_placed(value: jax.Array, target: Target) -> bool:
    return value.sharding is target.sharding or same_placement(value.sharding, target.sharding, value.ndim)
