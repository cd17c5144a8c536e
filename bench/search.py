"""What the search for shardings takes, and how good its plans are."""

from __future__ import annotations

import gc
import json
import shlex
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import loops
import numpy as np
import quality
from models import exported
from planning import auto_shard, sharded
from report import Cell, Options, Question, key, option, run, run_child

from rhino.ir.graph.graph import Graph
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_seconds
from rhino.passes.base import Item, Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.sharding.choose_shardings import ChooseShardings, PhaseTimes, ShardingChoice
from rhino.passes.textual_pipelines import build_pass_manager, parse_pipeline
from rhino.passes.unsharded import unsharded_program
from rhino.strategies.solver.answer import Answer, Unsolved
from rhino.strategies.structure.cones import cones_of
from rhino.strategies.structure.critical_path import CriticalPath, critical_path
from rhino.strategies.structure.dependences import Flow, flow_of
from rhino.strategies.structure.segments import segments_between

RHINO_OPT: Final = Path(sysconfig.get_path("scripts")) / "rhino-opt"
PHASES: Final = ("read", "normalize", "rules", "graph", "candidates", "reduce", "solve", "write", "print")

Record = dict[str, Any]
Found = TypeVar("Found")


# Phases


def phases(options: Options) -> Iterator[Record]:
    """One search, phase by phase: what `rhino-opt --auto-shard FILE` does, with a clock between its steps.

    Seconds of the wall: graph, candidates, reduce, solve and write as the search's own pass times them. Nothing is
    warm.
    """
    spent: dict[str, float] = {}
    since = time.perf_counter()
    context, remarks = make_context(), Remarks(options.file)
    module = read_module(Path(options.file).read_bytes(), options.file, context)
    spent["read"] = time.perf_counter() - since
    for item in parse_pipeline(auto_shard(options.cluster, options.mesh, options.budget, options.level)):
        seconds = _run_item(item, module, remarks)
        if isinstance(item, ChooseShardings):
            spent |= remarks.result(PhaseTimes).seconds
        else:
            phase = "normalize" if isinstance(item, Normalize) else "rules"
            spent[phase] = spent.get(phase, 0.0) + seconds
    since = time.perf_counter()
    str(module.operation.get_asm(enable_debug_info=True)).encode()
    spent["print"] = time.perf_counter() - since
    yield {"model": Path(options.file).stem, "phases_s": spent, **_outcome(remarks)}


def _run_item(item: Item, module: ir.Module, remarks: Remarks) -> float:
    """Runs one step of a pipeline, and returns its seconds."""
    manager = build_pass_manager((item,), module.context, remarks)
    since = time.perf_counter()
    manager.run(module.operation)
    return time.perf_counter() - since


def _outcome(remarks: Remarks) -> Record:
    """Returns the size of the problem before and after exact reduction, and the answer. Units are in the names."""
    chosen = remarks.result(ShardingChoice)
    answer, search, program = chosen.answer, chosen.solver.statistics, chosen.program
    sizes = ("nodes", "edges", "states", "core_nodes", "core_edges", "solves")
    return {
        "ops": program.graph.num_ops,
        **{name: getattr(search, name) for name in sizes},
        "objective_s": answer.cost,
        "bound_s": answer.bound,
        "gap": answer.gap,
        "peak_bytes": answer.peak_bytes,
        "budget_bytes": chosen.budget_bytes,
        "method": answer.method,
    }


# The whole command


def timings(options: Options) -> Iterator[Record]:
    """How long the search takes on training steps, phase by phase, and what it finds.

    For every depth of a GPT, unrolled and scanned (one loop over the layers), or for what `--models` asks of
    examples/export.py: `phases`, and then the whole command `rhino-opt --auto-shard FILE -o OUT` with its peak memory.
    Each is one run in a process of its own. Times are wall seconds, but for `processor`: those of all cores in the
    whole command. `start` is what it takes beside the phases: Python, imports, and writing the file.
    """
    for name, words in _asked(options).items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "step.mlir"
            file.write_bytes(exported(words, "text"))
            yield {**_timed_command(file, options), "model": name, "module_bytes": file.stat().st_size}


def _asked(options: Options) -> dict[str, list[str]]:
    """Returns the words for examples/export.py of each model by name."""
    if options.models:
        return {line.strip(): shlex.split(line) for line in options.models}
    found = {}
    for layers in options.layers:
        for form in options.forms:
            sizes = [f"--{name}={getattr(options, name)}" for name in ("hidden", "seq", "vocab", "batch")]
            shape = [f"--ffn={4 * options.hidden}", f"--heads={max(options.hidden // 64, 1)}"]
            depth = [f"--layers={layers}", f"--scan={str(form == 'scanned').lower()}"]
            found[f"gpt-{layers}{'-scan' * (form == 'scanned')}"] = ["gpt", *sizes, *shape, *depth]
    return found


def _timed_command(file: Path, options: Options) -> Record:
    """Returns the figures of one file; of one that cannot be planned none."""
    target = [f"--{name}={getattr(options, name)}" for name in ("cluster", "mesh", "budget") if getattr(options, name)]
    report = file.with_suffix(".json")
    try:
        run_child([sys.executable, __file__, "phases", file, *target, f"--level={options.level}", f"--json={report}"])
    except SystemExit as error:
        return {"error": str(error)}
    record: Record = json.loads(report.read_text())["records"][0]
    command = [
        str(RHINO_OPT),
        "--auto-shard",
        f"-O{options.level}",
        *target,
        str(file),
        "-o",
        str(file.with_suffix(".out.mlir")),
    ]
    spent = run_child(command)
    start_s = spent.wall_s - sum(record["phases_s"].values())
    return {
        **record,
        "start_s": start_s,
        "total_s": spent.wall_s,
        "cpu_s": spent.cpu_s,
        "peak_rss_bytes": spent.peak_rss_bytes,
    }


def _phase(name: str) -> Cell:
    return lambda record: f"{record['phases_s'][name]:.2f}" if "phases_s" in record else ""


def _pair(first: str, second: str) -> Cell:
    return lambda record: f"{record[first]:,} / {record[second]:,}" if first in record else ""


_SPENT: Final[dict[str, Cell]] = {
    "": key("model"),
    "error": key("error"),
    "ops": key("ops", ","),
    "module": key("module_bytes", "bytes"),
    **{f"{name}, s": _phase(name) for name in PHASES},
    "start, s": key("start_s", ".2f"),
    "whole command, s": key("total_s", ".2f"),
    "processor, s": key("cpu_s", ".2f"),
    "peak RSS": key("peak_rss_bytes", "bytes"),
    "nodes / edges": _pair("nodes", "edges"),
    "after reduction": _pair("core_nodes", "core_edges"),
    "states": key("states", ","),
    "solves": key("solves"),
    "step": key("objective_s", "s"),
    "at least": key("bound_s", "s"),
    "gap": key("gap", ".2%"),
    "predicted peak": key("peak_bytes", "bytes"),
    "budget": key("budget_bytes", "bytes"),
    "found by": key("method"),
}
_TARGET: Final = (
    option("--cluster", "v100x8", "a preset's name or a cluster file"),
    option("--mesh", "", "mesh sizes (default all devices)"),
    option("--budget", "", "bytes per device (default what the cluster's devices have)"),
    option("--level", 3, "2 or 3, as -O2 and -O3 of rhino-opt"),
)
_GPTS: Final = (
    option("--layers", [2, 12, 24, 72], "depths of GPTs"),
    option("--forms", ["unrolled", "scanned"], "of the GPTs"),
    *(
        option(f"--{name}", size, "of the GPTs")
        for name, size in (("hidden", 1024), ("seq", 1024), ("vocab", 51200), ("batch", 8))
    ),
    (
        "--models",
        {"action": "append", "metavar": "WORDS", "help": "instead of GPTs: words for examples/export.py; repeatable"},
    ),
)


# Meshes


def meshes(options: Options) -> Iterator[Record]:
    """What three axes gain, and what they take to plan: `--mesh=auto`, and the best mesh of it on two axes.

    Processor seconds are those of planning all meshes in one process, without reading the step. "At least" is said of
    two axes where no mesh of them was planned to its end, as three were planned before.
    """
    gc.disable()  # as the tools do
    for name, words in _asked(options).items():
        step = exported(words, "text")
        for cluster in options.clusters:
            since = time.process_time()
            _, remarks = sharded(step, name, auto_shard(cluster, "auto", options.budget, options.level))
            spent_s = time.process_time() - since
            yield {"model": name, "cluster": cluster, "cpu_s": spent_s, **_meshes(remarks.result(ShardingChoice))}


def _meshes(chosen: ShardingChoice) -> Record:
    """Returns what the meshes came to."""
    planned = {target.mesh: one for target, one in chosen.outcomes if isinstance(one, Answer)}
    given_up = {target.mesh: one for target, one in chosen.outcomes if isinstance(one, Unsolved)}
    two_s = min((one.cost for mesh, one in planned.items() if len(mesh.axes) < 3), default=None)
    least_s = min((one.bound for mesh, one in given_up.items() if len(mesh.axes) < 3), default=np.inf)
    return {
        "mesh": str(chosen.target.mesh),
        "step_s": chosen.answer.cost,
        "gap": chosen.answer.gap,
        "two_axes": format_seconds(two_s) if two_s else f"at least {format_seconds(least_s)}",
        "meshes": f"{len(planned)}, {len(given_up)}",
    }


# Structure

_SMALL_GPT: Final = "gpt --hidden=512 --heads=8 --ffn=2048"
"""The hidden size of the GPTs of Rhino 7.5; its table of statistics does not name another."""

STRUCTURED: Final = [
    *(f"gpt-{layers}: {_SMALL_GPT} --layers={layers}" for layers in (2, 24, 72)),
    f"gpt-72-scan: {_SMALL_GPT} --layers=72 --scan=true",
    *(f"{preset}: moe --preset={preset}" for preset in ("moe-8e-380m", "moe-32e-10b")),
    "two-tower: two-tower",
]


_TABLE5: Final = {
    "gpt-72": {"Rhino: ops": 76_000, "Rhino: critical nodes": 378, "Rhino: subgraphs": 377},
    "moe-32e-10b": {"Rhino: ops": 18_000, "Rhino: critical nodes": 90, "Rhino: subgraphs": 89},
}
"""Rhino's Table 5, by the model that is nearest to it here; ops are in thousands there."""


def structures(options: Options) -> Iterator[Record]:
    """What the structure passes see in a model: critical nodes, cones, segments, and how many segments are alike.

    They are those of Rhino's Table 5 and TAP IV-C. Critical nodes are counted as in the paper, every op taking one unit
    of time, and as segments are cut, products alone taking time. Of those of the paper, a program can be cut at the
    ones that are alone on the backbone at their time; those *with a weight* also read an argument. The paper's own
    counts of a model stand below them. Times are wall seconds of one run of each decision on the graph.
    """
    gc.disable()  # as the tools do
    for model in options.models:
        name, _, words = model.partition(":")
        name = name.strip()
        yield {"model": name, **_structure(_graph(exported(words.split()))), **_TABLE5.get(name, {})}


def _graph(step: bytes) -> Graph:
    module, _ = sharded(step, "step.mlirbc", "rhino-normalize")
    with module.context, ir.Location.unknown(), unsharded_program(module.operation, Remarks()) as program:
        return program.graph


def _timed(decide: Callable[[], Found]) -> tuple[Found, float]:
    """Returns what a decision found, and its seconds."""
    since = time.perf_counter()
    found = decide()
    return found, time.perf_counter() - since


def _structure(graph: Graph) -> Record:
    """Returns the statistics of one graph."""
    flow, flow_s = _timed(lambda: flow_of(graph))
    path, path_s = _timed(lambda: critical_path(graph, flow))
    cones, cones_s = _timed(lambda: cones_of(graph, flow))
    products, products_s = _timed(lambda: critical_path(graph, flow, only_products=True))
    segments, segments_s = _timed(lambda: segments_between(graph, flow, products))
    _, examples = np.unique(segments.fold, return_index=True)
    return {
        "ops": graph.num_ops,
        "ops that take part": int(flow.counts.sum()),
        "critical path": path.length,
        "critical nodes": int(path.critical.sum()),
        **_pivots(graph, flow, path),
        "critical nodes, products alone": int(products.critical.sum()),
        "cones": len(cones.root),
        "largest cone": int(np.bincount(cones.number[flow.counts], minlength=1).max()),
        "segments": len(segments.fold),
        "largest segment": int(segments.sizes().max(initial=0)),
        "unique segments": segments.num_unique,
        "ops in them": int(segments.sizes()[examples].sum()),
        "flow, s": flow_s,
        "critical path, s": path_s,
        "cones, s": cones_s,
        "segments, s": products_s + segments_s,
    }


def _pivots(graph: Graph, flow: Flow, path: CriticalPath) -> Record:
    """Returns how many critical nodes are alone on the backbone at their time, and how many of these have a weight."""
    backbone = flow.counts & (path.earliest == path.latest)
    width = np.bincount(path.earliest[backbone], minlength=path.length)
    alone = np.flatnonzero(path.critical & (width[path.earliest] == 1))
    with_weight = [op for op in alone.tolist() if (graph.operands(op) < len(graph.arguments)).any()]
    return {"critical nodes alone": len(alone), "critical nodes alone, with a weight": len(with_weight)}


def _share(name: str) -> Cell:
    return lambda record: f"{record[name]:,} ({record[name] / max(record['ops'], 1):.1%})"


_COUNTS: Final = ("ops", "ops that take part", "critical path")
_CRITICAL: Final = (
    "critical nodes",
    "critical nodes alone",
    "critical nodes alone, with a weight",
    "critical nodes, products alone",
)
_PAPER: Final = ("Rhino: ops", "Rhino: critical nodes", "Rhino: subgraphs")
_PARTS: Final = ("cones", "largest cone", "segments", "largest segment", "unique segments", "ops in them")
_SECONDS: Final = ("flow, s", "critical path, s", "cones, s", "segments, s")
_SEEN: Final[dict[str, Cell]] = {
    "": key("model"),
    **{name: key(name, ",") for name in _COUNTS},
    **{name: _share(name) for name in _CRITICAL},
    **{name: key(name, ",") for name in (*_PAPER, *_PARTS)},
    **{name: key(name, ".3f") for name in _SECONDS},
}


def _errors(records: Sequence[Record]) -> Iterator[str]:
    yield from (f"{record['model']}: {record['error']}" for record in records if "error" in record)


_FILE: Final = ("file", {"metavar": "FILE", "help": "a training step as StableHLO"})
QUESTIONS: Final = {
    "time": Question(str(timings.__doc__), timings, _SPENT, (*_GPTS, *_TARGET), faults=_errors, is_across=True),
    "phases": Question(str(phases.__doc__), phases, _SPENT, (_FILE, *_TARGET), is_across=True),
    "quality": quality.QUESTION,
    "loops": loops.QUESTION,
    "staged-loops": loops.IN_STAGES,
    "kernels": loops.KERNELS,
    "meshes": Question(
        str(meshes.__doc__),
        meshes,
        {
            "": key("model"),
            "cluster": key("cluster"),
            "best mesh": key("mesh"),
            "step": key("step_s", "s"),
            "gap": key("gap", ".2%"),
            "two axes": key("two_axes"),
            "planned, given up": key("meshes"),
            "processor, s": key("cpu_s", ".1f"),
        },
        (*_GPTS, option("--clusters", ["h100x8x8", "v5p-128", "v5p-1024"], "presets or cluster files"), *_TARGET[2:]),
        ("cluster", "best mesh"),
    ),
    "structure": Question(
        str(structures.__doc__),
        structures,
        _SEEN,
        (option("--models", STRUCTURED, "NAME: words for examples/export.py; ...", ";"),),
        is_across=True,
    ),
}

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTIONS, sys.argv[1:]))
