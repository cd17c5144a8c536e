"""What `rhino-run` does with a script of Python: it starts it in several processes, and again when one has failed."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TextIO

from rhino.runtime.distributed.launcher import launch_script


def run_script(options: Namespace, stderr: TextIO) -> int:
    """Runs a script as a job, and returns its exit code.

    Each process finds its place in the job by `rhino.distributed.initialize()`, and goes on from the last checkpoint by
    `rhino.train`. A job that fails is started again as often as `--restarts` says.
    """
    command = [sys.executable, options.file, *options.arguments]
    for attempt in range(options.restarts + 1):
        code = launch_script(command, options.processes or 1, stderr)
        if code == 0:
            break
        if attempt < options.restarts:
            print(f"rhino-run: the job is started again, {attempt + 1} of {options.restarts}", file=stderr, flush=True)
    return code
