"""What the search of whole plans chooses, against every plan of a small step, each made by itself.

    python bench/every_plan.py [--models=gpt,mlp] [--cluster=cpu4] [--micro-batches=1,2,4,8] [--shares=0.8,0.6] [--jobs=N] [--check]

A plan is stages, the mesh of a rank (in one row, and of two axes in every order), micro-batches, schedule, and what is kept for the
backward pass (all, half, nothing): each is made by `rhino-opt --auto-parallel` with all of it said, shardings and stages found for it, its
memory proven. What is compared is the predicted step of what was written. More micro-batches than are named are not made here, though the
search may choose them. Budgets are shares of what the plan chosen without a budget takes, after a row without one.

Exit code: with `--check`, 1 if one of these plans is faster than the chosen one by more than 0.1 %, or fits where none is said to.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from plan import TOLERANCE
from planning import zoo_step
from search import machine

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import ExitCode
from rhino.ir.plan.folder import read_plan
from rhino.ir.units import format_bytes, format_seconds
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools import opt

KEPT: Final = (1.0, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as written: what the command line said, predicted seconds and bytes of the device that holds most; or why there is none."""

    words: str
    step_s: float
    peak_bytes: float
    why: str = ""


def every_plan(num_devices: int, micro_batches: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yields what the command line says of each plan."""
    for stages in _divisors(num_devices):
        rank = num_devices // stages
        meshes = [str(rank)] + [f"{outer}x{rank // outer}" for outer in _divisors(rank) if 1 < outer < rank]
        for mesh, count, kept in product(meshes, micro_batches, KEPT):
            for schedule in SCHEDULES if stages > 1 else ("",):
                words = [f"--stages={stages}", f"--mesh={mesh}", f"--micro-batches={count}"]
                words += [f"--schedule={schedule}"] if schedule else []
                words += [f"--remat={1 - kept:g}"] if kept < 1 else []
                yield tuple(words)


def _divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


def make(file: Path, cluster: str, budget: float, words: Sequence[str]) -> Made:
    """Plans the step in `file` as `words` say and returns what was written; `budget` is bytes per device."""
    said, name = io.StringIO(), " ".join(words)
    with tempfile.TemporaryDirectory() as folder:
        common = [str(file), "--auto-parallel", f"--cluster={cluster}", f"--plan={folder}/plan"]
        common += [f"--budget={budget:.0f}"] if budget < inf else []
        if opt.run([*common, *words], io.BytesIO(), io.BytesIO(), said) != ExitCode.OK:
            return Made(name, inf, inf, said.getvalue().strip().splitlines()[0].partition("error: ")[2])
        about = read_plan(Path(folder) / "plan").about
    if not any(word.startswith("--stages") for word in words):
        name = ", ".join(f"{key} {about[key]}" for key in ("stages", "mesh", "micro_batches", "schedule"))
    return Made(name, about["predicted_step_s"], max(about["predicted_peak_bytes"]))


def compare(file: Path, cluster: str, budget: float, words: Sequence[tuple[str, ...]], jobs: int) -> tuple[Made, list[Made]]:
    """Returns the plan chosen under a budget, and those that are said, the fastest first."""
    chosen = make(file, cluster, budget, [f"--jobs={jobs}"])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        every = list(pool.map(partial(make, file, cluster, budget), words))
    return chosen, sorted(every, key=lambda one: (one.step_s, one.words))


HEAD: Final = ["model", "budget", "chosen", "step", "peak", "plans", "that fit", "best of them", "step", "chosen / best"]


def cells(model: str, budget: float, chosen: Made, every: Sequence[Made]) -> list[str]:
    """Returns a line of the table."""
    best = every[0]
    return [
        model,
        format_bytes(budget) if budget < inf else "-",
        chosen.words if chosen.step_s < inf else "refused",
        *_figures(chosen),
        str(len(every)),
        str(sum(one.step_s < inf for one in every)),
        best.words if best.step_s < inf else "none",
        _figures(best)[0],
        f"{chosen.step_s / best.step_s:.4f}" if best.step_s < inf else "",
    ]


def _figures(one: Made) -> list[str]:
    return [format_seconds(one.step_s), format_bytes(one.peak_bytes)] if one.step_s < inf else ["", ""]


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="every_plan.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt,mlp", help="of examples/zoo.py (default gpt,mlp)")
    parser.add_argument("--cluster", default="cpu4", help="a preset or a file (default cpu4)")
    parser.add_argument("--micro-batches", default="1,2,4,8", help="default 1,2,4,8")
    parser.add_argument("--shares", default="0.8,0.6", help="budgets, of what the plan without one takes (default 0.8,0.6)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default one a core)")
    parser.add_argument("--check", action="store_true", help="exit with 1 as said above")
    options = parser.parse_args(argv)
    words = list(every_plan(load_cluster(options.cluster).num_devices, [int(count) for count in options.micro_batches.split(",")]))
    print(machine())
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    is_worse = False
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{model}.mlir"
            file.write_bytes(zoo_step(model))
            peak = 0.0
            for share in (inf, *map(float, options.shares.split(","))):
                budget = share * peak if share < inf else inf
                chosen, every = compare(file, options.cluster, budget, words, options.jobs)
                peak = peak or chosen.peak_bytes
                print(f"| {' | '.join(cells(model, budget, chosen, every))} |", flush=True)
                is_worse |= every[0].step_s < chosen.step_s * (1 - TOLERANCE)
    return int(options.check and is_worse)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
