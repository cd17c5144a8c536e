"""Where a loss scale enters a step and leaves it again: which values hold S times what the program computes.

In f16 most gradients are too small for normal numbers. The backward pass is linear in the loss's gradient, so it may be
computed of S times that, and what it gives be divided by S. A program does not say where its backward pass begins; but
to multiply by a power of two and to divide by it again changes nothing, wherever it is done. So what is to be found is
only where it is worth it, and where rounding allows for it:

- The last products of a step, from which no other product follows, give gradients of weights: each of what a layer has
  read, and of the gradient of what it gave. The latter follows from the former, or from constants alone, or from
  another such gradient; what is recomputed for the backward pass does not.
- The first of these gradients begin the backward pass. They are computed in f32, and so is what leads to them and to no
  other product; then they are scaled, and rounded.
- What follows from them and leads to another such gradient is scaled, if the op is linear in it. What the op adds to it
  is scaled too; what it multiplies it by is not. For other ops it is unscaled, and scaled again behind them.
- Gradients of parameters, products and sums of scaled values, stay scaled through copies, and through loops that
  sum them up or stack them. All else reads them unscaled, in f32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rhino.ir.arrays import Bools
from rhino.ir.graph.graph import REDUCE
from rhino.strategies.precision.op_kinds import Kind
from rhino.strategies.precision.step_facts import SUMS, StepFacts
from rhino.strategies.precision.widths import CONVERT


@dataclass(frozen=True, slots=True, eq=False)
class LossScale:
    """Which values are scaled, and who reads them so.

    Shapes: `scaled` [values], `is_wide` [ops]. `reads` are the positions of the operands that an op reads scaled, for
    ops that read any. `begins` are the values that are not scaled and are read so: what leads to these alone
    `is_wide`, and computes in f32. `finite` are values outside of all loops that are finite, unscaled, where all
    gradients are.
    """

    scaled: Bools
    is_wide: Bools
    begins: frozenset[int]
    reads: dict[int, frozenset[int]]
    finite: tuple[int, ...]


def find_loss_scale(facts: StepFacts) -> LossScale | None:
    """Returns where a step is scaled; None where no product gives a gradient."""
    cotangents = find_cotangents(facts)
    return _Scaling(facts, cotangents).found() if cotangents else None


def find_cotangents(facts: StepFacts) -> dict[int, int]:
    """Returns the products that give gradients, and which of their two operands follows from the loss."""
    last = [op for op in facts.products if not any(facts.leads[value] for value in facts.graph.results(op))]
    pairs = {op: tuple(facts.operands[op]) for op in last if len(set(facts.operands[op])) == 2}
    both = dict.fromkeys(value for pair in pairs.values() for value in pair)
    bits = {value: 1 << number for number, value in enumerate(both)}
    reach = _reach(facts, bits)
    found: dict[int, int] = {}
    known, is_new = 0, True
    while is_new:
        is_new = False
        for op in [op for op in pairs if op not in found]:
            one, other = pairs[op]
            for sides in (
                (reach[one] & bits[other], reach[other] & bits[one]),
                (facts.constant[one], facts.constant[other]),
                (reach[one] & known, reach[other] & known),
            ):
                if bool(sides[0]) != bool(sides[1]):
                    found[op] = 0 if sides[0] else 1
                    known |= bits[pairs[op][found[op]]]
                    is_new = True
                    break
    return found


def _reach(facts: StepFacts, bits: dict[int, int]) -> list[int]:
    """Returns the bits of what each value follows from in one iteration of the loops around it [values]."""
    found = [bits.get(value, 0) for value in range(facts.graph.num_values)]
    for op in range(facts.graph.num_ops):
        for value, result in facts.edges(op):
            found[result] |= found[value]
    return found


class _Scaling:
    """The values of a step whose products with these positions of cotangents give gradients."""

    def __init__(self, facts: StepFacts, positions: dict[int, int]) -> None:
        self.facts, self.graph = facts, facts.graph
        self.products = frozenset(facts.products)
        self.cotangents = tuple(dict.fromkeys(facts.operands[op][place] for op, place in positions.items()))
        self.leads = facts.leading(self.cotangents)
        self.from_zero = {
            result: value in self.graph.zeros
            for loop in self.graph.loops
            for value, result in zip(facts.operands[loop.op], self.graph.results(loop.op), strict=True)
        }
        self.first = self._first()
        self.follows = self._following()
        self.only_summed = self._only_summed()

    def found(self) -> LossScale:
        """Returns what is scaled, and by whom it is read."""
        facts, graph = self.facts, self.graph
        scaled, reads = self._scaled()
        begins = {facts.operands[op][place] for op, places in reads.items() for place in places}
        begins = {value for value in begins if not scaled[value]}
        late = facts.leading(begins)
        early = facts.leading(value for op in facts.products if op not in reads for value in facts.operands[op])
        is_wide = [
            facts.kinds[op] != Kind.PRODUCT
            and any(late[one] for one in graph.results(op))
            and not any(early[one] or scaled[one] for one in graph.results(op))
            for op in range(graph.num_ops)
        ]
        return LossScale(
            np.array(scaled, dtype=bool),
            np.array(is_wide, dtype=bool),
            frozenset(begins),
            reads,
            self._finite(scaled, reads),
        )

    def _first(self) -> frozenset[int]:
        """Returns the cotangents that follow from no others."""
        bits = {value: 1 << number for number, value in enumerate(self.cotangents)}
        reach = _reach(self.facts, bits)
        return frozenset(value for value, bit in bits.items() if reach[value] == bit)

    def _following(self) -> list[bool]:
        """Returns which values follow from the first cotangents; these themselves are among them [values].

        A loop's sum or stack that starts from zeros follows from what is added to it. What starts from something else,
        as parameters do in a loop over steps, does not.
        """
        facts = self.facts
        found = [value in self.first for value in range(self.graph.num_values)]

        def visit(op: int) -> None:
            is_end = op in facts.loop_of_end
            for value, result in facts.edges(op):
                if not is_end or self.from_zero[result]:
                    found[result] |= found[value]

        facts.until_settled(found, visit)
        return found

    def _only_summed(self) -> list[bool]:
        """Returns which values sums alone read, also through copies: after them there is less to unscale [values]."""
        facts = self.facts
        found, is_read = [True] * self.graph.num_values, [False] * self.graph.num_values
        for value in self.graph.returns:
            found[value] = False
        for op in reversed(range(self.graph.num_ops)):
            is_copy = facts.kinds[op] == Kind.COPY or facts.names[op] == CONVERT
            takes = facts.names[op] == REDUCE or (
                is_copy and all(found[one] and is_read[one] for one in self.graph.results(op))
            )
            for value in facts.operands[op]:
                found[value] &= takes
                is_read[value] = True
        return [one and read for one, read in zip(found, is_read, strict=True)]

    def _scaled(self) -> tuple[list[bool], dict[int, frozenset[int]]]:
        """Returns which values are scaled, and which operands each op reads so.

        Sums and stacks of loops are taken to be scaled until what is added to them turns out not to be.
        """
        facts, graph = self.facts, self.graph
        sums = {one for one, is_zero in self.from_zero.items() if is_zero and self._may_be(one)}
        while True:
            scaled, reads = [one in sums for one in range(graph.num_values)], dict[int, frozenset[int]]()
            for op in range(graph.num_ops):
                places = self._forwarded_places(op, scaled) if facts.forwards_operands(op) else self._places(op, scaled)
                if places:
                    reads[op] = places
            wrong = {
                result
                for loop in graph.loops
                for value, result in zip(facts.operands[loop.end], graph.results(loop.op), strict=True)
                if result in sums and not scaled[value]
            }
            if not wrong:
                return scaled, reads
            sums -= wrong

    def _may_be(self, value: int) -> bool:
        return self.follows[value] and self.facts.is_wide_type[value]

    def _forwarded_places(self, op: int, scaled: list[bool]) -> frozenset[int]:
        """Says of what an op that passes on its operands gives whether it is scaled; returns what it reads so."""
        edges = list(self.facts.edges(op))
        if op not in self.facts.loop_of_end:
            for value, result in edges:
                scaled[result] |= scaled[value] or (self._may_be(value) and self.leads[result])
        return self._but_zeros(op, (place for place, (_, result) in enumerate(edges) if scaled[result]))

    def _places(self, op: int, scaled: list[bool]) -> frozenset[int]:
        """Says of what an op gives whether it is scaled; returns the operands that it reads so."""
        results, operands = self.graph.results(op), self.facts.operands[op]
        if len(results) == 1 and self._may_be(results[0]):
            sets = [
                places
                for places in self.graph.cls(op).linear
                if all(self.facts.is_wide_type[operands[place]] for place in places)
            ]
            for among in (scaled, self.follows):  # what is scaled first: of a product, one operand alone is to be
                for places in sets:
                    if any(among[operands[place]] for place in places) and self._is_kept(op, places, scaled):
                        scaled[results[0]] = True
                        return self._but_zeros(op, places)
        return frozenset()

    def _but_zeros(self, op: int, places: Iterable[int]) -> frozenset[int]:
        """Returns these operands of an op, but for zeros, which are as they are scaled."""
        return frozenset(place for place in places if self.facts.operands[op][place] not in self.graph.zeros)

    def _is_kept(self, op: int, places: frozenset[int], scaled: list[bool]) -> bool:
        """Says whether an op that is linear in these operands leaves its result scaled."""
        facts = self.facts
        (result,) = self.graph.results(op)
        if self.leads[result] or op in self.products:
            return True
        read = [facts.operands[op][place] for place in places]
        if not all(scaled[one] or one in self.first or one in self.graph.zeros for one in read):
            return False
        return facts.kinds[op] != Kind.ARITHMETIC or facts.names[op] in SUMS or self.only_summed[result]

    def _finite(self, scaled: list[bool], reads: dict[int, frozenset[int]]) -> tuple[int, ...]:
        """Returns values outside of loops that are finite where all scaled values are that are read unscaled.

        For what is read so in a loop, these are the loop's results that follow from it.
        """
        facts, graph = self.facts, self.graph
        around = [-1] * graph.num_ops
        for loop in reversed(graph.loops):  # outer loops last
            around[loop.op + 1 : loop.end + 1] = [loop.op] * (loop.end - loop.op)
        found = {value: None for value in graph.returns if scaled[value]}
        inside: dict[int, list[int]] = {}
        for op in range(graph.num_ops):
            read = [
                value
                for place, value in enumerate(facts.operands[op])
                if scaled[value] and place not in reads.get(op, ())
            ]
            if read and around[op] >= 0:
                inside.setdefault(around[op], []).extend(result for _, result in facts.edges(op))
            for value in read:
                if around[graph.value_op[value]] < 0:
                    found[value] = None
        for begin, values in inside.items():
            follows = facts.following(values)
            found |= {one: None for one in graph.results(begin) if follows[one] and facts.is_wide_type[one]}
        return tuple(sorted(found))
