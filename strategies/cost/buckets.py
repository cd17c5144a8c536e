"""Which collectives of a program are sent together, as one.

A collective costs a launch, however little it sends. Joining some into one saves launches, and copies what they send
into a buffer and out of it. So one is joined with others where copying it takes less than a launch does, and a bucket
is closed once sending it takes several launches: then another one costs little.

Which ones may be joined is read from levels: that of an op is the most joinable collectives, one behind another, that
follow from it. Of two on one level neither waits for the other, and whatever a bucket waits for is on higher levels
than what waits for it. So buckets never wait for each other in a circle. A level counts from the end, because all
gradients are wanted there, though the activations that they follow from may be many collectives apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from rhino.strategies.cost.cost_model import CostModel, collective_s

_COPIES: Final = 2
"""How often what is joined is read and written again: into the bucket, and out of it."""
_LAUNCHES: Final = 4
"""How many launches sending a bucket takes before it is closed: a fifth of its time is then its own launch."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Bounds in bytes of payload per device: a collective above `item_bytes` stays alone, a bucket is not larger."""

    item_bytes: int
    bucket_bytes: int


def packing_of(model: CostModel) -> Packing | None:
    """Returns how collectives along the axes of a cost model are joined; None where the target's compiler does it."""
    axes = [axis for axis in model.axes if axis.size > 1]
    if not axes or not model.target.is_packed:
        return None
    launch_s = min(collective_s(axis, "reduce_scatter", 0) for axis in axes)
    rate = min(axis.bytes_per_s for axis in axes)
    item_bytes = launch_s * model.device.memory_bytes_per_s / (2 * _COPIES)
    return Packing(int(item_bytes), int(_LAUNCHES * launch_s * rate))


def buckets(
    keys: Sequence[Hashable | None],
    num_bytes: Sequence[int],
    readers: Sequence[Sequence[int]],
    packing: Packing,
) -> list[tuple[int, ...]]:
    """Returns the ops that are joined, at least two in each bucket, in the order of the first ones.

    Shapes: all are by op, in program order [ops]. `keys` are alike for collectives that may be one, and None for all
        other ops; `num_bytes` are payloads; `readers` the ops that read an op's results, which are behind it.
    """
    may_join = [key is not None and size <= packing.item_bytes for key, size in zip(keys, num_bytes, strict=True)]
    levels = [0] * len(keys)
    for op in range(len(keys) - 1, -1, -1):
        levels[op] = max((levels[reader] for reader in readers[op]), default=0) + may_join[op]
    open_ones: dict[tuple[Hashable, int], list[int]] = {}
    filled: dict[tuple[Hashable, int], int] = {}
    found: list[list[int]] = []
    for op, key in enumerate(keys):
        if not may_join[op]:
            continue
        place = (key, levels[op])
        if place not in open_ones or filled[place] + num_bytes[op] > packing.bucket_bytes:
            open_ones[place], filled[place] = [], 0
            found.append(open_ones[place])
        open_ones[place].append(op)
        filled[place] += num_bytes[op]
    return [tuple(bucket) for bucket in found if len(bucket) > 1]
