"""Every error that a user can see says how to fix it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FIX = 4
"""The place of `fix` among the arguments of `RhinoError`."""


def without_fix(tree):
    """The lines on which an error is made that says no fix, nor takes one over in a starred argument."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RhinoError"):
            continue
        is_given = len(node.args) > FIX or any(one.arg in ("fix", None) for one in node.keywords)
        if not is_given and not any(isinstance(one, ast.Starred) for one in node.args):
            yield node.lineno


@pytest.mark.parametrize("folder", ["ir", "strategies", "passes", "runtime", "tools", "rhino"])
def test_errors_say_how_to_fix_them(folder):
    missing = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in without_fix(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not missing
