"""Messages between the processes of a job: JSON values, a line each, on a TCP connection."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

Message: TypeAlias = dict[str, Any]

_READ_BYTES: Final = 1 << 16


class Lines:
    """A connection that messages are read from and written to; neither waits for the other side.

    What cannot be written yet is kept. `is_open` is False once the other side has closed.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.connection = connection
        self.is_open = True
        self._read, self._written = b"", b""

    def read(self) -> Iterator[Message]:
        """Yields the messages that have come whole."""
        try:
            while self.is_open and (data := self.connection.recv(_READ_BYTES)):
                self._read += data
            self.is_open = False
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        *whole, self._read = self._read.split(b"\n")
        for line in whole:
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict):  # nobody of the job
                self.is_open = False
                return
            yield found

    def write(self, message: Message) -> None:
        """Sends a message, or as much of it as goes now."""
        self._written += json.dumps(message).encode() + b"\n"
        try:
            while self._written:
                self._written = self._written[self.connection.send(self._written) :]
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False

    def close(self) -> None:
        """Closes the connection."""
        self.is_open = False
        self.connection.close()
