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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import WHILE
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.op_stages import set_stage, set_virtual_stage
from rhino.ir.program.program import Program
from rhino.ir.program.scope_paths import ScopeAround, scope_path, scopes_around
from rhino.ir.request.constraints import Scope
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.sharding.pin import SCOPE_TEXTS, requested_scopes
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.pipeline.stages.scope_stages import (
    Chain,
    ScopeRanks,
    share_devices,
    stages_of_scopes,
    widest_of,
)
from rhino.strategies.structure.training_phases import TrainingPhases, parts_of

_SHOWN: Final = 8
"""How many scopes a message names."""


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
            parts = _parts(program)
            own = {
                op: around[0] for op, around in _scoped(program, parts, requested_scopes(self.scope, self.constraints))
            }
            names = list(dict.fromkeys(one.name for op, one in own.items() if parts.body[op]))
            if len(names) != self.stages:
                what = f"{len(names)} scopes compute something of a micro-batch, and {self.stages} stages are requested"
                fix = "ask for as many, or say stages of scopes alone"
                raise RhinoError("RHI-STAGE-001", what, Place(remarks.file), fix=fix)
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
            for number in range(self.stages):
                ops = [op for op, own_stage in stage.items() if own_stage == number]
                place = place_of(program.ops[ops[0]].location, program.file)
                remarks.add(self.name, place, f"stage {number} has the {len(ops)} ops of {own[ops[0]].provenance}")


def ranks_of_scopes(module: ir.Operation, scopes: Sequence[Scope], num_devices: int, file: str) -> ScopeRanks:
    """Returns the ranks that the outermost scopes of a normalized module ask for, on so many devices.

    Raises:
        RhinoError: RHI-STAGE-001 where there are fewer than two scopes, or the devices cannot be shared so.
    """
    chains: dict[str, dict[Chain, None]] = {}
    with unsharded_program(module, Remarks(file)) as program:
        parts = _parts(program)
        for op, around in _scoped(program, parts, scopes):
            if parts.body[op] and program.ops[op].name != WHILE:
                chains.setdefault(around[0].name, {})[tuple([one.sharding for one in around])] = None
    widest = [widest_of(found) for found in chains.values()]
    words = [" around ".join(map(str, chain)) for chain in widest]
    listed = ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    if len(chains) < 2:
        what = f"stages are to be scopes, and the step has {listed or 'none'}"
        raise RhinoError("RHI-STAGE-001", what, Place(file), fix="put what each stage computes in a scope of its own")
    found = share_devices([list(one) for one in chains.values()], num_devices)
    if found is None:
        what = f"{num_devices} devices cannot be shared by the scopes {listed}"
        fix = "say numbers whose sum divides the devices, or none for an even share of what the others leave"
        raise RhinoError("RHI-STAGE-001", what, Place(file), fix=fix)
    return found


def _parts(program: Program) -> TrainingPhases:
    """Returns the parts of a step, whose ops take no time."""
    return parts_of(program.graph, accumulation_loop(program), np.zeros(program.graph.num_ops))


def _scoped(
    program: Program, parts: TrainingPhases, scopes: Sequence[Scope]
) -> Iterator[tuple[int, tuple[ScopeAround, ...]]]:
    """Yields the ops that cost something and are in scopes, in the order of the program, with their scopes."""
    for op in np.flatnonzero((parts.body | parts.apply) & ~parts.free).tolist():
        around = scopes_around(scope_path(program.ops[op].location), scopes)
        if around and not around[0].is_default:
            yield op, around


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
    note = f"it follows from {own[later].provenance} ({between}), and leads to a later scope again"
    fix = "open a scope of its own there, which is another stage, or leave the op out of scopes"
    return RhinoError("RHI-STAGE-003", what, place_of(operation.location, program.file), (note,), fix)
