"""Find the whole plan that `rhino-opt --auto-parallel` makes where the command line leaves something of it open."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TextIO

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import bytecode
from rhino.ir.units import format_seconds, parse_size
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.frontend.stage_marks import num_marked_stages
from rhino.passes.pipeline.pipeline_stages import parse_tolerance
from rhino.passes.pipeline.rematerialize import kept_by_all, remat_text
from rhino.passes.planner.autotune import AutotuneRequest, Decided, Made, choose_whole
from rhino.passes.planner.evaluate import Setup
from rhino.passes.registry import PARALLEL
from rhino.passes.sharding.problem import AUTO, DEFAULT_CLUSTER
from rhino.strategies.autotune import DEFAULT
from rhino.strategies.autotune.base import MOST, Explored
from rhino.tools.ending import heard_at_once
from rhino.tools.files import write_output
from rhino.tools.opt_options import settle

_PASS_OPTIONS: Final[tuple[str, ...]] = ("pin", "forbid", "axis-role", "scope", "constraints", "op-rules", "batch", "whole")

_INTERRUPTED: Final = "rhino-opt: interrupted: ending with the best plan so far, if there is one; to stop at once, interrupt again"


@dataclass(frozen=True, slots=True, eq=False)
class MadeModule:
    """A module made by a plan, and what is left to do once it is the one; that takes what the search says for itself."""

    module: ir.Module
    finish: Callable[[dict[str, Any]], None]


Make = Callable[[ir.Module, Namespace], Made[MadeModule]]


def search_whole_plan(module: ir.Module, options: Namespace, given: dict[str, str], file: str, stderr: TextIO, make: Make) -> ir.Module:
    """Returns the module that `make` makes by the best plan; says on `stderr` what that is, and what the others lost by.

    `given` are the options of passes by name. `make` takes a module of its own and a command line on which nothing is open.

    Raises:
        RhinoError: RHI-SOLVE-001 where no plan fits, what reading the module raises, RHI-CLI-003.
    """
    cluster = given.get("cluster", DEFAULT_CLUSTER)
    budget = float(parse_size(options.budget) if options.budget else load_cluster(cluster).device.usable_hbm_bytes)
    with module.context, ir.Location.unknown():
        Normalize(boundaries=True).run(module.operation, Remarks(file))
    passed = {name: given[name] for name in _PASS_OPTIONS if name in given}
    said = _said(options)
    if said.stages is None and (marked := num_marked_stages(module)) > 1:
        said = replace(said, stages=marked)
    setup = Setup(bytecode(module), file, cluster, budget, passed, said.schedules())
    if (tolerance := parse_tolerance(options.tolerance or "")) is not None:
        setup = replace(setup, tolerances=(tolerance,))

    def make_own(plan: Decided) -> Made[MadeModule]:
        return make(ir.Module.parse(setup.module, module.context), as_said(options, plan))

    with heard_at_once(_INTERRUPTED, stderr), Progress(stderr) as progress:
        made, report = choose_whole(setup, said, make_own, progress.told)
    print(report.text(), file=stderr)
    if options.plan_json:
        write_output(options.plan_json, (json.dumps(report.json(), indent=2) + "\n").encode(), sys.stdout.buffer)
    made.finish(report.json())
    return made.module


def _said(options: Namespace) -> AutotuneRequest:
    mesh = parse_mesh(options.mesh).shape if options.mesh and options.mesh != AUTO else ()
    strategy, most = options.strategy or DEFAULT, options.candidates or MOST
    keep = kept_by_all(options.remat) if options.remat is not None else None
    return AutotuneRequest(options.stages, mesh, options.num, options.schedule or "", keep, strategy, most, options.jobs)


def as_said(options: Namespace, plan: Decided) -> Namespace:
    """Returns the command line that asks for a plan."""
    said = Namespace(**vars(options))
    said.searches, said.mesh = False, "x".join(map(str, plan.mesh))
    said.remat = remat_text(plan.keep) or None
    said.num = plan.micro_batches
    if plan.stages == 1 and not options.makes_plan:
        said.stages = said.ranks = None
        said.num = plan.micro_batches if plan.micro_batches > 1 else None
        steps = [("micro-batch", "")] if said.num else []
        said.steps = [one for name, text in options.steps for one in ([*steps, ("auto-shard", "")] if name == PARALLEL else [(name, text)])]
        return said
    said.schedule = plan.schedule or None
    said.stages, said.chunks = plan.stages, plan.chunks
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
            best = explored.quickest
            words = f"best so far: {best.shape}, {format_seconds(best.step_s)}" if best else "none is predicted to fit so far"
            self.status.update(f"{len(explored.outcomes)} shapes planned; {words}")
