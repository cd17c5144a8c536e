"""What the executor costs, and what overlaps under it.

    python bench/executor.py [--repeats=100] [--parts=run,step,sum,overlap]

- `run`: host time of one run of a program of 50 arguments on one device, within a step.
- `step`: host time to dispatch a 1F1B step of 4 stages and 8 micro-batches: 64 runs of 56 arguments each, and 48 transfers.
- `sum`: time of a step in which nothing can overlap (one micro-batch), against its executables launched one after the other without us.
- `overlap`: time of a 1F1B step whose programs sleep, against the ideal (m + d - 1) (F + B) and the sum of all sleeps: dispatched by one
  thread and by one for each rank, in one process and in several, on one device a stage and on two; `cheap` programs do nothing but sleep,
  and XLA runs those in the thread that launches them.

Beside the time by the clock stands the time on a core of the thread that dispatches, which other work on the machine changes less. Where
each rank has a thread of its own, that is the first rank's.

Exit code: 1 if a target is missed: 60 us a run, 6 ms a step (medians), 1.05 of the sum.
"""

from __future__ import annotations

import argparse
import os
import pickle
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import jax
import numpy as np
import sleep_op

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.plan.instructions import Layout, Run, Step, StepProgram, Transfer
from rhino.ir.plan.stage_programs import Argument, StagedStep, StageProgram
from rhino.runtime.distributed.processes import Team, join, launch, share_ranks
from rhino.runtime.distributed.tcp_transport import StreamTransport
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.transport import SocketTransport, Transport
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import Pipeline, make_order

NUM_DEVICES: Final = 8
PARTS: Final = ("run", "step", "sum", "overlap")
TARGETS: Final = {"run": 60e-6, "step": 6e-3, "sum": 1.05}

_SIDE: Final = 64
"""Rows and columns of an activation of the sleeping programs; their product is what makes XLA queue a program instead of running it."""

_FORWARD_S, _BACKWARD_S = 0.02, 0.04
_TRANSPORTS: Final[dict[str, Callable[..., Transport]]] = {"transfer server": SocketTransport, "streams": StreamTransport}

_PRODUCT: Final = "%y = stablehlo.dot_general %x, {}, contracting_dims = [1] x [0] : (TENSOR, TENSOR) -> TENSOR"
PRODUCT: Final = (_PRODUCT.format("%x"), _PRODUCT.format("%g"))
"""The bodies of a forward and a backward that multiply matrices."""


@dataclass(frozen=True, slots=True)
class Given:
    """A step, its modules, and its arguments."""

    step: Step
    modules: dict[str, str]
    arguments: list[np.ndarray]


def chain(num_stages: int, num_micro_batches: int, layout: Layout, weights: int, bodies: tuple[str, str], num_devices: int = 1) -> Given:
    """Returns a 1F1B step whose programs take `weights` weights each and have these bodies, forward and backward.

    A forward takes its weights and `x`, and gives `y`; a backward takes the weights, `x` and the gradient `g`, and gives one. A body
    computes `%y` of `%x`, or of `%x` and `%g`. Nothing is accumulated; each micro-batch's last gradient is thrown away.
    """
    names = [[f"w{stage}-{i}" for i in range(weights)] for stage in range(num_stages)]
    parts = [StageProgram("setup", 0, 2, ("batch",), ("first",)), StageProgram("setup", num_stages - 1, 2, ("seed",), ("last",))]
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
    arguments = (*(Argument(name, weight) for row in names for name in row), Argument("batch", layout), Argument("seed", layout))
    staged = StagedStep(mesh_of_shape((num_devices,)), num_stages, num_micro_batches, programs, tuple(parts), arguments, ("last",))
    mesh = f'sdy.mesh @mesh = <["x"={num_devices}]>\n'
    modules = {
        "forward": mesh + module(["w"] * weights + ["x"], layout, bodies[0]),
        "backward": mesh + module(["w"] * weights + ["x", "g"], layout, bodies[1]),
        "start": mesh + module(["x"], layout, "%y = stablehlo.negate %x : TENSOR"),
    }
    values = [np.ones(argument.layout.shape, np.float32) for argument in arguments]
    return Given(assemble(staged, make_order("1f1b", Pipeline(num_stages, num_micro_batches))), modules, values)


def module(inputs: Sequence[str], layout: Layout, body: str) -> str:
    """Returns a module whose arguments are `inputs` (weights `w`, `x`, `g`) and whose result is `%y`."""
    tensor = f"tensor<{'x'.join(map(str, layout.shape))}xf32>"
    sharding = "{sdy.sharding = #sdy.sharding<@mesh, [" + ", ".join("{}" for _ in layout.shape) + "]>}"
    types = {"w": "tensor<4x4xf32>", "x": tensor, "g": tensor}
    head = ", ".join(f"%{name}{number if name == 'w' else ''}: {types[name]}" for number, name in enumerate(inputs))
    replaced = body.replace("TENSOR", tensor)
    return f"func.func public @main({head}) -> ({tensor} {sharding}) {{\n{replaced}\nreturn %y : {tensor}\n}}\n"


def sleeping(num_stages: int, num_micro_batches: int, num_devices: int = 1, *, cheap: bool = False) -> Given:
    """Returns a 1F1B step whose forwards and backwards sleep."""
    layout = Layout((4, 4) if cheap else (_SIDE, _SIDE), "f32", ((), ()))

    def body(time_s: float) -> str:
        product = "contracting_dims = [1] x [0] : (TENSOR, TENSOR) -> TENSOR"
        return f"""%us = stablehlo.constant dense<{round(time_s * 1e6)}> : tensor<i32>
            %0 = {sleep_op.CUSTOM_CALL}
            %1 = stablehlo.convert %0 : (tensor<i32>) -> tensor<f32>
            %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> TENSOR
            %3 = stablehlo.maximum %2, %x : TENSOR
            %y = {"stablehlo.negate %3 : TENSOR" if cheap else f"stablehlo.dot_general %3, %x, {product}"}"""

    return chain(num_stages, num_micro_batches, layout, 1, (body(_FORWARD_S), body(_BACKWARD_S)), num_devices)


@dataclass(frozen=True, slots=True)
class Took:
    """What one step took: to dispatch, of that the calling thread's time on a core, and as a whole."""

    dispatch_s: float
    core_s: float
    whole_s: float


def times(given: Given, repeats: int, *, threads: bool) -> list[Took]:
    """Returns what each of `repeats` steps takes."""
    found = []
    with Executor(given.step, given.modules, devices_of_ranks(given.step, jax.devices()), threads=threads) as executor:
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
        inputs = [[executable.put(i, np.ones(value.shape, value.dtype)) for i, value in enumerate(executable.signature.arguments)]
            for executable in programs]  # fmt: skip
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
    """Returns the time of a step of several processes as that of rank 0 sees it: from the first forward to the last backward."""
    team = share_ranks(given.step.num_ranks, num_processes)
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
    request_host_devices(given.step.mesh.num_devices * len(team.ranks[process]), os.environ)
    sleep_op.register()
    job = join(address, process, team)
    link = _TRANSPORTS[transport](job, team.process_of)
    with Executor(given.step, given.modules, devices_of_ranks(given.step, jax.devices(), team.ranks[process]), link) as executor:
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


def overlap(repeats: int) -> Iterator[tuple[str, float, float, float]]:
    """Yields how a sleeping step runs, its time, the ideal and the sum of all sleeps."""
    sleep_op.register()
    num_micro_batches = 8
    both_s = _FORWARD_S + _BACKWARD_S

    def row(how: str, num_stages: int, took_s: float) -> tuple[str, float, float, float]:
        return f"{num_stages} stages, {how}", took_s, (num_micro_batches + num_stages - 1) * both_s, num_stages * num_micro_batches * both_s

    for num_devices, cheap in ((1, False), (1, True), (2, False)):
        given = sleeping(2, num_micro_batches, num_devices, cheap=cheap)
        kind = f"{num_devices} device{'s' if num_devices > 1 else ''} each{', cheap' if cheap else ''}"
        for threads in (False, True) if num_devices == 1 else (False,):
            who = "a thread for each" if threads else "one thread"
            yield row(f"{kind}, one process, {who}", 2, median(one.whole_s for one in times(given, repeats, threads=threads)))
    for num_stages, num_devices, transport in (
        (2, 1, "transfer server"),
        (2, 1, "streams"),
        (2, 2, "transfer server"),
        (4, 2, "transfer server"),
    ):
        given = sleeping(num_stages, num_micro_batches, num_devices)
        kind = f"{num_devices} device{'s' if num_devices > 1 else ''} each"
        yield row(f"{kind}, {num_stages} processes, {transport}", num_stages, processes_s(given, num_stages, transport, repeats))


def main(argv: Sequence[str]) -> int:
    """Measures what is asked for; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--parts", default=",".join(PARTS))
    options = parser.parse_args(argv)
    parts = options.parts.split(",")
    request_host_devices(NUM_DEVICES, os.environ)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, jax {jax.__version__}"
    )
    small = Layout((16, 16), "f32", ((), ()))  # little to compute, yet enough for XLA to queue it
    missed = False
    if "run" in parts:
        given = chain(1, 8, small, 49, PRODUCT)
        took = times(given, options.repeats, threads=False)
        missed |= _say("a run of 50 arguments", took, 1e6 / _num_runs(given), "us", TARGETS["run"] * _num_runs(given))
    if "step" in parts:
        given = chain(4, 8, small, 54, PRODUCT)
        moves = sum(isinstance(one, Transfer) for one in given.step.instructions)
        for threads in (False, True):
            who = "a thread for each rank" if threads else "one thread"
            took = times(given, options.repeats, threads=threads)
            missed |= _say(f"a step of {_num_runs(given)} runs, {moves} transfers, {who}", took, 1e3, "ms", TARGETS["step"])
    if "sum" in parts:
        side = 1024
        given = chain(4, 1, Layout((side, side), "f32", ((), ())), 1, PRODUCT)
        ratio = serial_ratio(given, max(options.repeats // 5, 5))
        missed |= ratio > TARGETS["sum"]
        print(f"a step of {_num_runs(given)} runs over the sum of its executables: {ratio:.3f} (target {TARGETS['sum']})")
    if "overlap" in parts:
        print(f"{'sleeping steps, 8 micro-batches':<66} {'step':>8} {'ideal':>8} {'all sleeps':>11} {'over ideal':>11}")
        for how, took_s, ideal_s, serial_s in overlap(max(options.repeats // 20, 3)):
            print(f"{how:<66} {1e3 * took_s:5.0f} ms {1e3 * ideal_s:5.0f} ms {1e3 * serial_s:8.0f} ms {took_s / ideal_s:11.3f}", flush=True)
    return int(missed)


def _num_runs(given: Given) -> int:
    return sum(isinstance(one, Run) for one in given.step.instructions)


def _say(what: str, took: Sequence[Took], scale: float, unit: str, target_s: float) -> bool:
    """Prints a line; returns whether the target is missed."""
    waited, worked = [one.dispatch_s for one in took], median(one.core_s for one in took)
    figures = f"median {scale * median(waited):.2f} {unit}, least {scale * min(waited):.2f} {unit}, on a core {scale * worked:.2f} {unit}"
    print(f"{what}: {figures} (target {scale * target_s:g} {unit})", flush=True)
    return median(waited) > target_s


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        run_part(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
