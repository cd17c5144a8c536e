"""Write the reference pages from the code: the commands, the passes, the errors, and the list of mixed precision.

    python docs/generate.py            writes docs/reference/
    python docs/generate.py --check    says which page is not what the code says, and exits with 1 if one is not

What a page says has its home in the code: the parsers of the commands, the table of passes, the table of errors, the
kinds of ops.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rhino.ir.diagnostics import IDS
from rhino.passes.base import Pass, option_texts
from rhino.passes.registry import PASSES, PIPELINES, NamedPipeline
from rhino.strategies.precision.op_kinds import KIND_ROWS
from rhino.tools import opt, opt_options, plan, profile, run

REFERENCE: Final = Path(__file__).resolve().parent / "reference"
PARSERS: Final = (opt_options._parser, run._parser, plan._parser, profile._parser)
NOTE: Final = "<!-- Written by docs/generate.py: change the code, not this page. -->"
LIT: Final = Path(__file__).resolve().parents[1] / "test" / "lit"
_RUN: Final = re.compile(r"// RUN: rhino-opt ([^|]*?%s[^|>]*?)(?:2>\S+ )?\|.*\n(?:// RUN: .*\n)*((?:// .*\n)+)")

MOST_LINES: Final = 120
MOST_COLUMNS: Final = 230
"""Of an example, so that it is read at a glance."""

SECTIONS: Final = ("Reads", "Writes", "Errors", "Source")


def text(words: str | None) -> str:
    """Returns a cell of a table: one line, without what Markdown or HTML would read."""
    return " ".join((words or "").split()).replace("|", "\\|").replace("<", "&lt;")


def code(words: str) -> str:
    """Returns words as code, in a table too."""
    return f"`{words}`".replace("|", "\\|") if words else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, and an empty one after it."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]


def spelled(action: argparse.Action) -> str:
    """Returns how an option or argument is written."""
    value = (
        ""
        if action.nargs == 0
        else action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else "")
    )
    if not action.option_strings:
        return code(str(value or action.dest))
    return ", ".join(code(f"{name} {value}".rstrip()) for name in action.option_strings)


def command(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """Yields the lines on a command, and on each command inside of it."""
    yield from ("#" * level + f" {parser.prog}", "")
    if parser.description:
        yield from (" ".join(parser.description.split()), "")
    inner: list[argparse.ArgumentParser] = []
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        subs = [action for action in shown if isinstance(action, argparse._SubParsersAction)]
        inner += [sub for action in subs for sub in action.choices.values()]
        rows = [(spelled(action), text(action.help)) for action in shown if action not in subs]
        rows += [(code(one.dest), text(one.help)) for action in subs for one in action._choices_actions]
        if rows:
            title = group.title or "options"
            yield from (f"{title[0].upper()}{title[1:]}:", "", *table(("", ""), rows))
    if parser.epilog:
        yield from ("```text", parser.epilog.strip(), "```", "")
    for sub in inner:
        yield from command(sub, level + 1)


def commands() -> Iterator[str]:
    """Yields the page on the commands."""
    yield from (
        "# Commands",
        "",
        "What each command takes. Passes and named pipelines are options of `rhino-opt` too: "
        "[passes.md](passes.md) has theirs.",
        "",
    )
    for parser in PARSERS:
        yield from command(parser(), 2)


def anchor(error: str) -> str:
    """Returns a link to an error on its page."""
    return f"[{error}](errors.md#{error.lower()})"


def sections(doc: str) -> Iterator[str]:
    """Yields what a pass's file says that it reads, writes, may refuse, and comes from."""
    names = "|".join(SECTIONS)
    found: Mapping[str, str] = dict(re.findall(rf"(?ms)^({names}) +(.*?)(?=^(?:{names}) |\n\n|\Z)", doc))
    for name in SECTIONS:
        if name in found:
            words = re.sub(r"RHI-[A-Z]+-\d+", lambda match: anchor(match[0]), " ".join(found[name].split()))
            yield f"- **{name}** {words}"
    yield ""


def options(texts: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yields the table of the options of a pass or a pipeline, with their defaults and descriptions."""
    if texts:
        yield from table(
            ("option", "default", ""),
            [(code(name), code(default), text(help)) for name, (default, help) in texts.items()],
        )


def step(item: Pass | str) -> str:
    """Returns a step of a pipeline, linked if it is a pass of ours."""
    return f"- [{item.name}](#{item.name})" if isinstance(item, Pass) else f"- `{item}`"


def pipeline(name: str, one: NamedPipeline) -> Iterator[str]:
    """Yields the lines on a named pipeline."""
    yield from (f"### {name}", "", one.doc, "", *(step(item) for item in one.build({})), "", *options(one.options()))


def passes() -> Iterator[str]:
    """Yields the page on passes and pipelines."""
    yield from (
        "# Passes",
        "",
        "Each is an option of [rhino-opt](commands.md#rhino-opt), and a word of a textual pipeline:",
        "",
    )
    yield from (
        "    --NAME          --NAME='option=value option=value'          "
        "--pass-pipeline='NAME{option=value option=value}'",
        "",
    )
    yield from ("## Pipelines", "", "The steps are those without further options; some options add others.", "")
    for name, one in PIPELINES.items():
        yield from pipeline(name, one)
    yield from ("## Single passes", "")
    for cls in PASSES:
        doc = sys.modules[cls.__module__].__doc__ or ""
        yield from (
            f"### {cls.name}",
            "",
            doc.partition("\n\n")[0].replace("\n", " "),
            "",
            *sections(doc),
            *options(option_texts(cls)),
            *example(cls.name),
        )


def example(name: str) -> Iterator[str]:
    """Yields the IR before and after a pass: of its smallest test that fits on a page, with what that shows."""
    files = sorted((LIT / name).glob("*.mlir"), key=lambda file: (file.stat().st_size, file.name))
    for file in files:
        words = file.read_text(encoding="utf-8")
        run_line = _RUN.match(words)
        words = words.partition("// -----")[0]
        if run_line is None or "expected-" in words:
            continue
        before = "\n".join(line for line in words.splitlines() if line.strip() and not line.lstrip().startswith("//"))
        command_line = " ".join(run_line[1].replace("--split-input-file", "").split())
        after = rewritten(command_line.replace("%s", "-"), before)
        lines = [*before.splitlines(), *after.splitlines()]
        if len(lines) > MOST_LINES or max(map(len, lines)) > MOST_COLUMNS or before.split() == after.split():
            continue
        yield from (
            " ".join(run_line[2].replace("// ", "").split()),
            "",
            f"    rhino-opt {command_line.replace('%s', file.name)}",
            "",
        )
        yield from ("```mlir", before, "```", "", "becomes", "", "```mlir", after, "```", "")
        return


def rewritten(command_line: str, module: str) -> str:
    """Returns what `rhino-opt` with these words makes of a module; nothing where it refuses."""
    out = io.BytesIO()
    opt.run(shlex.split(command_line), io.BytesIO(module.encode()), out, io.StringIO())
    return out.getvalue().decode().strip()


def errors() -> Iterator[str]:
    """Yields the page on errors."""
    raisers = {error: [cls.name for cls in PASSES if error in cls.errors] for error in IDS}
    yield from (
        "# Errors",
        "",
        "Every error that a user can cause has a place, an id, what is wrong, why, and how to fix it:",
        "",
    )
    yield from (
        "    model.mlir:41:8: error: [RHI-READ-002] what was got and what was expected",
        "      note: why",
        "      note: to fix: what to do",
        "",
    )
    yield from ("Ids are never reused. The exit code is that of a command that ends with the error.", "")
    for family, ids in groupby(IDS, key=lambda error: error.split("-")[1]):
        yield from (f"## RHI-{family}", "")
        for error in ids:
            exit_code, what = IDS[error]
            given = ", ".join(f"[{name}](passes.md#{name})" for name in raisers[error])
            yield from (
                f"### {error}",
                "",
                f"{what[0].upper()}{what[1:]}. Exit code {int(exit_code)}." + (f" Given by {given}." if given else ""),
                "",
            )


def precision() -> Iterator[str]:
    """Yields the page on what mixed precision computes in which type."""
    yield from ("# Mixed precision by kind of op", "")
    yield from (
        "What [`rhino-amp`](passes.md#rhino-amp) does with each op of StableHLO ([why, and how](../precision.md)).",
        "",
    )
    rows = [
        (row.kind.value, ", ".join(map(code, row.ops)) or "all others", row.computes_in, row.reason)
        for row in KIND_ROWS
    ]
    yield from table(("kind", "ops", "computes in", "reason"), rows)


PAGES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "commands.md": commands,
    "passes.md": passes,
    "errors.md": errors,
    "precision.md": precision,
}


def pages() -> dict[Path, str]:
    """Returns what the pages should say, by file."""
    return {REFERENCE / name: "\n".join([NOTE, *write()]).rstrip() + "\n" for name, write in PAGES.items()}


def stale() -> list[Path]:
    """Returns the files that are not what the code says."""
    return [file for file, words in pages().items() if not file.exists() or file.read_text(encoding="utf-8") != words]


def main(argv: Sequence[str]) -> int:
    """Writes the pages, or checks them; returns 1 if one was found wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    if parser.parse_args(argv).check:
        wrong = stale()
        for file in wrong:
            print(f"docs/reference/{file.name} is not what the code says; to fix: python docs/generate.py")
        return bool(wrong)
    REFERENCE.mkdir(exist_ok=True)
    for file, words in pages().items():
        file.write_text(words, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
