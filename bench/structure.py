"""What the structure passes see in a model: critical nodes, cones, segments, and how many segments are alike (Rhino Table 5, TAP IV-C).

    python bench/structure.py [--models="gpt-4: gpt --layers=4; moe-32e-10b: moe --preset=moe-32e-10b"] [--json=FILE]

A model is a name and what `examples/export.py` takes. Critical nodes are counted as in the paper, every op taking one unit of time, and as
segments are cut, products alone taking time. Times are wall seconds of one run of each decision on the graph.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from search import EXPORT, machine

from rhino.ir.graph.graph import Graph
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.passes.unsharded import whole_program
from rhino.strategies.structure.cones import cones_of
from rhino.strategies.structure.critical_path import critical_path
from rhino.strategies.structure.dependences import flow_of
from rhino.strategies.structure.segments import segments_between

_GPT: Final = "gpt --hidden=512 --heads=8 --ffn=2048"
"""The hidden size of the GPTs of Rhino 7.5; its table of statistics does not name another."""

MODELS: Final = "; ".join(
    (
        *(f"gpt-{layers}: {_GPT} --layers={layers}" for layers in (2, 24, 72)),
        f"gpt-72-scan: {_GPT} --layers=72 --scan=true",
        *(f"{preset}: moe --preset={preset}" for preset in ("moe-8e-380m", "moe-32e-10b")),
        "two-tower: two-tower",
    )
)

Found = TypeVar("Found")
Record = dict[str, Any]


def graph_of(arguments: Sequence[str]) -> Graph:
    """Returns the graph of a model's training step; `arguments` are what the exporter takes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.mlirbc"
        subprocess.run([sys.executable, EXPORT, *arguments, "--format=bytecode", "-o", file], check=True)
        module = read_module(file.read_bytes(), file.name, make_context())
    build_pass_manager((Normalize(),), module.context).run(module.operation)
    with module.context, ir.Location.unknown(), whole_program(module.operation, Remarks()) as program:
        return program.graph


def timed(decide: Callable[[], Found]) -> tuple[Found, float]:
    """Returns what a decision found, and its seconds."""
    since = time.perf_counter()
    found = decide()
    return found, time.perf_counter() - since


def measure(model: str) -> Record:
    """Returns the statistics of one model, "NAME: ARGUMENTS"."""
    name, _, arguments = model.partition(":")
    graph = graph_of(arguments.split())
    flow, flow_s = timed(lambda: flow_of(graph))
    path, path_s = timed(lambda: critical_path(graph, flow))
    cones, cones_s = timed(lambda: cones_of(graph, flow))
    products, products_s = timed(lambda: critical_path(graph, flow, only_products=True))
    segments, segments_s = timed(lambda: segments_between(graph, flow, products))
    _, examples = np.unique(segments.fold, return_index=True)
    return {
        "model": name.strip(),
        "ops": graph.num_ops,
        "ops that take part": int(flow.counts.sum()),
        "critical path": path.length,
        "critical nodes": int(path.critical.sum()),
        "critical nodes, products alone": int(products.critical.sum()),
        "cones": len(cones.root),
        "largest cone": int(np.bincount(cones.number[flow.counts], minlength=1).max()),
        "segments": len(segments.fold),
        "largest segment": int(segments.sizes().max(initial=0)),
        "unique segments": segments.num_unique,
        "ops in them": int(segments.sizes()[examples].sum()),
        "flow_s": flow_s,
        "critical_path_s": path_s,
        "cones_s": cones_s,
        "segments_s": products_s + segments_s,
    }


def cell(name: str, record: Record) -> str:
    """Returns the text of one figure."""
    value = record[name]
    if name.startswith("critical nodes"):
        return f"{value:,} ({value / max(record['ops'], 1):.1%})"
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def table(records: Sequence[Record]) -> str:
    """Returns a Markdown table: a column for each model."""
    names = [name for name in records[0] if name != "model"]
    lines = [["", *(record["model"] for record in records)], ["---", *["---:"] * len(records)]]
    lines += [[name.replace("_s", ", s").replace("_", " "), *(cell(name, record) for record in records)] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code, 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", default=MODELS, help="NAME: what the exporter takes; NAME: ...")
    parser.add_argument("--json", metavar="FILE", help="write every figure there too")
    options = parser.parse_args(argv)
    gc.disable()  # as the tools do
    records = []
    for model in options.models.split(";"):
        records.append(measure(model))
        print(f"measured {records[-1]['model']}", file=sys.stderr, flush=True)
    print(f"{machine()}\n\n{table(records)}")
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "records": records}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
