"""Steps with kernels for TPUs and GPUs, planned where there are none."""

import functools
from io import BytesIO, StringIO
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.gpu.attention import mha
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

import rhino
from rhino.ir.calls.tpu_rules import fit_kernel
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import walk
from rhino.ir.mlir.tpu_kernels import is_kernel, read_kernel
from rhino.ir.mlir.triton_kernels import is_triton_kernel, read_triton_kernel
from rhino.tools.opt import run

HEADS, WIDTH, LENGTH, BATCH = 8, 128, 256, 8
TX = optax.adam(1e-3)


def for_tpus(x, weights):
    q, k, v = (jnp.einsum("bsd,dhe->bhse", x, weights[name]) for name in "qkv")
    return x + jnp.einsum("bhse,hed->bsd", flash_attention(q, k, v, causal=True), weights["o"])


def for_gpus(x, weights):
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, weights[name]) for name in "qkv")
    return x + jnp.einsum("bshe,hed->bsd", mha(q, k, v, None, causal=True), weights["o"])


def step(state, batch, *, layer=for_tpus):
    weights, moments = state

    def loss(weights):
        x, _ = jax.lax.scan(lambda x, one: (layer(x, one), None), batch["x"], weights)
        return jnp.mean((x - batch["y"]).astype(jnp.float32) ** 2)

    value, gradient = jax.value_and_grad(loss)(weights)
    updates, moments = TX.update(gradient, moments)
    return (optax.apply_updates(weights, updates), moments), value


def shapes():
    weights = {name: jax.ShapeDtypeStruct((4, HEADS * WIDTH, HEADS, WIDTH), jnp.bfloat16) for name in "qkv"}
    weights["o"] = jax.ShapeDtypeStruct((4, HEADS, WIDTH, HEADS * WIDTH), jnp.bfloat16)
    batch = {name: jax.ShapeDtypeStruct((BATCH, LENGTH, HEADS * WIDTH), jnp.bfloat16) for name in "xy"}
    return (weights, jax.eval_shape(TX.init, weights)), batch


def test_a_step_is_planned_for_devices_that_are_not_here_and_runs_on_no_others():
    fast = rhino.parallelize(step, cluster="v5e-8", mesh="2x4", donate_argnums=0)
    state, batch = shapes()
    plan = fast.plan(state, batch)
    assert plan.facts.num_devices == 8
    with pytest.raises(RhinoError, match=r"has kernels for a tpu, and its devices are cpus"):
        fast(*jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), (state, batch)))


def test_a_function_that_no_platform_lowers_gives_the_error_of_its_own():
    def kernel(x, out):
        out[...] = jnp.linalg.inv(x[...])  # no kernel of TPUs does this

    def call(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(ValueError, match="interpret mode") as raised:
        rhino.parallelize(call, cluster="v5e-8", mesh="8").plan(jax.ShapeDtypeStruct((8, 8), jnp.float32))
    assert any("for a TPU v5e too: " in note for note in raised.value.__notes__)


def test_a_kernel_that_depends_on_the_device_is_lowered_for_that_of_the_cluster():
    def kernel(x, out):
        out[...] = x[...]

    def call(x):
        group = pl.BlockSpec((8, 128), lambda head: (head // 2, 0))  # JAX asks which TPU this is for
        every = pl.BlockSpec((8, 128), lambda head: (head, 0))
        kind = jax.ShapeDtypeStruct((128, 128), x.dtype)
        return pl.pallas_call(kernel, grid=(16,), in_specs=[group], out_specs=every, out_shape=kind)(x)

    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    assert rhino.parallelize(call, cluster="v5e-8", mesh="8").plan(x).facts.num_devices == 8


def test_a_kernel_that_fits_none_of_its_operands_is_an_error_at_its_call(tmp_path):
    def kernel(x, out):
        out[...] = x[...]

    def call(x):
        rows = pl.BlockSpec((8, 128), lambda row: (row, 0))  # half of these are not there in x
        kind = jax.ShapeDtypeStruct((64, 128), x.dtype)
        return pl.pallas_call(kernel, grid=(8,), in_specs=[rows], out_specs=rows, out_shape=kind)(x)

    file, stderr = tmp_path / "call.mlir", StringIO()
    x = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    file.write_text(jax.jit(call).trace(x).lower(lowering_platforms=("tpu",)).as_text())
    words = ["--auto-shard", "--localize", "--cluster=v5e-8", "--mesh=8", str(file)]
    assert run(words, BytesIO(), BytesIO(), stderr) == 1
    assert (
        "error: [RHI-LOCAL-001] no part of a kernel's grid (8,) is that of its operands and results"
        in stderr.getvalue()
    )


@pytest.fixture(scope="module", params=["tpu", "cuda"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp(request.param) / "step.mlir"
    fn = functools.partial(step, layer=for_tpus if request.param == "tpu" else for_gpus)
    traced = jax.jit(fn, donate_argnums=0, keep_unused=True).trace(*shapes())
    file.write_text(traced.lower(lowering_platforms=(request.param,)).as_text())
    return file


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (["--auto-shard", "--localize", "--mesh=8"], 8),
        (["--auto-shard", "--localize", "--mesh=2x4"], 8),
        (["--auto-shard", "--localize", "--mesh=4", "--micro-batches=2"], 8),
        pytest.param(["--auto-parallel", "--stages=2", "--micro-batches=2", "--mesh=2"], 2, marks=pytest.mark.long),
    ],
)
def test_kernels_run_on_the_grid_of_their_parts(words, share, exported, tmp_path):
    out = tmp_path / "out.mlir"
    stderr = StringIO()
    cluster = "v5e-8" if exported.parent.name.startswith("tpu") else "h100x8"
    assert run([*words, f"--cluster={cluster}", str(exported), "-o", str(out)], BytesIO(), BytesIO(), stderr) == 0
    said = stderr.getvalue()
    module = ir.Module.parse(out.read_text(), make_context())
    calls = [op for op in walk(module.operation) if is_kernel(op) or is_triton_kernel(op)]
    assert len(calls) >= 3
    for op in calls:
        batch, first, second, _ = ir.RankedTensorType(op.operands[0].type).shape
        heads = first if is_kernel(op) else second
        assert batch * heads * share == BATCH * HEADS, said
        if is_kernel(op):
            assert read_kernel(op).bounds[:2] == (batch, heads)
            before = str(op.attributes["backend_config"])
            fit_kernel(op)
            assert str(op.attributes["backend_config"]) == before
        else:
            assert prod(read_triton_kernel(op).bounds) % (batch * heads) == 0


def test_gradients_of_keys_run_on_all_devices_along_the_sequence_and_know_their_place(tmp_path):
    length, blocks = 4096, 8

    def attention(q, k, v):
        mask = masks.MultiHeadMask([masks.CausalMask((length, length))])
        sizes = dict.fromkeys([f"block_{one}" for one in ("q", "kv", "q_dkv", "kv_dkv", "q_dq", "kv_dq")], 512)
        kernel = splash.make_splash_mha_single_device(mask, block_sizes=splash.BlockSizes(**sizes))
        return kernel(q, k, v).astype(jnp.float32).sum()

    file, out, stderr = tmp_path / "step.mlir", tmp_path / "out.mlir", StringIO()
    kinds = [jax.ShapeDtypeStruct((1, length, WIDTH), jnp.bfloat16)] * 3
    gradient = jax.jit(jax.grad(attention, (0, 1, 2)))
    file.write_text(gradient.trace(*kinds).lower(lowering_platforms=("tpu",)).as_text())
    words = ["--auto-shard", "--localize", "--cluster=v5e-8", "--mesh=8", str(file), "-o", str(out)]
    assert run(words, BytesIO(), BytesIO(), stderr) == 0
    module = ir.Module.parse(out.read_text(), make_context())
    kernels = [read_kernel(op) for op in walk(module.operation) if is_kernel(op)]
    assert [prod(one.bounds) for one in kernels] == [blocks * blocks // 8] * 3, stderr.getvalue()
    assert [one.num_scalars for one in kernels] == [2, 3, 2]  # what is there of each block, and the place of keys
