"""Programs run on eight host devices as on one, and no bad argument reaches a launch."""

import dataclasses
import io
import re
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rhino.ir.diagnostics import IDS, RhinoError
from rhino.ir.mlir.bindings import ir, make_context, run_pipeline
from rhino.runtime.executor.compare import check, check_same_signature, difference, differences, worst
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import Executable, Host, compile_module, wait
from rhino.runtime.executor.inputs import (
    FLOAT_RANGE,
    InputRule,
    draw_inputs,
    fresh_inputs,
    nonnegative_arguments,
    read_inputs,
)
from rhino.runtime.executor.signature import Signature, Value, read_signature
from rhino.runtime.executor.steps import run_steps, typical_time_s
from rhino.tools import run as tool
from rhino.tools.run_report import difference_text

MESH = 'sdy.mesh @mesh = <["x"=8]>\n'
ROWS = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'

# A chain of two matmuls, Megatron's way: the weights split by columns, then by rows, so the sum is partial.
CHAIN = """func.func public @main(%x: tensor<8x16xf32>, %v: tensor<16x32xf32> V, %w: tensor<32x16xf32> W)\
 -> tensor<8x16xf32> {
  %0 = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0]\
 : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
  %1 = stablehlo.tanh %0 : tensor<8x32xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]\
 : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
  return %2 : tensor<8x16xf32>
}
"""
PLAIN_CHAIN = CHAIN.replace(" V,", ",").replace(" W)", ")")
SPLIT_CHAIN = MESH + CHAIN.replace(" V,", ' {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},').replace(
    " W)", f" {ROWS})"
)

# A step of training in small: the state is fed back, the batch is not, and the loss is a scalar.
TRAIN = """func.func public @main(
    %w: tensor<16x4xf32> {tf.aliasing_output = 0 : i32} loc("w"),
    %n: tensor<i32> {tf.aliasing_output = 1 : i32} loc("steps"),
    %b: tensor<16x4xf32> loc("batch"))
    -> (tensor<16x4xf32>, tensor<i32>, tensor<f32> {jax.result_info = "loss"}) {
  %0 = stablehlo.add %w, %b : tensor<16x4xf32>
  %c = stablehlo.constant dense<1> : tensor<i32>
  %1 = stablehlo.add %n, %c : tensor<i32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1]\
 : (tensor<16x4xf32>, tensor<f32>) -> tensor<f32>
  return %0, %1, %2 : tensor<16x4xf32>, tensor<i32>, tensor<f32>
}
"""
SPLIT_TRAIN = MESH + TRAIN.replace("%b: tensor<16x4xf32>", f"%b: tensor<16x4xf32> {ROWS}").replace(
    "{tf.aliasing_output = 0 : i32}", '{tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
)


def parse(text: str) -> ir.Module:
    return ir.Module.parse(text, make_context())


def compiled(text: str, num_devices: int = 8) -> Executable:
    return compile_module(parse(text), jax.devices()[:num_devices])


def results(executable: Executable, values: list[Host], num_steps: int = 1) -> list[list[Host]]:
    return [[np.asarray(result) for result in step.results] for step in run_steps(executable, values, num_steps)]


def drawn(text: str, seed: int = 0, int_range: int = 2) -> list[Host]:
    module = parse(text)
    return draw_inputs(read_signature(module), InputRule(seed, int_range, nonnegative_arguments(module)), {})


def value(dtype: str, shape: tuple[int, ...] = (64,), index: int = 0) -> Value:
    return Value(index, "v", shape, jax.numpy.dtype(dtype), shape, shape)


def raises(id: str, what: str = "") -> pytest.RaisesExc[RhinoError]:
    return pytest.raises(RhinoError, match=rf"(?s)\[{id}\] .*{what}")


class TestExecutable:
    def test_a_split_chain_gives_the_answer_of_one_device(self):
        values = drawn(PLAIN_CHAIN)
        split = compiled(SPLIT_CHAIN)
        assert split.in_shardings[1].shard_shape((16, 32)) == (16, 4)
        np.testing.assert_allclose(
            results(split, values)[0][0], results(compiled(PLAIN_CHAIN, 1), values)[0][0], rtol=1e-5, atol=1e-7
        )

    def test_64_bit_values_are_not_narrowed(self):
        text = "func.func public @main(%a: tensor<4xi64>, %b: tensor<2xf64>) -> (tensor<4xi64>, tensor<2xf64>) {\n"
        text += "return %a, %b : tensor<4xi64>, tensor<2xf64> }"
        values: list[Host] = [np.arange(4) + 2**40, np.array([1 / 3, 1e300])]
        ((a, b),) = results(compiled(text, 1), values)
        assert (a.tolist(), b.tolist()) == (values[0].tolist(), values[1].tolist())

    def test_a_program_without_results_runs(self):
        empty = "func.func @main(%a: tensor<8xf32>) { return }"
        split = f'sdy.mesh @mesh = <["x"=8]>\n{empty}'
        assert results(compiled(empty, 1), drawn(empty)) == results(compiled(split), drawn(split)) == [[]]

    def test_a_module_that_xla_refuses(self):
        text = "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
        text += (
            "%0 = stablehlo.custom_call @nowhere(%a) : (tensor<4xf32>) -> tensor<4xf32>\n return %0 : tensor<4xf32> }"
        )
        with raises("RHI-RUN-001", "nowhere"):
            compiled(text, 1)

    def test_a_module_that_calls_python(self):
        shape = jax.ShapeDtypeStruct((4,), np.float32)
        text = jax.jit(lambda x: jax.pure_callback(lambda x: x, shape, x)).lower(shape).as_text()
        with raises("RHI-RUN-001", "calls Python"):
            compiled(text, 1)

    def test_a_sharding_that_does_not_divide_is_trimmed_by_xla(self):
        text = f"{MESH}func.func public @main(%a: tensor<6x2xf32> {ROWS}) -> tensor<6x2xf32> {{\n"
        executable = compiled(text + "%0 = stablehlo.negate %a : tensor<6x2xf32>\n return %0 : tensor<6x2xf32> }")
        array = np.arange(12, dtype=np.float32).reshape(6, 2)
        assert executable.in_shardings[0].shard_shape((6, 2)) == (3, 2)
        assert (results(executable, [array])[0][0] == -array).all()

    def test_a_token_is_no_argument(self):
        with raises("RHI-RUN-002", "no array has"):
            compiled("func.func public @main(%a: !stablehlo.token) { return }", 1)

    def test_put_checks_shape_and_dtype(self):
        executable = compiled(SPLIT_CHAIN)
        with raises("RHI-RUN-002", r"argument 1: got float32\[16, 16\], expected float32\[16, 32\]"):
            executable.put(1, np.zeros((16, 16), np.float32))
        with raises("RHI-RUN-002", "float64"):
            executable.put(1, np.zeros((16, 32), np.float64))

    @pytest.mark.parametrize(
        ("spoil", "what"),
        [
            (lambda exe, args: args[:2], "got 2 arguments, expected 3"),
            (lambda exe, args: [args[0], np.zeros((16, 32), np.float32), args[2]], "got a ndarray"),
            (lambda exe, args: [args[0], args[2], args[1]], "argument 1: got float32"),
            (lambda exe, args: [args[0].astype("int32"), *args[1:]], "got int32"),
            (lambda exe, args: [args[0], jax.device_put(args[1], exe.in_shardings[0]), args[2]], "sharding"),
            (lambda exe, args: [jax.device_put(args[0], jax.devices()[0]), *args[1:]], "sharding"),
        ],
    )
    def test_a_bad_argument_never_reaches_the_launch(
        self, spoil: Callable[[Executable, list[jax.Array]], list[jax.Array]], what: str
    ):
        executable = compiled(SPLIT_CHAIN)
        arguments = [executable.put(i, item) for i, item in enumerate(drawn(PLAIN_CHAIN))]
        with raises("RHI-RUN-002", what):
            executable.run(spoil(executable, arguments))
        wait(executable.run(arguments))

    def test_a_donated_argument_cannot_be_used_again(self):
        executable = compiled(SPLIT_TRAIN)
        arguments = [executable.put(i, item) for i, item in enumerate(drawn(TRAIN))]
        wait(executable.run(arguments))
        with raises("RHI-RUN-002", r"argument 0 \(w\): got an array that was deleted or donated"):
            executable.run(arguments)

    def test_a_donated_argument_is_nobody_elses(self):
        executable = compiled(SPLIT_TRAIN)
        state, count, _ = (executable.put(i, item) for i, item in enumerate(drawn(TRAIN)))
        with raises("RHI-RUN-002", "also another argument"):
            executable.run([state, count, state])

    def test_a_launch_that_fails(self):
        def fail(arguments: list[jax.Array]) -> None:
            raise jax.errors.JaxRuntimeError("out of memory")

        executable = dataclasses.replace(compiled(PLAIN_CHAIN, 1), _loaded=SimpleNamespace(execute_sharded=fail))
        with raises("RHI-RUN-005", r"out of memory[\s\S]*to fix: if memory ran out, plan with a smaller budget"):
            list(run_steps(executable, drawn(PLAIN_CHAIN), 1))


class TestDevices:
    def test_too_few(self):
        with raises("RHI-RUN-004", "needs 99 devices, and 8 are there"):
            pick_devices(99)

    @pytest.mark.parametrize(
        ("flags", "expected"),
        [
            ("", "--xla_force_host_platform_device_count=4"),
            ("--xla_a=1", "--xla_a=1 --xla_force_host_platform_device_count=4"),
            ("--xla_force_host_platform_device_count=8", "--xla_force_host_platform_device_count=8"),
            (
                "--xla_force_host_platform_device_count=2",
                "--xla_force_host_platform_device_count=2 --xla_force_host_platform_device_count=4",
            ),
        ],
    )
    def test_flags_are_added_to_what_is_there(self, flags: str, expected: str):
        environ = {"XLA_FLAGS": flags}
        request_host_devices(4, environ)
        assert environ == {"XLA_FLAGS": expected, "JAX_PLATFORMS": "cpu"}


class TestInputs:
    def test_draws_are_repeatable_and_each_argument_has_its_own(self):
        rule = InputRule(3, 2, frozenset())
        assert (rule.draw(value("float32")) == rule.draw(value("float32"))).all()
        for other in (
            rule.draw(value("float32", index=1)),
            rule.draw(value("float32"), 1),
            InputRule(4, 2, frozenset()).draw(value("float32")),
        ):
            assert not (rule.draw(value("float32")) == other).all()

    @pytest.mark.parametrize(
        ("dtype", "low", "high"),
        [
            ("float32", -FLOAT_RANGE, FLOAT_RANGE),
            ("bfloat16", -FLOAT_RANGE, FLOAT_RANGE),
            ("int32", 0, 6),
            ("int8", 0, 6),
            ("uint8", 0, 6),
            ("bool", 0, 1),
            ("uint32", 0, 2**32),
        ],
    )
    def test_ranges(self, dtype: str, low: float, high: float):
        array = InputRule(0, 7, frozenset()).draw(value(dtype, (500,)))
        assert array.dtype == jax.numpy.dtype(dtype)
        assert array.astype(float).min() >= low * 1.01  # bfloat16 has three digits
        assert array.astype(float).max() <= high * 1.01
        assert array.astype(float).max() > high * 0.9
        assert array.astype(float).min() <= low * 0.9 + high * 0.1

    def test_complex_values_have_both_parts(self):
        array = InputRule(0, 7, frozenset()).draw(value("complex64"))
        assert np.ptp(array.real) > 0
        assert np.ptp(array.imag) > 0

    def test_an_int_range_past_the_type_is_cut(self):
        assert InputRule(0, 1000, frozenset()).draw(value("int8", (500,))).max() > 100

    def test_arguments_under_a_root_are_not_negative(self):
        text = """func.func public @main(%p: tensor<8xf32>, %m: tensor<8xf32>, %v: tensor<8xf32>, %q: tensor<f32>)\
 -> tensor<8xf32> {
  %c = stablehlo.constant dense<0.9> : tensor<8xf32>
  %g = stablehlo.tanh %p : tensor<8xf32>
  %g2 = stablehlo.multiply %g, %g : tensor<8xf32>
  %mm = stablehlo.multiply %m, %m : tensor<8xf32>
  %0 = stablehlo.multiply %v, %c : tensor<8xf32>
  %1 = stablehlo.add %0, %g2 : tensor<8xf32>
  %2 = stablehlo.add %1, %mm : tensor<8xf32>
  %b = stablehlo.broadcast_in_dim %q, dims = [] : (tensor<f32>) -> tensor<8xf32>
  %3 = stablehlo.divide %2, %b : tensor<8xf32>
  %4 = stablehlo.sqrt %3 : tensor<8xf32>
  return %4 : tensor<8xf32>
}"""
        assert nonnegative_arguments(parse(text)) == {2, 3}
        p, m, v, q = drawn(text)
        assert p.min() < 0
        assert m.min() < 0
        assert v.min() >= 0
        assert q >= 0
        assert not np.isnan(results(compiled(text, 1), [p, m, v, q])[0][0]).any()

    def test_a_file_names_arguments_by_index_or_name(self, tmp_path: Path):
        np.savez(tmp_path / "in.npz", **{"1": np.int32(7), "batch": np.ones((16, 4), np.float32)})
        found = read_inputs(tmp_path / "in.npz", read_signature(parse(TRAIN)))
        assert sorted(found) == [1, 2]
        assert found[1] == 7

    def test_a_file_may_hold_bfloat16(self, tmp_path: Path):
        text = "func.func public @main(%a: tensor<4xbf16>) { return }"
        array = np.arange(4).astype(jax.numpy.bfloat16)
        np.savez(tmp_path / "in.npz", **{"0": array})
        (got,) = read_inputs(tmp_path / "in.npz", read_signature(parse(text))).values()
        assert got.dtype == array.dtype
        assert (got == array).all()

    @pytest.mark.parametrize(
        ("arrays", "what"),
        [
            ({"3": np.int32(7)}, "no argument .* '3'"),
            ({"nobody": np.int32(7)}, "no argument .* 'nobody'"),
            (
                {"batch": np.ones((16, 5), np.float32)},
                r"argument 2 \(batch\): got float32\[16, 5\], expected float32\[16, 4\]",
            ),
            ({"steps": np.int64(1)}, "got int64"),
        ],
    )
    def test_a_file_that_does_not_match(self, tmp_path: Path, arrays: dict[str, Host], what: str):
        np.savez(tmp_path / "in.npz", **arrays)
        with raises("RHI-RUN-002", what):
            read_inputs(tmp_path / "in.npz", read_signature(parse(TRAIN)))

    def test_a_name_of_several_arguments(self, tmp_path: Path):
        np.savez(tmp_path / "in.npz", w=np.float32(1))
        text = 'func.func public @main(%a: tensor<f32> loc("w"), %b: tensor<f32> loc("w")) { return }'
        with raises("RHI-RUN-002", "several arguments"):
            read_inputs(tmp_path / "in.npz", read_signature(parse(text)))

    @pytest.mark.parametrize("content", [None, b"no zip", b"PK\x03\x04cut off"])
    def test_a_file_that_is_none(self, tmp_path: Path, content: bytes | None):
        path = tmp_path / "in.npz"
        if content is not None:
            path.write_bytes(content)
        with raises("RHI-CLI-002"):
            read_inputs(path, read_signature(parse(TRAIN)))


class TestSteps:
    @pytest.mark.parametrize(("text", "num_devices"), [(TRAIN, 1), (SPLIT_TRAIN, 8)])
    def test_results_take_the_place_of_the_arguments_they_alias(self, text: str, num_devices: int):
        values: list[Host] = [np.zeros((16, 4), np.float32), np.int32(5).reshape(()), np.full((16, 4), 0.5, np.float32)]
        found = results(compiled(text, num_devices), values, 3)
        assert [step[0][3, 1] for step in found] == [0.5, 1.0, 1.5]
        assert [int(step[1]) for step in found] == [6, 7, 8]
        assert [float(step[2]) for step in found] == [32, 64, 96]

    def test_fresh_batches_change_what_is_neither_given_nor_fed_back(self):
        signature = read_signature(parse(TRAIN))
        rule = InputRule(0, 2, frozenset())
        assert list(fresh_inputs(signature, rule, {})(1)) == [2]
        assert list(fresh_inputs(signature, rule, {2: np.zeros((16, 4), np.float32)})(1)) == []
        values = draw_inputs(signature, rule, {0: np.zeros((16, 4), np.float32)})
        first, second = run_steps(compiled(TRAIN, 1), values, 2, fresh_inputs(signature, rule, {}))
        expected = values[2] + rule.draw(signature.arguments[2], 1)
        np.testing.assert_allclose(np.asarray(second.results[0]), expected, rtol=1e-6)
        assert (first.number, second.number) == (0, 1)

    def test_an_argument_that_the_program_consumes_is_put_again(self):
        text = "func.func public @main(%a: tensor<4xf32> {jax.buffer_donor = true}) -> tensor<4xf32> {\n"
        text += "%0 = stablehlo.add %a, %a : tensor<4xf32>\n return %0 : tensor<4xf32> }"
        assert [step[0].tolist() for step in results(compiled(text, 1), [np.ones(4, np.float32)], 2)] == [[2] * 4] * 2

    def test_a_result_laid_out_otherwise_is_laid_out_as_the_argument(self):
        split = MESH + TRAIN.replace("%b: tensor<16x4xf32>", f"%b: tensor<16x4xf32> {ROWS}")
        assert [
            float(step[2]) for step in results(compiled(split), [*drawn(TRAIN)[:2], np.ones((16, 4), np.float32)], 3)
        ] == pytest.approx(
            [
                float(step[2])
                for step in results(compiled(TRAIN, 1), [*drawn(TRAIN)[:2], np.ones((16, 4), np.float32)], 3)
            ]
        )

    def test_losses_are_the_float_scalars_that_are_not_fed_back(self):
        signature = read_signature(parse(TRAIN))
        assert signature.losses == (2,)
        assert signature.results[2].name == "loss"
        assert [item.name for item in signature.arguments] == ["w", "steps", "batch"]

    def test_the_first_time_is_left_out(self):
        assert typical_time_s([9.0, 1.0, 2.0, 3.0]) == 2.0
        assert typical_time_s([9.0]) == 9.0


class TestCompare:
    def test_the_error_is_relative_to_the_largest_value(self):
        expected = np.array([0.0, 100.0], np.float32)
        found = difference(value("float32", (2,)), np.array([0.005, 100.0], np.float32), expected)
        assert found.max_abs == pytest.approx(0.005)
        assert found.max_rel == pytest.approx(5e-5)
        assert found.passes
        assert not difference(value("float32", (2,)), np.array([0.05, 100.0], np.float32), expected).passes

    @pytest.mark.parametrize(
        ("got", "expected", "passes"),
        [
            ([np.nan, 1.0], [np.nan, 1.0], True),
            ([np.inf, 1.0], [np.inf, 1.0], True),
            ([np.nan, 1.0], [0.0, 1.0], False),
            ([0.0, 1.0], [np.nan, 1.0], False),
            ([np.inf, 1.0], [-np.inf, 1.0], False),
            ([np.inf, 1.0], [1.0, 1.0], False),
            ([1e-14, 0.0], [0.0, 0.0], True),
            ([1e-3, 0.0], [0.0, 0.0], False),
        ],
    )
    def test_special_values(self, got: list[float], expected: list[float], passes: bool):
        found = difference(value("float32", (2,)), np.array(got, np.float32), np.array(expected, np.float32))
        assert found.passes is passes

    @pytest.mark.parametrize(
        ("dtype", "apart"), [("float64", 1e-8), ("float32", 1e-3), ("float16", 0.02), ("bfloat16", 0.06)]
    )
    def test_each_dtype_has_its_tolerance(self, dtype: str, apart: float):
        one, near, far = (np.array([x]).astype(jax.numpy.dtype(dtype)) for x in (1.0, 1.0 + apart / 200, 1.0 + apart))
        assert difference(value(dtype, (1,)), near, one).passes
        assert not difference(value(dtype, (1,)), far, one).passes
        assert difference(value(dtype, (1,)), far, one, tolerance=0.1).passes

    @pytest.mark.parametrize(
        ("dtype", "other"), [("int32", 2), ("bool", 0), ("uint32", 2**32 - 1), ("int64", -(2**63))]
    )
    def test_integers_and_booleans_must_be_equal(self, dtype: str, other: int):
        one, two = np.array([1]).astype(dtype), np.array([other]).astype(dtype)
        assert difference(value(dtype, (1,)), one, one).passes
        assert not difference(value(dtype, (1,)), two, one, tolerance=0.5).passes

    def test_an_empty_result_is_equal(self):
        assert difference(value("float32", (0,)), np.zeros(0, np.float32), np.zeros(0, np.float32)).passes

    def test_the_worst_is_named(self):
        signature = Signature((), (value("float32", (1,)), value("float32", (1,), 1), value("float32", (1,), 2)), {})
        one = np.ones(1, np.float32)
        found = differences(signature, [one * 1.1, one * 1.5, one], [one, one, one])
        assert worst(found) is found[1]
        with raises("RHI-RUN-003", r"step 4, result 1 \(v\), float32\[1\]: relative error 0.5"):
            check(found, 4)
        check(found[2:], 4)
        assert worst(()) is None

    @pytest.mark.parametrize(
        ("other", "what"),
        [
            (TRAIN.replace("16x4", "16x8"), r"argument 0 \(w\)"),
            (TRAIN.replace("{tf.aliasing_output = 1 : i32}", ""), "feed different results back"),
            (PLAIN_CHAIN, "argument 0"),
            (
                TRAIN.replace(
                    ", %2 : tensor<16x4xf32>, tensor<i32>, tensor<f32>",
                    ", %1 : tensor<16x4xf32>, tensor<i32>, tensor<i32>",
                ).replace(", tensor<f32> {", ", tensor<i32> {"),
                "result 2",
            ),
            ("func.func public @main() { return }", "the module has 3 arguments, the one to compare with has 0"),
        ],
    )
    def test_programs_of_other_signatures_are_not_compared(self, other: str, what: str):
        with raises("RHI-RUN-002", what):
            check_same_signature(read_signature(parse(TRAIN)), read_signature(parse(other)))


def shardy_localized(module: ir.Module) -> ir.Module:
    copy = ir.Module.parse(str(module), module.context)
    run_pipeline(
        copy,
        "func.func(sdy-insert-explicit-reshards{enable-full-version=true},sdy-reshard-to-collectives),canonicalize,"
        "sdy-convert-global-to-local",
    )
    return copy


# Rows split, the sum over columns needs no collective; XLA is told nothing that would make it move more.
LOCAL = (
    MESH
    + f"""func.func public @main(%a: tensor<16x4xf32> {ROWS}) -> (tensor<16x4xf32> {ROWS}) {{
  %0 = stablehlo.iota dim = 0 {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}, {{}}]>]>}} : tensor<16x4xf32>
  %1 = stablehlo.add %a, %0 {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}, {{}}]>]>}} : tensor<16x4xf32>
  return %1 : tensor<16x4xf32>
}}
"""
)

# The gradient of a strided, dilated convolution in three groups, by its filter.
GROUPED = """
sdy.mesh @mesh = <["x"=2, "y"=3]>
func.func @main(%a: tensor<8x12x21xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>},
                %b: tensor<8x24x31xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}, {}]>})
    -> (tensor<24x4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {"x"}, {}]>}) {
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [f, b, 0]x[i, o, 0]->[f, b, 0],
    window = {stride = [2], pad = [[3, 1]], lhs_dilate = [3], rhs_dilate = [2]}
    {batch_group_count = 3 : i64, feature_group_count = 1 : i64,
     sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"y"}, {"x"}, {}]>]>}
    : (tensor<8x12x21xf32>, tensor<8x24x31xf32>) -> tensor<24x4x3xf32>
  return %0 : tensor<24x4x3xf32>
}
"""


class TestTool:
    """`rhino-run` from its command line to its exit code."""

    def run(self, *argv: str, stdin: str = "") -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        code = tool.run(argv, io.BytesIO(stdin.encode()), out, err)
        return code, out.getvalue(), err.getvalue()

    def file(self, folder: Path, name: str, text: str) -> str:
        (folder / name).write_text(text)
        return str(folder / name)

    def test_a_run_reports_losses_and_times(self):
        code, out, err = self.run("--form=annotated", "--steps=3", stdin=SPLIT_TRAIN)
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert lines[0] == "form: annotated, devices: 8"
        assert [line.split(":")[0] for line in lines if line.startswith("step ")] == ["step 0", "step 1", "step 2"]
        assert all("loss = " in line for line in lines if line.startswith("step "))
        assert lines[-1].startswith("time per step: ")

    def test_the_answer_is_compared_with_one_device(self, tmp_path: Path):
        original = self.file(tmp_path, "plain.mlir", TRAIN)
        code, out, err = self.run(
            "-", f"--compare={original}", "--form=annotated", "--steps=2", "--fresh-batches", stdin=SPLIT_TRAIN
        )
        assert (code, err) == (0, "")
        assert out.splitlines()[-1] == "the results agree with the one-device program"
        assert re.search(r"all_reduce +1 +4 B", out)

    def test_a_wrong_answer_is_named(self, tmp_path: Path):
        original = self.file(
            tmp_path, "plain.mlir", TRAIN.replace("%0 = stablehlo.add %w", "%0 = stablehlo.subtract %w")
        )
        code, out, err = self.run("-", f"--compare={original}", "--form=annotated", stdin=SPLIT_TRAIN)
        assert code == 1
        assert "[RHI-RUN-003] step 0, result" in err
        assert "agree" not in out

    def test_the_original_may_carry_shardings(self, tmp_path: Path):
        split = self.file(tmp_path, "split.mlir", SPLIT_CHAIN)
        assert self.run(split, f"--compare={split}", "--form=annotated")[0] == 0

    def test_a_tolerance_can_be_given(self, tmp_path: Path):
        near = TRAIN.replace("stablehlo.add %w, %b", "stablehlo.add %w, %d").replace(
            "  %0 =",
            "  %k = stablehlo.constant dense<1.01> : tensor<16x4xf32>\n"
            "  %d = stablehlo.multiply %b, %k : tensor<16x4xf32>\n  %0 =",
            1,
        )
        original = self.file(tmp_path, "near.mlir", near)
        assert self.run(f"--compare={original}", stdin=TRAIN)[0] == 1
        assert self.run(f"--compare={original}", "--tolerance=0.5", stdin=TRAIN)[0] == 0

    def test_a_file_gives_inputs(self, tmp_path: Path):
        np.savez(tmp_path / "in.npz", w=np.ones((16, 4), np.float32), batch=np.ones((16, 4), np.float32))
        code, out, _ = self.run(f"--inputs={tmp_path / 'in.npz'}", stdin=TRAIN)
        assert code == 0
        assert "loss = 128" in out

    @pytest.mark.parametrize("form", ["localized", "auto"])
    def test_the_localized_form(self, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(tool, "_localize", shardy_localized)
        original = self.file(tmp_path, "plain.mlir", LOCAL)
        code, out, err = self.run(f"--form={form}", f"--compare={original}", stdin=LOCAL)
        assert (code, err) == (0, "")
        assert out.startswith("form: localized")
        assert ("as XLA would have it" in out) == (form == "auto")
        assert "as planned" in out
        assert "as compiled" in out

    def test_auto_says_what_xla_would_send_for_the_annotated_form(self, monkeypatch: pytest.MonkeyPatch):
        def without_collectives(module: ir.Module) -> ir.Module:
            text = LOCAL.replace("tensor<16x4xf32>", "tensor<2x4xf32>")
            return ir.Module.parse(text, module.context)

        monkeypatch.setattr(tool, "_localize", without_collectives)
        gathers = LOCAL.replace(
            f"-> (tensor<16x4xf32> {ROWS})", "-> (tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>})"
        )
        code, out, err = self.run(stdin=gathers)
        assert (code, err) == (0, "")
        assert out.startswith("form: localized")
        assert "as XLA would have it" in out
        assert re.search(r"all_gather +1 +256 B", out)

    def test_auto_outlives_xlas_partitioner(self):
        """XLA's partitioner ends its process on this convolution (jaxlib 0.10.2); the localized form still runs."""
        code, out, err = self.run(stdin=GROUPED)
        assert (code, err) == (0, "")
        assert out.startswith("form: localized, devices: 6\n")
        assert (
            "note: XLA does not take the annotated form: XLA does not compile the module for 6 devices: "
            "it ends the process" in out
        )
        assert "Check failed" in out
        assert out.splitlines()[-1].startswith("time per step: ")

    def test_the_annotated_form_is_refused_where_xla_would_end_the_process(self):
        code, out, err = self.run("--form=annotated", stdin=GROUPED)
        assert (code, out) == (1, "")
        assert "[RHI-RUN-001] XLA does not compile the module for 6 devices: it ends the process (Check failed" in err

    def test_auto_says_why_it_did_not_localize(self, monkeypatch: pytest.MonkeyPatch):
        def refuse(module: ir.Module) -> ir.Module:
            raise RhinoError("RHI-LOCAL-001", "a sort along a split dim")

        monkeypatch.setattr(tool, "_localize", refuse)
        code, out, _ = self.run(stdin=LOCAL)
        assert code == 0
        assert "note: not localized: a sort along a split dim" in out

    def test_a_module_without_shardings_runs_as_it_is(self):
        code, out, _ = self.run(stdin=PLAIN_CHAIN)
        assert code == 0
        assert out.startswith("form: annotated, devices: 1\nnote: the module has no sharding\n")

    def test_help_says_how_inputs_are_drawn(self):
        code, out, err = self.run("--help")
        assert (code, err) == (0, "")
        assert "--int-range" in out
        assert "Inputs are drawn from the seed" in out

    @pytest.mark.parametrize(
        ("argv", "stdin", "id"),
        [
            (["--nothing"], "", "RHI-CLI-001"),
            (["--steps=0"], "", "RHI-CLI-001"),
            (["--steps=x"], "", "RHI-CLI-001"),
            (["--seed=-1"], "", "RHI-CLI-001"),
            (["--tolerance=nan"], "", "RHI-CLI-001"),
            (["--form=other"], "", "RHI-CLI-001"),
            (["--processes=2"], "", "RHI-CLI-001"),
            (["--trace=t.json"], "", "RHI-CLI-001"),
            (["no-such-file.mlir"], "", "RHI-CLI-002"),
            (["--compare=no-such-file.mlir"], PLAIN_CHAIN, "RHI-CLI-002"),
            (["--inputs=no-such-file.npz"], PLAIN_CHAIN, "RHI-CLI-002"),
            ([], "neither text nor code", "RHI-READ-001"),
            ([], "module { stablehlo.nothing }", "RHI-READ-002"),
            ([], "module {}", "RHI-READ-005"),
            (["--form=localized"], PLAIN_CHAIN, "RHI-LOCAL-001"),
            (["--devices=2"], SPLIT_CHAIN, "RHI-RUN-004"),
            (["--form=annotated"], SPLIT_CHAIN.replace('"x"=8', '"x"=16'), "RHI-RUN-004"),
        ],
    )
    def test_errors(self, argv: list[str], stdin: str, id: str):
        code, out, err = self.run(*argv, stdin=stdin)
        assert code == IDS[id][0]
        assert f"error: [{id}]" in err
        assert out == ""

    def test_a_module_of_another_signature_is_not_compared(self, tmp_path: Path):
        code, _, err = self.run(f"--compare={self.file(tmp_path, 'train.mlir', TRAIN)}", stdin=PLAIN_CHAIN)
        assert code == 1
        assert "[RHI-RUN-002]" in err

    def test_our_own_bug_has_its_own_code(self, monkeypatch: pytest.MonkeyPatch):
        def broken(options: object, stdin: object, stdout: object) -> None:
            raise KeyError("lost")

        monkeypatch.setattr(tool, "_run", broken)
        code, _, err = self.run("in.mlir", "--steps=2")
        assert code == 70
        assert "to reproduce it: rhino-run in.mlir --steps=2" in err
        assert "KeyError: 'lost'" in err

    def test_the_command_makes_its_own_devices(self, tmp_path: Path):
        command = [str(Path(sysconfig.get_path("scripts")) / "rhino-run"), "--form=annotated", "-"]
        done = subprocess.run(
            command, input=SPLIT_CHAIN, env={}, capture_output=True, text=True, check=False, timeout=120
        )
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, "form: annotated, devices: 8"), done.stderr


def test_a_result_that_is_nan_on_one_device_too_is_said_to_prove_little():
    value = Value(0, "loss", (2,), np.dtype(np.float32), (2,), (2,))
    nan, number = np.array([np.nan, 1.0]), np.array([1.0, 2.0])
    found = [difference(value, nan, nan), difference(value, number, number)]
    assert difference_text(found) == "all results equal (1 of 2 hold NaN on one device too, which proves little)"
    assert difference_text(found[1:]) == "all results equal"
    assert difference(value, number, nan).badness == np.inf
