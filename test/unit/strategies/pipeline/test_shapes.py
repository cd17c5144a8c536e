"""Stages on ranks of unlike shapes: against every cut of small lines."""

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import numpy as np
import pytest

from rhino.strategies.pipeline.stages.shapes import Shape, ShapedLine, best_cut


def line_of(seed, rounds, per_node=6, num_places=6, widths=(1, 2, 4)):
    """A line whose stages take longer with more of them behind, and on some shapes do not fit at all."""
    draw = np.random.default_rng(seed)
    work = draw.uniform(1, 5, num_places)
    total = np.concatenate([[0.0], np.cumsum(work)])
    start, end = np.meshgrid(np.arange(num_places + 1), np.arange(num_places + 1), indexing="ij")
    shapes = tuple(
        Shape(d, draw.uniform(0, 1, (2, num_places + 1)), draw.uniform(0, 1, (2, num_places + 1))) for d in widths
    )
    lost = draw.uniform(1, 1.3, len(widths))

    @cache
    def table(behind, shape):
        seconds = (total[end] - total[start]) / shapes[shape].devices * lost[shape] * (1 + 0.1 * behind)
        fits = (end - start) * (behind + 1) <= 8 * shapes[shape].devices
        return np.where((end > start) & fits, seconds, inf)

    def stage_s(behind, shape, limit_s):
        return np.where(table(behind, shape) <= limit_s, table(behind, shape), inf)

    def bound_s(behind, shape, limit_s):
        return stage_s(behind, shape, inf) * 0.9

    busy = sum(work * min(lost))
    return ShapedLine(shapes, stage_s, bound_s, num_places, 6, per_node, rounds, 5, float(busy))


def every_cut(line, start=0, used=0):
    """Yields every cut: of each stage where it begins and ends, its shape, its first device and the one behind."""
    if start == line.num_places:
        if used == line.num_devices:
            yield ()
        return
    for end, (number, shape) in product(range(start + 1, line.num_places + 1), enumerate(line.shapes)):
        first, last = used, used + shape.devices
        inside = first // line.per_node == (last - 1) // line.per_node
        if last <= line.num_devices and (inside or not (first % line.per_node or last % line.per_node)):
            for rest in every_cut(line, end, last):
                yield ((start, end, number, first, last), *rest)


def step_s(line, cut):
    seconds = []
    for behind, (start, end, number, first, last) in zip(range(len(cut) - 1, -1, -1), cut, strict=True):
        shape = line.shapes[number]
        enters = shape.enters[int(first > 0 and first % line.per_node == 0)][start]
        leaves = shape.leaves[int(last % line.per_node == 0)][end]
        seconds.append(line.stage_s(behind, number, inf)[start, end] + enters + leaves)
    return (line.num_micro_batches - 1) * max(seconds) + sum(seconds)


@pytest.mark.parametrize("per_node", [2, 3, 6])
@pytest.mark.parametrize(("rounds", "within"), [(3, 1e-2), (100, 3e-4)])
@pytest.mark.parametrize("seed", range(4))
def test_the_cut_is_the_best_of_all(seed, rounds, within, per_node):
    """But for what limits do not tell apart, which is more where the longest stage counts for little."""
    line = line_of(seed, rounds, per_node)
    cuts = [cut for cut in every_cut(line) if len(cut) <= line.most_stages]
    best_s = min((step_s(line, cut) for cut in cuts), default=inf)
    found = best_cut(line)
    assert (found is None) == (best_s == inf)
    if found is not None:
        used = np.cumsum([0, *(line.shapes[one.shape].devices for one in found.stages)]).tolist()
        stages = tuple((one.start, one.end, one.shape, *used[n : n + 2]) for n, one in enumerate(found.stages))
        assert stages in cuts
        assert step_s(line, stages) == pytest.approx(found.step_s)
        assert best_s <= found.step_s * (1 + 1e-9)
        assert found.step_s <= best_s * (1 + within)
        assert best_cut(line, found.step_s * (1 - within)) is None


@pytest.mark.parametrize("number", [2, 3, 4])
def test_so_many_stages_are_asked_for_and_ranks_begin_where_they_may(number):
    line = line_of(1, 8)
    starts = [None, (0, 3), (2,)]
    shapes = tuple([replace(shape, starts=own) for shape, own in zip(line.shapes, starts, strict=True)])
    line = replace(line, shapes=shapes, least_stages=number, most_stages=number)

    def is_allowed(cut):
        return len(cut) == number and all(
            starts[shape] is None or first in starts[shape] for *_, shape, first, _ in cut
        )

    best_s = min((step_s(line, cut) for cut in every_cut(line) if is_allowed(cut)), default=inf)
    found = best_cut(line)
    assert (found is None) == (best_s == inf)
    if found is not None:
        assert len(found.stages) == number
        assert best_s * (1 - 1e-9) <= found.step_s <= best_s * 1.01


def test_nothing_is_found_where_no_stage_fits():
    line = line_of(0, 4)
    nothing = ShapedLine(
        line.shapes, lambda *_: np.full((7, 7), inf), lambda *_: np.full((7, 7), inf), 6, 6, 6, 4, 5, line.busy_s
    )
    assert best_cut(nothing) is None
