"""The `rhino-opt` command: read a module, run passes on it, print it.

Its options have the names and the meanings of mlir-opt's.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO, cast

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.mesh import parse_meshes
from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.graph.collective_stats import CollectiveStats
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.files import save_plan
from rhino.passes.base import Item, Remarks, read_options
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.pipeline.scope_stages import ranks_of_scopes
from rhino.passes.planner.choose_layouts import LayoutChoice, host_shares
from rhino.passes.planner.in_less_memory import LessMemory, search_in_less
from rhino.passes.planner.unstaged_plan import search
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.passes.sharding.localize import Localize
from rhino.passes.sharding.pin import requested_scopes
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER, OTHERS_NEED_LESS
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.tools.ending import exit_code_of, leave
from rhino.tools.expected import Diagnostic, compare, diagnostics_of, read_expectations
from rhino.tools.files import check_writable, read_input, shown, write_output
from rhino.tools.opt_options import given_options, list_text, parse_command_line, steps, with_added, with_scope_ranks
from rhino.tools.opt_report import collectives_text, split_calls_text, statistics_text, summary_text
from rhino.tools.streams import binary_output, standard_streams

if TYPE_CHECKING:
    from rhino.ir.plan.plan import Plan, Predicted
    from rhino.passes.planner.aot import Judged
    from rhino.passes.planner.aot_parallel import Compiles
    from rhino.passes.planner.autotune import Made
    from rhino.passes.planner.autotune_report import Report
    from rhino.passes.planner.staged_plan import StagedPlan
    from rhino.tools.opt_plan import Planner
    from rhino.tools.opt_search import MadeModule

_STDOUT: Final = frozenset({"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})
_SEPARATOR: Final = "// -----"
_PASS_FIX: Final = "correct the op, or the pipeline; --mlir-print-ir-after-all shows what each pass writes"
_COMMENTS: Final = re.compile(r"\s*(//[^\n]*(\n\s*|$))*")


def run(argv: Sequence[str], stdin: BinaryIO, stdout: BinaryIO, stderr: TextIO) -> int:
    """Runs the command line `argv`; IR goes to `stdout`, everything else to `stderr`. Returns the exit code.

    What MLIR itself prints (`--mlir-timing`, `--mlir-print-ir-after-all`) goes to the process's standard error.
    """
    command = _Command(argv, stdin, stdout, stderr)
    return exit_code_of("rhino-opt", command.run, command.reproducer, stdout, stderr)


def main() -> None:
    """Runs the process's command line."""
    gc.disable()  # the search makes many small tables and no cycles: collecting costs a fifth of its time
    stdin, stdout, stderr = standard_streams()
    leave(run(sys.argv[1:], stdin, _own_stdout(stdout, stderr), stderr))


def _own_stdout(stdout: TextIO, stderr: TextIO) -> BinaryIO:
    """Returns standard output for the IR alone.

    What libraries print there (HiGHS does, now and then) goes to standard error.
    """
    own = binary_output(os.dup(stdout.fileno()))
    os.dup2(stderr.fileno(), stdout.fileno())
    return own


@dataclass
class _Outcome:
    """What became of one module: its output, None if it failed; its errors, and what else was said about it."""

    output: bytes | None = None
    errors: tuple[RhinoError, ...] = ()
    diagnostics: list[Diagnostic] = field(default_factory=list)
    remarks: Remarks = field(default_factory=Remarks)

    def every(self) -> tuple[Diagnostic, ...]:
        return (*self.diagnostics, *(one for error in self.errors for one in diagnostics_of(error)))


@dataclass
class _Command:
    """One command line, and where it reads and writes."""

    argv: Sequence[str]
    stdin: BinaryIO
    stdout: BinaryIO
    stderr: TextIO
    data: bytes | None = None

    def run(self) -> int:
        options = parse_command_line(self.argv)
        if options.list_passes:
            self.stdout.write(list_text().encode())
            self.stdout.flush()
            return int(ExitCode.OK)
        if options.emit_bytecode and options.output == "-" and self.stdout.isatty():
            raise RhinoError(
                "RHI-CLI-001", "refusing to write bytecode to a terminal", fix="write it to a file with -o"
            )
        items = () if options.searches or options.by_scopes else steps(options)
        if options.output in _STDOUT:
            options.output = "-"  # the descriptor behind that name is kept for what libraries print
        for path in (options.output, options.plan_json or "-"):
            check_writable(path)
        self.data = read_input(options.file, self.stdin, self.stderr)
        return self.process(options, items, self.data)

    def process(self, options: Namespace, items: tuple[Item, ...], data: bytes) -> int:
        file, context = shown(options.file), make_context()
        build_pass_manager(items, context)  # an unknown pass is the command line's fault, whatever is in the file
        parts = split_input(data) if options.split_input_file else (data,)
        outcomes = [_Run(options, items, file, context, self.stderr).outcome(part) for part in parts]
        self.report(options, outcomes)
        if options.verify_diagnostics:
            expectations = read_expectations(data.decode(errors="replace"), file)
            errors = compare(expectations, [one for outcome in outcomes for one in outcome.every()], file)
        else:
            errors = tuple(error for outcome in outcomes for error in outcome.errors)
        for error in errors:
            print(error.render(), file=self.stderr)
        if errors:
            return int(errors[0].exit_code)
        outputs = [outcome.output for outcome in outcomes if outcome.output is not None]
        write_output(options.output, f"{_SEPARATOR}\n".encode().join(outputs), self.stdout)
        return int(ExitCode.OK)

    def report(self, options: Namespace, outcomes: Sequence[_Outcome]) -> None:
        """Prints what was asked for beside the IR."""
        for outcome in outcomes:
            if not options.verify_diagnostics:
                for one in outcome.diagnostics:
                    print(one, file=self.stderr)
            shards = any(name == "auto-shard" for name, _ in options.steps) and not options.verify_diagnostics
            if shards and (chosen := outcome.remarks.find(ShardingChoice)):
                print(summary_text(chosen, outcome.remarks.find(LayoutChoice)), file=self.stderr)
                if less := outcome.remarks.find(LessMemory):
                    print(f"rhino-opt: {less.words}", file=self.stderr)
                if not options.localize and (line := split_calls_text(chosen)):
                    print(line, file=self.stderr)
            if options.print_statistics:
                print(statistics_text(outcome.remarks), file=self.stderr)
            if options.localize and (stats := outcome.remarks.find(CollectiveStats)):
                print(collectives_text(stats), file=self.stderr)

    def reproducer(self) -> str:
        """Returns a command line that does the same again; what came from stdin is kept in a file for it."""
        words = list(self.argv)
        if self.data is not None and not any(os.path.isfile(word) for word in words):
            with tempfile.NamedTemporaryFile(prefix="rhino-opt-", suffix=".mlir", delete=False) as file:
                file.write(self.data)
            words = [word for word in words if word != "-"] + [file.name]
        return shlex.join(["rhino-opt", *words])


@dataclass(frozen=True, slots=True, eq=False)
class _Staged:
    """A module in stages, the remarks of its passes, and its plan."""

    module: ir.Module
    remarks: Remarks
    made: StagedPlan


@dataclass
class _Run:
    """How every module of one command line is processed."""

    options: Namespace
    items: tuple[Item, ...]
    file: str
    context: ir.Context
    stderr: TextIO

    def outcome(self, data: bytes) -> _Outcome:
        result = _Outcome(remarks=Remarks(self.file))
        try:
            result.output = self.output(data, result)
        except RhinoError as error:
            result.errors = (self.with_alternative(error),)
        except ir.MLIRError as error:
            result.errors = self.pass_errors(error)
        result.diagnostics += self.shown_remarks(result.remarks)
        return result

    def with_alternative(self, error: RhinoError) -> RhinoError:
        """Returns an error that names what takes less memory, where that was not asked for."""
        if error.exit_code != ExitCode.DOES_NOT_FIT or not self.shards_alone:
            return error
        return replace(error, fix=f"{error.fix}; or --auto-parallel in place of --auto-shard: {OTHERS_NEED_LESS}")

    def output(self, data: bytes, result: _Outcome) -> bytes:
        module = read_module(data, self.file, self.context)
        planner = self.planner(module) if self.options.is_decided or self.options.searches else None
        if self.options.by_scopes:
            self.options = self.with_scope_ranks(module)
        # not while reading: the bytecode reader reports without Python's lock, and ends the process
        with self.listening(result):
            if self.options.searches and planner:
                module = self.searched(module, planner, result)
            elif self.options.aot and not self.options.is_decided:
                module = self.compared(data, result)
            elif self.options.is_decided and planner and not self.options.makes_file:
                module = self.decided(module, planner, result)
            else:
                module = self.in_one_program(module, data, result)
        if self.options.plan and self.options.output == "-":
            return b""
        if not self.options.emit_bytecode:
            return str(module.operation.get_asm(enable_debug_info=self.with_locations())).encode()
        return bytecode(module)

    def with_scope_ranks(self, module: ir.Module) -> Namespace:
        """Returns the command line with the stages that the module's scopes are."""
        given, copy = self.given(self.options), self.normalized(module)
        scopes = requested_scopes(given.get("scope", ""), given.get("constraints", ""))
        ranks = ranks_of_scopes(copy.operation, scopes, load_cluster(given["cluster"]).num_devices, self.file)
        return with_scope_ranks(self.options, ranks)

    def normalized(self, module: ir.Module) -> ir.Module:
        """Returns a copy of a module, normalized."""
        copy = ir.Module.parse(bytecode(module), self.context)
        with self.context, ir.Location.unknown():
            Normalize().run(copy.operation, Remarks(self.file))
        return copy

    def planner(self, module: ir.Module) -> Planner:
        from rhino.tools.opt_plan import Planner  # noqa: PLC0415 - loads JAX, which most commands do not need

        return Planner(module, self.file)

    def decided(self, module: ir.Module, planner: Planner, result: _Outcome) -> ir.Module:
        """Returns the module of a plan of which nothing was open, whose folder is written if one was asked for."""
        from rhino.passes.planner.aot import SEARCHED  # noqa: PLC0415 - as above
        from rhino.tools.opt_aot import say_compared  # noqa: PLC0415 - as above
        from rhino.tools.opt_plan import write_staged_plan  # noqa: PLC0415 - as above
        from rhino.tools.opt_search import asked  # noqa: PLC0415 - as above

        def within(budget: int) -> _Staged:
            return self.in_stages(module, planner, self.options, budget)

        known = self.in_batches(module, planner) if self.options.num is None else None
        if compiles := self.compiles():
            found, row = compiles.staged(SEARCHED, within, lambda one: one.made.plan)
            compared = compiles.comparison(row)
            say_compared(compared, self.stderr)
            found = replace(found, made=replace(found.made, plan=replace(found.made.plan, compared=compared)))
        else:
            found = known or within(planner.budget_bytes(self.options))
        result.remarks = found.remarks
        write_staged_plan(found.made, None, self.options, asked(self.options.asked), self.stderr)
        return found.module

    def in_batches(self, module: ir.Module, planner: Planner) -> _Staged:
        """Returns the plan of stages that are scopes in the best number of micro-batches, which is asked for then."""
        from rhino.passes.planner.scope_batches import choose_micro_batches  # noqa: PLC0415 - as above
        from rhino.passes.planner.setup import Setup  # noqa: PLC0415 - as above

        budget, made = planner.budget_bytes(self.options), dict[int, _Staged]()

        def make(number: int) -> Predicted:
            options = Namespace(**{**vars(self.options), "num": number})
            made[number] = self.in_stages(module, planner, options, budget)
            return made[number].made.plan.predicted

        given = self.given(self.options)
        setup = Setup(bytecode(self.normalized(module)), self.file, given["cluster"], float(budget), given)
        self.options.num = choose_micro_batches(setup, parse_meshes(self.options.mesh), make)
        return made[self.options.num]

    def in_stages(self, module: ir.Module, planner: Planner, options: Namespace, budget: int) -> _Staged:
        """Returns what the passes make of `module`, and its plan, which is predicted to fit in a budget of its own."""
        from rhino.passes.planner.repeated_passes import RepeatedPasses  # noqa: PLC0415 - as above
        from rhino.passes.planner.staged_fitting import Attempt, fit_in_stages  # noqa: PLC0415 - as above
        from rhino.passes.planner.staged_plan import prove_fit  # noqa: PLC0415 - as above

        start, limited = bytecode(module), Namespace(**{**vars(options), "budget": str(budget)})
        shown = self.options.mlir_print_ir_after_all or self.options.mlir_timing
        run = self.run_passes if shown else RepeatedPasses().run

        def make(more: dict[str, str]) -> Attempt[tuple[ir.Module, StagedPlan]]:
            own, remarks, line = ir.Module.parse(start, self.context), Remarks(self.file), with_added(limited, more)
            run(own.operation, steps(line), remarks)
            staged = planner.plan(own, line)
            return Attempt((own, staged), staged.plan, remarks)

        found = fit_in_stages(make, budget, host_shares(self.given(options)))
        prove_fit(found.plan)
        staged, made = found.made
        predicted = replace(made.plan.predicted, budget_bytes=planner.budget_bytes(options))
        return _Staged(staged, found.remarks, replace(made, plan=replace(made.plan, predicted=predicted)))

    def given(self, options: Namespace) -> dict[str, str]:
        """Returns the options of the passes that shard one program, by name."""
        given = {"cluster": DEFAULT_CLUSTER, **given_options(options)}
        for name, text in options.steps:
            given |= read_options(name, text)
        return given

    def compared(self, data: bytes, result: _Outcome) -> ir.Module:
        """Returns the module of the plan that the target's compiler chooses; writes its file if one was asked for."""
        from rhino.tools.opt_aot import compared  # noqa: PLC0415 - as above
        from rhino.tools.opt_search import asked  # noqa: PLC0415 - as above

        given = self.given(self.options)
        judged = compared(
            lambda: read_module(data, self.file, self.context), self.file, given, self.options, self.stderr
        )
        module, result.remarks = judged.best.found.module, judged.best.found.remarks
        if self.options.plan:
            save_plan(replace(judged.plan(), request=asked(self.options.asked)), Path(self.options.plan))
        self.run_passes(module.operation, [one for one in self.items if isinstance(one, Localize)], result.remarks)
        return module

    def in_one_program(self, module: ir.Module, data: bytes, result: _Outcome) -> ir.Module:
        """Returns the module after the passes; writes the plan's file if one was asked for.

        A step of which only shardings were asked for is planned otherwise where it does not fit.
        """
        plan: Plan | None = None
        try:
            if self.options.makes_file:
                plan = self.one_program(module, self.options, result.remarks)
            else:
                self.run_passes(module.operation, self.items, result.remarks)
        except RhinoError as error:
            if not self.shards_alone or self.options.is_whole:
                raise
            read, given = (lambda: read_module(data, self.file, self.context)), self.given(self.options)
            found = search_in_less(read, Path(self.file).name, given, error)
            module, result.remarks = found.module, found.remarks
            plan = self.localized(found.plan, module, self.options, result.remarks)
        if plan is not None and self.options.makes_file:
            save_plan(plan, Path(self.options.plan))
        return module

    @property
    def shards_alone(self) -> bool:
        """Whether nothing but shardings was asked for."""
        return [name for name, _ in self.options.asked.steps] == ["auto-shard"]

    def one_program(self, module: ir.Module, options: Namespace, remarks: Remarks) -> Plan:
        """Shards `module`, and returns the plan of that."""
        plan = search(module, Path(self.file).name, self.given(options), remarks).plan
        return self.localized(plan, module, options, remarks)

    def localized(self, plan: Plan, module: ir.Module, options: Namespace, remarks: Remarks) -> Plan:
        """Localizes a module that is sharded if that is asked for, and returns its plan with what was asked."""
        from rhino.tools.opt_search import asked  # noqa: PLC0415 - as above

        self.run_passes(module.operation, [one for one in steps(options) if isinstance(one, Localize)], remarks)
        if options.timeline:
            print("rhino-opt: the plan is one program, which has no timeline", file=self.stderr)
        return replace(plan, request=asked(options.asked))

    def compiles(self) -> Compiles | None:
        from rhino.tools.opt_aot import compiles_of  # noqa: PLC0415 - as above

        return compiles_of(self.options, self.stderr)

    def searched(self, module: ir.Module, planner: Planner, result: _Outcome) -> ir.Module:
        """Returns the module of the best plan, whose folder is written if one was asked for."""
        from rhino.passes.planner.autotune import Made  # noqa: PLC0415 - as above
        from rhino.tools.opt_aot import comparer_of  # noqa: PLC0415 - as above
        from rhino.tools.opt_plan import write_staged_plan  # noqa: PLC0415 - as above
        from rhino.tools.opt_search import MadeModule, asked, search_plan  # noqa: PLC0415 - as above

        compiles = self.compiles()

        def in_stages(found: _Staged, options: Namespace) -> Made[MadeModule]:
            def finish(report: Report) -> None:
                result.remarks = found.remarks
                if options.makes_plan:
                    write_staged_plan(found.made, report, options, asked(options.asked), self.stderr)

            plan = found.made.plan
            peaks = tuple(map(float, plan.predicted.peak_bytes))
            return Made(MadeModule(found.module, plan, finish), plan.predicted.step_s, peaks)

        def in_one(own: ir.Module, remarks: Remarks, plan: Plan | None, options: Namespace) -> Made[MadeModule]:
            def finish(report: Report) -> None:
                result.remarks = remarks
                if plan and options.makes_file:
                    source = replace(plan.source, sha256=planner.source.sha256)
                    asked_for = replace(plan, source=source, request=asked(options.asked))
                    save_plan(report.added_to(asked_for), Path(options.plan))

            answer = remarks.result(ShardingChoice).answer
            return Made(MadeModule(own, None, finish), answer.cost, (answer.peak_bytes,))

        def make(read: Callable[[], ir.Module], options: Namespace, name: str) -> Made[MadeModule]:
            if options.stages:

                def within(budget: int) -> _Staged:
                    return self.in_stages(read(), planner, options, budget)

                if compiles is None:
                    return in_stages(within(planner.budget_bytes(options)), options)
                found, row = compiles.staged(name, within, lambda one: one.made.plan)
                return replace(in_stages(found, options), compiled=row)
            if compiles is None:
                own, remarks = read(), Remarks(self.file)
                plan = self.one_program(own, options, remarks) if options.makes_file else None
                if plan is None:
                    self.run_passes(own.operation, steps(options), remarks)
                return in_one(own, remarks, plan, options)
            comparer = comparer_of(read, self.file, self.given(options), options, self.stderr)

            def compared(judged: Judged) -> Made[MadeModule]:
                best = judged.best.found
                made = in_one(best.module, best.remarks, judged.plan(), options)
                return replace(made, compiled=compiles.row_of(judged))

            made = compared(compiles.begin(name, comparer))
            return replace(made, compare=lambda: compared(compiles.compare(name, comparer)))

        given = given_options(self.options)
        return search_plan(module, self.options, given, self.file, self.stderr, make, compiles)

    def with_locations(self) -> bool:
        requested: bool | None = self.options.mlir_print_debuginfo
        return self.options.output != "-" if requested is None else requested

    def run_passes(self, module: ir.Operation, items: Sequence[Item], remarks: Remarks) -> None:
        manager = build_pass_manager(items, self.context, remarks)
        if self.options.mlir_print_ir_after_all:
            self.context.enable_multithreading(False)  # or the printed functions would mix
            manager.enable_ir_printing(enable_debug_info=bool(self.options.mlir_print_debuginfo))
        if self.options.mlir_timing:
            manager.enable_timing()
        self.stderr.flush()
        manager.run(module)

    def listening(self, result: _Outcome) -> ir.DiagnosticHandler:
        """Takes up, while it is entered, what MLIR says beside errors."""

        def take(one: ir.Diagnostic) -> bool:
            for part in (one, *one.notes):
                result.diagnostics.append(
                    Diagnostic(part.severity.name.lower(), place_of(part.location, self.file), str(part.message))
                )
            return True

        return cast(ir.DiagnosticHandler, self.context.attach_diagnostic_handler(take))

    def shown_remarks(self, remarks: Remarks) -> list[Diagnostic]:
        wanted: re.Pattern[str] | None = self.options.remarks_filter
        every = [Diagnostic("remark", one.place, f"[{one.pass_name}] {one.text}") for one in remarks.items]
        return [one for one in every if wanted is not None and wanted.search(one.message)]

    def pass_errors(self, error: ir.MLIRError) -> tuple[RhinoError, ...]:
        """Returns what MLIR's own passes and verifier found, without the ops that they print."""
        found = []
        for one in error.error_diagnostics:
            notes = tuple(
                str(n.message).strip() for n in one.notes if not str(n.message).startswith("see current operation")
            )
            place = place_of(one.location, self.file)
            found.append(RhinoError("RHI-PASS-002", str(one.message).strip(), place, notes, _PASS_FIX))
        return tuple(found) or (RhinoError("RHI-PASS-002", str(error).strip(), Place(self.file), fix=_PASS_FIX),)


def split_input(data: bytes) -> tuple[bytes, ...]:
    """Returns the modules of a text that is cut at lines `// -----`.

    Empty lines in front of each keep its line numbers.

    Parts that hold comments alone are no modules. Binary input is one module.
    """
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError:
        return (data,)
    starts = [0, *(number + 1 for number, line in enumerate(lines) if line.rstrip() == _SEPARATOR)]
    parts = []
    for start, end in zip(starts, [*(start - 1 for start in starts[1:]), len(lines)], strict=True):
        body = "\n".join(lines[start:end])
        if not _COMMENTS.fullmatch(body):
            parts.append(("\n" * start + body + "\n").encode())
    return tuple(parts) or (data,)
