"""A process of a job that process 0 tells nothing says so, and does not wait for ever."""

from collections.abc import Iterator

import pytest
from jax._src import distributed
from jax._src.lib import _jax
from jobs import free_address

import rhino
from rhino import job
from rhino.ir.diagnostics import RhinoError
from rhino.runtime.distributed import jax_job


@pytest.fixture
def process_1(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the second of a job, whose first one never says anything."""
    address = free_address()
    service = _jax.get_distributed_runtime_service(address, 1)
    client = _jax.get_distributed_runtime_client(address, 0)
    client.connect()
    for name, value in (("client", client), ("num_processes", 2), ("process_id", 1)):
        monkeypatch.setattr(distributed.global_state, name, value)
    monkeypatch.setattr(jax_job, "_values", [])
    monkeypatch.setattr(job, "meeting", lambda: None)  # it would wait for the first one, too
    yield
    client.shutdown()
    service.shutdown()


@pytest.mark.usefixtures("process_1")
def test_a_plan_that_process_0_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job, "_LOAD_LIMIT_S", 0.1)
    with pytest.raises(RhinoError) as caught:
        rhino.Plan.load("plans/7")
    assert caught.value.render() == (
        "error: [RHI-RUN-008] process 0 did not load plans/7 within 0.1 s, and it reads plans for all\n"
        "  note: to fix: call rhino.Plan.load in every process"
    )
