"""What is run between edits is chosen by a rule, and the rule by what modules import."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("fast", Path(__file__).resolve().parents[3] / ".ci" / "fast.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fast = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fast)


def test_decisions_are_in_it_and_what_compiles_is_not():
    names = {file.name for file in fast.unit_modules()}
    assert {"test_by_node.py", "test_reshard.py", "test_cost_model.py"} <= names
    assert not {"test_executor.py", "test_opt.py", "test_parallelize.py", "test_streams.py"} & names


@pytest.mark.parametrize("name", fast.HEAVY)
def test_what_is_left_out_would_be_in_it(name: str):
    assert fast.sees_data_alone(next(fast.UNIT.rglob(name)))


def test_each_folder_of_lit_files_gives_one():
    folders = [path.name for path in sorted(fast.LIT.iterdir()) if path.is_dir() and any(path.glob("*.mlir"))]
    assert [file.parent.name for file in fast.lit_files()] == folders
