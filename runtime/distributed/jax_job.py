"""The processes of a job of `jax.distributed` as a team that runs steps in stages: which ranks each has, how they meet.

They meet once, at a monitor in process 0, which names the process that a job ends for: JAX's coordination service names
nobody. Process 0 also has that service, and when it ends JAX aborts the others at once, before they can say why, unless
the job was started by `rhino.distributed.initialize`.
"""

from __future__ import annotations

import atexit
import socket
import sys
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, count, pairwise
from types import TracebackType
from typing import Final

import jax
from jax._src import distributed
from jaxlib import utils

from rhino.ir.cluster.placement import Devices, num_reached
from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.key_values import KeyValues
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.monitor import Monitor
from rhino.runtime.distributed.ports import Ports
from rhino.runtime.distributed.processes import Team, share_ranks
from rhino.runtime.distributed.progress import CallProgress, StageProgress
from rhino.runtime.distributed.uncaught import show, show_errors_as_tools_do
from rhino.runtime.executor.devices import pick_devices
from rhino.runtime.executor.executor import Executor
from rhino.runtime.executor.rank_program import RankDevices
from rhino.runtime.executor.transport import SocketTransport, family_of, split_address

_EXCHANGE_LIMIT_S: Final = 24 * 3600
"""How long a process is waited for that still plans or compiles; JAX ends all when one has ended."""

_LOG_ERRORS: Final = 2

_values: Final[list[KeyValues]] = []
"""The key-value service of this process's job, once it was asked for."""


_exchanges: Final = count()
"""Numbers the exchanges of texts between the processes of a job."""


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


@dataclass(frozen=True, eq=False)
class Meeting:
    """This process among the others of its job.

    `executors` are those on the transport, `calls` those of plans of one program.
    """

    job: ProcessJob
    calls: CallProgress = field(default_factory=CallProgress)
    executors: list[weakref.ref[Executor]] = field(default_factory=list)

    @cached_property
    def transport(self) -> SocketTransport:
        """What moves arrays to and from the other processes."""
        return SocketTransport(self.job)

    def watch(self, executor: Executor) -> None:
        """Tells the others of the steps of an executor on the transport."""
        self.executors.append(weakref.ref(executor))
        self.job.watch(StageProgress(executor))

    def leave(self) -> None:
        """Waits until all processes have finished, for until then they may fetch from each other.

        This is the last thing that a process does. JAX's service is in process 0, so the others leave that before.
        """
        for one in self.executors:
            if (executor := one()) is not None:
                with suppress(RhinoError):  # it was said where the result was read, or nobody reads it
                    executor.wait()
        self.job.finish()
        if self.executors:
            self.transport.close()
        if self.job.monitor is not None and recovers():
            self.job.monitor.wait_for_others()
        distributed.global_state.shutdown()
        self.job.close()


def end_job(error: Exception) -> None:
    """Ends the job of this process, if it is in one, for an error that no call will raise soon."""
    if _met:
        _met[0].job.raised(error, lambda: show(error))


def leave_faults_to_us() -> None:
    """Tells JAX's service, before it starts, to end no process when another has ended, and not to warn of that."""
    utils.absl_set_min_log_level(_LOG_ERRORS)
    jax.config.update("jax_enable_recoverability", True)


def recovers() -> bool:
    """Says whether JAX's service leaves it to others what happens when a process ends."""
    return bool(distributed._ENABLE_RECOVERABILITY.value)


_met: Final[list[Meeting]] = []
"""The meeting of this process, once there was one: a process is in one job, of which JAX keeps the state for it too."""


def meet(settings: Callable[[], tuple[Limits, Ports]]) -> Meeting:
    """Returns this process among the others of its job; the first time each of them has to call this.

    It leaves when it ends.
    """
    if not _met:
        state = distributed.global_state  # JAX's own functions would start the backend
        assert state.coordinator_address is not None, "a job has a coordinator"
        found, ports = settings()
        process, host = state.process_id, own_host(state.coordinator_address)
        listener = None
        if process == 0:
            (port,) = ports.free(host, 1)
            listener = socket.create_server((host, port), family=family_of(host))
        monitor = Monitor(state.num_processes, found, listener, own=0) if listener is not None else None
        address = gather_texts("" if monitor is None else monitor.address)[0]
        enter(ProcessJob(address, process, Team(((),) * state.num_processes), found, host, monitor, ports=ports))
    return _met[0]


def enter(job: ProcessJob) -> None:
    """Makes this process one of a job, that leaves when it ends; an error that ends it ends the others."""
    assert not _met, "a process is in one job"
    _met.append(Meeting(job))
    job.watch(_met[0].calls)
    atexit.register(_met[0].leave)  # before JAX leaves its job, which it registered before
    show_errors_as_tools_do()
    shown = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        job.raised(error, lambda: shown(kind, error, trace))

    sys.excepthook = told


def own_host(address: str) -> str:
    """Returns this process's own address on the route to `address`, at which the others reach it."""
    host, port = split_address(address)
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:  # nothing is sent
        probe.connect(place)
        return str(probe.getsockname()[0])


def gather_texts(text: str) -> list[str]:
    """Returns the text that each process of a job calls this with, by number; each of them has to call this.

    Texts go through the coordination service, not through devices: processes may have unequal numbers of these.
    """
    number, client = next(_exchanges), distributed.global_state.client
    assert client is not None, "a job has a coordination service"
    client.key_value_set(f"rhino/exchange/{number}/{distributed.global_state.process_id}", text)
    return [
        str(client.blocking_key_value_get(f"rhino/exchange/{number}/{process}", _EXCHANGE_LIMIT_S * 1000))
        for process in range(distributed.global_state.num_processes)
    ]


def job_process() -> int | None:
    """Returns the number of this process in its job; None where there are no others. Starts no backend."""
    state = distributed.global_state
    return int(state.process_id) if state.client is not None and state.num_processes > 1 else None


def values_of_job() -> KeyValues:
    """Returns what this process puts into, and finds in, the key-value service of JAX's job."""
    if not _values:
        assert distributed.global_state.client is not None, "a job has a coordination service"
        _values.append(KeyValues(distributed.global_state.client))
    return _values[0]


def scatter_lines(lines: str) -> str:
    """Returns the line of this process, of those that process 0 calls this with; each process has to call it.

    Process 0 has a line for each process, and waits for none.
    """
    service, key = values_of_job(), f"exchange/{next(_exchanges)}"
    if jax.process_index() == 0:
        for process, line in enumerate(lines.split("\n")):
            service.set(f"{key}/first/{process}", line.encode())
        return lines.split("\n", maxsplit=1)[0]
    return service.wait_for(f"{key}/first/{jax.process_index()}").decode()


def await_others() -> None:
    """Waits until each process of a job has called this as often."""
    if jax.process_count() > 1:
        gather_texts("")


def most_of_processes(number: int) -> int:
    """Returns the largest of the numbers that the processes of a job call this with."""
    return number if jax.process_count() == 1 else max(map(int, gather_texts(str(number))))
