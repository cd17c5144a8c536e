"""A step that does not fit is recomputed unasked: which shares are looked at, on which meshes."""

import dataclasses
from types import SimpleNamespace

import gpt
import numpy as np
import pytest
from training import export_step
from zoo import GPT

from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.planner.choose_layouts import ChooseLayouts
from rhino.passes.planner.unstaged_plan import search
from rhino.passes.sharding.choose_shardings import ChooseShardings, FoundBefore, ShardingChoice
from rhino.strategies.solver.answer import Answer, Unsolved
from rhino.strategies.solver.solver import Solver

AT_ALL = {"8": 1.0, "2x4": 0.999, "4x2": 1.003, "2x2x2": 1.2}
"""The step on each mesh with all recomputed."""


def answer(cost):
    return Answer(np.zeros(0, dtype=np.int64), cost, cost, 0.0, "by hand")


@pytest.fixture
def asked(monkeypatch):
    """What is asked of shares and meshes; half and more fits, and the fastest at half is not the best with all.

    What is slower than what is known may have a plan still.
    """
    calls = []

    def recomputed_at(self, share, before, remarks, best=None):
        calls.append((self.mesh, share))
        if share < 0.5:
            return SimpleNamespace(choice=None, share=share, step_s=np.inf)
        at_all = answer(AT_ALL["2x4"])
        # given up at its bound, it counts by that
        others = [(name, Unsolved(cost) if name == "4x2" else answer(cost)) for name, cost in AT_ALL.items()]
        outcomes = tuple([(SimpleNamespace(mesh=parse_mesh(name)), one) for name, one in others])
        step = AT_ALL["2x4"] * share if share == 1.0 or "8" not in self.mesh else 0.9 * share
        mesh = "x=2,y=4" if self.mesh == "auto" else self.mesh
        choice = SimpleNamespace(answer=at_all, outcomes=outcomes, target=SimpleNamespace(mesh=parse_mesh("2x4")))
        return SimpleNamespace(choice=choice, share=share, mesh=mesh, step_s=step)

    monkeypatch.setattr(ChooseLayouts, "recomputed_at", recomputed_at)
    return calls


def test_shares_are_planned_on_the_mesh_that_was_found_for_all(asked):
    ChooseLayouts(mesh="auto", recompute=True).recomputed(None, None)
    assert asked[0] == ("auto", 1.0)
    assert asked[1:4] == [("x=2,y=4", 0.5), ("x=2,y=4", 0.25), ("x=2,y=4", 0.375)]


def test_meshes_that_came_near_are_compared_again_at_the_share_that_fits(asked):
    """Another one is the fastest there, and stays it; what came less near is not looked at."""
    best = ChooseLayouts(mesh="auto", recompute=True).recomputed(None, None)
    assert asked[4:] == [("x=8", 0.5), ("x=4,y=2", 0.5)]
    assert (best.mesh, best.share) == ("x=8", 0.5)


def test_a_mesh_that_is_given_is_the_only_one(asked):
    best = ChooseLayouts(mesh="2x4", recompute=True).recomputed(None, None)
    assert {mesh for mesh, _ in asked} == {"2x4"}
    assert best.share == 0.5


PRODUCT = b"""
func.func public @main(%x: tensor<64x32xf32>, %w: tensor<32x32xf32>) -> tensor<64x32xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
  return %y : tensor<64x32xf32>
}"""


def planned(remarks, text=PRODUCT, **options):
    module = read_module(text, "step", make_context())
    return search(module, "step", {"cluster": "cpu4", "mesh": "4", **options}, remarks)


def test_a_choice_is_taken_for_the_same_problem_without_a_search(monkeypatch):
    first = planned(Remarks("gpt"))
    solves, solve = [], Solver.solve
    monkeypatch.setattr(Solver, "solve", lambda self, reduced: solves.append(1) or solve(self, reduced))

    def again(**options):
        remarks = Remarks("gpt")
        remarks.record(FoundBefore(first.remarks.result(ShardingChoice)))
        return planned(remarks, **options).plan

    assert again() == first.plan
    assert not solves
    again(budget="1GiB")
    assert solves


@pytest.mark.long
def test_the_choice_that_was_found_is_not_searched_for_again(monkeypatch):
    """A plan is bound to the program with its copies, which is made anew, and has the same choice problem."""
    known, found_before = [], ChooseShardings.found_before

    def noted(begun, like):
        known.append(found_before(begun, like))
        return known[-1]

    monkeypatch.setattr(ChooseShardings, "found_before", staticmethod(noted))
    text = export_step(gpt.model(dataclasses.replace(GPT, layers=1, batch=16))).encode()
    unasked = planned(Remarks("gpt"), text, budget="297348").plan
    found = known[-1]
    assert found is not None
    assert unasked.predicted.step_s == found.answer.cost
    assert unasked.predicted.peak_bytes == (int(found.answer.peak_bytes),)
    asked = planned(Remarks("gpt"), text, budget="297348", remat=unasked.options["remat"]).plan
    assert known[-1] is None
    # near its budget a search that begins with nothing may find less
    assert unasked.predicted.step_s <= asked.predicted.step_s * (1 + 2e-4)
    assert unasked.source == asked.source
