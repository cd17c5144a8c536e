"""Write the figures of pages from the commands that give them.

    python docs/figures.py [PAGE ...]            runs the commands of these pages, or of all, and writes what they print
    python docs/figures.py --check [PAGE ...]    lists the figures that are out of date; exits with 1 if there are any

In a page a command stands before what it prints, and `<!-- end -->` behind that:

    <!-- from: python bench/traffic.py pad -->
    ...
    <!-- end -->

It is run by bash at the root of the repository, with the tools of this Python first on the path; `$OUT` is an empty
folder of its own. Commands are to print the same on every machine: what is predicted. What is measured has a date, and
stands in bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_BLOCK: Final = re.compile(r"(?ms)^<!-- from: (.+?) -->\n(.*?)^<!-- end -->$")


def pages(root: Path = ROOT) -> list[Path]:
    """Returns the pages that hold figures of commands."""
    return [
        page
        for page in sorted([*root.glob("*.md"), *root.glob("[!.]*/*.md")])
        if _BLOCK.search(page.read_text(encoding="utf-8"))
    ]


def printed(command: str, root: Path = ROOT) -> str:
    """Returns what a command prints, as Markdown: a table as it is, other text as an example.

    Raises:
        subprocess.CalledProcessError: where the command fails.
    """
    with tempfile.TemporaryDirectory() as out:
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "OUT": out, "PATH": tools, "JAX_PLATFORMS": "cpu"}
        script = ["bash", "-e", "-o", "pipefail", "-c", command]
        done = subprocess.run(script, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    lines = [
        line if line.startswith("|") or not line else f"    {line}" for line in done.stdout.strip("\n").splitlines()
    ]
    return "\n" + "\n".join(lines) + "\n\n"


def written(text: str, root: Path = ROOT) -> str:
    """Returns a page with all its figures as commands print them now."""
    return _BLOCK.sub(lambda block: f"<!-- from: {block[1]} -->\n{printed(block[1], root)}<!-- end -->", text)


def stale(page: Path, root: Path = ROOT) -> Iterator[str]:
    """Yields the commands of a page that print something else than it says."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block[2] != printed(block[1], root):
            yield block[1]


def main(argv: Sequence[str]) -> int:
    """Writes the figures, or checks them; returns 1 if some were found stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="list the figures that are out of date")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="of these pages; of all by default")
    options = parser.parse_args(argv)
    asked = [Path(name).resolve() for name in options.pages] or pages()
    if not options.check:
        for page in asked:
            page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    wrong = [(page, command) for page in asked for command in stale(page)]
    for page, command in wrong:
        where = page.relative_to(ROOT)
        print(f"{where} has not the figures that `{command}` prints; to fix: python docs/figures.py {where}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
