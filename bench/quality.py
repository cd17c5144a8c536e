"""How good the plans of the search are: against those that an expert would write down by hand.

Each model has layers of a real size, but few of them. What an expert's pins leave open (experts.py) is filled by the
same search under the same cost model and memory, which is generous to the expert.

Printed for each target: the predicted step, its proven bound and gap, the predicted peak, the payload of all
collectives in each device's program, the best expert and what it takes, and our step over its. An expert that does not
fit loses. With `--share`, the budget of each row is that share of the peak that our plan takes of its own accord, so
that memory binds. On stderr stands what every expert's plan takes, or why there is none.

Exit code: 1 if an expert's plan is faster than ours by more than 0.1 %, or fits where we find none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from experts import CASES, experts, pins
from models import step_text
from planning import auto_shard, sharded
from report import Cell, Options, Question, key, option, say

from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.program.collectives import module_stats
from rhino.ir.units import format_bytes, format_seconds, parse_size
from rhino.passes.base import Remarks
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.passes.sharding.localize import localized_copy
from rhino.strategies.solver.answer import Answer

TOLERANCE: Final = 1e-3
"""By how much, relatively, an expert may be faster.

Below it lies the gap that a search may leave where memory binds.
"""

TARGETS: Final = ["v100x8:8", "v100x8:2x4", "v100x8x2:2x8", "h100x8:8", "h100x8:2x4"]
_NO_PLAN: Final = ("RHI-SOLVE-001", "RHI-SOLVE-002")


def search(text: bytes, name: str, target: str, budget: str = "", constraints: str = "") -> tuple[ir.Module, Remarks]:
    """Returns a step with its shardings, and what the search says of them.

    The target is `cluster:mesh`, and `constraints` the text of a file of constraints.

    Raises:
        RhinoError: RHI-SOLVE-001 where it does not fit, and whatever else `rhino-opt --auto-shard` says.
    """
    cluster, _, mesh = target.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.toml"
        file.write_text(constraints, encoding="utf-8")
        return sharded(text, name, auto_shard(cluster, mesh, budget, constraints=str(file)))


@dataclass(frozen=True, slots=True)
class Found:
    """What a plan takes, or why there is none.

    `sent_bytes` is the payload of all collectives in each device's program.
    """

    step_s: float = float("inf")
    bound_s: float = float("inf")
    gap: float = 0.0
    peak_bytes: float = 0.0
    sent_bytes: int | None = None
    method: str = ""
    error: str = ""

    def __str__(self) -> str:
        """Returns a line about it."""
        figures = f"{format_seconds(self.step_s)}, peak {format_bytes(self.peak_bytes)}, by {self.method}"
        return self.error or figures


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one target: our plan, and those of experts by what they say along each axis.

    Without `budget` it may take all memory there is.
    """

    model: str
    target: str
    budget: str
    ours: Found
    experts: Mapping[str, Found]

    @property
    def best(self) -> str:
        """The fastest expert; the first of equals, none where none fits."""
        fitting = [name for name, found in self.experts.items() if not found.error]
        return min(fitting, key=lambda name: self.experts[name].step_s) if fitting else ""

    @property
    def ratio(self) -> float:
        """Our step over the best expert's."""
        return self.ours.step_s / self.experts[self.best].step_s if self.best else 0.0


def found(name: str, target: str, budget: str, constraints: str = "", *, localize: bool = False) -> Found:
    """Returns what the plan under what an expert says takes, or that none fits or was found."""
    try:
        module, remarks = search(step_text(f"{name}-real"), name, target, budget, constraints)
    except RhinoError as error:
        if error.id not in _NO_PLAN:
            raise
        return Found(error=f"{error.id}: {error.what}")
    answer: Answer = remarks.result(ShardingChoice).answer
    sent = module_stats(localized_copy(module, name)).total.num_bytes if localize else None
    return Found(answer.cost, answer.bound, answer.gap, answer.peak_bytes, sent, answer.method)


def measure(name: str, target: str, budget: str, share: float, wanted: Sequence[str]) -> Row:
    """Returns the row of one model on one target.

    `wanted` names the experts, and all are taken if it is empty. `share` is that of `--share`, and 0 is none.
    """
    if share:
        budget = str(int(share * found(name, target, budget).peak_bytes))
    case, mesh = CASES[name], parse_mesh(target.partition(":")[2])
    module = read_module(step_text(f"{name}-real"), name, make_context())
    plans: dict[str, Found] = {}
    for roles in experts(case, len(mesh.axes)):
        words = " ".join(roles if len(set(roles)) > 1 else roles[:1])
        if not wanted or words in wanted:
            plans[words] = found(name, target, budget, pins(case, module, mesh, roles))
            say(f"  {name} {target} {words}: {plans[words]}")
    return Row(name, target, budget, found(name, target, budget, localize=True), plans)


def records(options: Options) -> Iterator[Row]:
    """Yields a row for each model and target."""
    for model in options.models:
        for target in options.targets:
            yield measure(model, target, options.budget, options.share, options.experts)


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the rows in which an expert is better."""
    for row in rows:
        if row.ratio > 1 + TOLERANCE:
            yield f"{row.model} on {row.target}: the expert's {row.best} is faster"
        elif row.ours.error and (row.best or not row.budget):
            yield f"{row.model} on {row.target}: {row.ours.error}"


def _ours(name: str, form: str) -> Cell:
    cell = key(name, form)
    return lambda row: "" if row.ours.error else cell(row.ours)


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "model": key("model"),
        "cluster": lambda row: row.target.partition(":")[0],
        "mesh": lambda row: row.target.partition(":")[2],
        "budget": lambda row: format_bytes(parse_size(row.budget)) if row.budget else "-",
        "ours": lambda row: row.ours.error or format_seconds(row.ours.step_s),
        "at least": _ours("bound_s", "s"),
        "gap": _ours("gap", ".2%"),
        "peak": _ours("peak_bytes", "bytes"),
        "sent": _ours("sent_bytes", "bytes"),
        "best expert": lambda row: row.best or "none fits",
        "takes": lambda row: format_seconds(row.experts[row.best].step_s) if row.best else "",
        "ours / expert": lambda row: f"{row.ratio:.3f}" if row.best else "",
    },
    (
        option("--models", list(CASES), "which models"),
        option("--targets", TARGETS, "clusters with meshes"),
        option("--experts", [], "which experts, as stderr names them (default all)"),
        option("--budget", "", "bytes per device (default what the cluster's devices have)"),
        option("--share", 0.0, "of the peak of our plan, as the budget of each row; 0 takes --budget"),
    ),
    ("cluster", "mesh", "best expert"),
    faults,
)
