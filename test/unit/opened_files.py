"""Which files of a folder this process opens from now on, by Python's own audit."""

import os
import sys
from pathlib import Path


def opened_in(folder: Path) -> set[str]:
    """Returns the names within `folder` of what is opened there, which grow as more is."""
    found: set[str] = set()
    root = os.path.realpath(folder)

    def note(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(args[0]))
            if path.startswith(root + os.sep):
                found.add(os.path.relpath(path, root))

    sys.addaudithook(note)
    return found
