"""Decide which ops of a step in f32 compute in 16 bits, and which values are stored in them.

Every f32 tensor has a width (`widths.py`), found along the program by the kinds of ops (`op_kinds.py`). Parameters and
constants have none of their own: they are read in what the op that reads them computes in.

- Products read 16 bits. Their results are of 16 bits where other products follow from them. Where none does, as from
  the gradient of a weight, results are the sums themselves, in f32.
- Copies and arithmetic take the widest of what they read. So an element-wise chain that starts at products stays in 16
  bits, and one that starts at statistics, or at data of the user's, stays in f32.
- All else computes in f32. So do polynomials, which expand functions like erf, for their errors add up, and arithmetic
  that leads to no product: losses, what is done to gradients of parameters, and the update.
- What a product reads, also through copies, is stored in 16 bits for all its readers.
- So is what a loop of the forward pass carries and the backward pass reads: stacks of activations. Statistics, which
  are sums and what follows from sums alone, are small, and stay. Outside of loops a compiler decides what it keeps, and
  computes conversions where it reads: to round there would cost precision and save nothing.
- What one op alone reads, in f32, is computed in f32: it is part of what that op does.
- A loop's sum over its iterations stays in f32.

Parameters are converted where they are read; copies of theirs that leave nothing out are made of the converted
parameter, so that what is gathered or transposed is in 16 bits. Copies of a part (a layer of a stack) come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools
from rhino.ir.graph.graph import BARRIER, WHILE, YIELD, Graph
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.precision.loss_scale import LossScale, find_loss_scale
from rhino.strategies.precision.op_kinds import Kind, kind_of_op
from rhino.strategies.precision.step_facts import WIDE_TYPE, Given, StepFacts
from rhino.strategies.precision.widths import (
    CONVERT,
    SOURCES,
    Width,
    find_statistics,
    find_widths,
    width_of_op,
    with_copied,
)
from rhino.strategies.structure.training_phases import parts_of

_NO_WORK: Final = frozenset({WHILE, YIELD, CONVERT})
_PARTS: Final = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
"""Copies of a part: before them there is more to convert than after them."""

_Uses = list[list[tuple[int, int]]]
"""The readers of each value by op and operand, (-1, 0) for the program's end [values]."""


@dataclass(frozen=True, slots=True, eq=False)
class Precision:
    """What computes and is stored in 16 bits.

    Shapes: `computes` [ops], `stored` [values]. `products` are the ops of that kind in 16 bits, `kept` the others, with
    the reason. `stashed` is what loops carry that is rounded only because the backward pass reads it. `loss_scale` is
    there where one was asked for, and products give gradients.
    """

    graph: Graph
    computes: Bools
    stored: Bools
    products: tuple[int, ...]
    kept: dict[int, str]
    stashed: tuple[int, ...] = ()
    loss_scale: LossScale | None = None

    def reads(self, op: int, position: int) -> bool:
        """Says whether an op reads an f32 operand in 16 bits."""
        name = self.graph.cls(op).name
        if name == YIELD:
            op = next(loop.op for loop in self.graph.loops if loop.end == op)
        if name in (WHILE, YIELD, BARRIER):
            return bool(self.stored[self.graph.results(op)[position]])
        return bool(self.computes[op])

    def wide(self) -> Iterator[int]:
        """Yields the ops that compute f32 tensors of more than parameters and constants in f32, for what they do."""
        for op in range(self.graph.num_ops):
            cls = self.graph.cls(op)
            tensors = (*cls.operands, *cls.results)
            is_wide = cls.name not in _NO_WORK and kind_of_op(cls.name) == Kind.WIDE and not cls.free
            if is_wide and any(kind.dtype == WIDE_TYPE and kind.shape for kind in tensors):
                yield op


def assign(graph: Graph, given: Given) -> Precision:
    """Returns the precision of every op and value of a graph."""
    facts = StepFacts(graph, given)
    rounded = with_copied(facts, (value for op in facts.products for value in facts.operands[op]))
    widths = find_widths(facts, rounded)
    stashed = _stashed(facts, widths) - rounded if facts.parameters else frozenset[int]()
    if stashed:
        rounded |= with_copied(facts, stashed)
        widths = find_widths(facts, rounded)
    narrow = [facts.tensors[value] and width == Width.NARROW for value, width in enumerate(widths)]
    computes = [_computes(facts, widths, narrow, op) for op in range(graph.num_ops)]
    found = Precision(
        graph,
        np.array(computes, dtype=bool),
        np.array(narrow, dtype=bool),
        facts.products,
        facts.kept,
        tuple(sorted(value for value in stashed if narrow[value])),
    )
    uses = _uses(facts)
    _widen(facts, rounded, uses, found)
    _convert_early(facts, widths, uses, found)
    return _scaled(facts, found) if given.scales else found


def _scaled(facts: StepFacts, found: Precision) -> Precision:
    """Lets the backward pass be scaled; what leads to where it begins, and to no product before, is in f32."""
    scale = find_loss_scale(facts)
    if scale is None:
        return found
    found.computes[scale.is_wide] = False
    wide = [value for op in np.flatnonzero(scale.is_wide).tolist() for value in facts.graph.results(op)]
    found.stored[[value for value in wide if value not in scale.begins]] = False
    return replace(found, loss_scale=scale)


def _computes(facts: StepFacts, widths: list[int], narrow: list[bool], op: int) -> bool:
    """Says whether an op computes in 16 bits, before readers are asked."""
    match facts.kinds[op]:
        case Kind.PRODUCT:
            return op in facts.products
        case Kind.COPY:
            results = [value for value in facts.graph.results(op) if facts.is_wide_type[value]]
            return bool(results) and all(narrow[value] for value in results)
        case Kind.ARITHMETIC:
            return width_of_op(facts, widths, op) == Width.NARROW
        case Kind.WIDE:
            return False


def _stashed(facts: StepFacts, widths: list[int]) -> frozenset[int]:
    """Returns what loops of the forward pass carry in f32 and the backward pass reads, but for statistics."""
    graph = facts.graph
    if not graph.loops:
        return frozenset()
    parts = parts_of(graph, None, np.zeros(graph.num_ops))
    turn = SplitMicroBatch(graph, parts, graph.value_bytes()).turns[0]
    statistics = find_statistics(facts, widths)
    late = {value for op in range(turn + 1, graph.num_ops) for value in facts.operands[op]}
    carried = (value for loop in graph.loops if loop.op <= turn for value in graph.results(loop.op))
    return frozenset(
        value
        for value in carried
        if value in late
        and widths[value] == Width.WIDE
        and facts.tensors[value]
        and facts.leads[value]
        and not statistics[value]
        and value not in facts.given.large
    )


def _uses(facts: StepFacts) -> _Uses:
    found: _Uses = [[] for _ in range(facts.graph.num_values)]
    for op, operands in enumerate(facts.operands):
        for position, value in enumerate(operands):
            found[value].append((op, position))
    for value in facts.graph.returns:
        found[value].append((-1, 0))
    return found


def _widen(facts: StepFacts, rounded: frozenset[int], uses: _Uses, found: Precision) -> None:
    """Lets arithmetic compute in f32 whose one reader reads f32."""
    for op in range(facts.graph.num_ops - 1, -1, -1):
        if facts.kinds[op] != Kind.ARITHMETIC or not found.computes[op]:
            continue
        for value in facts.graph.results(op):
            if found.stored[value] and value not in rounded and len(uses[value]) == 1:
                reader, position = uses[value][0]
                if reader < 0 or not found.reads(reader, position):
                    found.computes[op] = found.stored[value] = False


def _convert_early(facts: StepFacts, widths: list[int], uses: _Uses, found: Precision) -> None:
    """Lets copies of parameters and constants be made in 16 bits where nobody reads them in f32.

    A loop carries in 16 bits what it only reads in them.
    """
    graph = facts.graph
    loops = {loop.op: loop for loop in graph.loops}

    def read_in_16(value: int, but: int | None = None) -> bool:
        readers = [one for one in uses[value] if one[0] != but]
        return bool(readers) and all(op >= 0 and found.reads(op, position) for op, position in readers)

    for op in range(graph.num_ops - 1, -1, -1):
        open_ones = [value for value in graph.results(op) if facts.tensors[value] and widths[value] <= Width.PARAMETER]
        if op in loops:
            first = graph.results(op).start
            for value in open_ones:
                if loops[op].kept[value - first] and read_in_16(value, but=loops[op].end):
                    found.stored[value] = True
        elif facts.names[op] == BARRIER:
            for value in open_ones:
                found.stored[value] = read_in_16(value)
        elif open_ones and _is_remade(facts, op) and read_in_16(open_ones[0]):
            found.computes[op] = found.stored[open_ones[0]] = True


def _is_remade(facts: StepFacts, op: int) -> bool:
    """Says whether an op of parameters or constants gives the same if it computes in 16 bits."""
    if facts.names[op] == CONVERT:
        return facts.graph.type_of(facts.operands[op][0]).dtype == "i1"
    return facts.names[op] in SOURCES or (facts.kinds[op] == Kind.COPY and facts.names[op] not in _PARTS)
