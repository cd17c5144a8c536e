"""How an array comes from one rank to another: by a copy inside a process, or through a transport between processes.

What parts are sent, and what is made of them, `rhino.runtime.executor.moves` says. On the wire what a process gives
another is known by the number of the step, the transfer's own within the step and that of the process which takes it,
packed in 63 bits: no two that a process gives have the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

import jax
from jax.experimental import transfer
from jaxlib import xla_client

from rhino.runtime.executor.moves import Move, Parts, bind_giving, bind_taking
from rhino.runtime.executor.rank_program import RankDevices

UID_BITS: Final = 24
_PROCESS_BITS: Final = 12
_STEP_BITS: Final = 63 - UID_BITS - _PROCESS_BITS

_CONNECTIONS: Final = 4
"""How many connections carry what the transfer server sends to one peer.

On loopback four carry 0.53 to 1.27 GB/s, one 0.36 to 0.84 (jaxlib 0.10.2, 2026-11-23).
"""

Send = Callable[[int, Parts], None]
"""Gives parts of an array of the step of this number away."""

Receive = Callable[[int], Parts]
"""Returns the parts of the array of the step of this number."""


def wire_uid(step: int, uid: int, taker: int) -> int:
    """Returns what the share of process `taker` in a transfer is called between processes."""
    for number, bits in ((step, _STEP_BITS), (uid, UID_BITS), (taker, _PROCESS_BITS)):
        assert 0 <= number < 1 << bits, (number, bits)
    return (step << UID_BITS | uid) << _PROCESS_BITS | taker


def split_address(address: str) -> tuple[str, int]:
    """Returns the host, without the brackets of IPv6, and the port of `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined_address(host: str, port: int) -> str:
    """Returns `HOST:PORT`, an address of IPv6 in brackets; port 0 is any that is free."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of a host's address."""
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]


def bind_copy(move: Move, source: RankDevices, target: RankDevices) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that copies an array to another rank of this process.

    It does not wait for the array to be computed.
    """
    if not move.is_whole:
        taking = bind_taking(move, target)
        pieces = bind_piece_copies(move, source, target, taking.numbers)
        return lambda array: taking.join(pieces(array))
    copy = xla_client.batched_copy_array_to_devices_with_sharding
    devices = [xla_client.DeviceList(target.devices)]
    shardings = [target.placement(move.target)]
    semantics = [xla_client.ArrayCopySemantics.ALWAYS_COPY]
    return lambda array: copy([array], devices, shardings, semantics)[0]


def bind_piece_copies(
    move: Move, source: RankDevices, target: RankDevices, numbers: Sequence[int]
) -> Callable[[jax.Array], Parts]:
    """Returns a function that copies pieces, by number, from devices of this process to others of it."""
    copy = xla_client.batched_copy_array_to_devices_with_sharding
    cut, every = bind_giving(move, source, numbers), move.pieces()
    devices = [target.devices[every[number].target] for number in numbers]
    shardings = [jax.sharding.SingleDeviceSharding(one) for one in devices]
    each = [xla_client.DeviceList((one,)) for one in devices]
    always = [xla_client.ArrayCopySemantics.ALWAYS_COPY] * len(each)
    return lambda array: copy(cut(array), each, shardings, always)


class Job(Protocol):
    """What a transport needs of the processes that run together."""

    @property
    def process(self) -> int:
        """This process's number."""

    def addresses(self, count: int) -> list[str]:
        """Returns so many addresses, as HOST:PORT, at which the others may reach this process."""

    def publish(self, key: str, value: str) -> None:
        """Says something to all."""

    def lookup(self, key: str) -> str:
        """Returns what was published under a key, and waits for it."""

    def begin_step(self) -> int:
        """Returns the number of the step that this process now begins, from 0."""

    def await_verdict(self) -> None:
        """Waits until it would be known that a process has ended; does not return if one has."""


class Transport(Protocol):
    """Moves arrays between processes.

    One serves all executors of a process; every process of the job runs their steps in one order.
    """

    @property
    def process(self) -> int:
        """This process's number."""

    @property
    def waits(self) -> bool:
        """Whether receiving waits for the array to arrive.

        If so, an array is received right before its first use, else early.
        """

    def next_step(self) -> int:
        """Returns the number of the next step."""

    def sender(self, uid: int, process: int) -> Send:
        """Returns what gives parts of the array of transfer `uid` to a process; it never waits.

        Connects to the process if it is new.
        """

    def receiver(self, uid: int, process: int, kinds: Sequence[jax.ShapeDtypeStruct]) -> Receive:
        """Returns what takes the parts of the array of transfer `uid` that a process gives, of these kinds.

        Connects to the process if it is new.
        """

    def explain(self) -> None:
        """Called when a step has failed: does not return if that is because a peer is gone."""

    def close(self) -> None:
        """Gives up all connections."""


class SocketTransport:
    """JAX's transfer server: neither side waits, and transfers overtake one another."""

    waits: ClassVar[bool] = False

    def __init__(self, job: Job) -> None:
        """Starts the server, and tells the others its address."""
        self.process = job.process
        self._job = job
        own, *each = job.addresses(1 + _CONNECTIONS)
        self._server: Any = transfer.start_transfer_server(jax.local_devices()[0].client, own, each)
        self._connections: dict[int, Any] = {}
        job.publish(f"transfer-server/{job.process}", self._server.address())

    def next_step(self) -> int:
        """Returns the number of the next step."""
        return self._job.begin_step()

    def sender(self, uid: int, process: int) -> Send:
        """Returns what offers parts of an array to a process that asks for them by the transfer's name."""
        self._connect(process)
        offer = self._server.await_pull
        return lambda step, parts: offer(wire_uid(step, uid, process), parts)

    def receiver(self, uid: int, process: int, kinds: Sequence[jax.ShapeDtypeStruct]) -> Receive:
        """Returns what asks a process for parts, and gives arrays of them before they are there."""
        pull, wanted, own = self._connect(process).pull, list(kinds), self.process
        return lambda step: pull(wire_uid(step, uid, own), wanted)

    def explain(self) -> None:
        """Waits for the job's verdict."""
        self._job.await_verdict()

    def close(self) -> None:
        """Gives up all connections."""
        self._connections.clear()
        self._server = None

    def _connect(self, process: int) -> Any:  # noqa: ANN401
        """The connection to a process, made the first time."""
        if process not in self._connections:
            self._connections[process] = self._server.connect(self._job.lookup(f"transfer-server/{process}"))
        return self._connections[process]
