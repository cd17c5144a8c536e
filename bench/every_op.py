"""One small program for each op of the StableHLO and CHLO dialects, and what is known to become of it.

Sizes divide by four where a plan may split them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from mlir_text import function, tensor

UNSUPPORTED, DYNAMIC = "RHI-READ-003", "RHI-READ-004"
SHAPE = (8, 16)
F32, I32, I1, C64, U32 = (tensor(SHAPE, dtype) for dtype in ("f32", "i32", "i1", "complex<f32>", "ui32"))
ROW, COLUMN, SCALAR, INDEX, TOKEN = tensor((16,)), tensor((8,)), tensor(()), tensor((), "i32"), "!stablehlo.token"


@dataclass(frozen=True)
class Case:
    """A program around one op.

    `refused` is the id of the error that it gets. `not_run` says why its plans are not run: XLA's CPU cannot, or
    nothing could tell.
    """

    text: str
    refused: str = ""
    not_run: str = ""


def case(
    body: str,
    arguments: dict[str, str],
    results: dict[str, str],
    *,
    refused: str = "",
    not_run: str = "",
    after: str = "",
) -> Case:
    """A program of `body` on arguments and with results of these types; `after` stands after `@main`."""
    return Case(function(body, arguments, results) + after, refused, not_run)


def one(dialect: str, name: str, operands: list[str], result: str, attributes: str = "", **known: str) -> Case:
    """A program of one op with a result, in generic form, on arguments %a, %b, ..."""
    names = "abcdefgh"[: len(operands)]
    values = ", ".join(f"%{n}" for n in names)
    body = f'%0 = "{dialect}.{name}"({values}) {attributes} : ({", ".join(operands)}) -> {result}'
    return case(body, dict(zip(names, operands, strict=True)), {"0": result}, **known)


Programs: TypeAlias = dict[str, "Case | tuple[list[str], str] | tuple[list[str], str, str]"]
"""Programs by the op that they are around; of one op alone, its operands, its result and its attributes."""


def filled(dialect: str, programs: Programs, refused: str = "") -> dict[str, Case]:
    """Programs, with those of one op alone written out; behind a colon in a name is which form of the op it is."""
    cases = {
        name: found if isinstance(found, Case) else one(dialect, name.partition(":")[0], *found)
        for name, found in programs.items()
    }
    return {name: replace(found, refused=refused or found.refused) for name, found in cases.items()}


def plain(dialect: str, names: str, operands: list[str], result: str, attributes: str = "") -> dict[str, Case]:
    """The same program for several ops."""
    return {name: one(dialect, name, operands, result, attributes) for name in names.split()}


def region(arguments: dict[str, str], body: str, result: str, of: str) -> str:
    """A region that ends with `stablehlo.return` of `result`, of type `of`."""
    inside = ", ".join(f"%{name}: {kind}" for name, kind in arguments.items())
    return f"{{ ^bb0{f'({inside})' if inside else ''}: {body} stablehlo.return {result} : {of} }}".replace("^bb0: ", "")


def binary_region(op: str, kind: str = SCALAR) -> str:
    """The region of a reduction by `op`."""
    return region({"x": kind, "y": kind}, f"%z = stablehlo.{op} %x, %y : {kind}", "%z", kind)


def compare_region(direction: str, kind: str = SCALAR) -> str:
    """The region of a sort or selection."""
    return region(
        {"x": kind, "y": kind},
        f"%z = stablehlo.compare {direction}, %x, %y : ({kind}, {kind}) -> tensor<i1>",
        "%z",
        "tensor<i1>",
    )


THIRD = (
    f"%n = stablehlo.constant dense<3> : {INDEX} %p = stablehlo.compare LT, %i, %n : ({INDEX}, {INDEX}) -> tensor<i1>"
)
NEXT = (
    f"%o = stablehlo.constant dense<1> : {INDEX} %j = stablehlo.add %i, %o : {INDEX} "
    f"%y = stablehlo.multiply %x, %b : {F32}"
)
COUNTED = f"""%first = stablehlo.constant dense<0> : {INDEX}
%0:2 = "stablehlo.while"(%first, %a) (
{region({"i": INDEX, "x": F32}, THIRD, "%p", "tensor<i1>")},
{region({"i": INDEX, "x": F32}, NEXT, "%j, %y", f"{INDEX}, {F32}")}
) : ({INDEX}, {F32}) -> ({INDEX}, {F32})"""
BRANCH = region({}, f"%y = stablehlo.tanh %a : {F32}", "%y", F32)
OTHER = region(
    {},
    f"%x = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : ({F32}, {F32}) -> {tensor((8, 8))} "
    f"%y = stablehlo.dot_general %x, %b, contracting_dims = [1] x [0] : ({tensor((8, 8))}, {F32}) -> {F32}",
    "%y",
    F32,
)
ZERO = "%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
GATHER = (
    "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>",
    "#stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1>",
)
BATCH_NORM = "{epsilon = 1.0e-3 : f32, feature_index = 1 : i64}"
CONVOLUTION = (
    "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, feature_group_count = 1 : i64, "
    "batch_group_count = 1 : i64"
)
GROUP = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
CHANNEL = "#stablehlo.channel_handle<handle = 1, type = {}>"
HALVES = "!quant.uniform<i8:f32, 0.5>"

ELEMENTWISE: Programs = {
    **plain(
        "stablehlo",
        "abs cbrt ceil cosine exponential exponential_minus_one floor log log_plus_one logistic negate",
        [F32],
        F32,
    ),
    **plain("stablehlo", "round_nearest_afz round_nearest_even rsqrt sign sine sqrt tan tanh", [F32], F32),
    **plain("stablehlo", "atan2 divide maximum minimum multiply power remainder subtract add", [F32, F32], F32),
    **plain("stablehlo", "and or xor shift_left shift_right_arithmetic shift_right_logical", [I32, I32], I32),
    **plain("stablehlo", "count_leading_zeros not popcnt", [I32], I32),
    **plain("stablehlo", "imag real", [C64], F32),
    "is_finite": ([F32], I1),
    "complex": ([F32, F32], C64),
    "convert": ([F32], I32),
    "bitcast_convert": ([F32], tensor((8, 16, 2), "i16")),
    "reduce_precision": ([F32], F32, "{exponent_bits = 5 : i32, mantissa_bits = 3 : i32}"),
    "clamp": ([SCALAR, F32, F32], F32),
    "compare": ([F32, F32], I1, "{comparison_direction = #stablehlo<comparison_direction LT>}"),
    "select": ([I1, F32, F32], F32),
    "map": case(
        f'%0 = "stablehlo.map"(%a, %b) ({binary_region("multiply")}) {{dimensions = array<i64: 0, 1>}} '
        f": ({F32}, {F32}) -> {F32}",
        {"a": F32, "b": F32},
        {"0": F32},
    ),
    "uniform_quantize": case(
        f"%q = stablehlo.uniform_quantize %a : ({F32}) -> tensor<8x16x{HALVES}>\n"
        f"%0 = stablehlo.uniform_dequantize %q : (tensor<8x16x{HALVES}>) -> {F32}",
        {"a": F32},
        {"0": F32},
        refused=UNSUPPORTED,
    ),
}
ELEMENTWISE["uniform_dequantize"] = ELEMENTWISE["uniform_quantize"]

MOVEMENTS: Programs = {
    "broadcast": ([ROW], F32, "{broadcast_sizes = array<i64: 8>}"),
    "broadcast_in_dim": ([ROW], F32, "{broadcast_dimensions = array<i64: 1>}"),
    "concatenate": ([F32, F32], tensor((8, 32)), "{dimension = 1 : i64}"),
    "constant": case(
        f"%c = stablehlo.constant dense<2.0> : {F32}\n%0 = stablehlo.add %a, %c : {F32}",
        {"a": F32},
        {"0": F32, "c": F32},
    ),
    "iota": case(
        f"%i = stablehlo.iota dim = 1 : {F32}\n%0 = stablehlo.add %a, %i : {F32}", {"a": F32}, {"0": F32, "i": F32}
    ),
    "dynamic_slice": ([F32, INDEX, INDEX], tensor((4, 16)), "{slice_sizes = array<i64: 4, 16>}"),
    "dynamic_update_slice": ([F32, tensor((4, 16)), INDEX, INDEX], F32),
    "gather": (
        [F32, tensor((12, 1), "i32")],
        tensor((12, 16)),
        f"{{slice_sizes = array<i64: 1, 16>, dimension_numbers = {GATHER[0]}}}",
    ),
    "scatter": case(
        f'%0 = "stablehlo.scatter"(%a, %b, %c) ({binary_region("add")}) {{scatter_dimension_numbers = {GATHER[1]}}} : '
        f"({F32}, {tensor((12, 1), 'i32')}, {tensor((12, 16))}) -> {F32}",
        {"a": F32, "b": tensor((12, 1), "i32"), "c": tensor((12, 16))},
        {"0": F32},
    ),
    "pad": (
        [F32, SCALAR],
        tensor((12, 16)),
        "{edge_padding_low = array<i64: 1, 0>, edge_padding_high = array<i64: 3, 0>, "
        "interior_padding = array<i64: 0, 0>}",
    ),
    "reshape": ([F32], tensor((4, 2, 16))),
    "reverse": ([F32], F32, "{dimensions = array<i64: 0>}"),
    "slice": (
        [F32],
        tensor((4, 16)),
        "{start_indices = array<i64: 1, 0>, limit_indices = array<i64: 5, 16>, strides = array<i64: 1, 1>}",
    ),
    "torch_index_select": ([F32, tensor((12,), "i32")], tensor((12, 16)), "{dim = 0 : i64, batch_dims = 0 : i64}"),
    "transpose": ([F32], tensor((16, 8)), "{permutation = array<i64: 1, 0>}"),
    "optimization_barrier": case(
        f"%0:2 = stablehlo.optimization_barrier %a, %b : {F32}, {ROW}\n%1 = stablehlo.tanh %0#0 : {F32}\n"
        f"%2 = stablehlo.tanh %0#1 : {ROW}",
        {"a": F32, "b": ROW},
        {"1": F32, "2": ROW},
    ),
    "tuple": case(
        f'%t = "stablehlo.tuple"(%a, %b) : ({F32}, {ROW}) -> tuple<{F32}, {ROW}>\n'
        f'%0 = "stablehlo.get_tuple_element"(%t) {{index = 0 : i32}} : (tuple<{F32}, {ROW}>) -> {F32}\n'
        f"%1 = stablehlo.tanh %0 : {F32}",
        {"a": F32, "b": ROW},
        {"1": F32},
    ),
}
MOVEMENTS["get_tuple_element"] = MOVEMENTS["tuple"]

PRODUCTS: Programs = {
    "dot": ([F32, tensor((16, 4))], tensor((8, 4))),
    "dot_general": (
        [tensor((4, 8, 16)), tensor((4, 16, 12))],
        tensor((4, 8, 12)),
        "{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], "
        "lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>}",
    ),
    "einsum": ([F32, tensor((16, 4))], tensor((8, 4)), '{einsum_config = "ij,jk->ik"}'),
    "unary_einsum": one(
        "stablehlo", "unary_einsum", [F32], tensor((16, 8)), '{einsum_config = "ij->ji"}', not_run="XLA has no such op"
    ),
    "convolution": ([tensor((4, 6, 6, 8)), tensor((3, 3, 8, 4))], tensor((4, 4, 4, 4)), f"{{{CONVOLUTION}}}"),
    "cholesky": case(
        "%t = stablehlo.dot_general %a, %a, batching_dims = [0] x [0], contracting_dims = [2] x [2] : "
        f"({tensor((4, 8, 8))}, {tensor((4, 8, 8))}) -> {tensor((4, 8, 8))}\n"
        f"%i = stablehlo.iota dim = 1 : {tensor((4, 8, 8))}\n%j = stablehlo.iota dim = 2 : {tensor((4, 8, 8))}\n"
        f"%e = stablehlo.compare EQ, %i, %j : ({tensor((4, 8, 8))}, {tensor((4, 8, 8))}) -> {tensor((4, 8, 8), 'i1')}\n"
        f"%d = stablehlo.convert %e : ({tensor((4, 8, 8), 'i1')}) -> {tensor((4, 8, 8))}\n"
        f"%p = stablehlo.add %t, %d : {tensor((4, 8, 8))}\n"
        f'%0 = "stablehlo.cholesky"(%p) {{lower = true}} : ({tensor((4, 8, 8))}) -> {tensor((4, 8, 8))}\n'
        f"%k = stablehlo.compare GE, %i, %j : ({tensor((4, 8, 8))}, {tensor((4, 8, 8))}) -> {tensor((4, 8, 8), 'i1')}\n"
        f"%z = stablehlo.constant dense<0.0> : {tensor((4, 8, 8))}\n"
        f"%1 = stablehlo.select %k, %0, %z : {tensor((4, 8, 8), 'i1')}, {tensor((4, 8, 8))}",
        {"a": tensor((4, 8, 8))},
        {"1": tensor((4, 8, 8))},
    ),
    "triangular_solve": case(
        f"%i = stablehlo.iota dim = 1 : {tensor((4, 8, 8))}\n%j = stablehlo.iota dim = 2 : {tensor((4, 8, 8))}\n"
        f"%e = stablehlo.compare EQ, %i, %j : ({tensor((4, 8, 8))}, {tensor((4, 8, 8))}) -> {tensor((4, 8, 8), 'i1')}\n"
        f"%d = stablehlo.convert %e : ({tensor((4, 8, 8), 'i1')}) -> {tensor((4, 8, 8))}\n"
        f"%f = stablehlo.constant dense<4.0> : {tensor((4, 8, 8))}\n"
        f"%g = stablehlo.multiply %d, %f : {tensor((4, 8, 8))}\n"
        f"%p = stablehlo.add %a, %g : {tensor((4, 8, 8))}\n"
        '%0 = "stablehlo.triangular_solve"(%p, %b) {left_side = true, lower = true, unit_diagonal = false, '
        f"transpose_a = #stablehlo<transpose NO_TRANSPOSE>}} "
        f": ({tensor((4, 8, 8))}, {tensor((4, 8, 12))}) -> {tensor((4, 8, 12))}",
        {"a": tensor((4, 8, 8)), "b": tensor((4, 8, 12))},
        {"0": tensor((4, 8, 12))},
    ),
    "fft": ([C64], C64, "{fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 16>}"),
}

REDUCTIONS: Programs = {
    "reduce": case(
        f'{ZERO}%0 = "stablehlo.reduce"(%a, %zero) ({binary_region("add")}) {{dimensions = array<i64: 1>}} '
        f": ({F32}, {SCALAR}) -> {COLUMN}",
        {"a": F32},
        {"0": COLUMN},
    ),
    "reduce_window": case(
        f'{ZERO}%0 = "stablehlo.reduce_window"(%a, %zero) ({binary_region("add")}) '
        f"{{window_dimensions = array<i64: 1, 4>, window_strides = array<i64: 1, 4>}} "
        f": ({F32}, {SCALAR}) -> {tensor((8, 4))}",
        {"a": F32},
        {"0": tensor((8, 4))},
    ),
    "select_and_scatter": case(
        f'{ZERO}%0 = "stablehlo.select_and_scatter"(%a, %b, %zero) ({compare_region("GE")}, {binary_region("add")}) '
        f"{{window_dimensions = array<i64: 1, 4>, window_strides = array<i64: 1, 4>}} "
        f": ({F32}, {tensor((8, 4))}, {SCALAR}) -> {F32}",
        {"a": F32, "b": tensor((8, 4))},
        {"0": F32},
    ),
    "sort": case(
        f'%0 = "stablehlo.sort"(%a) ({compare_region("LT")}) {{dimension = 1 : i64, is_stable = true}} '
        f": ({F32}) -> {F32}",
        {"a": F32},
        {"0": F32},
    ),
    "batch_norm_inference": ([F32, ROW, ROW, ROW, ROW], F32, BATCH_NORM),
    "batch_norm_training": case(
        f'%0:3 = "stablehlo.batch_norm_training"(%a, %b, %c) {BATCH_NORM} '
        f": ({F32}, {ROW}, {ROW}) -> ({F32}, {ROW}, {ROW})",
        {"a": F32, "b": ROW, "c": ROW},
        {"0#0": F32, "0#1": ROW, "0#2": ROW},
    ),
    "batch_norm_grad": case(
        f'%0:3 = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) {BATCH_NORM} : '
        f"({F32}, {ROW}, {ROW}, {ROW}, {F32}) -> ({F32}, {ROW}, {ROW})",
        {"a": F32, "b": ROW, "c": ROW, "d": ROW, "e": F32},
        {"0#0": F32, "0#1": ROW, "0#2": ROW},
    ),
}

CONTROL: Programs = {
    "case": case(
        f'%0 = "stablehlo.case"(%p) ({BRANCH}, {OTHER}) : ({INDEX}) -> {F32}',
        {"p": INDEX, "a": F32, "b": F32},
        {"0": F32},
    ),
    "if": case(
        f'%0 = "stablehlo.if"(%p) ({BRANCH}, {OTHER}) : (tensor<i1>) -> {F32}',
        {"p": "tensor<i1>", "a": F32, "b": F32},
        {"0": F32},
    ),
    "while": case(COUNTED, {"a": F32, "b": F32}, {"0#1": F32}),
    "composite": case(
        f'%0 = stablehlo.composite "some.twice" %a {{decomposition = @twice}} : ({F32}) -> {F32}',
        {"a": F32},
        {"0": F32},
        after=(
            f"\nfunc.func private @twice(%x: {F32}) -> {F32} {{\n%y = stablehlo.add %x, %x : {F32}\n"
            f"return %y : {F32}\n}}"
        ),
    ),
    "custom_call": case(
        f"%0 = stablehlo.custom_call @nobody_knows(%a) : ({F32}) -> {F32}",
        {"a": F32},
        {"0": F32},
        not_run="there is no such function",
    ),
    "rng": case(
        f"%0 = stablehlo.rng %a, %b, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> {F32}",
        {"a": SCALAR, "b": SCALAR, "s": "tensor<2xi64>"},
        {"0": F32},
        refused=UNSUPPORTED,
    ),
    "rng_bit_generator": case(
        f"%k, %0 = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, {U32})",
        {"a": "tensor<2xui64>"},
        {"k": "tensor<2xui64>", "0": U32},
    ),
}

TOKENS: Programs = {
    "after_all": case(
        f"%t = stablehlo.create_token : {TOKEN}\n%u = stablehlo.after_all %t, %t : {TOKEN}\n"
        f"%0 = stablehlo.tanh %a : {F32}",
        {"a": F32},
        {"0": F32},
    ),
    "create_token": case(
        f"%t = stablehlo.create_token : {TOKEN}\n%0 = stablehlo.tanh %a : {F32}", {"a": F32}, {"0": F32}
    ),
    "infeed": case(
        f"%t = stablehlo.create_token : {TOKEN}\n"
        f'%0:2 = "stablehlo.infeed"(%t) {{infeed_config = ""}} : ({TOKEN}) -> ({F32}, {TOKEN})\n'
        f"%1 = stablehlo.add %0#0, %a : {F32}",
        {"a": F32},
        {"1": F32},
        refused=UNSUPPORTED,
    ),
    "outfeed": case(
        f"%t = stablehlo.create_token : {TOKEN}\n"
        f'%u = "stablehlo.outfeed"(%a, %t) {{outfeed_config = ""}} : ({F32}, {TOKEN}) -> {TOKEN}',
        {"a": F32},
        {"a": F32},
        refused=UNSUPPORTED,
    ),
    "send": case(
        f"%t = stablehlo.create_token : {TOKEN}\n"
        f'%u = "stablehlo.send"(%a, %t) {{channel_handle = {CHANNEL.format(2)}, is_host_transfer = true}} '
        f": ({F32}, {TOKEN}) -> {TOKEN}",
        {"a": F32},
        {"a": F32},
        refused=UNSUPPORTED,
    ),
    "recv": case(
        f"%t = stablehlo.create_token : {TOKEN}\n"
        f'%0:2 = "stablehlo.recv"(%t) {{channel_handle = {CHANNEL.format(3)}, is_host_transfer = true}} '
        f": ({TOKEN}) -> ({F32}, {TOKEN})",
        {"a": F32},
        {"0#0": F32},
        refused=UNSUPPORTED,
    ),
}

COLLECTIVES: Programs = {
    "all_gather": ([F32], tensor((16, 16)), f"{{all_gather_dim = 0 : i64, {GROUP}}}"),
    "all_reduce": case(
        f'%0 = "stablehlo.all_reduce"(%a) ({binary_region("add")}) {{{GROUP}}} : ({F32}) -> {F32}',
        {"a": F32},
        {"0": F32},
    ),
    "all_to_all": (
        [F32],
        F32,
        f"{{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, {GROUP}}}",
    ),
    "collective_broadcast": ([F32], F32, f"{{{GROUP}}}"),
    "collective_permute": ([F32], F32, "{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}"),
    "cross-replica-sum": ([F32], F32, f"{{{GROUP}}}"),
    "partition_id": case(f"%0 = stablehlo.partition_id : {tensor((), 'ui32')}", {"a": F32}, {"0": tensor((), "ui32")}),
    "reduce_scatter": case(
        f'%0 = "stablehlo.reduce_scatter"(%a) ({binary_region("add")}) {{scatter_dimension = 0 : i64, {GROUP}}} : '
        f"({F32}) -> {tensor((4, 16))}",
        {"a": F32},
        {"0": tensor((4, 16))},
    ),
    "replica_id": case(f"%0 = stablehlo.replica_id : {tensor((), 'ui32')}", {"a": F32}, {"0": tensor((), "ui32")}),
}
ANY = "tensor<?x16xf32>"
SIZES = tensor((2,), "i64")
DYNAMIC_OPS: Programs = {
    "dynamic_broadcast_in_dim": ([ROW, SIZES], ANY, "{broadcast_dimensions = array<i64: 1>}"),
    "dynamic_conv": (
        [tensor((4, 6, 6, 8)), tensor((3, 3, 8, 4)), tensor((2, 2), "i64")],
        "tensor<4x?x?x4xf32>",
        f"{{{CONVOLUTION}}}",
    ),
    "dynamic_gather": (
        [F32, tensor((12, 1), "i32"), SIZES],
        "tensor<12x?xf32>",
        f"{{dimension_numbers = {GATHER[0]}}}",
    ),
    "dynamic_iota": ([SIZES], ANY, "{iota_dimension = 0 : i64}"),
    "dynamic_pad": ([F32, SCALAR, SIZES, SIZES, SIZES], ANY),
    "dynamic_reshape": ([F32, SIZES], ANY),
    "real_dynamic_slice": ([F32, SIZES, SIZES, SIZES], ANY),
    "set_dimension_size": ([F32, INDEX], "tensor<?x16xf32, #stablehlo.bounds<8, ?>>", "{dimension = 0 : i64}"),
}

INSIDE = (
    f'{{ ^bb0(%x: {F32}): %y = "stablehlo.collective_permute"(%x) '
    f"{{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}} : "
    f"({F32}) -> {F32} stablehlo.return %y : {F32} }}"
)
ASYNC = {
    name: case(
        f'%f = "stablehlo.async_start"(%a) ({INSIDE}) : ({F32}) -> !stablehlo.future<{F32}>\n'
        f'%0 = "stablehlo.async_done"(%f) : (!stablehlo.future<{F32}>) -> {F32}',
        {"a": F32},
        {"0": F32},
        refused=UNSUPPORTED,
    )
    for name in ("async_start", "async_done")
}

STABLEHLO = {
    **filled("stablehlo", {**ELEMENTWISE, **MOVEMENTS, **PRODUCTS, **REDUCTIONS, **CONTROL, **TOKENS}),
    **filled("stablehlo", COLLECTIVES, refused=UNSUPPORTED),
    **filled("stablehlo", DYNAMIC_OPS, refused=DYNAMIC),
    "get_dimension_size": one("stablehlo", "get_dimension_size", [F32], INDEX, "{dimension = 0 : i64}"),
    **filled("stablehlo", {**ASYNC, "return": CONTROL["while"]}),
}

_CHLO: Programs = {
    **plain("chlo", "_asin_acos_kernel", [C64], C64),
    **plain(
        "chlo",
        "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma sinh square tan",
        [F32],
        F32,
    ),
    **plain("chlo", "conj", [C64], C64),
    **plain("chlo", "is_inf is_neg_inf is_pos_inf", [F32], I1),
    **plain("chlo", "next_after polygamma zeta", [F32, F32], F32),
    **plain("chlo", "mulhi", [I32, I32], I32),
    **plain(
        "chlo",
        "broadcast_add broadcast_atan2 broadcast_divide broadcast_maximum broadcast_minimum broadcast_multiply",
        [F32, ROW],
        F32,
    ),
    **plain(
        "chlo",
        "broadcast_next_after broadcast_polygamma broadcast_power broadcast_remainder broadcast_subtract",
        [F32, ROW],
        F32,
    ),
    **plain("chlo", "broadcast_zeta", [F32, ROW], F32),
    **plain("chlo", "broadcast_and broadcast_or broadcast_xor", [I32, tensor((16,), "i32")], I32),
    **plain(
        "chlo",
        "broadcast_shift_left broadcast_shift_right_arithmetic broadcast_shift_right_logical",
        [I32, tensor((16,), "i32")],
        I32,
    ),
    "broadcast_compare": ([F32, ROW], I1, "{comparison_direction = #chlo<comparison_direction LT>}"),
    "broadcast_complex": ([F32, ROW], C64),
    "broadcast_select": one("chlo", "broadcast_select", [I1, F32, F32], F32, refused=UNSUPPORTED),
    "constant": case(
        f'%c = "chlo.constant"() {{value = dense<2.0> : {F32}}} : () -> {F32}\n%0 = stablehlo.add %a, %c : {F32}',
        {"a": F32},
        {"0": F32},
    ),
    "constant_like": ([F32], F32, "{value = 3.0 : f32}"),
    "ragged_dot": one(
        "chlo",
        "ragged_dot",
        [tensor((12, 8)), tensor((4, 8, 16)), tensor((4,), "i64")],
        tensor((12, 16)),
        "{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], "
        "rhs_contracting_dimensions = [1], "
        "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}",
        not_run="XLA's CPU has no such op",
    ),
    "scan": case(
        f'%0:2 = "chlo.scan"(%a, %b) ({{ ^bb0(%x: {COLUMN}, %y: {COLUMN}): %z = stablehlo.add %x, %y : {COLUMN} '
        f"stablehlo.return %z, %z : {COLUMN}, {COLUMN} }}) "
        f"{{dimension = 1 : i64, is_reverse = false, is_associative = true, "
        f"operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>}} "
        f": ({F32}, {COLUMN}) -> ({F32}, {COLUMN})",
        {"a": F32, "b": COLUMN},
        {"0#0": F32, "0#1": COLUMN},
        refused=DYNAMIC,
    ),
    "top_k": case(
        f"%v, %i = chlo.top_k(%a, k = 4) : {F32} -> ({tensor((8, 4))}, {tensor((8, 4), 'i32')})",
        {"a": F32},
        {"v": tensor((8, 4)), "i": tensor((8, 4), "i32")},
    ),
}
CHLO = filled("chlo", _CHLO)


def convolved(
    image: tuple[int, ...], kernel: tuple[int, ...], result: tuple[int, ...], features: int, batches: int
) -> Case:
    """A convolution along one dim, in groups."""
    return one(
        "stablehlo",
        "convolution",
        [tensor(image), tensor(kernel)],
        tensor(result),
        "{dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, padding = dense<1> : tensor<1x2xi64>, "
        f"feature_group_count = {features} : i64, batch_group_count = {batches} : i64}}",
    )


def slid(window: str, result: tuple[int, ...], *, kernel: tuple[int, ...] = (3, 3, 8, 4), dims: str = "") -> Case:
    """A convolution along two dims, with windows of that kind."""
    dims = dims or "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    return one(
        "stablehlo",
        "convolution",
        [tensor((4, 8, 8, 8)), tensor(kernel)],
        tensor(result),
        f"{{dimension_numbers = #stablehlo.conv<{dims}>, feature_group_count = 1 : i64, batch_group_count = 1 : i64, "
        f"{window}}}",
    )


def reduced(op: str, start: float, kind: str = F32, result: str = COLUMN) -> Case:
    """A reduction of the last dim by one op, from `start`."""
    scalar = f"tensor<{kind.rsplit('x', maxsplit=1)[-1]}"
    text = start if "f32" in kind else str(bool(start)).lower()
    return case(
        f"%s = stablehlo.constant dense<{text}> : {scalar}\n"
        f'%0 = "stablehlo.reduce"(%a, %s) ({binary_region(op, scalar)}) {{dimensions = array<i64: 1>}} '
        f": ({kind}, {scalar}) -> {result}",
        {"a": kind},
        {"0": result},
    )


def windowed(attributes: str, result: tuple[int, ...], start: str = "0xFF800000") -> Case:
    """A maximum over windows."""
    return case(
        f"%low = stablehlo.constant dense<{start}> : {SCALAR}\n"
        f'%0 = "stablehlo.reduce_window"(%a, %low) ({binary_region("maximum")}) {{{attributes}}} '
        f": ({F32}, {SCALAR}) -> {tensor(result)}",
        {"a": F32},
        {"0": tensor(result)},
    )


I32_ROWS = tensor((12, 1), "i32")
BATCHED_ROWS = (
    "#stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0], "
    "scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>"
)


def scatter(inputs: str, numbers: str, held: str, rows: tuple[str, str], body: str) -> str:
    """The text of a scatter of the tensors that `inputs` names by letters, all of type `held`.

    Its indices `%k` and updates, `%u` for each, are of the types `rows`. In `body` %x0, %x1, ... are the elements of
    the inputs, %y0, ... those of the updates, and %z0, ... what becomes of them.
    """
    count = len(inputs)
    kinds, elements = ", ".join([held] * count), {f"{name}{n}": SCALAR for name in "xy" for n in range(count)}
    given, reads = ", ".join(f"%z{n}" for n in range(count)), ", ".join([*(f"%{one}" for one in inputs), "%k"])
    return (
        f'"stablehlo.scatter"({reads}{", %u" * count}) ({region(elements, body, given, ", ".join([SCALAR] * count))}) '
        f"{{scatter_dimension_numbers = {numbers}}} : ({kinds}, {rows[0]}{f', {rows[1]}' * count}) -> ({kinds})"
    )


def joined(*ops: str) -> str:
    """The body of a scatter of several tensors, each joined by an op of its own."""
    return " ".join(f"%z{n} = stablehlo.{op} %x{n}, %y{n} : {SCALAR}" for n, op in enumerate(ops))


LARGER = f"%p = stablehlo.compare GT, %y0, %x0 : ({SCALAR}, {SCALAR}) -> tensor<i1> " + " ".join(
    f"%z{n} = stablehlo.select %p, %y{n}, %x{n} : tensor<i1>, {SCALAR}" for n in range(2)
)
ROWS = I32_ROWS, tensor((12, 16))
HELD, BATCHES = tensor((4, 8, 16)), (tensor((4, 12, 1), "i32"), tensor((4, 12, 16)))
SUM = region({}, f"%y = stablehlo.add %a, %b : {F32}", "%y", F32)
_VARIANTS: Programs = {
    "case: element by element": case(
        f'%0 = "stablehlo.case"(%p) ({BRANCH}, {SUM}, {BRANCH}) : ({INDEX}) -> {F32}',
        {"p": INDEX, "a": F32, "b": F32},
        {"0": F32},
    ),
    "if: element by element": case(
        f'%0 = "stablehlo.if"(%p) ({BRANCH}, {SUM}) : (tensor<i1>) -> {F32}',
        {"p": "tensor<i1>", "a": F32, "b": F32},
        {"0": F32},
    ),
    "convolution: groups of features": convolved((4, 16, 8), (8, 4, 3), (4, 8, 8), 4, 1),
    "convolution: every feature by itself": convolved((4, 16, 8), (16, 1, 3), (4, 16, 8), 16, 1),
    "convolution: every feature to several": convolved((4, 8, 8), (16, 1, 3), (4, 16, 8), 8, 1),
    "convolution: groups of batches": convolved((16, 4, 8), (8, 4, 3), (4, 8, 8), 1, 4),
    "convolution: every batch by itself": convolved((16, 4, 8), (16, 4, 3), (1, 16, 8), 1, 16),
    "convolution: as many results as elements": slid("padding = dense<1> : tensor<2x2xi64>", (4, 8, 8, 4)),
    "convolution: in strides": slid(
        "padding = dense<[[0, 1], [0, 1]]> : tensor<2x2xi64>, window_strides = array<i64: 2, 2>", (4, 4, 4, 4)
    ),
    "convolution: of spread elements": slid(
        "padding = dense<[[1, 2], [1, 2]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 2, 2>", (4, 16, 16, 4)
    ),
    "convolution: the gradient of a kernel": slid(
        "padding = dense<[[1, 1], [1, 1]]> : tensor<2x2xi64>",
        (3, 3, 8, 8),
        kernel=(4, 8, 8, 8),
        dims="[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]",
    ),
    "reduce: maximum from one": reduced("maximum", 1.0),
    "reduce: product": reduced("multiply", 1.0),
    "reduce: product from two": reduced("multiply", 2.0),
    "reduce: sum from one": reduced("add", 1.0),
    "reduce: all": reduced("and", 1, I1, tensor((8,), "i1")),
    "reduce: any": reduced("or", 0, I1, tensor((8,), "i1")),
    "reduce: the largest truth": reduced("maximum", 0, I1, tensor((8,), "i1")),
    "reduce: all, from false": reduced("and", 0, I1, tensor((8,), "i1")),
    "reduce: where the largest is": case(
        f"%low = stablehlo.constant dense<0xFF800000> : {SCALAR}\n%n = stablehlo.constant dense<0> : {INDEX}\n"
        f"%i = stablehlo.iota dim = 1 : {I32}\n"
        '%0:2 = "stablehlo.reduce"(%a, %i, %low, %n) ({ '
        f"^bb0(%x: {SCALAR}, %k: {INDEX}, %y: {SCALAR}, %l: {INDEX}): "
        f"%p = stablehlo.compare GT, %x, %y : ({SCALAR}, {SCALAR}) -> tensor<i1> "
        f"%z = stablehlo.select %p, %x, %y : tensor<i1>, {SCALAR} "
        f"%m = stablehlo.select %p, %k, %l : tensor<i1>, {INDEX} "
        f"stablehlo.return %z, %m : {SCALAR}, {INDEX} }}) {{dimensions = array<i64: 1>}} : "
        f"({F32}, {I32}, {SCALAR}, {INDEX}) -> ({COLUMN}, {tensor((8,), 'i32')})",
        {"a": F32},
        {"0#0": COLUMN, "0#1": tensor((8,), "i32")},
    ),
    "reduce_window: windows that overlap": windowed(
        "window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 1>, "
        "padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>",
        (8, 16),
    ),
    "reduce_window: windows that overlap, from one": windowed(
        "window_dimensions = array<i64: 1, 3>, window_strides = array<i64: 1, 1>, "
        "padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>",
        (8, 16),
        "1.0",
    ),
    "reduce_window: all before": windowed(
        "window_dimensions = array<i64: 1, 16>, padding = dense<[[0, 0], [15, 0]]> : tensor<2x2xi64>", (8, 16)
    ),
    "select_and_scatter: windows that overlap": case(
        f'{ZERO}%0 = "stablehlo.select_and_scatter"(%a, %b, %zero) ({compare_region("GE")}, {binary_region("add")}) '
        f"{{window_dimensions = array<i64: 1, 4>, window_strides = array<i64: 1, 2>}} "
        f": ({F32}, {tensor((8, 7))}, {SCALAR}) -> {F32}",
        {"a": F32, "b": tensor((8, 7))},
        {"0": F32},
    ),
    "triangular_solve: from the right": case(
        f"%i = stablehlo.iota dim = 0 : {tensor((8, 8))}\n%j = stablehlo.iota dim = 1 : {tensor((8, 8))}\n"
        f"%e = stablehlo.compare EQ, %i, %j : ({tensor((8, 8))}, {tensor((8, 8))}) -> {tensor((8, 8), 'i1')}\n"
        f"%f = stablehlo.constant dense<4.0> : {tensor((8, 8))}\n"
        f"%p = stablehlo.select %e, %f, %a : {tensor((8, 8), 'i1')}, {tensor((8, 8))}\n"
        '%0 = "stablehlo.triangular_solve"(%p, %b) {left_side = false, lower = true, unit_diagonal = false, '
        f"transpose_a = #stablehlo<transpose TRANSPOSE>}} "
        f": ({tensor((8, 8))}, {tensor((12, 8))}) -> {tensor((12, 8))}",
        {"a": tensor((8, 8)), "b": tensor((12, 8))},
        {"0": tensor((12, 8))},
    ),
    "sort: keys and values": case(
        '%0:2 = "stablehlo.sort"(%a, %b) ({ '
        f"^bb0(%x: {SCALAR}, %y: {SCALAR}, %k: {INDEX}, %l: {INDEX}): "
        f"%p = stablehlo.compare LT, %x, %y : ({SCALAR}, {SCALAR}) -> tensor<i1> "
        f"stablehlo.return %p : tensor<i1> }}) {{dimension = 0 : i64, is_stable = true}} "
        f": ({F32}, {I32}) -> ({F32}, {I32})",
        {"a": F32, "b": I32},
        {"0#0": F32, "0#1": I32},
    ),
    "fft: of two dims": (
        [tensor((4, 8, 8))],
        tensor((4, 8, 5), "complex<f32>"),
        "{fft_type = #stablehlo<fft_type RFFT>, fft_length = array<i64: 8, 8>}",
    ),
    "pad: between elements": (
        [F32, SCALAR],
        tensor((8, 31)),
        "{edge_padding_low = array<i64: 0, 0>, edge_padding_high = array<i64: 0, 0>, "
        "interior_padding = array<i64: 0, 1>}",
    ),
    "pad: behind each element": (
        [F32, SCALAR],
        tensor((8, 32)),
        "{edge_padding_low = array<i64: 0, 0>, edge_padding_high = array<i64: 0, 1>, "
        "interior_padding = array<i64: 0, 1>}",
    ),
    "pad: around each row": (
        [F32, SCALAR],
        tensor((32, 16)),
        "{edge_padding_low = array<i64: 2, 0>, edge_padding_high = array<i64: 1, 0>, "
        "interior_padding = array<i64: 3, 0>}",
    ),
    "pad: between elements, and shorter": (
        [F32, SCALAR],
        tensor((8, 28)),
        "{edge_padding_low = array<i64: 0, -1>, edge_padding_high = array<i64: 0, -2>, "
        "interior_padding = array<i64: 0, 1>}",
    ),
    "pad: of nothing": (
        [tensor((8, 0)), SCALAR],
        tensor((8, 2)),
        "{edge_padding_low = array<i64: 0, 2>, edge_padding_high = array<i64: 0, 0>, "
        "interior_padding = array<i64: 0, 1>}",
    ),
    "pad: that shifts": (
        [F32, SCALAR],
        F32,
        "{edge_padding_low = array<i64: 1, 0>, edge_padding_high = array<i64: -1, 0>, "
        "interior_padding = array<i64: 0, 0>}",
    ),
    "pad: that shifts both dims": (
        [F32, SCALAR],
        F32,
        "{edge_padding_low = array<i64: 1, -2>, edge_padding_high = array<i64: -1, 2>, "
        "interior_padding = array<i64: 0, 0>}",
    ),
    "slice: every second": (
        [F32],
        tensor((4, 16)),
        "{start_indices = array<i64: 0, 0>, limit_indices = array<i64: 8, 16>, strides = array<i64: 2, 1>}",
    ),
    "slice: every second, from the first": (
        [F32],
        tensor((8, 8)),
        "{start_indices = array<i64: 0, 1>, limit_indices = array<i64: 8, 16>, strides = array<i64: 1, 2>}",
    ),
    "slice: every third of some": (
        [F32],
        tensor((8, 4)),
        "{start_indices = array<i64: 0, 2>, limit_indices = array<i64: 8, 13>, strides = array<i64: 1, 3>}",
    ),
    "scatter: rows replaced": case(
        f'%0 = "stablehlo.scatter"(%a, %b, %c) ({region({"x": SCALAR, "y": SCALAR}, "", "%y", SCALAR)}) '
        f"{{scatter_dimension_numbers = {GATHER[1]}, unique_indices = true}} : "
        f"({F32}, {tensor((1, 1), 'i32')}, {tensor((1, 16))}) -> {F32}",
        {"a": F32, "b": tensor((1, 1), "i32"), "c": tensor((1, 16))},
        {"0": F32},
    ),
    "scatter: the largest of rows": case(
        f'%0 = "stablehlo.scatter"(%a, %b, %c) ({binary_region("maximum")}) '
        f"{{scatter_dimension_numbers = {GATHER[1]}}} : "
        f"({F32}, {I32_ROWS}, {tensor((12, 16))}) -> {F32}",
        {"a": F32, "b": I32_ROWS, "c": tensor((12, 16))},
        {"0": F32},
    ),
    "gather: in batches": (
        [tensor((4, 8, 16)), tensor((4, 12, 1), "i32")],
        tensor((4, 12, 16)),
        "{slice_sizes = array<i64: 1, 1, 16>, dimension_numbers = #stablehlo.gather<offset_dims = [2], "
        "collapsed_slice_dims = [1], "
        "operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>}",
    ),
    "scatter: in batches": case(
        f'%0 = "stablehlo.scatter"(%a, %b, %c) ({binary_region("add")}) '
        f"{{scatter_dimension_numbers = {BATCHED_ROWS}}} : ({HELD}, {', '.join(BATCHES)}) -> {HELD}",
        {"a": HELD, "b": BATCHES[0], "c": BATCHES[1]},
        {"0": HELD},
    ),
    "scatter: two tensors": case(
        f"%0:2 = {scatter('ab', GATHER[1], F32, ROWS, joined('add', 'maximum'))}",
        {"a": F32, "b": F32, "k": ROWS[0], "u": ROWS[1]},
        {"0#0": F32, "0#1": F32},
    ),
    "scatter: one tensor as two, in batches": case(
        f"%0:2 = {scatter('aa', BATCHED_ROWS, HELD, BATCHES, LARGER)}",
        {"a": HELD, "k": BATCHES[0], "u": BATCHES[1]},
        {"0#0": HELD, "0#1": HELD},
    ),
    "scatter: zeros as three tensors": case(
        f"%z = stablehlo.constant dense<0.0> : {F32}\n"
        f"%0:3 = {scatter('zzz', GATHER[1], F32, ROWS, joined('add', 'subtract', 'maximum'))}",
        {"k": ROWS[0], "u": ROWS[1]},
        {"0#0": F32, "0#1": F32, "0#2": F32},
    ),
    "scatter: one tensor as two, in a loop": case(
        f"""%first = stablehlo.constant dense<0> : {INDEX}
%0:2 = "stablehlo.while"(%first, %a) (
{region({"i": INDEX, "x": F32}, THIRD, "%p", "tensor<i1>")},
{
            region(
                {"i": INDEX, "x": F32},
                f"%o = stablehlo.constant dense<1> : {INDEX} %j = stablehlo.add %i, %o : {INDEX} "
                f"%s:2 = {scatter('xx', GATHER[1], F32, ROWS, joined('add', 'minimum'))} "
                f"%t = stablehlo.tanh %s#0 : {F32} %w = stablehlo.add %t, %s#1 : {F32}",
                "%j, %w",
                f"{INDEX}, {F32}",
            )
        }
) : ({INDEX}, {F32}) -> ({INDEX}, {F32})""",
        {"a": F32, "k": ROWS[0], "u": ROWS[1]},
        {"0#1": F32},
    ),
}
VARIANTS = filled("stablehlo", _VARIANTS)
"""More programs of ops that have several forms."""
