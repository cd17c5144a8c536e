"""Rewrite an annotated module into the program that each device runs, with its collectives.

Reads     `sdy.mesh`, `sdy.sharding` on values, and `rhino.strategy` on ops. An op without a strategy runs in the way
          that sends the fewest bytes between the shardings that its operands and results have.
Writes    local shapes, and `stablehlo` collectives exactly where the shardings and strategies say; `sdy.sharding` stays
          on the entry's arguments and results. What lies in host memory is brought to the device and back. The
          rewriting of ops is Shardy's (`sdy-convert-global-to-local`); which collective stands where is decided here,
          because Shardy's own insertion chooses how an op runs by tensor sizes, and always adds what it should
          sometimes maximise.
Errors    RHI-LOCAL-001 cannot be localized, RHI-READ-005 no entry function, RHI-SHARD-001 a bad sharding.

Partial results. Shardy's conversion insists that a product or gather with a split reduction is followed by one
`sdy.all_reduce`. Where a plan lets the partial sum flow on, that op is put there for the conversion's sake, marked by
its location, and taken out afterwards. Its all-reduces add; one that has to maximise is marked in the same way, and its
body replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rhino.ir.calls.known_calls import fit_call, give_place, note_call, places_of
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.graph.graph import BARRIER, WHILE, YIELD, Graph
from rhino.ir.graph.rules import RULE
from rhino.ir.graph.spec import (
    REPLICATED,
    Spec,
    entry,
    pack,
    partial_axes,
    split,
    split_axes,
    split_dim,
    unpack,
    without_partial,
)
from rhino.ir.mlir.bindings import ir, passmanager, sdy, stablehlo
from rhino.ir.mlir.fixed_region import MANUAL, SetAside, put_back, set_aside
from rhino.ir.mlir.locations import place_of
from rhino.ir.mlir.manual import LOCAL, copy_module
from rhino.ir.mlir.memory_kinds import write_transfers
from rhino.ir.mlir.outline import OutlinedLoop, inline_loops, outline_loops
from rhino.ir.mlir.reader import entry_function, maker_of, walk
from rhino.ir.mlir.shardings import (
    FORBIDDEN,
    PROVENANCE,
    SHARDING,
    axis_names,
    layout_attribute,
    module_mesh,
    per_value_attribute,
    sharding_attribute,
)
from rhino.ir.program.collectives import module_stats
from rhino.ir.program.folded_layers import refuse_folded
from rhino.ir.program.local_rules import CUSTOM_CALL, PAD
from rhino.ir.program.program import CARRIED, COST, Program, read_program
from rhino.passes.base import Pass, Remarks
from rhino.passes.sharding.choose_shardings import STRATEGY
from rhino.passes.sharding.halo_exchange import HaloOp, is_strided, put_halo_ops_back, set_halo_op_aside
from rhino.passes.sharding.indexed_ops import GATHER, INDEXED, prepare, put_right
from rhino.passes.sharding.pack_collectives import PackCollectives
from rhino.passes.with_rules import run_on_functions
from rhino.strategies.choice.sharding_plan import ShardingPlan, forwarding_state, implied, loop_states, sent_bytes
from rhino.strategies.cost.candidates import State, replicate, strategies, strategy_name
from rhino.strategies.cost.halo_exchange import exchanges
from rhino.strategies.cost.reshard import LayoutStep, reshard_path
from rhino.strategies.memory.host_memory import on_host

_GLOBAL = (SHARDING, STRATEGY, CARRIED, RULE, COST, FORBIDDEN, PROVENANCE)
"""What annotates ops of the global program."""

_MARK = "rhino.partial"
_MONOID = "rhino.monoid."
_CHECKED = frozenset({"stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution", "stablehlo.gather"})
"""Ops whose partial results Shardy's conversion wants all-reduced at once."""
_REDUCTIONS = frozenset({"stablehlo.all_reduce", "stablehlo.reduce_scatter"})
_HIGH = "edge_padding_high"
_JOINED = frozenset({"stablehlo.concatenate", PAD})
"""Ops whose operands XLA may hand to an all-to-all one by one."""


@dataclass(frozen=True)
class Localize(Pass):
    """Rewrite an annotated module into each device's program, collectives spelled out."""

    name: ClassVar[str] = "rhino-localize"
    errors: ClassVar[tuple[str, ...]] = ("RHI-LOCAL-001", "RHI-READ-005", "RHI-SHARD-001")

    def run(self, module: ir.Operation, remarks: Remarks) -> None:
        """Localizes `module` in place."""
        if LOCAL in module.attributes:
            raise RhinoError(
                "RHI-LOCAL-001",
                "the module is the program of one device already",
                Place(remarks.file),
                fix="localize the annotated module",
            )
        refuse_folded(module, remarks.file)
        found = module_mesh(module)
        if found is None:
            raise RhinoError(
                "RHI-LOCAL-001",
                "the module has no mesh",
                Place(remarks.file),
                fix="annotate it first, for example with rhino-opt --auto-shard",
            )
        mesh_name, mesh = found
        rewrite(module, mesh_name, mesh.names, lambda: read_plan(module, mesh, remarks), remarks)
        for op in walk(module):
            if op.name == "stablehlo.fft":
                _lay_in_rows(op)
        write_transfers(entry_function(module))
        module.attributes[LOCAL] = ir.UnitAttr.get()
        remarks.record(module_stats(module))


def localized_copy(module: ir.Module, file: str = "") -> ir.Module:
    """Returns the per-device program of an annotated module, which stays as it is; its collectives are joined."""
    copy = copy_module(module)
    with copy.context, ir.Location.unknown():
        for one in (Localize(), PackCollectives()):
            one.run(copy.operation, Remarks(file))
    return copy


def rewrite(
    module: ir.Operation,
    mesh_name: str,
    axes: tuple[str, ...],
    read: Callable[[], tuple[ShardingPlan, Program]],
    remarks: Remarks,
) -> None:
    """Rewrites `module` into what each device runs by the plan that `read` returns.

    `read` also returns a program of the module's ops with their rules.

    The shardings of the entry's arguments and results are those that the module says, and have to be the plan's.
    """
    plan, program = read()
    inserter = _Inserter(program, plan, mesh_name, axes)
    inserter.run()
    loops, asides, halo_ops, sizes = inserter.loops(), inserter.asides, inserter.halo_ops, plan.sizes
    del inserter, plan, program  # no handle of an op outlives a conversion
    for op in walk(module):
        if op.name == CUSTOM_CALL:
            note_call(op)
    _convert(module, remarks)
    inline_loops(module, loops)
    put_back(module, asides)
    put_halo_ops_back(module, halo_ops, sizes)
    _finish(module)


def read_plan(module: ir.Operation, mesh: Mesh, remarks: Remarks) -> tuple[ShardingPlan, Program]:
    """Returns the plan that the module's annotations are, and the program it is for."""
    run_on_functions(module, "sdy-populate-op-sharding-rules")
    program = read_program(entry_function(module, remarks.file), mesh, remarks.file)
    return annotated_plan(program, mesh.shape, remarks.file), program


def annotated_plan(program: Program, sizes: tuple[int, ...], file: str) -> ShardingPlan:
    """Returns the plan that the annotations of a program's ops describe, on a mesh of `sizes`.

    Values without annotations are replicated.
    """
    graph = program.graph
    specs = [min(graph.fixed.get(value, {REPLICATED})) for value in range(graph.num_values)]
    ops: list[State] = []
    known: dict[object, State] = {}
    uses, bounds = graph.uses.tolist(), graph.use_start.tolist()
    for number, (op, kind) in enumerate(zip(program.ops, graph.op_class.tolist(), strict=True)):
        cls = graph.classes[kind]
        if cls.name == BARRIER:
            ops.append(forwarding_state(graph, number, specs))
        elif cls.name in (WHILE, YIELD):
            ops.append(replicate(cls, len(sizes)))  # for now: see below
        else:
            results = graph.results(number)
            read = [specs[value] for value in uses[bounds[number] : bounds[number + 1]]]
            is_zero = bool(results) and results.start in graph.zeros
            key = (kind, op.attributes.get(STRATEGY, None), *read, *specs[results.start : results.stop], is_zero)
            if key not in known:
                known[key] = _state(graph, number, op, specs, sizes, file)
            ops.append(known[key])
    for loop in graph.loops:
        ops[loop.op], ops[loop.end] = loop_states(graph, loop, specs)
    returned = tuple(min(limit) if limit is not None else REPLICATED for limit in graph.return_fixed)
    return ShardingPlan(graph, sizes, tuple(ops), tuple(specs), returned, on_host=frozenset(on_host(graph)))


def _state(
    graph: Graph, number: int, op: ir.Operation, specs: Sequence[Spec], sizes: tuple[int, ...], file: str
) -> State:
    cls = graph.cls(number)
    state: State | None
    if STRATEGY in op.attributes:
        name = ir.StringAttr(op.attributes[STRATEGY]).value
        state = next((s for s in strategies(cls, sizes) if strategy_name(cls, s.strategy) == name), None)
    else:
        state = implied(graph, number, specs, sizes)
    stored = tuple(specs[value] for value in graph.results(number))
    given = tuple(specs[value] for value in graph.operands(number).tolist())
    if state is None or sent_bytes(cls, state, given, stored, sizes) is None:
        raise RhinoError(
            "RHI-LOCAL-001",
            f"'{op.name}' cannot run between the shardings of its operands and results",
            place_of(op.location, file),
            (f"its strategy is {op.attributes[STRATEGY]}",) if STRATEGY in op.attributes else (),
            "shard the module again, with rhino-opt --auto-shard",
        )
    return state


@dataclass(eq=False)
class _Inserter:
    """Puts `sdy` collectives between values and their readers.

    Then every op reads and gives what its strategy needs.
    """

    program: Program
    plan: ShardingPlan
    mesh_name: str
    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        self.values: list[ir.Value[Any]] = list(self.program.entry.arguments)
        """What now stands for each value of the graph, as it is stored."""
        self.asides: list[SetAside] = []
        self.halo_ops: list[HaloOp] = []
        self.shardings: dict[tuple[Spec, int], ir.Attribute] = {}
        self.comings: dict[tuple[int, tuple[Spec, ...]], ir.Attribute | None] = {}
        """By class of ops and how their results come."""

    def run(self) -> None:
        graph, plan = self.program.graph, self.plan
        *_, terminator = self.program.entry.regions[0].blocks[0].operations
        for number, op in enumerate(self.program.ops):
            state = plan.ops[number]
            if op.name == MANUAL:
                aside, op = set_aside(op, number)
                self.asides.append(aside)
            elif (found := exchanges(graph.cls(number), state.strategy, plan.sizes)) or is_strided(op):
                halo_op, op = set_halo_op_aside(op, number, found)
                self.halo_ops.append(halo_op)
            for position, (value, need) in enumerate(
                zip(graph.operands(number).tolist(), state.operand_specs, strict=True)
            ):
                if plan.specs[value] != need:
                    self.read_as(op, position, value, need)
            if op.name in INDEXED:
                self.prepare(op, state)
            if op.name in _CHECKED:
                self.hide_padding(op, state)
            if op.name == CUSTOM_CALL:
                op = self.give_places(op, state)
            self.store(number, op)
        for position, (value, wanted) in enumerate(zip(graph.returns, plan.returned, strict=True)):
            if plan.specs[value] != wanted:
                self.read_as(terminator.operation, position, value, wanted)

    def loops(self) -> list[OutlinedLoop]:
        """Replaces the loops by functions that Shardy converts."""
        graph, specs = self.program.graph, self.plan.specs
        if not graph.loops:
            return []
        known = {value: self.sharding(value, spec) for value, spec in zip(self.values, specs, strict=True)}
        found = []
        for loop in reversed(graph.loops):  # an inner loop begins after the outer one
            op = self.program.ops[loop.op]
            carried = [known[result] for result in op.results]
            for region in op.regions:
                known.update(zip(region.blocks[0].arguments, carried, strict=True))
            found.append((op, carried))
        return outline_loops(self.program.entry.operation.parent, found, known)

    def read_as(self, op: ir.Operation, position: int, value: int, need: Spec) -> None:
        """Makes `op` read a value in spec `need`, which differs from the spec in which the value is stored.

        The value is an operand of `op`, or captured by its regions.
        """
        stored = self.plan.specs[value]
        if not self.program.graph.type_of(value).shape and not partial_axes(stored):
            return
        direct = position < len(op.operands)
        operand = op.operands[position] if direct else self.values[value]
        with ir.InsertionPoint(op), op.location:
            moved = self.move(operand, stored, need)
        if direct:
            op.operands[position] = moved
        else:
            for inner in walk(op):
                inner.replace_uses_of_with(operand, moved)

    def prepare(self, op: ir.Operation, state: State) -> None:
        """Makes an op that indexes a tensor ready for Shardy's conversion."""

        def annotate(made: ir.Operation, position: int) -> None:
            made.attributes[SHARDING] = per_value_attribute(
                [self.sharding(made.results[0], state.operand_specs[position])]
            )

        dims = map(split_dim, unpack(state.operand_specs[0], len(self.axes)))
        prepare(op, [dim for dim in dims if dim is not None], annotate)

    def give_places(self, op: ir.Operation, state: State) -> ir.Operation:
        """Returns a call that knows which part of the whole it is, wherever it asks for that and is split."""
        for place in places_of(op) if any(map(split_axes, state.result_specs)) else ():
            entries = unpack(state.result_specs[place.result], len(self.axes))
            own = pack(split(0) if split_dim(one) == place.dim else REPLICATED for one in entries)
            if own == REPLICATED:
                continue
            numbers = ir.RankedTensorType.get([place.size], ir.IntegerType.get_signless(32, op.context))
            with ir.InsertionPoint(op), op.location:
                table = stablehlo.IotaOp(numbers, 0)
                table.attributes[SHARDING] = per_value_attribute([self.sharding(table.result, REPLICATED)])
                op = give_place(op, place, self.move(table.result, REPLICATED, own))
            del op.attributes[RULE]  # of the call without the table
        return op

    def hide_padding(self, op: ir.Operation, state: State) -> None:
        """Puts a reshape of nothing between what pads and an op whose parts are summed; `_finish` takes it out.

        Shardy's conversion (jaxlib 0.10.2) ends the process over such an operand, unless it sees that the padding is
        zero.
        """
        if not any(_summed(op, state, comes) for comes in state.result_specs):
            return
        for position, operand in enumerate(op.operands):
            made = maker_of(operand)
            if made is not None and made.name == PAD:
                with ir.InsertionPoint(op):
                    hidden = stablehlo.ReshapeOp(operand.type, operand, loc=ir.Location.name(_MARK))
                hidden.attributes[SHARDING] = per_value_attribute(
                    [self.sharding(operand, state.operand_specs[position])]
                )
                op.operands[position] = hidden.result

    def store(self, number: int, op: ir.Operation) -> None:
        """Brings the results of `op` from how they come to how they are stored, and says how they come."""
        state = self.plan.ops[number]
        if op.name == "sdy.sharding_constraint":
            constrained, comes, stored = (
                op.operands[0],
                state.result_specs[0],
                self.plan.specs[self.program.graph.results(number).start],
            )
            if comes != stored:
                with ir.InsertionPoint(op), op.location:
                    constrained = self.move(constrained, comes, stored)
            self.values.append(constrained)
            op.results[0].replace_all_uses_with(constrained)
            op.erase()
            return
        results = list(op.results)
        for value, result, comes in zip(self.program.graph.results(number), results, state.result_specs, strict=True):
            stored = self.plan.specs[value]
            is_there = comes == stored and op.name not in _CHECKED
            self.values.append(result if is_there else self.stored(op, state, result, comes, stored))
        if results and op.name != WHILE and (sharding := self.coming(number, results)) is not None:
            op.attributes[SHARDING] = sharding

    def coming(self, number: int, results: Sequence[ir.Value[Any]]) -> ir.Attribute | None:
        """Returns what says how the results of an op come; None where some are no tensors."""
        comes = self.plan.ops[number].result_specs
        key = (int(self.program.graph.op_class[number]), comes)
        if key not in self.comings:
            tensors = all(map(_is_tensor, results))
            found = (
                [self.sharding(result, spec) for result, spec in zip(results, comes, strict=True)] if tensors else []
            )
            self.comings[key] = per_value_attribute(found) if tensors else None
        return self.comings[key]

    def stored(self, op: ir.Operation, state: State, result: ir.Value[Any], comes: Spec, stored: Spec) -> ir.Value[Any]:
        """Returns `result` brought to the spec that it is stored in; its readers read that."""
        summed = _summed(op, state, comes)
        # As the conversion insists: of a gather by the dims of its operand, of others factor by factor.
        summed.sort(key=lambda axis: entry(state.operand_specs[0], axis) if op.name == GATHER else state.strategy[axis])
        if not summed and comes == stored:
            return result
        uses = list(result.uses)
        with ir.InsertionPoint.after(op), op.location:
            last = result
            if summed:
                last = sdy.AllReduceOp(
                    last, self.refs(summed), self.sharding(last, comes), loc=ir.Location.name(_MARK)
                ).result
            last = self.move(last, comes, stored, state.monoid)
        for use in uses:
            use.owner.operands[use.operand_number] = last
        return last

    def move(self, value: ir.Value[Any], source: Spec, target: Spec, monoid: str = "add") -> ir.Value[Any]:
        """Returns `value` brought from one spec to another, at the insertion point."""
        steps = reshard_path(len(ir.RankedTensorType(value.type).shape), source, target, len(self.axes))
        assert steps is not None, (source, target)
        for step in steps:
            value = self.collective(value, step, monoid)
        return value

    def collective(self, value: ir.Value[Any], step: LayoutStep, monoid: str) -> ir.Value[Any]:
        out = layout_attribute(self.mesh_name, self.axes, step.after)
        location = ir.Location.current if monoid == "add" else ir.Location.name(_MONOID + monoid)
        leaving, arriving = (self.refs_at(dim, step) for dim in (step.source, step.target))
        made: Any
        match step.kind:
            case "all_reduce":
                made = sdy.AllReduceOp(value, self.refs(step.axes), out, loc=location)
            case "reduce_scatter":
                made = sdy.ReduceScatterOp(value, arriving, out, loc=location)
            case "all_gather":
                made = sdy.AllGatherOp(value, leaving, out)
            case "slice":
                made = sdy.AllSliceOp(value, arriving, out)
            case "all_to_all":
                axes = str(self.refs(step.axes)).removeprefix("#sdy<axis_ref_list").removesuffix(">")
                made = sdy.AllToAllOp(
                    value, ir.Attribute.parse(f"#sdy<all_to_all_param_list[{axes}: {step.source}->{step.target}]>"), out
                )
            case _:
                made = sdy.CollectivePermuteOp(value, out)
        result: ir.Value[Any] = made.result
        return result

    def refs(self, axes: Sequence[int]) -> ir.Attribute:
        return ir.Attribute.parse(f"#sdy<axis_ref_list{axis_names(self.axes, axes)}>")

    def refs_at(self, dim: int | None, step: LayoutStep) -> ir.Attribute:
        """Returns the axes of a step as a list by dims: those of `dim`, none elsewhere."""
        inner = ", ".join(
            axis_names(self.axes, step.axes if number == dim else ()) for number in range(len(step.before))
        )
        return ir.Attribute.parse(f"#sdy<list_of_axis_ref_lists[{inner}]>")

    def sharding(self, value: ir.Value[Any], spec: Spec) -> ir.Attribute:
        key = (spec, len(ir.RankedTensorType(value.type).shape) if _is_tensor(value) else 0)  # a token has none
        if key not in self.shardings:
            self.shardings[key] = sharding_attribute(self.mesh_name, self.axes, without_partial(spec), key[1])
        return self.shardings[key]


def _summed(op: ir.Operation, state: State, comes: Spec) -> list[int]:
    """Returns the axes along which Shardy's conversion wants a result all-reduced at once."""
    return [axis for axis in partial_axes(comes) if state.strategy[axis] >= 0] if op.name in _CHECKED else []


def _is_tensor(value: ir.Value[Any]) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _convert(module: ir.Operation, remarks: Remarks) -> None:
    pipeline = "builtin.module(func.func(sdy-drop-sharding-rules),sdy-convert-global-to-local)"
    manager = passmanager.PassManager.parse(pipeline, module.context)
    manager.enable_verifier(False)  # sizes have to be mended first
    try:
        manager.run(module)
    except ir.MLIRError as error:
        first = error.error_diagnostics[0] if error.error_diagnostics else None
        what = str(first.message).strip() if first is not None else str(error)
        place = place_of(first.location, remarks.file) if first is not None else Place(remarks.file)
        raise RhinoError(
            "RHI-LOCAL-001",
            f"Shardy cannot convert the module to local shapes: {what}",
            place,
            fix="leave the shardings of this op open, or run the annotated module",
        ) from None


def _fit(op: ir.Operation) -> None:
    try:
        fit_call(op)
    except ValueError as error:
        fix = "correct the call, or the rule for it, or run the annotated module"
        raise RhinoError("RHI-LOCAL-001", str(error), place_of(op.location), fix=fix) from None


def _finish(module: ir.Operation) -> None:
    """Takes out what only the conversion needs, and gives reductions their monoid.

    Annotations of the global program are dropped.
    """
    ops, unread = walk(module), []
    for op in ops:
        unread.append(put_right(op))
        if op.name == "stablehlo.convolution":
            _fix_groups(op)
        elif op.name == PAD:
            _fix_padding(op)
        elif op.name == CUSTOM_CALL:
            _fit(op)
        attributes = op.attributes
        for name in _GLOBAL:
            if name in attributes:
                del attributes[name]
    marked = [op for op in ops if op.name in _REDUCTIONS or _is_no_reshape(op)]
    exchanges = [op for op in ops if op.name == "stablehlo.all_to_all"]
    for op in marked:
        text = str(op.location)
        if f'"{_MARK}"' in text:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif _MONOID in text:
            _set_monoid(op, "max" if f"{_MONOID}max" in text else "min")
    for op in exchanges:
        _join_first(op)
    for one in unread:
        if one is not None:
            one.erase()
    if not module.verify():
        raise RhinoError(
            "RHI-LOCAL-001",
            "the local program does not verify",
            place_of(module.location),
            fix="run the annotated module",
        )


def _is_no_reshape(op: ir.Operation) -> bool:
    return op.name == "stablehlo.reshape" and op.operands[0].type == op.results[0].type


def _fix_groups(op: ir.Operation) -> None:
    """Gives a convolution its local groups: the conversion changes types alone."""
    image, kernel, result = (ir.RankedTensorType(value.type).shape for value in (*op.operands, *op.results))
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    features = image[numbers.input_feature_dimension] // kernel[numbers.kernel_input_feature_dimension]
    batches = image[numbers.input_batch_dimension] // result[numbers.output_batch_dimension]
    for name, count in (("feature_group_count", features), ("batch_group_count", batches)):
        op.attributes[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), count)


def _fix_padding(op: ir.Operation) -> None:
    """Gives a pad of an empty dim the padding of its local shape, where the conversion takes off a gap.

    Shardy (jaxlib 0.10.2) counts one gap less than there are elements: -1 in what is empty.
    """
    shape, result = (ir.RankedTensorType(value.type).shape for value in (op.operands[0], op.results[0]))
    if 0 in shape:
        low, high = (list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("edge_padding_low", _HIGH))
        for dim in [dim for dim, size in enumerate(shape) if not size]:
            high[dim] = result[dim] - low[dim]
        op.attributes[_HIGH] = ir.DenseI64ArrayAttr.get(high)


def _join_first(exchange: ir.Operation) -> None:
    """Puts a barrier between an all-to-all and what joins its operand out of parts.

    XLA's CPU backend (jaxlib 0.10.2) exchanges parts that are the blocks as they are, and refuses them if their layouts
    differ ("HLO all-to-all has operands with different shapes"): one of them transposed is enough.
    """
    joined = exchange.operands[0]
    made = maker_of(joined)
    if made is not None and made.name in _JOINED:
        with ir.InsertionPoint(exchange), exchange.location:
            exchange.operands[0] = stablehlo.OptimizationBarrierOp([joined]).results[0]


def _lay_in_rows(op: ir.Operation) -> None:
    """Has XLA lay the operand and the result of an op in rows, the last dim innermost.

    XLA's CPU backend (jaxlib 0.10.2) computes an fft of nothing else, and fails when it runs where what is around it,
    such as an all-to-all or a transposition, has chosen another layout.
    """
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = _in_rows(op.operands[0])
    result = op.results[0]
    with ir.InsertionPoint.after(op), op.location:
        laid = _in_rows(result)
    constraint = maker_of(laid)
    assert constraint is not None
    result.replace_all_uses_except(laid, constraint)


def _in_rows(value: ir.Value[Any]) -> ir.Value[Any]:
    """Makes what XLA takes for a value that lies in rows."""
    rank = len(ir.RankedTensorType(value.type).shape)
    rows = ir.Attribute.parse(f"[dense<{list(reversed(range(rank)))}> : tensor<{rank}xindex>]")
    attributes = {
        "call_target_name": ir.StringAttr.get("LayoutConstraint"),
        "operand_layouts": rows,
        "result_layouts": rows,
    }
    made: ir.Value[Any] = ir.Operation.create("stablehlo.custom_call", [value.type], [value], attributes).results[0]
    return made


def _set_monoid(op: ir.Operation, monoid: str) -> None:
    block = op.regions[0].blocks[0]
    add = block.operations[0].operation
    make = stablehlo.MaxOp if monoid == "max" else stablehlo.MinOp
    with ir.InsertionPoint(add), op.location:
        add.results[0].replace_all_uses_with(make(*block.arguments).result)
    add.erase()
