"""The steps of configurations: in micro-batches, recomputed, their loops cut for stages, ready for the choice.

A step is normalized once, taken in micro-batches once for each number of them, and read once where nothing in it
depends on the mesh of a rank.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, TypeAlias

from rhino.ir.cluster.mesh import Mesh, mesh_of_shape, option_of_meshes
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.graph import Graph
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.program import Program, read_program
from rhino.passes.base import Item, Remarks
from rhino.passes.pipeline.divider import Divider
from rhino.passes.pipeline.join_replicas import JoinReplicas
from rhino.passes.pipeline.micro_batch import MicroBatch
from rhino.passes.pipeline.rematerialize import Rematerialize, Rematerializer
from rhino.passes.pipeline.split_scans import SplitScans, find_layers
from rhino.passes.planner.choose_layouts import viewed_copy
from rhino.passes.planner.setup import OFFLOAD_OPTION, Setup
from rhino.passes.registry import before_choice
from rhino.passes.sharding.planning_pass import Target
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.strategies.autotune.base import PlanConfig
from rhino.strategies.pipeline.schedules import SCHEDULES

MOST_OPS: Final = 500_000
"""How many ops there may be in the steps that are kept as they were read, beside the last.

Large ones take memory.
"""

Key: TypeAlias = tuple[int, int, float, int, str]
"""What a step depends on: the pieces of its loops, micro-batches, the share recomputed, replicas, unlike meshes."""


@dataclass(eq=False)
class StepPrograms:
    """Makes and reads the steps of configurations, and keeps what several have in common.

    In `folder` it is kept for other processes too.
    """

    setup: Setup
    folder: Path | None = None
    context: ir.Context = field(default_factory=make_context)
    modules: dict[str, bytes | RhinoError] = field(default_factory=dict)
    programs: dict[Key, tuple[ir.Module, Program]] = field(default_factory=dict)
    ops_read: int = 0
    dividers: dict[bytes, Divider] = field(default_factory=dict)
    rematerializer: Rematerializer = field(init=False)

    def __post_init__(self) -> None:
        self.rematerializer = Rematerializer(self.context)

    def program(self, config: PlanConfig, mesh: Mesh) -> tuple[ir.Module, Program]:
        """Returns the step of a configuration on the mesh of a rank, which lasts as long as its module.

        A step that refers to no mesh axis is read once for all meshes.
        """
        key = self.key_of(config)
        found = self.programs.pop(key, None)
        if found is None:
            module = self.prepared(config)
            found = module, read_program(entry_function(module), mesh, self.setup.file)
            self.ops_read += found[1].graph.num_ops
        if _is_free_of_axes(found[1].graph):
            self.programs[key] = found
        while len(self.programs) > 1 and sum(program.graph.num_ops for _, program in self.programs.values()) > MOST_OPS:
            del self.programs[next(iter(self.programs))]
        return found

    def key_of(self, config: PlanConfig) -> Key:
        """Returns what the step of a configuration depends on."""
        return self.num_stages(config), config.micro_batches, config.remat, config.replicas, self.unlike(config)

    def viewed(self, module: ir.Module, target: Target) -> tuple[ir.Operation, Program] | None:
        """Returns the step of `module` with dims stored as blocks, which lasts as long as its module.

        Returns None where none are, or where the arrays of each step have to be brought to that.
        """
        parts = 1 if self.setup.own_shapes else target.mesh.num_devices
        if (copy := viewed_copy(module.operation, parts, Remarks(self.setup.file))) is None:
            return None
        return copy, read_program(entry_function(copy), target.mesh, self.setup.file)

    def prepared(self, config: PlanConfig) -> ir.Module:
        """Returns the step in so many micro-batches, ready for the choice of shardings.

        To divide it is most of the work, and the same whatever is recomputed. What is pinned comes last
        and is not kept, so that evaluators that differ in it may share a folder.
        """
        own = {name: text for name, text in self.setup.options.items() if name != OFFLOAD_OPTION}
        *rewriting, populate, pin = before_choice({**own, "cluster": self.setup.cluster, **_named_options(config)})
        again = [one for one in rewriting if isinstance(one, Rematerialize)]
        others = [one for one in rewriting if not isinstance(one, Rematerialize)]
        at = next((number for number, one in enumerate(others) if isinstance(one, MicroBatch)), 0)
        step = self.made("step", self.setup.module, others[:at]) if at else self.setup.module
        stages, meshes = self.num_stages(config), self.unlike(config)
        cut = f"{stages}-{meshes}" if meshes else str(stages)
        if stages > 1:
            split = SplitScans(stages, leaves=True, cluster=self.setup.cluster, meshes=meshes)
            step = self.made(f"step-{cut}", step, [split])
        divided = self.made(f"{cut}-{config.micro_batches}", step, others[at:])
        name, join = f"{cut}-{config.micro_batches}-{config.remat:g}", list[Item]()
        if config.replicas > 1:
            join = [JoinReplicas(str(config.replicas), self.setup.cluster)]
            name += f"-{config.replicas}"
        module = ir.Module.parse(self.made(name, divided, [*again, *join, populate]), self.context)
        build_pass_manager([pin], self.context, Remarks(self.setup.file)).run(module.operation)
        return module

    def num_stages(self, config: PlanConfig) -> int:
        """Returns for how many stages loops over layers are cut, by any schedule; 1 where there are none to cut."""
        if config.stages == 1 or not self.has_layers:
            return 1
        return config.stages * max(SCHEDULES[name].stages_per_rank for name in self.setup.schedules)

    def unlike(self, config: PlanConfig) -> str:
        """Returns the meshes that the pieces of loops over layers are for, where they are unlike; else nothing."""
        stages = self.num_stages(config)
        if not config.meshes or stages == 1:
            return ""
        return option_of_meshes([mesh_of_shape(config.meshes[one % config.stages]) for one in range(stages)])

    @cached_property
    def has_layers(self) -> bool:
        """Whether the step has loops over layers that stages can share."""
        module = ir.Module.parse(self.setup.module, self.context)
        return bool(find_layers(entry_function(module).regions[0].blocks[0]))

    def made(self, name: str, start: bytes, items: Sequence[Item]) -> bytes:
        """Returns what `items` make of a module; what another process has put in the folder is not made again."""
        if name not in self.modules:
            file = self.folder / f"{name}.mlirbc" if self.folder else None
            self.modules[name] = file.read_bytes() if file and file.exists() else self.rewritten(start, items, file)
        found = self.modules[name]
        if isinstance(found, RhinoError):
            raise found
        return found

    def rewritten(self, start: bytes, items: Sequence[Item], file: Path | None) -> bytes | RhinoError:
        """Returns what `items` make of a module, and puts it into `file`."""
        first, *rest = items
        remarks = Remarks(self.setup.file)
        try:
            if isinstance(first, MicroBatch):
                module = self.dividers.setdefault(start, Divider(self.context)).divided(start, first, remarks)
            elif isinstance(first, Rematerialize):
                module = self.rematerializer.rewritten(start, first, remarks)
            else:
                module, rest = ir.Module.parse(start, self.context), [first, *rest]
            manager = build_pass_manager(rest, self.context, remarks)
            manager.enable_verifier(False)  # who parses what comes out verifies it
            manager.run(module.operation)
        except RhinoError as error:
            return error
        found = bytecode(module)
        if file:
            part = file.with_suffix(f".{os.getpid()}")
            part.write_bytes(found)
            part.replace(file)  # whole or not at all: others may look at any time
        return found


def refusal(setup: Setup, config: PlanConfig) -> RhinoError | None:
    """Returns the error of the step itself, whatever the devices; None if there is none.

    The step is taken in micro-batches and recomputed as in the configuration.
    """
    try:
        StepPrograms(setup).prepared(config)
    except RhinoError as error:
        return error
    return None


def _named_options(config: PlanConfig) -> dict[str, str]:
    """Returns the options of the passes before the choice of shardings that make a step of this configuration."""
    found = {"num": str(config.micro_batches)} if config.micro_batches > 1 else {}
    return {**found, "remat": f"{config.remat:g}"} if config.remat else found


def _is_free_of_axes(graph: Graph) -> bool:
    """Says whether a graph is the same whatever the mesh: it fixes no sharding."""
    constraints = (graph.fixed, graph.roles, graph.choices, any(limit is not None for limit in graph.return_fixed))
    return not any(constraints) and all(cls.fixed_specs is None for cls in graph.classes)
