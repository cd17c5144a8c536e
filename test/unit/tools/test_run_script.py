"""`rhino-run SCRIPT.py` starts a job of processes, again after a failure, and leaves none."""

import io
import os
import sys
from pathlib import Path

import pytest

from rhino.tools.run import run

SCRIPT = """\
import os, sys, time
from pathlib import Path
folder, process = Path(sys.argv[1]), os.environ["JAX_PROCESS_ID"]
assert os.environ["JAX_NUM_PROCESSES"] == "2" and ":" in os.environ["JAX_COORDINATOR_ADDRESS"]
with (folder / process).open("a") as lives:
    print(os.getpid(), file=lives, flush=True)
count = len((folder / process).read_text().splitlines())
if count <= int(sys.argv[2]):
    if process == "0":
        while not (folder / "1").exists() or len((folder / "1").read_text().splitlines()) < count:
            time.sleep(0.05)
        os.kill(os.getpid(), 9)
    time.sleep(100)
"""


def started(folder: Path, restarts: int, failures: int) -> tuple[int, str]:
    path, said = folder / "script.py", io.StringIO()
    path.write_text(SCRIPT)
    options = [str(path), "--processes=2", *([f"--restarts={restarts}"] if restarts else [])]
    code = run([*options, "--", str(folder), str(failures)], sys.stdin.buffer, io.StringIO(), said)
    for process in ("0", "1"):
        for line in (folder / process).read_text().splitlines():
            assert not os.path.exists(f"/proc/{line}"), "a process is left"
    return code, said.getvalue()


def test_a_job_that_fails_is_started_again(tmp_path: Path):
    code, said = started(tmp_path, 1, 1)
    assert code == 0
    assert said == "process 0 was ended by SIGKILL\nrhino-run: the job is started again, 1 of 1\n"
    assert len((tmp_path / "1").read_text().splitlines()) == 2


@pytest.mark.long
def test_without_restarts_it_fails(tmp_path: Path):
    assert started(tmp_path, 0, 1) == (1, "process 0 was ended by SIGKILL\n")


def test_restarts_are_for_scripts(tmp_path: Path):
    for name in ("model.mlir", str(tmp_path)):  # a plan is a folder
        said = io.StringIO()
        assert run([name, "--restarts=1"], sys.stdin.buffer, io.StringIO(), said) == 2
        words = "[RHI-CLI-001] --restarts is for scripts: what keeps no checkpoints has nothing to go on from"
        assert words in said.getvalue()
