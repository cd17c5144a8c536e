"""Our search in the performance model of Aceso, on its own tables of profiled ops, beside what it found itself.

The tables are those of its repository (microsoft/SuperScaler, branch Aceso, profiler/profiled-time-eurosys), on V100s
of which a program may have 28,000 MB. *Known* is the least step that is known in the same model: what Aceso predicts of
its own plan, or what another search in that model found. *Measured* is what the paper's plan takes, as far as it says.

Exit code: 1 if with `--check` a step is longer than the known one, or takes more than 20 s of the processor to find.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Final

from aceso_model import AcesoModel, Plan, Setup
from aceso_search import STRATEGIES, search
from report import Options, Question, key, option, run

from rhino.ir.cluster.aceso_tables import MEGABYTE, read_aceso
from rhino.ir.units import format_bytes

MOST_S: Final = 20.0
"""Of the processor, for one row whose step has to be reached."""

MEMORY_BYTES: Final = 28000 * MEGABYTE


@dataclass(frozen=True, slots=True)
class Family:
    """What models of a kind share; `per_batch` are the examples of micro-batches, and the rest is as `Setup` has it."""

    batch: int
    per_batch: tuple[int, ...]
    state: float
    resharded: bool


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the paper on its cluster, and what is known of its step.

    `aceso_s` is what Aceso predicts of its own plan where less is known.
    """

    tables: str
    layers: int
    nodes: int
    per_node: int
    known_s: float | None = None
    measured_s: float | None = None
    is_checked: bool = False
    aceso_s: float | None = None


FAMILIES: Final[Mapping[str, Family]] = {
    "gpt": Family(1024, (1, 2, 4, 8), 6.0, resharded=True),
    "t5": Family(1024, (1, 2, 4, 8), 6.0, resharded=False),
    "resnet": Family(1536, (16, 32, 48, 64), 2.0, resharded=True),
}
"""Table 2 of the paper, and the settings of the scripts beside its code."""

CASES: Final[Mapping[str, Case]] = {
    "gpt-1.3b": Case("gpt_1_3B", 24, 1, 4, 101.18, 100.28, is_checked=True),
    "gpt-2.6b": Case("gpt_2_6B", 32, 1, 8, 86.44, 84.60, is_checked=True, aceso_s=86.87),
    "gpt-6.7b": Case("gpt_6_7B", 32, 2, 8, 84.29, 85.82, is_checked=True, aceso_s=84.45),
    "gpt-13b": Case("gpt_13B", 40, 4, 8, 82.15, 86.57, is_checked=True, aceso_s=84.61),
    "t5-3b": Case("t5_3B", 24, 1, 4),
    "t5-6b": Case("t5_6B", 24, 1, 8),
    "t5-11b": Case("t5_11B", 24, 2, 8),
    "t5-22b": Case("t5_11B", 48, 4, 8),
    "resnet-2b": Case("resnet_2B", 1, 1, 4, 49.33, 53.15),
    "resnet-4b": Case("resnet_4B", 1, 1, 8, 56.52, 62.30),
    "resnet-6.8b": Case("resnet_6_8B", 1, 2, 8, 45.67, 48.68),
    "resnet-13b": Case("resnet_13B", 1, 4, 8, 47.60, 51.72),
}
"""Known: figure 15 of the paper, but for GPT of 2.6B, 6.7B and 13B, of which less was found in the same model."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was found of a case."""

    case: str
    strategy: str
    devices: str
    step_s: float
    known_s: float | None
    measured_s: float | None
    most_bytes: float
    stages: str
    examples: int
    cpu_s: float
    is_checked: bool

    @property
    def ratio(self) -> float | None:
        """The step over the known one."""
        return self.step_s / self.known_s if self.known_s else None


def records(options: Options) -> Iterator[Row]:
    """Yields a row for each case, and none for one of which there is no plan."""
    for name in options.cases or CASES:
        for strategy in options.strategy:
            yield from _row(options.tables, name, strategy)


def _row(tables: Path, name: str, strategy: str) -> Iterator[Row]:
    case, family = CASES[name], FAMILIES[name.split("-", maxsplit=1)[0]]
    since = time.process_time()
    setup = Setup(
        family.batch,
        family.per_batch,
        case.layers,
        case.nodes,
        case.per_node,
        MEMORY_BYTES,
        family.state,
        resharded=family.resharded,
    )
    if (found := search(AcesoModel(read_aceso(tables, case.tables), setup), strategy)) is not None:
        plan, figures = found
        yield Row(
            name,
            strategy,
            f"{case.nodes} x {case.per_node}",
            figures.step_s,
            (strategy == "aceso" and case.aceso_s) or case.known_s,
            case.measured_s,
            max(figures.stage_bytes),
            written(plan),
            plan.examples,
            time.process_time() - since,
            case.is_checked,
        )


def written(plan: Plan) -> str:
    """Returns the stages of a plan: devices, and of how many ops how many are recomputed; those next to each other."""
    kinds = [stage.devices for stage in plan.stages]
    again = [sum(op.again for op in stage.ops) for stage in plan.stages]
    widths = " + ".join(f"{len(list(some))} of {devices}" for devices, some in groupby(kinds))
    return f"{widths}; ops {'/'.join(str(len(stage.ops)) for stage in plan.stages)}; again {'/'.join(map(str, again))}"


def _faults(found: Sequence[Row]) -> Iterator[str]:
    for one in found:
        if not one.is_checked:
            continue
        if one.known_s is not None and one.step_s > one.known_s:
            yield f"{one.case}, {one.strategy}: {one.step_s:.2f} s, {one.known_s:.2f} s are known"
        if one.cpu_s > MOST_S:
            yield f"{one.case}, {one.strategy}: {one.cpu_s:.0f} s of the processor"
    best = {one.case: one.step_s for one in found if one.strategy == "best"}
    for one in found:
        if one.strategy == "both" and one.step_s > best.get(one.case, inf):
            yield f"{one.case}: {one.step_s:.4f} s by both, {best[one.case]:.4f} s by best"


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "model": key("case"),
        "strategy": key("strategy"),
        "nodes x devices": key("devices"),
        "step, s": key("step_s", ".2f"),
        "known, s": key("known_s", ".2f"),
        "over it": key("ratio", ".4f"),
        "measured, s": key("measured_s", ".2f"),
        "peak": lambda one: format_bytes(one.most_bytes),
        "examples": key("examples"),
        "stages": key("stages"),
        "processor s": key("cpu_s", ".1f"),
    },
    (
        ("tables", {"type": Path, "metavar": "DIR", "help": "the directory of the CSV files"}),
        option("--cases", [], f"of {', '.join(CASES)} (default all)"),
        option("--strategy", ["best"], f"of {', '.join(STRATEGIES)}"),
        option("--check", False, "whether a row that falls short makes the exit code 1"),
    ),
    ("strategy", "nodes x devices", "stages"),
    _faults,
)

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTION, sys.argv[1:]))
