"""Data parallelism with unequal shares by the clock: two processes, of which one has a part of a core."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import jax
import numpy as np
from models import sized, step_of
from pipelines import executed_steps
from planning import Reference, reference
from report import Options, Question, key, option, say
from uneven import planned

from rhino.ir.cluster.cluster import Cluster, cluster_to_text, load_cluster
from rhino.ir.cluster.groups import joined
from rhino.ir.cluster.hardware import Device
from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.files import load_plan, save_plan
from rhino.ir.plan.plan import Plan
from rhino.runtime.distributed.launcher import DEFAULT_LIMITS, launch
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.processes import Team
from rhino.runtime.executor.compare import differences
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.transport import SocketTransport
from rhino.tools.plan_steps import leaves_of, signature_of

MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "mlp": {"sizes": (1024, 1024, 1024, 1024), "batch": 256},
    "bert": {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 1024, "seq": 128, "batch": 4},
}
"""Models of examples/export.py, with dropout, and their sizes; `batch` is that of a micro-batch."""

TEAM: Final = Team(((0,), (1,)))
NUM_COMPARED: Final = 3
"""The first steps, whose results are compared with those of one device."""

_BETWEEN: Final = "cpu2"
"""The preset whose devices are joined as two processes of a host are taken to be."""

_RIVAL: Final = "import os\nos.nice({})\nwhile True: pass"
_COUNT: Final = """\
import time
count, end_s = 0, time.time() + 2
while time.time() < end_s: count += 1
print(count)
"""
_PROFILE: Final = "from rhino.tools.profile import main; main()"


@dataclass(frozen=True, slots=True)
class Timed:
    """A step on two replicas of unlike speed, with equal shares of the micro-batches and by speed.

    `share` is what the second has of a core. A pair is of equal shares and own ones: seconds of a step, the median over
    all rounds and as simulated. `max_rel` is how far results of either are from those of one device.
    """

    model: str
    share: float
    shares: tuple[int, ...]
    measured_s: tuple[float, float]
    simulated_s: tuple[float, float]
    max_rel: float


def records(options: Options) -> Iterator[Timed]:
    """How much faster shares by speed are than equal ones, by the clock and as simulated, on devices that are unlike.

    Two processes run a replica each, pinned to a core of its own. On that of the second one another process computes
    all the time, and leaves it half of the core, or more the less it asks for (--nice). The shares are those that are
    picked for a cluster of two groups: a core as it is profiled, and one with what is left of it. Steps with equal
    shares and with these take turns in one run. The exit code is 1 if equal shares are faster, or results are not those
    of one device.
    """
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RhinoError("RHI-RUN-004", "two cores are needed, and one is there", fix="run it on a larger machine")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(_rival(cores[1], options.nice))
        share = share_of(cores)
        say(f"of the second core, {share:.2f} is left")
        cluster = profiled(folder, cores, share, options)
        (folder / "cluster.toml").write_text(cluster_to_text(cluster), encoding="utf-8")
        for model in options.models:
            yield timed(model, share, folder, cores, options)


@contextmanager
def _rival(core: int, nice: int) -> Iterator[None]:
    """Has a process compute on a core meanwhile."""
    process = _on(core, [sys.executable, "-c", _RIVAL.format(nice)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _on(core: int, words: Sequence[str], out: int | None = None) -> subprocess.Popen[bytes]:
    """Starts a process on one core; what it writes goes to `out`."""
    here = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # what is started now inherits this
    try:
        return subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
    finally:
        os.sched_setaffinity(0, here)


def profiled(folder: Path, cores: Sequence[int], share: float, options: Options) -> Cluster:
    """Returns a cluster of two groups of one device: the first core as rhino-profile measures it, and a share of it.

    It is profiled while other cores are busy. The second core is not profiled: programs that end before another process
    has its turn would count, and those of a step are longer.
    """
    file = folder / "core.toml"
    words = ["--devices=1", "--dtypes=f32", f"--rounds={options.profile_rounds}", f"-o{file}"]
    if _on(cores[0], [sys.executable, "-c", _PROFILE, *words]).wait():
        raise SystemExit("rhino-profile failed")
    whole = load_cluster(str(file))
    groups = [whole, replace(whole, name="shared", device=slower(whole.device, share))]
    between = load_cluster(_BETWEEN).levels[0]
    return joined("two-cores", "two cores, of which one is shared", groups, between)


def slower(device: Device, share: float) -> Device:
    """Returns a device with a share of all rates of another."""

    def longer(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / share

    def fewer(per_s: float | None) -> float | None:
        return None if per_s is None else per_s * share

    tables = [
        replace(one, points=tuple((work, seconds / share) for work, seconds in one.points)) for one in device.operators
    ]
    return replace(
        device,
        flops_per_s=tuple((name, rate * share) for name, rate in device.flops_per_s),
        hbm_bytes_per_s=device.hbm_bytes_per_s * share,
        launch_s=longer(device.launch_s),
        array_s=longer(device.array_s),
        op_s=longer(device.op_s),
        vector_per_s=fewer(device.vector_per_s),
        costly_per_s=fewer(device.costly_per_s),
        operators=tuple(tables),
    )


def share_of(cores: Sequence[int]) -> float:
    """Returns how much a process computes on the second core for what it computes on the first, both at once."""
    parts = [_on(core, [sys.executable, "-c", _COUNT], subprocess.PIPE) for core in cores]
    first, second = (int(part.communicate()[0]) for part in parts)
    return second / first


def timed(model: str, share: float, folder: Path, cores: Sequence[int], options: Options) -> Timed:
    """Returns what steps of a model take on two pinned processes, and how far their results are off."""
    num = options.micro_batches
    sizes = MODELS[model]
    text = step_of(sized(model, **{**sizes, "batch": sizes["batch"] * num}))
    asked = {"cluster": str(folder / "cluster.toml"), "num": str(num), "mesh": "1"}
    found = [planned(text, model, {**asked, "replicas": one}) for one in (f"{num // 2};{num - num // 2}", "2")]
    expected = reference(text, model, NUM_COMPARED)
    names = [f"{model}-{number}" for number in range(2)]
    for name, one in zip(names, found, strict=True):
        save_plan(one.plan, folder / name)
    (folder / "given").write_bytes(pickle.dumps((names, expected.inputs, list(cores), options.rounds)))
    say(f"timing {model}, shares {found[1].plan.shares}")
    if code := launch(lambda address, process: (sys.executable, __file__, address, str(process), str(folder)), TEAM):
        raise SystemExit(code)
    took = [np.load(folder / f"took-{process}.npy") for process in range(2)]  # [plans, steps], s
    measured_s = [median(row) for row in np.maximum(*took).tolist()]
    simulated_s = [one.simulation.timeline.end_s for one in found]
    apart = [_apart(one.plan, folder / name, expected) for name, one in zip(names, found, strict=True)]
    both = (measured_s[0], measured_s[1]), (simulated_s[0], simulated_s[1])
    return Timed(model, share, found[1].plan.shares, *both, max(apart))


def _apart(plan: Plan, folder: Path, expected: Reference) -> float:
    """Returns how far results of the first steps are from those of one device, relative to them."""
    signature, far = signature_of(plan), 0.0
    for number, wanted in enumerate(expected.results):
        parts: dict[int, Host] = {}
        for process in range(2):
            with np.load(folder / f"{process}-{number}.npz") as own:
                parts |= {int(name): own[name] for name in own.files}
        leaves = leaves_of(plan, parts)
        found = differences(signature, [leaves[one.index] for one in signature.results], wanted)
        far = max([far, *(one.max_rel for one in found)])
    return far


def run_part(address: str, process: int, folder: Path) -> None:
    """One of the two processes: runs steps of both plans in turn, and leaves what they take and give in the folder."""
    names, inputs, cores, rounds = pickle.loads((folder / "given").read_bytes())
    os.sched_setaffinity(0, {cores[process]})  # before the backend starts its threads
    request_host_devices(1, os.environ)
    job = ProcessJob(address, process, TEAM, DEFAULT_LIMITS, is_launched=True)
    transport = SocketTransport(job)
    with ExitStack() as stack:
        turns = []
        for name in names:
            plan = load_plan(folder / name)
            assert plan.execution is not None, "replicas are programs"
            devices = devices_of_ranks(plan.execution.step, jax.local_devices(), TEAM.ranks[process])
            own = TEAM.of_devices(plan.meshes)
            executor = Executor(plan.execution.step, plan.execution.modules, devices, transport, own)
            turns.append(executed_steps(stack.enter_context(executor), plan, inputs, NUM_COMPARED + rounds))
        for number in range(NUM_COMPARED):
            for name, steps in zip(names, turns, strict=True):
                _, results = next(steps)
                here: dict[str, Any] = {str(i): np.array(one) for i, one in enumerate(results) if one is not None}
                np.savez(folder / name / f"{process}-{number}.npz", **here)
        took: list[list[float]] = [[], []]
        for number in range(rounds):
            for which in (number % 2, 1 - number % 2):
                took[which].append(next(turns[which])[0])
        np.save(folder / f"took-{process}.npy", np.array(took))
        job.finish()
    transport.close()
    job.close()


def _times(pair: tuple[float, float]) -> str:
    return f"{pair[0] / pair[1]:.2f}"


def _faults(found: Sequence[Timed]) -> Iterator[str]:
    for one in found:
        if one.measured_s[1] > one.measured_s[0]:
            yield f"{one.model}: equal shares are faster"
        if one.max_rel > 1e-5:
            yield f"{one.model}: results are {one.max_rel:.1e} off those of one device"


QUESTION: Final = Question(
    records.__doc__ or "",
    records,
    {
        "model": key("model"),
        "of the core": key("share", ".2f"),
        "equal shares": lambda one: f"{one.measured_s[0]:.3f} s",
        "shares": lambda one: " and ".join(map(str, one.shares)),
        "then": lambda one: f"{one.measured_s[1]:.3f} s",
        "times as fast": lambda one: _times(one.measured_s),
        "simulated": lambda one: _times(one.simulated_s),
        "at most": lambda one: f"{(1 + one.share) / (2 * one.share):.2f}",
        "off one device": key("max_rel", ".1e"),
    },
    (
        option("--models", ["mlp", "bert"], f"of {', '.join(MODELS)}"),
        option("--micro-batches", 12, "of a step"),
        option("--rounds", 15, "steps of each, in turn"),
        option("--nice", 0, "of the process that shares the second core: 2 leaves 61 % of it, 3 leaves 66 %"),
        option("--profile-rounds", 3, "of rhino-profile"),
    ),
    ("shares",),
    _faults,
)

if __name__ == "__main__":
    run_part(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
