"""Which collectives are joined, against every path of random programs, and by hand."""

import random

import pytest

from rhino.ir.cluster.cluster import load_cluster, mesh_axes
from rhino.strategies.cost.buckets import Packing, buckets, packing_of
from rhino.strategies.cost.cost_model import CostModel

LARGE = Packing(1 << 30, 1 << 30)


def model(cluster):
    loaded = load_cluster(cluster)
    return CostModel(loaded.device, mesh_axes(loaded, (loaded.num_devices,)))


def reached(readers, start):
    """Every op that waits for one."""
    found, waiting = set(), list(readers[start])
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += readers[op]
    return found


@pytest.mark.parametrize("seed", range(40))
def test_buckets_wait_for_nothing_that_waits_for_them(seed):
    draw = random.Random(seed)
    num = 24
    readers = [sorted(draw.sample(range(op + 1, num), min(draw.randrange(3), num - op - 1))) for op in range(num)]
    keys = [draw.choice([None, "a", "b"]) for _ in range(num)]
    sizes = [draw.randrange(1, 9) for _ in range(num)]
    found = buckets(keys, sizes, readers, Packing(7, 12))
    joined = [op for bucket in found for op in bucket]
    assert len(joined) == len(set(joined))
    for bucket in found:
        assert len(bucket) > 1
        assert len({keys[op] for op in bucket}) == 1
        assert None not in {keys[op] for op in bucket}
        assert max(sizes[op] for op in bucket) <= 7
        assert sum(sizes[op] for op in bucket) <= 12
    # As one op each, they still have an order: nothing is reached from itself.
    unit = {op: bucket[0] for bucket in found for op in bucket}
    merged = [[] for _ in range(num)]
    for op, behind in enumerate(readers):
        merged[unit.get(op, op)] += [unit.get(one, one) for one in behind]
    assert not any(op in reached(merged, op) for op in range(num))


def test_gradients_of_all_layers_are_joined_though_their_activations_wait_for_each_other():
    # x -> sum -> sum -> sum, each giving a gradient, whose update is gathered
    keys, readers = [], []
    for layer in range(3):
        first = 3 * layer
        keys += ["statistic", "gradient", "new weight"]
        readers += [[first + 1, first + 3] if layer < 2 else [first + 1], [first + 2], []]
    assert buckets(keys, [4] * 9, readers, LARGE) == [(1, 4, 7), (2, 5, 8)]


def test_what_is_large_stays_alone():
    assert buckets(["a"] * 3, [4, 5, 4], [[], [], []], Packing(4, 100)) == [(0, 2)]


def test_a_bucket_is_closed_when_it_is_full():
    assert buckets(["a"] * 5, [4] * 5, [[]] * 5, Packing(4, 8)) == [(0, 1), (2, 3)]


def test_bounds_by_hand():
    # v5e: 7 steps of 1 us; 819 GB/s x 0.9, four passes; rings of 100 GB/s x 0.9, four launches
    found = packing_of(model("v5e-8"))
    assert found == Packing(1289925, 2520000)


@pytest.mark.parametrize("cluster", ["cpu8", "h100x8"])
def test_where_the_compiler_joins_or_nothing_is_won_nothing_is_said(cluster):
    assert packing_of(model(cluster)) is None
