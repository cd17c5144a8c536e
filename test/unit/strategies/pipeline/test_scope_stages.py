"""Stages that are scopes: which way each op is on, and the devices of each stage."""

from itertools import product

import numpy as np
import pytest
from graphs import random_graph

from rhino.ir.request.scope_sharding import parse_scope_sharding
from rhino.strategies.pipeline.stages.scope_stages import share_devices, stages_of_scopes


@pytest.mark.parametrize("num_stages", [2, 3])
def test_ways_are_legal_where_any_are_as_enumerated(num_stages):
    """Along edges virtual stages grow; a scope comes back exactly where no choice of ways does that."""
    num_returning = 0
    for seed in range(300):
        graph, rng = random_graph(seed, most=9), np.random.default_rng(seed)
        stage = {op: int(rng.integers(num_stages)) for op in range(graph.num_ops) if rng.random() < 0.7}
        reached = {op: set() for op in range(graph.num_ops)}
        for op in range(graph.num_ops):
            for value in graph.operands(op).tolist():
                if (source := int(graph.value_op[value])) >= 0:
                    reached[op] |= {source, *reached[source]}

        def is_legal(virtual, reached=reached):
            return all(virtual[one] <= virtual[op] for op in virtual for one in reached[op] if one in virtual)

        found = stages_of_scopes(graph, np.ones(graph.num_ops, dtype=bool), stage, num_stages)
        ways = product(*[sorted({number, 2 * num_stages - 2 - number}) for number in stage.values()])
        any_is_legal = any(is_legal(dict(zip(stage, way, strict=True))) for way in ways)
        assert (not found.returning) == any_is_legal
        assert found.stages.keys() == stage.keys()
        assert found.returning or is_legal(found.stages)
        assert all(found.stages[op] in (number, 2 * num_stages - 2 - number) for op, number in stage.items())
        for op, other in found.returning.items():
            assert other == max(stage[one] for one in reached[op] if one in stage) > stage[op]
        num_returning += bool(found.returning)
    assert 10 < num_returning < 290


@pytest.mark.parametrize(
    ("stages", "count", "shapes", "replicas"),
    [
        (["replicate(1)", "replicate(1)"], 8, [(4,), (4,)], 4),  # Whale's example 1
        (["replicate(1)", "replicate(1)"], 2, [(1,), (1,)], 1),
        (["replicate(2)", "split(2)"], 8, [(2, 2), (2, 2)], 2),
        (["replicate(4)", "split(2)", "split(2)"], 8, [(4,), (2,), (2,)], 1),
        (["replicate(2) split(2)", "split(4)"], 16, [(2, 2, 2), (2, 4)], 2),
        (["replicate(2), replicate(2) split(2)", "split(4)"], 8, [(2, 2), (4,)], 1),
        (["replicate", "split(2)", "replicate"], 8, [(3,), (2,), (3,)], 1),
        (["replicate split(2)", "replicate(4)"], 8, [(2, 2), (4,)], 1),
        (["replicate", "split"], 7, [(3,), (3,)], 1),  # one stays idle
        (["replicate(4)", "split(2)"], 8, None, 0),
        (["replicate(8)", "split"], 8, None, 0),
        (["replicate split(3)", "split(4)"], 8, None, 0),
    ],
)
def test_devices_are_shared_by_what_scopes_ask_for(stages, count, shapes, replicas):
    chains = [[tuple(map(parse_scope_sharding, chain.split())) for chain in inside.split(", ")] for inside in stages]
    found = share_devices(chains, count)
    if shapes is None:
        assert found is None
        return
    assert ([mesh.shape for mesh in found.meshes], found.replicas) == (shapes, replicas)
