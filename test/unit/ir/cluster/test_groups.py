"""Clusters of groups: what all devices have, what each rank has, and files of them."""

from dataclasses import replace
from itertools import product

import pytest

from rhino.ir.cluster.cluster import cluster_to_text, default_mesh, load_cluster, mesh_axes, parse_cluster
from rhino.ir.cluster.groups import joined, largest_memory, rank_budgets, rank_clusters, rank_groups
from rhino.ir.cluster.presets import JOINED
from rhino.ir.diagnostics import RhinoError

UNLIKE = (*JOINED, "a100x8x2+h100x8x2", "v100x8+s1x8", "cpu4+cpu2", "v5p-128+v5p-8", "v5e-8+v6e-8+v5p-8")


@pytest.mark.parametrize("names", UNLIKE)
def test_a_cluster_of_groups_is_as_slow_as_its_slowest(names):
    """By every figure, and along every axis of a mesh that lies in one group, no device is slower than all are."""
    cluster = load_cluster(names)
    assert [one.name for one in cluster.groups] == names.split("+")
    assert cluster.num_devices == sum(one.num_devices for one in cluster.groups)
    assert parse_cluster(cluster_to_text(cluster)) == cluster
    equal = replace(cluster, groups=())
    assert parse_cluster(cluster_to_text(equal)).device.usable_hbm_bytes == cluster.device.usable_hbm_bytes
    for group in cluster.groups:
        assert cluster.device.usable_hbm_bytes <= group.device.usable_hbm_bytes
        assert cluster.device.host_bytes <= group.device.host_bytes
        assert cluster.device.memory_bytes_per_s <= group.device.memory_bytes_per_s * (1 + 1e-12)
        for dtype in ("f32", "bf16", "f16", "tf32"):
            rate = group.device.matmul_flops_per_s(dtype)
            assert cluster.device.matmul_flops_per_s(dtype) <= rate * (1 + 1e-12)
        unit = cluster.devices_per_unit(0)
        for outer in (one for one in range(1, unit + 1) if unit % one == 0):
            shape = (cluster.num_devices // unit, outer, unit // outer)
            _, *common = mesh_axes(cluster, shape)
            _, *own = mesh_axes(group, (group.num_devices // unit, *shape[1:]))
            for slow, quick in zip(common, own, strict=True):
                if slow.size > 1:
                    assert slow.bytes_per_s <= quick.bytes_per_s * (1 + 1e-12), (outer, group.name)
                    assert slow.all_to_all_bytes_per_s <= quick.all_to_all_bytes_per_s * (1 + 1e-12)
                    assert slow.latency_s >= quick.latency_s


def test_equal_groups_are_no_groups():
    """Two of the machines are what the preset of two is, but for its name."""
    pair, preset = load_cluster("v100x8+v100x8"), load_cluster("v100x8x2")
    assert not pair.groups
    assert (pair.device, pair.levels) == (preset.device, preset.levels)
    assert default_mesh(pair).shape == (2, 8)


@pytest.mark.parametrize("names", ["v100x8+v100x8+p100x8", "v100x8+p100x8+v100x8"])
def test_groups_of_one_preset_are_told_apart(names):
    """So that the file of such a cluster, which a plan holds, can be read."""
    cluster = load_cluster(names)
    assert len({one.name for one in cluster.groups}) == len(cluster.groups)
    assert parse_cluster(cluster_to_text(cluster)) == cluster


def test_a_rank_has_the_figures_of_the_group_that_it_lies_in():
    cluster = load_cluster("v100x8+p100x8")
    large, small = cluster.groups
    assert [one.name for one in rank_clusters(cluster, (4,) * 4)] == ["v100x8"] * 2 + ["p100x8"] * 2
    assert rank_clusters(cluster, (16,)) == (cluster,)
    assert rank_clusters(cluster, (4, 6, 2, 4)) == (large, cluster, small, small)
    assert rank_groups(cluster, (8, 8)) == ((large, small), (0, 1))
    assert rank_groups(large, (4, 4)) == ((large,), (0, 0))
    whole, half = large.device.usable_hbm_bytes, small.device.usable_hbm_bytes
    assert largest_memory(cluster) == whole
    assert rank_budgets(cluster, (8, 8)) == (whole, half)
    assert rank_budgets(cluster, (8, 8), half / 2) == (half / 2, half / 2)
    assert rank_budgets(cluster, (8, 8), 2 * whole) == (whole, half)  # no device has more than it has
    assert rank_budgets(cluster, (16,)) == (half,)
    assert rank_budgets(large, (4, 4), 2 * whole) == (2 * whole, 2 * whole)  # the user's word on equal devices


def test_groups_of_unlike_levels_are_units_of_their_greatest_common_divisor():
    cluster = load_cluster("cpu4+cpu2")
    assert [level.size for level in cluster.levels] == [3, 2]
    assert [one.num_devices for one in cluster.groups] == [4, 2]


WRONG = {
    "a level that is not one of the groups": (
        'size = 2\ntopology = "switch"',
        'size = 3\ntopology = "switch"',
        "expected 2",
    ),
    "no level between": ('name = "roce"', 'nome = "roce"', "nome"),
    "an old version": ("version = 3", "version = 2", "3, for the file has groups"),
    "two groups of a name": ('name = "p100x8"', 'name = "v100x8"', "no other group has"),
    "two compilers": (
        'kind = "P100-PCIE-16GB"\nplatform = "gpu"',
        'kind = "P100-PCIE-16GB"\nplatform = "cpu"',
        "one compiler",
    ),
    "a port of a part of a machine": ("devices_per_port = 8", "devices_per_port = 3", "a divisor of the 8"),
}


@pytest.mark.parametrize(("old", "new", "says"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_file_is_refused(old, new, says):
    text = cluster_to_text(load_cluster("v100x8+p100x8"))
    assert old in text
    with pytest.raises(RhinoError, match="RHI-CLUSTER-002") as caught:
        parse_cluster(text.replace(old, new), "wrong.toml")
    assert says in caught.value.what


@pytest.mark.parametrize(
    ("names", "says"), [("v100x8+v5e-8", "tpus"), ("v100x8+nothing", "nothing"), ("v100x8+", "''")]
)
def test_what_cannot_be_joined_is_refused(names, says):
    with pytest.raises(RhinoError, match="RHI-CLUSTER-001") as caught:
        load_cluster(names)
    assert says in caught.value.what


def test_a_group_that_is_a_file_may_have_a_preset_beside_it(tmp_path):
    file = tmp_path / "own.toml"
    own = load_cluster("p100x8")
    file.write_text(cluster_to_text(replace(own, name="own")), encoding="utf-8")
    assert [one.name for one in load_cluster(f"v100x8+{file}").groups] == ["v100x8", "own"]


def test_groups_are_told_by_their_order():
    one, other = load_cluster("v100x8"), load_cluster("p100x8")
    network = load_cluster("v100x8x2").levels[0]
    for pair in product((one, other), repeat=2):
        found = joined("pair", "two machines", pair, network)
        assert [one.device for one in rank_clusters(found, (8, 8))] == [each.device for each in pair]
