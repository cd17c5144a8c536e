"""Rules that Triton kernels show, against kernels of JAX's own library and drawn ones, on parts of their operands."""

import functools
import random
from io import BytesIO, StringIO
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_parts import fitted, free, rule_of, split_dims, types_of
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.experimental.pallas.ops.gpu import attention, decode_attention, layer_norm, rms_norm, softmax
from triton_interpreter import run_kernel

from rhino.ir.graph.rules import parse_rule
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.triton_kernels import copied_triton, is_triton_kernel, read_triton_kernel
from rhino.tools.opt import run


def shape(*dims, dtype=jnp.float16):
    return jax.ShapeDtypeStruct(dims, dtype)


def lowered(fn, *arguments):
    """The calls of kernels in a function for a GPU, and the module, which has to live as long."""
    text = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    module = ir.Module.parse(text, make_context())
    return module, [op for op in walk(module.operation) if is_triton_kernel(op)]


# Kernels of JAX's library


def gradient(fn):
    return jax.grad(lambda *given: fn(*given).astype(jnp.float32).sum(), (0, 1, 2))


def mha(q, k, v, segments=None, *, causal=False):
    return attention.mha(q, k, v, segments, sm_scale=0.1, causal=causal)


def in_rows(size, batch, rows):
    return shape(batch, rows, size), *[shape(size)] * 2


def in_heads(batch, heads):
    return (shape(batch, 256, heads, 64),) * 3


LIBRARY = {
    "attention": (mha, in_heads),
    "causal": (gradient(functools.partial(mha, causal=True)), in_heads),
    "segments": (mha, lambda batch, heads: (*in_heads(batch, heads), shape(batch, 256, dtype=jnp.int32))),
    "decode": (
        decode_attention.gqa,
        lambda batch, heads: (shape(batch, 4 * heads, 64), *[shape(batch, 1024, heads, 64)] * 2),
    ),
    "layer norm": (layer_norm.layer_norm, functools.partial(in_rows, 512)),
    "rows that no power of two divides": (rms_norm.rms_norm, functools.partial(in_rows, 500)),
    "softmax": (softmax.softmax, lambda batch, rows: (shape(batch, rows, 500),)),
}


def text_of(kernel):
    """The text of a kernel in which no number of a program is taken modulo how many there are, or more."""
    for op in walk(kernel.body):
        if op.name == "arith.remui" and op.operands[0].owner.name == "tt.get_program_id":
            constant, bound = op.operands[1].owner, kernel.bounds[op.operands[0].owner.attributes["axis"].value]
            if constant.attributes["value"].value >= bound:
                constant.attributes["value"] = ir.IntegerAttr.get(constant.results[0].type, bound)
    return str(kernel.module)


@pytest.mark.parametrize("name", LIBRARY)
def test_kernels_split_along_batch_and_heads_into_those_that_jax_makes_for_parts(name):
    fn, kinds = LIBRARY[name]
    _module, whole = lowered(fn, *kinds(4, 8))
    for op in whole:
        for value, dims in zip((*op.operands, *op.results), split_dims(op), strict=True):
            sizes = list(ir.RankedTensorType(value.type).shape)
            assert {dim for dim, size in enumerate(sizes) if size in (4, 8) and len(sizes) > 1 and dim < 3} <= dims | (
                {2} if name == "decode" else set()  # queries that share keys
            )
    for parts in [(2, 8), (2, 2)]:
        _other, local = lowered(fn, *kinds(*parts))
        for op, wanted in zip(whole, local, strict=True):
            _holder, made = fitted(op, types_of(wanted))
            found, expected = (copied_triton(read_triton_kernel(one)) for one in (made, wanted))
            assert found.bounds == expected.bounds
            assert text_of(found) == text_of(expected)


# Drawn kernels

ROWS, WIDTH = 4, 8


def places_of(draw, grid):
    """A function from a point of the grid to where a block is of an operand, by blocks, and how it is named."""
    last, i, j = len(grid) - 1, draw.randrange(len(grid)), draw.randrange(len(grid))
    return draw.choice(
        [
            lambda *at: (*at, 0),
            lambda *at: (*reversed(at), 0),
            lambda *at: (at[i], 0),
            lambda *at: (at[i] // 2, at[j], 0),
            lambda *at: (at[last] * grid[0] + at[0], 0) if last else (at[0], 0),
            lambda *at: (*at[:-1], at[-1]),  # rows go along the last dim
            lambda *at: (0,),
        ]
    )


def drawn(seed):
    """A function that calls a kernel, and the kinds of what it takes."""
    draw = random.Random(seed)
    grid = draw.choice(((6,), (2, 4), (4, 3), (2, 3, 4), (4, 2, 2), (2, 2, 4), (2, 3, 2, 2), (2, 2, 2, 4)))
    order = draw.choice([lambda *at: at, lambda *at: tuple(reversed(at)), lambda *at: (*at[1:], at[0])])
    places = [places_of(draw, grid) for _ in range(2)]
    axis, other = draw.randrange(len(grid)), draw.randrange(len(grid))
    does = {name: draw.random() < share for name, share in SHARES.items()}
    rows = draw.choice((ROWS, 2 * ROWS, 2 * ROWS - 1))  # of the table

    def body(x, y, table, numbers, out):
        point = [pl.program_id(number) for number in range(len(grid))]
        value = x[...] + 2 * y[...]
        if does["asks"]:
            value += (jax.lax.rem(point[axis], 2) if does["repeats"] else point[axis]).astype(jnp.float32)
        if does["loops"]:
            until = (2 + (point[other] if does["causal"] else 0)) if does["loops over some"] else 4
            value = jax.lax.fori_loop(0, until, lambda k, sums: sums + k * table[point[axis], k // 4], value)
        if does["reads rows"]:
            row = jnp.arange(WIDTH)
            mask = row + point[axis] * ROWS < rows * grid[axis] if does["ragged"] else row < rows
            value += plgpu.load(table.at[point[axis] // 2, row], mask=mask, other=0.0)
        if does["looks up"]:
            number = numbers[point[axis]] if does["in order"] else numbers[jax.lax.rem(point[axis] + 1, grid[axis])]
            value *= table[number, 0]
        if does["counts programs"]:
            value += pl.num_programs(axis)
        if does["leaves out"]:

            @pl.when(jax.lax.rem(point[axis], 2) == 0)
            def _some():
                out[...] = value

        elif does["adds"]:
            out[...] = value
            out[...] += value
        else:
            out[...] = value

    def spec(place):
        dims = len(place(*grid))
        return pl.BlockSpec((*[None] * (dims - 1), ROWS, WIDTH), lambda *at: (*place(*at), 0))

    def size(place):
        *most, last = np.max([place(*point) for point in np.ndindex(*grid)], axis=0)
        return (*(int(one) + 1 for one in most), ROWS * (int(last) + 1), WIDTH)

    def all_of(kind):
        return pl.BlockSpec(kind.shape, lambda *at: (0,) * len(kind.shape))

    result = lambda *at: (*order(*at), 0)  # noqa: E731
    kinds = [shape(*size(place), dtype=jnp.float32) for place in places]
    kinds += [shape(grid[axis], rows, dtype=jnp.float32), shape(grid[axis], dtype=jnp.int32)]

    def call(*arrays):
        return pl.pallas_call(
            body,
            grid=grid,
            in_specs=[*map(spec, places), *map(all_of, kinds[2:])],
            out_specs=spec(result),
            out_shape=shape(*size(result), dtype=jnp.float32),
            compiler_params=plgpu.CompilerParams(),
        )(*arrays)

    return call, kinds


SHARES = {
    "asks": 0.2,
    "repeats": 0.5,
    "loops": 0.3,
    "loops over some": 0.5,
    "causal": 0.5,
    "reads rows": 0.3,
    "ragged": 0.5,
    "looks up": 0.3,
    "in order": 0.6,
    "counts programs": 0.1,
    "leaves out": 0.15,
    "adds": 0.2,
}


def arrays_of(op, seed):
    """Operands of a call, and memory for its results in which nothing is yet."""
    draw = np.random.default_rng(seed)

    def array(kind):
        sizes = tuple(ir.RankedTensorType(kind).shape)
        if str(ir.RankedTensorType(kind).element_type) == "i32":
            return draw.integers(0, sizes[0], sizes, np.int32)
        return draw.standard_normal(sizes, np.float32)

    operands = [array(value.type) for value in op.operands]
    return operands, [np.full_like(array(value.type), np.nan) for value in op.results]


def part_of(array, counts, numbers):
    """The part of an array, by number in each dim."""
    sizes = [size // count for size, count in zip(np.shape(array), counts, strict=True)]
    return array[tuple(slice(n * size, (n + 1) * size) for n, size in zip(numbers, sizes, strict=True))]


def check_parts(op, parts, arrays, whole, seed):
    """Compares parts of the results with results of parts, where factors are in so many parts."""
    rule = parse_rule(str(op.attributes["sdy.sharding_rule"]))
    operands, results = arrays
    counts = [
        [next((parts[factor] for factor in dim[:1] if factor in parts), 1) for dim in dims]
        for dims in (*rule.operands, *rule.results)
    ]
    local = [
        f"tensor<{''.join(f'{size // count}x' for size, count in zip(np.shape(array), own, strict=True))}{element}>"
        for array, own, element in zip(
            (*operands, *results),
            counts,
            [ir.RankedTensorType(value.type).element_type for value in (*op.operands, *op.results)],
            strict=True,
        )
    ]
    _holder, made = fitted(op, local)
    kernel = read_triton_kernel(made)
    for point in product(*(range(number) for number in parts.values())):
        at = dict(zip(parts, point, strict=True))
        numbers = [
            [next((at[factor] for factor in dim[:1] if factor in parts), 0) for dim in dims]
            for dims in (*rule.operands, *rule.results)
        ]
        own = [part_of(*each) for each in zip((*operands, *results), counts, numbers, strict=True)]
        found = run_kernel(kernel, own[: len(operands)], own[len(operands) :])
        for result, array, *where in zip(found, whole, counts[len(operands) :], numbers[len(operands) :], strict=True):
            np.testing.assert_array_equal(result, part_of(array, *where), err_msg=str(seed))


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.long)], ids=["few", "many"])
def test_parts_of_drawn_kernels_give_the_parts_of_their_results(seeds):
    split = 0
    for seed in seeds:
        fn, kinds = drawn(seed)
        _module, (op,) = lowered(fn, *kinds)
        rule, draw = rule_of(op), random.Random(seed)
        arrays = arrays_of(op, seed)
        whole = run_kernel(read_triton_kernel(op), *arrays)
        every = sorted(free(rule))
        for chosen in [*[[one] for one in every], every] if every else []:
            parts = {
                one: draw.choice([number for number in range(2, rule.sizes[one] + 1) if rule.sizes[one] % number == 0])
                for one in chosen
            }
            check_parts(op, parts, arrays, whole, seed)
            split += 1
    assert split > 2 * len(seeds)  # so many ways to split were tried


# Kernels that do one thing, on a grid of 4 times 2 unless they say otherwise


def small(body, shapes, result=(4, 2, 8), *, grid=(4, 2), result_spec=None, specs=None, **words):
    """The call of a kernel that has all of its operands, and all of its result, in its hands."""
    kinds = [one if isinstance(one, jax.ShapeDtypeStruct) else shape(*one, dtype=jnp.float32) for one in shapes]

    def every(kind):
        return pl.BlockSpec(kind.shape, lambda *_: (0,) * len(kind.shape))

    made = shape(*result, dtype=jnp.float32)

    def call(*arrays):
        return pl.pallas_call(
            body,
            grid=grid,
            in_specs=specs or [every(kind) for kind in kinds],
            out_specs=result_spec or every(made),
            out_shape=made,
            compiler_params=plgpu.CompilerParams(),
            **words,
        )(*arrays)

    return lowered(call, *kinds)


def points():
    return pl.program_id(0), pl.program_id(1)


def copies(x, out):
    i, k = points()
    out[i, k, :] = x[i, k, :]


def reads_a_neighbour(x, out):
    i, k = points()
    out[i, k, :] = x[i, k, :] + x[i + 1, k, :]


def goes_round(x, out):
    i, k = points()
    out[jax.lax.rem(i + 1, 4), k, :] = x[jax.lax.rem(i + 1, 4), k, :]


def adds_up(x, out):
    i, k = points()
    plgpu.atomic_add(out, (i, k, jnp.arange(8)), x[i, k, :])


def reads_what_others_wrote(x, out):
    i, k = points()
    out[i, k, :] = x[i, k, :] + out[0, k, :]


def follows_the_diagonal(x, out):
    i, k = points()
    out[i, k, :] = x[i, i, :]


def is_chosen_by_a_number(x, numbers, out):
    i, k = points()
    out[i, k, :] = x[i, numbers[i, k], :]


def is_chosen_of_all(x, numbers, out):
    i, k = points()
    out[i, k, :] = x[numbers[i, k], 0, :]


def stores_in_even_places(x, out):
    i, k = points()

    @pl.when(jax.lax.rem(i, 2) == 0)
    def _even():
        out[i, k, :] = x[i, k, :]


def shares_pairs(x, y, out):
    i, k = points()
    out[i, k, :] = x[i, k, :] + y[i // 2, :]


def counts_in_one_number(x, out):
    number = pl.program_id(0)
    i, k = number // 2, number % 2
    out[i, k, :] = x[i, k, :]


def counts_itself(x, out):
    i, k = points()
    plgpu.store(out.at[i * 16 + k * 8 + jnp.arange(8)], x[i, k, :])


def has_columns_left(x, out):
    i, k = points()
    columns = k * 8 + jnp.arange(8)
    inside = columns < 13
    plgpu.store(out.at[i, columns], plgpu.load(x.at[i, columns], mask=inside, other=0.0), mask=inside)


def writes_an_operand(x, out):
    i, k = points()
    x[i, k, :] = x[i, k, :] * 2
    out[i, k, :] = x[i, k, :]


def reaches_into_the_next(x, out):
    i, k = points()
    places = i * 8 + jnp.arange(16)
    out[i, k, :] = plgpu.load(x.at[places], mask=places < 32, other=0.0)


def reads_past_its_row(x, limits, out):
    i, k = points()
    columns = k * 4 + jnp.arange(8)
    out[i, k, :] = plgpu.load(x.at[i, columns], mask=columns < limits[i], other=0.0)


def has_two_clocks(x, out):
    number = pl.program_id(0)
    out[number, :] = x[number, :] + (number % 4).astype(jnp.float32) * (number % 6).astype(jnp.float32)


def writes_one_place(x, out):
    i, k = points()
    out[:] = x[i, k, :]


def counts_three_in_one_number(x, y, out):
    number = pl.program_id(0)
    i, j, k = number // 16, number // 4 % 4, number % 4
    out[i, j, k, :] = x[k, i, j, :] + y[i, k, :]


def goes_back(x, out):
    i, k = points()
    out[3 - i, 1 - k, :] = x[i, k, :]


def repeats_until(x, out):
    i, k = points()

    def more(state):
        return state[1].sum() < 100

    out[i, k, :] = jax.lax.while_loop(more, lambda state: (state[0] + 1, state[1] * 2), (0, x[i, k, :]))[1]


def repeats_as_often_as_it_is_far(x, out):
    i, k = points()
    out[i, k, :] = jax.lax.while_loop(lambda s: s[0] < i, lambda s: (s[0] + 1, s[1] * 2), (0, x[i, k, :]))[1]


def hands_a_number_on(x, out):
    i, k = points()
    where = jax.lax.fori_loop(0, 3, lambda n, at: at + 1, i)  # three further
    out[i, k, :] = x[i, k, :] * where.astype(jnp.float32)


NUMBERS = jax.ShapeDtypeStruct((4, 2), jnp.int32)
X = (4, 2, 8)
SMALL = {
    "all": (functools.partial(small, copies, [X]), [{0, 1}, {0, 1}]),
    "a neighbour": (functools.partial(small, reads_a_neighbour, [(5, 2, 8)]), [{1}, {1}]),
    "round": (functools.partial(small, goes_round, [X]), [{1}, {1}]),
    "others' results": (functools.partial(small, reads_what_others_wrote, [X]), [{1}, {1}]),
    "a diagonal": (functools.partial(small, follows_the_diagonal, [(4, 4, 8)]), [set(), {1}]),
    "a number": (functools.partial(small, is_chosen_by_a_number, [X, NUMBERS]), [set(), {1}, {1}]),
    "any row": (functools.partial(small, is_chosen_of_all, [X, NUMBERS]), [set(), {0, 1}, {0, 1}]),
    "even places": (functools.partial(small, stores_in_even_places, [X]), [{0, 1}, {0, 1}]),
    "pairs": (functools.partial(small, shares_pairs, [X, (2, 8)]), [{0, 1}, {0}, {0, 1}]),
    "one number": (functools.partial(small, counts_in_one_number, [X], grid=(8,)), [{0, 1}, {0, 1}]),
    "three in one": (
        functools.partial(small, counts_three_in_one_number, [(4, 2, 4, 8), (2, 4, 8)], (2, 4, 4, 8), grid=(32,)),
        [{0, 1, 2}, {0, 1}, {0, 1, 2}],
    ),
    "two clocks": (functools.partial(small, has_two_clocks, [(12, 8)], (12, 8), grid=(12,)), [set(), set()]),
    "one place": (functools.partial(small, writes_one_place, [X], (8,)), [set(), set()]),
    "into the next": (functools.partial(small, reaches_into_the_next, [(32,)], (4, 2, 16)), [set(), {1}]),
    "past its row": (
        functools.partial(small, reads_past_its_row, [(4, 8), shape(4, dtype=jnp.int32)]),
        [set(), set(), set()],
    ),
    "memory of any row": (
        functools.partial(small, is_chosen_of_all, [X, NUMBERS], input_output_aliases={0: 0}),
        [set(), set(), set()],
    ),
    "its own strides": (functools.partial(small, counts_itself, [X], (64,)), [{0}, {0}]),
    "columns left": (functools.partial(small, has_columns_left, [(4, 13)], (4, 13)), [{0}, {0}]),
    "a loop with an end of its own": (functools.partial(small, repeats_until, [X]), [{0, 1}, {0, 1}]),
    "a loop that ends with its place": (functools.partial(small, repeats_as_often_as_it_is_far, [X]), [{1}, {1}]),
    "a number that a loop carries": (functools.partial(small, hands_a_number_on, [X]), [{1}, {1}]),
    "memory of an operand": (functools.partial(small, copies, [X], input_output_aliases={0: 0}), [{0, 1}, {0, 1}]),
    "memory of a neighbour": (
        functools.partial(small, goes_round, [X], input_output_aliases={0: 0}),
        [{1}, {1}],
    ),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_follows_from_the_place_in_the_grid_is_not_split_and_all_else_is(name):
    call, dims = SMALL[name]
    _module, (op,) = call()
    assert split_dims(op) == dims
    rule, arrays = rule_of(op), arrays_of(op, 0)
    if name == "a number":
        arrays[0][1][...] %= 2
    if name == "past its row":
        arrays[0][1][...] = 12, 12, 12, 8  # all but the last reach into the next one
    whole = run_kernel(read_triton_kernel(op), *arrays)
    every = sorted(free(rule))
    check = functools.partial(check_parts, op, arrays=arrays, whole=whole, seed=name)
    for one in every:
        check({one: rule.sizes[one]})
    for chosen in (chosen for number in range(2, len(every) + 1) for chosen in combinations(every, number)):
        check(dict.fromkeys(chosen, 2))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (adds_up, "it is not known what 'tt.atomic_rmw' in it does, or where"),
        (writes_an_operand, "it writes an operand"),
        (goes_back, "no part of its grid is known to compute a part of its results"),
    ],
)
def test_a_kernel_of_which_no_part_computes_a_part_runs_whole_and_a_remark_says_why(body, why, tmp_path):
    module, _calls = small(body, [X])
    file, stderr = tmp_path / "call.mlir", StringIO()
    file.write_text(str(module))
    words = ["--auto-shard", "--localize", "--remarks-filter=whole", "--cluster=h100x8", "--mesh=8", str(file)]
    assert run(words, BytesIO(), BytesIO(), stderr) == 0
    assert f"remark: [rhino-op-rules] a kernel runs whole on every device: {why}" in stderr.getvalue()
    assert "unknown" not in stderr.getvalue()
