"""The sharding rule and the work of a kernel for TPUs, read from the kernel itself.

A kernel runs once for each point of a grid, on windows of its operands and results. Where a dim of the grid chooses the
windows and does nothing else, the kernel on a part of that dim gives that part of the results: so in attention the
dims of the batch and of the heads, and not that of the queries, if the mask asks where these are. Nothing is known by
name here; whose kernel it is does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from operator import add, floordiv, mod, mul, sub
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rhino.ir.graph.rules import CallRule, CallWork, owned_rule_text
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import aliases_of, end_of, maker_of, walk
from rhino.ir.mlir.tpu_kernels import Kernel, Window, parse_kernel, read_kernel, written

_ASKS: Final = re.compile(
    r"tpu\.(prng_|device_id|core_id|iteration_bound|sem_|semaphore|enqueue_|wait_|barrier|delay|log)"
)
"""Ops whose answer, or whose order, is not that of windows and points alone."""
_MOST_POINTS: Final = 1 << 20
"""Points at which an integer is computed: 8 MiB for each that a kernel computes."""
_BINARY: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "arith.addi": add,
    "arith.subi": sub,
    "arith.muli": mul,
    "arith.divui": floordiv,
    "arith.floordivsi": floordiv,
    "arith.remui": mod,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
}
_CASTS: Final = ("arith.index_cast", "arith.extsi", "arith.extui", "arith.trunci")
_DIVISIONS: Final = ("arith.divui", "arith.remui", "arith.divsi", "arith.remsi", "arith.floordivsi")
_COMPARED: Final = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_LOAD: Final = "memref.load"
_STORE: Final = "memref.store"
_STORES: Final = (_STORE, "tpu.vector_store", "vector.store")
_MATMUL: Final = "tpu.matmul"
Ints = NDArray[np.int64]
Read = tuple[int, tuple[int | None, ...], frozenset[int]]
"""An element that is read of a scalar operand: the operand, the dims of the grid that are its indices as they are, and
those that are in it otherwise."""
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


def kernel_rule(op: ir.Operation) -> CallRule | None:
    """Returns the rule of a call of a kernel, None where it has none or cannot be read."""
    kernel = read_kernel(op)
    found = _Found.of(kernel, op) if kernel is not None else None
    return None if kernel is None or found is None else CallRule(found.rule(), _work(kernel))


def kernel_work(config: str) -> CallWork | None:
    """Returns the work of a kernel, given as the text of its call's configuration; None where it cannot be read."""
    kernel = parse_kernel(config)
    return _work(kernel) if kernel is not None and min(kernel.bounds, default=1) > 0 else None


def _work(kernel: Kernel) -> CallWork:
    """Returns the work of a kernel on its whole grid; a window is moved when another one takes its place."""
    points = _Points(kernel.bounds, kernel.body, kernel.num_scalars)
    flops, product_flops = _counted(kernel.block, points)
    first, moved = len(kernel.bounds), 0
    arguments = list(kernel.block.arguments)[first : first + kernel.num_scalars + len(kernel.windows)]
    for argument, window in zip(arguments, (*[None] * kernel.num_scalars, *kernel.windows), strict=True):
        places = [] if window is None else _places(kernel, window)[0]
        follows = frozenset[int]().union(*(place.of for place in places))
        kind = ir.MemRefType(argument.type)
        times = prod(kernel.bounds[: max(follows, default=-1) + 1])
        moved += times * prod(kind.shape) * int(getattr(kind.element_type, "width", 8)) // 8
    products = [op for op in walk(kernel.body) if op.name == _MATMUL]
    dtype = str(ir.VectorType(products[0].operands[0].type).element_type) if products else ""
    steps = prod(kernel.bounds)
    return CallWork(round((flops + product_flops) * steps), round(product_flops * steps), dtype, moved)


def _places(kernel: Kernel, window: Window) -> tuple[list[_Known], list[Read]]:
    """Returns the place of a window in each dim, and what of scalar operands it follows from."""
    points = _Points(kernel.bounds, window.place, kernel.num_scalars)
    return [points.at(value) for value in end_of(window.place.regions[0].blocks[0]).operands], points.reads


def fit_kernel(op: ir.Operation) -> None:
    """Gives a call of a kernel, made for larger operands and results, the grid of those that it has.

    Raises ValueError where their sizes fit no part of the grid.
    """
    kernel = read_kernel(op)
    found = _Found.of(kernel, op, whole=False) if kernel is not None else None
    if kernel is None or found is None:
        return
    counts = [set[int]() for _ in kernel.bounds]
    for dims, shape in zip(found.dims, _shapes(op), strict=True):
        for dim, size in zip(dims, shape, strict=True):
            if dim.parts:
                grid, least = dim.parts[0]
                rest = dim.window * prod(found.size(part) for part in dim.parts[1:])
                count = -(-size // rest) * least  # the last window may reach over the end
                counts[grid].add(min(count, kernel.bounds[grid]))  # the grid may leave windows out
    if any(len(count) > 1 for count in counts):
        raise ValueError(f"no part of a kernel's grid {kernel.bounds} is that of its operands and results")
    bounds = [min(count, default=bound) for count, bound in zip(counts, kernel.bounds, strict=True)]
    if tuple(bounds) != kernel.bounds:
        config = written(kernel, bounds, _shapes(op)[: kernel.num_scalars])
        op.attributes["backend_config"] = ir.StringAttr.get(config, op.context)


def _shapes(op: ir.Operation) -> list[tuple[int, ...]]:
    return [tuple(ir.RankedTensorType(value.type).shape) for value in (*op.operands, *op.results)]


@dataclass(frozen=True, slots=True)
class _Known:
    """An integer at each point of the grid: `at` has a dim for each of it, of size 1 where it does not matter.

    `at` is None where the integer is not known; it follows from the dims `of` of the grid.
    """

    at: Ints | None
    of: frozenset[int]


class _Points:
    """Integers that a kernel computes from the point of the grid."""

    def __init__(self, bounds: Sequence[int], function: ir.Operation, num_scalars: int) -> None:
        self.bounds = bounds
        self.found: dict[ir.Value[Any], _Known] = {}
        self.scalars = dict[ir.Value[Any], int]()
        self.reads: list[Read] = []
        arguments = list(function.regions[0].blocks[0].arguments)
        self.grid = {argument: number for number, argument in enumerate(arguments[: len(bounds)])}
        for number, argument in enumerate(arguments[len(bounds) : len(bounds) + num_scalars]):
            self.scalars[argument] = number
        for argument, number in self.grid.items():
            shape = [1] * len(bounds)
            shape[number] = bounds[number]
            self.found[argument] = _Known(np.arange(bounds[number]).reshape(shape), frozenset({number}))

    def at(self, value: ir.Value[Any]) -> _Known:
        """Returns what is known of a value."""
        pending = [value]
        while pending:
            one = pending[-1]
            maker = maker_of(one)
            missing = () if maker is None or one in self.found else [v for v in maker.operands if v not in self.found]
            pending += missing
            if not missing:
                if one not in self.found:
                    self.found[one] = _Known(None, self._all()) if maker is None else self._made(maker)
                pending.pop()
        return self.found[value]

    def _all(self) -> frozenset[int]:
        return frozenset(range(len(self.bounds)))

    def _made(self, op: ir.Operation) -> _Known:
        if op.name == _LOAD and op.operands[0] in self.scalars:
            return self._read(op)
        if op.regions:
            return _Known(None, self._all())
        operands = [self.found[value] for value in op.operands]
        of = frozenset[int]().union(*(one.of for one in operands))
        arrays = [one.at for one in operands if one.at is not None]
        if len(arrays) < len(operands) or prod(self.bounds[number] for number in of) > _MOST_POINTS:
            return _Known(None, of)
        made = _computed(op, arrays)
        if made is None or not _fits(made, op.results[0].type):
            return _Known(None, of)
        varying = frozenset(n for n in of if made.shape[n] > 1 and not (made == made.take([0], axis=n)).all())
        for number in of - varying:
            made = made.take([0], axis=number)
        return _Known(made, varying)

    def _read(self, op: ir.Operation) -> _Known:
        indices = [self.at(value) for value in list(op.operands)[1:]]
        plain = tuple(self._plain(one) for one in indices)
        others = frozenset[int]().union(*(one.of for one, grid in zip(indices, plain, strict=True) if grid is None))
        self.reads.append((self.scalars[op.operands[0]], plain, others))
        return _Known(None, others)

    def asks_for(self, grid: int, period: int) -> bool:
        """Says whether anything but elements of scalar operands follows from a coordinate, taken modulo `period`."""
        values: list[ir.Value[Any]] = [one for one, number in self.grid.items() if number == grid]
        seen = set(values)
        while values:
            value = values.pop()
            for op in (use.owner.operation for use in value.uses):
                if op.name == _LOAD and op.operands[0] in self.scalars:
                    continue  # as `reads` says
                found = [(one, self.at(one).at) for one in op.results]
                if not found or any(at is None for _, at in found):
                    return True
                for one, at in found:
                    if one not in seen and at is not None and not _repeats(at, grid, period):
                        seen.add(one)
                        values.append(one)
        return False

    def _plain(self, index: _Known) -> int | None:
        """Returns the dim of the grid whose coordinate the index is."""
        if index.at is None or len(index.of) != 1:
            return None
        (number,) = index.of
        return number if (index.at.ravel() == np.arange(self.bounds[number])).all() else None


def _repeats(at: Ints, grid: int, period: int) -> bool:
    """Says whether integers are the same wherever a coordinate is the same modulo `period`."""
    if at.ndim == 0 or at.shape[grid] == 1:
        return True
    return bool((at == at.take(np.arange(at.shape[grid]) % period, axis=grid)).all())


def _fits(made: Ints, kind: ir.Type) -> bool:
    """Says whether integers are the same in `kind`, and none of them wraps around."""
    width = ir.IntegerType(kind).width if isinstance(kind, ir.IntegerType) else 32  # of an index
    return bool(width == 1 or (made.min() >= -(1 << (width - 1)) and made.max() < 1 << (width - 1)))


def _computed(op: ir.Operation, arrays: Sequence[Ints]) -> Ints | None:
    """Returns what an op on integers gives, None where it is none that is known here."""
    if op.name == "arith.constant":
        value = op.attributes["value"]
        if isinstance(value, ir.BoolAttr):
            return np.array(int(value.value))
        return np.array(value.value) if isinstance(value, ir.IntegerAttr) else None
    if op.name in _DIVISIONS and (not arrays[1].all() or (op.name.endswith("ui") and min(map(np.min, arrays)) < 0)):
        return None
    if op.name in _BINARY:
        return np.asarray(_BINARY[op.name](*arrays))
    if op.name in _CASTS:
        return np.asarray(abs(arrays[0]) if op.name == "arith.extui" else arrays[0])
    if op.name in ("arith.divsi", "arith.remsi"):  # towards zero
        quotient = np.sign(arrays[0]) * np.sign(arrays[1]) * (abs(arrays[0]) // abs(arrays[1]))
        return np.asarray(quotient if op.name == "arith.divsi" else arrays[0] - quotient * arrays[1])
    if op.name == "arith.cmpi":
        kind = ir.IntegerAttr(op.attributes["predicate"]).value
        return np.asarray(_COMPARED[kind](*arrays), dtype=np.int64) if kind < len(_COMPARED) else None
    if op.name == "arith.select":
        return np.where(arrays[0] != 0, arrays[1], arrays[2])
    return None


@dataclass(frozen=True, slots=True)
class _Found:
    """A kernel, and how the grid places the windows of each operand and result."""

    kernel: Kernel
    op: ir.Operation
    dims: tuple[tuple[Dim, ...], ...]
    cuts: tuple[tuple[int, ...], ...]
    """For each dim of the grid, what its coordinate is divided by somewhere, the largest first."""
    bound: frozenset[int]
    """Dims of the grid that do more than place windows."""
    follows: tuple[frozenset[int], ...]
    """The dims of the grid that the windows of each operand and result follow."""

    @staticmethod
    def of(kernel: Kernel, op: ir.Operation, *, whole: bool = True) -> _Found | None:
        """Returns what is found, None where the kernel asks for what its windows and its point do not say.

        Without `whole` the operands and results are parts of those that the kernel is made for.
        """
        shapes = _shapes(op)
        if len(shapes) != kernel.num_scalars + len(kernel.windows) or min(kernel.bounds, default=1) < 1:
            return None
        if any(_ASKS.match(one.name) for one in walk(kernel.body)):
            return None
        body = _Points(kernel.bounds, kernel.body, kernel.num_scalars)
        _read_scalars(body, kernel.block)
        bound, reads = set[int](), list(body.reads)
        windows, follows = list[tuple[Dim, ...]](), list[frozenset[int]]()
        for window, shape in zip(kernel.windows, shapes[kernel.num_scalars :], strict=True):
            if window is None:
                windows.append(tuple(Dim((), size, size) for size in shape))
                follows.append(frozenset())
                continue
            places, own = _places(kernel, window)
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
        bound |= {grid for grid, chain in enumerate(cuts) if body.asks_for(grid, chain[0])}
        return _Found(
            kernel,
            op,
            dims,
            tuple(cuts),
            frozenset(bound),
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

    def free(self) -> frozenset[int]:
        """Returns the dims of the grid a part of which gives a part of the results."""
        num_results = len(self.op.results)
        results = [
            dims
            for dims, value in zip(self.dims[-num_results:], self.op.results, strict=True)
            if next(iter(value.uses), None) is not None
        ]
        found = set[int]()
        for grid in range(len(self.kernel.bounds)):
            top = (grid, self.cuts[grid][0])
            if grid in self.bound or not all(any(top in self._factors(dim) for dim in dims) for dims in results):
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
            if grid not in of and (number >= first_result or _is_written(argument))
        )
        start = tuple(
            slice(None, None, self.cuts[grid][0]) if number == grid else slice(None) if number < grid else slice(0, 1)
            for number in range(len(bounds))
        )
        points = _Points(bounds, self.kernel.body, self.kernel.num_scalars)
        fresh = set[ir.Value[Any]]()
        return self._are_fresh(block, stays, fresh, points, start) and self._are_fresh(
            block, stays - fresh, set(), points, (slice(None),) * len(bounds)
        )

    def _are_fresh(
        self,
        block: ir.Block,
        stays: frozenset[ir.Value[Any]],
        fresh: set[ir.Value[Any]],
        points: _Points,
        start: tuple[slice, ...],
    ) -> bool:
        return all(self._is_fresh(op.operation, stays, fresh, points, start) for op in block.operations)

    def _is_fresh(
        self,
        op: ir.Operation,
        stays: frozenset[ir.Value[Any]],
        fresh: set[ir.Value[Any]],
        points: _Points,
        start: tuple[slice, ...],
    ) -> bool:
        """Says whether an op reads nothing of `stays` that is not `fresh`, and adds what it writes."""
        if op.name == "scf.if":
            asked = points.at(op.operands[0]).at
            at_start = None if asked is None else np.broadcast_to(asked, points.bounds)[start] != 0
            for region, taken in zip(op.regions, (at_start, None if at_start is None else ~at_start), strict=True):
                if taken is None or taken.any():  # what only some points write is not written whole
                    inside = fresh if taken is not None and taken.all() else set(fresh)
                    if not all(self._are_fresh(block, stays, inside, points, start) for block in region.blocks):
                        return False
            return True
        if op.name in _STORES and _writes_whole(op):
            fresh.add(op.operands[1])
        stale = stays - fresh
        return not any(value in stale for one in walk(op) for value in one.operands) or _is_unread(op)

    def rule(self) -> str:
        """Returns Shardy's rule, marked as its op's owner's."""
        tensors = [
            [self._named(dim, (tensor, number)) for number, dim in enumerate(dims)]
            for tensor, dims in enumerate(self.dims)
        ]
        split = len(self.op.operands)
        free = {(grid, self.cuts[grid][0]) for grid in self.free()}
        return owned_rule_text(tensors[:split], tensors[split:], free)

    def _named(self, dim: Dim, own: tuple[int, int]) -> list[tuple[Hashable, int]]:
        """Returns the factors of a dim: those of the grid, and what is of this dim of this tensor alone."""
        factors: list[tuple[Hashable, int]] = [(part, self._factor_size(part)) for part in self._factors(dim)]
        return [*factors, (("rest", *own), dim.window if dim.whole is None else dim.whole)]


def _writes_whole(op: ir.Operation) -> bool:
    """Says whether a store, of a value into memory, leaves nothing of the memory as it was."""
    value, memory, *indices = op.operands
    if op.name == _STORE:
        return prod(ir.MemRefType(memory.type).shape) == 1
    return (
        list(ir.VectorType(value.type).shape) == list(ir.MemRefType(memory.type).shape)
        and len(indices) == len(ir.MemRefType(memory.type).shape)  # there is no mask
        and not ("add" in op.attributes and ir.BoolAttr(op.attributes["add"]).value)
    )


def _is_written(memory: ir.Value[Any]) -> bool:
    """Says whether an op may write `memory`, or a view of it."""
    for op in (use.owner.operation for use in memory.uses):
        if op.name.endswith("load"):
            continue
        if not len(op.results) or any(
            not isinstance(one.type, ir.MemRefType) or _is_written(one) for one in op.results
        ):
            return True
    return False


def _is_unread(op: ir.Operation) -> bool:
    """Says whether nothing follows from an op: Pallas loads what it then overwrites."""
    pending, seen = [op], {op}
    while pending:
        one = pending.pop()
        if not len(one.results) or len(one.regions):
            return False
        users = {use.owner.operation for value in one.results for use in value.uses} - seen
        pending += users
        seen |= users
    return True


def _parts(place: _Known, bounds: Sequence[int]) -> tuple[Part, ...] | None:
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


def _read_scalars(points: _Points, block: ir.Block) -> None:
    """Notes in `points.reads` how a kernel reads the operands that are there whole."""
    for op in (one for top in block.operations for one in walk(top.operation)):
        reads = op.name == _LOAD and op.operands[0] in points.scalars
        if reads:
            points.at(op.results[0])
        for value in list(op.operands)[1 if reads else 0 :]:
            if value in points.scalars:  # all of it may be read
                rank = len(ir.MemRefType(value.type).shape)
                points.reads.append((points.scalars[value], (None,) * rank, frozenset()))


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


def _counted(block: ir.Block, points: _Points) -> tuple[float, float]:
    """Returns the operations of a block at a point of the grid, on average: on elements, and in matrix products."""
    flops = product_flops = 0.0
    for view in block.operations:
        op = view.operation
        times = _times(op, points)
        for region, share in zip(op.regions, times, strict=False):
            for inside in region.blocks:
                own = _counted(inside, points)
                flops, product_flops = flops + share * own[0], product_flops + share * own[1]
        if op.name == _MATMUL:
            lhs, rhs, result = (prod(ir.VectorType(one.type).shape) for one in (*list(op.operands)[:2], op.results[0]))
            product_flops += 2 * result * (lhs * rhs / result) ** 0.5
        elif op.name.startswith(("arith.", "math.", "vector.multi_reduction")) and op.name != "arith.constant":
            kinds = [one.type for one in (*op.operands, *op.results) if isinstance(one.type, ir.VectorType)]
            flops += max((prod(ir.VectorType(kind).shape) for kind in kinds), default=0)
    return flops, product_flops


def _times(op: ir.Operation, points: _Points) -> tuple[float, ...]:
    """Returns how often each region of an op runs, once where nobody knows."""
    if op.name == "scf.if":
        asked = points.at(op.operands[0]).at
        share = 1.0 if asked is None else float((asked != 0).mean())
        return (share, 1.0 if asked is None else 1 - share)
    if op.name == "scf.for":
        ends = [points.at(value).at for value in list(op.operands)[:3]]
        known = [float(end.mean()) for end in ends if end is not None]
        return (max(0.0, (known[1] - known[0]) / known[2]),) if len(known) == 3 else (1.0,)
    return (1.0,) * len(op.regions)
