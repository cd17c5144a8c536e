"""The attributes that say in which stage of a pipeline an op is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.staged_module import NUM_STAGES

VIRTUAL_STAGE: Final = "rhino.virtual_stage"
"""On an op of a micro-batch: its virtual stage."""

STAGE: Final = "rhino.stage"
"""On an op that runs once, after the micro-batches: its stage."""


def virtual_stage_of(op: ir.Operation) -> int | None:
    """Returns the virtual stage that stands on an op, None where none does."""
    return _number_of(op, VIRTUAL_STAGE)


def stage_of(op: ir.Operation) -> int | None:
    """Returns the stage that stands on an op, None where none does."""
    return _number_of(op, STAGE)


def is_cut(module: ir.Operation) -> bool:
    """Says whether the ops of a module say in which stages they are."""
    return NUM_STAGES in module.attributes


def latest_stage_of(op: ir.Operation, virtual: VirtualStages) -> int | None:
    """Returns the virtual stage of an op; of one that runs after the micro-batches, the last on its stage."""
    stage = stage_of(op)
    return virtual_stage_of(op) if stage is None else virtual.opposite(stage)


def set_virtual_stage(op: ir.Operation, virtual: int) -> None:
    """Writes its virtual stage on an op."""
    op.attributes[VIRTUAL_STAGE] = _number(virtual)


def set_stage(op: ir.Operation, stage: int) -> None:
    """Writes its stage on an op."""
    op.attributes[STAGE] = _number(stage)


def copy_stage(op: ir.Operation, others: Iterable[ir.Operation | None]) -> None:
    """Writes on an op the stage of the first of `others` that has one."""
    for other in others:
        found = [name for name in (VIRTUAL_STAGE, STAGE) if other is not None and name in other.attributes]
        if other is not None and found:
            for name in found:
                op.attributes[name] = other.attributes[name]
            return


def remove_stages(op: ir.Operation) -> None:
    """Takes from an op what says its stage."""
    for name in (VIRTUAL_STAGE, STAGE):
        if name in op.attributes:
            del op.attributes[name]


def num_stages_of(module: ir.Operation, virtual: Sequence[int]) -> int:
    """Returns the number of stages that a module says, or where it says none, that its virtual stages make."""
    found = _number_of(module, NUM_STAGES)
    return max(virtual, default=0) // 2 + 1 if found is None else found


def refuse_misplaced(body: Iterable[ir.Operation], after: Iterable[ir.Operation], file: str) -> None:
    """Refuses a stage on an op of a micro-batch, and a virtual stage on one that runs once, after the micro-batches.

    Raises:
        RhinoError: RHI-STAGE-003.
    """
    for op in body:
        if STAGE in op.attributes:
            what = f"'{op.name}' is of a micro-batch and has {STAGE}, which is for ops after the micro-batches"
            note = "an op of a micro-batch has a virtual stage: with d stages, forward 0 to d-1, and back to 2d-2"
            fix = f"name it {VIRTUAL_STAGE}, or remove it"
            raise RhinoError("RHI-STAGE-003", what, place_of(op.location, file), (note,), fix)
    for op in after:
        if VIRTUAL_STAGE in op.attributes:
            what = (
                f"'{op.name}' runs after the micro-batches and has {VIRTUAL_STAGE}, which is for ops of a micro-batch"
            )
            note = "an op after the micro-batches has a stage of the pipeline: with d stages, 0 to d-1"
            fix = f"name it {STAGE}, with such a number, or remove it"
            raise RhinoError("RHI-STAGE-003", what, place_of(op.location, file), (note,), fix)


def _number_of(op: ir.Operation, name: str) -> int | None:
    return ir.IntegerAttr(op.attributes[name]).value if name in op.attributes else None


def _number(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
