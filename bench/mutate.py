"""Change a module in small ways, one at a time, and see which changes its tests do not notice.

    python bench/mutate.py MODULE TEST... [--budget=30] [--seed=0] [--limit=SECONDS]

MODULE is a file as strategies/cost/cost_model.py, each TEST what pytest takes. A mutant has one comparison, boolean,
arithmetic operator, min or max, or condition turned into another, a number one more, or a statement left out;
`--budget` of them are drawn by `--seed`. Each is tested in a copy of the repository, never in the working tree, until a
test fails or the limit is reached (then it does not end, and has been noticed too). A survivor is a test that is
missing, or a change that makes no difference: which it is, a reader has to tell.

Exit code: 0 if every mutant was noticed, 1 if one survived, 2 if the tests fail as it is or do not load the module.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_LEFT_OUT: Final = (
    ".git",
    ".venv*",
    "__pycache__",
    "build",
    "*.egg-info",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
)

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_SWAPPED: Final = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "reversed": "list",
}

_LEAST_S: Final = 30.0
_TIMES: Final = 5
"""A mutant's tests may take so many times what they take without one, and this many seconds at least, for processors
are shared."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change: its text, the line of the change, and what became of what."""

    text: str
    line: int
    before: str
    after: str


def mutants(text: str) -> list[Mutant]:
    """Returns every mutant of a module's text, in order of place."""
    tree = ast.parse(text)
    skipped = {id(part) for node in ast.walk(tree) for one in _unread(node) for part in ast.walk(one)}
    offsets = [0]
    for line in text.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    found = []
    for node in ast.walk(tree):
        if id(node) not in skipped:
            found += [_spliced(text, offsets, *change) for change in _changes(node)]
    return sorted(found, key=lambda one: (one.line, one.before, one.after))


def _unread(node: ast.AST) -> Iterator[ast.AST]:
    """Yields parts of a node that say nothing at run time: annotations."""
    for name in ("annotation", "returns"):
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            yield part


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yields what of a node may be replaced, and by which text."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in _COMPARISONS:
            yield node, _text(node, ops=[_COMPARISONS[type(one)]()])
        case ast.BoolOp(op=joined):
            yield node, _text(node, op=ast.Or() if isinstance(joined, ast.And) else ast.And())
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            yield node, _text(node, op=_OPERATORS[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Name(id=name, ctx=ast.Load()) if name in _SWAPPED:
            yield node, _SWAPPED[name]
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in _SWAPPED:
            yield node, _text(node, attr=_SWAPPED[name])
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            yield node, str(number + 1)
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, "True"
            yield test, "False"
        case ast.comprehension(ifs=tests):
            yield from ((test, "True") for test in tests)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue():
            yield node, "pass"


def _text(node: ast.expr | ast.stmt, **fields: object) -> str:
    """Returns a node's text with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.unparse(other) if isinstance(other, ast.stmt) else f"({ast.unparse(other)})"


def _spliced(text: str, offsets: Sequence[int], node: ast.expr | ast.stmt, after: str) -> Mutant:
    """Returns the text with a node replaced."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    first, last = offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset
    source = text.encode()
    before = source[first:last].decode()
    changed = (source[:first] + after.encode() + source[last:]).decode()
    return Mutant(changed, node.lineno, " ".join(before.split()), after)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a repository in which a module's tests run."""

    root: Path
    module: str
    tests: tuple[str, ...]

    def passes(self, text: str, limit_s: float | None = None) -> bool:
        """Says whether the tests pass with the module as given; what does not end in time does not."""
        (self.root / self.module).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.tests]
        # A module and its mutant may be of one size and one second: bytecode of the one would be taken for the other's.
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "JAX_PLATFORMS": "cpu",
        }
        try:
            return (
                subprocess.run(command, cwd=self.root, env=environment, capture_output=True, timeout=limit_s).returncode
                == 0
            )
        except subprocess.TimeoutExpired:
            return False


def copied(root: Path, into: Path, module: str, tests: Sequence[str]) -> Copy:
    """Returns a copy of a repository, whose packages lie under the names that they are imported by."""
    place = into / "copy"
    shutil.copytree(root, place, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
    link_packages(place)
    return Copy(place, module, tuple(tests))


def link_packages(place: Path) -> None:
    """Links the packages of a repository under the names that they are imported by."""
    settings = place / "pyproject.toml"
    table = tomllib.loads(settings.read_text(encoding="utf-8")) if settings.exists() else {}
    packages = table.get("tool", {}).get("setuptools", {}).get("package-dir", {})
    for name, folder in sorted(packages.items()):
        link = place.joinpath(*name.split("."))
        if not link.exists():
            link.symlink_to(place / folder)


def run(argv: Sequence[str], root: Path = ROOT) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("module", metavar="MODULE")
    parser.add_argument("tests", metavar="TEST", nargs="+")
    parser.add_argument("--budget", type=int, default=30, metavar="N", help="how many mutants at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="for the tests of one mutant; default: five times what they take"
    )
    options = parser.parse_args(argv)
    text = (root / options.module).read_text(encoding="utf-8")
    every = mutants(text)
    drawn = random.Random(options.seed).sample(every, min(options.budget, len(every)))
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(root, Path(folder), options.module, options.tests)
        begun = time.monotonic()
        if not tree.passes(text):
            print("the tests fail without a mutant", file=sys.stderr)
            return 2
        limit_s = options.limit or max(_LEAST_S, _TIMES * (time.monotonic() - begun))
        if tree.passes("raise ImportError\n", limit_s):
            print(f"the tests do not load {options.module}", file=sys.stderr)
            return 2
        survivors = 0
        for one in sorted(drawn, key=lambda one: one.line):
            if tree.passes(one.text, limit_s):
                survivors += 1
                print(f"{options.module}:{one.line}: survived: {one.before} -> {one.after}", flush=True)
    print(
        f"{len(drawn)} of {len(every)} mutants of {options.module}: {len(drawn) - survivors} noticed, "
        f"{survivors} survived"
    )
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
