"""What the executor costs the host, what overlaps under it, and what a call takes.

Beside the time by the clock stands the time on a core of the thread that dispatches, which other work on the machine
changes less. Where each rank has a thread of its own, that is the first rank's.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import call_overhead
import jax
import numpy as np
import pinned
import sleep_op
from report import Options, Question, key, option, run

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.plan.instructions import Layout, Run, Step, StepProgram, Transfer
from rhino.ir.plan.stage_programs import Argument, StagedStep, StageProgram
from rhino.ir.units import format_seconds
from rhino.runtime.distributed.launcher import DEFAULT_LIMITS, launch
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.processes import Team, share_ranks
from rhino.runtime.distributed.tcp_transport import StreamTransport
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.transport import SocketTransport, Transport
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order

NUM_DEVICES: Final = 8
MICRO_BATCHES: Final = 8
Record = dict[str, Any]
PARTS: Final = ("run", "step", "sum")
TARGETS: Final = {"run": 60e-6, "step": 6e-3, "sum": 1.05}

_SIDE: Final = 64
"""Rows and columns of an activation of the sleeping programs.

Their product is what makes XLA queue a program instead of running it.
"""

_FORWARD_S, _BACKWARD_S = 0.02, 0.04
_TRANSPORTS: Final[dict[str, Callable[..., Transport]]] = {
    "transfer server": SocketTransport,
    "streams": StreamTransport,
}

_PRODUCT: Final = "%y = stablehlo.dot_general %x, {}, contracting_dims = [1] x [0] : (TENSOR, TENSOR) -> TENSOR"
PRODUCT: Final = (_PRODUCT.format("%x"), _PRODUCT.format("%g"))
"""The bodies of a forward and a backward that multiply matrices."""


@dataclass(frozen=True, slots=True)
class Given:
    """A step, its modules, and its arguments."""

    step: Step
    modules: dict[str, str]
    arguments: list[np.ndarray]


def chain(
    num_stages: int, num_micro_batches: int, layout: Layout, weights: int, bodies: tuple[str, str], num_devices: int = 1
) -> Given:
    """Returns the 1F1B step of `chain_of_stages`, whose forwards and backwards have these bodies, and its modules.

    A body computes `%y` of `%x`, or of `%x` and `%g`.
    """
    staged = chain_of_stages(num_stages, num_micro_batches, layout, weights, num_devices)
    mesh = f'sdy.mesh @mesh = <["x"={num_devices}]>\n'
    modules = {
        "forward": mesh + module(["w"] * weights + ["x"], layout, bodies[0]),
        "backward": mesh + module(["w"] * weights + ["x", "g"], layout, bodies[1]),
        "start": mesh + module(["x"], layout, "%y = stablehlo.negate %x : TENSOR"),
    }
    values = [np.ones(argument.layout.shape, np.float32) for argument in staged.arguments]
    return Given(assemble(staged, make_order("1f1b", Pipeline(num_stages, num_micro_batches))), modules, values)


def chain_of_stages(
    num_stages: int, num_micro_batches: int, layout: Layout, weights: int, num_devices: int = 1
) -> StagedStep:
    """Returns a step whose stages follow one another, and whose programs take `weights` weights each.

    A forward takes its weights and `x`, and gives `y`; a backward takes the weights, `x` and the gradient `g`, and
    gives one. Nothing is accumulated; each micro-batch's last gradient is thrown away.
    """
    names = [[f"w{stage}-{i}" for i in range(weights)] for stage in range(num_stages)]
    parts = [
        StageProgram("setup", 0, 2, ("batch",), ("first",)),
        StageProgram("setup", num_stages - 1, 2, ("seed",), ("last",)),
    ]
    for stage in range(num_stages):
        read = "first" if stage == 0 else f"x{stage}"
        parts.append(StageProgram("forward", stage, 0, (*names[stage], read), (f"x{stage + 1}",)))
    for stage in reversed(range(num_stages)):
        x = "first" if stage == 0 else f"x{stage}"
        g = f"x{num_stages}" if stage == num_stages - 1 else f"g{stage + 1}"
        parts.append(StageProgram("backward", stage, 1, (*names[stage], x, g), (f"g{stage}",)))
    weight = Layout((4, 4), "f32", ((), ()))
    programs = (
        StepProgram("forward", "forward", (*[weight] * weights, layout), (layout,)),
        StepProgram("backward", "backward", (*[weight] * weights, layout, layout), (layout,)),
        StepProgram("start", "start", (layout,), (layout,)),
    )
    arguments = (
        *(Argument(name, weight) for row in names for name in row),
        Argument("batch", layout),
        Argument("seed", layout),
    )
    return StagedStep(
        (mesh_of_shape((num_devices,)),) * num_stages, num_micro_batches, programs, tuple(parts), arguments, ("last",)
    )


def module(inputs: Sequence[str], layout: Layout, body: str) -> str:
    """Returns a module whose arguments are `inputs` (weights `w`, `x`, `g`) and whose result is `%y`."""
    tensor = f"tensor<{'x'.join(map(str, layout.shape))}xf32>"
    sharding = "{sdy.sharding = #sdy.sharding<@mesh, [" + ", ".join("{}" for _ in layout.shape) + "]>}"
    types = {"w": "tensor<4x4xf32>", "x": tensor, "g": tensor}
    head = ", ".join(f"%{name}{number if name == 'w' else ''}: {types[name]}" for number, name in enumerate(inputs))
    replaced = body.replace("TENSOR", tensor)
    return f"func.func public @main({head}) -> ({tensor} {sharding}) {{\n{replaced}\nreturn %y : {tensor}\n}}\n"


def sleeping(num_stages: int, num_micro_batches: int, num_devices: int = 1) -> Given:
    """Returns a 1F1B step whose forwards and backwards sleep."""
    layout = Layout((_SIDE, _SIDE), "f32", ((), ()))

    def body(time_s: float) -> str:
        product = "contracting_dims = [1] x [0] : (TENSOR, TENSOR) -> TENSOR"
        return f"""%us = stablehlo.constant dense<{round(time_s * 1e6)}> : tensor<i32>
            %0 = {sleep_op.CUSTOM_CALL}
            %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<f32>
            %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> TENSOR
            %3 = stablehlo.maximum %2, %x : TENSOR
            %y = stablehlo.dot_general %3, %x, {product}"""

    return chain(num_stages, num_micro_batches, layout, 1, (body(_FORWARD_S), body(_BACKWARD_S)), num_devices)


@dataclass(frozen=True, slots=True)
class Took:
    """What one step took: to dispatch, of that the calling thread's time on a core, and as a whole."""

    dispatch_s: float
    core_s: float
    whole_s: float


def times(given: Given, repeats: int) -> list[Took]:
    """Returns what each of `repeats` steps takes."""
    found = []
    with Executor(given.step, given.modules, devices_of_ranks(given.step, jax.devices())) as executor:
        arguments = executor.place(given.arguments)
        for _ in range(repeats + 3):
            start_s, core_s = time.perf_counter(), time.thread_time()
            executor.run(arguments)
            dispatched_s, core_s = time.perf_counter(), time.thread_time() - core_s
            executor.wait()
            found.append(Took(dispatched_s - start_s, core_s, time.perf_counter() - start_s))
    return found[3:]


def serial_ratio(given: Given, repeats: int) -> float:
    """Returns the time of a step over the sum of its executables' times, each launched alone and waited for."""
    ratios = []
    with Executor(given.step, given.modules, devices_of_ranks(given.step, jax.devices())) as executor:
        arguments = executor.place(given.arguments)
        runs = [one for one in executor.instructions if isinstance(one, Run)]
        programs = [executor.programs[one.program, given.step.slots[one.outputs[0]].rank].executable for one in runs]
        inputs = [
            [
                executable.put(i, np.ones(value.shape, value.dtype))
                for i, value in enumerate(executable.signature.arguments)
            ]
            for executable in programs
        ]
        for _ in range(repeats + 1):
            start_s = time.perf_counter()
            executor.run(arguments)
            executor.wait()
            step_s, start_s = time.perf_counter() - start_s, time.perf_counter()
            for executable, held in zip(programs, inputs, strict=True):
                executable.launch(held, True).consume_token().block_until_ready()
            ratios.append(step_s / (time.perf_counter() - start_s))
    return median(ratios[1:])


def processes_s(given: Given, num_processes: int, transport: str, repeats: int) -> float:
    """Returns the time of a step of several processes, from first forward to last backward as rank 0 sees it."""
    team = share_ranks([mesh.num_devices for mesh in given.step.meshes], num_processes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "given").write_bytes(pickle.dumps((given, team, transport, repeats)))
        code = launch(lambda address, process: (sys.executable, __file__, "--part", address, str(process), name), team)
        if code:
            raise SystemExit(code)
        return float((folder / "took").read_text())


def run_part(address: str, process: int, folder: Path) -> None:
    """One of the processes of `processes_s`."""
    given: Given
    team: Team
    given, team, transport, repeats = pickle.loads((folder / "given").read_bytes())
    request_host_devices(sum(given.step.meshes[rank].num_devices for rank in team.ranks[process]), os.environ)
    sleep_op.register()
    job = ProcessJob(address, process, team, DEFAULT_LIMITS, is_launched=True)
    link = _TRANSPORTS[transport](job)
    devices = devices_of_ranks(given.step, jax.devices(), team.ranks[process])
    with Executor(given.step, given.modules, devices, link, team.of_devices(given.step.meshes)) as executor:
        arguments = executor.place(given.arguments)
        took = []
        for _ in range(repeats + 1):
            start_s = time.perf_counter()
            executor.run(arguments)
            executor.wait()
            took.append(time.perf_counter() - start_s)
        if process == 0:
            (folder / "took").write_text(str(median(took[1:])))
        job.finish()
    link.close()
    job.close()


# The questions


def dispatches(options: Options) -> Iterator[Record]:
    """What the executor costs the host, in host time.

    - `run`: one run of a program of 50 arguments on one device, within a step.
    - `step`: to dispatch a 1F1B step of 4 stages and 8 micro-batches: 64 runs of 56 arguments each, and 48 transfers.
    - `sum`: a step in which nothing can overlap (one micro-batch), over its executables launched one after the other
      without us.

    The exit code is 1 if a target is missed: 60 us a run, 6 ms a step (medians), 1.05 of the sum.
    """
    request_host_devices(NUM_DEVICES, os.environ)
    small = Layout((16, 16), "f32", ((), ()))  # little to compute, yet enough for XLA to queue it
    if "run" in options.parts:
        given = chain(1, 8, small, 49, PRODUCT)
        took = times(given, options.repeats)
        yield _dispatched("a run of 50 arguments", "run", took, _num_runs(given))
    if "step" in options.parts:
        given = chain(4, 8, small, 54, PRODUCT)
        moves = sum(isinstance(one, Transfer) for one in given.step.instructions)
        what = f"a step of {_num_runs(given)} runs, {moves} transfers"
        yield _dispatched(what, "step", times(given, options.repeats))
    if "sum" in options.parts:
        given = chain(4, 1, Layout((1024, 1024), "f32", ((), ())), 1, PRODUCT)
        what = f"a step of {_num_runs(given)} runs over the sum of its executables"
        yield {"what": what, "part": "sum", "ratio": serial_ratio(given, max(options.repeats // 5, 5))}


def _num_runs(given: Given) -> int:
    return sum(isinstance(one, Run) for one in given.step.instructions)


def _dispatched(what: str, part: str, took: Sequence[Took], parts: int = 1) -> Record:
    """Returns the host time of one of so many parts of a step."""
    waited = [one.dispatch_s / parts for one in took]
    core_s = median(one.core_s / parts for one in took)
    return {"what": what, "part": part, "median_s": median(waited), "least_s": min(waited), "core_s": core_s}


def _missed(records: Sequence[Record]) -> Iterator[str]:
    for one in records:
        if (one["ratio"] if "ratio" in one else one["median_s"]) > TARGETS[one["part"]]:
            yield f"{one['what']}: the target is {_target(one)}"


def _target(record: Record) -> str:
    target = TARGETS[record["part"]]
    return f"{target:g}" if "ratio" in record else format_seconds(target)


def overlaps(options: Options) -> Iterator[Record]:
    """How steps overlap: the time of a 1F1B step whose programs sleep, against the ideal and against all sleeps.

    The ideal is (m + d - 1) (F + B). Steps are dispatched in one process and in several, on one device a stage and on
    two.
    """
    request_host_devices(NUM_DEVICES, os.environ)
    sleep_op.register()
    for num_devices in (1, 2):
        took_s = median(one.whole_s for one in times(sleeping(2, MICRO_BATCHES, num_devices), options.repeats))
        yield _slept(2, num_devices, ", one process", took_s)
    several = ((2, 1, "transfer server"), (2, 1, "streams"), (2, 2, "transfer server"), (4, 2, "transfer server"))
    for num_stages, num_devices, transport in several:
        given = sleeping(num_stages, MICRO_BATCHES, num_devices)
        took_s = processes_s(given, num_stages, transport, options.repeats)
        yield _slept(num_stages, num_devices, f", {num_stages} processes, {transport}", took_s)


def _slept(num_stages: int, num_devices: int, how: str, took_s: float) -> Record:
    both_s = _FORWARD_S + _BACKWARD_S
    each = f"{num_devices} device{'s' if num_devices > 1 else ''} each"
    return {
        "how": f"{num_stages} stages, {each}{how}",
        "step_s": took_s,
        "ideal_s": (MICRO_BATCHES + num_stages - 1) * both_s,
        "sleeps_s": num_stages * MICRO_BATCHES * both_s,
    }


_DISPATCH: Final = {
    "what": key("what"),
    "median": key("median_s", "s"),
    "least": key("least_s", "s"),
    "on a core": key("core_s", "s"),
    "ratio": key("ratio", ".3f"),
    "target": _target,
}
_OVERLAP: Final = {
    f"sleeping steps, {MICRO_BATCHES} micro-batches": key("how"),
    "step": key("step_s", "s"),
    "ideal": key("ideal_s", "s"),
    "all sleeps": key("sleeps_s", "s"),
    "over ideal": lambda row: f"{row['step_s'] / row['ideal_s']:.3f}",
}
_DISPATCHES: Final = (option("--repeats", 100, "of each step"), option("--parts", list(PARTS), "of these"))

QUESTIONS: Final = {
    "dispatch": Question(str(dispatches.__doc__), dispatches, _DISPATCH, _DISPATCHES, faults=_missed),
    "overlap": Question(str(overlaps.__doc__), overlaps, _OVERLAP, (option("--repeats", 5, "of each step"),)),
    "calls": call_overhead.QUESTION,
    "uneven": pinned.QUESTION,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        run_part(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        sys.exit(0)
    sys.exit(run(__doc__, QUESTIONS, sys.argv[1:]))
