"""Draw gathers, scatters, dynamic slices and their updates: every layout of index, window, batching and inserted dims.

Each is a function of an operand, integers that go into its indices and, where it writes, updates; some of the indices
are out of range. The program that consists of one such op is localized under a plan for each way to split the op on a
mesh, and compared with one device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from drawn_plans import Drawable, drawable, one_device
from mlir_text import tensor

MESHES: Final = ("2", "3", "4", "6", "8", "2x2", "2x3", "2x4", "2x2x2")
_SIZES: Final = (1, 2, 3, 4, 6, 8, 12)
_MOST_ELEMENTS: Final = 2048
_MOST_BY_I8: Final = 127
"""An i8 index into a larger dim is compared with a size that has wrapped, and XLA (CPU, jaxlib 0.10.2) writes outside,
on one device."""
_COLLAPSED, _BATCHING, _COVERED, _PART = "collapsed", "batching", "covered", "part"
_BODIES: Final = {
    "f32": ("set", "kept", "add", "subtract", "multiply", "maximum", "minimum", "swapped"),
    "i32": ("set", "add", "multiply", "maximum", "minimum", "and", "or", "xor"),
    "i1": ("set", "and", "or"),
}
"""What a scatter's body does, by element type."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """One op as a private function: `text` defines `@form`; `operands` and `results` are shapes and element types."""

    op: str
    text: str
    operands: tuple[tuple[Shape, str], ...]
    results: tuple[tuple[Shape, str], ...]

    def module(self) -> str:
        """Returns a program of this op alone."""
        arguments = ", ".join(f"%a{number}: {tensor(*kind)}" for number, kind in enumerate(self.operands))
        given = ", ".join(f"%a{number}" for number in range(len(self.operands)))
        results = ", ".join(tensor(*kind) for kind in self.results)
        sign = f"({', '.join(tensor(*kind) for kind in self.operands)}) -> ({results})"
        count = f":{len(self.results)}" if len(self.results) > 1 else ""
        returned = ", ".join(f"%r#{number}" for number in range(len(self.results))) if count else "%r"
        return (
            f"func.func public @main({arguments}) -> ({results}) {{\n%r{count} = func.call @form({given}) : {sign}\n"
            f"return {returned} : {results}\n}}\n{self.text}"
        )


@dataclass(frozen=True, slots=True)
class _Layout:
    """How indices address an operand.

    That is what each of its dims is to the op, and where its dims and those of the index tensor stand.
    """

    shape: Shape
    roles: tuple[str, ...]
    window: Shape
    indexed: tuple[int, ...]
    index_shape: Shape
    vector_dim: int
    index_batching: tuple[int, ...]
    offset_dims: tuple[int, ...]
    slices: Shape
    """The shape of what a gather gives and a scatter reads."""

    def dims(self, role: str) -> list[int]:
        """Returns the dims of the operand in a role."""
        return [dim for dim, own in enumerate(self.roles) if own == role]


def draw_form(seed: int, shape: Shape = ()) -> Form:
    """Returns the form of number `seed`, called `@form`; of an operand of `shape`, or if that is empty of any."""
    random = np.random.default_rng([seed, 7])
    kind = ("gather", "scatter", "scatter", "dynamic_slice", "dynamic_update_slice")[int(random.integers(5))]
    if kind in ("gather", "scatter"):
        layout = _draw_layout(random, shape)
        return (_gather if kind == "gather" else _scatter)(random, layout)
    return _slice(random, kind == "dynamic_update_slice", shape or _draw_shape(random))


def _draw_shape(random: np.random.Generator) -> Shape:
    while True:
        shape = tuple(int(size) for size in random.choice(_SIZES, int(random.integers(1, 5))))
        if prod(shape) <= _MOST_ELEMENTS:
            return shape


def _draw_layout(random: np.random.Generator, wanted: Shape) -> _Layout:
    while True:
        shape = wanted or _draw_shape(random)
        roles = tuple(
            str(role)
            for role in random.choice([_COLLAPSED, _BATCHING, _COVERED, _PART], len(shape), p=[0.35, 0.2, 0.3, 0.15])
        )
        if all(role == _BATCHING for role in roles):
            continue
        layout = _placed(random, shape, roles)
        if prod(layout.slices) <= _MOST_ELEMENTS:
            return layout


def _placed(random: np.random.Generator, shape: Shape, roles: tuple[str, ...]) -> _Layout:
    """Returns a layout in which the operand's dims have these roles; the order and places of the dims are drawn."""
    window = tuple(
        size if role == _COVERED else int(random.integers(1, size + 1)) if role == _PART else 1
        for size, role in zip(shape, roles, strict=True)
    )
    addressable = [dim for dim, role in enumerate(roles) if role != _BATCHING]
    indexed = random.permutation(addressable)[: int(random.integers(1, len(addressable) + 1))].tolist()
    batching = [dim for dim, role in enumerate(roles) if role == _BATCHING]
    free = [
        int(size) for size in random.choice([1, 2, 4, 8, 12], int(random.integers(0, 3)), p=[0.3, 0.2, 0.2, 0.2, 0.1])
    ]
    dims, order = [*(shape[dim] for dim in batching), *free], random.permutation(len(batching) + len(free)).tolist()
    batches = [dims[number] for number in order]
    vector_dim = int(random.integers(0, len(batches) + 1))
    is_vector = len(indexed) > 1 or bool(random.integers(2))  # else the index tensor holds the one component as it is
    vector_dim = vector_dim if is_vector else len(batches)
    offsets = [dim for dim, role in enumerate(roles) if role in (_COVERED, _PART)]
    rank = len(batches) + len(offsets)
    offset_dims = tuple(sorted(random.permutation(rank)[: len(offsets)].tolist()))
    inside, outside = iter([window[dim] for dim in offsets]), iter(batches)
    places = [order.index(number) for number in range(len(batching))]
    return _Layout(
        shape=shape,
        roles=roles,
        window=window,
        indexed=tuple(indexed),
        index_shape=(*batches[:vector_dim], *([len(indexed)] if is_vector else []), *batches[vector_dim:]),
        vector_dim=vector_dim,
        index_batching=tuple(place + (is_vector and place >= vector_dim) for place in places),
        offset_dims=offset_dims,
        slices=tuple(next(inside) if dim in offset_dims else next(outside) for dim in range(rank)),
    )


def _draw_indices(random: np.random.Generator, layout: _Layout) -> str:
    """Returns the ops that make `%k` out of the integers `%i`, both of the index tensor's shape."""
    shape, is_apart = layout.index_shape, len(layout.index_shape) > layout.vector_dim
    added, times = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for number, dim in enumerate(layout.indexed):
        place = (slice(None),) * layout.vector_dim + (number,) if is_apart else ...
        room = layout.shape[dim] - layout.window[dim]
        inside = random.integers(0, room + 1, added[place].shape)
        outside = random.choice([-2, -1, room + 1, room + 2], added[place].shape)
        is_outside = random.random(added[place].shape) < (0.2 if room else 0.05)
        added[place] = np.where(is_outside, outside, inside)
        times[place] = (room > 0) * int(random.integers(2))
    element = str(random.choice(["i32", "i64", "ui32", "i8"], p=[0.5, 0.3, 0.1, 0.1]))
    if element == "i8" and max(layout.shape) > _MOST_BY_I8:
        element = "i32"
    if element == "ui32":
        added = np.where(added < 0, 255, added)
    held = tensor(shape, element)
    if random.random() < 0.25:
        return f"%k = stablehlo.constant dense<{_dense(added)}> : {held}\n"
    wide = tensor(shape, "i32")
    return (
        f"%m = stablehlo.constant dense<{_dense(times)}> : {wide}\n"
        f"%c = stablehlo.constant dense<{_dense(added)}> : {wide}\n"
        f"%im = stablehlo.multiply %i, %m : {wide}\n%j = stablehlo.add %im, %c : {wide}\n"
        f"%k = stablehlo.convert %j : ({wide}) -> {held}\n"
    )


def _gather(random: np.random.Generator, layout: _Layout) -> Form:
    element = str(random.choice(["f32", "i32", "i1"], p=[0.7, 0.2, 0.1]))
    indices = _draw_indices(random, layout)
    held, given = tensor(layout.shape, element), tensor(layout.slices, element)
    numbers = (
        f"#stablehlo.gather<offset_dims = {list(layout.offset_dims)}, "
        f"collapsed_slice_dims = {layout.dims(_COLLAPSED)}, "
        f"operand_batching_dims = {layout.dims(_BATCHING)}, "
        f"start_indices_batching_dims = {list(layout.index_batching)}, "
        f"start_index_map = {list(layout.indexed)}, index_vector_dim = {layout.vector_dim}>"
    )
    op = (
        f'%r = "stablehlo.gather"(%x, %k) <{{dimension_numbers = {numbers}, slice_sizes = {_array(layout.window)}, '
        f"indices_are_sorted = false}}> : ({held}, {_made_type(indices)}) -> {given}\n"
    )
    operands = ((layout.shape, element), (layout.index_shape, "i32"))
    return _form("stablehlo.gather", "xi", operands, indices + op, ((layout.slices, element),))


def _scatter(random: np.random.Generator, layout: _Layout) -> Form:
    element = str(random.choice(["f32", "i32", "i1"], p=[0.7, 0.2, 0.1]))
    is_alone = random.random() >= 0.3
    elements = (element,) if is_alone else (element, "f32", element)[: int(random.integers(2, 4))]
    written = elements if is_alone or random.random() < 0.5 else tuple(dict.fromkeys(elements))  # one for each type
    indices = _draw_indices(random, layout)
    held, read = ([tensor(shape, one) for one in elements] for shape in (layout.shape, layout.slices))
    numbers = (
        f"#stablehlo.scatter<update_window_dims = {list(layout.offset_dims)}, "
        f"inserted_window_dims = {layout.dims(_COLLAPSED)}, "
        f"input_batching_dims = {layout.dims(_BATCHING)}, "
        f"scatter_indices_batching_dims = {list(layout.index_batching)}, "
        f"scatter_dims_to_operand_dims = {list(layout.indexed)}, index_vector_dim = {layout.vector_dim}>"
    )
    attributes = f"{{scatter_dimension_numbers = {numbers}, indices_are_sorted = false, unique_indices = false}}"
    updates, count = "uvw"[: len(elements)], "" if is_alone else f":{len(elements)}"
    inputs = ["xyz"[number if written == elements else written.index(one)] for number, one in enumerate(elements)]
    names, given = "xyz"[: len(written)] + "i" + updates, ", ".join(f"%{name}" for name in [*inputs, "k", *updates])
    kinds, made = ", ".join([*held, _made_type(indices), *read]), ", ".join(held)
    op = (
        f'%r{count} = "stablehlo.scatter"({given}) ({_region(random, elements)}) {attributes} : ({kinds}) -> ({made})\n'
    )
    operands = (
        *((layout.shape, one) for one in written),
        (layout.index_shape, "i32"),
        *((layout.slices, one) for one in elements),
    )
    return _form("stablehlo.scatter", names, operands, indices + op, tuple((layout.shape, one) for one in elements))


def _region(random: np.random.Generator, elements: Sequence[str]) -> str:
    """Returns the region of a scatter: what becomes of each pair of an old value and an update."""
    numbers, scalars = range(len(elements)), [tensor((), one) for one in elements]
    if len(elements) > 1 and random.random() < 0.3:
        done = _largest_first(scalars)
    else:
        done = [
            _body(str(random.choice(_BODIES[elements[n]])), f"%a{n}", f"%b{n}", f"%z{n}", scalars[n]) for n in numbers
        ]
    block = ", ".join(f"%{name}{n}: {scalars[n]}" for name in "ab" for n in numbers)
    ops, given = " ".join(op for op, _ in done), ", ".join(value for _, value in done)
    return f"{{ ^bb0({block}): {ops} stablehlo.return {given} : {', '.join(scalars)} }}"


def _slice(random: np.random.Generator, is_update: bool, shape: Shape) -> Form:
    taken = tuple(size if random.random() < 0.5 else int(random.integers(1, size + 1)) for size in shape)
    element = str(random.choice(["f32", "i32", "i1"], p=[0.7, 0.2, 0.1]))
    added = [int(random.integers(-2, size + 2)) for size in shape]
    rank = len(shape)
    made = (
        f"%c = stablehlo.constant dense<{_dense(np.array(added))}> : {tensor((rank,), 'i32')}\n"
        f"%k = stablehlo.add %i, %c : {tensor((rank,), 'i32')}\n"
    )
    for dim in range(rank):
        made += (
            f"%s{dim} = stablehlo.slice %k [{dim}:{dim + 1}] : ({tensor((rank,), 'i32')}) -> {tensor((1,), 'i32')}\n"
        )
        made += f"%d{dim} = stablehlo.reshape %s{dim} : ({tensor((1,), 'i32')}) -> {tensor((), 'i32')}\n"
    starts = ", ".join(f"%d{dim}" for dim in range(rank))
    held, part, kinds = tensor(shape, element), tensor(taken, element), ", ".join([tensor((), "i32")] * rank)
    index = ((rank,), "i32")
    if is_update:
        op = f"%r = stablehlo.dynamic_update_slice %x, %u, {starts} : ({held}, {part}, {kinds}) -> {held}\n"
        operands = ((shape, element), index, (taken, element))
        return _form("stablehlo.dynamic_update_slice", "xiu", operands, made + op, ((shape, element),))
    op = f"%r = stablehlo.dynamic_slice %x, {starts}, sizes = {list(taken)} : ({held}, {kinds}) -> {part}\n"
    return _form("stablehlo.dynamic_slice", "xi", ((shape, element), index), made + op, ((taken, element),))


def _form(
    op: str, names: str, operands: tuple[tuple[Shape, str], ...], body: str, results: tuple[tuple[Shape, str], ...]
) -> Form:
    arguments = ", ".join(f"%{name}: {tensor(*kind)}" for name, kind in zip(names, operands, strict=True))
    kinds = ", ".join(tensor(*kind) for kind in results)
    returned = ", ".join(f"%r#{number}" for number in range(len(results))) if len(results) > 1 else "%r"
    text = f"func.func private @form({arguments}) -> ({kinds}) {{\n{body}return {returned} : {kinds}\n}}\n"
    return Form(op, text, operands, results)


def _largest_first(scalars: Sequence[str]) -> list[tuple[str, str]]:
    """Returns, for each result of a scatter, an op and what it gives: that of the update whose first is larger."""
    compare = f"%p = stablehlo.compare GT, %b0, %a0 : ({scalars[0]}, {scalars[0]}) -> {tensor((), 'i1')} "
    chosen = [
        f"%z{n} = stablehlo.select %p, %b{n}, %a{n} : {tensor((), 'i1')}, {kind}" for n, kind in enumerate(scalars)
    ]
    return [((compare if n == 0 else "") + op, f"%z{n}") for n, op in enumerate(chosen)]


def _body(name: str, old: str, new: str, made: str, kind: str) -> tuple[str, str]:
    """Returns the op of a scatter's body, if any, and what it gives."""
    match name:
        case "set":
            return "", new
        case "kept":
            return "", old
        case "swapped":
            return f"{made} = stablehlo.add {new}, {old} : {kind}", made
    return f"{made} = stablehlo.{name} {old}, {new} : {kind}", made


def _made_type(indices: str) -> str:
    """Returns the type of the value that some ops make last."""
    return indices.strip().rsplit("-> " if indices.strip().endswith(")") or "->" in indices else " : ", 1)[-1]


def _array(numbers: Shape) -> str:
    return f"array<i64: {', '.join(map(str, numbers))}>"


def _dense(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    return json.dumps(numbers.tolist())


_MOST_WAYS: Final = 64
"""Of the ways to split one op on a mesh that are tried: a convolution on three axes has thousands."""


def plans_that_split(text: str, op: str, mesh: str, seed: int = 0) -> Iterator[tuple[str, Drawable, int, int]]:
    """Yields ways to split an op of that name on a mesh: all, or some drawn ones where there are many.

    It is a name, a program of which a plan can be drawn, and the node and the state that the plan must have.
    """
    first = drawable(text, mesh, is_joined=True)
    ways = [
        (number, place)
        for number, node in enumerate(first.choice.nodes)
        if node.kind == "op" and first.program.ops[node.number].name == op
        for place, state in enumerate(node.states)
        if max(state.strategy, default=-1) >= 0
    ]
    if len(ways) > _MOST_WAYS:
        drawn = np.random.default_rng(seed).permutation(len(ways))[:_MOST_WAYS]
        ways = [ways[way] for way in sorted(drawn.tolist())]
    for number, place in ways:
        yield (
            f"{first.choice.nodes[number].states[place].strategy}",
            drawable(text, mesh, is_joined=True),
            number,
            place,
        )


def try_form(form: Form, seed: int, mesh: str) -> tuple[bool, str]:
    """Returns whether each way to split a form on a mesh gives the answer of one device, and a line about it."""
    text, tried, wrong = form.module(), 0, []
    expected = one_device(text, seed)
    for name, drawn, number, place in plans_that_split(text, form.op, mesh, seed):
        tried += 1
        try:
            found = expected.difference(drawn.plan(seed, "any", (number, place)), drawn.module)
            if not found.passes:
                wrong.append(f"{name}: relative error {found.max_rel:.2g}")
        except Exception as error:  # a crash is a finding like any other
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    return not wrong, f"{form.op}, {tried} ways to split it; {'; '.join(wrong) or 'all alike'}"
