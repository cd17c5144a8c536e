"""One module gives one output, whatever the seed of Python's hashes and whatever the process planned before."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import mlp
import pytest
from training import export_step
from zoo import ZOO

NUM_SEEDS = 2

PERCEPTRON = mlp.model(mlp.MLPConfig(sizes=(16, 16), batch=8, dropout=0.0, task="regress"))
STEPS = {**ZOO, "perceptron": PERCEPTRON}

# A search by elimination alone; one that prices memory and ends in integer programs; each device's program; and two
# axes.
SMALL = (
    ("perceptron", "auto-shard{cluster=v100x8}"),
    ("perceptron", "auto-shard{cluster=cpu8 budget=2KiB}"),
    ("perceptron", "auto-shard,localize"),
    ("perceptron", "auto-shard{cluster=v100x8 mesh=2x4},localize"),
)

# The same at a size where ties abound, both on two axes, and what is too wide for elimination: prices, and sweeps.
LARGE = (
    ("gpt-fused", "auto-shard{cluster=v100x8}"),
    ("mlp", "auto-shard{cluster=cpu8 budget=60KiB}"),
    ("mlp", "auto-shard{cluster=cpu8 mesh=2x4 budget=60KiB},localize"),
    ("gpt-fused", "auto-shard{cluster=v100x8 mesh=2x4},localize"),
)

PROGRAM = """
import hashlib, sys
import rhino

for file, pipeline in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    context, remarks = rhino.make_context(), rhino.Remarks("step.mlir")
    module = rhino.read_module(open(file, "rb").read(), "step.mlir", context)
    rhino.build_pass_manager(pipeline, context, remarks).run(module.operation)
    said = "".join(f"{remark}\\n" for remark in remarks.items)
    print(hashlib.sha256(f"{module}{said}".encode()).hexdigest())
"""


def outputs(seed: int, words: list[str]) -> list[str]:
    """The sha256 of what each pipeline in `words` (file, pipeline, ...) writes and remarks; in a process of its own."""
    environ = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training steps of the models, each in a file of its name."""
    folder: Path = tmp_path_factory.mktemp("steps")
    for name in {name for name, _ in (*SMALL, *LARGE)}:
        (folder / name).write_text(export_step(STEPS[name]))
    return folder


def words(folder: Path, plans: Sequence[tuple[str, str]]) -> list[str]:
    """Each model's file, then its pipeline."""
    return [word for name, pipeline in plans for word in (str(folder / name), pipeline)]


def test_the_seed_of_hashes_changes_nothing(folder: Path):
    every = [outputs(seed, words(folder, SMALL)) for seed in range(NUM_SEEDS)]
    assert every == [every[0]] * NUM_SEEDS
    assert len(set(every[0])) == len(SMALL)  # the hash sees what was chosen


@pytest.mark.long
def test_neither_the_seed_of_hashes_nor_the_order_of_plans_changes_larger_ones(folder: Path):
    first, second = outputs(0, words(folder, LARGE)), outputs(1, words(folder, LARGE[::-1]))
    assert first == second[::-1]
    assert len(set(first)) == len(LARGE)


def test_what_was_planned_before_changes_nothing(folder: Path):
    plans = words(folder, SMALL)
    first = outputs(0, plans)
    assert outputs(0, plans + plans) == first + first
