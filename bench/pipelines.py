"""Plans of training steps in several stages, run on this process's devices and compared with one device."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import jax
import numpy as np
from planning import Reference, tolerance

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.plan import Plan, Source
from rhino.passes.base import Remarks
from rhino.passes.pipeline.split_scans import SplitScans
from rhino.passes.planner.staged_plan import StagedPlan, make_staged_plan
from rhino.passes.registry import PARALLEL, build_named
from rhino.passes.sharding.pack_collectives import PackCollectives
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.compare import Difference, differences, worst
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.executor import Argument, Executor, devices_of_ranks
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools.plan_steps import leaves_of, pieces_of, signature_of

_ALL: Final = 1 << 50
"""Bytes that no collective sends."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a model is cut. `mesh` is that of one rank, `axis_role` what its axes are for, as x=batch.

    `counts` says of how many iterations each piece of a loop over layers is; without it that is chosen. Without `ranks`
    stages are cut for as many devices as if each had its own.
    `more` are other options of the pipeline, by name.
    """

    stages: int
    micro_batches: int
    schedule: str
    mesh: str = "1"
    cluster: str = "v100x8"
    axis_role: str = ""
    tolerance: str = ""
    remat: str = ""
    ranks: int = 0
    counts: str = ""
    more: tuple[tuple[str, str], ...] = ()

    @property
    def chunks(self) -> int:
        """Stages on a rank: as many as the schedule wants, and the stages allow."""
        return 2 if SCHEDULES[self.schedule].chunked and self.stages % 2 == 0 else 1


def plan(text: bytes, name: str, setting: Setting) -> StagedPlan:
    """Returns the plan of the training step in `text`."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    options = {
        "stages": str(setting.stages),
        "num": str(setting.micro_batches),
        "mesh": setting.mesh,
        "cluster": setting.cluster,
        **({"axis-role": setting.axis_role} if setting.axis_role else {}),
        **({"tolerance": setting.tolerance} if setting.tolerance else {}),
        **({"remat": setting.remat} if setting.remat else {}),
        **({"ranks": str(setting.ranks), "schedule": setting.schedule} if setting.ranks else {}),
        "split-backward": str(SCHEDULES[setting.schedule].splits_backward).lower(),
        **dict(setting.more),
    }
    items = build_named(PARALLEL, options)
    assert items is not None
    items = tuple([replace(one, counts=setting.counts) if isinstance(one, SplitScans) else one for one in items])
    build_pass_manager(items, module.context, remarks).run(module.operation)
    return make_staged_plan(module, Source(name, ""), setting.cluster, 2**62, {**options, "schedule": setting.schedule})


def run(made: StagedPlan, inputs: Sequence[Host], num_steps: int, *, is_joined: bool = False) -> list[list[Host]]:
    """Returns every result of every step [steps][results] on this process's devices.

    `is_joined` says that in each program all collectives are joined that may be.
    """
    step = made.execution.step
    modules = {name: _joined(text, name) if is_joined else text for name, text in made.execution.modules.items()}
    with Executor(step, modules, devices_of_ranks(step, jax.devices())) as executor:
        taken = executed_steps(executor, made.plan, inputs, num_steps)
        return [[*leaves_of(made.plan, dict(enumerate(map(np.array, results)))).values()] for _, results in taken]


def _joined(text: str, name: str) -> ir.Module:
    module = read_module(text.encode(), name, make_context())
    with module.context, ir.Location.unknown():
        PackCollectives(_ALL, _ALL).run(module.operation, Remarks(name))
    return module


def executed_steps(
    executor: Executor, plan: Plan, inputs: Sequence[Host], num_steps: int
) -> Iterator[tuple[float, Sequence[Argument]]]:
    """Yields the wall seconds and the results of each step, as the plan has them: in pieces.

    `inputs` are leaves. The next step takes the results where they take over arguments.
    """
    arguments: list[Argument] = [*pieces_of(plan, dict(enumerate(inputs))).values()]
    for _ in range(num_steps):
        since = time.perf_counter()
        results = executor.run(arguments)
        executor.wait()
        yield time.perf_counter() - since, results
        for number, one in enumerate(plan.arguments):
            if one.alias is not None:
                arguments[number] = results[one.alias]


def difference(
    made: StagedPlan, steps: Sequence[Sequence[Host]], expected: Reference, name: str, allowed: float | None = None
) -> Difference:
    """Returns the worst difference of all results of all steps; without `allowed`, the model's name says how far."""
    signature = signature_of(made.plan)
    found = [
        worst(differences(signature, got, want, tolerance(name) if allowed is None else allowed))
        for got, want in zip(steps, expected.results, strict=True)
    ]
    result = worst(one for one in found if one is not None)
    assert result is not None
    return result


def digest(steps: Sequence[Sequence[Host]]) -> str:
    """Returns a hash of all bits of all results."""
    state = hashlib.sha256()
    for results in steps:
        for result in results:
            state.update(result.tobytes())
    return state.hexdigest()[:12]
