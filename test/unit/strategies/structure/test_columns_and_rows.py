"""Megatron's columns and rows are read from the graph: as it splits models that it knows, and by hand for others."""

import re

import gpt
import jax
import jax.numpy as jnp
import pytest
import t5
from training import export_step
from zoo import GPT, T5

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.program.program import read_program
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.with_rules import run_on_functions
from rhino.strategies.sharding.expert_seeds import expert_seeds
from rhino.strategies.structure.axis_roles import Roles
from rhino.strategies.structure.columns_and_rows import column_and_row_dims


def graph_of(text):
    module = read_module(text.encode(), "step", make_context())
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks("step"))
        run_on_functions(module.operation, "sdy-populate-op-sharding-rules")
        return read_program(entry_function(module), mesh_of_shape((1,))).graph


def split(graph, size=2):
    """The dims that are split, by the names of arguments."""
    found = column_and_row_dims(graph, Roles(graph), size)
    return {graph.arguments[number].name: dim for number, dim in found.items()}


def mlp(num, width=16):
    """A step of so many layers without norms, whose names say nothing."""

    def step(weights, x):
        def loss(weights):
            h = x
            for w in weights:
                h = jnp.tanh(h @ w)
            return (h**2).mean()

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * num
    x = jax.ShapeDtypeStruct((64, width), jnp.float32)
    return graph_of(jax.jit(step, donate_argnums=0).lower(weights, x).as_text(debug_info=True))


def test_layers_are_columns_and_rows_in_turn():
    assert [split(mlp(4)).get(f"weights[{n}]") for n in range(4)] == [1, 0, 1, 0]
    assert [split(mlp(3)).get(f"weights[{n}]") for n in range(3)] == [1, 0, 1]


def test_what_the_axis_does_not_divide_stays_whole():
    assert split(mlp(2, width=15)) == {}


@pytest.mark.parametrize(
    ("columns", "rows", "model"),
    [
        (r"\['(q|k|v|up)'\]$", r"\['(out|down)'\]$|\['embed'\]$", gpt.model(GPT)),
        (r"\['(q|k|v|up)'\]$", r"\['(out|down)'\]$|\['embed'\]$", t5.model(T5)),
    ],
)
def test_transformers_are_split_as_megatron_splits_them(columns, rows, model):
    graph = graph_of(export_step(model))
    found = split(graph)
    for number, argument in enumerate(graph.arguments):
        rank = len(graph.type_of(number).shape)
        if argument.alias is None or rank < 2:
            continue
        expected = (
            rank - 1 if re.search(columns, argument.name) else rank - 2 if re.search(rows, argument.name) else None
        )
        assert found.get(argument.name) == expected, argument.name
    assert not any("ln" in name or "norm" in name for name in found)


def test_heads_that_an_axis_does_not_divide_stay_whole():
    found = split(graph_of(export_step(gpt.model(GPT))), size=GPT.heads * 2)
    assert found
    assert not any(name.endswith(("['q']", "['out']")) for name in found)


def test_the_seed_splits_moments_as_their_parameters_and_along_the_inner_axis():
    graph = graph_of(export_step(gpt.model(GPT)))
    (inner,) = [one for one in expert_seeds(graph, (2, 2)) if one.name == "zero-3 x megatron"]
    lie = {argument.name: dims for argument, dims in zip(graph.arguments, inner.arguments, strict=True)}
    ups = [dims for name, dims in lie.items() if name.endswith("['up']")]
    assert len(ups) == 3 * GPT.layers
    assert all(1 in dims[-1] for dims in ups), "Megatron's axis splits the columns"
    assert all(any(0 in axes for axes in dims) for dims in ups), "data parallelism takes what is left"
    (batch,) = [dims for name, dims in lie.items() if name.startswith("batch")]
    assert batch == ((0,), ())
