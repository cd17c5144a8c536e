"""Which devices ranks have: orders of a cluster's devices, and what links ranks and their devices then."""

from dataclasses import replace
from itertools import permutations
from math import prod

import numpy as np
import pytest

from rhino.ir.cluster.cluster import link_between, load_cluster, mesh_axes
from rhino.ir.cluster.groups import rank_clusters, rank_devices
from rhino.ir.cluster.placement import (
    as_placed,
    num_reached,
    parse_placed,
    placed,
    placed_devices,
    placed_name,
    placement_text,
    placements,
)
from rhino.ir.diagnostics import RhinoError


def test_ranks_of_two_nodes_talk_inside_of_them_or_between_them():
    """Rates by hand: a card of 11 GB/s for the rings of a node, and 150 GB/s of NVLink at 87 %, or a part of it."""
    cluster = load_cluster("v100x8x2")
    apart, across = placements(cluster, (2,) * 8)
    assert apart == cluster
    assert rank_devices(across, (2,) * 8) == tuple([(rank, 8 + rank) for rank in range(8)])
    inner, outer = (
        [mesh_axes(one, (8, 2))[1] for one in (apart, across)],
        [link_between(one, (2,) * 8) for one in (apart, across)],
    )
    assert [one.levels for one in inner] == [("nvlink",), ("roce",)]
    assert inner[1].bytes_per_s == pytest.approx(11e9 / 8)
    assert outer[0].per_s == pytest.approx(11e9 / 2)
    assert outer[1].per_s == pytest.approx(150e9 * 0.87)
    assert placement_text(cluster, placed_devices(across, (2,) * 8)) == (
        "ranks of 2 devices, 1 in each of 2 units of roce"
    )


@pytest.mark.parametrize("name", ["v100x8x2", "h100x8x4", "v5p-128", "cpu8", "s1x8"])
def test_each_rank_has_devices_in_as_many_units_outside_of_a_border_as_it_can(name: str):
    """So few placements are there, no two of them alike, and each has all devices once."""
    cluster = load_cluster(name)
    count = cluster.num_devices
    for ranks in (one for one in range(1, count + 1) if count % one == 0):
        found, size = placements(cluster, (count // ranks,) * ranks), count // ranks
        units = [prod(level.size for level in cluster.levels[:at]) for at in range(1, len(cluster.levels))]
        assert len({one.order for one in found}) == len(found) <= 1 + len(units)
        reached = []
        for one in found:
            devices = np.array(rank_devices(one, (size,) * ranks))
            assert sorted(devices.ravel()) == list(range(count))
            reached.append([{len(set(own // (count // outer))) for own in devices} for outer in units])
        for at, outer in enumerate(units if ranks > 1 else ()):
            assert {min(size, outer)} in [one[at] for one in reached]


def test_groups_are_taken_in_every_order_that_differs():
    names = ("v100x8", "p100x8", "t4x8")
    found = placements(load_cluster("+".join(names)), (4,) * 6)
    every = [tuple(one.name for one in rank_clusters(cluster, (8, 8, 8))) for cluster in found]
    assert every[:-1] == list(permutations(names))
    assert all(len({device // 8 for device in own}) == 3 for own in rank_devices(found[-1], (4,) * 6))
    twice = placements(load_cluster("v100x8+p100x8+v100x8"), (3,) * 5)
    kinds = [tuple(one.device.kind[:1] for one in rank_clusters(cluster, (8, 8, 8))) for cluster in twice]
    assert kinds == [tuple("VPV"), tuple("VVP"), tuple("PVV")]
    assert len(placements(load_cluster("v100x8+p100x8+t4x8+a100x8"), (2, 3))) == 6
    cluster = load_cluster("v100x8+p100x8")
    (other,) = placements(cluster, (12, 4))[1:]
    assert placement_text(cluster, placed_devices(other, (4,) * 4)) == "ranks on p100x8, then v100x8"
    pairs = [[one.name[0] for one in rank_clusters(found, (4,) * 4)] for found in placements(cluster, (4,) * 4)[:-1]]
    assert pairs[0] == list("vvpp")
    assert sorted("".join(one) for one in pairs) == ["ppvv", "pvpv", "pvvp", "vppv", "vpvp", "vvpp"]
    assert len(placements(cluster, (2,) * 8)) == 3


@pytest.mark.parametrize("order", [(0, 4, 1, 5, 2, 6, 3, 7), (7, 6), (3, 4, 5)])
def test_an_order_is_written_behind_a_cluster_and_read_again(order: tuple[int, ...]):
    cluster = load_cluster(placed_name("cpu8", order))
    rest = [device for device in range(8) if device not in order]
    assert cluster == placed(load_cluster("cpu8"), order)
    assert cluster.order == (*order, *rest)
    assert parse_placed(placed_name("a@b.toml", order)) == ("a@b.toml", order)
    assert parse_placed("a@b.toml") == ("a@b.toml", None)
    devices = placed_devices(cluster, (2, 1))
    assert as_placed(load_cluster("cpu8"), devices).in_order[:3] == cluster.order[:3]
    assert num_reached((2, 1), devices) == 1 + max(cluster.order[:3])
    assert placements(cluster, (4, 4)) == (cluster,)  # what is asked for is not searched for


def test_the_order_as_numbered_is_none():
    cluster = load_cluster("cpu8")
    assert load_cluster("cpu8@7-4,0").order == (7, 6, 5, 4, 0, 1, 2, 3)
    assert load_cluster("cpu8@0-7") == cluster == load_cluster("cpu8@0,1,2")
    assert placed_devices(placed(cluster, (0, 1, 2, 3, 7)), (2, 2)) == ()
    assert placement_text(cluster, ()) == ""


@pytest.mark.parametrize(("order", "says"), [("0,1,1", "device 1 twice"), ("0-8", "device 8"), ("5-6,6", "6 twice")])
def test_an_order_that_is_none_is_refused(order: str, says: str):
    with pytest.raises(RhinoError, match="RHI-CLUSTER-001") as caught:
        load_cluster(f"cpu8@{order}")
    assert says in caught.value.what
    assert caught.value.fix


def test_drawn_orders_link_what_their_ranks_have():
    """Ranks of two devices in one node each, in whatever order, are as they are as numbered."""
    cluster = load_cluster("v100x8x2")
    rng = np.random.default_rng(0)
    for _ in range(10):
        pairs = rng.permutation(8)
        drawn = placed(cluster, [int(2 * pair + one) for pair in pairs for one in (0, 1)])
        assert mesh_axes(drawn, (8, 2))[1] == mesh_axes(cluster, (8, 2))[1]
    mixed = placed(cluster, (0, 8, 1, 9))
    assert mesh_axes(mixed, (2, 2))[1].levels == ("roce",)
    assert replace(mixed, order=()) == cluster
