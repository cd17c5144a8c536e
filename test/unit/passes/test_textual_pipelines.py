"""Textual pipelines parse to passes and back, and the annotating ones change attributes alone."""

import dataclasses
from typing import ClassVar

import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module, walk
from rhino.passes.base import Pass, Remarks, make_pass, opt, read_options
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.layout.pad import PadDims
from rhino.passes.pipeline.micro_batch import MicroBatch
from rhino.passes.pipeline.split_scans import SplitScans
from rhino.passes.planner.choose_layouts import ChooseLayouts
from rhino.passes.registry import PARALLEL, PASSES, PIPELINES, build_named, known_names
from rhino.passes.sharding.choose_shardings import ChooseShardings, PhaseTimes, ShardingChoice
from rhino.passes.sharding.localize import Localize
from rhino.passes.sharding.op_rules import OpRules
from rhino.passes.sharding.pack_collectives import PackCollectives
from rhino.passes.sharding.pin import PinShardings
from rhino.passes.sharding.strip import Strip
from rhino.passes.textual_pipelines import build_pass_manager, parse_pipeline

RULES, NO_RULES = "func.func(sdy-populate-op-sharding-rules)", "func.func(sdy-drop-sharding-rules)"

# A step with everything that an annotating pass meets: a call, a loop, a reduction, a dead op, a scalar, and an
# argument fed back.
STEP = """
func.func @main(%x: tensor<64x32xf32> loc("x"), %w: tensor<32x32xf32>\
 {tf.aliasing_output = 0 : i32} loc("w"), %n: tensor<i32>)
    -> (tensor<32x32xf32>, tensor<f32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %fzero = stablehlo.constant dense<0.0> : tensor<f32>
  %y = call @layer(%x, %w) : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
  %dead = stablehlo.sine %y : tensor<64x32xf32>
  %end:2 = stablehlo.while(%i = %zero, %v = %y) : tensor<i32>, tensor<64x32xf32>
  cond {
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %j = stablehlo.add %i, %one : tensor<i32>
    %u = stablehlo.tanh %v : tensor<64x32xf32>
    stablehlo.return %j, %u : tensor<i32>, tensor<64x32xf32>
  }
  %grad = stablehlo.dot_general %x, %end#1, contracting_dims = [0] x [0]\
 : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<32x32xf32>
  %new = stablehlo.subtract %w, %grad : tensor<32x32xf32>
  %loss = stablehlo.reduce(%end#1 init: %fzero) applies stablehlo.add across dimensions = [0, 1]
      : (tensor<64x32xf32>, tensor<f32>) -> tensor<f32>
  return %new, %loss : tensor<32x32xf32>, tensor<f32>
}
func.func private @layer(%x: tensor<64x32xf32>, %w: tensor<32x32xf32>) -> tensor<64x32xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]\
 : (tensor<64x32xf32>, tensor<32x32xf32>) -> tensor<64x32xf32>
  return %y : tensor<64x32xf32>
}
"""


@dataclasses.dataclass(frozen=True)
class Sample(Pass):
    """A pass with an option of every kind."""

    name: ClassVar[str] = "sample"
    text_value: str = opt("a", "text")
    count: int = opt(1, "a number")
    deep: bool = opt(False, "a switch")


def run(text: str, pipeline: str) -> ir.Module:
    context = make_context()
    module = read_module(text.encode(), "step.mlir", context)
    build_pass_manager(pipeline, context, Remarks("step.mlir")).run(module.operation)
    return module


def shape_of(module: ir.Module) -> list[object]:
    """Everything of a module but attributes: ops in order, what they read and define, and where they are."""
    numbers: dict[ir.Value, int] = {}
    seen: list[object] = []
    for op in walk(module.operation):
        if op.name == "sdy.mesh":
            continue
        values = [*op.results, *(arg for region in op.regions for block in region for arg in block.arguments)]
        for value in values:
            numbers[value] = len(numbers)
        seen.append((op.name, str(op.location), [str(value.type) for value in values]))
    for op in walk(module.operation):
        if op.name != "sdy.mesh":
            seen.append([numbers[value] for value in op.operands])
    return seen


@pytest.mark.parametrize(
    "annotate", ["auto-shard{cluster=cpu4}", "rhino-annotate-work", "rhino-annotate-candidates{cluster=cpu4}"]
)
def test_annotating_changes_attributes_alone(annotate: str):
    before, after = run(STEP, "rhino-normalize"), run(STEP, f"rhino-normalize,{annotate}")
    assert shape_of(before) == shape_of(after)
    assert str(before) != str(after)


def test_annotating_keeps_the_attributes_that_were_there():
    assert 'loc("w")' in run(STEP, "auto-shard{cluster=cpu4}").operation.get_asm(enable_debug_info=True)
    assert "tf.aliasing_output = 0 : i32" in str(run(STEP, "auto-shard{cluster=cpu4}"))


def test_strip_leaves_nothing_of_ours():
    text = str(
        run(
            STEP,
            "rhino-normalize,rhino-annotate-work,rhino-annotate-candidates,func.func(sdy-populate-op-sharding-rules)",
        )
    )
    assert "rhino.work" in text
    assert "sdy.sharding_rule" in text
    stripped = str(
        run(STEP, "rhino-normalize,rhino-annotate-work,func.func(sdy-populate-op-sharding-rules),rhino-strip")
    )
    assert stripped == str(run(STEP, "rhino-normalize"))


def test_passes_and_pipelines_are_sorted_and_distinct():
    names = [cls.name for cls in PASSES]
    assert names == sorted(names)
    assert list(PIPELINES) == sorted(PIPELINES)
    assert len(set(known_names())) == len(known_names())


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", ()),
        ("builtin.module()", ()),
        ("rhino-normalize", (Normalize(),)),
        ("builtin.module( rhino-normalize , rhino-strip )", (Normalize(), Strip())),
        ("rhino-choose-shardings{cluster=v100x8 level=2}", (ChooseShardings(cluster="v100x8", level=2),)),
        ("rhino-choose-shardings{mesh=x=2,y=4}", (ChooseShardings(mesh="x=2,y=4"),)),
        ('rhino-choose-shardings{cluster="my machines (2).toml"}', (ChooseShardings(cluster="my machines (2).toml"),)),
        (
            "func.func(cse, canonicalize{max-iterations=3}),rhino-strip",
            ("func.func(cse, canonicalize{max-iterations=3})", Strip()),
        ),
        (
            "auto-shard{cluster=cpu2}",
            (
                Normalize(),
                OpRules(),
                PadDims(cluster="cpu2"),
                RULES,
                PinShardings(cluster="cpu2"),
                ChooseLayouts(cluster="cpu2", recompute=True),
                NO_RULES,
            ),
        ),
        ("localize", (Localize(), PackCollectives())),
    ],
)
def test_parses_and_prints_back(text: str, items: tuple[object, ...]):
    parsed = parse_pipeline(text)
    assert parsed == items
    printed = ",".join(item if isinstance(item, str) else item.text() for item in parsed)
    assert parse_pipeline(f"builtin.module({printed})") == parsed


def test_every_option_round_trips():
    sample = Sample('a "b" {c}, (d)\\', -3, True)
    text = sample.text()
    assert text.startswith("sample{text-value=")
    assert text.endswith(" count=-3 deep=true}")
    assert make_pass(Sample, read_options("sample", text[len("sample{") : -1])) == sample
    assert Strip().text() == "rhino-strip"


def test_an_option_that_is_a_pipeline_round_trips():
    first = parse_pipeline(f'{PARALLEL}{{num=2 stages=2 mesh=2 cluster=cpu4 batch="x y;z:1"}}')
    scans = next(item for item in first if isinstance(item, SplitScans))
    assert MicroBatch(num=2, batch="x y;z:1") in scans.trial
    assert parse_pipeline(scans.text()) == (scans,)
    nested = SplitScans(trial=(scans, "func.func(cse)"))
    assert parse_pipeline(nested.text()) == (nested,)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("rhino-normalise", "unknown pass 'rhino-normalise'", "did you mean rhino-normalize"),
        ("auto-shart", "unknown pass 'auto-shart'", "did you mean auto-shard"),
        ("qqqq", "unknown pass 'qqqq'", "--list-passes"),
        ("func.func(qqqq)", "unknown pass 'qqqq'", "--list-passes"),
        ("rhino-strip{deep=true}", "'rhino-strip' has no option 'deep'; its options: none", "name=value"),
        (
            "auto-shard{deep=true}",
            "'auto-shard' has no option 'deep'; its options: cluster, mesh, budget, ranks, side-by-side, rows, offload",
            "name=value",
        ),
        ("auto-shard{cluster}", "'cluster' is no option of 'auto-shard'", "name=value"),
        ("auto-shard{level=two}", "option 'level' of 'auto-shard' takes a whole number, not 'two'", "name=value"),
        ("cse,,cse", "a pass is missing between two commas", ""),
        ("func.func(cse", "')' is missing at character 14", ""),
        ("cse)", "')' closes nothing at character 4", ""),
        ('auto-shard{cluster="cpu4}', "'\"' is missing", ""),
        ("func.func(rhino-strip)", "'rhino-strip' runs on a whole module", "put it outside"),
        ("func.func(any(cse,localize))", "'localize' runs on a whole module", "put it outside"),
        ("sdy-drop-sharding-rules", "MLIR refuses 'sdy-drop-sharding-rules'", "func.func(sdy-drop-sharding-rules)"),
        ("cse{foo=1}", "MLIR refuses 'cse{foo=1}': no such option foo", ""),
    ],
)
def test_refuses(text: str, what: str, fix: str):
    with pytest.raises(RhinoError) as caught:
        build_pass_manager(text, make_context())
    assert caught.value.id == "RHI-PASS-001"
    assert what in caught.value.what
    assert fix in caught.value.fix


def test_option_values_have_their_kind():
    with pytest.raises(RhinoError, match="takes true or false, not 'yes'"):
        make_pass(Sample, {"deep": "yes"})
    with pytest.raises(RhinoError, match="takes a whole number, not '--1'"):
        make_pass(Sample, {"count": "--1"})
    assert build_named("cse", {}) is None


@pytest.mark.parametrize("remat", ["0", "0;0.0"])
def test_a_pipeline_of_stages_that_keeps_all_is_the_one_that_says_nothing_of_it(remat: str):
    said = {"stages": "2", "num": "4", "mesh": "2", "cluster": "v100x8"}
    assert build_named(PARALLEL, {**said, "remat": remat}) == build_named(PARALLEL, said)
    assert build_named(PARALLEL, {**said, "remat": "0;0.5"}) != build_named(PARALLEL, said)


def test_remarks_reach_the_caller():
    context, remarks = make_context(), Remarks("step.mlir")
    module = read_module(STEP.encode(), "step.mlir", context)
    build_pass_manager("auto-shard{cluster=cpu4}", context, remarks).run(module.operation)
    assert any(remark.pass_name == "rhino-choose-shardings" and "found by" in remark.text for remark in remarks.items)
    assert {PhaseTimes, ShardingChoice} <= remarks.results.keys()
