"""Of what steps of others are compared in: rounding is told from a fault by what the last bits of inputs change."""

import jax
import numpy as np
import pytest
from planning import reference
from rewrites import NUM_STEPS, Expected, compared

from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor.signature import read_signature


@pytest.fixture(scope="module")
def expected() -> Expected:
    def centered(x):
        return (x - x.mean()).sum(), 2 * x

    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    text = jax.jit(centered).lower(x).as_text().encode()
    return Expected(text, "centered", reference(text, "centered", NUM_STEPS, {0: x}))


@pytest.mark.parametrize(
    ("changes", "is_equal"),
    [((0, 0), True), ((3e-6, 0), True), ((1e-3, 0), False), ((0, 1e-4), False), ((3e-6, np.nan), False)],
)
def test_a_sum_that_is_zero_but_for_rounding_may_be_any_other_such(expected, changes, is_equal):
    signature = read_signature(read_module(expected.text, expected.name, make_context()))
    steps = [[one + change for one, change in zip(step, changes, strict=True)] for step in expected.exact.results]
    assert compared(signature, steps, expected, 1e-5)[1] == is_equal
