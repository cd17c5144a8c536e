"""One of several processes that train by plans in ranks: `spread_part.py ADDRESS PROCESS FOLDER JOB`.

The plans of a job are in the folder. Losses, and what of the state lies here, go there for each of them.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from clusters import of_two_kinds
from tied_step import Params, Scope, tied

import rhino
from rhino.runtime.executor.devices import request_host_devices

NUM_STEPS: Final = 3
BATCH: Final = np.random.default_rng(9).normal(size=(32, 16)).astype(np.float32)
_NONE: Final = (nullcontext,) * 3
_ON_8_AND_4: Final = (partial(rhino.replicate, 4), partial(rhino.split, 8), partial(rhino.replicate, 4))

Plans: TypeAlias = Mapping[str, tuple[tuple[Scope, ...], dict[str, Any]]]
"""By name: the scopes of a step, and how it is planned."""

_UNLIKE: Final[Plans] = {
    "uneven replicas": (
        _NONE,
        {"cluster": of_two_kinds("cpu4", 1.7), "mesh": "2", "replicas": "5;5;3;3"},
    ),
    "ranks of 4, 2 and 2": (_NONE, {"cluster": "cpu8", "stages": "4+2+2", "micro_batches": 4}),
    "stages on two groups": (
        _NONE,
        {"cluster": of_two_kinds("cpu4", 1.7), "stages": 4, "mesh": "2", "micro_batches": 4},
    ),
    "scopes on 8 and 4": (_ON_8_AND_4, {"cluster": "cpu8", "mesh": "4x2"}),
}
_IN_SEVERAL: Final[Plans] = {
    "ranks of two processes": (_NONE, {"cluster": "cpu8", "stages": 2, "mesh": "2x2", "micro_batches": 4}),
    "one of two processes": (_NONE, {"cluster": "cpu8", "stages": "2+4+2", "micro_batches": 4}),
    "two in two processes": (
        _NONE,
        {"cluster": "cpu8@0,4,1,5,2,6,3,7", "stages": 4, "mesh": "2", "micro_batches": 4},
    ),
}

_IN_EIGHT: Final[Plans] = {
    "four ranks of two processes": (_NONE, {"cluster": "cpu8", "stages": 4, "mesh": "2", "micro_batches": 4}),
}

JOBS: Final[Mapping[str, tuple[tuple[int, ...], Plans]]] = {
    "unlike": ((4, 2, 2), _UNLIKE),
    "in several": ((2, 2, 2, 2), _IN_SEVERAL),
    "in eight": ((1,) * 8, _IN_EIGHT),
}
"""The devices of each process, and the plans that they run."""


def ready(scopes: tuple[Scope, ...], **options: Any) -> Any:
    """Returns the step with its plan."""
    step, params = tied(scopes)
    fast = rhino.parallelize(step, donate_argnums=0, **options)
    fast.plan(jax.eval_shape(lambda: params), BATCH, np.int32(0))
    return fast


def train(fast: Any) -> tuple[Params, list[float]]:
    """Returns the state after some steps, and their losses."""
    state, losses = fast.init(lambda: tied(_NONE)[1]), []
    for number in range(NUM_STEPS):
        state, loss = fast(state, BATCH, np.int32(number))
        losses.append(float(loss))
    return state, losses


def main(address: str, process: int, folder: Path, job: str) -> None:
    devices, plans = JOBS[job]
    # A test's own flags ask for eight devices; the others let XLA compile fast.
    os.environ["XLA_FLAGS"] = re.sub(r"\S+device_count=\d+", "", os.environ.get("XLA_FLAGS", ""))
    request_host_devices(devices[process], os.environ)
    jax.distributed.initialize(address, len(devices), process, initialization_timeout=100)
    for name, (scopes, _) in plans.items():
        state, losses = train(ready(scopes, plan=rhino.Plan.load(folder / name)))
        parts = {
            f"{leaf}-{part.index}": np.asarray(part.data)
            for leaf, array in state.items()
            for part in array.addressable_shards
        }
        np.savez(folder / f"{name}-{process}.npz", losses=np.array(losses), **parts)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
