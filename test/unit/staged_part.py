"""One of two processes that train in stages: `staged_part.py ADDRESS PROCESS FOLDER MODEL PLANS END`.

MODEL is one of `MODELS`. PLANS is "kept", those in the folder, or "own", which this process makes. What it sees goes to
the folder. Then process 1 ends, "killed" or by an error of its own ("raised"), and process 0 goes on.
"""

import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import gpt
import jax
import jax.numpy as jnp
import numpy as np
from opened_files import opened_in
from training import Model
from zoo import GPT

import rhino
import rhino.distributed
from rhino.ir.diagnostics import RhinoError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it warns of when it is loaded
    import optax

WIDTH: Final = 16
OPTIMIZER = optax.adamw(1e-2)
MESHES: Final = ("1", "2")
STEPS: Final = 4


def cut_init(key: jax.Array) -> dict[str, jax.Array]:
    return {
        f"w{number}": jax.random.normal(one, (WIDTH, WIDTH)) / 4 for number, one in enumerate(jax.random.split(key))
    }


def cut_loss(params: dict[str, jax.Array], batch: jax.Array, key: jax.Array) -> jax.Array:
    """Of two layers with dropout, cut between them."""
    h = rhino.stage_boundary(jnp.tanh(batch @ params["w0"]))
    return ((jnp.tanh(h @ params["w1"]) * jax.random.bernoulli(key, 0.9, h.shape) - batch) ** 2).mean()


MODELS: Final[dict[str, Model]] = {
    "cut": Model("cut", cut_init, cut_loss, lambda key: jax.random.normal(key, (8, WIDTH))),
    "gpt": gpt.model(GPT),
}


class Training:
    """A model and how it is trained, in two stages."""

    def __init__(self, name: str) -> None:
        self.model = MODELS[name]

    def init(self, key: jax.Array) -> dict[str, Any]:
        params = self.model.init(key)
        return {"params": params, "moments": OPTIMIZER.init(params), "key": jax.random.fold_in(key, 1)}

    def step(self, state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        own, key = jax.random.split(state["key"])
        loss, grads = jax.value_and_grad(self.model.loss)(state["params"], batch, own)
        updates, moments = OPTIMIZER.update(grads, state["moments"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        seen = {"loss": loss, "old count": optax.tree.get(state["moments"], "count"), "grads": grads}
        return {"params": params, "moments": moments, "key": key}, seen

    def batch(self, number: int) -> Any:
        return jax.tree.map(np.asarray, self.model.sample(jax.random.key(number)))

    def planned(self, mesh: str) -> Any:
        """Returns the step planned."""
        return self._with_shapes(
            rhino.parallelize(self.step, cluster="cpu4", stages=2, mesh=mesh, micro_batches=2, donate_argnums=0)
        )

    def kept(self, folder: Path, mesh: str, devices: Sequence[jax.Device] | None = None) -> Any:
        """Returns the step with a plan of the folder."""
        plan = rhino.Plan.load(folder / mesh)
        return self._with_shapes(rhino.parallelize(self.step, plan=plan, donate_argnums=0, devices=devices))

    def _with_shapes(self, fast: Any) -> Any:
        fast.plan(jax.eval_shape(self.init, jax.random.key(0)), self.batch(0))
        return fast

    def train(self, fast: Any, num_steps: int = STEPS) -> tuple[Any, list[tuple[float, int]]]:
        """Returns what is left after some steps, and what was read of each."""
        state, read = fast.init(self.init, jax.random.key(0)), []
        for number in range(num_steps):
            state, seen = fast(state, self.batch(number))
            read.append((float(seen["loss"]), int(seen["old count"])))
        return (state, seen["grads"]), read


def here(tree: Any) -> dict[str, np.ndarray]:
    """Returns what this process has of a tree."""
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        plain = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        if plain.is_fully_addressable:
            found[jax.tree_util.keystr(path)] = np.asarray(plain)
    return found


def main(address: str, process: int, folder: Path, model: str, plans: str, end: str) -> None:
    os.environ["XLA_FLAGS"] = re.sub(r"device_count=\d+", "device_count=2", os.environ["XLA_FLAGS"])
    rhino.distributed.initialize(address, 2, process)
    training = Training(model)
    opened = opened_in(folder)
    for mesh in MESHES:
        fast = training.planned(mesh) if plans == "own" else training.kept(folder, mesh)
        with told_of(process, folder) if mesh == MESHES[0] else nullcontext():
            left, read = training.train(fast)
        np.savez(folder / f"out-{process}-{mesh}.npz", read=np.array(read), **here(left))
    state = left[0]
    crossed = training.kept(folder, "2", [jax.devices()[number] for number in (0, 2, 1, 3)])
    np.save(folder / f"crossed-{process}", np.array(training.train(crossed)[1]))
    (folder / f"refused-{process}").write_text(refused(training, folder, state))
    (folder / f"opened-{process}").write_text("\n".join(sorted(opened)))
    if process == 1:
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("of its own")
    for number in range(1000):
        state, seen = fast(state, training.batch(number))
        float(seen["loss"])


@contextmanager
def told_of(rank: int, folder: Path) -> Iterator[None]:
    """Writes down what the logger of a rank is told of its steps."""
    logger, handler = logging.getLogger(f"rhino.rank{rank}"), logging.FileHandler(folder / f"logged-{rank}")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield
    while len((folder / f"logged-{rank}").read_text().splitlines()) < STEPS:
        time.sleep(0.01)
    logger.setLevel(logging.WARNING)
    logger.removeHandler(handler)
    handler.close()


def refused(training: Training, folder: Path, state: Any) -> str:
    """Returns what is told of a state that lies in the other process."""
    swapped = training.kept(folder, "2", [jax.devices()[number] for number in (2, 3, 0, 1)])
    try:
        swapped(state, training.batch(0))
    except RhinoError as error:
        return error.render()
    return ""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
