"""The check of the documentation finds what is broken, and links lead to the same place in the HTML."""

from pathlib import Path

import pages

PAGES = {
    "README.md": "# Start\n\n[one](docs/one.md#twice-1) [gone](docs/gone.md) [no](docs/one.md#three) [away](https://x.org) [f](LICENSE)\n",
    "docs/one.md": "# One, `two`\n\n## Twice\n\n## Twice\n\n<a name='x'></a>Set\n\n[top](#one-two) [up](../README.md#start) [x](#y)\n",
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
