"""How long the search takes on training steps, phase by phase, and what it finds.

    python bench/search.py [--layers=2,12,24,72] [--cluster=v100x8] [--mesh=8] [--budget=16GiB] [--level=3] [--forms=unrolled,scanned]
                           [--hidden=1024 --seq=1024 --vocab=51200 --batch=8] [--json=FILE]
    python bench/search.py --models "llama --preset=llama-3-8b --seq=2048 --batch=64" --cluster=h100x8x8 --mesh=8x8 --level=2

For every depth of a GPT, unrolled and scanned (one loop over the layers), or for what `--models` asks of examples/export.py: the phases of
bench/phases.py; then the whole command `rhino-opt --auto-shard FILE -o OUT`, from its start to its end, with its peak memory. Each is one
run in a process of its own; times are wall seconds, but for `processor`: those of all cores in the whole command, which other processes
on the machine change little. `start` is what the command takes beside the phases: Python, imports, and writing the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rhino.ir.units import format_bytes, format_seconds

HERE: Final = Path(__file__).resolve().parent
EXPORT: Final = HERE.parent / "examples" / "export.py"
RHINO_OPT: Final = Path(sysconfig.get_path("scripts")) / "rhino-opt"
PHASES: Final = ("read", "normalize", "rules", "graph", "candidates", "reduce", "solve", "write", "print")

Record = dict[str, Any]


def machine() -> str:
    """Returns what the figures were taken on: processor, cores, Python, jaxlib, and when (UTC)."""
    cores = len(os.sched_getaffinity(0))
    when = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{_processor()}, {cores} cores, Python {platform.python_version()}, jaxlib {version('jaxlib')}, {when}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def export_words(layers: int, scan: bool, options: argparse.Namespace) -> list[str]:
    """Returns what to ask examples/export.py for: a GPT."""
    sizes = [f"--{name}={getattr(options, name)}" for name in ("hidden", "seq", "vocab", "batch")]
    depth = [f"--layers={layers}", f"--scan={str(scan).lower()}", f"--ffn={4 * options.hidden}", f"--heads={max(options.hidden // 64, 1)}"]
    return ["gpt", *sizes, *depth]


def asked_for(options: argparse.Namespace) -> dict[str, list[str]]:
    """Returns the models to measure: for each name, the words for examples/export.py."""
    if options.models:
        return {line.strip(): shlex.split(line) for line in options.models}
    forms = [form == "scanned" for form in options.forms.split(",")]
    depths = list(map(int, options.layers.split(",")))
    return {f"gpt-{n}{'-scan' * scan}": export_words(n, scan, options) for n in depths for scan in forms}


def target(options: argparse.Namespace) -> list[str]:
    """Returns the options that say what to plan for, as both commands take them."""
    return [f"--{name}={getattr(options, name)}" for name in ("cluster", "mesh", "budget") if getattr(options, name)]


def phases(file: Path, options: argparse.Namespace) -> Record:
    """Returns what bench/phases.py says of a file, or under "error" why the model cannot be planned."""
    done = subprocess.run(
        [sys.executable, HERE / "phases.py", file, *target(options), f"--level={options.level}"],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return {"error": done.stderr.strip()}
    record: Record = json.loads(done.stdout)
    return record


def whole_command(file: Path, output: Path, options: argparse.Namespace) -> Record:
    """Returns the seconds, those of processors, and the peak memory of `rhino-opt --auto-shard`."""
    since = time.perf_counter()
    child = subprocess.Popen(
        [RHINO_OPT, "--auto-shard", f"-O{options.level}", *target(options), file, "-o", output], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"rhino-opt ended with {child.returncode} on {file.name}")
    spent = {"total_s": time.perf_counter() - since, "cpu_s": usage.ru_utime + usage.ru_stime}
    return {**spent, "peak_rss_bytes": usage.ru_maxrss * 1024}


def measure(name: str, words: Sequence[str], options: argparse.Namespace) -> Record:
    """Returns all figures of one model."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.mlir"
        subprocess.run([sys.executable, EXPORT, *words, "-o", file], check=True)
        record = {"model": name, "module_bytes": file.stat().st_size, **phases(file, options)}
        if "error" not in record:
            record |= whole_command(file, file.with_suffix(".out.mlir"), options)
        return {**record, "model": name}


def rows(record: Record) -> Mapping[str, str]:
    """Returns the column of one model: a cell for each row of the table."""
    if "error" in record:
        return {"error": str(record["error"]).splitlines()[0]}
    spent = record["phases_s"]
    return {
        "ops": f"{record['ops']:,}",
        "module": format_bytes(record["module_bytes"]),
        **{f"{name}, s": f"{spent[name]:.2f}" for name in PHASES},
        "start, s": f"{record['total_s'] - sum(spent.values()):.2f}",
        "whole command, s": f"{record['total_s']:.2f}",
        "processor, s": f"{record['cpu_s']:.2f}",
        "peak RSS": format_bytes(record["peak_rss_bytes"]),
        "nodes / edges": f"{record['nodes']:,} / {record['edges']:,}",
        "after reduction": f"{record['core_nodes']:,} / {record['core_edges']:,}",
        "states": f"{record['states']:,}",
        "solves": f"{record['solves']}",
        "step": format_seconds(record["objective_s"]),
        "at least": format_seconds(record["bound_s"]),
        "gap": f"{record['gap']:.2%}",
        "predicted peak": format_bytes(record["peak_bytes"]),
        "budget": format_bytes(record["budget_bytes"]),
        "found by": record["method"],
    }


def table(records: Sequence[Record]) -> str:
    """Returns a Markdown table: a column for each model."""
    columns = [rows(record) for record in records]
    names = list(dict.fromkeys(name for column in columns for name in column))
    lines = [["", *(str(record["model"]) for record in records)], ["---", *["---:"] * len(records)]]
    lines += [[name, *(column.get(name, "") for column in columns)] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code: 1 if a model could not be planned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--layers", default="2,12,24,72", help="depths (default 2,12,24,72)")
    parser.add_argument("--cluster", default="v100x8", help="a preset's name or a cluster file (default v100x8)")
    parser.add_argument("--mesh", default="", help="mesh sizes (default: all devices)")
    parser.add_argument("--budget", default="", help="bytes per device (default: what the cluster's devices have)")
    parser.add_argument("--level", type=int, default=3, help="2 or 3, as -O2 and -O3 of rhino-opt (default 3)")
    parser.add_argument("--forms", default="unrolled,scanned", help="of the GPTs (default both)")
    parser.add_argument(
        "--models", action="append", metavar="WORDS", help="instead of GPTs: a model's words for examples/export.py; repeatable"
    )
    for name, size in (("hidden", 1024), ("seq", 1024), ("vocab", 51200), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=size, help=f"of the GPT (default {size})")
    parser.add_argument("--json", metavar="FILE", help="write every figure there too")
    options = parser.parse_args(argv)
    records = []
    for name, words in asked_for(options).items():
        records.append(measure(name, words, options))
        print(f"measured {name}", file=sys.stderr, flush=True)
    print(f"{machine()}\n\n{table(records)}")
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": machine(), "records": records}, indent=2) + "\n", encoding="utf-8")
    return int(any("error" in record for record in records))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
