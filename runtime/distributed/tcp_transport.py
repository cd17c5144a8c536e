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
from typing import ClassVar, Final

import jax
import numpy as np

from rhino.runtime.executor.moves import Parts, Taking
from rhino.runtime.executor.transport import Job, Peers, Receive, Send, wire_uid

_HEAD: Final = struct.Struct("!QQ")
"""A transfer's name and the bytes that follow."""


class _Inbox:
    """What has arrived, by the transfer's name."""

    def __init__(self) -> None:
        self._frames: dict[int, bytearray] = {}
        self._changed = threading.Condition()
        self._lost = False

    def put(self, uid: int, frame: bytearray) -> None:
        with self._changed:
            self._frames[uid] = frame
            self._changed.notify_all()

    def lose(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def take(self, uid: int) -> bytearray:
        with self._changed:
            self._changed.wait_for(lambda: uid in self._frames or self._lost)
            if uid not in self._frames:
                raise ConnectionError("a process that arrays come from has closed its connection")
            return self._frames.pop(uid)


class StreamTransport:
    """TCP connections, host memory between; receiving waits."""

    waits: ClassVar[bool] = True

    def __init__(self, job: Job, process_of: Sequence[int]) -> None:
        """`process_of` is the process of each rank."""
        self._peers = Peers(job, tuple(process_of))
        self._inbox = _Inbox()
        self._outboxes: dict[int, queue.SimpleQueue[tuple[int, list[jax.Array]] | None]] = {}
        self._listener = socket.create_server((job.host, 0))
        self._accepted: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        job.publish(f"stream/{job.process}", "{}:{}".format(*self._listener.getsockname()[:2]))
        self._start(self._accept)

    def next_step(self) -> int:
        """Returns the number of the next step."""
        return self._peers.job.begin_step()

    def sender(self, uid: int, peer: int, cut: Callable[[jax.Array], Parts]) -> Send:
        """Returns what leaves an array to the thread that writes to the peer's process."""
        outbox = self._connect(self._peers.process(peer))
        return lambda step, array: outbox.put((wire_uid(step, uid), cut(array)))

    def receiver(self, uid: int, peer: int, taking: Taking) -> Receive:
        """Returns what waits for the parts of an array and places them."""
        ends = np.cumsum([math.prod(shape) for shape in taking.shapes])[:-1]
        devices = list(taking.devices)

        def receive(step: int) -> jax.Array:
            parts = np.split(np.frombuffer(self._inbox.take(wire_uid(step, uid)), taking.dtype), ends)
            shaped = [part.reshape(shape) for part, shape in zip(parts, taking.shapes, strict=True)]
            with jax.enable_x64(True):  # else 64-bit values would be narrowed
                return taking.join(jax.device_put(shaped, devices, may_alias=False))

        return receive

    def explain(self) -> None:
        """Waits for the job's verdict."""
        self._peers.job.await_verdict()

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
            host, _, port = self._peers.job.lookup(f"stream/{process}").rpartition(":")
            connection = socket.create_connection((host, int(port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            outbox = self._outboxes[process] = queue.SimpleQueue()
            self._start(self._write, connection, outbox)
        return self._outboxes[process]

    def _write(self, connection: socket.socket, outbox: queue.SimpleQueue[tuple[int, list[jax.Array]] | None]) -> None:
        with connection, contextlib.suppress(OSError, jax.errors.JaxRuntimeError):  # the reader tells what that means
            while (one := outbox.get()) is not None:
                uid, parts = one
                buffers = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
                connection.sendall(_HEAD.pack(uid, sum(part.nbytes for part in buffers)))
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
                    uid, size = _HEAD.unpack(head)
                    frame = _read_all(stream, size)
                    if len(frame) < size:
                        break
                    self._inbox.put(uid, frame)
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
