"""Training steps in f32, in mixed precision by `--amp`, and written in bf16 by hand: predicted steps and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from models import sized, step_of
from planning import auto_shard, sharded
from report import Cell, Options, Question, option

from rhino.ir.diagnostics import RhinoError
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.sharding.choose_shardings import ShardingChoice

MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gpt": ("gpt-medium", {"layers": 12, "batch": 32}),
    "gpt-scan": ("gpt-medium", {"layers": 12, "batch": 32, "scan": True}),
    "wide-resnet": ("wr-0.5b", {"batch": 64}),
    "small-gpt": ("gpt-tiny", {}),
}
"""Presets of examples/export.py, and what is other than in them."""

WAYS: Final = ("f32", "bf16", "bf16:sums", "by hand")
_HAND: Final = WAYS[-1]

Record = dict[str, Any]


def records(options: Options) -> Iterator[Record]:
    """What `--amp=bf16` saves: the step in f32, in mixed precision, with sums of gradients in bf16, and by hand.

    Printed are the predicted time of a step and the peak of memory per device, in the best plan of one program. By hand
    are models of examples/ that have bf16 of their own. The exit code is 1 if a step in mixed precision takes longer or
    more memory than in f32.
    """
    for name in options.models:
        preset, sizes = MODELS[name]
        for cluster in options.clusters:
            yield {"model": name, "cluster": cluster} | {way: _planned(preset, sizes, cluster, way) for way in WAYS}


def _planned(preset: str, sizes: dict[str, Any], cluster: str, way: str) -> Record | None:
    """Returns the step and the peak of a model, None where it does not fit or is not written so."""
    try:
        model = sized(preset, **sizes, **({"dtype": "bf16"} if way == _HAND else {}))
    except TypeError:  # its configuration has no such field
        return None
    pipeline = auto_shard(cluster, amp=way) if way.startswith("bf16") else auto_shard(cluster)
    try:
        _, remarks = sharded(step_of(model), preset, pipeline)
    except RhinoError:
        return None
    answer = remarks.result(ShardingChoice).answer
    return {"step_s": answer.cost, "peak_bytes": int(answer.peak_bytes)}


def _cell(way: str) -> Cell:
    def text(row: Record) -> str:
        one = row[way]
        return f"{format_seconds(one['step_s'])}, {format_bytes(one['peak_bytes'])}" if one else "-"

    return text


def _faults(found: Sequence[Record]) -> Iterator[str]:
    for row in found:
        before, after = row["f32"], row["bf16"]
        if before and (not after or any(after[name] > before[name] for name in before)):
            yield f"{row['model']} on {row['cluster']}: mixed precision takes more than f32"


QUESTION: Final = Question(
    str(records.__doc__),
    records,
    {"model": lambda row: row["model"], "cluster": lambda row: row["cluster"], **{way: _cell(way) for way in WAYS}},
    (
        option("--models", ["gpt", "gpt-scan", "wide-resnet"], f"of {', '.join(MODELS)}"),
        option("--clusters", ["v100x8", "h100x8", "v5e-8"], "presets or cluster files"),
    ),
    ("cluster",),
    _faults,
)
