"""How right the cost model is after `rhino-profile`: predicted against measured step time and memory, on host CPU devices.

    python bench/predict.py [--devices=2,4,8] [--pairs=gpt] [--profiles=FOLDER] [--rounds=3 | --memory] [--check] [--json=FILE]

For each number of devices the machine is measured (`--profiles` keeps the cluster files, and takes those that are there), and pairs of a
model and a plan are compiled and run: what the search finds, what experts would pin (`quality.py`), everything whole on every device,
gradients accumulated over micro-batches, and pipelines under the executor. Steps of all pairs are timed in turn, for several rounds; the
lower quartile of a pair's steps counts, as in a profile. Memory is the peak of a device as XLA has assigned buffers; of a pipeline, what
the list of instructions keeps on a rank, with XLA's temporaries of the program that runs.

Nothing else should run on the machine, but with `--memory`, which times nothing. Exit code: with `--check`, 1 if the rank correlation over
all pairs is less than 0.9, if there are fewer than 20, or if a peak is predicted to be less than XLA's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any, Final

from scipy.stats import spearmanr

from rhino.ir.units import format_bytes, format_seconds
from rhino.runtime.executor.devices import request_host_devices

LEAST_CORRELATION: Final = 0.9
LEAST_PAIRS: Final = 20
_STEPS: Final = 3
"""Timed steps of a pair in each round, behind one that warms up."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and how it is planned: `plan` is "search", "whole", roles of experts, "accumulate M" or "pipeline S M schedule"."""

    model: str
    num_devices: int
    mesh: str
    plan: str

    @property
    def name(self) -> str:
        """How the pair is called in tables."""
        return f"{self.model} {self.num_devices} {self.mesh} {self.plan}"


@dataclass(frozen=True, slots=True)
class Row:
    """What a pair was predicted to take, and took: seconds of a step (None: not timed), bytes of the fullest device."""

    model: str
    num_devices: int
    mesh: str
    plan: str
    predicted_s: float
    measured_s: float | None
    predicted_bytes: int
    xla_bytes: int

    @property
    def seconds(self) -> tuple[float, float]:
        """The predicted and the measured time of a pair that was timed."""
        assert self.measured_s is not None, "the pair was not timed"
        return self.predicted_s, self.measured_s

    @property
    def error(self) -> float:
        """How far the predicted time is off, as a share of the measured one."""
        predicted_s, measured_s = self.seconds
        return abs(predicted_s - measured_s) / measured_s

    def cells(self) -> list[str]:
        """Returns the cells of the row."""
        sizes = [format_bytes(self.predicted_bytes), format_bytes(self.xla_bytes), f"{self.predicted_bytes / self.xla_bytes:.2f}"]
        return [self.model, str(self.num_devices), self.mesh, self.plan, *self.times(), *sizes]

    def times(self) -> list[str]:
        """Returns the cells for the time of a step, none where it was not timed."""
        if self.measured_s is None:
            return []
        predicted_s, measured_s = self.seconds
        return [format_seconds(predicted_s), format_seconds(measured_s), f"{predicted_s / measured_s:.2f}"]


_PAIR: Final = ("model", "devices", "mesh", "plan")
_TIMES: Final = ("predicted", "measured", "ratio")
_SIZES: Final = ("peak predicted", "XLA", "ratio")


def pairs() -> tuple[Pair, ...]:
    """Returns all pairs: small models, whose fixed times count, and middling ones, whose arithmetic and traffic do."""
    found: list[Pair] = []
    for count in (2, 4, 8):
        line, grid = str(count), f"2x{count // 2}"
        plans = {
            "mlp": ("search", "dp"),
            "gpt": ("search", "dp", "tp"),
            "moe": ("search", "dp"),
            "resnet": ("dp",),
            "mlp-mid": ("search", "dp", "zero-3", "whole"),
            "bert-mid": ("search", "dp", "tp"),
            "gpt-mid": ("dp", "accumulate 2"),
            "vgg-mid": ("search", "dp"),
            "moe-mid": ("search",),
        }
        found += [Pair(model, count, line, plan) for model, each in plans.items() for plan in each]
        if count > 2:
            found += [Pair(model, count, grid, "search") for model in ("gpt", "mlp-mid", "bert-mid")]
            found.append(Pair("bert-mid", count, grid, "dp tp"))
        found.append(Pair("bert-mid", count, "1", f"pipeline {count} 4 1f1b"))
        found.append(Pair("gpt-mid", count, str(count // 2), "pipeline 2 4 1f1b"))
        found.append(Pair("gpt", count, str(count // 2), "pipeline 2 4 gpipe"))
    return tuple(found)


# One pair


@dataclass(eq=False)
class Ready:
    """A pair that is compiled: what it was predicted to come to, and what runs so many steps and returns the seconds of each."""

    pair: Pair
    predicted_s: float
    predicted_bytes: int
    xla_bytes: int
    steps: Callable[[int], list[float]]
    times_s: list[float] = field(default_factory=list)

    def round(self) -> None:
        """Runs some steps, and keeps the time of all but the first."""
        self.times_s += self.steps(_STEPS + 1)[1:]

    def row(self) -> Row:
        """Returns the pair's row, once all rounds are over."""
        pair, measured_s = self.pair, quantiles(self.times_s, n=4, method="inclusive")[0] if self.times_s else None
        sizes = (self.predicted_bytes, self.xla_bytes)
        return Row(pair.model, pair.num_devices, pair.mesh, pair.plan, self.predicted_s, measured_s, *sizes)


def prepare(pair: Pair, cluster: str) -> Ready:
    """Returns a pair planned for a cluster file, and compiled."""
    return _pipeline(pair, cluster) if pair.plan.startswith("pipeline") else _sharded(pair, cluster)


def _sharded(pair: Pair, cluster: str) -> Ready:
    import jax  # noqa: PLC0415 - its backend starts with the number of devices that the worker asked for
    from memory import step_text  # noqa: PLC0415

    from rhino.ir.mlir.bindings import make_context  # noqa: PLC0415
    from rhino.ir.mlir.manual import wrap_manual  # noqa: PLC0415
    from rhino.ir.mlir.reader import read_module  # noqa: PLC0415
    from rhino.passes.base import Remarks  # noqa: PLC0415
    from rhino.passes.sharding.localize import localized_copy  # noqa: PLC0415
    from rhino.passes.textual_pipelines import build_pass_manager  # noqa: PLC0415
    from rhino.runtime.executor.executable import compile_module  # noqa: PLC0415
    from rhino.runtime.executor.inputs import InputRule, draw_inputs, nonnegative_arguments  # noqa: PLC0415
    from rhino.runtime.executor.steps import run_steps  # noqa: PLC0415

    text = step_text(pair.model)
    module, remarks = read_module(text, pair.model, make_context()), Remarks(pair.model)
    nonnegative = nonnegative_arguments(module)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.toml"
        file.write_text(_constraints(pair, module), encoding="utf-8")
        build_pass_manager(_passes(pair, cluster, str(file)), module.context, remarks).run(module.operation)
    answer = remarks.statistics["answer"]
    executable = compile_module(wrap_manual(localized_copy(module, pair.model)), jax.devices())
    inputs = draw_inputs(executable.signature, InputRule(0, 8, nonnegative), {})
    return Ready(
        pair,
        answer.cost,
        round(answer.peak_bytes),
        executable.memory_bytes(),
        lambda count: [step.time_s for step in run_steps(executable, inputs, count)],
    )


def _passes(pair: Pair, cluster: str, constraints: str) -> tuple[Any, ...]:
    from rhino.passes.registry import build_named  # noqa: PLC0415

    options = {"cluster": cluster, "mesh": pair.mesh, "constraints": constraints}
    shard = build_named("auto-shard", options)
    assert shard is not None
    if not pair.plan.startswith("accumulate"):
        return shard
    accumulate = build_named("micro-batch", {"num": pair.plan.split()[1]})
    assert accumulate is not None
    return (*accumulate, *shard)


def _constraints(pair: Pair, module: Any) -> str:  # noqa: ANN401 - an MLIR module, which this file does not import
    """Returns what the pair's plan pins, as a file of constraints."""
    from quality import CASES, ROLES, Case, pins  # noqa: PLC0415

    from rhino.ir.cluster.mesh import parse_mesh  # noqa: PLC0415
    from rhino.ir.mlir.reader import entry_function  # noqa: PLC0415
    from rhino.ir.program.named_tensors import argument_tensors  # noqa: PLC0415

    mesh, words = parse_mesh(pair.mesh), pair.plan.split()
    if pair.plan == "whole":
        tensors = argument_tensors(entry_function(module.operation), pair.model)
        return "\n".join(
            f"[[pin]]\nname = '{tensor.names[0]}'\nsharding = '[{', '.join('{}' for _ in tensor.shape)}]'" for tensor in tensors
        )
    if not set(words) <= set(ROLES):
        return ""
    family = pair.model.removesuffix("-mid")
    case = {"bert": CASES["dnabert"], "vgg": CASES["vgg-1m"], "resnet": CASES["wide-resnet"], **CASES}.get(family, Case(family, {}))
    return pins(case, module, mesh, words * (len(mesh.axes) if len(words) == 1 else 1))


def _pipeline(pair: Pair, cluster: str) -> Ready:
    import jax  # noqa: PLC0415
    import pipelines  # noqa: PLC0415
    from memory import step_text  # noqa: PLC0415

    from rhino.ir.mlir.bindings import make_context  # noqa: PLC0415
    from rhino.ir.mlir.reader import read_module  # noqa: PLC0415
    from rhino.ir.plan.step_memory import memory_of  # noqa: PLC0415
    from rhino.runtime.executor.executor import Executor, devices_of_ranks  # noqa: PLC0415
    from rhino.runtime.executor.inputs import InputRule, draw_inputs, nonnegative_arguments  # noqa: PLC0415
    from rhino.tools.run_plan import signature_of  # noqa: PLC0415

    _, stages, micro_batches, schedule = pair.plan.split()
    text = step_text(pair.model)
    setting = pipelines.Setting(int(stages), int(micro_batches), schedule, pair.mesh, cluster)
    made = pipelines.plan(text, pair.model, setting)
    step, signature = made.plan.step, signature_of(made.plan)
    nonnegative = nonnegative_arguments(read_module(text, pair.model, make_context()))
    inputs = draw_inputs(signature, InputRule(0, 8, nonnegative), {})
    executor = Executor(step, made.plan.modules, devices_of_ranks(step, jax.devices()))
    temps = list(made.costs.temp_bytes)
    for (program, _), compiled in executor.programs.items():
        temps[program] = compiled.executable.temp_bytes()
    held = memory_of(step, tuple(temps))

    def steps(count: int) -> list[float]:
        arguments: list[Any] = list(inputs)
        times_s = []
        for _ in range(count):
            since = time.perf_counter()
            results = executor.run(arguments)
            executor.wait()
            times_s.append(time.perf_counter() - since)
            for argument, result in signature.feedback.items():
                arguments[argument] = results[result]
        return times_s

    predicted = max(memory.peak_bytes for memory in made.simulation.memory)
    return Ready(pair, made.simulation.timeline.end_s, predicted, max(memory.peak_bytes for memory in held), steps)


# One number of devices: a process of its own


def work(num_devices: int, chosen: Sequence[Pair], cluster: str, rounds: int) -> Iterator[Row]:
    """Yields the rows of the pairs for one number of devices, which this process has asked for."""
    ready = []
    for pair in chosen:
        print(f"  preparing {pair.name}", file=sys.stderr, flush=True)
        ready.append(prepare(pair, cluster))
    for number in range(rounds):
        print(f"  {num_devices} devices, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for one in ready:
            one.round()
    yield from (one.row() for one in ready)


def measured(num_devices: int, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Returns the rows for one number of devices; profiles the machine where `folder` has no file for it."""
    cluster = folder / f"cpu{num_devices}.toml"
    if not cluster.exists():
        print(f"  profiling {num_devices} devices", file=sys.stderr, flush=True)
        main = "from rhino.tools.profile import main; main()"
        subprocess.run([sys.executable, "-c", main, f"--devices={num_devices}", "-o", str(cluster)], check=True)
    words = [sys.executable, __file__, f"--worker={num_devices}", f"--profiles={folder}", f"--rounds={options.rounds}"]
    done = subprocess.run([*words, f"--pairs={options.pairs}"], check=True, stdout=subprocess.PIPE, text=True)
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


# What is said


def is_timed(rows: Sequence[Row]) -> bool:
    """Says whether steps were timed."""
    return any(row.measured_s is not None for row in rows)


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as a Markdown table."""
    figures = [*(_TIMES if is_timed(rows) else ()), *_SIZES]
    lines = [[*_PAIR, *figures], [*["---"] * len(_PAIR), *["---:"] * len(figures)], *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def correlation(rows: Sequence[Row]) -> float:
    """Returns Spearman's rank correlation of predicted and measured times."""
    return float(spearmanr(*zip(*(row.seconds for row in rows), strict=True)).statistic) if len(rows) > 2 else 1.0


def summary(rows: Sequence[Row]) -> str:
    """Returns the errors over all rows, and those of time over those of each number of devices and kind of plan."""
    ratios = [row.predicted_bytes / row.xla_bytes for row in rows]
    memory = f"peak memory, predicted over XLA's: {min(ratios):.3f} to {max(ratios):.3f}, {mean(ratios):.3f} in the mean"
    if not is_timed(rows):
        return memory
    counts = {f"{count} devices": [row for row in rows if row.num_devices == count] for count in sorted({row.num_devices for row in rows})}
    kinds = {
        kind: [row for row in rows if row.plan.startswith("pipeline") == (kind == "pipelines")] for kind in ("no pipeline", "pipelines")
    }
    lines = []
    for name, some in {"all": list(rows), **counts, **kinds}.items():
        if some:
            errors = [row.error for row in some]
            figures = f"relative error {mean(errors):.0%} in the mean, {median(errors):.0%} in the median, {max(errors):.0%} at most"
            lines.append(f"{name}: {len(some)} pairs, {figures}; rank correlation {correlation(some):.3f}")
    return "\n".join([*lines, memory])


def faults(rows: Sequence[Row]) -> list[str]:
    """Returns what the check has against the rows."""
    wrong = [f"{row.model} {row.mesh} {row.plan}: peak under XLA's" for row in rows if row.predicted_bytes < row.xla_bytes]
    if len(rows) < LEAST_PAIRS:
        wrong.append(f"{len(rows)} pairs, and {LEAST_PAIRS} are wanted")
    if is_timed(rows) and correlation(rows) < LEAST_CORRELATION:
        wrong.append(f"rank correlation under {LEAST_CORRELATION}")
    return wrong


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--devices", default="2,4,8", help="numbers of host devices")
    parser.add_argument("--pairs", default="", help="only pairs whose name has this in it")
    parser.add_argument("--profiles", help="folder of cluster files cpuN.toml, made where they are missing (default: measure anew)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all pairs are run in turn")
    parser.add_argument("--memory", action="store_const", const=0, dest="rounds", help="time nothing: only what the pairs take of memory")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--check", action="store_true", help="fail where a target is missed")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        request_host_devices(options.worker, os.environ)
        chosen = [pair for pair in pairs() if pair.num_devices == options.worker and options.pairs in pair.name]
        cluster = str(Path(options.profiles) / f"cpu{options.worker}.toml")
        print(json.dumps([asdict(row) for row in work(options.worker, chosen, cluster, options.rounds)]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        where = Path(options.profiles or folder)
        where.mkdir(parents=True, exist_ok=True)
        rows = [row for count in map(int, options.devices.split(",")) for row in measured(count, where, options)]
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    wrong = faults(rows)
    print(table(rows), "", summary(rows), *wrong, sep="\n")
    return int(options.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
