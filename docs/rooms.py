"""Draw how the rooms of the code depend on one another, and write what is in each, into docs/architecture.md.

    python docs/rooms.py            writes docs/rooms.svg and the table of rooms
    python docs/rooms.py --check    says whether they are up to date; exit code 1 if not

A room is a folder below `ir/`, `strategies/`, `passes/` or `runtime/`. What it is for stands in its `__init__.py`, the
lines are read from the imports; `ROOMS` alone is written here. `test/unit/project/test_imports.py` holds imports to it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "ir": ("request", "graph", "hlo", "cluster", "plan", "mlir", "calls", "program"),
    "strategies": (
        "solver",
        "cost",
        "structure",
        "layout",
        "choice",
        "memory",
        "microbatch",
        "remat",
        "sharding",
        "pipeline",
        "precision",
        "autotune",
    ),
    "passes": ("frontend", "precision", "sharding", "layout", "pipeline", "attention", "analysis", "planner"),
    "runtime": ("executor", "aot", "profile", "distributed"),
}
"""The rooms of each folder, in an order in which each imports of its own folder only from rooms before it."""

PLAIN: Final = ("request", "graph", "hlo", "cluster", "plan")
"""The rooms of `ir/` in which nothing is of MLIR."""

SVG: Final = ROOT / "docs" / "rooms.svg"
PAGE: Final = ROOT / "docs" / "architecture.md"
_BEGIN, _END = "<!-- rooms -->\n", "<!-- end of rooms -->\n"

_WIDTH, _HEIGHT, _GAP, _MARGIN, _LANE = 150, 30, 12, 24, 9


def files(folder: str, room: str) -> list[Path]:
    """Returns the modules of a room."""
    return sorted((ROOT / folder / room).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the folders and rooms that a module imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rhino."):
            parts = [*node.module.split("."), *(alias.name for alias in node.names[:1])]
            if parts[1] in ROOMS and parts[2] in ROOMS[parts[1]]:
                yield parts[1], parts[2]


def neighbours(folder: str) -> dict[str, set[str]]:
    """Returns for each room of a folder which others of it that one imports from."""
    return {
        room: {
            other for path in files(folder, room) for top, other in imported(path) if top == folder and other != room
        }
        for room in ROOMS[folder]
    }


def direct(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Returns the edges that do not follow from others."""

    def beyond(room: str) -> set[str]:
        return {far for near in edges[room] for far in {near, *beyond(near)}}

    return {
        room: {near for near in found if not any(near in beyond(other) for other in found)}
        for room, found in edges.items()
    }


def about(folder: str, room: str) -> tuple[str, str]:
    """Returns what a room is for, and what comes in and goes out."""
    text = ast.get_docstring(ast.parse((ROOT / folder / room / "__init__.py").read_text(encoding="utf-8"))) or ""
    first, _, rest = text.partition("\n\n")
    return " ".join(first.split()), " ".join(rest.split())


def drawing() -> str:
    """Returns the drawing: a column for each folder, its rooms from left to right of the imports downwards."""
    boxes, lines = [], []
    height = _MARGIN * 2 + 30 + max(map(len, ROOMS.values())) * (_HEIGHT + _GAP)
    for column, (folder, rooms) in enumerate(ROOMS.items()):
        x = _MARGIN + column * (_WIDTH + 90)
        at = {room: _MARGIN + 30 + row * (_HEIGHT + _GAP) for row, room in enumerate(rooms)}
        boxes.append(f'<text x="{x}" y="{_MARGIN + 12}" class="folder">{folder}/</text>')
        for room, y in at.items():
            num = len(files(folder, room))
            boxes.append(
                f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="4">'
                f"<title>{escape(about(folder, room)[0])}</title></rect>"
            )
            boxes.append(
                f'<text x="{x + 10}" y="{y + 20}">{room}</text>'
                f'<text x="{x + _WIDTH - 8}" y="{y + 20}" class="num">{num}</text>'
            )
        for room, found in direct(neighbours(folder)).items():
            for other in sorted(found):
                start, end, reach = (
                    at[room] + _HEIGHT / 2,
                    at[other] + _HEIGHT / 2,
                    _LANE * (1 + rooms.index(room) - rooms.index(other)),
                )
                edge = x + _WIDTH
                lines.append(f'<path d="M{edge} {start} C{edge + reach} {start} {edge + reach} {end} {edge} {end}"/>')
    width = _MARGIN * 2 + len(ROOMS) * (_WIDTH + 90)
    style = (
        "text{font:13px sans-serif;fill:#222}.folder{font-weight:bold}.num{fill:#888;text-anchor:end}"
        "rect{fill:#eef3f8;stroke:#5b7fa3}path{fill:none;stroke:#5b7fa3;opacity:.7}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"<style>{style}</style>", *lines, *boxes, "</svg>", ""])


def table() -> str:
    """Returns the table of rooms, in the order of the drawing."""
    rows = ["| Room | What it answers | In and out |", "| --- | --- | --- |"]
    for folder, rooms in ROOMS.items():
        for room in rooms:
            what, flow = about(folder, room)
            rows.append(f"| `{folder}/{room}/` | {what} | {flow} |")
    return "\n".join([*rows, ""])


def main(argv: list[str]) -> int:
    """Writes the drawing and the table, or says whether they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if one is stale")
    options = parser.parse_args(argv)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    wanted = {PAGE: f"{before}{_BEGIN}\n{table()}\n{_END}{after}", SVG: drawing()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        print(
            "\n".join(f"stale: {path.relative_to(ROOT)}; run docs/rooms.py" for path in stale),
            end="\n" if stale else "",
        )
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
