"""The proof that a step's instructions can run: what stands between a wrong list and a crash of the process.

One pass over the global list, and one instruction is named where it fails. Proven are

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.cluster.placement import numbers_text
from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.elements import DTYPES, element_bytes
from rhino.ir.graph.graph import DEVICE
from rhino.ir.plan.instructions import (
    Feed,
    Fetch,
    Free,
    Global,
    Layout,
    Run,
    Step,
    StepProgram,
    Transfer,
    reads,
    writes,
)
from rhino.ir.plan.plan import Execution, Plan
from rhino.ir.plan.step_memory import live_slots, local_bytes, memory_of
from rhino.ir.units import PEAK, format_bytes

_State: TypeAlias = Literal["empty", "constant", "held", "freed", "taken over", "fetched"]

_GONE: Final = ("empty", "freed", "taken over")

_FIX: Final = "plan again; instructions that were written by hand have to be corrected"

_DEVICES_FIX: Final = "give each rank as many devices as its mesh has, each device once; or plan again"

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
    _Walk(step, num_arguments, num_results).run()
    if limits is not None:
        _check_memory(step, limits)


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
                "RHI-STEP-006", f"{words} of the step is {_words(layout)}, and the plan says {tensor.words}", fix=_FIX
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
                    fix=_FIX,
                )
        for taken, by in program.donated:
            if program.inputs[taken] != program.outputs[by]:
                what = f"output {by} is {_words(program.outputs[by])} and takes over {_words(program.inputs[taken])}"
                raise RhinoError("RHI-STEP-006", f"program {number} ({program.name}): {what}", fix=_FIX)


def _check_layouts(step: Step) -> None:
    every = tuple(dict.fromkeys(axis for mesh in step.meshes for axis in mesh.names))
    programs = [(one, every) for program in step.programs for one in (*program.inputs, *program.outputs)]
    slots = [(slot.layout, step.meshes[slot.rank].names) for slot in step.slots]
    for layout, names in dict.fromkeys([*slots, *programs]):
        unknown = [axis for axes in layout.dims for axis in axes if axis not in names]
        if unknown or not element_bytes(layout.dtype):
            what = f"an array is {_words(layout)}, on a mesh with axes {', '.join(names)}"
            raise RhinoError("RHI-STEP-001", what, fix=_FIX)


def _check_slots(step: Step) -> None:
    for slot, one in enumerate(step.slots):
        if one.rank not in range(step.num_ranks):
            raise RhinoError("RHI-STEP-001", f"slot {slot} is on rank {one.rank} of {step.num_ranks}", fix=_FIX)
    constants = [slot for slot, _ in step.constants]
    if len(set(constants)) < len(constants) or any(slot not in range(len(step.slots)) for slot in constants):
        raise RhinoError(
            "RHI-STEP-001", f"the constants' slots {constants} are not different ones of {len(step.slots)}", fix=_FIX
        )


class _Walk:
    """The list, instruction by instruction. `since[slot]` is the instruction that brought a slot into its state."""

    def __init__(self, step: Step, num_arguments: int, num_results: int) -> None:
        self.step = step
        self.num_arguments = num_arguments
        self.num_results = num_results
        constants = {slot for slot, _ in step.constants}
        self.state: list[_State] = ["constant" if slot in constants else "empty" for slot in range(len(step.slots))]
        self.since = [-1] * len(step.slots)
        self.sent_at: dict[int, int] = {}
        self.first_use: dict[tuple[str, int], int] = {}
        self.program_mesh: dict[int, Mesh] = {}
        self.at = 0

    def run(self) -> None:
        """Checks the whole list, and what is left at its end."""
        for at, one in enumerate(self.step.instructions):
            self.at = at
            self.check_references(one)
            self.check_reads(one)
            self.check_kind(one)
            for slot in writes(one):
                self.write(slot)
        self.check_end()

    def error(self, id: str, what: str) -> RhinoError:
        """The error at this instruction."""
        return RhinoError(
            id, f"instruction {self.at}, {_what(self.step, self.step.instructions[self.at])}: {what}", fix=_FIX
        )

    def check_references(self, one: Global) -> None:
        """Everything that an instruction names is there."""
        if isinstance(one, Run) and one.program not in range(len(self.step.programs)):
            raise self.error("RHI-STEP-001", f"there are {len(self.step.programs)} programs")
        touched = one.slots if isinstance(one, Free) else (*reads(one), *writes(one))
        if not touched:
            raise self.error("RHI-STEP-001", "it touches no slot")
        for slot in touched:
            if slot not in range(len(self.step.slots)):
                raise self.error("RHI-STEP-001", f"slot {slot} of {len(self.step.slots)}")

    def check_reads(self, one: Global) -> None:
        """What an instruction reads is written and not gone."""
        for slot in reads(one):
            if self.state[slot] in _GONE:
                raise self.error("RHI-STEP-002", f"slot {slot} is {self.story(slot)}")

    def story(self, slot: int) -> str:
        """The state of a slot, and since when."""
        return self.state[slot] if self.since[slot] < 0 else f"{self.state[slot]} since instruction {self.since[slot]}"

    def check_kind(self, one: Global) -> None:
        """What holds for the kind of instruction."""
        match one:
            case Run():
                self.check_run(one, self.step.programs[one.program])
            case Transfer(uid=uid, source=source, target=target):
                self.check_transfer(source, target)
                self.check_once("transfer", uid)
                self.sent_at.setdefault(source, self.at)
            case Feed(argument=argument, target=target):
                self.check_number("argument", argument, self.num_arguments)
                self.check_once("argument", argument, f" on rank {self.step.slots[target].rank}")
            case Fetch(source=source, result=result):
                self.check_number("result", result, self.num_results)
                self.check_once("result", result)
                self.give_up(source, "fetched")
            case Free(slots=slots):
                for slot in slots:
                    self.give_up(slot, "freed")

    def check_run(self, run: Run, program: StepProgram) -> None:
        """A run's slots are what its program takes and gives, on one rank of its mesh; it takes over what it may."""
        ranks = {self.step.slots[slot].rank for slot in (*run.inputs, *run.outputs)}
        if len(ranks) > 1:
            raise self.error("RHI-STEP-006", f"its slots are on ranks {sorted(ranks)}")
        mesh = self.step.meshes[ranks.pop()]
        if (first := self.program_mesh.setdefault(run.program, mesh)) != mesh:
            raise self.error("RHI-STEP-006", f"it runs on a mesh {mesh}, and before on a mesh {first}")
        for words, slots, layouts in (("input", run.inputs, program.inputs), ("output", run.outputs, program.outputs)):
            if len(slots) != len(layouts):
                raise self.error("RHI-STEP-006", f"{len(slots)} {words}s, the program has {len(layouts)}")
            for number, (slot, layout) in enumerate(zip(slots, layouts, strict=True)):
                if self.step.slots[slot].layout != layout:
                    got = _words(self.step.slots[slot].layout)
                    raise self.error(
                        "RHI-STEP-006", f"{words} {number}, slot {slot}, is {got}, expected {_words(layout)}"
                    )
        for taken, _ in program.donated:
            if run.inputs.count(run.inputs[taken]) > 1:
                raise self.error("RHI-STEP-004", f"it takes over slot {run.inputs[taken]}, which it reads twice")
            self.give_up(run.inputs[taken], "taken over")

    def check_transfer(self, source: int, target: int) -> None:
        """A transfer is between two ranks, and changes no layout; between unlike meshes, no shape and no type."""
        from_slot, to_slot = self.step.slots[source], self.step.slots[target]
        if from_slot.rank == to_slot.rank:
            raise self.error("RHI-STEP-006", f"both slots are on rank {from_slot.rank}")
        given, wanted = from_slot.layout, to_slot.layout
        if self.step.mesh_of(source) != self.step.mesh_of(target):
            given, wanted = (replace(one, dims=((),) * len(one.shape)) for one in (given, wanted))
        if given != wanted:
            raise self.error("RHI-STEP-006", f"from {_words(from_slot.layout)} to {_words(to_slot.layout)}")

    def check_number(self, words: str, number: int, count: int) -> None:
        """An argument or result is one of those that there are."""
        if number not in range(count):
            raise self.error("RHI-STEP-001", f"{words} {number} of {count}")

    def check_once(self, words: str, number: int, where: str = "") -> None:
        """No two instructions have the same number; of arguments, none on the same rank."""
        if (words + where, number) in self.first_use:
            first = self.first_use[words + where, number]
            raise self.error("RHI-STEP-007", f"{words} {number}{where} is instruction {first}'s")
        self.first_use[words + where, number] = self.at

    def give_up(self, slot: int, state: _State) -> None:
        """A slot is freed, taken over or fetched: it is held, and what takes it over is all that still needs it."""
        if self.state[slot] in _GONE:
            raise self.error("RHI-STEP-002", f"slot {slot} is {self.story(slot)}")
        if state == "fetched":
            if self.state[slot] == "constant":
                raise self.error("RHI-STEP-004", f"slot {slot} is a constant")
        elif self.state[slot] != "held":
            raise self.error("RHI-STEP-004", f"slot {slot} is {self.story(slot)}")
        elif state == "taken over" and slot in self.sent_at:
            raise self.error("RHI-STEP-004", f"slot {slot} is sent by instruction {self.sent_at[slot]}")
        self.state[slot], self.since[slot] = state, self.at

    def write(self, slot: int) -> None:
        """A slot is written for the first time."""
        if self.state[slot] != "empty":
            raise self.error("RHI-STEP-003", f"slot {slot} is {self.story(slot)}")
        self.state[slot], self.since[slot] = "held", self.at

    def check_end(self) -> None:
        """Nothing is left over, and no result is missing."""
        for slot, state in enumerate(self.state):
            if state == "held":
                raise RhinoError(
                    "RHI-STEP-005",
                    f"slot {slot} is {self.story(slot)}: it is never freed, donated or fetched",
                    fix=_FIX,
                )
        for number in range(self.num_results):
            if ("result", number) not in self.first_use:
                raise RhinoError("RHI-STEP-005", f"no instruction fetches result {number}", fix=_FIX)


def _check_memory(step: Step, limits: Limits) -> None:
    for rank, memory in enumerate(memory_of(step, limits.temp_bytes)):
        if memory.peak_bytes > limits.budget_bytes[rank]:
            raise _does_not_fit(step, limits, rank, memory.peak_bytes, memory.peak_at)


def _does_not_fit(step: Step, limits: Limits, rank: int, peak_bytes: int, at: int) -> RhinoError:
    one = step.instructions[at]
    live = live_slots(step, at, rank)
    sizes = {slot: local_bytes(step.slots[slot].layout, step.meshes[rank]) for slot in live}
    largest = sorted(live, key=lambda slot: (-sizes[slot], slot))[:_NUM_LARGEST]
    notes = [
        f"slot {slot}, {_words(step.slots[slot].layout)}: {format_bytes(sizes[slot])}, "
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
        f"{_what(step, one)}: {format_bytes(peak_bytes - limits.budget_bytes[rank])} more than it has",
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


def _what(step: Step, one: Global) -> str:
    """An instruction in a few words."""
    match one:
        case Run(program=program, task=task):
            name = f" ({step.programs[program].name})" if program in range(len(step.programs)) else ""
            return f"{task}, program {program}{name}"
        case Transfer(uid, source, target):
            return f"transfer {uid} from slot {source} to slot {target}"
        case Free(slots):
            return f"free of slots {', '.join(map(str, slots))}"
        case Feed(argument, target):
            return f"feed of argument {argument} to slot {target}"
        case Fetch(source, result):
            return f"fetch of result {result} from slot {source}"


def _words(layout: Layout) -> str:
    split = ", ".join("x".join(axes) if axes else "-" for axes in layout.dims)
    where = "" if layout.memory == DEVICE else f" in {layout.memory}"
    words = f"{layout.dtype}[{', '.join(map(str, layout.shape))}]"
    return words + (f" split [{split}]" if any(layout.dims) else "") + where
