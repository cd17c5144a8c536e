"""Scatters of several tensors, some of which are one value: compared with NumPy, for one device may be wrong, too."""

import re

import jax
import numpy as np
import pytest
from drawn_plans import drawable, one_device
from mlir_text import function, tensor

from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor import executable
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.scatters import separate_inputs

SHAPE, ROWS = (8, 4), (6, 4)
JOINS = {"add": np.add, "maximum": np.maximum, "multiply": np.multiply, "or": np.bitwise_or, "xor": np.bitwise_xor}
NUMBERS = (
    "#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], "
    "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
)


@pytest.fixture(autouse=True)
def as_users_compile(monkeypatch):
    """Compiles with the kernels that the flags of the other tests leave out: those alone take two inputs for one."""
    monkeypatch.setattr(executable, "OPTIONS", {**executable.OPTIONS, "xla_cpu_use_fusion_emitters": True})


def scatter(inputs, joins, elements):
    """A scatter of the values of these names, element by element joined with rows %u0, %u1, ... by these ops."""
    scalars, held, rows = ([tensor(shape, element) for element in elements] for shape in ((), SHAPE, ROWS))
    numbers = range(len(inputs))
    block = ", ".join(f"%{name}{n}: {scalars[n]}" for name in "ab" for n in numbers)
    body = "".join(f"%z{n} = stablehlo.{join} %a{n}, %b{n} : {scalars[n]}\n" for n, join in enumerate(joins))
    given, updates = (", ".join(f"%{name}{n}" for n in numbers) for name in "zu")
    return (
        f'%r:{len(inputs)} = "stablehlo.scatter"({", ".join(inputs)}, %i, {updates}) ({{ ^bb0({block}):\n{body}'
        f"stablehlo.return {given} : {', '.join(scalars)} }}) {{scatter_dimension_numbers = {NUMBERS}}} : "
        f"({', '.join([*held, tensor((6,), 'i32'), *rows])}) -> ({', '.join(held)})\n"
    )


def program(before, inputs, joins, elements, **more):
    """The program of a scatter alone, of arguments %x and `more`."""
    rows = {f"u{n}": tensor(ROWS, element) for n, element in enumerate(elements)}
    return function(
        before + scatter(inputs, joins, elements),
        {"x": tensor(SHAPE, elements[0]), **more, "i": tensor((6,), "i32"), **rows},
        {f"r#{n}": tensor(SHAPE, element) for n, element in enumerate(elements)},
    )


def scattered(held, indices, rows, join):
    made = np.array(held)
    for index, row in zip(indices, rows, strict=True):
        made[index] = JOINS[join](made[index], row)
    return made


def check(results, inputs, joins, *, over_zeros):
    x, indices, *rows = inputs
    for result, updates, join in zip(results, rows, joins, strict=True):
        wanted = scattered(np.zeros_like(x) if over_zeros else x, indices, updates, join)
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


FLOATS, TRUTHS = ("add", "maximum", "multiply", "add"), ("or", "xor", "or", "xor")
ZEROS = {"f32": "0.0", "i32": "0", "i1": "false"}


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("element", ["f32", "i32", "i1"])
@pytest.mark.parametrize("equal", ["read twice", "known to XLA", "zeros"])
def test_a_value_that_is_several_inputs_is_written_over_for_each(equal, element, count):
    held, flat, joins = tensor(SHAPE, element), tensor((32,), element), (TRUTHS if element == "i1" else FLOATS)[:count]
    before = f"%f = stablehlo.reshape %x : ({held}) -> {flat}\n%y = stablehlo.reshape %f : ({flat}) -> {held}\n"
    if equal == "zeros":
        before = "".join(f"%{name} = stablehlo.constant dense<{ZEROS[element]}> : {held}\n" for name in "yz")
    names = {"read twice": "xx", "known to XLA": "xy", "zeros": "yz"}[equal]
    inputs = [f"%{names[n % 2]}" for n in range(count)]
    one = one_device(program(before, inputs, joins, [element] * count))
    check(one.results, one.inputs, joins, over_zeros=equal == "zeros")


@pytest.mark.parametrize("mesh", ["2", "4", "2x2", "8"])
@pytest.mark.parametrize("mood", ["any", "split", "sums"])
@pytest.mark.parametrize("count", [2, 3])
def test_a_random_plan_gives_the_answer_of_one_device(count, mood, mesh):
    text = program(f"%y = stablehlo.negate %x : {tensor(SHAPE)}\n", ["%y"] * count, FLOATS[:count], ["f32"] * count)
    one, drawn = one_device(text), drawable(text, mesh)
    check(one.results, [-one.inputs[0], *one.inputs[1:]], FLOATS[:count], over_zeros=False)
    assert one.difference(drawn.plan(0, mood), drawn.module).passes


def test_a_carried_value_is_two_inputs_in_a_loop():
    """The smallest of a drawn program whose local program was wrong: normalization reads one value twice."""
    held, count, truth = tensor(SHAPE), tensor((), "i32"), tensor((), "i1")
    loop = f"""%zero = stablehlo.constant dense<0> : {count}
%three = stablehlo.constant dense<3> : {count}
%one = stablehlo.constant dense<1> : {count}
%w:2 = stablehlo.while(%n = %zero, %c = %x) : {count}, {held} cond {{
%p = stablehlo.compare LT, %n, %three : ({count}, {count}) -> {truth}
stablehlo.return %p : {truth}
}} do {{
{scatter(["%c", "%c"], FLOATS[:2], ["f32"] * 2)}%m = stablehlo.add %n, %one : {count}
%s = stablehlo.subtract %r#0, %r#1 : {held}
stablehlo.return %m, %s : {count}, {held}
}}"""
    arguments = {"x": held, "i": tensor((6,), "i32"), "u0": tensor(ROWS), "u1": tensor(ROWS)}
    text = function(loop, arguments, {"w#1": held})
    one = one_device(text)
    x, indices, *rows = one.inputs
    for _ in range(3):
        x = scattered(x, indices, rows[0], "add") - scattered(x, indices, rows[1], "maximum")
    np.testing.assert_allclose(one.results[0], x, rtol=1e-5)
    for seed in range(8):
        drawn = drawable(text, ("2", "4", "2x2", "8")[seed % 4])
        assert one.difference(drawn.plan(seed, ("any", "split")[seed // 4]), drawn.module).passes


TWICE = program("", ["%x", "%x"], FLOATS[:2], ["f32"] * 2)


def test_a_program_that_xla_partitions_is_written_over_for_each():
    split = '<@mesh, [{}, {"x"}]>'
    text = TWICE.replace("{scatter_", f"{{sdy.sharding = #sdy.sharding_per_value<[{split}, {split}]>, scatter_")
    text = text.replace(f"%x: {tensor(SHAPE)}", f"%x: {tensor(SHAPE)} {{sdy.sharding = #sdy.sharding{split}}}")
    inputs = one_device(TWICE).inputs
    module = read_module(f'sdy.mesh @mesh = <["x"=2]>\n{text}'.encode(), "global", make_context())
    compiled = compile_module(module, jax.devices()[:2])
    results = compiled.fetch(compiled.run([compiled.put(n, value) for n, value in enumerate(inputs)]))
    check(results, inputs, FLOATS[:2], over_zeros=False)


@pytest.mark.parametrize(
    ("elements", "is_changed"), [(["f32"], False), (["f32", "i32"], False), (["f32", "f32"], True)]
)
def test_inputs_of_types_of_their_own_are_left_alone(elements, is_changed):
    second = {"y": tensor(SHAPE, elements[-1])}
    text = program("", ["%x", "%y"][: len(elements)], FLOATS[: len(elements)], elements, **second)
    module = read_module(text.replace("%r:1", "%r").replace("%r#0\n", "%r\n").encode(), "scatters", make_context())
    assert (separate_inputs(module) is not module) == is_changed


def test_xla_takes_equal_inputs_for_one(monkeypatch):
    """Why runtime/executor/scatters.py is there. Where this fails, XLA keeps them apart, and it may go.

    The program is not run: it would read and write memory that is not its own.
    """
    monkeypatch.setattr(executable, "host_form", lambda module, _: module)
    compiled = compile_module(read_module(TWICE.encode(), "stock", make_context()), jax.devices()[:1])
    assert re.search(r" scatter\((%[\w.]+), \1, ", compiled.hlo_text())
