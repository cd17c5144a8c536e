"""Make a pipeline stage of each outermost scope of a model.

Reads     the names of scopes in the locations of ops, and the scopes that are asked for; the loop with
          `rhino.micro_batches`, or where there is none the whole step as one micro-batch.
Writes    `rhino.virtual_stage` on ops of a micro-batch in a scope, `rhino.stage` on those that run after it:
          rhino-pipeline-stages keeps to them, and chooses the stages of all other ops.
Errors    RHI-STAGE-001 another number of scopes than stages, RHI-STAGE-003 a scope that comes back after a later one,
          or a loop with parts in several; RHI-CLI-001, RHI-CLI-002, RHI-PIN-001 the scopes that are asked for do not
          parse, RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have.
Source    Whale 3.1.2, 3.2.1; strategies/pipeline/stages/scope_stages.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Final

import numpy as np

from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.op_stages import set_stage, set_virtual_stage
from rhino.ir.program.program import Program
from rhino.ir.program.scope_paths import ScopeAround, scope_path, scopes_around
from rhino.ir.request.constraints import Scope
from rhino.ir.request.scope_sharding import REPLICATE, ScopeSharding
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.sharding.pin import SCOPE_TEXTS, requested_scopes
from rhino.passes.sharding.scope_constraints import scoped_ops
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.choice.scope_axes import meshes_for
from rhino.strategies.pipeline.stages.scope_stages import stages_of_scopes
from rhino.strategies.structure.training_phases import parts_of

_SHOWN: Final = 8
"""How many scopes a message names."""


@dataclass(frozen=True, slots=True)
class ScopeRanks:
    """The mesh of the rank of each scope [stages], and how many replicas of the pipeline these devices run."""

    meshes: tuple[Mesh, ...]
    replicas: int


@dataclass(frozen=True)
class ScopeStages(Pass):
    """Make a pipeline stage of each outermost scope of a model."""

    name: ClassVar[str] = "rhino-scope-stages"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-CLI-001",
        "RHI-CLI-002",
        "RHI-PIN-001",
        "RHI-STAGE-001",
        "RHI-STAGE-003",
        *UNSHARDED_ERRORS,
    )

    stages: int = opt(2, "how many stages")
    scope: str = opt("", SCOPE_TEXTS[0])
    constraints: str = opt("", SCOPE_TEXTS[1])

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Annotates `module` in place."""
        with unsharded_program(module, remarks) as program:
            parts = parts_of(program.graph, accumulation_loop(program), np.zeros(program.graph.num_ops))
            counted = np.flatnonzero((parts.body | parts.apply) & ~parts.free).tolist()
            around = _outermost((program.ops[op] for op in counted), requested_scopes(self.scope, self.constraints))
            own = {op: one for op, one in zip(counted, around, strict=True) if one is not None}
            names = list(dict.fromkeys(one.name for op, one in own.items() if parts.body[op]))
            if len(names) != self.stages:
                what = f"{len(names)} scopes compute something of a micro-batch, and {self.stages} stages are requested"
                raise RhinoError(
                    "RHI-STAGE-001", what, Place(remarks.file), fix="ask for as many, or say stages of scopes alone"
                )
            stage = {op: names.index(one.name) for op, one in own.items() if one.name in names}
            found = stages_of_scopes(program.graph, parts.body, stage, self.stages)
            for op in found.torn:
                raise _torn(program, op)
            for op, other in found.returning.items():
                raise _returning(program, op, own, names[other])
            for op, virtual in found.stages.items():
                set_virtual_stage(program.ops[op], virtual)
            for op, number in stage.items():
                if parts.apply[op]:
                    set_stage(program.ops[op], number)


def ranks_of_scopes(module: ir.Operation, scopes: Sequence[Scope], num_devices: int, file: str) -> ScopeRanks:
    """Returns the ranks that the outermost scopes of a normalized module ask for, on so many devices.

    Scopes without a number of devices share evenly what the others leave. Where all have one, the pipeline is
    replicated as often as it fits, as data parallelism inside each of its ranks.

    Raises:
        RhinoError: RHI-STAGE-001 where there are fewer than two scopes, or the devices cannot be shared so.
    """
    chains: dict[str, dict[tuple[ScopeSharding, ...], None]] = {}
    for op in scoped_ops(entry_function(module, file).regions[0].blocks[0]):
        around = scopes_around(scope_path(op.location), scopes)
        if op.name != WHILE and around and not around[0].is_default:
            chains.setdefault(around[0].name, {})[tuple([one.sharding for one in around])] = None
    words = [str(next(iter(found))[0]) for found in chains.values()]
    listed = ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    if len(chains) < 2:
        what = f"stages are to be scopes, and the step has {listed or 'none'}"
        raise RhinoError("RHI-STAGE-001", what, Place(file), fix="put what each stage computes in a scope of its own")
    numbered = [max(prod(one.num or 1 for one in chain) for chain in found) for found in chains.values()]
    is_open = [any(one.num is None for chain in found for one in chain) for found in chains.values()]
    fixed = sum(size for size, own in zip(numbered, is_open, strict=True) if not own)
    replicas, over = (1, 0) if any(is_open) else divmod(num_devices, fixed)
    share = (num_devices - fixed) // sum(is_open) if any(is_open) else 0
    sizes = [share if own else size * replicas for size, own in zip(numbered, is_open, strict=True)]
    nested = [ScopeSharding(REPLICATE, replicas)] if replicas > 1 else []
    meshes = []
    for size, found in zip(sizes, chains.values(), strict=True):
        shapes = meshes_for([[*nested, *chain] for chain in found], size) if size > 0 and not over else []
        if not shapes:
            asked = f"{fixed} in all" if not any(is_open) else f"{fixed} in all, and {sum(is_open)} share the others"
            what = f"{num_devices} devices cannot be shared by the scopes {listed}, which ask for {asked}"
            fix = "say numbers whose sum divides the devices, or none for an even share of what the others leave"
            raise RhinoError("RHI-STAGE-001", what, Place(file), fix=fix)
        meshes.append(mesh_of_shape(shapes[0]))
    return ScopeRanks(tuple(meshes), replicas)


def _outermost(ops: Iterable[ir.Operation], scopes: Sequence[Scope]) -> list[ScopeAround | None]:
    """Returns the outermost scope of each op, None where it is in none."""
    found = [scopes_around(scope_path(op.location), scopes) for op in ops]
    return [around[0] if around and not around[0].is_default else None for around in found]


def _torn(program: Program, op: int) -> RhinoError:
    what = "this loop has parts in several scopes, and is in one stage as a whole"
    fix = "put the loop in one scope, or unroll it"
    return RhinoError("RHI-STAGE-003", what, place_of(program.ops[op].location, program.file), fix=fix)


def _returning(program: Program, op: int, own: Mapping[int, ScopeAround], other: str) -> RhinoError:
    operation = program.ops[op]
    later = next(number for number, one in own.items() if one.name == other)
    words = f"'{operation.name}' in '{name_of(operation.location)}'"
    what = f"{own[op].provenance} around {words} comes back after a later scope, whose stage lies between"
    between = place_of(program.ops[later].location, program.file)
    note = f"it reads what follows from {own[later].provenance} ({between}), and that from it"
    fix = "open a scope of its own there, which is another stage, or leave the op out of scopes"
    return RhinoError("RHI-STAGE-003", what, place_of(operation.location, program.file), (note,), fix)
