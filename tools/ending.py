"""How a command ends: every way out has its message and its exit code, the same for all tools."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, NoReturn, TextIO, cast

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.tools.command_line import Information

_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
_CLOSED_PIPE: Final = 141  # 128 + SIGPIPE


class _StopError(BaseException):
    """The user interrupts for the second time, to end at once.

    It is no KeyboardInterrupt, so code that answers the first interruption with what it has does not catch it.
    """


@contextmanager
def heard_at_once(message: str, stderr: TextIO) -> Iterator[None]:
    """Prints `message` on `stderr` as soon as the user interrupts.

    A second interruption ends the command as soon as Python gets to run, because ending in order may take a while.
    Where interruptions are not ours to handle (in other threads, in the background), nothing changes.
    """
    own = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )

    def second(*_: object) -> None:
        raise _StopError

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, second)
        with suppress(OSError):  # not by `print`, which may be what is interrupted
            os.write(stderr.fileno(), f"{message}\n".encode())
        raise KeyboardInterrupt

    if own:
        signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_code_of(
    tool: str, work: Callable[[], int], reproducer: Callable[[], str], stdout: BinaryIO | TextIO, stderr: TextIO
) -> int:
    """Does `work` and returns its exit code, or that of how it failed, which is reported on `stderr`.

    `reproducer` gives a command line that does the same again: it goes into the report of a fault of ours.
    """
    try:
        try:
            code = work()
        except Information as information:
            _print(stdout, str(information))
            return int(ExitCode.OK)
        stdout.flush()
        return code
    except RhinoError as error:
        with suppress(OSError, RhinoError):
            stdout.flush()  # what was said before stands before the error
        print(error.render(), file=stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        with suppress(OSError):  # the pipe is pointed at nothing, or else Python fails again when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        return _CLOSED_PIPE
    except (KeyboardInterrupt, _StopError):
        print(f"{tool}: interrupted", file=stderr)
        return _INTERRUPTED
    except Exception:
        print(f"{tool}: internal error; to reproduce it: {reproducer()}\n{traceback.format_exc()}", file=stderr)
        return int(ExitCode.BUG)


def _print(stdout: BinaryIO | TextIO, text: str) -> None:
    if isinstance(stdout, io.TextIOBase):
        stdout.write(text)
    else:
        cast("BinaryIO", stdout).write(text.encode())
    stdout.flush()


def leave(code: int) -> NoReturn:
    """Ends the process with the exit code of its command.

    An interrupted one ends without taking Python down: a thread of XLA may still compile, and would find its devices
    freed.
    """
    if code == _INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
