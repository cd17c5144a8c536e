"""Strategies by hand, by enumeration of all that could be one, and by what Shardy makes of them.

By enumeration: every way in which operands could lie and results could come, simulated on two devices with the op
itself as the local op, says which strategies are right. A strategy that is not among them is wrong; one that is, and
follows from none in the list, is missing.
"""

from dataclasses import dataclass, replace
from itertools import product
from math import prod

import jax
import numpy as np
import pytest
from grids import assembled, coordinates_of, dealt
from long_cases import one_in
from snippets import DTYPES, class_of, context, evaluate, function, parse, tensor

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.graph.spec import (
    PARTIAL,
    REPLICATED,
    all_specs,
    at,
    dim_parts,
    entry,
    partial_axes,
    spec_text,
    split,
    unpack,
    without_partial,
)
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.manual import strip_shardings, wrap_manual
from rhino.ir.mlir.shardings import sharding_attribute
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.steps import run_steps
from rhino.strategies.cost import reshard
from rhino.strategies.cost.candidates import REPLICATE, State, following, reads_halos, strategies, strategy_name

R, P, S0, S1, S2 = REPLICATED, PARTIAL, split(0), split(1), split(2)
ZERO, ONE = (f"%zero = stablehlo.constant dense<{value}> : tensor<f32>\n" for value in ("0.0", "1.0"))
LEAST, MOST = (f"%zero = stablehlo.constant dense<{bits}> : tensor<f32>\n" for bits in ("0xFF800000", "0x7F800000"))


@dataclass(frozen=True)
class Op:
    """One op: its text after `%0 =`, with `{0}`, ... for the types of operands %a, ..., and `{r}` for its result's.

    `{r.shape}` or `{0.shape}` in it are lists of sizes, so that the text is right for the shapes of one device too.
    """

    body: str
    operands: tuple[str, ...]
    result: str
    before: str = ""

    @property
    def name(self):
        return self.body.split("(")[0].split()[0].strip('"')

    def text(self, operands, result):
        body = self.body.format(*map(Kind, operands), r=Kind(result))
        return function(f"{self.before}%0 = {body}", dict(zip("abcde", operands, strict=False)), {"0": result})

    def cls(self, axis_size=2):
        return class_of(self.text(self.operands, self.result), self.name, axis_size)

    def states(self, axis_size=2):
        """On one axis of that size, or on axes of several sizes."""
        return strategies(self.cls(axis_size), axis_size if isinstance(axis_size, tuple) else (axis_size,))


class Kind(str):
    __slots__ = ()

    @property
    def shape(self):
        return [int(n) for n in self.removeprefix("tensor<").removesuffix(">").split("x")[:-1]]

    @property
    def dtype(self):
        return self.removesuffix(">").replace("<", "x").split("x")[-1]


def dot(left, right, result, dims="contracting_dims = [1] x [0]"):
    return Op(
        f"stablehlo.dot_general %a, %b, {dims} : ({{0}}, {{1}}) -> {{r}}", (tensor(left), tensor(right)), tensor(result)
    )


def elementwise(name, count, dtype="f32", shape=(4, 6)):
    names = ", ".join(f"%{letter}" for letter in "abc"[:count])
    return Op(f"stablehlo.{name} {names} : {{r}}", (tensor(shape, dtype),) * count, tensor(shape, dtype))


def shaped(name, source, target, options=""):
    return Op(f"stablehlo.{name} %a{options} : ({{0}}) -> {{r}}", (tensor(source),), tensor(target))


def reduce(monoid, init=ZERO, shape=(4, 6)):
    body = (
        f"stablehlo.reduce(%a init: %zero) applies stablehlo.{monoid} across dimensions = [1] "
        f": ({{0}}, tensor<f32>) -> {{r}}"
    )
    return Op(body, (tensor(shape),), tensor(shape[:1]), init)


OPS = {
    "dot": dot((4, 6), (6, 8), (4, 8)),
    "dot of odd sizes": dot((4, 3), (3, 5), (4, 5)),
    "dot in batches": dot((2, 4, 6), (2, 6, 8), (2, 4, 8), "batching_dims = [0] x [0], contracting_dims = [2] x [1]"),
    "dot over two dims": dot((4, 6), (4, 6), (), "contracting_dims = [0, 1] x [0, 1]"),
    "outer product": dot((4,), (6,), (4, 6), "contracting_dims = [] x []"),
    "tanh": elementwise("tanh", 1),
    "negate": elementwise("negate", 1),
    "add": elementwise("add", 2),
    "subtract": elementwise("subtract", 2),
    "multiply": elementwise("multiply", 2),
    "divide": elementwise("divide", 2),
    "maximum": elementwise("maximum", 2),
    "or": elementwise("or", 2, "i1"),
    "select": Op(
        "stablehlo.select %a, %b, %c : {0}, {r}", (tensor((4, 6), "i1"), *[tensor((4, 6))] * 2), tensor((4, 6))
    ),
    "compare": Op("stablehlo.compare LT, %a, %b : ({0}, {1}) -> {r}", (tensor((4, 6)),) * 2, tensor((4, 6), "i1")),
    "convert": Op("stablehlo.convert %a : ({0}) -> {r}", (tensor((4, 6)),), tensor((4, 6), "f64")),
    "transpose": shaped("transpose", (2, 4, 6), (6, 2, 4), ", dims = [2, 0, 1]"),
    "broadcast along a new dim": shaped("broadcast_in_dim", (6,), (4, 6), ", dims = [1]"),
    "broadcast of a dim of one": shaped("broadcast_in_dim", (4, 1), (4, 6), ", dims = [0, 1]"),
    "reshape that joins": shaped("reshape", (4, 6), (24,)),
    "reshape that parts": shaped("reshape", (24,), (4, 6)),
    "reshape across": shaped("reshape", (4, 6), (2, 12)),
    "reshape behind an odd dim": shaped("reshape", (3, 4), (12,)),
    "reshape behind a dim of one": shaped("reshape", (1, 8), (8,)),
    "reduce by add": reduce("add"),
    "reduce by add from one": reduce("add", ONE),
    "reduce by max": reduce("maximum", LEAST),
    "reduce by max from one": reduce("maximum", ONE),
    "reduce by multiply": reduce("multiply", ONE),
    "reverse": Op("stablehlo.reverse %a, dims = [1] : {r}", (tensor((4, 6)),), tensor((4, 6))),
    "slice": Op("stablehlo.slice %a [0:{0.shape[0]}, 1:5] : ({0}) -> {r}", (tensor((4, 6)),), tensor((4, 4))),
    "concatenate": Op(
        "stablehlo.concatenate %a, %b, dim = 1 : ({0}, {1}) -> {r}", (tensor((4, 6)),) * 2, tensor((4, 12))
    ),
    "pad": Op(
        "stablehlo.pad %a, %zero, low = [1, 0], high = [1, 0], interior = [0, 0] : ({0}, tensor<f32>) -> {r}",
        (tensor((4, 6)),),
        tensor((6, 6)),
        ZERO,
    ),
}


# By hand


def listed(op, axis_size=2):
    """The strategies of an op as a reader writes them: name, specs of operands and results."""
    cls = op.cls(axis_size)
    return {
        strategy_name(cls, s.strategy): "".join(map(spec_text, s.operand_specs))
        + "->"
        + "".join(map(spec_text, s.result_specs))
        for s in op.states(axis_size)
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            "dot",
            {
                "replicate": "RR->R",
                "i": "S0R->S0",
                "j": "RS1->S1",
                "k": "S1S0->P",
                "partial 0": "PR->P",
                "partial 1": "RP->P",
            },
        ),
        ("dot of odd sizes", {"replicate": "RR->R", "i": "S0R->S0", "partial 0": "PR->P", "partial 1": "RP->P"}),
        ("add", {"replicate": "RR->R", "i": "S0S0->S0", "j": "S1S1->S1", "partial 0 1": "PP->P"}),
        ("tanh", {"replicate": "R->R", "i": "S0->S0", "j": "S1->S1"}),
        ("select", {"replicate": "RRR->R", "i": "S0S0S0->S0", "j": "S1S1S1->S1", "partial 1 2": "RPP->P"}),
        ("reshape across", {"replicate": "R->R", "i": "S0->S0", "partial 0": "P->P"}),
        ("reshape behind an odd dim", {"replicate": "R->R", "partial 0": "P->P"}),
        ("reverse", {"replicate": "R->R", "i": "S0->S0", "j": "S1->S1", "partial 0": "P->P"}),
        ("reduce by add", {"replicate": "RR->R", "i": "S0R->S0", "j": "S1R->P", "partial 0": "PR->P"}),
        ("reduce by add from one", {"replicate": "RR->R", "i": "S0R->S0"}),
        ("reduce by max", {"replicate": "RR->R", "i": "S0R->S0", "j": "S1R->P"}),
        ("reduce by max from one", {"replicate": "RR->R", "i": "S0R->S0"}),
    ],
)
def test_strategies_worked_out_by_hand(name, wanted):
    assert listed(OPS[name]) == wanted


def test_a_factor_is_split_where_the_axis_divides_it():
    """Of 4, 8 and 6 (summed), four devices divide the first two; eight only the second."""
    assert set(listed(OPS["dot"], 4)) == {"replicate", "i", "j", "partial 0", "partial 1"}
    assert set(listed(OPS["dot"], 8)) == {"replicate", "j", "partial 0", "partial 1"}
    assert set(listed(OPS["dot"], 3)) == {"replicate", "k", "partial 0", "partial 1"}


def test_replicating_comes_first():
    for op in OPS.values():
        states = op.states()
        assert states[0].strategy == (REPLICATE,)
        assert len(set(states)) == len(states)


def test_a_sum_for_the_maximum_is_marked():
    assert [s.monoid for s in OPS["reduce by max"].states() if s.result_specs == (P,)] == ["max"]
    assert {s.monoid for s in OPS["reduce by add"].states()} == {"add"}


def test_what_has_no_rule_is_done_everywhere():
    branch = "{ stablehlo.return %a : tensor<4xf32> }"
    body = f'%0 = "stablehlo.case"(%p) ({branch}, {branch}) : (tensor<i32>) -> tensor<4xf32>'
    text = function(body, {"p": tensor((), "i32"), "a": tensor((4,))}, {"0": tensor((4,))})
    assert strategies(class_of(text, "stablehlo.case"), (2,)) == (State((REPLICATE,), (R, R), (R,)),)


def test_a_scalar_is_no_partial_sum_of_others():
    """It is small: its sum is taken where it arises."""
    body = "%0 = stablehlo.add %a, %b : tensor<f32>"
    cls = class_of(function(body, {"a": tensor(()), "b": tensor(())}, {"0": tensor(())}), "stablehlo.add")
    assert [s.strategy for s in strategies(cls, (2,))] == [(REPLICATE,)]
    assert [s.result_specs for s in OPS["dot over two dims"].states()].count(
        (P,)
    ) == 2  # each of the two summed dims, split


def test_free_ops_follow_their_users():
    body = (
        "%i = stablehlo.iota dim = 0 : tensor<4x6xf32>\n"
        "%b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4x6xf32>"
    )
    text = function(body, {"s": tensor(())}, {"i": tensor((4, 6)), "b": tensor((4, 6))})
    for name in ("iota", "broadcast_in_dim"):
        cls = class_of(text, f"stablehlo.{name}")
        assert [following(cls, wanted, (2,)).result_specs for wanted in (R, S0, S1)] == [(R,), (S0,), (S1,)]
        assert [following(cls, wanted, (4,)).result_specs for wanted in (S0, S1)] == [(S0,), (R,)]
        assert following(cls, P, (2,)).result_specs == (P,)


# By enumeration


def local(kind, spec, sizes):
    """The type on one device."""
    kind = Kind(kind)
    parts = dim_parts(spec, sizes, len(kind.shape))
    return tensor([extent // count for extent, count in zip(kind.shape, parts, strict=True)], kind.dtype)


def draw(kind, rng):
    """Whole numbers, so that sums are exact in whatever order."""
    kind = Kind(kind)
    values = (
        rng.integers(0, 2, kind.shape)
        if kind.dtype == "i1"
        else rng.integers(1, 9, kind.shape) * rng.choice([-1, 1], kind.shape)
    )
    return np.asarray(values).astype(DTYPES[kind.dtype])


def is_right(op, needs, comes, monoid, sizes=(2,), seeds=2):
    """Whether devices that hold operands as `needs` and run `op` on them hold its result as `comes`."""
    text = op.text(
        [local(kind, spec, sizes) for kind, spec in zip(op.operands, needs, strict=True)],
        local(op.result, comes, sizes),
    )
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        values = [draw(kind, rng) for kind in op.operands]
        held = [dealt(value, spec, sizes, rng) for value, spec in zip(values, needs, strict=True)]
        try:
            given = {at: evaluate(text, [parts[at] for parts in held])[0] for at in coordinates_of(sizes)}
        except ir.MLIRError:
            return False  # no op of these shapes
        together = assembled(given, comes, sizes, len(Kind(op.result).shape), JOINS[monoid])
        whole = evaluate(op.text(op.operands, op.result), values)[0]
        if together is None or not np.allclose(together, whole, rtol=1e-4):
            return False
    return True


JOINS = {"add": np.add, "max": np.maximum, "min": np.minimum}


def lies(kind, sizes=(2,)):
    """All ways in which a value of this type could lie."""
    kind = Kind(kind)
    return all_specs(tuple(kind.shape), sizes, () if kind.dtype == "i1" else range(len(sizes)))


def follows(way, states, monoid, ranks, num_axes=1):
    """Whether `way` is a strategy after slicing operands that are whole, or before slicing a whole result.

    Neither sends anything. For a maximum (of what is everywhere the same) to be whole is to be in parts, too.
    """

    def is_free(source, target, rank):
        if monoid != "add":
            whole = [axis for axis in partial_axes(target) if entry(source, axis) == R]
            target -= sum(at(P, axis) for axis in whole)
        steps = reshard.reshard_path(rank, source, target, num_axes)
        return steps is not None and all(step.kind == "slice" for step in steps)

    needs, comes = way
    return any(
        all(map(is_free, needs, s.operand_specs, ranks)) and is_free(s.result_specs[0], comes, ranks[-1])
        for s in states
    )


def ranks_of(op):
    return [len(Kind(kind).shape) for kind in (*op.operands, op.result)]


def ways_of(op, sizes=(2,)):
    return list(product(product(*(lies(kind, sizes) for kind in op.operands)), lies(op.result, sizes)))


def spell(way, names=()):
    return "".join(spec_text(spec, names) for spec in way[0]) + "->" + spec_text(way[1], names)


MISSING = {
    "dot over two dims": {"PR->P", "RP->P"},  # a scalar's sum is taken where it arises
}
"""Strategies that are right and left out, with the reason."""


@pytest.mark.parametrize("name", OPS)
def test_strategies_are_those_that_are_right(name):
    op = OPS[name]
    states = [s for s in op.states() if not reads_halos(op.cls(), s.strategy)]  # others: by what is made of them
    count, monoid = len(op.operands), op.cls().reduction or "add"
    claimed = {(s.operand_specs[:count], s.result_specs[0]) for s in states}
    assert all(need == R for s in states for need in s.operand_specs[count:])
    wrong = {spell(way) for way in claimed if not is_right(op, *way, monoid)}
    assert not wrong
    ranks = ranks_of(op)
    right = [way for way in ways_of(op) if not follows(way, states, monoid, ranks) and is_right(op, *way, monoid)]
    assert {spell(way) for way in right} == MISSING.get(name, set())


def test_the_simulation_tells_right_from_wrong():
    assert is_right(OPS["dot"], (S1, S0), P, "add")
    assert not is_right(OPS["dot"], (S1, S0), R, "add")
    assert not is_right(OPS["dot"], (P, P), P, "add")
    assert not is_right(OPS["add"], (P, R), P, "add")
    assert not is_right(OPS["tanh"], (P,), P, "add")
    assert not is_right(OPS["reduce by add from one"], (S1,), P, "add")
    assert not is_right(OPS["reshape behind an odd dim"], (S1,), S0, "add")


# On two axes

GRID = (2, 2)
GRID_OPS = {
    "dot": dot((4, 8), (8, 4), (4, 4)),
    "dot of which two axes divide one dim": dot((4, 2), (2, 2), (4, 2)),
    "tanh": elementwise("tanh", 1, shape=(4, 8)),
    "negate": elementwise("negate", 1, shape=(4, 8)),
    "add": elementwise("add", 2, shape=(4, 2)),
    "multiply": elementwise("multiply", 2, shape=(4, 2)),
    "reduce by add": reduce("add", shape=(4, 8)),
    "reduce by max": reduce("maximum", LEAST, (4, 8)),
    "reduce by min": reduce("minimum", MOST, (4, 8)),
    "reduce by add from one": reduce("add", ONE, (4, 8)),
    "transpose": shaped("transpose", (4, 8), (8, 4), ", dims = [1, 0]"),
    "broadcast along a new dim": shaped("broadcast_in_dim", (4,), (4, 8), ", dims = [0]"),
    "reshape that joins": shaped("reshape", (2, 4), (8,)),
    "reshape that joins more": shaped("reshape", (4, 4), (16,)),
    "reshape that parts": shaped("reshape", (8,), (2, 4)),
    "reshape across": shaped("reshape", (4, 6), (2, 12)),
    "reshape behind an odd dim": shaped("reshape", (3, 4), (12,)),
}


@pytest.mark.parametrize("name", GRID_OPS)
def test_strategies_on_two_axes_are_those_that_are_right(name):
    op = GRID_OPS[name]
    states, count, monoid, ranks = op.states(GRID), len(op.operands), op.cls(GRID).reduction or "add", ranks_of(op)
    claimed = {(s.operand_specs[:count], s.result_specs[0]) for s in states}
    assert not {spell(way, "xy") for way in claimed if not is_right(op, *way, monoid, GRID)}
    others = [way for way in ways_of(op, GRID) if not follows(way, states, monoid, ranks, 2)]
    assert not {spell(way, "xy") for way in others if is_right(op, *way, monoid, GRID)}


def needs_and_comes(op, sizes):
    """The strategies by name, as pairs of entries of each operand and of the result."""
    cls, count = op.cls(sizes), len(op.operands)
    specs = {strategy_name(cls, s.strategy): (*s.operand_specs[:count], s.result_specs[0]) for s in op.states(sizes)}
    return {name: tuple(unpack(spec, len(sizes)) for spec in entries) for name, entries in specs.items()}


def test_two_axes_may_split_one_factor_if_both_divide_it():
    """The outer one takes blocks, the inner one parts of them.

    4 rows are enough for 2 x 2 devices, and 2 columns for one of the axes alone.
    """
    found = needs_and_comes(GRID_OPS["dot of which two axes divide one dim"], GRID)
    assert found["i, i"] == ((S0, S0), (R, R), (S0, S0))
    assert found["i, j"] == ((S0, R), (R, S1), (S0, S1))
    assert {"j, replicate", "replicate, j"} < set(found)
    assert "j, j" not in found
    assert "k, k" not in found


def test_sums_over_both_axes_come_in_parts_of_both():
    found = needs_and_comes(GRID_OPS["dot"], GRID)
    assert found["k, k"] == ((S1, S1), (S0, S0), (P, P))
    assert found["k, partial 0"] == ((S1, P), (S0, R), (P, P))
    assert found["i, k"] == ((S0, S1), (R, S0), (S0, P))


@pytest.mark.parametrize(("name", "monoid"), [("max", "max"), ("min", "min"), ("add", "add")])
def test_a_reduction_over_both_axes_keeps_its_monoid(name, monoid):
    op = GRID_OPS[f"reduce by {name}"]
    parts = {
        s.strategy: s for s in op.states(GRID) if P in unpack(s.result_specs[0], 2) and min(s.strategy) >= REPLICATE
    }
    assert {s.monoid for s in parts.values()} == {monoid}
    assert {unpack(s.result_specs[0], 2) for s in parts.values()} == {(P, P), (P, R), (R, P), (P, S0), (S0, P)}


def test_an_inner_axis_splits_what_is_behind_a_factor_used_up():
    """Of [2, 4] joined to [8], x takes the 2 whole, and then y may cut the 4; as may x, had y not been there before."""
    joins, more = (needs_and_comes(GRID_OPS[name], GRID) for name in ("reshape that joins", "reshape that joins more"))
    assert joins["i, j"] == ((S0, S1), (S0, S0))
    assert not [name for name in joins if name.startswith("j") or name == "replicate, j"]
    assert "i, i" not in joins  # there are 2 of it
    assert more["i, i"] == ((S0, S0), (S0, S0))
    assert "i, j" not in more  # half of the 4 rows are left on each device


def test_axes_of_one_device_change_nothing():
    op = GRID_OPS["dot"]
    assert {s.operand_specs for s in op.states((1, 2))} >= {
        tuple(at(spec, 1) for spec in s.operand_specs) for s in op.states(2)
    }


@pytest.mark.parametrize("sizes", [(6,), (2, 3), (3, 2)])
def test_sizes_that_are_no_powers_of_two(sizes):
    """12 divides by all of them, 4 by two alone, 9 by three, 5 by none: what does not divide is not split."""
    cls = dot((12, 5), (5, 4), (12, 4)).cls(sizes)
    found = strategies(cls, sizes)
    split_by = {
        factor: {prod(n for n, f in zip(sizes, s.strategy, strict=True) if f == factor) for s in found}
        for factor in range(3)
    }
    every = {1, 6} if sizes == (6,) else {1, 2, 3, 6}
    assert split_by == {0: every, 1: every & {1, 2, 4}, 2: {1}}


# By what Shardy makes of them: ops whose local form is another op, with masks and offsets

ROWS = tensor((6, 1), "i32")
SHARDY = {
    "gather": Op(
        '"stablehlo.gather"(%a, %b) '
        "{{slice_sizes = array<i64: 1, 4>, dimension_numbers = #stablehlo.gather<offset_dims = [1], "
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}} : ({0}, {1}) -> {r}",
        (tensor((8, 4)), ROWS),
        tensor((6, 4)),
    ),
    "scatter by add": Op(
        '"stablehlo.scatter"(%a, %b, %c) '
        "({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %s = stablehlo.add %x, %y : tensor<f32> "
        "stablehlo.return %s : tensor<f32> }}) "
        "{{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}} "
        ": ({0}, {1}, {2}) -> {r}",
        (tensor((8, 4)), ROWS, tensor((6, 4))),
        tensor((8, 4)),
    ),
    "dynamic_update_slice": Op(
        "stablehlo.dynamic_update_slice %a, %b, %c, %d : ({0}, {1}, {2}, {3}) -> {r}",
        (tensor((8, 4)), tensor((2, 4)), tensor((), "i32"), tensor((), "i32")),
        tensor((8, 4)),
    ),
    "dynamic_slice": Op(
        "stablehlo.dynamic_slice %a, %b, %c, sizes = [2, 4] : ({0}, {1}, {2}) -> {r}",
        (tensor((8, 4)), tensor((), "i32"), tensor((), "i32")),
        tensor((2, 4)),
    ),
    "convolution": Op(
        "stablehlo.convolution(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{}} "
        "{{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({0}, {1}) -> {r}",
        (tensor((2, 8, 4)), tensor((3, 4, 6))),
        tensor((2, 6, 6)),
    ),
    "sort": Op(
        '"stablehlo.sort"(%a) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): '
        "%p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) "
        "-> tensor<i1> stablehlo.return %p : tensor<i1> }}) {{dimension = 1 : i64}} : ({0}) -> {r}",
        (tensor((4, 6)),),
        tensor((4, 6)),
    ),
    **{name: OPS[name] for name in ("reduce by max", "slice", "pad", "concatenate", "reshape across")},
}


def annotated(op, state, sizes):
    """The op with operands, results and strategy as `state` says; what comes in parts is stored whole."""
    names = mesh_of_shape(sizes).names
    axes = ", ".join(f'"{name}"={size}' for name, size in zip(names, sizes, strict=True))
    module = parse(f"sdy.mesh @mesh = <[{axes}]>\n" + op.text(op.operands, op.result))
    main = module.body.operations[1]
    with context():
        shardings = [
            sharding_attribute("mesh", names, spec, len(Kind(kind).shape))
            for kind, spec in zip(op.operands, state.operand_specs, strict=False)
        ]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({"sdy.sharding": one}) for one in shardings])
        result = sharding_attribute("mesh", names, without_partial(state.result_specs[0]), len(Kind(op.result).shape))
        main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({"sdy.sharding": result})])
        found = next(view.operation for view in main.regions[0].blocks[0].operations if view.operation.name == op.name)
        found.attributes["sdy.sharding"] = ir.Attribute.parse(
            f"#sdy.sharding_per_value<[{str(result).removeprefix('#sdy.sharding')}]>"
        )
        found.attributes["rhino.strategy"] = ir.StringAttr.get(strategy_name(op.cls(sizes), state.strategy))
    return module


def run(module, values, num_devices):
    (step,) = run_steps(compile_module(module, jax.devices()[:num_devices]), values, 1)
    return np.asarray(step.results[0])


def splits_of(op, sizes):
    """The strategies that an op of stored operands can have by itself: those that split something, and read no sum."""
    return [s for s in op.states(sizes) if min(s.strategy) >= REPLICATE and max(s.strategy) > REPLICATE]


LOCAL = [*SHARDY.items(), *GRID_OPS.items(), *((name, op) for name, op in OPS.items() if name not in SHARDY)]


@pytest.mark.parametrize(
    ("name", "op"), one_in(3, LOCAL), ids=[f"{number} {name}" for number, (name, _) in enumerate(LOCAL)]
)
def test_shardy_makes_the_same_op_of_every_split(name, op):
    rng = np.random.default_rng(0)
    values = [
        np.asarray(rng.integers(0, 6, Kind(kind).shape), np.int32) if "i32" in kind else draw(kind, rng)
        for kind in op.operands
    ]
    plain = parse(op.text(op.operands, op.result))
    strip_shardings(plain)
    wanted, met = run(plain, values, 1), 0
    for sizes in [(2,), (2, 2), (3, 2)]:
        for state in splits_of(op, sizes):
            got = run(wrap_manual(localized_copy(annotated(op, state, sizes))), values, prod(sizes))
            np.testing.assert_allclose(
                got, wanted, rtol=1e-6, err_msg=f"{name} on {sizes}: {strategy_name(op.cls(sizes), state.strategy)}"
            )
            met += 1
    assert met


def test_work_that_is_not_even_is_shared_as_by_devices_that_all_have_as_much_as_the_busiest():
    kind = "tensor<4x6xf32>"
    cls = replace(Op("stablehlo.add %a, %b : {r}", (kind, kind), kind).cls(), loads=((0, (1, 2, 3, 4)),))
    sizes = (2, 2, 3)

    def shares(*strategy):
        return State(strategy, (), ()).num_even_shares(cls, sizes)

    assert shares(REPLICATE, REPLICATE, REPLICATE) == 1
    assert shares(REPLICATE, REPLICATE, 1) == 3  # the other factor
    assert shares(0, REPLICATE, REPLICATE) == pytest.approx(10 / 7)  # 3 + 4 of 10
    assert shares(0, 0, 1) == pytest.approx(3 * 10 / 4)
