"""The part of a step that a process runs: the list of its ranks, and what this speaks of.

A part needs nothing of the step that it was taken of. Its slots are those of its ranks, as the step has them, and then
one for all alike far ends of transfers: what arrays are in the process at the other side, and on which rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instruction_list import SIMPLE, Form, Group, InstructionList, Kind, in_columns
from rhino.ir.plan.instructions import Global, Listed, Local, Slot, Step, StepProgram


@dataclass(frozen=True, slots=True)
class Part:
    """What a process runs that has devices of `ranks`.

    `meshes` are those of all ranks of the step; `results` are the slots of all of its results, on whatever rank.
    """

    ranks: tuple[int, ...]
    meshes: tuple[Mesh, ...]
    programs: tuple[StepProgram, ...]
    slots: tuple[Slot, ...]
    instructions: Sequence[Local]
    constants: tuple[tuple[int, int], ...]
    results: tuple[Slot, ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks the step is on."""
        return len(self.meshes)

    def mesh_of(self, slot: int) -> Mesh:
        """Returns the mesh of the rank that a slot is on."""
        return self.meshes[self.slots[slot].rank]


def part_of(step: Step, ranks: Sequence[int]) -> Part:
    """Returns the part of a step that the process runs that has devices of `ranks`. The step is one that verifies."""
    found = in_columns(project(step, ranks))
    slots, slot_of = _own_slots(step, found, ranks)
    programs = sorted({group.form.program for group in found.of_kind("run")})
    forms = [_renumbered(form, programs) for form in found.forms]
    instructions: InstructionList[Local] = InstructionList(forms, found.form_of, _moved(found, slot_of))
    constants = tuple([(int(slot_of[slot]), number) for slot, number in step.constants if slot_of[slot] >= 0])
    fetches = [row for group in in_columns(step.instructions).of_kind("fetch") for row in group.numbers.tolist()]
    return Part(
        tuple(sorted(ranks)),
        step.meshes,
        tuple([step.programs[program] for program in programs]),
        slots,
        instructions,
        constants,
        tuple([step.slots[slot] for slot, _ in sorted(fetches, key=lambda row: row[1])]),
    )


def project(step: Step, ranks: Sequence[int]) -> InstructionList[Local]:
    """Returns the list of the process that has devices of `ranks`, in the step's order."""
    every: InstructionList[Global] = in_columns(step.instructions)
    is_here = np.isin(slot_ranks(step), np.array(sorted(ranks)))
    found: list[tuple[Form, Ints, Ints]] = []
    for group in every.groups:
        match group.form.kind:
            case "transfer":
                source, target = is_here[group.numbers[:, 0]], is_here[group.numbers[:, 1]]
                found.append(_moves(group, "copy", source & target, (0, 1, 2)))
                found.append(_moves(group, "send", source & ~target, (0, 2, 1)))
                found.append(_moves(group, "receive", target & ~source, (1, 2, 0)))
            case "free":
                found += frees(group, is_here[group.numbers])
            case _:
                kept = is_here[group.numbers[:, 0]]
                found.append((group.form, group.places[kept], group.numbers[kept]))
    return in_order(found)


def in_order(groups: Sequence[tuple[Form, Ints, Ints]]) -> InstructionList[Any]:
    """Returns the list of instructions by form, each form's with their places and numbers."""
    forms: dict[Form, int] = {}
    number = [forms.setdefault(form, len(forms)) for form, places, _ in groups if len(places)]
    kept = [one for one in groups if len(one[1])]
    if not kept:
        return InstructionList((), np.zeros(0, np.int64), np.zeros(0, np.int64))
    places = np.concatenate([places for _, places, _ in kept])
    form_of = np.repeat(number, [len(places) for _, places, _ in kept])
    mixed: InstructionList[Any] = InstructionList(
        tuple(forms), form_of, np.concatenate([numbers.ravel() for _, _, numbers in kept])
    )
    return mixed.taken(np.argsort(places, kind="stable"))


def frees(group: Group, chosen: Bools, first: int = 0) -> list[tuple[Form, Ints, Ints]]:
    """Returns the frees of one form with those of their slots that are chosen; their places count from `first`."""
    counts, found = chosen.sum(axis=1), []
    for count in np.unique(counts[counts > 0]).tolist():
        own = counts == count
        numbers = group.numbers[own][chosen[own]].reshape(-1, count)
        found.append((Form("free", others=count), first + group.places[own], numbers))
    return found


def slot_ranks(step: Listed) -> Ints:
    """Returns the rank of each slot."""
    kinds, kind_of = slot_kinds(step.slots)
    return np.array([slot.rank for slot in kinds], dtype=np.int64)[kind_of]


def slot_kinds(slots: Sequence[Slot]) -> tuple[list[Slot], Ints]:
    """Returns the slots that differ, and which of them each is; equal ones that are not one object are two."""
    number: dict[int, int] = {}  # by identity, which is quick, and in the order of the slots
    kind_of = np.array([number.setdefault(id(slot), len(number)) for slot in slots], dtype=np.int64)
    first = np.unique(kind_of, return_index=True)[1]
    return [slots[at] for at in first.tolist()], kind_of


def program_ranks(step: Listed) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks that each program runs on [programs], the first to run it first; for one that never runs, 0."""
    ranks, first = slot_ranks(step), dict[tuple[int, int], int]()
    for group in in_columns(step.instructions).of_kind("run"):
        own, places = np.unique(ranks[group.numbers[:, 0]], return_index=True)
        for rank, place in zip(own.tolist(), group.places[places].tolist(), strict=True):
            key = group.form.program, rank
            first[key] = min(place, first.get(key, place))
    found: list[list[int]] = [[] for _ in step.programs]
    for program, rank in sorted(first, key=lambda key: first[key]):
        found[program].append(rank)
    return tuple([tuple(own) or (0,) for own in found])


def program_meshes(step: Listed) -> tuple[Mesh, ...]:
    """Returns the mesh that each program runs on [programs]; for one that does not run, that of the first rank."""
    return tuple([step.meshes[ranks[0]] for ranks in program_ranks(step)])


def _moves(group: Group, kind: Kind, chosen: Bools, order: tuple[int, ...]) -> tuple[Form, Ints, Ints]:
    return Form(kind, *SIMPLE[kind]), group.places[chosen], group.numbers[chosen][:, order]


def _own_slots(step: Step, found: InstructionList[Local], ranks: Sequence[int]) -> tuple[tuple[Slot, ...], Ints]:
    """Returns the slots of a part, and the number in it of each slot of the step; -1 where it has none."""
    is_here = np.isin(slot_ranks(step), np.array(sorted(ranks)))
    own = np.flatnonzero(is_here)
    slot_of = np.full(len(step.slots), -1, dtype=np.int64)
    slot_of[own] = np.arange(len(own))
    far = [group.others[:, 1] for group in found.of_kind("send", "receive")]
    ends: dict[Slot, int] = {}
    for slot in np.unique(np.concatenate(far)).tolist() if far else ():
        slot_of[slot] = len(own) + ends.setdefault(step.slots[slot], len(ends))
    return (*[step.slots[slot] for slot in own.tolist()], *ends), slot_of


def _renumbered(form: Form, programs: Sequence[int]) -> Form:
    if form.kind != "run":
        return form
    program = programs.index(form.program)
    return Form("run", form.reads, form.writes, form.others, program, form.phase, form.stage)


def _moved(found: InstructionList[Local], slot_of: Ints) -> Ints:
    """Returns the numbers of a list with those of slots as a part has them."""
    numbers = found.numbers.copy()
    for group in found.groups:
        form, starts = group.form, found.starts[group.places]
        columns = [*range(form.reads + form.writes), *(range(form.width) if form.kind == "free" else ())]
        columns += [2] if form.kind in ("send", "receive") else []
        for column in columns:
            numbers[starts + column] = slot_of[group.numbers[:, column]]
    return numbers
