"""What kernels compute and move is counted as worked out by hand."""

import pytest

from rhino.ir.hlo.kernels import Product, kernel_of
from rhino.ir.hlo.text import parse_hlo


def kernel(lines, inside=""):
    """The kernel that is the last instruction of an entry."""
    text = f"HloModule m\n\n{inside}\nENTRY %main (x: f32[1]) -> f32[1] {{\n{lines}\n}}\n"
    program = parse_hlo(text)
    body = program.computations["main"]
    return kernel_of(program, list(body.values())[-1], body)


def test_an_op_by_itself_reads_its_operands_and_writes_its_result():
    found = kernel("  %a = f32[8,4] parameter(0)\n  %b = f32[8,4] parameter(1)\n  %c = f32[8,4] add(%a, %b)")
    assert (found.read_bytes, found.written_bytes, found.products) == (256, 128, ())


def test_what_lies_in_a_nearer_memory_is_not_moved():
    found = kernel("  %a = f32[8,4]{1,0:S(1)} parameter(0)\n  %c = f32[8,4] negate(%a)")
    assert (found.read_bytes, found.written_bytes) == (0, 128)


def test_an_asynchronous_slice_moves_the_part_once():
    inside = """%async (p: f32[16,8]) -> f32[4,8] {
  %p = f32[16,8]{1,0} parameter(0)
  ROOT %s = f32[4,8]{1,0:S(1)} slice(%p), slice={[0:4], [0:8]}
}
"""
    shape = "((f32[16,8]{1,0}), f32[4,8]{1,0:S(1)}, s32[]{:S(2)})"
    found = kernel(f"  %a = f32[16,8]{{1,0}} parameter(0)\n  %r = {shape} async-start(%a), calls=%async", inside)
    assert (found.read_bytes, found.written_bytes) == (128, 0)


@pytest.mark.parametrize(("source", "target", "moved"), [("", ":S(1)", (128, 0)), (":S(1)", "", (0, 128))])
def test_an_asynchronous_copy_reads_or_writes_where_it_is_the_devices_memory(source, target, moved):
    shape = f"(f32[8,4]{{1,0{target}}}, f32[8,4]{{1,0{source}}}, u32[]{{:S(2)}})"
    found = kernel(f"  %a = f32[8,4]{{1,0{source}}} parameter(0)\n  %r = {shape} copy-start(%a)")
    assert (found.read_bytes, found.written_bytes) == moved


def test_a_fusion_reads_what_it_slices_even_in_a_fusion_of_its_own():
    inner = """%inner (p: f32[24,8]) -> f32[1,8] {
  %p = f32[24,8] parameter(0)
  %i = s32[] constant(0)
  ROOT %s = f32[1,8] dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,8}
}

%outer (q: f32[24,8]) -> f32[1,8] {
  %q = f32[24,8] parameter(0)
  %f = f32[1,8] fusion(%q), kind=kLoop, calls=%inner
  ROOT %n = f32[1,8] negate(%f)
}
"""
    found = kernel("  %a = f32[24,8] parameter(0)\n  %r = f32[1,8] fusion(%a), kind=kLoop, calls=%outer", inner)
    assert (found.read_bytes, found.written_bytes) == (32, 32)


def test_an_update_in_place_writes_the_part():
    inside = """%f (p: f32[24,8], u: f32[1,8]) -> f32[24,8] {
  %p = f32[24,8] parameter(0)
  %u = f32[1,8] parameter(1)
  %i = s32[] constant(0)
  ROOT %s = f32[24,8] dynamic-update-slice(%p, %u, %i, %i)
}
"""
    lines = "  %a = f32[24,8] parameter(0)\n  %b = f32[1,8] parameter(1)\n  %r = f32[24,8] fusion(%a, %b), calls=%f"
    found = kernel(lines, inside)
    assert (found.kind, found.read_bytes, found.written_bytes) == ("copies into stacks", 32, 32)


def product(lines):
    return kernel(lines).products


def test_the_flops_of_a_dot_and_of_a_librarys_product():
    operands = "  %a = bf16[16,32] parameter(0)\n  %b = bf16[32,8] parameter(1)\n"
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}"
    assert product(f"{operands}  %r = bf16[16,8] dot(%a, %b), {dims}") == (Product(8192, "bf16", "highest"),)
    config = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
    call = f'custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config={{{config}}}'
    assert product(f"{operands}  %r = (bf16[16,8], s8[99]) {call}") == (Product(8192, "bf16", "default"),)


@pytest.mark.parametrize(
    ("result", "attributes", "taps"),
    [
        ("f32[1,8,5]", "window={size=3 pad=1_1}", 3 * 8 - 2),
        ("f32[1,3,5]", "window={size=3 stride=2 pad=0_0}", 9),
        ("f32[1,8,5]", "window={size=3 pad=2_0}", 3 * 8 - 3),
    ],
)
def test_the_flops_of_a_convolution_leave_out_its_padding(result, attributes, taps):
    lines = "  %a = f32[1,8,4] parameter(0)\n  %k = f32[3,4,5] parameter(1)\n"
    (found,) = product(f"{lines}  %r = {result} convolution(%a, %k), {attributes}, dim_labels=b0f_0io->b0f")
    assert found.flops == 2 * 5 * 4 * taps


def test_a_batched_product_as_xla_for_tpus_writes_it_counts_as_one():
    # 16 products of 32x64 and 64x8: the batch is a spatial dim, dilated so that each tap meets one of its own.
    lines = "  %a = bf16[16,32,64] parameter(0)\n  %k = bf16[16,64,8] parameter(1)\n"
    window = "window={size=16 stride=15 pad=0_0 lhs_dilate=16}"
    (found,) = product(f"{lines}  %r = bf16[16,32,8] convolution(%a, %k), {window}, dim_labels=0bf_0io->0bf")
    assert found.flops == 2 * 16 * 32 * 64 * 8


def test_a_librarys_gradients_of_a_convolution_take_its_flops():
    shapes = {"x": "f32[2,8,4]", "k": "f32[3,4,5]", "y": "f32[2,8,5]"}
    calls = {"convForward": "xky", "convBackwardInput": "ykx", "convBackwardFilter": "xyk"}
    for name, (left, right, result) in calls.items():
        lines = f"  %a = {shapes[left]} parameter(0)\n  %b = {shapes[right]} parameter(1)\n"
        call = f'custom-call(%a, %b), dim_labels=b0f_0io->b0f, custom_call_target="__cudnn${name}"'
        assert product(f"{lines}  %r = ({shapes[result]}, u8[0]) {call}, window={{size=3 pad=1_1}}")[
            0
        ].flops == 2 * 2 * 4 * 5 * (3 * 8 - 2)
