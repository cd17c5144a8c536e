"""The ports at which the processes of a job listen: any that are free, or those that a firewall lets through."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.executor.transport import family_of

VARIABLE: Final = "RHINO_PORTS"
"""The environment variable with the range, as `20000-20099`."""

_RANGE: Final = re.compile(r"(\d+)-(\d+)")
_MOST: Final = 65535


@dataclass(frozen=True, slots=True)
class Ports:
    """A range of ports, its ends included; `last` 0 is none, so that any port will do."""

    first: int = 0
    last: int = 0

    @staticmethod
    def parse(environment: Mapping[str, str]) -> Ports:
        """Returns the range that the environment names. Raises RHI-RUN-009 for what is none."""
        text = environment.get(VARIABLE)
        if text is None:
            return ANY_PORTS
        found = _RANGE.fullmatch(text.strip())
        first, last = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 0 < first <= last <= _MOST:
            fix = "give the first and the last port, as 20000-20099"
            raise RhinoError("RHI-RUN-009", f"{VARIABLE} is {text!r:.40}", fix=fix)
        return Ports(first, last)

    def free(self, host: str, count: int, start: int = 0) -> list[int]:
        """Returns so many ports of `host` that nobody listens at, those behind the first `start` before others.

        Without a range they are 0, which is any. Raises RHI-RUN-007 where not as many are free.
        """
        if not self.last:
            return [0] * count
        size = self.last - self.first + 1
        found: list[int] = []
        with ExitStack() as held:  # until all are found, so that they are different ones
            for number in range(size):
                port = self.first + (start + number) % size
                with suppress(OSError):
                    held.enter_context(socket.create_server((host, port), family=family_of(host)))
                    found.append(port)
                if len(found) == count:
                    return found
        what = f"{count} free ports are needed on {host}, and {VARIABLE}={self.first}-{self.last} has {len(found)}"
        raise RhinoError("RHI-RUN-007", what, fix="give a larger range")


ANY_PORTS: Final = Ports()
