"""How training steps are cut in pipeline stages: the search against splits along a line.

Its time is measured against the tolerance, too.

A model is a name and what `examples/export.py` takes; rhino-micro-batch takes its batch in parts. For every number of
stages three cuts:

    equal layers   the line of ops, folded where the backward pass begins, in stretches of equal work
    best line      the same line in the stretches that cost least within the tolerance, exactly; of all lines
                   that the search tries
    search         strategies/pipeline/stages/cut.py

each with the bytes that move between stages per step, in how many transfers, and the most work of a stage over its even
share. What is least is the seconds that they take of a link; `gap` is by how much any choice in the search's windows
can cost less, at most. Seconds are those of the processor, which other processes on the machine change little, for the
decision alone; `stage-times` gives them for a GPT of 72 layers. The exit code is 1 if a search costs more than the best
line by more than it gives for a better balance.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from models import exported
from report import Cell, Options, Question, key, option

from rhino.ir.arrays import Ints
from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.ir.graph.graph import Graph
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.units import format_bytes
from rhino.passes.base import Remarks
from rhino.passes.pipeline.sharded_step import sharded_step
from rhino.passes.registry import build_named
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.passes.unsharded import unsharded_program
from rhino.strategies.pipeline.stages.cut import CONTENT, StageAnswer, solve_stages
from rhino.strategies.pipeline.stages.line import cut, equal_cut, lines_of, on_devices, stretches
from rhino.strategies.pipeline.stages.stage_graph import Staging, make_staging
from rhino.strategies.structure.training_phases import TrainingPhases, parts_of

MODELS: Final = [
    "gpt: gpt --layers=8 --batch=32",
    "moe: moe --layers=8 --batch=32",
    "t5: t5 --batch=32",
    "unet: unet --batch=32",
    "two-tower: two-tower --pairs=true",
]

DEEP: Final = ["gpt-72: gpt --hidden=512 --heads=8 --ffn=2048 --layers=72 --batch=32"]

CLUSTER: Final = "v100x8"

Record = dict[str, Any]


def read_parts(arguments: Sequence[str], micro_batches: int) -> tuple[Graph, TrainingPhases]:
    """Returns a model's training step with a loop over micro-batches in parts, costed whole on a device of the cluster.

    `arguments` are what the exporter takes.
    """
    module = read_module(exported(arguments), "step.mlirbc", make_context())
    steps = build_named("micro-batch", {"num": str(micro_batches)})
    assert steps is not None
    build_pass_manager(steps, module.context).run(module.operation)
    with module.context, ir.Location.unknown(), unsharded_program(module.operation, Remarks()) as program:
        seconds = sharded_step(program, module.operation, load_cluster(CLUSTER)).seconds
        return program.graph, parts_of(program.graph, accumulation_loop(program), seconds)


def figures(staging: Staging, stage: Ints) -> Record:
    """Returns what a choice costs and moves, and its largest work over the even share."""
    device = staging.problem.device(stage)
    work = staging.problem.device_work(device)
    moved, transfers = staging.moved(device)
    return {
        "cost_s": staging.problem.cost(device),
        "moved_bytes": moved,
        "transfers": transfers,
        "work": float(work.max() / work.mean()),
    }


def line_cuts(staging: Staging, limit_s: float) -> tuple[Record, Record]:
    """Returns the figures of the equal split that costs least, and of the best cut of a line within the work limit."""
    equal, best, problem = [], [], staging.problem
    for line in [line for late in (problem.late, *problem.turns) for line in lines_of(replace(problem, late=late))]:
        parts = stretches(problem, line)
        assert parts is not None, "nothing is pinned"
        equal.append(figures(staging, line.stages(problem, equal_cut(parts, problem.num_stages))))
        if (found := cut(problem, on_devices(problem, parts), limit_s)) is not None:
            best.append(figures(staging, line.stages(problem, found[1])))
    return min(equal, key=_cost), min(best, key=_cost)


def _cost(record: Record) -> float:
    return float(record["cost_s"])


def measure(
    name: str, graph: Graph, parts: TrainingPhases, num_stages: int, micro_batches: int, tolerance: float
) -> Record:
    """Returns the figures of one model, number of stages and tolerance."""
    since = time.process_time()
    link = mesh_axes(load_cluster(CLUSTER), (num_stages,))[0].link
    staging = make_staging(graph, parts, num_stages, micro_batches, link=link)
    problem = staging.problem
    read_s = time.process_time() - since
    answer = solve_stages(problem, tolerance)
    seconds = time.process_time() - since - read_s
    assert isinstance(answer, StageAnswer), "there is no budget, and nothing is pinned"
    equal, line = line_cuts(staging, answer.limit_s)
    return {
        "model": name,
        "ops": graph.num_ops,
        "nodes": problem.num_nodes,
        "stages": num_stages,
        "tolerance": tolerance,
        "equal": equal,
        "line": line,
        "search": figures(staging, answer.stage),
        "bound_s": answer.bound,
        "limit": answer.limit_s * num_stages / float(np.sum(problem.work)),
        "method": answer.method,
        "read_s": read_s,
        "seconds": seconds,
    }


def records(options: Options) -> Iterator[Record]:
    """Yields the figures of each model, number of stages and tolerance."""
    gc.disable()  # as the tools do
    for model in options.models:
        name, _, words = model.strip().partition(":")
        graph, parts = read_parts(words.split(), options.micro_batches)
        for num_stages in options.stages:
            for tolerance in options.tolerances:
                yield measure(name, graph, parts, num_stages, options.micro_batches, tolerance)


def faults(found: Sequence[Record]) -> Iterator[str]:
    """Yields where the search costs more than the best line."""
    for one in found:
        if _cost(one["search"]) > _cost(one["line"]) * (1 + CONTENT):
            yield f"{one['model']} in {one['stages']} stages: the search costs more than the best line"


def _cut(way: str) -> Cell:
    def cell(record: Record) -> str:
        one = record[way]
        return f"{format_bytes(one['moved_bytes'])}, {one['transfers']:,}, {one['work']:.2f}"

    return cell


def _gap(record: Record) -> str:
    return f"{1 - record['bound_s'] / max(_cost(record['search']), 1e-300):.2%}"


CUTS: Final[dict[str, Cell]] = {
    "model": key("model"),
    "stages": key("stages"),
    "equal layers": _cut("equal"),
    "best line": _cut("line"),
    "search": _cut("search"),
    "gap": _gap,
    "work allowed": key("limit", ".2f"),
    "seconds": key("seconds", ".1f"),
}
TIMES: Final[dict[str, Cell]] = {
    "model": key("model"),
    "ops": key("ops", ","),
    "stages": key("stages"),
    "tolerance": key("tolerance", "g"),
    "problem, s": key("read_s", ".1f"),
    "decision, s": key("seconds", ".1f"),
    "moved": lambda record: format_bytes(record["search"]["moved_bytes"]),
    "most work": lambda record: f"{record['search']['work']:.3f}",
    "allowed": key("limit", ".3f"),
    "gap": _gap,
}


def _question(columns: dict[str, Cell], models: list[str]) -> Question:
    options = (
        option("--models", models, "NAME: words for examples/export.py; ...", ";"),
        option("--stages", [2, 4], "numbers of stages"),
        option("--tolerances", [0.1], "of the balance"),
        option("--micro-batches", 8, "of a step"),
    )
    return Question(__doc__, records, columns, options, faults=faults)


QUESTION: Final = _question(CUTS, MODELS)
DEEP_QUESTION: Final = _question(TIMES, DEEP)
