"""How long the processes of a job wait for one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from rhino.ir.diagnostics import RhinoError

PREFIX: Final = "RHINO_"
"""An environment variable is this and a limit's name in capitals: `RHINO_STALL_LIMIT_S`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a job, in seconds.

    Attributes:
        start_limit_s: for a process to come, and to begin the first step when others have begun it.
        heartbeat_limit_s: without a heartbeat; a process that is killed is seen at once, so this is for one that is
            stopped, or a host that is gone. Python sends heartbeats: it is longer than a call of C holds Python's lock.
        stall_limit_s: without progress of any process, where one is in a step, or they have begun unlike numbers of
            steps, and none plans or compiles.
    """

    start_limit_s: float = 300
    heartbeat_limit_s: float = 20
    stall_limit_s: float = 30

    @staticmethod
    def parse(environment: Mapping[str, str], given: Mapping[str, float | None]) -> Limits:
        """Returns the limits that are given by name, else those of environment variables, else the usual ones.

        Raises:
            RhinoError: RHI-RUN-009 for what is no number of seconds above 0.
        """
        found = {}
        for one in fields(Limits):
            variable, value = PREFIX + one.name.upper(), given.get(one.name)
            text: object = environment.get(variable) if value is None else value
            if text is not None:
                found[one.name] = _seconds(variable if value is None else one.name, text)
        return Limits(**found)


def _seconds(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = 0
    if not 0 < number < float("inf"):
        raise RhinoError("RHI-RUN-009", f"{name} is {value!r:.40}", fix="give a number of seconds above 0, as 30")
    return number
