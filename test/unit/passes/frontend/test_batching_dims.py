"""What is indexed by a count along the indices becomes a batching dim, and nothing else does; the numbers stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planning import run_on

from rhino.ir.mlir.bindings import make_context, stablehlo
from rhino.ir.mlir.reader import read_module, walk
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.executable import compile_module

ROWS = np.arange(6, dtype=np.int32)
FILLED = {"mode": "fill", "fill_value": 7.0}

# Each form reads x of 6 x 5 x 3, and indices a of 6 in -2..7 and b of 6 x 4 in 0..2. The number is that of batching
# dims, over the gather and the scatter of its gradient.
FORMS = {
    "rows": (lambda x, a, b: x[jnp.arange(6), a], 2),
    "constant": (lambda x, a, b: x[ROWS, a], 2),
    "bytes": (lambda x, a, b: x.at[jnp.arange(6, dtype=jnp.uint8), a.astype(jnp.uint8)].get(**FILLED), 2),
    "elements": (lambda x, a, b: x[jnp.arange(6), a, a % 3], 2),
    "pairs": (lambda x, a, b: x[jnp.arange(6)[:, None], jnp.arange(4), b], 2),
    "both": (lambda x, a, b: x[:, :4][jnp.arange(6)[:, None], jnp.arange(4), b], 4),
    "last": (lambda x, a, b: x.transpose(1, 2, 0)[a, :, jnp.arange(6)], 2),
    "crossed": (lambda x, a, b: x.transpose(1, 0, 2)[:4][jnp.arange(4), jnp.arange(6)[:, None], b], 4),
    "diagonal": (lambda x, a, b: jnp.tile(x, (1, 2, 1))[:, :6][jnp.arange(6), jnp.arange(6)], 2),
    "clipped": (lambda x, a, b: x.at[jnp.arange(6), a].get(mode="clip"), 1),  # its gradient clamps all indices together
    "dropped": (lambda x, a, b: x.at[jnp.arange(6), a].set(x[:, 0] ** 2, mode="drop"), 4),
    "backwards": (lambda x, a, b: x[5 - jnp.arange(6), a], 0),
    "shifted": (lambda x, a, b: x[jnp.arange(6) + 1, a], 0),
    "some": (lambda x, a, b: x[jnp.arange(5), a[:5]], 0),
    "alone": (lambda x, a, b: x[jnp.arange(6)], 0),
    "repeated": (lambda x, a, b: x[jnp.arange(6) // 2, a], 0),
}


def num_batching_dims(op) -> int:
    match op.name:
        case "stablehlo.gather":
            return len(stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"]).operand_batching_dims)
        case "stablehlo.scatter":
            numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
            return len(numbers.input_batching_dims)
    return 0


@pytest.mark.parametrize("name", FORMS)
def test_form(name: str):
    form, batching = FORMS[name]
    draw = np.random.default_rng(0)
    x = draw.standard_normal((6, 5, 3), dtype=np.float32)
    a, b = draw.integers(-2, 8, 6, dtype=np.int32), draw.integers(0, 3, (6, 4), dtype=np.int32)

    def step(x, a, b):
        value, back = jax.vjp(lambda x: form(x, a, b), x)
        return value, back(jnp.sin(value))[0]

    lowered = jax.jit(step, keep_unused=True).lower(x, a, b)
    module = read_module(lowered.as_text().encode(), "form.mlir", make_context())
    build_pass_manager("rhino-normalize", module.context, Remarks("form.mlir")).run(module.operation)
    assert module.operation.verify()
    assert sum(map(num_batching_dims, walk(module.operation))) == batching
    (found,) = run_on(compile_module(module, jax.devices()[:1]), [x, a, b], 1)
    for got, want in zip(found, lowered.compile()(x, a, b), strict=True):
        np.testing.assert_array_equal(got, want)
