"""What the command lines of all tools have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from rhino.ir.diagnostics import RhinoError

PACKAGE = "rhino-parallel"


class Information(Exception):  # noqa: N818 - what a command line asks for is no error
    """What is printed instead of any work: the help, or the version."""


class Parser(argparse.ArgumentParser):
    """A parser with `-h`, `--help` and, of a tool, `--version`, which raise `Information`.

    Its errors are RHI-CLI-001.
    """

    def __init__(self, *, prog: str, **options: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(prog=prog, allow_abbrev=False, add_help=False, **options)
        self.add_argument("-h", "--help", action=_Inform, text=self.format_help, help="print this and exit")
        if " " not in prog:  # a command of a tool has that of the tool
            self.add_argument(
                "--version", action=_Inform, text=lambda: version_text(prog), help="print versions and exit"
            )

    def error(self, message: str) -> NoReturn:
        """Raises what is wrong with a command line."""
        raise RhinoError("RHI-CLI-001", message, fix=f"see {self.prog} --help")


class _Inform(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, *, text: Callable[[], str], help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)
        self.text = text

    def __call__(self, *_: object) -> NoReturn:
        raise Information(self.text())


def version_text(tool: str) -> str:
    """Returns the versions that a report of a fault should name."""
    return (
        f"{tool} {version(PACKAGE)} (jax {version('jax')}, jaxlib {version('jaxlib')}, ortools {version('ortools')})\n"
    )


def count(text: str) -> int:
    """Returns the positive number that an option gives."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value
