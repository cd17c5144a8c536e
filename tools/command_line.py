"""What the command lines of all tools have in common."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rhino.ir.diagnostics import RhinoError


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours: RHI-CLI-001."""

    def error(self, message: str) -> NoReturn:
        """Raises what is wrong with a command line."""
        tool = self.prog.partition(" ")[0]  # a command of a tool is explained by the tool
        raise RhinoError("RHI-CLI-001", message, fix=f"see {tool} --help")


def count(text: str) -> int:
    """Returns the positive number that an option gives."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value
