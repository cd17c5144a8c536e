"""The proof that no rank of a step holds more than its memory, or what it holds when it does.

Errors    RHI-STEP-008 memory does not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.instructions import Feed, Run, Step, Transfer, writes
from rhino.ir.plan.step_memory import live_slots, local_bytes, memory_of
from rhino.ir.plan.step_words import instruction_text, layout_text
from rhino.ir.units import PEAK, format_bytes

_NUM_LARGEST: Final = 3
"""How many of the largest arrays an error about memory names."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The memory that devices have for a step.

    Each program takes its `temp_bytes` [programs] of the `budget_bytes` [ranks] of a device while it runs.

    `names` are the arguments', for the message.
    """

    budget_bytes: tuple[int, ...]
    temp_bytes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


def check_memory(step: Step, limits: Limits) -> None:
    """Raises RHI-STEP-008 where a rank holds more than its memory."""
    for rank, memory in enumerate(memory_of(step, limits.temp_bytes)):
        if memory.peak_bytes > limits.budget_bytes[rank]:
            raise _does_not_fit(step, limits, rank, memory.peak_bytes, memory.peak_at)


def _does_not_fit(step: Step, limits: Limits, rank: int, peak_bytes: int, at: int) -> RhinoError:
    one = step.instructions[at]
    live = live_slots(step, at, rank)
    sizes = {slot: local_bytes(step.slots[slot].layout, step.meshes[rank]) for slot in live}
    largest = sorted(live, key=lambda slot: (-sizes[slot], slot))[:_NUM_LARGEST]
    notes = [
        f"slot {slot}, {layout_text(step.slots[slot].layout)}: {format_bytes(sizes[slot])}, "
        f"{_origin(step, slot, limits.names)}"
        for slot in largest
    ]
    if isinstance(one, Run) and limits.temp_bytes:
        notes.append(
            f"temporaries of program {step.programs[one.program].name}: {format_bytes(limits.temp_bytes[one.program])}"
        )
    return RhinoError(
        "RHI-STEP-008",
        f"rank {rank} has a {PEAK} of {format_bytes(peak_bytes)} on each device at instruction {at}, "
        f"{instruction_text(step, one)}: {format_bytes(peak_bytes - limits.budget_bytes[rank])} more than it has",
        notes=(f"{len(live)} arrays are live at that time", *notes),
        fix="take more stages, more micro-batches, a schedule that holds fewer of them, or devices with more memory",
    )


def _origin(step: Step, slot: int, names: Sequence[str]) -> str:
    """Where what a slot holds comes from, whichever ranks it has crossed."""
    made = {target: one for one in step.instructions for target in writes(one)}
    while isinstance(one := made.get(slot), Transfer):
        slot = one.source
    match one:
        case Feed(argument=number):
            return f"argument {number} ({names[number]})" if names else f"argument {number}"
        case Run(program=program, outputs=outputs):
            return f"output {outputs.index(slot)} of {step.programs[program].name}"
        case _:
            return "a constant"
