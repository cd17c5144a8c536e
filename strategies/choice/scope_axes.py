"""What scopes ask of axes, ops and arguments.

    replicate   Along its axes ops that have a dim of the batch are split by it; those that are no products run whole
                where they cannot be. Ops without such a dim run whole. Arguments that ops read, however they were
                converted or cut before, are whole if they have no dim of the batch.
    split       Along its axes products that have another dim than the batch are split by such a dim. Other ops are
                free.

What a product gives is stored so too, or as a partial sum: who needs it otherwise pays for that by himself.

A number of devices is the product of some axes: the outermost such for replicate, the innermost for split, so that what
is replicated spans hosts. Scopes around one op have different axes. One without a number gets all axes that the others
around that op leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod

from rhino.ir.graph.graph import BARRIER, WHILE, Choices, Graph, OpClass
from rhino.ir.graph.spec import PARTIAL, split
from rhino.ir.request.scope_sharding import SPLIT, ScopeSharding
from rhino.strategies.cost.candidates import REPLICATE, keeps, strategies
from rhino.strategies.cost.cost_model import PRODUCTS
from rhino.strategies.structure.axis_roles import Roles

Axes = tuple[int, ...]


def is_product(cls: OpClass) -> bool:
    """Says whether an op of this class is one that a scope has to share: one that runs on matrix units."""
    return cls.name in PRODUCTS and cls.rule is not None and not cls.free


def possible_counts(sizes: Sequence[int]) -> list[int]:
    """Returns the numbers of devices that scopes can have on axes of `sizes`."""
    return sorted({prod(sizes[axis] for axis in axes) for axes in _subsets(range(len(sizes)))})


def mesh_for(shardings: Sequence[ScopeSharding], num_devices: int) -> tuple[int, ...] | None:
    """Returns a mesh of so many devices: an axis per scope around an op, one for the rest; None where there is none."""
    numbers = [sharding.num for sharding in shardings if sharding.num is not None and sharding.num > 1]
    rest, over = divmod(num_devices, prod(numbers))
    shape = (*numbers, *([rest] if rest > 1 else [])) or (1,)
    return shape if not over and take_axes(shape, shardings, [frozenset()] * len(shardings)) is not None else None


def meshes_for(chains: Sequence[Sequence[ScopeSharding]], num_devices: int) -> list[tuple[int, ...]]:
    """Returns meshes of so many devices with axes for each of several chains of scopes; none where there are none.

    `chains` has the scopes around each op. Those that one of them asks for by itself come first; where these do not
    suit the others, it is all meshes of as few axes as can be.
    """

    def suits(shape: tuple[int, ...]) -> bool:
        return all(take_axes(shape, chain, [frozenset()] * len(chain)) is not None for chain in chains)

    own = dict.fromkeys(shape for chain in chains if (shape := mesh_for(chain, num_devices)) is not None)
    found = [shape for shape in own if suits(shape)]
    return found or next((fit for shapes in _factored(num_devices) if (fit := list(filter(suits, shapes)))), [])


def take_axes(
    sizes: Sequence[int], shardings: Sequence[ScopeSharding], barred: Sequence[frozenset[int]]
) -> tuple[Axes, ...] | None:
    """Returns the axes of each scope around an op, outermost first, None where there are too few.

    `barred` are those it cannot have.
    """
    taken = next(_taken(sizes, list(zip(shardings, barred, strict=True)), frozenset()), None)
    if taken is None:
        return None
    used, found = {axis for axes in taken if axes for axis in axes}, []
    for axes, bars in zip(taken, barred, strict=True):
        rest = tuple(axis for axis, size in enumerate(sizes) if size > 1 and axis not in used and axis not in bars)
        if axes is None and not rest and prod(sizes) > 1:
            return None
        used |= set(rest) if axes is None else set()
        found.append(rest if axes is None else axes)
    return tuple(found)


def op_choices(cls: OpClass, kinds: Mapping[int, str], batch: frozenset[int], sizes: Sequence[int]) -> Choices:
    """Returns what an op in scopes may do along each axis of `sizes`.

    `kinds` are those of the scopes that have axes, by axis.
    """
    strict = tuple(_choices(cls, kinds[axis], batch) if axis in kinds else None for axis in range(len(sizes)))
    if is_product(cls) or any(keeps(state.strategy, strict) for state in strategies(cls, tuple(sizes))):
        return strict
    return tuple(may and may | _replicated(cls) for may in strict)


def _choices(cls: OpClass, kind: str, batch: frozenset[int]) -> frozenset[int] | None:
    if kind == SPLIT:
        others = (
            frozenset(f for f, size in enumerate(cls.rule.sizes) if size > 1) - batch
            if cls.rule and is_product(cls)
            else frozenset()
        )
        return others or None
    return batch or _replicated(cls)


def _replicated(cls: OpClass) -> frozenset[int]:
    return frozenset([REPLICATE, *(-2 - number for number in range(len(cls.linear)))])


def stored_entries(kind: str, rank: int, batch: frozenset[int]) -> frozenset[int] | None:
    """Returns how what a product gives may lie along an axis of its scope, None where that is open.

    `batch` are its dims of the batch.
    """
    if not rank or (kind != SPLIT and not batch):  # a scalar's sum is taken where it arises
        return None
    dims = batch if kind != SPLIT else [dim for dim in range(rank) if dim not in batch]
    return frozenset([PARTIAL, *map(split, dims)])


def unbatched_arguments(roles: Roles, ops: Iterable[int]) -> dict[int, int]:
    """Returns the arguments without a dim of the batch that `ops` read, directly or through ops without such a dim.

    Each argument comes with the op that reads it.
    """
    graph = roles.graph
    seen, found = set[int](), dict[int, int]()
    for op in ops:
        left = graph.operands(op).tolist()
        while left:
            value = left.pop()
            if value in seen or not graph.type_of(value).shape or roles.batch_dims(value):
                continue
            seen.add(value)
            if value < len(graph.arguments):
                found[value] = op
            else:
                left += _sources(roles, value)
    return found


def _sources(roles: Roles, value: int) -> Iterator[int]:
    """Yields what a value is made of, unless a batch is summed for it: it is a gradient then."""
    graph: Graph = roles.graph
    op = int(graph.value_op[value])
    place = value - graph.results(op).start
    match graph.cls(op).name:
        case name if name == WHILE:
            end = next(loop.end for loop in graph.loops if loop.op == op)
            yield from (int(graph.operands(op)[place]), int(graph.operands(end)[place]))
        case name if name == BARRIER:
            yield int(graph.operands(op)[place])
        case _ if not roles.batch_factors(op):
            yield from graph.operands(op).tolist()


def _taken(
    sizes: Sequence[int], left: Sequence[tuple[ScopeSharding, frozenset[int]]], used: frozenset[int]
) -> Iterator[tuple[Axes | None, ...]]:
    """Yields the axes of scopes with numbers, None for one without, best first."""
    if not left:
        yield ()
        return
    (sharding, bars), *rest = left
    free = [axis for axis, size in enumerate(sizes) if size > 1 and axis not in used and axis not in bars]
    every: list[Axes | None] = (
        [None]
        if sharding.num is None
        else [a for a in _subsets(free) if prod(sizes[axis] for axis in a) == sharding.num]
    )
    for axes in reversed(every) if sharding.kind == SPLIT else every:
        for others in _taken(sizes, rest, used | frozenset(axes or ())):
            yield (axes, *others)


def _factored(num_devices: int) -> Iterator[list[tuple[int, ...]]]:
    """Yields the shapes of so many devices: those of one axis, those of two, and so on."""
    shapes: list[tuple[int, ...]] = [(num_devices,)]
    while shapes:
        yield shapes
        shapes = [(*rest, size, last // size) for *rest, last in shapes for size in range(2, last) if last % size == 0]


def _subsets(axes: Sequence[int]) -> list[Axes]:
    """Returns all sets of axes, in the order of their first axes."""
    return sorted(chosen for count in range(len(axes) + 1) for chosen in combinations(axes, count))
