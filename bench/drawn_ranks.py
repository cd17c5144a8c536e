"""Steps in stages on ranks of unlike meshes, drawn at random: how many devices each rank has, schedule and cut.

Half of the steps have layers in loops, as drawn_scans.py draws them, the others are models of models.py.
"""

from __future__ import annotations

import functools
from math import prod
from typing import Final

import numpy as np
from drawn_scans import draw_form, step_of
from models import step_text, zoo
from pipelines import Setting, difference, plan, run
from planning import reference

from rhino.ir.diagnostics import RhinoError
from rhino.strategies.pipeline.schedules import SCHEDULES

MOST_DEVICES: Final = 8
NUM_STEPS: Final = 2
_SIZES: Final = (1, 1, 2, 2, 3, 4, 4, 5, 6)
"""Devices of a rank, as often as they are drawn."""


def drawn(seed: int, cluster: str) -> tuple[str, Setting]:
    """Returns the name of a seed's step, and how it is cut."""
    random = np.random.default_rng(seed)
    name = f"scan {seed}" if random.integers(2) else str(random.choice(list(zoo())))
    sizes = [0]
    while sum(sizes) > MOST_DEVICES or len(set(sizes)) < 2:
        sizes = random.choice(_SIZES, random.integers(2, 5)).tolist()
    schedule = str(random.choice([name for name, one in SCHEDULES.items() if not one.chunked]))
    remat, micro_batches = str(random.choice(["", "", "0.5", "1"])), int(random.choice([2, 4]))
    mesh = ";".join(_mesh(random, size) for size in sizes)
    return name, Setting(len(sizes), micro_batches, schedule, mesh, cluster, remat=remat)


def try_ranks(name: str, setting: Setting) -> tuple[bool, str]:
    """Returns whether a step gives the results of one device, and how far the worst is from them."""
    text, kind = _step(name)
    try:
        made = plan(text, kind, setting)
    except RhinoError as error:
        if not error.id.startswith("RHI-BATCH"):  # the step has no such micro-batches, on any rank
            raise
        return True, f"refused: {error.id}"
    expected = reference(text, kind, NUM_STEPS)
    found = difference(made, run(made, expected.inputs, NUM_STEPS), expected, kind)
    return found.passes, f"worst relative error {found.max_rel:.1e}"


def _mesh(random: np.random.Generator, size: int) -> str:
    shapes = [(size,), *((outer, size // outer) for outer in range(2, size) if size % outer == 0)]
    chosen = shapes[int(random.integers(len(shapes)))]
    assert prod(chosen) == size
    return "x".join(map(str, chosen))


@functools.cache
def _step(name: str) -> tuple[bytes, str]:
    """Returns the text of a step, and the name by which its tolerance goes."""
    word, _, seed = name.partition(" ")
    if word != "scan":
        return step_text(name), name
    form = draw_form(np.random.default_rng(int(seed)))
    return step_of(form), f"scan-{form.dtype}"
