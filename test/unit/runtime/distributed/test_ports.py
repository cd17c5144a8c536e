"""Ports are of the range that is given, free and different, and what is no range is refused."""

import socket

import pytest

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.ports import ANY_PORTS, Ports

HOST = "127.0.0.1"


def free_range(size: int) -> int:
    """Returns the first of so many ports in a row that are free."""
    for first in range(21000, 60000, size):
        try:
            held = [socket.create_server((HOST, first + number)) for number in range(size)]
        except OSError:
            continue
        for one in held:
            one.close()
        return first
    raise AssertionError


def test_without_a_range_any_port_will_do():
    assert Ports.parse({}) == ANY_PORTS
    assert ANY_PORTS.free(HOST, 3) == [0, 0, 0]


def test_ports_that_somebody_has_are_left_out():
    first = free_range(4)
    ports = Ports.parse({"RHINO_PORTS": f" {first}-{first + 3}"})
    with socket.create_server((HOST, first + 1)):
        assert ports.free(HOST, 2) == [first, first + 2]
        assert ports.free(HOST, 2, start=3) == [first + 3, first]
        with pytest.raises(RhinoError, match=rf"RHI-RUN-007\] 4 free ports .* RHINO_PORTS={first}-{first + 3} has 3"):
            ports.free(HOST, 4)
    assert ports.free(HOST, 4) == [first, first + 1, first + 2, first + 3]


@pytest.mark.parametrize("text", ["", "20000", "20010-20000", "0-10", "60000-70000", "a-b"])
def test_what_is_no_range_is_refused(text: str):
    with pytest.raises(RhinoError, match=r"RHI-RUN-009\] RHINO_PORTS is "):
        Ports.parse({"RHINO_PORTS": text})
