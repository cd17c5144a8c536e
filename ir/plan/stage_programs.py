"""A training step cut into stage programs that have no order yet.

`split-stages` finds them, and a schedule makes a `Step` of them.

Values go by name. A name is one of

- a step argument: there from the start, and for the whole step;
- `MICRO_BATCH`: the number of the micro-batch at hand, from 0, wherever it is read;
- what a `setup`, `apply` or `step` program gives: once per step;
- what a program of the other four phases gives: once per micro-batch, read by programs of the same micro-batch only;
- an *accumulator*: a `setup` program gives it, one program of the phases between reads it and gives it anew under the
  same name in every micro-batch, and `apply` programs read what it is in the end.

Where a value is read on another rank than the one that gives it, it is moved there, once (in every micro-batch, if it
is given in each). No accumulator is moved before its end. On equal meshes its producer and all its readers mean one
layout, on others one shape and element type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhino.ir.cluster.mesh import Mesh
from rhino.ir.plan.instructions import Layout, Phase, StepProgram

PARTS: Final = "rhino.parts"
"""On a module that is a step in stages (rhino.ir.program.staged_module): its parts."""

MICRO_BATCH: Final = "micro-batch"
"""The name of the micro-batch's number, a whole scalar on every rank."""

ONCE: Final = ("setup", "accumulate", "apply", "step")
"""The phases that run once per step; the others run once per micro-batch."""


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The part of a step that belongs to a phase and a stage (0 .. d-1, of the backward phases too).

    `reads` and `gives` name a value for each input and each output of `StagedStep.programs[program]`. A phase between
    `setup` and `apply` has at most one part in a stage, and may have none: a last stage that does both at once has a
    `backward` alone, a backward that is not divided has no `weight-gradient`. `setup` and `apply` may have any number
    in a stage, to read what parts of other stages give. An `accumulate` goes through the micro-batches of a replica. A
    `step` is the only part there is: it goes through the
    micro-batches itself.
    """

    phase: Phase
    stage: int
    program: int
    reads: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of the step; `consumed` says that a program may take over its buffer.

    `fed_to_each` says that it goes from the caller to each rank that reads it, not from one of them to the others.
    `becomes` is the result that is this argument in the next step: the argument is fed where that result is made, so
    that it stays there.
    """

    name: str
    layout: Layout
    consumed: bool = False
    becomes: int | None = None
    fed_to_each: bool = False


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step in stages, each on a rank with a mesh of its own: `meshes` [stages].

    The schedule may place several stages on one rank.

    `programs` are what is compiled; equal parts name the same one. Their `donated` pairs are wishes: an output that may
    take over an input's buffer, as an accumulator's or an updated parameter's should. Those stay that hold wherever the
    program runs. `parts` stand in an order in which each follows those of its micro-batch whose values it reads.
    `results` name the step's results. Of a step on replicas, `shares` are the micro-batches of each, and the stages are
    the replicas.
    """

    meshes: tuple[Mesh, ...]
    num_micro_batches: int
    programs: tuple[StepProgram, ...]
    parts: tuple[StageProgram, ...]
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    shares: tuple[int, ...] = ()

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.meshes)
