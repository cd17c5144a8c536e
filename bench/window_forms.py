"""Draw ops that read a dim shifted, in steps, backwards or by windows: slices, pads, reversals, joins, windows.

Each is a function of tensors whose dims the meshes divide more often than not, with windows, strides, paddings and
dilations of every kind. The program that consists of one such op is localized under a plan for each way to split the op
on a mesh, and compared with one device (`indexed_forms.try_form`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from indexed_forms import Form, Shape
from mlir_text import tensor

KINDS: Final = (
    *("slice", "pad", "reverse", "concatenate", "reduce_window", "select_and_scatter"),
    *("convolution", "convolution", "kernel gradient"),
)
_SIZES: Final = (4, 6, 8, 12, 16, 24)
_SIDES: Final = (2, 3, 4, 6)
_STARTS: Final = {"maximum": "0xFF800000", "minimum": "0x7F800000", "add": "0.0", "multiply": "1.0"}
"""What a reduction starts from, by its body: the identity, or sometimes `_OTHER_START`."""
_OTHER_START: Final = "0.5"


def draw_form(seed: int) -> Form:
    """Returns the form of number `seed`."""
    random = np.random.default_rng([seed, 11])
    kind = KINDS[seed % len(KINDS)]
    match kind:
        case "slice":
            return _slice(random)
        case "pad":
            return _pad(random)
        case "reverse":
            return _reverse(random)
        case "concatenate":
            return _concatenate(random)
        case "reduce_window":
            return _reduce_window(random)
        case "select_and_scatter":
            return _select_and_scatter(random)
    return _convolution(random, is_gradient=kind == "kernel gradient")


def _draw_shape(random: np.random.Generator, rank: int) -> Shape:
    return tuple(int(size) for size in random.choice(_SIZES[: 7 - rank], rank))


def _one_of(random: np.random.Generator, numbers: Sequence[int]) -> int:
    return int(random.choice(list(numbers)))


def _element(random: np.random.Generator) -> str:
    return str(random.choice(["f32", "i32", "i1", "complex<f32>"], p=[0.6, 0.2, 0.1, 0.1]))


def _slice(random: np.random.Generator) -> Form:
    shape = _draw_shape(random, _one_of(random, (1, 2, 3)))
    count, starts, strides = [], [], []
    for size in shape:
        stride = _one_of(random, (1, 1, 1, 2, 3))
        fits = [n for n in (*_SIZES, 2, 3, size) if (n - 1) * stride < size]
        count.append(_one_of(random, fits))
        strides.append(stride)
        starts.append(_one_of(random, range(size - (count[-1] - 1) * stride)))
    limits = [start + (n - 1) * stride + 1 for start, n, stride in zip(starts, count, strides, strict=True)]
    attributes = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return _form("slice", [(shape, _element(random))], tuple(count), attributes)


def _pad(random: np.random.Generator) -> Form:
    shape = _draw_shape(random, _one_of(random, (1, 2, 3)))
    low, high, interior, count = [], [], [], []
    for size in shape:
        between = _one_of(random, (0, 0, 0, 1, 2))
        before = _one_of(random, range(-2, 5)) if random.random() < 0.7 else 0
        wide = size + (size - 1) * between
        fits = [n for n in (*_SIZES, 32, 48, wide + before) if n > 0]
        count.append(_one_of(random, fits))
        low.append(before)
        interior.append(between)
        high.append(count[-1] - wide - before)
    element = _element(random)
    attributes = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior}
    return _form("pad", [(shape, element), ((), element)], tuple(count), attributes)


def _reverse(random: np.random.Generator) -> Form:
    shape = _draw_shape(random, _one_of(random, (1, 2, 3)))
    dims = sorted(random.permutation(len(shape))[: _one_of(random, range(1, len(shape) + 1))].tolist())
    return _form("reverse", [(shape, _element(random))], shape, {"dimensions": dims})


def _concatenate(random: np.random.Generator) -> Form:
    shape = list(_draw_shape(random, _one_of(random, (1, 2, 3))))
    dim, element = _one_of(random, range(len(shape))), _element(random)
    parts = [_one_of(random, _SIZES) for _ in range(_one_of(random, (2, 2, 3)))]
    shapes = [(*shape[:dim], part, *shape[dim + 1 :]) for part in parts]
    result = (*shape[:dim], sum(parts), *shape[dim + 1 :])
    return _form("concatenate", [(one, element) for one in shapes], result, {}, f", dimension = {dim} : i64")


def _window(random: np.random.Generator, size: int, windows: Sequence[int]) -> tuple[int, int, int, int, int, int, int]:
    """Returns a window, its stride, the dilations of base and window, the paddings, and how many windows there are.

    No window goes in steps over spread elements: XLA (jaxlib 0.10.2) ends the process on some such convolutions.
    """
    while True:
        window = _one_of(random, windows)
        stride, base, spread = (_one_of(random, (1, 1, 1, 2, 3)) for _ in range(3))
        if min(stride, base) > 1:
            continue
        low = _one_of(random, range(4))
        span, wide = (window - 1) * spread + 1, (size - 1) * base + 1
        count = _one_of(random, (size, size, size * base, max(size // stride, 1), *_SIZES))
        high = (count - 1) * stride + span - low - wide
        if -3 < high < max(span, 4) and wide + high > 0:
            return window, stride, base, spread, low, high, count


def _reduce_window(random: np.random.Generator) -> Form:
    shape = _draw_shape(random, _one_of(random, (1, 2, 3)))
    drawn = []
    for size in shape:
        one = _window(random, size, (1, 2, 3, 5, size))
        before = _one_of(random, (0, size - 1))
        cumulative = (size, 1, 1, 1, before, size - 1 - before, size)
        drawn.append([one, cumulative, (1, 1, 1, 1, 0, 0, size)][int(random.choice(3, p=[0.5, 0.3, 0.2]))])
    window, stride, base, spread, low, high, count = zip(*drawn, strict=True)
    by = str(random.choice(list(_STARTS), p=[0.4, 0.1, 0.4, 0.1]))
    is_pair = random.random() < 0.2
    kinds = [(shape, "f32")] * (2 if is_pair else 1)
    scalar = tensor((), "f32")
    names = "ab"[: len(kinds)]
    block = ", ".join(f"%{side}{name}: {scalar}" for side in "xy" for name in names)
    body = " ".join(f"%z{name} = stablehlo.{by} %x{name}, %y{name} : {scalar}" for name in names)
    given = ", ".join(f"%z{name}" for name in names)
    region = f"({{ ^bb0({block}): {body} stablehlo.return {given} : {', '.join([scalar] * len(kinds))} }})"
    numbers = {
        "window_dimensions": window,
        "window_strides": stride,
        "base_dilations": base,
        "window_dilations": spread,
    }
    starts_from = _STARTS[by] if random.random() < 0.8 else _OTHER_START
    start = f"%s = stablehlo.constant dense<{starts_from}> : {scalar}\n"
    values = ", ".join([f"%{name}" for name in names] + ["%s"] * len(kinds))
    result = ", ".join([tensor(count, "f32")] * len(kinds))
    sign = f"({', '.join([*(tensor(*kind) for kind in kinds), *[scalar] * len(kinds)])}) -> ({result})"
    attributes, results = f"{_arrays(numbers)}, {_padding(low, high)}", "%r:2" if is_pair else "%r"
    op = f'{results} = "stablehlo.reduce_window"({values}) {region} {{{attributes}}} : {sign}\n'
    return _written("reduce_window", kinds, [(tuple(count), "f32")] * len(kinds), start + op)


def _select_and_scatter(random: np.random.Generator) -> Form:
    rank = _one_of(random, (1, 2))
    count = _draw_shape(random, rank)
    stride = [_one_of(random, (1, 2, 3)) for _ in count]
    window = [_one_of(random, (1, by, by, by + 1)) for by in stride]
    shape = tuple(n * by + max(own - by, 0) for n, by, own in zip(count, stride, window, strict=True))
    scalar = tensor((), "f32")
    pair = f"^bb0(%x: {scalar}, %y: {scalar}):"
    select = f"%z = stablehlo.compare GE, %x, %y : ({scalar}, {scalar}) -> tensor<i1> stablehlo.return %z : tensor<i1>"
    scatter = f"%z = stablehlo.add %x, %y : {scalar} stablehlo.return %z : {scalar}"
    regions = f"({{ {pair} {select} }}, {{ {pair} {scatter} }})"
    numbers = {"window_dimensions": window, "window_strides": stride}
    body = (
        f"%s = stablehlo.constant dense<0.0> : {scalar}\n"
        f'%r = "stablehlo.select_and_scatter"(%a, %b, %s) {regions} {{{_arrays(numbers)}}} : '
        f"({tensor(shape)}, {tensor(count)}, {scalar}) -> {tensor(shape)}\n"
    )
    return _written("select_and_scatter", [(shape, "f32"), (count, "f32")], [(shape, "f32")], body)


def _convolution(random: np.random.Generator, *, is_gradient: bool) -> Form:
    """A convolution, or one that contracts an image with one as large, as the gradient of a kernel does."""
    rank = _one_of(random, (1, 2))
    sides = [_one_of(random, _SIZES[: 7 - 2 * rank]) for _ in range(rank)]
    drawn = []
    for size in sides:
        drawn.append(
            _window(random, size, [n for n in (*_SIZES, size) if n <= size + 3] if is_gradient else (1, 2, 3, 5))
        )
    window, stride, base, spread, low, high, count = zip(*drawn, strict=True)
    batch, features, out = (_one_of(random, (1, 2, 4)) for _ in range(3))
    turned = [bool(random.random() < 0.2) for _ in sides]
    space = ", ".join(map(str, range(rank)))
    dims = f"#stablehlo.conv<[b, {space}, f]x[{space}, i, o]->[b, {space}, f]>"
    numbers = {"window_strides": stride, "lhs_dilation": base, "rhs_dilation": spread}
    text = ", ".join(str(one).lower() for one in turned)
    more = (
        f", {_padding(low, high)}, window_reversal = array<i1: {text}>, dimension_numbers = {dims}, "
        f"feature_group_count = 1 : i64, batch_group_count = 1 : i64"
    )
    kinds = [((batch, *sides, features), "f32"), ((*window, features, out), "f32")]
    return _form("convolution", kinds, (batch, *count, out), numbers, more)


def _arrays(numbers: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} = array<i64: {', '.join(map(str, row))}>" for name, row in numbers.items())


def _padding(low: Sequence[int], high: Sequence[int]) -> str:
    pairs = [list(pair) for pair in zip(low, high, strict=True)]
    return f"padding = dense<{pairs}> : tensor<{len(pairs)}x2xi64>"


def _form(
    name: str, kinds: Sequence[tuple[Shape, str]], result: Shape, numbers: Mapping[str, Sequence[int]], more: str = ""
) -> Form:
    """Returns the form of an op without regions, on operands of these shapes and element types."""
    element = kinds[0][1]
    values = ", ".join(f"%{letter}" for letter in "abc"[: len(kinds)])
    sign = f"({', '.join(tensor(*kind) for kind in kinds)}) -> {tensor(result, element)}"
    attributes = (_arrays(numbers) + more).removeprefix(", ")
    return _written(name, kinds, [(result, element)], f'%r = "stablehlo.{name}"({values}) {{{attributes}}} : {sign}\n')


def _written(name: str, kinds: Sequence[tuple[Shape, str]], results: Sequence[tuple[Shape, str]], body: str) -> Form:
    arguments = ", ".join(f"%{letter}: {tensor(*kind)}" for letter, kind in zip("abc", kinds, strict=False))
    made = ", ".join(tensor(*kind) for kind in results)
    returned = ", ".join(f"%r#{number}" for number in range(len(results))) if len(results) > 1 else "%r"
    text = f"func.func private @form({arguments}) -> ({made}) {{\n{body}return {returned} : {made}\n}}\n"
    return Form(f"stablehlo.{name}", text, tuple(kinds), tuple(results))
