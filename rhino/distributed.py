"""Start a job of several processes, which ends everywhere, and says why, when one of them fails.

    rhino.distributed.initialize()        in place of jax.distributed.initialize()

Processes meet at a monitor in process 0 before JAX is started. So one that does not come is named, one that is killed
is seen at once, and one that stands still after a limit (docs/cluster_jobs.md). JAX's own service is told to leave that
to us.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Final

import jax
from jax._src import clusters, distributed

from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed.jax_job import Meeting, enter, leave_faults_to_us, meet, own_host
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.monitor import Monitor
from rhino.runtime.distributed.ports import Ports
from rhino.runtime.distributed.processes import Team
from rhino.runtime.distributed.relay import Relay
from rhino.runtime.distributed.uncaught import show_errors_as_tools_do
from rhino.runtime.executor.transport import joined_address, split_address

_SERVICE: Final = "jax service"
_VARIABLES: Final = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    start_limit_s: float | None = None,
    heartbeat_limit_s: float | None = None,
    stall_limit_s: float | None = None,
    **options: Any,  # noqa: ANN401 - JAX's own
) -> None:
    """Makes this process one of a job, as `jax.distributed.initialize` does.

    From now on a `RhinoError` that ends the process is printed as tools print it, without a trace.

    Args:
        coordinator_address: where process 0 listens, as HOST:PORT. This and the next two are, left out, those of
            the environment (`JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID`), or what JAX finds of
            SLURM, Kubernetes and others.
        num_processes: how many there are.
        process_id: the number of this one.
        start_limit_s: how long others are waited for at the start, and in the first step; `RHINO_START_LIMIT_S`.
        heartbeat_limit_s: after how long a process counts as gone that says nothing; `RHINO_HEARTBEAT_LIMIT_S`.
        stall_limit_s: after how long without progress the job ends; `RHINO_STALL_LIMIT_S`.
        options: further ones of `jax.distributed.initialize`.

    Raises:
        RhinoError: RHI-RUN-007 where process 0 cannot listen, or nobody does, RHI-RUN-009 for a limit that is none.
            Where another process does not come, or has other versions of packages, the process ends.
    """
    show_errors_as_tools_do()
    given = {"start_limit_s": start_limit_s, "heartbeat_limit_s": heartbeat_limit_s, "stall_limit_s": stall_limit_s}
    limits = Limits.parse(os.environ, given)
    method = options.pop("cluster_detection_method", None)
    given_ids = (coordinator_address, num_processes, process_id, options.pop("local_device_ids", None))
    address, count, process, local_device_ids = _found(given_ids, os.environ, method, limits)
    ports = Ports.parse(os.environ)
    job = _met(address, count, process, limits, ports)
    if process == 0:
        service = joined_address(split_address(address)[0], _free_port(ports))
        job.publish(_SERVICE, service)
    else:
        service = Relay(job.lookup(_SERVICE)).address
    leave_faults_to_us()
    jax.distributed.initialize(
        service,
        count,
        process,
        local_device_ids,
        cluster_detection_method="deactivate",  # it would find devices for a job that is given in full
        initialization_timeout=int(limits.start_limit_s) + 1,
        **options,
    )
    distributed.global_state.coordinator_address = address
    enter(job)


def meeting() -> Meeting:
    """Returns this process among the others of its job, which the first time all of them have to ask for."""
    return meet(lambda: (Limits.parse(os.environ, {}), Ports.parse(os.environ)))


def _found(
    given: tuple[Any, ...], environment: Mapping[str, str], method: str | None, limits: Limits
) -> tuple[str, int, int, Any]:
    """Returns the coordinator's address, how many processes there are, this one's number, and its devices."""
    values = [environment.get(name) for name in _VARIABLES]
    own = [text if value is None else value for value, text in zip(given, values, strict=False)]
    address, count, process = own[0], *(None if one is None else int(one) for one in own[1:])
    devices = given[3]
    if None in (address, count, process):
        address, count, process, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
            address, count, process, devices, method, int(limits.start_limit_s)
        )
    if address is None or count is None or process is None:
        what = "it is not known which processes the job has"
        fix = f"give coordinator_address, num_processes and process_id, or set {', '.join(_VARIABLES)}"
        raise RhinoError("RHI-RUN-007", what, fix=fix)
    return address, count, process, devices


def _met(address: str, count: int, process: int, limits: Limits, ports: Ports) -> ProcessJob:
    """Returns this process among the others, once all have come."""
    team, monitor = Team(((),) * count), None
    port = split_address(address)[1]
    if process == 0:
        try:
            monitor = Monitor(count, limits, _listener(port), own=0)
        except OSError as error:
            what = f"process 0 on {socket.gethostname()} cannot listen on port {port}: {error.strerror}"
            raise RhinoError("RHI-RUN-007", what, fix="give another port in the coordinator's address") from None
    job = ProcessJob(address, process, team, limits, own_host(address), monitor, ports=ports)
    job.await_all()
    return job


def _listener(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _free_port(ports: Ports) -> int:
    (port,) = ports.free("", 1) if ports.last else (0,)
    with _listener(port) as found:
        return int(found.getsockname()[1])
