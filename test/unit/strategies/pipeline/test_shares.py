"""Shares of micro-batches against all others, and where tensors are updated."""

from itertools import product

import numpy as np
import pytest

from rhino.strategies.pipeline.replicas import owners, shares


@pytest.mark.parametrize("seed", range(20))
def test_no_other_shares_end_earlier(seed: int):
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 4))
    num = int(random.integers(count, 10))
    each_s = [float(one) for one in random.integers(1, 9, count)]

    def end_s(own: tuple[int, ...]) -> float:
        return max(taken * seconds for taken, seconds in zip(own, each_s, strict=True))

    found = shares(each_s, num)
    every = [own for own in product(range(1, num + 1), repeat=count) if sum(own) == num]
    assert found in every
    assert end_s(found) == min(map(end_s, every))


def test_tensors_are_dealt_by_size_and_updated_where_they_are_joined():
    # Joins of 8, 5 and 4 bytes; a product of an argument alone that updates the second; a norm of all; an update each.
    num_bytes = [8, 5, 4, 5, 1, 8, 5, 4]
    reads = [[], [], [], [], [0, 1, 2], [0, 4], [1, 3, 4], [2, 4]]
    assert owners(num_bytes, reads, [0, 1, 2], 2) == [0, 1, 1, 1, 0, 0, 1, 1]
    assert owners([4, 4], [[], [0]], [], 2) == [0, 0]
