"""One of two processes that train scanned layers in stages: `scanned_part.py ADDRESS PROCESS FOLDER`.

Losses, and the rows of each stack that this process has, go to the folder.
"""

import os
import re
import sys
from pathlib import Path

import jax
import numpy as np
from scanned_steps import STEPS, batch, state

import rhino
from rhino.runtime.executor.devices import request_host_devices

NUM_STEPS = 3


def main(address: str, process: int, folder: Path) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(2, os.environ)
    jax.distributed.initialize(address, 2, process, initialization_timeout=60)
    step = rhino.parallelize(STEPS["dropped"], cluster="cpu4", stages=2, mesh="2", micro_batches=2, donate_argnums=0)
    step.plan(jax.eval_shape(state), jax.eval_shape(batch))
    now, losses, given = step.init(state), [], jax.tree.map(np.asarray, batch())
    for _ in range(NUM_STEPS):
        now, (loss, _) = step(now, given)
        losses.append(float(loss))
    rows = {
        f"{number}-{start}": np.asarray(piece)
        for number, leaf in enumerate(jax.tree.leaves(now))
        if isinstance(leaf, rhino.SplitArray)
        for (start, _), piece in zip(leaf.rows, leaf.pieces, strict=True)
        if piece.is_fully_addressable and piece.addressable_shards
    }
    np.savez(folder / f"out-{process}.npz", losses=np.array(losses), **rows)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
