"""How the grid of a kernel for TPUs places the windows of operands and results, and which of its dims give parts."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from rhino.ir.calls.tpu_memory import are_fresh, is_written
from rhino.ir.calls.tpu_points import Known, Points, Read, read_scalars, window_place
from rhino.ir.graph.rules import owned_rule
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import aliases_of, walk
from rhino.ir.mlir.tpu_kernels import Kernel

_ASKS: Final = re.compile(
    r"tpu\.(prng_|device_id|core_id|iteration_bound|sem_|semaphore|enqueue_|wait_|barrier|delay|log)"
)
"""Ops whose answer, or whose order, is not that of windows and points alone."""
Part = tuple[int, int]
"""A dim of the grid, and what its coordinate is divided by."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dim of an operand or result: windows of `window` elements, placed by parts of the grid, the first slowest.

    Where something else places them, the dim is taken as a whole: there are no parts, and `whole` is its size.
    """

    parts: tuple[Part, ...]
    window: int
    whole: int | None = None


def shapes_of(op: ir.Operation) -> list[tuple[int, ...]]:
    """Returns the shapes of a call's operands and results."""
    return [tuple(ir.RankedTensorType(value.type).shape) for value in (*op.operands, *op.results)]


@dataclass(frozen=True, slots=True)
class KernelGrid:
    """A kernel, and how the grid places the windows of each operand and result."""

    kernel: Kernel
    op: ir.Operation
    dims: tuple[tuple[Dim, ...], ...]
    cuts: tuple[tuple[int, ...], ...]
    """For each dim of the grid, what its coordinate is divided by somewhere, the largest first."""
    bound: frozenset[int]
    """Dims of the grid that place windows, or choose elements of scalar operands, in another way than by blocks."""
    asked: frozenset[int]
    """Dims of the grid with whose coordinates the kernel computes: a part of one has to know its place."""
    follows: tuple[frozenset[int], ...]
    """The dims of the grid that the windows of each operand and result follow."""

    @staticmethod
    def of(kernel: Kernel, op: ir.Operation, *, whole: bool = True) -> KernelGrid | None:
        """Returns what is found, None where the kernel asks for what its windows and its point do not say.

        Without `whole` the operands and results are parts of those that the kernel is made for.
        """
        shapes = shapes_of(op)
        if len(shapes) != kernel.num_scalars + len(kernel.windows) or min(kernel.bounds, default=1) < 1:
            return None
        if any(_ASKS.match(one.name) for one in walk(kernel.body)):
            return None
        body = Points(kernel.bounds, kernel.body, kernel.num_scalars)
        read_scalars(body, kernel.block)
        bound, reads = set[int](), list(body.reads)
        windows, follows = list[tuple[Dim, ...]](), list[frozenset[int]]()
        for window, shape in zip(kernel.windows, shapes[kernel.num_scalars :], strict=True):
            if window is None:
                windows.append(tuple(Dim((), size, size) for size in shape))
                follows.append(frozenset())
                continue
            places, own = window_place(kernel, window)
            reads += own
            follows.append(frozenset().union(*(place.of for place in places)))
            if not window.is_block or len(window.shape) != len(shape):
                sizes = window.shape if len(window.shape) == len(shape) else shape
                windows.append(tuple(Dim((), *both) for both in zip(sizes, shape, strict=True)))
                bound |= follows[-1]
                continue
            made = list[Dim]()
            for place, size, extent in zip(places, window.shape, shape, strict=True):
                parts = _parts(place, kernel.bounds)
                count = prod(kernel.bounds[grid] // least for grid, least in parts or ())
                known = parts is not None and (not whole or count * size == extent)
                if not known:
                    bound |= place.of
                made.append(Dim(parts or (), size) if known else Dim((), size, extent))
            windows.append(_once(made, shape))
            bound |= {grid for dim, once in zip(made, windows[-1], strict=True) if dim != once for grid, _ in dim.parts}
        scalars = _scalars(kernel, reads)
        for number, plain, others in reads:
            bound |= others
            bound |= {
                grid
                for place, grid in enumerate(plain)
                if grid is not None and scalars[number][place].parts != ((grid, 1),)
            }
        dims = (*scalars, *windows)
        every = {part for tensor in dims for dim in tensor for part in dim.parts}
        cuts = [
            tuple(sorted({1, *(least for number, least in every if number == grid)}, reverse=True))
            for grid in range(len(kernel.bounds))
        ]
        if any(larger % smaller for chain in cuts for larger, smaller in pairwise(chain)):
            return None
        asked = frozenset(grid for grid, chain in enumerate(cuts) if body.asks_for(grid, chain[0]))
        return KernelGrid(
            kernel,
            op,
            dims,
            tuple(cuts),
            frozenset(bound),
            asked,
            (*(frozenset[int]() for _ in scalars), *follows),
        )

    def size(self, part: Part) -> int:
        """Returns how many places a part of the grid has."""
        return self.kernel.bounds[part[0]] // part[1]

    def _factors(self, dim: Dim) -> list[Part]:
        """The factors of a dim's parts: each dim of the grid is cut wherever some dim of a tensor cuts it."""
        return [(grid, cut) for grid, least in dim.parts for cut in self.cuts[grid] if cut >= least]

    def _factor_size(self, factor: Part) -> int:
        grid, cut = factor
        chain = self.cuts[grid]
        place = chain.index(cut)
        return (self.kernel.bounds[grid] if place == 0 else chain[place - 1]) // cut

    def _read_results(self) -> list[tuple[int, tuple[Dim, ...]]]:
        """Returns the results that are read, by number, with their dims."""
        both = zip(self.dims[-len(self.op.results) :], self.op.results, strict=True)
        return [(number, dims) for number, (dims, value) in enumerate(both) if next(iter(value.uses), None) is not None]

    def moved_by(self, grid: int) -> tuple[int, int] | None:
        """Returns a result that is read, and its dim that a dim of the grid goes along; None where there is none."""
        top = (grid, self.cuts[grid][0])
        found = [
            (number, place)
            for number, dims in self._read_results()
            for place, dim in enumerate(dims)
            if top in self._factors(dim)
        ]
        return found[0] if found else None

    def free(self) -> frozenset[int]:
        """Returns the dims of the grid a part of which gives a part of the results, if it knows its place."""
        results = self._read_results()
        found = set[int]()
        for grid in range(len(self.kernel.bounds)):
            top = (grid, self.cuts[grid][0])
            if grid in self.bound or not all(any(top in self._factors(dim) for dim in dims) for _, dims in results):
                continue
            if (
                all(self._is_first(top, dim) for dims in self.dims for dim in dims)
                and self._is_alike_in_aliases(top)
                and (self.kernel.parallel[grid] or self._starts_anew(grid))
            ):
                found.add(grid)
        return frozenset(found)

    def _is_first(self, factor: Part, dim: Dim) -> bool:
        factors = self._factors(dim)
        return factor not in factors or all(self._factor_size(one) == 1 for one in factors[: factors.index(factor)])

    def _is_alike_in_aliases(self, factor: Part) -> bool:
        """Says whether a part of a result along `factor` takes the memory of a part of the operand that it replaces."""
        for operand, result in aliases_of(self.op):
            given, made = (
                [factor in self._factors(dim) for dim in self.dims[number]]
                for number in (operand, len(self.op.operands) + result)
            )
            if given != made:
                return False
        return True

    def _starts_anew(self, grid: int) -> bool:
        """Says whether nothing is read, in a part of `grid`, that is left of before this part.

        Memory that stays from point to point is either written whole before it is read where a part may begin and the
        dims of the grid that change faster begin, or it is so at every point.
        """
        block, bounds = self.kernel.block, self.kernel.bounds
        arguments = list(block.arguments)[len(bounds) :]
        follows = (*self.follows, *(frozenset[int]() for _ in arguments[len(self.follows) :]))  # scratch memory
        first_result = len(self.follows) - len(self.op.results)
        stays = frozenset(
            argument
            for number, (argument, of) in enumerate(zip(arguments, follows, strict=True))
            if grid not in of and (number >= first_result or is_written(argument))
        )
        start = tuple(
            slice(None, None, self.cuts[grid][0]) if number == grid else slice(None) if number < grid else slice(0, 1)
            for number in range(len(bounds))
        )
        points = Points(bounds, self.kernel.body, self.kernel.num_scalars)
        fresh = set[ir.Value[Any]]()
        return are_fresh(block, stays, fresh, points, start) and are_fresh(
            block, stays - fresh, set(), points, (slice(None),) * len(bounds)
        )

    def rule(self) -> tuple[str, dict[Part, str]]:
        """Returns Shardy's rule, marked as its op's owner's, and what it calls the parts of the grid that split."""
        tensors = [
            [self._named(dim, (tensor, number)) for number, dim in enumerate(dims)]
            for tensor, dims in enumerate(self.dims)
        ]
        split = len(self.op.operands)
        free = {(grid, self.cuts[grid][0]) for grid in self.free()}
        text, names = owned_rule(tensors[:split], tensors[split:], free)
        return text, {part: names[part] for part in sorted(free)}

    def _named(self, dim: Dim, own: tuple[int, int]) -> list[tuple[Hashable, int]]:
        """Returns the factors of a dim: those of the grid, and what is of this dim of this tensor alone."""
        factors: list[tuple[Hashable, int]] = [(part, self._factor_size(part)) for part in self._factors(dim)]
        return [*factors, (("rest", *own), dim.window if dim.whole is None else dim.whole)]


def _parts(place: Known, bounds: Sequence[int]) -> tuple[Part, ...] | None:
    """Returns the parts of the grid that windows follow one after the other, None where they do otherwise.

    A place is the sum of strides times coordinates, each coordinate divided by something, as the places of an array of
    several dims that are stored as one.
    """
    if place.at is None or place.at.flat[0] != 0:
        return None
    strides, total = list[tuple[int, int, int]](), np.zeros((1,) * len(bounds), np.int64)
    for grid in sorted(place.of):
        others = tuple(slice(None) if number == grid else slice(0, 1) for number in range(len(bounds)))
        line = place.at[others]
        total = total + line
        least = int(np.argmax(line.ravel() != 0))
        stride = int(line.ravel()[least])
        if not least or bounds[grid] % least or (line.ravel() != np.arange(bounds[grid]) // least * stride).any():
            return None
        strides.append((stride, grid, least))
    if (total != place.at).any():
        return None
    expected = 1
    for stride, grid, least in sorted(strides):
        if stride != expected:
            return None
        expected *= bounds[grid] // least
    return tuple((grid, least) for _, grid, least in sorted(strides, reverse=True))


def _scalars(kernel: Kernel, reads: Iterable[Read]) -> list[tuple[Dim, ...]]:
    """Returns the dims of the operands that are there whole, which of them the grid goes along."""
    places = dict[int, list[tuple[int | None, ...]]]()
    for number, plain, _ in reads:
        places.setdefault(number, []).append(plain)
    found = list[tuple[Dim, ...]]()
    first = len(kernel.bounds)
    for number, argument in enumerate(list(kernel.block.arguments)[first : first + kernel.num_scalars]):
        dims = list[Dim]()
        for place, extent in enumerate(ir.MemRefType(argument.type).shape):
            grids = {plain[place] for plain in places.get(number, [])}
            grid = grids.pop() if len(grids) == 1 else None
            is_its = grid is not None and kernel.bounds[grid] == extent
            dims.append(Dim(((grid, 1),), 1) if grid is not None and is_its else Dim((), extent, extent))
        found.append(_once(dims, ir.MemRefType(argument.type).shape))
    return found


def _once(dims: Sequence[Dim], shape: Sequence[int]) -> tuple[Dim, ...]:
    """Returns the dims of a tensor, as a whole those that the grid goes along as it goes along others: a diagonal."""
    grids = [grid for dim in dims for grid, _ in dim.parts]
    return tuple(
        Dim((), size, size) if any(grids.count(grid) > 1 for grid, _ in dim.parts) else dim
        for dim, size in zip(dims, shape, strict=True)
    )
