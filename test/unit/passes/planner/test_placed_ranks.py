"""Ranks on devices that are not neighbours: against ranks on all others that there are, and run on drawn ones."""

import io
import json
import random
from dataclasses import replace
from itertools import permutations
from math import inf, prod
from pathlib import Path

import front_heavy_step
import pytest
from batched_steps import STEPS, text
from pipelines import Setting, difference, plan, run
from planning import reference
from test_unlike_search import evaluator, part
from traffic import splitting_cluster

from rhino.ir.cluster.cluster import Cluster, cluster_to_text, link_between, load_cluster
from rhino.ir.cluster.groups import joined, rank_clusters
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.cluster.placement import placed, placed_devices, placed_name
from rhino.ir.plan.files import load_plan, save_plan
from rhino.passes.planner.explain import explain_text
from rhino.passes.sharding.planning_pass import rank_target
from rhino.strategies.autotune.base import CutOff, Estimate, PlanConfig
from rhino.tools import opt
from rhino.tools import run as run_tool

NUM_STEPS = 2


def nodes(count: int, size: int) -> Cluster:
    """So many nodes of so many V100s, a card for each node."""
    cluster = load_cluster("v100x8x2")
    outer, inner = cluster.levels
    levels = replace(outer, size=count, devices_per_port=size), replace(inner, size=size, partial_bytes_per_s=())
    return replace(cluster, name="nodes", levels=levels)


def groups() -> Cluster:
    network = replace(load_cluster("v100x8x2").levels[0], devices_per_port=2, size=2)
    return joined("mixed", "two and two", [part("v100x8", 2), part("p100x8", 2)], network)


@pytest.mark.parametrize(
    ("cluster", "configs", "other"),
    [
        (nodes(2, 2), {2: 2}, {2}),
        (nodes(2, 3), {2: 3}, {2}),
        (groups(), {2: 2, 4: 1}, {2, 4}),
    ],
    ids=["2x2", "2x3", "2+2"],
)
def test_no_ranks_are_better_than_those_on_the_devices_that_are_found(
    tmp_path: Path, cluster: Cluster, configs: dict[int, int], other: set[int]
):
    """All orders of the devices are looked at: those in which ranks have other links, or links between them."""
    step = text(front_heavy_step.step_of(tokens=512, hidden=256, wide=2048, layers=2, batch=16))
    planner, every = evaluator(tmp_path, cluster, step), list(permutations(range(cluster.num_devices)))
    moved = set()
    for stages, size in configs.items():
        config, sizes = PlanConfig(stages, (size,), 4), (size,) * stages
        orders: dict[object, tuple[int, ...]] = {}
        for order in every:
            one = placed(cluster, order)
            parts = tuple([(own.device, own.levels) for own in rank_clusters(one, sizes)])
            kind = rank_target(one, mesh_of_shape((size,)), stages), link_between(one, sizes), parts
            orders.setdefault(kind, order)
        assert len(orders) > 2
        steps_s = []
        for order in orders.values():
            planner.cluster = placed(cluster, order) if order != every[0] else cluster
            outcome = planner.outcome(config)
            steps_s.append(outcome.quickest.step_s if isinstance(outcome, Estimate) else inf)
        planner.cluster = cluster
        found = planner.outcome(config)
        assert isinstance(found, Estimate)
        assert found.quickest.step_s == pytest.approx(min(steps_s))
        assert found.bound_s <= found.step_s
        moved |= {stages} if found.quickest.device_order else set()
        assert isinstance(planner.outcome(config, found.quickest.step_s * (1 - 1e-9)), CutOff)
    assert moved == other


@pytest.fixture(scope="module")
def splitting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cluster on which it pays to split the tiniest tensor, and to send little."""
    file: Path = tmp_path_factory.mktemp("cluster") / "splitting.toml"
    file.write_text(splitting_cluster(1e13, 1e8), encoding="utf-8")
    return str(file)


MESHES = ("2;2", "2x2;2x2", "2;2;2;2", "4;2;2", "1;3;2", "1;1;1;1")


@pytest.mark.parametrize(
    ("name", "seed", "processes"),
    [
        ("dropped", 0, 1),
        pytest.param("keyed", 12, 2, marks=pytest.mark.long),
        *[
            pytest.param(name, seed, 1 + seed % 2, marks=pytest.mark.long)
            for seed, name in enumerate(sorted(STEPS)[:12])
        ],
    ],
)
def test_ranks_on_drawn_devices_give_the_answer_of_one_device(
    tmp_path: Path, splitting: str, name: str, seed: int, processes: int
):
    """On four and eight devices, random bits and all; a plan that was kept runs in processes."""
    draw = random.Random(seed)
    mesh = MESHES[seed % len(MESHES)]
    sizes = [prod(map(int, one.split("x"))) for one in mesh.split(";")]
    count = 8 if sum(sizes) > 4 else 4
    order = next(order for _ in range(9) if (order := draw.sample(range(count), count)) != sorted(order))
    setting = Setting(len(sizes), 2, draw.choice(["1f1b", "gpipe"]), mesh, placed_name(splitting, order))
    made = plan(text(STEPS[name]), name, setting)
    assert made.plan.devices == placed_devices(load_cluster(setting.cluster), sizes) != ()
    assert made.execution.step.devices == made.plan.devices
    if processes == 1:
        expected = reference(text(STEPS[name]), name, NUM_STEPS)
        assert difference(made, run(made, expected.inputs, NUM_STEPS), expected, name).passes
        return
    (tmp_path / "step.mlir").write_bytes(text(STEPS[name]))
    save_plan(made.plan, tmp_path / "plan")
    assert load_plan(tmp_path / "plan").devices == made.plan.devices
    words = [str(tmp_path / "plan"), f"--compare={tmp_path / 'step.mlir'}", f"--processes={processes}"]
    err, out = io.StringIO(), io.StringIO()
    assert run_tool.run([*words, f"--steps={NUM_STEPS}"], io.BytesIO(), out, err) == 0, err.getvalue()
    assert "the results agree with the one-device program" in out.getvalue()


def test_what_is_found_unasked_is_told_and_kept(tmp_path: Path):
    """Each stage is in both nodes, as the made plan is, and the file of it; the plan runs."""
    slow = replace(nodes(2, 2).levels[0], port_bytes_per_s=1e8)
    cluster = replace(nodes(2, 2), levels=(slow, nodes(2, 2).levels[1]))
    (tmp_path / "nodes.toml").write_text(cluster_to_text(cluster), encoding="utf-8")
    step = front_heavy_step.step_of(tokens=512, hidden=256, wide=512, layers=2, batch=8)
    (tmp_path / "step.mlir").write_bytes(text(step))
    words = ["--auto-parallel", f"--cluster={tmp_path / 'nodes.toml'}", "--stages=2", "--mesh=2", "--jobs=1"]
    words += [f"--plan={tmp_path / 'plan'}", f"--plan-json={tmp_path / 'report.json'}", str(tmp_path / "step.mlir")]
    err = io.StringIO()
    assert opt.run(words, io.BytesIO(), io.BytesIO(), err) == 0, err.getvalue()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["plan"]["device_order"] == [0, 2, 1, 3]
    words = "ranks of 2 devices, 1 in each of 2 units of roce"
    assert err.getvalue().count(words) > 1
    kept = load_plan(tmp_path / "plan")
    assert kept.devices == ((0, 2), (1, 3))
    assert kept.predicted.step_s == pytest.approx(report["estimated_step_s"], rel=0.1)
    assert words in explain_text(kept)
    out = io.StringIO()
    ran = [str(tmp_path / "plan"), f"--compare={tmp_path / 'step.mlir'}", f"--steps={NUM_STEPS}"]
    assert run_tool.run(ran, io.BytesIO(), out, err) == 0, err.getvalue()
    assert "the results agree with the one-device program" in out.getvalue()
