"""Modules are read in every format, refused if they are none, and normalized without changing what they compute."""

import io

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from snippets import context, kept

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir, require_tested_version, serialize_portable_artifact, stablehlo
from rhino.ir.mlir.locations import name_of, place_of
from rhino.ir.mlir.reader import entry_function, read_module, walk
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.steps import run_steps

ADD = """func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %a, %a : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


def read(data, name="m.mlir"):
    return kept(read_module(data if isinstance(data, bytes) else data.encode(), name, context()))


def refused(data):
    with pytest.raises(RhinoError) as caught:
        read(data)
    return caught.value


# Formats


def bytecode(text):
    stream = io.BytesIO()
    read(text).operation.write_bytecode(stream)
    return stream.getvalue()


def portable(text):
    return serialize_portable_artifact(read(text), stablehlo.get_current_version())


def exported(function, *inputs):
    return bytes(jax.export.export(jax.jit(function), platforms=("cpu",))(*inputs).serialize())


@pytest.mark.parametrize("encode", [str.encode, bytecode, portable], ids=["text", "bytecode", "portable"])
def test_every_format_of_a_module_reads_the_same(encode):
    assert str(read(encode(ADD))) == str(read(ADD))


def test_a_jax_export_blob_reads_as_its_module():
    blob = exported(lambda x: x + x, jax.ShapeDtypeStruct((2,), jnp.float32))
    assert not blob.startswith(b"ML\xefR")
    module = read(blob)
    assert [op.name for op in walk(entry_function(module).operation)] == ["func.func", "stablehlo.add", "func.return"]


def test_custom_float_types_and_shardings_survive_bytecode():
    text = """sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: tensor<2xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})\
 -> tensor<2xbf16> { return %a : tensor<2xbf16> }"""
    assert str(read(bytecode(text))) == str(read(text))


# Errors


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"hello, world", "without a module"),
        (b"\x80\x81\x82", "binary"),
        (b"\x00\x01 ML\xefR and then nothing", "no jax.export blob"),
    ],
)
def test_what_is_no_module_is_refused(data, why):
    error = refused(data)
    assert error.id == "RHI-READ-001"
    assert why in error.what
    assert error.place == Place("m.mlir")
    assert "portable artifact" in error.fix


def test_a_syntax_error_is_reported_where_it_is():
    error = refused(ADD.replace("stablehlo.add %a, %a", "stablehlo.add %a, %b"))
    assert (error.id, error.place) == ("RHI-READ-002", Place("m.mlir", 2, 26))
    assert "undeclared" in error.what


def test_what_does_not_verify_is_reported_where_it_is():
    error = refused(
        ADD.replace("return %0", "return %a, %0").replace(": tensor<2xf32>\n}", ": tensor<2xf32>, tensor<2xf32>\n}")
    )
    assert (error.id, error.place) == ("RHI-READ-002", Place("m.mlir", 3, 3))


@pytest.mark.parametrize("encode", [bytecode, portable], ids=["bytecode", "portable"])
def test_a_cut_file_is_refused(encode):
    data = encode(ADD)
    error = refused(data[: len(data) // 2])
    assert (error.id, error.place.file) == ("RHI-READ-002", "m.mlir")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("%0 = mhlo.add %a, %a : tensor<2xf32>", 2),
        ("%0 = arith.addf %a, %a : tensor<2xf32>", 2),
    ],
)
def test_another_dialect_is_refused_by_name(body, line):
    error = refused(ADD.replace("%0 = stablehlo.add %a, %a : tensor<2xf32>", body))
    assert (error.id, error.place.line) == ("RHI-READ-003", line)
    assert body.split()[2].split(".")[0] in error.what
    assert "stablehlo" in error.fix


def test_a_dialect_that_is_known_but_not_read_is_refused():
    fragment = '  mpmd.fragment<mesh="m", origin=[]> () () { mpmd.return } : () -> ()'
    text = f'sdy.mesh @m = <["x"=2]>\nfunc.func @main() {{\n{fragment}\n  return\n}}'
    error = refused(text)
    assert (error.id, error.place.line) == ("RHI-READ-003", 3)


@pytest.mark.parametrize(
    "text",
    [
        "func.func @main(%a: tensor<?xf32>) { return }",
        "func.func @main(%a: tensor<2xf32>, %n: tensor<1xi32>) {\n"
        "%0 = stablehlo.dynamic_reshape %a, %n : (tensor<2xf32>, tensor<1xi32>)"
        " -> tensor<?xf32>\nreturn }",
    ],
    ids=["argument", "result"],
)
def test_dynamic_shapes_are_refused(text):
    error = refused(text)
    assert error.id == "RHI-READ-004"
    assert "tensor<?xf32>" in error.what
    assert error.place.line == (2 if "dynamic_reshape" in text else 1)


def test_positions_name_the_file_that_was_read():
    module = read_module(ADD.encode(), "dir/step.mlir", context())
    (add,) = [op for op in walk(module.operation) if op.name == "stablehlo.add"]
    assert place_of(add.location, "dir/step.mlir") == Place("dir/step.mlir", 2, 8)


# The entry function


def functions(*heads):
    return "\n".join(f"func.func {head}() {{ return }}" for head in heads)


@pytest.mark.parametrize(
    ("heads", "name"),
    [
        (("@main", "@other"), "main"),
        (("@step", "private @helper"), "step"),
        (("public @main", "private @helper", "@other"), "main"),
    ],
)
def test_the_entry_is_main_or_the_only_public_function(heads, name):
    assert entry_function(read(functions(*heads))).name.value == name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (functions("@a", "@b"), "@a, @b"),
        (functions("private @a"), "none"),
        ("func.func private @main(tensor<f32>) -> tensor<f32>", "none"),
        ("module {}", "none"),
    ],
)
def test_without_one_entry_there_is_no_program(text, names):
    with pytest.raises(RhinoError) as caught:
        entry_function(read(text), "m.mlir")
    assert (caught.value.id, caught.value.place) == ("RHI-READ-005", Place("m.mlir"))
    assert caught.value.what.endswith(f"its public functions: {names}")


def test_a_step_in_stages_is_told_apart_from_a_module_without_an_entry():
    with pytest.raises(RhinoError) as caught:
        entry_function(
            read("module attributes {rhino.parts = []} { func.func private @forward_0() { return } }"), "m.mlir"
        )
    assert (caught.value.id, caught.value.place) == ("RHI-READ-005", Place("m.mlir"))
    assert "a step in stages" in caught.value.what
    assert "--plan=FOLDER" in caught.value.fix


# Normal form


def normalized(text):
    module = read(text)
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks("m.mlir"))
        assert module.operation.verify()
    return module


def names_in(module):
    return [op.name for op in walk(module.operation)]


def run(module, *inputs):
    (step,) = run_steps(compile_module(module, jax.devices()[:1]), inputs, 1)
    return [np.asarray(result) for result in step.results]


def check_same(text, *inputs):
    """Normalizes, and holds what is left to what the module computed before."""
    module = normalized(text)
    assert not {"func.call", "stablehlo.composite"} & set(names_in(module))
    assert names_in(module).count("func.func") == 1
    for ours, theirs in zip(run(module, *inputs), run(read(text), *inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    return module


VECTOR = np.array([0.5, -1.25], np.float32)

CALLS = """
func.func private @square(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.multiply %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @both(%x: tensor<2xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = call @square(%y) : (tensor<2xf32>) -> tensor<2xf32>
  return %x, %0 : tensor<2xf32>, tensor<2xf32>
}
func.func @main(%a: tensor<2xf32>, %n: tensor<i32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0:2 = call @both(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %1:2 = call @both(%0#1, %0#0) : (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = stablehlo.subtract %1#0, %1#1 : tensor<2xf32>
  return %2, %1#1 : tensor<2xf32>, tensor<2xf32>
}
"""


def test_calls_in_calls_are_inlined_with_their_operands_in_order():
    text = CALLS.replace("call @both(%0#1, %0#0)", "call @both(%0#1, %0#1)")
    module = check_same(text, VECTOR, np.int32(3))
    assert names_in(module).count("stablehlo.multiply") == 2
    np.testing.assert_array_equal(run(module, VECTOR, np.int32(3))[0], VECTOR**2 - VECTOR**4)


def test_equal_work_of_two_calls_is_done_once():
    assert names_in(check_same(CALLS, VECTOR, np.int32(3))).count("stablehlo.multiply") == 1


LOOP = """
func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func private @quadruple(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = call @twice(%x) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = call @twice(%0) : (tensor<2xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
func.func private @more(%i: tensor<i32>, %n: tensor<i32>) -> tensor<i1> {
  %0 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
  return %0 : tensor<i1>
}
func.func private @run(%a: tensor<2xf32>, %n: tensor<i32>) -> tensor<2xf32> {
  %c = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %w:2 = stablehlo.while(%i = %c, %x = %a) : tensor<i32>, tensor<2xf32>
    cond {
      %p = func.call @more(%i, %n) : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %y = func.call @quadruple(%x) : (tensor<2xf32>) -> tensor<2xf32>
      %j = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %j, %y : tensor<i32>, tensor<2xf32>
    }
  return %w#1 : tensor<2xf32>
}
func.func @main(%a: tensor<2xf32>, %n: tensor<i32>) -> tensor<2xf32> {
  %0 = call @run(%a, %n) : (tensor<2xf32>, tensor<i32>) -> tensor<2xf32>
  %1 = call @run(%0, %n) : (tensor<2xf32>, tensor<i32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
"""


def test_calls_in_both_regions_of_a_loop_are_inlined():
    module = check_same(LOOP, VECTOR, np.int32(2))
    assert names_in(module).count("stablehlo.while") == 2
    np.testing.assert_array_equal(run(module, VECTOR, np.int32(2))[0], VECTOR * 4**4)


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        (
            "func.func @main(%a: tensor<f32>) -> tensor<f32> {\n  %0 = call @main(%a) : (tensor<f32>) -> tensor<f32>\n"
            "  return %0 : tensor<f32>\n}",
            "@main -> @main",
        ),
        (
            "func.func private @f(%a: tensor<f32>) -> tensor<f32> {\n"
            "  %0 = call @g(%a) : (tensor<f32>) -> tensor<f32>\n"
            "  return %0 : tensor<f32>\n}\n"
            "func.func private @g(%a: tensor<f32>) -> tensor<f32> {\n"
            "  %0 = call @f(%a) : (tensor<f32>) -> tensor<f32>\n"
            "  return %0 : tensor<f32>\n}\n"
            "func.func @main(%a: tensor<f32>) -> tensor<f32> {\n  %0 = call @f(%a) : (tensor<f32>) -> tensor<f32>\n"
            "  return %0 : tensor<f32>\n}",
            "@main -> @f -> @g -> @f",
        ),
    ],
    ids=["itself", "each other"],
)
def test_recursion_is_an_error_at_the_call_that_closes_it(text, chain):
    with pytest.raises(RhinoError) as caught:
        normalized(text)
    assert (caught.value.id, caught.value.what) == ("RHI-READ-006", f"calls are recursive: {chain}")
    assert caught.value.place == Place("m.mlir", 2 if chain.count(">") == 1 else 6, 8)


def chain_of_calls(length: int, calls: int) -> str:
    """Returns `length` functions, each of which calls the next one `calls` times; the last one negates."""
    kind = "tensor<f32>"
    lines = [
        f"func.func @main(%v0: {kind}) -> {kind} {{",
        f"  %v1 = call @f0(%v0) : ({kind}) -> {kind}",
        f"  return %v1 : {kind}",
        "}",
    ]
    for number in range(length):
        inner = (
            f"call @f{number + 1}(%v{{}}) : ({kind}) -> {kind}"
            if number < length - 1
            else f"stablehlo.negate %v{{}} : {kind}"
        )
        lines.append(f"func.func private @f{number}(%v0: {kind}) -> {kind} {{")
        lines += [f"  %v{count + 1} = {inner.format(count)}" for count in range(calls)]
        lines += [f"  return %v{calls} : {kind}", "}"]
    return "\n".join(lines)


def test_calls_nested_deeper_than_python_recurses_are_inlined():
    module = normalized(chain_of_calls(1500, 1))
    assert names_in(module) == ["builtin.module", "func.func", "stablehlo.negate", "func.return"]


def test_what_a_loop_reads_may_be_made_of_more_constants_than_python_recurses():
    """The body takes up what is made of constants alone, which here is a chain of 1,500 ops."""
    chain = "\n".join(f"  %c{n + 1} = stablehlo.negate %c{n} : tensor<4xf32>" for n in range(1500))
    made = f"  %c0 = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>\n{chain}\n"
    text = LOOP_OVER_A_CONSTANT.replace("CHAIN", made).replace("%last", "%c1500")
    module = normalized(text)
    loop = next(op for op in walk(module.operation) if op.name == "stablehlo.while")
    assert [op.name for op in walk(loop)].count("stablehlo.negate") == 1500


LOOP_OVER_A_CONSTANT = """func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
CHAIN  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %end:3 = stablehlo.while(%i = %zero, %v = %x, %k = %last) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.multiply %v, %k : tensor<4xf32>
    stablehlo.return %j, %u, %k : tensor<i32>, tensor<4xf32>, tensor<4xf32>
  }
  return %end#1 : tensor<4xf32>
}"""


def test_calls_that_expand_to_more_ops_than_the_limit_are_refused_before_any_is_inlined():
    with pytest.raises(RhinoError) as caught:
        normalized(chain_of_calls(40, 2))
    # @f39 negates twice; @f21 has 2 ** 19 ops, and @f20 the 2 ** 20 that are too many, at its second call: 4 lines, 5 a
    # function.
    assert caught.value.id == "RHI-READ-007"
    assert "@f20 has 1048576 ops" in caught.value.what
    assert caught.value.place == Place("m.mlir", 4 + 20 * 5 + 3, 9)


def test_chlo_is_legalized():
    text = ADD.replace("stablehlo.add %a, %a : tensor<2xf32>", "chlo.erf %a : tensor<2xf32> -> tensor<2xf32>")
    module = normalized(text)
    assert not [name for name in names_in(module) if name.startswith("chlo.")]
    np.testing.assert_allclose(run(module, VECTOR)[0], jax.scipy.special.erf(VECTOR), rtol=1e-6)


def test_a_composite_becomes_its_decomposition():
    text = """func.func private @impl(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = chlo.square %x : tensor<2xf32> -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }
    func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.composite "my.square" %a {decomposition = @impl} : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    module = normalized(text)
    assert not [name for name in names_in(module) if "composite" in name or name.startswith("chlo.")]
    np.testing.assert_array_equal(run(module, VECTOR)[0], VECTOR**2)


def test_dead_code_goes_and_what_is_returned_stays():
    text = (
        ADD.replace("return", "%1 = stablehlo.negate %a : tensor<2xf32>\n  return")
        + "func.func private @unused() { return }"
    )
    assert names_in(normalized(text)) == ["builtin.module", "func.func", "stablehlo.add", "func.return"]


def test_attributes_of_the_boundary_stay():
    text = ADD.replace("%a: tensor<2xf32>", "%a: tensor<2xf32> {tf.aliasing_output = 0 : i32}")
    assert "tf.aliasing_output = 0" in str(normalized(text))


def test_arguments_keep_their_names_and_inlined_ops_say_where_they_were_called():
    text = CALLS.replace("%a: tensor<2xf32>,", "%a: tensor<2xf32> loc(\"params['w']\"),")
    module = normalized(text)
    entry = entry_function(module)
    assert name_of(entry.arguments[0].location) == "params['w']"
    (multiply,) = [op for op in walk(entry.operation) if op.name == "stablehlo.multiply"]
    assert place_of(multiply.location, "m.mlir") == Place("m.mlir", 3, 8)
    positions = [f"{line}:{column}" for line, column in ((3, 8), (7, 8), (11, 10))]
    assert [str(multiply.location).count(position) for position in positions] == [1, 1, 1]


def test_a_model_of_jax_is_one_function_that_computes_the_same():
    """Calls to jitted helpers, a scan whose body calls one, CHLO from `erf` and `top_k`."""

    @jax.jit
    def layer(x, w):
        return jax.nn.gelu(x @ w, approximate=False)

    def model(x, ws):
        y, _ = jax.lax.scan(lambda carry, w: (layer(carry, w), None), x, ws)
        return jax.lax.top_k(layer(y, ws[0]), 2)[0], jax.nn.logsumexp(y)

    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (3, 8, 8))]
    text = str(jax.jit(model).lower(*inputs).as_text(debug_info=True))
    assert "func.call" in text or " call @" in text
    module = normalized(text)
    assert not [name for name in names_in(module) if name.startswith("chlo.") or name == "func.call"]
    for ours, theirs in zip(run(module, *inputs), jax.jit(model)(*inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# Locations and versions


@pytest.mark.parametrize(
    ("location", "place", "name"),
    [
        ('loc("f.py":3:7)', Place("f.py", 3, 7), ""),
        ("loc(\"params['w']\")", Place("m.mlir"), "params['w']"),
        ('loc("layer0/dot"("f.py":3:7))', Place("f.py", 3, 7), "layer0/dot"),
        ('loc(callsite("inner"("a.py":1:2) at "b.py":3:4))', Place("a.py", 1, 2), "inner"),
        ('loc(fused["a.py":1:2, "b.py":3:4])', Place("a.py", 1, 2), ""),
        ("loc(unknown)", Place("m.mlir"), ""),
        ('loc("-":4:5)', Place("m.mlir", 4, 5), ""),
    ],
)
def test_locations_give_a_place_and_a_name(location, place, name):
    with context():
        parsed = ir.Module.parse(f"module {{}} {location}").operation.location
    assert (place_of(parsed, "m.mlir"), name_of(parsed)) == (place, name)


@pytest.mark.parametrize("version", ["0.10.1", "0.11.0", "1.0"])
def test_untested_versions_are_refused(version):
    with pytest.raises(ImportError, match=version):
        require_tested_version(version)


@pytest.mark.parametrize("version", ["0.10.2", "0.10.3", "0.10.10"])
def test_tested_versions_are_taken(version):
    require_tested_version(version)
