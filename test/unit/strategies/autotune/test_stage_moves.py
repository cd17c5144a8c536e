"""Moves on single stages: what each primitive does, and the search against every configuration of small lines."""

from itertools import combinations, product
from math import inf

import numpy as np
import pytest

from rhino.strategies.autotune.stage_configs import (
    Division,
    Stage,
    StageConfig,
    StageEstimates,
    Stretches,
    balanced,
    placed,
)
from rhino.strategies.autotune.stage_moves import PRIMITIVES
from rhino.strategies.autotune.stage_search import alleviate
from rhino.strategies.pipeline.stages.shapes import Shape, is_placed

DIVISIONS = tuple(sorted(Division(dp, tp) for dp, tp in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4))))


class MadeUpLine:
    """Ops of drawn seconds, bytes and losses; what does not fit recomputes at a price, up to half of what it holds."""

    def __init__(self, seed, budget_bytes=30.0, places=7):
        draw = np.random.default_rng(seed)
        self.num_places, self.num_devices, self.per_node, self.budget_bytes = places, 4, 2, budget_bytes
        self.micro_batches = 8, 16
        self.work, self.stash = draw.uniform(1, 5, places), draw.uniform(1, 4, places)
        self.lost = {one: draw.uniform(0, 0.3) * (one.devices - 1) for one in DIVISIONS}
        self.sent_s = draw.uniform(0, 0.5, (2, places + 1))

    def divisions(self, micro_batches):
        return DIVISIONS if micro_batches == 8 else DIVISIONS[:-1]

    def placed(self, division, first):
        return division if is_placed(first, first + division.devices, self.per_node) else None

    def along(self, values, start):
        total = np.concatenate([[0.0], np.cumsum(values)])
        return np.where(np.arange(len(total)) > start, total - total[start], inf)

    def stretches(self, micro_batches, division, behind, start):
        busy = self.along(self.work, start) / division.devices * 8 / micro_batches * (1 + 0.01 * (micro_batches - 8))
        needs = self.along(self.stash, start) * (behind + 1) * 8 / micro_batches / division.tp + 3
        over = needs - self.budget_bytes
        again = np.where(over > needs / 2, inf, np.maximum(over, 0.0) * 0.1)
        return Stretches(busy, busy * (0.01 + self.lost[division]), again, over)

    def least_over(self, micro_batches, division, behind, start, end):
        over = float(self.stretches(micro_batches, division, behind, start).over_bytes[end])
        return (over + self.budget_bytes) / 2 - self.budget_bytes

    def shape(self, micro_batches, division):
        return Shape(division.devices, self.sent_s, self.sent_s[::-1])


def every_config(line):
    estimates = StageEstimates(line)
    for number in line.micro_batches:
        for count in range(1, line.num_devices + 1):
            for divisions in product(line.divisions(number), repeat=count):
                for cut in combinations(range(1, line.num_places), count - 1):
                    stages = tuple(Stage(*one) for one in zip((*cut, line.num_places), divisions, strict=True))
                    if (config := placed(line, StageConfig(number, stages))) is not None:
                        yield estimates.fitted(config)


def starts(line):
    return [one for one in (balanced(line, count) for count in range(1, line.num_devices + 1)) if one is not None]


@pytest.mark.parametrize("seed", range(6))
def test_a_start_is_as_even_as_devices_that_lie_together_allow(seed):
    """Against all numbers of devices; each may begin at some devices alone, as on groups of unlike sizes."""
    line, draw = MadeUpLine(0), np.random.default_rng(seed)
    line.num_devices, known = 6, tuple([Division(1, width) for width in (1, 2, 3, 4)])
    there = {(one, first) for one in known for first in range(6) if draw.uniform() < 0.6}
    line.divisions = lambda _: known
    line.placed = lambda division, first: division if (division, first) in there else None
    for count in range(1, 7):
        every = [
            [one.devices for one in divisions]
            for divisions in product(known, repeat=count)
            if sum(one.devices for one in divisions) == 6
            and all((one, sum(other.devices for other in divisions[:at])) in there for at, one in enumerate(divisions))
        ]
        found = balanced(line, count)
        assert (found is None) == (not every)
        if found is not None:
            widths = [one.devices for one in found.divisions]
            assert widths == min(every, key=lambda own: (sum(one**2 for one in own), [-one for one in own]))


@pytest.mark.parametrize("budget_bytes", [200.0, 24.0, 14.0])
@pytest.mark.parametrize("seed", range(3))
def test_from_balanced_starts_the_best_of_all_is_found(seed, budget_bytes):
    line = MadeUpLine(seed, budget_bytes)
    estimates = StageEstimates(line)
    best = min(estimates.figures(one).rank for one in every_config(line))
    found = alleviate(estimates, starts(line), 3000)
    if best[0] > 0:
        assert found == []
    else:
        assert estimates.figures(found[0]).rank == pytest.approx(best, rel=1e-9)
        assert alleviate(StageEstimates(line), starts(line), 3000) == found


def test_a_configuration_comes_to_its_stages_worked_by_hand():
    line = MadeUpLine(0)
    config = StageConfig(8, (Stage(3, Division(2, 1)), Stage(7, Division(1, 2), recomputes=True)))
    figures = StageEstimates(line).figures(config)
    first_s = sum(line.work[:3]) / 2 * (1.01 + line.lost[Division(2, 1)]) + line.sent_s[0, 0] + line.sent_s[0, 3]
    last_s = sum(line.work[3:]) / 2 * (1.01 + line.lost[Division(1, 2)]) + line.sent_s[1, 3] + line.sent_s[0, 7]
    assert [one.seconds for one in figures.stages] == pytest.approx([first_s, last_s])
    assert figures.step_s == pytest.approx(7 * max(first_s, last_s) + first_s + last_s)
    assert figures.stages[0].over_bytes == pytest.approx(sum(line.stash[:3]) * 2 + 3 - line.budget_bytes)
    assert figures.over_bytes == 0.0


def reached(line, config, name, number):
    (primitive,) = [one for one in PRIMITIVES if one.name == name]
    found = list(primitive.apply(StageEstimates(line), config, number))
    for one in found:
        assert placed(line, one) == one
        assert list(one.bounds) == sorted(set(one.bounds))
        assert one.bounds[-1] == line.num_places
    return found


@pytest.fixture
def uneven():
    return StageConfig(8, (Stage(5, Division(1, 2)), Stage(6, Division(1, 1)), Stage(7, Division(1, 1))))


def test_ops_go_from_a_stage_to_its_partner_through_those_between():
    line = MadeUpLine(0)
    config = StageConfig(8, (Stage(5, Division(1, 1)), Stage(6, Division(1, 1)), Stage(7, Division(2, 1))))
    estimates = StageEstimates(line)
    found = reached(line, config, "dec-op#", 0)
    assert {one.divisions for one in found} == {config.divisions}
    assert all(one.stages[0].end < 5 for one in found)
    (last,) = {one.stages[1].end for one in found[:1]}
    assert last < 6
    longest = [max(one.seconds for one in estimates.figures(one).stages) for one in (config, *found)]
    assert longest == sorted(longest, reverse=True)


def test_devices_come_from_partners_and_go_to_them(uneven):
    line = MadeUpLine(0)
    one, two = Division(1, 1), Division(2, 1)
    assert {to.divisions for to in reached(line, uneven, "inc-dp", 0)} == {(two, one, one)}
    assert reached(line, uneven, "inc-tp", 1) == []
    pair = StageConfig(8, (Stage(4, Division(1, 2)), Stage(7, Division(2, 1))))
    assert {to.divisions for to in reached(line, pair, "dec-tp", 0)} == {(two, two)}
    single = StageConfig(8, (Stage(2, Division(1, 2)), Stage(4, one), Stage(7, one)))
    found = {to.divisions for to in reached(MadeUpLine(0, places=7), single, "inc-tp", 2)}
    assert found == {(one, one, Division(1, 2))}
    assert {to.divisions for to in reached(line, single, "dec-tp", 0)} >= found


def test_all_stages_have_the_micro_batches_and_divisions_that_these_allow():
    line = MadeUpLine(0)
    assert reached(line, StageConfig(8, (Stage(7, Division(2, 2)),)), "inc-mbs", 0) == []
    (found,) = reached(line, StageConfig(8, (Stage(7, Division(2, 2)),)), "dec-mbs", 0)
    assert (found.micro_batches, found.divisions) == (16, (Division(1, 4),))


def test_a_stage_recomputes_where_it_is_told_to():
    line = MadeUpLine(0, budget_bytes=14.0)
    plain = StageConfig(8, (Stage(7, Division(2, 2)),))
    (found,) = reached(line, plain, "inc-rc", 0)
    assert found.stages[0].recomputes
    assert reached(line, found, "dec-rc", 0) == [plain]
    assert reached(line, found, "inc-rc", 0) == []


def test_starts_share_devices_and_ops_evenly():
    widths = {len(one.stages): [stage.division.devices for stage in one.stages] for one in starts(MadeUpLine(0))}
    assert widths == {1: [4], 2: [2, 2], 3: [2, 1, 1], 4: [1, 1, 1, 1]}
