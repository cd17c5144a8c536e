"""Every measurement of bench/ answers on a small case.

It writes rows to stdout and the same to JSON, and has no fault but in speed.
"""

import gc
import json

import aot
import correctness
import executor
import jax
import memory
import one_device
import plans
import pytest
import report
import scale
import search
import seconds
import time_exports
import traffic
from long_cases import one_in

from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import entry_function, read_module

GPT = ["--layers=2", "--forms=unrolled", "--hidden=64", "--seq=32", "--vocab=128"]
NAMED = "--models=gpt: gpt --hidden=64 --heads=2 --ffn=128 --layers=2 --batch=8"
STAGES = [NAMED, "--stages=2", "--micro-batches=2"]
SMALL_GPT = ["--layers=1", "--hidden=64", "--seq=32"]
LONG = pytest.mark.long

CASES = [
    (search, "time", GPT, 1),
    (search, "quality", ["--models=gpt", "--targets=v100x8:8", "--experts=zero-1"], 1),
    (search, "loops", ["--models=gpt-2", "--targets=v100x8:8"], 1),
    pytest.param(search, "kernels", [], 7, marks=LONG),
    (search, "structure", [NAMED], 1),
    (memory, None, ["--models=mlp", "--meshes=8"], 1),
    (aot, "models", ["--models=mlp", "--clusters=cpu8", "--compiles=2"], 2),
    (aot, "others", ["--programs=clusters", "--clusters=cpu8"], 1),
    (traffic, "models", ["--models=mlp"], 5),
    (traffic, "pad", ["--layers=1", "--hidden=256", "--seq=64", "--vocab=50257"], 3),
    pytest.param(traffic, "strides", [*SMALL_GPT, "--models=gpt,grouped-joined"], 2, marks=LONG),
    (plans, "stages", STAGES, 1),
    (scale, None, ["--stages=2", "--micro-batches=4,8", "--hosts=2,4"], 4),
    (plans, "stage-times", [*STAGES, "--tolerances=0.1"], 1),
    pytest.param(plans, "precision", ["--models=small-gpt", "--clusters=h100x8"], 1, marks=LONG),
    (plans, "offload", ["--models=small-gpt"], 1),
    (
        plans,
        "unlike",
        ["--models=gpt-tiny", "--stages=2", "--devices=1", "--micro-batches=2", "--pairs=v100x8+p100x8"],
        1,
    ),
    pytest.param(plans, "uneven", ["--models=mlp", "--micro-batches=8"], 1, marks=LONG),
    (plans, "ranks", ["--cases=mlp-100k"], 1),
    (plans, "patterns", ["--clusters=v100x8,v100x8x2"], 2),
    pytest.param(plans, "papers", ["--cases=wr-1.3b", "--jobs=1"], 1, marks=LONG),
    pytest.param(plans, "tighten", ["--case=wr-2.6b", "--devices=2", "--steps=1", "--jobs=1"], 1, marks=LONG),
    pytest.param(plans, "strategies", ["--cases=wide-resnet"], 4, marks=LONG),
    pytest.param(plans, "every", ["--models=mlp", "--cluster=cpu2", "--micro-batches=1", "--jobs=1"], 3, marks=LONG),
    (correctness, "plans", ["--models=mlp", "--meshes=2", "--seeds=0:1", "--moods=near"], 1),
    (correctness, "programs", ["--seeds=0:1"], 1),
    pytest.param(correctness, "budgets", ["--seeds=0:1"], 1, marks=LONG),
    pytest.param(correctness, "rewrites", ["--models=mlp", "--ways=joined,staged-amp"], 2, marks=LONG),
    (correctness, "forms", ["--seeds=0:1"], 1),
    (correctness, "oracle", ["--seeds=1:4", "--budgets"], 1),
    pytest.param(correctness, "pipelines", ["--models=gpt-staged", "--stages=2", "--micro-batches=4"], 6, marks=LONG),
    pytest.param(executor, "overlap", ["--repeats=1"], 9, marks=LONG),
]


@pytest.fixture(autouse=True)
def as_before():
    """Commands may leave the process as suits them."""
    optimizes = jax.config.read("jax_disable_most_optimizations")
    yield
    jax.config.update("jax_disable_most_optimizations", optimizes)
    gc.enable()


@pytest.mark.parametrize(("command", "question", "words", "num_rows"), one_in(2, CASES))
def test_a_measurement_answers_on_a_small_case(command, question, words, num_rows, tmp_path, capsys):
    file = tmp_path / "figures.json"
    questions = command.QUESTION if question is None else command.QUESTIONS
    argv = [*([question] if question else []), *words, f"--json={file}"]
    assert report.run(command.__doc__, questions, argv) == 0
    assert len(json.loads(file.read_text())["records"]) == num_rows
    assert capsys.readouterr().out.startswith("| ")


def test_measurements_of_host_time_answer(capsys):
    """Whether they meet their targets depends on what else the machine does."""
    for argv in (["dispatch", "--repeats=3", "--parts=run"], ["calls", "--calls=3"]):
        assert report.run("", executor.QUESTIONS, argv) in (0, 1)
        assert capsys.readouterr().out.startswith("| ")


@LONG
def test_shares_by_speed_are_timed(capsys):
    """Whether they are faster depends on what else the machine does."""
    argv = ["uneven", "--models=mlp", "--micro-batches=4", "--rounds=1", "--profile-rounds=1"]
    assert report.run("", executor.QUESTIONS, argv) in (0, 1)
    assert "off those of one device" not in capsys.readouterr().err


@LONG
def test_predicted_seconds_are_compared_with_measured_ones(tmp_path):
    argv = [
        "--devices=2",
        "--pairs=mlp 2",
        "--rounds=1",
        f"--profiles={tmp_path}",
        f"--json={tmp_path / 'figures.json'}",
    ]
    assert report.run("", seconds.QUESTION, argv) == 1, "there are fewer pairs than are wanted"
    assert len(json.loads((tmp_path / "figures.json").read_text())["records"]) == 2


@pytest.mark.long
def test_programs_of_one_device_are_written_timed_and_compared(tmp_path, capsys):
    folder, out = tmp_path / "programs", tmp_path / "measured.json"
    words = ["write", "--models=mlp", "--cluster=cpu8", "--compiles=2", f"--folder={folder}"]
    assert report.run(one_device.__doc__, one_device.QUESTIONS, words) == 0
    assert time_exports.main([str(folder), str(out)]) == 0
    capsys.readouterr()
    words = ["read", f"--folder={folder}", f"--measured={out}"]
    assert report.run(one_device.__doc__, one_device.QUESTIONS, words) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| mlp |")]
    assert len(rows) == 3  # two plans, and the model's line
    programs = json.loads((folder / "programs.json").read_text(encoding="utf-8"))
    measured = json.loads(out.read_text(encoding="utf-8"))["programs"]
    for one in programs:
        assert one["aliases"]
        assert measured[one["file"]]["peak_bytes"] == pytest.approx(one["compiled_bytes"], rel=0.05)


@pytest.mark.parametrize(
    ("op", "shape", "becomes"),
    [
        ("all_gather", "4x8", "concatenate"),
        ("all_reduce", "2x8", ""),
        ("reduce_scatter", "1x8", "slice"),
        ("all_to_all", "4x4", "slice slice concatenate"),
        ("collective_permute", "2x8", ""),
    ],
)
def test_what_one_device_does_in_place_of_a_collective(op, shape, becomes):
    group = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    attributes = {
        "all_gather": f"all_gather_dim = 0 : i64, {group}",
        "all_reduce": group,
        "reduce_scatter": f"scatter_dimension = 0 : i64, {group}",
        "all_to_all": f"split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, {group}",
        "collective_permute": "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>",
    }[op]
    adds = """ ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32> })"""
    body = adds if op in ("all_reduce", "reduce_scatter") else ""
    text = f"""func.func @main(%x: tensor<2x8xf32>) -> tensor<{shape}xf32> {{
      %y = "stablehlo.{op}"(%x) <{{{attributes}}}>{body} : (tensor<2x8xf32>) -> tensor<{shape}xf32>
      return %y : tensor<{shape}xf32>
    }}"""
    module = read_module(text.encode(), op, make_context())
    one_device.replace_collectives(module)
    assert module.operation.verify()
    names = [one.operation.name.removeprefix("stablehlo.") for one in entry_function(module).entry_block.operations]
    barriers = ["optimization_barrier"] * (1 + (op == "reduce_scatter"))
    assert sorted(names) == sorted([*becomes.split(), *barriers, "func.return"])


def test_a_fault_makes_the_exit_code_one(capsys):
    wrong = report.Question(
        "", lambda _: [{"n": 1}, {"n": None}], {"n": report.key("n")}, faults=lambda rows: [f"{len(rows)} rows"]
    )
    assert report.run("", wrong, []) == 1
    said = capsys.readouterr()
    assert said.out == "| n |\n| --- |\n| 1 |\n|  |\n"
    assert "WRONG 2 rows" in said.err


def test_a_switch_says_whether_a_fault_is_an_error(capsys):
    switch = report.option("--check", False, "whether")
    wrong = report.Question("", lambda _: [{"n": 1}], {"n": report.key("n")}, [switch], faults=lambda _: ["it is 1"])
    assert [report.run("", wrong, words) for words in ([], ["--check"])] == [0, 1]
    assert capsys.readouterr().err.count("WRONG it is 1") == 2


def compiled(plan, predicted, step_s, peak=100, **more):
    """Returns a localized plan with these figures, on a budget of 120 bytes."""
    figures = {"predicted_s": predicted, "compiled_s": step_s, "predicted_bytes": 100, "compiled_bytes": peak}
    return aot.Row("gpt", "v5e-8", "8", 120, plan, "localized", **figures, **more)


def test_chosen_and_searched_plans_are_compared_with_the_best_expert_that_fits():
    rows = [
        compiled("searched", 1.0, 1.5),
        compiled("dp", 2.0, 0.5, peak=121),
        compiled("expert zero-3", 3.0, 1.0),
        compiled("tp", 4.0, 1.2, is_chosen=True),
    ]
    (one,) = aot.outcomes(rows)
    assert one.best_expert.plan == "expert zero-3"
    assert (one.with_aot, one.without_aot) == (1.2, 1.5)
    # ranks 1 2 3 4 against 4 1 2 3: 1 - 6 * (9 + 1 + 1 + 1) / (4 * 15)
    assert one.rank == pytest.approx(-0.2)
    assert list(aot.faults(rows)) == [
        "gpt v5e-8 8: 1.200 of the step of expert zero-3 with --aot",
        "gpt v5e-8 8: 1.500 of the step of expert zero-3 without --aot",
        "rank correlation in the mean -0.20",
        "1 of 4 predicted peaks are under 0.9 of the compiled one, least 0.826",
    ]


def test_a_chosen_plan_over_its_budget_and_a_refused_model_are_faults():
    over = compiled("searched", 1.0, 1.0, peak=121, is_chosen=True)
    refused = aot.Row("gpt", "v5e-8", "2x4", 120, why="RHI-AOT-001: no")
    found = list(aot.faults([over, refused]))
    assert found[:2] == ["gpt v5e-8 2x4: RHI-AOT-001: no", "gpt v5e-8 8: the chosen plan is over its budget"]
