"""The cluster: loading it, and placing a mesh on it.

Mesh device i is cluster device i (both numbered with the innermost level or axis fastest), so the innermost mesh axes
fill the innermost, fastest level first. In a cluster with an order of its devices it is the i-th of these. What an axis
gets from the links follows from which devices its groups hold:

- Every group of the axis runs its collective at the same time (that is what an SPMD program does).
- A ring enters and leaves a unit (a node) once per port it can use. Groups that share a port share its rate: 8 groups
  over nodes with one 12.5 GB/s card each get 12.5/8; one group over all 16 devices gets 12.5.
- In an all-to-all every device sends to every unit itself, so the devices behind a port share its rate even within one
  group.
- An axis that spans levels takes the slowest of their rates and the longest of their latencies.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.cluster.file import cluster_to_text, parse_cluster
from rhino.ir.cluster.groups import joined
from rhino.ir.cluster.hardware import Cluster, Device, Level, Line, Topology
from rhino.ir.cluster.mesh import Mesh, mesh_of_shape
from rhino.ir.cluster.placement import parse_placed, placed
from rhino.ir.cluster.presets import JOINED, PRESETS
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.units import format_bytes, format_seconds

__all__ = [
    "Cluster",
    "Device",
    "Level",
    "MeshAxis",
    "cluster_to_text",
    "default_mesh",
    "load_cluster",
    "mesh_axes",
    "parse_cluster",
    "possible_meshes",
    "preset_names",
    "preset_table",
]


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """A mesh axis on its links.

    `latency_s` is one step of a ring along the axis; `bytes_per_s` what each device sends (and receives) per second in
    ring collectives while all groups of the axis are at it; `all_to_all_bytes_per_s` the same in an all-to-all. With
    these a collective of n devices in which each moves S bytes in total takes about (steps x latency_s) + S /
    bytes_per_s, S counting the (n-1)/n factor. `topology` is that of the slowest level crossed, `levels` all of them,
    outermost first; an axis of size 1 crosses none and holds the innermost level's numbers.

    `measured` are the kinds of collectives whose seconds along the axis somebody has measured, by their payload; they
    come before the formula. `transfer` is one array on its way along the axis, outside of programs, where that is
    measured.
    """

    name: str
    size: int
    latency_s: float
    bytes_per_s: float
    all_to_all_bytes_per_s: float
    topology: Topology
    levels: tuple[str, ...]
    measured: tuple[tuple[str, Line], ...] = ()
    transfer: Line | None = None

    def line(self, kind: str) -> Line | None:
        """Returns the measured seconds of one kind of collective, if there are any."""
        return next((line for name, line in self.measured if name == kind), None)

    @property
    def link(self) -> Line:
        """What an array takes from a device to its neighbour, outside of programs."""
        return self.transfer or Line(self.latency_s, self.bytes_per_s)


def load_cluster(name_or_path: str) -> Cluster:
    """Returns the preset of that name, or the cluster that the file at that path describes; of several, joined by "+".

    Behind "@" may stand the order in which ranks take devices, as in `v100x8x2@0-3,8-11,4-7,12-15`.

    Raises:
        RhinoError: RHI-CLUSTER-001 for a name that is neither, clusters that cannot be joined, or an order that has a
            device twice or one that is not there, RHI-CLUSTER-002 for a malformed or unreadable file.
    """
    if not os.path.isfile(name_or_path):
        name, order = parse_placed(name_or_path)
        if order is not None:
            return placed(load_cluster(name), order)
    if name_or_path in PRESETS:
        return parse_cluster(PRESETS[name_or_path], f"<preset {name_or_path}>")
    if JOINS in name_or_path and not os.path.isfile(name_or_path):
        return _joined(name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml" and not os.path.isfile(path):
        raise _unknown_preset(name_or_path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        what = f"the cluster file cannot be read: {reason}"
        fix = "give a readable TOML file or a preset's name"
        raise RhinoError("RHI-CLUSTER-002", what, Place(name_or_path), fix=fix) from None
    return parse_cluster(text, name_or_path)


JOINS: Final = "+"
"""What stands between the clusters that are groups of one."""


def _joined(names: str) -> Cluster:
    """Returns the cluster whose groups are those of these names.

    They are joined as the machines of the preset `v100x8x2` are: each machine, which is as many devices as the smallest
    has, by a port of its own.
    """
    groups = [load_cluster(one) for one in names.split(JOINS)]
    platform = groups[0].device.platform
    for one in groups:
        if one.groups or one.device.platform != platform:
            why = "has groups itself" if one.groups else f"is of {one.device.platform}s"
            what, fix = f"got cluster {names!r}, and {one.name!r} {why}", f"join clusters of equal {platform}s"
            raise RhinoError("RHI-CLUSTER-001", what, fix=fix)
    machine = math.gcd(*[one.levels[-1].size for one in groups])
    network = replace(load_cluster(_NETWORK_OF).levels[0], devices_per_port=machine, size=len(groups))
    return joined(names, " and ".join(one.about for one in groups), _told_apart(groups), network)


def _told_apart(groups: Sequence[Cluster]) -> list[Cluster]:
    """Returns the groups by names that differ, as a cluster file wants them: `v100x8`, `v100x8 (2)`."""
    found: dict[str, Cluster] = {}
    for one in groups:
        names = (one.name, *(f"{one.name} ({number})" for number in range(2, len(groups) + 1)))
        name = next(name for name in names if name not in found)
        found[name] = replace(one, name=name)
    return list(found.values())


_NETWORK_OF: Final = "v100x8x2"
"""The preset whose network joins clusters that somebody names together."""


def _unknown_preset(name: str) -> RhinoError:
    close = difflib.get_close_matches(name, PRESETS, n=3)
    return RhinoError(
        "RHI-CLUSTER-001",
        f"got cluster {name!r}, expected a preset's name or the path of a cluster file",
        notes=(f"presets: {', '.join(PRESETS)}",),
        fix=f"did you mean {' or '.join(close)}?"
        if close
        else "take one of the presets, or write a file as docs/cluster.md says",
    )


def preset_names() -> tuple[str, ...]:
    """Returns the names that `load_cluster` knows."""
    return tuple(PRESETS)


def default_mesh(cluster: Cluster) -> Mesh:
    """Returns the mesh over all devices with one axis per level of more than one unit, outermost first."""
    sizes = tuple(level.size for level in cluster.levels if level.size > 1)
    return mesh_of_shape(sizes or (1,))


def possible_meshes(cluster: Cluster) -> tuple[Mesh, ...]:
    """Returns every mesh of one or two axes over all devices: one axis first, then by the size of the outer one.

    Of three levels, the mesh with an axis for each comes before them.
    """
    count, levels = cluster.num_devices, default_mesh(cluster)
    pairs = [(outer, count // outer) for outer in range(2, count) if count % outer == 0]
    meshes = tuple([mesh_of_shape(shape) for shape in [(count,), *pairs]])
    return (levels, *meshes) if len(levels.axes) == MOST_AXES else meshes


MOST_AXES: Final = 3
"""Axes that a mesh has at most, unasked."""


MOST_ON_TWO_AXES: Final = 64
"""Devices up to which two axes are enough where they are of fewer than three levels."""


def takes_three_axes(cluster: Cluster, num_ranks: int = 1) -> bool:
    """Returns whether a rank's mesh may have three axes unasked: on three levels, or on more than 64 devices."""
    count, levels, joined = cluster.num_devices // num_ranks, 0, 1
    for level in reversed(cluster.levels):
        levels += level.size > 1 and joined < count
        joined *= level.size
    return levels >= MOST_AXES or count > MOST_ON_TWO_AXES


def mesh_axes(cluster: Cluster, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> tuple[MeshAxis, ...]:
    """Places a mesh (outermost axis first) on the first devices of `cluster` and returns its axes with their links.

    Raises:
        RhinoError: RHI-MESH-001 where the mesh has more devices than the cluster.
    """
    mesh = Mesh(tuple(zip(names, shape, strict=True))) if names is not None else mesh_of_shape(shape)
    if mesh.num_devices > cluster.num_devices:
        raise _too_large(cluster, mesh)
    return tuple(_place(cluster, mesh, axis) for axis in range(len(shape)))


def link_between(cluster: Cluster, sizes: Sequence[int]) -> Line:
    """Returns the link from a device of one rank to one of another, where all ranks use theirs at the same time.

    Ranks have `sizes` devices [ranks], and take them one after another in the cluster's order.

    Raises:
        RhinoError: RHI-MESH-001 where they have more devices than the cluster.
    """
    if sum(sizes) > cluster.num_devices:
        what = f"ranks of {', '.join(map(str, sizes))} devices have {sum(sizes)}"
        raise RhinoError(
            "RHI-MESH-001",
            f"{what}, cluster {cluster.name!r} has {cluster.num_devices}",
            fix=f"ask for at most {cluster.num_devices} devices in all, or for a larger cluster",
        )
    starts = np.cumsum([0, *sizes[:-1]])
    groups = starts[None, :] + np.arange(min(sizes))[:, None]
    return axis_of_groups(cluster, _in_order(cluster, groups), "ranks").link


def _in_order(cluster: Cluster, groups: Ints) -> Ints:
    """Returns the devices at some places of a cluster's order, ascending in each group [groups, devices]."""
    return np.sort(np.asarray(cluster.order)[groups], axis=1) if cluster.order else groups


def _too_large(cluster: Cluster, mesh: Mesh) -> RhinoError:
    levels = " x ".join(f"{level.size} ({level.name})" for level in cluster.levels)
    return RhinoError(
        "RHI-MESH-001",
        f"mesh {mesh} has {mesh.num_devices} devices, cluster {cluster.name!r} has {cluster.num_devices}",
        notes=(f"the levels of {cluster.name!r} are {levels}",),
        fix=f"ask for at most {cluster.num_devices} devices, e.g. "
        f"--mesh={'x'.join(map(str, default_mesh(cluster).shape))}, or a larger cluster",
    )


def _place(cluster: Cluster, mesh: Mesh, axis: int) -> MeshAxis:
    return axis_of_groups(cluster, _in_order(cluster, _groups(mesh, axis)), mesh.axes[axis][0])


def axis_of_groups(cluster: Cluster, groups: Ints, name: str) -> MeshAxis:
    """Returns the axis on which groups of devices lie, all at their collective at the same time.

    Shapes: `groups` are devices of the cluster, ascending in each group [groups, devices].
    """
    size = groups.shape[1]
    crossings = [crossing for i in range(len(cluster.levels)) if (crossing := _cross(cluster, i, groups))]
    if not crossings:
        level = cluster.levels[-1]
        rate = level.reached_bytes_per_s(level.size)
        return MeshAxis(name, size, level.latency_s, rate, rate, level.topology, (), transfer=level.transfer)
    slowest = min(crossings, key=lambda crossing: crossing.ring_bytes_per_s)
    return MeshAxis(
        name=name,
        size=size,
        latency_s=max(crossing.level.latency_s for crossing in crossings),
        bytes_per_s=slowest.ring_bytes_per_s,
        all_to_all_bytes_per_s=min(crossing.all_to_all_bytes_per_s for crossing in crossings),
        topology=slowest.level.topology,
        levels=tuple(crossing.level.name for crossing in crossings),
        measured=_measured(crossings[0].level, size) if len(crossings) == 1 else (),
        transfer=slowest.level.transfer,
    )


def _measured(level: Level, size: int) -> tuple[tuple[str, Line], ...]:
    """Returns what is measured of groups of `size` units of a level."""
    return tuple((kind, line) for kind, units, line in level.collectives if units == size)


def _groups(mesh: Mesh, axis: int) -> Ints:
    """Returns the mesh devices of each group that a collective over `axis` runs in, ascending [groups, devices]."""
    size, stride = mesh.shape[axis], math.prod(mesh.shape[axis + 1 :])
    return np.arange(mesh.num_devices).reshape(-1, size, stride).swapaxes(1, 2).reshape(-1, size)


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Rates that the groups of one axis get from one level that they cross.

    They are per device and direction, and those of the worst group.
    """

    level: Level
    ring_bytes_per_s: float
    all_to_all_bytes_per_s: float


def _cross(cluster: Cluster, index: int, groups: Ints) -> _Crossing | None:
    """Returns what `groups` get from level `index`, or None where no group has two units of it.

    A block is one instance of the level (a node's NVLink, the network); a part is what a group has of one block.
    """
    level, unit = cluster.levels[index], cluster.devices_per_unit(index)
    num_groups, size = groups.shape
    group_of, devices = np.repeat(np.arange(num_groups), size), groups.ravel()
    part_of = _runs(group_of, devices // (unit * level.size))
    first, last = _ends(part_of)
    crossing = (devices[first] // unit != devices[last] // unit)[part_of]
    if not crossing.any():
        return None
    devices = devices[crossing]
    part_of = _runs(part_of[crossing])
    unit_of = _runs(part_of, devices // unit)
    port = devices // level.devices_per_port
    used = _ends(_runs(unit_of, port))[0]  # one device for each port that a part uses: a port is of one unit
    ring_users, senders = np.bincount(port[used]), np.bincount(port)
    part_of_unit = part_of[_ends(unit_of)[0]]
    num_units = np.bincount(part_of_unit)
    reached = {
        int(count): (level.reached_bytes_per_s(int(count)), _mean_hops(level, int(count)))
        for count in np.unique(num_units)
    }
    rate, hops = (np.array([reached[count][which] for count in num_units.tolist()]) for which in (0, 1))
    ring = np.bincount(unit_of[used], weights=rate[part_of[used]] / ring_users[port[used]])
    most_senders = np.maximum.reduceat(senders[port], _ends(part_of)[0])
    # Of the n-1 others, only those in other units of the block are reached over this level.
    least_members = np.minimum.reduceat(np.bincount(unit_of), _ends(part_of_unit)[0])
    over_level = np.bincount(part_of) - least_members
    exchange = rate / most_senders / hops * (size - 1) / over_level
    return _Crossing(level, float(ring.min()), float(exchange.min()))


def _runs(*keys: Ints) -> Ints:
    """Returns to which run of neighbours that are equal in all of `keys` each element belongs, from 0 on."""
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.concatenate([[0], np.cumsum(changes)])


def _ends(runs: Ints) -> tuple[Ints, Ints]:
    """Returns the first and the last place of each run."""
    changes = np.flatnonzero(runs[1:] != runs[:-1])
    return np.concatenate([[0], changes + 1]), np.concatenate([changes, [len(runs) - 1]])


def _mean_hops(level: Level, num_units: int) -> float:
    """Returns how many links a message to another unit crosses on average.

    On a two-way ring of k units that is floor(k^2/4)/(k-1).
    """
    return (num_units * num_units // 4) / (num_units - 1) if level.topology == "ring" else 1.0


def preset_table() -> str:
    """Returns the table of presets in `docs/cluster.md` (Markdown)."""
    head = [
        "preset",
        "devices",
        "device",
        "f32 TFLOP/s",
        "bf16",
        "f16",
        "memory",
        "memory/s",
        "levels, outermost first",
    ]
    rows = [head, ["---"] * len(head), *(_preset_row(load_cluster(name)) for name in (*PRESETS, *JOINED))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _preset_row(cluster: Cluster) -> list[str]:
    device = cluster.device
    flops = [f"{device.peak_flops_per_s(dtype) / 1e12:.3g}" for dtype in ("f32", "bf16", "f16")]
    memory = [format_bytes(device.hbm_bytes), f"{device.hbm_bytes_per_s / 1e9:.4g} GB/s"]
    return [
        f"`{cluster.name}`",
        str(cluster.num_devices),
        device.kind,
        *flops,
        *memory,
        "; ".join(map(_level_words, cluster.levels)),
    ]


def _level_words(level: Level) -> str:
    port = "" if level.devices_per_port == 1 else f" per {level.devices_per_port} devices"
    rate = f"{level.port_bytes_per_s / 1e9:.4g} GB/s{port}"
    return f"{level.size} x {level.name} ({level.topology}, {rate}, {format_seconds(level.latency_s)})"
