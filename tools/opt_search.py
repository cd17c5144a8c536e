"""Find the whole plan that `rhino-opt --auto-parallel` makes where the command line leaves something of it open."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

from rhino.ir.cluster import load_cluster
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.manual import bytecode
from rhino.ir.mesh import parse_mesh
from rhino.ir.mlir import ir
from rhino.ir.units import format_bytes, format_seconds, parse_size
from rhino.passes.base import Remarks
from rhino.passes.normalize import Normalize
from rhino.passes.problem import AUTO, DEFAULT_CLUSTER
from rhino.passes.registry import PARALLEL
from rhino.passes.whole_report import Chosen, Report
from rhino.passes.whole_search import Setup, Workers, make_space, pipeline_of
from rhino.strategies.schedules import SCHEDULES
from rhino.strategies.whole import DEFAULT, explore
from rhino.strategies.whole.base import MOST, Estimate, Explored, Refused
from rhino.tools.files import write_output
from rhino.tools.opt_options import settle

MOST_MADE: Final = 3
"""How many of the best shapes have their programs made, where the first does not fit or comes to more than the next is estimated at; and
the best without stages, where all of them come to more than that is estimated at."""

MOST_NOTES: Final = 8
"""How many shapes an error names."""

_PASS_OPTIONS: Final[tuple[str, ...]] = ("pin", "forbid", "axis-role", "constraints", "op-rules", "batch", "whole")
_TOO_LARGE: Final = ("RHI-STEP-008", "RHI-SOLVE-001", "RHI-SOLVE-002", "RHI-STAGE-001", "RHI-STAGE-004", "RHI-STAGE-005")


@dataclass(frozen=True, slots=True)
class Made:
    """A module made by a plan: what the plan is predicted to take, and what is left to do once it is the one."""

    module: ir.Module
    step_s: float
    peak_bytes: tuple[float, ...]
    finish: Callable[[], None]


Make = Callable[[ir.Module, Namespace], Made]


def search_whole_plan(module: ir.Module, options: Namespace, given: dict[str, str], file: str, stderr: TextIO, make: Make) -> Made:
    """Returns what `make` makes of the best plan for `module`; says on `stderr` what it is, and what the others lost by.

    `given` are the options of passes by name. `make` takes a module of its own and a command line on which nothing is open.

    Raises:
        RhinoError: RHI-SOLVE-001 where no plan fits, what reading the module raises, RHI-CLI-003.
    """
    cluster = given.get("cluster", DEFAULT_CLUSTER)
    budget = float(parse_size(options.budget) if options.budget else load_cluster(cluster).device.usable_hbm_bytes)
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks(file))
    passed = {name: given[name] for name in _PASS_OPTIONS if name in given}
    setup = Setup(bytecode(module), file, cluster, budget, passed, _schedules(options))
    explored = _explored(setup, options, stderr)
    end = _End(setup, options, explored, module.context, make)
    made, chosen = end.best()
    report = Report(explored, chosen, tuple(end.failed), cluster, budget)
    print(report.text(), file=stderr)
    if options.plan_json:
        write_output(options.plan_json, (json.dumps(report.json(), indent=2) + "\n").encode(), sys.stdout.buffer)
    return made


def _schedules(options: Namespace) -> tuple[str, ...]:
    """Returns the schedules to choose from; a number of stages that is said means one for each rank."""
    if options.schedule:
        return (options.schedule,)
    return tuple(name for name, schedule in SCHEDULES.items() if options.stages is None or not schedule.chunked)


def _explored(setup: Setup, options: Namespace, stderr: TextIO) -> Explored:
    """Returns what became of the shapes that the command line leaves open."""
    meshes = [parse_mesh(options.mesh).shape] if options.mesh and options.mesh != AUTO else []
    chunks = 2 if SCHEDULES[setup.schedules[0]].chunked else 1
    stages = [] if options.stages is None else [max(1, options.stages // chunks)]
    space = make_space(setup, stages, meshes, [] if options.num is None else [options.num], options.candidates or MOST)
    workers = Workers(setup, options.jobs or os.cpu_count() or 1)
    try:
        with Progress(stderr) as progress:
            return explore(space, workers.evaluate, progress.told, options.strategy or DEFAULT)
    finally:
        workers.close()


@dataclass(eq=False)
class _End:
    """Makes the programs of the best shapes, best first. `failed` are those that turned out not to fit."""

    setup: Setup
    options: Namespace
    explored: Explored
    context: ir.Context
    make: Make
    failed: list[Refused] = field(default_factory=list)

    def best(self) -> tuple[Made, Chosen]:
        """Returns the best that was made."""
        found: tuple[Made, Chosen] | None = None
        for number, estimate in enumerate(self.explored.ranked):
            if found and found[0].step_s <= estimate.step_s:
                break
            if found and number >= MOST_MADE and estimate.shape.stages > 1:
                continue  # But without stages there is nothing that estimates leave open.
            if (one := self.made(estimate)) and (not found or one.step_s < found[0].step_s):
                found = one, Chosen(estimate, one.step_s, one.peak_bytes)
        if found is None:
            raise self.none_fits()
        return found

    def made(self, estimate: Estimate) -> Made | None:
        """Returns what is made of a shape, None where that does not fit."""
        try:
            return self.make(ir.Module.parse(self.setup.module, self.context), as_said(self.options, estimate))
        except RhinoError as error:
            if error.id not in _TOO_LARGE:
                raise
            self.failed.append(Refused(estimate.shape, error.what, by_memory=True))
            return None

    def none_fits(self) -> RhinoError:
        """Returns what to say where there is no plan."""
        refused = [*self.failed, *self.explored.refused]
        by_memory = any(one.by_memory for one in refused)
        notes = tuple(f"{one.shape}: {one.why}" for one in refused[:MOST_NOTES])
        if by_memory:
            what = f"no plan fits {format_bytes(self.setup.budget_bytes)} per device"
            fix = "raise --budget, use more devices, or a smaller batch"
            return RhinoError("RHI-SOLVE-001", what, Place(self.setup.file), notes, fix)
        return RhinoError("RHI-SOLVE-002", "no plan was found", Place(self.setup.file), notes, "leave more open")


def as_said(options: Namespace, estimate: Estimate) -> Namespace:
    """Returns the command line that asks for an estimated plan."""
    shape, said = estimate.shape, Namespace(**vars(options))
    said.searches, said.mesh = False, "x".join(map(str, shape.mesh))
    said.keep = f"{shape.keep:g}" if shape.keep < 1 else None
    said.num = shape.micro_batches
    if shape.stages == 1 and not options.makes_plan:
        said.stages = said.ranks = None
        said.num = shape.micro_batches if shape.micro_batches > 1 else None
        steps = [("micro-batch", "")] if said.num else []
        said.steps = [one for name, text in options.steps for one in ([*steps, ("auto-shard", "")] if name == PARALLEL else [(name, text)])]
        return said
    said.schedule = estimate.schedule or None
    pipeline = pipeline_of(SCHEDULES[estimate.schedule], shape) if estimate.schedule else None
    said.stages, said.chunks = (pipeline.num_stages, pipeline.chunks) if pipeline else (1, 1)
    settle(said)
    return said


class Progress:
    """How far the search is, on a terminal; nothing elsewhere. To be entered."""

    def __init__(self, stderr: TextIO) -> None:
        self.is_shown = stderr.isatty()
        self.stderr = stderr

    def __enter__(self) -> Progress:
        if self.is_shown:
            from rich.console import Console  # noqa: PLC0415 - for terminals alone

            self.status = Console(file=self.stderr).status("planning the first shapes")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_shown:
            self.status.stop()

    def told(self, explored: Explored) -> None:
        """Shows what is known after a round."""
        if self.is_shown:
            best = explored.ranked[0] if explored.ranked else None
            words = f"best so far: {best.shape}, {format_seconds(best.step_s)}" if best else "none fits so far"
            self.status.update(f"{len(explored.outcomes)} shapes planned; {words}")
