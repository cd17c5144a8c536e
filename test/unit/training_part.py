"""One of several processes that `rhino.train`: `training_part.py ADDRESS PROCESS FOLDER NUM_PROCESSES KIND`.

Losses and the numbers of the examples that this process has read go to `PROCESS.npz`.
"""

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import rhino
import rhino.distributed
from rhino.runtime.executor.devices import request_host_devices

NUM_STEPS: Final = 3
SIZE: Final = 8
WIDTH: Final = 16

KINDS: Final[dict[str, dict[str, Any]]] = {
    "spmd": {"mesh": "x=4"},
    "stages": {"stages": 2, "mesh": "x=2", "micro_batches": 2},
}
"""How a step is planned, beside that its batch is split."""


class Examples:
    """Examples by number, which note those that are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> dict[str, np.ndarray]:
        self.read.append(number)
        drawn = np.random.default_rng(number)
        return {name: drawn.normal(size=WIDTH).astype(np.float32) for name in ("x", "y")}


def init() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {f"w{n}": jax.random.normal(key, (WIDTH, WIDTH)) / 4 for n, key in enumerate(keys[:2])} | {"key": keys[2]}


def planned(kind: str) -> Any:
    """Returns the step, planned; in stages inputs are read by the first, and what is expected by the last."""
    cut = rhino.stage_boundary if kind == "stages" else lambda h: h
    return rhino.parallelize(
        partial(step, cut), cluster="cpu4", donate_argnums=0, pins={"batch*": PartitionSpec("x")}, **KINDS[kind]
    )


def step(
    cut: Callable[[jax.Array], jax.Array], state: dict[str, jax.Array], batch: dict[str, jax.Array]
) -> tuple[dict[str, jax.Array], jax.Array]:
    """A step with dropout of two layers, cut between them."""
    key, own = jax.random.split(state["key"])

    def loss(w: tuple[jax.Array, jax.Array]) -> jax.Array:
        h = cut(jnp.tanh(batch["x"] @ w[0]))
        return ((jnp.tanh(h @ w[1]) * jax.random.bernoulli(own, 0.9, h.shape) - batch["y"]) ** 2).mean()

    value, (g0, g1) = jax.value_and_grad(loss)((state["w0"], state["w1"]))
    return {"w0": state["w0"] - 0.1 * g0, "w1": state["w1"] - 0.1 * g1, "key": key}, value


def trained(kind: str) -> tuple[list[float], list[int]]:
    """Returns the losses, and which examples were read."""
    losses, examples = list[float](), Examples()
    rhino.train(
        planned(kind),
        init,
        rhino.Batches(examples, SIZE),
        num_steps=NUM_STEPS,
        on_step=lambda _, loss: losses.append(float(loss)),
    )
    return losses, examples.read


def main(address: str, process: int, folder: Path, num_processes: int, kind: str) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(4 // num_processes, os.environ)
    rhino.distributed.initialize(address, num_processes, process)
    losses, read = trained(kind)
    np.savez(folder / f"{process}.npz", losses=np.array(losses), read=np.array(read))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
