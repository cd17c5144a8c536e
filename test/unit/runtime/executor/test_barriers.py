"""Barriers that order a program change no bit, and are left alone where they order nothing."""

import jax
import jax.numpy as jnp
import numpy as np

from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor.barriers import order_by_barriers
from rhino.runtime.executor.executable import compile_module


def module_of(function, *arguments):
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cpu",)).as_text()
    return read_module(text.encode(), "barriers", make_context())


def test_every_bit_goes_through():
    values = (
        np.array([np.nan, -0.0, np.inf, 1.5], np.float32),
        np.array([0, -1, 2**31 - 1, 7], np.int32),
        np.array([True, False, True, False]),
        np.array([1.5, np.nan, -0.0, 2.0], jnp.bfloat16),
    )

    def through(*given):
        made = [jnp.flip(one) for one in given]
        return jax.lax.optimization_barrier(made)

    module = module_of(through, *values)
    assert "stablehlo.if" in str(order_by_barriers(module, 1))
    executable = compile_module(module, jax.devices()[:1])
    results = executable.fetch(executable.run([executable.put(n, value) for n, value in enumerate(values)]))
    for result, value in zip(results, values, strict=True):
        assert result.tobytes() == np.flip(value).tobytes()


def test_what_is_there_from_the_start_holds_nothing_up():
    module = module_of(
        lambda x, y: jax.lax.optimization_barrier((x, y)), np.ones(4, np.float32), np.ones(4, np.float32)
    )
    assert order_by_barriers(module, 1) is module


def test_a_program_that_is_yet_to_be_partitioned_keeps_its_barriers():
    module = module_of(
        lambda x, y: jax.lax.optimization_barrier((x + 1, y)), np.ones(4, np.float32), np.ones(4, np.float32)
    )
    assert "stablehlo.if" not in str(order_by_barriers(module, 8))


def loss(x, w, layer):
    for _ in range(4):
        x = layer(x, w)
    return (x * x).sum()


def test_a_layer_that_is_computed_again_saves_its_memory():
    arguments = (np.ones((512, 64), np.float32), np.ones((64, 1024), np.float32))

    def layer(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w.T)

    def memory(layer):
        module = module_of(jax.grad(lambda x, w: loss(x, w, layer), argnums=(0, 1)), *arguments)
        return compile_module(module, jax.devices()[:1]).memory_bytes()

    assert memory(jax.checkpoint(layer)) < 0.8 * memory(layer)


def test_what_xla_finds_to_be_constant_takes_no_barrier_away():
    """XLA writes a constant into the branch, which is then more than its operands."""
    values = np.arange(64.0, dtype=np.float32), np.arange(64, dtype=np.int32)

    def through(x, n):
        return jax.lax.optimization_barrier((jnp.sin(x), jnp.zeros(32), jnp.flip(n)))

    executable = compile_module(module_of(through, *values), jax.devices()[:1])
    assert "conditional(" in executable.hlo_text()
    results = executable.fetch(executable.run([executable.put(n, value) for n, value in enumerate(values)]))
    assert np.array_equal(results[1], np.zeros(32))
    assert np.array_equal(results[2], values[1][::-1])
