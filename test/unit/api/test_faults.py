"""Whatever happens to a process of a job, all end, each with a line that names it; the next job gives the same losses.

In one program and in stages, in process 0 and in another. The last checkpoint is whole, so the job that follows goes on
from there; its losses are those of a job without faults, to the last bit.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fault_part
import pytest
from fault_part import EVERY, HEARTBEAT_LIMIT_S, MEETING_LIMIT_S, NUM_STEPS, STALL_LIMIT_S
from jobs import free_address

LIMIT_S = 150
HOST = socket.gethostname()
RAISED = "[RHI-RUN-007] process {victim} on {host} raised "
EXPECTED = {
    "kill": "[RHI-RUN-007] process {victim} on {host} has ended",
    "exception": f"{RAISED}ValueError: of its own, after {fault_part.AT + 1} steps",
    "stop": "[RHI-RUN-007] process {victim} on {host}",
    "sleep": f"[RHI-RUN-008] no progress for {STALL_LIMIT_S} s: process {{victim}} on {{host}} is after"
    f" {fault_part.AT + 1} steps, at fault_part.py:",
    "never": f"[RHI-RUN-007] process {{victim}} did not come within {MEETING_LIMIT_S} s",
    "other plan": "[RHI-JAX-008] process 1 has another plan of step than process 0",
    "full": RAISED,
}
"""What the other process prints after each fault."""


@contextmanager
def started(folder: Path, kind: str, fault: str, victim: int, address: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    parts = []
    for process in range(2):
        with (folder / f"log-{process}").open("wb") as log:
            command = [
                sys.executable,
                fault_part.__file__,
                address,
                str(process),
                str(folder),
                kind,
                fault,
                str(victim),
            ]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            parts.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        yield parts
    finally:
        for part in parts:
            part.kill()
            part.wait()


def log_of(folder: Path, process: int) -> str:
    return (folder / f"log-{process}").read_text()


def losses(folder: Path) -> list[dict[int, str]]:
    """The losses of each step by process, the last ones where some were run twice."""
    return [dict(line.split() for line in (folder / f"losses-{one}").read_text().splitlines()) for one in range(2)]


def trained(folder: Path, kind: str) -> list[dict[int, str]]:
    """The losses of a job without a fault, or of what is left of one with some."""
    with started(folder, kind, "none", 0, free_address()) as parts:
        codes = [part.wait(LIMIT_S) for part in parts]
    assert codes == [0, 0], log_of(folder, 0) + log_of(folder, 1)
    found = losses(folder)
    assert [*map(int, found[0])] == [*range(NUM_STEPS)]
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[int, str]]]:
    """Filled with the losses of jobs without faults as they are asked for."""
    return {}


CASES = [(kind, fault, victim) for kind in fault_part.KINDS for fault in EXPECTED for victim in range(2)]
CHEAP = ("spmd", "stop", 1)


@pytest.mark.parametrize(
    ("kind", "fault", "victim"),
    [case if case == CHEAP else pytest.param(*case, marks=pytest.mark.long) for case in CASES],
)
def test_a_fault_ends_the_job_everywhere(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    expected: dict[str, list[dict[int, str]]],
    kind: str,
    fault: str,
    victim: int,
):
    with started(tmp_path, kind, fault, victim, free_address()) as parts:
        assert parts[1 - victim].wait(LIMIT_S) == 1, log_of(tmp_path, 1 - victim)
        if fault == "stop":
            parts[victim].send_signal(signal.SIGCONT)
        code = parts[victim].wait(2 * HEARTBEAT_LIMIT_S + 10)
    assert code == {"kill": -signal.SIGKILL, "never": 0}.get(fault, 1), log_of(tmp_path, victim)
    line = EXPECTED[fault].format(victim=victim, host=HOST)
    assert line in log_of(tmp_path, 1 - victim)
    if fault in ("kill", "stop", "sleep"):
        lines = [line for line in log_of(tmp_path, 1 - victim).splitlines() if "peer ranks" not in line]  # Gloo's
        assert len(lines) == 1, lines
    if fault == "never":
        return
    if (kind, fault, victim) == CHEAP:
        assert (tmp_path / "kept" / str(EVERY)).is_dir()
        return
    if kind not in expected:
        expected[kind] = trained(tmp_path_factory.mktemp(kind), kind)
    assert trained(tmp_path, kind) == expected[kind]


@pytest.mark.long
@pytest.mark.parametrize("kind", fault_part.KINDS)
def test_one_that_comes_late_is_waited_for(tmp_path: Path, kind: str):
    with started(tmp_path, kind, "late", 0, free_address()) as parts:
        assert [part.wait(LIMIT_S) for part in parts] == [0, 0], log_of(tmp_path, 0) + log_of(tmp_path, 1)


@pytest.mark.long
def test_a_port_that_is_in_use_is_told(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        port = other.getsockname()[1]
        with started(tmp_path, "spmd", "port in use", 0, f"127.0.0.1:{port}") as parts:
            assert [part.wait(LIMIT_S) for part in parts] == [1, 1]
    assert f"[RHI-RUN-007] process 0 on {HOST} cannot listen on port {port}: Address already in use" in log_of(
        tmp_path, 0
    )
    assert f"[RHI-RUN-007] process 0 did not come within {MEETING_LIMIT_S} s: process 1 on {HOST}" in log_of(
        tmp_path, 1
    )
