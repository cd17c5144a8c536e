"""The search against an oracle that shares no code with it, on small random programs and machines.

`bench/correctness.py oracle` runs longer.
"""

import ast
from collections import Counter
from itertools import product
from math import inf, prod
from pathlib import Path

import numpy as np
import oracle
import oracle_model
import oracle_solve
import pytest
from oracle_model import Axis, Machine, Node, Problem, way
from oracle_solve import Kept, eliminate, least_within
from small_programs import MESHES, draw

BATCHES = [range(first, 60, 4) for first in range(4)]


@pytest.mark.parametrize("batch", BATCHES)
def test_the_search_finds_what_the_oracle_finds(batch):
    for seed in batch:
        found = oracle.check(seed, budgets=seed % 3 == 0)
        assert not found.wrong, (seed, found.wrong)
        assert found.done["elimination"], seed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_many_alike_layers_cost_what_the_oracle_finds(seed):
    found = oracle.check_layers(seed)
    assert not found.wrong, found.wrong
    assert found.done["many layers"]


def test_programs_hold_every_op_and_all_meshes():
    programs = [draw(seed) for seed in range(60)]
    ops = Counter(op.name for program, _ in programs for op in program.ops)
    wanted = "product sum largest transpose broadcast reshape loop constant tanh add multiply maximum"
    assert [name for name in wanted.split() if ops[name] < 3] == []
    assert sum(op.name == "product" and op.count > 0 for program, _ in programs for op in program.ops) > 3
    assert sum(taken is not None for program, _ in programs for taken in program.taken_over) > 9
    assert {mesh for _, mesh in programs} == set(MESHES)


@pytest.mark.parametrize("module", [oracle_model, oracle_solve])
def test_the_oracle_imports_nothing_of_the_search(module):
    tree = ast.parse(Path(module.__file__).read_text())
    named = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in named if name.startswith("rhino")]


# The oracle itself, by enumeration and by hand


def made_up(seed):
    """A problem of four nodes, and what they keep at three times."""
    rng = np.random.default_rng(seed)
    nodes = [Node("op", [((), ())] * size, rng.random(size)) for size in rng.integers(2, 4, 4).tolist()]
    sizes = [len(node.states) for node in nodes]
    edges = {(u, v): rng.random((sizes[u], sizes[v])) for u, v in ((0, 1), (1, 2), (0, 2), (2, 3))}
    edges[0, 1][0, 0] = inf
    scopes = [(node,) for node in range(4)] + [(0, 1), (2, 3)]
    kept = [
        Kept(scope, rng.integers(0, 9, [sizes[node] for node in scope]).astype(float), n % 2, 2 - n % 3 // 2)
        for n, scope in enumerate(scopes)
    ]
    return Problem(nodes, edges), kept


@pytest.mark.parametrize("seed", range(20))
def test_the_oracle_solves_as_enumeration_does(seed):
    problem, kept = made_up(seed)
    costs, peaks = [], []
    for states in product(*(range(len(node.states)) for node in problem.nodes)):
        cost = sum(node.seconds[state] for node, state in zip(problem.nodes, states, strict=True))
        costs.append(cost + sum(table[states[u], states[v]] for (u, v), table in problem.edges.items()))
        memory = np.zeros(3)
        for one in kept:
            memory[one.first : one.last + 1] += one.table[tuple(states[node] for node in one.nodes)]
        peaks.append(memory.max())
    assert eliminate(problem)[0] == pytest.approx(min(costs), rel=1e-12)
    for budget in np.quantile(peaks, [0.0, 0.1, 0.5]) - [1, 0, 0]:
        wanted = min((cost for cost, peak in zip(costs, peaks, strict=True) if peak <= budget), default=inf)
        assert least_within(problem, kept, 3, budget) == pytest.approx(wanted, rel=1e-12)


ROWS, COLUMNS = ((0,), ()), ((), (0,))


@pytest.mark.parametrize(
    ("have", "want", "kinds"),
    [
        (("R",), (0,), ["slice"]),
        ((0,), ("R",), ["all_gather"]),
        ((0,), (1,), ["all_to_all"]),
        (("P",), ("R",), ["all_reduce"]),
        (("P",), (0,), ["reduce_scatter"]),
        (("R",), ("P",), None),
        ((0, 0), (0, "R"), ["all_gather"]),
        ((0, 0), ("R", 0), ["collective_permute", "all_gather"]),
        (("P", "P"), (0, 1), ["reduce_scatter", "reduce_scatter"]),
    ],
)
def test_ways_are_those_of_the_table(have, want, kinds):
    """docs/specs.md, From spec to spec."""
    steps = way(2, have, want)
    assert (steps if steps is None else [step[0] for step in steps]) == kinds


def test_seconds_of_a_ring_by_hand():
    """840 bytes on four devices: three steps of 1 us, and 210 bytes in each."""
    axis = Axis(4, 1e-6, 1e9, 0.5e9)
    model = oracle_model.Model(Machine(1e12, 1e12, 1e12, 1e12, (axis,)), 4)
    assert model.step_s("all_gather", (0,), 840, ROWS, ((), ())) == pytest.approx(3e-6 + 630e-9)
    assert model.step_s("all_reduce", (0,), 840, ((), ()), ((), ())) == pytest.approx(6e-6 + 1260e-9)
    assert model.step_s("all_to_all", (0,), 840, ROWS, COLUMNS) == pytest.approx(3e-6 + 315e-9)
    assert prod(model.sizes) == 4
