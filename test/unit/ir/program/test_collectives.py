"""Collectives are counted as worked out by hand: in local StableHLO, in XLA's text, and in what XLA really compiles."""

import jax
import pytest

from rhino.ir.graph.collective_stats import KINDS, CollectiveStats, Count, payload_bytes
from rhino.ir.hlo.collectives import hlo_stats
from rhino.ir.hlo.text import shape_bytes
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import walk
from rhino.ir.program.collectives import module_stats, tensor_bytes, trip_count
from rhino.runtime.executor.executable import compile_module

GROUPS = "replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>"
SUM = (
    "({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n %s = stablehlo.add %p, %q : tensor<f32>\n"
    " stablehlo.return %s : tensor<f32> })"
)


def parse(text: str) -> ir.Module:
    return ir.Module.parse(text, make_context())


def all_reduce(name: str, operand: str, size: int = 16, groups: str = GROUPS) -> str:
    kind = f"tensor<{size}xf32>"
    return f'{name} = "stablehlo.all_reduce"({operand}) <{{{groups}}}> {SUM} : ({kind}) -> {kind}\n'


def entry(body: str, result: str = "%a") -> str:
    return (
        f"func.func public @main(%a: tensor<16xf32>, %n: tensor<i32>) -> tensor<16xf32> {{\n"
        f"{body}return {result} : tensor<16xf32> }}\n"
    )


def loop(body: str, start: str = "%c0", bound: str = "%c5", add: str = "%i, %c1", compare: str = "LT, %i,") -> str:
    return f"""
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c2 = stablehlo.constant dense<2> : tensor<i32>
  %c5 = stablehlo.constant dense<5> : tensor<i32>
  %w:2 = stablehlo.while(%h = %a, %i = {start}) : tensor<16xf32>, tensor<i32>
   cond {{
     %p = stablehlo.compare {compare} {bound} : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %p : tensor<i1>
   }} do {{
     {body}
     %j = stablehlo.add {add} : tensor<i32>
     stablehlo.return %h, %j : tensor<16xf32>, tensor<i32>
   }}
"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all_reduce", 8), ("all_gather", 64), ("reduce_scatter", 8), ("all_to_all", 8), ("collective_permute", 8)],
)
def test_payload_is_the_result_of_a_gather_and_the_operands_of_the_others(kind: str, expected: int):
    assert payload_bytes(kind, 8, 64) == expected


def test_each_kind_counts_its_payload():
    stats = module_stats(
        parse(
            f"""func.func public @main(%a: tensor<16x8xf32>, %b: tensor<4xbf16>, %c: tensor<3xi1>) {{
  %0:2 = "stablehlo.all_reduce"(%a, %a) <{{{GROUPS}}}> {SUM}\
 : (tensor<16x8xf32>, tensor<16x8xf32>) -> (tensor<16x8xf32>, tensor<16x8xf32>)
  %1 = "stablehlo.all_gather"(%b) <{{all_gather_dim = 0 : i64, {GROUPS}}}> : (tensor<4xbf16>) -> tensor<32xbf16>
  %2 = "stablehlo.reduce_scatter"(%a) <{{scatter_dimension = 0 : i64, {GROUPS}}}> {SUM}\
 : (tensor<16x8xf32>) -> tensor<2x8xf32>
  %3 = "stablehlo.all_to_all"(%a) <{{split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 8 : i64,\
 {GROUPS}}}>
      : (tensor<16x8xf32>) -> tensor<128x1xf32>
  %4 = "stablehlo.collective_permute"(%c) <{{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}}>
      : (tensor<3xi1>) -> tensor<3xi1>
  return }}"""
        )
    )
    assert dict(stats.counts) == {
        "all_reduce": Count(1, 2 * 16 * 8 * 4),
        "all_gather": Count(1, 32 * 2),
        "reduce_scatter": Count(1, 16 * 8 * 4),
        "all_to_all": Count(1, 16 * 8 * 4),
        "collective_permute": Count(1, 3),
    }
    assert tuple(stats.counts) == KINDS
    assert stats.total == Count(5, 1024 + 64 + 512 + 512 + 3)
    assert stats.exact


@pytest.mark.parametrize(
    "op",
    [
        all_reduce("%0", "%a", groups="replica_groups = dense<[[0], [1]]> : tensor<2x1xi64>"),
        '%0 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>}>'
        " : (tensor<16xf32>) -> tensor<16xf32>\n",
    ],
)
def test_a_collective_that_moves_nothing_is_left_out(op: str):
    assert module_stats(parse(entry(op))) == CollectiveStats()


def test_a_permutation_with_a_device_that_keeps_what_it_has_counts():
    pairs = "source_target_pairs = dense<[[0, 0], [1, 2], [2, 1]]> : tensor<3x2xi64>"
    op = f'%0 = "stablehlo.collective_permute"(%a) <{{{pairs}}}> : (tensor<16xf32>) -> tensor<16xf32>\n'
    assert module_stats(parse(entry(op))) == CollectiveStats({"collective_permute": Count(1, 64)})


@pytest.mark.parametrize(
    ("form", "trips"),
    [
        ({}, 5),
        ({"start": "%c2"}, 3),
        ({"start": "%c5"}, 0),
        ({"add": "%c1, %i"}, 5),
        ({"add": "%i, %c2"}, 3),
        ({"add": "%c1, %c1"}, None),
        ({"start": "%n"}, None),
        ({"bound": "%n"}, None),
        ({"compare": "LE, %i,"}, 6),
    ],
)
def test_a_loop_counts_as_often_as_it_is_known_to_run(form: dict[str, str], trips: int | None):
    module = parse(entry(loop(all_reduce("%r", "%h"), **form)))
    (found,) = [op for op in walk(module.operation) if op.name == "stablehlo.while"]
    assert trip_count(found.opview) == trips
    counts = {} if trips == 0 else {"all_reduce": Count(trips or 1, (trips or 1) * 64)}
    assert module_stats(module) == CollectiveStats(counts, exact=trips is not None)


def test_tokens_and_what_is_no_function_weigh_nothing():
    """A collective in a branch that hands a token on; a mesh beside the entry."""
    text = 'sdy.mesh @mesh = <["x"=8]>\n' + entry(
        f"%t = stablehlo.create_token : !stablehlo.token\n{all_reduce('%r', '%a')}"
    )
    module = parse(text)
    (token,) = [op for op in walk(module.operation) if op.name == "stablehlo.create_token"]
    assert tensor_bytes(token.results[0].type) == 0
    assert module_stats(module) == CollectiveStats({"all_reduce": Count(1, 64)})


def test_an_unknown_loop_without_collectives_leaves_the_count_exact():
    assert module_stats(parse(entry(loop("", bound="%n") + all_reduce("%r", "%a")))) == CollectiveStats(
        {"all_reduce": Count(1, 64)}
    )


def test_calls_are_followed_each_time():
    callee = (
        f"func.func private @f(%a: tensor<16xf32>) -> tensor<16xf32> {{\n"
        f"{all_reduce('%r', '%a')} return %r : tensor<16xf32> }}\n"
    )
    call = "func.call @f(%h) : (tensor<16xf32>) -> tensor<16xf32>"
    body = loop(f"%r = {call}\n %s = {call}")
    assert module_stats(parse(callee + entry(body))) == CollectiveStats({"all_reduce": Count(10, 640)})


@pytest.mark.parametrize(("op", "kind"), [("case", "i32"), ("if", "i1")])
def test_of_branches_the_largest_counts(op: str, kind: str):
    body = f"""%d = stablehlo.constant dense<1> : tensor<{kind}>
%0 = "stablehlo.{op}"(%d) ({{
  {all_reduce("%r", "%a")} stablehlo.return %r : tensor<16xf32>
}}, {{
  {all_reduce("%r", "%a")} {all_reduce("%s", "%r")} stablehlo.return %s : tensor<16xf32>
}}) : (tensor<{kind}>) -> tensor<16xf32>
"""
    assert module_stats(parse(entry(body))) == CollectiveStats({"all_reduce": Count(2, 128)}, exact=False)


def test_a_table_says_each_kind_and_the_total():
    lines = (
        CollectiveStats({"all_reduce": Count(2, 2048), "all_gather": Count(1, 1024)}, exact=False).table().splitlines()
    )
    assert [line.split() for line in lines] == [
        ["all_reduce", "2", "2", "KiB"],
        ["all_gather", "1", "1", "KiB"],
        ["total", "(at", "least)", "3", "3", "KiB"],
    ]


@pytest.mark.parametrize(
    ("shape", "num_bytes"),
    [
        ("f32[8,64]{1,0}", 2048),
        ("bf16[3]", 6),
        ("pred[5]{0}", 5),
        ("f32[]", 4),
        ("c64[2]", 16),
        ("f8e4m3fn[8]", 8),
        ("s4[8]", 8),
        ("(f32[2]{0}, (u32[], s64[3]{0:T(8,128)}))", 36),
        ("token[]", 0),
    ],
)
def test_shape_bytes(shape: str, num_bytes: int):
    assert shape_bytes(shape) == num_bytes


HLO = """HloModule m, num_partitions=8

%sum (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %s = f32[] add(%p, %q)
}

%body (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]{0}) parameter(0)
  %h = f32[4]{0} get-tuple-element(%t), index=1
  %r = f32[4]{0} all-reduce(%h), replica_groups={}, to_apply=%sum
  ROOT %u = (s32[], /*index=1*/f32[4]{0}) tuple(%i, %r)
}

%wrapped (v: (s32[], f32[4])) -> (s32[], f32[4]) {
  %v = (s32[], f32[4]{0}) parameter(0)
  ROOT %c = (s32[], f32[4]{0}) call(%v), to_apply=%body
}

%cond (t: (s32[], f32[4])) -> pred[] {
  %t = (s32[], f32[4]{0}) parameter(0)
  ROOT %p = pred[] constant(true)
}

ENTRY %main (a: f32[16], b: f32[2], t: (s32[], f32[4])) -> f32[16] {
  %a = f32[16]{0} parameter(0)
  %b = f32[2]{0} parameter(1)
  %t = (s32[], f32[4]{0}) parameter(2)
LINES
  ROOT %z = f32[16]{0} copy(%a)
}
"""
ONE_OF_ALL = "replica_groups={{0,1,2,3,4,5,6,7}}"


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (
            f"%r = (f32[16]{{0}}, f32[2]{{0}}) all-reduce(%a, %b), {ONE_OF_ALL}, to_apply=%sum",
            {"all_reduce": Count(1, 72)},
        ),
        (f"%r = f32[16]{{0}} all-reduce(f32[16]{{0}} %a), {ONE_OF_ALL}, to_apply=%sum", {"all_reduce": Count(1, 64)}),
        ("%r = f32[128]{0} all-gather(%a), replica_groups=[1,8]<=[8], dimensions={0}", {"all_gather": Count(1, 512)}),
        (
            "%r = f32[32]{0} all-gather(%a), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}",
            {"all_gather": Count(1, 128)},
        ),
        (
            "%r = f32[64]{0} all-gather(%a), replica_groups=mesh['x'=2,'y'=4] {'y'}, dimensions={0}",
            {"all_gather": Count(1, 256)},
        ),
        (
            "%r = f32[32]{0} all-gather(%a), replica_groups=mesh['x'=8] {'x':(1)2}, dimensions={0}",
            {"all_gather": Count(1, 128)},
        ),
        (
            "%r = f32[2]{0} reduce-scatter(%a), replica_groups={}, dimensions={0}, to_apply=%sum",
            {"reduce_scatter": Count(1, 64)},
        ),
        ("%r = (f32[2]{0}, f32[2]{0}) all-to-all(%b, %b), replica_groups={{0,1}}", {"all_to_all": Count(1, 16)}),
        (
            "%r = f32[2]{0} collective-permute(%b), source_target_pairs={{0,1},{1,0}}",
            {"collective_permute": Count(1, 8)},
        ),
        ("%r = f32[2]{0} collective-permute(%b), source_target_pairs={{0,0},{1,1}}", {}),
        ("%r = f32[16]{0} all-reduce(%a), replica_groups=[8,1]<=[8], to_apply=%sum", {}),
        (
            "%r = (f32[16]{0}, f32[128]{0}) all-gather-start(%a), replica_groups=[1,8]<=[8]\n"
            "  %d = f32[128]{0} all-gather-done(%r)",
            {"all_gather": Count(1, 512)},
        ),
        (
            "%r = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(%b), source_target_pairs={{0,1}}\n"
            "  %d = f32[2]{0} collective-permute-done(%r)",
            {"collective_permute": Count(1, 8)},
        ),
        (
            "%r = ((s32[], f32[4]{0}), (s32[], f32[4]{0}), u32[]) async-start(%t), calls=%body\n"
            "  %d = (s32[], f32[4]{0}) async-done(%r), calls=%body",
            {"all_reduce": Count(1, 16)},
        ),
        (
            "%r = ((s32[], f32[4]{0}), (s32[], f32[4]{0}), u32[]) async-start(%t), calls=%wrapped\n"
            "  %d = (s32[], f32[4]{0}) async-done(%r)",
            {"all_reduce": Count(1, 16)},
        ),
        ("%r = f32[16]{0} collective-broadcast(%a), replica_groups={{0,1,2,3}}", {"all_gather": Count(1, 64)}),
        (
            "%r = (f32[2]{0}, u32[], token[]) recv(%k), channel_id=1\n"
            "  %s = (f32[2]{0}, u32[], token[]) send(%b, %k), channel_id=1, "
            'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,1}}"}',
            {"collective_permute": Count(1, 8)},
        ),
        ("%s = (f32[2]{0}, u32[], token[]) send(%b, %k), channel_id=1, is_host_transfer=true", {}),
        (
            "%w = (s32[], f32[4]{0}) while(%t), condition=%cond, body=%body, "
            'backend_config={"known_trip_count":{"n":"7"},"known_init_step":{"init":"0","step":"1"}}',
            {"all_reduce": Count(7, 112)},
        ),
    ],
)
def test_hlo_line(line: str, counts: dict[str, Count]):
    assert hlo_stats(HLO.replace("LINES", f"  {line}")) == CollectiveStats(counts)


@pytest.mark.parametrize(
    "line",
    [
        "%w = (s32[], f32[4]{0}) while(%t), condition=%cond, body=%body",
        "%w = (s32[], f32[4]{0}) conditional(%i, %t, %t), branch_computations={%body, %cond}",
        "%w = (s32[], f32[4]{0}) conditional(%i, %t, %t), true_computation=%cond, false_computation=%body",
    ],
)
def test_hlo_line_that_may_run_more_or_less(line: str):
    assert hlo_stats(HLO.replace("LINES", f"  {line}")) == CollectiveStats({"all_reduce": Count(1, 16)}, exact=False)


# One program for both counts: XLA turns a sum over split rows into one all-reduce, in a loop of three trips.
LOOP = """sdy.mesh @mesh = <["x"=8]>
func.func public @main(%a: tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %v: tensor<16xf32>)\
 -> tensor<16xf32> {
  %c0 = stablehlo.constant dense<0> : tensor<i32>
  %c1 = stablehlo.constant dense<1> : tensor<i32>
  %c3 = stablehlo.constant dense<3> : tensor<i32>
  %w:2 = stablehlo.while(%i = %c0, %h = %v) : tensor<i32>, tensor<16xf32>
   cond {
     %p = stablehlo.compare LT, %i, %c3 : (tensor<i32>, tensor<i32>) -> tensor<i1>
     stablehlo.return %p : tensor<i1>
   } do {
     %y = stablehlo.dot_general %a, %h, contracting_dims = [1] x [0]\
 : (tensor<64x16xf32>, tensor<16xf32>) -> tensor<64xf32>
     %g = stablehlo.dot_general %y, %a, contracting_dims = [0] x [0]\
 : (tensor<64xf32>, tensor<64x16xf32>) -> tensor<16xf32>
     %j = stablehlo.add %i, %c1 : tensor<i32>
     stablehlo.return %j, %g : tensor<i32>, tensor<16xf32>
   }
  return %w#1 : tensor<16xf32>
}"""


def test_what_xla_compiles_is_counted_with_its_trips():
    compiled = compile_module(parse(LOOP), jax.devices()[:8])
    assert hlo_stats(compiled.hlo_text()) == CollectiveStats({"all_reduce": Count(3, 3 * 64)})
