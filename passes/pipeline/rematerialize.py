"""Compute values of the forward pass again for the backward pass, or take them to host memory, instead of keeping them.

Reads     the loop with `rhino.micro_batches` (docs/pipelines.md), or where there is none the whole step as one
          micro-batch; `rhino.virtual_stage` on ops; with `remat=auto` the shares of `rhino.remat` on the module, which
          it takes out (passes/pipeline/pipeline_stages.py); a missing `sdy.sharding_rule` is made for the time of the
          pass.
Writes    copies of ops of the forward pass, with their attributes, right before the first op of the backward pass that
          reads what their piece makes; these reads go to the copies. What a copy reads of the forward pass goes through
          an `optimization_barrier`, with a value of the backward pass that is there only then: so nothing merges copies
          with originals or moves them up. A copy of an op of virtual stage v is in virtual stage 2d-2-v. What the user
          recomputes already stays as it is, and what that starts from is kept. With `offload` a value that is kept may
          wait in host memory: it goes there once it is made, and comes back before the backward pass reads it
          (passes/pipeline/offload_ops.py); with `host-share` it does so and nothing is copied.
Errors    RHI-REMAT-001 `remat` is malformed, RHI-OFFLOAD-001 nobody knows how fast host memory is, RHI-STAGE-003 a
          stage where a virtual stage stands, or the other way round, RHI-CLUSTER-001 unknown preset, RHI-CLUSTER-002
          malformed file, RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have,
          RHI-LOCAL-001 an op that cannot run between the shardings around it, RHI-MESH-001 a mesh that is larger than
          the cluster.
Source    strategies/remat/rematerialization.py. Checkpoints between pieces: Chen, Xu, Zhang and Guestrin, "Training
          Deep Nets with Sublinear Memory Cost" (2016).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from rhino.ir.cluster.cluster import Cluster, load_cluster
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import WHILE, Graph
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function, walk
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import MICRO_BATCHES, accumulation_loop
from rhino.ir.program.op_stages import latest_stage_of, num_stages_of, refuse_misplaced, virtual_stage_of
from rhino.ir.program.program import Program, ops_of
from rhino.ir.program.staged_module import REMAT
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.pipeline.offload_ops import write_waiting
from rhino.passes.pipeline.rematerialize_loops import loops_by_rounds, rematerialize_loops
from rhino.passes.pipeline.rematerialize_ops import write_blocks
from rhino.passes.pipeline.sharded_step import SHARDED_ERRORS, rank_mesh, sharded_step
from rhino.passes.sharding.planning_pass import DEFAULT_CLUSTER, OFFLOAD, rank_target, refuse_unknown_host
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.passes.with_rules import renew_rules, run_on_functions
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.remat.remat_graph import Stash, stash_of
from rhino.strategies.structure.training_phases import TrainingPhases, parts_of

if TYPE_CHECKING:
    from rhino.strategies.remat.rematerialization import StageChoice

_SHARE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*")

BY_STAGE: Final = "auto"
"""The `remat` with which each stage recomputes what its memory asks for."""

_SLICE: Final = "stablehlo.dynamic_slice"

_MOST_BEGUN: Final = 4
"""Of how many steps at most it is kept what does not depend on the share.

Autotuning goes back and forth between few.
"""

_LARGE_SHARE: Final = 0.2
"""A loop that makes more than this share of the stash is worth a remark: it is made again as a whole or not at all."""


@dataclass(frozen=True)
class Rematerialize(Pass):
    """Compute values of the forward pass again for the backward pass, instead of keeping them."""

    name: ClassVar[str] = "rhino-remat"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-REMAT-001",
        "RHI-OFFLOAD-001",
        "RHI-STAGE-003",
        "RHI-CLUSTER-001",
        "RHI-CLUSTER-002",
        *UNSHARDED_ERRORS,
        *SHARDED_ERRORS,
    )

    remat: str = opt(
        "1",
        "the least share of the activation stash that is recomputed, 0 to 1; with stages also one for each, as "
        "0;0.5;1, or auto for what their memory asks for",
    )
    cluster: str = opt(DEFAULT_CLUSTER, "a preset's name or a cluster file")
    offload: bool = opt(False, OFFLOAD)
    host_share: str = opt(
        "", "the least share of the activation stash that goes to host memory, 0 to 1, where nothing is recomputed"
    )

    @property
    def goes_by_rounds(self) -> bool:
        """Whether loops over layers recompute rounds of others; behind the search of shardings they run as a whole."""
        return not self.host_share and self.remat != BY_STAGE

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Rewrites `module` in place."""
        cluster = load_cluster(self.cluster)
        self.write_loops(module, cluster, remarks)
        with unsharded_program(module, remarks) as program:
            self.write(program, self.begin(program, module, cluster), remarks)

    def begin(self, program: Program, module: ir.Operation, cluster: Cluster) -> Begun:
        """Returns what a step saves for the backward pass. Raises as the pass does."""
        found = begin(program, module, cluster, repeats=not self.host_share)
        if not self.goes_by_rounds or self.offload:
            return found
        numbers = {op: number for number, op in enumerate(program.ops)}
        loops = loops_by_rounds(program.entry.operation, found.num_stages)
        return replace(found, stash=found.stash.without([numbers[op] for op in loops if op in numbers]))

    def write_loops(self, module: ir.Operation, cluster: Cluster, remarks: Remarks) -> bool:
        """Writes what loops recompute of the layers of others, and returns whether anything was written."""
        if not self.goes_by_rounds:
            return False
        shares = parse_remat(self.remat)
        ops = list(walk(entry_function(module, remarks.file).operation))
        if not any(shares) or all(op.name != WHILE for op in ops):
            return False
        num_stages = _num_stages(module, ops)
        with unsharded_program(module, Remarks(remarks.file)) as program:
            seconds = sharded_step(program, module, cluster).seconds.tolist()
            of_ops = dict(zip(program.ops, seconds, strict=True))
            own = _for_stages(shares, num_stages)
            found = rematerialize_loops(program.entry.operation, own, of_ops, num_stages or 1)
        for one in found:
            kept = f"{format_bytes(one.kept_bytes)} of {format_bytes(one.stash_bytes)} that this loop stacks are kept"
            again = f"{one.num_ops} ops of a round run again, {format_seconds(one.added_s)} more in all rounds"
            remarks.add(self.name, place_of(one.location, remarks.file), f"{kept}; {again}")
        remarks.record(Unkept((), sum(one.num_ops for one in found)))
        if found:
            renew_rules(module)
            run_on_functions(module, "cse")  # rows of stacks may be read already
        return bool(found)

    def write(self, program: Program, begun: Begun, remarks: Remarks) -> None:
        """Writes the copies of which the least has to run again for what is kept, and what goes to host memory."""
        shares = parse_remat(self.host_share, "host-share") if self.host_share else self.shares(program)
        remat = dict(enumerate(_for_stages(shares, begun.num_stages if begun.is_staged else None)))
        from rhino.strategies.remat.rematerialization import choose  # noqa: PLC0415 - loads LP solvers

        in_flight = {stage: min(begun.num_micro_batches, begun.num_stages - stage) for stage in remat}
        stash = _with_slices(begun, in_flight)
        if self.host_share:
            stash = replace(stash, units=tuple([replace(unit, may_repeat=False) for unit in stash.units]))
        if self.offload or self.host_share:
            refuse_unknown_host(begun.model.device, program.file)
            stash = stash.with_host(begun.model.host_s)
        choices = choose(stash, remat, in_flight)
        blocks = [block for choice in choices for block in choice.blocks]
        virtual = VirtualStages(begun.num_stages)
        write_blocks(program, begun.parts, stash, blocks, virtual)
        hosted = tuple([value for one in choices for value in one.hosted])
        write_waiting(program, begun.parts, stash, hosted, virtual)
        num_loops = 0 if (before := remarks.find(Unkept)) is None else before.num_repeated
        remarks.record(Unkept(hosted, num_loops + sum(len(block.ops) for block in blocks)))
        for place, text in _remarks(program, stash, choices, staged=begun.is_staged):
            remarks.add(self.name, place, text)

    def shares(self, program: Program) -> tuple[float, ...]:
        """Returns the shares that are given, or those that the cut in stages has left.

        Raises RHI-REMAT-001 where there are none.
        """
        if self.remat != BY_STAGE:
            return parse_remat(self.remat)
        attributes = program.entry.operation.parent.attributes
        if REMAT not in attributes:
            what = "remat is auto, and no stages have been cut that say what they recompute"
            raise _malformed(what, "give a share from 0 to 1, or ask for several stages")
        shares = tuple(ir.DenseF64ArrayAttr(attributes[REMAT]))
        del attributes[REMAT]
        return shares


@dataclass(frozen=True, slots=True)
class Unkept:
    """What a step does not keep on devices for its backward pass.

    `hosted` are the values, by number, that wait in host memory, and `num_repeated` ops run again.
    """

    hosted: tuple[int, ...]
    num_repeated: int


@dataclass(frozen=True, slots=True, eq=False)
class Begun:
    """What is known of a step before it is decided what is kept for the backward pass.

    This is its graph, its activation stash, the number of its stages, and the cost model.
    """

    graph: Graph
    parts: TrainingPhases
    stash: Stash
    num_stages: int
    is_staged: bool
    num_micro_batches: int
    model: CostModel


def begin(program: Program, module: ir.Operation, cluster: Cluster, *, repeats: bool = True) -> Begun:
    """Returns what a step saves for the backward pass; the seconds of its ops only if some may be repeated.

    Raises as the pass does.
    """
    loop = accumulation_loop(program)
    sharded = sharded_step(program, module, cluster) if repeats else None
    seconds = np.zeros(program.graph.num_ops) if sharded is None else sharded.seconds
    parts = parts_of(program.graph, loop, seconds)
    body, after = ([program.ops[one] for one in np.flatnonzero(part).tolist()] for part in (parts.body, parts.apply))
    refuse_misplaced(body, after, program.file)
    inside = range(len(program.ops)) if loop is None else range(loop.op + 1, loop.end)
    cut_in = _num_stages(module, [program.ops[one] for one in inside])
    num_stages = cut_in or 1
    found = {one: latest_stage_of(program.ops[one], VirtualStages(num_stages)) for one in inside}
    stages = [found.get(number) or 0 for number in range(len(program.ops))]
    count = ir.IntegerAttr(program.ops[loop.op].attributes[MICRO_BATCHES]).value if loop is not None else 1
    stash = stash_of(program.graph, parts, stages, num_stages)
    if sharded is not None:
        own = sharded.value_bytes.tolist()
        stash = replace(stash, num_bytes={value: size and round(own[value]) for value, size in stash.num_bytes.items()})
    return Begun(
        program.graph,
        parts,
        stash,
        num_stages,
        cut_in is not None,
        count,
        rank_target(cluster, rank_mesh(module), 1).model,
    )


@dataclass(eq=False)
class Rematerializer:
    """Has values of steps recomputed, of each in several shares: what these do not change is found once."""

    context: ir.Context
    begun: dict[bytes, Begun] = field(default_factory=dict)

    def rewritten(self, step: bytes, again: Rematerialize, remarks: Remarks) -> ir.Module:
        """Returns the step as `again` makes it. Raises as that does."""
        module = ir.Module.parse(step, self.context)
        with self.context, module.operation.location:
            if again.write_loops(module.operation, load_cluster(again.cluster), remarks):
                step = bytecode(module)
            known = self.begun.get(step)
            if known is not None:
                entry = entry_function(module)
                again.write(Program(known.graph, entry, ops_of(entry), remarks.file), known, remarks)
                return module
            with unsharded_program(module.operation, remarks) as program:
                known = again.begin(program, module.operation, load_cluster(again.cluster))
                again.write(program, known, remarks)
        self.begun[step] = known
        if len(self.begun) > _MOST_BEGUN:
            del self.begun[next(iter(self.begun))]
        return module


def parse_remat(text: str, option: str = "remat") -> tuple[float, ...]:
    """Returns the shares of the stash that an option gives, one or one for each stage.

    Raises:
        RhinoError: RHI-REMAT-001 where the text is malformed.
    """
    shares = []
    for word in text.split(";"):
        if not _SHARE.fullmatch(word) or float(word) > 1:
            raise _malformed(f"{option} '{text}' is not between 0 and 1", "give a number from 0 to 1")
        shares.append(float(word))
    return tuple(shares)


def refuse_several(shares: tuple[float, ...]) -> None:
    """Raises RHI-REMAT-001 where there is a share for each stage: what stages there will be is searched for."""
    if len(shares) > 1:
        what = (
            f"remat has {len(shares)} values, one for each stage, and the search compares plans before it cuts stages"
        )
        raise _malformed(
            what,
            "give one share for all stages; or give stages, micro-batches and the mesh, so that nothing is searched",
        )


def _num_stages(module: ir.Operation, ops: Iterable[ir.Operation]) -> int | None:
    """Returns in how many stages ops of a module are, None where it is not cut."""
    marks = [virtual for op in ops if (virtual := virtual_stage_of(op)) is not None]
    return num_stages_of(module, marks) if marks else None


def _for_stages(shares: tuple[float, ...], num_stages: int | None) -> tuple[float, ...]:
    """Returns the share that each stage recomputes."""
    if len(shares) == 1:
        return shares * (num_stages or 1)
    if len(shares) != num_stages:
        found = "the step has no stages" if num_stages is None else f"the step is in {num_stages} stages"
        raise _malformed(f"remat has {len(shares)} values, and {found}", "give one share, or one for each stage")
    return shares


def _malformed(what: str, fix: str) -> RhinoError:
    return RhinoError("RHI-REMAT-001", what, fix=fix)


def _with_slices(begun: Begun, in_flight: Mapping[int, int]) -> Stash:
    """Returns the stash, in which some stages keep the slices of the batch.

    A stage with all micro-batches in flight has read the whole batch before its backward pass begins. To slice it again
    would keep all of it until then, which takes as much as the slices.
    """
    if not begun.is_staged:
        return begun.stash
    slices = {
        value
        for unit in begun.stash.units
        if in_flight.get(unit.stage, 0) >= begun.num_micro_batches
        if begun.graph.cls(unit.op).name == _SLICE and not unit.reads
        for value in unit.makes
    }
    return replace(begun.stash, saved=begun.stash.saved | slices)


def _remarks(
    program: Program, stash: Stash, choices: Sequence[StageChoice], *, staged: bool
) -> list[tuple[Place, str]]:
    """Returns remarks: on each stage, and on loops that make much of the stash."""
    remarks = []
    for one in choices:
        num_ops = sum(len(block.ops) for block in one.blocks)
        where = f"stage {one.stage}: " if staged else ""
        kept = f"{format_bytes(one.kept_bytes)} of {format_bytes(one.stash_bytes)} are kept for the backward pass"
        again = (
            f"{num_ops} ops in {len(one.blocks)} pieces run again, {format_seconds(one.added_s)} more per micro-batch "
            f"(gap {one.gap:.2%})"
        )
        if one.hosted:
            values = f"{len(one.hosted)} value{'s' if len(one.hosted) != 1 else ''}"
            again += (
                f", {format_seconds(one.host_s)} of it to bring {values} ({format_bytes(one.host_bytes)}) to host "
                "memory and back"
            )
        remarks.append(
            (Place(program.file), f"{where}{kept}; {again}; at most {format_bytes(one.alive_bytes)} are live")
        )
    for unit in (unit for unit in stash.units if program.graph.cls(unit.op).name == WHILE):
        size = sum(stash.num_bytes[value] for value in unit.makes if value in stash.late)
        total = max(stash.total_bytes(unit.stage), 1)
        if size > _LARGE_SHARE * total:
            share = f"{size / total:.0%} of what the backward pass reads"
            what = (
                f"this loop makes {share} ({format_bytes(size)}), round by round: it runs again as a whole or not at "
                "all"
            )
            remarks.append((place_of(program.ops[unit.op].location, program.file), what))
    return remarks
