"""What a sharded step sends: predicted, planned and compiled; and what joining, fused weights and padding come to."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import hidden
import jax
import joined
import strides
from models import sized, step_of, zoo, zoo_step
from planning import auto_shard, plan_step, sharded
from report import Cell, Options, Question, key, option, run

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.graph.collective_stats import KINDS, CollectiveStats, Count
from rhino.ir.hlo.collectives import hlo_stats
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.program.collectives import module_stats
from rhino.ir.units import format_bytes
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executable import compile_module

Record = dict[str, Any]
FORMS: Final = ("plan", "local", "localized", "annotated")


def splitting_cluster(memory_bytes_per_s: float = 1e9, link_bytes_per_s: float = 1e15) -> str:
    """Returns a cluster file: eight devices so slow, on links so fast, that it pays to split the tiniest tensor."""
    cluster = load_cluster("v100x8")
    slow = tuple((name, 1e9) for name, _ in cluster.device.flops_per_s)
    device = replace(cluster.device, flops_per_s=slow, hbm_bytes_per_s=memory_bytes_per_s, workspace_bytes=None)
    fast: dict[str, Any] = {"latency_s": 1e-12, "port_bytes_per_s": link_bytes_per_s, "partial_bytes_per_s": ()}
    levels = tuple(replace(level, **fast) for level in cluster.levels)
    named = replace(cluster, name="splitting", about="slow devices, fast links", device=device, levels=levels)
    return cluster_to_text(named)


# Models


def collectives(options: Options) -> Iterator[Record]:
    """What a sharded step sends: as planned, as localized, and as XLA compiles it in both forms.

    Counted are, for every model of examples/zoo.py and kind of collective, how many there are, and their payload per
    step and device:

        plan       what the search foresaw
        local      what stands in each device's program (`rhino-opt --localize`)
        localized  what XLA makes of that program
        annotated  what XLA's partitioner makes of the shardings alone

    The last two are those of the CPU backend, which sends bf16 as f32, splits an all-to-all into a tuple, and may merge
    collectives. Without `--cluster` it is one whose devices are slow and whose links are fast, so that even tiny models
    are split. The exit code is 1 if plan and local differ in any number.
    """
    request_host_devices(8, os.environ)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "splitting.toml"
        file.write_text(splitting_cluster(), encoding="utf-8")
        for name in options.models or list(zoo()):
            yield from _rows(name, _tallies(name, options.cluster or str(file), options.budget))


def _tallies(name: str, cluster: str, budget: str) -> dict[str, CollectiveStats]:
    """Returns the four tallies of one model, by column."""
    planned = plan_step(zoo_step(name), name, cluster, budget)
    compiled = [hlo_stats(compile_module(planned.form(form), jax.devices()).hlo_text()) for form in FORMS[2:]]
    return dict(zip(FORMS, (planned.predicted, planned.localized, *compiled), strict=True))


def _rows(name: str, columns: Mapping[str, CollectiveStats]) -> Iterator[Record]:
    """Yields a record for each kind that any column has, and one for all."""
    for kind in (*KINDS, "total"):
        counts = {
            form: stats.total if kind == "total" else stats.counts.get(kind, Count()) for form, stats in columns.items()
        }
        if any(count.num for count in counts.values()):
            sent = {form: {"num": count.num, "num_bytes": count.num_bytes} for form, count in counts.items()}
            yield {"model": name, "collective": kind, **sent}


def _sent(form: str) -> Cell:
    return lambda row: f"{format_bytes(row[form]['num_bytes'])} in {row[form]['num']}" if row[form]["num"] else "-"


def _disagree(records: Sequence[Record]) -> Iterator[str]:
    for one in records:
        if one["plan"] != one["local"]:
            yield f"{one['model']}: plan and local differ in {one['collective']}"


# Padding


def paddings(options: Options) -> Iterator[Record]:
    """What a vocabulary costs that devices do not divide: as it is, padded by `rhino-pad`, and padded in the model.

    A training step of GPT with a tied embedding, planned for a cluster. Printed are how the embedding is stored, the
    payload of the local program's collectives per step and device and how many there are, the predicted time and peak
    of memory, and the masks that keep padding out of answers. The exit code is 1 if the padded step takes longer than
    the one that is not, by prediction.
    """
    devices = load_cluster(options.cluster).num_devices
    odd, even = _gpt(options, options.vocab), _gpt(options, -(-options.vocab // devices) * devices)
    for name, text, pad in (("as it is", odd, ""), ("padded", odd, "embed:0"), ("in the model", even, "")):
        yield _padded(name, text, options.cluster, pad)


def _gpt(options: Options, vocab: int) -> bytes:
    sizes = {name: getattr(options, name) for name in ("layers", "hidden", "batch", "seq")}
    return step_of(sized("gpt", heads=8, ffn=4 * options.hidden, vocab=vocab, **sizes))


def _padded(name: str, text: bytes, cluster: str, pad: str) -> Record:
    """Returns what a step comes to, whose arguments named `pad` are padded."""
    module, remarks = sharded(text, name, auto_shard(cluster, pad=pad))
    entry = entry_function(module)
    sharding = str(boundary_attributes(entry, "arg")[0][SHARDING])
    total = module_stats(localized_copy(module, name)).total
    masks = next((int(one.text.split()[0]) for one in remarks.items if " masks keep padding out" in one.text), 0)
    answer = remarks.result(ShardingChoice).answer
    return {
        "vocabulary": name,
        "embedding": f"{'x'.join(map(str, entry.type.inputs[0].shape))} {sharding[sharding.index('[') : -1]}",
        "sent": {"num": total.num, "num_bytes": total.num_bytes},
        "step_s": answer.cost,
        "peak_bytes": int(answer.peak_bytes),
        "masks": masks,
    }


def _longer(records: Sequence[Record]) -> Iterator[str]:
    whole, padded, _ = records
    if padded["step_s"] > whole["step_s"]:
        yield "the padded step is predicted to take longer"


_PADDING: Final = {
    "vocabulary": key("vocabulary"),
    "embedding": key("embedding"),
    "sent": _sent("sent"),
    "step": key("step_s", "s"),
    "peak": key("peak_bytes", "bytes"),
    "masks": key("masks"),
}
_GPT: Final = (("vocab", 50257), ("layers", 4), ("hidden", 1024), ("batch", 8), ("seq", 1024))

QUESTIONS: Final = {
    "models": Question(
        str(collectives.__doc__),
        collectives,
        {"model": key("model"), "collective": key("collective"), **{form: _sent(form) for form in FORMS}},
        (
            option("--models", [], "names in examples/zoo.py (default all)"),
            option("--cluster", "", "a preset's name or a cluster file"),
            option("--budget", "", "bytes per device, as 300KiB"),
        ),
        ("collective",),
        _disagree,
    ),
    "pad": Question(
        str(paddings.__doc__),
        paddings,
        _PADDING,
        (
            *(option(f"--{name}", size, "of the GPT") for name, size in _GPT),
            option("--cluster", "h100x8", "a preset's name or a cluster file"),
        ),
        ("embedding",),
        _longer,
    ),
    "hidden": hidden.QUESTION,
    "joined": joined.QUESTION,
    "strides": strides.QUESTION,
}

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTIONS, sys.argv[1:]))
