"""Rules that kernels for TPUs show, against kernels of JAX's own library and drawn ones, on parts of their operands."""

import functools
import random
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention
from jax.experimental.pallas.ops.tpu.matmul import matmul
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from tpu_kernels_on_numpy import on_numpy

from rhino.ir.calls.tpu_places import asked_places, read_place
from rhino.ir.calls.tpu_rules import fit_kernel, kernel_rule
from rhino.ir.graph.rules import Rule, parse_rule
from rhino.ir.mlir.bindings import ir, make_context, stablehlo
from rhino.ir.mlir.reader import aliases_of, entry_function, maker_of, walk
from rhino.ir.mlir.tpu_kernels import is_kernel, read_kernel
from rhino.passes.base import Remarks
from rhino.passes.frontend.inline import inline_calls
from rhino.passes.frontend.normalize import Normalize

long = pytest.mark.long


def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


def lowered(fn, *arguments):
    """The calls of kernels in a function for a TPU, and the module, which has to live as long."""
    return parsed(jax.jit(fn).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text())


def parsed(text):
    """The calls of kernels in a module, and the module, which has to live as long."""
    module = ir.Module.parse(text, make_context())
    return module, [op for op in walk(module.operation) if is_kernel(op)]


def rule_of(op) -> Rule:
    found = kernel_rule(op)
    assert found is not None
    with op.context:
        op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(found.text)
    assert op.verify()
    return parse_rule(found.text)


def free(rule: Rule) -> frozenset[int]:
    return frozenset(range(len(rule.sizes))) - rule.fixed


def split_dims(rule: Rule) -> list[set[int]]:
    """The dims of each operand and result that can be split."""
    return [
        {number for number, dim in enumerate(dims) if dim and dim[0] in free(rule) and rule.sizes[dim[0]] > 1}
        for dims in (*rule.operands, *rule.results)
    ]


def on_types(op, types):
    """The kernel's call, on operands and results of other types, given as text."""
    operands, results = types[: len(op.operands)], types[len(op.operands) :]
    arguments = ", ".join(f"%a{number}: {kind}" for number, kind in enumerate(operands))
    given = ", ".join(f"%a{number}" for number in range(len(operands)))
    text = f"""func.func @f({arguments}) {{
        %r:{len(results)} = "stablehlo.custom_call"({given})
            {{call_target_name = "tpu_custom_call", backend_config = ""}}
            : ({", ".join(operands)}) -> ({", ".join(results)})
        return
    }}"""
    module = ir.Module.parse(text, op.context)
    made = next(one for one in walk(module.operation) if one.name == "stablehlo.custom_call")
    made.attributes["backend_config"] = op.attributes["backend_config"]
    return module, made


def types_of(op):
    return [str(value.type) for value in (*op.operands, *op.results)]


def gradient(fn):
    """The gradient of a sum of what attention gives."""
    return jax.grad(lambda q, k, v, *rest: fn(q, k, v, *rest).astype(jnp.float32).sum(), (0, 1, 2))


def with_segments(q, k, v, segments, bias):
    return flash_attention(q, k, v, bias, SegmentIds(segments, segments), sm_scale=0.1)


def with_masks(q, k, v, *, single=False):
    length = q.shape[2]
    every = [
        masks.CausalMask((length, length)) if head % 2 else masks.LocalMask((length, length), (128, 0), 0)
        for head in range(q.shape[1])
    ]
    make = splash.make_splash_mqa_single_device if single else splash.make_splash_mha_single_device
    return jax.vmap(make(mask=masks.MultiHeadMask(every)))(q, k, v)


def attention_shapes(form, batch, heads):
    length, width = 512, 128
    q = shape(batch, heads, length, width)
    if form == "grouped":
        return q, *[shape(batch, heads // 4, length, width)] * 2
    if form == "one":
        return q, *[shape(batch, length, width)] * 2
    if form == "segments":
        ids, bias = shape(batch, length, dtype=jnp.int32), shape(batch, heads, length, length, dtype=jnp.float32)
        return q, q, q, ids, bias
    return q, q, q


ATTENTION = {
    "causal": functools.partial(flash_attention, causal=True),
    "segments": with_segments,
    "masks": with_masks,
    "grouped": with_masks,
    "one": functools.partial(with_masks, single=True),
}


@pytest.mark.parametrize("form", ATTENTION)
def test_attention_splits_along_batch_and_heads_into_the_kernels_that_jax_makes_for_parts(form):
    fn = gradient(ATTENTION[form])
    _module, whole = lowered(fn, *attention_shapes(form, 4, 8))
    assert len(whole) == 3  # forward, and two of the backward pass
    rules = [rule_of(op) for op in whole]
    for op, rule in zip(whole, rules, strict=True):
        for value, dims in zip((*op.operands, *op.results), split_dims(rule), strict=True):
            sizes = list(ir.RankedTensorType(value.type).shape)
            if len(sizes) == 4 and sizes[:2] == [4, 8] and form != "one":
                assert {0, 1} <= dims
    parts = [(2, 8)] if form == "one" else [(2, 8), (4, 4), (2, 4)]
    for batch, heads in parts:
        _other, local = lowered(fn, *attention_shapes(form, batch, heads))
        for op, wanted in zip(whole, local, strict=True):
            _holder, made = on_types(op, types_of(wanted))
            fit_kernel(made)
            found, expected = read_kernel(made), read_kernel(wanted)
            if form != "masks":  # JAX numbers the masks of fewer heads anew
                assert str(found.module) == str(expected.module)
            assert found.bounds == expected.bounds


def test_one_head_of_keys_is_shared_and_its_gradient_is_not_split_by_heads():
    _module, (forward, _, keys) = lowered(gradient(ATTENTION["one"]), *attention_shapes("one", 4, 8))
    assert {0, 1} <= split_dims(rule_of(forward))[3]
    heads = {dim for op in (keys,) for dims in split_dims(rule_of(op))[-2:] for dim in dims}
    assert 0 in heads


@pytest.mark.parametrize(
    ("fn", "arguments"),
    [
        pytest.param(gmm, (shape(1024, 512), shape(8, 512, 1024), shape(8, dtype=jnp.int32)), id="a grid of any size"),
        pytest.param(
            functools.partial(paged_attention, pages_per_compute_block=4),
            (
                shape(8, 16, 128),
                *[shape(16, 64, 16, 128)] * 2,
                shape(8, dtype=jnp.int32),
                shape(8, 8, dtype=jnp.int32),
            ),
            id="memory that the kernel fetches itself",
        ),
    ],
)
def test_what_a_kernel_does_not_show_is_not_guessed(fn, arguments):
    _module, calls = lowered(fn, *arguments)
    assert calls
    assert all(kernel_rule(op) is None for op in calls)
    for op in calls:
        before = str(op)
        fit_kernel(op)
        assert str(op) == before


def test_a_product_splits_along_rows_and_columns_and_not_along_what_it_sums_over():
    _module, (op,) = lowered(
        functools.partial(matmul, block_shape=(256, 256), block_k=256), shape(1024, 512), shape(512, 2048)
    )
    assert split_dims(rule_of(op)) == [{0}, {1}, {0, 1}]
    found = kernel_rule(op)
    assert found.work.product_flops == 2 * 1024 * 512 * 2048
    assert found.work.product_dtype == "bf16"
    windows = 4 * 8 * 2
    assert found.work.bytes == 2 * 256 * 256 * (windows + windows + 4 * 8)


def test_blocks_that_a_mask_leaves_out_are_not_counted():
    def flops(*, causal):
        _module, (op,) = lowered(functools.partial(flash_attention, causal=causal), *[shape(4, 8, 1024, 128)] * 3)
        return kernel_rule(op).work.product_flops

    every, blocks = 4 * 4 * 8 * 1024 * 1024 * 128, 1024 // 128
    assert flops(causal=False) == every
    assert flops(causal=True) == every * (blocks + 1) // (2 * blocks)


# Drawn kernels

LANES = 128


def drawn(seed):
    """A kernel on a grid of three dims: how windows are placed, what it does, and whether it says that dims are free.

    What comes out is a function that calls the kernel for a grid, and takes arrays of the sizes that this implies.
    """
    draw = random.Random(seed)
    bounds = tuple(draw.choice((2, 4, 6)) for _ in range(3))
    last = bounds[2]
    maps = {
        "every": lambda i, j, k: (i, j, k),
        "turned": lambda i, j, k: (k, i, j),
        "first": lambda i, j, k: (i, 0, 0),
        "pairs": lambda i, j, k: (i, jax.lax.div(j, np.int32(2)), 0),
        "joined": lambda i, j, k: (j * last + k, i, 0),
        "none": lambda i, j, k: (0, 0, 0),
    }
    places = [draw.choice(list(maps)) for _ in range(2)]
    result = draw.choice(("every", "turned", "joined"))
    asked, carried = draw.choice((None, None, 0, 1, 2)), draw.choice((None, 1, 2))
    looks_up, repeats = draw.choice((None, 0, 1)), draw.choice((False, True))

    def body(table, x, y, out, memory):
        value = x[...] + 2 * y[...]
        if asked is not None:
            number = pl.program_id(asked)
            value += (jax.lax.rem(number, 2) if repeats else number).astype(jnp.float32)
        if looks_up is not None:
            place = pl.program_id(looks_up)
            value *= table[jax.lax.rem(place + 1, bounds[looks_up]) if repeats else place].astype(jnp.float32)
        if carried is not None:

            @pl.when(pl.program_id(carried) == 0)
            def _start():
                memory[...] = jnp.zeros_like(memory)

            memory[...] += value
            value = value + memory[...]
        out[...] = value

    def of(name, array, grid):
        counts = np.max([[c + 1 for c in maps[name](*point)] for point in np.ndindex(*grid)], axis=0)
        sizes = (*(int(count) for count in counts), 8, LANES)
        return jax.ShapeDtypeStruct(sizes, jnp.float32) if array is None else array

    def call(grid, interpret, table, *arrays):
        specs = [
            pl.BlockSpec((None, None, None, 8, LANES), lambda i, j, k, _t, at=maps[name]: (*at(i, j, k), 0, 0))
            for name in (*places, result)
        ]
        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=grid,
                in_specs=specs[:2],
                out_specs=specs[2],
                scratch_shapes=[pltpu.VMEM((8, LANES), jnp.float32)],
            ),
            out_shape=of(result, None, grid),
            interpret=interpret,
        )(table, *arrays)

    table = jax.ShapeDtypeStruct((bounds[looks_up] if looks_up is not None else 4,), jnp.int32)
    return bounds, call, [table, *(of(name, None, bounds) for name in places)]


def in_parts(op, factor, part):
    """The call that gives a part of the results along a factor; the dim of each operand and result along it.

    Where the kernel asks for its place, the first operand behind its scalars is one more, of places.
    """
    rule = rule_of(op)
    asked = [
        place for place in asked_places(op) if rule.results[place.result][place.dim][:1] == (factor,) and place.size > 1
    ]
    sides = (*rule.operands, *rule.results)
    dims = [next((n for n, dim in enumerate(one) if factor in dim), None) for one in sides]
    for place in asked:
        dims.insert(read_kernel(op).num_scalars, 0)
        with op.context, op.location, ir.InsertionPoint(op):
            numbers = ir.RankedTensorType.get([place.size], ir.IntegerType.get_signless(32))
            op = read_place(op, place.grid, stablehlo.IotaOp(numbers, 0).result)
    types = [_part_type(kind, dim, part) for kind, dim in zip(types_of(op), dims, strict=True)]
    holder, made = on_types(op, types)
    fit_kernel(made)
    return (holder, op, made), dims, [place.size for place in asked]


def check_parts(lower, arrays, seed, *, only=()):
    """Compares parts of what a kernel gives with the kernel on parts; returns how often, and how often it asked."""
    split = placed = 0
    _module, op = lower()
    rule = rule_of(op)
    whole = on_numpy(op, arrays)
    for factor in sorted(free(rule)):
        moved = [number for number, dims in enumerate(rule.results) for dim in dims if factor in dim]
        if rule.sizes[factor] < 2 or not moved:
            continue
        part = next(n for n in (2, 3) if rule.sizes[factor] % n == 0)
        _fresh, call = lower()
        scalars, bounds = read_kernel(call).num_scalars, read_kernel(call).bounds
        (_holder, _op, made), dims, sizes = in_parts(call, factor, part)
        assert prod(read_kernel(made).bounds) * part == prod(bounds), seed
        given = [*arrays[:scalars], *(np.arange(size, dtype=np.int32) for size in sizes), *arrays[scalars:]]
        for number in range(part):
            own = [_part(array, dim, part, number) for array, dim in zip(given, dims[: len(given)], strict=True)]
            for place, found in enumerate(on_numpy(made, own)):
                if place in moved:
                    expected = _part(whole[place], dims[len(given) + place], part, number)
                    np.testing.assert_array_equal(found, expected, err_msg=str(seed))
        split, placed = split + 1, placed + len(sizes)
    return split, placed


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 60), marks=pytest.mark.long)], ids=["few", "many"])
def test_parts_of_drawn_kernels_give_the_parts_of_their_results(seeds):
    split = placed = 0
    for seed in seeds:
        bounds, call, kinds = drawn(seed)

        _module, (op,) = lowered(functools.partial(call, bounds, False), *kinds)

        def lower(text=str(_module)):
            module, (op,) = parsed(text)
            return module, op

        draw = np.random.default_rng(seed)
        arrays = [
            draw.integers(1, 5, kind.shape, np.int32)
            if kind.dtype == jnp.int32
            else draw.standard_normal(kind.shape, np.float32)
            for kind in kinds
        ]
        own = check_parts(lower, arrays, seed)
        split, placed = split + own[0], placed + own[1]
        np.testing.assert_array_equal(on_numpy(op, arrays)[0], np.asarray(call(bounds, True, *arrays)), str(seed))
    assert split > len(seeds) / 2  # so many ways to split were tried,
    assert placed > len(seeds) / 6  # and so often a part had to know its place


MASKS = {
    "causal": masks.CausalMask,
    "local": functools.partial(masks.LocalMask, window_size=(64, 0), offset=0),
    "data": lambda shape: masks.NumpyMask(np.tri(*shape, dtype=np.bool_)),
}


@pytest.mark.parametrize("name", ["causal", pytest.param("local", marks=long), pytest.param("data", marks=long)])
def test_splash_attention_splits_along_keys_where_it_gives_gradients_of_keys(name):
    heads, length, width = 2, 256, 128

    def attention(q, k, v):
        mask = masks.MultiHeadMask([MASKS[name]((length, length))] * heads)
        sizes = dict.fromkeys([f"block_{one}" for one in ("q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq")], 128)
        return splash.make_splash_mha_single_device(mask, block_sizes=splash.BlockSizes(**sizes))(q, k, v)

    kinds = [shape(heads, length, width), *[shape(1, length, width)] * 2]

    module, _ = lowered(gradient(attention), *kinds)
    with module.context:
        inline_calls(module.operation, entry_function(module), "")
    text = str(module)

    def lower(which):
        module, calls = parsed(text)
        return module, calls[which]

    draw = np.random.default_rng(0)
    for which, asked in enumerate((0, 1, 0)):  # forward pass, gradients of keys and values, and of queries
        _module, op = lower(which)
        assert len(asked_places(op)) == (asked if name != "data" else 0)
        arrays = [operand(value, draw) for value in op.operands]
        split, placed = check_parts(functools.partial(lower, which), arrays, which)
        assert placed == len(asked_places(op))
        assert split == (1 if which == 1 else 2)  # keys; heads and queries


def operand(value, draw):
    """What a value is if it follows from constants, else drawn numbers."""
    kind, maker = ir.RankedTensorType(value.type), maker_of(value)
    if maker is not None and maker.name == "stablehlo.constant":
        return np.array(ir.DenseElementsAttr(maker.attributes["value"]))
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim" and "i" in str(kind.element_type):
        dims, source = (
            list(ir.DenseI64ArrayAttr(maker.attributes["broadcast_dimensions"])),
            operand(maker.operands[0], draw),
        )
        sizes = [source.shape[dims.index(dim)] if dim in dims else 1 for dim in range(kind.rank)]
        return np.broadcast_to(source.reshape(sizes), kind.shape)
    return (draw.standard_normal(kind.shape, np.float32) / 8).astype(
        jnp.bfloat16 if "bf16" in str(kind) else np.float32
    )


def _part(array, dim, parts, number):
    return array if dim is None else np.split(array, parts, dim)[number]


def _part_type(text, dim, parts):
    if dim is None:
        return text
    sizes = text.removeprefix("tensor<").split("x")
    sizes[dim] = str(int(sizes[dim]) // parts)
    return "tensor<" + "x".join(sizes)


# Kernels on a grid of 4 times 2 that do one thing that a grid in parts would not, or that was slow to see


def small(body, windows, shapes, *, scratch=(), table=None, **words):
    """The call of a kernel that makes 32 x 128 numbers, in windows that follow the first dim of the grid."""

    def call(*arrays):
        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=int(table is not None),
                grid=(4, 2),
                in_specs=windows,
                out_specs=pl.BlockSpec((8, LANES), lambda i, k, *_: (i, 0)),
                scratch_shapes=scratch,
            ),
            out_shape=shape(32, LANES, dtype=jnp.float32),
            **words,
        )(*arrays)

    return lowered(call, *[] if table is None else [table], *(shape(*one, dtype=jnp.float32) for one in shapes))


def copies(x, *rest):
    rest[-1][...] = x[:8]


def adds(x, y, out):
    out[...] = x[:8] + y[:8]


def leaves_for_later(flags, x, out, memory):
    row = pl.program_id(0)

    @pl.when(pl.program_id(1) == 1)
    def _last():
        @pl.when(flags[row] == 1)
        def _start():
            memory[...] = jnp.zeros_like(memory)

        memory[...] += x[...]
        out[...] = memory[...]


def fills_when_last(x, out, memory):
    @pl.when(pl.program_id(1) == 1)
    def _last():
        memory[...] = x[...]
        out[...] = memory[...] * 2


def writes_an_operand(x, y, out):
    y[...] += x[...]
    out[...] = y[...]


def counts_in_a_table(table, x, out):
    table[0] = table[0] + 1
    out[...] = x[...] * table[0].astype(jnp.float32)


def counts(x, out, number):
    @pl.when(pl.program_id(1) == 0)
    def _start():
        number[0] = 0

    number[0] += 1
    out[...] = x[...] * number[0].astype(jnp.float32)


def is_long(x, out, memory):
    @pl.when(pl.program_id(1) == 0)
    def _start():
        memory[...] = jnp.zeros_like(memory)

    value = x[...]
    for _ in range(1500):
        value = value * 1.5
    memory[...] += value

    @pl.when(value[0, 0] > 0)
    def _some():
        out[...] = memory[...]


MEMORY = pltpu.VMEM((8, LANES), jnp.float32)
ROWS = pl.BlockSpec((8, LANES), lambda i, k, *_: (i, 0))
FIRST = pl.BlockSpec((8, LANES), lambda i, k, *_: (0, 0))
NEAR = pl.BlockSpec((pl.Element(16), pl.Element(LANES)), lambda i, k: (i * 8, 0))
DIAGONAL = pl.BlockSpec((8, LANES), lambda i, k: (i, i))
TABLE = jax.ShapeDtypeStruct((4,), jnp.int32)
SMALL = {
    "neighbours": functools.partial(small, adds, [NEAR, ROWS], [(48, LANES), (32, LANES)]),
    "a diagonal": functools.partial(small, copies, [DIAGONAL], [(32, 4 * LANES)]),
    "memory that is read later": functools.partial(
        small, leaves_for_later, [ROWS], [(32, LANES)], table=TABLE, scratch=[MEMORY]
    ),
    "an operand that is written": functools.partial(small, writes_an_operand, [ROWS, FIRST], [(32, LANES), (8, LANES)]),
    "a table that is written": functools.partial(small, counts_in_a_table, [ROWS], [(32, LANES)], table=TABLE),
    "memory of all of an operand": functools.partial(
        small,
        copies,
        [pl.BlockSpec((32, LANES), lambda i, k: (0, 0))],
        [(32, LANES)],
        input_output_aliases={0: 0},
    ),
    "a part of an operand": functools.partial(small, copies, [ROWS], [(64, LANES)]),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_follows_from_the_place_in_the_grid_is_not_split(name):
    _module, (op,) = SMALL[name]()
    assert not any(split_dims(rule_of(op)))
    before = str(op)
    fit_kernel(op)
    assert str(op) == before


def test_windows_that_reach_into_their_neighbours_are_moved_as_large_as_they_are():
    _module, (op,) = SMALL["neighbours"]()
    assert kernel_rule(op).work.bytes == 4 * LANES * 4 * (16 + 8 + 8)  # four windows of each, of f32


@pytest.mark.parametrize(
    ("body", "memory"), [(fills_when_last, MEMORY), (is_long, MEMORY), (counts, pltpu.SMEM((1,), jnp.int32))]
)
def test_memory_that_is_written_before_it_is_read_splits(body, memory):
    _module, (op,) = small(body, [ROWS], [(32, LANES)], scratch=[memory])
    assert split_dims(rule_of(op)) == [{0}, {0}]


def scales_by_place(x, out):
    out[...] = x[...] * pl.program_id(0).astype(jnp.float32)


def test_a_part_that_knows_its_place_keeps_the_memory_that_it_shares():
    def lower():
        module, (op,) = small(scales_by_place, [ROWS], [(32, LANES)], input_output_aliases={0: 0})
        return module, op

    x = np.random.default_rng(0).standard_normal((32, LANES), np.float32)
    assert check_parts(lower, [x], "scales") == (1, 1)
    _module, op = lower()
    assert aliases_of(op) == ((0, 0),)
    (rows,) = (one for one in free(rule_of(op)) if rule_of(op).sizes[one] > 1)
    (_holder, made, _fitted), _, _ = in_parts(op, rows, 2)
    assert aliases_of(made) == ((1, 0),)


def test_half_of_a_causal_mask_that_is_a_constant_is_not_counted_and_the_last_queries_have_most_to_do():
    heads, length, width, block = 2, 1024, 128, 128

    def attention(q, k, v):
        mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * heads)
        return splash.make_splash_mha_single_device(mask)(q, k, v)

    module, _ = lowered(attention, shape(heads, length, width), *[shape(1, length, width)] * 2)
    with module.context:
        inline_calls(module.operation, entry_function(module), "")
    op = next(one for one in walk(module.operation) if is_kernel(one))
    found, blocks = kernel_rule(op), length // block
    every = 4 * heads * length * length * width
    assert found.work.product_flops == every * (blocks + 1) // (2 * blocks)
    ((factor, loads),) = found.loads
    assert split_dims(rule_of(op))[2] == {0, 1}
    assert factor == rule_of(op).names[rule_of(op).operands[2][1][0]]
    np.testing.assert_allclose(np.array(loads) / loads[0], np.arange(1, blocks + 1), rtol=1e-2)
    assert sum(loads) == pytest.approx(found.work.flops, rel=1e-6)


def test_a_mask_is_known_inside_of_loops_and_behind_barriers():
    length, width = 256, 128

    def layers(x, weights):
        @jax.checkpoint
        def layer(x, weight):
            mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * 2)
            return splash.make_splash_mha_single_device(mask)(x @ weight, x, x), None

        return jax.lax.scan(layer, x, weights)[0].astype(jnp.float32).sum()

    module, _ = lowered(jax.grad(layers, (0, 1)), shape(2, length, width), shape(3, width, width))
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    found = [kernel_rule(op) for op in walk(module.operation) if is_kernel(op)]
    assert len(found) == 4  # the forward pass twice
    assert all(rule.loads for rule in found)


def test_a_result_takes_the_memory_of_the_operand_that_splits_like_it():
    _module, (op,) = small(copies, [ROWS], [(32, LANES)], input_output_aliases={0: 0})
    assert split_dims(rule_of(op)) == [{0}, {0}]
