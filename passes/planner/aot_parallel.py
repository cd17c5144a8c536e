"""Let the target's own compiler choose among plans of a step in one program and in stages, without a device.

Of a plan in stages each program is compiled; its step is simulated with their compiled seconds in place of those that
were predicted, and each rank's memory is counted with their temporaries. On unlike devices each program is compiled and
priced for those of its ranks, the slowest where they are of several kinds. A plan in one program is compiled as by
`rhino.passes.planner.aot`. Plans are counted, not programs: those of stages are parts of one.

Errors    RHI-STEP-008 where no plan in such stages fits once compiled; RHI-AOT-001 where a program does not compile;
          RHI-SOLVE-001 as `Comparer` raises it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from rhino.ir.cluster.groups import rank_budgets, rank_clusters
from rhino.ir.cluster.hardware import Cluster
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.mlir.aliases import set_aliases
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.plan.parts import program_ranks
from rhino.ir.plan.plan import Comparison, CompiledPlan, Plan
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.units import format_bytes
from rhino.passes.planner.aot import LOCALIZED, SEARCHED, Candidate, Comparer, Compile, Judged, smaller_budget, step_of
from rhino.passes.planner.plan_rows import simulation_of
from rhino.passes.planner.request import MOST_COMPILES

T = TypeVar("T")

CompilerFor = Callable[[Cluster, Mesh], Compile]
"""Gives what compiles modules for a mesh on a cluster, or on a group of one."""

_TRIES: Final = 2
"""Compiles of one configuration: once more where it does not fit, and then the next has a turn."""


@dataclass(frozen=True, slots=True)
class CompiledStages:
    """What a compiler made of a plan in stages.

    These are the seconds and temporaries of each program, the peak of each rank, and the step that comes of them.
    """

    compiler: str
    run_s: tuple[float, ...]
    temp_bytes: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    step_s: float


def compile_stages(plan: Plan, compiler_for: CompilerFor) -> CompiledStages:
    """Returns what the compiler makes of each program of a plan in stages. Raises RHI-AOT-001 where it refuses one."""
    execution, cluster = plan.execution, plan.machine()
    assert execution is not None, "the plan is in stages"
    step, run_s, temp_bytes, compiler = execution.step, list[float](), list[int](), ""
    own = rank_clusters(cluster, [mesh.num_devices for mesh in step.meshes])
    for program, ranks in zip(step.programs, program_ranks(step), strict=True):
        module = read_module(execution.modules[program.module].encode(), program.module, make_context())
        set_aliases(entry_function(module), program.donated)
        code, mesh = bytecode(module), step.meshes[ranks[0]]
        compiled = {one: compiler_for(one, mesh)(code) for one in dict.fromkeys(own[rank] for rank in ranks)}
        taken_over = {output for _, output in program.donated}
        outputs = (one for number, one in enumerate(program.outputs) if number not in taken_over)
        arrays = sum(local_bytes(one, mesh) for one in (*program.inputs, *outputs))
        compiler = next(iter(compiled.values())).compiler
        temp_bytes.append(max(0, max(one.peak_bytes for one in compiled.values()) - arrays))
        run_s.append(max(step_of(found, one).step_s for one, found in compiled.items()))
    compiled_execution = replace(execution, run_s=tuple(run_s), temp_bytes=tuple(temp_bytes))
    simulation, kept = simulation_of(compiled_execution), plan.predicted.kept_bytes
    peaks = tuple(one.peak_bytes + kept[rank] for rank, one in enumerate(simulation.memory))
    return CompiledStages(compiler, tuple(run_s), tuple(temp_bytes), peaks, simulation.timeline.end_s)


@dataclass(eq=False)
class Compiles:
    """Has plans of one step compiled: counts them, and learns how much more they take than predicted.

    `compiler_for` gives what compiles stages for a mesh; `budget_bytes` is what a device may hold. Of `most` plans the
    first half are the search's own, and all until one fits; the others are experts' plans. With `memory_only` memory is
    all that counts. `compiled` are the plans that were, with what a comparer knows of those in one program. `within` is
    for what to search next, as was learned from those that did not fit.
    """

    compiler_for: CompilerFor
    budget_bytes: int
    most: int = MOST_COMPILES
    memory_only: bool = False
    on_compile: Callable[[str], None] = lambda _: None
    compiler: str = ""
    compiled: list[tuple[CompiledPlan, Candidate | None]] = field(default_factory=list)
    is_interrupted: bool = False
    within: int = field(init=False)

    def __post_init__(self) -> None:
        self.within = self.budget_bytes

    @property
    def left(self) -> int:
        """How many more plans may be compiled."""
        return self.most - len(self.compiled)

    @property
    def least(self) -> CompiledPlan | None:
        """The plan that takes least once compiled; None where none was."""
        rows = [row for row, _ in self.compiled if row.compiled_bytes is not None]
        return min(rows, key=lambda row: row.compiled_bytes or 0, default=None)

    @property
    def is_open(self) -> bool:
        """Whether one more of the search's own plans may be compiled."""
        fits = any(row.compiled_bytes and row.compiled_bytes <= self.budget_bytes for row, _ in self.compiled)
        return len(self.compiled) < (max(1, self.most // 2) if fits and not self.memory_only else self.most)

    def staged(self, name: str, make: Callable[[int], T], plan_of: Callable[[T], Plan]) -> tuple[T, CompiledPlan]:
        """Returns what `make` makes within a budget so that its plan in stages fits, and its row.

        Raises:
            RhinoError: RHI-STEP-008 where it does not fit within two compiles, or `most`; what `make` raises.
        """
        within, made = self._made(make)
        for number in range(_TRIES):
            plan = plan_of(made)
            self.on_compile(name)
            row, found = self._compiled(name, plan, within)
            peaks, limits = found.peak_bytes, self._limits(plan)
            rank = max(range(len(peaks)), key=lambda one: peaks[one] / limits[one])
            if peaks[rank] <= limits[rank]:
                return made, row
            self.within = within = smaller_budget(plan.predicted.peak_bytes[rank], peaks[rank], limits[rank])
            if number + 1 < _TRIES and self.left > 0:
                try:
                    made = make(within)
                except RhinoError as error:
                    if error.exit_code != ExitCode.DOES_NOT_FIT:
                        raise
                    break
        raise self._over(plan, found, rank)

    def begin(self, name: str, comparer: Comparer) -> Judged:
        """Compiles the search's plan of a step in one program. Raises RHI-SOLVE-001 where it does not fit."""
        missing = comparer.begin()
        assert not missing, missing
        self._run(name, comparer, min(_TRIES, self.left), lambda: comparer.fitting(SEARCHED, None, comparer.first))
        return comparer.judged()

    def compare(self, name: str, comparer: Comparer) -> Judged:
        """Compiles experts' plans of a step in one program too, in all forms, as far as compiles are left."""
        self._run(name, comparer, self.left, comparer.compare)
        return comparer.judged()

    def comparison(self, row: CompiledPlan) -> Comparison:
        """Returns what was compiled, with the plan that was taken."""
        rows = tuple(one for one, _ in self.compiled)
        return Comparison(self.compiler, rows, next(at for at, one in enumerate(rows) if one is row))

    def row_of(self, judged: Judged) -> CompiledPlan:
        """Returns the row of the plan that is the best of one program."""
        return next(row for row, one in self.compiled if one is judged.best)

    def _limits(self, plan: Plan) -> tuple[float, ...]:
        """Returns the bytes that a device of each rank may hold [ranks]."""
        sizes = [mesh.num_devices for mesh in plan.meshes]
        return rank_budgets(plan.machine(), sizes, self.budget_bytes)

    def _made(self, make: Callable[[int], T]) -> tuple[int, T]:
        """Returns what is made within what was learned from other plans, or the budget if that is too little; both."""
        if self.within < self.budget_bytes:
            try:
                return self.within, make(self.within)
            except RhinoError as error:
                if error.exit_code != ExitCode.DOES_NOT_FIT:
                    raise
        return self.budget_bytes, make(self.budget_bytes)

    def _compiled(self, name: str, plan: Plan, within: int) -> tuple[CompiledPlan, CompiledStages]:
        predicted = plan.predicted
        figures = (predicted.step_s, predicted.largest_peak_bytes)
        try:
            found = compile_stages(plan, self.compiler_for)
        except RhinoError as error:
            self.compiled.append((CompiledPlan(name, LOCALIZED, *figures, None, None, error.what, within), None))
            raise
        self.compiler = found.compiler
        row = CompiledPlan(name, LOCALIZED, *figures, found.step_s, max(found.peak_bytes), "", within)
        self.compiled.append((row, None))
        return row, found

    def _run(self, name: str, comparer: Comparer, more: int, compiles: Callable[[], object]) -> None:
        """Has a comparer compile so many more plans, and takes their rows."""
        known = len(comparer.candidates)
        comparer.most = known + more
        comparer.on_compile = lambda what: self.on_compile(_named(name, what))
        compiles()
        self.is_interrupted |= comparer.is_interrupted
        for one in comparer.candidates[known:]:
            self.compiler = one.compiled.compiler if one.compiled else self.compiler
            self.compiled.append((replace(one.row(), name=_named(name, one.name)), one))

    def _over(self, plan: Plan, found: CompiledStages, rank: int) -> RhinoError:
        sizes = f"{format_bytes(found.peak_bytes[rank])} per device, of {format_bytes(self._limits(plan)[rank])}"
        predicted = format_bytes(plan.predicted.peak_bytes[rank])
        return RhinoError(
            "RHI-STEP-008",
            f"rank {rank} takes {sizes}, once compiled ({found.compiler}); predicted {predicted}",
            Place(plan.source.function),
            fix="raise the budget, use more devices, more micro-batches or rematerialization",
        )


def compilers_of(cluster: Cluster, compiler_of: Callable[[Cluster, Mesh], Compile | str]) -> CompilerFor | str:
    """Returns what gives a compiler for each mesh on a cluster or a group of it, one for all plans of it.

    It is a line that says why, if there is none.
    """
    for one in cluster.groups or (cluster,):
        if isinstance(missing := compiler_of(one, mesh_of_shape((1,))), str):
            return missing

    @functools.cache
    def compiler_for(cluster: Cluster, mesh: Mesh) -> Compile:
        found = compiler_of(cluster, mesh)
        assert not isinstance(found, str), found
        return found

    return compiler_for


def _named(config: str, plan: str) -> str:
    return f"{config}: {plan}"
