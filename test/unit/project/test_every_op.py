"""Every op of StableHLO and CHLO is planned, or refused with a reason.

The answer is the same in every way that a plan can run it.
"""

import io
from functools import cache

import pytest
import spliced_ops
from drawn_plans import OneDevice, drawable, one_device
from every_op import CHLO, ELEMENTWISE, STABLEHLO, VARIANTS, Case
from jax.extend.mlir.dialects import chlo
from snippets import function, tensor

from rhino.ir.mlir.bindings import stablehlo
from rhino.passes.sharding.localize import localized_copy
from rhino.tools import opt as tool
from rhino.tools import run as run_tool

CASES = {
    **{f"stablehlo.{name}": case for name, case in (STABLEHLO | VARIANTS).items()},
    **{f"chlo.{name}": case for name, case in CHLO.items()},
}
ALIKE = {f"stablehlo.{name}" for name in ELEMENTWISE} | {f"chlo.{name}" for name in CHLO}
"""Element by element, or made of ops that are tested beside them: one plan will do."""
LONG = {f"chlo.{name}" for name in spliced_ops.LONG}
"""Along one axis will do."""
PLANNED = [name for name, case in CASES.items() if not case.refused]
RUN = [name for name in PLANNED if not CASES[name].not_run]


@cache
def expected(name: str) -> OneDevice:
    return one_device(CASES[name].text)


def auto_shard(case: Case, mesh: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of rhino-opt."""
    out, err = io.BytesIO(), io.StringIO()
    code = tool.run(
        ["--auto-shard", "--localize", "--cluster=cpu8", f"--mesh={mesh}"], io.BytesIO(case.text.encode()), out, err
    )
    return code, out.getvalue().decode(), err.getvalue()


@pytest.mark.parametrize(("dialect", "table"), [(stablehlo, STABLEHLO), (chlo, CHLO)], ids=["stablehlo", "chlo"])
def test_every_op_of_the_dialect_has_a_case(dialect, table):
    classes = (getattr(dialect, name) for name in dir(dialect))
    names = {
        cls.OPERATION_NAME.split(".", 1)[1]
        for cls in classes
        if isinstance(cls, type) and hasattr(cls, "OPERATION_NAME")
    }
    assert names == table.keys()
    for name, case in table.items():
        assert f"{dialect.__name__.split('.')[-1]}.{name}" in case.text or name == "return"


@pytest.mark.parametrize(
    ("name", "mesh"), [(name, mesh) for name in CASES for mesh in (["4"] if name in LONG else ["4", "2x2"])]
)
def test_every_op_is_planned_or_refused_with_a_reason(name, mesh):
    case = CASES[name]
    code, out, err = auto_shard(case, mesh)
    if not case.refused:
        assert code == 0, err
        return
    assert (code, out) == (1, "")
    head, *notes = err.splitlines()
    assert head.startswith("<stdin>:")
    assert f"error: [{case.refused}]" in head
    assert any(note.startswith("  note: to fix: ") for note in notes)


@pytest.mark.parametrize("name", RUN)
def test_a_plan_gives_the_answer_of_one_device(name):
    drawn = drawable(CASES[name].text, "4" if name in LONG else "2x2")
    plan = drawn.plan(0, "near")
    assert expected(name).difference(plan, drawn.module).passes


@pytest.mark.parametrize("name", [name for name in RUN if name not in ALIKE])
def test_every_split_of_an_op_gives_the_answer_of_one_device(name):
    """Sums that flow on have to come from somewhere: they are in the random programs."""
    nodes = drawable(CASES[name].text, "4").choice.nodes
    for number, split in [
        (number, state)
        for number, node in enumerate(nodes)
        for state in node.states
        if max(state.strategy, default=-1) >= 0
    ]:
        drawn = drawable(CASES[name].text, "4")
        op = nodes[number].number
        if drawn.program.ops[op].name == name.partition(":")[0]:
            plan = drawn.plan(0, "any", (number, nodes[number].states.index(split)))
            assert plan.ops[op] == split
            assert expected(name).difference(plan, drawn.module).passes, split


@pytest.mark.parametrize("name", [name for name in PLANNED if CASES[name].not_run])
def test_what_cannot_be_run_here_is_localized(name):
    drawn = drawable(CASES[name].text, "4")
    drawn.plan(0, "split")
    assert localized_copy(drawn.module).operation.verify()


CALLBACK = function(
    f"%0 = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a) : ({tensor((8,))}) -> {tensor((8,))}",
    {"a": tensor((8,))},
    {"0": tensor((8,))},
)
SILENT = {
    "stablehlo.custom_call": CALLBACK,
    **{f"stablehlo.{name}": STABLEHLO[name].text for name in ("infeed", "outfeed", "send", "recv", "rng")},
}


@pytest.mark.parametrize("name", SILENT)
def test_what_would_wait_for_somebody_is_not_run(name, tmp_path):
    file = tmp_path / "m.mlir"
    file.write_text(SILENT[name])
    out, err = io.StringIO(), io.StringIO()
    assert run_tool.run([str(file)], io.BytesIO(), out, err) == 1
    head, *notes = err.getvalue().splitlines()
    assert f"error: [RHI-RUN-001] '{name}'" in head
    assert notes[-1].startswith("  note: to fix: ")


def test_a_call_back_is_not_planned():
    code, _, err = auto_shard(Case(CALLBACK), "4")
    assert code == 1
    assert "error: [RHI-READ-003] 'stablehlo.custom_call' calls xla_ffi_python_cpu_callback" in err


def test_a_call_with_a_side_effect_is_planned_by_the_word_of_its_owner_alone():
    call = "%0 = stablehlo.custom_call @act(%a) {{has_side_effect = true{rule}}} : (tensor<8xf32>) -> tensor<8xf32>"
    a, rule = {"a": tensor((8,))}, ", sdy.sharding_rule = #sdy.op_sharding_rule<([i])->([i]) {i=8}>"
    code, _, err = auto_shard(Case(function(call.format(rule=""), a, {"0": tensor((8,))})), "4")
    assert code == 1
    assert (
        "error: [RHI-READ-003] 'stablehlo.custom_call' of act has a side effect: each of several devices would have it"
        in err
    )
    assert auto_shard(Case(function(call.format(rule=rule), a, {"0": tensor((8,))})), "4")[0] == 0


GATHERED = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%x: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}) -> tensor<4x8x5xf32> {
  %0 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>} : tensor<4x8x8xf32>
  %1 = stablehlo.fft %0, type = RFFT, length = [8, 8]\
 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>}
    : (tensor<4x8x8xf32>) -> tensor<4x8x5xcomplex<f32>>
  %2 = stablehlo.real %1 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"x"}, {}]>]>}
    : (tensor<4x8x5xcomplex<f32>>) -> tensor<4x8x5xf32>
  return %2 : tensor<4x8x5xf32>
}
"""


def test_an_fft_runs_between_gathers_along_an_inner_dim():
    """XLA lays what it gathers with that dim outermost, and has an fft of rows alone."""
    out, err = io.StringIO(), io.StringIO()
    assert run_tool.run(["-", "--verify"], io.BytesIO(GATHERED.encode()), out, err) == 0, err.getvalue()
