"""What the main thread of this process is doing, as its stack shows."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any, Final

_PLANNING: Final = ("rhino.entry", "jax._src.compiler")
"""Modules in which a process plans or compiles: what makes plans and programs, and JAX's compiler."""

_WAITING: Final = (
    ("rhino.runtime.distributed.jax_job", "gather_texts"),
    ("rhino.runtime.distributed.key_values", "wait_for"),
)
"""The functions in which a process waits for what the others say."""

_LIBRARIES: Final = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib"))


class Activity(Enum):
    """What a process does outside of steps."""

    PLANS = "plans or compiles"
    WAITS = "waits for the plans of the others"
    OTHER = ""


def activity() -> Activity:
    """Returns whether the main thread plans or compiles, which takes as long as it takes, or waits for others to."""
    for frame in _frames():
        if (_module(frame), frame.f_code.co_name) in _WAITING:
            return Activity.WAITS
        if _module(frame) in _PLANNING:
            return Activity.PLANS
    return Activity.OTHER


def place_in_python() -> str:
    """Returns the line of the user's code at which the main thread is, as `at train.py:33 in load`."""
    for frame in _frames():
        code = frame.f_code
        if not f"{_module(frame)}.".startswith("rhino.") and not code.co_filename.startswith((*_LIBRARIES, "<")):
            return f"at {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
    return ""


def _module(frame: FrameType) -> Any:  # noqa: ANN401 - a module's name, mostly
    return frame.f_globals.get("__name__", "")


def _frames() -> Iterator[FrameType]:
    """Yields the frames of the main thread, the innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back
