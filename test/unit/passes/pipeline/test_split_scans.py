"""Loops over layers in pieces compute what the loops did."""

import functools
from itertools import accumulate, pairwise

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scanned_steps import LAYERS, STEPS, text, values

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.program.leaf_rows import rows_in
from rhino.passes.base import Remarks
from rhino.passes.pipeline.scan_loops import read_scan
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.executable import compile_module


@functools.cache
def code(name: str) -> bytes:
    return text(STEPS[name])


def module_of(name: str, passes: str) -> ir.Module:
    context = make_context()
    module = ir.Module.parse(code(name), context)
    build_pass_manager(f"rhino-normalize{passes}", context, Remarks()).run(module.operation)
    assert module.operation.verify()
    return module


def results_of(module: ir.Module, arguments: list[np.ndarray]) -> list[np.ndarray]:
    executable = compile_module(module, jax.devices()[:1])
    placed = [executable.put(number, np.array(one)) for number, one in enumerate(arguments)]
    return executable.fetch(executable.run(placed))


@functools.cache
def expected(name: str) -> list[np.ndarray]:
    return results_of(module_of(name, ""), values())


def layer_loops(module: ir.Module) -> int:
    """How many loops there are over rows of stacks."""
    return sum(read_scan(op) is not None for op in walk(entry_function(module).operation))


def option(counts: list[int]) -> str:
    return f'counts="{";".join(map(str, counts))}"'


@pytest.mark.parametrize("name", STEPS)
def test_each_step_gives_the_same_in_pieces(name: str):
    module = module_of(name, ",rhino-split-scans{counts=1;3;2}")
    assert layer_loops(module) == 2 * layer_loops(module_of(name, ""))  # one iteration is no loop
    # In the layers in bf16 XLA keeps more bits between ops that it fuses, which are others in a loop.
    limits = {"rtol": 5e-2, "atol": 2e-3} if name == "narrow" else {"rtol": 2e-5, "atol": 1e-6}
    for got, want in zip(results_of(module, values()), expected(name), strict=True):
        np.testing.assert_allclose(got, want, **limits)


@pytest.mark.parametrize("name", ["plain", "dropped", "checkpointed"])
@pytest.mark.parametrize("counts", [[1] * LAYERS, [5, 1], [2, 4]])
def test_leaves_in_pieces_are_the_rows_of_the_whole(name: str, counts: list[int]):
    module = module_of(name, f",rhino-split-scans{{{option(counts)} leaves=true}}")
    entry = entry_function(module)
    joined = [
        op
        for op in walk(entry.operation)
        if op.name == "stablehlo.concatenate" and ir.RankedTensorType(op.results[0].type).shape[0] == LAYERS
    ]
    assert all(ir.IntegerAttr(op.attributes["dimension"]).value for op in joined)  # no rows are put together
    rows = [rows_in(one) for one in boundary_attributes(entry, "arg")]
    spans = list(pairwise([0, *accumulate(counts)]))
    assert [one for one in rows if one] == spans * 9  # three stacks of parameters and of each moment
    arguments = []
    for whole in values():
        if whole.ndim and whole.shape[0] == LAYERS:
            arguments += [whole[start:stop] for start, stop in spans]
        else:
            arguments.append(whole)
    got, at = results_of(module, arguments), 0
    given_rows = [rows_in(one) for one in boundary_attributes(entry, "res")]
    for want in expected(name):
        parts = [got[at]]
        while (span := given_rows[at]) and span[1] < LAYERS:
            at += 1
            parts.append(got[at])
        at += 1
        np.testing.assert_allclose(np.concatenate(parts) if len(parts) > 1 else parts[0], want, rtol=2e-5, atol=1e-6)
    assert at == len(got)
    types = entry.type
    for number, attributes in enumerate(boundary_attributes(entry, "arg")):
        if ALIAS in attributes:
            result = ir.IntegerAttr(attributes[ALIAS]).value
            assert types.results[result] == types.inputs[number]
            assert given_rows[result] == rows[number]


@given(st.sets(st.integers(1, LAYERS - 1)))
@settings(max_examples=6, deadline=None)
def test_any_counts_give_the_same(cuts: set[int]):
    counts = [stop - start for start, stop in pairwise([0, *sorted(cuts), LAYERS])]
    module = module_of("clipped", f",rhino-split-scans{{{option(counts)} leaves=false}}")
    for got, want in zip(results_of(module, values()), expected("clipped"), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def chosen(trial: str) -> ir.Module:
    return module_of("plain", f',rhino-split-scans{{stages=2 trial="{trial}"}}')


def test_a_trial_leaves_the_step_as_it_is():
    module = chosen("rhino-micro-batch{num=4},rhino-normalize")
    assert not any("rhino.micro_batches" in op.attributes for op in walk(entry_function(module).operation))
    for got, want in zip(results_of(module, values()), expected("plain"), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_a_trial_that_is_refused_counts_for_nothing():
    assert str(chosen("rhino-micro-batch{num=3}")) == str(chosen(""))  # of 8 examples


def test_equal_pieces_are_equal_loops():
    """So that stages share programs: no piece says which rows it has."""
    module = module_of("plain", ",rhino-split-scans{counts=2;2;2}")
    loops = [op for op in walk(entry_function(module).operation) if op.name == "stablehlo.while"]
    bodies = [[op.name for op in walk(loop)] for loop in loops]
    assert bodies[0] == bodies[1] == bodies[2]
    assert bodies[3] == bodies[4] == bodies[5]
