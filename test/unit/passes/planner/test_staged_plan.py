"""A training step, cut in micro-batches and stages and run by a schedule, gives the answer of one device.

A bad request is refused first. More models, stages and micro-batches: `bench/correctness.py pipelines`.
"""

import dataclasses
import functools
import io
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import gpt
import pytest
from pipelines import Setting, difference, digest, plan, run
from planning import Reference, reference
from scanned_steps import LAYERS, values
from scanned_steps import STEPS as SCANNED
from scanned_steps import text as scanned_step
from traffic import splitting_cluster
from training import export_step
from zoo import GPT

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster, parse_cluster
from rhino.ir.cluster.groups import joined
from rhino.ir.graph.collective_stats import Count
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.files import load_plan, save_plan
from rhino.ir.plan.instructions import Run, Task
from rhino.ir.plan.leaves import leaf_groups, leaf_tensors
from rhino.ir.plan.plan import Request
from rhino.ir.program.collectives import module_stats
from rhino.passes.planner.staged_plan import StagedPlan
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools import opt
from rhino.tools import run as run_tool
from rhino.tools.run_processes import ended_in_order

NUM_STEPS = 3
NAME = "gpt"


@functools.cache
def step() -> bytes:
    return export_step(gpt.model(GPT)).encode()


@functools.cache
def expected() -> Reference:
    return reference(step(), NAME, NUM_STEPS)


@functools.cache
def planned(setting: Setting) -> StagedPlan:
    return plan(step(), NAME, setting)


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster on which it pays to split the tiniest tensor, and to send little."""
    file: Path = tmp_path_factory.mktemp("cluster") / "splitting.toml"
    file.write_text(splitting_cluster(1e13, 1e8), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The step and a plan of it, as the command writes them."""
    path: Path = tmp_path_factory.mktemp("plan")
    (path / "gpt.mlir").write_bytes(step())
    code, _, err = optimize(path, "--plan", str(path / "plan"))
    assert code == 0, err
    return path


def optimize(path: Path, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the planning command."""
    stdout, stderr = io.BytesIO(), io.StringIO()
    base = [
        "--auto-parallel",
        "--stages=2",
        "--micro-batches=4",
        "--mesh=1",
        "--cluster=v100x8",
        str(path / "gpt.mlir"),
    ]
    code = opt.run([*base, *options], io.BytesIO(), stdout, stderr)
    return code, stdout.getvalue().decode(), stderr.getvalue()


def launch(*words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the running command."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = run_tool.run(list(words), io.BytesIO(), stdout, stderr)
    return code, stdout.getvalue(), stderr.getvalue()


@pytest.mark.parametrize("split", [pytest.param(False, marks=pytest.mark.long), True])
def test_every_schedule_gives_the_answer_of_one_device_and_the_same_bits(split: bool):
    names = [name for name, one in SCHEDULES.items() if one.splits_backward == split]
    found = {}
    for name in names:
        made = planned(Setting(2, 4, name))
        steps = run(made, expected().inputs, NUM_STEPS)
        assert difference(made, steps, expected(), NAME).passes, name
        found[name] = digest(steps)
    assert len(set(found.values())) == 1, found


def test_gradients_are_joined_once_a_step_where_they_are_applied(splitting: str, tmp_path: Path):
    """While micro-batches run each device sums by itself; nothing larger than a scalar is reduced.

    So it is where the compiler hides no reductions: behind these devices' products they would be for nothing.
    """
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(Path(splitting).read_text(encoding="utf-8").replace('"gpu"', '"cpu"'), encoding="utf-8")
    text = export_step(
        gpt.model(dataclasses.replace(GPT, hidden=16, heads=2, ffn=32, vocab=32, seq=64, batch=16))
    ).encode()
    made = plan(text, NAME, Setting(2, 4, "1f1b", "2", str(hosts), "x=batch"))
    one_device = reference(text, NAME, NUM_STEPS)
    assert difference(made, run(made, one_device.inputs, NUM_STEPS), one_device, NAME).passes
    joined = {"apply": 0, "in micro-batches": 0}
    for part in dict.fromkeys(
        (one.program, one.task.phase) for one in made.execution.step.instructions if isinstance(one, Run)
    ):
        program, phase = made.execution.step.programs[part[0]], part[1]
        stats = module_stats(read_module(made.execution.modules[program.module].encode(), program.name, make_context()))
        counts = [stats.counts.get(kind, Count()) for kind in ("all_reduce", "reduce_scatter")]
        joined["apply" if phase == "apply" else "in micro-batches"] += sum(count.num_bytes for count in counts)
    parameters = sum(one.num_bytes for one in made.plan.arguments if ".params" in one.path)
    assert joined["apply"] == parameters, joined
    assert joined["in micro-batches"] < 100


def test_a_step_in_one_stage_is_one_program_with_its_micro_batches(folder: Path):
    """Its plan is that of --auto-shard; its programs, which a folder may hold, take what that predicts."""
    alone, asked = folder / "alone.json", folder / "asked.json"
    words = ["--micro-batches=4", "--mesh=2", "--cluster=cpu8", str(folder / "gpt.mlir")]
    assert opt.run(["--auto-shard", f"--plan={alone}", *words], io.BytesIO(), io.BytesIO(), io.StringIO()) == 0
    code, _, err = optimize(folder, "--stages=1", "--mesh=2", "--cluster=cpu8", f"--plan={asked}", "--timeline")
    assert code == 0, err
    assert "the plan is one program, which has no timeline" in err
    of_shardings = load_plan(alone)
    assert load_plan(asked) == dataclasses.replace(of_shardings, request=Request("shard", "2", 1, 4))
    found = plan((folder / "gpt.mlir").read_bytes(), "gpt", Setting(1, 4, "1f1b", mesh="2", cluster="cpu8")).plan
    together, predicted = folder / "together", of_shardings.predicted
    save_plan(found, together)
    assert [one.task for one in found.execution.step.instructions if isinstance(one, Run)] == [Task("step", 0)]
    assert found.predicted.step_s == pytest.approx(predicted.step_s)
    assert found.predicted.peak_bytes == predicted.peak_bytes
    code, out, err = launch(str(together), "--compare", str(folder / "gpt.mlir"), "--steps=2", "--timeline")
    assert code == 0, err
    assert "the results agree with the one-device program" in out
    assert "plan: one program on mesh x=2, 4 micro-batches" in out
    assert "T step" in out


def test_planning_writes_no_module_unless_asked(folder: Path):
    """What it comes to is said all the same."""
    planned = optimize(folder, "--plan", str(folder / "other"))
    assert planned[:2] == (0, "")
    assert re.match(r"2 stages on 2 ranks of mesh x=1, 4 micro-batches, 1f1b: step .*\n  rank 0: .* peak ", planned[2])
    code, out, err = optimize(folder)
    assert (code, err) == (0, planned[2])
    assert "rhino.parts" in out


def test_the_same_plan_byte_for_byte(folder: Path):
    assert optimize(folder, "--plan", str(folder / "again"))[0] == 0
    files = [path for path in (folder / "plan").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert path.read_bytes() == (folder / "again" / path.relative_to(folder / "plan")).read_bytes()


def test_options_of_the_pipeline_ask_for_a_plan_as_those_of_the_command_do(folder: Path):
    """Where they name all of it nothing is searched for, and what holds of every plan is known to the search."""
    for words, what in (
        ("stages=2 num=4 mesh=1", "2 stages on 2 ranks of mesh x=1, 4 micro-batches, 1f1b"),
        ('stages=2 num=4 pin="*.embed=[{}, {}"', "RHI-CLI-001] pin '*.embed=[{}, {}'"),
        ("stages=2 cluster=v100x8", "RHI-CLI-001] --cluster is given, and again among the options of --auto-parallel"),
    ):
        out, err = io.BytesIO(), io.StringIO()
        argv = [f"--auto-parallel={words}", "--cluster=v100x8", f"--plan={folder / 'inside'}", str(folder / "gpt.mlir")]
        opt.run(argv, io.BytesIO(), out, err)
        assert what in err.getvalue()
    assert (folder / "inside" / "step.json").read_bytes() == (folder / "plan" / "step.json").read_bytes()


def test_a_plan_runs_and_is_compared_and_traced(folder: Path):
    trace = folder / "trace.json"
    original = str(folder / "gpt.mlir")
    code, out, err = launch(
        str(folder / "plan"), "--compare", original, "--steps=2", "--timeline", "--trace", str(trace)
    )
    assert (code, err) == (0, "")
    assert "2 stages on 2 ranks of mesh x=1, 4 micro-batches, 1f1b" in out
    assert re.search(r"rank 1 \|.*% idle", out)
    assert "the results agree with the one-device program" in out
    names = {
        event["args"]["name"]
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["name"] == "process_name"
    }
    assert {"simulated", "measured"} <= names


@pytest.mark.parametrize(
    ("options", "what", "code"),
    [
        (("--budget=200KiB",), "RHI-STEP-008", 3),
        (("--stages=100000",), "RHI-STAGE-001", 1),
        (("--micro-batches=3",), "RHI-BATCH-003", 1),
        (("--schedule=gpipe", "--chunks=2", "--plan=unused"), "RHI-SCHED-001", 2),
        (("--jobs=2",), "RHI-CLI-001", 2),
        (("--mesh=auto", "--remat=0;0.5"), "RHI-REMAT-001", 2),
        (("--plan=",), "RHI-CLI-001", 2),
        (("--mesh=auto", "--plan-json=/no/such/folder/plan.json"), "there is no folder", 1),
        (("--mesh=auto", "--stages=0"), "RHI-STAGE-001", 1),
        (("--mesh=auto", "--micro-batches=-1"), "RHI-BATCH-001", 2),
        (("--mesh=auto", "--jobs=0"), "RHI-CLI-001", 2),
        (("--mesh=auto", "--candidates=0"), "RHI-CLI-001", 2),
        (("--mesh=auto", "--chunks=2", "--schedule=interleaved"), "RHI-CLI-001", 2),
    ],
)
def test_what_cannot_be_planned_is_refused(folder: Path, options: tuple[str, ...], what: str, code: int):
    got, out, err = optimize(folder, *options)
    assert (got, out) == (code, ""), err
    assert what in err
    assert not Path("unused").exists()


def test_what_fits_is_not_refused_for_its_estimate(folder: Path) -> None:
    """Rows, and what stages are taken to hold, are estimates; the instructions say what a device holds."""
    largest = load_plan(folder / "plan").predicted.largest_peak_bytes
    for share in (1.0, 1.15):
        code, _, err = optimize(folder, f"--budget={int(share * largest)}", "--plan", str(folder / "tight"))
        assert code == 0, err
        assert load_plan(folder / "tight").predicted.largest_peak_bytes <= share * largest


def test_a_schedule_that_holds_too_much_is_refused(folder: Path):
    """What 1F1B holds fits; what GPipe holds does not."""
    peaks = planned(Setting(2, 8, "1f1b")).plan.predicted.peak_bytes
    more = planned(Setting(2, 8, "gpipe")).plan.predicted.peak_bytes
    budget = f"--budget={(max(peaks) + max(more)) // 2}"
    assert max(peaks) < max(more)
    target = folder / "held"
    assert optimize(folder, "--micro-batches=8", budget, f"--plan={target}")[0] == 0
    code, _, err = optimize(folder, "--micro-batches=8", budget, f"--plan={folder / 'not'}", "--schedule=gpipe")
    assert code == 3
    assert "RHI-STEP-008" in err
    assert not (folder / "not").exists()


def test_what_a_way_back_can_make_again_takes_no_memory(folder: Path):
    """With all that the backward pass reads stashed, the first stage would hold 50 KiB more, and be refused."""
    code, _, err = optimize(folder, "--micro-batches=8", "--budget=5400000", f"--plan={folder / 'handed-on'}")
    assert code == 0, err


@pytest.mark.long
def test_an_early_stage_that_recomputes_by_itself_gives_the_answer_of_one_device():
    """Behind the search of shardings: copies have those of what they repeat, and draw the same random bits."""
    text = export_step(gpt.model(dataclasses.replace(GPT, dropout=0.1))).encode()
    free = plan(text, NAME, Setting(2, 4, "1f1b", "2"))
    limits = (("budget", "1GiB"), ("rows", "1073741824"), ("stage-rows", "180480;1GiB"))
    made = plan(text, NAME, Setting(2, 4, "1f1b", "2", remat="auto", more=limits))
    assert made.simulation.memory[0].peak_bytes < free.simulation.memory[0].peak_bytes
    fenced = [
        {name for name, text in one.execution.modules.items() if "optimization_barrier" in text} for one in (made, free)
    ]
    assert fenced[0] - fenced[1] == {"backward_0"}
    wanted = reference(text, NAME, NUM_STEPS)
    assert difference(made, run(made, wanted.inputs, NUM_STEPS), wanted, NAME).max_rel < 1e-5


def test_a_trace_that_cannot_be_written_is_refused_first(folder: Path):
    code, out, err = launch(str(folder / "plan"), f"--trace={folder / 'no' / 'trace.json'}")
    assert (code, out) == (1, "")
    assert "RHI-CLI-003" in err


def test_a_form_is_refused(folder: Path):
    code, _, err = launch(str(folder / "plan"), "--form=annotated")
    assert code == 2
    assert "--form is for modules, and the input is a plan" in err


def test_the_file_of_a_plan_is_none_of_a_module(folder: Path):
    code, _, err = launch(str(folder / "plan" / "plan.json"))
    assert code == 1
    assert "RHI-PLAN-001" in err
    assert f"to fix: give the folder, {folder / 'plan'}" in err
    target = str(folder / "one.json")
    argv = ["--auto-shard", "--cluster=cpu2", str(folder / "gpt.mlir"), f"--plan={target}"]
    assert opt.run(argv, io.BytesIO(), io.BytesIO(), io.StringIO()) == 0
    code, _, err = launch(target)
    assert code == 1
    assert "RHI-RUN-002" in err
    assert "holds no programs" in err


def test_a_request_to_end_ends_as_an_error_does():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, ended_in_order():
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_too_few_devices_are_refused(folder: Path):
    code, _, err = launch(str(folder / "plan"), "--devices=1")
    assert code == 1
    assert "RHI-RUN-004" in err


_NOTES_FILES = """
import atexit, os
from pathlib import Path
from opened_files import opened_in
found = opened_in(Path({root!r}))
atexit.register(lambda: Path({told!r}, str(os.getpid())).write_text("\\n".join(sorted(found))))
"""
"""What a process that finds this under the name that Python starts first leaves behind: the files that it opened."""


def test_two_processes_give_the_same_results(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each opens its own share, and leaves its own results."""
    assert folder.parent == tmp_path.parent
    names = {"root": str(tmp_path.parent), "told": str(tmp_path / "told")}
    (tmp_path / "told").mkdir()
    (tmp_path / "sitecustomize.py").write_text(_NOTES_FILES.format(**names))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    original = str(folder / "gpt.mlir")
    code, out, err = launch(str(folder / "plan"), "--compare", original, "--steps=2", "--processes=2")
    assert code == 0, err
    assert "the results agree with the one-device program" in out
    every = [
        {Path(name).name for name in told.read_text().splitlines() if not name.endswith((".py", ".pyc"))}
        for told in (tmp_path / "told").iterdir()
    ]
    wanted = [{f"{process}.share", f"{process}.json", *(f"{process}-{n}.part" for n in range(2))} for process in (0, 1)]
    assert sorted(every, key=sorted) == wanted


@pytest.mark.long
def test_leaves_in_pieces_are_drawn_and_compared_whole(tmp_path: Path):
    """Layers in a loop: each rank has the rows of its layers, and the command speaks of leaves."""
    path, plan = tmp_path / "scanned.mlir", str(tmp_path / "plan")
    path.write_bytes(scanned_step(SCANNED["clipped"]))
    words = ("--auto-parallel", "--stages=2", "--micro-batches=4", "--cluster=cpu4", str(path), f"--plan={plan}")
    out, err = io.BytesIO(), io.StringIO()
    assert opt.run([*words, "-o", str(tmp_path / "staged.mlir")], io.BytesIO(), out, err) == 0, err.getvalue()
    facts = load_plan(tmp_path / "plan")
    assert len(facts.arguments) > len(leaf_groups(facts.arguments)) == len(values())
    assert {one.rank for one in facts.arguments if one.rows} == {0, 1}
    leaves = [leaf for leaf in leaf_tensors(facts.arguments, facts.results)[0] if leaf.shape[:1] == (LAYERS,)]
    assert len(leaves) == 9  # three stacks of parameters and of each moment
    for more in ((), ("--processes=2",)):
        code, out_text, err_text = launch(plan, f"--compare={path}", "--steps=2", *more)
        assert code == 0, err_text
        assert "the results agree with the one-device program" in out_text


def unlike(tmp_path: Path, slower: float, smaller: float) -> str:
    """A cluster of two groups of four devices: the second are so many times slower, and hold so many times less."""
    quick = parse_cluster(splitting_cluster(1e9, 1e15))
    device, level = quick.device, dataclasses.replace(quick.levels[0], size=4)
    slow = dataclasses.replace(
        device,
        flops_per_s=tuple([(name, rate / slower) for name, rate in device.flops_per_s]),
        hbm_bytes_per_s=device.hbm_bytes_per_s / slower,
        hbm_bytes=int(device.hbm_bytes / smaller),
    )
    groups = [
        dataclasses.replace(quick, name=name, device=one, levels=(level,))
        for name, one in (("quick", device), ("slow", slow))
    ]
    cluster = joined("unlike", "quick and slow devices", groups, dataclasses.replace(level, size=2))
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "unlike.toml"
    file.write_text(cluster_to_text(cluster), encoding="utf-8")
    return str(file)


def test_slower_devices_get_less_of_the_work(tmp_path: Path):
    """Of devices a third as fast as the others, with the answer of one device. Programs are of one kind of device."""
    made = planned(Setting(2, 4, "1f1b", mesh="4", cluster=unlike(tmp_path, 3, 1)))
    busy = [made.simulation.timeline.busy_s(rank) for rank in range(2)]
    assert max(busy) < 1.2 * min(busy)
    step = made.execution.step
    runs = [one for one in step.instructions if isinstance(one, Run)]
    ranks = {(one.program, step.slots[(*one.outputs, *one.inputs)[0]].rank) for one in runs}
    assert len(ranks) == len({program for program, _ in ranks})
    steps = run(made, expected().inputs, NUM_STEPS)
    assert difference(made, steps, expected(), NAME).passes


def test_devices_with_less_memory_hold_less(folder: Path, tmp_path: Path):
    """A rank keeps within what its devices have, though others have more."""
    small = unlike(tmp_path, 1, 3.7e5)
    code, _, err = optimize(folder, "--mesh=4", f"--cluster={small}", "--plan", str(tmp_path / "plan"))
    assert code == 0, err
    peaks = load_plan(tmp_path / "plan").predicted.peak_bytes
    assert peaks[1] <= load_cluster(small).device.usable_hbm_bytes < peaks[0]


@pytest.mark.long
def test_a_rank_whose_devices_hold_too_little_is_named(folder: Path, tmp_path: Path):
    code, _, err = optimize(folder, "--mesh=4", f"--cluster={unlike(tmp_path, 1, 1e7)}")
    assert code == 3
    assert "RHI-STEP-008] rank 1 " in err
