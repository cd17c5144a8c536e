"""What the autotuning strategies find, and what finding it takes.

Cases are models of `examples/export.py` on a cluster (`CASES` in this file). A configuration is planned once, in this
process, for all strategies, and again for one that wants to know more of it than that it is slow; each then counts the
configurations that it asked for, and the processor seconds that those took. Printed for each case and strategy: the
estimated step, its ratio to that of `best`, the configuration, how many configurations were planned, after how many the
best was there, and processor seconds.

Exit code: 1 if a strategy finds a better plan than `best`, or `aceso` one that is more than 2 % worse.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from papers import Row, found, setup_of
from report import Options, Question, key, option

from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.search_space import make_space
from rhino.strategies.autotune import DEFAULT, STRATEGIES, explore
from rhino.strategies.autotune.base import CutOff, Outcome, PlanConfig, Space

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
    """What a strategy came to on a case: the best step of `num_configs`, the `found_at`-th."""

    case: str
    strategy: str
    config: str
    step_s: float
    over_best: float
    num_configs: int
    found_at: int
    processor_s: float


class Planner:
    """Plans each configuration once, and knows what that took."""

    def __init__(self, row: Row, cluster: str) -> None:
        _, setup = setup_of(row, cluster)
        self.space: Space = make_space(setup)
        self.evaluator = Evaluator(setup)
        self.known: dict[PlanConfig, tuple[Outcome, float]] = {}

    def evaluate(self, configs: Sequence[PlanConfig], cutoff_s: float) -> list[Outcome]:
        """Returns the outcomes of configurations."""
        for config in configs:
            known = self.known[config][0] if config in self.known else None
            if known is None or (isinstance(known, CutOff) and known.bound_s < cutoff_s):
                start = time.process_time()
                self.known[config] = (self.evaluator.outcome(config, cutoff_s), time.process_time() - start)
        return [self.known[config][0] for config in configs]

    def results(self, case: str) -> list[Result]:
        """Returns what the strategies come to."""
        runs = {name: explore(self.space, self.evaluate, strategy=name) for name in STRATEGIES}
        best_s = runs[DEFAULT].ranked[0].step_s
        results = []
        for name, explored in runs.items():
            best, order = explored.ranked[0], [one.config for one in explored.outcomes]
            seconds = sum(self.known[config][1] for config in order)
            figures = best.step_s, best.step_s / best_s, len(order), order.index(best.config) + 1, seconds
            results.append(Result(case, name, found(name, best).config, *figures))
        return results


def records(options: Options) -> Iterator[Result]:
    """Yields what the strategies come to on each case."""
    for case in options.cases:
        yield from Planner(*CASES[case]).results(case)


def faults(results: Sequence[Result]) -> Iterator[str]:
    """Yields where the default does not find the best plan, or alleviation one that is much worse."""
    for one in results:
        if one.over_best < 1:
            yield f"{one.case}: {one.strategy} finds a better plan than {DEFAULT}"
        if one.strategy == "aceso" and one.over_best > WITHIN:
            yield f"{one.case}: aceso ends {one.over_best:.4f} over the best"


QUESTION: Final = Question(
    __doc__,
    records,
    {
        "case": key("case"),
        "strategy": key("strategy"),
        "step": key("step_s", "s"),
        "over best": key("over_best", ".4f"),
        "plan": key("config"),
        "configurations": key("num_configs"),
        "found at": key("found_at"),
        "processor, s": key("processor_s", ".0f"),
    },
    (option("--cases", list(CASES), "which, by name"),),
    ("strategy", "plan"),
    faults,
)
