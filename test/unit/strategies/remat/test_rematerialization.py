"""What is recomputed: the decision against enumeration, the rewritten steps against the steps themselves."""

import functools
import itertools
import random
from dataclasses import replace
from math import inf

import jax
import numpy as np
import pytest
from planning import run_on
from training import export_step
from zoo import ZOO

from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.pipeline.micro_batch import MicroBatch
from rhino.passes.pipeline.rematerialize import Rematerialize
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.inputs import InputRule, draw_inputs, nonnegative_arguments
from rhino.strategies.remat.min_cut import Piece, cheapest, frontier
from rhino.strategies.remat.remat_graph import Stash, Unit
from rhino.strategies.remat.remat_segments import cut_in_pieces
from rhino.strategies.remat.rematerialization import choose


def random_piece(rng: random.Random) -> Piece:
    units = rng.randint(2, 7)
    makes, reads, values = [], [], 0
    for _ in range(units):
        reads.append(tuple(sorted(rng.sample(range(values), min(values, rng.randint(0, 2))))))
        makes.append(tuple(range(values, values + rng.choice([1, 1, 2]))))
        values += len(makes[-1])
    return Piece(
        tuple(rng.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(units)),
        tuple(rng.random() < 0.9 for _ in range(units)),
        tuple(reads),
        tuple(makes),
        tuple(rng.randint(1, 9) for _ in range(values)),
        frozenset(v for v in range(values) if rng.random() < 0.6),
    )


def kept_bytes(late, num_bytes, units):
    """By definition: what is needed in the backward pass and not made there."""
    made = {v for _, makes in units for v in makes}
    needed = late | {v for reads, _ in units for v in reads}
    return sum(num_bytes[v] for v in needed - made)


def subsets(numbers):
    return itertools.chain.from_iterable(itertools.combinations(numbers, n) for n in range(len(numbers) + 1))


@pytest.mark.parametrize("scale", [1, 1 << 10, 1 << 20, 1 << 40])
def test_what_is_cheapest_is_so_for_bytes_of_any_size(scale):
    """What all prices add up to is more than 64 bits hold."""
    rng = random.Random(3)
    for _ in range(20):
        piece = random_piece(rng)
        large = replace(piece, num_bytes=tuple(scale * size for size in piece.num_bytes))
        units = [unit for unit in range(len(piece.seconds)) if piece.may_repeat[unit]]
        choices = [some for count in range(len(units) + 1) for some in itertools.combinations(units, count)]
        costs = {some: large.kept(some) + sum(piece.seconds[unit] for unit in some) for some in choices}
        found = cheapest(large, 1.0)
        assert costs[found.repeated] == pytest.approx(min(costs.values()), rel=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_corners_are_the_optima_of_all_prices(seed: int):
    rng = random.Random(seed)
    piece = random_piece(rng)
    points = [
        (
            kept_bytes(piece.late, piece.num_bytes, [(piece.reads[u], piece.makes[u]) for u in again]),
            sum(piece.seconds[u] for u in again),
        )
        for again in subsets([u for u in range(len(piece.seconds)) if piece.may_repeat[u]])
    ]
    corners = frontier(piece)
    assert all((one.kept_bytes, one.seconds) in points for one in corners)
    for price in (0.01, 0.1, 0.3, 1.0, 3.0, 100.0):
        best = min(size * price + seconds for size, seconds in points)
        assert min(one.kept_bytes * price + one.seconds for one in corners) == pytest.approx(best, rel=1e-5)
    assert corners[-1].kept_bytes == min(size for size, _ in points)


@pytest.mark.parametrize("seed", range(40))
def test_corners_are_the_optima_where_values_may_wait_in_host_memory(seed: int):
    rng = random.Random(seed)
    piece = random_piece(rng)
    piece = replace(piece, host_s=tuple(rng.choice([0.5, 1.0, 3.0, inf]) for _ in piece.num_bytes))
    points = []
    for again in subsets([u for u in range(len(piece.seconds)) if piece.may_repeat[u]]):
        made = {v for u in again for v in piece.makes[u]}
        kept = sorted(piece.late.union(*(piece.reads[u] for u in again)) - made)
        for there in subsets([v for v in kept if piece.host_s[v] < inf]):
            seconds = sum(piece.seconds[u] for u in again) + sum(piece.host_s[v] for v in there)
            points.append((sum(piece.num_bytes[v] for v in kept if v not in there), seconds))
    corners = frontier(piece)
    assert all(any(one.kept_bytes == size and one.seconds == s for size, s in points) for one in corners)
    for price in (0.01, 0.1, 0.3, 1.0, 3.0, 100.0):
        best = min(size * price + seconds for size, seconds in points)
        assert min(one.kept_bytes * price + one.seconds for one in corners) == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_goes_the_cheaper_way(seed: int):
    """With host memory at hand, no less is freed, and in no more time."""
    rng = random.Random(seed)
    stash = random_stash(rng, 9)
    in_flight = rng.choice([1, 3])
    share = rng.choice([0.2, 0.5, 0.8, 1.0])
    (alone,) = choose(stash, {0: share}, {0: in_flight})
    waiting = {value: 1 for value in stash.num_bytes if rng.random() < 0.8}
    rate = rng.choice([0.05, 0.5])
    (both,) = choose(replace(stash, waiting=waiting).with_host(lambda size: rate * size), {0: share}, {0: in_flight})
    assert both.host_s == pytest.approx(sum(2 * rate * stash.num_bytes[value] for value in both.hosted))
    assert set(both.hosted) <= set(waiting)
    assert both.host_bytes + both.kept_bytes <= stash.total_bytes(0) + sum(
        stash.num_bytes[v] for v in stash.num_bytes if v not in stash.late
    )
    if alone.blocks and both.kept_bytes >= alone.kept_bytes:
        assert both.added_s <= alone.added_s + 1e-9
    if not both.blocks and not both.hosted:
        assert both.kept_bytes == stash.total_bytes(0)


def random_stash(rng: random.Random, num_units: int) -> Stash:
    units = []
    for number in range(num_units):
        reads = tuple(sorted(rng.sample(range(max(0, number - 3), number), min(number, rng.randint(1, 2)))))
        units.append(Unit(number, 0, rng.choice([1.0, 2.0, 5.0]), reads, (number,), rng.random() < 0.95))
    num_bytes = {number: rng.randint(1, 9) for number in range(num_units)}
    late = frozenset(number for number in range(num_units) if rng.random() < 0.7)
    return Stash(
        tuple(units), num_bytes, late, frozenset(n for n in range(num_units) if rng.random() < 0.05), num_units
    )


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_the_best_for_its_pieces(seed: int):
    rng = random.Random(seed)
    stash = random_stash(rng, 9)
    share, in_flight = rng.choice([0.0, 0.2, 0.5, 0.8]), 3
    (chosen,) = choose(stash, {0: 1 - share}, {0: in_flight})
    pieces = cut_in_pieces(stash, stash.units, in_flight)
    crossing = {value for values in pieces.crossing for value in values}
    fixed = crossing | stash.saved
    best = least = float("inf")
    for again in subsets([unit for unit in stash.units if unit.may_repeat]):
        made = {value for unit in again for value in unit.makes} - fixed
        needed = stash.late | {value for unit in again for value in unit.reads}
        kept = sum(stash.num_bytes[value] for value in needed - made)
        least = min(least, kept)
        if kept <= max(share * stash.total_bytes(0), chosen.kept_bytes):
            best = min(best, sum(unit.seconds for unit in again))
    again = [op for block in chosen.blocks for op in block.ops]
    assert chosen.added_s == sum(stash.units[op].seconds for op in again)
    assert chosen.bound_s <= chosen.added_s + 1e-9
    if chosen.blocks:  # what is kept in any case was counted as needed, so a little less may do
        assert chosen.added_s <= best + 5.0
        assert chosen.kept_bytes <= max(
            share * stash.total_bytes(0), least + sum(stash.num_bytes[value] for value in fixed)
        )


@pytest.mark.parametrize("seed", range(20))
def test_pieces_hold_the_least_of_all_cuts(seed: int):
    rng = random.Random(seed)
    stash = random_stash(rng, 8)
    in_flight = rng.choice([1, 2, 4])
    found = cut_in_pieces(stash, stash.units, in_flight)
    last = {value: max([u.op for u in stash.units if value in u.reads], default=value) for value in stash.num_bytes}

    def held(bounds):
        ends = [next(b for b in bounds if value < b) for value in range(8)]
        crossing = {value for value in range(8) if last[value] >= ends[value]}
        inside = [sum(stash.num_bytes[v] for v in stash.late - crossing if ends[v] == b) for b in bounds]
        return in_flight * sum(stash.num_bytes[value] for value in crossing) + max(inside)

    bounds, total = [], 0
    for piece in found.units:
        total += len(piece)
        bounds.append(total)
    assert held(bounds) == found.alive_bytes
    assert found.alive_bytes <= held([8])


@functools.cache
def step_results(name: str, num: int, remat: str):
    """The module in text, the memory that XLA takes, and the results of two steps."""
    module = read_module(export_step(ZOO[name]).encode(), name, make_context())
    parts = (MicroBatch(num=num), Normalize()) if num > 1 else ()
    again = (Rematerialize(remat=remat),) if remat else ()
    build_pass_manager((Normalize(), *parts, *again), module.context, Remarks(name)).run(module.operation)
    executable = compile_module(module, jax.devices()[:1])
    inputs = draw_inputs(executable.signature, InputRule(0, 8, nonnegative_arguments(module)), {})
    return str(module), executable.memory_bytes(), run_on(executable, inputs, 2)


LONG = [("gpt", 1), ("gpt", 4), ("moe", 1), ("moe", 4), ("unet", 1), ("unet", 4), ("t5", 4), ("llama", 1), ("llama", 4)]


@pytest.mark.parametrize(
    ("name", "num"), [("gpt-dropout", 1), ("gpt-dropout", 4), *(pytest.param(*c, marks=pytest.mark.long) for c in LONG)]
)
def test_steps_that_recompute_more_take_less_memory_and_give_the_same(name: str, num: int):
    _, whole, expected = step_results(name, num, "")
    for remat in ("0.7", "1"):
        _, memory, found = step_results(name, num, remat)
        assert memory < whole
        for step, same in zip(found, expected, strict=True):
            for one, other in zip(step, same, strict=True):
                np.testing.assert_allclose(
                    one, other, rtol=1e-5, atol=1e-6 * max(1.0, float(np.abs(other).max(initial=0.0)))
                )


def test_nothing_changes_where_nothing_is_recomputed():
    assert step_results("gpt-dropout", 1, "0")[0] == step_results("gpt-dropout", 1, "")[0]
