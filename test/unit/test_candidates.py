"""Strategies by hand, by enumeration of all that could be one, and by what Shardy makes of them.

By enumeration: every way in which operands could lie and results could come, simulated on two devices with the op itself as the local op,
says which strategies are right. A strategy that is not among them is wrong; one that is, and follows from none in the list, is missing.
"""

from dataclasses import dataclass
from itertools import product

import jax
import numpy as np
import pytest
from snippets import DTYPES, class_of, context, evaluate, function, parse, tensor

from rhino.ir.manual import strip_shardings, wrap_manual
from rhino.ir.mlir import ir
from rhino.ir.shardings import sharding_attribute
from rhino.ir.spec import PARTIAL, REPLICATED, all_specs, spec_text, split, split_dim
from rhino.passes.localize import localized_copy
from rhino.runtime.executable import compile_module
from rhino.runtime.steps import run_steps
from rhino.strategies.candidates import REPLICATE, State, following, strategies, strategy_name

R, P, S0, S1, S2 = REPLICATED, PARTIAL, split(0), split(1), split(2)
ZERO, ONE = (f"%zero = stablehlo.constant dense<{value}> : tensor<f32>\n" for value in ("0.0", "1.0"))


@dataclass(frozen=True)
class Op:
    """One op: its text after `%0 =`, with `{0}`, `{1}`, ... for the types of its operands %a, %b, ..., and `{r}` for its result's.

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
        return strategies(self.cls(axis_size), (axis_size,))


class Kind(str):
    __slots__ = ()

    @property
    def shape(self):
        return [int(n) for n in self.removeprefix("tensor<").removesuffix(">").split("x")[:-1]]

    @property
    def dtype(self):
        return self.removesuffix(">").replace("<", "x").split("x")[-1]


def dot(left, right, result, dims="contracting_dims = [1] x [0]"):
    return Op(f"stablehlo.dot_general %a, %b, {dims} : ({{0}}, {{1}}) -> {{r}}", (tensor(left), tensor(right)), tensor(result))


def elementwise(name, count, dtype="f32"):
    names = ", ".join(f"%{letter}" for letter in "abc"[:count])
    return Op(f"stablehlo.{name} {names} : {{r}}", (tensor((4, 6), dtype),) * count, tensor((4, 6), dtype))


def shaped(name, source, target, options=""):
    return Op(f"stablehlo.{name} %a{options} : ({{0}}) -> {{r}}", (tensor(source),), tensor(target))


def reduce(monoid, init=ZERO):
    body = f"stablehlo.reduce(%a init: %zero) applies stablehlo.{monoid} across dimensions = [1] : ({{0}}, tensor<f32>) -> {{r}}"
    return Op(body, (tensor((4, 6)),), tensor((4,)), init)


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
    "select": Op("stablehlo.select %a, %b, %c : {0}, {r}", (tensor((4, 6), "i1"), *[tensor((4, 6))] * 2), tensor((4, 6))),
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
    "reduce by max": reduce("maximum"),
    "reduce by max from one": reduce("maximum", ONE),
    "reduce by multiply": reduce("multiply", ONE),
    "reverse": Op("stablehlo.reverse %a, dims = [1] : {r}", (tensor((4, 6)),), tensor((4, 6))),
    "slice": Op("stablehlo.slice %a [0:{0.shape[0]}, 1:5] : ({0}) -> {r}", (tensor((4, 6)),), tensor((4, 4))),
    "concatenate": Op("stablehlo.concatenate %a, %b, dim = 1 : ({0}, {1}) -> {r}", (tensor((4, 6)),) * 2, tensor((4, 12))),
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
        strategy_name(cls, s.strategy): "".join(map(spec_text, s.needs)) + "->" + "".join(map(spec_text, s.comes))
        for s in op.states(axis_size)
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("dot", {"replicate": "RR->R", "i": "S0R->S0", "j": "RS1->S1", "k": "S1S0->P", "partial 0": "PR->P", "partial 1": "RP->P"}),
        ("dot of odd sizes", {"replicate": "RR->R", "i": "S0R->S0", "partial 0": "PR->P", "partial 1": "RP->P"}),
        ("add", {"replicate": "RR->R", "i": "S0S0->S0", "j": "S1S1->S1", "partial 0 1": "PP->P"}),
        ("tanh", {"replicate": "R->R", "i": "S0->S0", "j": "S1->S1"}),
        ("select", {"replicate": "RRR->R", "i": "S0S0S0->S0", "j": "S1S1S1->S1", "partial 1 2": "RPP->P"}),
        ("reshape across", {"replicate": "R->R", "i": "S0->S0", "partial 0": "P->P"}),
        ("reshape behind an odd dim", {"replicate": "R->R", "partial 0": "P->P"}),
        ("reverse", {"replicate": "R->R", "i": "S0->S0", "partial 0": "P->P"}),
        ("reduce by add", {"replicate": "RR->R", "i": "S0R->S0", "j": "S1R->P", "partial 0": "PR->P"}),
        ("reduce by add from one", {"replicate": "RR->R", "i": "S0R->S0"}),
        ("reduce by max from one", {"replicate": "RR->R", "i": "S0R->S0", "j": "S1R->P"}),
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
    assert [s.monoid for s in OPS["reduce by max"].states() if s.comes == (P,)] == ["max"]
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
    assert [s.comes for s in OPS["dot over two dims"].states()].count((P,)) == 2  # each of the two summed dims, split


def test_free_ops_follow_their_users():
    body = "%i = stablehlo.iota dim = 0 : tensor<4x6xf32>\n%b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4x6xf32>"
    text = function(body, {"s": tensor(())}, {"i": tensor((4, 6)), "b": tensor((4, 6))})
    for name in ("iota", "broadcast_in_dim"):
        cls = class_of(text, f"stablehlo.{name}")
        assert [following(cls, wanted, (2,)).comes for wanted in (R, S0, S1)] == [(R,), (S0,), (S1,)]
        assert [following(cls, wanted, (4,)).comes for wanted in (S0, S1)] == [(S0,), (R,)]
        assert following(cls, P, (2,)).comes == (R,)


# By enumeration


def local(kind, spec):
    """The type on one of two devices."""
    dim, kind = split_dim(spec), Kind(kind)
    return tensor([n // 2 if d == dim else n for d, n in enumerate(kind.shape)], kind.dtype)


def draw(kind, rng):
    """Whole numbers, so that sums are exact in whatever order."""
    kind = Kind(kind)
    values = rng.integers(0, 2, kind.shape) if kind.dtype == "i1" else rng.integers(1, 9, kind.shape) * rng.choice([-1, 1], kind.shape)
    return np.asarray(values).astype(DTYPES[kind.dtype])


def parts_of(value, spec, rng):
    """What each of two devices holds of a value."""
    dim = split_dim(spec)
    if dim is not None:
        return np.split(value, 2, dim)
    if spec == PARTIAL:
        # Never 0 where something is divided: values are at most 8.
        part = draw(tensor(value.shape), rng).astype(value.dtype) * 16
        return [part, value - part]
    return [value, value]


def joined(parts, spec, monoid):
    """What two devices' results are together, or None where they should be equal and are not."""
    dim = split_dim(spec)
    if dim is not None:
        return np.concatenate(parts, dim)
    if spec == PARTIAL:
        return np.maximum(*parts) if monoid == "max" else parts[0] + parts[1]
    return parts[0] if np.array_equal(*parts) else None


def is_right(op, needs, comes, monoid, seeds=2):
    """Whether two devices that hold operands as `needs` and run `op` on them hold its result as `comes`."""
    text = op.text([local(kind, spec) for kind, spec in zip(op.operands, needs, strict=True)], local(op.result, comes))
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        values = [draw(kind, rng) for kind in op.operands]
        held = zip(*(parts_of(value, spec, rng) for value, spec in zip(values, needs, strict=True)), strict=True)
        try:
            together = joined([evaluate(text, one)[0] for one in held], comes, monoid)
        except ir.MLIRError:
            return False  # no op of these shapes
        whole = evaluate(op.text(op.operands, op.result), values)[0]
        if together is None or not np.allclose(together, whole, rtol=1e-4):
            return False
    return True


def lies(kind):
    """All ways in which a value of this type could lie."""
    kind = Kind(kind)
    return [*all_specs(tuple(kind.shape), (2,)), *([PARTIAL] if kind.dtype != "i1" else [])]


def follows(way, states, monoid):
    """Whether `way` is a strategy after slicing operands that are whole, or before slicing a whole result: neither sends anything."""

    def is_free(source, target):
        return source == target or (source == R and (target >= 2 or (target == P and monoid == "max")))

    needs, comes = way
    return any(all(map(is_free, needs, s.needs[: len(needs)])) and is_free(s.comes[0], comes) for s in states)


def ways_of(op):
    return list(product(product(*map(lies, op.operands)), lies(op.result)))


def spell(way):
    return "".join(map(spec_text, way[0])) + "->" + spec_text(way[1])


MISSING = {
    "dot over two dims": {"PR->P", "RP->P"},  # a scalar's sum is taken where it arises
}
"""Strategies that are right and left out, with the reason."""


@pytest.mark.parametrize("name", OPS)
def test_strategies_are_those_that_are_right(name):
    op, states = OPS[name], OPS[name].states()
    count, monoid = len(op.operands), op.cls().reduction or "add"
    claimed = {(s.needs[:count], s.comes[0]) for s in states}
    assert all(need == R for s in states for need in s.needs[count:])
    wrong = {spell(way) for way in claimed if not is_right(op, *way, monoid)}
    assert not wrong
    right = [way for way in ways_of(op) if not follows(way, states, monoid) and is_right(op, *way, monoid)]
    assert {spell(way) for way in right} == MISSING.get(name, set())


def test_the_simulation_tells_right_from_wrong():
    assert is_right(OPS["dot"], (S1, S0), P, "add")
    assert not is_right(OPS["dot"], (S1, S0), R, "add")
    assert not is_right(OPS["dot"], (P, P), P, "add")
    assert not is_right(OPS["add"], (P, R), P, "add")
    assert not is_right(OPS["tanh"], (P,), P, "add")
    assert not is_right(OPS["reduce by add from one"], (S1,), P, "add")
    assert not is_right(OPS["reshape behind an odd dim"], (S1,), S0, "add")


# By what Shardy makes of them: ops whose local form is another op, with masks and offsets

ROWS = tensor((6, 1), "i32")
SHARDY = {
    "gather": Op(
        '"stablehlo.gather"(%a, %b) {{slice_sizes = array<i64: 1, 4>, dimension_numbers = #stablehlo.gather<offset_dims = [1], '
        "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}} : ({0}, {1}) -> {r}",
        (tensor((8, 4)), ROWS),
        tensor((6, 4)),
    ),
    "scatter by add": Op(
        '"stablehlo.scatter"(%a, %b, %c) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %s = stablehlo.add %x, %y : tensor<f32> '
        "stablehlo.return %s : tensor<f32> }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], "
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}} : ({0}, {1}, {2}) -> {r}",
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
        '"stablehlo.sort"(%a) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) '
        "-> tensor<i1> stablehlo.return %p : tensor<i1> }}) {{dimension = 1 : i64}} : ({0}) -> {r}",
        (tensor((4, 6)),),
        tensor((4, 6)),
    ),
    **{name: OPS[name] for name in ("reduce by max", "slice", "pad", "concatenate", "reshape across")},
}


def annotated(op, state):
    """The op with operands, results and strategy as `state` says; what comes in parts is stored whole."""
    module = parse('sdy.mesh @mesh = <["x"=2]>\n' + op.text(op.operands, op.result))
    main = module.body.operations[1]
    with context():
        stored = [R if spec == P else spec for spec in state.comes]
        shardings = [
            sharding_attribute("mesh", ("x",), spec, len(Kind(kind).shape)) for kind, spec in zip(op.operands, state.needs, strict=False)
        ]
        main.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({"sdy.sharding": one}) for one in shardings])
        result = sharding_attribute("mesh", ("x",), stored[0], len(Kind(op.result).shape))
        main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get({"sdy.sharding": result})])
        found = next(view.operation for view in main.regions[0].blocks[0].operations if view.operation.name == op.name)
        found.attributes["sdy.sharding"] = ir.Attribute.parse(f"#sdy.sharding_per_value<[{str(result).removeprefix('#sdy.sharding')}]>")
        found.attributes["rhino.strategy"] = ir.StringAttr.get(strategy_name(op.cls(), state.strategy))
    return module


def run(module, values, num_devices):
    (step,) = run_steps(compile_module(module, jax.devices()[:num_devices]), values, 1)
    return np.asarray(step.results[0])


@pytest.mark.parametrize("name", SHARDY)
def test_shardy_makes_the_same_op_of_every_split(name):
    op, rng = SHARDY[name], np.random.default_rng(0)
    values = [np.asarray(rng.integers(0, 6, Kind(kind).shape), np.int32) if "i32" in kind else draw(kind, rng) for kind in op.operands]
    plain = parse(op.text(op.operands, op.result))
    strip_shardings(plain)
    wanted = run(plain, values, 1)
    splits = [state for state in op.states() if state.strategy[0] >= 0]
    assert splits
    for state in splits:
        got = run(wrap_manual(localized_copy(annotated(op, state))), values, 2)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, err_msg=strategy_name(op.cls(), state.strategy))
