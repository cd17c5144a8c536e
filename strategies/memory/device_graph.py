"""The program of one device as a graph.

It has the ops of a plan at their local sizes, and what brings values from one to another.

It is what localizing writes (`rhino.passes.sharding.localize`), with what XLA puts in before it decides what is fused
(jaxlib 0.10.2 on a CPU, 2026-11-22): a gather, or a reduce-scatter, along a dim that is not the outermost copies its
operand so that it is, and its result back; an all-to-all takes parts, and what it gives is joined; on a host, what is
the same each time round a loop is computed before it (`rhino.strategies.memory.loop_invariant_code_motion`);
all-reduces are sent together (`rhino.strategies.memory.all_reduce_combiner`); products and convolutions want their
operands' dims in an order of their own, and read transposes of what lies so; what is added to a scatter over zeros is
added up, and scattered into; a pad or a slice that takes everything is none; what is cut out of a value or copied to an
order twice is so once. On a mesh of one device nothing is sent.

Ops keep their names and rules. Sizes are those of a device, so that no spec is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import COPIED_UPDATE, WHILE, Graph, OpClass, Repeats, TensorType
from rhino.ir.graph.spec import Spec, partial_axes, split_dim, unpack
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.reshard import Layout, LayoutStep, reshard_path
from rhino.strategies.memory.all_reduce_combiner import joined
from rhino.strategies.memory.buffers import CONVOLUTION, PRODUCT, Arranged, arranged, is_major, is_viewed
from rhino.strategies.memory.gather_order import outermost_dim, outermost_dims
from rhino.strategies.memory.loop_invariant_code_motion import hoisted
from rhino.strategies.memory.op_order import ADD, is_scattered
from rhino.strategies.structure.loop_nesting import regions

ALL_TO_ALL: Final = "all_to_all"
_ALL_REDUCE: Final = "all_reduce"
_SUM: Final = "add"

_COPY, _VIEW, _SLICE, _CUT = "stablehlo.transpose", "stablehlo.reshape", "stablehlo.slice", "stablehlo.dynamic_slice"
_JOIN: Final = "join"
_TAKES_ALL: Final = frozenset({"stablehlo.pad", _SLICE})


def device_graph(plan: ShardingPlan) -> Graph:
    """Returns the program of one device of a plan."""
    return _Writer(plan).run()


@dataclass(frozen=True, slots=True)
class _Form:
    """The class of an op to be written, its results' types by number, and how often it is written on one operand.

    What gives the same wherever it is written, for it puts dims in an order or cuts a device's part out, says so
    (`alike`): it is written once for each value and loop (`HloCSE`). So two collectives that read a value in one order
    share the copy, and what is cut out of a weight in the forward pass stays for the backward pass.
    """

    cls: int
    results: tuple[int, ...]
    copies: int = 1
    alike: Arranged | LayoutStep = None


_Layer = tuple[int, int]
"""How many layers an op stands for, and the number of their run; see `rhino.ir.graph.graph.Repeats`."""

_NO_LAYER: Final = (1, 0)


@dataclass(eq=False)
class _Writer:
    plan: ShardingPlan
    classes: list[OpClass] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    type_number: dict[TensorType, int] = field(default_factory=dict)
    op_class: list[int] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    use_start: list[int] = field(default_factory=lambda: [0])
    result_start: list[int] = field(default_factory=list)
    value_type: list[int] = field(default_factory=list)
    value_op: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    """What stands for each value of the plan's graph, as it is stored."""

    place: list[int] = field(default_factory=list)
    """Where each op of the plan's graph is written."""

    forms: dict[tuple[int, int], _Form] = field(default_factory=dict)
    paths: dict[tuple[int, Spec, Spec, bool, str], tuple[_Form, ...]] = field(default_factory=dict)
    all_reduces: dict[int, tuple[str, str, tuple[int, ...]]] = field(default_factory=dict)
    """The classes that are all-reduces: what they come to, of what, and along which axes."""

    orders: dict[tuple[int, int, int, tuple[int, ...] | None], Arranged] = field(default_factory=dict)
    transposed: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """What was transposed, and which dim each of its dims became.

    The keys are the result and the loop in which it is seen to be that.
    """

    copies: dict[tuple[str, int, int, bool], _Form] = field(default_factory=dict)
    written: dict[tuple[int, Arranged | LayoutStep, int], list[int]] = field(default_factory=dict)
    """What was made of values, by loop."""

    layers: list[_Layer] = field(default_factory=list)
    copies_of: list[int] = field(default_factory=list)
    put_in_order: set[int] = field(default_factory=set)
    """The ops that put in order what collectives gave."""

    waiting: dict[int, list[int]] = field(default_factory=dict)
    """What scatters read that are written where their results are added to something."""

    def __post_init__(self) -> None:
        self.graph = graph = self.plan.graph
        self.class_of: list[int] = graph.op_class.tolist()
        self.type_of: list[int] = graph.value_type.tolist()
        self.is_free = [op >= 0 and graph.classes[self.class_of[op]].free for op in graph.value_op.tolist()]
        self.region = regions(graph)
        self.scatter_of = self.scatters_into_sums()
        self.waits = set(self.scatter_of.values())
        self.layer = _NO_LAYER
        self.loop = -1
        self.is_alone = prod(self.plan.sizes) == 1
        self.outermost = {} if self.is_alone else outermost_dims(self.plan)

    def run(self) -> Graph:
        """Writes all ops, and returns the graph of what was written."""
        graph, plan = self.graph, self.plan
        for value in range(len(graph.arguments)):
            self.add_value(self.number(_local(graph.type_of(value), plan.specs[value], plan.sizes)), -1)
            self.stored.append(value)
        for op in range(graph.num_ops):
            self.layer, self.loop = self.layer_of(op), self.region[op]
            self.op(op)
        self.layer, self.loop = _NO_LAYER, -1
        returns = [
            self.move(v, self.stored[v], plan.specs[v], spec)
            for v, spec in zip(graph.returns, plan.returned, strict=True)
        ]
        if graph.repeats is not None:
            for value, written in [
                *enumerate(self.stored[: len(graph.arguments)]),
                *zip(graph.returns, returns, strict=True),
            ]:
                self.copies_of[written] = int(graph.repeats.copies[value])
        found = Graph(
            classes=tuple(self.classes),
            types=tuple(self.types),
            op_class=_ints(self.op_class),
            use_start=_ints(self.use_start),
            uses=_ints(self.uses),
            result_start=_ints([*self.result_start, len(self.value_type)]),
            value_type=_ints(self.value_type),
            value_op=_ints(self.value_op),
            arguments=graph.arguments,
            returns=tuple(returns),
            return_fixed=(None,) * len(returns),
            fixed={},
            loops=tuple([replace(loop, op=self.place[loop.op], end=self.place[loop.end]) for loop in graph.loops]),
            zeros=frozenset([self.stored[value] for value in sorted(graph.zeros)]),
            repeats=self.repeats(),
        )
        found = hoisted(found, self.put_in_order) if plan.hoists else found
        return joined(found, self.all_reduces) if found.repeats is None else found

    def repeats(self) -> Repeats | None:
        """Returns for what stands what was written."""
        if self.graph.repeats is None:
            return None
        times, run = np.array(self.layers, dtype=np.int64).reshape(-1, 2).T
        return Repeats(times, _ints(self.copies_of), run)

    def layer_of(self, op: int) -> _Layer:
        """Returns the layers that an op of the plan stands for."""
        repeats = self.graph.repeats
        return _NO_LAYER if repeats is None else (int(repeats.times[op]), int(repeats.run[op]))

    # Ops

    def op(self, op: int) -> None:
        """Writes an op, between what brings its operands and its results to where they are needed."""
        state, values = self.plan.ops[op], self.graph.operands(op).tolist()
        operands = [
            self.read(op, n, v, need) for n, (v, need) in enumerate(zip(values, state.operand_specs, strict=True))
        ]
        self.place.append(len(self.op_class))
        if op in self.waits:
            self.waiting[op] = operands
            self.stored.append(operands[0])  # nothing reads it but the sum
            return
        results, repeats = self.results(op, operands), self.graph.repeats
        for value, result, comes in zip(self.graph.results(op), results, state.result_specs, strict=True):
            self.stored.append(result)
            if value in self.outermost:
                self.written[result, self.order_of(value), self.loop] = [result]  # it lies so
            self.stored[value] = self.move(value, result, comes, self.plan.specs[value])
            if repeats is not None:
                self.copies_of[result] = self.copies_of[self.stored[value]] = int(repeats.copies[value])

    def results(self, op: int, operands: list[int]) -> Sequence[int]:
        """Returns the results of an op, written as XLA has it."""
        cls = self.graph.classes[self.class_of[op]]
        form, scatter = self.form_of(op), self.scatter_of.get(op)
        terms = [
            operands[n]
            for n, value in enumerate(self.graph.operands(op).tolist())
            if int(self.graph.value_op[value]) not in self.waits
        ]
        if scatter is not None:
            into = terms[0] if len(terms) == 1 else self.write(form, terms)[0]
            return self.write(self.form_of(scatter), [into, *self.waiting[scatter][1:]])
        if len(terms) < len(operands):
            return terms
        if cls.name in _TAKES_ALL and not cls.free and self.value_type[operands[0]] == form.results[0]:
            return operands[:1]
        dims = _transposes(cls)
        if dims is not None and self.is_turned_back(operands[0], dims):
            return self.transposed[operands[0], self.loop][:1]
        results = self.write(form, operands)
        if dims is not None:
            self.transposed[results[0], self.loop] = operands[0], dims
        if cls.name == PRODUCT and is_viewed(cls, self.types[form.results[0]].shape):
            return [self.in_order(results[0], "view")]
        return [self.rearrange(op, 2, results[0])] if cls.name == CONVOLUTION else results

    def is_turned_back(self, value: int, dims: tuple[int, ...]) -> bool:
        """Says whether a value was transposed, and comes to what it was where its dims become `dims`."""
        found = self.transposed.get((value, self.loop))
        return found is not None and all(dims[dim] == number for number, dim in enumerate(found[1]))

    def read(self, op: int, position: int, value: int, need: Spec) -> int:
        """Returns an operand as an op reads it."""
        found = self.move(value, self.stored[value], self.plan.specs[value], need)
        name = self.graph.classes[self.class_of[op]].name
        if name == WHILE:
            return self.turn_stack(self.graph.results(op)[position], found)
        if name == COPIED_UPDATE and not self.is_made_free(found) and position == len(self.graph.operands(op)) - 1:
            return self.in_order(found, (*range(len(self.types[self.value_type[found]].shape)),))
        return self.rearrange(op, position, found) if name in (PRODUCT, CONVOLUTION) else found

    def turn_stack(self, carried: int, value: int) -> int:
        """Returns what a loop starts with, with its dims in the order in which its body reads it."""
        return self.in_order(value, self.order_of(carried))

    def order_of(self, value: int) -> Arranged:
        """Returns the order of dims in which all readers want a value of an op or a loop, None for row order."""
        dim = self.outermost.get(value)
        return None if dim is None else _outermost(dim, len(self.graph.type_of(value).shape))

    def rearrange(self, op: int, position: int, value: int) -> int:
        """Returns an operand of a product or convolution, or a convolution's result, in the dim order that XLA uses."""
        if (value, self.loop) in self.transposed and self.graph.classes[self.class_of[op]].name == PRODUCT:
            source, dims = self.transposed[value, self.loop]
            order = self.arranged(op, position, source, dims)
            if not isinstance(order, tuple):  # what was transposed is read as it lies
                return self.in_order(source, order)
        return self.in_order(value, self.arranged(op, position, value))

    def arranged(self, op: int, position: int, value: int, dims: tuple[int, ...] | None = None) -> Arranged:
        """Returns what XLA does to an operand before a product or convolution reads it.

        With `dims` it is done to what is transposed to be that operand.
        """
        key = (self.class_of[op], position, self.value_type[value], dims)
        if key not in self.orders:
            shape = self.types[self.value_type[value]].shape
            self.orders[key] = arranged(self.graph.classes[self.class_of[op]], position, shape, dims)
        return self.orders[key]

    def in_order(self, value: int, order: Arranged) -> int:
        """Returns a value with its dims in an order, or as a view."""
        if order is None:
            return value
        kind, free = self.value_type[value], self.is_made_free(value)
        return self.once(
            replace(self.plain(_VIEW if order == "view" else _COPY, kind, kind, free), alike=order), value
        )[0]

    def once(self, form: _Form, value: int) -> list[int]:
        """Returns the result of an op that gives the same wherever it is written.

        The op is written only if it is not there yet in a loop around.
        """
        loop = self.loop
        while (value, form.alike, loop) not in self.written and loop >= 0:
            loop = self.region[loop]
        if (value, form.alike, loop) not in self.written:
            loop = self.loop
            self.written[value, form.alike, loop] = self.write_all(form, [value])
        return self.written[value, form.alike, loop]

    def is_made_free(self, value: int) -> bool:
        """Says whether a value depends on constants alone."""
        op = self.value_op[value]
        return op >= 0 and self.classes[self.op_class[op]].free

    def scatters_into_sums(self) -> dict[int, int]:
        """Returns, by sum, the scatter over zeros that goes into it.

        The scatter goes into the sum's other term, or into all that this is added to as well. Nothing is sent there,
        and nothing else reads what is passed on; XLA (`AlgebraicSimplifier`) adds up the other terms first.
        """
        graph, found = self.graph, dict[int, int]()
        for scatter in [op for op, number in enumerate(self.class_of) if graph.classes[number].name == COPIED_UPDATE]:
            op = self.adder_alone(scatter)
            if (
                op < 0
                or op in found
                or not is_scattered(graph, op)
                or int(graph.operands(scatter)[0]) not in graph.zeros
            ):
                continue
            while (after := self.adder_alone(op)) >= 0 and after not in found:
                op = after
            found[op] = scatter
        return found

    def adder_alone(self, op: int) -> int:
        """Returns the sum that alone reads what an op gives, where it is made, and as it is made; -1 for none."""
        graph, plan, value = self.graph, self.plan, self.graph.results(op).start
        uses = np.flatnonzero(graph.uses == value)
        if len(uses) != 1 or value in graph.returns:
            return -1
        reader = int(np.searchsorted(graph.use_start, uses[0], side="right")) - 1
        alike = len({plan.specs[value], *plan.ops[op].result_specs, *plan.ops[reader].operand_specs}) == 1
        return reader if alike and graph.cls(reader).name == ADD and self.region[reader] == self.region[op] else -1

    # Paths

    def move(self, value: int, current: int, source: Spec, target: Spec) -> int:
        """Returns `current`, which stands for `value` in spec `source`, brought to spec `target`."""
        if source == target or self.is_alone:
            return current
        key = (self.type_of[value], source, target, self.is_free[value], self.reduction(value))
        if key not in self.paths:
            self.paths[key] = self.reshard_path(*key)
        return self.follow(self.paths[key], current)

    def follow(self, forms: Sequence[_Form], current: int) -> int:
        """Returns what comes of a value by a path."""
        parts = [current]
        for form in forms:
            if form.alike is None and self.classes[form.cls].name == _COPY:
                self.put_in_order.add(len(self.op_class))
            parts = self.write_all(form, parts) if form.alike is None else self.once(form, parts[0])
        return parts[0]

    def reduction(self, value: int) -> str:
        """Returns what the parts of a value come to where it is partial."""
        op = int(self.graph.value_op[value])
        return (self.graph.classes[self.class_of[op]].reduction if op >= 0 else None) or _SUM

    def reshard_path(self, kind: int, source: Spec, target: Spec, free: bool, reduction: str) -> tuple[_Form, ...]:
        """Returns the ops that bring a tensor from one spec to another."""
        global_type = self.graph.types[kind]
        if not global_type.shape and not partial_axes(source):
            return ()
        steps = reshard_path(len(global_type.shape), source, target, len(self.plan.sizes))
        assert steps is not None, (source, target)
        return tuple([form for step in steps for form in self.step(global_type, step, free, reduction)])

    def step(self, global_type: TensorType, step: LayoutStep, free: bool, reduction: str) -> tuple[_Form, ...]:
        """Returns the ops that a step of a path is."""
        before, after = (
            self.number(_laid_out(global_type, layout, self.plan.sizes)) for layout in (step.before, step.after)
        )
        if free or step.kind == "slice":
            return (replace(self.plain(_SLICE if free else _CUT, before, after, free), alike=step),)
        if step.kind == ALL_TO_ALL:
            return self.exchange(step, before, after)
        made = self.form(
            OpClass(step.kind, (self.types[before],), (self.types[after],), None, None, (), False, False, 0)
        )
        if step.kind == _ALL_REDUCE:
            self.all_reduces[made.cls] = (reduction, global_type.dtype, step.axes)
        dim = outermost_dim(step)
        if dim is None or is_major(global_type.shape, step, self.plan.sizes):
            return (made,)
        return (
            replace(self.plain(_COPY, before, before, False), alike=_outermost(dim, len(global_type.shape))),
            made,
            self.plain(_COPY, after, after, False),
        )

    def exchange(self, step: LayoutStep, before: int, after: int) -> tuple[_Form, ...]:
        """Returns the ops that an all-to-all is."""
        kind, count = self.types[before], prod(self.plan.sizes[axis] for axis in step.axes)
        part = TensorType((kind.num_bytes // kind.element_bytes // count,), kind.dtype, kind.element_bytes)
        sent = OpClass(ALL_TO_ALL, (part,) * count, (part,) * count, None, None, (), False, False, 0)
        joined = OpClass(_JOIN, (part,) * count, (self.types[after],), None, None, (), False, False, 0)
        cut = self.plain(_SLICE, before, self.number(part), False)
        forms = (replace(cut, copies=count, alike=step), self.form(sent), self.form(joined))
        return (
            forms
            if _is_joined_in_order(step, self.types[after].shape, count)
            else (*forms, self.plain(_COPY, after, after, False))
        )

    # Writing

    def write_all(self, form: _Form, operands: Sequence[int]) -> list[int]:
        """Writes an op as often as its form says, and returns all results."""
        return [value for _ in range(form.copies) for value in self.write(form, operands)]

    def write(self, form: _Form, operands: Sequence[int]) -> range:
        """Writes an op and returns its results."""
        op, first = len(self.op_class), len(self.value_type)
        self.op_class.append(form.cls)
        self.layers.append(self.layer)
        self.uses += operands
        self.use_start.append(len(self.uses))
        self.result_start.append(first)
        for kind in form.results:
            self.add_value(kind, op)
        return range(first, len(self.value_type))

    def add_value(self, kind: int, op: int) -> None:
        """Adds a value of a type, made by `op`."""
        self.value_type.append(kind)
        self.value_op.append(op)
        self.copies_of.append(self.layer[0])

    def form_of(self, op: int) -> _Form:
        """Returns how an op of the plan is written."""
        state = self.plan.ops[op]
        key = (self.class_of[op], id(state))
        if key not in self.forms:
            cls, sizes = self.graph.classes[self.class_of[op]], self.plan.sizes
            operands = tuple(
                [_local(kind, spec, sizes) for kind, spec in zip(cls.operands, state.operand_specs, strict=False)]
            )
            results = tuple(
                [_local(kind, spec, sizes) for kind, spec in zip(cls.results, state.result_specs, strict=True)]
            )
            self.forms[key] = self.form(replace(cls, operands=operands, results=results))
        return self.forms[key]

    def plain(self, name: str, before: int, after: int, free: bool) -> _Form:
        """Returns a fusible op of one operand."""
        key = (name, before, after, free)
        if key not in self.copies:
            self.copies[key] = self.form(
                OpClass(name, (self.types[before],), (self.types[after],), None, None, (), free, True, 0)
            )
        return self.copies[key]

    def form(self, cls: OpClass) -> _Form:
        """Returns how an op of a new class is written."""
        self.classes.append(cls)
        return _Form(len(self.classes) - 1, tuple([self.number(kind) for kind in cls.results]))

    def number(self, kind: TensorType) -> int:
        """Returns the number of a type."""
        if kind not in self.type_number:
            self.type_number[kind] = len(self.types)
            self.types.append(kind)
        return self.type_number[kind]


def _outermost(dim: int, rank: int) -> tuple[int, ...]:
    """Returns the order of dims with one before all others."""
    return (dim, *(other for other in range(rank) if other != dim))


def _is_joined_in_order(step: LayoutStep, shape: tuple[int, ...], count: int) -> bool:
    """Returns whether parts of a `shape` are in order when they are joined along the dim that was cut.

    They are not joined along the dim that becomes whole.
    """
    assert step.source is not None
    assert step.target is not None
    extents = [*shape]
    extents[step.source] //= count
    return (
        prod(extents[step.source : step.target] if step.source < step.target else extents[step.target : step.source])
        == 1
    )


def _transposes(cls: OpClass) -> tuple[int, ...] | None:
    """Returns which dim of its result each dim of a transpose's operand becomes, None for other ops."""
    if cls.name != _COPY or cls.rule is None:
        return None
    (operand,), (result,) = cls.rule.operands, cls.rule.results
    return tuple([result.index(dim) for dim in operand])


def _local(kind: TensorType, spec: Spec, sizes: tuple[int, ...]) -> TensorType:
    """Returns the type of a tensor's part on one device; what is uneven is padded."""
    layout: list[list[int]] = [[] for _ in kind.shape]
    for axis, one in enumerate(unpack(spec, len(sizes))):
        dim = split_dim(one)
        if dim is not None:
            layout[dim].append(axis)
    return _laid_out(kind, layout, sizes)


def _laid_out(kind: TensorType, layout: Layout | Sequence[Sequence[int]], sizes: tuple[int, ...]) -> TensorType:
    shape = tuple(
        [-(-extent // prod(sizes[axis] for axis in axes)) for extent, axes in zip(kind.shape, layout, strict=True)]
    )
    return TensorType(shape, kind.dtype, kind.element_bytes)


def _ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
