"""A whole plan as a folder: the step's list of instructions, its programs, and a manifest that says what they are and binds them.

    manifest.json         what is planned, for what, arguments and results, and the hashes of every other file and of the rest of itself
    step.json             mesh, programs, slots, constants and instructions, one a line
    programs/NAME.mlir    what is compiled

The folder needs no planner to run, and is the same, byte for byte, for the same plan. It may come from somebody else: a name in it reaches
regular files inside the folder alone, and no more is read than a plan can have.

Errors    RHI-PLAN-001 not a plan, or one of another version; RHI-PLAN-002 a file is missing or altered; RHI-PLAN-003 it cannot be written.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.plan.about import check_about
from rhino.ir.plan.instructions import Run, Step
from rhino.ir.plan.step_json import list_of, number_of, numbers_of, read_step, step_text, text_of

VERSIONS: Final = (1, 2)
"""Of the format, those that are read: 2 is written where a program is a whole step, and 1 knows no such."""

STEP: Final = "step.json"
"""The file of the step."""

_FORMAT: Final = "rhino-plan"
_MANIFEST: Final = "manifest.json"
_OWN_DIGEST: Final = "manifest_sha256"

_MOST_BYTES: Final = 2**31
"""Of all files together: XLA takes a program as a protobuf, which ends there, and a plan does not hold weights."""
_MOST_JSON_BYTES: Final = 2**28
"""Of the manifest and of the step: an instruction has some hundred bytes, and no schedule has a million of them."""


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

    @property
    def is_one_program(self) -> bool:
        """Says whether a program is the whole step."""
        return any(isinstance(one, Run) and one.task.phase == "step" for one in self.step.instructions)

    def form(self) -> str:
        """Returns how the step is cut, in words."""
        parts = self.about["micro_batches"]
        taken = f", {parts} micro-batch{'es' if parts != 1 else ''}"
        if self.is_one_program:
            return f"one program on mesh {self.step.mesh}{taken if parts > 1 else ''}"
        ranks = f"{self.step.num_ranks} rank{'s' if self.step.num_ranks != 1 else ''}"
        return f"{self.about['stages']} stages on {ranks} of mesh {self.step.mesh}{taken}, {self.about['schedule']}"


def write_plan(plan: WholePlan, folder: Path) -> None:
    """Writes a plan as a folder, whole or not at all; a plan that is there is replaced.

    Raises:
        RhinoError: RHI-PLAN-003 where the folder cannot be written, or holds something else than a plan.
    """
    files = _files(plan)
    try:
        if folder.exists() and not (folder.is_dir() and ((folder / _MANIFEST).is_file() or not any(folder.iterdir()))):
            raise _unwritable(folder, "it is there, and is no plan", "give another name, or remove it")
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
        texts: dict[str, str] = {}
        room_bytes = _MOST_BYTES
        for name, digest in manifest["files"].items():
            data = _checked(folder, name, text_of(digest), min(room_bytes, _MOST_JSON_BYTES) if name == STEP else room_bytes)
            room_bytes -= len(data)
            texts[name] = data.decode()
        step, about = read_step(json.loads(texts[STEP])), manifest["about"]
        check_about(about, step)
        plan = WholePlan(
            step=step,
            modules={program.module: texts[program_file(program.module)] for program in step.programs},
            arguments=tuple(map(_boundary, list_of(manifest["arguments"]))),
            results=tuple(map(_boundary, list_of(manifest["results"]))),
            about=about,
        )
        _check_aliases(plan)
        return plan
    except (AttributeError, KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise _no_plan(folder, f"its manifest or its step is malformed: {error!r}") from None


def plan_digest(plan: WholePlan) -> str:
    """Returns a hash of all that a plan's folder would hold."""
    return digest_of(_files(plan)[_MANIFEST].encode())


def digest_of(data: bytes) -> str:
    """Returns the hash by which plans know files."""
    return hashlib.sha256(data).hexdigest()


def _files(plan: WholePlan) -> dict[str, str]:
    files = {STEP: step_text(plan.step), **{program_file(name): text for name, text in sorted(plan.modules.items())}}
    manifest = {
        "format": _FORMAT,
        "version": VERSIONS[plan.is_one_program],
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


def program_file(module: str) -> str:
    """Returns the name, within the folder, of the file of a program's module."""
    return f"programs/{module}.mlir"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        data = _read(folder, _MANIFEST, _MOST_JSON_BYTES)
    except (OSError, ValueError) as error:
        raise _no_plan(folder, f"its {_MANIFEST} cannot be read: {_reason(error)}") from None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _no_plan(folder, f"its {_MANIFEST} is no JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise _no_plan(folder, f"its {_MANIFEST} is not of a plan")
    if manifest.get("version") not in VERSIONS:
        raise _no_plan(folder, f"it is of version {manifest.get('version')}, and versions {' and '.join(map(str, VERSIONS))} are read")
    if not isinstance(manifest.get("files"), dict) or STEP not in manifest["files"]:
        raise _no_plan(folder, f"its {_MANIFEST} names no files")
    if manifest.get(_OWN_DIGEST) != _own_digest(manifest):
        raise _altered(folder / _MANIFEST, "its hash is another")
    return manifest


def _checked(folder: Path, name: str, digest: str, most_bytes: int) -> bytes:
    try:
        data = _read(folder, name, most_bytes)
    except (OSError, ValueError) as error:
        raise _altered(folder / name, f"it cannot be read: {_reason(error)}") from None
    if digest_of(data) != digest:
        raise _altered(folder / name, f"its hash is {digest_of(data)[:12]}..., expected {digest[:12]}...")
    return data


def _read(folder: Path, name: str, most_bytes: int) -> bytes:
    """Returns what the regular file `name` within a folder holds. Raises ValueError where it is no such file, or has more bytes."""
    file = folder / name
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"it is not within the plan's folder, {folder}")
    with open(file, "rb", opener=_open_at_once) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_size > most_bytes:
            raise ValueError(f"it has {status.st_size} bytes, and at most {most_bytes} are read")
        return opened.read(status.st_size)


def _open_at_once(path: str, flags: int) -> int:
    """Opens a file; to open a pipe would else wait for who writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# The manifest


def _boundary_json(one: Boundary) -> dict[str, Any]:
    kind = {"name": one.name, "shape": list(one.shape), "dtype": one.dtype}
    return kind if one.alias is None else {**kind, "alias": one.alias}


def _boundary(data: dict[str, Any]) -> Boundary:
    alias = data.get("alias")
    return Boundary(text_of(data["name"]), numbers_of(data["shape"]), text_of(data["dtype"]), None if alias is None else number_of(alias))


def _check_aliases(plan: WholePlan) -> None:
    """Raises ValueError where an argument becomes what is no result, or one of another type, or that another argument becomes."""
    taken = [one.alias for one in plan.arguments if one.alias is not None]
    for one in plan.arguments:
        if one.alias is not None:
            result = plan.results[one.alias]
            if (result.shape, result.dtype) != (one.shape, one.dtype) or taken.count(one.alias) > 1:
                raise ValueError(f"argument {one.name!r} becomes result {one.alias}")


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
