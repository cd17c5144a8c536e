"""How a process of a job shows an error that nothing has caught.

A `RhinoError` says what happened, where, and what to do: it is printed as tools print it, for a trace would stand
between that and the line that says why the job ended. Any other error keeps its trace, which is all that there is.
"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from rhino.ir.diagnostics import RhinoError


def show(error: BaseException) -> None:
    """Prints an error on standard error."""
    if isinstance(error, RhinoError):
        print(error.render(), file=sys.stderr, flush=True)
    else:
        traceback.print_exception(error)


def show_errors_as_tools_do() -> None:
    """Makes this process print a `RhinoError` that ends it without a trace; other errors are shown as before."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, RhinoError):
            show(error)
        else:
            before(kind, error, trace)

    sys.excepthook = hook
