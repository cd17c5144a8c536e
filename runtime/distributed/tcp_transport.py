"""A transport of plain TCP connections: for platforms without JAX's transfer server, and to hold it to.

One connection each way between two processes. A thread of the giving side waits for each array to be computed and
writes it, in the list's order; a thread of the taking side reads all that comes. An array is there only once it was
read: receiving waits.
"""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, TypeAlias

import jax
import numpy as np

from rhino.runtime.executor.moves import Parts
from rhino.runtime.executor.transport import (
    Job,
    Receive,
    Send,
    family_of,
    joined_address,
    split_address,
    wire_uid,
)

_HEAD: Final = struct.Struct("!QQQ")
"""The process that gives, what its parts are called, and the bytes that follow."""

_Name: TypeAlias = tuple[int, int]
"""The first two of these."""


class _Inbox:
    """What has arrived, by its name."""

    def __init__(self) -> None:
        self._frames: dict[_Name, bytearray] = {}
        self._changed = threading.Condition()
        self._lost = False

    def put(self, name: _Name, frame: bytearray) -> None:
        with self._changed:
            self._frames[name] = frame
            self._changed.notify_all()

    def lose(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def take(self, name: _Name) -> bytearray:
        with self._changed:
            self._changed.wait_for(lambda: name in self._frames or self._lost)
            if name not in self._frames:
                raise ConnectionError("a process that arrays come from has closed its connection")
            return self._frames.pop(name)


class StreamTransport:
    """TCP connections, host memory between; receiving waits."""

    waits: ClassVar[bool] = True

    def __init__(self, job: Job) -> None:
        """Listens, and tells the others where."""
        self.process = job.process
        self._job = job
        self._inbox = _Inbox()
        self._outboxes: dict[int, queue.SimpleQueue[tuple[int, list[jax.Array]] | None]] = {}
        host, port = split_address(job.addresses(1)[0])
        self._listener = socket.create_server((host, port), family=family_of(host))
        self._accepted: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        job.publish(f"stream/{job.process}", joined_address(*self._listener.getsockname()[:2]))
        self._start(self._accept)

    def next_step(self) -> int:
        """Returns the number of the next step."""
        return self._job.begin_step()

    def sender(self, uid: int, process: int) -> Send:
        """Returns what leaves parts of an array to the thread that writes to a process."""
        outbox = self._connect(process)
        return lambda step, parts: outbox.put((wire_uid(step, uid, process), parts))

    def receiver(self, uid: int, process: int, kinds: Sequence[jax.ShapeDtypeStruct]) -> Receive:
        """Returns what waits for the parts that a process gives, and places them."""
        ends = np.cumsum([math.prod(one.shape) for one in kinds])[:-1]
        shardings = [one.sharding for one in kinds]

        def receive(step: int) -> Parts:
            frame = self._inbox.take((process, wire_uid(step, uid, self.process)))
            parts = np.split(np.frombuffer(frame, kinds[0].dtype), ends)
            shaped = [part.reshape(one.shape) for part, one in zip(parts, kinds, strict=True)]
            with jax.enable_x64(True):  # else 64-bit values would be narrowed
                placed: Parts = jax.device_put(shaped, shardings, may_alias=False)
            return placed

        return receive

    def explain(self) -> None:
        """Waits for the job's verdict."""
        self._job.await_verdict()

    def close(self) -> None:
        """Writes what is left, closes all connections and ends the threads.

        A thread that still had arrays would end the process badly.
        """
        for outbox in self._outboxes.values():
            outbox.put(None)
        for one in (self._listener, *self._accepted):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="rhino-stream", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _connect(self, process: int) -> queue.SimpleQueue[tuple[int, list[jax.Array]] | None]:
        if process not in self._outboxes:
            connection = socket.create_connection(split_address(self._job.lookup(f"stream/{process}")))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outbox = self._outboxes[process] = queue.SimpleQueue()
            self._start(self._write, connection, outbox)
        return self._outboxes[process]

    def _write(self, connection: socket.socket, outbox: queue.SimpleQueue[tuple[int, list[jax.Array]] | None]) -> None:
        with connection, contextlib.suppress(OSError, jax.errors.JaxRuntimeError):  # the reader tells what that means
            while (one := outbox.get()) is not None:
                uid, parts = one
                buffers = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
                connection.sendall(_HEAD.pack(self.process, uid, sum(part.nbytes for part in buffers)))
                for part in buffers:
                    connection.sendall(part.data)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self._accepted.append(connection)
                self._start(self._read, connection)

    def _read(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb", buffering=0) as stream:
            try:
                while len(head := _read_all(stream, _HEAD.size)) == _HEAD.size:
                    *name, size = _HEAD.unpack(head)
                    frame = _read_all(stream, size)
                    if len(frame) < size:
                        break
                    self._inbox.put((name[0], name[1]), frame)
            except OSError:
                pass
        self._inbox.lose()


def _read_all(stream: socket.SocketIO, size: int) -> bytearray:
    """Up to `size` bytes: fewer at the stream's end."""
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        if not (more := stream.readinto(view[got:])):
            return data[:got]
        got += more
    return data
