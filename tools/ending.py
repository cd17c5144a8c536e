"""How a command ends: every way out has its message and its exit code, the same for all tools."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Final, TextIO

from rhino.ir.diagnostics import ExitCode, RhinoError

_INTERRUPTED: Final = 130  # 128 + SIGINT, as a shell reports it
_CLOSED_PIPE: Final = 141  # 128 + SIGPIPE


def exit_code_of(tool: str, work: Callable[[], int], reproducer: Callable[[], str], stdout: BinaryIO | TextIO, stderr: TextIO) -> int:
    """Does `work` and returns its exit code, or that of how it failed, which is said on `stderr`.

    `reproducer` gives a command line that does the same again: it goes into the report of a fault of ours.
    """
    try:
        return work()
    except RhinoError as error:
        print(error.render(), file=stderr)
        return int(error.exit_code)
    except BrokenPipeError:
        with suppress(OSError):  # the pipe is pointed at nothing, or else Python fails again when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        return _CLOSED_PIPE
    except KeyboardInterrupt:
        print(f"{tool}: interrupted", file=stderr)
        return _INTERRUPTED
    except Exception:
        print(f"{tool}: internal error; to reproduce it: {reproducer()}\n{traceback.format_exc()}", file=stderr)
        return int(ExitCode.BUG)
