"""Several processes that run one step together: one starts them, the others join.

The process that launches hosts the coordination service and runs no rank, so no rank is special: whichever process
ends, the launcher lives to say so. Each of the others watches its peers too, for a launcher sees only what runs on its
machine. What tells that a process is gone is the heartbeat of `jax.distributed`'s coordination service, which needs
nothing of Python: who compiles for long is alive.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TextIO

import jax
from jaxlib import _jax, utils

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import ExitCode, RhinoError

DEFAULT_HEARTBEAT_S: Final = 10
"""After so long without a heartbeat a process counts as gone."""

LOOPBACK: Final = "127.0.0.1"

_START_LIMIT_S: Final = 300
_POLL_S: Final = 0.05
_END_LIMIT_S: Final = 5
_PORT_TRIES: Final = 8
_LOG_ERRORS: Final = 2
_FINISHED: Final = "finished"
_ENDED_FIX: Final = "look for the first error in the output of that process, and start the job again"


@dataclass(frozen=True, slots=True)
class Team:
    """The processes of a run, by number, and the ranks that each holds; none where that differs from step to step.

    Several processes may hold one rank, each some of its devices.
    """

    ranks: tuple[tuple[int, ...], ...]

    def of_devices(self, meshes: Sequence[Mesh]) -> tuple[tuple[int, ...], ...]:
        """Returns the process of each device of ranks of these meshes [ranks][devices], each held by one process."""
        holder = {rank: process for process, ranks in enumerate(self.ranks) for rank in ranks}
        return tuple([(holder[rank],) * mesh.num_devices for rank, mesh in enumerate(meshes)])

    def name(self, process: int) -> str:
        """Returns a process in words."""
        ranks = self.ranks[process]
        if not ranks:
            return f"process {process}"
        return f"process {process} (rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))})"


def share_ranks(sizes: Sequence[int], num_processes: int) -> Team:
    """Returns ranks of `sizes` devices [ranks] dealt to processes in rows, with as few devices to a process as can be.

    The first processes have one rank more where equal ranks do not divide evenly, and as many unlike ones as they may.

    Raises:
        RhinoError: RHI-RUN-004 where a process would have none.
    """
    num_ranks = len(sizes)
    if not 1 <= num_processes <= num_ranks:
        raise RhinoError(
            "RHI-RUN-004", f"{num_processes} processes cannot share {num_ranks} ranks", fix="give each process a rank"
        )
    if len(set(sizes)) > 1:
        ends = list(accumulate(sizes))
        totals = sorted({end - start for start in [0, *ends] for end in ends if end > start})
        rows = next(found for most in totals if (found := _rows(sizes, num_processes, most)))
        return Team(rows)
    size, rest = divmod(num_ranks, num_processes)
    starts = [size * process + min(process, rest) for process in range(num_processes + 1)]
    return Team(tuple(tuple(range(starts[i], starts[i + 1])) for i in range(num_processes)))


def _rows(sizes: Sequence[int], num_processes: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Returns ranks dealt in rows of at most so many devices, each row as long as it may; nothing where they are more.

    Each process gets a rank.
    """
    rows, start = [], 0
    for process in range(num_processes):
        left = num_processes - process - 1
        fit = [end for end in range(start + 1, len(sizes) - left + 1) if sum(sizes[start:end]) <= most]
        if not fit:
            return ()
        rows.append(tuple(range(start, fit[-1])))
        start = fit[-1]
    return tuple(rows) if start == len(sizes) else ()


class ProcessJob:
    """This process among those that run together: what they say to each other, and who is gone."""

    def __init__(self, client: Any, process: int, team: Team, heartbeat_s: int, host: str) -> None:  # noqa: ANN401
        """Starts to watch the others; made by `join`."""
        self.process = process
        self.team = team
        self.host = host
        self._num_steps = 0
        self._client = client
        self._heartbeat_s = heartbeat_s
        self._finished = threading.Event()
        self._watch = threading.Thread(target=self._watch_peers, name="rhino-peers", daemon=True)
        self._watch.start()

    def publish(self, key: str, value: str) -> None:
        """Says something to all, once."""
        self._client.key_value_set(f"rhino/{key}", value)

    def lookup(self, key: str, limit_s: float = _START_LIMIT_S) -> str:
        """Returns what was published under a key, and waits for it; RHI-RUN-008 where it does not come."""
        try:
            return str(self._client.blocking_key_value_get(f"rhino/{key}", int(limit_s * 1000)))
        except jax.errors.JaxRuntimeError:
            raise RhinoError(
                "RHI-RUN-008",
                f"no process has published {key} within {limit_s:.0f} s",
                fix="start all processes, with the same plan",
            ) from None

    def peek(self, key: str) -> str | None:
        """Returns what was published under a key, None if nothing yet."""
        try:
            return str(self._client.key_value_try_get(f"rhino/{key}"))
        except jax.errors.JaxRuntimeError:
            return None

    def begin_step(self) -> int:
        """Returns the number of the step that this process now begins, from 0."""
        self._num_steps += 1
        return self._num_steps - 1

    def await_verdict(self) -> None:
        """Waits until it would be known that a process has ended; does not return if one has."""
        time.sleep(2 * self._heartbeat_s)

    def finish(self) -> None:
        """Waits for the others to finish too, and leaves: the last thing that a process does."""
        self.publish(f"{_FINISHED}/{self.process}", str(self._num_steps))
        try:
            self._client.wait_at_barrier("rhino/finish", _START_LIMIT_S * 1000)
        except jax.errors.JaxRuntimeError:
            self.await_verdict()
            raise
        self._finished.set()
        self._client.shutdown()
        self._watch.join(_END_LIMIT_S)

    def _watch_peers(self) -> None:
        everyone = list(range(len(self.team.ranks)))
        while not self._finished.wait(self._heartbeat_s / 4):
            try:
                # Waits until each has asked, or is known to be gone.
                living = self._client.get_live_nodes(everyone)
            except jax.errors.JaxRuntimeError:
                continue
            ended = {one: int(count) for one in everyone if (count := self.peek(f"{_FINISHED}/{one}")) is not None}
            gone = [one for one in everyone if one not in living and one not in ended]
            early = [one for one, count in ended.items() if count < self._num_steps]
            if (gone or early) and not self._finished.is_set():
                what = self._verdict(gone) if gone else self._left(early[0], ended[early[0]])
                notes = (f"seen by {self.team.name(self.process)}",)
                end_process(RhinoError("RHI-RUN-007", what, notes=notes, fix=_ENDED_FIX))

    def _left(self, process: int, num_steps: int) -> str:
        return f"{self.team.name(process)} has ended after {num_steps} steps, and this one has begun {self._num_steps}"

    def _verdict(self, gone: Sequence[int]) -> str:
        names = " and ".join(self.team.name(one) for one in gone)
        return f"{names} {'has' if len(gone) == 1 else 'have'} ended, or sent no sign of life for {self._heartbeat_s} s"


def end_process(error: RhinoError) -> None:
    """Prints why and ends the process, from any of its threads.

    The others may be inside XLA, waiting for what will not come.
    """
    sys.stdout.flush()
    print(error.render(), file=sys.stderr, flush=True)
    os._exit(error.exit_code)


def join(
    address: str, process: int, team: Team, *, heartbeat_s: int = DEFAULT_HEARTBEAT_S, host: str = LOOPBACK
) -> ProcessJob:
    """Makes this process number `process` of a team.

    JAX's backend need not be shared, for every rank lies within one process: one that is takes a rank's own collectives
    over the network too (jaxlib 0.10.2 on two host devices: 4.0 ms for a small all-reduce in place of 0.1 ms).

    Args:
        address: of the coordination service.
        process: this process's number.
        team: all processes.
        heartbeat_s: when a process counts as gone, as the service has it.
        host: the name or address that the others reach this process at.

    Raises:
        RhinoError: RHI-RUN-007 where the service is not there, or some process does not come.
    """
    client = _jax.get_distributed_runtime_client(
        address,
        process,
        init_timeout=_START_LIMIT_S,
        heartbeat_timeout=heartbeat_s,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    try:
        client.connect()
    except jax.errors.JaxRuntimeError as error:
        raise RhinoError(
            "RHI-RUN-007",
            f"{team.name(process)} cannot join the others at {address}: {error}",
            fix="start all processes with the address of process 0, which others can reach",
        ) from None
    return ProcessJob(client, process, team, heartbeat_s, host)


def launch(
    command: Callable[[str, int], Sequence[str]],
    team: Team,
    *,
    heartbeat_s: int = DEFAULT_HEARTBEAT_S,
    host: str = LOOPBACK,
    stderr: TextIO | None = None,
) -> int:
    """Runs one process for each of a team, and returns the exit code.

    It is 0 if all ended well, else that of the first process that did not. When one fails the rest are ended, and
    `stderr` says which it was. No process is left when this returns or raises.

    Args:
        command: what to run, from the address of the coordination service and the process's number.
        team: the processes.
        heartbeat_s: when a process counts as gone.
        host: where the processes reach this one.
        stderr: None is the process's own.
    """
    service, address = start_service(len(team.ranks), heartbeat_s, host)
    children: list[subprocess.Popen[bytes]] = []
    try:
        for process in range(len(team.ranks)):
            children.append(subprocess.Popen(command(address, process)))
        return _watch_children(children, team, stderr or sys.stderr)
    finally:
        _end(children)
        service.shutdown()


def start_service(num_processes: int, heartbeat_s: int, host: str = LOOPBACK) -> tuple[Any, str]:
    """Starts the coordination service on a free port; returns it and its address."""
    utils.absl_set_min_log_level(_LOG_ERRORS)  # it warns of being asked for recoverable processes
    for attempt in range(_PORT_TRIES):
        with socket.socket() as probe:
            probe.bind((host, 0))
            address = f"{host}:{probe.getsockname()[1]}"
        try:  # the port may be taken meanwhile
            return _jax.get_distributed_runtime_service(
                address, num_processes, heartbeat_timeout=heartbeat_s, shutdown_timeout=_END_LIMIT_S, recoverable=True
            ), address
        except jax.errors.JaxRuntimeError:
            if attempt + 1 == _PORT_TRIES:
                raise
    raise AssertionError


def _watch_children(children: Sequence[subprocess.Popen[bytes]], team: Team, stderr: TextIO) -> int:
    while True:
        codes = [child.poll() for child in children]
        # One that was killed may have taken another with it.
        failed = sorted((code > 0, process) for process, code in enumerate(codes) if code)
        if failed:
            process = failed[0][1]
            code = codes[process]
            assert code
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            left = [team.name(one) for one, other in enumerate(codes) if other is None]
            notes = (f"{' and '.join(left)} had to be ended with it",) if left else ()
            error = RhinoError("RHI-RUN-007", f"{team.name(process)} {how}", notes=notes, fix=_ENDED_FIX)
            print(error.render(), file=stderr, flush=True)
            return code if code > 0 else ExitCode.BAD_INPUT
        if all(code == 0 for code in codes):
            return ExitCode.OK
        time.sleep(_POLL_S)


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends what still runs."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline_s = time.monotonic() + _END_LIMIT_S
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(deadline_s - time.monotonic(), 0))
        if child.poll() is None:
            child.kill()
            child.wait()
