"""Cut an accumulation program into one function for each stage and phase, with explicit inputs and outputs.

Reads     `rhino.micro_batches` on the loop over micro-batches, `rhino.virtual_stage` on the ops of its body,
          `rhino.stage` on those after it, `sdy.mesh`, `sdy.sharding` and `rhino.carried` where the program is sharded.
Writes    the module as `rhino.ir.program.staged_module` describes it. Equal functions are one. What follows from
          constants and the micro-batch's number alone is computed wherever it is read, and so is a tensor that scalars
          are spread over, so that scalars cross; what stands before the loop, in each stage that reads it. What the
          backward pass can make of what is kept for it anyway, it makes again
          (strategies/pipeline/activation_stash.py). A sum whose summands are made on several ranks is added up on each,
          and joined after the loop (passes/pipeline/partial_accumulation.py). A step in one stage (`rhino.num_stages =
          1`) is one program, its loop with it (passes/pipeline/one_stage.py).
Errors    RHI-SPLIT-001 no loop over micro-batches, RHI-SPLIT-002 an op without a stage or with one that cannot be,
          RHI-STAGE-003 a stage where a virtual stage stands, or the other way round,
          RHI-READ-005 no entry function, RHI-SHARD-001 a sharding that the module's mesh does not have, RHI-LOCAL-001
          an op that cannot run between the shardings around it, or layers that stand for several.
Source    Rhino 6.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import func, ir, sdy, stablehlo
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.memory_kinds import is_on_host, lies_on_host, remove_memory_kind, write_memory_kinds
from rhino.ir.mlir.reader import entry_function, maker_of, walk
from rhino.ir.mlir.shardings import SHARDING, module_mesh
from rhino.ir.plan.instructions import Phase
from rhino.ir.plan.stage_programs import MICRO_BATCH
from rhino.ir.plan.stages import VirtualStages
from rhino.ir.program.accumulation import (
    Accumulation,
    AnyValue,
    Counter,
    accumulation_loop,
    carried_number,
    outside,
    read_accumulation,
    reads_of,
)
from rhino.ir.program.folded_layers import refuse_folded
from rhino.ir.program.local_rules import CUSTOM_CALL
from rhino.ir.program.numerics import FUSIBLE
from rhino.ir.program.op_stages import num_stages_of, refuse_misplaced, remove_stages, stage_of, virtual_stage_of
from rhino.ir.program.program import CARRIED
from rhino.ir.program.staged_module import (
    NUM_STAGES,
    STAGE_GROUPS,
    StagedPart,
    argument_names,
    declare_step,
    program_boundary,
    write_staged,
)
from rhino.passes.base import Pass, Remarks, opt
from rhino.passes.pipeline.mesh_views import alike_stages, drop_views, has_views, show
from rhino.passes.pipeline.one_stage import make_one_program
from rhino.passes.pipeline.partial_accumulation import keep_sums_apart
from rhino.passes.pipeline.sharded_step import sharded_plan
from rhino.passes.unsharded import UNSHARDED_ERRORS, unsharded_program
from rhino.strategies.choice.sharding_plan_costs import local_bytes, runs_alone
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.pipeline.stages.stage_problem import OPEN
from rhino.strategies.structure.training_phases import parts_of

REPEATED: Final = "rhino.repeated"
"""On an op of a forward pass: the backward pass of its stage does it again. Only while a step is cut."""


@dataclass(frozen=True)
class SplitStages(Pass):
    """Cut an accumulation program into one function for each stage and phase."""

    name: ClassVar[str] = "rhino-split-stages"
    errors: ClassVar[tuple[str, ...]] = (
        "RHI-SPLIT-001",
        "RHI-SPLIT-002",
        "RHI-STAGE-003",
        "RHI-LOCAL-001",
        *UNSHARDED_ERRORS,
    )

    split_backward: bool = opt(
        False, "true = a backward in two: input gradients, which other stages wait for, and weight gradients"
    )

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Splits `module` in place."""
        refuse_folded(module, remarks.file)
        if NUM_STAGES in module.attributes and ir.IntegerAttr(module.attributes[NUM_STAGES]).value == 1:
            make_one_program(module, entry_function(module, remarks.file))
            return
        accumulation = read_accumulation(entry_function(module, remarks.file), remarks.file)
        refuse_misplaced(accumulation.body, accumulation.after, remarks.file)
        num_stages = _num_stages(module, accumulation)
        if not has_views(module):  # else it was done before shardings were chosen for each mesh
            keep_sums_apart(accumulation, num_stages)
        del accumulation  # as rules come and go, ops are others
        _mark_repeated(module, num_stages, remarks)
        entry = entry_function(module, remarks.file)
        accumulation = read_accumulation(entry, remarks.file)
        splitter = Splitter(module, accumulation, remarks.file)
        drafts = splitter.drafts(split_backward=self.split_backward)
        parts, results = splitter.build(drafts)
        num_stages, num_micro_batches = splitter.num_stages, accumulation.num_micro_batches
        declare_step(entry, splitter.names)
        del splitter, accumulation, drafts
        entry.operation.erase()
        drop_views(module)
        write_staged(module, share_equal(module, parts), num_stages, num_micro_batches, results)


@dataclass(eq=False)
class Draft:
    """A part to be: its ops in program order, and by name the values of it that others read."""

    phase: Phase
    stage: int
    label: str
    ops: list[ir.Operation] = field(default_factory=list)
    gives: dict[str, AnyValue] = field(default_factory=dict)
    names: dict[AnyValue, str] = field(default_factory=dict)

    def name(self, value: AnyValue) -> str:
        """Returns the name under which this part gives a value; it gives it from now on."""
        if value not in self.names:
            self.names[value] = f"{self.label}.{len(self.names)}"
            self.gives[self.names[value]] = value
        return self.names[value]


@dataclass(eq=False)
class Splitter:
    """Cuts an accumulation program into drafts, and makes functions of them."""

    module: ir.Operation
    program: Accumulation
    file: str

    def __post_init__(self) -> None:
        program = self.program
        self.num_stages = _num_stages(self.module, program)
        self.virtual = VirtualStages(self.num_stages)
        self.names = argument_names(program.entry)
        self._read_shardings()
        self.home: dict[AnyValue, Draft] = {}
        """The draft that gives each value of the body and after it, unless it is free."""
        self.setups = [Draft("setup", stage, f"setup_{stage}") for stage in range(self.num_stages)]
        self.spread = _spread(program)
        self.given_as: dict[str, ir.Attribute | None] = {}
        """The shardings of results that leave in another than their value is stored in."""
        self.result_names: list[str] = []
        self.sums = {sum_name(number): argument for number, argument, _ in program.accumulated()}
        self.repeated: set[AnyValue] = {
            result for op in program.body if REPEATED in op.attributes for result in op.results
        }
        """What the backward pass of its stage makes again."""
        self.before: set[AnyValue] = {result for op in program.before for result in op.results}

    def show(self, stage: int) -> None:
        """Shows the shardings of a stage's mesh, where stages are on unlike ones."""
        if show(self.module, stage):
            self._read_shardings()

    def _read_shardings(self) -> None:
        entry, loop = self.program.entry, self.program.loop
        self.argument_attributes = boundary_attributes(entry, "arg")
        self.result_attributes = boundary_attributes(entry, "res")
        self.carried_shardings = list(ir.ArrayAttr(loop.attributes[CARRIED])) if CARRIED in loop.attributes else []

    # Which op goes where

    def drafts(self, *, split_backward: bool) -> list[Draft]:
        """Returns the parts but `setup`, each after those that it reads."""
        found: dict[tuple[int, int], Draft] = {}
        made_in: dict[AnyValue, int] = {}
        for op in self.program.body:
            if self.is_anywhere(op):
                continue
            stage = self.virtual.stage(self.virtual_stage_of(op))
            latest = max(
                (made_in[one] for value in reads_of(op) for one in self.made_of(value) if one in made_in), default=0
            )
            if latest > stage.virtual:
                raise self.refused(
                    op,
                    f"of virtual stage {stage.virtual} reads what virtual stage {latest} makes",
                    "let stages only grow along the program",
                )
            made_in.update(dict.fromkeys(op.results, stage.virtual))
            place = (0, stage.virtual)
            if place not in found:
                phase: Phase = "forward" if stage.virtual < self.num_stages - 1 else "backward"
                found[place] = Draft(phase, stage.device, f"{phase}_{stage.device}")
            self.put(op, found[place])
        self.apply(found)
        drafts = [found[place] for place in sorted(found)]
        if split_backward:
            drafts = [part for draft in drafts for part in self.divided(draft)]
        return drafts

    def is_anywhere(self, op: ir.Operation) -> bool:
        """Says whether an op is computed wherever its result is read."""
        return bool(op.results) and (op.results[0] in self.program.free or op.results[0] in self.spread)

    def is_made_in(self, value: AnyValue, reader: Draft | None) -> bool:
        """Says whether a part computes what it reads of others; with None whether every part does."""
        if value in self.spread:
            return True
        if reader is None or value not in self.repeated:
            return False
        home = self.home[value]
        return home is not reader and home.stage == reader.stage

    def made_of(self, value: AnyValue, reader: Draft | None = None) -> list[AnyValue]:
        """Returns what a part takes from others where it reads a value: the value itself, or what it makes that of."""
        found: dict[AnyValue, None] = {}
        waiting, seen = [value], {value}
        while waiting:
            one = waiting.pop()
            made = maker_of(one) if self.is_made_in(one, reader) else None
            if made is None:
                found[one] = None
                continue
            new = [source for source in reversed(made.operands) if source not in seen]
            waiting += new
            seen.update(new)
        return list(found)

    def put(self, op: ir.Operation, draft: Draft) -> None:
        """Puts an op into a draft."""
        draft.ops.append(op)
        self.home.update(dict.fromkeys(op.results, draft))

    def apply(self, found: dict[tuple[int, int], Draft]) -> None:
        """Drafts what follows the loop: in each stage as many parts as values go from stage to stage and back."""
        level: dict[AnyValue, tuple[int, int]] = {}
        for op in self.program.after:
            if self.is_anywhere(op):
                continue
            stage = self.stage_of(op)
            read = [value for one in reads_of(op) for value in self.made_of(one)]
            own = max((at + (where != stage) for at, where in (level[v] for v in read if v in level)), default=0)
            level.update(dict.fromkeys(op.results, (own, stage)))
            place = (1 + own, stage)
            if place not in found:
                found[place] = Draft("apply", stage, f"apply_{stage}" + (f"_{own}" if own else ""))
            self.put(op, found[place])

    def virtual_stage_of(self, op: ir.Operation) -> int:
        """Returns the virtual stage of an op of the body."""
        return self.checked(op, virtual_stage_of(op), "virtual stage", self.virtual.last)

    def stage_of(self, op: ir.Operation) -> int:
        """Returns the stage of an op after the loop."""
        return self.checked(op, stage_of(op), "stage", self.num_stages - 1)

    def checked(self, op: ir.Operation, stage: int | None, kind: str, most: int) -> int:
        """Returns a stage that is from 0 to `most`. Raises RHI-SPLIT-002 for any other."""
        if stage is None:
            fix = "assign stages first, for example with rhino-pipeline-stages{stages=2}"
            raise self.refused(op, f"has no {kind}", fix)
        if not 0 <= stage <= most:
            raise self.refused(op, f"is of {kind} {stage}, of 0 to {most}", "assign stages anew")
        return stage

    def refused(self, op: ir.Operation, what: str, fix: str) -> RhinoError:
        """Returns the error that an op cannot be cut so."""
        return RhinoError("RHI-SPLIT-002", f"'{op.name}' {what}", place_of(op.location, self.file), fix=fix)

    def divided(self, draft: Draft) -> Iterator[Draft]:
        """Yields a backward part as two parts: what other stages wait for, and the rest.

        Any part is yielded unchanged where there are not both.
        """
        body = self.program.body
        read = {
            source
            for op in body
            if self.home_of(op) is not draft
            for value in reads_of(op)
            for source in self.made_of(value)
        }
        needed: list[ir.Operation] = []
        rest: list[ir.Operation] = []
        for op in reversed(draft.ops):
            is_needed = any(result in read for result in op.results)
            (needed if is_needed else rest).append(op)
            read.update(source for value in (reads_of(op) if is_needed else ()) for source in self.made_of(value))
        if draft.phase != "backward" or not needed or not rest:
            yield draft
            return
        halves: tuple[tuple[Phase, list[ir.Operation]], ...] = (
            ("input-gradient", needed),
            ("weight-gradient", rest),
        )
        for phase, ops in halves:
            half = Draft(phase, draft.stage, f"{phase.replace('-', '_')}_{draft.stage}")
            for op in reversed(ops):
                self.put(op, half)
            yield half

    def maker(self, value: AnyValue) -> Draft | None:
        """Returns the draft that gives a value which others read: of a sum, that which accumulates it."""
        number = carried_number(value, self.program.loop)
        return self.home.get(value if number is None else self.program.following[number])

    def home_of(self, op: ir.Operation) -> Draft | None:
        """Returns the draft that an op is in."""
        return self.home.get(op.results[0]) if op.results else None

    # Names

    def build(self, drafts: list[Draft]) -> tuple[list[StagedPart], list[str]]:
        """Makes the functions of `drafts` and of the setups before them.

        Returns the parts, and the names of the step's results.
        """
        self.accumulate()
        self.result_names = self.results(drafts)
        for draft in drafts:
            for op in draft.ops:
                for value in reads_of(op):
                    for source in self.made_of(value, draft):
                        self.note_reader(source, draft)
        used = [draft for draft in (*self.setups, *drafts) if draft.ops or draft.gives]
        writers = [Writer(self, draft) for draft in used]
        parts = [writer.part() for writer in writers]
        there = self.on_host(parts) | {
            name for draft in used for name, value in draft.gives.items() if lies_on_host(value)
        }
        for writer, part in zip(writers, parts, strict=True):
            write_memory_kinds(writer.function, "arg", [at for at, name in enumerate(part.reads) if name in there])
            write_memory_kinds(writer.function, "res", [at for at, name in enumerate(part.gives) if name in there])
        return parts, self.result_names

    def accumulate(self) -> None:
        """Lets setups give what the loop starts from, and drafts what they make of it."""
        for number, _, value in self.program.accumulated():
            draft = self.home.get(value)
            if draft is None:
                raise self.refused(
                    self.program.loop,
                    f"carries value {number}, which no stage makes",
                    "accumulate what the body computes",
                )
            draft.gives[sum_name(number)] = value
            self.setups[draft.stage].gives[sum_name(number)] = self.program.loop.operands[number]

    def on_host(self, parts: Sequence[StagedPart]) -> set[str]:
        """Returns the names of what lies in host memory: arguments, and the results that take over their buffers.

        An argument of several stages goes from rank to rank, and lies on the devices.
        """
        found = set[str]()
        for number, (name, attributes) in enumerate(zip(self.names, self.argument_attributes, strict=True)):
            if not is_on_host(attributes):
                continue
            alias = ir.IntegerAttr(attributes[ALIAS]).value if ALIAS in attributes else None
            both = {name} if alias is None else {name, self.result_names[alias]}
            if len({part.stage for part in parts if not both.isdisjoint((*part.reads, *part.gives))}) > 1:
                remove_memory_kind(self.program.entry, "arg", number)
                if alias is not None:
                    remove_memory_kind(self.program.entry, "res", alias)
            else:
                found |= both
        return found

    def note_reader(self, value: AnyValue, reader: Draft) -> None:
        """Sees to it that what `reader` reads is given."""
        kept = outside(value, self.program.loop, self.program.carried)
        value = value if kept is None else kept
        if value in self.program.free:
            return
        if value in self.before:
            self.setups[reader.stage].name(value)
        elif value in self.home and self.home[value] is not reader:
            self.home[value].name(value)

    def name_of(self, value: AnyValue, reader: Draft) -> str:
        """Returns the name by which `reader` reads a value that is not free."""
        number = carried_number(value, self.program.loop)
        if number is not None:
            assert self.program.carried[number] is None, "kept values and counters are resolved before"
            owner = self.home[self.program.following[number]]
            if isinstance(value, ir.BlockArgument) and owner is not reader:
                raise self.refused(
                    self.program.loop,
                    f"accumulates value {number} in one stage and reads it in another",
                    "assign stages anew",
                )
            return sum_name(number)
        if isinstance(value, ir.BlockArgument):
            return self.names[value.arg_number]
        if value in self.before:
            return self.setups[reader.stage].names[value]
        return self.home[value].names[value]

    def results(self, drafts: list[Draft]) -> list[str]:
        """Returns the names of the step's results.

        The first stage gives a result that no part gives yet, or that a part gives in another sharding.
        """
        names = []
        for number, returned in enumerate(self.program.returned):
            kept = outside(returned, self.program.loop, self.program.carried)
            value = returned if kept is None else kept
            source = self.home.get(value) or (self.setups[0] if value in self.before else None)
            self.show(source.stage if source is not None else 0)
            requested = self.result_attributes[number].get(SHARDING)
            moved = requested is not None and requested != self.sharding_of(value)
            if moved or (source is None and value in self.program.free):
                source = source or self.last_apply(drafts)
                names.append(_result(number))
                source.gives[names[-1]] = value
                self.given_as[names[-1]] = requested
                self.note_reader(value, source)
            else:
                names.append(source.name(value) if source is not None else self.name_of(value, self.setups[0]))
        return names

    def last_apply(self, drafts: list[Draft]) -> Draft:
        """Returns the last part of the first stage."""
        last = next((draft for draft in reversed(drafts) if draft.phase == "apply" and draft.stage == 0), None)
        if last is None:
            last = Draft("apply", 0, "apply_0")
            drafts.append(last)
        return last

    def stands_for(self, op: ir.Operation, writer: Writer) -> bool:
        """Says whether a call stands for something else, which is then what `writer` writes."""
        return False

    def sharding_of(self, value: AnyValue) -> ir.Attribute | None:
        """Returns how a value is stored, where the program is sharded."""
        number = carried_number(value, self.program.loop)
        if number is not None:
            return self.carried_shardings[number] if self.carried_shardings else None
        if isinstance(value, ir.BlockArgument):
            return self.argument_attributes[value.arg_number].get(SHARDING)
        made, at = maker_of(value), ir.OpResult(value).result_number
        found: ir.Attribute | None = None
        if made is not None and CARRIED in made.attributes:
            found = ir.ArrayAttr(made.attributes[CARRIED])[at]
        elif made is not None and SHARDING in made.attributes:
            found = sdy.TensorShardingPerValueAttr(made.attributes[SHARDING]).shardings[at]
        return found


class Writer:
    """Writes the function of one draft."""

    def __init__(self, splitter: Splitter, draft: Draft) -> None:
        self.splitter, self.draft, self.program = splitter, draft, splitter.program
        self.function = func.FuncOp(
            draft.label,
            ir.FunctionType.get([], []),
            visibility="private",
            ip=ir.InsertionPoint(self.program.entry),
            loc=ir.Location.unknown(),
        )
        self.block = self.function.add_entry_block()
        self.end = ir.InsertionPoint(self.block)
        self.values: dict[AnyValue, AnyValue] = {}
        self.reads: dict[str, AnyValue] = {}
        self.read_shardings: list[ir.Attribute | None] = []

    def part(self) -> StagedPart:
        """Writes the function, and returns what it is of the step."""
        draft = self.draft
        self.splitter.show(draft.stage)
        for op in draft.ops:
            self.clone(op)
        returned = [self.value(value) for value in draft.gives.values()]
        with self.end, ir.Location.unknown():
            func.ReturnOp(returned)
        set_function_type(self.function)
        self.write_boundary()
        return StagedPart(draft.phase, draft.stage, draft.label, tuple(self.reads), tuple(draft.gives))

    def clone(self, op: ir.Operation) -> None:
        """Writes an op, on what stands here for the values that it reads."""
        if op.name == CUSTOM_CALL and self.splitter.stands_for(op, self):
            return
        new = {value: self.value(value) for value in reads_of(op)}
        copy = op.clone(ip=self.end)
        for inner in walk(copy) if len(copy.regions) else (copy,):
            for number, operand in enumerate(inner.operands):
                if operand in new:
                    inner.operands[number] = new[operand]
        remove_stages(copy)
        if REPEATED in copy.attributes:
            del copy.attributes[REPEATED]
        self.values.update(zip(op.results, copy.results, strict=True))

    def value(self, value: AnyValue) -> AnyValue:
        """Returns what stands for a value here: made in this part, computed anew, or an argument."""
        kept = outside(value, self.program.loop, self.program.carried)
        value = value if kept is None else kept
        if value not in self.values:
            number = carried_number(value, self.program.loop)
            counter = self.program.carried[number] if number is not None else None
            if isinstance(counter, Counter):
                self.values[value] = self.counted(value, counter)
            elif (
                value in self.program.free
                or self.splitter.is_made_in(value, self.draft)
                or (self.draft.phase == "setup" and value in self.splitter.before)
            ):
                made = maker_of(value)
                assert made is not None, "arguments are neither free nor of the setup"
                self.clone(made)
            else:
                self.values[value] = self.read(
                    self.splitter.name_of(value, self.draft), value.type, self.splitter.sharding_of(value)
                )
        return self.values[value]

    def counted(self, value: AnyValue, counter: Counter) -> AnyValue:
        """Returns a counter of the loop, in its body or as it ends."""
        kind = ir.RankedTensorType(value.type)
        with self.end, ir.Location.unknown():
            if not isinstance(value, ir.BlockArgument):
                return _integer(kind, counter.start + counter.step * self.program.num_micro_batches)
            i32 = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
            replicated = self.splitter.carried_shardings and ir.Attribute.parse(_replicated(self.splitter.module))
            made = self.read(MICRO_BATCH, i32, replicated or None)
            made = made if kind == i32 else stablehlo.ConvertOp(kind, made).result
            made = made if counter.step == 1 else stablehlo.MulOp(made, _integer(kind, counter.step)).result
            return made if counter.start == 0 else stablehlo.AddOp(made, _integer(kind, counter.start)).result

    def read(self, name: str, kind: ir.Type, sharding: ir.Attribute | None) -> AnyValue:
        """Returns the argument that is the value of a name; `sharding` is how it lies."""
        if name not in self.reads:
            self.reads[name] = self.block.add_argument(kind, ir.Location.unknown())
            self.read_shardings.append(sharding)
        return self.reads[name]

    def write_boundary(self) -> None:
        """Writes how arguments and results lie, and which buffers are taken over."""
        taken: dict[str, int] = {}
        gives = list(self.draft.gives)
        for name in self.reads:
            if name in gives:
                taken[name] = gives.index(name)
        for name, alias in self.aliases():
            if name in self.reads and alias in gives and gives.index(alias) not in taken.values():
                taken.setdefault(name, gives.index(alias))
        arguments = [
            program_boundary(sharding, taken.get(name))
            for name, sharding in zip(self.reads, self.read_shardings, strict=True)
        ]
        set_boundary_attributes(self.function, "arg", arguments)
        set_boundary_attributes(
            self.function, "res", [program_boundary(self.stored(*item)) for item in self.draft.gives.items()]
        )

    def stored(self, name: str, value: AnyValue) -> ir.Attribute | None:
        """Returns how a given value is stored: what is accumulated, as the loop carries it."""
        if name in self.splitter.given_as:
            return self.splitter.given_as[name]
        argument = self.splitter.sums.get(name)
        return self.splitter.sharding_of(value if argument is None else argument)

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Yields an argument of the step and the value that its buffer may become."""
        for name, attributes in zip(self.splitter.names, self.splitter.argument_attributes, strict=True):
            if ALIAS in attributes:
                yield name, self.splitter.result_names[ir.IntegerAttr(attributes[ALIAS]).value]


def _mark_repeated(module: ir.Operation, num_stages: int, remarks: Remarks) -> None:
    """Marks the ops that the backward pass of their stage does again."""
    virtual_stages = VirtualStages(num_stages)
    for alike in alike_stages(module, num_stages):
        show(module, alike[0])
        with unsharded_program(module, remarks) as program:
            loop = accumulation_loop(program)
            plan = sharded_plan(program, module)
            found = [virtual_stage_of(op) for op in program.ops]
            stage = np.array([OPEN if virtual is None else virtual for virtual in found])
            parts = parts_of(program.graph, loop, np.zeros(program.graph.num_ops))
            split = SplitMicroBatch(program.graph, parts, local_bytes(plan), runs_alone(plan))
            for forward in (one for one in alike if one < num_stages - 1):
                for value in sorted(split.between(stage, forward, virtual_stages.opposite(forward)).again):
                    program.ops[int(program.graph.value_op[value])].attributes[REPEATED] = ir.UnitAttr.get()


def crossing_values(module: ir.Operation, file: str) -> dict[AnyValue, set[int]]:
    """Returns the values of a step that is cut which go from stage to stage, with the stages of all that is there.

    Raises:
        RhinoError: RHI-SPLIT-001 and RHI-SPLIT-002 where it cannot be split.
    """
    splitter = Splitter(module, read_accumulation(entry_function(module, file), file), file)
    found: dict[AnyValue, set[int]] = {}
    for draft in splitter.drafts(split_backward=False):
        for value in (source for op in draft.ops for one in reads_of(op) for source in splitter.made_of(one, draft)):
            home = splitter.maker(value)
            if home is not None and home.stage != draft.stage:
                found.setdefault(value, {home.stage}).add(draft.stage)
    return found


def _spread(program: Accumulation) -> set[AnyValue]:
    """The tensors that scalars alone are spread over, in the body and after it, but what is accumulated or returned."""
    kept = {*program.following, *program.returned}
    spread: set[AnyValue] = set()
    for op in (*program.body, *program.after):
        if (
            op.name not in FUSIBLE
            or len(op.results) != 1
            or op.results[0] in program.free
            or op.results[0] in kept
            or not _rank(op.results[0])
        ):
            continue
        if op.operands and all(not _rank(value) or value in program.free or value in spread for value in op.operands):
            spread.add(op.results[0])
    return spread


def _rank(value: AnyValue) -> int:
    return len(ir.RankedTensorType(value.type).shape)


def _result(number: int) -> str:
    """Returns the name of the step's result `number` where it is not that of a value."""
    return f"result {number}"


def sum_name(number: int) -> str:
    """Returns the name of the loop's accumulated value `number`."""
    return f"sum {number}"


def _num_stages(module: ir.Operation, program: Accumulation) -> int:
    marked = (virtual_stage_of(op) for op in program.body)
    return num_stages_of(module, [virtual for virtual in marked if virtual is not None])


def _integer(kind: ir.RankedTensorType, number: int) -> AnyValue:
    splat = ir.DenseElementsAttr.get_splat(kind, ir.IntegerAttr.get(kind.element_type, number))
    result: AnyValue = stablehlo.ConstantOp(splat).result
    return result


def _replicated(module: ir.Operation) -> str:
    found = module_mesh(module)
    assert found is not None, "only sharded loops have carried shardings"
    return f"#sdy.sharding<@{found[0]}, []>"


def share_equal(module: ir.Operation, parts: Sequence[StagedPart]) -> list[StagedPart]:
    """Keeps one of equal functions; returns the parts with the names of those that are kept.

    Those of unlike devices are not equal: each is compiled for its own.
    """
    groups: Sequence[int] = ()
    if STAGE_GROUPS in module.attributes:
        groups = list(ir.DenseI64ArrayAttr(module.attributes[STAGE_GROUPS]))
        del module.attributes[STAGE_GROUPS]
    functions = {op.name.value: op for op in module.regions[0].blocks[0].operations if isinstance(op, func.FuncOp)}
    first: dict[tuple[str, int], str] = {}
    shared = []
    for part in parts:
        function = functions[part.function]
        text = str(function).replace(f"@{part.function}(", "@(", 1)
        name = first.setdefault((text, groups[part.stage] if groups else 0), part.function)
        if name != part.function:
            function.operation.erase()
        shared.append(StagedPart(part.phase, part.stage, name, part.reads, part.gives))
    return shared
