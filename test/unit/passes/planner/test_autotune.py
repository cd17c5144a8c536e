"""Autotuning: what it looks at, that it finds the best of what there is, and what it says.

Steps are made-up ones and real ones.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import jax
import jax.numpy as jnp
import mlp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from made_up_plans import cut_off
from scanned_steps import STEPS, text
from training import export_step
from zoo import MLP

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.files import load_plan
from rhino.ir.plan.plan import CompiledPlan
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.aot_parallel import Compiles
from rhino.passes.planner.autotune import Made, _End
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.search_space import make_space
from rhino.passes.planner.setup import Setup
from rhino.passes.planner.why import why_text
from rhino.strategies import autotune as whole
from rhino.strategies.autotune.base import (
    PAYS,
    ROUND,
    CutOff,
    Estimate,
    Evaluations,
    Explored,
    Outcome,
    PlanConfig,
    Refused,
    Space,
    bounds,
)
from rhino.strategies.pipeline.schedules import SCHEDULES, make_order
from rhino.strategies.pipeline.schedules.base import Pipeline
from rhino.strategies.pipeline.step_time import StageTimes, StageTransfer, step_seconds
from rhino.tools import opt

explore = partial(whole.explore, strategy="rhino")

MESHES = {1: ((2, 2), (4,)), 2: ((2,),), 4: ((1,),)}
NUMBERS = (1, 2, 4, 8, 16, 32)


def estimate(config: PlanConfig, step_s: float, bound_s: float = 0.0, free_bound_s: float | None = None) -> Estimate:
    """An estimate with nothing but times that matter to the search."""
    free = bound_s if free_bound_s is None else free_bound_s
    return Estimate(
        config, "1f1b" if config.stages > 1 else "", step_s, bound_s, free, step_s, 0.0, (1.0,) * config.stages
    )


def every_config(space: Space) -> list[PlanConfig]:
    """All configurations of a space that make sense: no pipeline of one micro-batch."""
    pairs = [(stages, mesh) for stages, meshes in space.meshes.items() for mesh in meshes]
    configs = [
        PlanConfig(*pair, number, remat) for pair, number, remat in product(pairs, space.micro_batches, space.remats)
    ]
    return [one for one in configs if one.stages == 1 or one.micro_batches > 1]


class Model:
    """Steps whose time in a family falls and then rises with micro-batches.

    Their memory falls with micro-batches, and with what is not kept.
    """

    def __init__(self, sizes: Sequence[float], budget: float) -> None:
        self.work, self.per_part, self.saved, self.fixed = sizes
        self.budget = budget
        self.asked: list[PlanConfig] = []

    def step_s(self, config: PlanConfig) -> float:
        work = self.work * (1 + 0.3 * config.remat) * (1.1 if config.mesh == (4,) else 1.0)
        busy = work + self.per_part * config.micro_batches * max(config.mesh)
        return busy * (1 + (config.stages - 1) / config.micro_batches)

    def outcome(self, config: PlanConfig) -> Outcome:
        self.asked.append(config)
        bound_s = self.work
        need = self.fixed + self.saved * (1.2 - config.remat) / config.micro_batches * min(
            config.stages, config.micro_batches
        )
        if need > self.budget:
            return Refused(config, "too large", by_memory=True, free_bound_s=bound_s)
        return estimate(config, self.step_s(config), bound_s)

    def evaluate(self, configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        assert 0 < len(configs) <= ROUND
        return [cut_off(self.outcome(config), cutoff_s, self.step_s(config)) for config in configs]


@settings(max_examples=300, deadline=None)
@given(st.tuples(*[st.floats(0.1, 10.0)] * 4), st.floats(0.5, 12.0))
def test_the_best_of_all_shapes_is_found(sizes: tuple[float, ...], budget: float):
    space, model = Space(MESHES, NUMBERS, 0.0), Model(sizes, budget)
    explored = explore(space, model.evaluate)
    assert len(set(model.asked)) == len(model.asked), "no configuration is asked for twice"
    every = [one for config in every_config(space) if isinstance(one := Model(sizes, budget).outcome(config), Estimate)]
    if not every:
        assert not explored.ranked
        return
    best_s = min(one.step_s for one in every)
    # What is left on the table is what a family stops for: a step of micro-batches that saves less than PAYS, or rather
    # keeps less.
    assert explored.ranked[0].step_s <= best_s * (1 + 2 * PAYS)
    assert explored.bound_s <= best_s


def test_a_family_that_cannot_be_best_is_passed_over():
    slow = (4,)

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        return [
            estimate(config, 3.0 if config.mesh == slow else 1.0, 2.0 if config.mesh == slow else 0.9)
            for config in configs
        ]

    explored = explore(Space({1: ((2, 2), slow)}, (1, 2, 4), 0.5), evaluate)
    assert [one.config.mesh for one in explored.ranked] == [(2, 2), slow]
    assert explored.bound_s == 0.9


def test_the_devices_of_plans_near_the_best_are_looked_at_in_one_row_too():
    steps = {(2, 4): 1.02, (4, 2): 1.01, (8,): 0.98, (2, 2): 1.0, (4,): 0.99, (2, 3): 1.1}
    asked: list[PlanConfig] = []

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        asked.extend(configs)
        return [
            cut_off(estimate(config, steps[config.mesh], steps[config.mesh] - 0.01), cutoff_s) for config in configs
        ]

    space = Space({1: ((2, 4),), 2: ((2, 2),), 4: ((2, 3),)}, (8,), 0.5)
    assert [one.config.mesh for one in explore(space, evaluate, strategy="best").ranked] == [(2, 2), (2, 4)]
    kin = explore(replace(space, has_kin=True), evaluate, strategy="best")
    assert kin.ranked[0].config.mesh == (8,)
    assert {one.mesh for one in asked} == steps.keys(), "and not those of plans that are far behind"


def test_shapes_are_cut_off_at_the_best_known_when_their_round_begins():
    meshes = tuple((size,) for size in range(2, 2 + ROUND + 2))
    cutoffs: list[float] = []

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        cutoffs.append(cutoff_s)
        return [cut_off(estimate(config, config.mesh[0], config.mesh[0] - 0.5), cutoff_s) for config in configs]

    explored = explore(Space({1: meshes}, (1,), 0.0), evaluate)
    assert cutoffs == [float("inf"), 2.0, 2.0]
    assert [one.config.mesh for one in explored.ranked] == list(meshes[:1])
    assert [one.config.mesh for one in explored.cut_off] == list(meshes[1:])


def test_what_the_bound_of_another_shape_cuts_off_is_not_planned():
    best, slow, asked = PlanConfig(1, (4,), 1), PlanConfig(1, (2, 2), 2), list[PlanConfig]()

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        asked.extend(configs)
        return [estimate(one, 1.0) if one == best else CutOff(one, 2.0, 1.5, by_memory=True) for one in configs]

    trials = Evaluations(Space({1: ((2, 2), (4,))}, (1, 2, 4), 0.0), evaluate)
    trials.outcomes([best])
    more, less = replace(slow, micro_batches=4), replace(slow, remat=0.5)
    fewer = replace(slow, micro_batches=1, remat=0.5)
    found = trials.outcomes([more, less, slow, fewer])
    assert asked == [best, slow, fewer], "first what bounds others, then what nothing bounds"
    assert [(one.config, one.bound_s) for one in found if isinstance(one, CutOff)] == [
        (more, 1.5),
        (less, 1.5),
        (slow, 2.0),
        (fewer, 2.0),
    ]
    assert {one.config for one in trials.explored.cut_off} == {more, less, slow, fewer}
    assert len(trials.explored.outcomes) == 3


def test_arithmetic_rules_out_all_that_keep_no_more():
    asked: list[PlanConfig] = []

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        asked.extend(configs)
        return [
            estimate(one, 1.0)
            if one.remat == 0
            else CutOff(one, 3.0, 0.5, by_memory=True, arithmetic_s=3.0 * (one.remat == 0.5))
            for one in configs
        ]

    trials = Evaluations(Space({1: ((4,), (2, 2))}, (1, 2), 0.0), evaluate)
    every = [[PlanConfig(1, mesh, 2, remat) for mesh in ((4,), (2, 2))] for remat in (0.0, 0.25, 0.5, 1.0)]
    for configs in every:
        for config in configs:
            trials.outcomes([config])
    assert asked == [*every[0], *every[1], every[2][0]]


def test_a_walk_begins_where_memory_may_suffice():
    space = Space({1: ((4,),), 4: ((1,),)}, NUMBERS, 0.0, budget_bytes=10.0, resident_bytes=2.0, passing_bytes=16.0)
    # twice what passes is 32, 16.5 and 1
    assert [NUMBERS[space.seed(1, remat)] for remat in (0.0, 0.5, 1.0)] == [
        4,
        4,
        1,
    ]
    assert [NUMBERS[space.seed(4, remat)] for remat in (0.0, 0.5, 1.0)] == [16, 16, 16]
    assert NUMBERS[replace(space, passing_bytes=64.0).seed(4)] == NUMBERS[-1]
    asked: list[PlanConfig] = []

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        asked.extend(configs)
        return [estimate(config, 1.0 + config.micro_batches / 100) for config in configs]

    explore(space, evaluate)
    assert {config.micro_batches for config in asked if config.stages == 1} == {2, 4}, (
        "where it does not fit at best, nothing is asked for"
    )


def test_no_more_shapes_than_allowed_are_planned():
    model = Model((1.0, 0.001, 1.0, 0.1), 10.0)
    explored = explore(Space(MESHES, NUMBERS, 0.0, most=5), model.evaluate)
    assert len(model.asked) == len(explored.outcomes) == 5
    assert not explored.is_complete
    assert explored.passed_over


def test_one_part_is_looked_at_where_nothing_else_fits():
    """Sums over micro-batches may be what is too much."""

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        return [
            estimate(one, 2.0) if one.micro_batches == 1 else Refused(one, "too much", True, 1.0, 20.0)
            for one in configs
        ]

    space = Space({1: ((2, 2), (4,))}, NUMBERS, 0.0, resident_bytes=10.0, passing_bytes=100.0, budget_bytes=15.0)
    assert [one.config for one in whole.explore(space, evaluate).ranked] == [
        PlanConfig(1, (2, 2), 1),
        PlanConfig(1, (4,), 1),
    ]
    hopeless = whole.explore(replace(space, budget_bytes=9.0), evaluate)
    assert hopeless.outcomes
    assert not hopeless.ranked


def test_one_part_is_looked_at_in_one_row_too_and_before_all_that_may_be_planned_is():
    fits = PlanConfig(1, (4,), 1)

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        return [estimate(one, 2.0) if one == fits else Refused(one, "too much", True, 1.0) for one in configs]

    numbers = tuple(2**number for number in range(16))
    space = Space(
        {1: ((2, 2),)}, numbers, 0.0, most=32, resident_bytes=10.0, passing_bytes=100.0, budget_bytes=15.0, has_kin=True
    )
    explored = whole.explore(space, evaluate)
    assert [one.config for one in explored.ranked] == [fits]
    assert max(explored.num_requested.values()) <= space.most <= len(explored.outcomes)


def test_an_interruption_leaves_the_best_so_far():
    model = Model((1.0, 0.001, 1.0, 0.1), 10.0)
    rounds: list[int] = []

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        if rounds:
            raise KeyboardInterrupt
        rounds.append(len(configs))
        return model.evaluate(configs, cutoff_s)

    explored = explore(Space(MESHES, NUMBERS, 0.0), evaluate)
    assert explored.ranked
    assert not explored.is_complete


def test_less_is_kept_only_where_memory_binds():
    ample, tight = Model((1.0, 0.01, 1.0, 0.1), 100.0), Model((1.0, 0.01, 4.0, 0.1), 1.0)
    for model in (ample, tight):
        explore(Space({1: ((4,),)}, NUMBERS, 0.0), model.evaluate)
    assert {config.remat for config in ample.asked} == {0.0}
    assert max(config.remat for config in tight.asked) > 0.0


# The time of a pipeline


def times_of(stages: int, forward: float = 1.0, backward: float = 2.0, move: float = 0.0) -> StageTimes:
    """Equal stages, the last of which does forward and backward at once."""
    return StageTimes(
        forward_s=(*[forward] * (stages - 1), 0.0),
        input_s=(*[backward / 2] * (stages - 1), forward + backward / 2),
        weight_s=(backward / 2,) * stages,
        apply_s=(0.0,) * stages,
        moves=tuple(
            [
                StageTransfer(*way, move)
                for one, other in pairwise(range(stages))
                for way in ((one, other), (other, one))
            ]
        ),
    )


@pytest.mark.parametrize(("stages", "number"), [(1, 3), (2, 4), (4, 8), (4, 2), (3, 9)])
def test_equal_stages_take_what_the_schedules_promise(stages: int, number: int):
    def step_s(name: str) -> float:
        return step_seconds(make_order(name, Pipeline(stages, number)), times_of(stages))

    assert step_s("1f1b") == pytest.approx(3 * (number + stages - 1))
    if number >= 2 * stages:
        assert step_s("zero-bubble") == pytest.approx(3 * number + stages - 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_schedule_beats_its_work_and_every_move_counts(name: str):
    pipeline = Pipeline(4, 8, SCHEDULES[name].stages_per_rank)
    order = make_order(name, pipeline)
    ranks = pipeline.num_ranks
    assert step_seconds(order, times_of(4)) >= 4 * 8 * 3 / ranks
    assert step_seconds(order, times_of(4, move=0.5)) > step_seconds(order, times_of(4))


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zero-bubble"])
def test_a_link_carries_one_micro_batch_after_the_other(name: str):
    order = make_order(name, Pipeline(2, 8))
    assert step_seconds(order, times_of(2, move=10.0)) >= 8 * 10.0 + 3.0


# On a real step


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training step in a folder of its own."""
    path: Path = tmp_path_factory.mktemp("step") / "mlp.mlir"
    path.write_text(export_step(mlp.model(replace(MLP, batch=4))), encoding="utf-8")
    return path


def optimize(step: Path, *options: str) -> tuple[int, str, str]:
    """Runs `rhino-opt --auto-parallel` on four devices."""
    out, err = io.BytesIO(), io.StringIO()
    code = opt.run(["--auto-parallel", "--cluster=cpu4", str(step), *options], io.BytesIO(), out, err)
    return code, out.getvalue().decode(), err.getvalue()


@pytest.fixture
def attending(monkeypatch: pytest.MonkeyPatch) -> str:
    """A step with attention of cuDNN between two products, as for a GPU."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def loss(w: jax.Array) -> jax.Array:
            q = (x @ w).reshape(8, 128, 2, 64)
            return (cudnn.dot_product_attention(q, q, q).reshape(8, 128, 128) @ w).astype(jnp.float32).sum()

        return w - jax.grad(loss)(w)

    shapes = [jax.ShapeDtypeStruct(dims, jnp.bfloat16) for dims in ((128, 128), (8, 128, 128))]
    return str(jax.jit(step, donate_argnums=0).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text())


def test_the_batch_is_followed_through_custom_calls_by_their_rules(attending: str):
    """Without the rule of attention nothing could be taken in parts."""
    context = make_context()
    module = read_module(attending.encode(), "step", context)
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    assert make_space(Setup(bytecode(module), "step", "h100x8", 2.0**31, {})).micro_batches == (1, 2, 4, 8)


def test_custom_calls_of_stages_split_as_those_of_a_step_do(attending: str, tmp_path: Path):
    """Eight examples in two micro-batches on two devices: attention of two, on each of them."""
    step = tmp_path / "step.mlir"
    step.write_text(attending, encoding="utf-8")
    plan = tmp_path / "plan"
    words = ["--stages=2", "--micro-batches=2", "--mesh=2", "--pin=arg1=[{x}, {}, {}]", f"--plan={plan}"]
    out, err = io.BytesIO(), io.StringIO()
    code = opt.run(["--auto-parallel", "--cluster=h100x8", str(step), *words, "-o", "-"], io.BytesIO(), out, err)
    assert code == 0, err.getvalue()
    calls = [
        line
        for file in sorted((plan / "programs").iterdir())
        for line in file.read_text().splitlines()
        if "@__cudnn" in line
    ]
    assert calls
    assert all("(tensor<2x128x2x64xbf16>" in line for line in calls)


@pytest.mark.long
def test_no_shape_of_a_real_step_is_better_than_the_one_found(step: Path):
    context = make_context()
    module = read_module(step.read_bytes(), step.name, context)
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    evaluator = Evaluator(Setup(bytecode(module), step.name, "cpu4", 2.0**31, {}))
    space = make_space(evaluator.setup)
    assert space.micro_batches == (1, 2, 4)
    assert space.meshes == {1: ((2, 2),), 2: ((2,),), 4: ((1,),)}
    every = [evaluator.outcome(config) for config in every_config(space)]
    explored = explore(space, lambda configs, cutoff_s: [evaluator.outcome(config, cutoff_s) for config in configs])
    best_s = min(one.step_s for one in every if isinstance(one, Estimate))
    assert explored.ranked[0].step_s <= best_s * (1 + PAYS)
    assert explored.bound_s <= best_s
    for one in explored.ranked:
        assert one.bound_s <= one.step_s
        assert one.free_bound_s <= one.bound_s * (1 + 1e-9)
        assert one.compute_s + one.collectives_s <= one.step_s * (1 + 1e-9)
    for one in every:
        if isinstance(one, Estimate) and isinstance(ended := evaluator.outcome(one.config, best_s), CutOff):
            assert best_s <= ended.step_s <= one.step_s * (1 + 1e-9)
            assert ended.free_bound_s <= ended.bound_s <= ended.step_s
        for other in every:  # what the search takes for granted of configurations that it does not plan
            if isinstance(other, Estimate) and bounds(one.config, other.config):
                assert one.free_bound_s <= (other.compute_s + other.collectives_s) * (1 + 1e-9)
    assert Evaluator(evaluator.setup).outcome(every[-1].config) == every[-1], (
        "a step that is read for one mesh is that of all"
    )


def test_the_plan_is_the_same_with_any_number_of_processes(step: Path):
    found = []
    for jobs in (1, 2):
        file = step.parent / f"{jobs}.json"
        code, out, err = optimize(step, f"--jobs={jobs}", "--plan-json", str(file))
        assert (code, bool(out)) == (0, True), err
        found.append((out, file.read_bytes(), err))
    assert found[0] == found[1]


@pytest.mark.long
def test_what_is_said_is_kept_and_what_lost_is_explained(step: Path):
    file = step.parent / "two.json"
    code, _, err = optimize(step, "--stages=2", "--jobs=1", "--plan-json", str(file))
    assert code == 0, err
    plan = json.loads(file.read_text())
    assert plan["plan"]["stages"] == 2
    assert plan["bound_s"] <= plan["predicted_step_s"]
    assert max(plan["predicted_peak_bytes"]) <= plan["budget_bytes"]
    assert plan["alternatives"]
    for one in plan["alternatives"]:
        assert one["stages"] == 2
        assert "slower" in one["why"]


def test_a_program_that_computes_nothing_takes_no_time(tmp_path: Path):
    file = tmp_path / "nothing.mlir"
    file.write_text("func.func @main(%a: tensor<8xf32>) { return }")
    code, _, err = optimize(file, "--jobs=1")
    assert code == 0, err
    assert "step 0 s" in err
    assert "0% compute, 0% collectives, 0% idle" in err


def test_a_step_that_cannot_be_had_in_any_shape_is_refused_once(step: Path):
    for said in ((), ("--mesh=4",)):
        code, out, err = optimize(step, "--micro-batches=5", "--jobs=1", *said)
        assert (code, out) == (1, "")
        assert "[RHI-BATCH-003] 5 micro-batches do not divide the batch" in err
        assert len(err.splitlines()) == 2
        assert "to fix: ask for one of 1, 2," in err


def test_a_budget_that_nothing_fits(step: Path):
    code, out, err = optimize(step, "--budget=1KiB", "--jobs=1")
    assert (code, out) == (3, "")
    assert "RHI-SOLVE-001" in err
    assert "per device; the smallest plan that was found needs about" in err


def test_a_budget_that_nothing_fits_under_what_is_said(step: Path):
    code, out, err = optimize(step, "--budget=1KiB", "--mesh=4", "--forbid=*=x", "--axis-role=x=batch", "--jobs=1")
    assert (code, out) == (3, "")
    assert err.endswith("or remove --axis-role and --forbid\n")


def test_a_step_that_computes_nothing_is_one_program(tmp_path: Path):
    step = tmp_path / "step.mlir"
    step.write_text("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }")
    code, out, err = optimize(step, f"--plan={tmp_path / 'plan'}", "--jobs=1")
    assert (code, out) == (0, ""), err
    assert load_plan(tmp_path / "plan").form() == "one program on mesh x=2,y=2"
    code, _, err = optimize(step, f"--plan={tmp_path / 'stages'}", "--jobs=1", "--stages=2")
    assert code == 1
    assert "[RHI-BATCH-002] stages need several micro-batches" in err
    assert not (tmp_path / "stages").exists()


@pytest.mark.long
def test_one_stage_is_judged_by_its_program_and_not_by_rows(tmp_path: Path):
    """Rows count before anything is chosen; a plan in one stage has its programs told."""
    text, config = export_step(mlp.model(MLP)), PlanConfig(1, (4,), 1)
    context = make_context()
    module = read_module(text.encode(), "mlp", context)
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    by_rows = Evaluator(Setup(bytecode(module), "mlp", "cpu4", 1.0, {})).outcome(config)
    assert isinstance(by_rows, Refused)
    budget = int(1.1 * by_rows.needs_bytes)
    found = Evaluator(Setup(bytecode(module), "mlp", "cpu4", budget, {})).outcome(config)
    assert isinstance(found, Estimate)
    assert found.peak_bytes[0] <= budget
    step = tmp_path / "mlp.mlir"
    step.write_text(text, encoding="utf-8")
    said = f"--plan={tmp_path / 'plan'}", f"--budget={budget}", "--stages=1", "--mesh=4", "--micro-batches=1"
    assert optimize(step, *said)[0] == 0
    plan = load_plan(tmp_path / "plan")
    assert plan.sharding is not None, "of one stage it is a file"
    assert plan.predicted.largest_peak_bytes <= budget
    assert optimize(step, f"--plan={tmp_path / 'found'}", "--stages=1", "--micro-batches=1", "--mesh=auto")[0] == 0
    found = load_plan(tmp_path / "found")
    assert found.sharding is not None
    assert (found.request.search, found.request.mesh, found.request.stages) == ("autotune", "auto", 1)
    assert found.autotuning is not None
    assert found.alternatives
    again = read_module(step.read_bytes(), "mlp.mlir", make_context())
    assert why_text(again, found, "plan").startswith("alternatives:\n")
    assert why_text(again, plan, "plan") == "nothing else was looked at"


def test_a_refusal_names_what_needs_least_first():
    needs = ((4, 300.0, 0.0), (1, 0.0, 0.0), (2, 120.0, 0.0), (8, 0.0, 110.0))
    refused = [
        Refused(PlanConfig(1, (4,), number), f"{number}", True, 0.0, least, found_bytes=found)
        for number, least, found in needs
    ]
    end = _End(
        Setup(b"", "step.mlir", "cpu4", 100.0, {}), Explored(outcomes=list(refused)), lambda plan: Made(plan, 0.0, ())
    )
    error = end.none_fits()
    assert error.what == "no plan is predicted to fit 100 B per device; the smallest plan that was found needs 110 B"
    assert [note.rpartition(" ")[2] for note in error.notes] == ["8", "2", "4", "1"]


def test_a_refusal_after_compiles_is_of_what_was_compiled():
    refused = Refused(PlanConfig(1, (4,), 8), "needs about 120 B", True, 0.0, 120.0)
    failed = Refused(PlanConfig(1, (4,), 1), "too much once compiled", by_memory=True)
    compiles = Compiles(lambda _: pytest.fail("nothing is compiled here"), 100, compiler="a compiler 1.0")
    compiles.compiled = [
        (CompiledPlan(name, "localized", 1.0, 90, step_s, size, "", 100), None)
        for name, step_s, size in (("a", 1.0, 130), ("b", 1.0, 125), ("c", None, None))
    ]
    setup = Setup(b"", "step.mlir", "cpu4", 100.0, {})
    end = _End(setup, Explored(outcomes=[refused]), lambda plan: Made(plan, 0.0, ()), compiles, failed=[failed])
    error = end.none_fits()
    assert error.what == "no plan fits 100 B once compiled: the least takes 125 B (a compiler 1.0), predicted 90 B"
    assert error.notes == (f"{failed.config}: too much once compiled", "plans compiled: 3")
    assert "--compiles" in error.fix


def test_after_an_interruption_no_experts_plan_is_compiled():
    estimate = Estimate(PlanConfig(1, (4,), 1), "", 1.0, 1.0, 1.0, 1.0, collectives_s=0.0, peak_bytes=(1.0,))
    row = CompiledPlan("a", "localized", 1.0, 90, 1.0, 90, "", 100)
    compiles = Compiles(lambda _: pytest.fail("nothing is compiled here"), 100)
    made = Made("a", 1.0, (90.0,), row, compare=lambda: pytest.fail("an expert's plan is compiled"))
    end = _End(Setup(b"", "step.mlir", "cpu4", 100.0, {}), Explored(outcomes=[estimate]), lambda _: made, compiles)
    end.explored.interrupt()
    end.make_best()
    end.compare()
    assert end.found()[0] is made
    assert not end.explored.is_complete


def test_stages_are_estimated_with_their_share_of_scanned_layers():
    context = make_context()
    module = read_module(text(STEPS["plain"]), "plain", context)
    with context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    setup = Setup(bytecode(module), "plain", "cpu8", 2.0**31, {}, schedules=("gpipe",))
    evaluator = Evaluator(setup)
    halves, alone = (evaluator.outcome(PlanConfig(stages, (1,), 4)) for stages in (2, 1))
    assert isinstance(halves, Estimate)
    assert isinstance(alone, Estimate)
    assert halves.compute_s < 0.6 * alone.compute_s
    assert max(halves.peak_bytes) < alone.peak_bytes[0]
    assert sum(halves.peak_bytes) < 1.2 * alone.peak_bytes[0]  # with all layers in each it is twice that
