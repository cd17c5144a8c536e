"""How right the cost model is after `rhino-profile`: predicted against measured step time and memory, on host CPUs.

For each number of devices the machine is measured (`--profiles` keeps the cluster files, and takes those that are
there), and pairs of a model and a plan are compiled and run: what the search finds, what experts would pin
(`experts.py`), everything replicated, gradients accumulated over micro-batches, and pipelines under the
executor. Steps of all pairs are timed in turn, for several rounds; the lower quartile of a pair's steps counts, as in a
profile. Memory is the peak of a device as XLA has assigned buffers; of a pipeline, what the list of instructions keeps
on a rank, with XLA's temporaries of the program that runs.

Nothing else should run on the machine, but with `--rounds=0`, which times nothing. Exit code: 1 if the rank correlation
over all pairs is less than 0.9, if there are fewer than 20, or if a peak is predicted to be less than XLA's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Final

from experts import CASES, ROLES, Case, pins
from models import step_text
from pipelines import Setting, executed_steps, plan
from planning import INT_RANGE
from report import Options, Question, key, option, run, say
from scipy.stats import spearmanr

from rhino.ir.cluster.mesh import parse_mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.plan.step_memory import memory_of
from rhino.ir.program.named_tensors import argument_tensors
from rhino.passes.base import Item, Remarks
from rhino.passes.registry import build_named
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.devices import pick_devices, request_host_devices
from rhino.runtime.executor.executable import compile_module
from rhino.runtime.executor.executor import Executor, devices_of_ranks
from rhino.runtime.executor.inputs import InputRule, draw_inputs, nonnegative_arguments
from rhino.runtime.executor.steps import run_steps
from rhino.tools.plan_steps import signature_of

LEAST_CORRELATION: Final = 0.9
LEAST_PAIRS: Final = 20
_STEPS: Final = 3
"""Timed steps of a pair in each round, behind one that warms up."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and how it is planned.

    `plan` is "search", "replicated", experts' roles, "accumulate M" or "pipeline S M schedule".
    """

    model: str
    num_devices: int
    mesh: str
    plan: str

    @property
    def name(self) -> str:
        """How the pair is called."""
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
    def time_ratio(self) -> float | None:
        """The predicted over the measured time of a pair."""
        return None if self.measured_s is None else self.predicted_s / self.measured_s

    @property
    def size_ratio(self) -> float:
        """The predicted peak over XLA's."""
        return self.predicted_bytes / self.xla_bytes


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
            "mlp-mid": ("search", "dp", "zero-3", "replicated"),
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
    found += [Pair("mlp-mid", 8, "2x4", plan) for plan in ("accumulate 4", "pipeline 1 4 1f1b")]  # the same program
    return tuple(found)


# One pair


@dataclass(eq=False)
class Ready:
    """A compiled pair, with what was predicted for it.

    `steps` runs so many steps and returns the seconds of each.
    """

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


def _sharded(pair: Pair, cluster: str) -> Ready:
    """Returns a pair of one program, planned for a cluster file, and compiled."""
    module, remarks = read_module(step_text(pair.model), pair.model, make_context()), Remarks(pair.model)
    rule = InputRule(0, INT_RANGE, nonnegative_arguments(module))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.toml"
        file.write_text(_constraints(pair, module), encoding="utf-8")
        build_pass_manager(_passes(pair, cluster, str(file)), module.context, remarks).run(module.operation)
    answer = remarks.result(ShardingChoice).answer
    executable = compile_module(wrap_manual(localized_copy(module, pair.model)), pick_devices(pair.num_devices))
    inputs = draw_inputs(executable.signature, rule, {})

    def steps(count: int) -> list[float]:
        return [step.time_s for step in run_steps(executable, inputs, count)]

    return Ready(pair, answer.cost, round(answer.peak_bytes), executable.memory_bytes(), steps)


def _passes(pair: Pair, cluster: str, constraints: str) -> tuple[Item, ...]:
    shard = build_named("auto-shard", {"cluster": cluster, "mesh": pair.mesh, "constraints": constraints})
    assert shard is not None
    if not pair.plan.startswith("accumulate"):
        return tuple(shard)
    accumulate = build_named("micro-batch", {"num": pair.plan.split()[1]})
    assert accumulate is not None
    return (*accumulate, *shard)


def _constraints(pair: Pair, module: ir.Module) -> str:
    """Returns what the pair's plan pins, as a file of constraints."""
    mesh, words = parse_mesh(pair.mesh), pair.plan.split()
    if pair.plan == "replicated":
        tensors = argument_tensors(entry_function(module.operation), pair.model)
        return "\n".join(
            f"[[pin]]\nname = '{tensor.names[0]}'\nsharding = '[{', '.join('{}' for _ in tensor.shape)}]'"
            for tensor in tensors
        )
    if not set(words) <= set(ROLES):
        return ""
    family = pair.model.removesuffix("-mid")
    case = {"bert": CASES["dnabert"], "vgg": CASES["vgg-1m"], "resnet": CASES["wide-resnet"], **CASES}.get(
        family, Case(family, {})
    )
    return pins(case, module, mesh, words * (len(mesh.axes) if len(words) == 1 else 1))


def _pipeline(pair: Pair, cluster: str) -> Ready:
    """Returns a pair in several stages, planned for a cluster file, and compiled."""
    _, stages, micro_batches, schedule = pair.plan.split()
    text = step_text(pair.model)
    made = plan(text, pair.model, Setting(int(stages), int(micro_batches), schedule, pair.mesh, cluster))
    step, signature = made.execution.step, signature_of(made.plan)
    nonnegative = nonnegative_arguments(read_module(text, pair.model, make_context()))
    inputs = draw_inputs(signature, InputRule(0, INT_RANGE, nonnegative), {})
    executor = Executor(step, made.execution.modules, devices_of_ranks(step, pick_devices(pair.num_devices)))
    temps = list(made.execution.temp_bytes)
    for (program, _), compiled in executor.programs.items():
        temps[program] = compiled.executable.temp_bytes()
    held = max(memory.peak_bytes for memory in memory_of(step, tuple(temps)))
    predicted = max(memory.peak_bytes for memory in made.simulation.memory)

    def steps(count: int) -> list[float]:
        return [wall_s for wall_s, _ in executed_steps(executor, made.plan, inputs, count)]

    return Ready(pair, made.simulation.timeline.end_s, predicted, held, steps)


# One number of devices: a process of its own


def work(num_devices: int, wanted: str, cluster: str, rounds: int) -> list[Row]:
    """Returns the rows of the pairs for one number of devices, in a process that has started no backend before.

    Raises:
        SystemExit: with the text of an error of Rhino's, which cannot be sent to another process.
    """
    try:
        return _rows(num_devices, wanted, cluster, rounds)
    except RhinoError as error:
        raise SystemExit(error.render()) from error


def _rows(num_devices: int, wanted: str, cluster: str, rounds: int) -> list[Row]:
    request_host_devices(num_devices, os.environ)
    ready = []
    for pair in [pair for pair in pairs() if pair.num_devices == num_devices and wanted in pair.name]:
        say(f"  preparing {pair.name}")
        ready.append((_pipeline if pair.plan.startswith("pipeline") else _sharded)(pair, cluster))
    for number in range(rounds):
        say(f"  {num_devices} devices, round {number + 1} of {rounds}")
        for one in ready:
            one.round()
    return [one.row() for one in ready]


def records(options: Options) -> Iterator[Row]:
    """Yields the rows for each number of devices; profiles the machine where there is no file for it."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(options.profiles or folder)
        where.mkdir(parents=True, exist_ok=True)
        for count in options.devices:
            cluster = where / f"cpu{count}.toml"
            if not cluster.exists():
                say(f"  profiling {count} devices")
                main = "from rhino.tools.profile import main; main()"
                subprocess.run([sys.executable, "-c", main, f"--devices={count}", "-o", str(cluster)], check=True)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                yield from pool.submit(work, count, options.pairs, str(cluster), options.rounds).result()


# What is said


def correlation(rows: Sequence[Row]) -> float:
    """Returns Spearman's rank correlation of predicted and measured times."""
    if len(rows) < 3:
        return 1.0
    return float(spearmanr([row.predicted_s for row in rows], [row.measured_s for row in rows]).statistic)


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.measured_s is not None]


def summary(rows: Sequence[Row]) -> str:
    """Returns the errors of peaks, and those of time: of all rows, each number of devices, and each kind of plan."""
    groups = {"all": _timed(rows)}
    for row in _timed(rows):
        kind = "pipelines" if row.plan.startswith("pipeline") else "no pipeline"
        for name in (f"{row.num_devices} devices", kind):
            groups.setdefault(name, []).append(row)
    ratios = [row.size_ratio for row in rows] or [1.0]
    memory = f"{min(ratios):.3f} to {max(ratios):.3f}, {mean(ratios):.3f} in the mean"
    lines = [_errors(name, some) for name, some in groups.items() if some]
    return "\n".join([*lines, f"peak memory, predicted over XLA's: {memory}"])


def _errors(name: str, rows: Sequence[Row]) -> str:
    errors = [abs((row.time_ratio or 1.0) - 1) for row in rows]
    figures = f"{mean(errors):.0%} in the mean, {median(errors):.0%} in the median, {max(errors):.0%} at most"
    return f"{name}: {len(rows)} pairs, relative error {figures}; rank correlation {correlation(rows):.3f}"


def faults(rows: Sequence[Row]) -> Iterator[str]:
    """Yields what is wrong with the rows."""
    yield from (f"{row.model} {row.mesh} {row.plan}: peak under XLA's" for row in rows if row.size_ratio < 1)
    if len(rows) < LEAST_PAIRS:
        yield f"{len(rows)} pairs, and {LEAST_PAIRS} are wanted"
    if correlation(_timed(rows)) < LEAST_CORRELATION:
        yield f"rank correlation under {LEAST_CORRELATION}"


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "model": key("model"),
        "devices": key("num_devices"),
        "mesh": key("mesh"),
        "plan": key("plan"),
        "predicted": key("predicted_s", "s"),
        "measured": key("measured_s", "s"),
        "ratio": key("time_ratio", ".2f"),
        "peak predicted": key("predicted_bytes", "bytes"),
        "XLA": key("xla_bytes", "bytes"),
        "of XLA": key("size_ratio", ".2f"),
    },
    (
        option("--devices", [2, 4, 8], "numbers of host devices"),
        option("--pairs", "", "only pairs whose name has this in it"),
        option(
            "--profiles", "", "folder of cluster files cpuN.toml, made where they are missing (default measure anew)"
        ),
        option("--rounds", 3, "how often all pairs are run in turn; 0 times nothing: only what they take of memory"),
    ),
    ("devices", "mesh", "plan"),
    faults,
    summary=summary,
)

if __name__ == "__main__":
    sys.exit(run(__doc__, QUESTION, sys.argv[1:]))
