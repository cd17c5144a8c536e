"""What the strategies for whole plans find, and what finding it takes.

    python bench/strategies.py [--cases=gpt,t5,wide-resnet] [--check] [--json=FILE]

Cases are models of `examples/export.py` on a cluster (`CASES` in this file). A shape is planned once, in this process, for all strategies,
and again for one that wants to know more of it than that it is slow; each then counts the shapes that it asked for, and the processor
seconds that those took. Printed for each case and strategy: the estimated
step, its ratio to that of `best`, the shape, how many shapes were planned, after how many the best was there, and processor seconds.

Exit code: with `--check`, 1 if a strategy finds a better plan than `best`, or `aceso` one that is more than 2 % worse.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from plan import Row, step_text
from search import machine

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import read_module
from rhino.ir.units import format_seconds
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.planner.evaluate import Evaluator, Setup, make_space
from rhino.strategies.autotune import DEFAULT, STRATEGIES, explore
from rhino.strategies.autotune.base import CutOff, Estimate, Outcome, PlanConfig, Space

WITHIN: Final = 1.02
"""How much longer than the best the step of `aceso` may be."""

CASES: Final = {
    "gpt": (Row("gpt-medium", "gpt", 8), "v100x8"),
    "t5": (Row("t5", "t5", 8, (("layers", 4), ("batch", 64))), "v100x8"),
    "t5-16": (Row("t5", "t5", 16, (("layers", 4), ("batch", 64))), "v100x8x2"),
    "wide-resnet": (Row("wr-1.3b", "wide-resnet", 8), "v100x8"),
    "wide-resnet-16": (Row("wr-1.3b", "wide-resnet", 16, (("batch", 64),)), "v100x8x2"),
}
"""Models and the clusters that they are planned for."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a strategy came to on a case: the best step of `num_shapes`, the `found_at`-th."""

    case: str
    strategy: str
    shape: str
    step_s: float
    num_shapes: int
    found_at: int
    processor_s: float


class Planner:
    """Plans each shape once, and knows what that took."""

    def __init__(self, row: Row, cluster: str) -> None:
        context = make_context()
        module = read_module(step_text(row), row.preset, context)
        with context, ir.Location.unknown():
            Normalize().run(module.operation, Remarks(row.preset))
        setup = Setup(bytecode(module), row.preset, cluster, float(load_cluster(cluster).device.usable_hbm_bytes), {})
        self.space: Space = make_space(setup)
        self.evaluator = Evaluator(setup)
        self.known: dict[PlanConfig, tuple[Outcome, float]] = {}

    def evaluate(self, shapes: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        """Returns the outcomes of shapes."""
        for shape in shapes:
            known = self.known[shape][0] if shape in self.known else None
            if known is None or (isinstance(known, CutOff) and known.bound_s < cutoff_s):
                start = time.process_time()
                self.known[shape] = (self.evaluator.outcome(shape, cutoff_s), time.process_time() - start)
        return [self.known[shape][0] for shape in shapes]

    def result(self, case: str, strategy: str) -> Result:
        """Returns what a strategy comes to."""
        explored = explore(self.space, self.evaluate, strategy=strategy)
        best, order = explored.ranked[0], [one.shape for one in explored.outcomes]
        seconds = sum(self.known[shape][1] for shape in order)
        return Result(case, strategy, named(best), best.step_s, len(order), order.index(best.shape) + 1, seconds)


def named(one: Estimate) -> str:
    """Returns a shape with its schedule."""
    return f"{one.shape}, {one.schedule}" if one.schedule else str(one.shape)


def results(case: str) -> list[Result]:
    """Returns what the strategies come to on a case."""
    planner = Planner(*CASES[case])
    return [planner.result(case, name) for name in STRATEGIES]


def lines(found: Sequence[Result]) -> list[str]:
    """Returns the results of a case as rows of a table."""
    best_s = next(one.step_s for one in found if one.strategy == DEFAULT)
    return [
        f"| {one.case} | {one.strategy} | {format_seconds(one.step_s)} | {one.step_s / best_s:.4f} | {one.shape} | {one.num_shapes} "
        f"| {one.found_at} | {one.processor_s:.0f} |"
        for one in found
    ]


def is_well(found: Sequence[Result]) -> bool:
    """Says whether the default finds the best plan, and alleviation one that is hardly worse."""
    steps = {one.strategy: one.step_s for one in found}
    return steps[DEFAULT] <= min(steps.values()) and steps["aceso"] <= WITHIN * steps[DEFAULT]


def main(argv: Sequence[str]) -> int:
    """Prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="which, by name")
    parser.add_argument("--check", action="store_true", help="fail if the default is not the best")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(argv)
    print(machine())
    print("| case | strategy | step | over best | plan | shapes | found at | processor, s |")
    print("| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |")
    every: list[list[Result]] = []
    for case in options.cases.split(","):
        every.append(results(case))
        print("\n".join(lines(every[-1])), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for found in every for one in found], indent=2), encoding="utf-8")
    return int(options.check and not all(map(is_well, every)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
