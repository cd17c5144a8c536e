"""Under jax.distributed each process plans for itself, and they train as one: the same plan, losses and state as on one device."""

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import front_part
import jax
import numpy as np

PART = Path(front_part.__file__)
LIMIT_S = 120


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def launched(folder: Path, pins: Sequence[Sequence[str]] = ((), ())) -> list[int]:
    """Runs two processes, each with its own pins, and returns their exit codes; what they say goes to `said-N`."""
    address = free_address()
    parts = []
    for process in range(2):
        with (folder / f"said-{process}").open("wb") as said:
            command = [sys.executable, str(PART), address, str(process), "2", str(folder), *pins[process]]
            parts.append(subprocess.Popen(command, stdout=said, stderr=said))
    try:
        return [part.wait(LIMIT_S) for part in parts]
    finally:
        for part in parts:
            part.kill()
            part.wait()


def test_two_processes_that_plan_differently_say_so(tmp_path: Path):
    assert launched(tmp_path, ((), ("up=[{x}, {}]",))) != [0, 0]
    for process in range(2):
        assert "[RHI-JAX-008] process 1 has another plan of step than process 0" in (tmp_path / f"said-{process}").read_text()


def test_two_processes_train_as_one_device_does(tmp_path: Path):
    codes = launched(tmp_path)
    assert codes == [0, 0], (tmp_path / "said-0").read_text() + (tmp_path / "said-1").read_text()
    state, losses = front_part.init(jax.random.key(0)), []
    for number in range(4):
        state, loss = jax.jit(front_part.step)(state, front_part.host_batch(number), jax.random.key(number))
        losses.append(float(loss))
    outs = [np.load(tmp_path / f"out-{process}.npz") for process in range(2)]
    assert outs[0]["losses"].tolist() == outs[1]["losses"].tolist()
    np.testing.assert_allclose(outs[0]["losses"], losses, rtol=2e-5)
    for out in outs:
        for name in out.files:
            if name != "losses":
                whole, _, index = name.partition("-")
                np.testing.assert_allclose(out[name], state[whole][eval(index)], rtol=1e-4, atol=1e-5)
    assert (tmp_path / "plan-0.json").read_bytes() == (tmp_path / "plan-1.json").read_bytes()
