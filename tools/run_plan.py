"""Run a plan: the folder that `rhino-opt --auto-parallel --plan` writes, in this process or in several.

Several processes each hold some of the ranks, and know of each other's results nothing: each leaves its own in a folder
of the one that launched them, which puts them together. That one reads the plan, and leaves each of them its share
there.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.blocks import from_view, to_view
from rhino.ir.graph.elements import DTYPES
from rhino.ir.plan.instructions import Feed, Fetch, Layout
from rhino.ir.plan.leaves import leaf_groups, leaf_tensors
from rhino.ir.plan.parts import Part, part_of
from rhino.ir.plan.plan import Execution, Plan, Tensor
from rhino.ir.plan.timeline import Timeline, render
from rhino.ir.program.proven_plan import load_proven_plan
from rhino.ir.units import PEAK, format_bytes, format_seconds
from rhino.runtime.distributed.launcher import launch, watched
from rhino.runtime.distributed.limits import Limits
from rhino.runtime.distributed.member import ProcessJob
from rhino.runtime.distributed.processes import Team, share_ranks
from rhino.runtime.distributed.progress import StageProgress
from rhino.runtime.executor.compare import check, differences
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import Executable, Host
from rhino.runtime.executor.executor import Argument, Executor, devices_of_ranks
from rhino.runtime.executor.inputs import InputRule, draw_inputs, fresh_inputs, read_inputs
from rhino.runtime.executor.signature import Signature, Value, array_dtype
from rhino.runtime.executor.steps import run_steps, typical_time_s
from rhino.runtime.executor.trace import Event, Recorder, chrome_trace
from rhino.runtime.executor.transport import SocketTransport
from rhino.tools.files import check_writable
from rhino.tools.run_report import difference_text, step_line


@dataclass(frozen=True, slots=True, eq=False)
class RanStep:
    """One finished step: its number, its wall time, and the results that are known here."""

    number: int
    time_s: float
    results: Mapping[int, Host]


def run_plan(options: Namespace, original: Callable[[Signature], Executable], stdout: TextIO) -> None:
    """Runs the plan in `options.file`.

    `original` compiles what to compare with for one device, if anything is asked for.

    Raises:
        RhinoError: those of `load_proven_plan`, RHI-RUN-004 where devices are too few, RHI-RUN-003 where results
            differ, and what the executor raises.
    """
    if options.part:
        _run_part(options)
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
    inputs = _Inputs.of(execution.nonnegative_arguments, signature, options)
    expected = _expected(original(signature), inputs, options.steps) if options.compare else None
    with ExitStack() as stack:
        if options.processes is not None:
            steps, events = _launched(plan, execution, options, stack)
        else:
            steps, events = _here(plan, execution, options, inputs, stack)
        whole = (replace(step, results=leaves_of(plan, step.results)) for step in steps)
        _report(whole, signature, expected, options, stdout)
        if options.trace:
            _write_trace(Path(options.trace), events(), simulated)


def _executed(path: str) -> tuple[Plan, Execution]:
    """Returns the plan in a folder, and what is executed. Raises RHI-RUN-002 where its program is not in it."""
    plan = load_proven_plan(Path(path))
    if plan.execution is None:
        what = f"the plan of {plan.source.function} holds no programs: it says how one is sharded"
        fix = "give it to rhino.parallelize(step, plan=...), or run the module that rhino-opt --auto-shard -o wrote"
        raise RhinoError("RHI-RUN-002", what, Place(path), fix=fix)
    return plan, plan.execution


def signature_of(plan: Plan) -> Signature:
    """Returns the signature of a plan: its arguments and results.

    An argument that nothing reads is an array as well, of which only the shape matters. What lies in pieces is whole.
    """
    assert plan.execution is not None, "it is a plan of programs"
    step = plan.execution.step
    fed = {one.argument: step.slots[one.target].layout for one in step.instructions if isinstance(one, Feed)}
    fetched = {one.result: step.slots[one.source].layout for one in step.instructions if isinstance(one, Fetch)}
    given, made = leaf_tensors(plan.arguments, plan.results)
    names = {text: name for name, text in DTYPES.items()}

    def value(index: int, one: Tensor, layout: Layout | None) -> Value:
        shape = one.shape if layout is None or one.viewed else (*one.shape, *layout.shape[len(one.shape) :])
        dtype = array_dtype(layout.dtype if layout else names.get(one.dtype, one.dtype))
        if dtype is None:
            raise RhinoError(
                "RHI-RUN-002",
                f"{one.path} of the plan is of {one.dtype}, which no array has",
                fix="plan a program of other element types",
            )
        return Value(index, one.path, shape, dtype, shape, shape)

    first_given, first_made = ([group[0] for group in leaf_groups(side)] for side in (plan.arguments, plan.results))
    arguments = tuple(value(i, one, fed.get(first_given[i])) for i, one in enumerate(given))
    results = tuple(value(i, one, fetched.get(first_made[i])) for i, one in enumerate(made))
    return Signature(arguments, results, {i: one.alias for i, one in enumerate(given) if one.alias is not None})


def pieces_of(plan: Plan, leaves: Mapping[int, Host]) -> dict[int, Host]:
    """Returns the arguments that some leaves are, by number: of a leaf that lies in pieces, the rows of each.

    They have the shapes in which they are stored.
    """
    groups, found = leaf_groups(plan.arguments), dict[int, Host]()
    for number, value in leaves.items():
        for piece in groups[number]:
            one = plan.arguments[piece]
            own = value if one.rows is None else value[one.rows[0] : one.rows[1]]
            found[piece] = to_view(own, one.viewed, one.interleaved) if one.viewed else own
    return found


def leaves_of(plan: Plan, results: Mapping[int, Host]) -> dict[int, Host]:
    """Returns the results of a step by leaf, each whole and in its own shape."""
    own = {
        piece: from_view(result, one.shape, one.interleaved) if (one := plan.results[piece]).viewed else result
        for piece, result in results.items()
    }
    return {
        number: own[group[0]] if len(group) == 1 else np.concatenate([own[piece] for piece in group])
        for number, group in enumerate(leaf_groups(plan.results))
    }


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The first step's arguments, and what draws those of later steps (None: they keep their value)."""

    values: list[Host]
    fresh: Callable[[int], Mapping[int, Host]] | None

    @staticmethod
    def of(nonnegative: Iterable[int], signature: Signature, options: Namespace) -> _Inputs:
        given = read_inputs(Path(options.inputs), signature) if options.inputs else {}
        rule = InputRule(options.seed, options.int_range, frozenset(nonnegative))
        fresh = fresh_inputs(signature, rule, given) if options.fresh_batches else None
        return _Inputs(draw_inputs(signature, rule, given), fresh)


def _steps(executor: Executor, plan: Plan, inputs: _Inputs, num_steps: int) -> Iterator[RanStep]:
    """Yields each step when it has ended, with its results as the plan has them: in pieces."""
    arguments: list[Argument] = [*pieces_of(plan, dict(enumerate(inputs.values))).values()]
    for number in range(num_steps):
        start_s = time.perf_counter()
        results = executor.run(arguments)
        executor.wait()
        time_s = time.perf_counter() - start_s
        yield RanStep(number, time_s, {i: np.array(array) for i, array in enumerate(results) if array is not None})
        for index, value in pieces_of(plan, inputs.fresh(number + 1) if inputs.fresh else {}).items():
            arguments[index] = value
        for index, one in enumerate(plan.arguments):
            if one.alias is not None:
                arguments[index] = results[one.alias]


# In one process


def _here(
    plan: Plan, execution: Execution, options: Namespace, inputs: _Inputs, stack: ExitStack
) -> tuple[Iterator[RanStep], Callable[[], list[Event]]]:
    recorder = Recorder() if options.trace else None
    devices = devices_of_ranks(execution.step, pick_devices(plan.num_reached))
    executor = stack.enter_context(Executor(execution.step, execution.modules, devices, recorder=recorder))
    stack.enter_context(watched(executor, _limits(options)))
    return _steps(executor, plan, inputs, options.steps), lambda: _events(recorder)


def _events(recorder: Recorder | None) -> list[Event]:
    if recorder is None:
        return []
    recorder.close()
    return recorder.events()


# In several processes


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
    for process, ranks in enumerate(team.ranks):
        part = part_of(execution.step, ranks)
        modules = {one.module: execution.modules[one.module] for one in part.programs}
        share = _Share(head, part, modules, signature, execution.nonnegative_arguments)
        _share_file(folder, process).write_bytes(pickle.dumps(share))


def _launched(
    plan: Plan, execution: Execution, options: Namespace, stack: ExitStack
) -> tuple[Iterator[RanStep], Callable[[], list[Event]]]:
    """Runs the steps in several processes, to the end; returns the results of all."""
    team = share_ranks([mesh.num_devices for mesh in plan.meshes], options.processes)
    stack.enter_context(ended_in_order())
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rhino-run-")))
    _write_shares(plan, execution, team, folder)

    def command(address: str, process: int) -> list[str]:
        part = json.dumps([address, process, str(folder)])
        return [sys.executable, "-c", "from rhino.tools.run import main; main()", *options.argv, f"--part={part}"]

    code = launch(command, team, limits=_limits(options))
    if code:
        raise SystemExit(code)
    return _gathered(folder, len(team.ranks), options.steps), lambda: _gathered_events(folder, len(team.ranks))


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


def _run_part(options: Namespace) -> None:
    """Runs this process's ranks, and leaves what comes out in the launcher's folder."""
    address, process, folder = json.loads(options.part)
    # The folder is the launcher's own, and nobody else's: so is what it has left there.
    share: _Share = pickle.loads(_share_file(Path(folder), process).read_bytes())
    plan, ranks = share.plan, share.part.ranks
    team = share_ranks([mesh.num_devices for mesh in plan.meshes], options.processes)
    request_host_devices(sum(plan.meshes[rank].num_devices for rank in ranks), os.environ)
    devices = devices_of_ranks(plan, jax.local_devices(), ranks)
    job = ProcessJob(address, process, team, _limits(options), is_launched=True)
    transport, processes = SocketTransport(job), team.of_devices(plan.meshes)
    recorder = Recorder() if options.trace else None
    inputs = _Inputs.of(share.nonnegative, share.signature, options)
    with Executor(share.part, share.modules, devices, transport, processes, recorder=recorder) as executor:
        job.watch(StageProgress(executor))
        for step in _steps(executor, plan, inputs, options.steps):
            named: dict[str, Any] = {
                "time_s": np.float64(step.time_s),
                **{str(i): array for i, array in step.results.items()},
            }
            np.savez(_results_file(Path(folder), process, step.number), **named)
        _events_file(Path(folder), process).write_text(json.dumps(_events(recorder)), encoding="utf-8")
        job.finish()
    transport.close()
    job.close()


def _limits(options: Namespace) -> Limits:
    return Limits.parse(os.environ, {"stall_limit_s": options.stall_limit})


def _share_file(folder: Path, process: int) -> Path:
    return folder / f"{process}.share"


def _results_file(folder: Path, process: int, step: int) -> Path:
    return folder / f"{process}-{step}.npz"


def _events_file(folder: Path, process: int) -> Path:
    return folder / f"{process}.json"


def _gathered(folder: Path, num_processes: int, num_steps: int) -> Iterator[RanStep]:
    for number in range(num_steps):
        parts = [dict(np.load(_results_file(folder, process, number))) for process in range(num_processes)]
        time_s = max(float(part.pop("time_s")) for part in parts)
        yield RanStep(number, time_s, {int(i): array for part in parts for i, array in part.items()})


def _gathered_events(folder: Path, num_processes: int) -> list[Event]:
    return [
        event
        for process in range(num_processes)
        for event in json.loads(_events_file(folder, process).read_text(encoding="utf-8"))
    ]


# Output


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


def _expected(reference: Executable, inputs: _Inputs, num_steps: int) -> Iterator[list[Host]]:
    for step in run_steps(reference, inputs.values, num_steps, inputs.fresh):
        yield reference.fetch(step.results)


def _report(
    steps: Iterator[RanStep],
    signature: Signature,
    expected: Iterator[list[Host]] | None,
    options: Namespace,
    stdout: TextIO,
) -> None:
    times_s = []
    for step in steps:
        times_s.append(step.time_s)
        line = step_line(step.number, step.time_s, step.results, signature)
        if expected is None:
            print(line, file=stdout, flush=True)
            continue
        found = differences(
            signature, [step.results[value.index] for value in signature.results], next(expected), options.tolerance
        )
        print(f"{line}  {difference_text(found)}", file=stdout, flush=True)
        check(found, step.number)
    print(f"time per step: {format_seconds(typical_time_s(times_s))}", file=stdout)
    if expected is not None:
        print("the results agree with the one-device program", file=stdout)


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
