"""The `rhino-plan` command: say what a plan does and what it costs, or what two plans do differently."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from rhino.ir.diagnostics import ExitCode
from rhino.ir.plan_diff import diff_text
from rhino.ir.plan_text import explain_text
from rhino.ir.spmd_plan import load_plan
from rhino.tools.command_line import Parser, count
from rhino.tools.ending import exit_code_of

_EPILOG: Final = """\
Plans are the files of Plan.save, as rhino.parallelize(...).plan(...) gives them.
In names, [*] stands for numbers that differ: those of layers, say.

exit codes: 0 done, 1 not a plan, 2 usage, 70 our bug
"""


def run(argv: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Runs the command line `argv`; what is asked for goes to `stdout`, errors to `stderr`. Returns the exit code."""

    def work() -> int:
        if not argv or "--help" in argv:
            _parser().print_help(stdout)
            return int(ExitCode.OK if argv else ExitCode.USAGE)
        options = _parser().parse_args(argv)
        if options.command == "explain":
            print(explain_text(load_plan(Path(options.plan)), options.rows), file=stdout)
        else:
            found = diff_text(load_plan(Path(options.plan)), load_plan(Path(options.other)))
            print(found or "the plans are the same", file=stdout)
        return int(ExitCode.OK)

    return exit_code_of("rhino-plan", work, lambda: shlex.join(["rhino-plan", *argv]), stdout, stderr)


def main() -> None:
    """Runs the process's command line."""
    sys.exit(run(sys.argv[1:], sys.stdout, sys.stderr))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rhino-plan",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", add_help=False, help="the totals, and what takes most time and memory")
    explain.add_argument("plan", metavar="PLAN")
    explain.add_argument("--rows", type=count, default=20, metavar="N", help="how many tensors and collectives to list (default 20)")
    diff = commands.add_parser("diff", add_help=False, help="what the second plan does differently, and what that costs")
    diff.add_argument("plan", metavar="PLAN")
    diff.add_argument("other", metavar="OTHER")
    return parser
