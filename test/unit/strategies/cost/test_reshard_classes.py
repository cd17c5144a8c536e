"""Pairs of specs as one where only the numbers of dims differ.

What depends on a pair is compared over all pairs of its class.
"""

from itertools import product
from math import prod

import pytest

from rhino.ir.graph.graph import TensorType
from rhino.ir.graph.spec import all_specs, pack, split, unpack
from rhino.strategies.cost.reshard import parted_path, reshard_path
from rhino.strategies.cost.reshard_classes import pair_classes
from rhino.strategies.memory.buffers import MoveBuffers, _SizedStep, is_major

CASES = [((2, 2), (8, 8, 8)), ((2, 3), (6, 1, 12, 6)), ((2, 2, 2), (2, 4, 8, 8)), ((4, 1, 4), (4, 16, 16))]


@pytest.mark.parametrize(("sizes", "shape"), CASES)
def test_a_class_takes_the_steps_of_each_of_its_pairs(sizes, shape):
    given, needed = all_specs(shape, sizes, range(len(sizes))), all_specs(shape, sizes)
    pairs, which = pair_classes(given, needed, len(sizes))
    assert len(pairs) < len(given) * len(needed)
    for (i, source), (j, target) in product(enumerate(given), enumerate(needed)):
        pair = pairs[which[i, j]]
        assert parted_path(*pair, sizes) == parted_path(len(shape), source, target, sizes)


def renumbered(spec, num_axes, order):
    return pack(one if one < 2 else split(order[one - 2]) for one in unpack(spec, num_axes))


def test_pairs_are_alike_if_and_only_if_their_dims_may_be_renumbered():
    specs = all_specs((4, 4, 4, 4), (2, 2), (0, 1))
    pairs, which = pair_classes(specs, specs, 2, 1)
    orders = [(0, *rest) for rest in [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)]]
    classes = {}
    for (i, source), (j, target) in product(enumerate(specs), enumerate(specs)):
        least = min(tuple(renumbered(spec, 2, order) for spec in (source, target)) for order in orders)
        assert classes.setdefault(least, which[i, j]) == which[i, j]
    assert len(classes) == len(set(classes.values())) == len(pairs)


def test_more_axes_than_a_number_of_64_bits_holds_are_told_apart():
    specs = [pack([split(dim % 7) for dim in range(first, first + 12)]) for first in range(3)] + [pack([0] * 12)]
    pairs, which = pair_classes(specs, specs, 12)
    # of the dims one or two on, one or two back, or the same; from none, to none, and none at all
    assert len(pairs) == 8
    assert which[0, 1] == which[1, 2] != which[1, 0]


@pytest.mark.parametrize(("sizes", "shape"), CASES)
@pytest.mark.parametrize("move", [MoveBuffers(False, False, False), MoveBuffers(True, True, True)])
def test_buffers_are_those_of_the_way_itself(sizes, shape, move):
    kind = TensorType(shape, "f32", 4)
    given, needed = all_specs(shape, sizes, range(len(sizes))), all_specs(shape, sizes)
    num_bytes, which = move.num_bytes(kind, given, needed, sizes)
    for (i, source), (j, target) in product(enumerate(given), enumerate(needed)):
        steps, parted = (
            reshard_path(len(shape), source, target, len(sizes)) or (),
            parted_path(len(shape), source, target, sizes) or (),
        )
        sized = tuple(
            _SizedStep(a.kind, a.before, a.after, is_major(shape, b, sizes)) for a, b in zip(parted, steps, strict=True)
        )
        assert num_bytes[which[i, j]].tolist() == move.counts([sized]).num_bytes(4 * prod(shape))[0].tolist()
