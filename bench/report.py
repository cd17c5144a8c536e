"""What the commands of this folder share: options, a table that grows row by row, JSON, and the exit code.

A command asks one question or several, by name. The table is on stdout; what the figures were taken on, how far a run
is, and what is not as it should be are on stderr. A fault makes the exit code 1, an error of Rhino's the code of its
kind.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rhino.ir.diagnostics import RhinoError
from rhino.ir.units import format_bytes, format_seconds

Option = tuple[str, dict[str, Any]]
Cell = Callable[[Any], str]
Options = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Question:
    """What can be measured: `records` yields dataclasses or dictionaries, each a row of the table by `columns`.

    `text` names the columns whose cells are words; the first one is too. `is_across` makes each record a column of the
    table, which is then printed at the end. `faults` yields what is wrong with all records; where a question has the
    switch `--check`, they make the exit code 1 only with it. `summary` says what all records come to.
    """

    about: str
    records: Callable[[Options], Iterable[Any]]
    columns: Mapping[str, Cell]
    options: Sequence[Option] = ()
    text: Sequence[str] = ()
    faults: Callable[[Sequence[Any]], Iterable[str]] = lambda _: ()
    is_across: bool = False
    summary: Callable[[Sequence[Any]], str] | None = None


def option(flag: str, default: object, about: str, at: str = ",") -> Option:
    """Returns an option of the type of its default.

    A list is written as parts between `at`, a range as `first:end`, and False makes a switch. An empty list stands for
    all there is, or none: its help has to say which.
    """
    match default:
        case False:
            return flag, {"action": "store_true", "help": about}
        case list():
            kind = type(default[0]) if default else str
            parse: Callable[[str], Any] = lambda text: [kind(part) for part in text.split(at)]  # noqa: E731
            shown = at.join(map(str, default))
        case range():
            parse, shown = _range, f"{default.start}:{default.stop}"
        case _:
            parse, shown = type(default), str(default)
    text = f"{about} (default {shown})" if shown else about
    return flag, {"type": parse, "default": default, "help": text.replace("%", "%%")}


def _range(text: str) -> range:
    first, end = map(int, text.split(":"))
    return range(first, end)


def run(about: str | None, questions: Mapping[str, Question] | Question, argv: Sequence[str]) -> int:
    """Runs a command line, and returns the exit code."""
    parser = _parser(about)
    if isinstance(questions, Question):
        _add(parser, questions)
    else:
        asked = parser.add_subparsers(metavar="QUESTION", required=True)
        for name, one in questions.items():
            short = one.about.strip().partition("\n")[0]
            _add(asked.add_parser(name, help=short, description=one.about, **_STYLE), one)
    options = parser.parse_args(argv)
    try:
        return _answer(options.question, options)
    except RhinoError as error:
        print(error.render(), file=sys.stderr)
        return int(error.exit_code)


_STYLE: Final[dict[str, Any]] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}


def _parser(about: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=about, **_STYLE)


def _add(parser: argparse.ArgumentParser, question: Question) -> None:
    for flag, how in (*question.options, option("--json", "", "a file to write every figure to")):
        parser.add_argument(flag, **how)
    parser.set_defaults(question=question)


def _answer(question: Question, options: Options) -> int:
    """Prints each record as it is measured, and what is wrong with all of them."""
    say(machine())
    found: list[Any] = []
    for line in _lines(question, _kept(question.records(options), found, options.json)):
        print(line, flush=True)
    if question.summary:
        print(f"\n{question.summary(found)}")
    wrong = list(question.faults(found))
    for line in wrong:
        say(f"WRONG {line}")
    return int(bool(wrong) and getattr(options, "check", True))


def _kept(records: Iterable[Any], found: list[Any], file: str) -> Iterator[Any]:
    """Yields records, each after it was added to `found` and all so far were written to the file, if one is named."""
    for record in records:
        found.append(record)
        if file:
            rows = [asdict(one) if is_dataclass(one) and not isinstance(one, type) else one for one in found]
            text = json.dumps({"machine": machine(), "records": rows}, indent=2)
            Path(file).write_text(f"{text}\n", encoding="utf-8")
        yield record


def _lines(question: Question, records: Iterable[Any]) -> Iterator[str]:
    """Yields the lines of the table as soon as they are known."""
    names, cells = list(question.columns), list(question.columns.values())
    if question.is_across:
        rows = [[name, *column] for name, column in zip(names, _transposed(cells, records), strict=True)]
        yield from markdown(rows[0], [row for row in rows[1:] if any(row[1:])])
        return
    yield from markdown(names, ([cell(record) for cell in cells] for record in records), {*names[:1], *question.text})


def _transposed(cells: Sequence[Cell], records: Iterable[Any]) -> list[list[str]]:
    columns = []
    for record in records:
        columns.append([cell(record) for cell in cells])
        say(f"measured {columns[-1][0]}")
    return [list(row) for row in zip(*columns, strict=True)]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], text: Iterable[str] | None = None) -> Iterator[str]:
    """Yields the lines of a Markdown table.

    Columns named in `text`, or else the first one, hold words, and all others numbers.
    """
    words = set(head[:1] if text is None else text)
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' if name in words else '---:' for name in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def say(line: str) -> None:
    """Prints a line on stderr."""
    print(line, file=sys.stderr, flush=True)


def machine() -> str:
    """Returns what the figures were taken on: processor, cores, Python, jaxlib, and when (UTC)."""
    cores = len(os.sched_getaffinity(0))
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{_processor()}, {cores} cores, Python {platform.python_version()}, jaxlib {version('jaxlib')}, {when}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


# Cells


def key(name: str, form: str = "") -> Cell:
    """Returns the cell of a record's field in a format of Python's, or of "s" or "bytes".

    The cell is empty where the field is None or missing.
    """
    units: dict[str, Cell] = {"s": format_seconds, "bytes": format_bytes}

    def write(value: Any) -> str:  # noqa: ANN401 - a number or a text
        return units[form](value) if form in units else format(value, form)

    def cell(record: Any) -> str:  # noqa: ANN401 - a dataclass or a dictionary
        value = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
        return "" if value is None else write(value)

    return cell


# Child processes


@dataclass(frozen=True, slots=True)
class Child:
    """What a child process took: seconds of the wall, those of all processors, and its peak of resident memory."""

    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


def run_child(words: Sequence[str | Path]) -> Child:
    """Runs a command to its end, its output thrown away.

    Raises:
        SystemExit: the command fails.
    """
    since = time.perf_counter()
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{words[0]} ended with {child.returncode}")
    return Child(time.perf_counter() - since, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
