"""Clusters of unlike devices: groups of equal ones, joined by a level.

A program that runs on all devices of such a cluster is one program: each op and collective waits for the slowest, and
every device holds as much as the smallest can. So to what plans one program, a cluster of groups is one of equal
devices, each with the lesser of every figure (`common_device`). A rank of a pipeline that lies in one group has that
group's figures (`rank_clusters`), and is priced by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from typing import TypeVar

from rhino.ir.cluster.hardware import Cluster, Device, Level, Line, Pairs

F = TypeVar("F", bound=float)


def joined(name: str, about: str, groups: Sequence[Cluster], between: Level) -> Cluster:
    """Returns the cluster of some groups; equal groups are as units of `between`, and no groups any more.

    `between` is the level that joins units: each group is one or, where groups have unlike numbers of devices, as many
    as the greatest common divisor of these numbers goes into its own. The groups are numbered one after the other.
    """
    first = groups[0]
    if all((one.device, one.levels) == (first.device, first.levels) for one in groups):
        outer = replace(_apart(between, first.levels), size=len(groups))
        compile_for = first.compile_for if len(groups) == 1 else ""
        return Cluster(name, about, first.device, (outer, *first.levels), first.measured, compile_for)
    unit = math.gcd(*[one.num_devices for one in groups])
    inner = tuple([level for level in _common_levels(groups, unit) if level.size > 1])
    outer = replace(_apart(between, inner), size=sum(one.num_devices for one in groups) // unit)
    device = common_device([one.device for one in groups])
    return Cluster(name, about, device, (outer, *inner), groups=tuple(groups))


def _apart(between: Level, levels: Sequence[Level]) -> Level:
    """Returns the level that joins groups, by a name that no level inside of them has."""
    is_taken = any(one.name == between.name for one in levels)
    return replace(between, name=f"{between.name} of groups") if is_taken else between


def rank_devices(cluster: Cluster, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the devices of ranks of `sizes` [ranks], which take them one after another in the cluster's order."""
    return tuple(
        [tuple(cluster.in_order[last - size : last]) for last, size in zip(accumulate(sizes), sizes, strict=True)]
    )


def rank_clusters(cluster: Cluster, sizes: Sequence[int]) -> tuple[Cluster, ...]:
    """Returns what the devices of each rank are part of: the group that they lie in, or else the cluster [ranks].

    Ranks are as `rank_devices` has them.
    """
    if not cluster.groups:
        return (cluster,) * len(sizes)
    ends = list(accumulate(group.num_devices for group in cluster.groups))
    found = []
    for devices, size in zip(rank_devices(cluster, sizes), sizes, strict=True):
        within = [
            group
            for group, end in zip(cluster.groups, ends, strict=True)
            if len(devices) == size and end - group.num_devices <= min(devices) and max(devices) < end
        ]
        found.append(within[0] if within else cluster)
    return tuple(found)


def rank_groups(cluster: Cluster, sizes: Sequence[int]) -> tuple[tuple[Cluster, ...], tuple[int, ...]]:
    """Returns the distinct clusters that ranks of `sizes` are part of, and which of them each rank is in [ranks]."""
    every = rank_clusters(cluster, sizes)
    distinct = tuple(dict.fromkeys(every))
    return distinct, tuple([distinct.index(one) for one in every])


def num_units(cluster: Cluster) -> int:
    """Returns the least number of ranks of one size that each lie in one group; 1 where all devices are alike."""
    if not cluster.groups:
        return 1
    return cluster.num_devices // math.gcd(*[one.num_devices for one in cluster.groups])


def largest_memory(cluster: Cluster) -> int:
    """Returns the bytes that a program may use of a device that has most."""
    return max(one.device.usable_hbm_bytes for one in cluster.groups or (cluster,))


def rank_budgets(cluster: Cluster, sizes: Sequence[int], budget_bytes: float | None = None) -> tuple[float, ...]:
    """Returns the bytes that a device of each rank may hold: the budget, or without one what a program may use of it.

    On a cluster of groups no device may hold more than that. Ranks are as `rank_clusters` has them.
    """
    if budget_bytes is not None and not cluster.groups:
        return (budget_bytes,) * len(sizes)
    own = [one.device.usable_hbm_bytes for one in rank_clusters(cluster, sizes)]
    return tuple([one if budget_bytes is None else min(budget_bytes, one) for one in own])


def common_device(devices: Sequence[Device]) -> Device:
    """Returns a device that is as slow as the slowest of some, and holds as much as the smallest."""
    first = devices[0]
    if all(one == first for one in devices):
        return first
    smallest = min(devices, key=lambda one: one.usable_hbm_bytes)
    rates = dict.fromkeys(key for one in devices for key, _ in one.flops_per_s)
    share = min(one.matmul_efficiency for one in devices)
    memory_share = min(one.memory_efficiency for one in devices)
    found = Device(
        kind=" and ".join(dict.fromkeys(one.kind for one in devices)),
        flops_per_s=tuple([(key, min(one.matmul_flops_per_s(key) for one in devices) / share) for key in rates]),
        hbm_bytes=smallest.hbm_bytes,
        usable_hbm_fraction=smallest.usable_hbm_fraction,
        headroom_fraction=smallest.headroom_fraction,
        hbm_bytes_per_s=min(one.memory_bytes_per_s for one in devices) / memory_share,
        matmul_efficiency=share,
        memory_efficiency=memory_share,
        sources=(),
        platform=first.platform,
        near_memory_bytes=min((one.near_memory_bytes or 0 for one in devices), default=0) or None,
        workspace_bytes=max((one.workspace_bytes or 0 for one in devices), default=0) or None,
        host_bytes_per_s=_least([one.host_bytes_per_s for one in devices]),
        host_bytes=_least([one.host_bytes for one in devices]),
        launch_s=_most([one.launch_s for one in devices]),
        array_s=_most([one.array_s for one in devices]),
        op_s=_most([one.op_s for one in devices]),
        vector_per_s=_least([one.vector_per_s for one in devices]),
        costly_per_s=_least([one.costly_per_s for one in devices]),
        compile_options=tuple([one for one in first.compile_options if all(one in o.compile_options for o in devices)]),
    )
    own = [one.name for one in fields(found) if isinstance(getattr(found, one.name), int | float)]
    return replace(found, sources=_sources([*own, *(f"flops_per_s.{key}" for key in rates)]))


def _sources(figures: Iterable[str]) -> Pairs:
    return tuple([(one, "the lesser of the groups'") for one in figures])


_Figures = Sequence[float | None]


def _least(figures: Sequence[F | None]) -> F | None:
    """Returns the least of figures, where all are known."""
    known = [one for one in figures if one is not None]
    return min(known) if len(known) == len(figures) else None


def _most(figures: _Figures) -> float | None:
    """Returns the largest of figures, where all are known."""
    known = [one for one in figures if one is not None]
    return max(known) if len(known) == len(figures) else None


def _common_levels(groups: Sequence[Cluster], unit: int) -> list[Level]:
    """Returns the levels inside of a unit, each as slow as the slowest of its groups.

    Groups of unlike levels have one level, as slow as the slowest of all.
    """
    sizes = {tuple([level.size for level in one.levels]) for one in groups}
    if len(sizes) == 1 and math.prod(*sizes) == unit:
        return [common_level(levels) for levels in zip(*[one.levels for one in groups], strict=True)]
    levels = [level for one in groups for level in one.levels if level.size > 1]
    counts = [(level, units) for level in levels for units in (2, *dict(level.partial_bytes_per_s), level.size)]
    rate = min(level.reached_bytes_per_s(units) for level, units in counts)
    slowest = common_level(levels)
    return [replace(slowest, name="group", size=unit, port_bytes_per_s=rate, partial_bytes_per_s=(), collectives=())]


def common_level(levels: Sequence[Level]) -> Level:
    """Returns a level of the size of the first that is as slow as the slowest of some."""
    first = levels[0]
    if all(one == first for one in levels):
        return first
    size = min(one.size for one in levels)
    counts = dict.fromkeys(
        [units for one in levels for units, _ in one.partial_bytes_per_s if units < size]
        + [units for one in levels if one.topology == "fully-connected" for units in range(2, size)]
    )
    partial = tuple([(units, min(one.reached_bytes_per_s(units) for one in levels)) for units in sorted(counts)])
    collectives = _common_collectives(levels)
    figures = ["latency_s", "port_bytes_per_s", "efficiency", "transfer"]
    figures += [f"partial_bytes_per_s.{units}" for units, _ in partial]
    figures += [f"collectives.{kind}.{units}" for kind, units, _ in collectives]
    return Level(
        name=first.name if all(one.name == first.name for one in levels) else "/".join(one.name for one in levels),
        size=first.size,
        topology="ring" if counts or any(one.topology == "ring" for one in levels) else first.topology,
        latency_s=max(one.latency_s for one in levels),
        port_bytes_per_s=min(one.reached_bytes_per_s(one.size) for one in levels),
        efficiency=1.0,
        devices_per_port=max(one.devices_per_port for one in levels),
        partial_bytes_per_s=partial,
        sources=_sources(figures),
        collectives=collectives,
        transfer=_slowest_line([one.transfer for one in levels]),
    )


def _common_collectives(levels: Sequence[Level]) -> tuple[tuple[str, int, Line], ...]:
    """Returns what is measured of all levels, as slow as the slowest."""
    first, *others = [{(kind, units): line for kind, units, line in one.collectives} for one in levels]
    every = {key: _slowest_line([line, *[one.get(key) for one in others]]) for key, line in first.items()}
    return tuple([(*key, line) for key, line in every.items() if line is not None])


def _slowest_line(lines: Sequence[Line | None]) -> Line | None:
    known = [one for one in lines if one is not None]
    if len(known) < len(lines):
        return None
    return Line(max(one.fixed_s for one in known), min(one.per_s for one in known))
