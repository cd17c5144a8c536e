"""A program with padded dims gives the same answer whatever the padding holds, and pads its results with zeros."""

from dataclasses import replace

import gpt
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import reference, tolerance
from snippets import context, parse
from traffic import splitting_cluster
from training import export_step
from zoo import GPT

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import entry_function, read_module, walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.ir.plan.plan import Tensor, dims_between_calls
from rhino.ir.program.stored_shapes import PADDED
from rhino.passes.base import Remarks
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.signature import read_signature

PASS = "rhino-pad"
SCALES = {"i": (np.int32, 0, 5), "u": (np.uint32, 0, 5), "f": (np.float32, -2, 2)}


def run_pass(text, pad, parts=4):
    """The module after the pass, and its remarks."""
    module, remarks = parse(text), Remarks()
    build_pass_manager(f'{PASS}{{pad="{pad}" parts={parts}}}', module.context, remarks).run(module.operation)
    assert module.operation.verify()
    return module, [remark.text for remark in remarks.items]


def lowered(fn, *shapes, donate=()):
    """A normalized program of a function; arguments are `arg0`, `arg1`, ..."""
    text = str(jax.jit(fn, donate_argnums=donate, keep_unused=True).lower(*shapes).as_text())
    with context():
        module = ir.Module.parse(text)
        build_pass_manager("rhino-normalize", module.context).run(module.operation)
        return str(module)


def names(module):
    return [op.name.removeprefix("stablehlo.") for op in walk(module.operation)]


def drawn(value, random):
    kind, low, high = SCALES[value.dtype.kind]
    numbers = random.uniform(low, high, value.shape)
    return numbers.astype(kind)


def run(module, inputs):
    """What one device makes of a program: the results as they are stored, and what they are."""
    executable = compile_module(module, jax.devices()[:1])
    results = executable.run([executable.put(index, value) for index, value in enumerate(inputs)])
    return [np.asarray(result) for result in results], executable.signature


def check_same(text, module, seed=0, atol=1e-5):
    """One device gives the same for the original and the rewritten program; what is carried is padded with zeros."""
    random = np.random.default_rng(seed)
    inputs = [drawn(value, random) for value in read_signature(parse(text)).arguments]
    (wanted, _), (given, signature) = run(parse(text), inputs), run(module, inputs)
    for value, got, want in zip(signature.results, given, wanted, strict=True):
        own = tuple(map(slice, value.shape))
        np.testing.assert_allclose(got[own], want, rtol=1e-3, atol=atol)
        padding = got.copy()
        padding[own] = 0
        assert not padding.any()


CLASSES, ROWS, HIDDEN = 5, 3, 2


def softmax_step(w, x):
    """A softmax over the classes, whose padding would be exp(0)."""
    return w - jax.grad(lambda w: -jax.nn.log_softmax(x @ w)[:, 0].mean())(w)


WEIGHT, BATCH = jax.ShapeDtypeStruct((HIDDEN, CLASSES), "float32"), jax.ShapeDtypeStruct((ROWS, HIDDEN), "float32")


def test_a_dim_is_stored_padded_and_masked_where_it_is_summed():
    text = lowered(softmax_step, WEIGHT, BATCH, donate=0)
    module, remarks = run_pass(text, "arg0:1")
    kinds = [
        [str(kind) for kind in side]
        for side in (entry_function(module).type.inputs, entry_function(module).type.results)
    ]
    assert kinds == [["tensor<2x8xf32>", "tensor<3x2xf32>"], ["tensor<2x8xf32>"]]
    for side in ("arg", "res"):
        assert list(ir.DenseI64ArrayAttr(boundary_attributes(entry_function(module), side)[0][PADDED])) == [2, 5]
    assert "is stored with 8 elements, 3 of them padding, as are 1 of 2 arguments: 24 B more in all" in remarks[0]
    check_same(text, module)
    again, _ = run_pass(str(module), "arg0:1")
    assert str(again) == str(module)


def test_zeros_need_no_mask():
    """A linear program: what it sums is padded with zeros already."""
    text = lowered(lambda w, x: (w - (x.T @ (x @ w)) * 0.1, (x @ w).sum()), WEIGHT, BATCH, donate=0)
    module, _ = run_pass(text, "arg0:1")
    assert "select" not in names(module)
    check_same(text, module)


def test_without_a_dim_only_what_is_of_use_is_padded():
    """No product takes the one row of a bias alone; dims of fewer elements than parts would more than double."""

    def step(w, x, gain):
        return jnp.tanh(x @ w), gain * 2

    text = lowered(step, WEIGHT, BATCH, jax.ShapeDtypeStruct((7,), "float32"))
    module, remarks = run_pass(text, "*")
    assert [str(kind) for kind in entry_function(module).type.inputs] == [
        "tensor<2x8xf32>",
        "tensor<3x2xf32>",
        "tensor<7xf32>",
    ]
    assert any("stays: no product, gather or scatter takes it" in remark for remark in remarks)
    check_same(text, module)
    assert [str(kind) for kind in entry_function(run_pass(text, "arg2:0")[0]).type.inputs][2] == "tensor<8xf32>"


def test_an_op_that_cannot_follow_reads_the_dim_cut():
    text = lowered(lambda w, x: jnp.sort(x @ w, axis=1)[:, ::-1], WEIGHT, BATCH)
    module, remarks = run_pass(text, "arg0:1")
    assert any("stablehlo.sort" in remark for remark in remarks)
    check_same(text, module)


@pytest.mark.parametrize(
    ("pad", "id", "what"),
    [
        ("arg7", "RHI-PIN-002", "pad 'arg7' matches no argument"),
        ("arg0:2", "RHI-PIN-002", "has no dim 2"),
        (":1", "RHI-CLI-001", "expected NAME, or NAME:DIM"),
        ("arg0:x", "RHI-CLI-001", "expected NAME, or NAME:DIM"),
    ],
)
def test_what_is_not_there_is_refused(pad, id, what):
    with pytest.raises(RhinoError, match=what) as caught:
        run_pass(lowered(softmax_step, WEIGHT, BATCH, donate=0), pad)
    assert caught.value.id == id


# Random programs: a value of [rows, size] goes through ops that follow padding, join what it holds, or cannot follow
# it.


def adam(p, g, m, v):
    m, v = (0.9 * a + 0.1 * b for a, b in ((m, g), (jnp.abs(v), g * g)))
    return p - 0.1 * m / (jnp.sqrt(v) + 1e-3), m, v


def loop(y, p):
    return jax.lax.scan(lambda h, row: (jnp.tanh(h @ p["v"]) + row, h.sum(0)), y, p["s"])


OPS = {
    "exponential": lambda y, p: jnp.exp(jnp.clip(y, -3, 3)),
    "divide": lambda y, p: p["b"] / y,
    "log": lambda y, p: jnp.log(jnp.abs(y)),
    "product": lambda y, p: y @ p["v"],
    "gram": lambda y, p: y @ jnp.tanh(y.T @ y),
    "outer": lambda y, p: y + jnp.einsum("rc,sc->crs", y, y).mean((1, 2)),
    "softmax": lambda y, p: jax.nn.softmax(y, axis=1),
    "softmax of rows": lambda y, p: jax.nn.softmax(y, axis=0),
    "standardize": lambda y, p: jax.nn.standardize(y, axis=1),
    "maximum": lambda y, p: y + y.max(1, keepdims=True),
    "product of all": lambda y, p: y + jnp.prod(jnp.cos(y), axis=1)[:, None],
    "any": lambda y, p: y + jnp.any(y > 2, axis=1)[:, None] + jnp.all(y < 2, axis=0),
    "argmax": lambda y, p: y + jnp.argmax(y, axis=1)[:, None],
    "argmin": lambda y, p: y + jnp.argmin(jnp.exp(y), axis=0),
    "sort": lambda y, p: y + jnp.sort(y, axis=1),
    "sort rows": lambda y, p: y + jnp.sort(y, axis=0),
    "cumulate": lambda y, p: y - jnp.cumsum(y, axis=1),
    "reverse": lambda y, p: y[:, ::-1] + y,
    "slice": lambda y, p: y + y[:, 1:2] * y[1:2],
    "join": lambda y, p: jnp.concatenate([y[:, 1:], y[:, :1]], axis=1),
    "stack": lambda y, p: jnp.concatenate([y, 2 * y], axis=0)[1::2],
    "transpose twice": lambda y, p: jnp.sin(y.T).T,
    "flatten": lambda y, p: jnp.cos(y.reshape(-1)).reshape(y.shape),
    "flatten turned": lambda y, p: jnp.exp(-y.T.reshape(-1)).reshape(y.shape[::-1]).T,
    "mask": lambda y, p: jnp.where(jnp.tri(*y.shape, dtype=bool), y, -jnp.inf).max(1, keepdims=True) + y,
    "one hot": lambda y, p: y + jax.nn.one_hot(p["i"], y.shape[1]).sum(0),
    "take": lambda y, p: y + y[:, p["i"][0]][:, None] + jnp.take(y, p["i"], axis=1, mode="clip").sum(1, keepdims=True),
    "take rows": lambda y, p: y + p["v"][p["i"]].sum(0),
    "take along": lambda y, p: y + jnp.take_along_axis(y, jnp.minimum(p["i"][: y.shape[0]], 1)[:, None], axis=1),
    "add at": lambda y, p: y.at[:, p["i"]].add(1.0, mode="drop"),
    "put at": lambda y, p: y.at[:, p["i"][:1] + 2].set(0.5, mode="drop"),
    "count": lambda y, p: y + jnp.zeros_like(y[0]).at[p["i"]].add(jnp.exp(p["b"][0])),
    "segments": lambda y, p: y + jax.ops.segment_sum(jnp.cos(y), p["i"][: y.shape[0]], 3).sum(0),
    "dropout": lambda y, p: y * jax.random.bernoulli(jax.random.key(3), 0.5, y.shape),
    "narrow": lambda y, p: y.astype(jnp.bfloat16).astype(jnp.float32),
    "loop": lambda y, p: loop(y, p)[0] + loop(y, p)[1].mean(0),
    "count up": lambda y, p: jax.lax.fori_loop(
        0, 2, lambda n, h: h + jax.lax.dynamic_index_in_dim(p["s"], n, keepdims=False), y
    ),
    "update": lambda y, p: jax.lax.dynamic_update_slice_in_dim(y, y[:1] * 2, p["i"][0] % 2, 0),
    "checkpoint": lambda y, p: jax.checkpoint(lambda h: jnp.tanh(h @ p["v"]))(y),
    "branch": lambda y, p: jax.lax.cond(p["b"][0] > 0, lambda: jnp.exp(-y * y), lambda: y * p["b"]),
    "norm": lambda y, p: y * jnp.minimum(1, 1 / jnp.sqrt(sum(jnp.sum(jnp.cos(one) ** 2) for one in (p["v"], p["b"])))),
    "ints": lambda y, p: y + (jnp.arange(y.shape[1]) // jnp.maximum(p["i"].sum(), 1)).sum(),
}


PADS = ("arg0:0", "arg13:0", "arg0:0; arg13:0", "*", "arg2:1; arg1:1; arg3:0")
"""Arguments by number: b, s, v, w, their moments and squares, i (12), x (13)."""


def step_text(rows, size, chain, is_trained):
    """A step that carries `w`, `v`, `b`, `s` and their moments: a chain of ops, or its gradient and Adam."""

    def forward(p):
        y = p["x"] @ p["w"]
        for name in chain:
            y = OPS[name](y, p)
        return y

    def train(weights, moments, squares, rest):
        def loss(weights):
            return jnp.tanh(forward({**weights, **rest}) / 8).mean()

        value, slopes = jax.value_and_grad(loss)(weights)
        new = {name: adam(weights[name], slopes[name], moments[name], squares[name]) for name in weights}
        return *({name: one[n] for name, one in new.items()} for n in range(3)), value

    def infer(weights, moments, squares, rest):
        return weights, moments, squares, forward({**weights, **rest})

    shapes = {"w": (2, size), "b": (size,), "v": (size, size), "s": (2, rows, size)}
    weights = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    rest = {"x": jax.ShapeDtypeStruct((rows, 2), jnp.float32), "i": jax.ShapeDtypeStruct((5,), jnp.int32)}
    return lowered(train if is_trained else infer, weights, weights, weights, rest, donate=(0, 1, 2))


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    sizes=st.sampled_from([(3, 5), (5, 3), (5, 5)]),
    chain=st.lists(st.sampled_from(sorted(OPS)), min_size=1, max_size=5),
    is_trained=st.booleans(),
    pad=st.sampled_from(PADS),
    parts=st.sampled_from([2, 4]),
)
def test_a_random_program_computes_the_same(sizes, chain, is_trained, pad, parts):
    text = step_text(*sizes, chain, is_trained)
    check_same(text, run_pass(text, pad, parts)[0], atol=1e-3)


def gpt_step(**changes):
    """A GPT of one layer with a tied embedding of 509 rows; nothing but the rows can be split in four."""
    return export_step(gpt.model(replace(GPT, layers=1, hidden=30, heads=6, vocab=509, **changes))).encode()


def planned(text, name, cluster, pad):
    """The step planned for four devices, its predicted time, and how its embedding lies."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    build_pass_manager(f'auto-shard{{cluster="{cluster}" mesh=4 pad="{pad}"}}', module.context, remarks).run(
        module.operation
    )
    return (
        module,
        remarks.result(ShardingChoice).answer.cost,
        str(boundary_attributes(entry_function(module), "arg")[0].get(SHARDING)),
    )


@pytest.fixture(scope="module")
def splitting(tmp_path_factory):
    """Devices so slow, on links so fast, that it pays to split anything."""
    file = tmp_path_factory.mktemp("clusters") / "splitting.toml"
    file.write_text(splitting_cluster(), encoding="utf-8")
    return str(file)


def test_a_padded_vocabulary_is_split_where_that_pays(splitting):
    text = gpt_step()
    _, whole_s, whole = planned(text, "gpt", splitting, "")
    module, split_s, split = planned(text, "gpt", splitting, "embed:0")
    assert ("x" in whole.split("[")[1], '[{"x"}, {}]' in split) == (False, True)
    assert split_s < 0.95 * whole_s
    stored = {value.name: value.stored for value in read_signature(module).arguments if value.stored != value.shape}
    assert stored == {f"state.{part}['embed']": (512, 30) for part in ("params", "mu", "nu")}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt", {"dropout": 0.1, "scan": True}),
        pytest.param("gpt-bf16", {"dropout": 0.1, "dtype": "bf16"}, marks=pytest.mark.long),
    ],
)
def test_steps_of_a_padded_gpt_on_four_devices_give_the_answer_of_one(splitting, name, changes):
    text = gpt_step(**changes)
    module, _, split = planned(text, name, splitting, "embed:0")
    assert '[{"x"}, {}]' in split
    executable = compile_module(wrap_manual(localized_copy(module, name)), jax.devices()[:4])
    found = reference(text, name, 3).difference(executable, tolerance(name))
    assert found.passes, found


def train(state, batch, key):
    """A step with a tied embedding, dropout over the classes, and Adam on gradients clipped by their global norm."""

    def loss(weights):
        hidden = jnp.tanh(weights["embed"][batch[0]] @ weights["inner"])
        logits = hidden @ weights["embed"].T
        logits = logits * jax.random.bernoulli(jax.random.fold_in(key, state["count"]), 0.9, logits.shape)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch[1][:, None], 1).mean(), logits

    (value, logits), slopes = jax.value_and_grad(loss, has_aux=True)(state["weights"])
    norm = jnp.sqrt(sum(jnp.vdot(slope, slope) for slope in jax.tree.leaves(slopes)))
    slopes = jax.tree.map(lambda slope: slope * jnp.minimum(1, 0.5 / norm), slopes)
    new = jax.tree.map(adam, state["weights"], slopes, state["mu"], state["nu"])
    weights, mu, nu = jax.tree.transpose(jax.tree.structure(slopes), jax.tree.structure((0, 0, 0)), new)
    return {"weights": weights, "mu": mu, "nu": nu, "count": state["count"] + 1}, value, logits


def initial(key):
    weights = {"embed": jax.random.normal(key, (13, 6)), "inner": jax.random.normal(key, (6, 6))}
    zeros = jax.tree.map(jnp.zeros_like, weights)
    return {"weights": weights, "mu": zeros, "nu": zeros, "count": jnp.zeros((), jnp.int32)}


def test_a_parallelized_step_takes_and_gives_arrays_in_their_own_shapes(splitting, tmp_path):
    key, batch = jax.random.key(1), (jnp.arange(8) % 13, jnp.arange(8) * 3 % 13)
    pins = [f'{part}.embed=[{{"x"}}, {{}}]' for part in ("weights", "mu", "nu")]
    step = rhino.parallelize(train, cluster=splitting, mesh="4", donate_argnums=0, pad="embed:0", pins=pins)
    plan = step.plan(jax.eval_shape(initial, key), batch, key)
    (embed,) = (one for one in plan.facts.arguments if one.path == "state['weights']['embed']")
    assert (embed.kind, embed.padded, embed.dims) == ("float32[13,6]", (16, 6), (("x",), ()))
    plan.save(tmp_path / "plan.json")
    assert rhino.Plan.load(tmp_path / "plan.json") == plan
    kept = rhino.parallelize(train, plan=rhino.Plan.load(tmp_path / "plan.json"), donate_argnums=0)
    assert kept.plan(jax.eval_shape(initial, key), batch, key) == plan
    one, many = initial(key), kept.init(initial, key)
    for _ in range(3):
        want, got = jax.jit(train)(one, batch, key), kept(many, batch, key)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)
        one, many = want[0], got[0]


def test_what_splits_a_padded_dim_splits_another_between_calls():
    mesh = {"x": 2, "y": 4}
    tensor = Tensor("w", "float32[13,8]", (("x",), ("y",)), 16 * 8 * 4, padded=(16, 8))
    assert dims_between_calls(tensor, mesh) == ((), ("y", "x"))
    assert dims_between_calls(replace(tensor, kind="float32[13,12]", padded=(16, 12)), mesh) == ((), ("y",))
    assert dims_between_calls(replace(tensor, padded=()), mesh) == (("x",), ("y",))


def test_a_step_in_stages_is_not_padded():
    step = rhino.parallelize(train, cluster="cpu4", stages=2, pad="*")
    with pytest.raises(RhinoError, match="padding is allowed, and the step may be cut in stages"):
        step.plan(jax.eval_shape(initial, jax.random.key(0)), (jnp.arange(8), jnp.arange(8)), jax.random.key(1))


@pytest.mark.parametrize("shape", ["array<i64: 2, 9>", "array<i64: 2>", "array<i64: -2, 5>", '"2, 5"'])
def test_a_logical_shape_that_does_not_fit_is_refused(shape):
    text = str(run_pass(lowered(softmax_step, WEIGHT, BATCH, donate=0), "arg0:1")[0]).replace("array<i64: 2, 5>", shape)
    with pytest.raises(RhinoError, match="RHI-READ-002"):
        read_signature(parse(text))


def test_what_is_padded_can_be_seen_as_blocks_as_well():
    def fused(w, x):
        one, two, three = jnp.split(x @ w, 3, axis=1)
        return w * 2, one * jnp.exp(two) + three

    text = lowered(fused, jax.ShapeDtypeStruct((5, 12), "float32"), jax.ShapeDtypeStruct((6, 5), "float32"), donate=0)
    module, _ = run_pass(text, "arg0:0")
    build_pass_manager("rhino-materialize-strides", module.context).run(module.operation)
    value = read_signature(module).arguments[0]
    assert (value.shape, value.padded, value.stored) == ((5, 12), (8, 12), (8, 3, 4))
    inputs = [drawn(one, np.random.default_rng(0)) for one in read_signature(parse(text)).arguments]
    stored, _ = run(module, inputs)
    (twice, joined), _ = run(parse(text), inputs)
    np.testing.assert_allclose(stored[0].reshape(8, 12)[:5], twice)
    np.testing.assert_allclose(stored[1], joined, rtol=1e-5)
