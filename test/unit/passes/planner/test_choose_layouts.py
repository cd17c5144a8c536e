"""Steps planned with dims stored as blocks and without: what is kept, and that callers see their own shapes."""

import dataclasses

import gpt
import jax
import llama
import numpy as np
import pytest
from planning import sharded
from training import export_step, init_state, make_step
from zoo import GPT

import rhino
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.boundary import boundary_attributes
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.plan.plan import Tensor, dims_between_calls
from rhino.ir.plan.plan_json import plan_data, plan_of, plan_text
from rhino.ir.program.stored_shapes import VIEW
from rhino.passes.base import Remarks
from rhino.passes.planner import choose_layouts
from rhino.passes.planner.choose_layouts import LayoutChoice
from rhino.passes.planner.module_facts import boundary
from rhino.passes.planner.unstaged_plan import annotate, search
from rhino.passes.sharding.choose_shardings import ShardingChoice

MODEL = gpt.model(dataclasses.replace(GPT, layers=2, hidden=128, batch=4, fused_qkv=True))
GROUPED = llama.model(
    llama.LlamaConfig(
        layers=2, hidden=128, heads=16, kv_heads=8, ffn=64, vocab=64, seq=8, batch=8, fused_qkv=True, parallel=True
    )
)
"""Queries are twice as wide as keys and values: blocks of several sizes."""
PLAIN = "rhino-normalize,func.func(sdy-populate-op-sharding-rules),rhino-choose-shardings{cluster=cpu8 mesh=8}"


@pytest.fixture(scope="module")
def text() -> bytes:
    return export_step(MODEL).encode()


def views_of(module):
    return [VIEW in one for one in boundary_attributes(entry_function(module), "arg")]


def test_the_faster_form_is_kept(text):
    module, remarks = sharded(text, "gpt", "auto-shard{cluster=cpu8 mesh=8}")
    _, plain = sharded(text, "gpt", PLAIN)
    choice, answer = (remarks.result(kind) for kind in (LayoutChoice, ShardingChoice))
    plain_s = plain.result(ShardingChoice).answer.cost
    assert sum(views_of(module)) == 6  # a weight and two moments of each layer
    assert answer.answer.cost < plain_s == choice.other.step_s
    assert not choice.other.is_viewed


def test_a_step_without_views_is_planned_as_before():
    step = export_step(gpt.model(dataclasses.replace(GPT, layers=1))).encode()
    module, remarks = sharded(step, "gpt", "auto-shard{cluster=cpu8 mesh=8}")
    again, _ = sharded(step, "gpt", PLAIN + ",func.func(sdy-drop-sharding-rules)")
    assert str(module) == str(again)
    assert remarks.find(LayoutChoice) is None


def test_what_is_moved_in_each_step_counts_against_views(text):
    """With own shapes blocks are kept only where they save more than that takes."""
    module, remarks = sharded(text, "gpt", "auto-shard{cluster=cpu8 mesh=8 own-shapes=true}")
    choice = remarks.result(LayoutChoice)
    assert not any(views_of(module))
    assert choice.other.is_viewed
    _, free = sharded(text, "gpt", "auto-shard{cluster=cpu8 mesh=8}")
    free_s = free.result(ShardingChoice).answer.cost
    assert choice.other.step_s > remarks.result(ShardingChoice).answer.cost > free_s


def planned(text, **options):
    module = read_module(text, "gpt", make_context())
    return search(module, "gpt", {"cluster": "cpu8", "mesh": "8", **options}, Remarks("gpt"))


def test_a_user_who_splits_the_fused_dim_has_it_so(text):
    found = planned(text, pin='state.params.*.qkv=[{}, {"x"}]; state.mu.*.qkv=[{}, {"x"}]; state.nu.*.qkv=[{}, {"x"}]')
    assert not any(views_of(found.module))
    assert [one.dims for one in found.plan.arguments if "qkv" in one.path] == [((), ("x",))] * 6


@pytest.mark.parametrize("model", [MODEL, GROUPED])
def test_a_plan_that_was_kept_is_the_program_with_its_views(model):
    text = export_step(model).encode()
    found = planned(text, num="2")
    assert found.plan.sharding.views
    assert any(one.interleaved for one in found.plan.arguments) == (model is GROUPED)
    kept = plan_of(plan_data(plan_text(found.plan, {}), "gpt"), None, {})
    assert kept == found.plan
    again = read_module(text, "gpt", make_context())
    annotate(again, kept, "gpt", "", boundary(again, is_annotated=False), None)
    assert str(again) == str(found.module)


@pytest.mark.parametrize(
    ("shape", "viewed", "dims", "expected"),
    [
        ((8, 12), (8, 3, 4), ((), (), ("x",)), (("x",), ())),
        ((8, 12), (8, 3, 4), (("x",), (), ("y",)), (("x", "y"), ())),
        ((3, 12), (3, 2, 6), ((), ("x",), ("y",)), ((), ("x",))),
        ((5, 16), (5, 4, 4), ((), ("y",), ("x",)), ((), ("y", "x"))),
        ((5, 10), (5, 5, 2), ((), (), ("y",)), ((), ())),
        ((8, 16), (8, 4, 4), ((), ("y",), ()), (("y",), ())),
    ],
)
def test_between_calls_arrays_have_no_blocks(shape, viewed, dims, expected):
    interleaved = ((), (4, 8, 4, 4)) if shape == (8, 16) else ()
    tensor = Tensor("w", f"float32[{','.join(map(str, shape))}]", dims, 0, viewed=viewed, interleaved=interleaved)
    assert dims_between_calls(tensor, {"x": 2, "y": 4}) == expected


@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(MODEL, {"mesh": "8"}, marks=pytest.mark.long),
        pytest.param(GROUPED, {"mesh": "8"}, marks=pytest.mark.long),
        (GROUPED, {"mesh": "4", "stages": 2, "micro_batches": 2}),
    ],
)
def test_calls_and_state_have_the_shapes_of_the_function(model, options, monkeypatch, tmp_path):
    monkeypatch.setattr(choose_layouts, "_moved_s", lambda choice: 0.0)  # or blocks would not pay for so small a step
    step, key = make_step(model), jax.random.key(0)
    fast = rhino.parallelize(step, cluster="cpu8", donate_argnums=0, **options)
    batch = model.sample(key)
    plan = fast.plan(jax.eval_shape(lambda key: init_state(model, key), key), batch)
    assert sum(bool(one.viewed) for one in plan.facts.arguments) == 6
    assert "blocks in 6 of" in plan.explain()
    state, reference = fast.init(lambda key: init_state(model, key), key), init_state(model, key)
    for _ in range(2):
        state, loss = fast(state, batch)
        reference, expected = jax.jit(step)(reference, batch)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(reference), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    plan.save(tmp_path / "plan")
    kept = rhino.parallelize(step, plan=rhino.Plan.load(tmp_path / "plan"), donate_argnums=0)
    _, loss = kept(state, batch)
    np.testing.assert_allclose(loss, jax.jit(step)(reference, batch)[1], rtol=1e-5)
