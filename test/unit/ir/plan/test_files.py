"""A plan on disk: what is written is read again, whole, unchanged, and nothing else is taken for a plan."""

import json
import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import product
from pathlib import Path

import pytest

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan import files as plan_files
from rhino.ir.plan.files import load_plan, save_plan
from rhino.ir.plan.instructions import Feed, Fetch, Free, Layout, Run, Slot, Step, StepProgram, Task, Transfer
from rhino.ir.plan.plan import (
    Alternative,
    Annotations,
    Autotuning,
    Execution,
    Memory,
    Plan,
    Predicted,
    Request,
    Sharding,
    Source,
    Tensor,
)
from rhino.ir.plan.plan_json import digest_of
from rhino.ir.plan.verify import verify_plan
from rhino.ir.program.proven_plan import load_proven_plan
from rhino.passes.planner.diff import diff_text
from rhino.passes.planner.explain import explain_text
from rhino.passes.planner.module_facts import cluster_lines
from rhino.passes.planner.plan_rows import costs_of
from rhino.tools.plan_page import plan_page
from rhino.tools.plan_steps import signature_of

PROGRAM = """\
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%a: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %i: tensor<i32>)\
 -> tensor<4x2xf32> {
    return %a : tensor<4x2xf32>
  }
}
"""
ROWS = Layout((4, 2), "f32", (("x",), ()))
MESH = Mesh((("x", 2),))
STEP = Step(
    meshes=(MESH, MESH),
    programs=(StepProgram("f", "f", (ROWS, Layout((), "i32", ())), (ROWS,), ((0, 0),)),),
    slots=(Slot(0, ROWS), Slot(0, Layout((), "i32", ())), Slot(0, ROWS), Slot(1, ROWS)),
    instructions=(
        Feed(0, 0),
        Run(0, (0, 1), (2,), Task("forward", 0, 0)),
        Transfer(0, 2, 3),
        Free((2,)),
        Fetch(3, 0),
    ),
    constants=((1, 7),),
)
PLAN = Plan(
    source=Source("f.mlir", "0", "", {"stablehlo.add": 1}),
    cluster=cluster_lines("cpu8"),
    meshes=(MESH, MESH),
    num_stages=2,
    num_micro_batches=1,
    schedule="1f1b",
    options={"level": "3"},
    versions={"jax": "0"},
    predicted=Predicted(0.1, 0.05, (96, 32), 10**9, (0, 0)),
    arguments=(Tensor("x", "f32[4,2]", ROWS.dims, 32, 0, 0),),
    results=(Tensor("y", "f32[4,2]", ROWS.dims, 32, 1),),
    alternatives=(
        Alternative("one program", 0.2, 0.1, is_exact=True, why="slower"),
        Alternative("4 stages", None, 0.0, is_exact=False, why="too large"),
    ),
    autotuning=Autotuning("rhino", {"rhino": 3}),
    execution=Execution(STEP, {"f": PROGRAM}, (0.1,), (0,), 1e-6, 1e9, (0,)),
    request=Request("autotune", "auto", 2, 4, "gpipe", (0.0, 0.5), 10**9, "aceso", 7),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "plan"
    save_plan(PLAN, path)
    return path


def refused(folder: Path) -> RhinoError:
    with pytest.raises(RhinoError) as caught:
        load_plan(folder)
    return caught.value


@pytest.mark.parametrize(("task", "schedule"), [(Task("forward", 0, 0), "1f1b"), (Task("step", 0), "")])
def test_what_is_written_is_read_again(folder: Path, task: Task, schedule: str):
    fed, run, *rest = STEP.instructions
    assert isinstance(run, Run)
    step = replace(STEP, instructions=(fed, replace(run, task=task), *rest))
    plan = replace(PLAN, schedule=schedule, execution=replace(PLAN.execution, step=step))
    save_plan(plan, folder)
    assert load_plan(folder) == plan


def test_a_plan_says_which_devices_its_ranks_have_if_they_do_not_follow_one_another(folder: Path):
    plain = json.loads((folder / "plan.json").read_text())
    assert (plain["version"], "devices" in plain) == (5, False)
    devices = ((0, 4), (1, 5))
    step = replace(STEP, devices=devices)
    plan = replace(PLAN, devices=devices, execution=replace(PLAN.execution, step=step))
    save_plan(plan, folder)
    assert load_plan(folder) == load_proven_plan(folder) == plan
    assert "1f1b, ranks on devices 0,4; 1,5, for cpu8" in explain_text(plan)
    save_plan(replace(PLAN, devices=devices), folder)
    assert "malformed: ValueError: the step has ranks on other devices" in refused(folder).what


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        (((0, 4), (1, 4)), "rank 1 has devices 1,4, and rank 0 has device 4, too"),
        (((0, 0), (1, 4)), "rank 0 has devices 0,0, device 0 twice"),
        (((0, 4, 5), (1,)), "rank 0 has devices 0,4-5, and its mesh x=2 has 2"),
        (((0, 4),), "there are devices of 1 ranks, and the step has 2"),
        (((0, 4), (1, 8)), "a rank has device 8, and cluster 'cpu8' has devices 0 to 7"),
    ],
)
def test_ranks_on_devices_that_they_cannot_have_are_refused(folder: Path, devices, says: str):
    step = replace(STEP, devices=devices)
    save_plan(replace(PLAN, devices=devices, execution=replace(PLAN.execution, step=step)), folder)
    with pytest.raises(RhinoError, match="RHI-STEP-009") as caught:
        load_proven_plan(folder)
    assert caught.value.what == says
    assert caught.value.place.file == str(folder / "step.json")
    assert "each device once" in caught.value.fix


@pytest.mark.parametrize("side", ["arguments", "results"])
@pytest.mark.parametrize("kind", ["f32[2,4]", "i32[4,2]", "float16[4,2]"])
def test_a_step_takes_and_gives_what_its_plan_says(side: str, kind: str):
    verify_plan(PLAN, PLAN.execution)
    (tensor,) = getattr(PLAN, side)
    verify_plan(replace(PLAN, **{side: (replace(tensor, kind="float32[4,2]"),)}), PLAN.execution)
    plan = replace(PLAN, **{side: (replace(tensor, kind=kind),)})
    with pytest.raises(RhinoError, match=rf"RHI-STEP-006.*{side[:-1]} 0 of the step is f32\[4, 2\]"):
        verify_plan(plan, PLAN.execution)


def test_writing_is_the_same_byte_for_byte_and_replaces_a_plan(folder: Path):
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    save_plan(PLAN, folder)
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
    ("text", "what"),
    [
        ("", "no JSON"),
        ("[]", "no JSON object"),
        ('{"format": "other"}', "its format is not"),
        ('{"format": "rhino-plan", "version": 99}', "version 99"),
        ('{"format": "rhino-plan", "version": 1}', "an older Rhino wrote it"),
    ],
)
def test_another_file_is_refused(folder: Path, text: str, what: str):
    (folder / "plan.json").write_text(text)
    error = refused(folder)
    assert error.id == "RHI-PLAN-001"
    assert what in error.what


def test_a_folder_without_its_file_is_no_plan(folder: Path):
    (folder / "plan.json").rename(folder / "manifest.json")
    error = refused(folder)
    assert error.id == "RHI-PLAN-001"
    assert "an older Rhino wrote it" in error.what
    assert "make the plan again" in error.fix
    (folder / "manifest.json").unlink()
    error = refused(folder)
    assert error.what.endswith("it is a folder without plan.json")
    assert error.fix == "name the file or folder that a plan was saved as"


def test_a_path_where_nothing_is_asks_for_another(tmp_path: Path):
    error = refused(tmp_path / "plan.json")
    assert (error.id, error.place.file) == ("RHI-PLAN-001", str(tmp_path / "plan.json"))
    assert error.what.endswith("nothing is there")
    assert error.fix == "name the file or folder that a plan was saved as"


def test_an_altered_plan_is_named(folder: Path):
    file = folder / "plan.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data))  # said in another way, it is the same
    assert load_plan(folder) == PLAN
    data["arguments"][0][1] = "f32[4,3]"
    file.write_text(json.dumps(data))
    error = refused(folder)
    assert (error.id, error.place.file) == ("RHI-PLAN-002", str(file))


def forge(folder: Path, step: bytes | None = None, **entries: object) -> None:
    """Writes `entries` into the plan, and `step` as the step, with hashes that fit."""
    data = {**json.loads((folder / "plan.json").read_text()), **entries}
    data = {name: value for name, value in data.items() if value is not ...}
    if step is not None:
        (folder / "step.json").write_bytes(step)
        data["files"]["step.json"] = digest_of(step)
    del data["sha256"]
    data["sha256"] = digest_of(json.dumps(data).encode())
    (folder / "plan.json").write_text(json.dumps(data))


def test_what_was_asked_for_is_typed_and_may_be_missing(folder: Path):
    forge(folder, request=...)
    assert load_plan(folder) == replace(PLAN, request=Request()), "as plans were before they kept it"
    for wrong in ({"search": "all"}, {"stages": 0}, {"stages": "2"}, {"remat": [-1]}, {"budget_bytes": 1.5}, []):
        forge(folder, request=wrong)
        assert "malformed" in refused(folder).what
    text = diff_text(PLAN, replace(PLAN, request=Request(budget_bytes=2**30, strategy="aceso")))
    assert text.splitlines() == ["budget: 954 MiB -> 1 GiB", "candidates: 7 -> not asked", "search: autotune -> shard"]


def test_a_plan_that_lacks_a_part_is_malformed(folder: Path):
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
    data, step = (json.loads((folder / name).read_text()) for name in ("plan.json", "step.json"))
    parts = {key: value for key, value in data.items() if key not in ("format", "version", "sha256")}
    refused = []
    drawn = random.Random(0)
    for number, new in product(range(2), (..., None, "y", -1, 1.5, 7, [], {}, [[]], True)):
        whole = (parts, step)[number]
        for at in drawn.sample(list(places(whole)), 20):
            shutil.rmtree(folder)
            save_plan(PLAN, folder)
            forged = mutated(whole, at, new)
            try:
                forge(folder, json.dumps(forged).encode()) if number else forge(
                    folder, **{key: forged.get(key, ...) for key in parts}
                )
                plan = load_proven_plan(folder)
                signature_of(plan)
                costs_of(plan.execution)
                explain_text(plan, 5)
                diff_text(PLAN, plan)
                plan_page(plan)
            except RhinoError as error:
                refused.append(error.id)
    assert len(refused) > 200
    assert all(id.startswith(("RHI-PLAN-00", "RHI-STEP-0", "RHI-RUN-002", "RHI-CLUSTER-002")) for id in refused)


def altered(folder: Path, drawn: random.Random) -> Iterator[str]:
    """Alters a new copy of the plan in one way after another, with hashes that fit; yields each in words."""

    def start() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        save_plan(PLAN, folder)

    program, step = folder / "programs" / "f.mlir", folder / "step.json"
    for name in (
        "../secret",
        "programs/../../secret",
        str(folder.parent / "secret"),
        "/dev/zero",
        "/dev/stdin",
        "/etc/passwd",
        "programs",
        ".",
    ):
        start()
        forge(folder, files={**hashes(folder), name: digest_of(b"secret")})
        yield f"the plan names {name}"
    for name in ("\0", "f" * 300, "f/" * 3000, "\ud800", "", "step.json/"):
        start()
        forge(folder, files={**hashes(folder), name: digest_of(b"")})
        yield f"the plan names {name!r}"
    for file, target in product(
        (program, step, folder / "plan.json"), ("../secret", "/dev/zero", "/etc/passwd", "loop", "pipe", "hole")
    ):
        start()
        data = file.read_bytes()
        (folder.parent / "secret").write_bytes(data)  # what it points to has the right bytes
        file.unlink()
        match target:
            case "loop":
                file.symlink_to(file.name)
            case "pipe":
                os.mkfifo(file)
            case "hole":
                file.touch()
                os.truncate(file, 2**40)
            case _:
                file.symlink_to(folder.parent / "secret" if target == "../secret" else target)
        yield f"{file.name} is {target}"
    start()
    shutil.move(folder / "programs", folder.parent / "programs")
    (folder / "programs").symlink_to(folder.parent / "programs", target_is_directory=True)
    yield "the folder of programs is elsewhere"
    shutil.rmtree(folder.parent / "programs")
    texts = {
        "empty": "",
        "blank": "  \n",
        "no function": "module {}\n",
        "no body": "module { func.func private @main(tensor<4x2xf32>) }",
        "another's": PROGRAM.replace("4x2xf32", "2x4xf32"),
        "another type": PROGRAM.replace("4x2xf32", "4x2xbf16"),
        "an argument less": PROGRAM.replace(", %i: tensor<i32>", ""),
        "a result less": PROGRAM.replace("-> tensor<4x2xf32>", "").replace("return %a : tensor<4x2xf32>", "return"),
        "another mesh": PROGRAM.replace('"x"=2', '"x"=4'),
        "a token": PROGRAM.replace("%i: tensor<i32>", "%i: !stablehlo.token"),
        "waits": PROGRAM.replace(
            "return %a",
            '%t = "stablehlo.create_token"() : () -> !stablehlo.token\n%b:2 = "stablehlo.recv"(%t) '
            "{channel_handle = #stablehlo.channel_handle<handle = 0, type = 3>} "
            ": (!stablehlo.token) -> (tensor<4x2xf32>, !stablehlo.token)\nreturn %b#0",
        ),
        **{f"its first {size} characters": PROGRAM[:size] for size in drawn.sample(range(1, len(PROGRAM) - 4), 20)},
    }
    for words, text in texts.items():
        start()
        program.write_text(text)
        forge(folder, files=hashes(folder))
        yield f"the program is {words}"
    for file in (program, step, folder / "plan.json"):
        for at in drawn.sample(range(file.stat().st_size), 20):
            start()
            data = bytearray(file.read_bytes())
            data[at] ^= 1 << drawn.randrange(1, 7)
            file.write_bytes(data)
            yield f"a bit of {file.name} at {at} is another"


def hashes(folder: Path) -> dict[str, str]:
    """What the plan should say of the files."""
    return {name: digest_of((folder / name).read_bytes()) for name in ("step.json", "programs/f.mlir")}


def outcome(folder: Path) -> str:
    """Why a folder is refused, nothing where it is read as the plan that was written."""
    try:
        plan = load_proven_plan(folder)
    except RhinoError as error:
        return error.render()
    return "" if plan == PLAN else "it is another plan"


def test_each_altered_folder_is_refused_and_named(folder: Path):
    found = {what: outcome(folder) for what in altered(folder, random.Random(0))}
    assert len(found) > 100
    for what, message in found.items():
        if not (message == "" and "plan.json at" in what):  # white space, say
            assert re.search(r"^\S+: error: \[RHI-(PLAN-00[12]|READ-00[1-5]|RUN-00[16])\] ", message), (what, message)
            assert str(folder) in message, (what, message)


def test_no_more_bytes_are_read_than_a_plan_has(folder: Path, monkeypatch: pytest.MonkeyPatch):
    sizes = [(folder / name).stat().st_size for name in hashes(folder)]
    monkeypatch.setattr(plan_files, "_MOST_BYTES", sum(sizes))
    assert load_plan(folder) == PLAN
    monkeypatch.setattr(plan_files, "_MOST_BYTES", sum(sizes) - 1)
    assert f"it has {sizes[1]} bytes, and at most {sizes[1] - 1} are read" in refused(folder).what


def test_no_other_folder_is_written_over(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RhinoError) as caught:
        save_plan(PLAN, tmp_path)
    assert caught.value.id == "RHI-PLAN-003"
    assert (tmp_path / "notes.txt").read_text() == "mine"


def one_program() -> Plan:
    """A plan that is one file."""
    sharding = Sharding("annotated", 0.0, 0.0, (), (), Memory(1, 0, "", ((0, 0),), ()), Annotations((), ()))
    argument, result = replace(PLAN.arguments[0], rank=0), replace(PLAN.results[0], rank=0)
    one = replace(PLAN, meshes=(MESH,), num_stages=1, schedule="", execution=None, sharding=sharding)
    return replace(one, arguments=(argument,), results=(result,), predicted=Predicted(0.1, 0.0, (96,), 10**9, (0,)))


def renamed(name: str) -> Plan:
    """The plan with its program under another name."""
    step = replace(STEP, programs=(replace(STEP.programs[0], module=name),))
    return replace(PLAN, execution=replace(PLAN.execution, step=step, modules={name: PROGRAM}))


def test_files_of_the_user_in_a_plans_folder_stay(folder: Path):
    (folder / "notes.txt").write_text("mine")
    (folder / "programs" / "mine.mlir").write_text("mine")
    for plan in (PLAN, renamed("g"), PLAN):
        save_plan(plan, folder)
        assert load_plan(folder) == plan
        (program,) = plan.execution.modules
        own = ["plan.json", f"programs/{program}.mlir", "step.json"]
        found = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
        assert found == sorted([*own, "notes.txt", "programs/mine.mlir"])
    with pytest.raises(RhinoError, match=r"RHI-PLAN-003.*programs/mine.mlir exists, and is not a file of the plan"):
        save_plan(renamed("mine"), folder)
    assert (folder / "programs" / "mine.mlir").read_text() == "mine"
    assert load_plan(folder) == PLAN


def test_what_a_plan_lists_beside_its_programs_is_not_removed(folder: Path):
    (folder.parent / "secret.mlir").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    names = ("../secret.mlir", "programs/../../secret.mlir", "notes.txt", "\0", "")
    forge(folder, files={**hashes(folder), **dict.fromkeys(names, "")})
    save_plan(renamed("g"), folder)
    assert load_plan(folder) == renamed("g")
    assert (folder.parent / "secret.mlir").read_text() == (folder / "notes.txt").read_text() == "mine"


def test_the_file_of_another_plan_is_refused_in_a_folder(folder: Path):
    save_plan(replace(PLAN, execution=replace(PLAN.execution, step=replace(STEP, constants=((1, 8),)))), folder / "b")
    shutil.copy(folder / "b" / "plan.json", folder / "plan.json")
    assert refused(folder).id == "RHI-PLAN-002"
    save_plan(PLAN, folder)
    save_plan(one_program(), folder / "one.json")
    shutil.copy(folder / "one.json", folder / "plan.json")
    error = refused(folder)
    assert (error.id, error.place.file) == ("RHI-PLAN-002", str(folder / "plan.json"))
    assert "it is of one program, and step.json beside it is of a plan in stages" in error.what


def test_a_plan_of_one_program_is_not_written_into_one_in_stages(folder: Path):
    with pytest.raises(RhinoError, match=r"RHI-PLAN-003.*its folder is a plan in stages"):
        save_plan(one_program(), folder / "plan.json")
    assert load_plan(folder) == PLAN


def test_the_file_of_a_plan_in_stages_asks_for_its_folder(folder: Path, tmp_path: Path):
    error = refused(folder / "plan.json")
    assert error.id == "RHI-PLAN-001"
    assert "it is the file of a plan in stages, which is read from its folder" in error.what
    assert error.fix == f"give the folder, {folder}"
    shutil.copy(folder / "plan.json", tmp_path / "alone.json")
    error = refused(tmp_path / "alone.json")
    assert "step.json and programs/ are not beside it" in error.what
    assert "copy the whole folder" in error.fix


def test_a_plan_where_nothing_can_be_written_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RhinoError) as caught:
        save_plan(PLAN, tmp_path / "file" / "plan")
    assert caught.value.id == "RHI-PLAN-003"


@pytest.mark.parametrize("name", ["manifest.json", "plan.json"])
def test_a_folder_with_a_file_of_that_name_that_is_no_plans_is_not_replaced(tmp_path: Path, name: str):
    (tmp_path / name).write_text('{"name": "a web application"}')
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(RhinoError, match=r"RHI-PLAN-003.*it exists, and is not a plan"):
        save_plan(PLAN, tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_a_file_that_is_no_plan_is_not_written_over(tmp_path: Path):
    one = one_program()
    file = tmp_path / "step.mlir"
    file.write_text("module {}")
    with pytest.raises(RhinoError, match=r"RHI-PLAN-003.*it exists, and is not a plan"):
        save_plan(one, file)
    assert file.read_text() == "module {}"
    save_plan(one, tmp_path / "plan.json")
    save_plan(one, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == one
    with pytest.raises(RhinoError, match=r"RHI-PLAN-003.*it is a file, and the plan is a folder"):
        save_plan(PLAN, tmp_path / "plan.json")
