"""One of two processes that train until something happens.

`fault_part.py ADDRESS PROCESS FOLDER KIND FAULT VICTIM`

KIND is one of `KINDS`. FAULT happens in process VICTIM after step `AT`, or at the start. A job of FAULT "none" goes on
from the last checkpoint in the folder, to `NUM_STEPS`. Losses go to `losses-PROCESS`, a line for each step.
"""

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import rhino
import rhino.distributed
from rhino.runtime.executor.devices import request_host_devices

NUM_STEPS: Final = 9
EVERY: Final = 3
AT: Final = 6
"""A fault comes after this step: of the checkpoints that are saved before, the first is whole."""

START_LIMIT_S: Final = 60
MEETING_LIMIT_S: Final = 8
"""The limit of the start where one does not come."""

HEARTBEAT_LIMIT_S: Final = 4
STALL_LIMIT_S: Final = 4

KINDS: Final[Mapping[str, dict[str, Any]]] = {
    "spmd": {"mesh": "x=4", "pins": {"batch": PartitionSpec("x"), "state['up']": PartitionSpec("x")}},
    "stages": {"stages": 2, "mesh": "2", "micro_batches": 2},
}
BATCHES: Final = rhino.Batches(np.random.default_rng(1).normal(size=(40, 64)).astype(np.float32), 8)


def init() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "up": jax.random.normal(keys[0], (64, 256)) / 8,
        "down": jax.random.normal(keys[1], (256, 64)) / 16,
        "key": keys[2],
    }


def step(state: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    """A step with dropout, whose key is state."""
    key, own = jax.random.split(state["key"])

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        h = jnp.tanh(batch @ params["up"])
        return ((h * jax.random.bernoulli(own, 0.9, h.shape) @ params["down"] - batch) ** 2).mean()

    value, grads = jax.value_and_grad(loss)({"up": state["up"], "down": state["down"]})
    return {**{name: state[name] - 0.1 * grad for name, grad in grads.items()}, "key": key}, value


def planned(kind: str, **options: Any) -> Any:
    return rhino.parallelize(step, cluster="cpu4", donate_argnums=0, **(KINDS[kind] | options))


def trained(fast: Any, folder: Path, process: int, fault: str) -> None:
    with (folder / f"losses-{process}").open("a") as losses:

        def after(number: int, loss: jax.Array) -> None:
            print(number, float(loss), file=losses, flush=True)
            if number == AT:
                happen(fault)

        rhino.train(fast, init, BATCHES, num_steps=NUM_STEPS, checkpoints=folder / "kept", every=EVERY, on_step=after)


def happen(fault: str) -> None:
    match fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exception":
            raise ValueError("of its own")
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(1000)
        case "full":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))  # less than a part of the state has


def main(address: str, process: int, folder: Path, kind: str, fault: str, victim: int) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(2, os.environ)
    own = fault if process == victim else "none"
    if own == "late":
        time.sleep(5)
    if own == "never":
        return
    rhino.distributed.initialize(
        address,
        2,
        process,
        start_limit_s=MEETING_LIMIT_S if fault in ("never", "port in use") else START_LIMIT_S,
        heartbeat_limit_s=HEARTBEAT_LIMIT_S,
        stall_limit_s=STALL_LIMIT_S,
    )
    other: dict[str, Any] = {"forbid": ["state['down']=x"]} if own == "other plan" else {}
    trained(planned(kind, **other), folder, process, own)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]))
