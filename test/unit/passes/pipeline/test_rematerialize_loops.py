"""Loops over layers that compute again what others would stack for them: the answer of the step stays the same."""

import functools

import jax
import pytest
from models import sized, step_of
from planning import auto_shard, planned, reference, sharded
from traffic import splitting_cluster

from rhino.ir.graph.graph import WHILE
from rhino.ir.graph.spec import split_dim
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module, walk
from rhino.ir.program.op_stages import virtual_stage_of
from rhino.passes.base import Remarks
from rhino.passes.pipeline.rematerialize import Rematerialize, Unkept
from rhino.passes.registry import PARALLEL
from rhino.passes.textual_pipelines import build_named, build_pass_manager
from rhino.runtime.executor.executable import compile_module

SIZES = {
    "gpt": {"layers": 3, "scan": True, "dropout": 0.1},
    "llama": {"layers": 2, "scan": True, "fused_gate_up": True},
    "t5": {"layers": 2, "scan": True},
    "mamba": {"layers": 2, "scan": True},
}
LONG = ("t5", "mamba")
MODELS = [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in SIZES]


@functools.cache
def step(name):
    return step_of(sized(f"{name}-tiny", **SIZES[name]))


@functools.cache
def expected(name):
    return reference(step(name), name, 2)


@pytest.mark.parametrize("share", [0.4, 1])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_that_computes_layers_again_gives_the_same_answer(name, share):
    module, remarks = sharded(step(name), name, f"rhino-normalize,rhino-remat{{remat={share}}}")
    assert remarks.result(Unkept).num_repeated
    found = expected(name).difference(compile_module(module, jax.devices()[:1]))
    assert found.passes, found


@pytest.mark.parametrize("name", [pytest.param("gpt", marks=pytest.mark.long), "llama"])
def test_it_does_so_on_eight_devices(name, tmp_path):
    cluster = tmp_path / "splitting.toml"  # on which it pays to split the tiniest tensor
    cluster.write_text(splitting_cluster(), encoding="utf-8")
    module, remarks = sharded(step(name), name, auto_shard(str(cluster), "2x4", remat="0.5"))
    plan = planned(module, name, remarks)
    assert any(split_dim(spec) is not None for spec in plan.plan.specs[: len(plan.plan.graph.arguments)])
    found = expected(name).difference(compile_module(plan.form("localized"), jax.devices()))
    assert found.passes, found


@pytest.mark.parametrize(("remat", "stages"), [pytest.param("0.6", 2, marks=pytest.mark.long), ("0;1", 1)])
def test_each_stage_computes_so_much_of_its_own_layers_again(remat, stages):
    text = step_of(sized("llama-tiny", layers=8, batch=4, scan=True))
    items = build_named(PARALLEL, {"stages": "2", "num": "2", "mesh": "1", "cluster": "cpu2", "remat": remat})
    begun = items[: 1 + next(number for number, one in enumerate(items) if isinstance(one, Rematerialize))]
    module, remarks = read_module(text, "llama", make_context()), Remarks("llama")
    build_pass_manager(begun, module.context, remarks).run(module.operation)
    again = [one.text for one in remarks.items if "that this loop stacks are kept" in one.text]
    assert len(again) == stages, again
    loops = [op for op in walk(module.operation) if op.name == WHILE and virtual_stage_of(op) is not None]
    assert sorted(map(virtual_stage_of, loops)) == [0, 1, 1, 2]


def test_a_layer_that_the_user_recomputes_stays_as_it_is():
    text = step_of(sized("llama-tiny", layers=2, scan=True, remat=True))
    _module, remarks = sharded(text, "llama", "rhino-normalize,rhino-remat{remat=1}")
    assert not [one for one in remarks.items if "this loop stacks" in one.text]
