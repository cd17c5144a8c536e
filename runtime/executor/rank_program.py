"""A step's programs on the devices of a rank.

Their modules are made to donate what the step declares, are compiled, and are checked against their layouts.

Errors    RHI-RUN-006 a program and its module disagree; RHI-RUN-001 and RHI-RUN-002 as `compile_module`; RHI-READ-002.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from rhino.ir.cluster.hardware import CompileOption
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import DEVICE, MemoryKind
from rhino.ir.mlir.aliases import set_aliases
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import copy_module
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.plan.instructions import Layout, StepProgram
from rhino.ir.plan.plan import Dims
from rhino.ir.program.program_signature import check_signature, disagreement
from rhino.runtime.executor.compile_cache import CompileCache, Request
from rhino.runtime.executor.executable import Executable, Handler, array_handler, same_placement
from rhino.runtime.executor.signature import array_dtype


@dataclass(frozen=True, slots=True, eq=False)
class RankProgram:
    """A program on one rank: `handlers` make its results arrays of the rank's mesh."""

    executable: Executable
    handlers: tuple[Handler, ...]


class RankDevices:
    """One rank's mesh of devices; each layout's sharding is one object, so that arrays of it are told by identity.

    The devices may be of several processes; `here` are the places of those of this one.
    """

    def __init__(self, rank: int, mesh: Mesh, devices: Sequence[jax.Device]) -> None:
        """Raises RHI-RUN-004 where the mesh wants another number of devices."""
        if len(devices) != mesh.num_devices:
            raise RhinoError(
                "RHI-RUN-004",
                f"rank {rank} has {len(devices)} devices, and a rank's mesh is {mesh}",
                fix=f"give {mesh.num_devices} devices for each rank",
            )
        self.rank = rank
        self.mesh = mesh
        self.devices = tuple(devices)
        own = jax.process_index()
        self.here = tuple([place for place, one in enumerate(self.devices) if one.process_index == own])
        self.jax_mesh = jax.sharding.Mesh(np.array(self.devices, dtype=object).reshape(mesh.shape), mesh.names)
        self._shardings: dict[tuple[Dims, MemoryKind], jax.sharding.NamedSharding] = {}

    @staticmethod
    def spec(dims: Dims) -> jax.sharding.PartitionSpec:
        """Returns the partition spec of an array with dims split so, without the last dims that are not split."""
        entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in dims]
        while entries and entries[-1] is None:
            entries.pop()
        return jax.sharding.PartitionSpec(*entries)

    def sharding(self, dims: Dims, memory: MemoryKind = DEVICE) -> jax.sharding.NamedSharding:
        """Returns the sharding on the rank's devices of an array whose dims are split so, and that lies in `memory`."""
        key = dims, memory
        if key not in self._shardings:
            kind = None if memory == DEVICE else memory  # some backends have no memory of that name
            self._shardings[key] = jax.sharding.NamedSharding(self.jax_mesh, self.spec(dims), memory_kind=kind)
        return self._shardings[key]

    def placement(self, layout: Layout) -> jax.sharding.NamedSharding:
        """Returns the sharding on the rank's devices of an array of `layout`."""
        return self.sharding(layout.dims, layout.memory)

    def handler(self, layout: Layout) -> Handler:
        """Returns what makes an array of `layout` of its parts on the devices of this process."""
        return array_handler(layout.shape, dtype_of(layout), self.placement(layout))


def dtype_of(layout: Layout) -> np.dtype[np.generic]:
    """Returns the dtype of arrays of a layout; RHI-RUN-006 where no array has it."""
    dtype = array_dtype(layout.dtype)
    if dtype is None:
        raise RhinoError(
            "RHI-RUN-006",
            f"the step has a slot of element type {layout.dtype}, which no array has",
            fix="plan a program of other element types",
        )
    return dtype


def compile_programs(
    programs: Sequence[tuple[StepProgram, RankDevices]],
    modules: Mapping[str, ir.Module | str],
    cache: CompileCache,
    options: tuple[CompileOption, ...] = (),
) -> list[RankProgram]:
    """Returns each program compiled for the rank beside it, with more of the compiler's options.

    A program that is listed with several ranks is compiled once.
    """
    parsed: dict[str, ir.Module] = {}
    for program, rank in programs:
        if program.name not in parsed:
            parsed[program.name] = _with_donations(program, _module(program, modules, rank.mesh))
    executables = cache.compile(
        [Request(parsed[program.name], rank.devices, program.name, options) for program, rank in programs]
    )
    return [_checked(program, rank, one) for (program, rank), one in zip(programs, executables, strict=True)]


def _module(program: StepProgram, modules: Mapping[str, ir.Module | str], mesh: Mesh) -> ir.Module:
    if program.module not in modules:
        raise RhinoError(
            "RHI-RUN-006",
            f"program {program.name} is of module {program.module}, which is not there",
            fix="plan again: a file of the plan is missing",
        )
    given = modules[program.module]
    # Each in a context of its own: they are compiled at the same time.
    module = (
        read_module(given.encode(), program.module, make_context()) if isinstance(given, str) else copy_module(given)
    )
    check_signature(program, module, mesh, program.module)
    return module


def _with_donations(program: StepProgram, module: ir.Module) -> ir.Module:
    """Makes the module donate what the program does, and nothing else."""
    set_aliases(entry_function(module), program.donated)
    return module


def _checked(program: StepProgram, rank: RankDevices, executable: Executable) -> RankProgram:
    signature = executable.signature
    sides = (
        ("argument", signature.arguments, executable.in_shardings, program.inputs),
        ("result", signature.results, executable.out_shardings, program.outputs),
    )
    for side, values, shardings, layouts in sides:
        for value, sharding, layout in zip(values, shardings, layouts, strict=True):
            if not same_placement(rank.placement(layout), sharding, len(layout.shape)):
                what = f"{side} {value.label} is compiled for {sharding}, the program has {rank.placement(layout)}"
                raise disagreement(program, what, program.module)
    return RankProgram(executable, tuple(rank.handler(layout) for layout in program.outputs))
