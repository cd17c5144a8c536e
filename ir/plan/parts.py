"""The part of a step that a process runs: the list of its ranks, and what this speaks of.

A part needs nothing of the step that it was taken of. Its slots are those of its ranks, as the step has them, and then
one for all alike far ends of transfers: what arrays are in the process at the other side, and on which rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instruction_list import SIMPLE, Form, Group, InstructionList, Kind, in_columns
from rhino.ir.plan.instructions import Global, Listed, Local, Slot, Step, StepProgram
from rhino.ir.plan.slot_table import SlotTable, slot_ranks


@dataclass(frozen=True, slots=True)
class Part:
    """What a process runs that has devices of `ranks`.

    `meshes` are those of all ranks of the step; `results` are the slots of all of its results, on whatever rank.
    """

    ranks: tuple[int, ...]
    meshes: tuple[Mesh, ...]
    programs: tuple[StepProgram, ...]
    slots: Sequence[Slot]
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
    return parts_of(step, [ranks])[0]


def parts_of(step: Step, holders: Sequence[Sequence[int]]) -> list[Part]:
    """Returns the parts of a step that processes run, by the ranks of each, in one pass over its list.

    The step is one that verifies.
    """
    cut = _Cut(step)
    return [cut.part(ranks) for ranks in holders]


def project(step: Step, ranks: Sequence[int]) -> InstructionList[Local]:
    """Returns the list of the process that has devices of `ranks`, in the step's order."""
    return projections(step, [ranks])[0]


def projections(step: Step, holders: Sequence[Sequence[int]]) -> list[InstructionList[Local]]:
    """Returns the lists of processes, by the ranks of each, in one pass over the step's."""
    cut = _Cut(step)
    return [cut.list_of(ranks) for ranks in holders]


class _Cut:
    """A step as it is cut in parts: what each rank has of it, found once."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.every: InstructionList[Global] = in_columns(step.instructions)
        self.slots = SlotTable.of(step.slots)
        self.places_of = _by_rank(*_touching(self.every, self.slots.ranks), step.num_ranks)

    @cached_property
    def slots_of(self) -> list[Ints]:
        """The slots of each rank."""
        return _by_rank(self.slots.ranks, np.arange(len(self.slots)), self.step.num_ranks)

    @cached_property
    def constants(self) -> Ints:
        """The slots that hold an integer for ever, and the integers [constants, 2]."""
        return np.array(self.step.constants, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def results(self) -> tuple[Slot, ...]:
        """The slot of each result."""
        fetches = [row for group in self.every.of_kind("fetch") for row in group.numbers.tolist()]
        return tuple([self.slots[slot] for slot, _ in sorted(fetches, key=lambda row: row[1])])

    def part(self, ranks: Sequence[int]) -> Part:
        """The part of a process that has devices of `ranks`."""
        found, step = self.list_of(ranks), self.step
        slots, slot_of = self.own_slots(found, ranks)
        programs = sorted({group.form.program for group in found.of_kind("run")})
        forms = [_renumbered(form, programs) for form in found.forms]
        instructions: InstructionList[Local] = InstructionList(forms, found.form_of, _moved(found, slot_of))
        constants = self.constants[slot_of[self.constants[:, 0]] >= 0]
        numbers = slot_of[constants[:, 0]].tolist()
        return Part(
            tuple(sorted(ranks)),
            step.meshes,
            tuple([step.programs[program] for program in programs]),
            slots,
            instructions,
            tuple(zip(numbers, constants[:, 1].tolist(), strict=True)),
            self.results,
        )

    def list_of(self, ranks: Sequence[int]) -> InstructionList[Local]:
        """The list of a process that has devices of `ranks`."""
        holds = np.zeros(self.step.num_ranks, dtype=bool)
        holds[list(ranks)] = True
        found: list[tuple[Form, Ints, Ints]] = []
        for group in self.every.taken(_joined([self.places_of[rank] for rank in ranks])).groups:
            match group.form.kind:
                case "transfer":
                    source, target = (holds[self.slots.ranks[group.numbers[:, end]]] for end in (0, 1))
                    found.append(_moves(group, "copy", source & target, (0, 1, 2)))
                    found.append(_moves(group, "send", source & ~target, (0, 2, 1)))
                    found.append(_moves(group, "receive", target & ~source, (1, 2, 0)))
                case "free":
                    found += _frees(group, holds[self.slots.ranks[group.numbers]])
                case _:
                    found.append((group.form, group.places, group.numbers))
        return in_order(found)

    def own_slots(self, found: InstructionList[Local], ranks: Sequence[int]) -> tuple[SlotTable, Ints]:
        """The slots of a part, and the number in it of each slot of the step; -1 where it has none."""
        own = _joined([self.slots_of[rank] for rank in ranks])
        slot_of = np.full(len(self.slots), -1, dtype=np.int64)
        slot_of[own] = np.arange(len(own))
        numbers = [group.others[:, 1] for group in found.of_kind("send", "receive")]
        far = np.unique(np.concatenate([own[:0], *numbers]))
        there, ends = self.slots.taken(far), dict[Slot, int]()
        end_of = np.array([ends.setdefault(kind, len(ends)) for kind in there.kinds], dtype=np.int64)
        slot_of[far] = len(own) + end_of[there.kind_of]
        return self.slots.taken(own).extended(tuple(ends)), slot_of


def _touching(every: InstructionList[Global], ranks: Ints) -> tuple[Ints, Ints]:
    """Returns which ranks touch which places of a list, as pairs [pairs], [pairs]; some stand there twice."""
    found_ranks, found_places = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for group in every.groups:
        columns = {"transfer": 2, "free": group.form.width}.get(group.form.kind, 1)
        found_ranks.append(ranks[group.numbers[:, :columns]].ravel())
        found_places.append(np.repeat(group.places, columns))
    return np.concatenate(found_ranks), np.concatenate(found_places)


def _by_rank(ranks: Ints, values: Ints, num_ranks: int) -> list[Ints]:
    """Returns the values that stand beside each rank, ascending, each once."""
    count = 1 + int(values.max(initial=0))
    keys = np.sort(ranks * count + values)  # many stand in order: unique of NumPy 2.3 would hash them
    keys = keys[np.diff(keys, prepend=-1) > 0]
    ends = np.searchsorted(keys, np.arange(num_ranks + 1) * count)
    return [keys[start:end] - rank * count for rank, (start, end) in enumerate(pairwise(ends.tolist()))]


def _joined(sets: Sequence[Ints]) -> Ints:
    """Returns the numbers of several sets, ascending."""
    return sets[0] if len(sets) == 1 else np.unique(np.concatenate(sets))


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


def _frees(group: Group, chosen: Bools) -> list[tuple[Form, Ints, Ints]]:
    """Returns the frees of one form with those of their slots that are chosen."""
    counts, found = chosen.sum(axis=1), []
    for count in np.unique(counts[counts > 0]).tolist():
        own = counts == count
        numbers = group.numbers[own][chosen[own]].reshape(-1, count)
        found.append((Form("free", others=count), group.places[own], numbers))
    return found


def _moves(group: Group, kind: Kind, chosen: Bools, order: tuple[int, ...]) -> tuple[Form, Ints, Ints]:
    return Form(kind, *SIMPLE[kind]), group.places[chosen], group.numbers[chosen][:, order]


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
