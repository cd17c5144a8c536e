"""Every dim of every op splits, or something says why not; and the page of splits says so."""

from pathlib import Path

import pytest
import splits
from indexed_forms import MESHES, try_form
from window_forms import KINDS, draw_form

PAGE = Path(__file__).resolve().parents[3] / "docs" / "splits.md"


@pytest.fixture(scope="module")
def rows():
    return list(splits.rows(splits.Options()))


def test_a_dim_that_is_whole_has_a_reason(rows):
    assert [*splits.faults(rows)] == []


def test_every_form_of_every_op_stands_in_the_table_once(rows):
    assert sorted(op for row in rows for op in row.ops) == sorted(splits.CASES)


def test_the_page_says_how_ops_split(rows):
    """What loses a split changes its row: the page has to be written again, and says so."""
    cells = ([cell(row) for cell in splits.QUESTION.columns.values()] for row in rows)
    table = [f"| {' | '.join(row)} |" for row in cells]
    written = PAGE.read_text(encoding="utf-8")
    assert [row for row in table if row not in written] == []


def test_a_missing_reason_is_told(monkeypatch):
    monkeypatch.delitem(splits.REASONS, "stablehlo.cholesky")
    monkeypatch.setattr(splits, "CASES", {name: splits.CASES[name] for name in ("stablehlo.cholesky", "stablehlo.fft")})
    assert "stablehlo.cholesky: a dim is whole, and nothing says why" in [
        *splits.faults(list(splits.rows(splits.Options())))
    ]


# Of each kind one on one axis and one on two; 242 to 270 are on three axes.
@pytest.mark.parametrize("seed", [*range(9, 18), *range(45, 54)])
def test_every_split_of_a_drawn_window_gives_the_answer_of_one_device(seed):
    mesh = MESHES[seed // len(KINDS) % len(MESHES)]
    passes, line = try_form(draw_form(seed), seed, mesh)
    assert passes, line


def test_windows_that_count_what_they_start_from_as_nothing_outside_give_the_answer_of_one_device():
    form = draw_form(22)
    assert "dense<0.5>" in form.text
    passes, line = try_form(form, 22, MESHES[0])
    assert passes, line
