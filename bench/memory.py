"""Memory as planned against memory as XLA assigns it, over models, meshes and budgets.

For every model and mesh: planned with all the memory there is, then with ever less of it, in `--budgets` equal steps
down to the least for which a plan was found, and on by tenths until none is. Per device:

    budget     what the plan may take
    predicted  the peak that the plan foresees (`Answer.peak_bytes`)
    XLA        arguments + results - aliases + temporaries of the compiled program, the localized one
    ratio      predicted / XLA
    step       predicted seconds of the step

Models are those of models.py; by default the smallest and the `-mid` ones. Without `--cluster` it is one whose devices
are slow and whose links are fast, so that everything is split where it can be; with a preset, small models are split by
nothing but the budget.

Exit code: 1 if the median of predicted / XLA is outside 0.95 to 1.15, or one is under 0.9, or if a tighter budget gives
a faster step, or a plan is over its budget as predicted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Final

import jax
from models import MID, step_text, zoo
from others import off
from planning import Planned, plan_step
from report import Options, Question, key, option, run
from traffic import splitting_cluster

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.units import format_bytes
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executable import compile_module

GAP: Final = 1e-4
"""The optimality gap that the search accepts: a step may be faster with less memory by that much."""

_CLOSE: Final = 1.1


@dataclass(frozen=True, slots=True)
class Row:
    """One plan: its budget (None: all there is), predicted peak and what XLA takes in bytes, and the step in seconds.

    A budget that is refused has no figures.
    """

    model: str
    mesh: str
    budget: int | None
    predicted: int | None = None
    xla: int | None = None
    step_s: float | None = None

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.predicted is None or self.xla is None else self.predicted / self.xla


def planned(name: str, mesh: str, cluster: str, budget: int | None) -> Planned | None:
    """Returns a model's plan, None where the budget is refused or not met."""
    try:
        return plan_step(step_text(name), name, cluster, "" if budget is None else str(budget), mesh)
    except RhinoError as error:
        if error.exit_code != ExitCode.DOES_NOT_FIT or not error.notes:
            raise
        return None


def row(name: str, mesh: str, budget: int | None, plan: Planned) -> Row:
    """Compiles a plan, and returns its row."""
    xla = compile_module(plan.form("localized"), jax.devices()).memory_bytes()
    return Row(name, mesh, budget, round(plan.answer.peak_bytes), xla, plan.answer.cost)


def least_budget(name: str, mesh: str, cluster: str, ample: int) -> int:
    """Returns a budget for which there is a plan, at most a tenth above one without, or an eighth of `ample`; bytes."""
    low, high = ample / 8, float(ample)
    while high > low * _CLOSE:
        middle = sqrt(low * high)
        if planned(name, mesh, cluster, int(middle)) is None:
            low = middle
        else:
            high = middle
    return int(high)


def rows(name: str, mesh: str, cluster: str, num_budgets: int) -> Iterator[Row]:
    """Yields the rows of one model on one mesh, from ample memory to the least."""
    first = planned(name, mesh, cluster, None)
    assert first is not None
    yield row(name, mesh, None, first)
    if not num_budgets:
        return
    most = round(first.answer.peak_bytes)
    least = least_budget(name, mesh, cluster, most)
    for number in range(1, num_budgets + 1):
        budget = most - (most - least) * number // num_budgets
        plan = planned(name, mesh, cluster, budget)
        if plan is not None:
            yield row(name, mesh, budget, plan)
    too_little = int(least / _CLOSE)
    while (
        plan := planned(name, mesh, cluster, too_little)
    ) is not None:  # what was refused was near what some plan takes
        yield row(name, mesh, too_little, plan)
        too_little = int(too_little / _CLOSE)
    yield Row(name, mesh, too_little)


def records(options: Options) -> Iterator[Row]:
    """Yields the rows of all models and meshes."""
    request_host_devices(8, os.environ)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "splitting.toml"
        text = splitting_cluster().replace('platform = "gpu"', 'platform = "cpu"')  # whose compiler it is compared with
        file.write_text(text, encoding="utf-8")
        for name in options.models or [*MID, *zoo()]:
            for mesh in options.meshes:
                yield from rows(name, mesh, options.cluster or str(file), options.budgets)


def faults(found: Sequence[Row]) -> Iterator[str]:
    """Yields what is wrong with the rows, those of a model and a mesh from ample memory to the least."""
    made = [one for one in found if one.predicted is not None]
    ratios = [one.ratio for one in made if one.ratio is not None]
    yield from off(ratios) if ratios else ()
    for one in made:
        if one.budget is not None and (one.predicted or 0) > one.budget:
            yield f"{_where(one)}: predicted peak is over the budget"
    for before, after in pairwise(made):
        same = (before.model, before.mesh) == (after.model, after.mesh)
        if same and (after.step_s or 0.0) < (before.step_s or 0.0) * (1 - GAP):
            yield f"{_where(after)}: a faster step than with more memory"


def _where(one: Row) -> str:
    return f"{one.model} on {one.mesh}, {'no budget' if one.budget is None else format_bytes(one.budget)}"


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "model": key("model"),
        "mesh": key("mesh"),
        "budget": lambda one: "-" if one.budget is None else format_bytes(one.budget),
        "predicted": lambda one: "refused" if one.predicted is None else format_bytes(one.predicted),
        "XLA": key("xla", "bytes"),
        "ratio": key("ratio", ".3f"),
        "step": key("step_s", "s"),
    },
    (
        option("--models", [], "names of models.py (default those of examples/zoo.py, and `-mid`)"),
        option("--meshes", ["8", "2x4"], "mesh sizes"),
        option("--cluster", "", "a preset's name or a cluster file (default one on which everything is split)"),
        option("--budgets", 0, "how many budgets below the ample one"),
    ),
    ("mesh",),
    faults,
)

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTION, sys.argv[1:]))
