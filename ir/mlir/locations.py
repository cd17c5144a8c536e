"""Where an op or argument comes from: the place in a file for errors, and the name that people know it by.

JAX writes an argument's pytree path and an op's scope as name locations; both survive passes, and are how a user
recognises a tensor.
"""

from __future__ import annotations

import re

from rhino.ir.diagnostics import Place
from rhino.ir.mlir.bindings import ir

_POSITION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')


def place_of(location: ir.Location, file: str = "") -> Place:
    """Returns the first file position inside `location`; MLIR's name for an unnamed buffer, `-`, reads as `file`."""
    found = _POSITION.search(str(location))
    if found is None:
        return Place(file)
    name = found.group(1)
    return Place(file if name in ("-", "<stdin>") and file else name, int(found.group(2)), int(found.group(3)))


def name_of(location: ir.Location) -> str:
    """Returns the outermost name inside `location` (a pytree path or a scope), or an empty string."""
    text = str(location)
    for found in _NAME.finditer(text):
        if not re.match(r":\d+:\d+", text[found.end() :]):
            return found.group(1)
    return ""
