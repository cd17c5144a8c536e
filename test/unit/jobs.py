"""Jobs of several processes, for tests."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LIMIT_S = 120


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def launched(folder: Path, part: str, *options: Sequence[str]) -> list[int]:
    """Runs as many processes as there are options for, and returns their exit codes.

    What they print goes to `log-N`.
    """
    address = free_address()
    parts = []
    for process, own in enumerate(options):
        with (folder / f"log-{process}").open("wb") as log:
            command = [sys.executable, part, address, str(process), *own]
            parts.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
                )
            )
    try:
        return [part.wait(LIMIT_S) for part in parts]
    finally:
        for part in parts:
            part.kill()
            part.wait()
