"""Which devices of a cluster ranks have.

Ranks take devices one after another in an *order* of all of them. As numbered, each rank has neighbours: stages stand
apart by the outer levels, and what is parallel inside a stage stays within a node. The other way round each rank has as
many devices in every node (`placements`), and stages cut what is inside of nodes. Among groups of unlike devices the
first stages may be on any group.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Final

import numpy as np

from rhino.ir.cluster.groups import rank_clusters, rank_devices
from rhino.ir.cluster.hardware import Cluster
from rhino.ir.diagnostics import RhinoError

Devices = tuple[tuple[int, ...], ...]
"""The devices of ranks, by their numbers in the cluster, each rank's in its mesh's order [ranks][devices]."""

MOST_ORDERS: Final = 6
"""Orders of unlike devices that are looked at: all of three groups, and of two ranks on each of two groups."""

AT: Final = "@"
"""What stands between a cluster and an order of its devices, as in `v100x8x2@0-3,8-11,4-7,12-15`."""

_ORDER: Final = re.compile(r"\d{1,7}(-\d{1,7})?(,\d{1,7}(-\d{1,7})?)*")


def placed(cluster: Cluster, order: Sequence[int]) -> Cluster:
    """Returns a cluster whose devices are taken in another order; those that it leaves out come last.

    Raises:
        RhinoError: RHI-CLUSTER-001 where a device is named twice, or is none of the cluster.
    """
    count = cluster.num_devices
    twice = [device for device, times in Counter(order).items() if times > 1]
    if twice or any(device >= count for device in order):
        wrong = f"device {twice[0]} twice" if twice else f"device {max(order)}"
        what = f"the order of devices names {wrong}, and cluster {cluster.name!r} has devices 0 to {count - 1}"
        fix = "name each device once, as 0-3,8-11,4-7,12-15"
        raise RhinoError("RHI-CLUSTER-001", what, fix=fix)
    named = set(order)
    whole = (*order, *(device for device in range(count) if device not in named))
    return replace(cluster, order=() if whole == tuple(range(count)) else whole)


def parse_placed(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Returns a cluster's name or path, and the order of devices that is written behind it, None where none is."""
    name, at, order = text.rpartition(AT)
    if not at or not _ORDER.fullmatch(order):
        return text, None
    found: list[int] = []
    for part in order.split(","):
        first, last = (int(end) for end in (part.split("-") * 2)[:2])
        found += range(first, last + 1) if first <= last else range(first, last - 1, -1)
    return name, tuple(found)


def placed_name(cluster: str, order: Sequence[int]) -> str:
    """Returns the text that `parse_placed` reads as a cluster and an order, in place of one that is there already.

    Without an order it is the cluster as it is.
    """
    return f"{parse_placed(cluster)[0]}{AT}{numbers_text(order)}" if order else cluster


def numbers_text(numbers: Sequence[int]) -> str:
    """Returns numbers as text, `0-3,8` for 0, 1, 2, 3, 8."""
    starts = [at for at in range(len(numbers)) if not at or numbers[at] != numbers[at - 1] + 1]
    runs = [numbers[start:stop] for start, stop in pairwise([*starts, len(numbers)])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def placements(cluster: Cluster, sizes: Sequence[int]) -> tuple[Cluster, ...]:
    """Returns the orders in which ranks of `sizes` [ranks] may take a cluster's devices: first as it is.

    Of ranks that are equal and have all devices there is one for each border between levels, in which ranks have
    devices in as many of the units outside of it as they can. Of groups there are the orders that differ in their
    devices: of ranks if these are equal and lie in one group each, and orders are few, or else of groups, at most
    `MOST_ORDERS`. There is none beside the first for one rank, nor where the cluster has an order already.
    """
    if len(sizes) == 1 or cluster.order:
        return (cluster,)
    is_even = len(set(sizes)) == 1 and sum(sizes) == cluster.num_devices
    of_groups = _orders_of_groups(cluster, sizes[0] if is_even else 0) if cluster.groups else ()
    by_level = _orders_by_level(cluster, len(sizes)) if is_even else ()
    return tuple(dict.fromkeys([cluster, *(placed(cluster, order) for order in (*of_groups, *by_level))]))


def _orders_by_level(cluster: Cluster, num_ranks: int) -> Iterator[tuple[int, ...]]:
    count = cluster.num_devices
    for border in range(1, len(cluster.levels)):
        units = math.prod(level.size for level in cluster.levels[:border])
        if units > 1 and count % (units * num_ranks) == 0:
            yield tuple(np.arange(count).reshape(units, num_ranks, -1).swapaxes(0, 1).ravel().tolist())
        elif units > 1:
            yield tuple(sorted(range(count), key=lambda device: device % num_ranks))


def _orders_of_groups(cluster: Cluster, rank_size: int) -> Iterator[tuple[int, ...]]:
    """Yields the orders that differ of ranks of `rank_size`, if these are few and lie in groups, or else of groups."""
    ends = np.cumsum([group.num_devices for group in cluster.groups]).tolist()
    groups = [range(end - group.num_devices, end) for group, end in zip(cluster.groups, ends, strict=True)]
    blocks = groups
    if rank_size and all(len(own) % rank_size == 0 for own in groups):
        ranks = [own[at : at + rank_size] for own in groups for at in range(0, len(own), rank_size)]
        lengths = [len(own) // rank_size for own in groups]
        if math.factorial(len(ranks)) // math.prod(map(math.factorial, lengths)) <= MOST_ORDERS:
            blocks = ranks
    kinds = [(group.device, group.levels) for group in cluster.groups]
    of_kind: dict[int, list[range]] = {}
    for block in blocks:
        group = next(at for at, own in enumerate(groups) if block[0] in own)
        of_kind.setdefault(kinds.index(kinds[group]), []).append(block)
    for sequence in islice(_sequences({kind: len(own) for kind, own in of_kind.items()}), MOST_ORDERS):
        left = {kind: iter(own) for kind, own in of_kind.items()}
        yield tuple([device for kind in sequence for device in next(left[kind])])


def _sequences(left: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Yields the different sequences of numbers, each of which is there so many times."""
    if not any(left.values()):
        yield ()
    for number, count in left.items():
        if count:
            for rest in _sequences({**left, number: count - 1}):
                yield (number, *rest)


def placed_devices(cluster: Cluster, sizes: Sequence[int]) -> Devices:
    """Returns the devices of ranks of `sizes` [ranks] as a plan has them: nothing where they follow as numbered."""
    found = rank_devices(cluster, sizes)
    return () if found == rank_devices(replace(cluster, order=()), sizes) else found


def num_reached(sizes: Sequence[int], devices: Devices = ()) -> int:
    """Returns how many of a cluster's first devices ranks of `sizes` [ranks] need to be there."""
    return 1 + max(device for own in devices for device in own) if devices else sum(sizes)


def as_placed(cluster: Cluster, devices: Devices) -> Cluster:
    """Returns the cluster whose order gives ranks the devices that a plan has."""
    return placed(cluster, [device for own in devices for device in own])


def placement_text(cluster: Cluster, devices: Devices) -> str:
    """Returns in words which devices ranks have; nothing where they follow as numbered."""
    if not devices:
        return ""
    if cluster.groups:
        every = [one.name for one in rank_clusters(as_placed(cluster, devices), list(map(len, devices)))]
        if cluster.name not in every:
            return f"ranks on {', then '.join(name for at, name in enumerate(every) if every[at - 1 : at] != [name])}"
    for index, level in enumerate(cluster.levels[:-1]):
        unit = cluster.devices_per_unit(index)
        shares = [Counter(device // unit for device in own) for own in devices]
        each = {count for one in shares for count in one.values()}
        units = {len(one) for one in shares}
        if len(each) == len(units) == 1 and max(units) > 1:
            size, count = len(devices[0]), min(each)
            return f"ranks of {size} devices, {count} in each of {max(units)} units of {level.name}"
    return f"ranks on devices {'; '.join(map(numbers_text, devices))}"
