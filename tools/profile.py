"""The `rhino-profile` command: measure the devices at hand, and write what they are as a cluster file."""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO

from rhino.ir.cluster.cluster import cluster_to_text, load_cluster, parse_cluster
from rhino.ir.cluster.hardware import Cluster, Operator
from rhino.ir.cluster.operators import parse_operators
from rhino.ir.diagnostics import ExitCode, Place, RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_seconds
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.profile.cluster import make_cluster, make_groups, measured_on, origin_of
from rhino.runtime.profile.from_aceso import products_of, read_all, with_links
from rhino.runtime.profile.measure import Settings, by_kind, measure, measure_between
from rhino.runtime.profile.ops import measure_ops
from rhino.runtime.profile.programs import DTYPES
from rhino.tools.command_line import Parser
from rhino.tools.ending import exit_code_of, leave
from rhino.tools.files import check_writable, read_input, write_output
from rhino.tools.streams import standard_streams

_DESCRIPTION = """\
Measures matrix products, memory, fixed times, collectives and transfers on all devices at once, and writes a cluster
file, which rhino-opt --cluster=FILE plans for. Nothing else should run on the machine meanwhile.
"""
_EPILOG = """\
exit codes: 0 done, 1 bad input or too few devices, 2 usage, 70 our bug, 130 interrupted
"""


def run(argv: Sequence[str], stdout: BinaryIO, stderr: TextIO) -> int:
    """Runs the command line `argv`; a file of `-` goes to `stdout`, progress and errors to `stderr`.

    Returns the exit code.
    """

    def work() -> int:
        options = _parser().parse_args(argv)
        _check(options)
        operators = _read_operators(options.operators) if options.operators else ()
        base = load_cluster(options.base) if options.base else _measured(options, stderr)
        if base.groups and (options.aceso or options.ops or operators):
            raise RhinoError(
                "RHI-CLI-001",
                f"{base.name} has groups of unlike devices, and a table is of one kind of device",
                fix="add the table to the file of each group, then join them with '+'",
            )
        if options.aceso:
            tables = read_all(options.aceso)
            base = _with_operators(with_links(base, tables), products_of(tables))
        if options.ops:
            base = _with_operators(base, _measured_ops(options, base, stderr))
        text = cluster_to_text(_with_operators(base, operators))
        parse_cluster(text, options.output)
        write_output(options.output, text.encode(), stdout)
        return int(ExitCode.OK)

    return exit_code_of("rhino-profile", work, lambda: shlex.join(["rhino-profile", *argv]), stdout, stderr)


def main() -> None:
    """Runs the process's command line."""
    _, stdout, stderr = standard_streams()
    leave(run(sys.argv[1:], stdout.buffer, stderr))


def _check(options: Namespace) -> None:
    if options.base and not (options.operators or options.aceso or options.ops):
        raise RhinoError(
            "RHI-CLI-001",
            "--from is given, and nothing to add to it",
            fix="add --operators=FILE, --ops=STEP or --from-aceso=DIR, or leave --from out",
        )
    if options.aceso and not options.base:
        raise RhinoError(
            "RHI-CLI-001",
            "--from-aceso is given without a cluster to add to",
            fix="add --from=v100x8, or the cluster that the tables were measured on",
        )
    if options.base and options.devices and not options.ops:
        raise RhinoError(
            "RHI-CLI-001", "--from and --devices exclude each other", fix="with --from only --ops measures something"
        )
    check_writable(options.output)


def _read_operators(file: str) -> tuple[Operator, ...]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise RhinoError(
            "RHI-CLI-002",
            f"cannot read the operator table: {reason}",
            Place(file),
            fix="give a JSON file; see docs/cluster.md",
        ) from None
    return parse_operators(text, file)


def _measured(options: Namespace, stderr: TextIO) -> Cluster:
    if options.devices:
        request_host_devices(options.devices, os.environ)
    import jax  # noqa: PLC0415 - its backend starts with the number of devices just asked for

    devices = pick_devices(options.devices or jax.device_count())
    settings = Settings(options.limit, options.rounds, options.dtypes)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    name = options.name or f"{devices[0].platform}{len(devices)}-measured"
    kinds = by_kind(devices)
    with _Progress(stderr) as note:
        measured = [measure(own, settings, note) for own in kinds]
        between = measure_between(kinds, settings, note) if len(kinds) > 1 else ()
    groups = [
        make_cluster(own[0].device_kind if between else name, samples, own, origin_of(own, today))
        for own, samples in zip(kinds, measured, strict=True)
    ]
    for one in groups:
        print(_summary(one), file=stderr)
    return make_groups(name, groups, between, origin_of(devices, today)) if between else groups[0]


def _measured_ops(options: Namespace, cluster: Cluster, stderr: TextIO) -> tuple[Operator, ...]:
    """Returns what the ops of a program take on as many devices as the cluster has, or as are asked for."""
    count = options.devices or cluster.num_devices
    request_host_devices(count, os.environ)
    devices = pick_devices(count)
    module = read_module(read_input(options.ops, sys.stdin.buffer, stderr), options.ops, make_context())
    origin = origin_of(devices, datetime.datetime.now(tz=datetime.UTC).date())
    source = measured_on(origin, len(devices), "each op alone")
    settings = Settings(options.limit, options.rounds, options.dtypes)
    with _Progress(stderr) as note:
        return measure_ops(module, devices, cluster.device, settings, source, note)


def _with_operators(cluster: Cluster, given: tuple[Operator, ...]) -> Cluster:
    """Returns the cluster with tables from elsewhere, which take the place of its own for the same op and type."""
    given_of = {one.key for one in given}
    kept = tuple(one for one in cluster.device.operators if one.key not in given_of)
    return replace(cluster, device=replace(cluster.device, operators=(*kept, *given)))


def _summary(cluster: Cluster) -> str:
    device, (level,) = cluster.device, cluster.levels
    rates = ", ".join(f"{key} {value / 1e9:.3g}" for key, value in device.flops_per_s)
    rows = [
        f"{cluster.about}; each device, all of them busy:",
        f"  products, GFLOP/s    {rates}",
        f"  memory, GB/s         {device.hbm_bytes_per_s / 1e9:.3g}",
        "  launch, array, op    "
        f"{', '.join(format_seconds(value or 0.0) for value in (device.launch_s, device.array_s, device.op_s))}",
    ]
    for kind, units, line in level.collectives:
        if units == level.size:
            rows.append(f"  {kind:<20} {format_seconds(line.fixed_s)} + {line.per_s / 1e9:.3g} GB/s, groups of {units}")
    return "\n".join(rows)


class _Progress:
    """Says on a terminal what is being done, each time in place of the last; elsewhere nothing."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr = stderr

    def __enter__(self) -> Callable[[str], None]:
        return self._note

    def __exit__(self, *_: object) -> None:
        self._note("")

    def _note(self, text: str) -> None:
        if self._stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=self._stderr, flush=True)


def _dtypes(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := [one for one in found if one not in DTYPES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(DTYPES)}")
    return found


def _at_least(least: float, kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not at least {least:g}")
        return value

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="rhino-profile",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=120),
    )
    add = parser.add_argument
    add(
        "-o",
        dest="output",
        default="-",
        metavar="FILE",
        help="the cluster file to write, or - for stdout (default); whole or not at all",
    )
    add(
        "--devices",
        type=_at_least(1, int),
        metavar="N",
        help="measure N devices, of the host where JAX has no others (default: all)",
    )
    add("--name", metavar="NAME", help="the cluster's name (default: from the platform and the number of devices)")
    add(
        "--dtypes",
        type=_dtypes,
        default=Settings().dtypes,
        metavar="T,T",
        help=f"types of products: {', '.join(DTYPES)} (default f32,bf16)",
    )
    add(
        "--rounds",
        type=_at_least(1, int),
        default=Settings().rounds,
        metavar="R",
        help="how often all programs are timed in turn (default 5)",
    )
    add(
        "--limit",
        type=_at_least(1e-6, float),
        default=Settings().limit_s,
        metavar="S",
        help="seconds of the longest program (default 0.03)",
    )
    add("--operators", metavar="FILE", help="a JSON table of measured ops to take in; see docs/cluster.md")
    add(
        "--from",
        dest="base",
        metavar="C",
        help="measure nothing but --ops: take a preset or a cluster file, and add tables to it",
    )
    add(
        "--ops",
        metavar="STEP",
        help="also measure each distinct op of a program of one device, as rhino-opt --auto-shard --localize writes it",
    )
    add(
        "--from-aceso",
        dest="aceso",
        type=Path,
        metavar="DIR",
        help="with --from: add what Aceso's tables of profiled ops say, a directory of CSV files; see docs/cluster.md",
    )
    return parser
