"""What autotuning chooses, against every plan of a small step, each made by itself.

A plan is stages, the mesh of a rank (in one row, and of two axes in every order), micro-batches, schedule, and what is
kept for the backward pass (all, half, nothing): each is made by `rhino-opt --auto-parallel` with all of it said,
shardings and stages found for it, its memory proven. What is compared is the predicted step of what was written. More
micro-batches than are named are not made here, though the search may choose them. Budgets are shares of what the plan
chosen without a budget takes, after a row without one.

Exit code: 1 if one of these plans is faster than the chosen one by more than 0.1 %, or fits where none is said to.
"""

from __future__ import annotations

import io
import os
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

from models import zoo_step
from papers import TOLERANCE
from report import Options, Question, option

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import ExitCode
from rhino.ir.plan.files import load_plan
from rhino.ir.units import format_bytes, format_seconds
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools import opt

KEPT: Final = (1.0, 0.5, 0.0)


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as written, or why there is none.

    It has the command line's request, the predicted seconds, and the predicted bytes of the device that holds most.
    """

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
        plan = load_plan(Path(folder) / "plan")
    if not any(word.startswith("--stages") for word in words):
        name = plan.form()
    return Made(name, plan.predicted.step_s, plan.predicted.largest_peak_bytes)


def compare(
    file: Path, cluster: str, budget: float, words: Sequence[tuple[str, ...]], jobs: int
) -> tuple[Made, list[Made]]:
    """Returns the plan chosen under a budget, and those that are said, the fastest first."""
    chosen = make(file, cluster, budget, [f"--jobs={jobs}"])
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        every = list(pool.map(partial(make, file, cluster, budget), words))
    return chosen, sorted(every, key=lambda one: (one.step_s, one.words))


@dataclass(frozen=True, slots=True)
class Row:
    """The plan chosen for a model under a budget, how many plans were made, how many of them fit, and the best.

    The budget is in bytes; 0 means all there is.
    """

    model: str
    budget_bytes: float
    chosen: Made
    num_plans: int
    num_fitting: int
    best: Made


def records(options: Options) -> Iterator[Row]:
    """Yields a row for each model and budget."""
    words = list(every_plan(load_cluster(options.cluster).num_devices, options.micro_batches))
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{model}.mlir"
            file.write_bytes(zoo_step(model))
            peak = 0.0
            for share in (inf, *options.shares):
                budget = share * peak if share < inf else inf
                chosen, every = compare(file, options.cluster, budget, words, options.jobs)
                peak = peak or chosen.peak_bytes
                fitting = sum(one.step_s < inf for one in every)
                yield Row(model, budget if budget < inf else 0.0, chosen, len(every), fitting, every[0])


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the rows in which another plan is faster."""
    for row in rows:
        if row.best.step_s < row.chosen.step_s * (1 - TOLERANCE):
            yield f"{row.model}: {row.best.words} is faster than {row.chosen.words}"


def _seconds(one: Made) -> str:
    return format_seconds(one.step_s) if one.step_s < inf else ""


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "model": lambda row: row.model,
        "budget": lambda row: format_bytes(row.budget_bytes) if row.budget_bytes else "-",
        "chosen": lambda row: row.chosen.words if row.chosen.step_s < inf else "refused",
        "step": lambda row: _seconds(row.chosen),
        "peak": lambda row: format_bytes(row.chosen.peak_bytes) if row.chosen.step_s < inf else "",
        "plans": lambda row: str(row.num_plans),
        "that fit": lambda row: str(row.num_fitting),
        "best of them": lambda row: row.best.words if row.num_fitting else "none",
        "its step": lambda row: _seconds(row.best),
        "chosen / best": lambda row: f"{row.chosen.step_s / row.best.step_s:.4f}" if row.num_fitting else "",
    },
    (
        option("--models", ["gpt", "mlp"], "of examples/zoo.py"),
        option("--cluster", "cpu4", "a preset or a file"),
        option("--micro-batches", [1, 2, 4, 8], "numbers of micro-batches"),
        option("--shares", [0.8, 0.6], "budgets, of what the plan without one takes"),
        option("--jobs", os.cpu_count() or 1, "processes"),
    ),
    ("chosen", "best of them"),
    faults,
)
