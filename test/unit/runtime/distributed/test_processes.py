"""Several processes give what one gives.

When one ends or stands still, the others name it and end too, and none is left.
"""

import contextlib
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import psutil
import pytest
from pipelined_mlp import Pipelined, pipelined

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.launcher import launch
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.monitor import Monitor
from rhino.runtime.distributed.processes import Team, share_ranks
from rhino.runtime.executor.executor import Executor, devices_of_ranks

LIMITS = Limits(60, 4, 60)
LIMIT_S = 30
PART = str(Path(__file__).parents[2] / "run_part.py")


def prepare(folder: Path, one: Pipelined, **settings: object) -> Team:
    team = share_ranks([1] * one.num_stages, 2)
    given = {
        "step": one.step,
        "modules": one.modules,
        "arguments": one.arguments,
        "team": team,
        "limits_s": (LIMITS.heartbeat_limit_s, LIMITS.stall_limit_s),
    }
    given |= {"transport": "transfer", "num_steps": -1, **settings}
    (folder / "run.pickle").write_bytes(pickle.dumps(given))
    return team


def command(folder: Path) -> Callable[[str, int], Sequence[str]]:
    return lambda address, process: [sys.executable, PART, address, str(process), str(folder)]


def await_going(folder: Path) -> list[int]:
    """The processes' ids, once each has run two steps."""
    paths = [folder / f"going-{process}" for process in range(2)]
    deadline_s = time.monotonic() + 60
    while not all(path.exists() and path.read_text() for path in paths):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return [int(path.read_text()) for path in paths]


def await_end(ids: Sequence[int]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while any(map(psutil.pid_exists, ids)):
        assert time.monotonic() < deadline_s, "a process is left"
        time.sleep(0.05)


@contextlib.contextmanager
def launched(folder: Path, team: Team) -> Iterator[Callable[[], tuple[int, str]]]:
    """Launches the team in a thread; gives what waits for the exit code and what was said."""
    said, codes = io.StringIO(), []
    work = threading.Thread(target=lambda: codes.append(launch(command(folder), team, limits=LIMITS, stderr=said)))
    work.start()

    def ended() -> tuple[int, str]:
        work.join(LIMIT_S)
        assert not work.is_alive()
        return codes[0], said.getvalue()

    try:
        yield ended
    finally:
        work.join()


@contextlib.contextmanager
def alone(folder: Path, limits: Limits = LIMITS) -> Iterator[tuple[list[subprocess.Popen[bytes]], Monitor]]:
    """The processes, whose exit codes nobody reads, and their monitor."""
    monitor = Monitor(2, limits, socket.create_server(("127.0.0.1", 0)))
    parts = [subprocess.Popen(command(folder)(monitor.address, process)) for process in range(2)]
    try:
        yield parts, monitor
    finally:
        for part in parts:
            part.kill()
            part.wait()
        monitor.close()


@pytest.mark.parametrize(
    ("transport", "num_stages", "num_devices"), [("transfer", 4, 2), ("stream", 2, 1), ("stream", 4, 2)]
)
def test_two_processes_give_what_one_gives(tmp_path: Path, transport: str, num_stages: int, num_devices: int):
    one = pipelined(num_stages, 4, num_devices)
    losses, arguments = [], list(one.arguments)
    with Executor(one.step, one.modules, devices_of_ranks(one.step, jax.devices())) as run:
        for _ in range(3):
            results = run.run(arguments)
            losses.append(float(results[0]))
            arguments[:num_stages] = results[1:]
    team = prepare(tmp_path, one, transport=transport, num_steps=3)
    assert launch(command(tmp_path), team, limits=LIMITS) == 0
    outs = [np.load(tmp_path / f"out-{process}.npz") for process in range(2)]
    assert outs[1]["losses"].tolist() == losses
    for out, ranks in zip(outs, team.ranks, strict=True):
        assert all((out[f"w{rank}"] == np.asarray(arguments[rank])).all() for rank in ranks)


@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_is_killed_the_launcher_names_it_and_ends_the_other(tmp_path: Path, victim: int):
    team = prepare(tmp_path, pipelined(2, 4))
    with launched(tmp_path, team) as ended:
        ids = await_going(tmp_path)
        os.kill(ids[victim], signal.SIGKILL)
        code, said = ended()
    assert code == 1
    assert f"error: [RHI-RUN-007] process {victim} (rank {victim}) was ended by SIGKILL" in said
    assert f"process {1 - victim} (rank {1 - victim}) had to be ended with it" in said
    await_end(ids)


@pytest.mark.parametrize(
    ("transport", "victim"),
    [
        pytest.param("transfer", 0, marks=pytest.mark.long),
        ("transfer", 1),
        pytest.param("stream", 1, marks=pytest.mark.long),
    ],
)
def test_when_one_is_killed_the_other_sees_it_without_a_launcher(tmp_path: Path, transport: str, victim: int):
    prepare(tmp_path, pipelined(2, 4), transport=transport)
    with alone(tmp_path) as (parts, monitor):
        await_going(tmp_path)
        parts[victim].kill()
        assert parts[1 - victim].wait(LIMIT_S) == 1
    assert monitor.verdict is not None
    assert monitor.verdict.id == "RHI-RUN-007"
    assert monitor.verdict.line.startswith(f"process {victim} (rank {victim}) on {socket.gethostname()} has ended")


def test_when_the_launcher_is_killed_none_is_left(tmp_path: Path):
    team = prepare(tmp_path, pipelined(2, 4))
    script = f"""
import sys
from rhino.runtime.distributed.launcher import launch
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.processes import Team
launch(lambda address, process: [sys.executable, {PART!r}, address, str(process), {str(tmp_path)!r}], {team!r},\
 limits={LIMITS!r})
"""
    launcher = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    ids: list[int] = []
    try:
        ids = await_going(tmp_path)
        launcher.kill()
        launcher.wait()
        await_end(ids)
    finally:
        launcher.kill()
        launcher.wait()


def test_a_part_that_fails_gives_its_exit_code_and_ends_the_others():
    said = io.StringIO()
    code = launch(
        lambda _, process: [sys.executable, "-c", f"import sys, time\nif {process}: sys.exit(3)\ntime.sleep(60)"],
        Team(((0,), (1, 2))),
        stderr=said,
    )
    assert code == 3
    assert said.getvalue().startswith("error: [RHI-RUN-007] process 1 (ranks 1, 2) ended with exit code 3")


def test_a_step_that_stands_still_is_told_of_by_all(tmp_path: Path):
    limits = Limits(60, 4, 2)
    prepare(tmp_path, pipelined(2, 4), stuck=0, limits_s=(4, 2))
    with alone(tmp_path, limits) as (parts, monitor):
        assert [part.wait(60) for part in parts] == [1, 1]
    assert monitor.verdict is not None
    host = socket.gethostname()
    stuck, _, waiting = monitor.verdict.line.partition("; ")
    assert stuck.startswith(f"no progress for 2 s: process 0 (rank 0) on {host} is after 2 steps, at run_part.py:")
    assert waiting.startswith(
        f"process 1 (rank 1) on {host} is in step 2, rank 1 has not ended program last on rank 1, backward of stage 1,"
        " micro-batch 0, which takes transfer 0 from rank 0 to rank 1"
    )


def test_ranks_are_dealt_in_rows():
    assert share_ranks([1] * 5, 2) == Team(((0, 1, 2), (3, 4)))
    assert share_ranks([2] * 2, 2).of_devices([mesh_of_shape((2,))] * 2) == ((0, 0), (1, 1))
    assert share_ranks([4, 2, 2], 2).ranks == ((0,), (1, 2))
    assert share_ranks([1, 1, 4, 2], 2).ranks == ((0, 1, 2), (3,))
    assert share_ranks([1, 1, 4], 3).ranks == ((0,), (1,), (2,))
    with pytest.raises(RhinoError, match=r"RHI-RUN-004.*3 processes cannot share 2 ranks"):
        share_ranks([1, 1], 3)
