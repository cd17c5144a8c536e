"""What starting a job of a thousand hosts takes, by simulation: planning, lists, proofs, and what processes are told.

Stages are a chain, or a model is planned in them, each on as many hosts as all have for it. Lists are then assembled
for several numbers of micro-batches, and the shares of processes, one a host, are put into a stand-in for the key-value
service of the process that coordinates. No process is started.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

from executor import chain_of_stages
from frontier import KINDS
from models import sized, step_of
from pipelines import Setting, plan
from report import Options, Question, key, option, run

from rhino.ir.cluster.file import cluster_to_text
from rhino.ir.plan.instructions import Layout, Step
from rhino.ir.plan.plan import Execution
from rhino.ir.plan.stage_programs import StagedStep
from rhino.ir.plan.step_json import read_step, step_text
from rhino.ir.plan.verify import verify
from rhino.passes.planner import staged_plan
from rhino.passes.planner.plan_rows import costs_of
from rhino.runtime.distributed.key_values import KeyValues
from rhino.share import Shares, told_share
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order
from rhino.strategies.pipeline.simulate import simulate

_DEVICES: Final = 8
"""Of a host."""

_WEIGHTS: Final = 27
"""Of a stage of the chain: the nine weights of a layer, and two moments of each."""

_PROGRAM_BYTES: Final = 2**16
"""Of a program of the chain, beside what compresses."""

Record = dict[str, Any]
Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class Service:
    """A stand-in for a coordination service, which counts the bytes that it hands out."""

    values: dict[str, bytes] = field(default_factory=dict)
    sent_bytes: int = 0

    def key_value_set_bytes(self, name: str, value: bytes, allow_overwrite: bool = False) -> None:
        """Keeps a value."""
        assert allow_overwrite or name not in self.values
        self.values[name] = value

    def blocking_key_value_get_bytes(self, name: str, _: int) -> bytes:
        """Returns a value."""
        self.sent_bytes += len(self.values[name])
        return self.values[name]

    @property
    def held_bytes(self) -> int:
        """What it keeps."""
        return sum(map(len, self.values.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """The stages that a list is assembled of, what is executed beside it, and what planning took; None if nothing was.

    `execution` has no step yet.
    """

    staged: StagedStep
    execution: Callable[[Step], Execution]
    run_s: tuple[float, ...]
    planning_s: float | None


def chained(num_stages: int, num_micro_batches: int) -> Planned:
    """Returns stages that were not planned: a chain, with the weights of a layer of a decoder for each and its moments.

    A forward takes 20 ms, and a backward 40 ms.
    """
    layout = Layout((1, 8192, 16384), "bf16", ((), (), ("x",)))
    staged = chain_of_stages(num_stages, num_micro_batches, layout, _WEIGHTS, _DEVICES)
    run_s, text = (0.02, 0.04, 0.0), f"// {' ' * _PROGRAM_BYTES}"
    modules = {program.module: f"{program.name}{text}" for program in staged.programs}
    return Planned(staged, lambda step: Execution(step, modules, run_s, (0, 0, 0), 1e-5, 4e11), run_s, None)


def planned(preset: str, num_hosts: int, num_stages: int, num_micro_batches: int) -> Planned:
    """Returns the plan of a model in stages, each on as many whole hosts as there are for it."""
    hosts_each = num_hosts // num_stages
    kind = replace(KINDS["h100"], sides={num_hosts * _DEVICES: (num_hosts, _DEVICES)})
    model = sized(preset, scan=True, remat=True, batch=num_micro_batches * hosts_each)
    text, caught = step_of(model), list[tuple[StagedStep, tuple[float, ...]]]()

    def assembled(staged: StagedStep, order: Any, seconds: tuple[float, ...]) -> Any:  # noqa: ANN401 - as it is
        caught.append((staged, seconds))
        return assemble(staged, order, seconds)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(staged_plan, "assemble", assembled):
        file = Path(folder) / "cluster.toml"
        file.write_text(cluster_to_text(kind.cluster(num_hosts * _DEVICES)), encoding="utf-8")
        since = time.process_time()
        setting = Setting(num_stages, num_micro_batches, "1f1b", f"{hosts_each}x{_DEVICES}", str(file))
        made = plan(text, preset, setting)
        spent_s = time.process_time() - since
    return Planned(caught[-1][0], lambda step: replace(made.execution, step=step), caught[-1][1], spent_s)


def records(options: Options) -> Iterator[Record]:
    """Yields the figures of each number of stages, micro-batches and hosts."""
    for stages in options.stages:
        most = max(options.micro_batches)
        base = planned(options.model, max(options.hosts), stages, most) if options.model else chained(stages, most)
        for micro_batches in options.micro_batches:
            execution, found = lists(base, micro_batches)
            for hosts in options.hosts:
                yield {**found, **start_up(execution, hosts)}


def lists(base: Planned, num_micro_batches: int) -> tuple[Execution, Record]:
    """Returns a step with so many micro-batches, and what its lists take."""
    staged = replace(base.staged, num_micro_batches=num_micro_batches)
    order = make_order("1f1b", Pipeline(staged.num_stages, num_micro_batches))
    step, assemble_s = timed(lambda: assemble(staged, order, base.run_s))
    execution = base.execution(step)
    _, verify_s = timed(lambda: verify(step, len(staged.arguments), len(staged.results)))
    text, write_s = timed(lambda: step_text(step))
    _, read_s = timed(lambda: read_step(json.loads(text)))
    simulation, simulate_s = timed(lambda: simulate(step, costs_of(execution)))
    return execution, {
        "stages": staged.num_stages,
        "micro_batches": num_micro_batches,
        "planning_s": base.planning_s,
        "instructions": len(step.instructions),
        "assemble_s": assemble_s,
        "verify_s": verify_s,
        "write_s": write_s,
        "file_bytes": len(text),
        "read_s": read_s,
        "simulate_s": simulate_s,
        "step_s": simulation.timeline.end_s,
    }


def start_up(execution: Execution, num_hosts: int) -> Record:
    """Returns what the processes of a job are told, one a host: each has a part of the devices of one rank."""
    num_ranks = execution.step.num_ranks
    each = num_hosts // num_ranks
    ranks = [(process // each,) for process in range(each * num_ranks)]
    devices = [[rank * each + host for host in range(each) for _ in range(_DEVICES)] for rank in range(num_ranks)]
    service = Service()
    shares, shares_s = timed(lambda: Shares(execution, frozenset(), ranks, devices))
    first, others = KeyValues(service), KeyValues(service)
    told, tell_s = timed(lambda: shares.told(first))
    sizes = list[int]()
    for digest in told[:: max(1, each)]:  # those of a rank are told the same
        before = service.sent_bytes
        told_share(digest, others)
        sizes.append(service.sent_bytes - before)
    return {
        "hosts": num_hosts,
        "share_bytes": max(sizes),
        "held_bytes": service.held_bytes,
        "traffic_bytes": each * sum(sizes),
        "tell_s": shares_s + tell_s,
    }


def timed(act: Callable[[], Found]) -> tuple[Found, float]:
    """Returns what a function gives, and the processor seconds that it takes."""
    since = time.process_time()
    return act(), time.process_time() - since


def faults(found: Sequence[Record]) -> Iterator[str]:
    """Yields what is over its target: lists that take 2 s to assemble, prove and read, and a share of 1 MiB."""
    for one in found:
        where = f"{one['stages']} stages, {one['micro_batches']} micro-batches, {one['hosts']} hosts"
        seconds = math.fsum(one[name] for name in ("assemble_s", "verify_s", "read_s"))
        if seconds > 2:
            yield f"{where}: lists take {seconds:.1f} processor s"
        if one["share_bytes"] > 2**20:
            yield f"{where}: a process is told {one['share_bytes']} bytes"


QUESTION: Final = Question(
    __doc__ or "",
    records,
    {
        "stages": key("stages"),
        "micro-batches": key("micro_batches"),
        "hosts": key("hosts"),
        "planned": key("planning_s", "s"),
        "instructions": key("instructions", ","),
        "assembled": key("assemble_s", "s"),
        "proven": key("verify_s", "s"),
        "written": key("write_s", "s"),
        "file": key("file_bytes", "bytes"),
        "read": key("read_s", "s"),
        "simulated": key("simulate_s", "s"),
        "step": key("step_s", "s"),
        "told": key("tell_s", "s"),
        "a process": key("share_bytes", "bytes"),
        "coordinator": key("held_bytes", "bytes"),
        "start-up traffic": key("traffic_bytes", "bytes"),
    },
    (
        option("--model", "", "of examples/export.py, with layers in a loop; without one stages are a chain"),
        option("--stages", [16, 64], "how many"),
        option("--micro-batches", [128, 512], "how many"),
        option("--hosts", [250, 1000, 4000], "how many, of eight H100 each"),
    ),
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(run(None, QUESTION, sys.argv[1:]))
