"""Train for many steps while processes are killed, unattended: what is lost, and what grows.

    python bench/faults.py                      10,000 steps in two processes, of which one is killed every 500
    python bench/faults.py --steps=1000 --kill-every=250

The job is started as `rhino-run` starts a script with `--restarts`, on loopback, and saves every 100 steps. A step that
is run twice must give the same loss, to the last bit; at the end the losses are compared with those of a job without
faults for the first steps, as many as `--compare`.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

import rhino
import rhino.distributed
from rhino.runtime.distributed.launcher import launch_script
from rhino.runtime.executor.devices import request_host_devices

NUM_PROCESSES: Final = 2
EVERY: Final = 100
MIB: Final = 2**20


def init() -> dict[str, jax.Array]:
    """Returns a state of two layers, moments and a random key."""
    keys = jax.random.split(jax.random.key(0), 3)
    params = {"up": jax.random.normal(keys[0], (64, 256)) / 8, "down": jax.random.normal(keys[1], (256, 64)) / 16}
    return {**params, **{f"{name} moment": jnp.zeros_like(one) for name, one in params.items()}, "key": keys[2]}


def step(state: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """Returns the state after a step with dropout and momentum, and the loss."""
    key, own = jax.random.split(state["key"])

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        h = jnp.tanh(batch @ params["up"])
        return ((h * jax.random.bernoulli(own, 0.9, h.shape) @ params["down"] - batch) ** 2).mean()

    value, grads = jax.value_and_grad(loss)({name: state[name] for name in ("up", "down")})
    moments = {name: 0.9 * state[f"{name} moment"] + grad for name, grad in grads.items()}
    params = {name: state[name] - 0.01 * moment for name, moment in moments.items()}
    return {**params, **{f"{name} moment": one for name, one in moments.items()}, "key": key}, value


def part(folder: Path, num_steps: int) -> None:
    """One of the processes: trains, and writes each step, its loss and the memory of the process."""
    request_host_devices(2, os.environ)
    rhino.distributed.initialize()
    fast = rhino.parallelize(step, cluster="cpu4", mesh="4", donate_argnums=0)
    batches = rhino.Batches(np.random.default_rng(1).normal(size=(4096, 64)).astype(np.float32), 64)
    with (folder / f"steps-{jax.process_index()}").open("a", encoding="utf-8") as steps:

        def after(number: int, loss: jax.Array) -> None:
            memory = resident_bytes() if number % EVERY == EVERY - 1 else 0
            print(number, float(loss).hex(), memory, os.getpid(), file=steps, flush=True)

        rhino.train(fast, init, batches, num_steps=num_steps, checkpoints=folder / "kept", every=EVERY, on_step=after)


def resident_bytes() -> int:
    """Returns the memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def rows(folder: Path, process: int) -> Iterator[tuple[int, str, int, int]]:
    """Yields what a process has written: step, loss, bytes of memory (mostly 0) and the process's id."""
    path = folder / f"steps-{process}"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        found = line.split()
        if len(found) == 4:
            yield int(found[0]), found[1], int(found[2]), int(found[3])


def kill_now_and_then(folder: Path, every: int, num_steps: int, killed: list[int]) -> None:
    """Kills one process after the other, a new one each `every` steps."""
    for number in range(every, num_steps, every):
        process = len(killed) % NUM_PROCESSES
        while not (reached := list(rows(folder, process))[-1:]) or reached[0][0] < number:
            time.sleep(0.2)
        os.kill(reached[0][3], signal.SIGKILL)
        killed.append(reached[0][0])


def soak(num_steps: int, kill_every: int, folder: Path) -> tuple[list[int], float]:
    """Runs a job to its end, started again whenever it fails; returns at which steps it was killed, and the time."""
    killed: list[int] = []
    if kill_every:
        threading.Thread(target=kill_now_and_then, args=(folder, kill_every, num_steps, killed), daemon=True).start()
    start_s = time.perf_counter()
    command = [sys.executable, __file__, "--part", str(folder), f"--steps={num_steps}"]
    while launch_script(command, NUM_PROCESSES, sys.stderr):
        assert kill_every, "a job without faults has failed"
    return killed, time.perf_counter() - start_s


def report(folder: Path, killed: list[int], took_s: float) -> None:
    """Prints what was lost and what has grown, and raises where a step that was run twice differs."""
    steps = list(rows(folder, 0))
    losses: dict[int, str] = {}
    for number, loss, _, _ in steps:
        assert losses.setdefault(number, loss) == loss, f"step {number} gives another loss the second time"
    assert sorted(losses) == [*range(max(losses) + 1)], "steps are missing"
    lost = [before[0] + 1 - now[0] for before, now in pairwise(steps) if now[3] != before[3]]
    assert all(one <= 2 * EVERY for one in lost), lost
    print(f"{len(losses)} steps in {took_s:.0f} s, {len(killed)} kills, {len(lost)} restarts")
    if lost:
        print(f"steps run again after a kill: {statistics.mean(lost):.0f} on average, {max(lost)} at most")
    by_process: dict[int, list[int]] = {}
    for _, _, memory, process in steps:
        by_process.setdefault(process, []).extend([memory] if memory else [])
    lives = [own for own in by_process.values() if own]
    print(f"memory of process 0 at the end of each life: {', '.join(f'{own[-1] / MIB:.0f}' for own in lives)} MiB")
    files = [one for one in (folder / "kept").rglob("*") if one.is_file()]
    print(f"files of checkpoints at the end: {len(files)}, {sum(one.stat().st_size for one in files) / MIB:.1f} MiB")


def main() -> None:
    """Runs the process's command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="steps to train")
    parser.add_argument("--kill-every", type=int, default=500, help="steps from one kill to the next")
    parser.add_argument("--compare", type=int, default=0, help="steps of a job without faults, for its losses")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part(Path(options.part), options.steps)
        return
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        report(Path(one), *soak(options.steps, options.kill_every, Path(one)))
        if options.compare:
            soak(options.compare, 0, Path(other))
            found, expected = (dict(row[:2] for row in rows(Path(folder), 0)) for folder in (one, other))
            assert all(found[number] == loss for number, loss in expected.items()), "the losses differ"
            print(f"{len(expected)} losses are those of a job without faults, bit for bit")


if __name__ == "__main__":
    main()
