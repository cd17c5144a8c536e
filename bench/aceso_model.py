"""What a training step takes in Aceso's model: seconds and bytes of stages, from its tables of profiled ops.

A model is a line of ops. A plan cuts it in stages, each on devices of its own, and says of each op over how many
devices it is split (`parts`), by how many the examples of a micro-batch are shared (`copies`), in which of its forms it
is split, and whether it is recomputed. Then, as section 3.3 of the paper has it and its code reads it,

    seconds of a stage     forward + backward pass of its ops, the forward pass again of those recomputed,
                           what comes in from the stage before and goes out to the next, and reshards between its ops
    step                   (micro-batches - 1) x the longest stage + all stages once
    bytes of a stage       parameters, gradients, optimizer state; the stash for each micro-batch in flight; the largest
                           stretch that is recomputed at once; and what the allocator keeps

Gradients are joined among copies for nothing. What its code knows of ops by name (which share a buffer, how each lies)
is in `_Kind` below, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf, log2
from typing import Final

import numpy as np

from rhino.ir.arrays import Floats
from rhino.ir.cluster.aceso_tables import MEGABYTE, AcesoTables, ProfiledOp, Setting

_GIGABYTE_IN_MEGABYTES: Final = 1024 / 1000
"""The model takes the gigabyte of a rate as 1,000 megabytes, where what was measured are 1,024."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the model knows of an op by its name.

    `stash` is what of its profiled stash is kept, `begins` whether a block begins with it, where what is recomputed
    ends; `is_fixed` says that it is never recomputed; it may be split in so many `forms`; `lies_in` and `lies_out` are
    how its operand and result lie, by form: "whole" copies, a "hidden" dim split, or by "head"; "rows" are whole with
    the examples outermost, and "any" needs no reshard.
    """

    stash: float = 1.0
    begins: bool = False
    is_fixed: bool = False
    forms: int = 1
    lies_in: tuple[str, ...] = ("any",)
    lies_out: tuple[str, ...] = ("any",)


def kind_of(name: str) -> _Kind:
    """Returns what the model knows of an op."""
    what = name.partition("-")[2]
    convolves = any(part in name for part in ("conv", "downsample", "bn", "relu", "pool", "fc"))
    if convolves:
        shares = name == "bn1" or "-bn3" in name or ("-downsample" in name and "0-0" not in name)
        forms = 2 if "conv" in name or "downsample" in name else 1
        return _Kind(0.0 if shares else 1.0, "-conv1" in name, name == "conv1", forms, ("rows",), ("rows",))
    lies = {
        "embedding": (("any",), ("whole",)),
        "1st-layernorm": (("whole",), ("whole",)),
        "2nd-layernorm": (("whole",), ("whole",)),
        "attention-qkv": (("whole", "hidden"), ("hidden", "whole")),
        "attention-score": (("hidden",), ("head",)),
        "attention-softmax": (("head",), ("head",)),
        "attention-dropout": (("head",), ("head",)),
        "attention-context": (("head",), ("hidden",)),
        "attention-dense": (("hidden", "whole"), ("whole", "hidden")),
        "post-attention-dropout": (("whole",), ("whole",)),
        "MLP-GEMM-1": (("whole", "hidden"), ("hidden", "whole")),
        "MLP-gelu": (("hidden",), ("hidden",)),
        "MLP-GEMM-2": (("hidden", "whole"), ("whole", "hidden")),
        "post-MLP-dropout": (("whole",), ("whole",)),
        "layernorm": (("whole",), ("rows",)),
        "post-process": (("rows",), ("any",)),
    }.get(what, (("any",), ("any",)))
    stash = {"enc-attention-softmax": 0.0, "enc-attention-dropout": 1.5}.get(name, 1.0)
    is_fixed = what in ("embedding", "post-process")
    return _Kind(stash, name == "enc-1st-layernorm", is_fixed, len(lies[0]), *lies)


@dataclass(frozen=True, slots=True)
class Setup:
    """What is trained on what: examples of a batch and of micro-batches, layers, devices, and their memory.

    `state` is what lies beside parameters and gradients (the optimizer's, and copies in f32), times the bytes of the
    parameters. Where nothing is `resharded`, the model knows no reshards: then all ops of a stage are split alike.
    """

    batch: int
    examples: tuple[int, ...]
    layers: int
    num_nodes: int
    devices_per_node: int
    memory_bytes: float
    state: float
    resharded: bool

    @property
    def num_devices(self) -> int:
        """All devices."""
        return self.num_nodes * self.devices_per_node


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How one op runs: see above."""

    parts: int
    copies: int
    form: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Ops from `start` to before `end` on so many devices."""

    start: int
    devices: int
    ops: tuple[OpPlan, ...]

    @property
    def end(self) -> int:
        """The op behind the last."""
        return self.start + len(self.ops)


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages, each a stretch of the line, and the examples of a micro-batch."""

    examples: int
    stages: tuple[StagePlan, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What a plan comes to: the step, and by stage the seconds of a micro-batch and the bytes of a device."""

    step_s: float
    stage_s: tuple[float, ...]
    stage_bytes: tuple[float, ...]


class AcesoModel:
    """A model's line of ops on a cluster, and what plans of it take."""

    def __init__(self, tables: AcesoTables, setup: Setup) -> None:
        self.tables, self.setup = tables, setup
        line: list[int] = []
        layers: list[tuple[int, int, int]] = []
        at = 0
        for first, end in [*_every_layer(tables.names), (len(tables.names),) * 2]:
            line.extend(range(at, first))
            layers += [(len(line), end - first, setup.layers)] if end > first else []
            line.extend(list(range(first, end)) * setup.layers)
            at = end
        self.line, self.layers = tuple(line), tuple(layers)
        """The ops by their place in the table; of each kind of layer its first op, how many it has, and how often."""

        self.names = tuple(tables.names[at] for at in self.line)
        self.kinds = tuple(kind_of(name) for name in self.names)

    def op(self, at: int, examples: int, plan: OpPlan) -> ProfiledOp | None:
        """Returns what an op of the line takes, None where it was not profiled so, or did not run."""
        rows = self.tables.ops.get(Setting(examples // plan.copies, plan.parts, plan.form))
        return rows[self.line[at]] if rows else None

    def evaluate(self, plan: Plan) -> Figures:
        """Returns what a plan comes to, infinite where something of it was not profiled."""
        stage_s, used = [], 0
        for stage in plan.stages:
            stage_s.append(self.stage_s(plan.examples, stage, used))
            used += stage.devices
        behind = range(len(plan.stages) - 1, -1, -1)
        stage_bytes = [self.stage_bytes(plan.examples, one, b) for one, b in zip(plan.stages, behind, strict=True)]
        rounds = self.setup.batch // plan.examples
        return Figures((rounds - 1) * max(stage_s) + sum(stage_s), tuple(stage_s), tuple(stage_bytes))

    def rows(self, examples: int, stage: StagePlan) -> list[ProfiledOp] | None:
        """Returns what each op of a stage takes, None where one of them was not profiled."""
        found = [self.op(at, examples, one) for at, one in enumerate(stage.ops, stage.start)]
        return None if None in found else [one for one in found if one is not None]

    def stage_s(self, examples: int, stage: StagePlan, first_device: int) -> float:
        """Returns the seconds of a stage per micro-batch, whose devices begin with `first_device`."""
        rows = self.rows(examples, stage)
        if rows is None:
            return inf
        computed = sum(
            row.forward_s * (1 + one.again) + row.backward_s for row, one in zip(rows, stage.ops, strict=True)
        )
        # What goes out is as large as where the last op is split as the first one is.
        out = self.op(stage.end - 1, examples, replace(stage.ops[-1], parts=stage.ops[0].parts))
        if out is None:
            return inf
        enters = self.transfer_s(rows[0].input_bytes, far=self.comes_from_far(first_device))
        leaves = self.transfer_s(out.output_bytes, far=self.goes_far(first_device + stage.devices))
        return computed + enters + leaves + self.reshards_s(stage, rows)

    def reshards_s(self, stage: StagePlan, rows: Sequence[ProfiledOp]) -> float:
        """Returns the seconds of reshards between the ops of a stage, infinite where one was not measured."""
        return sum(
            self.reshard_s(stage.start + at, stage.ops[at - 1], stage.ops[at], rows[at].input_bytes)
            for at in range(1, len(rows))
        )

    def reshard_s(self, at: int, before: OpPlan, now: OpPlan, size: float) -> float:
        """Returns the seconds of bringing an op's operand of `size` bytes from how the op before left it, and back."""
        if not self.setup.resharded:
            return 0.0
        given, needed = self.kinds[at - 1].lies_out, self.kinds[at].lies_in
        moves = reshard(
            _layout(given[min(before.form, len(given) - 1)], before),
            _layout(needed[min(now.form, len(needed) - 1)], now),
        )
        return sum(self.collective_s(kind, count, size) for kind, count in moves)

    def collective_s(self, kind: str, count: int, size: float) -> float:
        """Returns the seconds of a collective, those of a tensor one megabyte smaller if need be."""
        if kind == "split":
            return 0.0
        known, megabytes = self.tables.collectives.get((kind, count), {}), size / MEGABYTE
        return known.get(round(megabytes), known.get(round(megabytes - 1), inf))

    def comes_from_far(self, first_device: int) -> bool:
        """Says whether the devices before this one are in another node."""
        return first_device > 0 and first_device % self.setup.devices_per_node == 0

    def goes_far(self, next_device: int) -> bool:
        """Says whether this device is the first of a node, or there is none."""
        return next_device % self.setup.devices_per_node == 0

    def transfer_s(self, size: float, *, far: bool) -> float:
        """Returns the seconds of bringing so many bytes to the next stage."""
        if not size:
            return 0.0
        rates = self.tables.between_nodes if far else self.tables.within_node
        place = max(0, int(log2(size / MEGABYTE)) - 1) if size >= MEGABYTE else 0
        _, bytes_per_s = rates[min(place, len(rates) - 1)]
        return size / bytes_per_s * _GIGABYTE_IN_MEGABYTES

    def stage_bytes(self, examples: int, stage: StagePlan, behind: int) -> float:
        """Returns the bytes on each device of a stage with so many stages behind it."""
        rows = self.rows(examples, stage)
        if rows is None:
            return inf
        kinds = self.kinds[stage.start : stage.end]
        stash = np.array([row.stash_bytes * kind.stash for row, kind in zip(rows, kinds, strict=True)])
        saved, peak = self.recomputed_bytes(stash, stage)
        weights = sum(row.weight_bytes for row in rows)
        held = rows[0].input_bytes + float(stash.sum()) - saved
        forward = max((row.forward_reserved_bytes for row in rows[:-1]), default=0.0)
        backward = max((row.backward_reserved_bytes for row in rows[:-1]), default=0.0)
        return weights * (2 + self.setup.state) + held * (behind + 1) + peak + max(forward + backward, weights)

    def recomputed_bytes(self, stash: Floats, stage: StagePlan) -> tuple[float, float]:
        """Returns what of the stash recomputation saves, and the most that is held of it at once.

        Of an op and the next, both recomputed, the stash between them is saved. A stretch ends where a block begins:
        what is between the two is kept.
        """
        saved = peak = running = 0.0
        for number, one in enumerate(stage.ops[:-1]):
            if not (one.again and stage.ops[number + 1].again):
                running = 0.0
                continue
            running += float(stash[number])
            peak = max(peak, running)
            if self.kinds[stage.start + number + 1].begins:
                running = 0.0
            else:
                saved += float(stash[number])
        return saved, peak


Layout = tuple[int, tuple[int, int, int]]
"""Copies of a tensor, and into how many parts each of its dims is split."""


def _layout(lies: str, op: OpPlan) -> Layout | None:
    match lies:
        case "whole":
            return op.parts, (1, op.copies, 1)
        case "rows":
            return op.parts, (op.copies, 1, 1)
        case "hidden":
            return 1, (1, op.copies, op.parts)
        case "head":
            return 1, (op.copies, op.parts, 1)
    return None


@cache
def reshard(given: Layout | None, needed: Layout | None) -> tuple[tuple[str, int], ...]:
    """Returns the collectives that bring a tensor from a layout to another, and its gradient back: kinds and sizes.

    Where one step does not do, there is a kind that nobody has measured.
    """
    if given is None or needed is None or given == needed:
        return ()
    (copies, dims), (wanted, into) = given, needed
    grows = [n for n in range(3) if dims[n] < into[n]]
    shrinks = [n for n in range(3) if dims[n] > into[n]]
    if copies > wanted:
        return (("split", copies // wanted), ("all_gather", copies // wanted)) if grows else _UNKNOWN
    if not shrinks:
        return _UNKNOWN
    count = dims[shrinks[0]] // into[shrinks[0]]
    if copies < wanted:
        return ("all_gather", count), ("split", count)
    return (("all_to_all", count), ("all_to_all", count)) if grows else _UNKNOWN


_UNKNOWN: Final = (("unknown", 0),)


def _every_layer(names: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yields the first op of each kind of layer and the op behind its last, by their place in the table."""
    for at, name in enumerate(names):
        if name.endswith("-1st-layernorm"):
            yield at, next(n for n in range(at, len(names)) if names[n].endswith("-post-MLP-dropout")) + 1
