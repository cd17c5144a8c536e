"""Ways between specs, carried out on a grid of devices in numpy, each step as the collective that it says.

They are compared with a search, too. The simulation knows nothing of ways: a device has its coordinates and its block,
and a collective joins, cuts or adds blocks of a group.
"""

import heapq
from functools import cache
from itertools import permutations, product
from math import prod

import numpy as np
import pytest
from grids import assembled, block, combined, dealt, group, layout_of

from rhino.ir.graph.spec import PARTIAL, REPLICATED, all_specs, num_parts, pack, partial_axes, spec_text, split, unpack
from rhino.strategies.cost.reshard import ReshardStep, count_parts, moves, reshard_path, sent

R, P, S0, S1 = REPLICATED, PARTIAL, split(0), split(1)

GRIDS = {
    "line": ((4,), [(8,), (4, 3), (4, 8, 12)]),
    "2x2": ((2, 2), [(4,), (2,), (4, 8), (2, 2), (3, 4), (4, 2, 8)]),
    "2x3": ((2, 3), [(6,), (4,), (6, 12), (2, 3), (6, 2, 3)]),
    "2x2x2": ((2, 2, 2), [(8,), (4, 2)]),
}
CASES = [(grid, shape) for grid, (_, shapes) in GRIDS.items() for shape in shapes]


def specs_of(shape, sizes):
    return all_specs(shape, sizes, range(len(sizes)))


# Collectives on a grid


def run_step(step, held, sizes):
    """What each device has after one step."""
    if step.kind == "all_reduce":
        return combined(held, step.axes, sizes)
    if step.kind == "collective_permute":
        return {at: held[sender(step, sizes, at)] for at in held}
    (axis,) = step.axes
    size = sizes[axis]
    groups = {at: group(at, axis, sizes) for at in held}
    match step.kind:
        case "slice":
            return {at: np.split(mine, size, step.target)[at[axis]] for at, mine in held.items()}
        case "all_gather":
            return {at: np.concatenate([held[other] for other in groups[at]], step.source) for at in held}
        case "reduce_scatter":
            return {at: np.split(sum(held[other] for other in groups[at]), size, step.target)[at[axis]] for at in held}
        case "all_to_all":
            cut = {at: np.split(mine, size, step.target) for at, mine in held.items()}
            return {at: np.concatenate([cut[other][at[axis]] for other in groups[at]], step.source) for at in held}
    raise AssertionError(step.kind)


def sender(step, sizes, at):
    """The device that had the block that `at` has after a permutation.

    Its place is the same along axes that do not take part.
    """
    wanted = block(step.after, sizes, at)
    found = [
        other
        for other in product(*[range(size) if axis in step.axes else [at[axis]] for axis, size in enumerate(sizes)])
        if block(step.before, sizes, other) == wanted
    ]
    assert len(found) == 1, (step, at)
    return found[0]


def pairs(shape, sizes):
    return product(specs_of(shape, sizes), repeat=2)


def is_reachable(source, target, num_axes):
    """A sum can be taken, never made."""
    return all(s == P or t != P for s, t in zip(unpack(source, num_axes), unpack(target, num_axes), strict=True))


@pytest.mark.parametrize(("grid", "shape"), CASES)
def test_every_way_ends_in_the_blocks_of_its_target(grid, shape):
    sizes, rank = GRIDS[grid][0], len(shape)
    value = np.arange(prod(shape)).reshape(shape)
    for source, target in pairs(shape, sizes):
        steps = reshard_path(rank, source, target, len(sizes))
        assert (steps is not None) == is_reachable(source, target, len(sizes))
        held = dealt(value, source, sizes, np.random.default_rng(0))
        for step in steps or ():
            held = run_step(step, held, sizes)
        if steps is not None:
            np.testing.assert_array_equal(assembled(held, target, sizes, rank), value)


@pytest.mark.parametrize(("grid", "shape"), CASES)
def test_steps_follow_on_each_other_and_divide(grid, shape):
    """Each starts where the one before ended; no layout on the path splits a dim that its axes do not divide."""
    sizes, rank = GRIDS[grid][0], len(shape)
    for source, target in pairs(shape, sizes):
        steps = reshard_path(rank, source, target, len(sizes))
        if not steps:
            continue
        layouts = [steps[0].before, *(step.after for step in steps)]
        assert all(step.before == layout for step, layout in zip(steps, layouts, strict=False))
        assert (layouts[0], layouts[-1]) == (layout_of(source, sizes, rank), layout_of(target, sizes, rank))
        for layout in layouts:
            assert all(extent % prod(sizes[a] for a in axes) == 0 for extent, axes in zip(shape, layout, strict=True))


@pytest.mark.parametrize(("grid", "shape"), CASES)
def test_payloads_are_the_bytes_of_blocks(grid, shape):
    """Of what a device puts into a collective, or gets out of a gather; of a slice, what is cut out."""
    sizes, rank = GRIDS[grid][0], len(shape)
    value = np.zeros(shape, np.float64)
    for source, target in pairs(shape, sizes):
        steps, sized = reshard_path(rank, source, target, len(sizes)), moves(value.nbytes, rank, source, target, sizes)
        assert (steps is None) == (sized is None)
        held = dealt(value, source, sizes, np.random.default_rng(0))
        for step, move in zip(steps or (), sized or (), strict=True):
            after = run_step(step, held, sizes)
            (before_bytes,), (after_bytes,) = ({part.nbytes for part in parts.values()} for parts in (held, after))
            assert move.num_bytes == (after_bytes if step.kind in ("slice", "all_gather") else before_bytes)
            assert (move.kind, move.axes) == (step.kind, step.axes)
            assert value.nbytes // count_parts(step.after, sizes) == after_bytes
            held = after
        if sized is not None:
            assert sent(sized) == sum(move.num_bytes for move in sized if move.kind != "slice")
            assert {part.nbytes for part in held.values()} == {value.nbytes // num_parts(target, sizes)}


def test_to_stay_is_no_way():
    for spec in specs_of((4, 8), (2, 2)):
        assert reshard_path(2, spec, spec, 2) == ()


def test_nothing_becomes_a_sum():
    for source, target in [(R, P), (S0, P), (pack((R, P)), pack((P, R))), (pack((S0, R)), pack((S0, P)))]:
        assert reshard_path(1, source, target, 2) is None


def test_several_sums_are_taken_at_once():
    (step,) = reshard_path(1, pack((P, P, P)), R, 3)
    assert (step.kind, step.axes) == ("all_reduce", (0, 1, 2))


def test_inner_axes_scatter_first_and_outer_ones_gather_first():
    """In this order, less crosses the slower links of outer axes.

    Of 384 bytes on 2x4 inner axes leave a quarter.
    """
    assert moves(384, 2, pack((P, P)), pack((S0, S1)), (2, 4)) == (
        ReshardStep("reduce_scatter", (1,), 384),
        ReshardStep("reduce_scatter", (0,), 96),
    )
    assert moves(384, 2, pack((S0, S1)), R, (2, 4)) == (
        ReshardStep("all_gather", (0,), 96),
        ReshardStep("all_gather", (1,), 384),
    )


# Against a search


def wire(kind, payload, sizes, axes):
    """Bytes that one device sends, by rings (`rhino.strategies.cost.cost_model`).

    A permutation sends its block whole.
    """
    size = prod(sizes[axis] for axis in axes)
    if kind == "slice":
        return 0.0
    return payload * {"all_reduce": 2 * (size - 1) / size, "collective_permute": 1.0}.get(kind, (size - 1) / size)


def single_steps(state, shape, sizes):
    """Every state that one step reaches, and the bytes sent; a state is the axes of sums, and the axes of each dim."""
    sums, dims = state
    mine = prod(shape) / count_parts(dims, sizes)
    used = {axis for axes in dims for axis in axes} | set(sums)

    def with_dims(changes):
        after = tuple(changes.get(dim, axes) for dim, axes in enumerate(dims))
        whole = all(extent % prod(sizes[a] for a in axes) == 0 for extent, axes in zip(shape, after, strict=True))
        return [after] if whole else []

    for source, axes in enumerate(dims):
        for axis in axes[-1:]:
            for after in with_dims({source: axes[:-1]}):
                yield (sums, after), wire("all_gather", mine * sizes[axis], sizes, (axis,))
            for target in set(range(len(dims))) - {source}:
                for after in with_dims({source: axes[:-1], target: (*dims[target], axis)}):
                    yield (sums, after), wire("all_to_all", mine, sizes, (axis,))
    for target, axis in product(range(len(dims)), range(len(sizes))):
        if axis not in used or axis in sums:
            for after in with_dims({target: (*dims[target], axis)}):
                kind = "reduce_scatter" if axis in sums else "slice"
                yield (tuple(a for a in sums if a != axis), after), wire(kind, mine, sizes, (axis,))
    for chosen in product((False, True), repeat=len(sums)):
        taken = [axis for axis, one in zip(sums, chosen, strict=True) if one]
        if taken:
            yield (tuple(a for a in sums if a not in taken), dims), wire("all_reduce", mine, sizes, taken)
    for after in product(*(permutations(axes) for axes in dims)):
        if after != dims:
            yield (sums, after), wire("collective_permute", mine, sizes, ())


def least_bytes(source, shape, sizes):
    """The fewest bytes from spec `source` to every state: Dijkstra over single steps."""
    first = (partial_axes(source), layout_of(source, sizes, len(shape)))
    least, heap = {first: 0.0}, [(0.0, first)]
    while heap:
        spent, state = heapq.heappop(heap)
        if spent > least[state]:
            continue
        for after, more in single_steps(state, shape, sizes):
            if spent + more < least.get(after, np.inf):
                least[after] = spent + more
                heapq.heappush(heap, (spent + more, after))
    return least


@cache
def excesses(sizes, shape):
    """How many times the fewest bytes each path sends, by (source, target)."""
    found = {}
    for source in specs_of(shape, sizes):
        least = least_bytes(source, shape, sizes)
        for target in specs_of(shape, sizes):
            fewest = least.get((partial_axes(target), layout_of(target, sizes, len(shape))))
            steps = moves(prod(shape), len(shape), source, target, sizes)
            assert (fewest is None) == (steps is None)
            if steps is not None:
                bytes_sent = sum(wire(step.kind, step.num_bytes, sizes, step.axes) for step in steps)
                assert bytes_sent >= fewest * (1 - 1e-9)
                found[source, target] = bytes_sent / fewest if fewest else 1.0 + bytes_sent
    return found


@pytest.mark.parametrize(
    ("sizes", "most"), [((4,), 1.0), ((2, 2), 1.5), ((2, 3), 1.75), ((2, 4), 2.0), ((2, 2, 2), 3.0)]
)
def test_a_way_sends_few_bytes_more_than_the_best(sizes, most):
    """What is above 1 has its reasons: see below, and blocks that shrink first though they must change places later."""
    found = excesses(sizes, (64, 64) if sizes != (2, 3) else (36, 36))
    worst = max(found, key=found.__getitem__)
    assert found[worst] <= most * (1 + 1e-9), [spec_text(spec, "xyz"[: len(sizes)]) for spec in worst]
    assert np.mean(list(found.values())) < 1.2


@pytest.mark.parametrize(("sizes", "times"), [((2, 2), 1.0), ((2, 4), 2.0), ((4, 2), 1.5), ((4, 4), 3.0)])
def test_what_a_way_sends_in_vain(sizes, times):
    """Where one axis leaves a dim that another comes to, it is gathered first.

    Both together might not divide the dim.
    """
    assert excesses(sizes, (16, 16))[pack((S0, R)), pack((R, S0))] == pytest.approx(times)


def test_a_change_along_one_axis_of_two_is_one_step():
    """But for a dim that the inner axis keeps: there the outer one's blocks are put in order, before or after."""
    for source, target in pairs((8, 8), (2, 2)):
        changed = [axis for axis, (s, t) in enumerate(zip(unpack(source, 2), unpack(target, 2), strict=True)) if s != t]
        steps = reshard_path(2, source, target, 2)
        if steps is None or len(changed) != 1:
            continue
        kinds = [step.kind for step in steps if step.kind != "collective_permute"]
        assert len(kinds) == 1, (source, target)
        shares = {entry for spec in (source, target) for entry in [unpack(spec, 2)] if entry[0] == entry[1] >= S0}
        assert len(steps) == 1 or (shares and changed == [0])


def test_all_steps_of_a_pair_are_met():
    """Else the simulation would show little."""
    seen = {step.kind for source, target in pairs((8, 16), (2, 2)) for step in reshard_path(2, source, target, 2) or ()}
    assert seen == {"all_reduce", "all_gather", "reduce_scatter", "slice", "all_to_all", "collective_permute"}


def test_elements_half_as_wide_halve_what_is_moved_but_not_what_is_summed():
    gather, scatter = (ReshardStep(kind, (0,), 64) for kind in ("all_gather", "reduce_scatter"))
    assert (gather.narrowed().num_bytes, scatter.narrowed().num_bytes) == (32, 64)
