"""What is claimed of an op's arithmetic: by hand for each op, and by StableHLO's interpreter on random values."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
from snippets import DTYPES, evaluate, function, ops_of, tensor

from rhino.ir.program.numerics import linear_in, reduction_of

F, G, W, S = tensor((4, 6)), tensor((6, 3)), tensor((4, 2)), tensor(())
INTEGERS, INDEX, BOOLEANS = tensor((4, 6), "i32"), tensor((), "i32"), tensor((4, 6), "i1")
ROWS, PICKED = tensor((5, 1), "i32"), tensor((5, 6))
ZERO = "%zero = stablehlo.constant dense<0.0> : tensor<f32>\n"
FALSE, TRUE = (f"%zero = stablehlo.constant dense<{truth}> : tensor<i1>\n" for truth in ("false", "true"))
LEAST = "%zero = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
ONE = "%zero = stablehlo.constant dense<1.0> : tensor<f32>\n"


@dataclass(frozen=True)
class Case:
    """The text of one op, its operands by name and type, its result's type, and what should be claimed of it."""

    body: str
    arguments: dict[str, str]
    result: str
    linear: tuple[set[int], ...] = ()
    reduction: str | None = None

    @property
    def text(self):
        return function(self.body, self.arguments, {"0": self.result})

    @property
    def op(self):
        name = self.body.split("%0 = ")[1].split("(")[0].split()[0].strip('"')
        return ops_of(self.text, name)[0]


def unary(name, linear=(), kind=F):
    return Case(f"%0 = stablehlo.{name} %a : {kind}", {"a": kind}, kind, linear)


def binary(name, linear=(), kind=F):
    return Case(f"%0 = stablehlo.{name} %a, %b : {kind}", {"a": kind, "b": kind}, kind, linear)


def convert(source, target, linear=()):
    a, b = tensor((4, 6), source), tensor((4, 6), target)
    return Case(f"%0 = stablehlo.convert %a : ({a}) -> {b}", {"a": a}, b, linear)


def reduce(body, init=ZERO, linear=(), reduction=None, dtype="f32"):
    kind, scalar, result = (tensor(shape, dtype) for shape in ((4, 6), (), (4,)))
    text = f"""{init}%0 = stablehlo.reduce(%a init: %zero) across dimensions = [1] : ({kind}, {scalar}) -> {result}
      reducer(%x: {scalar}, %y: {scalar}) {{ {body} stablehlo.return %r : {scalar} }}"""
    return Case(text, {"a": kind} if init else {"a": kind, "zero": scalar}, result, linear, reduction)


def of(name, dtype="f32", operands="%x, %y"):
    return f"%r = stablehlo.{name} {operands} : {tensor((), dtype)}\n"


def scatter(body, linear=(), reduction=None):
    text = f"""%0 = "stablehlo.scatter"(%a, %i, %u) ({{ ^bb0(%x: {S}, %y: {S}): {body} stablehlo.return %r : {S} }})
      {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}} : ({F}, {ROWS}, {PICKED}) -> {F}"""
    return Case(text, {"a": F, "i": ROWS, "u": PICKED}, F, linear, reduction)


def gather(dtype, linear, reduction):
    kind, picked = tensor((4, 6), dtype), tensor((5, 6), dtype)
    text = f"""%0 = "stablehlo.gather"(%a, %i) {{slice_sizes = array<i64: 1, 6>,
      dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],\
 index_vector_dim = 1>}}
      : ({kind}, {ROWS}) -> {picked}"""
    return Case(text, {"a": kind, "i": ROWS}, picked, linear, reduction)


def pad(value):
    kind = tensor((9, 6))
    text = f"{value}%0 = stablehlo.pad %a, %zero, low = [1, 0], high = [1, 0], interior = [1, 0] : ({F}, {S}) -> {kind}"
    return Case(text, {"a": F}, kind, ({0},) if value == ZERO else ())


def dot(dtype="f32"):
    a, b, c = (tensor(shape, dtype) for shape in ((4, 6), (6, 3), (4, 3)))
    text = f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({a}, {b}) -> {c}"
    return Case(text, {"a": a, "b": b}, c, ({0}, {1}), "add")


CONVOLUTION = Case(
    """%0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}\
 : (tensor<2x8x4xf32>, tensor<3x4x6xf32>) -> tensor<2x6x6xf32>""",
    {"a": tensor((2, 8, 4)), "b": tensor((3, 4, 6))},
    tensor((2, 6, 6)),
    ({0}, {1}),
    "add",
)

LINEAR = {
    "add": binary("add", ({0, 1},)),
    "add of integers": binary("add", ({0, 1},), INTEGERS),
    "subtract": binary("subtract", ({0, 1},)),
    "multiply": binary("multiply", ({0}, {1})),
    "multiply integers": binary("multiply", ({0}, {1}), INTEGERS),
    "divide": binary("divide", ({0},)),
    "negate": unary("negate", ({0},)),
    "reshape": Case(f"%0 = stablehlo.reshape %a : ({F}) -> tensor<24xf32>", {"a": F}, "tensor<24xf32>", ({0},)),
    "transpose": Case(
        f"%0 = stablehlo.transpose %a, dims = [1, 0] : ({F}) -> tensor<6x4xf32>", {"a": F}, "tensor<6x4xf32>", ({0},)
    ),
    "broadcast": Case(
        f"%0 = stablehlo.broadcast_in_dim %a, dims = [0, 2] : ({F}) -> tensor<4x3x6xf32>",
        {"a": F},
        "tensor<4x3x6xf32>",
        ({0},),
    ),
    "reverse": Case(f"%0 = stablehlo.reverse %a, dims = [1] : {F}", {"a": F}, F, ({0},)),
    "slice": Case(f"%0 = stablehlo.slice %a [0:4, 1:3] : ({F}) -> {W}", {"a": F}, W, ({0},)),
    "concatenate": Case(
        f"%0 = stablehlo.concatenate %a, %b, dim = 1 : ({F}, {W}) -> tensor<4x8xf32>",
        {"a": F, "b": W},
        "tensor<4x8xf32>",
        ({0, 1},),
    ),
    "select": Case(
        f"%0 = stablehlo.select %p, %a, %b : {BOOLEANS}, {F}", {"p": BOOLEANS, "a": F, "b": F}, F, ({1, 2},)
    ),
    "dynamic_slice": Case(
        f"%0 = stablehlo.dynamic_slice %a, %i, %i, sizes = [4, 2] : ({F}, {INDEX}, {INDEX}) -> {W}",
        {"a": F, "i": INDEX},
        W,
        ({0},),
    ),
    "dynamic_update_slice": Case(
        f"%0 = stablehlo.dynamic_update_slice %a, %b, %i, %i : ({F}, {W}, {INDEX}, {INDEX}) -> {F}",
        {"a": F, "b": W, "i": INDEX},
        F,
        ({0, 1},),
    ),
    "pad with zero": pad(ZERO),
    "convert f16 to f32": convert("f16", "f32", ({0},)),
    "dot": dot(),
    "dot of integers": dot("i32"),
    "convolution": CONVOLUTION,
    "reduce by add from zero": reduce(of("add"), ZERO, ({0},), "add"),
    "reduce by add, swapped": reduce(of("add", operands="%y, %x"), ZERO, ({0},), "add"),
    "reduce integers by add": reduce(
        of("add", "i32"), "%zero = stablehlo.constant dense<0> : tensor<i32>\n", ({0},), "add", dtype="i32"
    ),
    "scatter by add": scatter(of("add"), ({0, 2},), "add"),
    "gather": gather("f32", ({0},), "add"),
    "gather integers": gather("i32", ({0},), "add"),
}

# No sum may flow through these; some have a monoid of their own, or one that only joins parts.
NOT_LINEAR = {
    "divide integers": binary("divide", (), INTEGERS),
    "maximum": binary("maximum"),
    "exponential": unary("exponential"),
    "abs": unary("abs"),
    "or of booleans": binary("or", (), BOOLEANS),
    "add of booleans": binary("add", (), BOOLEANS),
    "pad with one": pad(ONE),
    "convert f32 to f16": convert("f32", "f16"),
    "convert f32 to i32": convert("f32", "i32"),
    "reduce by add from one": reduce(of("add"), ONE),
    "reduce by add from an argument": reduce(of("add"), ""),
    "reduce by max from the least": reduce(of("maximum"), LEAST, (), "max"),
    "whether any is true": reduce(of("or", "i1"), FALSE, (), "max", dtype="i1"),
    "whether all are true": reduce(of("and", "i1"), TRUE, (), "min", dtype="i1"),
    "reduce integers by and": reduce(
        of("and", "i32"), "%zero = stablehlo.constant dense<-1> : tensor<i32>\n", dtype="i32"
    ),
    "reduce by max from one": reduce(of("maximum"), ONE),
    "reduce by min from an argument": reduce(of("minimum"), ""),
    "reduce by multiply": reduce(of("multiply"), ONE),
    "reduce by add of one side": reduce(of("add", operands="%x, %x")),
    "reduce by add of a square": reduce(f"%s = stablehlo.multiply %y, %y : {S}\n" + of("add", operands="%x, %s")),
    "reduce that returns one side": reduce(f"%r = stablehlo.reshape %y : ({S}) -> {S}\n"),
    "scatter that replaces": scatter(f"%r = stablehlo.reshape %y : ({S}) -> {S}\n"),
    "scatter by max": scatter(of("maximum")),
    "gather booleans": gather("i1", (), None),
}
CASES = {**LINEAR, **NOT_LINEAR}


def draw(kind, rng, least=1):
    """Random values of a type: small whole numbers of size `least` or more, whose sums are exact in every float."""
    if kind in (ROWS, INDEX):
        return rng.integers(0, 4, (5, 1) if kind == ROWS else ()).astype(np.int32)
    *shape, dtype = kind.removeprefix("tensor<").removesuffix(">").split("x")
    values = rng.integers(0, 2, [int(n) for n in shape])
    if dtype != "i1":
        values = (2 * values - 1) * rng.integers(least, least + 8, values.shape)
    return np.asarray(values).astype(DTYPES[dtype])


def commutes(case, chosen, seed=0):
    """Whether the op commutes with addition over the arguments `chosen`, by the interpreter, the others kept."""
    rng = np.random.default_rng(seed)
    held = [draw(kind, rng) for kind in case.arguments.values()]
    if any(
        held[number].dtype == np.bool_ or list(case.arguments.values())[number] in (ROWS, INDEX) for number in chosen
    ):
        return False  # no numbers to add: booleans and indices
    # Larger than what is held: a sum of both is never 0, by which the interpreter would not divide.
    other = [draw(kind, rng, 10) if n in chosen else held[n] for n, kind in enumerate(case.arguments.values())]
    both = [held[n] + other[n] if n in chosen else held[n] for n in range(len(held))]
    parts, whole = [evaluate(case.text, values)[0] for values in (held, other)], evaluate(case.text, both)[0]
    return whole.dtype != np.bool_ and np.allclose(whole, parts[0] + parts[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_claims_are_those_worked_out_by_hand(name):
    case = CASES[name]
    assert [set(chosen) for chosen in linear_in(case.op)] == list(case.linear)
    assert reduction_of(case.op) == case.reduction


@pytest.mark.parametrize("name", LINEAR)
def test_claimed_linearity_holds_in_numbers(name):
    for chosen in linear_in(LINEAR[name].op):
        assert all(commutes(LINEAR[name], chosen, seed) for seed in range(3))


UNCLAIMED = {
    ("reduce by add from an argument", (0, 1)),  # sums of scalars do not flow on
    ("reduce by add of one side", (0,)),  # the result is 0, twice the initial value
    ("reduce that returns one side", (0,)),  # whose order the specification leaves open
    ("scatter that replaces", (0, 2)),  # of updates that may meet, in an order that is left open too
    ("convert f32 to f16", (0,)),  # rounds or overflows each part by itself, unless they are small whole numbers
    ("convert f32 to i32", (0,)),
}
"""What holds in these numbers and is not claimed, with the reason."""


def test_nothing_linear_is_missed():
    missing = set()
    for name, case in CASES.items():
        claimed = {tuple(sorted(chosen)) for chosen in linear_in(case.op)}
        sets = [chosen for size in (1, 2, 3) for chosen in combinations(range(len(case.arguments)), size)]
        missing |= {
            (name, chosen)
            for chosen in sets
            if chosen not in claimed and all(commutes(case, chosen, seed) for seed in range(2))
        }
    assert missing == UNCLAIMED


REDUCTIONS = [name for name, case in CASES.items() if name.startswith("reduce") and case.reduction]
JOIN = {"add": np.add, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_parts_of_a_split_reduction_join_by_its_monoid(name):
    """Each half of the reduced dim is reduced by itself, from the same initial value."""
    case = CASES[name]
    whole = [draw(kind, np.random.default_rng(1)) for kind in case.arguments.values()]
    half = case.text.replace("4x6x", "4x3x")
    parts = [evaluate(half, [whole[0][:, start : start + 3], *whole[1:]])[0] for start in (0, 3)]
    np.testing.assert_array_equal(JOIN[case.reduction](*parts), evaluate(case.text, whole)[0])


def test_a_variadic_reduce_has_no_monoid():
    text = f"""{ZERO}%0, %1 = stablehlo.reduce(%a init: %zero), (%a init: %zero) across dimensions = [1]
      : ({F}, {F}, {S}, {S}) -> (tensor<4xf32>, tensor<4xf32>)
      reducer(%x: {S}, %p: {S}) (%y: {S}, %q: {S}) {{
        %r = stablehlo.add %x, %p : {S}
        %s = stablehlo.add %y, %q : {S}
        stablehlo.return %r, %s : {S}, {S} }}"""
    (op,) = ops_of(function(text, {"a": F}, {}), "stablehlo.reduce")
    assert (reduction_of(op), linear_in(op)) == (None, ())


def test_minus_zero_is_zero_and_not_a_splat_is_not():
    minus = reduce(of("add"), "%zero = stablehlo.constant dense<-0.0> : tensor<f32>\n")
    assert reduction_of(minus.op) == "add"
    computed = reduce(
        of("add"), "%c = stablehlo.constant dense<1.0> : tensor<f32>\n%zero = stablehlo.subtract %c, %c : tensor<f32>\n"
    )
    assert reduction_of(computed.op) is None


@pytest.mark.parametrize(("source", "target"), [("bf16", "f16"), ("f16", "bf16")])
def test_floats_of_one_width_do_not_hold_each_other(source, target):
    """Parts of 2^17 and -2^17 overflow f16 where their sum, 0, does not; parts of 257 and -256 lose the 1 in bf16."""
    assert linear_in(convert(source, target).op) == ()
    text = f"""%s = stablehlo.convert %a : (tensor<f32>) -> tensor<{source}>
      %t = stablehlo.convert %s : (tensor<{source}>) -> tensor<{target}>
      %0 = stablehlo.convert %t : (tensor<{target}>) -> tensor<f32>"""
    large, small = (2.0**17, -(2.0**17)) if target == "f16" else (257.0, -256.0)
    parts = [evaluate(function(text, {"a": S}, {"0": S}), [np.float32(part)])[0] for part in (large, small)]
    with np.errstate(invalid="ignore"):
        assert parts[0] + parts[1] != large + small


def test_an_op_without_results_claims_nothing():
    (op,) = ops_of("func.func @main() { return }", "func.return")
    assert (reduction_of(op), linear_in(op)) == (None, ())
