"""Localize plans that nobody would choose, and compare them with one device.

    python bench/random_plans.py [--models=mlp,gpt] [--meshes=8,2x3] [--seeds=0:8] [--moods=any,near,split,sums]

How plans are drawn, and what the moods are: `drawn_plans.py`.

Exit code: 1 if a plan differs from one device, cannot be localized, or predicts other collectives than the local program has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import jax
from drawn_plans import MOODS, drawable, ways_to_run
from planning import Planned, Reference, reference, tolerance, zoo, zoo_step

from rhino.passes.sharding.localize import localized_copy
from rhino.runtime.executor.devices import request_host_devices
from rhino.runtime.executor.executable import Executable, compile_module


def random_plan(text: bytes, name: str, seed: int, mood: str, mesh: str = "8") -> Planned:
    """Returns a random legal plan of the training step in `text` on at most eight devices."""
    drawn = drawable(text.decode(), mesh)
    answer = drawn.answer(seed, mood)
    plan = drawn.write(answer)
    return Planned(drawn.module, localized_copy(drawn.module, name), plan, answer)


def try_plan(text: bytes, name: str, seed: int, mood: str, mesh: str, expected: Reference) -> tuple[bool, str]:
    """Returns whether a random plan does what it should, and a line about it."""
    try:
        planned = random_plan(text, name, seed, mood, mesh)
        found = expected.difference(compile_planned(planned), tolerance(name))
    except Exception as error:  # a crash is a finding like any other, and the next plan may have another
        return False, f"{type(error).__name__}: {error}"
    exact = planned.predicted == planned.localized
    line = f"{ways_to_run(planned.plan)}; {planned.localized.total.num} collectives{'' if exact else ', OTHERS PREDICTED'}"
    return found.passes and exact, f"{line}; worst result {found.value.label}, relative error {found.max_rel:.2g}"


def sixes() -> Mapping[str, Any]:
    """Returns small models by name all of whose sizes are multiples of six, for meshes that are no powers of two."""
    zoo()  # makes what follows importable
    import gpt  # noqa: PLC0415
    import mlp  # noqa: PLC0415

    transformer = gpt.GPTConfig(layers=1, hidden=24, heads=6, ffn=48, vocab=48, seq=12, batch=12)
    return {"gpt-sixes": gpt.model(transformer), "mlp-sixes": mlp.model(mlp.MLPConfig(sizes=(24, 48, 24), batch=12))}


def model_step(name: str) -> bytes:
    """Returns the training step of a model of examples/zoo.py, or of `sixes`, as StableHLO text."""
    if name not in sixes():
        return zoo_step(name)
    from training import export_step  # noqa: PLC0415 - found beside the zoo

    return export_step(sixes()[name]).encode()


def compile_planned(planned: Planned) -> Executable:
    """Returns the localized program of a plan, compiled for as many devices as its mesh has."""
    return compile_module(planned.form("localized"), jax.devices()[: prod(planned.plan.sizes)])


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", default="mlp,mlp-dropout,two-tower,gpt", help="names in examples/zoo.py, or gpt-sixes, mlp-sixes")
    parser.add_argument("--meshes", default="8,2x4", help="as in rhino-opt --mesh, each of at most 8 devices")
    parser.add_argument("--seeds", default="0:3", help="first:end")
    parser.add_argument("--moods", default=",".join(MOODS))
    options = parser.parse_args(argv)
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time would be LLVM's
    request_host_devices(8, os.environ)
    first, end = map(int, options.seeds.split(":"))
    failures = 0
    for name in options.models.split(","):
        text = model_step(name)
        expected = reference(text, name, num_steps=2)
        for mesh, seed, mood in product(options.meshes.split(","), range(first, end), options.moods.split(",")):
            passes, line = try_plan(text, name, seed, mood, mesh, expected)
            failures += not passes
            print(f"{'ok   ' if passes else 'WRONG'} {name} on {mesh} seed {seed} {mood}: {line}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
