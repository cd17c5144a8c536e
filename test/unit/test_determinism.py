"""One module gives one output, whatever Python's hashes are seeded with, and whatever was planned before it in the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from training import export_step
from zoo import ZOO

NUM_SEEDS = 20

# A search by elimination alone; one that prices memory and ends in an integer program; each device's program; and all of it on two axes.
PLANS = (
    ("gpt-fused", "auto-shard{cluster=v100x8}"),
    ("mlp", "auto-shard{cluster=v100x8 budget=60KiB}"),
    ("mlp", "auto-shard,localize"),
    ("mlp", "auto-shard{cluster=v100x8 mesh=2x4 budget=60KiB},localize"),
)

# Too wide for elimination: sweeps over the axes, and a linear program for the bound. Each takes seconds.
WIDE = (("gpt-fused", "auto-shard{cluster=v100x8 mesh=2x4},localize"),)

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
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training steps of the models, each in a file of its name."""
    folder: Path = tmp_path_factory.mktemp("steps")
    for name in {name for name, _ in (*PLANS, *WIDE)}:
        (folder / name).write_text(export_step(ZOO[name]))
    return folder


@pytest.fixture(scope="module")
def plans(folder: Path) -> list[str]:
    return words(folder, PLANS)


def words(folder: Path, plans: tuple[tuple[str, str], ...]) -> list[str]:
    """Each model's file, then its pipeline."""
    return [word for name, pipeline in plans for word in (str(folder / name), pipeline)]


def test_the_seed_of_hashes_changes_nothing(plans: list[str]):
    every = [outputs(seed, plans) for seed in range(NUM_SEEDS)]
    assert every == [every[0]] * NUM_SEEDS
    assert len(set(every[0])) == len(PLANS)  # the hash sees what was chosen


def test_the_seed_of_hashes_changes_no_search_by_sweeps(folder: Path):
    first, second = (outputs(seed, words(folder, WIDE)) for seed in range(2))
    assert first == second


def test_what_was_planned_before_changes_nothing(plans: list[str]):
    first = outputs(0, plans)
    assert outputs(0, plans + plans) == first + first
