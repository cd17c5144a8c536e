"""The check of the documentation finds what is broken, and links lead to the same place in the HTML."""

import subprocess
from pathlib import Path

import aot_chart
import figures
import generate
import pages
import pytest

from rhino.passes.base import option_texts
from rhino.passes.registry import PASSES, PIPELINES

PAGES = {
    "README.md": (
        "# Start\n\n[one](docs/one.md#twice-1) [gone](docs/gone.md) [no](docs/one.md#three) [away](https://x.org) "
        "[f](LICENSE)\n"
    ),
    "docs/one.md": (
        "# One, `two`\n\n## Twice\n\n## Twice\n\n<a name='x'></a>Set\n\n"
        "[top](#one-two) [up](../README.md#start) [x](#y)\n"
    ),
    "docs/alone.md": "# Alone\n\n```sh\n[not a link](nowhere.md)\n```\n",
    "LICENSE": "",
}


def write(root: Path) -> None:
    for path, text in PAGES.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text.replace("'", '"'))


def test_what_is_broken_is_found(tmp_path: Path):
    write(tmp_path)
    assert list(pages.faults(tmp_path, pages.read_pages(tmp_path))) == [
        "README.md: no file docs/gone.md",
        "README.md: no heading #three in docs/one.md",
        "docs/one.md: no heading #y in docs/one.md",
        "docs/alone.md: no page links to it",
    ]


def test_links_lead_on_in_html(tmp_path: Path):
    write(tmp_path)
    assert len(pages.build(tmp_path, tmp_path / "out")) == 4
    first, one = ((tmp_path / "out" / name).read_text() for name in ("README.html", "docs/one.html"))
    assert '<a href="docs/one.html#twice-1">' in first
    assert '<h2 id="twice-1">' in one
    assert '<a name="x">' in one
    assert '<a href="../README.html#start">' in one
    assert "<title>One, two</title>" in one


@pytest.mark.parametrize("name", PIPELINES)
def test_an_option_of_a_pipeline_is_described_by_its_own_text_or_by_that_of_every_pass_that_has_it(name: str):
    one = PIPELINES[name]
    written = "\n".join(generate.pipeline(name, one))
    for option, (default, help) in one.options().items():
        assert one.own.get(option, (default, help)) == (default, help)
        others = {option_texts(cls)[option] for cls in one.takes if option in option_texts(cls)}
        assert option in one.own or others == {(default, help)}
        assert f"| `{option}` | {generate.code(default)} | {generate.text(help)} |" in written
    assert set(one.own) <= set(one.options())


def test_an_option_of_a_pass_is_described_by_its_own_text():
    written = "\n".join(generate.passes()).partition("## Single passes")[2]
    for cls in PASSES:
        section = written.partition(f"### {cls.name}\n")[2].partition("\n### ")[0]
        assert all(
            f"| `{name}` | {generate.code(default)} | {generate.text(help)} |" in section
            for name, (default, help) in option_texts(cls).items()
        )


def test_a_pipeline_without_a_recomputation_pass_keeps_everything_as_its_page_says():
    """The pass takes 0 for `keep` where nothing is said; the pipelines that have the option do not run it then."""
    default, help = PIPELINES["auto-shard"].options()["remat"]
    assert (default, "empty recomputes nothing" in help) == ("", True)
    names = [item if isinstance(item, str) else item.name for item in PIPELINES["auto-shard"].build({})]
    assert "rhino-remat" not in names


FIGURES = (
    "# One\n\n<!-- from: printf 'a | b\\n'; printf '| c |\\n' -->\nold\n<!-- end -->\n\nText\n\n"
    "<!-- from: echo d -->\n<!-- end -->\n"
)


def test_figures_are_what_their_commands_print(tmp_path: Path):
    page = tmp_path / "one.md"
    page.write_text(FIGURES)
    assert figures.pages(tmp_path) == [page]
    assert [command.split()[0] for command in figures.stale(page, tmp_path)] == ["printf", "echo"]
    page.write_text(new := figures.written(FIGURES, tmp_path))
    assert "-->\n\n    a | b\n| c |\n\n<!-- end -->\n\nText\n" in new
    assert "-->\n\n    d\n\n<!-- end -->\n" in new
    assert not [*figures.stale(page, tmp_path)]
    page.write_text(new.replace("    d\n", "    e\n"))
    assert [*figures.stale(page, tmp_path)] == ["echo d"]


def test_figures_of_a_command_that_fails_are_no_figures(tmp_path: Path):
    with pytest.raises(subprocess.CalledProcessError):
        figures.printed("false | cat", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: page.name)
def test_the_figures_of_pages_are_not_stale(page: Path):
    assert not [*figures.stale(page)]


def test_a_chart_has_a_point_for_each_localized_plan_that_was_compiled():
    row = {"cluster": "v5e-8", "form": "localized", "predicted_s": 1e-3, "compiled_s": 2e-3}
    row |= {"predicted_bytes": 1 << 20, "compiled_bytes": 1 << 21}
    refused = row | {"compiled_s": None, "compiled_bytes": None}
    drawn = aot_chart.chart([row, row | {"cluster": "h100x8"}, row | {"form": "annotated"}, refused])
    # two panels, each with two plans and two clusters
    assert drawn.count("<circle") == 2 * (2 + 2)
    assert "2 MiB" not in drawn.split("peak of a device")[0]
