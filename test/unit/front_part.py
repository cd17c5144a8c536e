"""One of several processes that train together: `front_part.py ADDRESS PROCESS NUM_PROCESSES FOLDER [PIN]`.

Losses, state and plan go to the folder.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rhino
from rhino import entry
from rhino.runtime.executor.devices import request_host_devices


def init(key: jax.Array) -> dict[str, jax.Array]:
    keys = jax.random.split(key)
    return {"up": jax.random.normal(keys[0], (32, 64)) / 6, "down": jax.random.normal(keys[1], (64, 32)) / 8}


def step(state: dict[str, jax.Array], batch: jax.Array, key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    def loss(state: dict[str, jax.Array]) -> jax.Array:
        h = jax.nn.gelu(batch @ state["up"])
        h = h * jax.random.bernoulli(key, 0.9, h.shape)
        return ((h @ state["down"] - batch) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda w, g: w - 0.5 * g, state, grads), value


def host_batch(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(512, 32)).astype(np.float32)


def counted_searches() -> list[str]:
    """Returns what is searched for in this process from now on, by name."""
    searched, search = list[str](), entry.plan_function

    def counted(traced: Any, options: Any) -> Any:
        searched.append(traced.name)
        return search(traced, options)

    entry.plan_function = counted
    return searched


def main(address: str, process: int, num_processes: int, folder: Path, *pins: str) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(8 // num_processes, os.environ)
    if num_processes > 1:
        jax.distributed.initialize(address, num_processes, process, initialization_timeout=60)
    searches = counted_searches()
    fast = rhino.parallelize(step, cluster="cpu8", mesh="8", donate_argnums=0, pins=pins)
    key = jax.random.key(0)
    plan = fast.plan(jax.eval_shape(init, key), host_batch(0), key)
    state = fast.init(init, key)
    losses = []
    for number in range(4):
        batch = host_batch(number)
        if number > 1:  # each process gives its own part
            batch = jax.make_array_from_callback(batch.shape, plan.in_shardings[1], batch.__getitem__)
        state, loss = fast(state, batch, jax.random.key(number))
        losses.append(float(loss))
    parts = {f"{name}-{s.index}": np.asarray(s.data) for name, array in state.items() for s in array.addressable_shards}
    np.savez(folder / f"out-{process}.npz", losses=np.array(losses), searches=len(searches), **parts)
    plan.save(folder / f"plan-{process}.json")
    if num_processes > 1:
        jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
