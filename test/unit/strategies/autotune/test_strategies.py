"""Autotuning strategies, side by side: on made-up models against every configuration, and on a real step."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

import made_up_plans
import mlp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_plans import MESHES, NUMBERS, MadeUp
from training import export_step
from zoo import MLP

from rhino.strategies.autotune import DEFAULT, STRATEGIES, explore
from rhino.strategies.autotune.aceso import alleviate, rank_of
from rhino.strategies.autotune.base import (
    MOST,
    CutOff,
    Estimate,
    Evaluations,
    Explored,
    Outcome,
    PlanConfig,
    Refused,
    Space,
    SpentError,
    on_meshes,
)
from rhino.strategies.autotune.moves import PRIMITIVES, balanced, moves
from rhino.tools import opt

CONFIG = PlanConfig(1, (1,), 1)

AMPLE = 1000
"""More configurations than any space here has."""

MODEL = MadeUp(work_s=1.0, part_s=0.001, outer_s=0.2, inner_s=0.3, state=1.5, saved=2.0, again=0.3)


def space_of(devices: int, most: int = AMPLE) -> Space:
    """Everything there is to choose from, for devices of which each has one unit of memory."""
    return Space(MESHES[devices], NUMBERS, MODEL.work_s, most=most, budget_bytes=1.0)


def step_s(explored: Explored) -> float | None:
    """The best step that was found."""
    return explored.ranked[0].step_s if explored.ranked else None


# Against every configuration


@pytest.mark.parametrize("devices", [4, 8])
def test_alleviation_comes_within_two_percent_of_the_best(devices: int):
    """Of models as they are drawn: there are some, with hardly any memory, of which it stays 4 % above the best."""
    space = space_of(devices, most=32)
    for model in made_up_plans.drawn(100):
        best_s, explored = model.best_s(space), explore(space, model.evaluate, strategy="aceso")
        found_s = step_s(explored)
        assert (found_s is None) == (best_s is None)
        assert found_s is None or best_s is None or found_s <= 1.02 * best_s
        assert len(explored.outcomes) <= space.most


@pytest.mark.long
def test_on_more_devices_alleviation_is_seldom_far_off():
    """On 24 devices (20 meshes, 7 numbers, 3 shares), some starts end in a place that two primitives do not leave."""
    ratios = []
    for model in made_up_plans.drawn(100):
        if (best_s := model.best_s(space_of(24))) is not None:
            found_s = step_s(explore(space_of(24, most=64), model.evaluate, strategy="aceso"))
            assert found_s is not None
            ratios.append(found_s / best_s)
    assert sum(ratio > 1.02 for ratio in ratios) <= len(ratios) / 8
    assert max(ratios) < 1.3


def check_best(model: MadeUp, space: Space) -> None:
    found = {name: step_s(explore(space, model.evaluate, strategy=name)) for name in STRATEGIES}
    for other_s in found.values():
        assert other_s is None or (found["best"] is not None and found["best"] <= other_s)


@settings(max_examples=200, deadline=None)
@given(made_up_plans.models(), st.sampled_from([4, 8, 16, 24]), st.sampled_from([1, 3, 16, MOST, AMPLE]))
def test_best_is_never_worse_than_any_other(model: MadeUp, devices: int, most: int):
    check_best(model, space_of(devices, most))


@pytest.mark.long
def test_best_is_never_worse_than_any_other_where_what_may_be_looked_at_is_less_than_there_is():
    """On 24 devices with what a strategy may look at by default, which some spend."""
    spent = 0
    for model in made_up_plans.drawn(60):
        check_best(model, space_of(24, MOST))
        spent += not explore(space_of(24, MOST), model.evaluate, strategy="rhino").is_complete
    assert spent > 0


@settings(max_examples=100, deadline=None)
@given(made_up_plans.models(), st.sampled_from([8, 24]), st.sampled_from(sorted(STRATEGIES)))
def test_no_shape_is_asked_for_twice_and_all_are_of_the_space(model: MadeUp, devices: int, strategy: str):
    space = space_of(devices)
    explored = explore(space, model.evaluate, strategy=strategy)
    assert len(set(model.asked)) == len(model.asked) == len(explored.outcomes)
    assert all(
        one.mesh in space.meshes[one.stages] and (one.stages == 1 or one.micro_batches > 1) for one in model.asked
    )
    assert set(explored.requested_by) == set(model.asked)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_more_than_allowed_is_planned_and_the_best_of_it_is_kept(strategy: str):
    explored = explore(space_of(24, most=3), MODEL.evaluate, strategy=strategy)
    assert set(explored.num_requested.values()) == {3}
    assert len(explored.num_requested) == (3 if strategy == "best" else 1)
    assert not explored.is_complete


def test_ranks_of_unlike_meshes_are_no_start_of_moves():
    """The best plan has three stages, of which ranks of one mesh cannot be made."""
    meshes = ((4,), (2,), (2,))
    space = replace(space_of(8), rank_shapes=((2,), (4,)), unlike_stages=(3,))
    asked: list[PlanConfig] = []

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        asked.extend(configs)
        found = MODEL.evaluate([replace(one, meshes=()) for one in configs], cutoff_s)
        return [
            Estimate(config, "1f1b", 1e-3, 0.0, 0.0, 5e-4, 5e-4, (0.1,) * 3)
            if config.meshes
            else replace(one, config=config)
            for config, one in zip(configs, found, strict=True)
        ]

    explored = explore(space, evaluate, strategy="best", screen=lambda _, __: [[(1e-3, on_meshes(meshes, 8))]])
    assert explored.ranked[0].config.meshes == meshes
    assert all(one.stages in space.meshes for one in asked if not one.meshes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_not_below_a_step_from_elsewhere_is_of_no_use(strategy: str):
    best_s = step_s(every := explore(space_of(8), MODEL.evaluate, strategy=strategy))
    assert best_s is not None
    above = explore(space_of(8), MODEL.evaluate, strategy=strategy, below_s=best_s * 1.001)
    assert step_s(above) == best_s
    assert len(above.ranked) < len(every.ranked) or strategy == "tap"  # which has one plan
    busy_s = min(one.bound_s for one in every.ranked)
    below = explore(space_of(8), MODEL.evaluate, strategy=strategy, below_s=busy_s)
    assert not below.ranked
    bound = explore(space_of(8), MODEL.evaluate, strategy=strategy, below_s=busy_s, relaxed=every.outcomes)
    assert not bound.ranked
    assert len(bound.outcomes) < len(below.outcomes)


@pytest.mark.parametrize("guess", [CutOff(CONFIG, 0.0, 0.0, by_memory=False), Refused(CONFIG, "", by_memory=True)])
@pytest.mark.parametrize("strategy", ["aceso", "best", "rhino"])
def test_what_is_asked_next_is_foreseen_where_nothing_better_turns_up(strategy: str, guess: CutOff | Refused):
    foreseen: list[list[PlanConfig]] = []
    asked: list[list[PlanConfig]] = []
    cutoffs: list[float] = []

    def foresee(configs: Iterator[PlanConfig]) -> None:
        foreseen.append(list(configs))

    def evaluate(configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        asked.append(list(configs))
        cutoffs.append(cutoff_s)
        if cutoff_s == inf:
            return MODEL.evaluate(configs, cutoff_s)
        known = {"bound_s": cutoff_s, "free_bound_s": cutoff_s} if isinstance(guess, CutOff) else {}
        return [replace(guess, config=config, **known) for config in configs]

    explore(space_of(8), evaluate, strategy=strategy, foresee=foresee)
    assert {*foreseen[0]} > {*asked[1]}, (
        "while the first configuration is planned, the steps of others may be read, beyond the next round's"
    )
    first = next(number for number, cutoff_s in enumerate(cutoffs) if cutoff_s < inf)
    assert all(set(later) <= {*before} for before, later in zip(foreseen[first:], asked[first + 1 :], strict=False))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_interruption_leaves_the_best_so_far(strategy: str):
    rounds: list[int] = []

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        if rounds:
            raise KeyboardInterrupt
        rounds.append(len(configs))
        return [replace(ample, config=config) for config in configs]

    ample = MODEL.outcome(PlanConfig(8, (1,), 32))
    explored = explore(Space({1: ((2, 4),), 8: ((1,),)}, NUMBERS, 0.0), evaluate, strategy=strategy)
    assert explored.ranked
    assert explored.is_complete == (strategy == "tap")  # it asks once if its first fits


# Tensor parallelism alone


def test_tensor_parallelism_takes_micro_batches_for_memory_alone():
    explored = explore(space_of(16), replace(MODEL, state=0.5, saved=1.5).evaluate, strategy="tap")
    assert {one.config.stages for one in explored.ranked} == {1}
    assert {one.config.remat for one in explored.ranked} == {0.0}
    for one in explored.ranked:
        fewer = [other for other in explored.refused if other.config.mesh == one.config.mesh]
        assert all(other.by_memory and other.config.micro_batches < one.config.micro_batches for other in fewer)
    assert len({one.config.mesh for one in explored.ranked}) == 3


def test_tensor_parallelism_has_nothing_to_say_of_stages():
    assert not explore(Space({2: ((2, 2),)}, NUMBERS, 0.0), MODEL.evaluate, strategy="tap").outcomes


# Primitives


def test_primitives_lead_where_their_names_say():
    space, config = space_of(24), PlanConfig(4, (2, 3), 16, 0.5)
    found = {one.name: list(one.apply(space, config)) for one in PRIMITIVES}
    assert found == {
        "dec-op#, dec-dp/tp": [
            PlanConfig(8, (3,), 16, 0.5),
            PlanConfig(8, (3,), 32, 0.5),
            PlanConfig(12, (2,), 16, 0.5),
            PlanConfig(12, (2,), 64, 0.5),
        ],
        "inc-op#, inc-dp/tp": [
            PlanConfig(2, (4, 3), 16, 0.5),
            PlanConfig(2, (4, 3), 8, 0.5),
            PlanConfig(2, (2, 6), 16, 0.5),
            PlanConfig(2, (2, 6), 8, 0.5),
        ],
        "inc-dp, dec-tp and back": [PlanConfig(4, (3, 2), 16, 0.5)],
        "inc-mbs": [PlanConfig(4, (2, 3), 8, 0.5)],
        "dec-mbs": [PlanConfig(4, (2, 3), 32, 0.5)],
        "inc-rc": [PlanConfig(4, (2, 3), 16, 1.0)],
        "dec-rc": [PlanConfig(4, (2, 3), 16, 0.0)],
    }


def test_meshes_that_mean_the_same_are_one():
    space = Space({1: ((2, 8), (4, 4)), 2: ((2, 4),)}, (1, 8), 0.0, remats=(0.0,))
    assert {one.mesh for one in moves(space, PlanConfig(2, (2, 4), 8)) if one.stages == 1} == {(4, 4), (2, 8)}
    assert {one.mesh for one in moves(space, PlanConfig(1, (2, 8), 8)) if one.stages == 1} == {(2, 8), (4, 4)}


@pytest.mark.parametrize("devices", MESHES)
def test_primitives_lead_to_every_shape(devices: int):
    space = space_of(devices)
    reached, waiting = set(balanced(space)[0][:1]), balanced(space)[0][:1]
    while waiting:
        new = [one for one in moves(space, waiting.pop()) if one not in reached]
        reached.update(new)
        waiting += new
    assert reached == set(made_up_plans.every_config(space))


# Alleviation


def test_alleviation_starts_from_any_plan():
    model = replace(MODEL, part_s=0.01)
    best_s = model.best_s(space_of(8))
    assert best_s is not None
    for start in made_up_plans.every_config(space_of(8)):
        trials = Evaluations(space_of(8), model.evaluate)
        alleviate(trials, [start])
        assert trials.explored.ranked[0].step_s <= 1.02 * best_s


def test_fewer_micro_batches_in_one_stage_are_tried_whatever_more_of_them_take():
    """A mesh that takes 10 s in two micro-batches takes 3 s in one, where weights are gathered once."""
    seconds = {((4, 4), 2): 10.0, ((2, 8), 2): 8.0, ((2, 8), 1): 4.0, ((4, 4), 1): 3.0}

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        steps = [(one, seconds[one.mesh, one.micro_batches]) for one in configs]
        return [Estimate(one, "", s, s, s, 1.0, s - 1.0, (1.0,)) for one, s in steps]

    space = Space({1: ((2, 8), (4, 4))}, (1, 2), 0.5, remats=(0.0,), budget_bytes=1.5, passing_bytes=1.0)
    assert space.micro_batches[space.seed(1)] == 2
    assert explore(space, evaluate, strategy="aceso").ranked[0].step_s == 3.0


def test_what_needs_less_ranks_before_what_needs_more_whoever_says_so():
    by_rows = Refused(PlanConfig(1, (4,), 1), "", by_memory=True, needs_bytes=120.0)
    by_programs = Refused(PlanConfig(1, (4,), 2), "", by_memory=True, found_bytes=150.0)
    assert rank_of(by_rows) < rank_of(by_programs) < rank_of(Refused(PlanConfig(1, (4,), 4), "", by_memory=False))


def test_memory_that_does_not_suffice_is_relieved_first():
    space, config = space_of(8), PlanConfig(1, (2, 4), 2)
    model = replace(MODEL, state=1.2, saved=3.0)
    assert isinstance(model.outcome(config), Refused)
    trials = Evaluations(space, model.evaluate)
    alleviate(trials, [config])
    assert {one.family for one in model.asked[1:4]} <= {one.family for one in moves(space, config, ("memory",))}


def test_meshes_in_one_row_and_numbers_in_between_are_tuned_at_the_end():
    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        steps = [(one, 1 + abs(one.micro_batches - 6) + (len(one.mesh) > 1)) for one in configs]
        return [Estimate(one, "", s, s, 0.5, s, 0.0, (1.0,)) for one, s in steps]

    space = Space({1: ((2, 2),)}, (1, 2, 4, 8, 24), 0.0, remats=(0.0,), finer=(1, 2, 3, 4, 6, 8, 12, 24), has_kin=True)
    best = explore(space, evaluate, strategy="aceso").ranked[0].config
    assert (best.mesh, best.micro_batches) == ((4,), 6)


@pytest.mark.parametrize(("three_axes", "mesh"), [(frozenset({1}), (4, 4, 4)), (frozenset(), (8, 8))])
def test_three_axes_are_walked_to_from_the_best_of_two_where_a_rank_may_have_them(
    three_axes: frozenset[int], mesh: tuple[int, ...]
):
    """No mesh next to (8, 8) is (4, 4, 4): it is next to (2, 4, 8), (4, 2, 8) and the like, which are better."""

    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        steps = [(one, 1 + 0.01 * max(one.mesh) - 0.1 * (len(one.mesh) > 2)) for one in configs]
        return [Estimate(one, "", s, 0.5, 0.5, s, 0.0, (1.0,)) for one, s in steps]

    space = Space({1: ((4, 16), (8, 8))}, (1,), 0.0, remats=(0.0,), has_kin=True, three_axes=three_axes)
    explored = explore(space, evaluate)
    assert explored.ranked[0].config.mesh == mesh
    assert len({one.config for one in explored.outcomes}) == len(explored.outcomes)


def test_shares_in_between_are_tuned_at_the_end():
    def evaluate(configs: Sequence[PlanConfig], _: float) -> list[Outcome]:
        return [
            Refused(one, "too large", True, 1.0, 2 * (1 - one.remat))
            if one.remat < 0.3
            else Estimate(one, "", s, s, 1.0, s, 0.0, (1.0,))
            for one in configs
            for s in [1 + one.remat]
        ]

    space = Space({1: ((4,),)}, (1,), 0.0, budget_bytes=1.4)
    assert explore(space, evaluate, strategy="aceso").ranked[0].config.remat == 0.375


def test_what_may_be_evaluated_is_a_limit_for_all():
    trials = Evaluations(space_of(8, most=1), MODEL.evaluate)
    with pytest.raises(SpentError):
        trials.outcomes([PlanConfig(8, (1,), 32), PlanConfig(8, (1,), 64)])
    assert len(trials.explored.outcomes) == 1
    assert trials.outcomes([PlanConfig(8, (1,), 32)]) == trials.explored.outcomes


# On a real step


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small training step in a folder of its own."""
    path: Path = tmp_path_factory.mktemp("step") / "mlp.mlir"
    path.write_text(export_step(mlp.model(replace(MLP, batch=8))), encoding="utf-8")
    return path


def optimize(step: Path, *options: str) -> tuple[int, str]:
    """Runs `rhino-opt --auto-parallel` on four devices."""
    out, err = io.BytesIO(), io.StringIO()
    code = opt.run(["--auto-parallel", "--cluster=cpu4", "--jobs=1", str(step), *options], io.BytesIO(), out, err)
    return code, err.getvalue()


@pytest.fixture(scope="module")
def plans(step: Path) -> dict[str, dict[str, object]]:
    """What each strategy finds, as --plan-json has it."""
    found = {}
    for name in STRATEGIES:
        file = step.parent / f"{name}.json"
        code, err = optimize(step, f"--strategy={name}", "--plan-json", str(file))
        assert code == 0, err
        found[name] = json.loads(file.read_text())
        assert f"found by {found[name]['found_by']}, the best of" in err
    return found


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_command_says_who_found_the_plan(plans: dict[str, dict[str, object]], name: str):
    plan = plans[name]
    asked = plan["num_planned"]
    assert isinstance(asked, dict)
    assert sum(asked.values()) > 0
    assert plan["found_by"] in asked
    if name != DEFAULT:
        assert set(asked) == {name}


def test_the_best_plan_is_no_slower_than_any(plans: dict[str, dict[str, object]]):
    steps = {name: plan["predicted_step_s"] for name, plan in plans.items()}
    assert steps[DEFAULT] == min(steps.values())


def test_what_is_kept_for_the_way_back_may_be_said(step: Path):
    file = step.parent / "kept.json"
    code, err = optimize(step, "--strategy=tap", "--stages=1", "--remat=0.5", "--plan-json", str(file))
    assert code == 0, err
    plan = json.loads(file.read_text())
    assert {one["remat"] for one in (plan["plan"], *plan["alternatives"], *plan["cut_off"])} == {0.5}


def test_a_strategy_without_a_search_is_refused(step: Path):
    code, err = optimize(step, "--strategy=tap", "--stages=1", "--micro-batches=1")
    assert (code, "RHI-CLI-001" in err) == (2, True)
    code, err = optimize(step, "--strategy=greedy")
    assert (code, "RHI-CLI-001" in err) == (2, True)
