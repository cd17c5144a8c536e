"""How an array comes from one rank to another: by a copy inside a process, or through a transport between processes.

What parts are sent, and what is made of them, `rhino.runtime.executor.moves` says. On the wire a transfer is known by
the number of the step and its own number within the step, packed in 63 bits: no two transfers of a job have the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import jax
from jax.experimental import transfer
from jaxlib import xla_client

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.executor.moves import Move, Parts, Taking, bind_giving, bind_taking
from rhino.runtime.executor.rank_program import RankDevices

UID_BITS: Final = 24
_STEP_BITS: Final = 63 - UID_BITS

Send = Callable[[int, jax.Array], None]
"""Gives an array of the step of this number away."""

Receive = Callable[[int], jax.Array]
"""Returns the array of the step of this number."""


def wire_uid(step: int, uid: int) -> int:
    """Returns what a transfer is called between processes."""
    assert 0 <= uid < 1 << UID_BITS, uid
    assert 0 <= step < 1 << _STEP_BITS, step
    return step << UID_BITS | uid


def bind_copy(move: Move, source: RankDevices, target: RankDevices) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that copies an array to another rank of this process.

    It does not wait for the array to be computed.
    """
    copy = xla_client.batched_copy_array_to_devices_with_sharding
    if not move.pieces():
        devices = [xla_client.DeviceList(target.devices)]
        shardings = [target.placement(move.target)]
        semantics = [xla_client.ArrayCopySemantics.ALWAYS_COPY]
        return lambda array: copy([array], devices, shardings, semantics)[0]
    cut, taking = bind_giving(move, source), bind_taking(move, target)
    each = [xla_client.DeviceList((device,)) for device in taking.devices]
    single = [jax.sharding.SingleDeviceSharding(device) for device in taking.devices]
    always = [xla_client.ArrayCopySemantics.ALWAYS_COPY] * len(each)
    return lambda array: taking.join(copy(cut(array), each, single, always))


class Job(Protocol):
    """What a transport needs of the processes that run together."""

    @property
    def process(self) -> int:
        """This process's number."""

    @property
    def host(self) -> str:
        """The name or address that the others reach this process at."""

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
    def waits(self) -> bool:
        """Whether receiving waits for the array to arrive.

        If so, an array is received right before its first use, else early.
        """

    def next_step(self) -> int:
        """Returns the number of the next step."""

    def sender(self, uid: int, peer: int, cut: Callable[[jax.Array], Parts]) -> Send:
        """Returns what gives the array of transfer `uid`, cut into parts, to rank `peer`; it never waits.

        Connects to the peer's process if it is new.
        """

    def receiver(self, uid: int, peer: int, taking: Taking) -> Receive:
        """Returns what takes the array of transfer `uid` from rank `peer`.

        Connects to the peer's process if it is new.
        """

    def explain(self) -> None:
        """Called when a step has failed: does not return if that is because a peer is gone."""

    def close(self) -> None:
        """Gives up all connections."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The process of each rank."""

    job: Job
    process_of: tuple[int, ...]

    def process(self, rank: int) -> int:
        """Returns the process that holds a rank."""
        if not 0 <= rank < len(self.process_of):
            raise RhinoError(
                "RHI-RUN-004",
                f"the step has a rank {rank}, and the processes hold ranks 0 to {len(self.process_of) - 1}",
                fix="share all ranks of the step among the processes",
            )
        return self.process_of[rank]


class SocketTransport:
    """JAX's transfer server: neither side waits, and transfers overtake one another."""

    waits: ClassVar[bool] = False

    def __init__(self, job: Job, process_of: Sequence[int]) -> None:
        """`process_of` is the process of each rank."""
        self._peers = Peers(job, tuple(process_of))
        local = f"{job.host}:0"
        self._server: Any = transfer.start_transfer_server(jax.local_devices()[0].client, local, [local])
        self._connections: dict[int, Any] = {}
        job.publish(f"transfer-server/{job.process}", self._server.address())

    def holding(self, process_of: Sequence[int]) -> SocketTransport:
        """Returns this transport for steps whose ranks are held so; connections are shared."""
        other = copy(self)
        other._peers = Peers(self._peers.job, tuple(process_of))
        return other

    def next_step(self) -> int:
        """Returns the number of the next step."""
        return self._peers.job.begin_step()

    def sender(self, uid: int, peer: int, cut: Callable[[jax.Array], Parts]) -> Send:
        """Returns what offers the parts of an array to whoever asks for them by the transfer's name."""
        self._connect(self._peers.process(peer))
        offer = self._server.await_pull
        return lambda step, array: offer(wire_uid(step, uid), cut(array))

    def receiver(self, uid: int, peer: int, taking: Taking) -> Receive:
        """Returns what asks for the parts, and gives an array of them before they are there."""
        pull = self._connect(self._peers.process(peer)).pull
        wanted = [
            jax.ShapeDtypeStruct(shape, taking.dtype, sharding=jax.sharding.SingleDeviceSharding(device))
            for shape, device in zip(taking.shapes, taking.devices, strict=True)
        ]
        return lambda step: taking.join(pull(wire_uid(step, uid), wanted))

    def explain(self) -> None:
        """Waits for the job's verdict."""
        self._peers.job.await_verdict()

    def close(self) -> None:
        """Gives up all connections."""
        self._connections.clear()
        self._server = None

    def _connect(self, process: int) -> Any:  # noqa: ANN401
        """The connection to a process, made the first time."""
        if process not in self._connections:
            self._connections[process] = self._server.connect(self._peers.job.lookup(f"transfer-server/{process}"))
        return self._connections[process]
