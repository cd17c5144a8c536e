"""Build the documentation as HTML, and check it: every link finds its page and heading, and every page can be found.

    python docs/pages.py [FOLDER]      writes build/docs/, or FOLDER; exits with 1 if something is wrong

The pages are all Markdown files of the repository. Links to files and to headings are followed; those to other hosts
are not. The reference pages have to be what the code says (`docs/generate.py`).
"""

from __future__ import annotations

import argparse
import html
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import generate
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parent.parent
FIRST: Final = "README.md"
FOLDERS: Final = (".", "bench", "docs", "docs/reference", "examples")
PARSER: Final = MarkdownIt("commonmark").enable("table")
STYLE: Final = (
    "body{max-width:60em;margin:2em auto;padding:0 1em;font:16px/1.5 sans-serif}code,pre{font:14px/1.4 monospace}"
    "pre{background:#f4f4f4;padding:.8em;overflow:auto}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.2em .6em}"
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path from the root, its tokens and its anchors.

    `headings` are the anchors of headings by their index among the tokens, `set_by_hand` those that the text itself
    sets.
    """

    path: str
    tokens: tuple[Token, ...]
    headings: Mapping[int, str]
    set_by_hand: tuple[str, ...]

    @property
    def title(self) -> str:
        """The first heading."""
        return next((words(self.tokens[place + 1]) for place in self.headings), self.path)

    @property
    def anchors(self) -> tuple[str, ...]:
        """What a link may lead to."""
        return (*self.headings.values(), *self.set_by_hand)


def words(heading: Token) -> str:
    """Returns the words of a heading, without what is only HTML."""
    return "".join(child.content for child in heading.children or () if child.type in ("text", "code_inline"))


def slug(heading: str) -> str:
    """Returns the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def read_page(root: Path, path: str) -> Page:
    """Returns the page in the file at `path`; of headings that are alike, the later ones get a number."""
    text = (root / path).read_text(encoding="utf-8")
    tokens = PARSER.parse(text)
    headings: dict[int, str] = {}
    seen: Counter[str] = Counter()
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            anchor = slug(words(tokens[place + 1]))
            headings[place] = f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
            seen[anchor] += 1
    return Page(path, tuple(tokens), headings, tuple(re.findall(r'<a name="([^"]+)">', text)))


def read_pages(root: Path) -> dict[str, Page]:
    """Returns every page by its path from the root."""
    files = sorted(file for folder in FOLDERS for file in (root / folder).glob("*.md"))
    return {path: read_page(root, path) for path in (file.relative_to(root).as_posix() for file in files)}


def links(page: Page) -> Iterator[tuple[Token, str, str]]:
    """Yields the links to other files and headings: the token, the path from the root, and the anchor."""
    for token in page.tokens:
        for child in token.children or ():
            target = str(child.attrGet("href") or "")
            if child.type == "link_open" and not re.match(r"[a-z]+:", target):
                path, _, anchor = target.partition("#")
                whole = os.path.normpath(os.path.join(os.path.dirname(page.path), path)) if path else page.path
                yield child, Path(whole).as_posix(), anchor


def find(pages: Mapping[str, Page], path: str) -> str:
    """Returns the page that stands for a path: of a folder, its README."""
    return path if path in pages else Path(path, FIRST).as_posix()


def faults(root: Path, pages: Mapping[str, Page]) -> Iterator[str]:
    """Yields a sentence for each link that leads nowhere, and for each page that no page leads to."""
    reached = {FIRST}
    for page in pages.values():
        for _, path, anchor in links(page):
            reached.add(found := find(pages, path))
            if not (root / path).exists():
                yield f"{page.path}: no file {path}"
            elif anchor and (found not in pages or anchor not in pages[found].anchors):
                yield f"{page.path}: no heading #{anchor} in {path}"
    yield from (f"{path}: no page links to it" for path in pages if path not in reached)


def render(page: Page, pages: Mapping[str, Page]) -> str:
    """Returns the page as HTML, its links turned to the HTML of other pages."""
    for place, anchor in page.headings.items():
        page.tokens[place].attrSet("id", anchor)
    for token, path, anchor in links(page):
        if (found := find(pages, path)) in pages:
            target = Path(os.path.relpath(found, os.path.dirname(page.path))).with_suffix(".html").as_posix()
            token.attrSet("href", f"{target}#{anchor}" if anchor else target)
    body = PARSER.renderer.render(page.tokens, PARSER.options, {})
    return (
        f"<!doctype html>\n<meta charset=utf-8>\n<title>{html.escape(page.title)}</title>\n"
        f"<style>{STYLE}</style>\n{body}"
    )


def build(root: Path, folder: Path) -> list[str]:
    """Writes every page into `folder`; returns what is wrong."""
    pages = read_pages(root)
    wrong = list(faults(root, pages))
    for path, page in pages.items():
        file = (folder / path).with_suffix(".html")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render(page, pages), encoding="utf-8")
    return wrong


def main(argv: Sequence[str]) -> int:
    """Builds and checks; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "docs", help="where to write")
    wrong = build(ROOT, parser.parse_args(argv).folder)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(generate.main(["--check"]) or wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
