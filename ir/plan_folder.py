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
from typing import Any, Final

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.instructions import Run, Step
from rhino.ir.step_json import amount_of, count_of, list_of, number_of, numbers_of, read_step, step_text, text_of

VERSIONS: Final = (1, 2)
"""Of the format, those that are read: 2 is written where a program is a whole step, and 1 knows no such."""

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
        texts = {name: _checked(folder, text_of(name), text_of(digest)) for name, digest in manifest["files"].items()}
        step = read_step(json.loads(texts[_STEP]))
        plan = WholePlan(
            step=step,
            modules={program.module: texts[_file_of(program.module)] for program in step.programs},
            arguments=tuple(map(_boundary, list_of(manifest["arguments"]))),
            results=tuple(map(_boundary, list_of(manifest["results"]))),
            about=_about(manifest["about"], step),
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
    files = {_STEP: step_text(plan.step), **{_file_of(name): text for name, text in sorted(plan.modules.items())}}
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


def _file_of(module: str) -> str:
    return f"programs/{module}.mlir"


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except OSError as error:
        raise _no_plan(folder, f"its {_MANIFEST} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _no_plan(folder, f"its {_MANIFEST} is no JSON: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise _no_plan(folder, f"its {_MANIFEST} is not of a plan")
    if manifest.get("version") not in VERSIONS:
        raise _no_plan(folder, f"it is of version {manifest.get('version')}, and versions {' and '.join(map(str, VERSIONS))} are read")
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


# What is known of it


def _about(about: dict[str, Any], step: Step) -> dict[str, Any]:
    """Returns what is known of a plan, once what every plan says is there, and of its kind."""
    for name in ("schedule", "cluster", "mesh"):
        text_of(about[name])
    for name in ("stages", "micro_batches", "ranks"):
        count_of(about[name])
    for name in ("predicted_step_s", "link_latency_s", "link_bytes_per_s"):
        amount_of(about[name])
    for name, count in (
        ("predicted_idle", step.num_ranks),
        ("predicted_peak_bytes", step.num_ranks),
        ("predicted_run_s", len(step.programs)),
        ("predicted_temp_bytes", len(step.programs)),
    ):
        if len([amount_of(one) for one in list_of(about[name])]) != count:
            raise ValueError(f"{name} are {len(about[name])}, expected {count}")
    for name in ("source", "source_sha256"):
        text_of(about.get(name, ""))
    numbers_of(about.get("nonnegative_arguments", []))
    return about


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
