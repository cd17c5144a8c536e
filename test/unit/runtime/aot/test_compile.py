"""What compiling without devices says is what a finished compile says, and a refusal names its reason."""

import jax
import jax.numpy as jnp
import pytest

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.ir.hlo.collectives import hlo_stats
from rhino.ir.hlo.compiled import assigned_bytes, largest_buffers
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.runtime.aot.compile import Compiler, found_files
from rhino.runtime.aot.gpus import cards, target_config
from rhino.runtime.aot.targets import CompileTarget, compile_target
from rhino.runtime.executor.executable import compile_module

STEP = b"""
sdy.mesh @mesh = <["x"=8]>
func.func public @main(
    %x: tensor<64x256xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
    %w: tensor<256x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<64x512xf32> {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
      : (tensor<64x256xf32>, tensor<256x512xf32>) -> tensor<64x512xf32>
  return %0 : tensor<64x512xf32>
}
"""

REPORT = """Memory Space: default (color=0)
Total bytes: 6910054400 (6.43GiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
    1.50GiB( 26%);    1.50GiB;   1211351040;                5; 5\xd7f32[24,1,16,1024,1024]
    1.88GiB( 32%);  384.00MiB;    404815872;                1; f32[24,4096,1024]
  The rest 294 values are less than 5% of the total size and not shown.

Memory Space: vmem (color=1)
Total bytes: 113770496 (108.50MiB)
"""

ASSIGNMENT = """BufferAssignment:
allocation 8: size 16777216, page 0, parameter 0, shape |f32[8192,512]| at ShapeIndex {}, maybe-live-out:
 value: <2716 param.8 @0> (size=16777216,offset=0): f32[8192,512]{1,0:T(8,128)}
allocation 46: size 134217728, page 0, thread-local:
 value: <1318 param_0.874 @0> (size=134217728,offset=0): f32[16,256,8192]{2,1,0:T(8,128)}
allocation 154: size 598, page 0, preallocated-temp:
allocation 158: size 100581376, color 1, page 0, preallocated-temp:
"""


def step():
    return read_module(STEP, "step.mlir", make_context())


def test_a_host_is_compiled_for_until_buffers_are_assigned(monkeypatch):
    target = compile_target(load_cluster("cpu8"), (8,))
    assert isinstance(target, CompileTarget)
    compiler = Compiler(target)
    found = compiler.compile(bytecode(step()))
    finished = compile_module(step(), jax.devices()[:8])
    assert found.peak_bytes == pytest.approx(finished.memory_bytes(), rel=0.01)
    assert hlo_stats(found.hlo) == hlo_stats(finished.hlo_text())
    monkeypatch.setattr("rhino.runtime.aot.compile._compiled", lambda *_: pytest.fail("it is known"))
    assert compiler.compile(bytecode(step())) is found


def test_what_does_not_compile_is_refused_with_the_compilers_words():
    unequal = STEP.replace(b'[{}, {"x"}]', b'[{"y"}, {}]')
    target = compile_target(load_cluster("cpu8"), (8,))
    with pytest.raises(RhinoError, match=r"(?s)XLA:CPU of jaxlib .* does not compile the module: .*y"):
        Compiler(target).compile(unequal)


def test_files_that_cannot_be_written_are_said_with_the_folder(monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rhino.runtime.aot.compile.tempfile.TemporaryDirectory", full)
    with pytest.raises(RhinoError, match=r"RHI-AOT-001.*TMPDIR.*No space left on device") as caught:
        Compiler(CompileTarget("cpu", "", (1,))).compile(b"")
    assert "TMPDIR" in caught.value.fix


def test_the_largest_buffers_are_read_of_the_memory_report():
    found = ((1610612736, "5\xd7f32[24,1,16,1024,1024]"), (402653184, "f32[24,4096,1024]"))
    assert largest_buffers(REPORT) == found
    assert largest_buffers("something else") == ()


def test_bytes_of_the_devices_memory_leave_out_others_and_operands_of_called_computations():
    assert assigned_bytes(ASSIGNMENT) == 16777216 + 598
    assert assigned_bytes("something else") is None


def test_a_missing_compiler_and_an_unknown_card_are_said_in_a_line(monkeypatch):
    monkeypatch.setattr("rhino.runtime.aot.targets.find_spec", lambda _: None)
    assert compile_target(load_cluster("v5e-8"), (8,)) == (
        "XLA:TPU of libtpu is not installed: pip install 'rhino-parallel[tpu]'"
    )


@pytest.mark.parametrize("name", cards())
def test_every_card_is_described(name):
    text = target_config(name)
    assert f'device_description_str: "{cards()[name]["description"]}"' in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(("cluster", "compiler"), [("v5e-8", "libtpu"), ("h100x8", "jax_cuda12_plugin")])
def test_accelerators_are_compiled_for_where_their_compiler_is_installed(cluster, compiler):
    pytest.importorskip(compiler)
    target = compile_target(load_cluster(cluster), (8,))
    found = Compiler(target).compile(bytecode(step()))
    # One device's share of arguments and result; XLA:TPU gathers the weight into a nearer memory.
    assert found.peak_bytes >= 4 * (64 * 256 + 256 * 512 + 64 * 512) // 8
    assert set(hlo_stats(found.hlo).counts) == {"all_gather"}
    assert not found.is_finished


def test_products_of_any_size_are_compiled_for_gpus():
    """Heads of 197 tokens, as a ViT has them: of Triton's kernels XLA:GPU finds none without tuning."""
    pytest.importorskip("jax_cuda12_plugin")

    def join(heads, weight):
        return jnp.einsum("bhts,bshk,hkd->btd", *heads, weight)

    shapes = (8, 4, 197, 197), (8, 197, 4, 64), (4, 64, 256)
    scores, values, weight = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    text = jax.jit(join).lower((scores, values), weight).as_text()
    module = read_module(text.encode(), "join.mlir", make_context())
    assert Compiler(compile_target(load_cluster("h100x8"), (8,))).compile(bytecode(module)).peak_bytes > 0


def test_the_program_is_found_among_parts_that_the_compiler_compiles_before(tmp_path):
    def write(name, text="x"):
        (tmp_path / name).write_text(text)

    endings = ("-buffer-assignment", "-memory-usage-report", "")
    for ending in endings:
        write(f"module_0002.extracted.cl_1.after_optimizations{ending}.txt")
    assert found_files(tmp_path) is None
    write("module_0000.jit_step.cl_1.before_optimizations.txt")
    write("module_0000.jit_step.cl_1.after_optimizations_before_buffer_assignment.txt")
    assert found_files(tmp_path) is None
    whole = [f"module_0000.jit_step.cl_1.after_optimizations{ending}.txt" for ending in endings]
    for name in whole[:2]:
        write(name)
    assert found_files(tmp_path) is None
    write(whole[2])
    assert [path.name for path in found_files(tmp_path)] == whole


def test_a_compile_that_does_not_end_is_ended(monkeypatch):
    monkeypatch.setattr("rhino.runtime.aot.compile.MOST_S", 0.0)
    target = compile_target(load_cluster("cpu8"), (8,))
    with pytest.raises(RhinoError, match=r"RHI-AOT-001.*does not compile the module: it took more than 0 s"):
        Compiler(target).compile(bytecode(step()))
