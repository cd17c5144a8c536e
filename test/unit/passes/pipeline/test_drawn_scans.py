"""Scanned steps, cut at random, give the answer of one device (bench/correctness.py scans has more of them)."""

import pytest
from drawn_scans import drawn, try_scan

LONG = pytest.mark.long
SEEDS = [0, 14, *(pytest.param(seed, marks=LONG) for seed in (4, 12, *range(15, 25)))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_cut_at_random_is_that_of_one_device(seed: int):
    passes, line = try_scan(*drawn(seed))
    assert passes, line
