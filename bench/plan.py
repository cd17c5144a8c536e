"""How good whole plans are: the controller's against a grid of what experts would write down, under the same model.

    python bench/plan.py [--cases=gpt-medium,gpt-xl] [--clusters=m8] [--devices=64,4096] [--jobs=N] [--no-experts] [--check] [--json=FILE]

Cases are the rows of the papers' tables: GPT and GShard MoE of Rhino's Tables 1 and 2, each on as many V100s as there (`m8` has eight in a
node, `s1` one), batch 64 and 256 in float32; Wide-ResNet of its Table 4, batch 4; GPT and T5 of Aceso's Table 2 on 32 V100s, batch 1024 in
16 bits. `--cases=gpt-1024 --no-experts`, of no paper, is for the time that a deep step's search takes, and `--devices` for what it takes
on more of them.

An expert's plan is pipeline stages, data and tensor parallel ranks in each, micro-batches, and how the state of data parallel ranks is
kept: all in each of them, or optimizer's state (ZeRO-1) or everything (ZeRO-3) divided. What a role says of each parameter is that of
`bench/quality.py`; what it leaves open is filled by our search, and the stages are the best cut of a line, which is generous. An expert's
plan that is proven to take longer than the best of them so far, or than `NEAR` times ours, is not planned to its end. Of ours, the
shardings of the best shape are searched for as far as where a plan is made, which is further than where shapes are compared.

Printed: the plan, its predicted step and share of the devices' peak (MFU), predicted peak memory, seconds of the search (wall, and
processor seconds of all processes), shapes planned, the best expert, and our step over its; where no expert comes near ours, what none of
them is below. `--json` is written after each row; on stderr stands how far a row is, with the processor seconds since the start.

Exit code: with `--check`, 1 if an expert's plan is faster than ours by more than 0.1 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from planning import zoo
from quality import CASES, Case, pins
from search import machine

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.cluster.hardware import Cluster, Level
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator, Setup, folded, make_space
from rhino.passes.planner.workers import Workers
from rhino.strategies.autotune import explore
from rhino.strategies.autotune.base import Estimate, Explored, Outcome, PlanConfig, Space
from rhino.strategies.solver.search import Limits

TOLERANCE: Final = 1e-3
"""By how much, relatively, an expert may be faster: below it lies the gap that a search may leave."""

NEAR: Final = 1.05
"""Times our step: experts' plans that are proven to take as long are told apart no further."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a paper: a model of `examples/export.py` with its preset and options, `roles` of `bench/quality.py`, and its devices."""

    preset: str
    roles: str
    num_devices: int
    options: tuple[tuple[str, str | int], ...] = ()


def _rows() -> dict[str, Row]:
    gpt = {"gpt-medium": 1, "gpt-large": 2, "gpt-xl": 4, "gpt-2.7b": 8, "gpt-6.7b": 16}
    moe = {"moe-8e-380m": 1, "moe-8e-760m": 2, "moe-16e-1.3b": 4, "moe-16e-2.4b": 8, "moe-32e-10b": 16}
    wide = {"wr-1.3b": 1, "wr-2.6b": 2, "wr-6b": 4, "wr-12b": 8}
    found = {name: Row(name, "gpt", count) for name, count in gpt.items()}
    found |= {name: Row(name, "moe", count) for name, count in moe.items()}
    found |= {name: Row(name, "wide-resnet", count) for name, count in wide.items()}
    large = (("layers", 40), ("hidden", 5120), ("heads", 40), ("ffn", 20480), ("seq", 2048), ("batch", 1024), ("dtype", "f16"))
    found["aceso-gpt-13b"] = Row("gpt", "gpt", 32, large)
    found["aceso-t5-11b"] = Row("t5-11b", "t5", 32, (("dtype", "f16"),))
    return found


PAPERS: Final = _rows()
_DEEP: Final = (("layers", 1024), ("hidden", 512), ("heads", 8), ("ffn", 2048), ("seq", 512), ("batch", 256))
ROWS: Final = {**PAPERS, "gpt-1024": Row("gpt", "gpt", 8, _DEEP)}
"""The papers' rows, and one of many layers for the time that its search takes."""

CLUSTERS: Final = {"m8": "v100x8x2", "s1": "s1x8"}
"""Platforms of the papers, by the preset that says what they are made of."""


def platform(name: str, num_devices: int) -> Cluster:
    """Returns so many devices of a platform: a part of a node, or whole nodes, and of these as many as it takes."""
    whole = load_cluster(CLUSTERS[name])
    levels: list[Level] = []
    for level in reversed(whole.levels):
        size = num_devices if level is whole.levels[0] else min(num_devices, level.size)
        levels.insert(0, _resized(level, size))
        num_devices //= size
    several = tuple([level for level in levels if level.size > 1])
    found = replace(whole, levels=several or tuple(levels[-1:]))
    return replace(found, name=f"{name}-{found.num_devices}")


def _resized(level: Level, size: int) -> Level:
    """Returns a level of so many units, which share its links as those of a larger one do."""
    reached = level.reached_bytes_per_s(size) / level.efficiency
    partial = tuple([one for one in level.partial_bytes_per_s if one[0] < size])
    return replace(level, size=size, port_bytes_per_s=reached, partial_bytes_per_s=partial)


def step_text(row: Row) -> bytes:
    """Returns the training step of a row."""
    zoo()  # puts the examples where the next lines find them
    from export import MODELS  # noqa: PLC0415
    from training import export_step  # noqa: PLC0415

    entry = next(entry for name, entry in MODELS.items() if row.preset == name or row.preset in entry.presets)
    base = entry.presets.get(row.preset) or entry.config()
    return export_step(entry.model(replace(base, **dict(row.options)))).encode()


# Plans


@dataclass(frozen=True, slots=True)
class Found:
    """A plan: who says it, its shape and schedule, and what it is predicted to take."""

    who: str
    shape: str
    step_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a case came to; `ended` says whether the search came to its end.

    `experts` are those that were planned to their end and fit, best first; no other is below `near_s`, which is 0 where none was looked at.
    """

    case: str
    cluster: str
    ours: Found | None
    mfu: float
    bound_s: float
    wall_s: float
    processor_s: float
    num_shapes: int
    ended: bool
    experts: tuple[Found, ...]
    near_s: float

    @property
    def best_expert(self) -> Found | None:
        """The best expert, where one is below `near_s`."""
        return next((one for one in self.experts if one.step_s < self.near_s), None)

    @property
    def ratio(self) -> float:
        """Returns our step over the best expert's; 0 where none is near."""
        if self.best_expert is None:
            return 0.0
        return self.ours.step_s / self.best_expert.step_s if self.ours else math.inf


def found(who: str, one: Estimate) -> Found:
    """Returns an estimate as a plan of `who`."""
    return Found(who, f"{one.shape}, {one.schedule}" if one.schedule else str(one.shape), one.step_s, max(one.peak_bytes))


def search(setup: Setup, jobs: int) -> tuple[Explored, Space]:
    """Returns what the search of whole plans finds, and where it searched."""
    workers = Workers(setup, jobs)
    try:
        workers.setup = folded(setup)
        space = make_space(workers.setup)
        return explore(space, workers.evaluate, foresee=workers.foresee), space
    finally:
        workers.close()


def made(setup: Setup, best: Estimate) -> Estimate:
    """Returns the best plan as it would be made: its shardings are searched for further than where shapes are compared."""
    outcome = Evaluator(setup, limits=Limits()).outcome(best.shape)
    return outcome.quickest if isinstance(outcome, Estimate) and outcome.quickest.step_s < best.step_s else best


def experts(case: Case, module: ir.Module, setup: Setup, space: Space, folder: Path, near_s: float, ours: Explored) -> Iterator[Found]:
    """Yields the best plan of each expert that is below `near_s` and all before it, or was planned to its end all the same.

    Those of as many stages as ours and of most data parallelism come first: the better the best of them, the sooner others end. What an
    expert says leaves less to choose, so that bounds of our search hold for experts.
    """
    likely = ours.ranked[0].shape.stages if ours.ranked else 1
    for stages in sorted(space.meshes, key=lambda count: (count != likely, count)):
        size = load_cluster(setup.cluster).num_devices // stages
        for data in [count for count in range(size, 0, -1) if size % count == 0]:
            for kept in ("dp", "zero-1", "zero-3")[: 3 if data > 1 else 1]:
                roles = [(count, role) for count, role in ((data, kept), (size // data, "tp")) if count > 1] or [(1, "dp")]
                if not case.columns and any(role == "tp" for _, role in roles):
                    continue
                for one in _expert(case, module, setup, space, folder, stages, roles, near_s, ours):
                    near_s = min(near_s, one.step_s)
                    yield one


def _expert(
    case: Case,
    module: ir.Module,
    setup: Setup,
    space: Space,
    folder: Path,
    stages: int,
    roles: Sequence[tuple[int, str]],
    below_s: float,
    ours: Explored,
) -> Iterator[Found]:
    mesh = tuple(count for count, _ in roles)
    file = folder / "expert.toml"
    file.write_text(pins(case, module, mesh_of_shape(mesh), [role for _, role in roles]), encoding="utf-8")
    evaluator = Evaluator(replace(setup, options={"constraints": str(file)}, schedules=("1f1b",)), folder)

    def evaluate(shapes: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        return [evaluator.outcome(shape, cutoff_s) for shape in shapes]

    own = replace(space, meshes={stages: (mesh,)})
    explored = explore(own, evaluate, strategy="rhino", below_s=below_s, relaxed=ours.outcomes)
    who = " x ".join(f"{role} {count}" for count, role in roles)
    _report(f"{stages} stages of {who}", explored)
    if explored.ranked:
        yield found(who, explored.ranked[0])


def _report(who: str, explored: Explored) -> None:
    """Says on stderr what somebody's plans come to, and lets go of the modules that they were made from."""
    best = next((f"{one.shape} in {format_seconds(one.step_s)}" for one in explored.ranked), "none")
    print(f"{_processor_s():.0f} s: {who}: {best}, {len(explored.outcomes)} shapes", file=sys.stderr)
    gc.collect()


def measure(case: str, platform_name: str, num_devices: int, options: argparse.Namespace) -> Result:
    """Returns what a case comes to on so many devices of a platform."""
    row = ROWS[case]
    cluster = platform(platform_name, num_devices)
    text = step_text(row)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "cluster.toml"
        file.write_text(cluster_to_text(cluster), encoding="utf-8")
        before, spent = time.perf_counter(), _processor_s()
        context = make_context()
        module = read_module(text, case, context)
        with context, ir.Location.unknown():
            Normalize().run(module.operation, Remarks(case))
        setup = Setup(bytecode(module), case, str(file), float(cluster.device.usable_hbm_bytes), {})
        whole = folded(setup)
        explored, space = search(whole, options.jobs)
        wall_s, processor_s = time.perf_counter() - before, _processor_s() - spent
        _report(case, explored)
        best = made(whole, explored.quickest) if explored.quickest else None
        near_s = 0.0 if options.no_experts else NEAR * best.step_s if best else math.inf
        listed = [] if options.no_experts else list(experts(CASES[row.roles], module, setup, space, folder, near_s, explored))
    rate = cluster.device.matmul_efficiency  # `least_s` is at the rate that products reach
    return Result(
        case,
        cluster.name,
        found("rhino", best) if best else None,
        space.least_s * rate / best.step_s if best else 0.0,
        explored.bound_s,
        wall_s,
        processor_s,
        len(explored.outcomes),
        explored.is_complete,
        tuple(sorted(listed, key=lambda one: one.step_s)),
        near_s,
    )


def _processor_s() -> float:
    return sum(
        resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


# The command


def cells(result: Result) -> list[str]:
    """Returns a line of the table."""
    ours = result.ours
    return [
        result.case,
        result.cluster,
        ours.shape if ours else "none fits",
        format_seconds(ours.step_s) if ours else "",
        f"{result.mfu:.0%}",
        format_bytes(ours.peak_bytes) if ours else "",
        f"{result.wall_s:.0f}, {result.processor_s:.0f}",
        f"{result.num_shapes}{'' if result.ended else '+'}",
        *_compared(result),
    ]


def _compared(result: Result) -> list[str]:
    """Returns the best expert, its step, and our step over it."""
    best = result.best_expert
    if best:
        return [f"{best.who}; {best.shape}", format_seconds(best.step_s), f"{result.ratio:.3f}"]
    if not result.near_s:
        return ["not looked at", "", ""]
    return ["none near", f"at least {format_seconds(result.near_s)}", f"below {1 / NEAR:.3f}"] if result.ours else ["none fits", "", ""]


HEAD: Final = ["case", "devices", "plan", "step", "MFU", "peak", "wall, processor s", "shapes", "best expert", "its step", "ours / its"]


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="plan.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(PAPERS), help=f"of {', '.join(ROWS)}; default the papers'")
    parser.add_argument("--clusters", default="m8", help="m8, s1 or both (default m8)")
    parser.add_argument("--devices", metavar="N,N", help="on so many devices, in place of the papers' numbers")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that search (default one a core)")
    parser.add_argument("--no-experts", action="store_true", help="only search")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an expert is faster")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args(argv)
    gc.disable()  # as the tools do
    print(machine())
    print(f"| {' | '.join(HEAD)} |\n|{' --- |' * len(HEAD)}")
    results = []
    for name, case in product(options.clusters.split(","), options.cases.split(",")):
        for count in map(int, options.devices.split(",")) if options.devices else [ROWS[case].num_devices]:
            results.append(measure(case, name, count, options))
            print(f"| {' | '.join(cells(results[-1]))} |", flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps([asdict(one) for one in results], indent=2), encoding="utf-8")
    return int(options.check and any(one.ratio > 1 + TOLERANCE for one in results))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
