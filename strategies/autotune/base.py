"""What all autotuning strategies share.

That is configurations, what they come to, the space that they are from, and one place that evaluates them.

A *configuration* is stages, the mesh of a rank, micro-batches and the share of the activation stash that is recomputed.
That is a plan but for its schedule, which is chosen with it, and for its shardings and stage boundaries, which are the
best ones of the configuration. To find what a configuration comes to, it is planned. So strategies differ in which
configurations they request, and in what order; they request them from `Evaluations`, which plans each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Final

from rhino.ir.cluster.mesh import finer_shapes

ROUND: Final = 4
"""Configurations in a round: enough for the cores of a small machine, few enough to learn from earlier rounds."""

SEED: Final = 4
"""Micro-batches per stage to begin with: 1F1B is then idle for less than a fifth of the step."""

BINDS: Final = 0.005
"""Relative: by how much memory must slow a configuration down for recomputation to be looked at."""

PAYS: Final = 0.005
"""Relative: what more micro-batches must save to be worth another look, and other meshes, where a look tells."""

MOST: Final = 64
"""Configurations that a strategy evaluates at most, by default."""

REMATS: Final = (0.0, 0.5, 1.0)
"""Shares of the activation stash that may be recomputed."""

SLACK: Final = 2.0
"""How many times what passes through memory should fit, to begin with.

Where hardly anything fits, shardings are slow, and long to find.
"""

NEVER_RECOMPUTED: Final = 1 / 32
"""The share of what passes through memory that is there even if all that can be is recomputed; to begin with."""


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """A configuration: a plan but for its schedule, shardings and stage boundaries.

    `mesh` is that of one rank, `remat` the share of the activation stash that is recomputed. So many `replicas`, which
    have one stage each, share the micro-batches. Where ranks have unlike meshes, `meshes` [ranks] are these, and `mesh`
    is the first.
    """

    stages: int
    mesh: tuple[int, ...]
    micro_batches: int
    remat: float = 0.0
    replicas: int = 1
    meshes: tuple[tuple[int, ...], ...] = ()

    def __lt__(self, other: PlanConfig) -> bool:
        """Orders configurations; of those that differ in `remat` alone, the one that stores least comes first."""
        return self._order < other._order

    @property
    def _order(self) -> tuple[int, int, tuple[tuple[int, ...], ...], tuple[int, ...], int, float]:
        return self.stages, self.replicas, self.meshes, self.mesh, self.micro_batches, -self.remat

    @property
    def num_ranks(self) -> int:
        """On how many ranks it runs: one for each stage, or for each replica."""
        return self.stages * self.replicas

    @property
    def rank_meshes(self) -> tuple[tuple[int, ...], ...]:
        """The mesh of each rank [ranks]."""
        return self.meshes or (self.mesh,) * self.num_ranks

    @property
    def family(self) -> PlanConfig:
        """The configuration that stands for all that differ from this one in micro-batches alone."""
        return replace(self, micro_batches=0)

    def __str__(self) -> str:
        mesh = "; ".join("x".join(map(str, own)) for own in self.meshes or (self.mesh,))
        parts = [f"{self.stages} stages of {mesh}" if self.stages > 1 else f"mesh {mesh}"]
        if self.replicas > 1:
            parts = [f"{self.replicas} replicas of {mesh}"]
        if self.micro_batches > 1:
            parts.append(f"{self.micro_batches} micro-batches")
        if self.remat > 0:
            parts.append(f"{self.remat:.0%} of the activations recomputed")
        return ", ".join(parts)


def on_meshes(meshes: Sequence[tuple[int, ...]], micro_batches: int, remat: float = 0.0) -> PlanConfig:
    """Returns the configuration with a stage on each of some meshes, which may be unlike."""
    first = meshes[0]
    own = () if all(mesh == first for mesh in meshes) else tuple(meshes)
    return PlanConfig(len(meshes), first, micro_batches, remat, meshes=own)


@dataclass(frozen=True, slots=True)
class Screening:
    """A look at ranks that may have any of some `meshes`, as any of some numbers of `stages`.

    They are found by dynamic programming, or `by_moves` on single stages, from balanced ones.
    """

    meshes: tuple[tuple[int, ...], ...]
    stages: tuple[int, ...]
    micro_batches: int
    remat: float = 0.0
    by_moves: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """A look at about what a configuration takes, before it is planned."""

    config: PlanConfig

    @property
    def micro_batches(self) -> int:
        """Those of the configuration."""
        return self.config.micro_batches

    @property
    def remat(self) -> float:
        """The share of the configuration."""
        return self.config.remat


ABOUT: Final = 0.02
"""By what share a configuration may take less than it is taken to before it is planned.

LLaMA 405B on 512 H100s, in 8 to 64 stages, was estimated at 2 to 7 % more than that (2026-11-27).
"""

NEARLY: Final = 1.25
"""Times the budget: what is estimated to need no more may fit once its programs are made.

A GPT of two layers, two stages to a rank, was estimated to need 1.21 times what it was then proven to fit in
(2026-11-22).
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a configuration comes to.

    Units: seconds per step, bytes per device. `bound_s` is a proven lower bound of the configuration's plans on what
    `step_s` counts without idle time; `free_bound_s` the same without regard to memory. `step_s` is `compute_s` +
    `collectives_s` + `idle_s`, each rank's mean. `others` are those by other schedules, best first, but for those that
    need too much by far; `ahead` is the best by those that run ahead, where it takes less and fits. Shapes:
    `peak_bytes` [ranks]; where one needs too much, of that alone; of `others`, none where that was not told.
    Ranks take the cluster's devices in `device_order`, as numbered where it is empty. With `recomputes` each stage
    recomputes what its memory asks for; `is_pressed` says that memory slows the plan down where bounds do not tell, as
    they hold for plans that recompute, too.
    """

    config: PlanConfig
    schedule: str
    step_s: float
    bound_s: float
    free_bound_s: float
    compute_s: float
    collectives_s: float
    peak_bytes: tuple[float, ...]
    others: tuple[Estimate, ...] = ()
    ahead: Estimate | None = None
    recomputes: bool = False
    is_pressed: bool = False
    device_order: tuple[int, ...] = ()

    @property
    def quickest(self) -> Estimate:
        """The best plan of the configuration."""
        return self.ahead or self

    @property
    def idle_s(self) -> float:
        """The seconds in which a rank waits, in the mean."""
        return max(0.0, self.step_s - self.compute_s - self.collectives_s)

    @property
    def is_bound_by_memory(self) -> bool:
        """Says whether the configuration would be faster with more memory."""
        return self.is_pressed or self.bound_s > self.free_bound_s * (1 + BINDS)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a configuration is refused: `by_memory`, or for a reason that rules out more micro-batches too.

    The other reason applies to all configurations with as many micro-batches or more.

    `needs_bytes` is what a device would have to hold, as estimated, where that is what stands against it. Of stages,
    `nearly` are the plans, best first, that by it need hardly more than there is. `found_bytes` is what the least
    program takes that was found, where one was.
    """

    config: PlanConfig
    why: str
    by_memory: bool
    free_bound_s: float = 0.0
    needs_bytes: float = 0.0
    nearly: tuple[Estimate, ...] = ()
    found_bytes: float = 0.0

    @property
    def least_bytes(self) -> float:
        """What a device would have to hold, as far as that is known; else 0."""
        return max(self.needs_bytes, self.found_bytes)


@dataclass(frozen=True, slots=True)
class CutOff:
    """A configuration that was not planned to its end: it takes `bound_s` at least, and a better one was known.

    `free_bound_s` is the bound without regard to memory; `by_memory` says that it is memory that raised `bound_s` so
    far. `arithmetic_s` is the time of its arithmetic alone, where that is enough: it is the same on every mesh, in
    however many stages and micro-batches. `estimated_s`, where it is not 0, is what a pipeline is estimated to take,
    which is what is too much: then `bound_s` may be less than what was known, and `plans` are those that were
    estimated, best first, of which none is known to fit.
    """

    config: PlanConfig
    bound_s: float
    free_bound_s: float
    by_memory: bool
    arithmetic_s: float = 0.0
    estimated_s: float = 0.0
    plans: tuple[Estimate, ...] = ()

    @property
    def step_s(self) -> float:
        """The least that it is taken to come to."""
        return max(self.bound_s, self.estimated_s)


Outcome = Estimate | Refused | CutOff


def plan_name(config: PlanConfig, schedule: str, *, recomputes: bool) -> str:
    """Returns what a plan of a configuration is called."""
    own = ", each recomputing what its memory asks for" if recomputes else ""
    return f"{config}{own}, {schedule}" if schedule else str(config)


def may_fit(estimate: Estimate, budget_bytes: float) -> bool:
    """Says whether a plan may fit once its programs are made, which is not told of all."""
    return max(estimate.peak_bytes, default=0.0) <= NEARLY * budget_bytes


def bound_by_memory(outcome: Outcome) -> bool | None:
    """Says whether more memory would make a configuration faster or possible; None where it is impossible with any."""
    match outcome:
        case Refused():
            return True if outcome.by_memory else None
        case CutOff():
            return outcome.by_memory
        case Estimate():
            return outcome.is_bound_by_memory


@dataclass(frozen=True, slots=True)
class Space:
    """What there is to choose from.

    `meshes` are the meshes of a rank by number of stages; `micro_batches` the numbers of them that searches step in,
    ascending, and `finer` all that there are. `least_s` is the time of the step's arithmetic on all devices at their
    full rate, `most` how many configurations a strategy has evaluated at most, `budget_bytes` what a device may hold.
    If the whole step was divided evenly among all devices, each would hold `resident_bytes` throughout and
    `passing_bytes` more at its peak. `has_kin` says that ranks may have other meshes than those, too; those of the
    numbers of stages in `three_axes` also of three axes. `replicas` are the meshes of a rank by number of replicas, and
    `unlike` ranks of unlike meshes that were asked for, each the meshes of all ranks. Where nobody asked for any, as
    many ranks as `unlike_stages` says may have any of `rank_shapes`. `is_recomputed` says that the step recomputes all
    that it can as it is: in one stage, whatever share is asked for, it is the same step.
    """

    meshes: dict[int, tuple[tuple[int, ...], ...]]
    micro_batches: tuple[int, ...]
    least_s: float
    remats: tuple[float, ...] = REMATS
    most: int = MOST
    budget_bytes: float = inf
    finer: tuple[int, ...] = ()
    resident_bytes: float = 0.0
    passing_bytes: float = 0.0
    has_kin: bool = False
    three_axes: frozenset[int] = frozenset()
    replicas: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    unlike: tuple[tuple[tuple[int, ...], ...], ...] = ()
    rank_shapes: tuple[tuple[int, ...], ...] = ()
    unlike_stages: tuple[int, ...] = ()
    is_recomputed: bool = False

    def remats_of(self, stages: int) -> tuple[float, ...]:
        """Returns the shares that configurations of so many stages may recompute, ascending."""
        return self.remats[:1] if self.is_recomputed and stages == 1 else self.remats

    def kin(self, config: PlanConfig) -> list[PlanConfig]:
        """Returns the configurations with a rank's devices on the meshes next to its own; none unless `has_kin`.

        These are one row, the axes reversed, and where there may be three axes, those next to its own.
        """
        if not self.has_kin:
            return []
        finer = finer_shapes(config.mesh) if config.stages in self.three_axes else ()
        meshes = dict.fromkeys([(prod(config.mesh),), config.mesh[::-1], *finer])
        return [replace(config, mesh=mesh) for mesh in meshes if mesh != config.mesh]

    def seed(self, stages: int, remat: float = 0.0) -> int:
        """Returns the place of the number of micro-batches to begin with."""
        wanted = SEED * stages if stages > 1 else 1
        numbers = enumerate(self.micro_batches)
        found = (place for place, number in numbers if number >= wanted and self.may_hold(stages, number, remat, SLACK))
        return next(found, len(self.micro_batches) - 1)

    def may_hold(self, stages: int, micro_batches: int, remat: float, slack: float = 1.0) -> bool:
        """Returns whether configurations fit if memory is divided evenly and what passes through it fits `slack` times.

        What passes is that of the micro-batches in flight.
        """
        saved = (1 - remat + remat * NEVER_RECOMPUTED) * min(stages, micro_batches) / micro_batches
        return self.resident_bytes + slack * saved * self.passing_bytes <= self.budget_bytes

    def may_fit_from(self, outcome: Outcome) -> float:
        """Returns from how many micro-batches on what was refused may fit.

        With k times as many it needs at least a k-th of the memory.
        """
        return (
            outcome.config.micro_batches * outcome.needs_bytes / self.budget_bytes
            if isinstance(outcome, Refused)
            else 0.0
        )


@dataclass(slots=True)
class Explored:
    """What was looked at, and for which strategy.

    `below_s` is a step from elsewhere: what is not below it is of no use; `made_s` that of the best plan whose programs
    were made, once there is one, which is then the step to beat in place of what plans are estimated at. `implied` are
    configurations that were requested and are cut off by what another came to, `passed_over` families that ended with
    nothing evaluated or by their bound. It is not complete where it was interrupted, or a strategy had spent all that
    it may have planned.
    """

    below_s: float = inf
    made_s: float | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    implied: list[CutOff] = field(default_factory=list)
    requested_by: dict[PlanConfig, str] = field(default_factory=dict)
    passed_over: dict[PlanConfig, float] = field(default_factory=dict)
    is_complete: bool = True
    is_interrupted: bool = False

    def interrupt(self) -> None:
        """Notes that the user has interrupted."""
        self.is_complete, self.is_interrupted = False, True

    @property
    def ranked(self) -> list[Estimate]:
        """The configurations that can be had, best first."""
        found = [one for one in self.outcomes if isinstance(one, Estimate)]
        return sorted(found, key=lambda one: (one.step_s, one.config))

    @property
    def quickest(self) -> Estimate | None:
        """The best plan of all configurations, by any schedule; None where none can be had."""
        return min((one.quickest for one in self.ranked), key=lambda one: one.step_s, default=None)

    @property
    def refused(self) -> list[Refused]:
        """The configurations that cannot be had."""
        return [one for one in self.outcomes if isinstance(one, Refused)]

    @property
    def cut_off(self) -> list[CutOff]:
        """The configurations that were cut off before the end of their search, or not at all."""
        return [*(one for one in self.outcomes if isinstance(one, CutOff)), *self.implied]

    @property
    def best_s(self) -> float:
        """The best step so far, or the one from elsewhere if that is better; infinite before there is one."""
        if self.made_s is not None:
            return min(self.below_s, self.made_s)
        return min([self.below_s, *(one.step_s for one in self.outcomes if isinstance(one, Estimate))])

    @property
    def bound_s(self) -> float:
        """Returns what no configuration that was looked at or passed over falls below."""
        bounds_s = [one.bound_s for one in self.ranked] + [one.bound_s for one in self.cut_off]
        return min([*bounds_s, *self.passed_over.values()], default=0.0)

    @property
    def num_requested(self) -> dict[str, int]:
        """Returns how many configurations were evaluated for each strategy, in the order in which they came to it."""
        found: dict[str, int] = {}
        for name in self.requested_by.values():
            found[name] = found.get(name, 0) + 1
        return found


Evaluate = Callable[[Sequence[PlanConfig], float], Iterable[Outcome]]
"""Gives the outcomes of a round of configurations, in their order.

What is proven to take no less than the seconds given may be cut off.
"""


Found = list[tuple[float, PlanConfig]]
"""Configurations whose ranks have unlike meshes, each with about what it takes, best first."""

Screen = Callable[[Sequence[Screening], float], list[Found]]
"""Gives what each screening finds, but for what is taken to need the seconds given, or longer."""


Looks = Callable[[Sequence[PlanConfig]], list[float]]
"""Gives about what configurations take, 0 for those that have to be planned to tell."""


class SpentError(Exception):
    """Raised when a strategy asks for more configurations than may be evaluated."""


@dataclass(eq=False)
class Evaluations:
    """Evaluates configurations for strategies, none of them twice; `on_round` is called after each round.

    `relaxed` is what configurations come to with fewer requests on shardings: what those cannot fall below, none
    here can. `screen` finds ranks of unlike meshes; without it there are none. `look` tells about what configurations
    take, which is kept in `looked`; without it nobody knows.

    Configurations are cut off at the best step known when their round begins, so that outcomes do not depend on what
    ends first. The first configuration has a round of its own, for all others to be cut off at something.

    A bound without regard to memory holds with more micro-batches and with more recomputed, too, and that of arithmetic
    for all configurations that recompute no less: what such a bound cuts off is not evaluated, and waits for the
    configuration of which there may yet be one.
    """

    space: Space
    evaluate: Evaluate
    on_round: Callable[[Explored], None] = lambda _: None
    explored: Explored = field(default_factory=Explored)
    relaxed: Sequence[Outcome] = ()
    known: dict[PlanConfig, Outcome] = field(default_factory=dict)
    asker: str = ""
    screen: Screen | None = None
    look: Looks | None = None
    looked: dict[PlanConfig, float] = field(default_factory=dict)
    until: int = field(init=False)

    def __post_init__(self) -> None:
        self.until = self.space.most

    @property
    def left(self) -> int:
        """The number of configurations that may yet be evaluated."""
        return max(0, self.until - len(self.explored.outcomes))

    @contextmanager
    def allowing(self, number: int) -> Iterator[None]:
        """Within this context as many configurations may be evaluated as that, whatever was before.

        When they are spent, this part ends, and nothing else.
        """
        before, self.until = self.until, len(self.explored.outcomes) + number
        try:
            yield
        except SpentError:
            self.explored.is_complete = False
        finally:
            self.until = before

    def outcomes(self, configs: Sequence[PlanConfig]) -> list[Outcome]:
        """Returns the outcomes of configurations, in their order.

        Raises:
            SpentError: after the last that may be evaluated, where that is not all.
        """
        waiting = self.not_implied([one for one in dict.fromkeys(configs) if one not in self.known])
        while waiting:
            ready = [one for one in waiting if not any(other != one and bounds(other, one) for other in waiting)]
            begins = not self.explored.outcomes and self.explored.best_s == inf
            allowed = ready[: min(1 if begins else ROUND, self.left)]
            if not allowed:
                raise SpentError
            for found in self.evaluate(allowed, self.explored.best_s):
                outcome = self.bounded(found)
                self.known[outcome.config] = outcome
                self.explored.outcomes.append(outcome)
                self.explored.requested_by[outcome.config] = self.asker
            self.on_round(self.explored)
            waiting = self.not_implied([one for one in waiting if one not in self.known])
        return [self.known[one] for one in configs]

    def promising_first(self, groups: Sequence[Sequence[PlanConfig]]) -> list[PlanConfig]:
        """Returns a configuration of each group: that which takes about the least, and the fastest of these first.

        Those that take about the same, or of which nobody knows, stay in their order. So a group of fewer stages, which
        is planned in less time, comes before one of more.
        """
        self.look_at([one for group in groups for one in group])

        def in_order(configs: Sequence[PlanConfig]) -> list[PlanConfig]:
            seconds = {one: self.looked.get(one) or inf for one in configs}
            least_s = min(seconds.values(), default=inf)
            return sorted(configs, key=lambda one: max(seconds[one], least_s * (1 + ABOUT)))

        return in_order([in_order(group)[0] for group in groups])

    def promising(self, configs: Sequence[PlanConfig]) -> list[PlanConfig]:
        """Returns the configurations that may take so much less than the best that it pays, and those nobody knows."""
        self.look_at(configs)
        most_s = self.explored.best_s * (1 - PAYS)
        return [one for one in configs if self.looked.get(one, 0.0) * (1 - ABOUT * (one.stages > 1)) < most_s]

    def look_at(self, configs: Sequence[PlanConfig]) -> None:
        """Finds out about what configurations take, where that is told and not known yet."""
        new = [one for one in configs if one not in self.looked]
        if self.look is not None and new:
            self.looked.update(zip(new, self.look(new), strict=True))

    def bounded(self, outcome: Outcome) -> Outcome:
        """Returns an outcome with what others prove of it, which is more for what was cut off early."""
        if not isinstance(outcome, CutOff):
            return outcome
        least_s = self.proven_s(outcome.config)
        bound_s, free_bound_s = max(outcome.bound_s, least_s), max(outcome.free_bound_s, least_s)
        return replace(outcome, bound_s=bound_s, free_bound_s=free_bound_s)

    def proven_s(self, config: PlanConfig) -> float:
        """Returns what known results prove of a configuration without regard to memory."""
        known = (*self.known.values(), *self.relaxed)
        return max((one.free_bound_s for one in known if bounds(one.config, config)), default=0.0)

    def not_implied(self, configs: Sequence[PlanConfig]) -> list[PlanConfig]:
        """Returns the configurations that remain after known results have cut off those no better than the best."""
        best_s, left = self.explored.best_s, []
        for config in configs:
            arithmetic_s = self.arithmetic_s(config.remat)
            bound_s = max(arithmetic_s, self.proven_s(config))
            if bound_s < best_s:
                left.append(config)
            else:
                self.known[config] = implied = CutOff(
                    config, bound_s, bound_s, by_memory=False, arithmetic_s=arithmetic_s
                )
                self.explored.implied.append(implied)
        return left

    def arithmetic_s(self, remat: float) -> float:
        """Returns what is known of the arithmetic of configurations that recompute so much.

        It is what other configurations take that recompute as much or less.
        """
        known = (*self.known.values(), *self.relaxed)
        return max(
            (one.arithmetic_s for one in known if isinstance(one, CutOff) and one.config.remat <= remat), default=0.0
        )

    @contextmanager
    def requested_by(self, name: str) -> Iterator[None]:
        """What is evaluated within is for the strategy of that name."""
        before, self.asker = self.asker, name
        try:
            yield
        finally:
            self.asker = before


def bounds(one: PlanConfig, other: PlanConfig) -> bool:
    """Says whether the bound of a configuration without regard to memory holds for another."""
    alike = (one.stages, one.replicas, one.rank_meshes) == (other.stages, other.replicas, other.rank_meshes)
    return alike and one.micro_batches <= other.micro_batches and one.remat <= other.remat


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to search: `search` requests configurations from `Evaluations`. `doc` is a phrase for --help."""

    name: str
    doc: str
    search: Callable[[Evaluations], None]

    def run(self, trials: Evaluations) -> None:
        """Searches; what is evaluated is noted as asked for by this strategy, or by those that it calls."""
        with trials.requested_by(self.name):
            self.search(trials)
