"""`rhino-plan aot`: a plan as its compiler has it, beside what was predicted; exit code 3 over the budget."""

import io
from pathlib import Path

import pytest

from rhino.tools import opt, plan

STEP = """
func.func public @main(%w: tensor<256x256xf32> {tf.aliasing_output = 0 : i32}, %x: tensor<64x256xf32>)
    -> (tensor<256x256xf32>, tensor<64x256xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x256xf32>, tensor<256x256xf32>) -> tensor<64x256xf32>
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [0] x [0]
      : (tensor<64x256xf32>, tensor<64x256xf32>) -> tensor<256x256xf32>
  %2 = stablehlo.subtract %w, %1 : tensor<256x256xf32>
  return %2, %0 : tensor<256x256xf32>, tensor<64x256xf32>
}
"""


def run(main, *argv):
    """The exit code, and what went to stdout and stderr."""
    stdout, stderr = (io.BytesIO(), io.StringIO()) if main is opt else (io.StringIO(), io.StringIO())
    code = main.run([str(word) for word in argv], io.BytesIO(), stdout, stderr)
    text = stdout.getvalue()
    return code, text if isinstance(text, str) else text.decode(), stderr.getvalue()


@pytest.fixture
def step(tmp_path) -> Path:
    file = tmp_path / "step.mlir"
    file.write_text(STEP)
    return file


def test_a_plan_in_one_program_is_compiled_in_both_forms(step):
    path = step.with_name("plan.json")
    assert run(opt, step, "--auto-shard", "--cluster=cpu8", f"--plan={path}")[0] == 0
    code, text, _ = run(plan, "aot", path, f"--module={step}")
    lines = text.splitlines()
    assert code == 0
    assert lines[0].startswith("compiled by XLA:CPU of jaxlib ")
    assert [line.split("  ")[1] for line in lines[2:4]] == ["localized, which is run", "annotated"]
    assert lines[-1].endswith(": within the budget")


def test_a_plan_that_a_compiler_chose_is_compiled_to_the_same(step):
    path = step.with_name("plan.json")
    code, _, table = run(opt, step, "--auto-shard", "--aot", "--cluster=cpu8", f"--plan={path}")
    chosen = next(line for line in table.splitlines() if line.startswith("  *"))
    assert code == 0
    code, text, _ = run(plan, "aot", path, f"--module={step}")
    ran = next(line for line in text.splitlines() if "which is run" in line)
    assert code == 0
    memory = next(word for word in chosen.split("  ") if "iB" in word).strip()
    assert memory in ran


def test_a_plan_over_its_budget_once_compiled_says_so(step, monkeypatch):
    path = step.with_name("plan.json")
    run(opt, step, "--auto-shard", "--cluster=cpu8", f"--plan={path}")
    loaded = plan.load_proven_plan

    def smaller(path):
        from dataclasses import replace  # noqa: PLC0415 - here alone

        found = loaded(path)
        return replace(found, predicted=replace(found.predicted, budget_bytes=1024))

    monkeypatch.setattr(plan, "load_proven_plan", smaller)
    code, text, _ = run(plan, "aot", path, f"--module={step}")
    assert code == 3
    assert text.splitlines()[-1].endswith("of 1 KiB per device: over the budget")


def test_what_cannot_be_compiled_is_refused(step, monkeypatch):
    path = step.with_name("plan.json")
    run(opt, step, "--auto-shard", "--cluster=v100x8", f"--plan={path}")
    monkeypatch.setattr("rhino.tools.plan_aot.compiler_of", lambda _cluster, _mesh, by_jit: "it is not installed")
    code, _, errors = run(plan, "aot", path, f"--module={step}")
    assert code == 1
    assert "[RHI-AOT-002] the plan cannot be compiled: it is not installed" in errors
