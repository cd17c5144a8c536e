"""A step as JSON, a row to a line, and back.

A value of the wrong kind is refused with a TypeError or ValueError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, assert_never, get_args

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.cluster.placement import Devices
from rhino.ir.graph.graph import DEVICE
from rhino.ir.plan.instructions import (
    Feed,
    Fetch,
    Free,
    Global,
    Layout,
    Phase,
    Run,
    Slot,
    Step,
    StepProgram,
    Task,
    Transfer,
)
from rhino.ir.plan.json_values import count_of, list_of, memory_of, number_of, numbers_of, small_of, text_of


def step_text(step: Step) -> str:
    """Returns a step as JSON."""
    programs = [json.dumps(_program_json(program)) for program in step.programs]
    slots = [json.dumps([slot.rank, *_layout_json(slot.layout)]) for slot in step.slots]
    instructions = [json.dumps(_instruction_json(one)) for one in step.instructions]
    head = json.dumps({**meshes_json(step.meshes), **devices_json(step.devices), "constants": step.constants})
    rows = {"programs": programs, "slots": slots, "instructions": instructions}
    tables = [f'"{name}": [\n{_lines(lines)}\n]' for name, lines in rows.items()]
    return ",\n".join([head[:-1], *tables]) + "}\n"


def _lines(rows: list[str]) -> str:
    return ",\n".join(rows)


def read_step(data: dict[str, Any]) -> Step:
    """Returns the step that JSON says, each value of its kind; whether it can run is not looked at."""
    return Step(
        meshes=meshes_of(data),
        programs=tuple(map(_program, list_of(data["programs"]))),
        slots=tuple([Slot(number_of(rank), _layout(layout)) for rank, *layout in list_of(data["slots"])]),
        instructions=tuple(map(_instruction, list_of(data["instructions"]))),
        constants=tuple([(number_of(slot), small_of(number)) for slot, number in list_of(data["constants"])]),
        devices=devices_of(data),
    )


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


def _instruction_json(one: Global) -> list[Any]:
    match one:
        case Run(program, inputs, outputs, task):
            return ["run", program, inputs, outputs, task.phase, task.stage, task.micro_batch]
        case Transfer(uid, source, target):
            return ["transfer", uid, source, target]
        case Free(slots):
            return ["free", *slots]
        case Feed(argument, target):
            return ["feed", argument, target]
        case Fetch(source, result):
            return ["fetch", source, result]
        case _:
            assert_never(one)


def _instruction(row: list[Any]) -> Global:
    match row:
        case ["run", program, inputs, outputs, phase, stage, micro_batch]:
            if phase not in get_args(Phase):
                raise ValueError(f"no phase: {phase}")
            task = Task(phase, number_of(stage), None if micro_batch is None else number_of(micro_batch))
            return Run(number_of(program), numbers_of(inputs), numbers_of(outputs), task)
        case ["transfer", uid, source, target]:
            return Transfer(number_of(uid), number_of(source), number_of(target))
        case ["free", *slots]:
            return Free(numbers_of(slots))
        case ["feed", argument, target]:
            return Feed(number_of(argument), number_of(target))
        case ["fetch", source, result]:
            return Fetch(number_of(source), number_of(result))
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


def _program_json(program: StepProgram) -> dict[str, Any]:
    return {
        "name": program.name,
        "module": program.module,
        "inputs": [_layout_json(one) for one in program.inputs],
        "outputs": [_layout_json(one) for one in program.outputs],
        "donated": [list(pair) for pair in program.donated],
    }


def _program(data: dict[str, Any]) -> StepProgram:
    inputs, outputs = (tuple(map(_layout, list_of(data[side]))) for side in ("inputs", "outputs"))
    donated = tuple([(number_of(source), number_of(target)) for source, target in list_of(data["donated"])])
    return StepProgram(text_of(data["name"]), text_of(data["module"]), inputs, outputs, donated)
