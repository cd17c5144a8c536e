"""A whole plan on disk: what is written is read again, whole, unchanged, and nothing else is taken for a plan."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path

import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.ir.instructions import Feed, Fetch, Free, Layout, Program, Run, Slot, Step, Task, Transfer
from rhino.ir.mesh import Mesh
from rhino.ir.plan_folder import Boundary, WholePlan, digest_of, read_plan, write_plan
from rhino.passes.whole_plan import costs_of
from rhino.runtime.verify import verify_plan
from rhino.tools.run_plan import signature_of

ROWS = Layout((4, 2), "f32", (("x",), ()))
PLAN = WholePlan(
    step=Step(
        mesh=Mesh((("x", 2),)),
        num_ranks=2,
        programs=(Program("f", "f", (ROWS, Layout((), "i32", ())), (ROWS,), ((0, 0),)),),
        slots=(Slot(0, ROWS), Slot(0, Layout((), "i32", ())), Slot(0, ROWS), Slot(1, ROWS)),
        instructions=(
            Feed(0, 0),
            Run(0, (0, 1), (2,), Task("forward", 0, 0)),
            Transfer(0, 2, 3),
            Free((2,)),
            Fetch(3, 0),
        ),
        constants=((1, 7),),
    ),
    modules={"f": "module {}\n"},
    arguments=(Boundary("x", (4, 2), "f32", 0),),
    results=(Boundary("y", (4, 2), "f32"),),
    about={
        **{"source": "f.mlir", "source_sha256": "0", "nonnegative_arguments": [0], "schedule": "1f1b", "cluster": "cpu8", "mesh": "x=2"},
        **{"stages": 2, "micro_batches": 1, "ranks": 2, "predicted_step_s": 0.1, "predicted_idle": [0.5, 0.5]},
        **{"predicted_peak_bytes": [96, 32], "predicted_run_s": [0.1], "predicted_temp_bytes": [0]},
        **{"link_latency_s": 1e-6, "link_bytes_per_s": 1e9},
    },
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "plan"
    write_plan(PLAN, path)
    return path


def refused(folder: Path) -> RhinoError:
    with pytest.raises(RhinoError) as caught:
        read_plan(folder)
    return caught.value


@pytest.mark.parametrize(("task", "version"), [(Task("forward", 0, 0), 1), (Task("step", 0), 2)])
def test_what_is_written_is_read_again(folder: Path, task: Task, version: int):
    """Of the second version is what the first did not know: a program that is a whole step."""
    fed, run, *rest = PLAN.step.instructions
    assert isinstance(run, Run)
    plan = replace(PLAN, step=replace(PLAN.step, instructions=(fed, replace(run, task=task), *rest)))
    write_plan(plan, folder)
    assert read_plan(folder) == plan
    assert json.loads((folder / "manifest.json").read_text())["version"] == version


def test_writing_is_the_same_byte_for_byte_and_replaces_a_plan(folder: Path):
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_plan(PLAN, folder)
    assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["plan"]  # nothing half-written beside it


@pytest.mark.parametrize("name", ["step.json", "programs/f.mlir"])
def test_a_missing_or_altered_file_is_named(folder: Path, name: str):
    file = folder / name
    file.write_text(file.read_text() + " ")
    error = refused(folder)
    assert error.id == "RHI-PLAN-002"
    assert error.place.file == str(file)
    assert "hash" in error.what
    file.unlink()
    error = refused(folder)
    assert error.id == "RHI-PLAN-002"
    assert "No such file" in error.what


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        ("", "no JSON"),
        ("[]", "not of a plan"),
        ('{"format": "rhino-plan", "version": 99}', "version 99"),
        ('{"format": "rhino-plan", "version": 1}', "names no files"),
    ],
)
def test_another_manifest_is_refused(folder: Path, manifest: str, what: str):
    (folder / "manifest.json").write_text(manifest)
    error = refused(folder)
    assert error.id == "RHI-PLAN-001"
    assert what in error.what


def test_a_folder_without_a_manifest_is_no_plan(folder: Path):
    (folder / "manifest.json").unlink()
    assert refused(folder).id == "RHI-PLAN-001"


def test_an_altered_manifest_is_named(folder: Path):
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest))  # said in another way, it is the same
    assert read_plan(folder) == PLAN
    manifest["arguments"][0]["shape"] = [4, 3]
    file.write_text(json.dumps(manifest))
    error = refused(folder)
    assert (error.id, error.place.file) == ("RHI-PLAN-002", str(file))


def forge(folder: Path, step: bytes | None = None, **entries: object) -> None:
    """Writes `entries` into the manifest, and `step` as the step, with hashes that fit."""
    manifest = {**json.loads((folder / "manifest.json").read_text()), **entries}
    if step is not None:
        (folder / "step.json").write_bytes(step)
        manifest["files"]["step.json"] = digest_of(step)
    del manifest["manifest_sha256"]
    manifest["manifest_sha256"] = digest_of(json.dumps(manifest).encode())
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_manifest_that_lacks_a_part_is_malformed(folder: Path):
    forge(folder, arguments=None)
    assert "malformed" in refused(folder).what


def test_hashes_that_are_none_are_malformed(folder: Path):
    forge(folder, files={"step.json": 3})
    assert "malformed" in refused(folder).what


@pytest.mark.parametrize("mesh", ['[["x", 0]]', '[["x", -1]]', '[["x", 2], ["x", 1]]', '[["x"]]', "null"])
def test_a_step_whose_mesh_is_none_is_malformed(folder: Path, mesh: str):
    forge(folder, (folder / "step.json").read_bytes().replace(b'[["x", 2]]', mesh.encode()))
    assert "malformed" in refused(folder).what


def test_a_step_that_is_no_text_is_malformed(folder: Path):
    forge(folder, b"\xff\xfe\x00")
    assert "malformed" in refused(folder).what


def places(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Yields the way to everything in a JSON value."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(value[key], (*at, key))


def mutated(value: object, at: tuple[object, ...], new: object) -> object:
    """Returns a JSON value with something else at a place of it, or nothing there where `new` is `...`."""
    copy = json.loads(json.dumps(value))
    *way, last = at
    inner = reduce(lambda outer, key: outer[key], way, copy)
    if new is ...:
        del inner[last]
    else:
        inner[last] = new
    return copy


def test_forged_plans_are_run_or_refused_with_a_reason(folder: Path):
    manifest, step = (json.loads((folder / name).read_text()) for name in ("manifest.json", "step.json"))
    parts = {key: manifest[key] for key in ("arguments", "results", "files", "about")}
    refused = []
    drawn = random.Random(0)
    for number, new in product(range(2), (..., None, "y", -1, 1.5, 7, [], {}, [[]], True)):
        whole = (parts, step)[number]
        for at in drawn.sample(list(places(whole)), 20):
            shutil.rmtree(folder)
            write_plan(PLAN, folder)
            forged = mutated(whole, at, new)
            try:
                forge(folder, json.dumps(forged).encode()) if number else forge(folder, **{key: forged.get(key) for key in parts})
                plan = read_plan(folder)
                verify_plan(plan)
                signature_of(plan)
                costs_of(plan)
            except RhinoError as error:
                refused.append(error.id)
    assert len(refused) > 200
    assert all(id.startswith(("RHI-PLAN-00", "RHI-STEP-00", "RHI-RUN-002")) for id in refused)


def test_no_other_folder_is_written_over(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RhinoError) as caught:
        write_plan(PLAN, tmp_path)
    assert caught.value.id == "RHI-PLAN-003"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_plan_where_nothing_can_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RhinoError) as caught:
        write_plan(PLAN, tmp_path / "file" / "plan")
    assert caught.value.id == "RHI-PLAN-003"
