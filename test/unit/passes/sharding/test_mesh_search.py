"""The search over meshes: what is looked at, in which order meshes are planned, and which are given up."""

from dataclasses import dataclass

import numpy as np

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.passes.sharding.mesh_search import MeshSearch, Waiting
from rhino.passes.sharding.planning_pass import Target
from rhino.strategies.solver.answer import Answer, Unsolved


@dataclass(frozen=True)
class Plan:
    answer: Answer


def target(*shape):
    return Target("mesh", mesh_of_shape(shape), None)


def plan(cost):
    return Plan(Answer(np.zeros(0, dtype=np.int64), cost, cost, 0.0, "by hand"))


class Meshes:
    """Meshes by hand: the bound of each, and its step, which is `None` where nothing fits."""

    def __init__(self, steps, next_to=None):
        self.steps, self.neighbours = steps, next_to or {}
        self.looked, self.planned = [], []

    def look(self, target, cutoff_s):
        shape = target.mesh.shape
        self.looked.append(shape)
        bound, step = self.steps[shape]
        if bound >= cutoff_s:
            return Unsolved(bound)
        return plan(step) if bound == step else Waiting(bound, lambda cutoff_s, best: self.fit(shape, cutoff_s))

    def fit(self, shape, cutoff_s):
        self.planned.append(shape)
        step = self.steps[shape][1]
        if step is None:
            return RhinoError("RHI-SOLVE-001", "nothing fits")
        return plan(step) if step < cutoff_s else Unsolved(step)

    def next_to(self, target):
        return [mesh_target(shape) for shape in self.neighbours.get(target.mesh.shape, ())]

    def search(self, *shapes):
        found = MeshSearch(self.look, self.next_to, np.inf)
        found.run([mesh_target(shape) for shape in shapes])
        return found


def mesh_target(shape):
    return target(*shape)


def test_meshes_that_wait_are_planned_by_their_bounds_until_none_is_below_the_best():
    meshes = Meshes({(8,): (5.0, 9.0), (2, 4): (6.0, 7.5), (4, 2): (4.0, 6.5), (2, 2, 2): (7.0, 7.0)})
    found = meshes.search((8,), (2, 4), (4, 2), (2, 2, 2))
    assert found.best.answer.cost == 6.5
    # The last fits as it is.
    assert meshes.planned == [(4, 2), (8,), (2, 4)]
    assert [str(one.mesh) for one, _ in found.all_outcomes()] == ["x=8", "x=2,y=4", "x=4,y=2", "x=2,y=2,z=2"]


def test_the_first_mesh_waits_too():
    meshes = Meshes({(8,): (5.0, 9.0), (2, 4): (4.0, 4.5)})
    assert meshes.search((8,), (2, 4)).best.answer.cost == 4.5
    assert meshes.planned == [(2, 4)]


def test_what_is_next_to_the_most_promising_is_looked_at_before_any_is_planned():
    steps = {(8,): (9.0, 9.0), (2, 4): (5.0, 8.0), (4, 2): (6.0, 8.5), (2, 2, 2): (3.0, 4.0)}
    meshes = Meshes(steps, {(2, 4): [(2, 2, 2)]})
    found = meshes.search((8,), (2, 4), (4, 2))
    assert meshes.looked == [(8,), (2, 4), (4, 2), (2, 2, 2)]
    assert meshes.planned == [(2, 2, 2)]
    assert found.best.answer.cost == 4.0
    assert found.bound_s() == 5.0


def test_where_nothing_fits_each_mesh_has_its_refusal():
    found = Meshes({(8,): (1.0, None), (2, 4): (1.0, None)}).search((8,), (2, 4))
    assert found.best is None
    assert all(isinstance(one, RhinoError) for _, one in found.all_outcomes())
    assert len(found.all_outcomes()) == 2


def test_what_is_next_to_the_best_is_looked_at_though_it_is_not_the_most_promising():
    steps = {(8,): (9.0, 9.0), (2, 4): (5.0, 8.0), (4, 2): (4.0, 8.5), (2, 2, 2): (6.0, 7.0)}
    meshes = Meshes(steps, {(2, 4): [(2, 2, 2)]})
    assert meshes.search((8,), (2, 4), (4, 2)).best.answer.cost == 7.0
