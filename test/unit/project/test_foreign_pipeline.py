"""Our passes live in a pass manager that is not ours, and `import rhino` gives what that takes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import foreign_pipeline
import jax
import pytest
from planning import plan_step, reference
from traffic import splitting_cluster
from training import export_step
from zoo import ZOO

import rhino
from rhino.ir.mlir.bindings import func, ir, run_pipeline
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.mlir.shardings import SHARDING
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.runtime.executor.executable import compile_module

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def step() -> bytes:
    return export_step(ZOO["mlp"]).encode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("cluster") / "splitting.toml"
    file.write_text(splitting_cluster(), encoding="utf-8")
    return str(file)


def boundary(entry: func.FuncOp) -> list[str]:
    """The shardings of arguments and results, as text."""
    return [
        str(ir.DictAttr(one)[SHARDING])
        for side in ("arg_attrs", "res_attrs")
        for one in ir.ArrayAttr(entry.attributes[side])
    ]


class TestPipeline:
    def test_shardy_keeps_what_was_chosen(self, step: bytes, cluster: str):
        module, remarks = foreign_pipeline.shard(step, "step.mlir", cluster)
        chosen = boundary(entry_function(plan_step(step, "step.mlir", cluster).annotated))
        assert boundary(entry_function(module)) == chosen
        assert sum('{"x"}' in text for text in chosen) > 10
        assert remarks.result(ShardingChoice).plan.graph.num_ops > 0

    def test_changes_of_sharding_are_ops_and_nothing_of_ours_is_left(self, step: bytes, cluster: str):
        module, _ = foreign_pipeline.shard(step, "step.mlir", cluster)
        names = {op.name for op in walk(module.operation)}
        assert "sdy.all_reduce" in names
        assert "sdy.reshard" in names
        assert "rhino." not in str(module)
        assert "sdy.sharding_rule" not in str(module)

    def test_lowered_by_shardy_the_answer_is_that_of_one_device(self, step: bytes, cluster: str):
        module, _ = foreign_pipeline.shard(step, "step.mlir", cluster)
        run_pipeline(module, "func.func(sdy-reshard-to-collectives),sdy-convert-global-to-local")
        executable = compile_module(wrap_manual(module), jax.devices())
        assert any(not sharding.is_fully_replicated for sharding in executable.in_shardings)
        assert reference(step, "step.mlir", 2).difference(executable).passes

    def test_mlir_prints_after_our_passes_as_after_its_own(self, step: bytes, tmp_path: Path):
        file = tmp_path / "step.mlir"
        file.write_bytes(step)
        command = [sys.executable, foreign_pipeline.__file__, file, "--print-ir-after-all", "-o", tmp_path / "out.mlir"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        printed = re.findall(r"IR Dump After (\S+):", done.stderr)
        ours = [name for name in printed if name.startswith("rhino-")]
        assert ours == ["rhino-normalize", "rhino-choose-shardings", "rhino-strip"]
        assert printed.index("rhino-normalize") < printed.index("CSEPass") < printed.index("rhino-choose-shardings")
        assert printed.index("rhino-choose-shardings") < printed.index("UserPriorityPropagationPass")
        assert "func.func public @main" in (tmp_path / "out.mlir").read_text()

    def test_our_errors_come_out_as_they_are(self, step: bytes):
        with pytest.raises(rhino.RhinoError, match="RHI-CLUSTER-001"):
            foreign_pipeline.shard(step, "step.mlir", "v100x9")

    def test_the_command_reports_them(self, step: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
        file = tmp_path / "step.mlir"
        file.write_bytes(step)
        assert foreign_pipeline.run([str(file), "--cluster=v100x9"]) == 1
        assert "[RHI-CLUSTER-001]" in capsys.readouterr().err


class TestPublicNames:
    def declared(self) -> dict[str, str]:
        """What type checkers see: each name with the module that it is imported from."""
        tree = ast.parse((ROOT / "rhino" / "__init__.py").read_text())
        imports = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rhino.")
        ]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def test_every_name_that_type_checkers_see_is_there(self):
        for name, home in self.declared().items():
            assert getattr(rhino, name) is getattr(sys.modules[home], name)
            assert name in dir(rhino)

    def test_no_other_name_is(self):
        assert set(rhino._HOME_OF) == set(self.declared())
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = rhino.nothing

    @pytest.mark.parametrize(
        ("imports", "unwanted"),
        [
            (
                "rhino.runtime.executor.executable, rhino.runtime.executor.steps, rhino.runtime.executor.compare",
                ("rhino.passes", "rhino.strategies"),
            ),
            ("rhino.tools.opt", ("jax.", "scipy.", "ortools.")),
        ],
        ids=["a plan runs without the planner", "rhino-opt starts without what only some commands need"],
    )
    def test_what_is_not_needed_is_not_loaded(self, imports: str, unwanted: tuple[str, ...]):
        program = f"import sys, {imports}; print([m for m in sys.modules if m.startswith({unwanted})])"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
