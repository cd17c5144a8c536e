"""How loops over layers are shared by stages: the most even cut of a line, against all cuts."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from rhino.strategies.pipeline.stages.iterations import GRAIN, Part, cut_line, even_cut, iterations

PARTS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), min_size=1, max_size=4)


def sizes(line: list[Part]) -> list[float]:
    return [part.seconds / part.num_pieces for part in line for _ in range(part.num_pieces)]


def stages(pieces: list[float], ends: list[int]) -> list[float]:
    bounds = [0, *ends, len(pieces)]
    return [sum(pieces[start:stop]) for start, stop in pairwise(bounds)]


@given(PARTS, st.integers(1, 4))
def test_no_cut_has_a_smaller_largest_stage(parts: list[tuple[int, int]], num_stages: int):
    line = [Part(float(seconds), count) for seconds, count in parts]
    pieces = sizes(line)
    starts = [sum(part.num_pieces for part in line[:number]) for number in range(len(line))]
    found = even_cut(line, [1.0] * num_stages)
    assert all(0 < at < line[part].num_pieces for part, at in found)
    inner = [starts[part] + at for part, at in found]
    others = [one for one in range(1, len(pieces)) if one in starts]
    best = min(
        max(stages(pieces, list(ends)))
        for count in range(num_stages)
        for ends in combinations(range(1, len(pieces)), count)
    )
    spare = num_stages - 1 - len(inner)
    reached = min(
        max(stages(pieces, sorted([*inner, *more])))
        for count in range(spare + 1)
        for more in combinations(others, count)
    )
    assert spare >= 0
    assert reached <= best + 1e-6


def test_ends_of_a_line_take_their_share():
    """Six layers of 2 s, 1 s before them and 5 s behind: four stages of 5, 4, 4 and 5 s."""
    line = [Part(1.0, 1), Part(12.0, 6), Part(5.0, 1)]
    assert even_cut(line, [1.0] * 4) == [(1, 2), (1, 4)]


def test_layers_of_two_loops_are_cut_where_stages_end():
    assert even_cut([Part(0.0, 1), Part(4.0, 4), Part(0.0, 1), Part(8.0, 4), Part(0.0, 1)], [1.0] * 3) == [(3, 2)]


def test_iterations_around_the_end_of_a_stage_are_pieces():
    assert iterations([], 6) == [0, 6]
    assert iterations([4 * GRAIN], 8) == [0, 3, 4, 5, 8]
    assert iterations([4 * GRAIN + 1], 9) == [0, 3, 4, 5, 6, 9]
    assert iterations([1, GRAIN - 1, 6 * GRAIN - 1], 6) == [0, 1, 2, 4, 5, 6]


def test_stages_on_more_devices_get_more_layers():
    """Of eight layers the first rank does twice as many as the two behind it."""
    line = [Part(0.0, 1), Part(8.0, 8), Part(0.0, 1)]
    assert even_cut(line, [2.0, 1.0, 1.0]) == [(1, 4), (1, 6)]
    assert even_cut(line, [1.0, 1.0, 2.0]) == [(1, 2), (1, 4)]


def test_many_stages_end_between_iterations_where_these_are_as_even():
    """126 layers in 16 stages are eight each at most, of 7.9 in the mean; 32 layers are three, of two and an eighth."""

    def pieces(trips: int, head: float, num_stages: int) -> list[int]:
        (found,) = cut_line([Part(0.0, 1), Part(float(trips), trips), Part(head, 1)], [1.0] * num_stages)
        return [stop - start for start, stop in pairwise(found)]

    counts = pieces(126, 0.7, 16)
    assert len(counts) == 16
    assert set(counts) == {7, 8}
    assert sum(counts) == 126
    assert pieces(32, 2.0, 16).count(1) > 16
    assert pieces(32, 0.0, 4) == [7, 1, 1, 6, 1, 1, 6, 1, 1, 7], "few stages end inside of iterations"
