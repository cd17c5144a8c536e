"""What fits with moments and activations in host memory: GPTs whose state, or whose batch, is too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from models import sized, step_of
from planning import auto_shard, sharded
from report import Cell, Options, Question, option

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.graph.spec import num_parts
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.planner.plan_costs import plan_costs
from rhino.passes.sharding.choose_shardings import ShardingChoice

MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gpt-1b": (
        "gpt-medium",
        {"layers": 24, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 8192, "seq": 512, "batch": 4},
    ),
    "gpt-13b": (
        "gpt-medium",
        {"layers": 16, "hidden": 8192, "heads": 64, "ffn": 32768, "vocab": 8192, "seq": 512, "batch": 8},
    ),
    "gpt-batch": (
        "gpt-medium",
        {"hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 8192, "seq": 512, "batch": 16, "scan": True},
    ),
    "small-gpt": ("gpt-tiny", {}),
}
"""Presets of examples/export.py, and what is other than in them; all are 512 tokens long."""

CASES: Final = (
    ("gpt-1b", "v100x8", "1"),
    ("gpt-1b", "v5e-8", "2"),
    ("gpt-13b", "v100x8", "8"),
    ("gpt-batch", "v5e-8", "1"),
)
"""Models with the clusters and meshes that hardly hold them."""

WAYS: Final = {"on the devices": {}, "--offload": {"offload": "true"}}

Record = dict[str, Any]


def records(options: Options) -> Iterator[Record]:
    """What `--offload` lets fit: the step and the peak of memory per device, with the state on the devices and without.

    Printed are predictions of the best plan of one program, and what lies in host memory for each device. The exit code
    is 1 if a step that fits on the devices takes longer with `--offload`.
    """
    for model, cluster, mesh in CASES if not options.models else [(one, "cpu4", "2") for one in options.models]:
        row = {"model": model, "cluster": cluster, "mesh": mesh}
        yield row | {way: _planned(model, cluster, mesh, asked) for way, asked in WAYS.items()}


def _planned(model: str, cluster: str, mesh: str, asked: dict[str, str]) -> Record | None:
    """Returns the step, the peak and what lies in host memory of a model; None where it does not fit."""
    preset, own = MODELS[model]
    try:
        _, remarks = sharded(step_of(sized(preset, **own)), preset, auto_shard(cluster, mesh, "", 3, **asked))
    except RhinoError as error:
        if error.exit_code != ExitCode.DOES_NOT_FIT:
            raise
        return None
    chosen = remarks.result(ShardingChoice)
    plan = chosen.plan
    there = sum(plan.graph.type_of(one).num_bytes // num_parts(plan.specs[one], plan.sizes) for one in plan.on_host)
    saved = waiting.num_bytes if (waiting := plan_costs(chosen).waiting()) else 0
    sizes = {"peak_bytes": int(chosen.answer.peak_bytes), "host_bytes": there, "saved_bytes": saved}
    return {"step_s": chosen.answer.cost, **sizes}


def _cell(way: str) -> Cell:
    def text(row: Record) -> str:
        one = row[way]
        if one is None:
            return "does not fit"
        there = f", {format_bytes(one['host_bytes'])} of moments in host memory" if one["host_bytes"] else ""
        there += f", {format_bytes(one['saved_bytes'])} of activations" if one["saved_bytes"] else ""
        return f"{format_seconds(one['step_s'])}, {format_bytes(one['peak_bytes'])}{there}"

    return text


def _faults(found: Sequence[Record]) -> Iterator[str]:
    for row in found:
        before, after = (row[way] for way in WAYS)
        if before and (not after or after["step_s"] > before["step_s"] * 1.001):
            yield f"{row['model']} on {row['cluster']}: --offload takes longer than what fits without it"


QUESTION: Final = Question(
    str(records.__doc__),
    records,
    {
        "model": lambda row: row["model"],
        "cluster": lambda row: row["cluster"],
        "mesh": lambda row: row["mesh"],
        **{way: _cell(way) for way in WAYS},
    },
    (option("--models", [], f"of {', '.join(MODELS)}, on two host devices, in place of the cases"),),
    ("mesh",),
    _faults,
)
