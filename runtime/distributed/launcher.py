"""Start the processes of a run on this machine, and end all of them when one has failed.

The launcher has the job's monitor and runs no rank, so no rank is special: whichever process ends, the launcher lives
to say so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TextIO

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.monitor import Monitor
from rhino.runtime.distributed.processes import LOOPBACK, Team
from rhino.runtime.distributed.progress import StageProgress
from rhino.runtime.executor.executor import Executor

DEFAULT_LIMITS: Final = Limits()

_POLL_S: Final = 0.05
_END_LIMIT_S: Final = 5
_ENDED_FIX: Final = "look for the first error in the output of that process, and start the job again"


def launch(
    command: Callable[[str, int], Sequence[str]],
    team: Team,
    *,
    limits: Limits = DEFAULT_LIMITS,
    host: str = LOOPBACK,
    stderr: TextIO | None = None,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Runs one process for each of a team, and returns the exit code.

    It is 0 if all ended well, else that of the first process that did not. When one fails the rest are ended, and
    `stderr` says which it was. No process is left when this returns or raises.

    Args:
        command: what to run, from the address of the job's monitor and the process's number.
        team: the processes.
        limits: how long they wait for one another.
        host: where the processes reach this one.
        stderr: None is the process's own.
        look: called now and then while they run, and when they have ended.
    """
    monitor = Monitor(len(team.ranks), limits, socket.create_server((host, 0)))
    children: list[subprocess.Popen[bytes]] = []
    try:
        for process in range(len(team.ranks)):
            children.append(subprocess.Popen(command(monitor.address, process)))
        return _watch_children(children, team, monitor, stderr or sys.stderr, look)
    finally:
        _end(children)
        monitor.close()


def launch_script(command: Sequence[str], num_processes: int, stderr: TextIO) -> int:
    """Runs a command as a job of `rhino.distributed.initialize`, and returns the exit code: 0 if all ended well.

    The processes watch each other; those that are left when one has failed have a while to end by themselves. No
    process is left when this returns or raises.
    """
    with socket.create_server((LOOPBACK, 0)) as found:
        address = f"{LOOPBACK}:{found.getsockname()[1]}"
    job = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(num_processes)}
    children: list[subprocess.Popen[bytes]] = []
    try:
        for process in range(num_processes):
            children.append(subprocess.Popen(command, env={**os.environ, **job, "JAX_PROCESS_ID": str(process)}))
        while not any(codes := [child.poll() for child in children]):
            if all(code == 0 for code in codes):
                return ExitCode.OK
            time.sleep(_POLL_S)
        deadline_s = time.monotonic() + _END_LIMIT_S
        while any(child.poll() is None for child in children) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        for process, child in enumerate(children):
            if child.returncode is not None and child.returncode < 0:
                name = signal.Signals(-child.returncode).name
                print(f"process {process} was ended by {name}", file=stderr, flush=True)
        return max((child.returncode or 0 for child in children), default=0) or ExitCode.BAD_INPUT
    finally:
        _end(children)


@contextlib.contextmanager
def watched(executor: Executor, limits: Limits) -> Iterator[None]:
    """Ends this process, which runs all ranks, where the executor's steps make no progress."""
    monitor = Monitor(1, limits, socket.create_server((LOOPBACK, 0)), own=0)
    job = ProcessJob(monitor.address, 0, Team((executor.ranks,)), limits, LOOPBACK, monitor)
    job.watch(StageProgress(executor))
    try:
        yield
    finally:
        job.finish()
        job.close()


def _watch_children(
    children: Sequence[subprocess.Popen[bytes]],
    team: Team,
    monitor: Monitor,
    stderr: TextIO,
    look: Callable[[], None],
) -> int:
    while True:
        codes = [child.poll() for child in children]
        look()
        if (found := monitor.verdict) is not None:
            print(RhinoError(found.id, found.line, fix=_ENDED_FIX).render(), file=stderr, flush=True)
            return ExitCode.BAD_INPUT
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
