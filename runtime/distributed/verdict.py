"""Decide from what the processes of a job have told whether it has to end, and which process is the cause.

Plain data in and out: what is told comes from `rhino.runtime.distributed.monitor`, which asks each second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.limits import Limits

GRACE_S: Final = 1.0
"""For so long the first fault waits for others, of which it may be a consequence."""

_MOST_NAMED: Final = 3
"""Of so many processes a line tells; it counts the rest."""

OF_PEERS: Final = ("JaxRuntimeError", "XlaRuntimeError", "ConnectionError", "ConnectionResetError", "BrokenPipeError")
"""Errors that also a process raises whose peer has failed."""


def raised_text(error: BaseException) -> str:
    """Returns what a process tells of an error that it has raised, in a line.

    An error of Rhino is told by its id, as its class differs between the process that plans and those that are told.
    """
    kind, what = (f"[{error.id}]", error.what) if isinstance(error, RhinoError) else (f"{type(error).__name__}:", error)
    return f"{kind} {str(what).strip()}".partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Beat:
    """What a process tells of itself now and then.

    `begun` counts the steps that it has begun; one is `is_open` until its results are there, and `is_first` where it is
    the first of its program. `moves` changes with progress. `is_busy` is one that plans or compiles. `task` says where
    it is, once it makes no progress.
    """

    begun: int = 0
    is_open: bool = False
    is_first: bool = False
    is_busy: bool = False
    moves: int = 0
    task: str = ""

    def place(self) -> str:
        """Returns where the process is, in words."""
        where = f"in step {self.begun - 1}" if self.is_open else f"after {self.begun} steps"
        return f"{where}, {self.task}" if self.task else where

    def as_dict(self) -> dict[str, Any]:
        """Returns the beat as JSON has it."""
        return asdict(self)


@dataclass(slots=True)
class Seen:
    """What is known of a process; times are those of the clock that asks.

    `name` is empty until it has come. `raised` and `left` say how it ended in its own words, `lost_s` when its
    connection did. `versions` are those of the packages that a job's processes must have alike.
    """

    name: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    heard_s: float = 0
    moved_s: float = 0
    lost_s: float | None = None
    raised: str = ""
    raised_s: float = 0
    left: bool = False
    beat: Beat = field(default_factory=Beat)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job ends: an error's id, one line, and the names of the processes that are the cause."""

    id: str
    line: str
    causes: tuple[str, ...] = ()


def verdict(processes: Sequence[Seen], start_s: float, now_s: float, limits: Limits) -> Verdict | None:
    """Returns why the job of these processes has to end, None where it goes on.

    Errors of later rows may be consequences of those of earlier ones.
    """
    here = [one for one in processes if one.name]
    return (
        _missing(processes, start_s, now_s, limits)
        or _unlike(here)
        or _lost(here, now_s)
        or _raised(here, now_s)
        or _silent(here, now_s, limits)
        or _left(here)
        or _stalled(here, now_s, limits)
    )


def _missing(processes: Sequence[Seen], start_s: float, now_s: float, limits: Limits) -> Verdict | None:
    missing = [f"process {number}" for number, one in enumerate(processes) if not one.name]
    if not missing or now_s - start_s < limits.start_limit_s:
        return None
    return Verdict("RHI-RUN-007", f"{_listed(missing)} did not come within {limits.start_limit_s:g} s")


def _unlike(here: Sequence[Seen]) -> Verdict | None:
    for one in here[1:]:
        for package, version in one.versions.items():
            if version != (first := here[0].versions.get(package)):
                return Verdict("RHI-RUN-010", f"{one.name} has {package} {version}, and {here[0].name} has {first}")
    return None


def _lost(here: Sequence[Seen], now_s: float) -> Verdict | None:
    lost = [one for one in here if one.lost_s is not None and not one.left and not one.raised]
    if not lost:
        return None
    first = min(lost, key=lambda one: one.lost_s or 0)
    assert first.lost_s is not None
    if now_s - first.lost_s < GRACE_S:
        return None
    return Verdict("RHI-RUN-007", f"{first.name} has ended, last heard of {first.beat.place()}", (first.name,))


def _raised(here: Sequence[Seen], now_s: float) -> Verdict | None:
    raised = [one for one in here if one.raised]
    if not raised or now_s - min(one.raised_s for one in raised) < GRACE_S:
        return None
    first = min(raised, key=lambda one: (one.raised.startswith(OF_PEERS), one.raised_s))
    alike = [one.name for one in raised if one.raised == first.raised]
    return Verdict("RHI-RUN-007", f"{_listed(alike)} raised {first.raised}, {first.beat.place()}", tuple(alike))


def _silent(here: Sequence[Seen], now_s: float, limits: Limits) -> Verdict | None:
    silent = [one for one in here if not one.left and now_s - one.heard_s > limits.heartbeat_limit_s]
    if not silent:
        return None
    first = min(silent, key=lambda one: one.heard_s)
    what = f"{first.name} sent no heartbeat for {limits.heartbeat_limit_s:g} s, last heard of {first.beat.place()}"
    return Verdict("RHI-RUN-007", what, (first.name,))


def _left(here: Sequence[Seen]) -> Verdict | None:
    for one in here:
        further = [other for other in here if other.beat.begun > one.beat.begun]
        if one.left and further:
            what = f"{one.name} has ended {one.beat.place()}, and {further[0].name} has begun {further[0].beat.begun}"
            return Verdict("RHI-RUN-007", what)
    return None


def _stalled(here: Sequence[Seen], now_s: float, limits: Limits) -> Verdict | None:
    most = max((one.beat.begun for one in here), default=0)
    waiting = [one for one in here if one.beat.is_open]
    behind = [one for one in here if one.beat.begun < most]
    if not (waiting or behind) or any(one.beat.is_busy for one in here):
        return None
    limit_s = limits.stall_limit_s
    if any(one.beat.is_first for one in waiting):
        limit_s = max(limit_s, limits.start_limit_s)
    if now_s - max(one.moved_s for one in here) < limit_s:
        return None
    causes = behind or [one for one in here if not one.beat.is_open] or waiting
    rest = [one for one in here if one not in causes]
    what = f"no progress for {limit_s:g} s: {_placed(causes)}"
    return Verdict("RHI-RUN-008", f"{what}; {_placed(rest)}" if rest else what)


def _placed(processes: Iterable[Seen]) -> str:
    return _listed([f"{one.name} is {one.beat.place()}" for one in processes])


def _listed(texts: Sequence[str]) -> str:
    shown = list(texts[:_MOST_NAMED])
    if len(texts) > _MOST_NAMED:
        shown.append(f"{len(texts) - _MOST_NAMED} more")
    return " and ".join(shown)
