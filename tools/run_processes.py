"""Run a plan in several processes of this machine.

Each has some of the ranks, and knows of the others' results nothing. The process that launches them reads the plan and
leaves each its share in a folder, where each leaves what is asked of a step: losses, and all results where they are
compared. What was read there is removed.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rhino.ir.plan.parts import Part, parts_of
from rhino.ir.plan.plan import Execution, Plan
from rhino.runtime.distributed.launcher import launch
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.processes import Team, share_ranks
from rhino.runtime.distributed.progress import StageProgress
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.signature import Signature
from rhino.runtime.executor.trace import Event, Recorder
from rhino.runtime.executor.transport import SocketTransport
from rhino.tools.plan_steps import Inputs, RanStep, asked_of, events_of, limits_of, signature_of, steps_of


@dataclass(frozen=True, slots=True, eq=False)
class _Share:
    """What a process needs of a plan: all but what others execute."""

    plan: Plan
    part: Part
    modules: Mapping[str, str]
    signature: Signature
    nonnegative: tuple[int, ...]


def _write_shares(plan: Plan, execution: Execution, team: Team, folder: Path) -> None:
    head, signature = replace(plan, execution=None), signature_of(plan)
    for process, part in enumerate(parts_of(execution.step, team.ranks)):
        modules = {one.module: execution.modules[one.module] for one in part.programs}
        share = _Share(head, part, modules, signature, execution.nonnegative_arguments)
        _share_file(folder, process).write_bytes(pickle.dumps(share))


def run_in_processes(
    plan: Plan, execution: Execution, options: Namespace, tell: Callable[[RanStep], None]
) -> list[Event]:
    """Runs the steps in several processes, tells each when it has ended in all, and returns what was recorded."""
    team = share_ranks([mesh.num_devices for mesh in plan.meshes], options.processes)
    with ended_in_order(), tempfile.TemporaryDirectory(prefix="rhino-run-") as parent:
        folder = Path(parent)
        _write_shares(plan, execution, team, folder)

        def command(address: str, process: int) -> list[str]:
            part = json.dumps([address, process, parent])
            return [sys.executable, "-c", "from rhino.tools.run import main; main()", *options.argv, f"--part={part}"]

        ended = Ended(folder, len(team.ranks))

        def look() -> None:
            for step in ended.take():
                tell(step)

        code = launch(command, team, limits=limits_of(options), look=look)
        if code:
            raise SystemExit(code)
        return _gathered_events(folder, len(team.ranks))


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Makes a request to end, as from `timeout`, end this process as an error does.

    Its child processes and its files are cleaned up.
    """

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_part(options: Namespace) -> None:
    """Runs this process's ranks, and leaves what comes out in the launcher's folder."""
    address, process, folder = json.loads(options.part)
    # The folder is the launcher's own, and nobody else's: so is what it has left there.
    share: _Share = pickle.loads(_share_file(Path(folder), process).read_bytes())
    plan, ranks = share.plan, share.part.ranks
    team = share_ranks([mesh.num_devices for mesh in plan.meshes], options.processes)
    request_host_devices(sum(plan.meshes[rank].num_devices for rank in ranks), os.environ)
    devices = devices_of_ranks(plan, jax.local_devices(), ranks)
    job = ProcessJob(address, process, team, limits_of(options), is_launched=True)
    transport, processes = SocketTransport(job), team.of_devices(plan.meshes)
    recorder = Recorder() if options.trace else None
    inputs = Inputs.of(share.nonnegative, share.signature, options)
    asked = asked_of(plan, share.signature, options)
    with Executor(share.part, share.modules, devices, transport, processes, recorder=recorder) as executor:
        job.watch(StageProgress(executor))
        for step in steps_of(executor, plan, inputs, options.steps, asked):
            leave(step, results_file(Path(folder), process, step.number))
        _events_file(Path(folder), process).write_text(json.dumps(events_of(recorder)), encoding="utf-8")
        job.finish()
    transport.close()
    job.close()


def _share_file(folder: Path, process: int) -> Path:
    return folder / f"{process}.share"


def results_file(folder: Path, process: int, step: int) -> Path:
    """Returns where a process leaves what is asked of a step."""
    return folder / f"{process}-{step}.npz"


def _events_file(folder: Path, process: int) -> Path:
    return folder / f"{process}.json"


def leave(step: RanStep, file: Path) -> None:
    """Leaves what is asked of a step to the launcher, whole from the moment that the file is there."""
    named: dict[str, Any] = {"time_s": np.float64(step.time_s), **{str(i): one for i, one in step.results.items()}}
    part = file.with_suffix(".part")
    with part.open("wb") as out:
        np.savez(out, **named)
    part.replace(file)


@dataclass(slots=True)
class Ended:
    """The steps that have ended in all processes, one after another."""

    folder: Path
    num_processes: int
    number: int = 0

    def take(self) -> Iterator[RanStep]:
        """Yields those that nobody has taken yet; their files are gone."""
        while all(file.exists() for file in self._files()):
            parts = [dict(np.load(file)) for file in self._files()]
            for file in self._files():
                file.unlink()
            time_s = max(float(part.pop("time_s")) for part in parts)
            yield RanStep(self.number, time_s, {int(i): array for part in parts for i, array in part.items()})
            self.number += 1

    def _files(self) -> list[Path]:
        return [results_file(self.folder, process, self.number) for process in range(self.num_processes)]


def _gathered_events(folder: Path, num_processes: int) -> list[Event]:
    return [
        event
        for process in range(num_processes)
        for event in json.loads(_events_file(folder, process).read_text(encoding="utf-8"))
    ]
