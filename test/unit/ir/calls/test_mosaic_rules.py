"""Rules that kernels of Mosaic for GPUs show, against JAX's attention and drawn ones, on parts of their operands."""

import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_parts import fitted, free, rule_of, split_dims, types_of
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas.ops.gpu import attention_mgpu

from rhino.ir.calls.gpu_rules import gpu_rule
from rhino.ir.mlir.bindings import ir, make_context, run_pipeline
from rhino.ir.mlir.mosaic_kernels import copied_mosaic, is_mosaic_kernel, read_mosaic_kernel
from rhino.ir.mlir.reader import walk

ROWS, WIDTH = 64, 64


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def lowered(fn, *arguments):
    """The calls of kernels in a function for a GPU, and the module, which has to live as long."""
    text = jax.jit(fn).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    module = ir.Module.parse(text, make_context())
    return module, [op for op in walk(module.operation) if is_mosaic_kernel(op)]


def text_of(op):
    """What a kernel does, without the names of values and the types of operands, and how it describes memory."""
    kernel = copied_mosaic(read_mosaic_kernel(op))
    described = {
        place: (one.root, [one for one in zip(one.sizes, one.strides, one.box, strict=True) if one[0] > 1])
        for place, one in sorted(kernel.descriptors.items())
    }  # JAX leaves out dims of size 1
    run_pipeline(kernel.module, "canonicalize,cse,canonicalize")
    text = next(one for one in walk(kernel.module.operation) if one.name == "gpu.launch").get_asm()
    text = re.sub(r"memref<[0-9x]*x?\w+(, strided<[^>]*>)?>", "memref", text)
    lines = re.sub(r"%(?!c\d)[\w#]+", "%", text).splitlines()
    return kernel.bounds, described, [line.strip() for line in lines if not END_OF_ROWS.search(line)]


END_OF_ROWS = re.compile(r"arith\.(minui %, %c\d+|subi %c\d+, %) : index")
"""How far a row may reach that is copied: to the end of the whole tensor, which no part is at."""


def differing(found, expected):
    """What a kernel has beside what another one does, other than places that are computed anew."""
    others = set(found) - set(expected)
    return {line for line in others if not line.startswith("% = arith.") or "i64" not in line}


CONFIG = attention_mgpu.TuningConfig(
    **dict.fromkeys(
        ["block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"],
        64,
    ),
    max_concurrent_steps=2,
)


class Cuda:
    """What JAX's attention asks of CUDA, which is not there."""

    @staticmethod
    def cuda_runtime_get_version():
        return 12091


@pytest.mark.parametrize("backward", [False, pytest.param(True, marks=pytest.mark.long)])
def test_attention_splits_along_batch_and_heads_into_the_kernels_that_jax_makes_for_parts(backward, monkeypatch):
    monkeypatch.setattr(attention_mgpu, "cuda_versions", Cuda)

    def attention(q, k, v):
        return attention_mgpu.attention(q, k, v, CONFIG)

    def gradient(q, k, v):
        return jax.grad(lambda *given: attention(*given).astype(jnp.float32).sum(), (0, 1, 2))(q, k, v)

    def kernels(batch, heads):
        return lowered(gradient if backward else attention, *[shape(batch, 256, heads, 64, dtype=jnp.float16)] * 3)

    _module, whole = kernels(4, 8)
    _other, local = kernels(2, 4)
    work = [gpu_rule_of(op).work.product_flops for op in whole]
    forward = 4 * 4 * 8 * 256 * 256 * 64  # two products
    assert work == [forward, forward * 3 // 2, forward * 2][: len(whole)]
    for op, wanted in zip(whole, local, strict=True):
        for value, dims in zip((*op.operands, *op.results), split_dims(op), strict=True):
            sizes = list(ir.RankedTensorType(value.type).shape)
            assert {dim for dim, size in enumerate(sizes) if size in (4, 8)} <= dims
        _holder, made = fitted(op, types_of(wanted))
        found, expected = text_of(made), text_of(wanted)
        assert found[:2] == expected[:2]
        assert not differing(found[2], expected[2])


def gpu_rule_of(op):
    with op.context:
        return gpu_rule(op)


def adds(x, y, out):
    out[...] = x[...] + y[...]


def asks(x, y, out):
    out[...] = x[...] + pl.program_id(0).astype(jnp.float32)


def writes_when_first(x, y, out):
    @pl.when(pl.program_id(0) == 0)
    def _first():
        out[...] = x[...]


TILED = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))
"""How blocks lie that are copied by descriptors; others are copied row by row."""


@pytest.mark.parametrize("transforms", [(), TILED], ids=["rows", "blocks"])
@pytest.mark.parametrize(("body", "first"), [(adds, {0}), (asks, set()), (writes_when_first, set())])
def test_what_follows_from_the_place_in_the_grid_is_not_split(body, first, transforms):
    def call(*arrays):
        every = plgpu.BlockSpec((None, ROWS, WIDTH), lambda i, k: (i, k, 0), transforms=transforms)
        rows = plgpu.BlockSpec((ROWS, WIDTH), lambda i, k: (k, 0), transforms=transforms)
        kind, words = shape(4, 2 * ROWS, WIDTH), {"compiler_params": plgpu.CompilerParams()}
        return pl.pallas_call(body, grid=(4, 2), in_specs=[every, rows], out_specs=every, out_shape=kind, **words)(
            *arrays
        )

    _module, (op,) = lowered(call, shape(4, 2 * ROWS, WIDTH), shape(2 * ROWS, WIDTH))
    every, rows, result = split_dims(op)
    assert result - {1} == every - {1} == first
    assert rows <= {0}


# Drawn kernels


def drawn(seed):
    """A kernel on a grid of two or three dims: how blocks are placed, what it does, and the kinds of what it takes."""
    draw = random.Random(seed)
    grid = tuple(draw.choice((4, 6)) for _ in range(draw.choice((2, 2, 3))))
    last = len(grid) - 1

    def place():
        i, j = draw.randrange(len(grid)), draw.randrange(len(grid))
        return draw.choice(
            [
                lambda *at: (*at, 0),
                lambda *at: (*reversed(at), 0),
                lambda *at: (at[i], 0),
                lambda *at: (jax.lax.div(at[i], np.int32(2)), at[j], 0),
                lambda *at: (*at[:-1], at[-1], 0)[1:],
                lambda *at: (0, 0),
            ]
        )

    places = [place(), place()]
    result = draw.choice([lambda *at: (*at, 0), lambda *at: (*reversed(at), 0), lambda *at: at])
    asked, chosen = draw.choice((None, None, None, *range(last + 1))), draw.choice((None, None, None, *range(last + 1)))

    def body(x, y, out):
        value = x[...] + 2 * y[...]
        if asked is not None:
            value += jax.lax.rem(pl.program_id(asked), 2).astype(jnp.float32)
        if chosen is not None:
            value = jnp.where(pl.program_id(chosen) == 1, value, 2 * value)
        out[...] = value

    def sizes(place, grid):
        *most, rows = np.max([[int(one) for one in place(*point)] for point in np.ndindex(*grid)], axis=0)
        return (*(int(one) + 1 for one in most), ROWS * (int(rows) + 1), WIDTH)

    def spec(place):
        return pl.BlockSpec((*[None] * (len(place(*grid)) - 1), ROWS, WIDTH), lambda *at: (*place(*at), 0))

    def call(grid, interpret=False):
        return lambda *arrays: pl.pallas_call(
            body,
            grid=grid,
            in_specs=[spec(one) for one in places],
            out_specs=spec(result),
            out_shape=shape(*sizes(result, grid)),
            compiler_params=plgpu.CompilerParams(),
            interpret=interpret,
        )(*arrays)

    return grid, call, lambda grid: [shape(*sizes(one, grid)) for one in places]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 30), marks=pytest.mark.long)], ids=["few", "many"])
def test_parts_of_drawn_kernels_give_the_parts_of_their_results(seeds):
    split = 0
    for seed in seeds:
        grid, call, kinds = drawn(seed)
        _module, (op,) = lowered(call(grid), *kinds(grid))
        rule, draw = rule_of(op), np.random.default_rng(seed)
        arrays = [draw.standard_normal(kind.shape, np.float32) for kind in kinds(grid)]
        whole = np.asarray(call(grid, interpret=True)(*arrays))
        for axis in range(len(grid)):
            part = tuple(size // 2 if number == axis else size for number, size in enumerate(grid))
            local = [*kinds(part), jax.eval_shape(call(part), *kinds(part))]
            sides = [*((*array.shape,) for array in arrays), whole.shape]
            moving = [
                next((dim for dim, (a, b) in enumerate(zip(side, one.shape, strict=True)) if a != b), None)
                for side, one in zip(sides, local, strict=True)
            ]
            factors = {
                dims[dim][0]
                for dims, dim in zip((*rule.operands, *rule.results), moving, strict=True)
                if dim is not None
            }
            if len(factors) != 1 or not factors <= free(rule) or rule.sizes[min(factors)] % 2:
                continue
            types = [f"tensor<{'x'.join(map(str, one.shape))}xf32>" for one in local]
            _holder, made = fitted(op, types)
            _other, (wanted,) = lowered(call(part), *local[:-1])
            found, expected = text_of(made), text_of(wanted)
            assert found[:2] == expected[:2], seed
            if not any(1 in one.shape for one in local):
                assert not differing(found[2], expected[2]), seed
            for number in range(2):
                own = [
                    array if dim is None else np.split(array, 2, dim)[number]
                    for array, dim in zip((*arrays, whole), moving, strict=True)
                ]
                np.testing.assert_array_equal(call(part, interpret=True)(*own[:-1]), own[-1], err_msg=str(seed))
            split += 1
    assert split >= len(seeds) / 2
