"""What is chosen as memory is taken away: whole plans of one model under ever smaller budgets, as `rhino-opt --auto-parallel` finds them.

    python bench/tighten.py [--case=gpt-xl] [--platform=m8] [--devices=4] [--share=0.85] [--steps=8] [--jobs=N] [--check]

The case is one of `bench/plan.py`, on so many devices of one of its platforms. The first budget is what the cluster's devices have; each
next one is that share of what the plan before takes, down to where no plan fits. Printed for each: the plan; on how many of a rank's
devices, in the mean, parameters and the rest of the state (the optimizer's) are split; step and peak; and why it is no longer the plan
before: what that needs, or what else it loses by. Where the search says nothing of it, for it had no need to look, it is made again.

Exit code: with `--check`, 1 if less memory gives a faster step (by more than 0.1 %), a plan is over its budget, or the plan before has no
reason against it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from plan import ROWS, TOLERANCE, platform, step_text
from search import machine

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.diagnostics import ExitCode
from rhino.ir.plan.folder import WholePlan, read_plan
from rhino.ir.plan.instructions import Feed
from rhino.ir.plan.step_memory import local_bytes
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
    def shape(self) -> PlanConfig:
        """The plan but for its shardings."""
        return _shape(self.data["plan"])

    @property
    def step_s(self) -> float:
        """Predicted seconds of a step."""
        return float(self.data["predicted_step_s"])

    @property
    def peak_bytes(self) -> float:
        """Predicted bytes on the device that holds most."""
        return float(max(self.data["predicted_peak_bytes"]))


def _shape(plan: dict[str, Any]) -> PlanConfig:
    return PlanConfig(plan["stages"], tuple(plan["mesh"]), plan["micro_batches"], 1 - plan["remat"])


def split_over(plan: WholePlan, *, parameters: bool) -> float:
    """Returns on how many of a rank's devices the bytes of parameters, or of what else a step hands to the next, are split."""
    held = whole = 0
    for one in plan.step.instructions:
        if isinstance(one, Feed):
            argument, layout = plan.arguments[one.argument], plan.step.slots[one.target].layout
            if argument.alias is not None and bool(_PARAMETERS.search(argument.name)) == parameters:
                size = local_bytes(layout, plan.step.mesh)
                held += size
                whole += size * prod(dict(plan.step.mesh.axes)[axis] for axes in layout.dims for axis in axes)
    return whole / held if held else 1.0


def planned(file: Path, cluster: Path, budget: float, *words: str) -> str:
    """Plans the step in `file` to the folder `plan` beside it; returns why there is no plan, empty where there is one."""
    said = io.StringIO()
    common = (str(file), "--auto-parallel", f"--cluster={cluster}", f"--budget={budget:.0f}", f"--plan={file.with_name('plan')}")
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
        plan = read_plan(folder)
        kept = Kept(budget, json.loads(summary.read_text()), split_over(plan, parameters=True), split_over(plan, parameters=False))
        yield kept
        budget = share * kept.peak_bytes


def reason(before: Kept, now: Kept) -> str:
    """Returns why the plan before is not the plan any more, as the search for the plan now says; empty where that says nothing of it."""
    if before.shape == now.shape:
        return f"as before it takes {format_bytes(before.peak_bytes)}"
    for row in now.data["refused"]:
        if _shape(row) == before.shape:
            return f"the one before: {row['why']}"
    for row in now.data["alternatives"]:
        if _shape(row) == before.shape:
            step_s = row.get("predicted_step_s", row["estimated_step_s"])
            return f"the one before: {format_seconds(step_s)} if it is to fit; {row['why']}"
    for row in now.data["cut_off"]:
        if _shape(row) == before.shape:
            return f"the one before: takes {format_seconds(row['bound_s'])} at least if it is to fit"
    for row in now.data["refused"]:  # of the same devices, perhaps in other rows, with less in memory at a time
        other = _shape(row)
        less = other.keep <= before.shape.keep and other.micro_batches >= before.shape.micro_batches
        if other.stages == before.shape.stages and less:
            return f"even {other} {row['why']}"
    return ""


def asked(before: Kept, now: Kept, file: Path, cluster: Path) -> str:
    """Returns what the plan before comes to under the budget now; it has one stage, or the schedule is that of 1F1B."""
    shape = before.shape
    words = (f"--stages={shape.stages}", f"--mesh={'x'.join(map(str, shape.mesh))}", f"--micro-batches={shape.micro_batches}")
    none = planned(file, cluster, now.budget, *words, *((f"--remat={1 - shape.keep:g}",) if shape.keep < 1 else ()))
    if none:
        return f"the one before, made again: {none.splitlines()[0].partition('] ')[2]}"
    step_s = read_plan(file.with_name("plan")).about["predicted_step_s"]
    return f"the one before: {format_seconds(step_s)} if it is to fit" if step_s >= now.step_s else ""


HEAD: Final = ["budget", "plan", "parameters over", "other state over", "step", "peak", "why"]


def cells(now: Kept, why: str) -> list[str]:
    """Returns a line of the table."""
    schedule = now.data["plan"]["schedule"]
    return [
        format_bytes(now.budget),
        f"{now.shape}, {schedule}" if schedule else str(now.shape),
        f"{now.parameters:.1f}",
        f"{now.rest:.1f}",
        format_seconds(now.step_s),
        format_bytes(now.peak_bytes),
        why,
    ]


def _faults(before: Kept | None, now: Kept, why: str) -> Iterator[str]:
    if now.peak_bytes > now.budget:
        yield f"takes {format_bytes(now.peak_bytes)} of {format_bytes(now.budget)}"
    if before and now.step_s < before.step_s * (1 - TOLERANCE):
        yield f"under {format_bytes(now.budget)} a step is faster than under {format_bytes(before.budget)}"
    if before and not why:
        yield f"under {format_bytes(now.budget)} nothing is known against the plan before"


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="tighten.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="gpt-xl", choices=sorted(ROWS), help="default gpt-xl, of 1.3 billion parameters")
    parser.add_argument("--platform", default="m8", help="m8 or s1 (default m8)")
    parser.add_argument("--devices", type=int, default=4, help="default 4")
    parser.add_argument("--share", type=float, default=0.85, help="of what a plan takes, what the next may take (default 0.85)")
    parser.add_argument("--steps", type=int, default=8, help="budgets at most (default 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that search (default one a core)")
    parser.add_argument("--check", action="store_true", help="exit with 1 as said above")
    options = parser.parse_args(argv)
    print(machine())
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        file, cluster = Path(name) / "step.mlir", Path(name) / "cluster.toml"
        file.write_bytes(step_text(ROWS[options.case]))
        cluster.write_text(cluster_to_text(platform(options.platform, options.devices)), encoding="utf-8")
        before: Kept | None = None
        for now in plans(file, cluster, options.share, options.steps, options.jobs):
            if isinstance(now, str):
                print(f"\nthen none: {now}")
                break
            why = (reason(before, now) or asked(before, now, file, cluster)) if before else ""
            print(f"| {' | '.join(cells(now, why))} |", flush=True)
            faults += _faults(before, now, why)
            before = now
    print(*faults, sep="\n", file=sys.stderr, end="\n" if faults else "")
    return int(options.check and bool(faults))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
