"""What a sharded step sends: as planned, as localized, and as XLA compiles it in both forms.

    python bench/traffic.py [--models=gpt,mlp] [--cluster=FILE] [--budget=BYTES]

For every model of examples/zoo.py, by kind of collective: how many, and their payload per step and device.

    plan       what the search foresaw
    local      what stands in each device's program (`rhino-opt --localize`)
    localized  what XLA makes of that program
    annotated  what XLA's partitioner makes of the shardings alone

The last two are those of the CPU backend, which sends bf16 as f32, splits an all-to-all into a tuple, and may merge collectives.
Without `--cluster` it is one whose devices are slow and whose links are fast, so that even tiny models are split.
Exit code: 1 if plan and local differ in any number.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax
from planning import plan_step, zoo, zoo_step

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.graph.collective_stats import KINDS, CollectiveStats, Count
from rhino.ir.graph.hlo_collectives import hlo_stats
from rhino.ir.units import format_bytes
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executable import compile_module


def splitting_cluster(memory_bytes_per_s: float = 1e9, link_bytes_per_s: float = 1e15) -> str:
    """Returns a cluster file: eight devices so slow, on links so fast, that it pays to split the tiniest tensor."""
    cluster = load_cluster("v100x8")
    slow = tuple((key, 1e9) for key, _ in cluster.device.flops_per_s)
    device = replace(cluster.device, flops_per_s=slow, hbm_bytes_per_s=memory_bytes_per_s)
    levels = tuple(replace(level, latency_s=1e-12, port_bytes_per_s=link_bytes_per_s, partial_bytes_per_s=()) for level in cluster.levels)
    return cluster_to_text(replace(cluster, name="splitting", about="slow devices, fast links", device=device, levels=levels))


def tallies(name: str, cluster: str, budget: str) -> dict[str, CollectiveStats]:
    """Returns the four tallies of one model, by column."""
    planned = plan_step(zoo_step(name), name, cluster, budget)
    compiled = {form: hlo_stats(compile_module(planned.form(form), jax.devices()).hlo_text()) for form in ("localized", "annotated")}
    return {"plan": planned.predicted, "local": planned.localized, **compiled}


def table(name: str, columns: Mapping[str, CollectiveStats]) -> str:
    """Returns the rows of one model: a line for each kind that any column has, and one for all."""
    kinds = [kind for kind in KINDS if any(kind in stats.counts for stats in columns.values())]
    rows = [(kind, [stats.counts.get(kind, Count()) for stats in columns.values()]) for kind in kinds]
    rows.append(("total", [stats.total for stats in columns.values()]))
    return "\n".join(f"{name:<12} {kind:<18}" + "".join(f"{_count(count):>18}" for count in counts) for kind, counts in rows)


def _count(count: Count) -> str:
    return f"{format_bytes(count.num_bytes)} in {count.num}" if count.num else "-"


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", help="names in examples/zoo.py (default: all)")
    parser.add_argument("--cluster", help="a preset's name or a cluster file")
    parser.add_argument("--budget", default="", help="bytes per device, as 300KiB")
    options = parser.parse_args(argv)
    request_host_devices(8, os.environ)
    names = options.models.split(",") if options.models else list(zoo())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "splitting.toml"
        file.write_text(splitting_cluster(), encoding="utf-8")
        print(f"{'model':<12} {'collective':<18}" + "".join(f"{column:>18}" for column in ("plan", "local", "localized", "annotated")))
        results = {name: report(name, options.cluster or str(file), options.budget) for name in names}
    wrong = [name for name, agrees in results.items() if not agrees]
    print(f"\nplan and local differ: {', '.join(wrong)}" if wrong else "\nplan and local agree in every number")
    return int(bool(wrong))


def report(name: str, cluster: str, budget: str) -> bool:
    """Prints the rows of one model; returns whether plan and local agree."""
    columns = tallies(name, cluster, budget)
    print(table(name, columns), flush=True)
    return columns["plan"] == columns["local"]


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
