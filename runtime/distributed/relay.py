"""JAX's connection to its coordination service, with something between that does not close when the service is gone.

JAX's client aborts its process, with a stack trace and before any thread of Python could say more, as soon as the
connection breaks (jaxlib 0.10.2; a callback that it takes for this cannot be given one, for it has no type to pass).
Behind a relay of this process the connection only grows silent, and who ended is told by
`rhino.runtime.distributed.member`. It carries little: addresses, plans, barriers.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

from rhino.runtime.distributed.processes import LOOPBACK
from rhino.runtime.executor.transport import joined_address, split_address

_READ_BYTES: Final = 1 << 16


class Relay:
    """Listens on loopback, and passes on what comes to `service` and back, until the process ends."""

    def __init__(self, service: str) -> None:
        self._service = split_address(service)
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address = joined_address(*self._listener.getsockname()[:2])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, name="rhino-relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            inner, _ = self._listener.accept()
            try:
                outer = socket.create_connection(self._service)
            except OSError:
                inner.close()  # JAX's client tries again
                continue
            for one in (inner, outer):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(inner)  # it stays open, whatever happens to the other
            threading.Thread(target=_pass_on, args=(outer, inner), name="rhino-relay-in", daemon=True).start()
            threading.Thread(target=_pass_on, args=(inner, outer), name="rhino-relay-out", daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_READ_BYTES):
            target.sendall(data)
