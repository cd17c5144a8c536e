"""Whole plans of example models against one device: every schedule, several stages and micro-batches, some steps each.

    python bench/pipelines.py [--models=gpt,moe,t5,unet,towers] [--stages=2,4] [--micro-batches=4,8] [--mesh=1] [--steps=3] [--check]

Prints for each what the plan says (idle share, transfers), how far the results of the steps are from those of one device, and whether all
schedules that sum in one order give the same bits. `--check` ends with exit code 1 where one does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import jax
import numpy as np
from planning import Reference, reference, tolerance

from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.passes.base import Remarks
from rhino.passes.planner.staged_plan import Made, make_whole_plan
from rhino.passes.registry import PARALLEL, build_named
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.compare import Difference, differences, worst
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.executor import Argument, Executor, devices_of_ranks
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools.run_plan import signature_of

MODELS = ("gpt", "moe", "t5", "unet", "towers")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How a model is cut. `mesh` is that of one rank, `axis_role` what its axes are for, as x=batch."""

    stages: int
    micro_batches: int
    schedule: str
    mesh: str = "1"
    cluster: str = "v100x8"
    axis_role: str = ""
    tolerance: str = ""

    @property
    def chunks(self) -> int:
        """Stages on a rank: as many as the schedule wants, and the stages allow."""
        return 2 if SCHEDULES[self.schedule].chunked and self.stages % 2 == 0 else 1


def plan(text: bytes, name: str, setting: Setting) -> Made:
    """Returns the whole plan of the training step in `text`."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    options = {
        "stages": str(setting.stages),
        "num": str(setting.micro_batches),
        "mesh": setting.mesh,
        "cluster": setting.cluster,
        **({"axis-role": setting.axis_role} if setting.axis_role else {}),
        **({"tolerance": setting.tolerance} if setting.tolerance else {}),
        "split-backward": str(SCHEDULES[setting.schedule].splits_backward).lower(),
    }
    items = build_named(PARALLEL, options)
    assert items is not None
    build_pass_manager(items, module.context, remarks).run(module.operation)
    return make_whole_plan(module, setting.schedule, setting.cluster, {}, chunks=setting.chunks, file=name)


def run(made: Made, inputs: Sequence[Host], num_steps: int) -> list[list[Host]]:
    """Returns every result of every step [steps][results] on this process's devices."""
    step, signature = made.plan.step, signature_of(made.plan)
    arguments: list[Argument] = list(inputs)
    steps = []
    with Executor(step, made.plan.modules, devices_of_ranks(step, jax.devices())) as executor:
        for _ in range(num_steps):
            results = executor.run(arguments)
            executor.wait()
            steps.append([np.array(result) for result in results])
            for argument, result in signature.feedback.items():
                arguments[argument] = results[result]
    return steps


def difference(made: Made, steps: Sequence[Sequence[Host]], expected: Reference, name: str) -> Difference:
    """Returns the worst difference of all results of all steps."""
    signature = signature_of(made.plan)
    found = [worst(differences(signature, got, want, tolerance(name))) for got, want in zip(steps, expected.results, strict=True)]
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


def model_text(name: str) -> bytes:
    """Returns the training step of one of `MODELS`, at a size with several layers and a batch that micro-batches divide."""
    folder = str(Path(__file__).resolve().parent.parent / "examples")
    if folder not in sys.path:
        sys.path.append(folder)
    import gpt  # noqa: PLC0415 - found by the lines above
    import moe  # noqa: PLC0415
    import t5  # noqa: PLC0415
    import two_tower  # noqa: PLC0415
    import unet  # noqa: PLC0415
    import zoo  # noqa: PLC0415
    from training import export_step  # noqa: PLC0415

    larger = dataclasses.replace
    models = {
        "gpt": lambda: gpt.model(larger(zoo.GPT, layers=4)),
        "moe": lambda: moe.model(larger(zoo.MOE, layers=4)),
        "t5": lambda: t5.model(larger(zoo.T5, layers=2)),
        "unet": lambda: unet.model(zoo.UNET),
        "towers": lambda: two_tower.model(larger(zoo.TOWERS, pairs=True)),
    }
    return export_step(models[name]()).encode()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> int:
    """Prints the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--stages", type=_numbers, default=[2, 4])
    parser.add_argument("--micro-batches", type=_numbers, default=[4, 8])
    parser.add_argument("--mesh", default="1")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    print("| model | stages | micro-batches | schedule | idle | transfers | worst relative error | bits |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    failed = 0
    for name in options.models.split(","):
        text = model_text(name)
        expected = reference(text, name, options.steps)
        for stages in options.stages:
            for micro_batches in options.micro_batches:
                bits: dict[bool, set[str]] = {}
                for schedule in SCHEDULES:
                    made = plan(text, name, Setting(stages, micro_batches, schedule, options.mesh))
                    steps = run(made, expected.inputs, options.steps)
                    found, same = difference(made, steps, expected, name), digest(steps)
                    bits.setdefault(SCHEDULES[schedule].splits_backward, set()).add(same)
                    failed += not found.passes
                    timeline = made.simulation.timeline
                    idle = np.mean([timeline.idle(rank) for rank in range(timeline.num_ranks)])
                    row = f"{name} | {stages} | {micro_batches} | {schedule} | {idle:.0%} | {len(timeline.moves)} | {found.max_rel:.1e}"
                    print(f"| {row} | {same} |", flush=True)
                failed += any(len(some) > 1 for some in bits.values())
    print(f"{failed} failures" if failed else "all agree with one device; equal bits wherever sums are taken in one order")
    return 1 if failed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
