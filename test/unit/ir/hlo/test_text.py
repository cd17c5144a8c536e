"""HLO text is read as worked out by hand: arrays and where they lie, loops and how often they run."""

import pytest

from rhino.ir.hlo.text import Array, arrays, parse_hlo, shape_bytes

LOOP = """HloModule step, is_scheduled=true, num_partitions=4

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]{0}) parameter(0)
  %one = s32[]{:T(128)} constant(1)
  %c = s32[]{:T(128)} get-tuple-element(%p), index=0
  %x = f32[8]{0} get-tuple-element(%p), index=1
  %next = s32[]{:T(128)} add(%c, %one)
  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %x)
}

%condition (p: (s32[], f32[8])) -> pred[] {
  %q = (s32[], f32[8]{0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%q), index=0
  %n = s32[]{:T(128)} constant(24)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = s32[] copy(%zero)
  %carried = (s32[], f32[8]{0}) tuple(%start, %a)
  ROOT %w = (s32[], f32[8]{0}) while(%carried), condition=%condition, body=%body
}
"""


def test_arrays_have_their_types_dims_and_memory_spaces():
    assert arrays("(f32[8,64]{1,0:T(8,128)S(1)}, /*index=1*/bf16[4]{0}, u32[])") == [
        Array("f32", (8, 64), 1),
        Array("bf16", (4,), 0),
        Array("u32", (), 0),
    ]


def test_bytes_count_wherever_an_array_lies():
    assert shape_bytes("(f32[8,64]{1,0:S(1)}, bf16[4]{0}, pred[3], token[])") == 8 * 64 * 4 + 8 + 3


def trips_of(text):
    program = parse_hlo(text)
    loop = next(op for op in program.computations[program.entry].values() if op.opcode == "while")
    return program.trips(loop)


@pytest.mark.parametrize(
    ("change", "trips"),
    [
        (("", ""), 24),
        (("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'), 7),
        (("direction=LT", "direction=NE"), None),
        (("constant(24)", "add(%i, %i)"), None),
        (("s32[] constant(0)", "s32[] constant(4)"), 20),
        (("constant(1)", "constant(5)"), 5),
        (("s32[] constant(0)", "s32[] constant(30)"), 0),
        (("s32[] constant(0)", "s32[] parameter(1)"), None),
        (("add(%c, %one)", "multiply(%c, %one)"), None),
    ],
)
def test_a_loop_runs_as_often_as_xla_says_or_its_condition_does(change, trips):
    assert trips_of(LOOP.replace(*change)) == trips


def test_a_program_knows_its_partitions_and_computations():
    program = parse_hlo(LOOP)
    assert (program.entry, program.num_partitions) == ("main", 4)
    assert list(program.computations) == ["body", "condition", "main"]


def test_an_attribute_may_have_line_breaks():
    text = """HloModule m

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %k = f32[8]{0} custom-call(%p), custom_call_target="f", frontend_attributes={kernel_metadata={
"names":"a b"
}}, backend_config={"n":1}
  ROOT %n = f32[8]{0} negate(%k)
}
"""
    body = parse_hlo(text).computations["main"]
    assert list(body) == ["p", "k", "n"]
    assert body["k"].attributes.endswith('"names":"a b" }}, backend_config={"n":1}')
