"""The command line of `rhino-opt`: its options, and the passes that they ask for."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from rhino.ir.cluster.cluster import preset_names
from rhino.ir.cluster.mesh import option_of_meshes, parse_meshes
from rhino.ir.diagnostics import RhinoError
from rhino.ir.program.replicas import parse_replicas
from rhino.ir.request.constraints import parse_forbid, parse_pad, parse_pin, parse_role, parse_scope
from rhino.ir.units import parse_size
from rhino.passes.attention.blockwise import parse_attention
from rhino.passes.base import Item, Pass, option_names, read_options
from rhino.passes.layout.pad import refuse_pads
from rhino.passes.pipeline.part_statistics import num_statistics_parts
from rhino.passes.planner.request import (
    BY_SCOPES,
    COMPARE,
    MEMORY,
    MOST_COMPILES,
    parse_stages,
    refuse_beside_scopes,
    refuse_two_meshes,
)
from rhino.passes.precision.mixed_precision import check_amp
from rhino.passes.registry import PARALLEL, PASSES, PIPELINES, build_named
from rhino.passes.sharding.planning_pass import AUTO, DEFAULT_CLUSTER
from rhino.passes.textual_pipelines import parse_pipeline
from rhino.strategies.autotune import DEFAULT as BEST
from rhino.strategies.autotune import STRATEGIES
from rhino.strategies.autotune.base import MOST
from rhino.strategies.pipeline.schedules import DEFAULT, SCHEDULES, find_schedule, num_ranks_of
from rhino.strategies.pipeline.stages.scope_stages import ScopeRanks
from rhino.tools.command_line import Parser

_SHARED: Final = (
    "cluster",
    "mesh",
    "budget",
    "level",
    "pad",
    "pin",
    "forbid",
    "axis-role",
    "scope",
    "constraints",
    "op-rules",
    "batch",
    "no-batch",
    "batch-statistics",
    "num",
    "stages",
    "replicas",
    "tolerance",
    "schedule",
    "ranks",
    "remat",
    "amp",
    "attention",
    "offload",
)
"""Options of passes that the command line has for all that take them."""

_REPEATED: Final = ("pad", "pin", "forbid", "axis-role", "scope", "batch", "no-batch")
"""Those of them that may be there several times."""

_CHECKS: Final = {
    "pad": parse_pad,
    "pin": parse_pin,
    "forbid": parse_forbid,
    "axis_role": parse_role,
    "scope": parse_scope,
}
_RENAMED: Final = {
    "recompute": "give --remat=R, the share that is recomputed: 1 - K of --recompute=K",
    "whole": "give --no-batch=N, which is its name now",
}
"""Options that had other names, and what to give in their place."""

_ONE_PROGRAM: Final = (
    {"auto-shard"},
    {"auto-shard", "localize"},
    {"micro-batch", "auto-shard"},
    {"micro-batch", "auto-shard", "localize"},
)
"""The passes that may be asked for where the plan of one program is written."""

_DESCRIPTION: Final = """\
Reads a module, runs passes on it, and prints it. Input is StableHLO text, MLIR bytecode, a portable artifact or a
jax.export blob.
"""
_EPILOG: Final = f"""\
Each pass and named pipeline of --list-passes is an option too: --NAME, or --NAME="option=value option=value". They run
in the order given, --localize after --auto-shard; --cluster, --mesh, --budget, -O and the constraints are for all that
take them.

Locations hold the names of arguments. Text on stdout is for reading and leaves them out; a file of -o is for other
tools and keeps them. --mlir-print-debuginfo and --no-mlir-print-debuginfo decide otherwise. Bytecode always keeps them.

cluster presets: {", ".join(preset_names())}
exit codes: 0 done, 1 bad input, 2 usage, 3 does not fit in memory, 70 our bug, 130 interrupted
"""


class _AddStep(argparse.Action):
    """Notes that a pass or pipeline was asked for, with the text of its options."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        assert option_string is not None
        namespace.steps = [*namespace.steps, (option_string.removeprefix("--"), str(values))]


def parse_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the options, checked; `steps` are the (name, options text) of the passes asked for by name.

    Raises RHI-CLI-001.
    """
    parser = _parser()
    names = tuple(text for action in parser._actions for text in action.option_strings if text.startswith("--"))
    words = [one for word in argv for one in _apart(_in_full(word, names), argv)]
    options, unknown = parser.parse_known_args(words)
    if unknown:
        raise _unknown(unknown[0], names)
    options.by_scopes = options.stages == BY_SCOPES
    if options.by_scopes:
        options.stages = None
        refuse_beside_scopes({name: getattr(options, name) for name in ("mesh", "replicas", "chunks")})
    if options.stages is not None:
        refuse_two_meshes(options.stages, options.mesh or "")
        options.stages, meshes = parse_stages(options.stages)
        options.mesh = options.mesh or option_of_meshes(meshes) or None
    if options.mesh not in (None, AUTO):
        parse_meshes(options.mesh)
    if options.budget is not None:
        parse_size(options.budget)
    if options.amp is not None:
        check_amp(options.amp)
    if options.attention is not None:
        parse_attention(options.attention)
    for name, check in _CHECKS.items():
        for text in getattr(options, name) or ():
            check(text)
    if options.emit_bytecode and options.split_input_file:
        raise RhinoError(
            "RHI-CLI-001",
            "--emit-bytecode writes one module, and --split-input-file makes several",
            fix="leave one out",
        )
    options.is_whole = options.num == 1
    if options.num is not None and not any("num" in _takes(name) for name, _ in options.steps):
        if options.num == 1 and any(name == "auto-shard" for name, _ in options.steps):
            take_whole(options)
        else:
            options.steps = [("micro-batch", ""), *options.steps]
    _check_parallel(options)
    options.localize = any(name == "localize" for name, _ in options.steps)
    return options


def _check_aot(options: argparse.Namespace) -> None:
    names = {name for name, _ in options.steps}
    fits = names in _ONE_PROGRAM or names == {PARALLEL}
    if options.aot and (not fits or options.split_input_file):
        what = "--aot is for one module with --auto-shard, --localize and --micro-batches, or with "
        what += f"--{PARALLEL}, and no other pass"
        raise RhinoError("RHI-CLI-001", what, fix="leave --aot out, or the other passes")
    if options.compiles is not None and (not options.aot or options.compiles < 1):
        raise RhinoError(
            "RHI-CLI-001",
            "--compiles is the number of compiles of --aot, 1 or more",
            fix="add --aot, or leave --compiles out",
        )


def _check_replicas(options: argparse.Namespace, *, is_parallel: bool) -> None:
    """Sees to it that replicas are asked for with one stage."""
    if options.replicas is None:
        return
    shares = parse_replicas(options.replicas).shares
    if shares and options.num is None and options.mesh not in (None, AUTO):
        options.num = sum(shares)  # nothing is open then
    if not is_parallel:
        what = "--replicas is given, and no plan is made"
        raise RhinoError("RHI-CLI-001", what, fix=f"add --{PARALLEL}")
    for name in ("stages", "schedule", "chunks", "tolerance"):
        if getattr(options, name) not in (None, 1):
            what = f"--replicas and --{name} are given, and a replica is no pipeline"
            raise RhinoError("RHI-CLI-001", what, fix="leave one out")
    options.stages = 1


def _check_parallel(options: argparse.Namespace) -> None:
    is_parallel = any(name == PARALLEL for name, _ in options.steps)
    _check_replicas(options, is_parallel=is_parallel)
    options.makes_plan = is_parallel and (options.plan is not None or options.timeline)
    if options.by_scopes and not is_parallel:
        what = f"--stages={BY_SCOPES} is given, and no plan is made"
        raise RhinoError("RHI-CLI-001", what, fix=f"add --{PARALLEL}")
    is_open = options.stages is None or options.num is None or options.mesh == AUTO
    options.searches = is_parallel and is_open and not options.by_scopes
    options.is_decided = is_parallel and not options.searches
    options.makes_file = options.plan is not None and {name for name, _ in options.steps} in _ONE_PROGRAM
    if options.plan == "":
        raise RhinoError("RHI-CLI-001", "--plan names no folder and no file", fix="give for example --plan=out/plan")
    if is_parallel:
        refuse_pads({"pad": "; ".join(options.pad or ()), "constraints": options.constraints or ""})
    else:
        for name in ("plan", "schedule", "timeline"):
            if getattr(options, name) and not (name == "plan" and options.makes_file):
                shard = ", or --auto-shard and no other pass" if name == "plan" else ""
                raise RhinoError(
                    "RHI-CLI-001", f"--{name} is given, and no plan is made", fix=f"add --{PARALLEL}{shard}"
                )
    _check_aot(options)
    for name in ("plan_json", "strategy", "jobs", "candidates"):
        if getattr(options, name) is not None and not options.searches:
            fix = (
                f"say --{PARALLEL}, and leave --stages or --micro-batches out"
                if not is_parallel
                else "leave --stages or --micro-batches out"
            )
            raise RhinoError(
                "RHI-CLI-001", f"--{name.replace('_', '-')} is given, and no plan is searched for", fix=fix
            )
    if options.searches and options.chunks is not None:
        fix = "leave it out: a schedule that takes several has two; or say --stages, --micro-batches and --mesh"
        raise RhinoError("RHI-CLI-001", "--chunks is given, and a plan is searched for", fix=fix)
    for name in ("jobs", "candidates"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise RhinoError("RHI-CLI-001", f"--{name} is less than 1", fix="give a positive number, or leave it out")
    if (options.makes_plan or options.makes_file or options.searches) and options.split_input_file:
        raise RhinoError(
            "RHI-CLI-001", "--plan is of one module, and --split-input-file makes several", fix="leave one out"
        )
    options.ranks = None
    options.asked = argparse.Namespace(**vars(options))
    if options.replicas is not None or options.by_scopes:
        return
    if options.is_decided and options.stages == 1 and (options.makes_plan or options.aot):
        make_one_program(options)
    elif options.is_decided:
        settle(options)


def take_whole(options: argparse.Namespace) -> None:
    """Drops one micro-batch, which is the whole batch, and options about it; statistics may be of other parts."""
    options.num = None
    if not num_statistics_parts(options.batch_statistics or ""):
        options.batch = options.batch_statistics = None


def make_one_program(options: argparse.Namespace) -> None:
    """Makes of a command line for a plan of one stage, of which nothing is open, that for one program."""
    options.is_decided = options.searches = options.makes_plan = False
    options.stages = options.ranks = options.chunks = options.schedule = options.tolerance = None
    if options.num == 1:
        take_whole(options)
    shard = [*([("micro-batch", "")] if options.num else []), ("auto-shard", "")]
    options.steps = [one for name, text in options.steps for one in (shard if name == PARALLEL else [(name, text)])]
    options.makes_file = options.plan is not None and {name for name, _ in options.steps} in _ONE_PROGRAM


def settle(options: argparse.Namespace) -> None:
    """Fills in what follows from the stages and the schedule of a plan of which nothing is open."""
    schedule = find_schedule(options.schedule or DEFAULT)
    if schedule.splits_backward:
        options.steps = with_added(options, {"split-backward": "true"}).steps
    if options.chunks is None:
        options.ranks = num_ranks_of(schedule, options.stages)
    else:
        options.ranks = max(1, options.stages // max(1, options.chunks))


def with_scope_ranks(options: argparse.Namespace, ranks: ScopeRanks) -> argparse.Namespace:
    """Returns a command line whose stages are scopes with the stages and meshes of these ranks."""
    stages, mesh = len(ranks.meshes), option_of_meshes(ranks.meshes)
    found = with_added(options, {"scope-replicas": str(ranks.replicas)})
    found = argparse.Namespace(**{**vars(found), "stages": stages, "mesh": mesh, "by_scopes": False})
    settle(found)
    return found


def with_added(options: argparse.Namespace, more: Mapping[str, str]) -> argparse.Namespace:
    """Returns a command line with more options of auto-parallel's own; one that is there already has precedence."""
    words = " ".join(f"{name}={text}" for name, text in more.items())
    steps = [(name, f"{words} {text}".strip() if name == PARALLEL else text) for name, text in options.steps]
    return argparse.Namespace(**{**vars(options), "steps": steps})


def list_text() -> str:
    """Returns what --list-passes prints: pipelines with their steps, and passes with their options."""
    lines = ["pipelines:"]
    for name, pipeline in PIPELINES.items():
        lines += [f"  {name}", f"      {pipeline.doc}"]
        lines += [
            f"      - {re.split('{', item.text())[0] if isinstance(item, Pass) else item}"
            for item in pipeline.build({})
        ]
        lines += _option_lines(*pipeline.takes)
    lines.append("passes:")
    for cls in PASSES:
        lines += [f"  {cls.name}", f"      {(cls.__doc__ or '').splitlines()[0]}", *_option_lines(cls)]
    return "\n".join(lines) + "\n"


def _option_lines(*classes: type[Pass]) -> list[str]:
    fields = {name: f for cls in classes for name, f in zip(option_names(cls), dataclasses.fields(cls), strict=True)}
    return [f"      {f'{name}={f.default}':<16} {f.metadata['help']}" for name, f in fields.items()]


def steps(options: argparse.Namespace) -> tuple[Item, ...]:
    """Returns the passes to run. Raises RHI-CLI-001 for options that contradict or miss each other, RHI-PASS-001."""
    given = given_options(options)
    if options.pass_pipeline is not None:
        if options.steps or given:
            other = f"--{options.steps[0][0]}" if options.steps else _spelled(next(iter(given)))
            raise RhinoError(
                "RHI-CLI-001", f"--pass-pipeline and {other} exclude each other", fix="write it inside the pipeline"
            )
        return parse_pipeline(options.pass_pipeline)
    used: set[str] = set()
    items: list[Item] = []
    for name, text in _in_order(options.steps):
        taken = {key: value for key, value in given.items() if key in _takes(name)}
        used |= taken.keys()
        items += build_named(name, {**taken, **read_options(name, text)}) or ()
    for key in given:
        if key not in used:
            taker = "auto-shard" if key in _takes("auto-shard") else PARALLEL
            raise RhinoError(
                "RHI-CLI-001", f"{_spelled(key)} is given, and no pass that takes it", fix=f"add --{taker}"
            )
    return tuple(items)


def given_options(options: argparse.Namespace) -> dict[str, str]:
    """Returns the options for all passes that take them that were given, by name."""
    return {name: text for name in _SHARED if (text := _given(options, name)) is not None}


def _given(options: argparse.Namespace, name: str) -> str | None:
    """The value of a shared option as passes take it: what was given several times in one text."""
    value = getattr(options, name.replace("-", "_"))
    return value if value is None else "; ".join(value) if isinstance(value, list) else str(value)


def _in_order(steps: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The steps as given, but --localize after the last --auto-shard: what is local cannot be sharded."""
    names = [name for name, _ in steps]
    if "auto-shard" not in names:
        return list(steps)
    last = len(names) - 1 - names[::-1].index("auto-shard")
    early = [step for step in steps[:last] if step[0] == "localize"]
    return [*(step for step in steps[: last + 1] if step[0] != "localize"), *early, *steps[last + 1 :]]


def _takes(name: str) -> tuple[str, ...]:
    by_name: Mapping[str, type[Pass]] = {cls.name: cls for cls in PASSES}
    classes = PIPELINES[name].takes if name in PIPELINES else (by_name[name],)
    return tuple(option for cls in classes for option in option_names(cls))


def _spelled(key: str) -> str:
    return {"level": "-O", "num": "--micro-batches"}.get(key, f"--{key}")


def _step_names() -> tuple[str, ...]:
    return (*PIPELINES, *(cls.name for cls in PASSES))


def _in_full(word: str, names: Sequence[str]) -> str:
    """The word in the form that argparse wants.

    LLVM's tools allow one dash before a long option, argparse needs two; a step without options gets a `=`.
    """
    name = word.partition("=")[0]
    if re.match(r"-[a-z]", word) and f"-{name}" in names:
        word = f"-{word}"
    if word == "--aot":
        return f"{word}={COMPARE}"  # what follows is the input
    return f"{word}=" if word.removeprefix("--") in _step_names() else word


def _apart(word: str, argv: Sequence[str]) -> list[str]:
    """Returns a word, with the options that auto-parallel shares with the command as options of the command.

    They say whether a plan is searched for, and what holds of every plan that is looked at.

    Raises RHI-CLI-001 where one of them is on the command line too, and can be there once.
    """
    name, _, text = word.partition("=")
    if name != f"--{PARALLEL}":
        return [word]
    kept, moved = "", list[str]()
    given = {one.partition("=")[0].lstrip("-") for one in argv if one.startswith("-")}
    for key, value in read_options(PARALLEL, text).items():
        option = _spelled(key)
        if key not in _SHARED or key == "ranks":
            kept += f"{key}={json.dumps(value)} "
        elif key in _REPEATED:
            moved += [f"{option}={part.strip()}" for part in value.split(";") if part.strip()]
        elif option.lstrip("-") in given:
            what = f"{option} is given, and again among the options of --{PARALLEL}"
            raise RhinoError("RHI-CLI-001", what, fix="leave one out")
        elif key != "offload":
            moved.append(f"{option}={value}")
        elif value == "true":
            moved.append(option)
    return [f"{name}={kept.strip()}", *moved]


def _unknown(word: str, names: Sequence[str]) -> RhinoError:
    if not word.startswith("-"):
        return RhinoError(
            "RHI-CLI-001", f"one input at a time; {word!r} is one too many", fix="run rhino-opt once for each file"
        )
    if fix := _RENAMED.get(word.lstrip("-").partition("=")[0]):
        return RhinoError("RHI-CLI-001", f"unknown option {word!r}", fix=fix)
    close = difflib.get_close_matches(f"--{word.lstrip('-').partition('=')[0]}", names, n=1)
    return RhinoError(
        "RHI-CLI-001", f"unknown option {word!r}", fix=f"did you mean {close[0]}?" if close else "see rhino-opt --help"
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rhino-opt",
        usage="rhino-opt [options] [FILE]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=120),
    )
    parser.set_defaults(steps=[])
    _add_files(parser.add_argument_group("input and output"))
    _add_steps(parser.add_argument_group("passes"))
    _add_plan(
        parser.add_argument_group(
            "stages and autotuning, with --auto-parallel; see docs/pipelines.md and docs/autotuning.md"
        )
    )
    _add_constraints(parser.add_argument_group("constraints, see docs/constraints.md"))
    _add_reports(parser.add_argument_group("reports, on stderr"))
    return parser


def _add_files(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("file", nargs="?", default="-", metavar="FILE", help="the module to read, or - for stdin (default)")
    add(
        "-o",
        dest="output",
        default="-",
        metavar="FILE",
        help="where to write, or - for stdout (default); whole or not at all",
    )
    add("--emit-bytecode", action="store_true", help="write MLIR bytecode instead of text")
    add(
        "--mlir-print-debuginfo", action=argparse.BooleanOptionalAction, default=None, help="write locations, see below"
    )
    add("--split-input-file", action="store_true", help="the input is several modules, between lines // -----")


def _add_steps(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    for name in _step_names():
        text = PIPELINES[name].doc.lower().rstrip(".") if name in PIPELINES else argparse.SUPPRESS
        add(f"--{name}", action=_AddStep, metavar="", help=text, default=argparse.SUPPRESS)
    add(
        "--micro-batches",
        dest="num",
        type=int,
        metavar="M",
        help="divide the batch into M micro-batches, in a loop that accumulates gradients",
    )
    add(
        "--batch",
        action="append",
        metavar="N[:DIM]",
        help="arguments with names like N have the batch at DIM (0); repeatable",
    )
    add("--no-batch", action="append", metavar="N", help="arguments with names like N have no batch; repeatable")
    add(
        "--batch-statistics",
        metavar="per-part[:N]",
        help="sums over the batch that examples need (normalization, balance losses) are of each micro-batch; with "
        "8-parts in place of per-part, of each of 8 equal parts of the batch, as on so many devices; of ops with names "
        "like N alone, several with ; between",
    )
    add(
        "--remat",
        metavar="R",
        help="recompute this share (0 to 1) of the activation stash in the backward pass (default 0); with stages also "
        "one for each, as 0;0.5, or auto for what their memory asks for",
    )
    add(
        "--amp",
        metavar="T",
        help="compute in bf16 what is written in f32, with parameters, optimizer states and sums in f32; bf16:sums "
        "sums up gradients of parameters in bf16, too, which halves what devices send; f16 computes in f16, with a "
        "loss scale that the step takes and gives",
    )
    add(
        "--attention",
        metavar="A",
        help="blockwise computes attention in loops over blocks of keys, so that nothing is stored for each query and "
        "key; blockwise:256 has at most so many keys in a block",
    )
    add(
        "--offload",
        action="store_const",
        const="true",
        help="arguments that only their update reads, as moments of optimizers, and what is saved for the backward "
        "pass may lie in host memory, where the budget binds",
    )
    add(
        "--cluster",
        metavar="C",
        help=f"what to plan for: a preset or a cluster file (default {DEFAULT_CLUSTER}); an order in which ranks take "
        "its devices may stand behind it, as v100x8x2@0-3,8-11,4-7,12-15",
    )
    add(
        "--mesh",
        metavar="M",
        help="mesh sizes, as 8, 2x4 or x=8, or auto for the best of up to three axes; in stages those of a rank, or of "
        "each, as 2x2;2;2 (default: the module's mesh, or an axis a level)",
    )
    add("--budget", metavar="SIZE", help="memory per device, as 16GiB (default: what the cluster's devices have)")
    add(
        "--aot",
        choices=(COMPARE, MEMORY),
        metavar="WHAT",
        help="the target's own compiler, without a device, chooses among the search's best plans and experts' plans; "
        "with memory, it only checks that the compiled plan fits",
    )
    add("--compiles", type=int, metavar="N", help=f"the most plans that --aot compiles (default {MOST_COMPILES})")
    add(
        "-O",
        dest="level",
        choices=("2", "3"),
        help="the search effort: -O2 accepts a larger optimality gap where memory binds, -O3 is the default",
    )
    add("--pass-pipeline", metavar="TEXT", help="run this textual pipeline, of our passes and MLIR's own")
    add("--list-passes", action="store_true", help="print our passes and pipelines with their options, and exit")


def _add_plan(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--stages",
        metavar="D",
        help="the number of stages, or the devices of each, as 4+2+2, or scopes, of which each outermost one is a "
        "stage; what is not given of this, --micro-batches and --mesh is searched for",
    )
    add(
        "--replicas",
        metavar="N",
        help="data parallelism on N ranks that each take some of the micro-batches, by their speed, or on ranks that "
        "take so many, as 5;3; in place of --stages",
    )
    add(
        "--tolerance", metavar="E", help="how far the work of the largest stage may exceed the best balance, as a share"
    )
    add(
        "--schedule",
        metavar="S",
        choices=tuple(SCHEDULES),
        help=f"the pipeline schedule: {', '.join(SCHEDULES)} (default {DEFAULT})",
    )
    add(
        "--chunks",
        type=int,
        metavar="C",
        help="stages on a rank (default: 2 where the schedule allows several, else 1)",
    )
    add(
        "--plan",
        metavar="PATH",
        help="write the plan to PATH: a folder for stages, else a file; the module is then written with -o alone",
    )
    add("--timeline", action="store_true", help="print on stderr when each rank runs what")
    add("--plan-json", metavar="FILE", help="write the chosen plan, and why the others lost, to FILE as JSON")
    strategies = "; ".join(f"{one.name}: {one.doc}" for one in STRATEGIES.values())
    add(
        "--strategy",
        metavar="S",
        choices=tuple(STRATEGIES),
        help=f"the autotuning strategy (default {BEST}). {strategies}",
    )
    add(
        "--jobs",
        type=int,
        metavar="N",
        help="processes that search; the plan does not depend on it (default: one a core)",
    )
    add(
        "--candidates",
        type=int,
        metavar="N",
        help=f"the most configurations that a strategy plans; with best, each of the others (default {MOST})",
    )


def _add_constraints(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--pin",
        action="append",
        metavar="N=S",
        help="shard tensors with names like N as S, as 'layers.*.up=[{}, {\"y\"}]'; repeatable",
    )
    add(
        "--forbid",
        action="append",
        metavar="N=S",
        help="do not shard tensors with names like N as S; if S is an axis, do not split them along it; repeatable",
    )
    add(
        "--axis-role",
        action="append",
        metavar="A=ROLE",
        help="what axis A splits: batch (the batch alone) or model (never the batch); repeatable",
    )
    add(
        "--scope",
        action="append",
        metavar="N=WAY",
        help="how devices share the ops in scopes with names like N: replicate(4) or split(4); if N is *, the ops in "
        "no scope; repeatable",
    )
    add(
        "--pad",
        action="append",
        metavar="N[:DIM]",
        help="allow padding of arguments with names like N, along DIM alone; repeatable",
    )
    add("--constraints", metavar="FILE", help="a TOML file of the same")
    add("--op-rules", metavar="FILE", help="a TOML file of sharding rules for custom calls, by target")


def _add_reports(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--remarks-filter", type=_pattern, metavar="REGEX", help="print the remarks whose '[pass] text' matches")
    add("--print-statistics", action="store_true", help="print what the search did, and how long each part took")
    add(
        "--verify-diagnostics",
        action="store_true",
        help="check the diagnostics against // expected-error {{...}} comments",
    )
    add("--mlir-timing", action="store_true", help="print MLIR's timing of the passes")
    add("--mlir-print-ir-after-all", action="store_true", help="print the IR after every pass, as MLIR does")
