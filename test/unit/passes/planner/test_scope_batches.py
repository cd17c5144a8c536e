"""How many micro-batches stages that are scopes get, by plans whose figures are made up."""

import jax
import jax.numpy as jnp
import pytest

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.plan import Predicted
from rhino.passes.planner.scope_batches import choose_micro_batches
from rhino.passes.planner.setup import Setup

MESHES = [mesh_of_shape((size,)) for size in (4, 2, 2)]
NUMBERS = (1, 2, 4, 8, 16, 32, 64)


def setup(size: int) -> Setup:
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 8), (size, 8))]
    step = jax.jit(lambda w, x: w - jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w), donate_argnums=0)
    module = read_module(step.lower(*shapes).as_text().encode(), "step", make_context())
    return Setup(bytecode(module), "step", "cpu8", 2**31, {})


@pytest.mark.parametrize(
    ("bubble_s", "launch_s", "most_fit", "least_fit"),
    [
        (1.0, 0.01, 64, 2),
        (1.0, 1.0, 64, 2),
        (8.0, 0.02, 64, 2),
        (1.0, 1e-4, 64, 2),
        (1.0, 1e-4, 8, 2),
        (1.0, 1.0, 64, 16),
    ],
)
def test_the_best_of_all_numbers_is_chosen(bubble_s: float, launch_s: float, most_fit: int, least_fit: int):
    """A step has a bubble that falls with the micro-batches, and launches; some are too small, or take too much."""
    asked = []

    def make(number: int) -> Predicted:
        asked.append(number)
        if number > most_fit:
            raise RhinoError("RHI-SHARD-001", "it cannot be shared")
        if number < least_fit:
            raise RhinoError("RHI-STEP-008", "it does not fit")
        return Predicted(step_s(number), 0.0, (1, 1, 1), 2**31, (0, 0, 0))

    def step_s(number: int) -> float:
        return 1 + 2 * bubble_s / number + launch_s * number

    best = min((one for one in NUMBERS[1:] if least_fit <= one <= most_fit), key=step_s)
    assert choose_micro_batches(setup(64), MESHES, make) == best
    assert len(asked) == len(set(asked)) <= len(NUMBERS)


def test_what_no_number_allows_is_told_of_the_fewest():
    def make(number: int) -> Predicted:
        raise RhinoError("RHI-SHARD-001", f"{number} cannot be shared")

    with pytest.raises(RhinoError, match=r"RHI-SHARD-001.* 2 cannot be shared"):
        choose_micro_batches(setup(64), MESHES, make)
    with pytest.raises(RhinoError, match="RHI-BATCH-002"):
        choose_micro_batches(setup(1), MESHES, make)
