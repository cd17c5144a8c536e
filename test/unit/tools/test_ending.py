"""How commands end that are interrupted: real processes, and real interruptions."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

LIMIT_S = 120
INTERRUPTED = 130

HEEDING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
"""What a shell has started in the background ignores interruptions, and so does what that starts."""

WALKING = """
import sys
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import walk
from rhino.tools.ending import exit_code_of, leave

def work():
    body = "%0 = stablehlo.constant dense<0.0> : tensor<f32>" + "".join(
        f"\\n%{n + 1} = stablehlo.tanh %{n} : tensor<f32>" for n in range(5000))
    module = ir.Module.parse(f"func.func @main() {{\\n{body}\\nreturn\\n}}", make_context())
    print("ready", flush=True)
    while True:
        walk(module.operation)

leave(exit_code_of("tool", work, str, sys.stdout, sys.stderr))
"""

PROFILING = """
import os
os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that a new session opens is its own
from rhino.tools.profile import main
main()
"""


def test_an_interruption_within_a_callback_of_mlir_is_one():
    command = [sys.executable, "-c", HEEDING + WALKING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (INTERRUPTED, "tool: interrupted\n")


def test_a_profile_that_is_interrupted_on_a_terminal_while_xla_compiles_ends_in_order(tmp_path: Path):
    file = tmp_path / "cluster.toml"
    # those of tests are for short compiles
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    terminal, end = pty.openpty()
    command = [sys.executable, "-c", HEEDING + PROFILING, "--devices=2", "-o", str(file)]
    said = b""
    with subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True
    ) as process:
        os.close(end)
        for more in output(terminal):
            # the program with the most kernels: it is traced for some 0.5 s, and compiled for some 3 s
            if b"preparing 3" in more:
                time.sleep(1.5)
                os.write(terminal, b"\x03")
            said += more
    os.close(terminal)
    assert process.returncode == INTERRUPTED, said
    assert said.endswith(b"rhino-profile: interrupted\r\n")
    assert not file.exists()


def output(terminal: int) -> Iterator[bytes]:
    """What a process writes on its terminal, as it comes."""
    while select.select([terminal], [], [], LIMIT_S)[0]:
        try:
            yield os.read(terminal, 4096)
        except OSError:  # the process has ended
            return
    raise TimeoutError
