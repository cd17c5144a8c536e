"""Every lit test checks something, and says what.

Every pass has a test that passes and, if it has errors, one that fails. A CHECK line that no run reads, or an
`expected-error` that nothing verifies, is a test that cannot fail.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rhino.passes.base import Pass
from rhino.passes.registry import PASSES

LIT = Path(__file__).resolve().parents[2] / "lit"
TESTS = sorted(path for suffix in (".mlir", ".test") for path in LIT.rglob(f"*{suffix}") if "Inputs" not in path.parts)

RUN = re.compile(r"^\s*(?://|#)\s*RUN:(.*)$")
# A prefix is any capitalised word that a colon follows in a comment, so that a misspelt `CHECK-NXT:` counts as one that
# nobody reads.
PREFIX = re.compile(
    r"(?://|#)\s*(?!RUN:|REQUIRES:|UNSUPPORTED:|XFAIL:)([A-Z][A-Z0-9_-]*?)(?:-(?:LABEL|NEXT|SAME|DAG|NOT|EMPTY|COUNT-\d+))?(?:\{LITERAL\})?:"
)
EXPECTED = re.compile(r"(?://|#)\s*expected-(?:error|warning|remark|note)")
FILECHECK = re.compile(r"\|\s*filecheck\b([^|&;]*)")
PREFIX_OPTION = re.compile(r"--?check-prefix(?:es)?[= ](\S+)")
SENTENCE = re.compile(r"^\s*(?://|#) [A-Z`].*\w.* .*\w")
ERROR_ID = re.compile(r"\bRHI-[A-Z]+-\d{3}\b")


def run_commands(text: str) -> list[str]:
    """The RUN lines, a line that ends in a backslash joined to the next."""
    lines = [match[1].strip() for match in map(RUN.match, text.splitlines()) if match]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def used_prefixes(text: str) -> set[str]:
    return {match[1] for line in text.splitlines() if not RUN.match(line) for match in [PREFIX.search(line)] if match}


def read_prefixes(commands: list[str]) -> set[str]:
    """The prefixes that some run pipes into filecheck for."""
    read = set()
    for command in commands:
        for options in FILECHECK.findall(command):
            named = {prefix for value in PREFIX_OPTION.findall(options) for prefix in value.split(",")}
            read |= named or {"CHECK"}
    return read


def has_sentence(text: str) -> bool:
    """Whether the line after the last RUN line starts a comment that ends, here or lines later, with a full stop."""
    lines = text.splitlines()
    last_run = max((number for number, line in enumerate(lines) if RUN.match(line)), default=-1)
    comment = []
    for line in lines[last_run + 1 :]:
        if not re.match(r"^\s*(?://|#) ", line):
            break
        comment.append(line.rstrip())
    return (
        bool(comment) and SENTENCE.match(comment[0]) is not None and any(line.endswith((".", ".`")) for line in comment)
    )


def violations(text: str) -> list[str]:
    """What is wrong with a lit file, in a few words each."""
    commands = run_commands(text)
    wrong = [f"no run reads {prefix}:" for prefix in sorted(used_prefixes(text) - read_prefixes(commands))]
    wrong += [f"nothing checks {prefix}: lines" for prefix in sorted(read_prefixes(commands) - used_prefixes(text))]
    if not commands:
        wrong.append("no RUN line")
    if EXPECTED.search(text) and not any("--verify-diagnostics" in command for command in commands):
        wrong.append("expected diagnostics without --verify-diagnostics")
    if not has_sentence(text):
        wrong.append("no sentence after RUN")
    return wrong


def pass_violations(name: str, errors: Sequence[str], doc: str, files: dict[str, str]) -> list[str]:
    """What a pass lacks.

    `errors` are the ids that it declares, `doc` is its module's docstring, `files` the texts in its lit folder by name.
    """
    wrong = []
    if set(ERROR_ID.findall(doc)) != set(errors):
        wrong.append(f"{name}: its docstring names other errors than its `errors`")
    if not any(used_prefixes(text) for text in files.values()):
        wrong.append(f"{name}: no file with CHECK lines in test/lit/{name}/")
    if errors and not any(file.endswith("_errors.mlir") for file in files):
        wrong.append(f"{name}: it declares errors, and test/lit/{name}/ has no *_errors.mlir")
    return wrong


def lit_folder(name: str) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in TESTS if path.parent == LIT / name}


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(LIT)))
def test_lit_file(path: Path):
    assert violations(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("cls", PASSES, ids=lambda cls: cls.name)
def test_each_pass_has_its_tests(cls: type[Pass]):
    assert pass_violations(cls.name, cls.errors, sys.modules[cls.__module__].__doc__ or "", lit_folder(cls.name)) == []


GOOD = """\
// RUN: rhino-opt --rhino-x %s | filecheck %s
// RUN: rhino-opt --rhino-x %s \\
// RUN:   | filecheck %s --check-prefix=TWO
// An addition keeps the sharding of its operands, whatever `rhino-x`
// was asked for.

// CHECK-LABEL: func @add
// CHECK-NEXT: stablehlo.add
// TWO-COUNT-2: stablehlo.add
"""
GOOD_ERRORS = """\
// RUN: rhino-opt --rhino-x --verify-diagnostics %s
// A tensor without a static shape is refused.

// expected-error@+1 {{[RHI-READ-004] dynamic shape}}
"""


@pytest.mark.parametrize("text", [GOOD, GOOD_ERRORS])
def test_checker_accepts(text: str):
    assert violations(text) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (GOOD.replace("| filecheck %s\n", "\n"), "no run reads CHECK:"),
        (GOOD.replace(" --check-prefix=TWO", ""), "no run reads TWO:"),
        (GOOD.replace("=TWO", "=THREE"), "no run reads TWO:"),
        (GOOD.replace("// TWO-COUNT-2:", "// CHECK:"), "nothing checks TWO: lines"),
        (GOOD.replace("CHECK-NEXT:", "CHECK-NXT:"), "no run reads CHECK-NXT:"),
        (GOOD.replace("RUN:", "RAN:"), "no RUN line"),
        (GOOD.replace("// An addition", "\n// An addition"), "no sentence after RUN"),
        (GOOD.replace("asked for.", "asked for"), "no sentence after RUN"),
        (
            GOOD_ERRORS.replace("// A tensor without a static shape is refused.", "func.func @main()"),
            "no sentence after RUN",
        ),
        (GOOD_ERRORS.replace(" --verify-diagnostics", ""), "expected diagnostics without --verify-diagnostics"),
    ],
)
def test_checker_reports(text: str, what: str):
    assert what in violations(text)


def test_pass_checker_reports_what_is_missing():
    errors, doc = ("RHI-SOLVE-001",), "Errors    RHI-SOLVE-001 does not fit."
    assert pass_violations("rhino-x", errors, doc, {"add.mlir": GOOD, "add_errors.mlir": GOOD_ERRORS}) == []
    assert pass_violations("rhino-x", (), "Errors    none.", {"add.mlir": GOOD}) == []
    assert pass_violations("rhino-x", errors, doc, {"add.mlir": GOOD}) == [
        "rhino-x: it declares errors, and test/lit/rhino-x/ has no *_errors.mlir"
    ]
    assert pass_violations("rhino-x", (), "", {}) == ["rhino-x: no file with CHECK lines in test/lit/rhino-x/"]
    assert pass_violations("rhino-x", (), doc, {"add.mlir": GOOD}) == [
        "rhino-x: its docstring names other errors than its `errors`"
    ]
