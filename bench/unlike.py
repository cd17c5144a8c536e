"""Pipelines on unlike devices, after Whale's section 5.3: stages of even work against stages of each one's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from models import sized, step_of
from papers import resized
from ranks import Planner, plan_text, step_text, worse
from report import Options, Question, key, option

from rhino.ir.cluster.cluster import Cluster, cluster_to_text, load_cluster
from rhino.ir.cluster.groups import joined
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.planner.staged_plan import cut_step, make_staged_plan
from rhino.strategies.autotune.base import Estimate
from rhino.strategies.pipeline.simulate import Simulation

MODELS: Final = {"bert-large": {"batch": 256}, "t5-large": {"batch": 64}, "gpt-tiny": {}}
"""Presets of examples/export.py, and what is other than in them."""

NETWORK: Final = "v100x8x2"
"""The preset whose network joins the machines."""

WITHOUT_LIMIT: Final = "1TiB"


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A model in stages on two groups of devices: stages of even work, and of each one's own, priced on both.

    `limit` is how much faster the step could be at most: the groups' rates together over twice the slower one's.
    `unasked` is the plan that is found where nothing is asked for; None if it was not looked for.
    """

    model: str
    devices: str
    even: Simulation
    own: Simulation
    limit: float
    unasked: Estimate | None

    @property
    def speedup(self) -> float:
        """How many times as fast the step is."""
        return self.even.timeline.end_s / self.own.timeline.end_s


def part(name: str, num_devices: int) -> Cluster:
    """Returns so many devices of a preset's machine."""
    whole = load_cluster(name)
    return replace(whole, name=f"{name}-{num_devices}", levels=(resized(whole.levels[-1], num_devices),))


def records(options: Options) -> Iterator[Pipelined]:
    """How much faster pipelines are whose stages are cut for the devices that they run on, of two kinds.

    Both are cut for the same shardings, those of data parallelism or what is better in a stage, by 1F1B; even stages
    are those of a cluster of the slower devices alone, without a limit of memory. In between stands what the devices'
    rates allow. The exit code is 1 if even stages are faster.
    """
    network = load_cluster(NETWORK).levels[0]
    for model in options.models:
        for pair in options.pairs:
            groups = [part(name, options.devices) for name in pair.split("+")]
            between = replace(network, devices_per_port=options.devices, size=2)
            mixed = joined("-".join(one.name for one in groups), "machines of two kinds", groups, between)
            yield _compared(model, mixed, options)


def _compared(model: str, mixed: Cluster, options: Options) -> Pipelined:
    rates = [one.device.matmul_flops_per_s("f32") for one in mixed.groups]
    text = step_of(sized(model, **MODELS[model]))
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("mixed.toml", "equal.toml")]
        for file, cluster in zip(files, (mixed, replace(mixed, groups=())), strict=True):
            Path(file).write_text(cluster_to_text(cluster), encoding="utf-8")
        own = _simulated(text, model, files[0], files[0], options)
        even = _simulated(text, model, files[1], files[0], options)
        unasked = Planner(text, model, files[0]).unasked() if options.unasked else None
    return Pipelined(model, mixed.name, even, own, sum(rates) / (2 * min(rates)), unasked)


def _simulated(text: bytes, model: str, cut_for: str, on: str, options: Options) -> Simulation:
    """Returns a step whose stages are cut for one cluster, on another."""
    size = 2 * options.devices // options.stages
    asked = {"cluster": cut_for, "mesh": str(size), "num": str(options.micro_batches), "stages": str(options.stages)}
    asked |= {"ranks": str(options.stages), "schedule": "1f1b"}
    asked |= {} if cut_for == on else {"budget": WITHOUT_LIMIT}
    module = read_module(text, model, make_context())
    source = cut_step(module, model, asked, Remarks(model))
    return make_staged_plan(module, source, on, load_cluster(on).device.usable_hbm_bytes, asked).simulation


def _idle(found: Simulation) -> str:
    ranks = range(found.timeline.num_ranks)
    return ", ".join(f"{found.timeline.idle(rank):.0%}" for rank in ranks)


def _peaks(found: Simulation) -> str:
    return ", ".join(format_bytes(one.peak_bytes) for one in found.memory)


def _faults(found: Sequence[Pipelined]) -> Iterator[str]:
    for one in found:
        if one.speedup < 1:
            yield f"{one.model} on {one.devices}: stages of even work are faster"
        yield from worse(one.unasked, one.own.timeline.end_s, f"{one.model} on {one.devices}")


QUESTION: Final = Question(
    records.__doc__ or "",
    records,
    {
        "model": key("model"),
        "devices": key("devices"),
        "even stages": lambda one: format_seconds(one.even.timeline.end_s),
        "idle": lambda one: _idle(one.even),
        "their own": lambda one: format_seconds(one.own.timeline.end_s),
        "then idle": lambda one: _idle(one.own),
        "peaks": lambda one: _peaks(one.own),
        "times as fast": lambda one: f"{one.speedup:.2f}",
        "at most": key("limit", ".2f"),
        "unasked": lambda one: plan_text(one.unasked),
        "it takes": lambda one: step_text(one.unasked),
    },
    (
        option("--models", ["bert-large", "t5-large"], f"of {', '.join(MODELS)}"),
        option("--pairs", ["v100x8+p100x8", "p100x8+v100x8"], "presets of two machines, in the order of the stages"),
        option("--devices", 4, "of each kind"),
        option("--stages", 4, "in all"),
        option("--micro-batches", 16, "of a step"),
        option("--unasked", False, "look for the best plan, too"),
    ),
    ("devices", "idle", "then idle", "peaks", "unasked"),
    _faults,
)
