"""In how many micro-batches stages that are scopes take the least time.

Stages and meshes follow from the scopes, so a number of micro-batches is all that is open, and there are few: the whole
plan is made for each that is looked at. Which these are is the way of families of configurations
(strategies/autotune/families.py), as for ranks of unlike meshes that are asked for.

Errors    RHI-BATCH-002 the step has no batch that can be divided; what making a plan raises, where none can be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import ExitCode, RhinoError
from rhino.ir.plan.plan import Predicted
from rhino.passes.planner.autotune import no_batch
from rhino.passes.planner.search_space import make_space
from rhino.passes.planner.setup import Setup
from rhino.strategies.autotune import explore
from rhino.strategies.autotune.base import Estimate, Outcome, PlanConfig, Refused


def choose_micro_batches(setup: Setup, meshes: Sequence[Mesh], make: Callable[[int], Predicted]) -> int:
    """Returns in how many micro-batches stages on `meshes` [stages] are predicted to take the least time.

    `make` makes the plan in so many, and returns what it is predicted to take.

    Raises:
        RhinoError: those of this module; of several the one in the fewest micro-batches.
    """
    shapes = tuple([mesh.shape for mesh in meshes])
    space = replace(make_space(setup, [len(shapes)], unlike=shapes), remats=(0.0,))
    if not space.unlike:
        raise no_batch("stages", setup.file)
    errors: dict[int, RhinoError] = {}

    def outcome(config: PlanConfig) -> Outcome:
        try:
            found = make(config.micro_batches)
        except RhinoError as error:
            errors[config.micro_batches] = error
            return Refused(config, error.what, by_memory=error.exit_code == ExitCode.DOES_NOT_FIT)
        return Estimate(config, "", found.step_s, 0.0, 0.0, found.step_s, 0.0, tuple(map(float, found.peak_bytes)))

    def evaluate(configs: Sequence[PlanConfig], _cutoff_s: float) -> Iterator[Outcome]:
        return map(outcome, configs)

    best = explore(space, evaluate).quickest
    if best is None:
        raise errors[min(errors)]
    return best.config.micro_batches
