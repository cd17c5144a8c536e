"""The standard streams of a command, also where it was started without them or nothing can be written to them."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO

from rhino.ir.diagnostics import Place, RhinoError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STDIN, _STDOUT, _STDERR = range(3)
_CLOSED: Final = {_STDIN: os.O_WRONLY, _STDOUT: os.O_RDONLY, _STDERR: os.O_WRONLY}
"""How the null device is opened in place of a stream that is closed.

What is read or written there fails, messages are dropped.
"""


class _Output(io.FileIO):
    """Standard output: what cannot be written is reported once."""

    failed = False

    def write(self, data: Buffer, /) -> int:
        """Writes bytes. Raises RHI-CLI-003 for the first that cannot be written, and drops those behind them."""
        if self.failed:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.failed = True
            if isinstance(error, BrokenPipeError):
                raise
            why = "it is closed" if error.errno == errno.EBADF else error.strerror
            fix = "name a file with -o, or give the command an output that can be written"
            raise RhinoError("RHI-CLI-003", f"cannot write the output: {why}", Place("<stdout>"), fix=fix) from None


class _Messages(io.FileIO):
    """Standard error: where nobody hears, the command goes on."""

    def write(self, data: Buffer, /) -> int:
        """Writes bytes, or drops them where they cannot be written."""
        with suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def standard_streams() -> tuple[BinaryIO, TextIO, TextIO]:
    """Returns the process's standard input, output and error, which are `sys`'s from here on.

    A stream that the process was started without is there all the same, so that no file that is opened later takes its
    number: reading and writing fail, messages are dropped.
    """
    for number, flags in _CLOSED.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest number that is free
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(_STDIN, closefd=False)), "utf-8")
    sys.stdout = _text(_Output(_STDOUT, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Messages(_STDERR, "w", closefd=False), sys.stderr)
    return sys.stdin.buffer, sys.stdout, sys.stderr


def binary_output(number: int) -> BinaryIO:
    """Returns an output for bytes that fails as standard output does."""
    return io.BufferedWriter(_Output(number, "w"))


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    encoding, errors = (before.encoding, before.errors) if before is not None else ("utf-8", "backslashreplace")
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty() or raw.fileno() == _STDERR
    )
