"""Ranges that blocks of a factor read, against what each of their positions reads."""

from itertools import product

import pytest

from rhino.ir.graph.halos import Halo


def read_at(halo: Halo, position: int) -> list[int]:
    """Returns the elements, inside of the dim or not, that a position reads."""
    first = halo.stride * position - halo.low
    return [at // halo.base for at in range(first, first + halo.span) if at % halo.base == 0]


HALOS = [
    Halo(0, 0, 0, size, count, stride, low, span, base)
    for size, count, stride, low, span, base in product(
        (8, 12), (4, 12, 24), (-1, 1, 2, 3), (-3, -1, 0, 2, 7), (1, 3), (1, 2, 3)
    )
]


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_range_is_what_the_positions_of_a_block_read(parts):
    tried = 0
    for halo in HALOS:
        if halo.most_parts % parts:
            continue
        found, block = halo.read_by(parts), halo.count // parts
        for part in range(parts):
            positions = range(part * block, (part + 1) * block)
            elements = [at for position in positions for at in read_at(halo, position)]
            first = found.first + found.step * part
            assert (min(elements), max(elements)) == (first, first + found.width - 1), halo
            begins = min(halo.stride * position - halo.low for position in positions)
            ends = max(halo.stride * position - halo.low + halo.span for position in positions)
            assert begins == first * halo.base - found.low, halo
            assert ends == (first + found.width - 1) * halo.base + 1 + found.high, halo
        tried += 1
    assert tried > 50


def test_parts_divide_what_is_read_and_what_reads_it():
    assert Halo(0, 0, 0, 8, 12).most_parts == 4
    assert Halo(0, 0, 0, 8, 16, base=2).most_parts == 8
    assert Halo(0, 0, 0, 6, 18, base=3).most_parts == 6


def test_blocks_that_do_not_begin_alike_are_none():
    assert Halo(0, 0, 0, 8, 9, base=2).most_parts == 1
    assert Halo(0, 0, 0, 8, 8, stride=2, base=2).most_parts == 1
    assert Halo(0, 0, 0, 0, 8).most_parts == 1
