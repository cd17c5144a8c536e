"""Exchanges, carried out on lists of elements, against the ranges that parts read."""

from itertools import product

import pytest

from rhino.ir.graph.graph import OpClass, TensorType
from rhino.ir.graph.halos import Halo
from rhino.ir.graph.rules import Rule
from rhino.ir.graph.spec import pack, split
from rhino.strategies.cost.candidates import State, strategies
from rhino.strategies.cost.halo_exchange import exchanges, halo_moves


def op_class(halo: Halo, width: int = 1) -> OpClass:
    """Returns an op that reads one dim as a halo says, beside one of `width` elements."""
    rule = Rule(("i", "j"), (halo.size, width), (((0,), (1,)),), (((0,), (1,)),), frozenset(), frozenset())
    operand, result = (TensorType((size, width), "f32", 4) for size in (halo.size, halo.count))
    return OpClass("some.op", (operand,), (result,), rule.with_halos([halo]), None, (), False, False, 0)


REVERSED = Halo(0, 0, 0, 12, 12, -1, -11)
HALF = Halo(0, 0, 0, 24, 12)
WINDOW = Halo(0, 0, 0, 12, 12, low=1, span=3)
HALOS = [REVERSED, HALF, WINDOW] + [
    Halo(0, 0, 0, size, count, stride, low, span)
    for size, count, stride, low, span in product((12, 24), (12, 24), (-1, 1, 2), (-5, 0, 3, 12), (1, 4))
]


@pytest.mark.parametrize("sizes", [(2,), (4,), (6,), (2, 3)])
def test_pieces_are_all_that_a_part_reads_of_the_dim(sizes):
    for halo in HALOS:
        (one,) = exchanges(op_class(halo), (0,) * len(sizes), sizes)
        held = {part: list(range(part * one.block, (part + 1) * one.block)) for part in range(one.parts)}
        got: dict[int, dict[int, int]] = {part: {} for part in held}
        for permute in one.permutes:
            assert len({piece.source for piece in permute.pieces}) == len(permute.pieces)
            assert len({piece.target for piece in permute.pieces}) == len(permute.pieces)
            for piece in permute.pieces:
                brought = held[piece.source][piece.start : piece.start + piece.length]
                places = range(piece.at, piece.at + piece.length)
                assert not set(places) & got[piece.target].keys()
                got[piece.target] |= dict(zip(places, brought, strict=True))
        for part, found in got.items():
            first = one.range.first + one.range.step * part
            inside = range(max(first, 0), min(first + one.range.width, halo.size))
            assert found == {at - first: at for at in inside}, halo


def moved(halo: Halo, sizes: tuple[int, ...], strategy: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """Returns axes and bytes of the permutes of an op that runs so, with rows of 5 elements."""
    cls = op_class(halo, 5)
    state = next(state for state in strategies(cls, sizes) if state.strategy == strategy)
    return [(move.axes, move.num_bytes) for _, move in halo_moves(cls, state, sizes)]


def test_what_is_sent():
    row = 5 * 4
    assert moved(WINDOW, (4,), (0,)) == [((0,), row), ((0,), row)]
    assert moved(WINDOW, (2, 2), (0, -1)) == [((0,), row), ((0,), row)]
    assert moved(WINDOW, (2, 2), (0, 0)) == [((0, 1), row), ((0, 1), row)]
    assert moved(REVERSED, (4,), (0,)) == [((0,), 3 * row)]
    assert moved(HALF, (4,), (0,)) == [((0,), 3 * row), ((0,), 3 * row)]
    assert moved(Halo(0, 0, 0, 12, 4, 3, span=3), (4,), (0,)) == []  # windows beside one another


def test_two_factors_that_read_one_dim_do_not_split_it_both():
    image, kernel = Halo(0, 0, 0, 8, 8, low=1, span=3), Halo(1, 0, 0, 8, 8, low=1, span=8)
    rule = Rule(("i", "j"), (8, 8), (((0,),), ((1,),)), (((0,),),), frozenset({1}), frozenset())
    kind = TensorType((8,), "f32", 4)
    cls = OpClass("some.op", (kind, kind), (kind,), rule.with_halos([image, kernel]), "add", (), False, False, 0)
    found = strategies(cls, (2, 2))
    assert {state.strategy for state in found} == {(-1, -1), (-1, 0), (-1, 1), (0, -1), (1, -1), (0, 0), (1, 1)}
    assert State((1, -1), (pack([split(0), 0]), pack([split(0), 0])), (pack([1, 0]),), "add") in found


@pytest.mark.parametrize("stride", [1, -1])
@pytest.mark.parametrize("parts", [2, 3, 4, 6, 8])
def test_what_comes_before_a_part_is_joined_of_all_parts_before_it(parts, stride):
    halo = Halo(0, 0, 0, 3 * parts, 3 * parts, stride, joins="stablehlo.add")
    (one,) = exchanges(op_class(halo), (0,), (parts,))
    known: dict[int, set[int]] = {}
    for permute in one.permutes:
        assert {piece.length for piece in permute.pieces} == {1}
        given = known or {part: {part} for part in range(parts)}
        brought = {piece.target: given[piece.source] for piece in permute.pieces}
        known = {part: known.get(part, set()) | brought.get(part, set()) for part in range(parts)}
    before = range(parts) if stride > 0 else range(parts - 1, -1, -1)
    assert known == {part: set(before[: before.index(part)]) for part in range(parts)}
    assert moved(halo, (parts,), (0,)) == [((0,), 5 * 4)] * len(one.permutes)
