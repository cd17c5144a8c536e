"""Parts of a program made parallel by hand: the plan around them keeps to them, and the answer is JAX's own."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_plans import MOODS, OneDevice, drawable
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from snippets import parse, program_of

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.spec import pack, split
from rhino.ir.mlir.fixed_region import MANUAL
from rhino.ir.mlir.reader import walk
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.sharding.localize import localized_copy

SHAPES = ((8, 16), (16, 16), (16, 8))


def by_hand(mesh: Mesh):
    """Products by hand and not, and a loop around a region by hand."""

    def product(h, w):
        return jax.lax.psum(h @ w, "y") + jax.lax.axis_index("x")

    def scaled(c):
        return c * jnp.tanh(jax.lax.psum(jnp.sum(c), ("x", "y")))

    def run(a, w, v):
        h = jnp.tanh(a @ w)
        o = jax.shard_map(product, mesh=mesh, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))(h, v)
        step = jax.shard_map(scaled, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
        o, _ = jax.lax.scan(lambda c, _: (step(c), None), o, None, length=3)
        return (o * 2).sum(0), h

    return run


@cache
def program(sizes: tuple[int, ...] = (2, 2), make=by_hand) -> tuple[str, OneDevice]:
    """The program as text, and what JAX makes of it."""
    mesh = Mesh(np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes), ("x", "y"))
    random = np.random.default_rng(0)
    inputs = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
    traced = jax.jit(make(mesh))
    return str(traced.lower(*inputs).as_text()), OneDevice(
        inputs, [np.asarray(r) for r in jax.tree.leaves(traced(*inputs))]
    )


@pytest.mark.parametrize(("seed", "mood"), list(enumerate(MOODS)))
@pytest.mark.parametrize("sizes", [(2, 2), (4, 2)])
def test_plans_around_it_give_the_answer_that_jax_gives(sizes, seed, mood):
    text, expected = program(sizes)
    drawn = drawable(text, "x".join(map(str, sizes)))
    plan = drawn.plan(seed, mood)
    assert expected.difference(plan, drawn.module, own_collectives=True).passes


def test_its_operands_and_results_lie_as_it_says():
    drawn = drawable(program()[0], "2x2")
    plan = drawn.plan(0, "any")
    states = [state for op, state in zip(drawn.program.ops, plan.ops, strict=True) if op.name == MANUAL]
    x, y = split(0), split(1)
    assert [(state.operand_specs, state.result_specs) for state in states] == [
        ((pack([x, y]), pack([0, x])), (pack([x, 0]),)),
        ((pack([x, y]),), (pack([x, y]),)),
    ]


def test_its_collectives_keep_channels_of_their_own():
    drawn = drawable(program()[0], "2x2")
    drawn.plan(1, "split")
    handles = [part.split(",")[0] for part in str(localized_copy(drawn.module)).split("channel_handle<handle = ")[1:]]
    assert len(handles) == len(set(handles)) > 2


def over_one_axis(mesh: Mesh):
    """A region over `x`, with a region of its own (`axis_index`) and a constraint along `y`.

    Its gradient has two such regions.
    """
    along_y = NamedSharding(mesh.abstract_mesh.update_axis_types({"x": AxisType.Manual}), P(None, "y"))

    def ring(a):
        a = jax.lax.with_sharding_constraint(jnp.tanh(a), along_y) * jax.lax.axis_index("x")
        return jax.lax.ppermute(
            a, "x", [(i, (i + 1) % mesh.shape["x"]) for i in range(mesh.shape["x"])]
        ) + jax.lax.psum(a, "x")

    def run(a, w, v):
        h = jax.shard_map(ring, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})(a @ w)
        return jnp.sum((h @ v) ** 2)

    return jax.value_and_grad(run, argnums=(0, 1))


@pytest.mark.parametrize("mood", MOODS[:2])
def test_a_region_over_some_axes_does_the_same_along_the_others(mood):
    text, expected = program((4, 2), over_one_axis)
    drawn = drawable(text, "4x2")
    assert {
        str(axes) for op in walk(drawn.module.operation) if op.name == MANUAL for axes in [op.attributes["manual_axes"]]
    } == {'#sdy<manual_axes{"x", "y"}>'}
    assert expected.difference(drawn.plan(0, mood), drawn.module, own_collectives=True).passes


INSIDE = """
    sdy.mesh @mesh = <["x"=2, "y"=2]>
    func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
      %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x"}, {}]>]\
 out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"}
          (%b: tensor<4x16xf32>) {
        %1 = sdy.manual_computation(%b) in_shardings=[<@mesh, [{}, {"y"}]>]\
 out_shardings=[<@mesh, [{}, {"y"}]>] manual_axes={"y"}
            (%c: tensor<4x8xf32>) {
          %2 = stablehlo.tanh %c : tensor<4x8xf32>
          sdy.return %2 : tensor<4x8xf32>
        } : (tensor<4x16xf32>) -> tensor<4x16xf32>
        sdy.return %1 : tensor<4x16xf32>
      } : (tensor<8x16xf32>) -> tensor<8x16xf32>
      return %0 : tensor<8x16xf32>
    }"""


@pytest.mark.parametrize(
    ("prepared", "words"), [(True, 'over "y" inside another'), (False, 'over "x", on a mesh of x=2,y=2')]
)
def test_what_is_left_over_some_axes_is_refused(prepared: bool, words: str):
    with pytest.raises(RhinoError) as caught:
        Normalize().run(parse(INSIDE).operation, Remarks()) if prepared else program_of(INSIDE, (2, 2))
    assert caught.value.id == "RHI-SHARD-001"
    assert words in caught.value.what
