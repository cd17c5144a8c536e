"""Integers that a kernel for TPUs computes from the point of its grid, and what it reads of scalar operands.

In: a function of a kernel. Out: an integer at every point of the grid, or that it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import add, floordiv, mod, mul, sub
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import end_of, maker_of, walk
from rhino.ir.mlir.tpu_kernels import Kernel, Window

MOST_POINTS: Final = 1 << 20
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
LOAD: Final = "memref.load"
Ints = NDArray[np.int64]
Read = tuple[int, tuple[int | None, ...], frozenset[int]]
"""An element that is read of a scalar operand: the operand, the dims of the grid that are its indices as they are, and
those that are in it otherwise."""


@dataclass(frozen=True, slots=True)
class Known:
    """An integer at each point of the grid: `at` has a dim for each of it, of size 1 where it does not matter.

    `at` is None where the integer is not known; it follows from the dims `of` of the grid.
    """

    at: Ints | None
    of: frozenset[int]


class Points:
    """Integers that a kernel computes from the point of the grid, and reads of scalar operands whose `tables` say."""

    def __init__(
        self, bounds: Sequence[int], function: ir.Operation, num_scalars: int, tables: Sequence[Ints | None] = ()
    ) -> None:
        self.bounds = bounds
        self.tables = dict(enumerate(tables))
        self.found: dict[ir.Value[Any], Known] = {}
        self.scalars = dict[ir.Value[Any], int]()
        self.reads: list[Read] = []
        arguments = list(function.regions[0].blocks[0].arguments)
        self.grid = {argument: number for number, argument in enumerate(arguments[: len(bounds)])}
        for number, argument in enumerate(arguments[len(bounds) : len(bounds) + num_scalars]):
            self.scalars[argument] = number
        for argument, number in self.grid.items():
            shape = [1] * len(bounds)
            shape[number] = bounds[number]
            self.found[argument] = Known(np.arange(bounds[number]).reshape(shape), frozenset({number}))

    def at(self, value: ir.Value[Any]) -> Known:
        """Returns what is known of a value."""
        pending = [value]
        while pending:
            one = pending[-1]
            maker = maker_of(one)
            missing = () if maker is None or one in self.found else [v for v in maker.operands if v not in self.found]
            pending += missing
            if not missing:
                if one not in self.found:
                    self.found[one] = Known(None, self._all()) if maker is None else self._made(maker)
                pending.pop()
        return self.found[value]

    def _all(self) -> frozenset[int]:
        return frozenset(range(len(self.bounds)))

    def _made(self, op: ir.Operation) -> Known:
        if op.name == LOAD and op.operands[0] in self.scalars:
            return self._read(op)
        if op.regions:
            return Known(None, self._all())
        operands = [self.found[value] for value in op.operands]
        of = frozenset[int]().union(*(one.of for one in operands))
        arrays = [one.at for one in operands if one.at is not None]
        if len(arrays) < len(operands) or prod(self.bounds[number] for number in of) > MOST_POINTS:
            return Known(None, of)
        made = _computed(op, arrays)
        if made is None or not _fits(made, op.results[0].type):
            return Known(None, of)
        return _varying(made, of)

    def _read(self, op: ir.Operation) -> Known:
        indices = [self.at(value) for value in list(op.operands)[1:]]
        plain = tuple(self.plain(one) for one in indices)
        others = frozenset[int]().union(*(one.of for one, grid in zip(indices, plain, strict=True) if grid is None))
        number = self.scalars[op.operands[0]]
        self.reads.append((number, plain, others))
        table = self.tables.get(number)
        if table is None or any(one.at is None for one in indices):
            return Known(None, others)
        of = frozenset[int]().union(*(one.of for one in indices))
        if prod(self.bounds[grid] for grid in of) > MOST_POINTS:
            return Known(None, of)
        return _varying(np.asarray(table[tuple(one.at for one in indices)]), of)

    def asks_for(self, grid: int, period: int) -> bool:
        """Says whether anything but elements of scalar operands follows from a coordinate, taken modulo `period`."""
        values: list[ir.Value[Any]] = [one for one, number in self.grid.items() if number == grid]
        seen = set(values)
        while values:
            value = values.pop()
            for op in (use.owner.operation for use in value.uses):
                if op.name == LOAD and op.operands[0] in self.scalars:
                    continue  # as `reads` says
                found = [(one, self.at(one).at) for one in op.results]
                if not found or any(at is None for _, at in found):
                    return True
                for one, at in found:
                    if one not in seen and at is not None and not _repeats(at, grid, period):
                        seen.add(one)
                        values.append(one)
        return False

    def plain(self, index: Known) -> int | None:
        """Returns the dim of the grid whose coordinate the index is."""
        if index.at is None or len(index.of) != 1:
            return None
        (number,) = index.of
        return number if (index.at.ravel() == np.arange(self.bounds[number])).all() else None


def _varying(at: Ints, of: frozenset[int]) -> Known:
    """Returns what is known of an integer that follows from the dims `of` of the grid at most."""
    varying = frozenset(n for n in of if at.shape[n] > 1 and not (at == at.take([0], axis=n)).all())
    for number in of - varying:
        at = at.take([0], axis=number)
    return Known(at, varying)


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


def window_place(kernel: Kernel, window: Window, tables: Sequence[Ints | None] = ()) -> tuple[list[Known], list[Read]]:
    """Returns the place of a window in each dim, and what of scalar operands it follows from."""
    points = Points(kernel.bounds, window.place, kernel.num_scalars, tables)
    return [points.at(value) for value in end_of(window.place.regions[0].blocks[0]).operands], points.reads


def read_scalars(points: Points, block: ir.Block) -> None:
    """Notes in `points.reads` how a kernel reads the operands that are there whole."""
    for op in (one for top in block.operations for one in walk(top.operation)):
        reads = op.name == LOAD and op.operands[0] in points.scalars
        if reads:
            points.at(op.results[0])
        for value in list(op.operands)[1 if reads else 0 :]:
            if value in points.scalars:  # all of it may be read
                rank = len(ir.MemRefType(value.type).shape)
                points.reads.append((points.scalars[value], (None,) * rank, frozenset()))
