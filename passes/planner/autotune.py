"""The best plan where its caller leaves something open.

The search compares configurations, and then makes the programs of the best ones.

Errors    RHI-SOLVE-001 no plan fits, RHI-SOLVE-002 none was found, RHI-MESH-001 more ranks than devices; what reading
          the module and making a plan raise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import ceil, inf, prod
from typing import Final, Generic, TypeVar

from rhino.ir.cluster.cluster import link_between, load_cluster
from rhino.ir.cluster.mesh import option_of_meshes
from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.plan.plan import CompiledPlan
from rhino.ir.program.replicas import parse_replicas
from rhino.ir.units import fits_text, format_bytes
from rhino.passes.planner.aot import NONE_FITS_FIX, none_fits_text
from rhino.passes.planner.aot_parallel import Compiles
from rhino.passes.planner.autotune_report import MadePlan, Report
from rhino.passes.planner.request import Decided, PlanRequest
from rhino.passes.planner.search_space import make_space
from rhino.passes.planner.setup import CONSTRAINTS, Setup, folded, in_own_types
from rhino.passes.planner.staged_outcomes import pipeline_of
from rhino.passes.planner.step_programs import refusal
from rhino.passes.planner.workers import Workers
from rhino.passes.sharding.planning_pass import to_fit
from rhino.strategies.autotune import explore, is_open, reopen
from rhino.strategies.autotune.base import CutOff, Estimate, Explored, Outcome, PlanConfig, Refused, Space
from rhino.strategies.pipeline.schedules import SCHEDULES, num_ranks_of

T = TypeVar("T")

MOST_MADE: Final = 3
"""How many of the best configurations have their programs made, where the first does not fit or comes to more than the
next is estimated at; and the best without stages, where all of them come to more than that is estimated at."""

MOST_SCHEDULES: Final = 2
"""How many more plans are made of such configurations, by other schedules, under the same condition."""

MOST_NOTES: Final = 8
"""How many configurations an error names."""

CLOSE: Final = 1.1
"""Times the budget: what came so near while configurations were compared may fit once its shardings are searched for as
far as they can be."""

NOT_MADE: Final = ("RHI-STEP-008", "RHI-SOLVE-001", "RHI-SOLVE-002", "RHI-STAGE-001", "RHI-STAGE-004", "RHI-STAGE-005")
"""Errors of plans that cannot be made, most for they need too much, where another may do."""


_FAR: Final = 1.9
"""Times the estimate of the best: what is estimated at more is not compiled to see whether it is faster.

Predicted steps are 0.82 to 1.56 of those compiled for TPUs (docs/aot.md, 2026-11-24), so 1.9 of one another at most.
"""


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """What is made by a plan, and what that is predicted to take; what was `compiled` of it, where anything was.

    `compare`, of a plan in one program, lets experts' plans compete with it, and returns the best.
    """

    made: T
    step_s: float
    peak_bytes: tuple[float, ...]
    compiled: CompiledPlan | None = None
    compare: Callable[[], Made[T]] | None = None


Make = Callable[[Decided], Made[T]]
"""Makes the programs of a plan; what it raises where they do not fit rules the plan out."""


def choose_plan(
    setup: Setup,
    request: PlanRequest,
    make: Make[T],
    on_round: Callable[[Explored], None] = lambda _: None,
    compiles: Compiles | None = None,
) -> tuple[T, Report]:
    """Returns what `make` makes of the best plan, and what became of the others; `on_round` gets each round's state.

    With `compiles`, by which `make` has its plans compiled, the best is the one whose compiled step is the fastest of
    those that fit then, unless memory is all that counts. Where none does, the search is repeated within as much less
    as was learned.

    Raises:
        RhinoError: RHI-SOLVE-001 where no plan fits, RHI-SOLVE-002 where none was found, RHI-MESH-001 for more ranks
            than devices, RHI-STAGE-001 and RHI-BATCH-001 for less than one stage or micro-batch, RHI-BATCH-002 for
            stages of a step without a batch, RHI-STAGE-007 for unlike meshes of replicas or with host memory; and what
            `make` raises.
    """
    _check_numbers(request)
    setup = replace(in_own_types(setup), recomputes=not request.remat)
    if request.replicas:
        setup = replace(setup, shares=parse_replicas(request.replicas).shares)
    schedule = SCHEDULES[setup.schedules[0]]
    stages = [] if request.stages is None or request.replicas else [num_ranks_of(schedule, request.stages)]
    if request.stages is None and len(request.meshes) > 1 and not request.replicas:
        stages = [len(request.meshes)]  # one for each mesh
    ranks = [parse_replicas(request.replicas).count] if request.replicas else stages
    if request.is_unlike:
        _check_unlike(setup, request, ranks)
    else:
        _check_ranks(setup, ranks, request.mesh.shape if request.mesh else ())
    budget_bytes = setup.budget_bytes
    end = _searched(setup, request, stages, make, on_round, compiles)
    while end.best is None and compiles and compiles.is_open and compiles.within < setup.budget_bytes:
        setup = replace(setup, budget_bytes=float(compiles.within))
        end = _searched(setup, request, stages, make, on_round, compiles)
    end.compare()
    made, chosen = end.found()
    plans, failed = tuple(end.plans), tuple(end.failed)
    compared = compiles.comparison(made.compiled) if compiles and made.compiled else None
    setup = end.setup
    return made.made, Report(
        end.explored, chosen, plans, failed, setup.cluster, budget_bytes, setup.layers, setup.groups, compared
    )


def _searched(
    setup: Setup,
    request: PlanRequest,
    stages: Sequence[int],
    make: Make[T],
    on_round: Callable[[Explored], None],
    compiles: Compiles | None,
) -> _End[T]:
    """Searches within the budget of a setup, and makes the programs of the best plans."""
    processes = request.jobs or os.cpu_count() or 1
    with closing(Workers(setup, processes)) as workers:
        setup = workers.setup = folded(setup)
        space = _space(setup, request, stages)
        explored = explore(
            space,
            workers.evaluate,
            on_round,
            request.strategy,
            foresee=workers.foresee,
            screen=workers.screen,
            look=workers.look,
        )
    end = _End(setup, explored, make, compiles)
    end.make_best()
    if end.is_open:
        with closing(Workers(setup, processes)) as workers:
            end.reopen(space, workers, on_round, request.strategy)
        end.make_best()
    return end


def _space(setup: Setup, request: PlanRequest, stages: Sequence[int]) -> Space:
    """Returns what is left to choose from. Raises RHI-BATCH-002 for stages of a step without a batch."""
    numbers = [] if request.micro_batches is None else [request.micro_batches]
    meshes, replicas = [request.mesh.shape] if request.mesh else [], 0
    if request.replicas:
        asked = parse_replicas(request.replicas)
        replicas = asked.count
        if asked.shares and not numbers:
            numbers = [sum(asked.shares)]
    unlike = tuple([mesh.shape for mesh in request.meshes]) if request.is_unlike else ()
    space = make_space(setup, stages, meshes, numbers, request.candidates, replicas, unlike)
    if not space.meshes and not space.replicas and not space.unlike:
        raise no_batch("replicas" if replicas else "stages", setup.file)
    if request.remat or request.recomputes:
        return replace(space, remats=request.remat[:1] or (0.0,))
    return space


def no_batch(who: str, file: str) -> RhinoError:
    """Returns the error of stages or replicas of a step without a batch."""
    what = f"{who} need several micro-batches, and the step has no batch that can be divided"
    fix = f"name the batch with --batch=NAME:DIM, or leave --{who} out"
    return RhinoError("RHI-BATCH-002", what, Place(file), fix=fix)


def _check_numbers(request: PlanRequest) -> None:
    if request.stages is not None and request.stages < 1:
        raise RhinoError(
            "RHI-STAGE-001", f"{request.stages} stages were requested", fix="ask for one or more, or leave them out"
        )
    if request.micro_batches is not None and request.micro_batches < 1:
        raise RhinoError(
            "RHI-BATCH-001", f"{request.micro_batches} micro-batches", fix="ask for 1 or more, or leave them out"
        )


def _check_unlike(setup: Setup, request: PlanRequest, ranks: Sequence[int]) -> None:
    """Raises RHI-STAGE-001 where there are not as many meshes as ranks, RHI-MESH-001 and RHI-STAGE-007."""
    for name, is_given in (("replicas", bool(request.replicas)), ("offload", "offload" in setup.options)):
        if is_given:
            what = f"ranks of unlike meshes are asked for ({option_of_meshes(request.meshes)}), and {name}"
            known = " say --stages and --micro-batches, so that nothing is searched for," if name == "offload" else ""
            raise RhinoError("RHI-STAGE-007", what, fix=f"give one mesh,{known} or leave --{name} out")
    if ranks and ranks[0] != len(request.meshes):
        what = f"the meshes of {len(request.meshes)} ranks were given, and {ranks[0]} ranks"
        raise RhinoError("RHI-STAGE-001", what, fix="give a mesh for each rank, or one for all")
    link_between(load_cluster(setup.cluster), [mesh.num_devices for mesh in request.meshes])


def _check_ranks(setup: Setup, ranks: Sequence[int], mesh: Sequence[int]) -> None:
    """Raises RHI-MESH-001 where more ranks, or more devices in each, are asked for than there are."""
    there, fix = load_cluster(setup.cluster).num_devices, "ask for fewer ranks, or name a larger cluster"
    for count in ranks or [1]:
        if count > there:
            what = f"{count} ranks need as many devices, cluster '{setup.cluster}' has {there}"
            raise RhinoError("RHI-MESH-001", what, Place(setup.file), fix=fix)
        if (needed := count * prod(mesh)) > there:
            needed_text = (
                f"{count} ranks of {prod(mesh)} devices each need {needed}"
                if count > 1
                else f"{needed} devices are asked for"
            )
            what = f"{needed_text}, cluster '{setup.cluster}' has {there}"
            raise RhinoError(
                "RHI-MESH-001",
                what,
                Place(setup.file),
                ("a mesh is that of one rank",),
                f"leave the mesh out, or {fix}",
            )


@dataclass(eq=False)
class _End(Generic[T]):
    """Makes the programs of the best configurations, best first.

    `plans` are those that fit, and `best` is the best of them, `one` the best in one program; `failed` are the
    configurations of those that do not fit. `known` are the outcomes for which programs were requested, if they were
    worth it.
    """

    setup: Setup
    explored: Explored
    make: Make[T]
    compiles: Compiles | None = None
    plans: list[MadePlan] = field(default_factory=list)
    failed: list[Refused] = field(default_factory=list)
    best: tuple[Made[T], MadePlan] | None = None
    one: tuple[Made[T], MadePlan] | None = None
    known: dict[PlanConfig, Outcome] = field(default_factory=dict)

    def make_best(self) -> None:
        """Makes the best of what is new; where that is interrupted, with something made, that is all there is.

        Where none fits, what came near is made: the first that fits is taken.
        """
        configs: dict[PlanConfig, int] = {}
        new = [one for one in self.explored.outcomes if self.known.get(one.config) is not one]
        self.known = {one.config: one for one in self.explored.outcomes}
        for estimate in self.candidates(new):
            if (self.compiles and not self.compiles.is_open) or not self.is_worth(estimate, configs):
                continue
            configs[estimate.config] = configs.get(estimate.config, 0) + 1
            try:
                self.take(estimate)
            except KeyboardInterrupt:
                if self.best is None:
                    raise
                self.explored.interrupt()
                break
            if self.compiles and self.explored.is_interrupted and self.best:
                break
        for estimate in self.close(new):
            if self.best is None and (self.compiles is None or self.compiles.is_open):
                self.take(estimate)

    def compare(self) -> None:
        """Lets experts' plans compete with the best plan in one program, as far as compiles are left.

        After an interruption none are compiled any more; one that comes meanwhile ends it with what is known.
        """
        if self.compiles and self.is_compared and self.one and self.one[0].compare and not self.explored.is_interrupted:
            self.add(self.one[0].compare(), self.one[1].estimate)
            if self.compiles.is_interrupted:
                self.explored.interrupt()

    def found(self) -> tuple[Made[T], MadePlan]:
        """Returns the best that was made. Raises RHI-SOLVE-001 and -002 where nothing was."""
        if self.best is None:
            raise self.none_fits()
        return self.best

    @property
    def done(self) -> dict[PlanConfig, None]:
        """The configurations of which programs were made."""
        return dict.fromkeys([*(one.estimate.config for one in self.plans), *(one.config for one in self.failed)])

    @property
    def is_open(self) -> bool:
        """Says whether the search has left something that may take less than what was made; if it came to its end."""
        return self.best is not None and self.explored.is_complete and is_open(self.explored, self.least_s, self.done)

    @property
    def least_s(self) -> float:
        """The least step of programs that were made, as predicted."""
        return min(one.step_s for one in self.plans)

    @property
    def is_compared(self) -> bool:
        """Says whether compiled steps decide."""
        return self.compiles is not None and not self.compiles.memory_only

    def reopen(self, space: Space, workers: Workers, on_round: Callable[[Explored], None], strategy: str) -> None:
        """Looks at what was cut off, or passed over, at less than the step of the programs of the best plan."""
        known = self.explored, self.least_s, self.done, space
        self.explored = reopen(*known, workers.evaluate, on_round, strategy, workers.screen, workers.look)

    def is_worth(self, estimate: Estimate, made: dict[PlanConfig, int]) -> bool:
        """Says whether one more plan may be made, given how many of each configuration were made.

        It may where it is estimated to be faster than the best; where plans are compiled, where it is not far behind. A
        configuration without stages always may: estimates leave nothing open there.
        """
        if self.best is None:
            return True
        config, most_s = estimate.config, self.least_s
        if self.is_compared:
            most_s = _FAR * min(one.estimate.step_s for one in self.plans)
        if estimate.step_s >= most_s:
            return False
        if config in made:
            return sum(made.values()) - len(made) < MOST_SCHEDULES
        if self.is_compared:
            return True
        return len(made) < MOST_MADE or config.num_ranks == 1

    def candidates(self, outcomes: Sequence[Outcome]) -> list[Estimate]:
        """Returns what may be made, best first: a plan of each configuration by each schedule.

        Last comes what by its estimate does not fit, and what was too slow for anybody to ask what it needs.
        """
        ranked = [one for one in outcomes if isinstance(one, Estimate)]
        others = [other for one in ranked for other in (*one.others, *([one.ahead] if one.ahead else []))]
        nearly = [one for refused in outcomes if isinstance(refused, Refused) for one in refused.nearly]
        slow = [one for cut_off in outcomes if isinstance(cut_off, CutOff) for one in cut_off.plans]
        fits = [(max(one.peak_bytes, default=0.0) <= self.setup.budget_bytes, one) for one in (*ranked, *others)]
        every = [*fits, *((False, one) for one in (*nearly, *slow))]
        return [one for _, one in sorted(every, key=lambda pair: (not pair[0], pair[1].step_s, pair[1].config))]

    def close(self, outcomes: Sequence[Outcome]) -> list[Estimate]:
        """Returns the few plans in one stage that need hardly more memory than there is, the smallest first.

        A bound on their step is known.
        """
        most = CLOSE * self.setup.budget_bytes
        found = [one for one in outcomes if isinstance(one, Refused) and one.by_memory and 0 < one.found_bytes <= most]
        found.sort(key=lambda one: (one.found_bytes, one.config))
        return [
            Estimate(one.config, "", *(one.free_bound_s,) * 4, collectives_s=0.0, peak_bytes=(one.found_bytes,))
            for one in found[:MOST_MADE]
        ]

    def take(self, estimate: Estimate) -> None:
        """Makes the programs of a plan, and takes it if it is the best."""
        try:
            made = self.make(decided(estimate))
        except RhinoError as error:
            if error.id not in (*NOT_MADE, "RHI-AOT-001"):
                raise
            by = f", {estimate.schedule}" if estimate.schedule else ""
            self.failed.append(
                Refused(estimate.config, f"{error.what}{by}", by_memory=error.exit_code == ExitCode.DOES_NOT_FIT)
            )
            return
        self.add(made, estimate)

    def add(self, made: Made[T], estimate: Estimate) -> None:
        """Notes a plan whose programs were made and fit, and takes it if it is the best."""
        plan = MadePlan(estimate, made.step_s, made.peak_bytes, made.compiled)
        self.plans.append(plan)
        if self.best is None or self.order_s(plan) < self.order_s(self.best[1]):
            self.best = made, plan
        if made.compare and (self.one is None or self.order_s(plan) < self.order_s(self.one[1])):
            self.one = made, plan

    def order_s(self, plan: MadePlan) -> float:
        """Returns the step by which plans are compared: as compiled, or else as predicted."""
        compiled = plan.compiled if self.is_compared else None
        return plan.step_s if compiled is None or compiled.compiled_s is None else compiled.compiled_s

    def none_fits(self) -> RhinoError:
        """Returns the error where there is no plan: the step's own, where every configuration is refused with it.

        Where plans were compiled, and take too much, that is what it says.
        """
        if self.compiles and self.compiles.least:
            return self.none_fits_compiled(self.compiles, self.compiles.least)
        refused = [*self.failed, *self.explored.refused]
        by_memory = any(one.by_memory for one in refused)
        # Those that need least memory come first, those whose need is not known come last.
        refused.sort(key=lambda one: (not one.by_memory, one.least_bytes or inf))
        notes = tuple(f"{one.config}: {one.why}" for one in refused[:MOST_NOTES])
        if by_memory:
            what = f"no plan {fits_text(self.setup.budget_bytes)}{self.least_known(refused[0])}"
            given = " and ".join(f"--{name}" for name in CONSTRAINTS if self.setup.options.get(name))
            return RhinoError("RHI-SOLVE-001", what, Place(self.setup.file), notes, to_fit(given))
        no_plan = RhinoError("RHI-SOLVE-002", "no plan was found", Place(self.setup.file), notes, "leave more open")
        return self.refused_step([one.config for one in refused]) or no_plan

    def none_fits_compiled(self, compiles: Compiles, least: CompiledPlan) -> RhinoError:
        """Returns the error where plans were compiled, of which `least` takes least."""
        what = none_fits_text(compiles.budget_bytes, least, compiles.compiler)
        notes = [f"{one.config}: {one.why}" for one in self.failed[:MOST_NOTES]]
        notes.append(f"plans compiled: {len(compiles.compiled)}")
        return RhinoError("RHI-SOLVE-001", what, Place(self.setup.file), tuple(notes), NONE_FITS_FIX)

    def least_known(self, least: Refused) -> str:
        """Returns the least memory that any configuration is known to need, as words to follow the budget."""
        size = least.least_bytes
        words = format_bytes(size)
        if words == format_bytes(self.setup.budget_bytes):
            words += f" ({ceil(size)} bytes)"
        about = "" if least.found_bytes == size else "about "  # what rows and stages are said to need is no program
        return f"; the smallest plan that was found needs {about}{words}" if size else ""

    def refused_step(self, configs: Sequence[PlanConfig]) -> RhinoError | None:
        """Returns why the step itself is refused in each of `configs`, by the error of the first.

        Returns None if some configuration is not refused.
        """
        errors = []
        for config in {(one.micro_batches, one.remat): one for one in configs}.values():
            error = refusal(self.setup, config)
            if error is None:
                return None
            errors.append(error)
        return errors[0] if errors else None


def decided(estimate: Estimate) -> Decided:
    """Returns the plan that was estimated."""
    config = estimate.config
    pipeline = pipeline_of(SCHEDULES[estimate.schedule], config) if estimate.schedule else None
    stages, chunks = (pipeline.num_stages, pipeline.chunks) if pipeline else (1, 1)
    own = (config.meshes or (config.mesh,), config.micro_batches, config.remat)
    placing = config.replicas, estimate.recomputes, estimate.device_order
    return Decided(stages, chunks, estimate.schedule, *own, *placing)
