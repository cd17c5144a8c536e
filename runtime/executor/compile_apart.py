"""Compile a module in a process of its own, to see what XLA makes of it.

XLA's partitioner ends the process on some modules. A caller that needs to know what a module would become, beside the
one that it runs, compiles it here and survives that.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Final

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import compile_module

_COMMAND: Final = "import sys; from rhino.runtime.executor.compile_apart import main; sys.exit(main(int(sys.argv[1])))"

_FIX: Final = "\n\0"
"""Between what is wrong and how to fix it, where the process prints an error."""

_CHECK: Final = re.compile(r"Check failed: .*")
"""What XLA prints last before it ends the process."""

_NO_HOARD: Final = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""This process has the memory of its devices already, and only compiles are made there."""


@contextmanager
def compiling_apart(module: ir.Module, num_devices: int) -> Iterator[Callable[[], str]]:
    """Starts to compile `module` in a process of its own.

    It compiles as `compile_module` would for the first `num_devices` devices.

    Yields:
        What waits for the compiled module and returns it as HLO text; raises RHI-RUN-001 where XLA refuses the module
        or ends the process.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as errors:
        given.write(bytecode(module))
        given.seek(0)
        command = [sys.executable, "-c", _COMMAND, str(num_devices)]
        with subprocess.Popen(
            command, stdin=given, stdout=made, stderr=errors, env={**os.environ, **_NO_HOARD}
        ) as process:
            try:
                yield lambda: _awaited(process, made, errors, num_devices)
            finally:
                process.kill()


def _awaited(process: subprocess.Popen[bytes], made: IO[bytes], errors: IO[bytes], num_devices: int) -> str:
    code = process.wait()
    made.seek(0)
    errors.seek(0)
    output = made.read().decode()
    if code == ExitCode.OK:
        return output
    if code == ExitCode.BAD_INPUT and output:  # Python's own way out with this code leaves nothing there
        what, _, fix = output.partition(_FIX)
        raise RhinoError("RHI-RUN-001", what, fix=fix)
    check = _CHECK.search(errors.read().decode(errors="replace"))
    why = check[0].strip() if check else f"code {code}"
    raise RhinoError(
        "RHI-RUN-001",
        f"XLA does not compile the module for {num_devices} devices: it ends the process ({why})",
        fix="try --form=annotated or another jaxlib",
    )


def main(num_devices: int) -> int:
    """Compiles the module on standard input for `num_devices` devices; prints its HLO text, or why XLA refuses it."""
    request_host_devices(num_devices, os.environ)
    module = read_module(sys.stdin.buffer.read(), "<stdin>", make_context())
    try:
        sys.stdout.write(compile_module(module, pick_devices(num_devices)).hlo_text())
    except RhinoError as error:
        sys.stdout.write(f"{error.what}{_FIX}{error.fix}")
        return int(ExitCode.BAD_INPUT)
    return int(ExitCode.OK)
