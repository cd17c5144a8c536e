"""A localized program, wrapped, compiles with stock XLA and gives the answer of the one-device program."""

import jax
import numpy as np
import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.ir.hlo.collectives import hlo_stats
from rhino.ir.mlir.bindings import ir, make_context, run_pipeline
from rhino.ir.mlir.manual import copy_module, has_shardings, mesh_size, strip_shardings, wrap_manual
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.collectives import module_stats
from rhino.runtime.executor.executable import Host, compile_module
from rhino.runtime.executor.steps import run_steps

LOCALIZE = (
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives),"
    "canonicalize,sdy-convert-global-to-local"
)
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'


def sharding(dims: str) -> str:
    return f"sdy.sharding = #sdy.sharding<@mesh, [{dims}]>"


def of_op(dims: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{dims}]>]>}}"


# An iota along a split dim, a matmul split on two axes, a gather before the sum, a call, an argument without a
# sharding.
PROGRAM = f"""{MESH}func.func private @twice(%a: tensor<f32>) -> tensor<f32> {{
  %0 = stablehlo.add %a, %a : tensor<f32>
  return %0 : tensor<f32>
}}
func.func public @main(
    %a: tensor<16x8xf32> {{{sharding('{"x"}, {"y"}')}, tf.aliasing_output = 0 : i32}} loc("state['a']"),
    %b: tensor<8x8xf32> {{{sharding('{}, {"y"}')}}},
    %c: tensor<f32>) -> (tensor<16x8xf32> {{{sharding('{"x"}, {"y"}')}, jax.result_info = "new"}}, tensor<f32>) {{
  %i = stablehlo.iota dim = 0 {of_op('{"x"}, {"y"}')} : tensor<16x8xf32>
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {of_op('{"x"}, {"y"}')}
      : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.add %0, %i {of_op('{"x"}, {"y"}')} : tensor<16x8xf32>
  %2 = stablehlo.negate %1 {of_op("{}, {}")} : tensor<16x8xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%2 init: %z) applies stablehlo.maximum across dimensions = [0, 1] {of_op("")}
      : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
  %t = call @twice(%s) : (tensor<f32>) -> tensor<f32>
  %u = stablehlo.add %t, %c : tensor<f32>
  return %1, %u : tensor<16x8xf32>, tensor<f32>
}}
"""


def parse(text: str) -> ir.Module:
    return ir.Module.parse(text, make_context())


def localized(text: str) -> ir.Module:
    module = parse(text)
    run_pipeline(module, LOCALIZE)
    return module


def execute(module: ir.Module, inputs: list[Host], num_devices: int) -> list[Host]:
    (step,) = run_steps(compile_module(module, jax.devices()[:num_devices]), inputs, 1)
    return [np.asarray(result) for result in step.results]


def inputs() -> list[Host]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape).astype(np.float32) for shape in ((16, 8), (8, 8), ())]


def test_a_wrapped_program_gives_the_answer_of_one_device():
    plain = parse(PROGRAM)
    strip_shardings(plain)
    got = execute(wrap_manual(localized(PROGRAM)), inputs(), 8)
    for ours, theirs in zip(got, execute(plain, inputs(), 1), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_xla_compiles_the_collectives_that_were_written_and_no_other():
    local = localized(PROGRAM)
    assert module_stats(local).total.num > 0
    assert hlo_stats(compile_module(wrap_manual(local), jax.devices()[:8]).hlo_text()) == module_stats(local)


def test_the_entry_is_global_and_keeps_its_name_attributes_and_locations():
    module = wrap_manual(localized(PROGRAM))
    entry = entry_function(module)
    assert entry.name.value == "main"
    assert [str(kind) for kind in entry.type.inputs] == ["tensor<16x8xf32>", "tensor<8x8xf32>", "tensor<f32>"]
    assert [str(kind) for kind in entry.type.results] == ["tensor<16x8xf32>", "tensor<f32>"]
    assert "tf.aliasing_output = 0" in str(entry.arg_attrs[0])
    assert 'jax.result_info = "new"' in str(entry.attributes["res_attrs"])
    assert "state['a']" in str(entry.arguments[0].location)
    (manual, end) = entry.entry_block.operations
    assert [op.operation.name for op in (manual, end)] == ["sdy.manual_computation", "func.return"]
    assert str(manual.attributes["manual_axes"]) == '#sdy<manual_axes{"x", "y"}>'


def test_the_local_program_is_left_as_it_was():
    local = localized(PROGRAM)
    before = str(local)
    wrap_manual(local)
    assert str(local) == before


def test_a_dim_may_be_split_over_several_axes_and_parts_of_one():
    text = f"""{MESH}func.func public @main(
    %a: tensor<2x8xf32> {{{sharding('{"x", "y"}, {}')}}},
    %b: tensor<16x4xf32> {{{sharding('{}, {"y":(2)2}')}}}) -> (tensor<2x8xf32> {{{sharding('{"x", "y"}, {?}')}}}) {{
  return %a : tensor<2x8xf32> }}"""
    module = wrap_manual(parse(text))
    entry = entry_function(module)
    assert [str(kind) for kind in entry.type.inputs] == ["tensor<16x8xf32>", "tensor<16x8xf32>"]
    assert sharding('{"x", "y"}, {}') in str(entry.attributes["res_attrs"])


def test_a_partial_sum_gets_a_dim_for_each_axis_that_it_is_a_sum_over():
    text = f"""{MESH}func.func public @main(
    %a: tensor<4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}], unreduced={{"y"}}>}}) ->
    (tensor<4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}], unreduced={{"y"}}>}}) {{
  %b = stablehlo.add %a, %a : tensor<4xf32>
  return %b : tensor<4xf32> }}"""
    module = wrap_manual(parse(text))
    entry = entry_function(module)
    assert [str(kind) for kind in (*entry.type.inputs, *entry.type.results)] == ["tensor<4x8xf32>"] * 2
    assert sharding('{"y"}, {"x"}') in str(entry.attributes["arg_attrs"])
    summands = np.arange(32, dtype=np.float32).reshape(4, 8)
    executable = compile_module(module, jax.devices()[:8])
    assert (executable.fetch(executable.run([executable.put(0, summands)]))[0] == 2 * summands).all()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }", "has none"),
        (
            f'{MESH}sdy.mesh @other = <["x"=8]>\n'
            'func.func public @main(%a: tensor<2xf32> {sdy.sharding = #sdy.sharding<@other, [{"x"}]>}) { return }',
            "of mesh @mesh",
        ),
        (f"{MESH}func.func public @main(%t: !stablehlo.token) {{ return }}", "no tensor"),
    ],
)
def test_a_boundary_that_cannot_be_wrapped_is_refused(text: str, what: str):
    with pytest.raises(RhinoError, match=what) as caught:
        wrap_manual(parse(text))
    assert caught.value.id == "RHI-LOCAL-001"


def test_a_module_without_an_entry_is_refused():
    with pytest.raises(RhinoError) as caught:
        wrap_manual(parse(f"{MESH}func.func private @f() {{ return }}"))
    assert caught.value.id == "RHI-READ-005"


def test_shardings_are_found_and_stripped():
    module = parse(PROGRAM)
    assert has_shardings(module)
    strip_shardings(module)
    assert not has_shardings(module)
    assert "tf.aliasing_output" in str(module)
    only_argument = parse(f"{MESH}func.func public @main(%a: tensor<2xf32> {{{sharding('{?}')}}}) {{ return }}")
    assert has_shardings(only_argument)


def test_mesh_size():
    assert mesh_size(parse(PROGRAM)) == 8
    assert mesh_size(parse("func.func public @main() { return }")) == 1


def test_a_copy_has_the_same_locations_and_is_another_module():
    module = parse(PROGRAM)
    copy = copy_module(module)
    strip_shardings(copy)
    assert "state['a']" in copy.operation.get_asm(enable_debug_info=True)
    assert has_shardings(module)
