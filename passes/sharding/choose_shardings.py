"""Choose one sharding for every tensor: the cheapest that fits the memory of a device, with a proven bound.

Reads     `sdy.sharding_rule` on ops, existing `sdy.mesh`, `sdy.sharding` and `rhino.scopes` (as constraints).
Writes    `sdy.mesh` if there is none; `sdy.sharding` on arguments, results and ops; `mhlo.memory_kind` on arguments and
          results that lie in host memory; `rhino.strategy` on the ops for
          which the shardings of their operands and results do not say it: for each axis the factor of the sharding rule
          that is split, "replicate", or "partial" and the operands that are sums. Adds, removes and changes no op.
Errors    RHI-SOLVE-001 does not fit, RHI-SOLVE-002 steps spent, RHI-SHARD-001 a user's sharding cannot be honoured,
          RHI-MESH-001 larger than the cluster, RHI-MESH-002 not the module's mesh, RHI-CLUSTER-001 unknown preset,
          RHI-CLUSTER-002 malformed file, RHI-READ-005 no entry function, RHI-PASS-001 an unknown level, RHI-PIN-002 a
          scope has no axes, or nothing to share, RHI-OFFLOAD-001 nobody knows how fast host memory is.
Source    Rhino 4.2 to 4.4; the formulation is in strategies/solver/problem.py and strategies/solver/search.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import ClassVar

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.groups import rank_budgets
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.collective_stats import EMPTY, CollectiveStats, one_collective
from rhino.ir.graph.graph import BARRIER, WHILE, YIELD, Loop
from rhino.ir.graph.host_values import held_on_host, values_on_host
from rhino.ir.graph.spec import Spec, num_parts, spec_text
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import Side, boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.donation import KEPT
from rhino.ir.mlir.fixed_region import MANUAL
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.memory_kinds import write_memory_kinds
from rhino.ir.mlir.shardings import SHARDING, per_value_attribute, sharding_attribute
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.named_tensors import provenance_of_value
from rhino.ir.program.program import CARRIED, Program
from rhino.ir.units import fits_text, format_bytes, format_seconds, parse_size, peak_text
from rhino.passes.base import Remarks, opt
from rhino.passes.sharding.mesh_search import MeshOutcome, MeshSearch, Waiting
from rhino.passes.sharding.pack_collectives import write_packing
from rhino.passes.sharding.planning_pass import (
    OFFLOAD,
    PLANNING_ERRORS,
    PlanningPass,
    Target,
    begin_choice,
    rank_target,
    to_fit,
    with_offload,
    write_mesh,
)
from rhino.passes.sharding.uneven import uneven_arguments
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sent_together import sent_together
from rhino.strategies.choice.sharding_plan import ShardingPlan, implied, make_plan
from rhino.strategies.cost.buckets import packing_of
from rhino.strategies.cost.candidates import strategy_name
from rhino.strategies.cost.nodes import Node
from rhino.strategies.memory.host_memory import on_host, waiting_arguments
from rhino.strategies.memory.peak import peak_of
from rhino.strategies.pipeline.in_flight import several_in_flight
from rhino.strategies.remat.remat_graph import saved_bytes
from rhino.strategies.sharding.memory_fitting import each_once, find_free, fit_free
from rhino.strategies.solver.answer import Answer, Infeasible, Outcome, Unsolved
from rhino.strategies.solver.search import Limits, Search
from rhino.strategies.solver.solver import Reduced, Solver

STRATEGY = "rhino.strategy"

LEVELS = {2: Limits(prices=12, gap=1e-3), 3: Limits(prices=60, gap=1e-4, exact_below_states=1000)}
"""What a search may spend, by `level`."""

MORE_HOST = to_fit(more="a larger device.host_bytes in the cluster's file")
"""What to do where host memory is too small."""

_UNANNOTATED = frozenset({"sdy.sharding_constraint", WHILE, MANUAL})
"""Ops without `sdy.sharding`: a constraint and a manual computation say it already.

On a loop it makes XLA's import fail where a carried value that nobody reads is dropped (jaxlib 0.10.2: `leaf_count ==
tuple_elements_.size()`), so the specs stand in an attribute of ours, and XLA propagates from around the loop and from
its body."""


@dataclass(eq=False)
class DoesNotFitError(RhinoError):
    """No plan was found that fits: the least that was found, or else can be, takes `needed_bytes` per device.

    `fills_host` says that host memory is too small for what lies there whatever is chosen.
    """

    needed_bytes: float = inf
    fills_host: bool = False


@dataclass(frozen=True)
class ChooseShardings(PlanningPass):
    """Choose the cheapest sharding of every tensor that fits the memory of a device."""

    name: ClassVar[str] = "rhino-choose-shardings"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-SOLVE-001",
        "RHI-SOLVE-002",
        "RHI-PASS-001",
        "RHI-PIN-002",
        "RHI-OFFLOAD-001",
        *PLANNING_ERRORS,
    )

    budget: str = opt("", "bytes per device, as 16GiB; empty takes what a program may use of the cluster's memory")
    ranks: int = opt(
        1,
        "pipeline ranks that the step is for: it has the memory of so many meshes, and keeps more micro-batches alive",
    )
    side_by_side: int = opt(1, "ranks that run the step side by side: each has the memory of its own mesh alone")
    rows: str = opt(
        "", "for several ranks: bytes per device that the search may count, in place of the budget, by estimate"
    )
    offload: bool = opt(False, OFFLOAD)
    level: int = opt(3, "2 = accept a 0.1 % optimality gap where memory binds, 3 = 0.01 %, with more steps to reach it")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Chooses, and writes the choice onto `module`."""
        self.run_below(module, remarks, inf)

    def run_below(
        self, module: ir.Operation, remarks: Remarks, cutoff_s: float, like: ShardingChoice | None = None
    ) -> float | None:
        """Does what `run` does if a step takes less than `cutoff_s`; else returns what all steps take at least.

        `like` is the choice for another form of the step: on the same mesh, the search begins with what that came to.
        """
        if self.level not in LEVELS:
            known = " or ".join(map(str, LEVELS))
            raise RhinoError(
                "RHI-PASS-001", f"level {self.level} of pass '{self.name}' does not exist", fix=f"give level {known}"
            )
        clock = _Clock(remarks)
        targets = self.targets(module, remarks)
        if self.num_ranks > 1:
            cluster = load_cluster(self.cluster)
            targets = tuple(rank_target(cluster, one.mesh, self.num_ranks, one.mesh_name) for one in targets)
        before = remarks.find(FoundBefore)
        found = self.best(
            module, targets, clock, remarks, _Ask(cutoff_s, like if before is None or like else before.choice)
        )
        best, outcomes = found.best, found.all_outcomes()
        if best is None:
            return found.bound_s()
        write_plan(module, best.program, best.plan, best.target)
        if len(outcomes) > 1:
            _remark_meshes(outcomes, remarks)
        _remark(best.program, best.plan, best.answer, best.target, best.budget_bytes, remarks)
        remarks.record(replace(best, outcomes=outcomes))
        clock.lap("write")
        return None

    @property
    def seeks_least(self) -> bool:
        """Whether a refusal names the least memory that is needed: not where nobody reads it."""
        return True

    def best(
        self, module: ir.Operation, targets: Sequence[Target], clock: _Clock, remarks: Remarks, ask: _Ask
    ) -> MeshSearch[ShardingChoice]:
        """Returns the search over meshes, which has come to its end: its best plan, if none was given up.

        After `targets` come the meshes next to the best (`finer`). Where no mesh has a plan, the error is that of the
        first one; of the others nobody asks what they need.
        """
        one_of_many = replace(ask, seeks_least=self.seeks_least and len(targets) == 1)

        def look(target: Target, cutoff_s: float) -> _Found | Waiting[ShardingChoice]:
            return self.look(module, target, clock, remarks, replace(one_of_many, cutoff_s=cutoff_s))

        found = MeshSearch[ShardingChoice](look, lambda target: self.finer(module, target), ask.cutoff_s)
        found.run(targets)
        errors = [(target, one) for target, one in found.all_outcomes() if isinstance(one, RhinoError)]
        if found.best is None and len(errors) == len(found.outcomes):
            target, error = errors[0]
            if self.seeks_least and not one_of_many.seeks_least and isinstance(error, DoesNotFitError):
                full = self.plan(self.read(module, target, remarks), target, clock, ask)
                error = full if isinstance(full, RhinoError) else error
            raise error
        return found

    def look(
        self, module: ir.Operation, target: Target, clock: _Clock, remarks: Remarks, ask: _Ask
    ) -> _Found | Waiting[ShardingChoice]:
        """Returns the plan for one mesh if the best choice of all fits, or how to go on to one; or why there is none.

        `module` gets sharding rules, nothing else.
        """
        program = self.read(module, target, remarks)
        if self.num_ranks > 1:
            return self.plan(program, target, clock, ask)
        open_ = with_offload(program, target) if self.offload else program
        clock.lap("graph")
        begun = self.begin(open_, target, clock, ask)
        if isinstance(begun, RhinoError):
            return begun
        if not self.offload and (known := self.found_before(begun, ask.like)):
            return known
        free = begun.free()
        clock.lap("solve")
        on_other_mesh = ask.like if ask.like is not None and ask.like.target.mesh != target.mesh else None
        if isinstance(free, Answer) and free.peak_bytes > begun.budget:

            def plan(cutoff_s: float, best: ShardingChoice | None) -> _Found:
                outcome = begun.fitting(free, cutoff_s, best or on_other_mesh)
                clock.lap("solve")
                first = self.outcome(begun, outcome, cutoff_s)
                return self.plan(program, target, clock, replace(ask, cutoff_s=cutoff_s), first)

            return Waiting(free.bound, plan)
        found = self.outcome(begun, free, ask.cutoff_s)
        is_over = isinstance(found, ShardingChoice) and not _HostMemory.of(found, self.ranks).fits
        return self.plan(program, target, clock, ask, found) if is_over or isinstance(found, RhinoError) else found

    def plan(self, program: Program, target: Target, clock: _Clock, ask: _Ask, first: _Found | None = None) -> _Found:
        """Returns the plan for one mesh, or why there is none: a bound of the cutoff or more, or an error.

        What lies in host memory makes no plan slower than the best that is found without. `first` is what is known to
        come of the search if host memory is large enough.
        """
        found = self.within_host(program, target, clock, ask, first)
        if not self.offload or isinstance(found, Unsolved) or self.needs_none_without(found):
            return found
        most_s = found.answer.cost if isinstance(found, ShardingChoice) else ask.cutoff_s
        plain = replace(self, offload=False).within_host(program, target, clock, replace(ask, cutoff_s=most_s))
        if not isinstance(plain, ShardingChoice) or plain.answer.cost >= most_s:
            return found
        bound = found.answer.bound if isinstance(found, ShardingChoice) else plain.answer.bound
        return replace(plain, answer=replace(plain.answer, bound=min(bound, plain.answer.cost)))

    def needs_none_without(self, found: ShardingChoice | RhinoError) -> bool:
        """Returns whether a search without host memory is in vain after what was found with as much as there is.

        What may lie there may stay on the device, too: what is as good as proven is not beaten, and where nothing fits
        nothing does without. A plan that has nothing there is one of those without, if not the best.
        """
        if isinstance(found, RhinoError):
            return found.id == "RHI-SOLVE-001" and found.fix != MORE_HOST
        most = LEVELS[self.level if found.plan.on_host else min(LEVELS)].gap
        return not found.is_bound or found.answer.gap <= most

    def within_host(
        self, program: Program, target: Target, clock: _Clock, ask: _Ask, first: _Found | None = None
    ) -> _Found:
        """Returns the plan for one mesh as `plan` does, with no more in host memory than that holds.

        Where a plan has more there, the largest arguments that fit together may stay, and the step is planned again.
        """
        barred, bound, over, found = frozenset[int](), inf, None, first
        while True:
            if found is None:
                open_ = with_offload(program, target, barred) if self.offload else program
                clock.lap("graph")
                found = self.chosen(open_, target, clock, ask)
            if not isinstance(found, ShardingChoice):
                return _with_host_limit(found, over) if over and isinstance(found, RhinoError) else found
            bound = min(bound, found.answer.bound)
            there = _HostMemory.of(found, self.ranks)
            if there.fits:
                return replace(found, answer=replace(found.answer, bound=bound))
            over = there.text(self.ranks)
            if not there.arguments:
                what = f"no choice of shardings fits: {over}"
                return DoesNotFitError("RHI-SOLVE-001", what, Place(program.file), fix=MORE_HOST, fills_host=True)
            barred, found = waiting_arguments(program.graph) - there.fitting(), None

    def chosen(self, program: Program, target: Target, clock: _Clock, ask: _Ask) -> _Found:
        """Returns the plan for one mesh as `plan` does, however much lies in host memory."""
        begun = self.begin(program, target, clock, ask)
        if isinstance(begun, RhinoError):
            return begun
        if self.ranks == 1:
            outcome = begun.free()
            if isinstance(outcome, Answer) and outcome.peak_bytes > begun.budget:
                outcome = begun.fitting(outcome, ask.cutoff_s)
        else:  # several micro-batches are in flight, which rows count
            rows = self.ranks * parse_size(self.rows) if self.rows else begun.budget
            outcome = begun.search.run(rows, begun.first)
        clock.lap("solve")
        return self.outcome(begun, outcome, ask.cutoff_s)

    def begin(self, program: Program, target: Target, clock: _Clock, ask: _Ask) -> _Begun | RhinoError:
        """Returns the search for one mesh after exact reductions, or why there is none."""
        try:
            choice = begin_choice(program, target)
        except RhinoError as error:
            if error.id != "RHI-PIN-002":
                raise
            return error  # this mesh has no axes for a scope; another may have
        clock.lap("candidates")
        cluster, size = load_cluster(self.cluster), target.mesh.num_devices
        given = parse_size(self.budget) if self.budget else None
        own = rank_budgets(cluster, (size,) * self.num_ranks, given)
        budget = sum(own)
        if self.side_by_side > 1:
            budget = parse_size(self.rows) if self.rows else min(own)
        if self.ranks > 1:
            choice, loop = choice.with_memory(), accumulation_loop(program)
            if loop is not None:
                choice = replace(
                    choice, problem=several_in_flight(choice, loop, min(self.ranks, loop.trips or self.ranks))
                )
        known = ask.like.solver if ask.like is not None and ask.like.target.mesh == target.mesh else None
        limits = replace(LEVELS[self.level], cutoff=ask.cutoff_s, seeks_least=ask.seeks_least)
        search = Search(choice.problem, limits, known)
        begun = _Begun(program, target, choice, budget, search, search.reduce())
        clock.lap("reduce")
        return begun

    @staticmethod
    def found_before(begun: _Begun, like: ShardingChoice | None) -> ShardingChoice | None:
        """Returns the same choice for this program, if `like` is of the same choice problem, with the same peak."""
        if like is None or like.budget_bytes != begun.budget or not begun.choice.is_same(like.choice):
            return None
        if begun.peak_of(like.answer.states) != like.answer.peak_bytes:
            return None
        plan = make_plan(begun.choice, like.answer.states)
        return replace(like, target=begun.target, program=begun.program, choice=begun.choice, plan=plan)

    def outcome(self, begun: _Begun, outcome: Outcome, cutoff_s: float) -> _Found:
        """Returns the plan that a search has come to, or why there is none."""
        if isinstance(outcome, Answer):
            return ShardingChoice(
                begun.target,
                begun.program,
                begun.choice,
                make_plan(begun.choice, outcome.states),
                outcome,
                begun.budget,
                begun.search.solver,
                is_bound=begun.is_bound,
            )
        if isinstance(outcome, Unsolved) and outcome.bound >= cutoff_s:
            return outcome
        return does_not_fit(
            begun.choice.with_memory(), begun.program, begun.budget, outcome, self.ranks, offload=self.offload
        )

    @property
    def num_ranks(self) -> int:
        """How many ranks the step is for."""
        return max(self.ranks, self.side_by_side)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is asked of a search: a step of less than `cutoff_s`.

    `like` is the choice for another form of the step, with whose prices it begins on the same mesh. With `seeks_least`
    a refusal names the least memory that is needed.
    """

    cutoff_s: float = inf
    like: ShardingChoice | None = None
    seeks_least: bool = True


@dataclass(eq=False)
class _Begun:
    """A search for one mesh that has begun, within a budget for all ranks together."""

    program: Program
    target: Target
    choice: Choice
    budget: float
    search: Search
    first: Reduced
    is_bound: bool = False
    """Whether the best choice of all does not fit."""

    def __post_init__(self) -> None:
        self.peak_of = each_once(peak_of(self.choice))

    def free(self) -> Outcome:
        """Returns the best choice of all, whether it fits or not."""
        return find_free(self.search, self.budget, self.first, self.peak_of)

    def fitting(self, free: Answer, cutoff_s: float, like: ShardingChoice | None = None) -> Outcome:
        """Returns the best choice that fits, where the best of all does not; it may begin with another's prices."""
        self.is_bound = True
        if like is not None:
            self.search.hint = like.solver.memory_prices
        self.search.give_up_at(cutoff_s)
        return fit_free(self.search, self.budget, free, self.peak_of, lambda: self.choice.with_memory().problem)


@dataclass(frozen=True, slots=True)
class _HostMemory:
    """What a plan has in host memory for a device of each rank: `arguments` that it chose, and what is there anyway.

    Bytes are those of all ranks together, `most_bytes` what may lie there.
    """

    arguments: dict[int, int]
    fixed_bytes: int
    most_bytes: float

    @classmethod
    def of(cls, found: ShardingChoice, ranks: int) -> _HostMemory:
        """Returns that of a choice. An argument that the caller keeps is there twice, with its next value."""
        plan, graph = found.plan, found.plan.graph
        given = boundary_attributes(found.program.entry, "arg")

        def local(value: int) -> int:
            return graph.type_of(value).num_bytes // num_parts(plan.specs[value], plan.sizes)

        def of_argument(number: int) -> int:
            return local(number) * (2 if KEPT in given[number] else 1)

        anyway = on_host(graph)
        saved = sum(map(local, held_on_host(graph, values_on_host(graph))))
        most = found.target.model.device.host_bytes
        return cls(
            {one: of_argument(one) for one in sorted(plan.on_host.difference(anyway))},
            saved + sum(map(of_argument, anyway)),
            inf if most is None else most * ranks,
        )

    @property
    def num_bytes(self) -> int:
        """All that lies there."""
        return sum(self.arguments.values()) + self.fixed_bytes

    @property
    def fits(self) -> bool:
        """Whether it is no more than may lie there."""
        return self.num_bytes <= self.most_bytes

    def fitting(self) -> frozenset[int]:
        """Returns the arguments that fit together beside what is there anyway, the largest first."""
        left, found = self.most_bytes - self.fixed_bytes, set[int]()
        for number, size in sorted(self.arguments.items(), key=lambda one: (-one[1], one[0])):
            if size <= left:
                left -= size
                found.add(number)
        return frozenset(found)

    def text(self, ranks: int) -> str:
        """Returns why it is too much, in words."""
        size, most = format_bytes(self.num_bytes / ranks), format_bytes(self.most_bytes / ranks)
        return f"{size} per device would lie in host memory, which holds {most}"


@dataclass(frozen=True, eq=False)
class ShardingChoice:
    """The shardings that were chosen for one mesh, and how they were found, under a budget for all ranks together.

    `outcomes` are those of every mesh that was evaluated, this one among them; one that was given up has its bound.
    `is_bound` says that the best choice of all does not fit.
    """

    target: Target
    program: Program
    choice: Choice
    plan: ShardingPlan
    answer: Answer
    budget_bytes: float
    solver: Solver
    outcomes: tuple[MeshOutcome, ...] = ()
    is_bound: bool = False


_Found = ShardingChoice | Unsolved | RhinoError
"""What the search for one mesh came to: its plan, a bound of the cutoff or more where it was given up, or an error."""


@dataclass(frozen=True, slots=True)
class FoundBefore:
    """The choice that was found for what is likely the same step on the same mesh."""

    choice: ShardingChoice


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """The wall seconds of each phase of a search, by name."""

    seconds: dict[str, float] = field(default_factory=dict)


def _remark_meshes(outcomes: Sequence[MeshOutcome], remarks: Remarks) -> None:
    """Says what each mesh came to."""
    for target, one in outcomes:
        match one:
            case Answer():
                result = f"step {format_seconds(one.cost)}, at least {format_seconds(one.bound)}"
            case Unsolved():
                result = f"given up, at least {format_seconds(one.bound)}"
            case RhinoError():
                result = one.what
        remarks.add(ChooseShardings.name, Place(remarks.file), f"mesh {target.mesh}: {result}")


class _Clock:
    """Notes how long each phase of a pass took, in seconds."""

    def __init__(self, remarks: Remarks) -> None:
        times = remarks.find(PhaseTimes) or PhaseTimes()
        remarks.record(times)
        self._phases = times.seconds
        self._since = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._since
        self._since = now


def predicted_stats(plan: ShardingPlan) -> CollectiveStats:
    """Returns the collectives of a plan by kind, as the program of a device has them."""
    graph, total = plan.graph, EMPTY
    unknown = [loop for loop in graph.loops if loop.trips is None]
    packing = packing_of(plan.model) if plan.model else None
    for sent in sent_together(plan, packing):
        first = sent[0]
        where = int(graph.value_op[first.value]) if first.reader is None else first.reader
        exact = not any(loop.op < where <= loop.end for loop in unknown)
        one = one_collective(first.move.kind, sum(part.move.num_bytes for part in sent)).times(first.times)
        total = total + replace(one, exact=exact)
    return total


def write_plan(module: ir.Operation, program: Program, plan: ShardingPlan, target: Target) -> None:
    """Writes a plan onto the module that it was made for."""
    graph = program.graph
    write_mesh(module, target)
    write_packing(module, packing_of(target.model))
    shardings: dict[tuple[Spec, int], ir.Attribute] = {}

    def sharding(spec: Spec, rank: int) -> ir.Attribute:
        key = (spec, rank)
        if key not in shardings:
            shardings[key] = sharding_attribute(target.mesh_name, target.names, spec, rank)
        return shardings[key]

    def of_value(value: int) -> ir.Attribute:
        return sharding(plan.specs[value], len(graph.type_of(value).shape))

    per_value: dict[tuple[ir.Attribute, ...], ir.Attribute] = {}
    for number, op in enumerate(program.ops):
        results = tuple(of_value(value) for value in graph.results(number))
        if results and op.name not in _UNANNOTATED:
            if results not in per_value:
                per_value[results] = per_value_attribute(list(results))
            op.attributes[SHARDING] = per_value[results]
        if op.name == WHILE:
            op.attributes[CARRIED] = ir.ArrayAttr.get(list(results))
        elif op.name not in (YIELD, BARRIER) and plan.ops[number] != implied(graph, number, plan.specs, plan.sizes):
            op.attributes[STRATEGY] = ir.StringAttr.get(strategy_name(graph.cls(number), plan.ops[number].strategy))
    entry = program.entry
    ranks = [len(graph.type_of(value).shape) for value in graph.returns]
    sides: dict[Side, list[ir.Attribute]] = {
        "arg": [of_value(value) for value in range(len(graph.arguments))],
        "res": [sharding(spec, rank) for spec, rank in zip(plan.returned, ranks, strict=True)],
    }
    for side, new in sides.items():
        present = boundary_attributes(entry, side)
        set_boundary_attributes(entry, side, [{**old, SHARDING: one} for old, one in zip(present, new, strict=True)])
        write_memory_kinds(entry, side, plan.on_host if side == "arg" else plan.results_on_host)


def _remark(
    program: Program, plan: ShardingPlan, answer: Answer, target: Target, budget: float, remarks: Remarks
) -> None:
    name = ChooseShardings.name
    remarks.add(
        name,
        Place(remarks.file),
        f"step {format_seconds(answer.cost)}, at least {format_seconds(answer.bound)} (gap {answer.gap:.2%}); "
        f"{peak_text(answer.peak_bytes, budget)}; found by {answer.method}",
    )
    if plan.on_host:
        remarks.add(name, Place(remarks.file), _on_host_text(plan, target))
    for place, what in uneven_arguments(program, target):
        remarks.add(name, place, what)
    for loop in program.graph.loops:
        if loop.trips is None:
            place = place_of(program.ops[loop.op].location, remarks.file)
            remarks.add(name, place, "the trip count of this loop is not known: its cost is counted for one trip")
    for number, op in enumerate(program.ops):
        cls = program.graph.cls(number)
        if (
            cls.rule is None
            and cls.name not in (WHILE, BARRIER)
            and cls.fixed_specs is None
            and not cls.free
            and cls.results
            and any(t.shape for t in cls.results)
        ):
            remarks.add(
                name,
                place_of(op.location, remarks.file),
                f"'{op.name}' has no sharding rule: it is replicated, every device runs all of it",
            )
    for transfer in plan.transfers():
        where = program.ops[transfer.reader] if transfer.reader is not None else None
        reason = f"for '{where.name}'" if where is not None else "where it arises"
        place = place_of(where.location, remarks.file) if where is not None else Place(remarks.file)
        layouts = f"{spec_text(transfer.source, target.names)} to {spec_text(transfer.target, target.names)}"
        what = (
            f"{transfer.move.kind} of {format_bytes(transfer.move.num_bytes)}, {layouts}, {reason}: "
            f"{program.describe(transfer.value)}"
        )
        remarks.add(name, place, what)


def does_not_fit(
    choice: Choice,
    program: Program,
    budget: float,
    outcome: Infeasible | Unsolved,
    ranks: int = 1,
    *,
    offload: bool = False,
) -> DoesNotFitError:
    """Returns the error for a budget of so many ranks together that cannot be met, or was not met.

    It lists the largest tensors, each at the least size that it can have, and without `offload` what that could free.
    """
    budget, outcome = budget / ranks, _of_one_rank(outcome, ranks)
    worst, floor, culprits = _least_sizes(choice)
    provenance = [provenance_of_value(program, value) for _, _, value in culprits]
    notes = [
        f"at least {format_bytes(size)}: {beside}{program.describe(value)}{_under(words)}"
        for (size, beside, value), words in zip(culprits, provenance, strict=True)
    ]
    freed = "" if offload else _waiting(choice, accumulation_loop(program))
    fix = to_fit("the constraints on these tensors" if any(provenance) else "", freed)
    together = f" on {ranks} ranks together" if ranks > 1 else ""
    notes.append(
        f"at time {worst} of {choice.problem.num_times} the least sizes of all tensors alive{together} add up to "
        f"{format_bytes(floor)}"
    )
    floor /= ranks
    beside = ", whatever lies in host memory" if offload else ""
    if isinstance(outcome, Infeasible):
        what = f"no choice of shardings {fits_text(budget)}{beside}; {_needed_text(outcome, budget, floor)}"
        needed = next((one for one in (outcome.found_bytes, outcome.peak_bytes) if one is not None), floor)
        return DoesNotFitError("RHI-SOLVE-001", what, Place(program.file), tuple(notes), fix, needed)
    found = f"; the smallest found needs {format_bytes(outcome.peak_bytes)}" if outcome.peak_bytes is not None else ""
    what = f"no choice of shardings that {fits_text(budget)}{beside} was found within the steps of the search{found}"
    needed = inf if outcome.peak_bytes is None else outcome.peak_bytes
    return DoesNotFitError("RHI-SOLVE-002", what, Place(program.file), tuple(notes), fix, needed)


def _with_host_limit(error: RhinoError, over: str) -> RhinoError:
    """Returns the error of a step that does not fit because host memory is too small, as `over` says."""
    return replace(error, notes=(*error.notes, f"{over}; with less there nothing fits"), fix=MORE_HOST)


def _on_host_text(plan: ShardingPlan, target: Target) -> str:
    """Returns what lies in host memory, and what that costs, in words."""
    graph = plan.graph
    sizes = {one: graph.type_of(one).num_bytes // num_parts(plan.specs[one], plan.sizes) for one in plan.on_host}
    seconds = sum(
        target.model.visit_s(size, is_updated=graph.arguments[one].alias is not None) for one, size in sizes.items()
    )
    there = f"{len(sizes)} argument{'s' if len(sizes) != 1 else ''}, {format_bytes(sum(sizes.values()))} per device"
    return f"in host memory: {there}; {format_seconds(seconds)} to bring them to the device and back"


def _waiting(choice: Choice, loop: Loop | None) -> str:
    """Returns the option that lets something lie in host memory, in words; nothing where nothing can."""
    graph = choice.graph
    if choice.model.device.host_bytes_per_s is None:
        return ""
    size = sum(graph.type_of(argument).num_bytes for argument in waiting_arguments(graph))
    found = [f"{format_bytes(size)} of arguments that only their update reads"] if size else []
    if saved := saved_bytes(graph, loop):
        found.append(f"{format_bytes(saved)} that are saved for the backward pass")
    return f"--offload, for {' and '.join(found)}" if found else ""


def _of_one_rank(outcome: Infeasible | Unsolved, ranks: int) -> Infeasible | Unsolved:
    """Returns what the search for several ranks came to with the memory of one, in the mean."""
    peak = None if outcome.peak_bytes is None else outcome.peak_bytes / ranks
    return replace(outcome, peak_bytes=peak)


def _needed_text(outcome: Infeasible, budget: float, floor: float) -> str:
    """Returns what is known of the memory that is needed.

    That is the proven bound, or the least program that was found, with the estimate by rows if that is less.
    """
    if outcome.found_bytes is None:
        return f"at least {_size_over(floor if outcome.peak_bytes is None else outcome.peak_bytes, budget)} are needed"
    found = f"the smallest plan that was found needs {_size_over(outcome.found_bytes, budget)}"
    if outcome.peak_bytes is None or not budget < outcome.peak_bytes < outcome.found_bytes:
        return found
    return f"about {_size_over(outcome.peak_bytes, budget)} are needed, {found}"


def _under(words: Sequence[str]) -> str:
    """Returns which constraints something is under, as words behind it."""
    return f", under {', '.join(words)}" if words else ""


def _size_over(size: float, budget: float) -> str:
    """Returns a size, with its bytes where it reads as the budget does."""
    words = format_bytes(size)
    return f"{words} ({ceil(size)} bytes)" if words == format_bytes(budget) else words


def _least_sizes(choice: Choice) -> tuple[int, float, list[tuple[float, str, int]]]:
    """Returns when the sum of the least sizes of all tensors is largest, that sum, and the five largest tensors then.

    Each tensor has its size beside it. The copy of an argument that is kept beside it for a part of the step is marked
    so in words.

    What there is of an argument beside itself, for a part of the step, is told apart from it in words.
    """
    problem = choice.problem
    residents = problem.node_residents
    columns = zip(
        residents.owner.tolist(),
        residents.table.tolist(),
        residents.start.tolist(),
        residents.end.tolist(),
        strict=True,
    )
    least = [(float(problem.tables[table].min()), owner, start, end) for owner, table, start, end in columns]
    alive = problem.least_memory()
    worst = int(alive.argmax())
    largest = sorted((row for row in least if row[2] <= worst <= row[3]), key=lambda row: -row[0])[:5]
    found = []
    for size, owner, start, end in largest:
        node = choice.nodes[owner]
        beside = f"kept from time {start} to {end} beside " if node.kind == "argument" and start > 0 else ""
        found.append((size, beside, _value_of(choice, node)))
    return worst, float(alive[worst]), found


def _value_of(choice: Choice, node: Node) -> int:
    """Returns the value that a node decides on, the first of several."""
    match node.kind:
        case "op":
            return choice.graph.results(node.number).start
        case "return":
            return choice.graph.returns[node.number]
        case _:
            return node.number
