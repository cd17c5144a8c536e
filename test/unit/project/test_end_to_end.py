"""Every example model, planned for eight devices and run on eight: the answer is that of one device, in both forms.

Longer runs of the same: `bench/correctness.py plans`, `bench/traffic.py models`.
"""

import dataclasses
import functools
from itertools import product
from pathlib import Path

import gpt
import jax
import many_ops
import mlp
import numpy as np
import pytest
from drawn_plans import MOODS, compile_planned, random_plan, ways_to_run
from long_cases import one_in
from models import sixes
from planning import Planned, Reference, plan_step, reference, tolerance
from traffic import splitting_cluster
from training import export_step
from zoo import GPT, MLP, ZOO

from rhino.ir.graph.spec import split_axes, split_dim
from rhino.ir.hlo.collectives import hlo_stats
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor.compare import differences, worst
from rhino.runtime.executor.executable import Executable, compile_module
from rhino.runtime.executor.signature import read_signature

FORMS = ("annotated", "localized")
NUM_STEPS = 3
ANNOTATED_BY_DEFAULT = ("gpt", "llama-scan-fused", "moe", "resnet")
"""Models whose annotated form, which XLA's partitioner takes apart, is not a long case: one of each kind of layer."""

LONG = ("clip", "dit", "dnabert", "gnmt", "gpt-fused", "llava", "m6", "mixtral", "towers", "unet", "wav2vec2")
"""Models that are long cases: others of the zoo have the same kinds of layers, and are compiled sooner."""

NAMES = [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in ZOO]

SMALL = {
    "mlp-small": mlp.model(dataclasses.replace(MLP, sizes=(16, 32, 16), batch=8)),
    "gpt-plain": gpt.model(dataclasses.replace(GPT, layers=1)),
    "gpt-small": gpt.model(dataclasses.replace(GPT, layers=1, hidden=16, ffn=32, vocab=32, seq=8)),
}
"""The small ones are for plans with a collective at every other op, which take XLA long to compile."""


@functools.cache
def step(name: str) -> bytes:
    if name == "many-ops":
        return many_ops.text()
    return export_step({**ZOO, **SMALL, **sixes()}[name]).encode()


@functools.cache
def expected(name: str) -> Reference:
    return reference(step(name), name, NUM_STEPS)


@functools.cache
def planned(name: str, cluster: str, budget: str = "", mesh: str = "") -> Planned:
    return plan_step(step(name), name, cluster, budget, mesh)


@functools.cache
def compiled(name: str, cluster: str, form: str, budget: str = "") -> Executable:
    return compile_module(planned(name, cluster, budget).form(form), jax.devices())


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster on which it pays to split the tiniest tensor."""
    file: Path = tmp_path_factory.mktemp("cluster") / "splitting.toml"
    file.write_text(splitting_cluster(), encoding="utf-8")
    return str(file)


def check_is_sharded(plan: Planned, executable: Executable) -> None:
    """No plan passes by doing nothing: arguments are split in the plan and on the devices, and something is sent."""
    arguments = plan.plan.specs[: len(plan.plan.graph.arguments)]
    assert any(split_dim(spec) is not None for spec in arguments)
    assert any(not sharding.is_fully_replicated for sharding in executable.in_shardings)
    assert plan.localized.total.num > 0
    assert hlo_stats(executable.hlo_text()).total.num > 0


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(
            name,
            form,
            marks=[]
            if name not in LONG and (form == "localized" or name in ANNOTATED_BY_DEFAULT)
            else [pytest.mark.long],
        )
        for name in ZOO
        for form in FORMS
    ],
)
def test_steps_of_a_sharded_model_give_the_answer_of_one_device(name: str, form: str, splitting: str):
    executable = compiled(name, splitting, form)
    check_is_sharded(planned(name, splitting), executable)
    found = expected(name).difference(executable, tolerance(name))
    assert found.passes, found


@pytest.mark.parametrize(("name", "form"), one_in(2, product(["gpt", "two-tower"], FORMS)))
def test_a_plan_for_the_hosts_own_devices_gives_the_answer_of_one_device(name: str, form: str):
    executable = compiled(name, "cpu8", form)
    check_is_sharded(planned(name, "cpu8"), executable)
    assert expected(name).difference(executable).passes


@pytest.mark.parametrize("form", ["localized", pytest.param("annotated", marks=pytest.mark.long)])
def test_a_plan_squeezed_into_less_memory_gives_the_answer_of_one_device(form: str, splitting: str):
    free = planned("two-tower", splitting)
    budget = int(0.9 * free.answer.peak_bytes)
    squeezed = planned("two-tower", splitting, str(budget))
    assert squeezed.answer.peak_bytes <= budget
    assert squeezed.predicted == squeezed.localized
    assert expected("two-tower").difference(compiled("two-tower", splitting, form, str(budget))).passes


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name not in LONG and place % 2 == 0 else pytest.mark.long)
        for place, name in enumerate(ZOO)
    ],
)
def test_the_plan_foresees_every_collective_of_the_local_program(name: str, splitting: str):
    check_collectives(name, ("cpu8", splitting))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_for_a_machine_with_gpus_foresees_every_collective_as_well(name: str):
    check_collectives(name, ("v100x8", "h100x8"))


def check_collectives(name: str, clusters: tuple[str, ...]) -> None:
    for cluster in clusters:
        plan = planned(name, cluster)
        assert dict(plan.predicted.counts) == dict(plan.localized.counts), cluster
        assert plan.localized.exact


@pytest.mark.parametrize("name", one_in(2, ["mlp", "gpt", "gpt-scan", "two-tower"]))
def test_xla_adds_no_collective_to_the_local_program(name: str, splitting: str):
    """It may join some: the bytes are the same."""
    found, wanted = hlo_stats(compiled(name, splitting, "localized").hlo_text()), planned(name, splitting).localized
    assert {kind: count.num_bytes for kind, count in found.counts.items()} == {
        kind: count.num_bytes for kind, count in wanted.counts.items()
    }


@pytest.mark.parametrize(("name", "without"), [("mlp-dropout", "mlp"), ("gpt-dropout", "gpt-plain")])
def test_dropout_changes_the_answer(name: str, without: str):
    """So that models with dropout agree with one device only if their masks do."""
    signature = read_signature(read_module(step(name), name, make_context()))
    for with_masks, plain in zip(expected(name).results, expected(without).results, strict=True):
        found = worst(differences(signature, with_masks, plain))
        assert found is not None
        assert found.badness > 20


@pytest.mark.parametrize("name", one_in(3, NAMES))
def test_steps_differ(name: str):
    """So that a program that returns its arguments fails."""
    first, *_, last = expected(name).results
    changed = [not np.array_equal(a, b) for a, b in zip(first, last, strict=True)]
    if ZOO[name].step is None:
        assert all(changed[len(changed) // 2 :])  # moments, count and loss at least
    else:
        assert changed[0]  # the cache,
        assert changed[-1]  # and what is next


@pytest.mark.parametrize(("seed", "mood"), list(enumerate([*MOODS, "sums", "any"])))
def test_a_random_plan_of_a_perceptron_gives_the_answer_of_one_device(seed: int, mood: str):
    check_random_plan("mlp-small", seed, mood)


@pytest.mark.parametrize(("seed", "mood"), list(enumerate([*MOODS, "sums", "any"])))
def test_a_random_plan_of_every_kind_of_op_gives_the_answer_of_one_device(seed: int, mood: str):
    check_random_plan("many-ops", seed, mood)


def test_a_random_plan_of_a_transformer_gives_the_answer_of_one_device():
    check_random_plan("gpt-small", 0, "near")


@pytest.mark.parametrize(
    ("name", "mesh", "seed", "mood"),
    [
        ("mlp-small", "2x4", 0, "any"),
        ("mlp-small", "2x2x2", 1, "sums"),
        ("mlp-sixes", "2x3", 2, "split"),
        ("mlp-sixes", "6", 3, "sums"),
        ("many-ops", "2x2", 0, "split"),
        ("many-ops", "4x2", 1, "sums"),
        ("many-ops", "3x2", 2, "any"),
        pytest.param("gpt-sixes", "2x3", 0, "near", marks=pytest.mark.long),
    ],
)
def test_a_random_plan_on_a_mesh_of_several_axes_gives_the_answer_of_one_device(
    name: str, mesh: str, seed: int, mood: str
):
    """Also on six devices, where what does not divide is not split."""
    check_random_plan(name, seed, mood, mesh)


@pytest.mark.parametrize("mesh", ["2x4", "4x2"])
def test_a_plan_for_two_axes_splits_along_both(mesh: str, splitting: str):
    """The search, not chance: what it chooses runs as it foresees, in both forms."""
    plan = planned("mlp", splitting, mesh=mesh)
    arguments = plan.plan.specs[: len(plan.plan.graph.arguments)]
    assert {axis for spec in arguments for axis in split_axes(spec)} == {0, 1}
    assert dict(plan.predicted.counts) == dict(plan.localized.counts)
    for form in FORMS:
        assert expected("mlp").difference(compile_module(plan.form(form), jax.devices())).passes, form


def check_random_plan(name: str, seed: int, mood: str, mesh: str = "8") -> None:
    plan = random_plan(step(name), name, seed, mood, mesh)
    assert dict(plan.predicted.counts) == dict(plan.localized.counts)
    assert sum(max(op.strategy, default=-1) >= 0 for op in plan.plan.ops) > 20
    assert plan.localized.total.num > 10
    found = expected(name).difference(compile_planned(plan))
    assert found.passes, (ways_to_run(plan.plan), found)
