"""Run a plan, the folder that `rhino-opt --auto-parallel --plan` writes, and print each step when it has ended."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.plan.plan import Execution, Plan
from rhino.ir.plan.timeline import Timeline, render
from rhino.ir.program.proven_plan import load_proven_plan
from rhino.ir.units import PEAK, format_bytes, format_seconds
from rhino.runtime.distributed.launcher import watched
from rhino.runtime.executor.compare import check, differences
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import Executable, Host
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.signature import Signature
from rhino.runtime.executor.steps import run_steps, typical_time_s
from rhino.runtime.executor.trace import Event, Recorder, chrome_trace
from rhino.tools.files import check_writable
from rhino.tools.plan_steps import Inputs, RanStep, asked_of, events_of, leaves_of, limits_of, signature_of, steps_of
from rhino.tools.run_processes import run_in_processes, run_part
from rhino.tools.run_report import difference_text, step_line


def run_plan(options: Namespace, original: Callable[[Signature], Executable], stdout: TextIO) -> None:
    """Runs the plan in `options.file`.

    `original` compiles what to compare with for one device, if anything is asked for.

    Raises:
        RhinoError: those of `load_proven_plan`, RHI-RUN-004 where devices are too few, RHI-RUN-003 where results
            differ, and what the executor raises.
    """
    if options.part:
        run_part(options)
        return
    plan, execution = _executed(options.file)
    num_devices = plan.num_reached
    if options.devices is not None and options.devices < num_devices:
        what = f"--devices={options.devices}, and the plan is for {num_devices}"
        raise RhinoError("RHI-RUN-004", what, fix=f"give --devices={num_devices}, or plan for {options.devices}")
    if options.trace:
        check_writable(options.trace)
    request_host_devices(options.devices or num_devices, os.environ)
    signature = signature_of(plan)
    print(*_headline(plan, options.processes), sep="\n", file=stdout)
    simulated = _simulated(execution) if options.timeline or options.trace else None
    if options.timeline and simulated is not None:
        print(render(simulated), file=stdout)
    inputs = Inputs.of(execution.nonnegative_arguments, signature, options)
    expected = _expected(original(signature), inputs, options.steps) if options.compare else None
    report = _Report(signature, expected, options.tolerance, stdout)

    def tell(step: RanStep) -> None:
        report.add(replace(step, results=leaves_of(plan, step.results)))

    if options.processes is not None:
        events = run_in_processes(plan, execution, options, tell)
    else:
        events = _here(plan, execution, options, inputs, tell)
    report.end()
    if options.trace:
        _write_trace(Path(options.trace), events, simulated)


def _executed(path: str) -> tuple[Plan, Execution]:
    """Returns the plan in a folder, and what is executed. Raises RHI-RUN-002 where its program is not in it."""
    plan = load_proven_plan(Path(path))
    if plan.execution is None:
        what = f"the plan of {plan.source.function} holds no programs: it says how one is sharded"
        fix = "give it to rhino.parallelize(step, plan=...), or run the module that rhino-opt --auto-shard -o wrote"
        raise RhinoError("RHI-RUN-002", what, Place(path), fix=fix)
    return plan, plan.execution


def _here(
    plan: Plan, execution: Execution, options: Namespace, inputs: Inputs, tell: Callable[[RanStep], None]
) -> list[Event]:
    """Runs the steps, tells each, and returns what was recorded."""
    recorder = Recorder() if options.trace else None
    devices = devices_of_ranks(execution.step, pick_devices(plan.num_reached))
    asked = asked_of(plan, signature_of(plan), options)
    with (
        Executor(execution.step, execution.modules, devices, recorder=recorder) as executor,
        watched(executor, limits_of(options)),
    ):
        for step in steps_of(executor, plan, inputs, options.steps, asked):
            tell(step)
        return events_of(recorder)


def _headline(plan: Plan, processes: int | None) -> tuple[str, ...]:
    where = f" in {processes} processes" if processes else ""
    peaks = ", ".join(map(format_bytes, plan.predicted.peak_bytes))
    step = format_seconds(plan.predicted.step_s)
    return (
        f"plan: {plan.form()}{where}",
        f"predicted for {plan.cluster_name}: step {step}, {PEAK} per device {peaks}",
    )


def _simulated(execution: Execution) -> Timeline:
    from rhino.passes.planner.plan_rows import simulation_of  # noqa: PLC0415 - a plan runs without loading the passes

    return simulation_of(execution).timeline


def _expected(reference: Executable, inputs: Inputs, num_steps: int) -> Iterator[list[Host]]:
    for step in run_steps(reference, inputs.values, num_steps, inputs.fresh):
        yield reference.fetch(step.results)


@dataclass(slots=True)
class _Report:
    """What is printed of steps as they end; they are compared with those of one device where these are expected."""

    signature: Signature
    expected: Iterator[list[Host]] | None
    tolerance: float | None
    stdout: TextIO
    times_s: list[float] = field(default_factory=list)

    def add(self, step: RanStep) -> None:
        """Prints a step. Raises RHI-RUN-003 where its results differ."""
        self.times_s.append(step.time_s)
        line = step_line(step.number, step.time_s, step.results, self.signature)
        if self.expected is None:
            print(line, file=self.stdout, flush=True)
            return
        results = [step.results[value.index] for value in self.signature.results]
        found = differences(self.signature, results, next(self.expected), self.tolerance)
        print(f"{line}  {difference_text(found)}", file=self.stdout, flush=True)
        check(found, step.number)

    def end(self) -> None:
        """Prints what all steps have in common."""
        print(f"time per step: {format_seconds(typical_time_s(self.times_s))}", file=self.stdout)
        if self.expected is not None:
            print("the results agree with the one-device program", file=self.stdout)


def _write_trace(file: Path, events: Sequence[Event], simulated: Timeline | None) -> None:
    try:
        file.write_text(chrome_trace(events, simulated), encoding="utf-8")
    except OSError as error:
        raise RhinoError(
            "RHI-CLI-003",
            f"cannot write the trace: {error.strerror}",
            Place(str(file)),
            fix="name a file in a folder that can be written",
        ) from None
