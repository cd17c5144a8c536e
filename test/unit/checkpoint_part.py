"""One of several processes that train with checkpoints: `checkpoint_part.py ADDRESS PROCESS FOLDER JOB`.

It restores the last checkpoint of the folder, if there is one, and saves one in the middle of a job that has none.
Losses, and what of the state lies here, go to `JOB-PROCESS.npz`.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from scanned_steps import LAYERS, adam, batch, layer
from scanned_steps import state as plain_state

import rhino
import rhino.checkpoint
from rhino.runtime.executor.devices import request_host_devices

NUM_STEPS: Final = 2
"""How many are trained before a checkpoint, and behind it."""

JOBS: Final[Mapping[str, tuple[int, int, dict[str, Any]]]] = {
    "2 stages of 4": (2, 4, {"stages": 2, "mesh": "4", "micro_batches": 2}),
    "2 stages of 4 in 4": (4, 2, {"stages": 2, "mesh": "4", "micro_batches": 2}),
    "4 stages of 2": (4, 2, {"stages": 4, "mesh": "2", "micro_batches": 2}),
    "2x4": (1, 8, {"mesh": "2x4"}),
}
"""By name: the number of processes, the devices of each, and how the step is planned."""


def state() -> dict[str, Any]:
    """Returns a state with random keys, a count, and types of 16 and 32 bits."""
    params, mu, nu = plain_state()
    key = jax.random.key(3)
    return {"adam": (params, mu, nu), "key": key, "count": jnp.int32(0), "narrow": params["out"].astype(jnp.bfloat16)}


def step(state: dict[str, Any], batch: dict[str, jax.Array]) -> tuple[dict[str, Any], jax.Array]:
    """A step with dropout in scanned layers."""
    own, key = jax.random.split(state["key"])
    keys = jax.random.split(own, LAYERS)

    def dropped(h: jax.Array, each: Any) -> tuple[jax.Array, None]:
        params, one = each
        return layer(h, params) * jax.random.bernoulli(one, 0.9, h.shape), None

    made, (loss, _) = adam(state["adam"], batch, lambda x, layers: jax.lax.scan(dropped, x, (layers, keys))[0])
    narrow = made[0]["out"].astype(jnp.bfloat16)
    return {"adam": made, "key": key, "count": state["count"] + 1, "narrow": narrow}, loss


def trained(job: str, folder: Path) -> tuple[Any, list[float]]:
    """Returns the state and the losses of a job that goes on from the last checkpoint, or makes one."""
    fast = rhino.parallelize(step, cluster="cpu8", **JOBS[job][2])
    plan, losses, given = fast.plan(jax.eval_shape(state), jax.eval_shape(batch)), [], jax.tree.map(np.asarray, batch())

    def train(now: Any) -> Any:
        for _ in range(NUM_STEPS):
            now, loss = fast(now, given)
            losses.append(float(loss))
        return now

    with ocp.CheckpointManager(folder, item_handlers=rhino.checkpoint.handler()) as manager:
        last = manager.latest_step()
        if last is None:
            now = train(fast.init(state))
            manager.save(NUM_STEPS, args=rhino.checkpoint.save_args(now))
        else:
            now = manager.restore(last, args=rhino.checkpoint.restore_args(plan.in_shardings[0]))
        return train(now), losses


def numbers(leaf: Any) -> Any:
    """Returns a leaf, of random keys their numbers."""
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def parts(tree: Any) -> dict[str, np.ndarray]:
    """Returns what lies here of a tree, by leaf and where it begins in it."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        is_split = isinstance(leaf, rhino.SplitArray)
        for (row, _), piece in zip(leaf.rows, leaf.pieces, strict=True) if is_split else [((0, 0), numbers(leaf))]:
            for shard in piece.addressable_shards:
                starts = [one.start or 0 for one in shard.index]
                starts[:1] = [start + row for start in starts[:1]]
                found[f"{jax.tree_util.keystr(path)}|{starts}"] = np.asarray(shard.data).astype(np.float64)
    return found


def main(address: str, process: int, folder: Path, job: str) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    count, devices, _ = JOBS[job]
    request_host_devices(devices, os.environ)
    jax.distributed.initialize(address, count, process, initialization_timeout=60)
    now, losses = trained(job, folder / "checkpoints")
    np.savez(folder / f"{job}-{process}.npz", losses=np.array(losses), **parts(now))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
