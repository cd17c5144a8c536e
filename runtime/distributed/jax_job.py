"""The processes of a job of `jax.distributed` as a team that runs steps in stages: which ranks each has, how they meet.

They meet once, at a coordination service of their own, which the first process hosts: that of JAX names nobody when a
process ends.
"""

from __future__ import annotations

import atexit
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final

import jax
from jax._src import distributed

from rhino.ir.cluster.placement import Devices, num_reached
from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.key_values import KeyValues
from rhino.runtime.distributed.processes import DEFAULT_HEARTBEAT_S, ProcessJob, Team, join, share_ranks, start_service
from rhino.runtime.executor.devices import pick_devices
from rhino.runtime.executor.executor import Executor
from rhino.runtime.executor.rank_program import RankDevices
from rhino.runtime.executor.transport import SocketTransport

_SAY_LIMIT_S: Final = 24 * 3600
"""How long a process is waited for that still plans or compiles; JAX ends all when one has ended."""

_values: Final[list[KeyValues]] = []
"""The key-value service of this process's job, once it was asked for."""


@dataclass(slots=True)
class _Turns:
    """Numbers each time that the processes of a job tell each other something."""

    next: int = 0

    def take(self) -> int:
        """The number of this time."""
        self.next += 1
        return self.next - 1


_SAID: Final = _Turns()


def deal_devices(sizes: Sequence[int], placed: Devices = ()) -> tuple[jax.Device, ...]:
    """Returns devices for ranks of `sizes` [ranks], one rank after another, or all up to the last of those `placed`.

    They are JAX's first devices. In a job each process holds whole ranks, on its first devices, where that can be. Else
    a rank is of as many processes as it has a share of all devices that ranks have, with as many devices of each; and
    where that cannot be either, ranks take devices one process after another, as those do that have them by number.

    Raises:
        RhinoError: RHI-RUN-004 where there are too few.
    """
    num_processes = jax.process_count()
    if num_processes == 1 or placed:
        return pick_devices(num_reached(sizes, placed))
    there: list[list[jax.Device]] = [[] for _ in range(num_processes)]
    for device in jax.devices():
        there[device.process_index].append(device)
    if num_processes <= len(sizes):
        taken = [sum(sizes[rank] for rank in ranks) for ranks in share_ranks(sizes, num_processes).ranks]
    else:
        ends = [end * num_processes // sum(sizes) for end in accumulate(sizes, initial=0)]
        spans = [end - start for start, end in pairwise(ends)]
        if any(not span or size % span for size, span in zip(sizes, spans, strict=True)):
            return pick_devices(sum(sizes))
        taken = [size // span for size, span in zip(sizes, spans, strict=True) for _ in range(span)]
    if any(len(own) < count for own, count in zip(there, taken, strict=True)):
        return pick_devices(sum(sizes))
    return tuple([device for own, count in zip(there, taken, strict=True) for device in own[:count]])


def team_of(ranks: Sequence[RankDevices]) -> Team | None:
    """Returns the processes that hold the ranks; None where this one holds all.

    Raises:
        RhinoError: RHI-RUN-004 where a process has no device of any rank.
    """
    holders = [{device.process_index for device in rank.devices} for rank in ranks]
    if all(one == {jax.process_index()} for one in holders):
        return None
    ranks_of = [
        tuple(rank.rank for rank, own in zip(ranks, holders, strict=True) if process in own)
        for process in range(jax.process_count())
    ]
    if not all(ranks_of):
        what = f"process {ranks_of.index(())} holds no device of {len(ranks)} ranks"
        fix = "give each process some: plan for more devices, or give devices in another order"
        raise RhinoError("RHI-RUN-004", what, fix=fix)
    return Team(tuple(ranks_of))


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """This process among the others of its job.

    `service` is the coordination service of all, if this process hosts it. `executors` are those on `transport`.
    """

    job: ProcessJob
    service: Any
    transport: SocketTransport
    executors: list[weakref.ref[Executor]] = field(default_factory=list)

    def leave(self) -> None:
        """Waits until all processes have finished, for until then they may fetch from each other.

        This is the last thing that a process does.
        """
        for one in self.executors:
            if (executor := one()) is not None:
                with suppress(RhinoError):  # it was said where the result was read, or nobody reads it
                    executor.wait()
        self.job.finish()
        self.transport.close()
        if self.service is not None:
            self.service.shutdown()


_met: Final[list[Meeting]] = []
"""The meeting of this process, once there was one: a process is in one job, of which JAX keeps the state for it too."""


def meet(heartbeat_s: int = DEFAULT_HEARTBEAT_S) -> Meeting:
    """Returns this process among the others of its job; the first time each of them has to call this.

    It leaves when it ends.

    Raises:
        RhinoError: RHI-RUN-007 where some process does not come.
    """
    if not _met:
        team, process, host = Team(((),) * jax.process_count()), jax.process_index(), own_host()
        service, address = start_service(len(team.ranks), heartbeat_s, host) if process == 0 else (None, "")
        job = join(said_by_all(address)[0], process, team, heartbeat_s=heartbeat_s, host=host)
        _met.append(Meeting(job, service, SocketTransport(job)))
        atexit.register(_met[0].leave)  # before JAX leaves its job, which it registered before
    return _met[0]


def own_host() -> str:
    """Returns the address at which the others reach this process.

    It is the process's own address on the route to the coordinator of JAX's job.
    """
    address = distributed.global_state.coordinator_address
    assert address is not None, "a job has a coordinator"
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # nothing is sent
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def said_by_all(text: str) -> list[str]:
    """Returns what each process of a job calls this with, by number; each of them has to call this.

    Texts go through the coordination service, not through devices: processes may have unequal numbers of these.
    """
    number, client = _SAID.take(), distributed.global_state.client
    assert client is not None, "a job has a coordination service"
    client.key_value_set(f"rhino/said/{number}/{jax.process_index()}", text)
    return [
        str(client.blocking_key_value_get(f"rhino/said/{number}/{process}", _SAY_LIMIT_S * 1000))
        for process in range(jax.process_count())
    ]


def job_process() -> int | None:
    """Returns the number of this process in its job; None where there are no others. Starts no backend."""
    state = distributed.global_state
    return int(state.process_id) if state.client is not None and state.num_processes > 1 else None


def has_said(process: int) -> bool:
    """Whether a process has told the others what they would tell each other next."""
    try:
        values_of_job().client.key_value_try_get(f"rhino/said/{_SAID.next}/{process}")
    except jax.errors.JaxRuntimeError:
        return False
    return True


def values_of_job() -> KeyValues:
    """Returns what this process puts into, and finds in, the key-value service of JAX's job."""
    if not _values:
        assert distributed.global_state.client is not None, "a job has a coordination service"
        _values.append(KeyValues(distributed.global_state.client))
    return _values[0]


def said_by_first(lines: str) -> str:
    """Returns the line of this process, of those that process 0 calls this with; each process has to call it.

    Process 0 has a line for each process, and waits for none.
    """
    service, key = values_of_job(), f"said/{_SAID.take()}"
    if jax.process_index() == 0:
        for process, line in enumerate(lines.split("\n")):
            service.set(f"{key}/first/{process}", line.encode())
        return lines.split("\n", maxsplit=1)[0]
    return service.wait_for(f"{key}/first/{jax.process_index()}").decode()


def most_of_processes(number: int) -> int:
    """Returns the largest of the numbers that the processes of a job call this with."""
    return number if jax.process_count() == 1 else max(map(int, said_by_all(str(number))))
