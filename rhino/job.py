"""Plans in a job of several processes: process 0 searches or reads, and tells the others what it found.

What is told is a plan's head: all but its stages' programs and lists, of which each process is told its share when it
runs them (`rhino.share`). A program that all processes run is told whole.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import jax

from rhino.distributed import meeting
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.plan.plan import Plan
from rhino.ir.plan.plan_json import head_of, head_text
from rhino.pins import named
from rhino.plan_options import PlanOptions
from rhino.planner import Planned
from rhino.runtime.distributed.jax_job import gather_texts, job_process, values_of_job
from rhino.source import read_traced, shapes
from rhino.traced import Traced

_LOAD_LIMIT_S: Final = 300
"""How long process 0 may be behind another one that asks for a plan in a file."""

_LOADED: Final = Counter[str]()
"""How often this process has asked for the plan of each file: a file may hold another one the next time."""


def plan_of_job(load: Callable[[], Plan], what: str) -> Plan:
    """Returns the plan that process 0 loads; in another process of a job, its head.

    Raises:
        RhinoError: what loading raises in process 0; RHI-RUN-008 where that does not load it.
    """
    process = job_process()
    if process is None:
        return load()
    meeting()  # who ends meanwhile is named
    key = f"plan/{_digest(what)}/{_LOADED[what]}"
    _LOADED[what] += 1
    if process == 0:
        return _told(key, lambda: Planned(load())).plan
    try:
        return _heard(values_of_job().wait_for(key, _LOAD_LIMIT_S)).plan
    except jax.errors.JaxRuntimeError:
        words = f"process 0 did not {what} within {_LOAD_LIMIT_S} s, and it reads plans for all"
        raise RhinoError("RHI-RUN-008", words, fix="call rhino.Plan.load in every process") from None


def planned_in_job(
    plan: Callable[[], Planned], traced: Traced, request: PlanOptions, name: str, kept: object
) -> Planned:
    """Returns what process 0 plans; a plan that was `kept` each process has already.

    Every process of a job calls this alike: they compare what they ask before process 0 plans it.

    Raises:
        RhinoError: what planning raises in process 0; RHI-JAX-008 where that is asked for something else.
    """
    process = job_process()
    if process is None or kept is not None:
        return plan()
    meeting()
    asked = _asked(traced, request)
    check_agreement(asked, name)  # else a process would wait for a plan that never comes
    key = f"plan/{asked}"
    return _told(key, plan) if process == 0 else _heard(values_of_job().wait_for(key))


def check_agreement(plan: str, name: str) -> None:
    """Compares the plans of all processes of a job, as texts.

    Processes with different programs would wait for one another forever. Raises RHI-JAX-008.
    """
    every = gather_texts(_digest(plan))
    others = [number for number, one in enumerate(every) if one != every[0]]
    if others:
        raise RhinoError(
            "RHI-JAX-008",
            f"process {', '.join(map(str, others))} has another plan of {name} than process 0",
            fix="pass the same shapes, options and code in every process",
        )


def _asked(traced: Traced, request: PlanOptions) -> str:
    """Returns a hash of a function and of what is asked of its plan, alike in all processes."""
    module = read_traced(traced, make_context())
    options = [(one.name, getattr(request, one.name)) for one in fields(request) if one.name != "pins"]
    pins = request.pins(named(shapes(traced, module)))
    return _digest(f"{module.operation.get_asm(enable_debug_info=False)} {options} {pins}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _told(key: str, plan: Callable[[], Planned]) -> Planned:
    """Returns a plan, and tells the others what it is, or why there is none."""
    service = values_of_job()
    try:
        found = plan()
    except RhinoError as error:
        place = (error.place.file, error.place.line, error.place.column)
        service.set(key, json.dumps([error.id, error.what, place, error.notes, error.fix]).encode())
        raise
    code = base64.b64encode(found.code).decode()
    service.set(key, service.put(json.dumps({"head": head_text(found.plan), "code": code}).encode()).encode())
    return found


def _heard(told: bytes) -> Planned:
    """Returns the plan that process 0 told of, or raises why there is none."""
    if told.startswith(b"["):
        id, what, place, notes, fix = json.loads(told)
        raise RhinoError(id, what, Place(*place), tuple(notes), fix)
    data: dict[str, Any] = json.loads(values_of_job().get(told.decode()))
    return Planned(head_of(data["head"]), base64.b64decode(data["code"]))
