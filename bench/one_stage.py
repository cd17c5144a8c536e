"""What a step in one stage takes as a plan's folder, beside the program of `--auto-shard`.

Both have the same mesh and micro-batches. FILE is a training step as StableHLO. A folder that was written
before is run too, if `--beside` names it; {m} stands for the number of
micro-batches. All take their steps in turn, so that what else the machine does falls on each alike. Printed for each:
its programs, step and peak as predicted, and what a step took: the least and the median of wall time, and the least of
the processors'. Every result of the last step is compared with that of `--auto-shard`.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from pipelines import Setting
from pipelines import plan as whole_plan
from report import Options, Question, key, option

from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import ExitCode
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.files import load_plan, save_plan
from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.compare import check, differences
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import Host, compile_module, wait
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.inputs import InputRule, draw_inputs, nonnegative_arguments
from rhino.runtime.executor.signature import read_signature
from rhino.strategies.pipeline.schedules import DEFAULT
from rhino.tools import opt
from rhino.tools.run_plan import signature_of


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """A step: its seconds, those of the processors, and its results."""

    wall_s: float
    processor_s: float
    results: list[Host]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """Something that takes steps, for ever; what a step takes is predicted."""

    name: str
    num_programs: int
    step_s: float
    peak_bytes: float
    steps: Iterator[Taken]

    def row(self, number: int, taken: Sequence[Taken]) -> dict[str, Any]:
        """Returns a record of its steps in so many micro-batches."""
        walls = [one.wall_s for one in taken]
        return {
            "micro_batches": number,
            "what": self.name,
            "programs": self.num_programs,
            "step_s": self.step_s,
            "peak_bytes": self.peak_bytes,
            "least_s": min(walls),
            "median_s": median(walls),
            "processor_s": min(one.processor_s for one in taken),
        }


def steps_of(
    run: Callable[[list[Any]], Sequence[Any]], arguments: list[Any], feedback: Mapping[int, int]
) -> Iterator[Taken]:
    """Yields steps; `run` returns when one has ended."""
    while True:
        start_s, processor_s = time.perf_counter(), time.process_time()
        results = run(arguments)
        spent = time.perf_counter() - start_s, time.process_time() - processor_s
        yield Taken(*spent, [np.array(one) for one in results])
        for argument, result in feedback.items():
            arguments[argument] = results[result]


def of_folder(name: str, folder: Path, inputs: Sequence[Host], stack: ExitStack) -> Subject:
    """Returns the plan in a folder."""
    plan = load_plan(folder)
    execution = plan.execution
    assert execution is not None, "the folder has programs"
    devices = devices_of_ranks(execution.step, pick_devices(plan.num_devices))
    executor = stack.enter_context(Executor(execution.step, execution.modules, devices))

    def run(arguments: list[Any]) -> Sequence[Any]:
        results = executor.run(arguments)
        executor.wait()
        return results

    steps = steps_of(run, list(executor.place(inputs)), signature_of(plan).feedback)
    return Subject(name, len(execution.step.programs), plan.predicted.step_s, plan.predicted.largest_peak_bytes, steps)


def of_program(name: str, module: Path, plan: Path, inputs: Sequence[Host], num_devices: int) -> Subject:
    """Returns what `--auto-shard` has made."""
    sharded = read_module(module.read_bytes(), module.name, make_context())
    executable = compile_module(wrap_manual(localized_copy(sharded)), pick_devices(num_devices))

    def run(arguments: list[Any]) -> Sequence[Any]:
        results = executable.run([executable.move(number, one) for number, one in enumerate(arguments)])
        wait(results)
        return results

    predicted = load_plan(plan).predicted
    arguments = [executable.put(number, one) for number, one in enumerate(inputs)]
    return Subject(
        name, 1, predicted.step_s, predicted.largest_peak_bytes, steps_of(run, arguments, executable.signature.feedback)
    )


def planned(*words: str) -> None:
    """Runs `rhino-opt`. Raises SystemExit where it fails."""
    said = io.StringIO()
    if (code := opt.run(words, io.BytesIO(), io.BytesIO(), said)) != ExitCode.OK:
        raise SystemExit(f"{said.getvalue()}exit code {code}")


def subjects(options: Options, number: int, where: Path, inputs: Sequence[Host], stack: ExitStack) -> Iterator[Subject]:
    """Yields what is compared for so many micro-batches."""
    common = (options.file, f"--micro-batches={number}", f"--mesh={options.mesh}", f"--cluster={options.cluster}")
    program, plan, folder = (where / f"{name}{number}" for name in ("sharded.mlir", "sharded.json", "folder"))
    planned(*common, "--auto-shard", f"--plan={plan}", "-o", str(program))
    yield of_program("--auto-shard", program, plan, inputs, parse_mesh(options.mesh).num_devices)
    setting = Setting(1, number, DEFAULT, mesh=options.mesh, cluster=options.cluster)
    save_plan(whole_plan(Path(options.file).read_bytes(), options.file, setting).plan, folder)
    yield of_folder("folder", folder, inputs, stack)
    if options.beside:
        beside = options.beside.format(m=number)
        yield of_folder(beside, Path(beside), inputs, stack)


def records(options: Options) -> Iterator[dict[str, Any]]:
    """Yields a record for each number of micro-batches and each that takes steps."""
    request_host_devices(parse_mesh(options.mesh).num_devices, os.environ)
    module = read_module(Path(options.file).read_bytes(), options.file, make_context())
    signature = read_signature(module)
    inputs = draw_inputs(signature, InputRule(0, 2, nonnegative_arguments(module)), {})
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        for number in options.micro_batches:
            found = list(subjects(options, number, Path(name), inputs, stack))
            rounds = [[next(one.steps) for one in found] for _ in range(options.steps + 1)]
            for at, one in enumerate(found):
                yield one.row(number, [taken[at] for taken in rounds[1:]])
                check(differences(signature, rounds[-1][at].results, rounds[-1][0].results, None), options.steps)


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "micro-batches": key("micro_batches"),
        "what": key("what"),
        "programs": key("programs"),
        "predicted": key("step_s", "s"),
        "peak": key("peak_bytes", "bytes"),
        "least": key("least_s", "s"),
        "median": key("median_s", "s"),
        "processors'": key("processor_s", "s"),
    },
    (
        ("file", {"metavar": "FILE", "help": "the training step"}),
        option("--cluster", "cpu8", "a preset or a file"),
        option("--mesh", "2x4", "of its devices"),
        option("--micro-batches", [1, 4, 8], "numbers of micro-batches"),
        option("--steps", 20, "and one before that is not counted"),
        option("--beside", "", "a folder to compare with; {m} stands for the number of micro-batches"),
    ),
    ("what",),
)
