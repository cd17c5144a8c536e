"""The sharding rule and the work of a kernel for GPUs, read from the addresses that it computes, and its parts.

A part of the grid computes a part of the results where, along a digit of a program's number, all that is loaded and
stored moves by equal blocks of one dim of a tensor, or does not move, and nothing else follows from the digit: not a
mask, not how often a loop runs, not a value that is stored. A digit is the number divided by something, modulo
something: several dims of an index are often counted in one dim of the grid.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, Final

import numpy as np

from rhino.ir.calls.index_forms import Form, Ints, period_of, place
from rhino.ir.calls.kernel_parts import renumber_programs, set_block_strides, set_strides
from rhino.ir.calls.known_values import Periods
from rhino.ir.calls.machine import Access, Reading, UnreadableError
from rhino.ir.calls.mosaic_accesses import read_mosaic
from rhino.ir.calls.triton_accesses import read_triton
from rhino.ir.graph.rules import CallRule, CallWork, owned_rule
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.mosaic_kernels import (
    MosaicKernel,
    block_ids,
    copied_mosaic,
    is_mosaic_kernel,
    mosaic_code,
    parse_mosaic_config,
    read_mosaic_kernel,
    with_bounds,
    write_mosaic_kernel,
)
from rhino.ir.mlir.reader import aliases_of
from rhino.ir.mlir.triton_kernels import (
    TritonKernel,
    copied_triton,
    is_triton_kernel,
    parse_triton_config,
    program_ids,
    read_triton_kernel,
    triton_code,
    write_triton_kernel,
)

GpuKernel = TritonKernel | MosaicKernel
MADE_FOR: Final = "rhino.made_for"
"""The types of the operands and results that a call's kernel is made for, while the call gets others."""
Shapes = tuple[tuple[int, ...], ...]
Indices = tuple[Form, ...]
"""The index in each dim of a tensor."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A digit of the programs' numbers along a dim of the grid: the number divided by `unit`, modulo `count`."""

    axis: int
    unit: int
    count: int

    def of(self, numbers: Ints) -> Ints:
        """Returns the digit of numbers."""
        return numbers // self.unit % self.count

    def is_apart(self, periods: Periods) -> bool:
        """Says whether what repeats with `periods` does not follow from the digit."""
        return self.unit % periods.get(self.axis, 1) == 0


Places = Mapping[Digit, tuple[int | None, ...]]
"""The dim of each operand and result that goes along with a digit, None for those that stay."""


def gpu_rule(op: ir.Operation) -> CallRule | None:
    """Returns the rule of a call of a kernel for GPUs, None where it has none or cannot be read."""
    found = _found(op)
    return None if isinstance(found, str) else CallRule(_rule(op, found), found.work)


def whole_rule(op: ir.Operation) -> tuple[str, str] | None:
    """Returns the rule of a call of a kernel for GPUs that runs whole, and why it does; None for other ops."""
    found = _found(op)
    if isinstance(found, str):
        return (_rule(op, None), found) if found else None
    why = "no part of its grid is known to compute a part of its results"
    return None if found.places else (_rule(op, found), why)


def _rule(op: ir.Operation, found: _Found | None) -> str:
    """Returns Shardy's rule, by which nothing can be split where the kernel is not known."""
    tensors = [
        [found.factors(tensor, dim) if found is not None else [((tensor, dim), size)] for dim, size in enumerate(shape)]
        for tensor, shape in enumerate(_shapes_of(op))
    ]
    free: Container[Hashable] = found.places if found is not None else ()
    return owned_rule(tensors[: len(op.operands)], tensors[len(op.operands) :], free)[0]


def gpu_work(config: str) -> CallWork | None:
    """Returns the work of a kernel, given as the text of its call's configuration; None where it cannot be read."""
    kernel = parse_triton_config(config) or parse_mosaic_config(config)
    try:
        return _read(kernel).work(prod(kernel.bounds)) if kernel is not None else None
    except UnreadableError:
        return None


def note_types(op: ir.Operation) -> None:
    """Writes on a call of a kernel for GPUs which types it is made for: they are not in the kernel."""
    if is_triton_kernel(op) or is_mosaic_kernel(op):
        types = [ir.TypeAttr.get(value.type, op.context) for value in (*op.operands, *op.results)]
        op.attributes[MADE_FOR] = ir.ArrayAttr.get(types, op.context)


def fit_gpu_kernel(op: ir.Operation) -> None:
    """Gives a call of a kernel for GPUs, made for what `note_types` wrote, the part for the operands that it has.

    Raises ValueError where no part of the grid is for these.
    """
    if MADE_FOR not in op.attributes:
        return
    made_for = _shapes(ir.TypeAttr(one).value for one in ir.ArrayAttr(op.attributes[MADE_FOR]))
    del op.attributes[MADE_FOR]
    shapes = _shapes_of(op)
    if shapes == made_for:
        return
    found = _found(op, made_for)
    try:
        if isinstance(found, str):
            raise UnreadableError
        code, bounds = _part_code(found, shapes)
    except UnreadableError:
        raise ValueError("no part of a kernel's grid is that of its operands and results") from None
    if is_triton_kernel(op):
        write_triton_kernel(op, code, bounds)
    else:
        write_mosaic_kernel(op, code)


@cache
def _part_code(found: _Found, shapes: Shapes) -> tuple[bytes, tuple[int, ...]]:
    """Returns the code and the grid of a kernel for parts of `shapes`; raises UnreadableError where there are none."""
    part = _part(found.kernel, found.reading, found.shapes, shapes, found.parts_for(shapes))
    return triton_code(part) if isinstance(part, TritonKernel) else mosaic_code(part), part.bounds


def _read(kernel: GpuKernel) -> Reading:
    return read_triton(kernel) if isinstance(kernel, TritonKernel) else read_mosaic(kernel)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A kernel for tensors of `shapes`, what it accesses, and what goes along with the digits that split."""

    kernel: GpuKernel
    shapes: Shapes
    reading: Reading
    places: Places

    @property
    def work(self) -> CallWork:
        """The work of the whole grid."""
        return self.reading.work(prod(self.kernel.bounds))

    def factors(self, tensor: int, dim: int) -> list[tuple[Hashable, int]]:
        """Returns the factors of a dim: the digit that is first in it, and what is of this dim of this tensor alone."""
        own = [digit for digit, places in self.places.items() if places[tensor] == dim]
        rest = self.shapes[tensor][dim] // prod(digit.count for digit in own)
        return [*((digit, digit.count) for digit in own), (("rest", tensor, dim), rest)]

    def parts_for(self, shapes: Shapes) -> dict[Digit, int]:
        """Returns in how many parts digits are split where tensors have `shapes`.

        Raises UnreadableError where these are no parts.
        """
        parts = dict[Digit, int]()
        for digit, places in self.places.items():
            tensor, dim = next((tensor, dim) for tensor, dim in enumerate(places) if dim is not None)
            whole, part = self.shapes[tensor][dim], sum(shapes[tensor][dim : dim + 1])
            if not part or whole % part or digit.count % (whole // part):
                raise UnreadableError
            parts[digit] = whole // part
        if _part_shapes(self.shapes, parts, self.places) != shapes:
            raise UnreadableError
        return parts


def _part_shapes(shapes: Shapes, parts: Mapping[Digit, int], places: Places) -> Shapes:
    made = [list(shape) for shape in shapes]
    for digit, number in parts.items():
        for shape, dim in zip(made, places[digit], strict=True):
            if dim is not None:
                shape[dim] //= number
    return tuple(tuple(shape) for shape in made)


def _shapes(types: Iterable[ir.Type]) -> Shapes:
    return tuple(tuple(ir.RankedTensorType(kind).shape) for kind in types)


def _shapes_of(op: ir.Operation) -> Shapes:
    return _shapes(value.type for value in (*op.operands, *op.results))


def _is_plain(op: ir.Operation) -> bool:
    """Says whether operands and results are stored one row after the other."""
    given: list[Any] = [op.attributes.get(name, ()) for name in ("operand_layouts", "result_layouts")]
    layouts = [np.array(one).tolist() for side in given for one in side]
    return all(dims == sorted(dims, reverse=True) for dims in layouts)


def _found(op: ir.Operation, made_for: Shapes | None = None) -> _Found | str:
    """Returns what the kernel of a call shows, or why nothing; no words for other ops.

    It is made for tensors of other shapes than those of the call where `made_for` has them.
    """
    if not is_triton_kernel(op) and not is_mosaic_kernel(op):
        return ""
    kernel = read_triton_kernel(op) or read_mosaic_kernel(op)
    if kernel is None or not _is_plain(op):
        return "it is of a form that is not known, or its operands are"
    used = tuple(next(iter(value.uses), None) is not None for value in op.results)
    return _analysed(kernel, made_for or _shapes_of(op), used, aliases_of(op))


@cache
def _analysed(
    kernel: GpuKernel, shapes: Shapes, used: tuple[bool, ...], aliases: tuple[tuple[int, int], ...]
) -> _Found | str:
    """Returns what a kernel shows, or why nothing; of its results those that are `used` have to move with a digit."""
    num_operands = len(shapes) - len(used)
    try:
        reading = _read(kernel)
    except UnreadableError as error:
        return str(error)
    accesses = reading.accesses
    if kernel.num_arguments != len(shapes) or not all(prod(shape) for shape in shapes):
        return "its code is for other operands and results, or some have no elements"
    if any(access.is_store and access.root < num_operands for access in accesses):
        return "it writes an operand"
    indices = [_indices(access, shapes) for access in accesses]
    places = dict[Digit, tuple[int | None, ...]]()
    for digit in _digits(kernel.bounds, accesses, indices):
        own = _places(digit, shapes, accesses, indices)
        if own is None or any(is_used and dim is None for is_used, dim in zip(used, own[num_operands:], strict=True)):
            continue
        is_alike = all(own[operand] == own[num_operands + result] for operand, result in aliases)
        if is_alike and any(dim is not None for dim in own) and _is_partable(kernel, reading, shapes, digit, own):
            places[digit] = own
    return _Found(kernel, shapes, reading, places)


def _indices(access: Access, shapes: Shapes) -> Indices | None:
    return place(access.offset, shapes[access.root], access.facts) if access.offset is not None else None


def _digits(bounds: tuple[int, ...], accesses: Iterable[Access], indices: Iterable[Indices | None]) -> list[Digit]:
    """Returns the digits of the programs' numbers: between where some index starts to move and where it repeats."""
    cuts = [{1, bound} for bound in bounds]
    for access in accesses:
        for axis, period in (*access.of.items(), *access.decides.items()):
            cuts[axis].add(period)
    for form in (form for every in indices if every is not None for form in every):
        for variable, table in form.tables.items():
            if variable.kind == "program":
                cuts[variable.number] |= {int(np.argmax(table != table[0])), period_of(table)}
    found = list[Digit]()
    for axis, own in enumerate(cuts):
        chain = list(pairwise(sorted(own)))
        if all(larger % smaller == 0 for smaller, larger in chain):
            found += [Digit(axis, smaller, larger // smaller) for smaller, larger in chain]
    return found


def _places(
    digit: Digit, shapes: Shapes, accesses: Iterable[Access], indices: Iterable[Indices | None]
) -> tuple[int | None, ...] | None:
    """Returns the dim of each tensor that goes along with a digit, None where something else follows from it."""
    found = dict[int, int | None]()
    for access, own in zip(accesses, indices, strict=True):
        if not digit.is_apart(access.decides):
            return None
        moving: int | None = None
        if not digit.is_apart(access.of):
            dims = _moving_dims(digit, own, shapes[access.root], access.facts) if own is not None else None
            if dims is None or len(dims) > 1:
                return None
            moving = dims[0] if dims else None
        if found.setdefault(access.root, moving) != moving:
            return None
    for tensor in (tensor for tensor, shape in enumerate(shapes) if tensor not in found):
        # never accessed: it goes along with one that it is like
        found[tensor] = next((found[one] for one in sorted(found) if shapes[one] == shapes[tensor]), None)
    return tuple(found[tensor] for tensor in range(len(shapes)))


def _moving_dims(digit: Digit, indices: Indices, shape: tuple[int, ...], facts: tuple[Form, ...]) -> list[int] | None:
    """Returns the dims in which an index goes from block to block with a digit, None where one does otherwise."""
    moving = list[int]()
    for dim, (form, size) in enumerate(zip(indices, shape, strict=True)):
        for variable, table in form.tables.items():
            if (variable.kind, variable.number) != ("program", digit.axis):
                continue
            numbers = np.arange(variable.size)
            digits = digit.of(numbers)
            rest = table[numbers - digits * digit.unit]
            if (rest == table).all():
                continue
            block = size // digit.count
            others = Form.of(form.low, {**form.tables, variable: rest})
            if size % digit.count or (table - rest != block * digits).any() or others.most(facts) >= block:
                return None
            moving.append(dim)
    return moving


def _is_partable(
    kernel: GpuKernel, reading: Reading, shapes: Shapes, digit: Digit, places: tuple[int | None, ...]
) -> bool:
    """Says whether the kernel can be written for parts along a digit."""
    parts = {digit: digit.count}
    try:
        _part(kernel, reading, shapes, _part_shapes(shapes, parts, {digit: places}), parts)
    except (UnreadableError, ValueError):
        return False
    return True


def _part(kernel: GpuKernel, old: Reading, shapes: Shapes, made: Shapes, parts: Mapping[Digit, int]) -> GpuKernel:
    """Returns the kernel for parts of tensors of `shapes`, which are `made`.

    Raises UnreadableError where it does not come out: each address has to be that of the same element as before.
    """
    bounds, origins = list(kernel.bounds), [np.arange(bound) for bound in kernel.bounds]
    split = [list[tuple[int, int, int]]() for _ in bounds]
    for digit, number in sorted(parts.items(), key=lambda one: one[0].unit):
        if number > 1:
            split[digit.axis].append((digit.unit, digit.count, number))
            bounds[digit.axis] //= number
            numbers = origins[digit.axis]
            origins[digit.axis] = numbers[digit.of(numbers) < digit.count // number]
    part: GpuKernel
    match kernel:
        case TritonKernel():
            part = copied_triton(kernel)
            set_strides(read_triton(part), shapes, made)
            asked = program_ids(part)
        case MosaicKernel():
            part = copied_mosaic(kernel)
            set_block_strides(part, read_mosaic(part), shapes, made)
            asked = block_ids(part)
    for axis, ops in enumerate(asked):
        renumber_programs(ops, split[axis], bounds[axis])
    part = with_bounds(part, tuple(bounds)) if isinstance(part, MosaicKernel) else replace(part, bounds=tuple(bounds))
    new = _read(part)
    if len(new.accesses) != len(old.accesses):
        raise UnreadableError
    for before, after in zip(old.accesses, new.accesses, strict=True):
        _compare(before, _indices(before, shapes), after, _indices(after, made), origins)
    return part


def _compare(before: Access, old: Indices | None, after: Access, new: Indices | None, origins: list[Ints]) -> None:
    """Raises UnreadableError unless an access of a part is, in each program, that of the program it comes from."""
    if before.root != after.root or (old is None) != (new is None):
        raise UnreadableError
    for mine, other in zip(old or (), new or (), strict=True):
        own = {
            variable._replace(size=len(origins[variable.number])) if variable.kind == "program" else variable: (
                table[origins[variable.number]] if variable.kind == "program" else table
            )
            for variable, table in mine.tables.items()
        }
        if not Form.of(mine.low, own).is_same(other):
            raise UnreadableError
