"""A process among those that run together: what it publishes for the others, how it is, and how it ends with them.

A thread tells the monitor each second how far this process is. When the job has to end, or the monitor is gone, it
prints one line that says why and ends the process at once: others of its threads may be inside XLA, waiting for what
will not come.
"""

from __future__ import annotations

import faulthandler
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, NoReturn, Protocol

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.runtime.distributed.activity import Activity, activity, place_in_python
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.lines import Lines, Message
from rhino.runtime.distributed.monitor import Monitor, tick_of
from rhino.runtime.distributed.ports import ANY_PORTS, Ports
from rhino.runtime.distributed.processes import LOOPBACK, Team
from rhino.runtime.distributed.verdict import OF_PEERS, Beat, raised_text
from rhino.runtime.executor.transport import joined_address, split_address

_POLL_S: Final = 0.2
_MOST_SHOWN: Final = 400
"""Of an error's first line the others are shown so many characters."""

_FIX: Final = "look for the first error in the output of that process, and start the job again"

_PACKAGES: Final = ("rhino-parallel", "jax", "jaxlib")
"""What the processes of a job must have alike."""


class Work(Protocol):
    """Steps that a process runs, as the monitor is told of them; asked from another thread."""

    def look(self) -> tuple[int, bool, bool, object]:
        """Returns how many are begun, whether one is open, whether that is the first, and what changes by progress."""

    def task(self) -> str:
        """Returns what an open step waits for, empty where that is not known."""

    def close(self) -> None:
        """Called when nobody asks any more, before the process ends."""


class ProcessJob:
    """This process among those that run together."""

    def __init__(
        self,
        address: str,
        process: int,
        team: Team,
        limits: Limits,
        own_host: str = LOOPBACK,
        monitor: Monitor | None = None,
        *,
        ports: Ports = ANY_PORTS,
        is_launched: bool = False,
    ) -> None:
        """Connects to the monitor at `address`: that of process 0, or of a launcher.

        `own_host` is how the others reach this one, at `ports`, and `monitor` is the monitor where this process has it.

        Raises:
            RhinoError: RHI-RUN-007 where nobody listens there within the limit.
        """
        self.process, self.team, self.host, self.limits = process, team, own_host, limits
        self.monitor = monitor
        self._leader = "the launcher" if is_launched else team.name(0)
        self.name = f"{team.name(process)} on {socket.gethostname()}"
        self._ports = ports
        self._num_steps = 0
        self._works: list[Work] = []
        self._looked: Sequence[object] = ()
        self._moves, self._moved_s = 0, time.monotonic()
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()
        self._states: set[str] = set()
        self._sending = threading.Lock()
        self._show: Callable[[], object] | None = None
        self._lines = Lines(_connected(address, self.name, self._leader, limits))
        self._send({"hello": {"process": process, "name": self.name, "versions": _versions()}})
        self._thread = threading.Thread(target=self._run, name="rhino-member", daemon=True)
        self._thread.start()

    def watch(self, work: Work) -> None:
        """Tells the monitor of the progress of some steps, too."""
        self._works.append(work)

    def addresses(self, count: int) -> list[str]:
        """Returns so many addresses at which the others may reach this process.

        Those of processes of one host begin at different places of the range of ports.
        """
        ports = self._ports.free(self.host, count, start=count * self.process)
        return [joined_address(self.host, port) for port in ports]

    def publish(self, key: str, value: str) -> None:
        """Says something to all, once."""
        self._send({"set": [key, value]})

    def lookup(self, key: str) -> str:
        """Returns what was published under a key, and waits for it; RHI-RUN-008 where it does not come."""
        self._send({"get": key})
        limit_s = self.limits.start_limit_s
        with self._changed:
            if self._changed.wait_for(lambda: key in self._values, limit_s):
                return self._values[key]
        what = f"no process has published {key} within {limit_s:g} s"
        raise RhinoError("RHI-RUN-008", what, fix="start all processes, with the same plan")

    def await_all(self) -> None:
        """Waits until all processes have come; where one does not, the job ends."""
        self._await("all here")

    def begin_step(self) -> int:
        """Returns the number of the step that this process now begins, from 0."""
        self._num_steps += 1
        return self._num_steps - 1

    def await_verdict(self) -> None:
        """Waits until it would be known that a process has ended; does not return if one has."""
        time.sleep(2 * self.limits.heartbeat_limit_s)

    def raised(self, error: BaseException, show: Callable[[], object]) -> NoReturn:
        """Tells that an error ends this process, which ends with the others.

        `show` prints the error; one that the end of another process may have caused is printed if it has not.
        """
        name = type(error).__name__
        if name in OF_PEERS:
            self._show = show
        else:
            show()
        self._send({"beat": self._beat().as_dict(), "raised": raised_text(error)[:_MOST_SHOWN]})
        self.await_verdict()
        show()
        _end(RhinoError("RHI-RUN-007", f"{self.name} raised {name}", fix=_FIX))

    def finish(self) -> None:
        """Waits for the others to finish too: until then they may need this process."""
        self._send({"beat": self._beat().as_dict(), "left": True})
        self._await("all left")

    def close(self) -> None:
        """Leaves, after `finish`: the last thing that a process does. The process with the monitor is the last."""
        if self.monitor is not None:
            self.monitor.wait_for_others()
        self._states.add("closed")
        self._thread.join()
        for one in self._works:
            one.close()
        self._lines.close()
        if self.monitor is not None:
            self.monitor.close()

    def _await(self, state: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: state in self._states)

    def _send(self, message: Message) -> None:
        with self._sending:
            self._lines.write(message)

    def _run(self) -> None:
        try:
            self._talk()
        except Exception:  # a process that nobody watches would wait for ever
            traceback.print_exc()
            os._exit(ExitCode.BUG)

    def _talk(self) -> None:
        tick_s, frozen_s = tick_of(self.limits), 2 * self.limits.heartbeat_limit_s + self.limits.stall_limit_s
        told_s = heard_s = looped_s = time.monotonic()
        stopped_s = 0.0
        while "closed" not in self._states:
            # A thread of C ends this process where Python's lock is held for ever, and so no thread of Python runs.
            faulthandler.dump_traceback_later(frozen_s, exit=True)
            select.select([self._lines.connection], [], [], min(tick_s, _POLL_S))
            now_s = time.monotonic()
            if now_s - looped_s > self.limits.heartbeat_limit_s:
                stopped_s, heard_s = now_s - looped_s, now_s
            looped_s = now_s
            for message in self._lines.read():
                heard_s = now_s
                self._take(message)
            if not self._lines.is_open or now_s - heard_s > self.limits.heartbeat_limit_s:
                self._lose_monitor(stopped_s)
            if now_s - told_s >= tick_s:
                told_s = now_s
                self._send({"beat": self._beat().as_dict()})
        faulthandler.cancel_dump_traceback_later()

    def _take(self, message: Message) -> None:
        if "verdict" in message:
            if self._show is not None and self.name in message["causes"]:
                self._show()
            found, line = message["verdict"]
            error = RhinoError(found, line, fix=_FIX)
            _end(error, is_reported=bool(message.get("is reported")))
        with self._changed:
            if "value" in message:
                key, value = message["value"]
                self._values[key] = value
            self._leader = message.get("all here", self._leader)
            self._states.update(one for one in ("all here", "all left") if one in message)
            self._changed.notify_all()

    def _lose_monitor(self, stopped_s: float) -> None:
        if "all left" in self._states:
            self._states.add("closed")
            return
        what = f"{self._leader} has ended"
        if self._lines.is_open:
            what += f", or sent no heartbeat for {self.limits.heartbeat_limit_s:g} s"
        if stopped_s:
            what = f"{self.name} stood still for {stopped_s:.0f} s, and the job has ended"
        _end(RhinoError("RHI-RUN-007", what, fix=_FIX))

    def _beat(self) -> Beat:
        looks = [one.look() for one in list(self._works)]
        moved = [self._num_steps, *[(begun, moves) for begun, _, _, moves in looks]]
        now_s = time.monotonic()
        if moved != self._looked:
            self._looked, self._moved_s = moved, now_s
            self._moves += 1
        open_ = [number for number, (_, is_open, _, _) in enumerate(looks) if is_open]
        stands, doing = now_s - self._moved_s > self.limits.stall_limit_s / 2, activity()
        task = [self._works[number].task() for number in open_] if stands else []
        task += [doing.value, place_in_python() if stands else ""]
        return Beat(
            self._num_steps + sum(begun for begun, _, _, _ in looks),
            bool(open_) or doing is Activity.WAITS,
            any(looks[number][2] for number in open_) or doing is Activity.WAITS,
            doing is Activity.PLANS,
            self._moves,
            ", ".join(one for one in task if one),
        )


def _connected(address: str, name: str, leader: str, limits: Limits) -> socket.socket:
    deadline_s = time.monotonic() + limits.start_limit_s
    while True:
        try:
            return socket.create_connection(split_address(address), limits.start_limit_s)
        except OSError as error:
            if time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
                continue
            what = f"{leader} did not come within {limits.start_limit_s:g} s: {name} finds nobody at {address}, {error}"
            fix = "start all processes, with an address of process 0 that the others can reach"
            raise RhinoError("RHI-RUN-007", what, fix=fix) from None


def _versions() -> Mapping[str, str]:
    return {"Python": sys.version.split()[0], **{name: version(name) for name in _PACKAGES}}


def _end(error: RhinoError, *, is_reported: bool = False) -> NoReturn:
    """Prints why in a line, where nobody else does, and ends the process, from any of its threads."""
    sys.stdout.flush()
    if not is_reported:
        print(error.render().partition("\n")[0], file=sys.stderr, flush=True)
    os._exit(ExitCode.BAD_INPUT)
