"""Files of a command line: input from a path or stdin, output to a path whole or not at all."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from rhino.ir.diagnostics import Place, RhinoError

STDIN = "<stdin>"


def read_input(path: str, stdin: BinaryIO, stderr: TextIO) -> bytes:
    """Returns the bytes of the file at `path`, or of `stdin` for "-". Raises RHI-CLI-002."""
    if path == "-" and stdin.isatty():
        print("reading the module from the terminal; end it with Ctrl-D", file=stderr)
    try:
        return stdin.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise RhinoError(
            "RHI-CLI-002",
            f"cannot read the module: {error.strerror}",
            Place(shown(path)),
            fix="give a file that can be read",
        ) from None


def shown(path: str) -> str:
    """Returns how messages name the input at `path`."""
    return STDIN if path == "-" else path


def check_writable(path: str) -> None:
    """Raises RHI-CLI-003 where nothing can be written at `path`; "-" always can. Leaves no trace."""
    if path == "-":
        return
    target = Path(os.path.realpath(path))
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            target.lstat()
    except OSError as error:  # the name is too long, say
        raise _refused(path, error.strerror or str(error)) from None
    if target.is_dir():
        raise _refused(path, "it is a folder")
    if not target.parent.is_dir():
        raise _refused(path, f"there is no folder {target.parent}")
    if target.exists() and not os.access(target, os.W_OK):
        raise _refused(path, "the file is read-only")
    if not _is_special(target) and not os.access(target.parent, os.W_OK | os.X_OK):
        raise _refused(path, f"folder {target.parent} is read-only")


def write_output(path: str, data: bytes, stdout: BinaryIO) -> None:
    """Writes `data` to the file at `path`, which is replaced only when all is written; or to `stdout` for "-".

    Raises RHI-CLI-003.
    """
    if path == "-":
        stdout.write(data)
        stdout.flush()
    else:
        write_file(path, data)


def write_file(path: str, data: bytes) -> None:
    """Writes `data` to the file at `path`, which is replaced only when all is written. Raises RHI-CLI-003."""
    target = Path(os.path.realpath(path))
    try:
        if _is_special(target):
            target.write_bytes(data)  # a device or pipe: there is nothing to replace
        else:
            _replace(target, data)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from None


def _replace(target: Path, data: bytes) -> None:
    # not of the file's own name, which may be as long as names can be
    part = target.with_name(f".rhino-{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _is_special(target: Path) -> bool:
    return target.exists() and not target.is_file()


def _refused(path: str, why: str) -> RhinoError:
    return RhinoError(
        "RHI-CLI-003", f"cannot write the output: {why}", Place(path), fix="name a file in a folder that can be written"
    )
