"""Mutants are one change each and are still Python; what tests do not notice survives, in a copy of the repository."""

import ast

import pytest
from mutate import mutants, run

MODULE = '''"""A module."""

def least(values: list[int] | None, most: int = 3) -> int:
    """Returns the least of at most so many values."""
    found = 0
    for value in values or []:
        if not value or value == most:
            continue
        found += min(value, most - 1)
    return found if found < 9 else 2 * found
'''

CHANGES = [
    ("3", "4"),
    ("0", "1"),
    ("values or []", "(values and [])"),
    ("not value or value == most", "True"),
    ("not value or value == most", "False"),
    ("not value or value == most", "(not value and value == most)"),
    ("not value", "(value)"),
    ("value == most", "(value != most)"),
    ("continue", "pass"),
    ("found += min(value, most - 1)", "found -= min(value, most - 1)"),
    ("found += min(value, most - 1)", "pass"),
    ("min", "max"),
    ("most - 1", "(most + 1)"),
    ("1", "2"),
    ("found < 9", "True"),
    ("found < 9", "False"),
    ("found < 9", "(found <= 9)"),
    ("9", "10"),
    ("2 * found", "(2 // found)"),
    ("2", "3"),
]


def test_every_change_is_made_once():
    """None in what is not run: annotations and docstrings."""
    found = mutants(MODULE)
    assert sorted((one.before, one.after) for one in found) == sorted(CHANGES)
    assert len({one.text for one in found} | {MODULE}) == len(found) + 1
    for one in found:
        ast.parse(one.text)
        lines = zip(MODULE.splitlines(), one.text.splitlines(), strict=True)
        assert [number for number, (old, new) in enumerate(lines, 1) if old != new] == [one.line]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "picked.py").write_text("def picked(a, b):\n    return max(a, b)\n")
    (tmp_path / "test_weak.py").write_text(
        "from picked import picked\n\ndef test_it():\n    assert picked(2, 2) == 2\n"
    )
    (tmp_path / "test_strong.py").write_text(
        "from picked import picked\n\ndef test_it():\n    assert picked(2, 3) == 3\n"
    )
    (tmp_path / "test_other.py").write_text("def test_it():\n    pass\n")
    return tmp_path


@pytest.mark.parametrize(
    ("test", "code", "says"),
    [
        ("test_weak.py", 1, "picked.py:2: survived: max -> min\n1 of 1 mutants of picked.py: 0 noticed, 1 survived\n"),
        pytest.param(
            "test_strong.py", 0, "1 of 1 mutants of picked.py: 1 noticed, 0 survived\n", marks=pytest.mark.long
        ),
        ("test_other.py", 2, ""),
    ],
)
def test_what_no_test_notices_survives(project, capsys, test, code, says):
    before = {path: path.read_text() for path in project.iterdir()}
    assert run(["picked.py", test], project) == code
    assert capsys.readouterr().out == says
    assert {path: path.read_text() for path in project.iterdir()} == before
