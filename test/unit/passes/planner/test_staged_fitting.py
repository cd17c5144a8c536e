"""The plan in stages that fits: limits of rows and of stages, tried until the instructions fit."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.plan import Predicted
from rhino.passes.base import Remarks
from rhino.passes.planner.staged_fitting import Attempt, fit_in_stages
from rhino.passes.sharding.choose_shardings import ShardingChoice


@dataclass
class Steps:
    """Steps whose peak is `over` times their rows, which are at least `least`, and at most 100."""

    over: float
    least: float = 10.0
    holds: float = 0.0
    """What stages hold by estimate."""
    budget: int = 0
    tried: int = 0

    def __call__(self, more: dict[str, str]) -> Attempt[str]:
        self.tried += 1
        rows = min(100.0, int(more["rows"]))
        if rows < self.least:
            raise RhinoError("RHI-SOLVE-001", "too few rows")
        if self.holds > int(more.get("stage-rows", self.budget)):
            raise RhinoError("RHI-STAGE-004", "no cut")
        return _attempt(rows, int(rows * self.over), step_s=200 - rows)

    def fit(self, budget: int) -> Attempt[str]:
        self.budget = budget
        return fit_in_stages(self, budget)


def _attempt(rows: float, peak: int, step_s: float) -> Attempt[str]:
    predicted = Predicted(step_s, 0.0, (peak, peak), _BUDGET, (0, 0))
    cluster = load_cluster("cpu2")
    mesh = mesh_of_shape((1,))
    plan: Any = SimpleNamespace(
        predicted=predicted,
        num_ranks=2,
        meshes=(mesh, mesh),
        num_devices=2,
        cluster=cluster_to_text(cluster).splitlines(),
        machine=lambda: cluster,
        shares=(),
    )
    remarks = Remarks()
    choice: Any = SimpleNamespace(answer=SimpleNamespace(peak_bytes=2 * rows))
    remarks.results[ShardingChoice] = replace(_CHOICE, answer=choice.answer)
    return Attempt(f"{rows:g}", plan, remarks)


_NONE: Any = None
_BUDGET = 150
"""That of a plan, by which alone its peaks count: the steps are told another."""

_TARGET: Any = SimpleNamespace(mesh=mesh_of_shape((1,)))
_CHOICE = ShardingChoice(_TARGET, _NONE, _NONE, _NONE, _NONE, 0.0, _NONE)


def test_what_fits_without_a_limit_is_taken_at_once() -> None:
    steps = Steps(over=1.5)
    assert steps.fit(150).made == "100"
    assert steps.tried == 1


@pytest.mark.parametrize("over", [0.5, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_limit_is_found_below_a_plan_that_does_not_fit(over: float, share: float) -> None:
    steps = Steps(over)
    budget = int(100 * over * share)
    found = steps.fit(budget)
    assert 0.85 * budget <= found.peak_bytes <= budget
    assert steps.tried <= 17


def test_stages_whose_estimate_is_too_high_are_cut_for_their_work() -> None:
    assert Steps(over=1.0, holds=120.0).fit(100).made == "100"


def test_the_smallest_is_returned_where_nothing_fits() -> None:
    found = Steps(over=1.0, least=60.0).fit(50)
    assert 60 <= found.peak_bytes < 70, "for the caller to refuse, with what it needs"


def test_where_no_cut_fits_all_stages_recompute_all_they_can(monkeypatch) -> None:
    monkeypatch.setattr(Attempt, "held_bytes", [30.0, 30.0])

    def make(more: dict[str, str]) -> Attempt[str]:
        return _attempt(50.0, 40 if more.get("remat") == "1" else 120, step_s=1.0)

    assert fit_in_stages(make, 50).peak_bytes == 40


def test_the_first_refusal_is_raised_where_there_is_no_plan() -> None:
    with pytest.raises(RhinoError, match="too few rows"):
        Steps(over=1.0, least=sys.maxsize).fit(50)


def test_other_errors_are_raised_at_once() -> None:
    def make(_: dict[str, str]) -> Attempt[str]:
        raise RhinoError("RHI-BATCH-001", "no batch")

    with pytest.raises(RhinoError, match="no batch"):
        fit_in_stages(make, 10)


@dataclass
class HostSteps:
    """Steps that fit where host memory may be used, in 2 s, and where it is not in another time, or not at all (0)."""

    on_devices_s: float
    tried: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, more: dict[str, str]) -> Attempt[str]:
        self.tried.append(more)
        rows = min(100.0, int(more["rows"]))
        if "offload" in more and not self.on_devices_s:
            raise RhinoError("RHI-SOLVE-001", "no shardings")
        if "offload" in more:
            return _attempt(rows, int(rows), step_s=1.0 if rows == 100 else self.on_devices_s)
        return _attempt(rows, int(rows), step_s=1.0 if rows == 100 else 2.0)


@pytest.mark.parametrize("on_devices_s", [1.5, 3.0, 0.0], ids=["faster", "slower", "fits not"])
def test_host_memory_makes_no_plan_slower(on_devices_s: float) -> None:
    steps = HostSteps(on_devices_s)
    assert fit_in_stages(steps, 50, (0.5, 1.0)).plan.predicted.step_s == min(on_devices_s or 2.0, 2.0)
    unlimited = [more for more in steps.tried if int(more["rows"]) > 100 and "stage-rows" not in more]
    assert unlimited == [{"rows": str(sys.maxsize)}], "what nothing limits is planned once"
    assert not any("host-share" in more for more in steps.tried), "it fits without"


def test_where_memory_does_not_bind_host_memory_is_left_alone() -> None:
    steps = HostSteps(1.5)
    assert fit_in_stages(steps, 100, (0.5, 1.0)).plan.predicted.step_s == 1.0
    assert len(steps.tried) == 1
