"""One of two processes that call a step over its budget: `budget_part.py ADDRESS PROCESS [TIMES]`.

It prints what the call is refused for, or the loss. TIMES multiplies what this process is told of its compiled program.
"""

import os
import re
import sys

import jax
import numpy as np
from jax.sharding import PartitionSpec

import rhino
from rhino.jit_program import JitProgram
from rhino.runtime.executor.devices import request_host_devices

WEIGHTS = np.ones((64, 64), np.float32) / 64
BATCH = np.random.default_rng(0).random((16, 64)).astype(np.float64)  # jit takes it for f32


def step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(lambda weights: ((batch @ weights) ** 2).mean())(weights)
    return weights - gradient, value


def main(address: str, process: int, times: int = 1) -> None:
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(4, os.environ)
    jax.distributed.initialize(address, 2, process, initialization_timeout=60)
    pins = {"weights": PartitionSpec("x"), "batch": PartitionSpec("x")}
    fast = rhino.parallelize(step, cluster="cpu8", mesh="x=8", donate_argnums=0, pins=pins, budget="100KiB")
    taken = JitProgram.compiled_bytes
    JitProgram.compiled_bytes = lambda self, values: times * taken(self, values)  # type: ignore[method-assign]
    try:
        print("loss", float(fast(WEIGHTS, BATCH)[1]))
    except rhino.RhinoError as error:
        print(error)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
