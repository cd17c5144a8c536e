"""Plans of frontier rows, and of their experts, as predicted and as the clusters' own compilers make them.

Rows are those of frontier.py. Each plan is compiled for as many devices of the kind, without a device, in the localized
form. Memory and step are of one device.

    predicted   as the plan foresees them
    compiled    what the compiler assigns, and its schedule's kernels and collectives at the cluster's rates
    peak ratio  predicted over compiled

Exit code: with `--check` 1 if a peak is not predicted within 10 % of the compiled one, if of two plans of a row one is
predicted to be faster by more than 1 % and compiled to be slower by as much, or if a plan is not made or not compiled.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

import jax
from frontier import KINDS, ROWS, expert_words, step_text
from report import Options, Question, key, option, say

from rhino.ir.cluster.cluster import Cluster, cluster_to_text
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.planner.aot import LOCALIZED, as_run, program_of, step_of
from rhino.passes.planner.unstaged_plan import search
from rhino.runtime.aot.compile import compiler_of

WITHIN: Final = 0.1
"""By how much of the compiled peak the predicted one may be off."""

TOLD_APART: Final = 0.01
"""Steps that differ by less, relatively, are in no order."""

_ROWS: Final = tuple(name for name in ROWS if name.startswith("8b-") and name.rpartition("-")[2].isdecimal())
"""Those of which a compile takes seconds to minutes."""


@dataclass(frozen=True, slots=True)
class Row:
    """A plan of a row: who says it, its mesh, steps in seconds and peaks in bytes; or why there are none."""

    name: str
    who: str
    mesh: str = ""
    predicted_s: float = 0.0
    predicted_bytes: int = 0
    compiled_s: float = 0.0
    compiled_bytes: int = 0
    processor_s: float = 0.0
    why: str = ""

    @property
    def ratio(self) -> float | None:
        """Predicted over compiled peak."""
        return self.predicted_bytes / self.compiled_bytes if self.compiled_bytes else None


def plans(name: str) -> Iterator[Row]:
    """Yields our plan of a row, then its experts'."""
    case = ROWS[name]
    cluster = KINDS[case.kind].cluster(case.num_devices)
    text, _ = step_text(case)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        file = folder / "cluster.toml"
        file.write_text(cluster_to_text(cluster), encoding="utf-8")
        yield compared(name, "rhino", case.words, text, cluster, file)
        for expert in case.experts:
            words = expert_words(case, expert, text, folder)
            yield compared(name, str(expert), words, text, cluster, file)


def compared(name: str, who: str, words: Sequence[str], text: bytes, cluster: Cluster, file: Path) -> Row:
    """Returns the row of the plan that options of the command make."""
    given = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    try:
        module = read_module(text, name, make_context())
        found = search(module, name, {"cluster": str(file), **given}, Remarks(name))
        predicted = found.plan.predicted
        row = Row(name, who, str(found.plan.mesh), predicted.step_s, predicted.largest_peak_bytes)
        code, compiles = program_of(found.module, LOCALIZED), compiler_of(cluster, found.plan.mesh)
        if code is None or isinstance(compiles, str):
            return Row(name, who, row.mesh, why=compiles if isinstance(compiles, str) else "no localized form")
        made = compiles(as_run(code))
    except RhinoError as error:
        return Row(name, who, why=f"{error.id}: {error.what}")
    step_s = step_of(made, cluster).step_s
    return Row(name, who, row.mesh, row.predicted_s, row.predicted_bytes, step_s, made.peak_bytes, made.processor_s)


def records(options: Options) -> Iterator[Row]:
    """Yields the plans of all rows."""
    jax.config.update("jax_platforms", "cpu")  # steps are traced, and nothing runs
    for name in options.rows or _ROWS:
        for row in plans(name):
            say(f"  {row}")
            yield row


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yields what is not as it should be."""
    for row in rows:
        if row.why:
            yield f"{row.name}, {row.who}: {row.why}"
        elif row.ratio is not None and abs(row.ratio - 1) > WITHIN:
            yield f"{row.name}, {row.who}: predicted / compiled peak {row.ratio:.2f}"
    for one, other in combinations([row for row in rows if not row.why], 2):
        ends = (one.predicted_s / other.predicted_s - 1, one.compiled_s / other.compiled_s - 1)
        if one.name == other.name and ends[0] * ends[1] < 0 and min(map(abs, ends)) > TOLD_APART:
            yield f"{one.name}: {one.who} / {other.who} is {1 + ends[0]:.3f} predicted, {1 + ends[1]:.3f} compiled"


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "row": key("name"),
        "plan": key("who"),
        "mesh": key("mesh"),
        "step, predicted": key("predicted_s", "s"),
        "compiled": key("compiled_s", "s"),
        "peak, predicted": key("predicted_bytes", "bytes"),
        "compiled peak": key("compiled_bytes", "bytes"),
        "peak ratio": key("ratio", ".3f"),
        "processor": key("processor_s", "s"),
        "why not": key("why"),
    },
    (
        option("--rows", [], f"rows of frontier.py (default {', '.join(_ROWS)})"),
        option("--check", False, "faults make the exit code 1"),
    ),
    ("plan", "mesh", "why not"),
    faults,
)
