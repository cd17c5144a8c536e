"""One of several processes that train a GPT with dropout: `arranged_part.py ADDRESS PROCESS FOLDER NUM_PROCESSES PLAN`.

The plan is in the folder; losses, and what of the state lies here, go to `PLAN-NUM_PROCESSES-PROCESS.npz`.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from staged_part import Training

import rhino
import rhino.distributed
from rhino.runtime.executor.devices import request_host_devices

NUM_STEPS: Final = 3

PLANS: Final[Mapping[str, tuple[int, dict[str, Any]]]] = {
    "one rank of 4": (4, {"mesh": "2x2"}),
    "2 ranks of 2": (4, {"stages": 2, "mesh": "2", "micro_batches": 2}),
    "2 ranks of 4": (8, {"stages": 2, "mesh": "2x2", "micro_batches": 2}),
}
"""By name: how many devices a plan has, and how it is made."""


def planned(training: Training, **options: Any) -> Any:
    """Returns the step with its plan."""
    fast = rhino.parallelize(training.step, donate_argnums=0, **options)
    fast.plan(jax.eval_shape(training.init, jax.random.key(0)), training.batch(0))
    return fast


def trained(training: Training, fast: Any) -> dict[str, np.ndarray]:
    """Returns the losses of some steps, and what lies here of the state after them."""
    state, losses = fast.init(training.init, jax.random.key(0)), []
    for number in range(NUM_STEPS):
        state, seen = fast(state, training.batch(number))
        losses.append(np.float32(seen["loss"]))
    found = {"losses": np.array(losses)}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state["params"])[0]:
        for shard in leaf.addressable_shards:
            starts = [one.start or 0 for one in shard.index]
            found[f"{jax.tree_util.keystr(path)}|{starts}"] = np.asarray(shard.data)
    return found


def main(address: str, process: int, folder: Path, num_processes: int, plan: str) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(PLANS[plan][0] // num_processes, os.environ)
    rhino.distributed.initialize(address, num_processes, process)
    training = Training("gpt")
    found = trained(training, planned(training, plan=rhino.Plan.load(folder / plan)))
    np.savez(folder / f"{plan}-{num_processes}-{process}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
