"""The proof that a step's instructions can run: what stands between a wrong list and a crash of the process.

Where it fails, one instruction is named (`rhino.ir.plan.list_proof`). Proven are

- that every reference is to something there, every array what its reader takes, and on the reader's rank;
- that each slot is written once, before it is read, and not touched once freed or taken over;
- that no buffer is taken over that is a constant, was sent (the other rank may fetch it later than the list says) or is
  a result;
- that each slot written is freed, taken over or fetched, and each result fetched once;
- that transfers are numbered differently, between two ranks, with one layout on both, or one shape and element type
  where the ranks have unlike meshes;
- that each program runs on equal meshes, and its arrays are split along axes of theirs;
- that no rank is fed an argument twice;
- that each rank has as many devices as its mesh, and none that another has;
- that no rank holds more than its memory, counted as the executor holds it.

From this follows what need not be checked. Every instruction stands behind those that it waits for, and each process
runs its part of the list in the list's order, so the first instruction that is not done waits for nothing: the step
ends however many processes there are, and however few launches a device's queue takes (32 on XLA's CPU client) before
the next one waits. A process's list is that of `project`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rhino.ir.cluster.placement import numbers_text
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.elements import DTYPES, element_bytes
from rhino.ir.plan.instructions import Feed, Fetch, Step
from rhino.ir.plan.list_proof import FIX, prove_list
from rhino.ir.plan.memory_proof import Limits, check_memory
from rhino.ir.plan.plan import Execution, Plan
from rhino.ir.plan.slot_table import SlotTable, slot_ranks
from rhino.ir.plan.step_words import layout_text

__all__ = ["Limits", "verify", "verify_plan"]

_DEVICES_FIX: Final = "give each rank as many devices as its mesh has, each device once; or plan again"


def verify(step: Step, num_arguments: int, num_results: int, limits: Limits | None = None) -> None:
    """Proves that `step` can run with so many arguments and results, and within `limits`.

    Raises:
        RhinoError: RHI-STEP-001 to RHI-STEP-007 and RHI-STEP-009 where it cannot, RHI-STEP-008 where memory does not
            suffice.
    """
    _check_devices(step)
    _check_slots(step)
    _check_layouts(step)
    _check_programs(step)
    prove_list(step, num_arguments, num_results)
    if limits is not None:
        check_memory(step, limits)


def verify_plan(plan: Plan, execution: Execution) -> None:
    """Proves that a plan's step can run with the arguments and results that the plan has.

    Raises:
        RhinoError: RHI-STEP-001 to RHI-STEP-007 and RHI-STEP-009 where it cannot.
    """
    step = execution.step
    verify(step, len(plan.arguments), len(plan.results))
    if plan.devices and plan.num_reached > (count := replace(plan, devices=()).machine().num_devices):
        what = (
            f"a rank has device {plan.num_reached - 1}, and cluster {plan.cluster_name!r} has devices 0 to {count - 1}"
        )
        raise RhinoError("RHI-STEP-009", what, fix=_DEVICES_FIX)
    for one in step.instructions:
        match one:
            case Feed(number, slot):
                words, tensor = f"argument {number}", plan.arguments[number]
            case Fetch(slot, number):
                words, tensor = f"result {number}", plan.results[number]
            case _:
                continue
        layout = step.slots[slot].layout
        names = layout.dtype, DTYPES.get(layout.dtype)
        stored = tensor.viewed or tensor.shape
        if not tensor.num_key_dims and (stored != layout.shape or tensor.dtype not in names):
            raise RhinoError(
                "RHI-STEP-006",
                f"{words} of the step is {layout_text(layout)}, and the plan says {tensor.words}",
                fix=FIX,
            )


def _check_devices(step: Step) -> None:
    if step.devices and len(step.devices) != step.num_ranks:
        what = f"there are devices of {len(step.devices)} ranks, and the step has {step.num_ranks}"
        raise RhinoError("RHI-STEP-009", what, fix=_DEVICES_FIX)
    taken: dict[int, int] = {}
    for rank, own in enumerate(step.devices):
        words = f"rank {rank} has devices {numbers_text(own)}"
        if len(own) != step.meshes[rank].num_devices:
            what = f"{words}, and its mesh {step.meshes[rank]} has {step.meshes[rank].num_devices}"
            raise RhinoError("RHI-STEP-009", what, fix=_DEVICES_FIX)
        for device in own:
            if device in taken:
                other = taken[device]
                also = f"device {device} twice" if other == rank else f"and rank {other} has device {device}, too"
                raise RhinoError("RHI-STEP-009", f"{words}, {also}", fix=_DEVICES_FIX)
            taken[device] = rank


def _check_programs(step: Step) -> None:
    for number, program in enumerate(step.programs):
        for pair, count in ((0, len(program.inputs)), (1, len(program.outputs))):
            numbers = [one[pair] for one in program.donated]
            if len(set(numbers)) < len(numbers) or any(one not in range(count) for one in numbers):
                words = ("inputs", "outputs")[pair]
                raise RhinoError(
                    "RHI-STEP-001",
                    f"program {number} ({program.name}): {numbers} are not different ones of {count} {words}",
                    fix=FIX,
                )
        for taken, by in program.donated:
            if program.inputs[taken] != program.outputs[by]:
                sides = layout_text(program.outputs[by]), layout_text(program.inputs[taken])
                what = f"output {by} is {sides[0]} and takes over {sides[1]}"
                raise RhinoError("RHI-STEP-006", f"program {number} ({program.name}): {what}", fix=FIX)


def _check_layouts(step: Step) -> None:
    every = tuple(dict.fromkeys(axis for mesh in step.meshes for axis in mesh.names))
    programs = [(one, every) for program in step.programs for one in (*program.inputs, *program.outputs)]
    slots = [(slot.layout, step.meshes[slot.rank].names) for slot in SlotTable.of(step.slots).kinds]
    for layout, names in dict.fromkeys([*slots, *programs]):
        unknown = [axis for axes in layout.dims for axis in axes if axis not in names]
        if unknown or not element_bytes(layout.dtype):
            what = f"an array is {layout_text(layout)}, on a mesh with axes {', '.join(names)}"
            raise RhinoError("RHI-STEP-001", what, fix=FIX)


def _check_slots(step: Step) -> None:
    ranks = slot_ranks(step)
    is_wrong = (ranks < 0) | (ranks >= step.num_ranks)
    if is_wrong.any():
        slot = int(is_wrong.argmax())
        raise RhinoError("RHI-STEP-001", f"slot {slot} is on rank {ranks[slot]} of {step.num_ranks}", fix=FIX)
    constants = [slot for slot, _ in step.constants]
    if len(set(constants)) < len(constants) or any(slot not in range(len(step.slots)) for slot in constants):
        raise RhinoError(
            "RHI-STEP-001", f"the constants' slots {constants} are not different ones of {len(step.slots)}", fix=FIX
        )
