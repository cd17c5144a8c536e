"""The plan in stages that fits the memory of its devices.

The search of shardings counts memory by rows, for all ranks together, and what each device of a rank holds is known for
the list of instructions alone. So the step is planned without a limit of rows first. Where that plan does not fit, rows
get a limit, which is corrected by how far plans are from the budget (`rhino.strategies.sharding.memory_fitting`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Final, Generic, TypeVar

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.plan.plan import Plan
from rhino.passes.base import Remarks
from rhino.passes.pipeline.pipeline_stages import StageCut
from rhino.passes.planner.module_facts import ROW_LIMITS
from rhino.passes.planner.plan_rows import fullest_rank, rank_limits
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.strategies.sharding.memory_fitting import RowLimits

T = TypeVar("T")

_ROWS, _STAGE_ROWS = ROW_LIMITS

_UNLIMITED: Final = sys.maxsize

_TRIES: Final = 8
"""How many limits of rows are tried."""

_NO_SHARDINGS: Final = ("RHI-SOLVE-001", "RHI-SOLVE-002")
"""Errors of a limit that no shardings stay within; others are of stages, which smaller shardings may help."""

_NO_CUT: Final = 1.05
"""By this factor the limit is lowered where no cut in stages fits."""

_MOST: Final = 2
"""No plan fits whose rows count this many budgets."""

_FULL: Final = 0.9
"""A plan that takes this share of the budget leaves little to gain."""

_CUTS: Final = 5
"""How often stages of the same shardings are cut at most: what programs take is known once they are made."""

_CLOSE: Final = 1.005
"""Between limits that are so close no other is tried."""


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """A plan in stages as `made`, its `plan` with all that a device holds counted, and the remarks of its passes."""

    made: T
    plan: Plan
    remarks: Remarks

    @property
    def peak_bytes(self) -> float:
        """The largest peak of a device; of one that may hold less than the budget, in shares of what it may."""
        predicted, (rank, own) = self.plan.predicted, fullest_rank(self.plan)
        return predicted.peak_bytes[rank] * predicted.budget_bytes / own.budget_bytes

    @property
    def over_bytes(self) -> list[float]:
        """By how much each rank's peak is over what its devices may hold, less than zero where it is below [ranks]."""
        pairs = zip(self.plan.predicted.peak_bytes, rank_limits(self.plan), strict=True)
        return [peak - own.budget_bytes for peak, own in pairs]

    @property
    def held_bytes(self) -> list[float]:
        """What the stage of each rank is estimated to hold; empty where it could not have recomputed less [ranks]."""
        cut = self.remarks.find(StageCut)
        if cut is None or not cut.recomputes or len(cut.held_bytes) != self.plan.num_ranks:
            return []
        return cut.held_bytes

    @property
    def is_limited(self) -> bool:
        """Whether a limit has a say in the cut: stages that save less than all are cut for their work alone."""
        cut = self.remarks.find(StageCut)
        return cut is None or cut.staging.problem.budget_bytes is not None

    @property
    def cut_bytes(self) -> float:
        """The least limit of stages within which this cut is: limits down to it, all stages alike, lead to it again."""
        cut = self.remarks.find(StageCut)
        if cut is None or len(cut.held_bytes) != self.plan.num_ranks:
            return inf
        pairs = zip(cut.held_bytes, rank_limits(self.plan), strict=True)
        return self.plan.predicted.budget_bytes * max(held / own.budget_bytes for held, own in pairs)

    @property
    def rows_bytes(self) -> float | None:
        """What rows count for a device of a rank, in the mean; None where no sharding was chosen."""
        choice = self.remarks.find(ShardingChoice)
        if choice is None:
            return None
        # A replica is searched for by itself.
        ranks = 1 if self.plan.shares else self.plan.num_devices / choice.target.mesh.num_devices
        return choice.answer.peak_bytes / ranks


def fit_in_stages(
    make: Callable[[dict[str, str]], Attempt[T]], budget_bytes: int, shares: Sequence[float] = ()
) -> Attempt[T]:
    """Returns the fastest attempt that fits, or the smallest where none does: the caller refuses that.

    `make` takes what is added to the options of `auto-parallel`. Where that may use host memory, and memory binds, the
    step is planned without, too: in so many more choices the search may find a worse one. Where nothing fits, `shares`
    of what is saved for the backward pass go to host memory, one after the other (`host_shares`). Where each stage
    recomputes what its memory asks for and nothing fits, all stages recompute all they can.

    Raises:
        RhinoError: the first that `make` raised, where nothing else came of it.
    """
    found: list[Attempt[T]] = []
    refused: list[RhinoError] = []
    on_host = [{"host-share": f"{share:g}"} for share in shares]
    added: list[dict[str, str]] = [{}, *([_ON_DEVICES] if shares else []), *on_host]
    free: Attempt[T] | None = None
    for given in added:
        # Without a limit of rows nothing goes to host memory: that is the best plan on the devices, too.
        known = free if given is _ON_DEVICES else None
        try:
            one, free = _fit(lambda more: make({**given, **more}), budget_bytes, known)  # noqa: B023 - called at once
        except RhinoError as error:
            if error.exit_code != ExitCode.DOES_NOT_FIT:
                raise
            refused.append(error)
        else:
            found.append(one)
            if one.held_bytes and _ALL not in added:
                added.append(_ALL)
        fast = [one for one in found if one.peak_bytes <= budget_bytes]
        if fast and (given or fast[0] is free or not shares):
            return min(fast, key=_step)
    if not found:
        raise refused[0]
    return min(found, key=_peak)


def _fit(
    make: Callable[[dict[str, str]], Attempt[T]], budget_bytes: int, free: Attempt[T] | None
) -> tuple[Attempt[T], Attempt[T] | None]:
    """Returns the fastest attempt that fits, else the smallest, and the one without a limit of rows.

    The latter may be known, as `free`. Raises the first refusal where nothing was found.
    """
    attempts = _Attempts(make, budget_bytes, [free] if free else [])
    free = free or attempts.within(_UNLIMITED)
    if free and (attempts.fits(free) or free.rows_bytes is None):
        return free, free
    limits = (
        RowLimits.below(free.rows_bytes, free.peak_bytes, budget_bytes)
        if free and free.rows_bytes
        else RowLimits(too_high=_MOST * budget_bytes, widest=_MOST * budget_bytes, next=budget_bytes)
    )
    for _ in range(_TRIES):
        limit = limits.next
        one = attempts.within(limit)
        if one is None and attempts.refused[-1].id in _NO_SHARDINGS:
            limits.bar(limit)
        elif one is None:
            limits.lower(limit, _NO_CUT)
        elif not attempts.fits(one):
            limits.lower(min(limit, one.rows_bytes or limit), one.peak_bytes / budget_bytes)
        elif one.peak_bytes >= _FULL * budget_bytes:
            break
        else:
            limits.lift(limit, limit * sqrt(budget_bytes / one.peak_bytes))
        if limits.are_close(_CLOSE):
            break
    return attempts.best(), free


_ON_DEVICES: Final = {"offload": "false"}
"""What is added for a plan that leaves host memory alone."""

_ALL: Final = {"remat": "1"}
"""What is added where stages that recompute what their memory asks for do not fit."""


@dataclass(frozen=True, eq=False)
class _Attempts(Generic[T]):
    """What was tried: what `found` came to, and what was `refused` because it does not fit."""

    make: Callable[[dict[str, str]], Attempt[T]]
    budget_bytes: int
    found: list[Attempt[T]] = field(default_factory=list)
    refused: list[RhinoError] = field(default_factory=list)

    def within(self, limit: float) -> Attempt[T] | None:
        """Returns an attempt within a limit of rows, None where there is none.

        The stages are cut within the budget. What they hold is an estimate too, so where that comes to nothing they are
        cut for their work alone; and where neither fits, within less and less by what the first has too much.
        """
        cut = self.tried({_ROWS: str(int(limit))})
        if cut is None and self.refused[-1].id in _NO_SHARDINGS:
            return None
        if cut and (self.fits(cut) or not cut.is_limited):
            return cut
        if cut and cut.held_bytes:
            return self.recomputed(cut, limit)
        found = [cut, self.tried({_ROWS: str(int(limit)), _STAGE_ROWS: str(_UNLIMITED)})]
        less = float(self.budget_bytes)
        for _ in range(len(found), _CUTS):
            if cut is None or any(one and self.fits(one) for one in found):
                break
            less -= cut.peak_bytes - self.budget_bytes
            if less < cut.cut_bytes or less < 1:
                cut = self.tried({_ROWS: str(int(limit)), _STAGE_ROWS: str(int(less))}) if less >= 1 else None
                found.append(cut)
        return min([one for one in found if one], key=_peak, default=None)

    def recomputed(self, cut: Attempt[T], limit: float) -> Attempt[T]:
        """Returns an attempt within a limit of rows whose stages recompute more than those of `cut`: that is too large.

        What a stage is estimated to hold is limited to what it held, less what its rank then has too much. It is the
        smallest where none fits.
        """
        found, limits = [cut], [float(one.budget_bytes) for one in rank_limits(cut.plan)]
        while len(found) < _CUTS and not self.fits(found[-1]):
            over = found[-1].over_bytes
            limits = [
                min(most, held) - more if more > 0 else most
                for most, held, more in zip(limits, found[-1].held_bytes, over, strict=True)
            ]
            own = ";".join(str(int(one)) for one in limits)
            one = self.tried({_ROWS: str(int(limit)), _STAGE_ROWS: own}) if min(limits) >= 1 else None
            if one is None:
                break
            found.append(one)
        return min(found, key=_peak)

    def tried(self, more: dict[str, str]) -> Attempt[T] | None:
        try:
            self.found.append(self.make(more))
        except RhinoError as error:
            if error.exit_code != ExitCode.DOES_NOT_FIT:
                raise
            self.refused.append(error)
            return None
        return self.found[-1]

    def fits(self, one: Attempt[T]) -> bool:
        return one.peak_bytes <= self.budget_bytes

    def best(self) -> Attempt[T]:
        """Returns the fastest that fits, else the smallest. Raises the first refusal where nothing was found."""
        if not self.found:
            raise self.refused[0]
        fast = [one for one in self.found if self.fits(one)]
        return min(fast, key=_step) if fast else min(self.found, key=_peak)


def _step(attempt: Attempt[T]) -> float:
    return attempt.plan.predicted.step_s


def _peak(attempt: Attempt[T]) -> float:
    return attempt.peak_bytes
