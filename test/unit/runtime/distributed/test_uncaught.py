"""In a process of a job an error of Rhino's is shown as tools show it; of others all stays that was shown."""

import socket
import sys

import pytest

import rhino.distributed
from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.uncaught import show, show_errors_as_tools_do

ERROR = RhinoError("RHI-RUN-004", "there are two devices", fix="give four")


def raised(error: Exception) -> Exception:
    """Returns an error with a trace."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_others_are_shown_as_before(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    seen: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: seen.append(given))
    show_errors_as_tools_do()
    error, other = raised(ERROR), raised(ValueError("of the user's"))
    for one in (error, other):
        sys.excepthook(type(one), one, one.__traceback__)
    assert capsys.readouterr().err == ERROR.render() + "\n"
    assert seen == [(ValueError, other, other.__traceback__)]


def test_an_error_of_a_thread_is_shown(capsys: pytest.CaptureFixture[str]):
    show(raised(ERROR))
    assert capsys.readouterr().err == ERROR.render() + "\n"
    show(raised(ValueError("of the user's")))
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("ValueError: of the user's\n")


def test_a_job_that_cannot_begin_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RhinoError) as caught:
            rhino.distributed.initialize(f"127.0.0.1:{port}", 2, 0)
    sys.excepthook(RhinoError, caught.value, caught.tb)
    said = capsys.readouterr().err
    assert said.startswith(f"error: [RHI-RUN-007] process 0 on {socket.gethostname()} cannot listen on port {port}: ")
    assert "Traceback" not in said
