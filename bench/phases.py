"""One search, phase by phase: what `rhino-opt --auto-shard FILE` does, with a clock between its steps.

    python bench/phases.py step.mlir [--cluster=v100x8] [--mesh=8] [--budget=16GiB] [--level=3]

Prints a JSON object: `phases_s` (seconds: read, normalize, rules; graph, candidates, reduce, solve and write as the search's own pass times
them; print), the size of the problem, and the answer. Run in a process of its own, so that nothing is warm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.registry import Item
from rhino.passes.sharding.choose_shardings import ChooseShardings
from rhino.passes.textual_pipelines import build_pass_manager, parse_pipeline


def measure(file: str, pipeline: str) -> dict[str, Any]:
    """Returns what the search on a file took and found.

    Raises:
        RhinoError: what the pipeline raises, RHI-SOLVE-001 where the model does not fit.
    """
    phases: dict[str, float] = {}
    since = time.perf_counter()
    context, remarks = make_context(), Remarks(file)
    module = read_module(Path(file).read_bytes(), file, context)
    phases["read"] = time.perf_counter() - since
    for item in parse_pipeline(pipeline):
        seconds = run_item(item, module, remarks)
        phase = _phase(item)
        if phase:
            phases[phase] = phases.get(phase, 0.0) + seconds
        else:
            phases |= remarks.statistics["phases"]
    since = time.perf_counter()
    str(module.operation.get_asm(enable_debug_info=True)).encode()
    phases["print"] = time.perf_counter() - since
    return {"phases_s": phases, **found(remarks)}


def run_item(item: Item, module: ir.Module, remarks: Remarks) -> float:
    """Runs one step of a pipeline, and returns its seconds."""
    manager = build_pass_manager((item,), module.context, remarks)
    since = time.perf_counter()
    manager.run(module.operation)
    return time.perf_counter() - since


def _phase(item: Item) -> str:
    """The phase that a step is; none for the search, which tells its own."""
    match item:
        case Normalize():
            return "normalize"
        case ChooseShardings():
            return ""
    return "rules"


def found(remarks: Remarks) -> dict[str, Any]:
    """Returns the size of the problem before and after exact reduction, and the answer. Units are in the names."""
    answer, search, program = (remarks.statistics[key] for key in ("answer", "search", "program"))
    return {
        "ops": program.graph.num_ops,
        "nodes": search.nodes,
        "edges": search.edges,
        "states": search.states,
        "core_nodes": search.core_nodes,
        "core_edges": search.core_edges,
        "solves": search.solves,
        "objective_s": answer.cost,
        "bound_s": answer.bound,
        "gap": answer.gap,
        "peak_bytes": answer.peak_bytes,
        "budget_bytes": remarks.statistics["budget_bytes"],
        "method": answer.method,
    }


def auto_shard(cluster: str, mesh: str = "", budget: str = "", level: int = 3) -> str:
    """Returns the pipeline for a cluster (a preset or a file), a mesh and a budget; empty takes the defaults."""
    return f'auto-shard{{cluster="{cluster}" mesh="{mesh}" budget="{budget}" level={level}}}'


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code, that of the error if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--cluster", default="v100x8", help="a preset's name or a cluster file")
    parser.add_argument("--mesh", default="", help="mesh sizes (default: all devices)")
    parser.add_argument("--budget", default="", help="bytes per device (default: what the cluster's devices have)")
    parser.add_argument("--level", type=int, default=3, help="2 or 3, as -O2 and -O3 of rhino-opt (default 3)")
    options = parser.parse_args(argv)
    try:
        print(json.dumps(measure(options.file, auto_shard(options.cluster, options.mesh, options.budget, options.level))))
    except RhinoError as error:
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
