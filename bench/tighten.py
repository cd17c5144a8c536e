"""What `rhino-opt --auto-parallel` chooses as memory is taken away: one model under ever smaller budgets.

The case is one of `papers.py`, on so many devices of one of its platforms. The first budget is what the cluster's
devices have; each next one is that share of what the plan before takes, down to where no plan fits. Printed for each:
the plan; on how many of a rank's devices, in the mean, parameters and the rest of the state (the optimizer's) are
split; step and peak; and why it is no longer the plan before: what that needs, or what else it loses by. Where the
search says nothing of it, for it had no need to look, it is made again.

Exit code: 1 if less memory gives a faster step (by more than 0.1 %), a plan is over its budget, or the plan before has
no reason against it.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from papers import ROWS, TOLERANCE, platform, step_text
from report import Options, Question, key, option, say

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.diagnostics import ExitCode
from rhino.ir.plan.files import load_plan
from rhino.ir.plan.plan import Plan, device_bytes
from rhino.ir.units import format_bytes, format_seconds
from rhino.strategies.autotune.base import PlanConfig
from rhino.tools import opt

_PARAMETERS: Final = re.compile(r"\.params\b")


@dataclass(frozen=True, slots=True)
class Kept:
    """The plan under a budget: its JSON, and on how many devices parameters and other state are split, in the mean."""

    budget: float
    data: dict[str, Any]
    parameters: float
    rest: float

    @property
    def config(self) -> PlanConfig:
        """The plan but for its shardings."""
        return _config(self.data["plan"])

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return float(self.data["predicted_step_s"])

    @property
    def peak_bytes(self) -> float:
        """Predicted bytes on the device that holds most."""
        return float(max(self.data["predicted_peak_bytes"]))


def _config(plan: dict[str, Any]) -> PlanConfig:
    return PlanConfig(plan["stages"], tuple(plan["mesh"]), plan["micro_batches"], plan["remat"])


def split_over(plan: Plan, *, parameters: bool) -> float:
    """Returns over how many of a rank's devices the bytes of parameters, or of the rest of the state, are split.

    The rest is what else a step hands to the next.
    """
    mesh, on_device, everywhere = dict(plan.mesh.axes), 0, 0
    for one in plan.arguments:
        if one.alias is not None and bool(_PARAMETERS.search(one.path)) == parameters:
            on_device += device_bytes(one, mesh)
            everywhere += one.num_bytes
    return everywhere / on_device if on_device else 1.0


def planned(file: Path, cluster: Path, budget: float, *words: str) -> str:
    """Plans the step in `file` to the folder `plan` beside it; returns why there is no plan, empty where there is."""
    said = io.StringIO()
    common = (
        str(file),
        "--auto-parallel",
        f"--cluster={cluster}",
        f"--budget={budget:.0f}",
        f"--plan={file.with_name('plan')}",
    )
    code = opt.run([*common, *words], io.BytesIO(), io.BytesIO(), said)
    return "" if code == ExitCode.OK else said.getvalue().strip()


def plans(file: Path, cluster: Path, share: float, steps: int, jobs: int) -> Iterator[Kept | str]:
    """Yields the plans, and last why there is none, if it came to that."""
    budget = float(load_cluster(str(cluster)).device.usable_hbm_bytes)
    folder, summary = file.with_name("plan"), file.with_name("plan.json")
    for _ in range(steps):
        if none := planned(file, cluster, budget, f"--plan-json={summary}", f"--jobs={jobs}"):
            yield none
            return
        plan = load_plan(folder)
        kept = Kept(
            budget,
            json.loads(summary.read_text()),
            split_over(plan, parameters=True),
            split_over(plan, parameters=False),
        )
        yield kept
        budget = share * kept.peak_bytes


def reason(before: Kept, now: Kept) -> str:
    """Returns why the plan before is not the plan any more, as the search for the plan now says.

    It is empty where the search says nothing of it.
    """
    if before.config == now.config:
        return f"as before it takes {format_bytes(before.peak_bytes)}"
    for row in now.data["refused"]:
        if _config(row) == before.config:
            return f"the one before: {row['why']}"
    for row in now.data["alternatives"]:
        if _config(row) == before.config:
            step_s = row.get("predicted_step_s", row["estimated_step_s"])
            return f"the one before: {format_seconds(step_s)} if it is to fit; {row['why']}"
    for row in now.data["cut_off"]:
        if _config(row) == before.config:
            return f"the one before: takes {format_seconds(row['bound_s'])} at least if it is to fit"
    for row in now.data["refused"]:  # of the same devices, perhaps in other rows, with less in memory at a time
        other = _config(row)
        less = other.remat >= before.config.remat and other.micro_batches >= before.config.micro_batches
        if other.stages == before.config.stages and less:
            return f"even {other} {row['why']}"
    return ""


def asked(before: Kept, now: Kept, file: Path, cluster: Path) -> str:
    """Returns what the plan before comes to under the budget now; it has one stage, or the schedule is that of 1F1B."""
    config = before.config
    words = (
        f"--stages={config.stages}",
        f"--mesh={'x'.join(map(str, config.mesh))}",
        f"--micro-batches={config.micro_batches}",
    )
    none = planned(file, cluster, now.budget, *words, *((f"--remat={config.remat:g}",) if config.remat else ()))
    if none:
        return f"the one before, made again: {none.splitlines()[0].partition('] ')[2]}"
    step_s = load_plan(file.with_name("plan")).predicted.step_s
    return f"the one before: {format_seconds(step_s)} if it is to fit" if step_s >= now.step_s else ""


@dataclass(frozen=True, slots=True)
class Row:
    """The plan under a budget, why it is not the plan before, and what is wrong with that. Bytes, seconds."""

    budget_bytes: float
    plan: str
    parameters_over: float
    rest_over: float
    step_s: float
    peak_bytes: float
    why: str
    faults: tuple[str, ...]


def records(options: Options) -> Iterator[Row]:
    """Yields the plan under each budget."""
    with tempfile.TemporaryDirectory() as name:
        file, cluster = Path(name) / "step.mlir", Path(name) / "cluster.toml"
        file.write_bytes(step_text(ROWS[options.case]))
        cluster.write_text(cluster_to_text(platform(options.platform, options.devices)), encoding="utf-8")
        before: Kept | None = None
        for now in plans(file, cluster, options.share, options.steps, options.jobs):
            if isinstance(now, str):
                say(f"then none: {now}")
                return
            why = (reason(before, now) or asked(before, now, file, cluster)) if before else ""
            yield _row(before, now, why)
            before = now


def _row(before: Kept | None, now: Kept, why: str) -> Row:
    schedule = now.data["plan"]["schedule"]
    plan = f"{now.config}, {schedule}" if schedule else str(now.config)
    wrong = tuple(_faults(before, now, why))
    return Row(now.budget, plan, now.parameters, now.rest, now.step_s, now.peak_bytes, why, wrong)


def _faults(before: Kept | None, now: Kept, why: str) -> Iterator[str]:
    if now.peak_bytes > now.budget:
        yield f"takes {format_bytes(now.peak_bytes)} of {format_bytes(now.budget)}"
    if before and now.step_s < before.step_s * (1 - TOLERANCE):
        yield f"under {format_bytes(now.budget)} a step is faster than under {format_bytes(before.budget)}"
    if before and not why:
        yield f"under {format_bytes(now.budget)} nothing is known against the plan before"


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "budget": key("budget_bytes", "bytes"),
        "plan": key("plan"),
        "parameters over": key("parameters_over", ".1f"),
        "other state over": key("rest_over", ".1f"),
        "step": key("step_s", "s"),
        "peak": key("peak_bytes", "bytes"),
        "why": key("why"),
    },
    (
        option("--case", "gpt-xl", "a row of the papers, this one of 1.3 billion parameters"),
        option("--platform", "m8", "m8 or s1"),
        option("--devices", 4, "of the platform"),
        option("--share", 0.85, "of what a plan takes, what the next may take"),
        option("--steps", 8, "budgets at most"),
        option("--jobs", os.cpu_count() or 1, "processes that search"),
    ),
    ("plan", "why"),
    lambda rows: [fault for row in rows for fault in row.faults],
)
