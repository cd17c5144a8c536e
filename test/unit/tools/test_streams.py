"""Commands without the streams that others have, and files whose names no system takes.

There is one message, the right exit code, and no traceback.
"""

import io
import subprocess
import sysconfig
from pathlib import Path

import pytest
from long_cases import one_in

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.diagnostics import RhinoError
from rhino.tools import opt, plan, profile, run
from rhino.tools.files import check_writable, write_file

SCRIPTS = Path(sysconfig.get_path("scripts"))
LONG = "f" * 300
CLOSED = "<stdout>: error: [RHI-CLI-003] cannot write the output: it is closed"
FULL = "<stdout>: error: [RHI-CLI-003] cannot write the output: No space left on device"
NO_INPUT = "<stdin>: error: [RHI-CLI-002] cannot read the module: "


@pytest.mark.parametrize("tool", one_in(2, ["rhino-opt", "rhino-run", "rhino-plan", "rhino-profile"]))
def test_a_command_without_a_stream(tool: str):
    """Each stream closed, and one that is full."""
    reads = tool in ("rhino-opt", "rhino-run")
    cases = [
        ("- <&-", 1, NO_INPUT) if reads else ("--help <&-", 0, ""),
        ("--help >&-", 1, CLOSED),
        ("--help >/dev/full", 1, FULL),
        ("explain --bogus 2>&-", 2, ""),
        ("explain --bogus 2>/dev/full", 2, ""),
    ]
    started = [
        (
            subprocess.Popen(
                ["sh", "-c", f"{SCRIPTS / tool} {words}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            ),
            *rest,
        )
        for words, *rest in cases
    ]
    for process, code, message in started:
        _, err = process.communicate()
        assert (process.returncode, err[: len(message)]) == (code, message), err
        assert len(err.splitlines()) <= 2, err


def test_what_was_printed_before_an_error_and_cannot_be_written_leaves_the_error(tmp_path: Path):
    program = """
import sys
from rhino.ir.diagnostics import RhinoError
from rhino.tools.ending import exit_code_of
from rhino.tools.streams import standard_streams
stdin, stdout, stderr = standard_streams()
def work():
    print("so far", file=stdout)
    raise RhinoError("RHI-CLI-001", "wrong")
sys.exit(exit_code_of("tool", work, str, stdout, stderr))
"""
    command = f"{SCRIPTS / 'python'} -c '{program}' >/dev/full"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: [RHI-CLI-001] wrong\n")


MODULE = b"func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }"


@pytest.mark.parametrize(
    ("command", "id"),
    [
        (("rhino-opt", LONG), "RHI-CLI-002"),
        (("rhino-opt", "-", f"-o{LONG}"), "RHI-CLI-003"),
        (("rhino-opt", "-", "--auto-shard", f"--cluster={LONG}"), "RHI-CLUSTER-001"),
        (("rhino-opt", "-", "--auto-shard", "--cluster=cpu8", f"--plan={LONG}"), "RHI-PLAN-003"),
        (("rhino-opt", "-", "--auto-parallel", "--cluster=cpu8", f"--plan-json={LONG}"), "RHI-CLI-003"),
        (("rhino-run", LONG), "RHI-CLI-002"),
        (("rhino-plan", "explain", LONG), "RHI-PLAN-001"),
        (("rhino-plan", "report", LONG, f"-o{LONG}"), "RHI-CLI-003"),
        (("rhino-profile", f"--operators={LONG}", "--from=cpu8"), "RHI-CLI-002"),
        (("rhino-profile", f"-o{LONG}"), "RHI-CLI-003"),
    ],
)
def test_a_name_that_is_too_long(command: tuple[str, ...], id: str):
    tool, *words = command
    stderr = io.StringIO()
    match tool:
        case "rhino-opt":
            code = opt.run(words, io.BytesIO(MODULE), io.BytesIO(), stderr)
        case "rhino-run":
            code = run.run(words, io.BytesIO(), io.StringIO(), stderr)
        case "rhino-plan":
            code = plan.run(words, io.BytesIO(), io.StringIO(), stderr)
        case _:
            code = profile.run(words, io.BytesIO(), stderr)
    assert (code, f"[{id}]" in stderr.getvalue(), "Traceback" in stderr.getvalue()) == (1, True, False), (
        stderr.getvalue()
    )


def test_a_name_as_long_as_names_can_be_is_written(tmp_path: Path):
    file = tmp_path / ("f" * 255)
    check_writable(str(file))
    write_file(str(file), b"all")
    assert file.read_bytes() == b"all"
    assert [one.name for one in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize("name", ["\0", LONG])
def test_what_no_file_can_be_called_is_no_cluster(name: str):
    with pytest.raises(RhinoError, match=r"RHI-CLUSTER-001"):
        load_cluster(name)
