"""Draw programs out of many ops, localize plans of them that nobody would choose, and compare with one device.

A program is a list of numbers: each step takes an op and values made so far, where they fit, so that every list is a
program. Many of the ops are those of every_op.py, each op of StableHLO that is read in its forms, or forms of
indexed_forms.py. Plans are drawn as in drawn_plans.py. Where a result differs, each op is compared with what one device
makes of its operands: rounding that has grown, as a comparison makes it, is no fault, but reported. Every dim of the
arguments may be stored padded, to a multiple of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from drawn_plans import drawable, one_device, ways_to_run
from jax import lax
from spliced_ops import call_case, call_form, spliced

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.tools.first_difference import first_difference

Array = jax.Array
Step = tuple[int, int, int, int]
"""An op, two values and a parameter, all as numbers of which each takes what it needs modulo what there is."""

_MOST_ELEMENTS: Final = 4096
_SHAPES: Final = ((8, 16), (16, 8), (4, 8, 16), (12,))
_NUM_INDICES: Final = 12


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an op may use: two values, another of the first one's shape, integers below 4 [12], and a parameter."""

    a: Array
    b: Array
    alike: Array
    indices: Array
    number: int

    @property
    def dim(self) -> int:
        """A dim of the first value."""
        return self.number % max(self.a.ndim, 1)


def _element(i: Inputs) -> Array:
    return (jnp.tanh, jnp.negative, jnp.abs, lambda x: 0.5 * x, lambda x: x * x)[i.number % 5](i.a)


def _pair(i: Inputs) -> Array:
    return (jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum)[i.number % 5](i.a, i.alike)


def _select(i: Inputs) -> Array:
    return jnp.where(lax.broadcasted_iota(jnp.int32, i.a.shape, i.dim) < 3, i.a, i.alike)


def _reduce(i: Inputs) -> Array:
    return (jnp.sum, jnp.max, jnp.min, jnp.mean)[i.number // 3 % 4](i.a, axis=i.dim)


def _normalize(i: Inputs) -> Array:
    return (jax.nn.softmax, jax.nn.standardize)[i.number // 3 % 2](i.a, axis=i.dim)


def _product(i: Inputs) -> Array | None:
    """Contracts the first pair of dims of one size, the other dims of one size being batches or not."""
    pairs = [(p, q) for p, m in enumerate(i.a.shape) for q, n in enumerate(i.b.shape) if m == n]
    if not pairs:
        return None
    left, right = pairs[i.number % len(pairs)]
    batches = [(p, q) for p, q in pairs if p != left and q != right][:1] if i.number // 7 % 2 else []
    batch = [p for p, _ in batches], [q for _, q in batches]
    return 0.25 * lax.dot_general(i.a, i.b, (((left,), (right,)), batch))


def _transpose(i: Inputs) -> Array:
    return jnp.moveaxis(i.a, i.dim, 0)


def _merge(i: Inputs) -> Array:
    dim = i.number % max(i.a.ndim - 1, 1)
    return i.a.reshape((*i.a.shape[:dim], -1, *i.a.shape[dim + 2 :]))


def _part(i: Inputs) -> Array | None:
    size, by = i.a.shape[i.dim], (2, 4)[i.number // 3 % 2]
    return i.a.reshape((*i.a.shape[: i.dim], by, size // by, *i.a.shape[i.dim + 1 :])) if size % by == 0 else None


def _repeat(i: Inputs) -> Array:
    return jnp.broadcast_to(
        jnp.expand_dims(i.a, i.dim), (*i.a.shape[: i.dim], (4, 3)[i.number // 3 % 2], *i.a.shape[i.dim :])
    )


def _slice(i: Inputs) -> Array:
    size = i.a.shape[i.dim]
    return lax.slice_in_dim(i.a, i.number // 3 % 2, max(size // 2, 1) + i.number // 3 % 2 * (size > 1), 1, i.dim)


def _every_second(i: Inputs) -> Array:
    return lax.slice_in_dim(i.a, 0, i.a.shape[i.dim], 2, i.dim)


def _pad(i: Inputs) -> Array:
    edges = ((1, 3, 0), (0, 4, 0), (-1, 1, 0), (1, 0, 1))[i.number // 3 % 4]
    return lax.pad(i.a, np.float32(0), [edges if dim == i.dim else (0, 0, 0) for dim in range(i.a.ndim)])


def _join(i: Inputs) -> Array:
    return jnp.concatenate([i.a, i.alike], i.dim)


def _reverse(i: Inputs) -> Array:
    return jnp.flip(i.a, i.dim)


def _roll(i: Inputs) -> Array:
    return jnp.roll(i.a, 1, i.dim)


def _dynamic_slice(i: Inputs) -> Array:
    """Within the operand: of slices of slices that are not XLA forgets what it has to clamp, on one device."""
    size = i.a.shape[i.dim]
    taken = max(size // 2, 1)
    return lax.dynamic_slice_in_dim(i.a, i.indices[0] % (size - taken + 1), taken, i.dim)


def _dynamic_update(i: Inputs) -> Array | None:
    """Writes over a part of a value, but not with a part of itself.

    For the latter, XLA's CPU (jaxlib 0.10.2) was seen to read what it has overwritten, on one device.
    """
    if i.alike is i.a:
        return None
    return lax.dynamic_update_slice_in_dim(
        i.a, lax.slice_in_dim(i.alike, 0, max(i.a.shape[i.dim] // 2, 1), 1, i.dim), i.indices[1], i.dim
    )


def _rows(i: Inputs) -> Array:
    return jnp.take(i.a, i.indices, axis=i.dim, mode=("clip", "fill")[i.number // 3 % 2], fill_value=0)


def _scatter(i: Inputs) -> Array | None:
    """Rows added up where their indices say, as the gradient of an embedding is."""
    rows = i.a.shape[0]
    return jnp.zeros((8, *i.a.shape[1:])).at[i.indices[:rows]].add(i.a) if rows <= _NUM_INDICES else None


def _one_hot(i: Inputs) -> Array | None:
    return jax.nn.one_hot(i.indices, i.a.shape[0]) @ i.a.reshape(i.a.shape[0], -1)


def _cumulate(i: Inputs) -> Array:
    return jnp.cumsum(i.a, i.dim)


def _sort(i: Inputs) -> Array:
    return jnp.sort(i.a, i.dim)


def _largest(i: Inputs) -> Array:
    return lax.top_k(i.a, min(4, i.a.shape[-1]))[0]


def _window(i: Inputs) -> Array:
    window = [2 if dim == i.dim else 1 for dim in range(i.a.ndim)]
    return jnp.asarray(lax.reduce_window(i.a, -np.inf, lax.max, window, window, "SAME"))


def _pool_gradient(i: Inputs) -> Array:
    return jnp.asarray(jax.grad(lambda a: (_window(replace(i, a=a)) ** 2).sum())(i.a))


def _convolve(i: Inputs) -> Array | None:
    """Along the last dim of [batch, features, space], in as many groups as divide both sides."""
    if i.a.ndim != 3 or i.a.shape[2] < 3:
        return None
    groups = (1, 2, 4)[i.number % 3]
    features = i.a.shape[1]
    if features % groups:
        return None
    kernel = jnp.linspace(-1, 1, 8 * (features // groups) * 3).reshape(8, features // groups, 3)
    kernel = kernel + 0.1 * jnp.sum(i.b)
    return 0.1 * lax.conv_general_dilated(i.a, kernel, (1,), "SAME", feature_group_count=groups)


def _convolve_gradient(i: Inputs) -> Array | None:
    if _convolve(i) is None:
        return None

    def loss(b: Array) -> Array:
        convolved = _convolve(replace(i, b=b))
        assert convolved is not None
        return jnp.sum(jnp.sin(convolved))

    return jnp.asarray(jax.grad(loss)(i.b))


def _dropout(i: Inputs) -> Array:
    return i.a * jax.random.bernoulli(jax.random.key(i.number), 0.5, i.a.shape)


def _loop(i: Inputs) -> Array:
    return jnp.asarray(lax.fori_loop(0, 3, lambda n, a: 0.5 * a + i.alike * n, i.a))


def _scan(i: Inputs) -> Array:
    last, every = lax.scan(lambda c, row: (jnp.tanh(c + row), c * row), jnp.zeros(i.a.shape[1:]), i.a)
    return every + last


def _branch(i: Inputs) -> Array:
    branches = [lambda a, b: a + b, lambda a, b: jnp.tanh(a), lambda a, b: jnp.sum(a * b) * a]
    return jnp.asarray(lax.switch(i.indices[2], branches, i.a, i.alike))


def _any_op(i: Inputs) -> Array:
    return call_case(i.number, [i.a, i.b, i.alike], i.indices)


def _any_form(i: Inputs) -> Array:
    return call_form(i.number, i.a, i.indices)


def _any_form_in_a_loop(i: Inputs) -> Array:
    def body(n: Array, a: Array) -> Array:
        made = call_form(i.number, a, i.indices + n)
        return 0.5 * a + (made if made.shape == a.shape else jnp.mean(made))

    return jnp.asarray(lax.fori_loop(0, 3, body, i.a))


OPS: Final[tuple[Callable[[Inputs], Array | None], ...]] = (
    *(_element, _pair, _pair, _select, _reduce, _normalize, _product, _product, _product, _transpose, _merge, _part),
    *(
        _repeat,
        _slice,
        _every_second,
        _pad,
        _join,
        _reverse,
        _roll,
        _dynamic_slice,
        _dynamic_update,
        _rows,
        _scatter,
        _one_hot,
    ),
    *(
        _cumulate,
        _sort,
        _largest,
        _window,
        _pool_gradient,
        _convolve,
        _convolve_gradient,
        _dropout,
        _loop,
        _scan,
        _branch,
    ),
    *[_any_op] * 12,
    *[_any_form] * 6,
    _any_form_in_a_loop,
)


def program(steps: Sequence[Step]) -> str:
    """Returns the program of some steps as StableHLO.

    Its results are the values that no step reads, and every third one.
    """

    def run(arguments: list[Array], indices: Array) -> list[Array]:
        values, read = list(arguments), set[int]()
        for op, first, second, number in steps:
            picked = first % len(values), second % len(values)
            a, b = (values[value] for value in picked)
            fitting = [n for n, value in enumerate(values) if value.shape == a.shape]
            alike = fitting[second % len(fitting)]
            made = OPS[op % len(OPS)](Inputs(a, b, values[alike], indices, number)) if a.ndim else None
            if made is not None and made.size <= _MOST_ELEMENTS and made.ndim <= 4:
                read |= {*picked, alike}
                values.append(made)
        return [value for number, value in enumerate(values) if number not in read or number % 3 == 0]

    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in _SHAPES]
    return spliced(str(jax.jit(run).lower(arguments, jax.ShapeDtypeStruct((_NUM_INDICES,), jnp.int32)).as_text()))


def padded(text: str, parts: int) -> str:
    """Returns a program whose arguments are stored with dims that are multiples of `parts`."""
    module = read_module(text.encode(), "padded", make_context())
    kinds = entry_function(module).type.inputs
    pads = "; ".join(f"arg{n}:{dim}" for n, kind in enumerate(kinds) for dim in range(ir.RankedTensorType(kind).rank))
    build_pass_manager(f'rhino-normalize,rhino-pad{{pad="{pads}" parts={parts}}}', module.context).run(module.operation)
    return str(module)


def try_program(steps: Sequence[Step], seed: int, mood: str, mesh: str, parts: int = 1) -> tuple[bool, str]:
    """Returns whether a program, padded for `parts`, under a random plan does what it should, and a line about it."""
    text = program(steps)
    drawn = drawable(padded(text, parts) if parts > 1 else text, mesh)
    plan = drawn.plan(seed, mood)
    expected = one_device(text)
    found = expected.difference(plan, drawn.module)
    line = f"{ways_to_run(plan)}; worst result {found.value.label}, relative error {found.max_rel:.2g}"
    if found.passes or parts > 1:
        return found.passes, line
    verdict = first_difference(drawn.module, expected.inputs, jax.devices()[: prod(plan.sizes)], None)
    return verdict.is_rounding, f"{line}: {verdict.note}"


def random_steps(seed: int, size: int) -> list[Step]:
    """Returns a list of numbers, which is a program."""
    rows = np.random.default_rng(seed).integers(0, 1 << 16, (size, 4)).tolist()
    return [(op, first, second, number) for op, first, second, number in rows]
