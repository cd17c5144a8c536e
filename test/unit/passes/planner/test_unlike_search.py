"""Ranks of unlike meshes that nobody asked for: against ranks of every shape, and run."""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, prod
from pathlib import Path

import front_heavy_step
import pytest
from batched_steps import text

from rhino.ir.cluster.cluster import Cluster, cluster_to_text, load_cluster
from rhino.ir.cluster.groups import joined, largest_memory
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.search_space import unlike_meshes
from rhino.passes.planner.setup import Setup
from rhino.strategies.autotune.base import Estimate, Screening, on_meshes
from rhino.tools import opt
from rhino.tools import run as run_tool

NUM = 8
"""Micro-batches."""


def part(name: str, num_devices: int) -> Cluster:
    whole = load_cluster(name)
    level = replace(whole.levels[-1], size=num_devices, partial_bytes_per_s=())
    return replace(whole, name=f"{name}-{num_devices}", levels=(level,))


def two_groups() -> Cluster:
    network = replace(load_cluster("v100x8x2").levels[0], devices_per_port=3, size=2)
    return joined("mixed", "three and three", [part("v100x8", 3), part("p100x8", 3)], network)


def slow_links() -> Cluster:
    """Six devices so slow that small tensors take as long as large ones do elsewhere, on slower links."""
    cluster = part("v100x8", 6)
    device, (level,) = cluster.device, cluster.levels
    device = replace(
        device,
        flops_per_s=tuple([(name, 5e-6 * rate) for name, rate in device.flops_per_s]),
        hbm_bytes_per_s=1e-4 * device.hbm_bytes_per_s,
        workspace_bytes=None,
        platform="cpu",
    )
    level = replace(level, latency_s=1e-8, port_bytes_per_s=5e-6 * level.port_bytes_per_s)
    return replace(cluster, device=device, levels=(level,), compile_for="")


def evaluator(folder: Path, cluster: Cluster, step: bytes) -> Evaluator:
    file = folder / "cluster.toml"
    file.write_text(cluster_to_text(cluster), encoding="utf-8")
    module = read_module(step, "step", make_context())
    with module.context, ir.Location.unknown():
        Normalize(boundaries=True).run(module.operation, Remarks("step"))
    return Evaluator(Setup(bytecode(module), "step", str(file), float(largest_memory(cluster)), {}, recomputes=True))


def every_rank(num_devices: int, meshes: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields the meshes of ranks that have all devices together, in every way."""
    if not num_devices:
        yield ()
    for mesh in meshes:
        if prod(mesh) <= num_devices:
            for rest in every_rank(num_devices - prod(mesh), meshes):
                yield (mesh, *rest)


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(part("v100x8", 4), id="4"),
        pytest.param(part("v100x8", 6), id="6", marks=pytest.mark.long),
        pytest.param(two_groups(), id="3+3"),
    ],
)
def test_the_best_ranks_of_all_shapes_are_found(tmp_path: Path, cluster: Cluster):
    """Every rank of every shape is evaluated, each with its best cut: 34 on six devices, in three seconds."""
    step = front_heavy_step.step_of(tokens=512, hidden=256, wide=2048, layers=3, batch=48)
    planner, count = evaluator(tmp_path, cluster, text(step)), cluster.num_devices
    meshes = unlike_meshes(cluster)
    configs = [on_meshes(ranks, NUM) for ranks in every_rank(count, meshes) if len(ranks) > 1]
    outcomes = {config: planner.outcome(config) for config in configs}
    steps = {config: one.step_s if isinstance(one, Estimate) else inf for config, one in outcomes.items()}
    best = min(steps, key=lambda config: steps[config])
    for by_moves in (True, False):
        found = planner.screened(Screening(meshes, tuple(range(2, count)), NUM, by_moves=by_moves), inf)
        looked = [*(config for _, config in found), *(config for config in configs if not config.meshes)]
        assert min(steps[config] for config in looked) == steps[best]
    assert bool(best.meshes) == (count == 6)
    for config, one in outcomes.items():
        assert isinstance(one, Estimate)
        assert one.bound_s <= one.step_s
        if config in dict.fromkeys(config for _, config in found):
            about_s = next(step_s for step_s, other in found if other == config)
            assert about_s >= one.step_s * 0.85
            assert cluster.groups or about_s <= one.step_s * 1.15  # else it may be better in another order of groups


@pytest.mark.long
def test_stages_are_wide_where_activations_are_large_and_the_plan_gives_the_answer_of_one_device(tmp_path: Path):
    """Nothing is asked for; the same plan with any number of processes."""
    step = front_heavy_step.step_of(tokens=64, hidden=32, wide=256, layers=3, batch=48)
    (tmp_path / "step.mlir").write_bytes(text(step))
    (tmp_path / "slow.toml").write_text(cluster_to_text(slow_links()), encoding="utf-8")
    words = ["--auto-parallel", f"--cluster={tmp_path / 'slow.toml'}", str(tmp_path / "step.mlir")]
    words += [f"--plan={tmp_path / 'plan'}", f"--plan-json={tmp_path / 'report.json'}"]
    err = io.StringIO()
    assert opt.run(words, io.BytesIO(), io.BytesIO(), err) == 0, err.getvalue()
    report = json.loads((tmp_path / "report.json").read_text())
    sizes = [prod(mesh) for mesh in report["plan"]["meshes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    equal = [one["estimated_step_s"] for one in report["alternatives"] if "meshes" not in one]
    assert report["estimated_step_s"] < min(equal)
    err, out = io.StringIO(), io.StringIO()
    words = [str(tmp_path / "plan"), f"--compare={tmp_path / 'step.mlir'}", "--steps=2"]
    assert run_tool.run(words, io.BytesIO(), out, err) == 0, err.getvalue()
    assert "the results agree with the one-device program" in out.getvalue()
