"""Errors with a place, a stable id, what, why and how to fix; and the one table of ids.

A tool prints a `RhinoError` as

    model.mlir:41:8: error: [RHI-READ-002] what was got and what was expected
      note: why (where it came from)
      note: to fix: what to do

and exits with the code of its id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What a tool's process returns."""

    OK = 0
    BAD_INPUT = 1
    USAGE = 2
    DOES_NOT_FIT = 3
    BUG = 70


IDS: Final[dict[str, tuple[ExitCode, str]]] = {
    "RHI-CLI-001": (ExitCode.USAGE, "the command line does not parse"),
    "RHI-CLI-002": (ExitCode.BAD_INPUT, "an input file cannot be read"),
    "RHI-CLI-003": (ExitCode.BAD_INPUT, "the output cannot be written"),
    "RHI-CLI-004": (ExitCode.BAD_INPUT, "an expected diagnostic was not produced, or an unexpected one was"),
    "RHI-READ-001": (
        ExitCode.BAD_INPUT,
        "the input is not MLIR text, MLIR bytecode, a portable artifact or a jax.export blob",
    ),
    "RHI-READ-002": (ExitCode.BAD_INPUT, "the input does not parse or verify"),
    "RHI-READ-003": (ExitCode.BAD_INPUT, "an op or a value is of a kind that is not supported"),
    "RHI-READ-004": (ExitCode.BAD_INPUT, "a tensor has a dynamic shape"),
    "RHI-READ-005": (ExitCode.BAD_INPUT, "the module has no public entry function"),
    "RHI-READ-006": (ExitCode.BAD_INPUT, "calls are recursive"),
    "RHI-READ-007": (ExitCode.BAD_INPUT, "calls expand to more ops than are inlined"),
    "RHI-READ-008": (ExitCode.BAD_INPUT, "a function that is called has no body"),
    "RHI-READ-009": (ExitCode.BAD_INPUT, "a result cannot take over an argument's buffer"),
    "RHI-READ-010": (ExitCode.BAD_INPUT, "a tensor is larger than the memory of any cluster"),
    "RHI-CLUSTER-001": (ExitCode.BAD_INPUT, "unknown cluster preset"),
    "RHI-CLUSTER-002": (ExitCode.BAD_INPUT, "a cluster file is malformed"),
    "RHI-CLUSTER-003": (ExitCode.BAD_INPUT, "a table of operators is malformed"),
    "RHI-CLUSTER-004": (ExitCode.BAD_INPUT, "a directory of profiled ops is malformed or incomplete"),
    "RHI-MESH-001": (ExitCode.BAD_INPUT, "the mesh does not fit the cluster"),
    "RHI-MESH-002": (ExitCode.BAD_INPUT, "the mesh of the module and the mesh asked for differ"),
    "RHI-SHARD-001": (ExitCode.BAD_INPUT, "an existing sharding, or another constraint, cannot be honoured"),
    "RHI-PIN-001": (ExitCode.BAD_INPUT, "a file of constraints is malformed"),
    "RHI-PIN-002": (ExitCode.BAD_INPUT, "a constraint names a tensor or an axis that does not exist"),
    "RHI-RULE-001": (ExitCode.BAD_INPUT, "a file of sharding rules is malformed"),
    "RHI-RULE-002": (ExitCode.BAD_INPUT, "a sharding rule does not fit the op that it is for"),
    "RHI-SOLVE-001": (ExitCode.DOES_NOT_FIT, "no choice of shardings is predicted to fit the memory budget"),
    "RHI-SOLVE-002": (
        ExitCode.DOES_NOT_FIT,
        "the search ran out of steps before it found shardings predicted to fit the memory budget",
    ),
    "RHI-BATCH-001": (ExitCode.USAGE, "the number of micro-batches is less than one"),
    "RHI-BATCH-002": (ExitCode.BAD_INPUT, "the step has no batch"),
    "RHI-BATCH-003": (
        ExitCode.BAD_INPUT,
        "the number of micro-batches, or parts, does not divide the batch, or the blocks that it is cut in",
    ),
    "RHI-BATCH-004": (ExitCode.BAD_INPUT, "micro-batches would have to synchronize inside the step"),
    "RHI-BATCH-005": (ExitCode.BAD_INPUT, "the step has nothing to accumulate over micro-batches"),
    "RHI-BATCH-006": (ExitCode.BAD_INPUT, "a sharding inside the step assumes the whole batch"),
    "RHI-BATCH-007": (ExitCode.BAD_INPUT, "an option about the batch matches no argument"),
    "RHI-BATCH-008": (ExitCode.BAD_INPUT, "what is asked of statistics of the batch is not known"),
    "RHI-BATCH-009": (ExitCode.BAD_INPUT, "an op on statistics of parts of the batch is not known to run for parts"),
    "RHI-REPLICA-001": (ExitCode.USAGE, "the micro-batches cannot be divided among so many replicas"),
    "RHI-REPLICA-002": (ExitCode.BAD_INPUT, "what a loop over micro-batches accumulates cannot be joined"),
    "RHI-AMP-001": (ExitCode.USAGE, "a step cannot be rewritten to compute in this type"),
    "RHI-ATTN-001": (ExitCode.USAGE, "attention cannot be computed in this way"),
    "RHI-OFFLOAD-001": (ExitCode.USAGE, "arguments cannot lie in host memory: how fast devices reach it is not known"),
    "RHI-REMAT-001": (ExitCode.USAGE, "the share of the activation stash to recompute is malformed"),
    "RHI-LOCAL-001": (ExitCode.BAD_INPUT, "the module cannot be localized"),
    "RHI-AOT-001": (ExitCode.BAD_INPUT, "the target's compiler refuses the module"),
    "RHI-AOT-002": (ExitCode.BAD_INPUT, "the target's compiler is not installed"),
    "RHI-RUN-001": (ExitCode.BAD_INPUT, "the module does not compile"),
    "RHI-RUN-002": (ExitCode.BAD_INPUT, "inputs do not match the module"),
    "RHI-RUN-003": (ExitCode.BAD_INPUT, "the result differs from the one-device program"),
    "RHI-RUN-004": (ExitCode.BAD_INPUT, "the devices do not match the module"),
    "RHI-RUN-005": (ExitCode.BAD_INPUT, "the program failed while it ran"),
    "RHI-RUN-006": (ExitCode.BAD_INPUT, "a module does not match its program in the step"),
    "RHI-RUN-007": (ExitCode.BAD_INPUT, "a process exited before the others, or does not come"),
    "RHI-RUN-008": (ExitCode.BAD_INPUT, "a step makes no progress"),
    "RHI-RUN-009": (ExitCode.USAGE, "a limit of a job is not a number of seconds"),
    "RHI-RUN-010": (ExitCode.BAD_INPUT, "the processes of a job have other versions of packages"),
    "RHI-RUN-011": (ExitCode.BAD_INPUT, "a loss is not finite"),
    "RHI-SPLIT-001": (ExitCode.BAD_INPUT, "the program has no loop over micro-batches"),
    "RHI-SPLIT-002": (ExitCode.BAD_INPUT, "the program cannot be cut at its stage marks"),
    "RHI-STAGE-001": (ExitCode.BAD_INPUT, "the step cannot be cut into that many stages"),
    "RHI-STAGE-002": (ExitCode.USAGE, "the tolerance of stages is malformed"),
    "RHI-STAGE-003": (ExitCode.BAD_INPUT, "stages already assigned to ops cannot be honoured"),
    "RHI-STAGE-004": (ExitCode.DOES_NOT_FIT, "no cut into stages is predicted to fit the memory budget"),
    "RHI-STAGE-005": (ExitCode.DOES_NOT_FIT, "the search ran out of steps before it found stages"),
    "RHI-STAGE-006": (ExitCode.BAD_INPUT, "no loop over layers runs as often as its pieces say"),
    "RHI-STAGE-007": (ExitCode.USAGE, "ranks of unlike meshes are requested where they must be alike"),
    "RHI-SCHED-001": (ExitCode.USAGE, "unknown schedule, or one that does not support this pipeline"),
    "RHI-SCHED-002": (ExitCode.BAD_INPUT, "the order of a schedule deadlocks"),
    "RHI-STEP-001": (ExitCode.BAD_INPUT, "an instruction refers to a rank, program, slot or input that does not exist"),
    "RHI-STEP-002": (ExitCode.BAD_INPUT, "an instruction reads a slot before it is written or after it is freed"),
    "RHI-STEP-003": (ExitCode.BAD_INPUT, "an instruction overwrites a live slot"),
    "RHI-STEP-004": (ExitCode.BAD_INPUT, "an instruction donates a buffer that is still needed"),
    "RHI-STEP-005": (
        ExitCode.BAD_INPUT,
        "a step ends with an array that is neither freed nor fetched, or without a result",
    ),
    "RHI-STEP-006": (
        ExitCode.BAD_INPUT,
        "an array does not match the type, layout or rank that a program or a transfer expects",
    ),
    "RHI-STEP-007": (ExitCode.BAD_INPUT, "a transfer, an argument or a result is duplicated"),
    "RHI-STEP-008": (ExitCode.DOES_NOT_FIT, "a step is predicted to need more memory than a device has"),
    "RHI-STEP-009": (ExitCode.BAD_INPUT, "the devices of a rank are not as many as its mesh has, or another rank's"),
    "RHI-STEP-010": (ExitCode.BAD_INPUT, "the lists of a step's ranks wait for each other"),
    "RHI-PLAN-001": (ExitCode.BAD_INPUT, "a folder is not a plan that can be read"),
    "RHI-PLAN-002": (ExitCode.BAD_INPUT, "a file of a plan is missing or altered"),
    "RHI-PLAN-003": (ExitCode.BAD_INPUT, "a plan cannot be written"),
    "RHI-PLAN-004": (ExitCode.BAD_INPUT, "a plan is of another program or cluster"),
    "RHI-JAX-001": (ExitCode.BAD_INPUT, "a leaf of an argument is not an array"),
    "RHI-JAX-002": (ExitCode.USAGE, "an option does not match the function"),
    "RHI-JAX-003": (ExitCode.BAD_INPUT, "a call has other shapes than the plan"),
    "RHI-JAX-004": (ExitCode.BAD_INPUT, "a state does not match its argument"),
    "RHI-JAX-005": (ExitCode.BAD_INPUT, "a parallelized function is called inside a transformation of JAX"),
    "RHI-JAX-006": (ExitCode.USAGE, "a query needs a plan or a program that is not there"),
    "RHI-JAX-007": (ExitCode.BAD_INPUT, "an array that was donated is used again"),
    "RHI-JAX-008": (ExitCode.BAD_INPUT, "the processes of a job have planned differently"),
    "RHI-JAX-009": (ExitCode.USAGE, "a query is for plans of one program, and the plan has stages"),
    "RHI-PASS-001": (ExitCode.USAGE, "a pass pipeline does not parse"),
    "RHI-PASS-002": (ExitCode.BAD_INPUT, "one of MLIR's own passes failed, or left an invalid module"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a source: file, line and column (both from 1), any of them unknown."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)


@dataclass(eq=False)
class RhinoError(Exception):
    """A user's error: `id` is a key of `IDS`; `notes` say why, `fix` what to do about it."""

    id: str
    what: str
    place: Place = field(default_factory=Place)
    notes: tuple[str, ...] = ()
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.id in IDS, self.id
        super().__init__(self.what)

    @property
    def exit_code(self) -> ExitCode:
        """The process's exit code for this error."""
        return IDS[self.id][0]

    def render(self) -> str:
        """Returns the lines that a tool prints to stderr."""
        head = f"{self.place}: " if str(self.place) else ""
        lines = [f"{head}error: [{self.id}] {self.what}", *(f"  note: {note}" for note in self.notes)]
        if self.fix:
            lines.append(f"  note: to fix: {self.fix}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render()
