"""The `rhino-run` command: compile a module or a plan for host devices, run some steps, and compare with one device."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, TextIO

import jax

from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.graph.collective_stats import CollectiveStats
from rhino.ir.hlo.collectives import hlo_stats
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import LOCAL, copy_module, has_shardings, mesh_size, strip_shardings, wrap_manual
from rhino.ir.mlir.reader import read_module
from rhino.ir.mlir.refusals import refuse_unrunnable
from rhino.ir.plan.files import begins_plan
from rhino.ir.program.collectives import module_stats
from rhino.ir.units import format_seconds
from rhino.runtime.executor.compare import Difference, check, check_same_signature, coarsest_tolerance, differences
from rhino.runtime.executor.compile_apart import compiling_apart
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import Executable, Host, compile_module
from rhino.runtime.executor.inputs import RULE, InputRule, draw_inputs, fresh_inputs, nonnegative_arguments, read_inputs
from rhino.runtime.executor.signature import Signature
from rhino.runtime.executor.steps import Fresh, run_steps, typical_time_s
from rhino.tools.command_line import Parser, count
from rhino.tools.ending import exit_code_of, leave
from rhino.tools.files import read_input, shown
from rhino.tools.run_report import difference_text, step_line
from rhino.tools.streams import standard_streams

FORMS: Final = ("auto", "annotated", "localized")

_SCRIPTS_OWN: Final = "--"
"""What follows are arguments of a script."""

_EPILOG: Final = f"""\
A script, FILE.py, is started in as many processes as --processes says, each with the environment that
rhino.distributed.initialize() reads; what follows -- are its arguments.

{RULE}
An argument with tf.aliasing_output = i is, from the second step on, result i of the step before; others keep
their value.

Forms:
  annotated  XLA's partitioner follows the shardings and chooses the collectives
  localized  the local program with its collectives as planned, which leaves XLA nothing to choose
  auto       localized, where there is a way; beside it, what XLA would send for the annotated one

Results are compared norm-wise: max |got - expected| / max |expected|, at every step. Integers and booleans
must be equal.

exit codes: 0 the run is done and the results agree, 1 bad input, results that differ, or too few devices, 2 usage,
            70 our bug
"""


@dataclass(frozen=True, slots=True)
class _Program:
    """What was compiled, in which form, and what to say about the choice."""

    form: str
    executable: Executable
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The values of the first step's arguments, and what draws those of later steps (None: they keep their value)."""

    values: list[Host]
    fresh: Fresh | None


def run(argv: Sequence[str], stdin: BinaryIO, stdout: TextIO, stderr: TextIO) -> int:
    """Runs the command line `argv`; the report goes to `stdout`, errors to `stderr`. Returns the exit code."""

    def work() -> int:
        end = argv.index(_SCRIPTS_OWN) if _SCRIPTS_OWN in argv else len(argv)
        options = _parser().parse_args(argv[:end], argparse.Namespace(arguments=argv[end + 1 :]))
        if options.file.endswith(".py"):
            return _run_script(options, stderr)
        _refuse({_SCRIPTS_OWN: options.arguments}, "is for scripts, and the input is none")
        _refuse({"--restarts": options.restarts}, "is for scripts: what keeps no checkpoints has nothing to go on from")
        if os.path.isdir(options.file) or begins_plan(Path(options.file)):
            _refuse(
                {"--form": options.form != "auto", "--verify": options.verify},
                "is for modules, and the input is a plan",
            )
            _run_plan(options, stdin, stdout, argv)
        else:
            plans_only = {"--processes": options.processes, "--timeline": options.timeline, "--trace": options.trace}
            _refuse(plans_only, "is for plans, and the input is a module")
            _run(options, stdin, stdout)
        return int(ExitCode.OK)

    return exit_code_of("rhino-run", work, lambda: shlex.join(["rhino-run", *argv]), stdout, stderr)


def _run_script(options: argparse.Namespace, stderr: TextIO) -> int:
    from rhino.tools.run_script import run_script  # noqa: PLC0415 - a module alone needs no other processes

    return run_script(options, stderr)


def _refuse(given: Mapping[str, object], why: str) -> None:
    """Refuses the first option that was given."""
    for name, value in given.items():
        if value:
            raise RhinoError("RHI-CLI-001", f"{name} {why}", fix="see rhino-run --help")


def main() -> None:
    """Runs the process's command line."""
    leave(run(sys.argv[1:], *standard_streams()))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rhino-run",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="the module to run, or the folder of a plan, or a script of Python, or - for stdin (default)",
    )
    add("--devices", type=count, metavar="N", help="host devices to make (default: what the module's mesh needs)")
    add(
        "--compare",
        metavar="ORIGINAL",
        help="run this module on one device from the same inputs, and compare every result",
    )
    add(
        "--verify",
        action="store_true",
        help="run the first step on one device as well, and name the first op that differs",
    )
    add("--steps", type=count, default=1, metavar="N", help="steps to run (default 1)")
    add("--seed", type=_natural, default=0, metavar="S", help="seed of the inputs (default 0)")
    add(
        "--inputs",
        metavar="F.npz",
        help="arrays to use as arguments; keys are argument indices or names, the others are drawn",
    )
    add("--int-range", type=count, default=2, metavar="K", help="bound of drawn integers (default 2, safe for indices)")
    add(
        "--fresh-batches",
        action="store_true",
        help="draw the arguments that are not fed back, nor given, anew for each step",
    )
    add("--form", choices=FORMS, default="auto", help="what to compile, see below (default auto)")
    add(
        "--tolerance",
        type=_tolerance,
        metavar="R",
        help="relative error allowed (default by dtype: f32 1e-4, f16 5e-3, bf16 2e-2)",
    )
    job = parser.add_argument_group("plans and scripts")
    job.add_argument(
        "--processes",
        type=count,
        metavar="N",
        help="run in N processes (default: in one): of a plan each has some of the ranks",
    )
    job.add_argument(
        "--restarts",
        type=count,
        default=0,
        metavar="N",
        help="start a script again when it has failed, up to N times (default: not); it goes on from its checkpoints",
    )
    plan = parser.add_argument_group("plans")
    plan.add_argument("--timeline", action="store_true", help="print when each rank runs what, as predicted")
    plan.add_argument(
        "--trace",
        metavar="FILE",
        help="write what was predicted and what was measured, for Perfetto or chrome://tracing",
    )
    plan.add_argument(
        "--stall-limit",
        type=count,
        metavar="S",
        help="give up after S seconds without progress, behind the first step (default RHINO_STALL_LIMIT_S, or 30)",
    )
    plan.add_argument("--part", help=argparse.SUPPRESS)
    return parser


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _tolerance(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return value


def _run_plan(options: argparse.Namespace, stdin: BinaryIO, stdout: TextIO, argv: Sequence[str]) -> None:
    from rhino.tools.run_plan import run_plan  # noqa: PLC0415 - a module alone needs no executor

    options.argv = list(argv)

    def original(signature: Signature) -> Executable:
        return _compile_original(_read(options.compare, stdin, make_context()), signature)

    run_plan(options, original, stdout)


def _run(options: argparse.Namespace, stdin: BinaryIO, stdout: TextIO) -> None:
    context = make_context()
    module = _read(options.file, stdin, context)
    original = _original(module, options, stdin)
    num_devices = mesh_size(module)
    _prepare_devices(num_devices, options.devices)
    program = _compile(module, options.form, pick_devices(num_devices))
    inputs = _inputs(options, module, program.executable.signature)
    reference = _compile_original(original, program.executable.signature) if original else None
    print(f"form: {program.form}, devices: {num_devices}", *program.lines, sep="\n", file=stdout)
    if reference is None:
        _report_run(program.executable, inputs, options.steps, stdout)
    else:
        _report_comparison(program.executable, reference, inputs, options, stdout, module)


def _read(name: str, stdin: BinaryIO, context: ir.Context) -> ir.Module:
    module = read_module(read_input(name, stdin, sys.stderr), shown(name), context)
    refuse_unrunnable(module, shown(name))
    return module


def _original(module: ir.Module, options: argparse.Namespace, stdin: BinaryIO) -> ir.Module | None:
    """Returns what is to be compared with: a module that is named, or to verify it the module itself."""
    if not options.verify:
        return _read(options.compare, stdin, module.context) if options.compare else None
    if options.compare:
        raise RhinoError(
            "RHI-CLI-001", "--verify compares the module with itself, and --compare with another", fix="leave one out"
        )
    if LOCAL in module.operation.attributes:
        what = "the module is the program of one device already, which runs in no second way"
        raise RhinoError(
            "RHI-LOCAL-001", what, Place(shown(options.file)), fix="verify the annotated module that it was made of"
        )
    return copy_module(module)


def _prepare_devices(needed: int, requested: int | None) -> None:
    if requested is not None and requested < needed:
        raise RhinoError(
            "RHI-RUN-004",
            f"--devices={requested}, and the module's mesh has {needed}",
            fix=f"give --devices={needed}, or plan for {requested}",
        )
    request_host_devices(requested or needed, os.environ)


def _compile(module: ir.Module, form: str, devices: Sequence[jax.Device]) -> _Program:
    """Compiles `module` in `form`; in form "auto" the localized one where there is one."""
    if not has_shardings(module):
        if form == "localized":
            raise RhinoError(
                "RHI-LOCAL-001", "the module has no sharding", fix="annotate it first, with rhino-opt --auto-shard"
            )
        return _Program("annotated", compile_module(module, devices), ("note: the module has no sharding",))
    if LOCAL in module.operation.attributes:
        return _compile_localized(module, devices)
    if form == "localized":
        return _compile_localized(_localize(module), devices)
    return _compile_annotated(module, devices) if form == "annotated" else _choose(module, devices)


def _choose(module: ir.Module, devices: Sequence[jax.Device]) -> _Program:
    """Returns the localized program, and what XLA would send for the annotated one.

    Where the module cannot be localized, returns the annotated program.
    """
    try:
        local = _localize(module)
    except RhinoError as error:
        annotated = _compile_annotated(module, devices)
        return replace(annotated, lines=(*annotated.lines, f"note: not localized: {error.what}"))
    with compiling_apart(module, len(devices)) as hlo_text:
        localized = _compile_localized(local, devices)
        try:
            stats = _stats_lines("annotated form, as XLA would have it", hlo_stats(hlo_text()))
        except RhinoError as error:
            stats = (f"note: XLA does not take the annotated form: {error.what.splitlines()[0][:200]}",)
    return replace(localized, lines=(*localized.lines, *stats))


def _compile_annotated(module: ir.Module, devices: Sequence[jax.Device]) -> _Program:
    with compiling_apart(module, len(devices)) as hlo_text:
        hlo_text()  # an error where compiling it here would end this process
    executable = compile_module(module, devices)
    return _Program("annotated", executable, _stats_lines("as compiled", hlo_stats(executable.hlo_text())))


def _compile_localized(local: ir.Module, devices: Sequence[jax.Device]) -> _Program:
    executable = compile_module(wrap_manual(local), devices)
    planned, compiled = module_stats(local), hlo_stats(executable.hlo_text())
    return _Program(
        "localized", executable, (*_stats_lines("as planned", planned), *_stats_lines("as compiled", compiled))
    )


def _localize(module: ir.Module) -> ir.Module:
    from rhino.passes.sharding.localize import localized_copy  # noqa: PLC0415 - a plan runs without loading the passes

    return localized_copy(module)


def _stats_lines(what: str, stats: CollectiveStats) -> tuple[str, ...]:
    rows = stats.table().splitlines()
    return (f"collectives per step and device, {what}:", *(f"  {row}" for row in rows))


def _compile_original(original: ir.Module, expected: Signature) -> Executable:
    strip_shardings(original)
    reference = compile_module(original, pick_devices(1))
    check_same_signature(expected, reference.signature)
    return reference


def _inputs(options: argparse.Namespace, module: ir.Module, signature: Signature) -> _Inputs:
    given = read_inputs(Path(options.inputs), signature) if options.inputs else {}
    rule = InputRule(options.seed, options.int_range, nonnegative_arguments(module))
    fresh = fresh_inputs(signature, rule, given) if options.fresh_batches else None
    return _Inputs(draw_inputs(signature, rule, given), fresh)


def _report_run(executable: Executable, inputs: _Inputs, num_steps: int, stdout: TextIO) -> None:
    times_s = []
    for step in run_steps(executable, inputs.values, num_steps, inputs.fresh):
        times_s.append(step.time_s)
        print(step_line(step.number, step.time_s, step.results, executable.signature), file=stdout)
    print(f"time per step: {format_seconds(typical_time_s(times_s))}", file=stdout)


def _report_comparison(
    executable: Executable,
    reference: Executable,
    inputs: _Inputs,
    options: argparse.Namespace,
    stdout: TextIO,
    module: ir.Module,
) -> None:
    """Reports steps beside those of one device: all of them, or the first alone where `module` is to be verified."""
    tolerance = coarsest_tolerance(module) if options.verify and options.tolerance is None else options.tolerance
    theirs = run_steps(reference, inputs.values, 1 if options.verify else options.steps, inputs.fresh)
    times_s = []
    for step in run_steps(executable, inputs.values, options.steps, inputs.fresh):
        times_s.append(step.time_s)
        line = step_line(step.number, step.time_s, step.results, executable.signature)
        expected = next(theirs, None)
        if expected is None:
            print(line, file=stdout)
            continue
        found = differences(
            executable.signature, executable.fetch(step.results), reference.fetch(expected.results), tolerance
        )
        print(f"{line}  {difference_text(found)}", file=stdout)
        if options.verify:
            _verify(found, module, inputs, executable, tolerance, stdout)
        else:
            check(found, step.number)
    print(f"time per step: {format_seconds(typical_time_s(times_s))}", file=stdout)
    print(
        f"{'the first step agrees' if options.verify else 'the results agree'} with the one-device program", file=stdout
    )


def _verify(
    found: Sequence[Difference],
    module: ir.Module,
    inputs: _Inputs,
    executable: Executable,
    tolerance: float | None,
    stdout: TextIO,
) -> None:
    from rhino.tools.first_difference import check_verified, first_difference  # noqa: PLC0415 - a plan runs without loading the passes

    note = check_verified(found, lambda: first_difference(module, inputs.values, executable.devices, tolerance))
    if note:
        print(f"  note: {note}", file=stdout)
