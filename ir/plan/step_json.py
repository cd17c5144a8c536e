"""A step as JSON, and the part of it that a process runs, a row to a line; and back.

    layouts      shapes, element types and dims, which others have by number
    programs     what is compiled
    kinds        the rank and the layout of slots that are alike
    slots        the kind of each slot, in loops; of a part also that of each result
    constants    each slot that holds an integer for ever and the integer, in loops
    forms        all of instructions but their numbers (`rhino.ir.plan.instruction_list`)
    rank R       the list of rank R, in loops (`rhino.ir.plan.strides`): times, forms, numbers, strides

A value of the wrong kind is refused with a TypeError or ValueError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, get_args

import numpy as np

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.cluster.placement import Devices
from rhino.ir.graph.graph import DEVICE
from rhino.ir.plan.instruction_list import SIMPLE, Form, InstructionList, Kind, in_columns
from rhino.ir.plan.instructions import Feed, Layout, Local, Phase, Slot, Step, StepProgram
from rhino.ir.plan.json_values import count_of, list_of, memory_of, number_of, numbers_of, text_of
from rhino.ir.plan.parts import Part
from rhino.ir.plan.rank_lists import merged, split
from rhino.ir.plan.slot_table import SlotTable
from rhino.ir.plan.strides import Loop, list_of_loops, loops_of

_MOST_NUMBERS: Final = 2**26
"""Of a list of one rank: no schedule has a million instructions, and few have more than some dozens of numbers."""


def step_text(step: Step) -> str:
    """Returns a step as JSON."""
    table = _Layouts()
    lists = [_list_rows(own) for own in split(step)]
    forms = list(dict.fromkeys(form for own, _ in lists for form in own))
    number = {form: place for place, form in enumerate(forms)}
    ranks = [[_numbered(loop, own, number) for loop in loops] for own, loops in lists]
    return _text(step, table, forms, {f"rank {rank}": rows for rank, rows in enumerate(ranks)})


def part_text(part: Part) -> str:
    """Returns the part of a step that a process runs as JSON."""
    forms, loops = _list_rows(in_columns(part.instructions))
    number = {form: place for place, form in enumerate(forms)}
    rows = {"list": [_numbered(loop, forms, number) for loop in loops]}
    return _text(part, _Layouts(), forms, rows, {"own_ranks": list(part.ranks)})


def read_step(data: dict[str, Any]) -> Step:
    """Returns the step that JSON says, each value of its kind; whether it can run is not looked at.

    Raises:
        RhinoError: RHI-STEP-007 and RHI-STEP-010 where the lists of its ranks are not of one step.
    """
    meshes, read = meshes_of(data), _Read(data)
    return Step(
        meshes=meshes,
        programs=read.programs,
        slots=read.slots,
        instructions=merged([read.instructions(f"rank {rank}", "transfer", "copy") for rank in range(len(meshes))]),
        constants=read.constants,
        devices=devices_of(data),
    )


def read_part(data: dict[str, Any]) -> Part:
    """Returns the part that JSON says, as `part_text` wrote it."""
    read = _Read(data)
    return Part(
        numbers_of(data["own_ranks"]),
        meshes_of(data),
        read.programs,
        read.slots,
        read.instructions("list", "transfer"),
        read.constants,
        tuple(read.kinds("results")),
    )


def _text(
    listed: Step | Part,
    layouts: _Layouts,
    forms: Sequence[Form],
    lists: Mapping[str, Sequence[Any]],
    more: Mapping[str, Any] | None = None,
) -> str:
    """Returns an object with a row to a line; slots, constants and lists are in loops."""
    kinds: dict[Slot, int] = {}
    tables = {"slots": listed.slots, **({"results": listed.results} if isinstance(listed, Part) else {})}
    kinds_of = {name: _numbers_of(slots, kinds) for name, slots in tables.items()}
    constants = InstructionList.of([Feed(number, slot) for slot, number in listed.constants])
    rows: dict[str, Sequence[Any]] = {
        "programs": [_program_json(program, layouts) for program in listed.programs],
        "kinds": [[slot.rank, layouts.number(slot.layout)] for slot in kinds],
        **{name: _kind_rows(kind_of, list(kinds)) for name, kind_of in kinds_of.items()},
        "constants": [_row(loop) for loop in loops_of(constants)],
        "forms": [_form_json(form) for form in forms],
        **lists,
    }
    devices = listed.devices if isinstance(listed, Step) else ()
    head = json.dumps({**meshes_json(listed.meshes), **devices_json(devices), **(more or {})})
    texts = [f'"{name}": [\n{_lines(lines)}\n]' for name, lines in {"layouts": layouts.rows(), **rows}.items()]
    return ",\n".join([head[:-1], *texts]) + "}\n"


def _lines(rows: Sequence[Any]) -> str:
    return ",\n".join(map(json.dumps, rows))


class _Layouts:
    """The layouts of a step, each once."""

    def __init__(self) -> None:
        self.numbers: dict[Layout, int] = {}

    def number(self, layout: Layout) -> int:
        return self.numbers.setdefault(layout, len(self.numbers))

    def rows(self) -> list[Any]:
        return [_layout_json(layout) for layout in self.numbers]


class _Read:
    """The tables of an object that `_text` wrote."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.layouts = tuple(map(_layout, list_of(data["layouts"])))
        self.programs = tuple([_program(row, self.layouts) for row in list_of(data["programs"])])
        self.every = [Slot(number_of(rank), self.layouts[number_of(own)]) for rank, own in list_of(data["kinds"])]
        self.slots = self.kinds("slots")
        constants = _expanded((Form("feed", *SIMPLE["feed"]),), list(map(_loop, list_of(data["constants"]))))
        self.constants = tuple([(slot, number) for slot, number in constants.numbers.reshape(-1, 2).tolist()])
        self.forms = tuple(map(_form, list_of(data["forms"])))

    def kinds(self, name: str) -> SlotTable:
        """Returns the slots of that name."""
        loops = [Loop(count_of(times), numbers_of(own), (), ()) for times, own in list_of(self.data[name])]
        return SlotTable(self.every, _expanded((Form("free"),) * len(self.every), loops).form_of)

    def instructions(self, name: str, *refused: Kind) -> InstructionList[Any]:
        """Returns the list of that name, which has none of some kinds."""
        found: InstructionList[Any] = _expanded(self.forms, list(map(_loop, list_of(self.data[name]))))
        if found.is_kind(*refused).any():
            raise ValueError(f"the list of {name} has a {' or '.join(refused)}")
        return found


def _numbers_of(slots: Sequence[Slot], kinds: dict[Slot, int]) -> list[int]:
    """Returns the number of each slot among `kinds`, to which those are added that it does not have."""
    table = SlotTable.of(slots)
    numbers = [kinds.setdefault(slot, len(kinds)) for slot in table.kinds]
    return [numbers[kind] for kind in table.kind_of.tolist()]


def _kind_rows(kind_of: Sequence[int], kinds: Sequence[Slot]) -> list[Any]:
    """Returns what has no numbers, and is of one of some kinds, in loops of one rank each."""
    none, rows = np.zeros(0, dtype=np.int64), list[Any]()
    for _, own in groupby(kind_of, key=lambda kind: kinds[kind].rank):
        found: InstructionList[Any] = InstructionList((Form("free"),) * len(kinds), np.array(list(own)), none)
        rows += [[loop.times, loop.forms] for loop in loops_of(found)]
    return rows


def _list_rows(found: InstructionList[Local]) -> tuple[tuple[Form, ...], tuple[Loop, ...]]:
    return found.forms, loops_of(found)


def _numbered(loop: Loop, forms: Sequence[Form], number: Mapping[Form, int]) -> list[Any]:
    """Returns a loop as a row, whose forms have other numbers."""
    return _row(replace(loop, forms=tuple([number[forms[form]] for form in loop.forms])))


def _row(loop: Loop) -> list[Any]:
    strides = [loop.strides] if loop.times > 1 else []
    return [loop.times, loop.forms, loop.numbers, *strides]


def _loop(row: Any) -> Loop:  # noqa: ANN401 - JSON
    """Returns the loop of a row; all its numbers are from 0 and have at most 31 bits."""
    times, forms, numbers, *strides = list_of(row)
    first = numbers_of(numbers)
    found = Loop(number_of(times), numbers_of(forms), first, (0,) * len(first))
    if found.times > 1 and strides:
        found = replace(found, strides=tuple([_whole(one) for one in list_of(strides[0])]))
    ends = [one + (found.times - 1) * stride for one, stride in zip(first, found.strides, strict=True)]
    if found.times < 1 or not found.forms or any(one not in range(2**31) for one in (*first, *ends)):
        raise ValueError(f"no loop: {row!r:.200}")
    return found


def _whole(value: Any) -> int:  # noqa: ANN401 - JSON
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _expanded(forms: Sequence[Form], loops: Sequence[Loop]) -> InstructionList[Any]:
    """Returns the list that loops are. Raises ValueError where that is larger than a step is, or forms do not fit."""
    widths = [form.width for form in forms]
    for loop in loops:
        if sum(widths[form] for form in loop.forms) != len(loop.numbers):
            raise ValueError(f"a loop of {len(loop.forms)} instructions has {len(loop.numbers)} numbers")
    if sum(loop.times * (len(loop.forms) + len(loop.numbers)) for loop in loops) > _MOST_NUMBERS:
        raise ValueError(f"a list has more than {_MOST_NUMBERS} numbers")
    found: InstructionList[Any] = list_of_loops(forms, loops)
    return found


def meshes_json(meshes: Sequence[Mesh]) -> dict[str, Any]:
    """Returns the meshes of ranks as entries of an object: one mesh and how many ranks have it, or one for each."""
    axes = [[list(axis) for axis in mesh.axes] for mesh in meshes]
    return {"meshes": axes} if len(set(meshes)) > 1 else {"mesh": axes[0], "ranks": len(axes)}


def meshes_of(data: dict[str, Any]) -> tuple[Mesh, ...]:
    """Returns the meshes of ranks that an object has [ranks]."""
    if "meshes" in data:
        return tuple(map(mesh_of, list_of(data["meshes"])))
    return (mesh_of(data["mesh"]),) * count_of(data["ranks"])


def devices_json(devices: Devices) -> dict[str, Any]:
    """Returns the devices of ranks as an entry of an object; none where ranks follow one another."""
    return {"devices": [list(own) for own in devices]} if devices else {}


def devices_of(data: dict[str, Any]) -> Devices:
    """Returns the devices of ranks that an object has; nothing where ranks follow one another."""
    return tuple(map(numbers_of, list_of(data.get("devices", []))))


def mesh_of(axes: Any) -> Mesh:  # noqa: ANN401 - JSON
    """Returns a mesh by its axes: names and sizes, outermost first."""
    sizes = {text_of(name): count_of(size) for name, size in list_of(axes)}
    if len(sizes) < len(axes) or not sizes:
        raise ValueError(f"no mesh: {axes}")
    return Mesh(tuple(sizes.items()))


def _form_json(form: Form) -> list[Any]:
    if form.kind == "run":
        return [form.kind, form.program, form.phase, form.stage, form.reads, form.writes, form.others]
    return [form.kind, form.others] if form.kind == "free" else [form.kind]


def _form(row: Any) -> Form:  # noqa: ANN401 - JSON
    match list_of(row):
        case ["run", program, phase, stage, reads, writes, others]:
            if phase not in get_args(Phase):
                raise ValueError(f"no phase: {phase}")
            if others not in (0, 1):
                raise ValueError(f"a run has one micro-batch or none, not {others}")
            counts = number_of(reads), number_of(writes), number_of(others)
            return Form("run", *counts, number_of(program), phase, number_of(stage))
        case ["free", count]:
            return Form("free", others=number_of(count))
        case [kind] if kind in SIMPLE:
            return Form(kind, *SIMPLE[kind])
        case _:
            raise ValueError(f"no instruction: {row}")


def _layout_json(layout: Layout) -> list[Any]:
    row = [list(layout.shape), layout.dtype, [list(axes) for axes in layout.dims]]
    return row if layout.memory == DEVICE else [*row, layout.memory]


def _layout(data: list[Any]) -> Layout:
    shape, dtype, dims, *memory = data
    layout = Layout(
        numbers_of(shape),
        text_of(dtype),
        tuple([tuple(map(text_of, list_of(axes))) for axes in list_of(dims)]),
        *map(memory_of, memory),
    )
    axes = [axis for own in layout.dims for axis in own]
    if len(layout.dims) != len(layout.shape) or len(set(axes)) < len(axes):
        raise ValueError(f"no layout: {data}")
    return layout


def _program_json(program: StepProgram, layouts: _Layouts) -> dict[str, Any]:
    return {
        "name": program.name,
        "module": program.module,
        "inputs": [layouts.number(one) for one in program.inputs],
        "outputs": [layouts.number(one) for one in program.outputs],
        "donated": [list(pair) for pair in program.donated],
    }


def _program(data: dict[str, Any], layouts: Sequence[Layout]) -> StepProgram:
    inputs, outputs = (tuple([layouts[one] for one in numbers_of(data[side])]) for side in ("inputs", "outputs"))
    donated = tuple([(number_of(source), number_of(target)) for source, target in list_of(data["donated"])])
    return StepProgram(text_of(data["name"]), text_of(data["module"]), inputs, outputs, donated)
