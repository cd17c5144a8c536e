"""Rematerialization on a line: against every set of ops of small lines."""

from itertools import product
from math import inf

import numpy as np
import pytest

from rhino.strategies.remat.line_remat import Increments, RematLine, caps


def line_of(seed, layers, size):
    """Alike layers behind an op that cannot be recomputed, as nets have them."""
    draw = np.random.default_rng(seed)
    seconds, stash = (
        draw.uniform(1, 9, size),
        np.where(draw.random(size) < 0.2, 0, draw.integers(1, 40, size)).astype(float),
    )
    begins = np.zeros(1 + layers * size, dtype=bool)
    begins[1::size] = True
    fixed = np.zeros(len(begins), dtype=bool)
    fixed[0] = True
    return RematLine(np.r_[3.0, np.tile(seconds, layers)], np.r_[5.0, np.tile(stash, layers)], begins, fixed)


def saved_by(line, again, start, end):
    """What a set of ops of a stretch saves, and the most that it holds at once."""
    saved = most = held = 0.0
    for op in range(start, end - 1):
        if not (again[op] and again[op + 1]):
            held = 0.0
            continue
        held += line.stash[op]
        most = max(most, held)
        if line.begins[op + 1]:
            held = 0.0
        else:
            saved += line.stash[op]
    return saved, most


def every_choice(line, start, end):
    for bits in product((False, True), repeat=end - start):
        again = np.zeros(len(line.seconds), dtype=bool)
        again[start:end] = bits
        if not (again & line.fixed).any():
            yield *saved_by(line, again, start, end), float(line.seconds[again].sum())


@pytest.mark.parametrize(("layers", "size"), [(3, 3), (2, 5), (1, 8)])
@pytest.mark.parametrize("seed", range(4))
def test_a_stretch_saves_enough_for_little(seed, layers, size):
    line = line_of(seed, layers, size)
    draw = np.random.default_rng(seed)
    for cap in caps(line):
        some = Increments(line, cap)
        for start, end in ((0, len(line.seconds)), (2, len(line.seconds)), (1, len(line.seconds) - 1)):
            choices = [one for one in every_choice(line, start, end) if one[1] <= cap]
            for need in draw.uniform(0, max(one[0] for one in choices), 5).tolist():
                best_s = min(seconds for saved, _, seconds in choices if saved >= need)
                at = np.array([start]), np.array([end]), np.array([need])
                seconds, least_s = float(some.choose(*at)[0][0]), float(some.least_s(*at)[0])
                assert best_s <= seconds * (1 + 1e-9)
                assert least_s <= seconds * (1 + 1e-9)
                if seconds < inf:
                    again = some.ops(start, end, need)
                    saved, most = saved_by(line, again, start, end)
                    assert (saved >= need * (1 - 1e-12), most <= cap, again[line.fixed].any()) == (True, True, False)
                    assert not again[:start].any()
                    assert not again[end:].any()
                    assert float(line.seconds[again].sum()) == pytest.approx(seconds)


@pytest.mark.parametrize(("layers", "size"), [(3, 3), (2, 5), (1, 8)])
def test_the_bound_is_one_on_all_choices_for_a_whole_line(layers, size):
    line = line_of(5, layers, size)
    num = len(line.seconds)
    choices = list(every_choice(line, 0, num))
    for need in np.linspace(0, max(saved for saved, *_ in choices), 20).tolist():
        best_s = min(seconds for saved, _, seconds in choices if saved >= need)
        least_s = Increments(line, inf).least_s(np.array([0]), np.array([num]), np.array([need]))[0]
        assert least_s <= best_s * (1 + 1e-9)


def test_many_alike_layers_are_within_a_layer_of_the_best():
    line = line_of(3, 40, 6)
    some = Increments(line, caps(line)[-1])
    need = np.linspace(1, 900, 50)
    start, end = np.zeros(50, dtype=np.int64), np.full(50, len(line.seconds))
    seconds, least_s = some.choose(start, end, need)[0], some.least_s(start, end, need)
    assert (least_s <= seconds).all()
    most = max(kind.seconds for kind in some.kinds)
    few = seconds < inf
    assert few.any()
    # The bound takes kinds that save nearly as much per second for one.
    assert (seconds[few] <= least_s[few] / 0.7 + most).all()


def test_nothing_costs_nothing_and_too_much_cannot_be_saved():
    line = line_of(1, 2, 4)
    some = Increments(line, inf)
    at = np.array([0, 0]), np.array([9, 9])
    assert some.choose(*at, np.array([-1.0, 1e9]))[0].tolist() == [0.0, inf]
    assert some.least_s(*at, np.array([-1.0, 1e9])).tolist() == [0.0, inf]
    assert not some.ops(0, 9, 0.0).any()


def test_each_increment_saves_something():
    """Sums of the same stash in another order differ in their last digit, and some ops take no time."""
    for seed in range(200):
        draw = np.random.default_rng(seed)
        size = int(draw.integers(2, 12))
        seconds, stash = draw.choice([0.0, 0.1, 1 / 3], size), draw.choice([0.0, 0.1, 0.7, 1 / 3, 2.0], size)
        line = RematLine(seconds, stash, np.zeros(size, dtype=bool), draw.random(size) < 0.2)
        for cap in (inf, float(stash.sum()) / 2):
            some = Increments(line, cap)
            assert all(kind.saved > 1e-9 and kind.seconds >= 0 for kind in some.kinds)
            whole = np.array([0]), np.array([size]), np.array([1e-6])
            assert some.least_s(*whole)[0] <= some.choose(*whole)[0][0] * (1 + 1e-9)
