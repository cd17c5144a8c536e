"""Let the target's own compiler choose among plans: the search proposes, and what is compiled decides.

The search's plan is compiled for the cluster's devices, without one. Where it takes more memory than the budget, the
factor between predicted and compiled is taken into account and the search goes on within what is left, until a compiled
plan fits. Then experts' plans (`rhino.strategies.sharding.expert_seeds`), each completed by the search, and further
forms of the program compete: the one with the fastest compiled step is taken. Compiles are counted, and end the
comparison.

Errors    RHI-SOLVE-001 where no plan fits once compiled, or as the search raises; RHI-AOT-001 where no plan compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rhino.ir.calls.known_calls import config_work
from rhino.ir.cluster.hardware import Cluster, Device
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.graph.graph import Graph
from rhino.ir.hlo.compiled import Compiled
from rhino.ir.mlir.aliases import without_kept
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.manual import bytecode, mesh_size, wrap_manual
from rhino.ir.mlir.memory_kinds import with_transfers
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import MESH_NAME, SHARDING, layout_attribute, module_mesh
from rhino.ir.plan.plan import Comparison, CompiledPlan, Plan
from rhino.ir.program.named_tensors import argument_tensors
from rhino.ir.program.program import read_program
from rhino.ir.request.patterns import matches
from rhino.ir.units import format_bytes
from rhino.passes.base import Remarks
from rhino.passes.planner.module_facts import Unsplit
from rhino.passes.planner.request import MOST_COMPILES
from rhino.passes.planner.unstaged_plan import ANNOTATED, Found, search
from rhino.passes.registry import shard_in_parts
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.sharding.planning_pass import Target, write_mesh
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.passes.with_rules import run_on_functions
from rhino.strategies.cost.compiled_step import CompiledStep, compiled_step
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.target import TARGETS
from rhino.strategies.sharding.expert_seeds import Seed, expert_seeds

LOCALIZED: Final = "localized"
"""The form of a program in which every op is that of one device, with its collectives."""

SEARCHED: Final = "searched"
"""The name of the search's own plan among candidates."""

_CLOSER: Final = 0.97
"""Times what a plan was predicted to take that the next may take, where it is compiled to hardly more than there is."""

_EXPERTS_COMPILES: Final = 2
"""Compiles of one expert's plan: once more where it does not fit, and then the next expert has a turn."""

_ROOMS: Final = (1.0, 1.2, 1.5, 2.0)
"""Times the budget within which plans are searched for, until one is found: compiled, it may take less."""

_MOST_BUFFERS: Final = 3

NONE_FITS_FIX: Final = (
    "raise --budget, use more devices or a smaller batch, or allow more plans to be compiled with --compiles"
)
"""What to do where no plan fits once compiled."""

Compile = Callable[[bytes], Compiled]
"""Compiles a module, given as bytecode; raises RHI-AOT-001 where the compiler refuses it."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A plan in one form, and what the compiler makes of it; without, `why` it does not compile."""

    name: str
    form: str
    found: Found
    code: bytes
    compiled: Compiled | None
    step: CompiledStep | None
    why: str = ""

    @property
    def peak_bytes(self) -> float:
        """The compiled peak, infinite where it does not compile."""
        return float("inf") if self.compiled is None else self.compiled.peak_bytes

    @property
    def step_s(self) -> float:
        """The compiled step, infinite where it does not compile."""
        return float("inf") if self.step is None else self.step.step_s

    def row(self) -> CompiledPlan:
        """Returns what a plan keeps of it."""
        predicted = self.found.plan.predicted
        step_s = None if self.step is None else self.step.step_s
        peak_bytes = None if self.compiled is None else self.compiled.peak_bytes
        figures = (predicted.step_s, predicted.peak_bytes[0], step_s, peak_bytes)
        seed = "" if self.name == SEARCHED else self.name
        return CompiledPlan(self.name, self.form, *figures, self.why, predicted.budget_bytes, seed)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The plan that is taken, and all that were compiled, in the order in which they were.

    `searched` is a plan by the user's own constraints alone: it has the program and the options that experts' plans are
    for. Where nothing could be compiled, `missing` says what would be needed; the plan is then the search's own. After
    an interruption the plan is the best of those that were compiled before.
    """

    searched: Plan
    budget_bytes: int
    best: Candidate
    candidates: tuple[Candidate, ...]
    missing: str = ""
    is_interrupted: bool = False

    def plan(self) -> Plan:
        """Returns the plan that is taken, with what became of all that were compiled."""
        found, sharding = self.best.found.plan, self.best.found.plan.sharding
        assert sharding is not None, "it is a plan in one program"
        found = replace(found, sharding=replace(sharding, form=self.best.form))
        predicted = replace(found.predicted, budget_bytes=self.budget_bytes)
        found = replace(found, source=self.searched.source, options=self.searched.options, predicted=predicted)
        if self.best.compiled is None:
            return found
        rows = tuple(one.row() for one in self.candidates)
        compared = Comparison(self.best.compiled.compiler, rows, self.candidates.index(self.best))
        return replace(found, compared=compared)


@dataclass(eq=False)
class Comparer:
    """Searches, compiles and compares plans of one program.

    `read` gives a module to be planned, a new one each time, which plans call `name` and remarks `file`; `options` are
    those of the passes by name, and `unsplit` as `search` takes it. `compiler_for` gives what compiles for a mesh, or a
    line that says why nothing does. `budget_bytes` is what a compiled program may take of a device. `forms` are those
    of the program that may be taken, the one to begin with first. `on_compile` hears of each compile before it begins.
    """

    read: Callable[[], ir.Module]
    name: str
    options: Mapping[str, str]
    cluster: Cluster
    budget_bytes: float
    compiler_for: Callable[[Mesh], Compile | str]
    forms: Sequence[str] = (LOCALIZED, ANNOTATED)
    memory_only: bool = False
    most: int = MOST_COMPILES
    unsplit: Unsplit | None = None
    file: str = ""
    on_compile: Callable[[str], None] = lambda _: None
    candidates: list[Candidate] = field(default_factory=list)
    is_interrupted: bool = False
    first: Found = field(init=False)
    mesh: Mesh = field(init=False)
    compile: Compile = field(init=False)

    def run(self) -> Judged:
        """Returns the plan whose compiled step is the fastest of those that fit the budget once compiled."""
        if missing := self.begin():
            return self.uncompiled(missing)
        if self.fitting(SEARCHED, None, self.first) is None or not self.memory_only:
            self.compare()
        return self.judged()

    def begin(self) -> str:
        """Searches for the first plan. Returns what is missing where nothing compiles for it; raises as `roomy`."""
        self.first = self.roomy({}, None)
        self.mesh = self.first.plan.mesh
        compiler = self.compiler_for(self.mesh)
        if isinstance(compiler, str):
            return compiler
        self.compile = compiler
        return ""

    def judged(self) -> Judged:
        """Returns the best plan that was compiled and fits. Raises RHI-SOLVE-001 or RHI-AOT-001 where there is none."""
        fit = [one for one in self.candidates if one.peak_bytes <= self.budget_bytes]
        if not self.candidates:
            first_form(self.first.module, self.forms)  # raises why there is none
        if not fit:
            raise self.none_fits()
        every = tuple(self.candidates)
        return Judged(self.first.plan, int(self.budget_bytes), fastest(fit), every, is_interrupted=self.is_interrupted)

    def uncompiled(self, missing: str) -> Judged:
        """Returns the plan as the search alone makes it. Raises what the search raises."""
        found = self.search({}, None)
        form, code = first_form(found.module, self.forms)
        best = Candidate(SEARCHED, form, found, code, None, None, missing)
        return Judged(found.plan, int(self.budget_bytes), best, (), missing)

    def roomy(self, options: Mapping[str, str], seed: Seed | None) -> Found:
        """Returns the best plan, within more than the budget where none is predicted to fit: it may do, compiled.

        Raises what the search raises where there is none within twice the budget.
        """
        refusal: RhinoError | None = None
        for room in _ROOMS:
            try:
                return self.search({**options, "budget": str(int(self.budget_bytes * room))}, seed)
            except RhinoError as error:
                if error.exit_code != ExitCode.DOES_NOT_FIT:
                    raise
                refusal = refusal or error
        assert refusal is not None, "there are rooms"
        raise refusal

    def search(self, options: Mapping[str, str], seed: Seed | None) -> Found:
        """Returns the best plan under some more options, with a seed's constraints on the arguments."""
        module = self.read()
        if seed:
            write_seed(module, seed, self.mesh, self.cluster.device)
        remarks = Remarks(self.file or self.name)
        return search(module, self.name, {**self.options, **options}, remarks, self.unsplit)

    def compare(self) -> None:
        """Compiles experts' plans in the first form, then the fastest of all in the others.

        An interruption ends it where a plan fits that was compiled before.
        """
        try:
            self._compare()
        except KeyboardInterrupt:
            if not any(one.peak_bytes <= self.budget_bytes for one in self.candidates):
                raise
            self.is_interrupted = True

    def _compare(self) -> None:
        graph, sizes = self.first.costs.plan.graph, self.mesh.shape
        if any(one.viewed for one in self.first.plan.arguments):  # experts speak of the step as it is written
            graph = written_graph(self.read(), self.options, self.mesh)
        for seed in expert_seeds(graph, sizes) if any(one.alias is not None for one in graph.arguments) else ():
            self.fitting(seed.name, seed, most=_EXPERTS_COMPILES)
        for one in sorted(self.candidates, key=lambda one: (one.peak_bytes > self.budget_bytes, one.step_s)):
            for form in self.forms[1:]:
                self.add(one.name, form, one.found)

    def fitting(
        self, name: str, seed: Seed | None, found: Found | None = None, most: int | None = None
    ) -> Candidate | None:
        """Returns the best plan under a seed that fits once compiled; None where there is none within `most` compiles.

        `found` is what the search predicts to be the best, if it is known. How much more a plan takes than predicted is
        learned from each that does not fit.
        """
        within: int | None = None
        last = min(self.most, len(self.candidates) + (most or self.most))
        while len(self.candidates) < last:
            try:
                if found is None:
                    options = self.under(seed)
                    found = (
                        self.roomy(options, seed)
                        if within is None
                        else self.search({**options, "budget": str(within)}, seed)
                    )
            except RhinoError:
                return None  # the program or the budget does not allow it
            candidate = self.add(name, self.forms[0], found) or self.add(name, self.forms[-1], found)
            if candidate is None or candidate.compiled is None:
                return None
            if candidate.peak_bytes <= self.budget_bytes:
                return candidate
            within = smaller_budget(found.plan.predicted.peak_bytes[0], candidate.peak_bytes, self.budget_bytes)
            found = None
        return None

    def under(self, seed: Seed | None) -> dict[str, str]:
        """Returns the options that hold a search on the mesh, and under a seed."""
        roles = seed_roles(seed, self.mesh, self.options) if seed else {}
        return {"mesh": str(self.mesh), **roles}

    def add(self, name: str, form: str, found: Found) -> Candidate | None:
        """Compiles a plan in a form; None where it has no such form, or compiles are spent. What is known is known."""
        code = program_of(found.module, form)
        known = next((one for one in self.candidates if one.code == code), None)
        if known or code is None or len(self.candidates) >= self.most:
            return known
        self.on_compile(f"{name}, {form}")
        compiled, step, why = None, None, ""
        try:
            compiled = self.compile(as_run(code))
            step = step_of(compiled, self.cluster)
        except RhinoError as error:
            why = error.what
        self.candidates.append(Candidate(name, form, found, code, compiled, step, why))
        return self.candidates[-1]

    def none_fits(self) -> RhinoError:
        """Returns what to say where no compiled plan fits, or none compiles."""
        compiled = [one for one in self.candidates if one.compiled]
        if not compiled:
            return RhinoError("RHI-AOT-001", self.candidates[0].why, fix="leave --aot out, or name another cluster")
        least = min(compiled, key=lambda one: one.peak_bytes)
        assert least.compiled
        buffers = [f"{format_bytes(size)} hold {shapes}" for size, shapes in least.compiled.buffers[:_MOST_BUFFERS]]
        return RhinoError(
            "RHI-SOLVE-001",
            none_fits_text(self.budget_bytes, least.row(), least.compiled.compiler),
            Place(least.found.plan.source.function),
            (*buffers, f"plans compiled: {len(compiled)}"),
            NONE_FITS_FIX,
        )


def none_fits_text(budget_bytes: float, least: CompiledPlan, compiler: str) -> str:
    """Returns in words that no plan fits, not even the one that takes least once compiled."""
    return (
        f"no plan fits {format_bytes(budget_bytes)} once compiled: the least takes "
        f"{format_bytes(least.compiled_bytes or 0)} ({compiler}), predicted {format_bytes(least.predicted_bytes)}"
    )


def smaller_budget(predicted_bytes: float, compiled_bytes: float, budget_bytes: float) -> int:
    """Returns within what to search next, where a compiled plan takes more than the budget.

    It is what the plan was predicted to take, less in proportion to what it takes too much, and less by a little in any
    case: so the next plan is another one.
    """
    return max(1, int(min(predicted_bytes * _CLOSER, predicted_bytes * budget_bytes / compiled_bytes)))


def step_of(compiled: Compiled, cluster: Cluster) -> CompiledStep:
    """Returns what a compiled program takes on a cluster."""
    target = TARGETS[cluster.device.platform]
    return compiled_step(compiled.hlo, cluster, target, compiled.unseen, config_work)


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """Returns the candidate whose compiled step is the fastest, the first of equal ones."""
    return min(candidates, key=lambda one: one.step_s)


def program_of(module: ir.Module, form: str) -> bytes | None:
    """Returns a planned module as XLA is to compile it, as bytecode; None where it has no such form.

    On one device it is not localized: XLA does not compile that form for a host (jaxlib 0.10.2).
    """
    if form == ANNOTATED:
        return bytecode(with_transfers(module))
    if mesh_size(module) == 1:
        return None
    try:
        return bytecode(wrap_manual(localized_copy(module)))
    except RhinoError:
        return None


def first_form(module: ir.Module, forms: Sequence[str] = (LOCALIZED, ANNOTATED)) -> tuple[str, bytes]:
    """Returns the first of some forms that a planned module has, and that program. Raises why there is none."""
    for form in forms:
        if (code := program_of(module, form)) is not None:
            return form, code
    return LOCALIZED, bytecode(wrap_manual(localized_copy(module)))  # raises


def as_run(code: bytes) -> bytes:
    """Returns a program whose results take over no buffer that its caller keeps."""
    module = ir.Module.parse(code, make_context())
    return bytecode(module) if without_kept(module, entry_function(module.operation)) else code


def seed_roles(seed: Seed, mesh: Mesh, options: Mapping[str, str]) -> dict[str, str]:
    """Returns the option by which axes have the roles of a seed; nothing where the user has given them roles."""
    texts = [f"{axis}={role}" for axis, role in zip(mesh.names, seed.roles, strict=True) if role]
    return {"axis-role": ";".join(texts)} if texts and "axis-role" not in options else {}


def seed_of(module: ir.Module, name: str, options: Mapping[str, str], mesh: Mesh) -> Seed:
    """Returns the expert's plan of a name for a module and the options of its passes. Annotates the module."""
    graph = written_graph(module, options, mesh)
    return next(seed for seed in expert_seeds(graph, mesh.shape) if seed.name == name)


def written_graph(module: ir.Module, options: Mapping[str, str], mesh: Mesh) -> Graph:
    """Returns the graph of the step for which shardings are chosen, no dim stored as blocks. Annotates the module."""
    rewriting, _ = shard_in_parts(options)
    build_pass_manager(rewriting, module.context, Remarks()).run(module.operation)
    with module.context, ir.Location.unknown():
        run_on_functions(module.operation, "sdy-populate-op-sharding-rules")
        return read_program(entry_function(module), mesh).graph


def write_seed(module: ir.Module, seed: Seed, mesh: Mesh, device: Device, but: Sequence[str] = ()) -> None:
    """Writes what a seed says of arguments onto a module, but for those of which its user says something.

    Those whose names match the patterns `but` are left out.
    """
    entry = entry_function(module.operation)
    with module.context, ir.Location.unknown():
        write_mesh(module.operation, Target(MESH_NAME, mesh, CostModel(device, ())))
        name = (module_mesh(module.operation) or (MESH_NAME, mesh))[0]
        attributes = boundary_attributes(entry, "arg")
        for tensor, dims, own in zip(argument_tensors(entry, ""), seed.arguments, attributes, strict=True):
            left_out = any(matches(pattern, one, ".") for pattern in but for one in tensor.names)
            if dims is not None and SHARDING not in own and not left_out:
                own[SHARDING] = layout_attribute(name, mesh.names, dims)
        set_boundary_attributes(entry, "arg", attributes)
