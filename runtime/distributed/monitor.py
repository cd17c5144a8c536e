"""The monitor of a job: every process tells it how it is, and it tells all when the job has to end, and why.

It is in process 0, or in the launcher. Each process has a connection to it, so that one which is killed is seen at
once. It also keeps what processes publish for one another. What it decides by stands in
`rhino.runtime.distributed.verdict`.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.lines import Lines, Message
from rhino.runtime.distributed.verdict import Beat, Seen, Verdict, verdict
from rhino.runtime.executor.transport import joined_address

TICK_S: Final = 1.0
"""How often each side says that it is there, at most."""

_END_LIMIT_S: Final = 3.0
"""For so long the processes are waited for that have been told to end."""


def tick_of(limits: Limits) -> float:
    """Returns the seconds between two heartbeats."""
    return min(TICK_S, limits.heartbeat_limit_s / 8, limits.stall_limit_s / 8)


class Monitor:
    """Listens to the processes of a job in a thread, until it is closed."""

    def __init__(self, num_processes: int, limits: Limits, listener: socket.socket, own: int | None = None) -> None:
        """Starts to listen; `own` is the process that this one is, None for a launcher, which is no member."""
        self.address = joined_address(*listener.getsockname()[:2])
        self.verdict: Verdict | None = None
        self._limits, self._own = limits, own
        self._seen = [Seen() for _ in range(num_processes)]
        self._members: dict[int, Lines] = {}
        self._values: dict[str, str] = {}
        self._asked: dict[str, list[Lines]] = {}
        self._listener = listener
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._closed = threading.Event()
        self._start_s = self._last_s = time.monotonic()
        self._told_left = False
        self._thread = threading.Thread(target=self._run, name="rhino-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._closed.set()
        self._thread.join()

    def wait_for_others(self) -> None:
        """Waits until no other process is connected, for a while."""
        deadline_s = time.monotonic() + _END_LIMIT_S
        while any(process != self._own for process in self._members) and time.monotonic() < deadline_s:
            time.sleep(TICK_S / 50)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._selector.close()
            self._listener.close()
            for one in list(self._members.values()):
                one.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            self._read(tick_of(self._limits))
            now_s = time.monotonic()
            if now_s - self._last_s < tick_of(self._limits) / 2:
                continue
            stopped_s, self._last_s = now_s - self._last_s, now_s
            self._tick(now_s, stopped_s)
            if self.verdict is not None:
                self._end(self.verdict)
                return

    def _tick(self, now_s: float, stopped_s: float) -> None:
        if self._own is not None and stopped_s > self._limits.heartbeat_limit_s:
            name = self._seen[self._own].name or f"process {self._own}"
            self.verdict = Verdict("RHI-RUN-007", f"{name} stood still for {stopped_s:.0f} s, and the job has ended")
            return
        self._tell({"tick": 0})
        if not self._told_left and all(one.left for one in self._seen):
            self._told_left = True
            self._tell({"all left": True})
        if not self._told_left:
            self.verdict = verdict(self._seen, self._start_s, now_s, self._limits)

    def _end(self, found: Verdict) -> None:
        """Tells all why the job ends; the own process, which the others hear it from, is the last to end."""
        message: Message = {"verdict": [found.id, found.line], "causes": found.causes, "is reported": self._own is None}
        own = self._members.get(self._own) if self._own is not None else None
        for one in self._members.values():
            if one is not own:
                one.write(message)
        deadline_s = time.monotonic() + _END_LIMIT_S
        while time.monotonic() < deadline_s and any(one is not own for one in self._members.values()):
            self._read(0.05)
        if own is not None:
            own.write(message)

    def _tell(self, message: Message) -> None:
        for one in self._members.values():
            one.write(message)

    def _read(self, limit_s: float) -> None:
        for key, _ in self._selector.select(limit_s):
            if key.fileobj is self._listener:
                with suppress(OSError):
                    connection, _ = self._listener.accept()
                    self._selector.register(connection, selectors.EVENT_READ, Lines(connection))
                continue
            lines: Lines = key.data
            for message in lines.read():
                self._take(lines, message)
            if not lines.is_open:
                self._selector.unregister(lines.connection)
                self._lose(lines)

    def _lose(self, lines: Lines) -> None:
        for process in [process for process, one in self._members.items() if one is lines]:
            del self._members[process]
            self._seen[process].lost_s = time.monotonic()
        lines.close()

    def _take(self, lines: Lines, message: Message) -> None:
        process = next((process for process, one in self._members.items() if one is lines), None)
        if "hello" in message:
            self._welcome(lines, message["hello"])
        elif process is None:
            lines.is_open = False  # nobody of the job
        else:
            self._seen[process].heard_s = time.monotonic()
            for kind, value in message.items():
                _TAKEN[kind](self, process, lines, value)

    def _welcome(self, lines: Lines, hello: Message) -> None:
        process, now_s = int(hello["process"]), time.monotonic()
        seen = self._seen[process]
        if seen.name:
            lines.write({"verdict": ["RHI-RUN-007", f"process {process} has come twice: first as {seen.name}"]})
            return
        self._members[process] = lines
        self._seen[process] = Seen(hello["name"], hello["versions"], now_s, now_s)
        if all(one.name for one in self._seen):
            leader = "the launcher" if self._own is None else self._seen[self._own].name
            self._tell({"all here": leader})

    def _beat(self, process: int, _lines: Lines, value: Message) -> None:
        seen, beat = self._seen[process], Beat(**value)
        if beat.moves != seen.beat.moves or beat.is_busy:
            seen.moved_s = seen.heard_s
        seen.beat = beat

    def _raised(self, process: int, _lines: Lines, value: str) -> None:
        self._seen[process].raised, self._seen[process].raised_s = value, time.monotonic()

    def _left(self, process: int, _lines: Lines, _value: bool) -> None:
        self._seen[process].left = True

    def _set(self, _process: int, _lines: Lines, value: list[str]) -> None:
        key, text = value
        self._values[key] = text
        for one in self._asked.pop(key, ()):
            one.write({"value": [key, text]})

    def _get(self, _process: int, lines: Lines, key: str) -> None:
        if key in self._values:
            lines.write({"value": [key, self._values[key]]})
        else:
            self._asked.setdefault(key, []).append(lines)


_TAKEN: Final[dict[str, Callable[..., None]]] = {
    "beat": Monitor._beat,
    "raised": Monitor._raised,
    "left": Monitor._left,
    "set": Monitor._set,
    "get": Monitor._get,
}
"""What is done with each kind of message."""
