"""The program of one device as a graph: the ops of a plan at their local sizes, and what brings values between them.

It is what localizing writes (`rhino.passes.sharding.localize`), with what XLA's backends put in before they decide what
is fused: a gather or a reduce-scatter along a dim that is not the outermost copies its operand so that it is, and its
result back; an all-to-all copies both as well; a product wants the dims of its operands in an order of its own, and
reads transposes of what lies so. What is added to a scatter over zeros is added up, and scattered into; where a scatter
writes an element at most once, a target may select instead. What is cut out of a value, or copied to an order, twice is
so once. What an op reads of other devices is joined to what it has. On a mesh of one device nothing is sent.

Ops keep their names and rules. Sizes are those of a device, so that no spec is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from rhino.ir.arrays import Ints
from rhino.ir.graph.graph import COPIED_UPDATE, DEVICE, HOST, Graph, MemoryKind, OpClass, Repeats, TensorType
from rhino.ir.graph.spec import Spec, partial_axes, split_dim, unpack
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.cost.halo_exchange import Exchange, exchanges
from rhino.strategies.cost.reshard import Layout, LayoutStep, reshard_path
from rhino.strategies.memory.buffers import PRODUCT, Arranged, arranged, is_major
from rhino.strategies.structure.loop_nesting import regions

_COPY, _VIEW, _SLICE, _CUT = "stablehlo.transpose", "stablehlo.reshape", "stablehlo.slice", "stablehlo.dynamic_slice"
_ADD: Final = "stablehlo.add"
_SELECT: Final = "stablehlo.select"
_JOIN: Final = "stablehlo.concatenate"


def device_graph(plan: ShardingPlan) -> Graph:
    """Returns the program of one device of a plan."""
    return _Writer(plan).run()


@dataclass(frozen=True, slots=True)
class _Form:
    """The class of an op to be written, and its results' types by number.

    What gives the same wherever it is written, for it puts dims in an order or cuts a device's part out, says so
    (`alike`): it is written once for each value and loop (`HloCSE`). So two collectives that read a value in one order
    share the copy, and what is cut out of a weight in the forward pass stays for the backward pass.
    """

    cls: int
    results: tuple[int, ...]
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
    paths: dict[tuple[int, Spec, Spec, bool], tuple[_Form, ...]] = field(default_factory=dict)
    orders: dict[tuple[int, int, int, tuple[int, ...] | None], Arranged] = field(default_factory=dict)
    transposed: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """What was transposed, by what it became, and which dim each of its dims did."""

    waiting: dict[int, list[int]] = field(default_factory=dict)
    """What scatters read that are written where what they give is added to something."""

    copies: dict[tuple[str, int, int, bool], _Form] = field(default_factory=dict)
    written: dict[tuple[int, Arranged | LayoutStep, int], int] = field(default_factory=dict)
    """What was made of values, by loop."""

    layers: list[_Layer] = field(default_factory=list)
    copies_of: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = graph = self.plan.graph
        self.class_of: list[int] = graph.op_class.tolist()
        self.type_of: list[int] = graph.value_type.tolist()
        self.is_free = [op >= 0 and graph.classes[self.class_of[op]].free for op in graph.value_op.tolist()]
        self.region = regions(graph)
        self.layer = _NO_LAYER
        self.loop = -1
        self.scatter_of = self.scatters_into_sums()
        self.waits = set(self.scatter_of.values())
        self.is_alone = prod(self.plan.sizes) == 1

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
        return Graph(
            classes=tuple(self.classes),
            types=tuple(self.types),
            op_class=_ints(self.op_class),
            use_start=_ints(self.use_start),
            uses=_ints(self.uses),
            result_start=_ints([*self.result_start, len(self.value_type)]),
            value_type=_ints(self.value_type),
            value_op=_ints(self.value_op),
            arguments=tuple([replace(one, memories=(self.memory_of(n),)) for n, one in enumerate(graph.arguments)]),
            returns=tuple(returns),
            return_fixed=(None,) * len(returns),
            fixed={},
            loops=tuple([replace(loop, op=self.place[loop.op], end=self.place[loop.end]) for loop in graph.loops]),
            zeros=frozenset([self.stored[value] for value in sorted(graph.zeros)]),
            repeats=self.repeats(),
        )

    def memory_of(self, argument: int) -> MemoryKind:
        """Returns where an argument lies between steps."""
        return HOST if argument in self.plan.on_host else DEVICE

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
        state, values, cls = self.plan.ops[op], self.graph.operands(op).tolist(), self.graph.cls(op)
        operands = [
            self.move(value, self.stored[value], self.plan.specs[value], need)
            for value, need in zip(values, state.operand_specs, strict=True)
        ]
        for one in exchanges(cls, state.strategy, self.plan.sizes):
            operands[one.halo.operand] = self.exchanged(one, operands[one.halo.operand])
        if cls.name == PRODUCT:
            operands = [self.as_read(cls, position, value) for position, value in enumerate(operands)]
        self.place.append(len(self.op_class))
        if op in self.waits:
            self.waiting[op] = operands
            results: Sequence[int] = operands[:1]
        else:
            terms = [operand for operand, value in zip(operands, values, strict=True) if not self.is_waited_for(value)]
            results = terms if len(terms) < len(values) else self.write(self.form_of(op), terms)
        if op in self.scatter_of:
            scatter = self.scatter_of[op]
            results = self.write(self.form_of(scatter), [results[0], *self.waiting[scatter][1:]])
        if cls.name == _COPY and cls.rule is not None:
            (before,), (after,) = cls.rule.operands, cls.rule.results
            self.transposed[results[0]] = operands[0], tuple([after.index(dim) for dim in before])
        for value, result, comes in zip(self.graph.results(op), results, state.result_specs, strict=True):
            self.stored.append(result)
            self.stored[value] = self.move(value, result, comes, self.plan.specs[value])
            if self.graph.repeats is not None:
                copies = int(self.graph.repeats.copies[value])
                self.copies_of[result] = self.copies_of[self.stored[value]] = copies

    def exchanged(self, one: Exchange, value: int) -> int:
        """Returns the range of a dim that an op reads: what others have of it comes by permutes."""
        kind, dim = self.types[self.value_type[value]], one.halo.dim
        if not one.is_sent or one.halo.joins:
            return value
        pieces = [value]
        for permute in one.permutes:
            if permute.is_sent:
                part = _resized(kind, dim, permute.length)
                sent = OpClass("collective_permute", (part,), (part,), None, None, (), False, False, 0)
                cut = self.plain(_SLICE, self.value_type[value], self.number(part), False)
                pieces.append(self.write(self.form(sent), self.write(cut, [value]))[0])
        read = tuple([self.types[self.value_type[piece]] for piece in pieces])
        joined = OpClass(_JOIN, read, (_resized(kind, dim, one.range.width),), None, None, (), False, True, 0)
        return self.write(self.form(joined), pieces)[0]

    def as_read(self, cls: OpClass, position: int, value: int) -> int:
        """Returns an operand of a product in the order of dims in which that reads it."""
        source, dims = self.transposed.get(value, (value, None))
        order = self.arranged(cls, position, source, dims)
        if dims is not None and isinstance(order, tuple):  # what was transposed is not read as it lies
            source, order = value, self.arranged(cls, position, value, None)
        if order is None:
            return source
        kind, op = self.value_type[source], self.value_op[source]
        free = op >= 0 and self.classes[self.op_class[op]].free
        return self.once(
            replace(self.plain(_VIEW if order == "view" else _COPY, kind, kind, free), alike=order), source
        )

    def arranged(self, cls: OpClass, position: int, value: int, dims: tuple[int, ...] | None) -> Arranged:
        """Returns what is done to an operand before a product reads it, or to what is transposed to be that."""
        key = (id(cls), position, self.value_type[value], dims)
        if key not in self.orders:
            shape, in_any_order = self.types[self.value_type[value]].shape, self.plan.target.reads_in_any_order
            self.orders[key] = arranged(cls, position, shape, dims, in_any_order=in_any_order)
        return self.orders[key]

    def once(self, form: _Form, value: int) -> int:
        """Returns the result of an op that gives the same wherever it is written.

        The op is written only if it is not there yet in a loop around.
        """
        loop = self.loop
        while (value, form.alike, loop) not in self.written and loop >= 0:
            loop = self.region[loop]
        if (value, form.alike, loop) not in self.written:
            loop = self.loop
            self.written[value, form.alike, loop] = self.write(form, [value])[0]
        return self.written[value, form.alike, loop]

    # Sums with scatters

    def is_waited_for(self, value: int) -> bool:
        """Says whether a value is what a scatter gives that is written where that is added to something."""
        return int(self.graph.value_op[value]) in self.waits

    def scatters_into_sums(self) -> dict[int, int]:
        """Returns, by sum, the scatter over zeros that goes into it.

        The scatter goes into the sum's other term, or into all that this is added to as well. Nothing is sent there,
        and nothing else reads what is passed on; XLA (`AlgebraicSimplifier`) adds up the other terms first.
        """
        graph, found, passed = self.graph, dict[int, int](), set[int]()
        for scatter in [op for op, number in enumerate(self.class_of) if graph.classes[number].name == COPIED_UPDATE]:
            op = -1 if self.selects(scatter) else self.adder_alone(scatter)
            if op < 0 or op in passed or int(graph.operands(scatter)[0]) not in graph.zeros:
                continue
            passed.add(op)
            while (after := self.adder_alone(op)) >= 0 and after not in passed:
                op = after
                passed.add(op)
            found[op] = scatter
        return found

    def selects(self, op: int) -> bool:
        """Says whether an op is a scatter that is computed element by element."""
        cls = self.graph.cls(op)
        if not self.plan.target.selects or cls.name != COPIED_UPDATE or cls.rule is None:
            return False
        return all(cls.rule.sizes[factor] == 1 for factor in cls.rule.reduction)

    def adder_alone(self, op: int) -> int:
        """Returns the sum that alone reads what an op gives, where it is made, and as it is made; -1 for none."""
        graph, plan, value = self.graph, self.plan, self.graph.results(op).start
        uses = np.flatnonzero(graph.uses == value)
        if len(uses) != 1 or value in graph.returns:
            return -1
        reader = int(np.searchsorted(graph.use_start, uses[0], side="right")) - 1
        specs = {plan.specs[value], *plan.ops[op].result_specs, *plan.ops[reader].operand_specs}
        is_sum = graph.cls(reader).name == _ADD and self.region[reader] == self.region[op]
        return reader if is_sum and len(specs) == 1 else -1

    # Paths

    def move(self, value: int, current: int, source: Spec, target: Spec) -> int:
        """Returns `current`, which stands for `value` in spec `source`, brought to spec `target`."""
        if source == target or self.is_alone:
            return current
        key = (self.type_of[value], source, target, self.is_free[value])
        if key not in self.paths:
            self.paths[key] = self.reshard_path(*key)
        for form in self.paths[key]:
            current = self.write(form, [current])[0] if form.alike is None else self.once(form, current)
        return current

    def reshard_path(self, kind: int, source: Spec, target: Spec, free: bool) -> tuple[_Form, ...]:
        """Returns the ops that bring a tensor from one spec to another."""
        global_type = self.graph.types[kind]
        if not global_type.shape and not partial_axes(source):
            return ()
        steps = reshard_path(len(global_type.shape), source, target, len(self.plan.sizes))
        assert steps is not None, (source, target)
        return tuple([form for step in steps for form in self.step(global_type, step, free)])

    def step(self, global_type: TensorType, step: LayoutStep, free: bool) -> tuple[_Form, ...]:
        """Returns the ops that a step of a path is."""
        before, after = (
            self.number(_laid_out(global_type, layout, self.plan.sizes)) for layout in (step.before, step.after)
        )
        if free or step.kind == "slice":
            return (replace(self.plain(_SLICE if free else _CUT, before, after, free), alike=step),)
        made = self.form(
            OpClass(step.kind, (self.types[before],), (self.types[after],), None, None, (), False, False, 0)
        )
        dim = step.source if step.kind == "all_gather" else step.target if step.kind == "reduce_scatter" else None
        if step.kind != "all_to_all" and (dim is None or is_major(global_type.shape, step, self.plan.sizes)):
            return (made,)
        there = step if dim is None else (dim, *(other for other in range(len(global_type.shape)) if other != dim))
        return (
            replace(self.plain(_COPY, before, before, False), alike=there),
            made,
            self.plain(_COPY, after, after, False),
        )

    # Writing

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
            operands = [
                _local(kind, spec, sizes) for kind, spec in zip(cls.operands, state.operand_specs, strict=False)
            ]
            for one in exchanges(cls, state.strategy, sizes):
                if one.is_sent and not one.halo.joins:
                    position = one.halo.operand
                    operands[position] = _resized(operands[position], one.halo.dim, one.range.width)
            results = tuple(
                [_local(kind, spec, sizes) for kind, spec in zip(cls.results, state.result_specs, strict=True)]
            )
            flops = cls.flops // state.num_shares(sizes) if state.strategy else cls.flops
            local = replace(cls, operands=tuple(operands), results=results, flops=flops, products=None)
            self.forms[key] = self.form(replace(local, name=_SELECT, fusible=True) if self.selects(op) else local)
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


def _local(kind: TensorType, spec: Spec, sizes: tuple[int, ...]) -> TensorType:
    """Returns the type of a tensor's part on one device; what is uneven is padded."""
    layout: list[list[int]] = [[] for _ in kind.shape]
    for axis, one in enumerate(unpack(spec, len(sizes))):
        dim = split_dim(one)
        if dim is not None:
            layout[dim].append(axis)
    return _laid_out(kind, layout, sizes)


def _resized(kind: TensorType, dim: int, size: int) -> TensorType:
    return TensorType((*kind.shape[:dim], size, *kind.shape[dim + 1 :]), kind.dtype, kind.element_bytes)


def _laid_out(kind: TensorType, layout: Layout | Sequence[Sequence[int]], sizes: tuple[int, ...]) -> TensorType:
    shape = tuple(
        [-(-extent // prod(sizes[axis] for axis in axes)) for extent, axes in zip(kind.shape, layout, strict=True)]
    )
    return TensorType(shape, kind.dtype, kind.element_bytes)


def _ints(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
