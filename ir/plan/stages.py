"""The stages of a pipeline, and the virtual stages of a micro-batch that are folded onto them.

A micro-batch goes through d stages and back, in 2d - 1 virtual stages: forward 0 .. d-1, and back to 2d-2. Virtual
stages v and 2d-2-v are on one stage; the last stage does forward and backward at once. What runs once, after all
micro-batches, has a stage and no virtual one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rhino.ir.arrays import Ints

_Numbers = TypeVar("_Numbers", int, Ints)


@dataclass(frozen=True, slots=True)
class Stage:
    """A virtual stage, and the stage of the pipeline whose devices run it."""

    virtual: int
    device: int


@dataclass(frozen=True, slots=True)
class VirtualStages:
    """The virtual stages of a pipeline of `num_stages` stages."""

    num_stages: int

    @property
    def last(self) -> int:
        """The last virtual stage."""
        return 2 * self.num_stages - 2

    def opposite(self, virtual: _Numbers) -> _Numbers:
        """Returns the virtual stage that is on the same stage, in the other direction."""
        found: _Numbers = self.last - virtual
        return found

    def device(self, virtual: Ints) -> Ints:
        """Returns the stage that each virtual stage is on."""
        return np.minimum(virtual, self.opposite(virtual))

    def stage(self, virtual: int) -> Stage:
        """Returns a virtual stage with the stage that it is on."""
        return Stage(virtual, int(self.device(np.array(virtual))))
