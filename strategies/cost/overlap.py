"""What is computed while a weight is on its way, so that gathering it costs only what is left of that.

Where gathers are asynchronous, a compiler begins one when the one before it is done, and waits for it at the product
that reads the weight. So what hides it is what is computed from the first product that reads the weight before to the
one that reads it. What products give to each other is moved between them, and waited for.

What follows from a gradient is read by no product. Where its collectives are not joined with others, a new weight is
gathered while the backward pass goes on: from when its gradient is there to when the next one is.

Where reductions are asynchronous, those of gradients are in a queue: they go on while the products behind the first
gradient of a loop's body, or of what lies between loops, are computed, and each has its part of that time, by its
bytes. What is joined last begins when the last gradient is there, and has what is computed behind it alone; a loop's
next trip hides it where the compiler pipelines that kind, unless its result is gathered in the same trip: then the
gather takes what that would hide (`Window.carried`). Weights that are gathered in the same time take their part of it,
by their bytes.

What is joined pays its part of a bucket's launch, as its bytes are of a full one, or of all that there is to send: the
members of a full bucket pay one launch, and so do scalars, all together, that all else waits for. What products give
each other pays a launch of its own: what it is joined with depends on the whole plan, and is seldom much, as each waits
for those before.

So the windows of a step are apart, and all together hide no more than is computed. In a loop, they are those of a trip.
Read from what libtpu 0.0.51 compiles for v5e-8, and XLA:GPU of jaxlib 0.10.2 for h100x8 (GPT of two and four layers,
2026-11-24).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Final

from rhino.ir.graph.graph import BARRIER, FORWARDS_OPERANDS, WHILE, YIELD, Graph
from rhino.strategies.cost.buckets import packing_of
from rhino.strategies.cost.cost_model import PRODUCTS, CostModel, Window

_ORDERED: Final = PRODUCTS | {"stablehlo.gather", "stablehlo.scatter", "stablehlo.sort", "stablehlo.custom_call"}
"""Ops that run in the order in which they are written. Others run where their results are needed."""

_SLICE: Final = "stablehlo.dynamic_slice"

_DIGITS: Final = 9
"""Digits of the seconds of windows: those that differ in rounding alone share tables."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """What is computed while weights and gradients are on their way.

    Shapes: `is_weight` [values] is what no product makes, `gradients` [values] the seconds in which what no product
    reads may be gathered, scattered and reduced, None for anything else. `readers` [ops] are those that a weight may be
    on its way to an op, None where that hands it on, and `stored` [values] those that it may be to where it lies for
    all its readers. `joined_bytes` [values] are sent together with a value, none where it is sent alone. `carried`
    [ops] are the seconds in which what a product gives is scattered, with a loop's next trip and without, and `makers`
    [values] the last product or loop that each value follows from, -1 where none is.
    """

    is_weight: list[bool]
    gradients: list[tuple[float, float, float] | None]
    readers: list[float | None]
    stored: list[float]
    joined_bytes: list[int]
    carried: list[tuple[float, float]]
    makers: list[int]

    def window(self, value: int, reader: int | None) -> Window | None:
        """Returns the window of a value on its way to a reader, or to where it lies or is returned if that is None.

        The result is None where others wait for it.
        """
        if not self.is_weight[value]:
            seconds = self.gradients[value]
        else:
            gather_s = self.stored[value] if reader is None else self.readers[reader]
            seconds = None if gather_s is None else (gather_s, 0.0, 0.0)
        if seconds is None:
            return None
        gather_s, scatter_s, reduce_s = (round(one, _DIGITS) for one in seconds)
        maker = -1 if self.is_weight[value] else self.makers[value]
        later_s, same_s = (round(one, _DIGITS) for one in self.carried[maker]) if maker >= 0 else (0.0, 0.0)
        return Window((gather_s, scatter_s, reduce_s), self.joined_bytes[value], (later_s, same_s))


def windows(order: Order, model: CostModel, op_s: Sequence[float]) -> Windows | None:
    """Returns the windows of a graph whose ops take `op_s` in a step [ops].

    The result is None where nothing is hidden, and nothing is joined.
    """
    graph = order.graph
    target, packing = model.target, packing_of(model)
    hidden = target.hidden(model.device)
    most = packing.bucket_bytes if packing else target.joined_bytes
    if not hidden and not most:
        return None
    sizes = [graph.types[number].num_bytes for number in graph.value_type.tolist()]
    is_joined = [bool(most) and (packing is None or size <= packing.item_bytes) for size in sizes]
    until = [0.0, *accumulate(op_s)] if hidden else [0.0] * (graph.num_ops + 1)
    together = min(most, order.read_bytes(is_joined))
    joined_bytes = [together * one for one in is_joined]
    for value, num_bytes in order.scalars.items():
        joined_bytes[value] = min(joined_bytes[value], num_bytes)
    sums: list[list[float]] = []
    for kind, times_result in (("reduce_scatter", prod(model.sizes)), ("all_reduce", 1)):
        limit, carries_on = target.joined_bytes * times_result, kind in target.carries_on
        sums.append(order.reductions(until, limit, carries_on=carries_on) if kind in hidden else [0.0] * graph.num_ops)
    in_trip = order.reductions(until, target.joined_bytes * prod(model.sizes), carries_on=False)
    carried = list(zip(sums[0], in_trip if "reduce_scatter" in target.carries_on else sums[0], strict=True))
    readers, stored = order.weights(until, are_shared=len(hidden) > 1)
    is_packed = is_joined if packing else [False] * graph.num_values
    gradients = order.gradients(until, is_joined, list(zip(*sums, strict=True)), is_packed)
    return Windows(order.is_weight, gradients, readers, stored, joined_bytes, carried, order.makers)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The ops before `end` and behind another start or end of a loop, which are the `body` of one or not.

    `num_bytes` are those that each of `products` gives which no product reads, and `gathered` those of weights that
    each product behind the first of these reads, where no product before has read the same value.
    """

    end: int
    is_body: bool
    products: tuple[int, ...]
    num_bytes: tuple[int, ...]
    gathered: dict[int, int]

    @property
    def share(self) -> float:
        """The part of the time behind the first product that reductions have, and gathers not."""
        total = sum(self.num_bytes)
        return total / (total + sum(self.gathered.values()))


class Order:
    """The ops of a graph one after the other; where they take time, `until` [ops + 1] is when those before are done."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.times = graph, graph.times().tolist()
        self.names = [graph.classes[number].name for number in graph.op_class.tolist()]
        self.operands = [graph.operands(op).tolist() for op in range(graph.num_ops)]
        self.loops = {loop.op: loop for loop in graph.loops}
        self.loop_of_end = {loop.end: loop for loop in graph.loops}

    @cached_property
    def is_weight(self) -> list[bool]:
        """Which values no product makes; a loop's are those that it keeps [values]."""
        found = [True] * self.graph.num_values
        for op, name in enumerate(self.names):
            sources = [found[value] for value in self.operands[op]]
            is_given = name not in _ORDERED and all(sources[: 1 if name == _SLICE else None])
            for position, value in enumerate(self.graph.results(op)):
                is_kept = name == BARRIER or (name == WHILE and self.loops[op].kept[position])
                found[value] = sources[position] and is_kept if name in FORWARDS_OPERANDS else is_given
        return found

    def read_bytes(self, is_counted: Sequence[bool]) -> int:
        """Returns the bytes of those arguments among some values that products read, however many ops lie between."""
        return sum(
            self.graph.type_of(value).num_bytes
            for value in range(len(self.graph.arguments))
            if self._is_read[value] and is_counted[value]
        )

    @cached_property
    def stretches(self) -> list[_Stretch]:
        """The stretches of ops between starts and ends of loops in which gradients are made."""
        ends = [op for op, name in enumerate(self.names) if name == WHILE or op in self.loop_of_end]
        found = []
        for before, end in pairwise([-1, *ends, self.graph.num_ops]):
            ops = range(before + 1, end)
            made = {op: self._unread_bytes(op) for op in ops if self.names[op] in _ORDERED}
            made = {op: num_bytes for op, num_bytes in made.items() if num_bytes}
            if made:
                gathered = self._gathered_behind(ops, made)
                is_body = end in self.loop_of_end and self.loop_of_end[end].op == before
                found.append(_Stretch(end, is_body, tuple(made), tuple(made.values()), gathered))
        return found

    def _unread_bytes(self, op: int) -> int:
        """Returns the bytes of an op's results that no product reads."""
        return sum(self.graph.type_of(value).num_bytes for value in self.graph.results(op) if not self._is_read[value])

    def _gathered_behind(self, ops: range, gradients: Mapping[int, int]) -> dict[int, int]:
        """Returns the bytes of weights that those of `ops` behind the first of `gradients` read, and are gathered for.

        A value that an op gives is gathered once, for the first product that reads it. What a gradient is made of are
        no weights, though the batch is an argument like these.
        """
        seen, found = set[int](), dict[int, int]()
        for op in ops:
            values = [v for v in self.operands[op] if self.is_weight[v]] if self.names[op] in _ORDERED else ()
            num_bytes = sum(self.graph.type_of(value).num_bytes for value in values if value not in seen)
            if op > min(gradients) and op not in gradients and num_bytes:
                found[op] = num_bytes
            seen.update(value for value in values if self.graph.value_op[value] >= ops.start)
        return found

    def reductions(self, until: Sequence[float], joined_bytes: int, *, carries_on: bool) -> list[float]:
        """Returns the seconds in which what each product gives may be reduced that none reads [ops].

        So many bytes are joined; what the body of a loop joins last may be hidden by its next trip if it `carries_on`.
        """
        room = [0.0] * self.graph.num_ops
        for one in self.stretches:
            num_last, last_bytes = 1, one.num_bytes[-1]
            while num_last < len(one.products) and last_bytes + one.num_bytes[-num_last - 1] <= joined_bytes:
                last_bytes += one.num_bytes[-num_last - 1]
                num_last += 1
            first_s, last_s = until[one.products[0] + 1], until[one.products[-1] + 1]
            end_s = until[one.end] if one.end < self.graph.num_ops else last_s
            if carries_on and one.is_body:
                num_last, last_bytes, last_s = 0, 0, end_s
            early = len(one.products) - num_last
            early_bytes = sum(one.num_bytes) - last_bytes
            for number, (op, num_bytes) in enumerate(zip(one.products, one.num_bytes, strict=True)):
                span_s, of = (last_s - first_s, early_bytes) if number < early else (end_s - last_s, last_bytes)
                room[op] = one.share * span_s * num_bytes / of / self.times[op]
        return room

    def weights(self, until: Sequence[float], *, are_shared: bool) -> tuple[list[float | None], list[float]]:
        """Returns the seconds in which weights may be on their way: to the first product behind that reads them.

        The time behind the first gradient of a stretch is that of reductions too, if these `are_shared`.

        Shapes: to each op [ops], and to where each is stored [values].
        """
        graph = self.graph
        room: list[float | None] = [None if name in FORWARDS_OPERANDS else 0.0 for name in self.names]
        since = 0.0
        for op, name in enumerate(self.names):
            if name == WHILE or op in self.loop_of_end:
                since = until[op + 1]
            elif name in _ORDERED and any(self.is_weight[value] for value in self.operands[op]):
                room[op], since = (until[op] - since) / self.times[op], until[op]
        for stretch in self.stretches if are_shared else ():
            for op in stretch.gathered:
                room[op] = (room[op] or 0.0) * (1 - stretch.share)
        first = [graph.num_ops] * graph.num_values  # the first product that reads what follows from a value
        for op in range(graph.num_ops - 1, -1, -1):
            behind = min((first[value] for value in graph.results(op)), default=graph.num_ops)
            if self.names[op] in FORWARDS_OPERANDS:
                behind = graph.num_ops  # a weight that goes whole into a loop, or through a barrier, is waited for
            elif self.names[op] in _ORDERED:
                behind = op
            elif behind < graph.num_ops:
                room[op] = room[behind]
            for value in self.operands[op]:
                first[value] = min(first[value], behind)
        return room, [room[product] or 0.0 if product < graph.num_ops else 0.0 for product in first]

    def gradients(
        self,
        until: Sequence[float],
        is_joined: Sequence[bool],
        sums: Sequence[tuple[float, float]],
        is_packed: Sequence[bool],
    ) -> list[tuple[float, float, float] | None]:
        """Returns the seconds in which what no product reads may be gathered, scattered and reduced [values].

        They are None for what a product reads, and none for a gather that is joined, or what is packed into buckets.
        `sums` has those for what each product gives to be scattered and reduced [ops], which hides nothing that is
        summed later: or one product's time would hide as many sums as ops follow from it.
        """
        room = [0.0] * self.graph.num_ops if all(is_joined) else self._room_behind(until)
        found: list[tuple[float, float, float] | None] = [None] * self.graph.num_values
        for value, maker in enumerate(self.makers):
            if not self._is_read[value] and not self.is_weight[value]:
                gather_s = 0.0 if maker < 0 or is_joined[value] else room[maker]
                is_given = maker >= 0 and self.graph.value_op[value] == maker and not is_packed[value]
                found[value] = (gather_s, *(sums[maker] if is_given else (0.0, 0.0)))
        return found

    @cached_property
    def scalars(self) -> dict[int, int]:
        """The bytes that are sent together with each scalar sum that is not sent with the gradients.

        That of a gradient's norm waits for the gradients, and their update for it: it is joined with other such
        scalars. In a loop, a scalar is sent alone in each trip.
        """
        graph = self.graph
        shapes = [graph.types[number].shape for number in graph.value_type.tolist()]
        is_awaited = [False] * graph.num_values
        for op in range(graph.num_ops - 1, -1, -1):
            is_wanted = any(shapes[value] or is_awaited[value] for value in graph.results(op))
            for value in self.operands[op]:
                is_awaited[value] |= is_wanted
        ops = [op for op in range(graph.num_ops) if any(shapes[value] for value in self.operands[op])]
        sums = [(op, value) for op in ops for value in graph.results(op) if not shapes[value]]
        together = [value for op, value in sums if is_awaited[value] and self.times[op] == 1]
        num_bytes = sum(graph.type_of(value).num_bytes for value in together)
        return dict.fromkeys(together, num_bytes) | {value: 0 for op, value in sums if self.times[op] > 1}

    @cached_property
    def _is_read(self) -> list[bool]:
        """What a product or a loop reads, however many ops lie between [values]."""
        is_read = [False] * self.graph.num_values
        before: list[bool] = []
        while before != is_read:  # what a loop carries is read behind it, and in its next trip
            before = list(is_read)
            for op in range(self.graph.num_ops - 1, -1, -1):
                results, is_product = self.graph.results(op), self.names[op] in (*_ORDERED, WHILE)
                carried = self.graph.results(self.loop_of_end[op].op) if self.names[op] == YIELD else ()
                for position, value in enumerate(self.operands[op]):
                    behind = [carried[position]] if carried else results
                    is_read[value] |= is_product or any(is_read[one] for one in behind)
        return is_read

    @cached_property
    def makers(self) -> list[int]:
        """The last product or loop that each value follows from, -1 where none is [values]."""
        makers = [-1] * self.graph.num_values
        for op, name in enumerate(self.names):
            for value in self.graph.results(op):
                is_product = name in _ORDERED or name == WHILE
                makers[value] = op if is_product else max((makers[one] for one in self.operands[op]), default=-1)
        return makers

    def _room_behind(self, until: Sequence[float]) -> list[float]:
        """Returns the seconds from each product that none reads to the next of its kind, or its loop's end [ops]."""
        room = [0.0] * self.graph.num_ops
        after: float | None = None
        for op in range(self.graph.num_ops - 1, -1, -1):
            if op in self.loop_of_end or self.names[op] == WHILE:
                after = until[op]
            elif self.names[op] in _ORDERED and any(not self._is_read[value] for value in self.graph.results(op)):
                room[op] = (after - until[op + 1]) / self.times[op] if after is not None else 0.0
                after = until[op + 1]
        return room
