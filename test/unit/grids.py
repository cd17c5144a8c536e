"""A mesh of devices in numpy: the block of a tensor that each has, by its coordinates, and what the blocks make."""

from functools import reduce
from itertools import product
from math import prod

import numpy as np

from rhino.ir.graph.spec import dim_axes, partial_axes


def coordinates_of(sizes):
    """Every device's coordinates, the last axis fastest."""
    return product(*map(range, sizes))


def layout_of(spec, sizes, rank):
    """The axes that split each dim, outermost first [rank]."""
    return tuple(map(tuple, dim_axes(spec, len(sizes), rank)))


def block(layout, sizes, coordinates):
    """Which block of each dim a device has [rank]: the axes of a dim are the digits of its number, outermost first."""
    numbers = []
    for axes in layout:
        number = 0
        for axis in axes:
            number = number * sizes[axis] + coordinates[axis]
        numbers.append(number)
    return tuple(numbers)


def blocks_of(value, layout, sizes):
    """What each device has of `value`."""
    held = {}
    for coordinates in coordinates_of(sizes):
        part = value
        for dim, (axes, number) in enumerate(zip(layout, block(layout, sizes, coordinates), strict=True)):
            part = np.split(part, prod(sizes[axis] for axis in axes), dim)[number]
        held[coordinates] = part
    return held


def dealt(value, spec, sizes, rng):
    """What each device has of a tensor in `spec`.

    Of a sum they have terms, none of which is 0 if `value` is nowhere between 0 and 16.
    """
    sums = partial_axes(spec)
    ats = list(product(*[range(sizes[axis]) for axis in sums]))
    terms = [
        (16 * rng.integers(1, 9, value.shape) * rng.choice([-1, 1], value.shape)).astype(value.dtype) for _ in ats[1:]
    ]
    terms.append(reduce(np.subtract, terms, value))
    layout = layout_of(spec, sizes, value.ndim)
    parts = {at: blocks_of(term, layout, sizes) for at, term in zip(ats, terms, strict=True)}
    return {at: parts[tuple(at[axis] for axis in sums)][at] for at in coordinates_of(sizes)}


def group(at, axis, sizes):
    """The devices that differ from `at` along one axis alone, itself included, in order."""
    return [(*at[:axis], number, *at[axis + 1 :]) for number in range(sizes[axis])]


def combined(held, axes, sizes, join=np.add):
    """What each device has after an all-reduce over `axes`."""
    for axis in axes:
        held = {at: reduce(join, [held[other] for other in group(at, axis, sizes)]) for at in held}
    return held


def assembled(held, spec, sizes, rank, join=np.add):
    """The tensor of which the devices have blocks in `spec`, sums joined.

    It is None where devices differ that should be equal.
    """
    held, layout = combined(held, partial_axes(spec), sizes, join), layout_of(spec, sizes, rank)
    (first, *_) = held.values()
    whole = np.zeros(
        [n * prod(sizes[a] for a in axes) for n, axes in zip(first.shape, layout, strict=True)], first.dtype
    )
    for at, part in held.items():
        whole[block_slices(block(layout, sizes, at), part.shape)] = part
    again = blocks_of(whole, layout, sizes)
    return whole if all(np.array_equal(part, again[at]) for at, part in held.items()) else None


def block_slices(numbers, shape):
    """Where a block lies in the whole tensor."""
    return tuple(slice(number * extent, (number + 1) * extent) for number, extent in zip(numbers, shape, strict=True))
