"""Plans on disk: one by its shardings is a file, one with programs a folder in which that file is `plan.json`.

    plan.json             the plan (`rhino.ir.plan.plan_json`), with the hash of every other file
    step.json             mesh, programs, slots, constants and the list of each rank (`rhino.ir.plan.step_json`)
    programs/NAME.mlir    what is compiled

A plan needs no planner to run, and is the same, byte for byte, for the same plan. It may come from somebody else: a
name in it reaches regular files inside the folder alone, and no more is read than a plan can have.

Errors    RHI-PLAN-001 not a plan, or one of another version; RHI-PLAN-002 a file is missing or altered; RHI-PLAN-003 it
          cannot be written; RHI-STEP-007 or RHI-STEP-010 the lists of its ranks are not of one step.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.plan.instructions import Step
from rhino.ir.plan.json_values import table_of, text_of
from rhino.ir.plan.plan import Plan
from rhino.ir.plan.plan_json import digest_of, no_plan, plan_data, plan_of, plan_text
from rhino.ir.plan.step_json import read_step, step_text

PLAN: Final = "plan.json"
"""The file of the plan, within the folder of one with programs."""

STEP: Final = "step.json"
"""The file of the step."""

_OLD: Final = "manifest.json"
"""What folders of versions 1 and 2 had for a plan's file."""

_BEGIN: Final = re.compile(rb'\s*\{\s*"format":\s*"rhino-(spmd-)?plan"')
"""How the file of a plan begins, of any version."""

_PROGRAM: Final = re.compile(r"programs/[^/\0]+\.mlir")
"""What `program_file` gives."""

_MOST_BYTES: Final = 2**31
"""Of all files together: XLA takes a program as a protobuf, which ends there, and a plan does not hold weights."""
_MOST_JSON_BYTES: Final = 2**28
"""Of the plan and of the step: an instruction has some hundred bytes, and no schedule has a million of them."""


def save_plan(plan: Plan, path: Path) -> None:
    """Writes a plan as a file, or one with programs as a folder. A plan that is there is replaced.

    Other files in its folder stay. What was interrupted is no plan that loads.

    Raises:
        RhinoError: RHI-PLAN-003 where it cannot be written, or something else than a plan is there.
    """
    files = _texts(plan)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if plan.execution:
            _write_folder(files, path)
        else:
            _write_file(files[PLAN], path)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error), "name a place that can be written") from None


def load_plan(path: Path) -> Plan:
    """Returns the plan in a file or a folder, every file of it checked against its hash.

    Raises RHI-PLAN-001, RHI-PLAN-002; RHI-STEP-007, RHI-STEP-010 where the lists of ranks are not of one step.
    """
    is_folder = os.path.isdir(path)
    file = path / PLAN if is_folder else Path(os.path.realpath(path))
    try:
        text = _read(file.parent, file.name, _MOST_JSON_BYTES).decode()
    except (OSError, ValueError) as error:
        if is_folder and (path / _OLD).exists():
            raise no_plan(str(path), "an older Rhino wrote it") from None
        if isinstance(error, FileNotFoundError):
            what = f"it is a folder without {PLAN}" if is_folder else "nothing is there"
            raise replace(no_plan(str(path), what), fix="name the file or folder that a plan was saved as") from None
        raise no_plan(str(file), f"it cannot be read: {_reason(error)}") from None
    data = plan_data(text, str(file))
    if not is_folder and data.get("files"):
        raise _of_folder(path, file.parent)
    if is_folder and STEP not in (data.get("files") or ()) and (path / STEP).exists():
        raise _altered(file, f"it is of one program, and {STEP} beside it is of a plan in stages")
    try:
        texts = _checked_files(path, table_of(data["files"]))
        step = _step(path, texts[STEP]) if STEP in texts else None
        modules = {one.module: texts[program_file(one.module)] for one in step.programs} if step else {}
        return plan_of(data, step, modules)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise no_plan(str(path), f"it is malformed: {type(error).__name__}: {error}") from None


def _step(path: Path, text: str) -> Step:
    try:
        return read_step(json.loads(text))
    except RhinoError as error:
        raise replace(error, place=Place(str(path / STEP))) from None


def begins_plan(file: Path) -> bool:
    """Says whether a file is that of a plan, of any version, as far as its first characters say."""
    with suppress(OSError):
        if file.is_file():
            with file.open("rb") as opened:
                return _BEGIN.match(opened.read(200)) is not None
    return False


def program_file(module: str) -> str:
    """Returns the name, within the folder, of the file of a program's module."""
    return f"programs/{module}.mlir"


def _texts(plan: Plan) -> dict[str, str]:
    """Returns the files of a plan by name, its own first."""
    others: dict[str, str] = {}
    if plan.execution:
        programs = {program_file(name): text for name, text in sorted(plan.execution.modules.items())}
        others = {STEP: step_text(plan.execution.step), **programs}
    return {PLAN: plan_text(plan, {name: digest_of(text.encode()) for name, text in others.items()}), **others}


def _write_file(text: str, path: Path) -> None:
    if path.is_dir():
        raise _unwritable(path, "it is a folder, and the plan is one file", "name a file, as plan.json")
    if path.is_file() and path.stat().st_size and not begins_plan(path):
        raise _unwritable(path, "it exists, and is not a plan", "give another name, or remove it")
    if path.name == PLAN and path.with_name(STEP).exists():
        raise _unwritable(path, "its folder is a plan in stages", "give another folder, or remove that plan")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_folder(files: Mapping[str, str], folder: Path) -> None:
    if folder.is_file():
        raise _unwritable(folder, "it is a file, and the plan is a folder", "give another name, or remove it")
    if folder.exists() and not (folder.is_dir() and (_is_plan(folder) or not any(folder.iterdir()))):
        raise _unwritable(folder, "it exists, and is not a plan", "give another name, or remove it")
    before = _own_files(folder)
    for name in files:
        if name not in before and ((folder / name).exists() or not _is_within(folder, name)):
            fix = "give another name, or move that file"
            raise _unwritable(folder, f"{name} exists, and is not a file of the plan that is replaced", fix)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as beside:
        new = Path(beside) / "new"
        for name, text in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_text(text, encoding="utf-8")
        if not before:
            new.rename(folder)
            return
        for name in files:  # the plan first: while others are of the plan before, their hashes are not those it holds
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(folder / name)
    for name in before:
        if name not in files:
            _remove(folder / name)


def _own_files(folder: Path) -> tuple[str, ...]:
    """Returns the files, by name within a folder, that the plan in it is made of; none where there is no plan."""
    own = [name for name in (PLAN, _OLD) if begins_plan(folder / name)]
    if not own:
        return ()
    try:
        listed = table_of(json.loads((folder / own[0]).read_bytes())["files"])
    except (KeyError, TypeError, ValueError, RecursionError):
        listed = {}
    found = (*own, STEP, *filter(_PROGRAM.fullmatch, listed))
    return tuple(name for name in found if _is_within(folder, name) and (folder / name).is_file())


def _remove(file: Path) -> None:
    """Removes a file, and its folder where nothing else is in it."""
    file.unlink()
    with suppress(OSError):
        file.parent.rmdir()


def _is_plan(folder: Path) -> bool:
    """Says whether a folder holds a plan of this version or an older one: what is not Rhino's is never replaced."""
    return any(begins_plan(folder / name) for name in (PLAN, _OLD))


def _checked_files(folder: Path, names: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts of files by name, each as its hash says. Raises RHI-PLAN-002."""
    texts: dict[str, str] = {}
    room_bytes = _MOST_BYTES
    for name, digest in names.items():
        data = _checked(
            folder, name, text_of(digest), min(room_bytes, _MOST_JSON_BYTES) if name == STEP else room_bytes
        )
        room_bytes -= len(data)
        texts[name] = data.decode()
    return texts


def _checked(folder: Path, name: str, digest: str, most_bytes: int) -> bytes:
    try:
        data = _read(folder, name, most_bytes)
    except (OSError, ValueError) as error:
        raise _altered(folder / name, f"it cannot be read: {_reason(error)}") from None
    if digest_of(data) != digest:
        raise _altered(folder / name, f"its hash is {digest_of(data)[:12]}..., expected {digest[:12]}...")
    return data


def _read(folder: Path, name: str, most_bytes: int) -> bytes:
    """Returns what the regular file `name` within a folder holds.

    Raises ValueError where it is no such file, or has more bytes.
    """
    file = folder / name
    if not _is_within(folder, name):
        raise ValueError(f"it is not within the plan's folder, {folder}")
    with open(file, "rb", opener=_open_at_once) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_size > most_bytes:
            raise ValueError(f"it has {status.st_size} bytes, and at most {most_bytes} are read")
        return opened.read(status.st_size)


def _is_within(folder: Path, name: str) -> bool:
    return Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder))


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file; to open a pipe would else wait for who writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _of_folder(path: Path, folder: Path) -> RhinoError:
    """Returns what to say of the file of a plan in stages that is given in place of its folder."""
    what = "it is the file of a plan in stages, which is read from its folder"
    if (folder / STEP).exists():
        return replace(no_plan(str(path), what), fix=f"give the folder, {folder}")
    missing = f"{what}, and {STEP} and programs/ are not beside it"
    return replace(no_plan(str(path), missing), fix="copy the whole folder that the plan was saved as, and give that")


def _altered(file: Path, why: str) -> RhinoError:
    what = f"the plan is not as it was written: {why}"
    return RhinoError("RHI-PLAN-002", what, Place(str(file)), fix="write the plan again")


def _unwritable(path: Path, why: str, fix: str) -> RhinoError:
    return RhinoError("RHI-PLAN-003", f"the plan cannot be written: {why}", Place(str(path)), fix=fix)
