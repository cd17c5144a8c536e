"""A whole plan as a folder: the step's list of instructions, its programs, and a manifest that says what they are and binds them.

    manifest.json         what is planned, for what, arguments and results, and the hashes of every other file and of the rest of itself
    step.json             mesh, programs, slots, constants and instructions, one a line
    programs/NAME.mlir    what is compiled

The folder needs no planner to run, and is the same, byte for byte, for the same plan.

Errors    RHI-PLAN-001 not a plan, or one of another version; RHI-PLAN-002 a file is missing or altered; RHI-PLAN-003 it cannot be written.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, assert_never

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.instructions import Feed, Fetch, Free, Global, Layout, Program, Run, Slot, Step, Task, Transfer
from rhino.ir.mesh import Mesh

VERSION: Final = 1
_FORMAT: Final = "rhino-plan"
_MANIFEST: Final = "manifest.json"
_STEP: Final = "step.json"
_OWN_DIGEST: Final = "manifest_sha256"


@dataclass(frozen=True, slots=True)
class Boundary:
    """An argument or result of the step, as callers know it: `shape` is global, `dtype` MLIR's name.

    `alias` is the result that takes over an argument's buffer, and is that argument in the next step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias: int | None = None


@dataclass(frozen=True, slots=True)
class WholePlan:
    """A step and its programs' texts (by their names in the step), and what is known of it.

    `about` is what a reader wants to know: of what program, with which schedule, predicted times and sizes; plain values by name.
    """

    step: Step
    modules: Mapping[str, str]
    arguments: tuple[Boundary, ...]
    results: tuple[Boundary, ...]
    about: Mapping[str, Any]


def write_plan(plan: WholePlan, folder: Path) -> None:
    """Writes a plan as a folder, whole or not at all; a plan that is there is replaced.

    Raises:
        RhinoError: RHI-PLAN-003 where the folder cannot be written, or holds something else than a plan.
    """
    if folder.exists() and not (folder.is_dir() and ((folder / _MANIFEST).is_file() or not any(folder.iterdir()))):
        raise _unwritable(folder, "it is there, and is no plan", "give another name, or remove it")
    files = _files(plan)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
            new = Path(beside) / "new"
            for name, text in files.items():
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (new / name).write_text(text, encoding="utf-8")
            if folder.exists():
                folder.rename(Path(beside) / "old")  # what is interrupted between the two leaves no half of a plan
            new.rename(folder)
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error), "give a folder that can be written") from None


def read_plan(folder: Path) -> WholePlan:
    """Returns the plan in a folder, every file of it checked against the manifest.

    Raises:
        RhinoError: RHI-PLAN-001, RHI-PLAN-002.
    """
    manifest = _manifest(folder)
    try:
        texts = {name: _checked(folder, name, digest) for name, digest in manifest["files"].items()}
        return WholePlan(
            step=(step := _step(json.loads(texts[_STEP]))),
            modules={program.module: texts[_file_of(program.module)] for program in step.programs},
            arguments=tuple(map(_boundary, manifest["arguments"])),
            results=tuple(map(_boundary, manifest["results"])),
            about=manifest["about"],
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise _no_plan(folder, f"its manifest or its step is malformed: {error!r}") from None


def digest_of(data: bytes) -> str:
    """Returns the hash by which plans know files."""
    return hashlib.sha256(data).hexdigest()


def _files(plan: WholePlan) -> dict[str, str]:
    files = {_STEP: _step_text(plan.step), **{_file_of(name): text for name, text in sorted(plan.modules.items())}}
    manifest = {
        "format": _FORMAT,
        "version": VERSION,
        "about": dict(plan.about),
        "arguments": [_boundary_json(one) for one in plan.arguments],
        "results": [_boundary_json(one) for one in plan.results],
        "files": {name: digest_of(text.encode()) for name, text in files.items()},
    }
    whole = {**manifest, _OWN_DIGEST: _own_digest(manifest)}
    return {_MANIFEST: json.dumps(whole, indent=1, ensure_ascii=False) + "\n", **files}


def _own_digest(manifest: Mapping[str, Any]) -> str:
    """Returns the hash of a manifest without the hash that it holds of itself."""
    return digest_of(json.dumps({key: value for key, value in manifest.items() if key != _OWN_DIGEST}).encode())


def _file_of(module: str) -> str:
    return f"programs/{module}.mlir"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise _no_plan(folder, f"its {_MANIFEST} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _no_plan(folder, f"its {_MANIFEST} is no JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise _no_plan(folder, f"its {_MANIFEST} is not of a plan")
    if manifest.get("version") != VERSION:
        raise _no_plan(folder, f"it is of version {manifest.get('version')}, and version {VERSION} is read")
    if not isinstance(manifest.get("files"), dict) or _STEP not in manifest["files"]:
        raise _no_plan(folder, f"its {_MANIFEST} names no files")
    if manifest.get(_OWN_DIGEST) != _own_digest(manifest):
        raise _altered(folder / _MANIFEST, "its hash is another")
    return manifest


def _checked(folder: Path, name: str, digest: str) -> str:
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise _altered(folder / name, f"it cannot be read: {error.strerror}") from None
    if digest_of(data) != digest:
        raise _altered(folder / name, f"its hash is {digest_of(data)[:12]}..., expected {digest[:12]}...")
    return data.decode()


# The step


def _step_text(step: Step) -> str:
    programs = [json.dumps(_program_json(program)) for program in step.programs]
    slots = [json.dumps([slot.rank, *_layout_json(slot.layout)]) for slot in step.slots]
    instructions = [json.dumps(_instruction_json(one)) for one in step.instructions]
    head = json.dumps({"mesh": [list(axis) for axis in step.mesh.axes], "ranks": step.num_ranks, "constants": step.constants})
    rows = {"programs": programs, "slots": slots, "instructions": instructions}
    tables = [f'"{name}": [\n{_lines(lines)}\n]' for name, lines in rows.items()]
    return ",\n".join([head[:-1], *tables]) + "}\n"


def _lines(rows: list[str]) -> str:
    return ",\n".join(rows)


def _step(data: dict[str, Any]) -> Step:
    return Step(
        mesh=_mesh(data["mesh"]),
        num_ranks=int(data["ranks"]),
        programs=tuple(map(_program, data["programs"])),
        slots=tuple(Slot(int(rank), _layout(layout)) for rank, *layout in data["slots"]),
        instructions=tuple(map(_instruction, data["instructions"])),
        constants=tuple((int(slot), int(number)) for slot, number in data["constants"]),
    )


def _mesh(axes: list[Any]) -> Mesh:
    sizes = {str(name): int(size) for name, size in axes}
    if len(sizes) < len(axes) or any(size < 1 for size in sizes.values()):
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
            return Run(program, tuple(inputs), tuple(outputs), Task(phase, stage, micro_batch))
        case ["transfer", uid, source, target]:
            return Transfer(uid, source, target)
        case ["free", *slots]:
            return Free(tuple(slots))
        case ["feed", argument, target]:
            return Feed(argument, target)
        case ["fetch", source, result]:
            return Fetch(source, result)
        case _:
            raise ValueError(f"no instruction: {row}")


def _layout_json(layout: Layout) -> list[Any]:
    return [list(layout.shape), layout.dtype, [list(axes) for axes in layout.dims]]


def _layout(data: list[Any]) -> Layout:
    shape, dtype, dims = data
    return Layout(tuple(shape), dtype, tuple(map(tuple, dims)))


def _program_json(program: Program) -> dict[str, Any]:
    return {
        "name": program.name,
        "module": program.module,
        "inputs": [_layout_json(one) for one in program.inputs],
        "outputs": [_layout_json(one) for one in program.outputs],
        "donated": [list(pair) for pair in program.donated],
    }


def _program(data: dict[str, Any]) -> Program:
    inputs, outputs = (tuple(map(_layout, data[side])) for side in ("inputs", "outputs"))
    return Program(data["name"], data["module"], inputs, outputs, tuple((int(source), int(target)) for source, target in data["donated"]))


def _boundary_json(one: Boundary) -> dict[str, Any]:
    kind = {"name": one.name, "shape": list(one.shape), "dtype": one.dtype}
    return kind if one.alias is None else {**kind, "alias": one.alias}


def _boundary(data: dict[str, Any]) -> Boundary:
    return Boundary(data["name"], tuple(data["shape"]), data["dtype"], data.get("alias"))


# Errors


def _no_plan(folder: Path, why: str) -> RhinoError:
    return RhinoError(
        "RHI-PLAN-001",
        f"not a plan that can be read: {why}",
        Place(str(folder)),
        fix="write it with rhino-opt --auto-parallel --plan=FOLDER",
    )


def _altered(file: Path, why: str) -> RhinoError:
    return RhinoError("RHI-PLAN-002", f"the plan is not as it was written: {why}", Place(str(file)), fix="write the plan anew")


def _unwritable(folder: Path, why: str, fix: str) -> RhinoError:
    return RhinoError("RHI-PLAN-003", f"the plan cannot be written: {why}", Place(str(folder)), fix=fix)
