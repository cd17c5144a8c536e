"""`rhino-plan aot`: what the target's compiler makes of a plan, beside what was predicted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rhino.ir.cluster.cluster import Cluster
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.hlo.compiled import Compiled
from rhino.ir.mlir.bindings import ir
from rhino.ir.plan.plan import Execution, Plan
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.planner.aot import LOCALIZED, as_run, first_form, program_of, step_of
from rhino.passes.planner.aot_parallel import CompilerFor, compile_stages, compilers_of
from rhino.passes.planner.module_facts import boundary
from rhino.passes.planner.plan_rows import rank_limits
from rhino.passes.planner.tables import table
from rhino.passes.planner.unstaged_plan import ANNOTATED, annotate
from rhino.runtime.aot.compile import compiler_of

_HEAD = ("", "step", "memory", "predicted")


@dataclass(frozen=True, slots=True)
class Checked:
    """A table of what was compiled, and whether all of it is within the plan's budget."""

    text: str
    exit_code: ExitCode


def compiled_plan(plan: Plan, read: Callable[[], ir.Module]) -> Checked:
    """Returns what the compiler of a plan's cluster makes of its programs.

    `read` gives the program of a plan in one program, which the plan does not hold.

    Raises:
        RhinoError: RHI-AOT-002 where the compiler is not installed, RHI-AOT-001 where it refuses a program,
            RHI-PLAN-004 where the program is not the plan's.
    """
    cluster = plan.machine()
    by_jit = plan.execution is None and "jax" in plan.versions  # a function of JAX, in one program
    compiler_for = compilers_of(cluster, functools.partial(compiler_of, by_jit=by_jit))
    if isinstance(compiler_for, str):
        fix = "install it, or look at what is predicted: rhino-plan explain"
        raise RhinoError("RHI-AOT-002", f"the plan cannot be compiled: {compiler_for}", fix=fix)
    found = _Compiles(plan, cluster, compiler_for)
    rows = [*(found.staged(plan.execution) if plan.execution else found.unstaged(read()))]
    limits = [one.budget_bytes for one in rank_limits(plan)]
    largest, budget = max(zip(found.peaks, limits, strict=True), key=lambda pair: pair[0] / pair[1])
    verdict = f"{format_bytes(largest)} of {format_bytes(budget)} per device: " + (
        "within the budget" if largest <= budget else "over the budget"
    )
    lines = [f"compiled by {found.compiler}:", *table([_HEAD, *rows]), verdict]
    return Checked("\n".join(lines), ExitCode.OK if largest <= budget else ExitCode.DOES_NOT_FIT)


class _Compiles:
    """Compiles the programs of one plan; `peaks` are the bytes of a device, by rank."""

    def __init__(self, plan: Plan, cluster: Cluster, compiler_for: CompilerFor) -> None:
        self.plan, self.cluster, self.compiler_for = plan, cluster, compiler_for
        self.peaks: list[int] = []
        self.compiler = ""

    def one(self, code: bytes) -> tuple[Compiled, float]:
        """Returns what the compiler makes of a program, and the seconds of a run."""
        compiled = self.compiler_for(self.cluster, self.plan.mesh)(code)
        self.compiler = compiled.compiler
        return compiled, step_of(compiled, self.cluster).step_s

    def unstaged(self, module: ir.Module) -> Iterator[tuple[str, ...]]:
        """Yields a row for each form of a plan in one program; the peak is that of the form that is run."""
        plan = self.plan
        now, op_rules = boundary(module, is_annotated=False), plan.options.get("op-rules", "")
        annotate(module, plan, plan.source.function, op_rules, now, None)
        chosen = plan.sharding.form if plan.compared and plan.sharding else LOCALIZED
        run, _ = first_form(module, (chosen, ANNOTATED))
        predicted = plan.predicted
        for form in (LOCALIZED, ANNOTATED):
            if (code := program_of(module, form)) is None:
                continue
            compiled, step_s = self.one(as_run(code))
            if form == run:
                self.peaks.append(compiled.peak_bytes)
            figures = f"{format_seconds(predicted.step_s)}, {format_bytes(predicted.peak_bytes[0])}"
            mark = f"{form}, which is run" if form == run else form
            yield mark, format_seconds(step_s), format_bytes(compiled.peak_bytes), figures

    def staged(self, execution: Execution) -> Iterator[tuple[str, ...]]:
        """Yields a row for each program of a plan in stages, and one for each rank: its peak with their temporaries."""
        found, predicted = compile_stages(self.plan, self.compiler_for), self.plan.predicted
        self.compiler = found.compiler
        for number, program in enumerate(execution.step.programs):
            figures = f"{format_seconds(execution.run_s[number])}, {format_bytes(execution.temp_bytes[number])}"
            temporaries = f"{format_bytes(found.temp_bytes[number])} temporaries"
            yield program.name, format_seconds(found.run_s[number]), temporaries, figures
        for rank, peak in enumerate(found.peak_bytes):
            self.peaks.append(peak)
            yield f"rank {rank}", "", format_bytes(peak), format_bytes(predicted.peak_bytes[rank])
