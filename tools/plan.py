"""The `rhino-plan` command: take a plan apart. What it does and costs, why, and what another does differently."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO

from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.plan import Plan
from rhino.ir.program.proven_plan import load_proven_plan
from rhino.tools.command_line import Parser, count
from rhino.tools.ending import exit_code_of, leave
from rhino.tools.files import check_writable, read_input, shown, write_output
from rhino.tools.streams import standard_streams

if TYPE_CHECKING:
    from rhino.tools.plan_aot import Checked

_EPILOG: Final = """\
PLAN is a file of Plan.save or of rhino-opt --auto-shard --plan, or for a plan in stages the folder of rhino-opt
--auto-parallel --plan. In names, [*] stands for numbers that differ: those of layers, say.

A plan does not hold its program. --why and --why-not search it again, and explain without them says what a little more
memory would be worth: give it with --module, as rhino-opt took it, or as Plan.save_program wrote it. A NAME is that of
an argument, as 'params.layers.*.up', of an op's scope, as 'loc:*mlp*/dot_general', or of a line, as model.py:41; 'plan'
is the plan itself.

exit codes: 0 done, 1 not a plan, or not of that module, 2 usage, 3 over the budget once compiled, 70 our bug
"""


def run(argv: Sequence[str], stdin: BinaryIO, stdout: TextIO, stderr: TextIO) -> int:
    """Runs the command line `argv`; what is asked for goes to `stdout`, errors to `stderr`. Returns the exit code."""

    def work() -> int:
        if not argv:
            _parser().print_help(stderr)
            return int(ExitCode.USAGE)
        options = _parser().parse_args(argv)
        match options.command:
            case "explain":
                print(_explained(options, stdin, stderr), file=stdout)
            case "aot":
                checked = _compiled(options, stdin, stderr)
                print(checked.text, file=stdout)
                return int(checked.exit_code)
            case "report":
                _report(options, stdin, stderr)
            case _:
                print(_diff(options) or "the plans are the same", file=stdout)
        return int(ExitCode.OK)

    return exit_code_of("rhino-plan", work, lambda: shlex.join(["rhino-plan", *argv]), stdout, stderr)


def main() -> None:
    """Runs the process's command line."""
    leave(run(sys.argv[1:], *standard_streams()))


def _load(path: str) -> Plan:
    return load_proven_plan(Path(path))


def _explained(options: argparse.Namespace, stdin: BinaryIO, stderr: TextIO) -> str:
    plan = _load(options.plan)
    if not options.why and not options.why_not:
        from rhino.passes.planner.explain import explain_text  # noqa: PLC0415 - loads the simulation

        text = explain_text(plan, options.rows)
        if options.module is None or plan.execution:
            return text
        from rhino.passes.planner.why import more_memory_text  # noqa: PLC0415 - loads the search

        more = more_memory_text(_read(options, _program(options, plan, stdin, stderr)), plan)
        return f"{text}\n{more}"
    from rhino.passes.planner.why import why_not_text, why_text  # noqa: PLC0415 - loads the search

    data = _program(options, plan, stdin, stderr)
    texts = [why_text(_read(options, data), plan, name) for name in options.why]
    return "\n".join([*texts, *(why_not_text(_read(options, data), plan, pin) for pin in options.why_not)])


def _report(options: argparse.Namespace, stdin: BinaryIO, stderr: TextIO) -> None:
    from rhino.tools.page_html import page_html  # noqa: PLC0415 - a terminal needs no templates

    check_writable(options.output)
    plan, reasons = _load(options.plan), []
    if options.module is not None:
        from rhino.passes.planner.why import notable_reasons  # noqa: PLC0415 - loads the search

        reasons = notable_reasons(_read(options, _program(options, plan, stdin, stderr)), plan)
    write_output(options.output, page_html(plan, reasons).encode(), sys.stdout.buffer)


def _compiled(options: argparse.Namespace, stdin: BinaryIO, stderr: TextIO) -> Checked:
    from rhino.tools.plan_aot import compiled_plan  # noqa: PLC0415 - loads JAX

    plan = _load(options.plan)
    return compiled_plan(plan, lambda: _read(options, _program(options, plan, stdin, stderr)))


def _diff(options: argparse.Namespace) -> str:
    from rhino.passes.planner.diff import diff_text  # noqa: PLC0415 - loads the simulation

    return diff_text(_load(options.plan), _load(options.other))


def _program(options: argparse.Namespace, plan: Plan, stdin: BinaryIO, stderr: TextIO) -> bytes:
    """Returns the program of a plan as it was given. Raises RHI-CLI-001 where it was not."""
    if options.module is None:
        what = f"the plan does not hold its program, {plan.source.function}"
        fix = "say --module=FILE: the module that was planned, or what save_program wrote"
        raise RhinoError("RHI-CLI-001", what, fix=fix)
    return read_input(options.module, stdin, stderr)


def _read(options: argparse.Namespace, data: bytes) -> ir.Module:
    return read_module(data, shown(options.module), make_context())


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rhino-plan",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="the totals, what takes most time and memory, and why")
    explain.add_argument("plan", metavar="PLAN")
    explain.add_argument(
        "--rows", type=count, default=20, metavar="N", help="how many tensors, ops and collectives to list (default 20)"
    )
    explain.add_argument(
        "--why",
        action="append",
        default=[],
        metavar="NAME",
        help="what else was possible for NAME, and what it would add",
    )
    explain.add_argument(
        "--why-not",
        action="append",
        default=[],
        metavar="PIN",
        help="what PIN, as 'w1=[{}, {\"y\"}]', would change and cost",
    )
    _add_module(explain)
    report = commands.add_parser("report", help="a page of HTML with all that is known of the plan")
    report.add_argument("plan", metavar="PLAN")
    report.add_argument("-o", dest="output", required=True, metavar="FILE", help="the page to write, or - for stdout")
    _add_module(report)
    aot = commands.add_parser("aot", help="what the target's compiler makes of the plan")
    aot.add_argument("plan", metavar="PLAN")
    _add_module(aot)
    diff = commands.add_parser("diff", help="what the second plan does differently, and what that costs")
    diff.add_argument("plan", metavar="PLAN")
    diff.add_argument("other", metavar="OTHER")
    return parser


def _add_module(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--module", metavar="FILE", help="the program of a plan that does not hold it")
