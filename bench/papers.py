"""How good autotuned plans are: against a grid of what experts would write down, under the same model.

Cases are the rows of the papers' tables: GPT and GShard MoE of Rhino's Tables 1 and 2, each on as many V100s as there
(`m8` has eight in a node, `s1` one), batch 64 and 256 in float32; Wide-ResNet of its Table 4, batch 4; of Aceso's
Table 2 GPT and T5 on 32 V100s, batch 1024 in 16 bits, and Wide-ResNets on 1 to 32, batch 1536 in float32, whose batch
norms take the statistics of a micro-batch. VGG, DNABERT and U-Net of Rhino's Table 3, wav2vec 2.0 of TAP's
Table I and GNMT of Whale 5.2 are on eight devices, with the papers' batch on each. `--cases` also takes models of no
such table: `gpt-1024 --no-experts` for the time that a deep step's search takes, a Mamba, a DLRM and Whale's M6; and
`--devices` is for what they take on more of them.

An expert's plan is pipeline stages, data and tensor parallel ranks in each, micro-batches, and how the state of data
parallel ranks is kept: all in each of them, or optimizer's state (ZeRO-1) or everything (ZeRO-3) divided. What a role
says of each parameter is that of `experts.py`; what it leaves open is filled by our search, and the stages are the best
cut of a line, which is generous. An expert's plan that is proven to take longer than the best of them so far, or than
`NEAR` times ours, is not planned to its end. Of ours, the shardings of the best configuration are searched for as far
as where a plan is made, which is further than where configurations are compared.

Printed: the plan, its predicted step and share of the devices' peak (MFU), predicted peak memory, seconds of the search
(wall, and processor seconds of all processes), configurations planned, the best expert, and our step over its; where no
expert comes near ours, what none of them is below. On stderr stands how far a row is, with the processor seconds since
the start.

Exit code: 1 if an expert's plan is faster than ours by more than 0.1 %.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from experts import CASES, Case, pins
from models import sized, step_of
from planning import sharded
from report import Options, Question, key, option, say

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.cluster.hardware import Cluster, Level
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import bytecode
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.search_space import make_space
from rhino.passes.planner.setup import Setup, folded
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
    """A row of a paper: a preset of `examples/export.py` with options, roles of `experts.py`, and devices.

    `passes` are the options of the passes, by name, that every plan of the row has, ours and the experts'.
    """

    preset: str
    roles: str
    num_devices: int
    options: tuple[tuple[str, str | int | bool], ...] = ()
    passes: tuple[tuple[str, str], ...] = ()


_PART_STATISTICS: Final = (("batch-statistics", "per-part"),)


def _rows() -> dict[str, Row]:
    gpt = {"gpt-medium": 1, "gpt-large": 2, "gpt-xl": 4, "gpt-2.7b": 8, "gpt-6.7b": 16}
    moe = {"moe-8e-380m": 1, "moe-8e-760m": 2, "moe-16e-1.3b": 4, "moe-16e-2.4b": 8, "moe-32e-10b": 16}
    wide = {"wr-1.3b": 1, "wr-2.6b": 2, "wr-6b": 4, "wr-12b": 8}
    found = {name: Row(name, "gpt", count) for name, count in gpt.items()}
    found |= {name: Row(name, "moe", count) for name, count in moe.items()}
    found |= {name: Row(name, "wide-resnet", count) for name, count in wide.items()}
    large = (
        ("layers", 40),
        ("hidden", 5120),
        ("heads", 40),
        ("ffn", 20480),
        ("seq", 2048),
        ("batch", 1024),
        ("dtype", "f16"),
    )
    found["aceso-gpt-13b"] = Row("gpt", "gpt", 32, large)
    found["aceso-t5-11b"] = Row("t5-11b", "t5", 32, (("dtype", "f16"),))
    aceso_wide = {"wr-0.5b": 1, "wr-2.6b": 4, "wr-6b": 8, "wr-6.8b": 16, "wr-13b": 32}
    sizes = ("0.5b", "2b", "4b", "6.8b", "13b")
    for size, (preset, count) in zip(sizes, aceso_wide.items(), strict=True):
        found[f"aceso-wr-{size}"] = Row(preset, "wide-resnet", count, (("batch", 1536),), _PART_STATISTICS)
    a_device = {"vgg-1m-classes": ("vgg-1m", 128), "dnabert": ("dnabert", 32), "unet-33m": ("unet", 16)}
    a_device |= {"wav2vec2-large": ("wav2vec2", 4), "gnmt-8": ("gnmt", 128)}
    found |= {name: Row(name, roles, 8, (("batch", 8 * batch),)) for name, (roles, batch) in a_device.items()}
    return found


PAPERS: Final = _rows()
_DEEP: Final = (("layers", 1024), ("hidden", 512), ("heads", 8), ("ffn", 2048), ("seq", 512), ("batch", 256))
ROWS: Final = {
    **PAPERS,
    "gpt-1024": Row("gpt", "gpt", 8, _DEEP),
    "mamba-130m": Row("mamba-130m", "mamba", 8, (("scan", True), ("seq", 512), ("batch", 16))),
    "dlrm-terabyte": Row("dlrm-terabyte", "dlrm", 32),
    "m6-100b": Row("m6-100b", "moe", 128, (("batch", 1024),)),
}
"""The papers' rows; one of many layers for the time that its search takes; and models whose papers plan nothing."""

CLUSTERS: Final = {"m8": "v100x8x2", "s1": "s1x8"}
"""Platforms of the papers, by the preset that says what they are made of."""


def platform(name: str, num_devices: int) -> Cluster:
    """Returns so many devices of a platform: a part of a node, or whole nodes, and of these as many as it takes."""
    whole = load_cluster(CLUSTERS[name])
    levels: list[Level] = []
    for level in reversed(whole.levels):
        size = num_devices if level is whole.levels[0] else min(num_devices, level.size)
        levels.insert(0, resized(level, size))
        num_devices //= size
    several = tuple([level for level in levels if level.size > 1])
    found = replace(whole, levels=several or tuple(levels[-1:]))
    return replace(found, name=f"{name}-{found.num_devices}")


def resized(level: Level, size: int) -> Level:
    """Returns a level of so many units, which share its links as those of a larger one do."""
    reached = level.reached_bytes_per_s(size) / level.efficiency
    partial = tuple([one for one in level.partial_bytes_per_s if one[0] < size])
    return replace(level, size=size, port_bytes_per_s=reached, partial_bytes_per_s=partial)


def step_text(row: Row) -> bytes:
    """Returns the training step of a row."""
    return step_of(sized(row.preset, **dict(row.options)))


# Plans


@dataclass(frozen=True, slots=True)
class Found:
    """A plan: who says it, its configuration and schedule, and what it is predicted to take."""

    who: str
    config: str
    step_s: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class Result:
    """What a case came to; `ended` says whether the search came to its end.

    `experts` are those that were planned to their end and fit, best first; no other is below `near_s`, which is 0 where
    none was looked at.
    """

    case: str
    cluster: str
    ours: Found | None
    mfu: float
    bound_s: float
    wall_s: float
    processor_s: float
    num_configs: int
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
    return Found(
        who, f"{one.config}, {one.schedule}" if one.schedule else str(one.config), one.step_s, max(one.peak_bytes)
    )


def search(setup: Setup, jobs: int) -> tuple[Explored, Space]:
    """Returns what autotuning finds, and where it searched."""
    workers = Workers(setup, jobs)
    try:
        workers.setup = folded(setup)
        space = make_space(workers.setup)
        return explore(space, workers.evaluate, foresee=workers.foresee), space
    finally:
        workers.close()


def made(setup: Setup, best: Estimate) -> Estimate:
    """Returns the best plan as it would be made: its shardings are searched further than for comparisons."""
    outcome = Evaluator(setup, limits=Limits()).outcome(best.config)
    return outcome.quickest if isinstance(outcome, Estimate) and outcome.quickest.step_s < best.step_s else best


def experts(
    case: Case, module: ir.Module, setup: Setup, space: Space, folder: Path, near_s: float, ours: Explored
) -> Iterator[Found]:
    """Yields the best plan of each expert, if it is below `near_s` and below all before it.

    Plans that were planned to their end all the same come, too. Those of as many stages as ours and of most data
    parallelism come first: the better the best of them, the sooner others end. What an expert says leaves less to
    choose, so that bounds of our search hold for experts.
    """
    likely = ours.ranked[0].config.stages if ours.ranked else 1
    for stages in sorted(space.meshes, key=lambda count: (count != likely, count)):
        size = load_cluster(setup.cluster).num_devices // stages
        for data in [count for count in range(size, 0, -1) if size % count == 0]:
            for kept in ("dp", "zero-1", "zero-3")[: 3 if data > 1 else 1]:
                roles = [(count, role) for count, role in ((data, kept), (size // data, "tp")) if count > 1] or [
                    (1, "dp")
                ]
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
    evaluator = Evaluator(
        replace(setup, options={**setup.options, "constraints": str(file)}, schedules=("1f1b",)), folder
    )

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        return [evaluator.outcome(config, cutoff_s) for config in configs]

    own = replace(space, meshes={stages: (mesh,)})
    explored = explore(own, evaluate, strategy="rhino", below_s=below_s, relaxed=ours.outcomes)
    who = " x ".join(f"{role} {count}" for count, role in roles)
    _report(f"{stages} stages of {who}", explored)
    if explored.ranked:
        yield found(who, explored.ranked[0])


def _report(who: str, explored: Explored) -> None:
    """Says on stderr what somebody's plans come to, and lets go of the modules that they were made from."""
    best = next((f"{one.config} in {format_seconds(one.step_s)}" for one in explored.ranked), "none")
    say(f"{_processor_s():.0f} s: {who}: {best}, {len(explored.outcomes)} configurations")
    gc.collect()


def setup_of(row: Row, cluster: str) -> tuple[ir.Module, Setup]:
    """Returns the normalized step of a row, and the set-up of its search on a cluster (a preset or a file)."""
    module, _ = sharded(step_text(row), row.preset, "rhino-normalize")
    budget_bytes = float(load_cluster(cluster).device.usable_hbm_bytes)
    with module.context, ir.Location.unknown():
        return module, Setup(bytecode(module), row.preset, cluster, budget_bytes, dict(row.passes))


def measure(case: str, cluster: Cluster, options: Options) -> Result:
    """Returns what a case comes to on a cluster."""
    row = ROWS[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "cluster.toml"
        file.write_text(cluster_to_text(cluster), encoding="utf-8")
        before, spent = time.perf_counter(), _processor_s()
        module, setup = setup_of(row, str(file))
        whole = folded(setup)
        explored, space = search(whole, options.jobs)
        taken = time.perf_counter() - before, _processor_s() - spent
        _report(case, explored)
        best = made(whole, explored.quickest) if explored.quickest else None
        near_s = 0.0 if options.no_experts else NEAR * best.step_s if best else math.inf
        others = () if options.no_experts else experts(CASES[row.roles], module, setup, space, folder, near_s, explored)
        listed = tuple(sorted(others, key=lambda one: one.step_s))
    rate = cluster.device.matmul_efficiency  # `least_s` is at the rate that products reach
    mfu = space.least_s * rate / best.step_s if best else 0.0
    ours, num_configs = found("rhino", best) if best else None, len(explored.outcomes)
    ended = explored.is_complete
    return Result(case, cluster.name, ours, mfu, explored.bound_s, *taken, num_configs, ended, listed, near_s)


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def records(options: Options) -> Iterator[Result]:
    """Yields the result of each case on each platform and number of devices."""
    gc.disable()  # as the tools do
    for name, case in product(options.clusters, options.cases):
        for count in options.devices or [ROWS[case].num_devices]:
            yield measure(case, platform(name, count), options)


def faults(results: Sequence[Result]) -> Iterator[str]:
    """Yields the cases for which an expert's plan is faster."""
    for one in results:
        if one.ratio > 1 + TOLERANCE:
            yield f"{one.case} on {one.cluster}: an expert's plan is faster"


def _expert_name(result: Result) -> str:
    if best := result.best_expert:
        return f"{best.who}; {best.config}"
    if not result.near_s:
        return "not looked at"
    return "none near" if result.ours else "none fits"


def _expert_step(result: Result) -> str:
    if best := result.best_expert:
        return format_seconds(best.step_s)
    return f"at least {format_seconds(result.near_s)}" if result.near_s and result.ours else ""


def _over_expert(result: Result) -> str:
    if result.best_expert:
        return f"{result.ratio:.3f}"
    return f"below {1 / NEAR:.3f}" if result.near_s and result.ours else ""


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "case": key("case"),
        "devices": key("cluster"),
        "plan": lambda one: one.ours.config if one.ours else "none fits",
        "step": lambda one: format_seconds(one.ours.step_s) if one.ours else "",
        "MFU": key("mfu", ".0%"),
        "peak": lambda one: format_bytes(one.ours.peak_bytes) if one.ours else "",
        "wall, processor s": lambda one: f"{one.wall_s:.0f}, {one.processor_s:.0f}",
        "configurations": lambda one: f"{one.num_configs}{'' if one.ended else '+'}",
        "best expert": _expert_name,
        "its step": _expert_step,
        "ours / its": _over_expert,
    },
    (
        option("--cases", list(PAPERS), f"the papers' rows, or {', '.join(list(ROWS)[len(PAPERS) :])}"),
        option("--clusters", ["m8"], "of m8, s1"),
        (
            "--devices",
            {"type": lambda text: list(map(int, text.split(","))), "help": "in place of the papers' numbers"},
        ),
        option("--jobs", os.cpu_count() or 1, "processes that search"),
        option("--no-experts", False, "only search"),
    ),
    ("devices", "plan", "best expert"),
    faults,
)
