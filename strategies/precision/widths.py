"""How wide the values of a step are: found along the program, until loops agree with themselves."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from math import prod
from typing import Final

from rhino.ir.graph.graph import PART_UPDATE, REDUCE, REPEATS
from rhino.strategies.precision.op_kinds import Kind
from rhino.strategies.precision.step_facts import StepFacts

SOURCES: Final = frozenset({"stablehlo.constant", "stablehlo.iota"})
CONVERT: Final = "stablehlo.convert"


class Width(IntEnum):
    """How wide a value is, from what has no say to what decides."""

    CONSTANT = 0
    PARAMETER = 1
    NARROW = 2
    WIDE = 3


def find_widths(facts: StepFacts, rounded: frozenset[int]) -> list[int]:
    """Returns the width of every value, where `rounded` are stored in 16 bits; of scalars it means nothing [values]."""
    graph = facts.graph
    found: list[int] = [Width.CONSTANT] * graph.num_values
    for number in range(len(graph.arguments)):
        if facts.tensors[number]:
            found[number] = Width.PARAMETER if number in facts.parameters else Width.WIDE
    products = frozenset(facts.products)

    def settle(value: int, width: int) -> None:
        if facts.tensors[value]:
            width = Width.NARROW if value in rounded and width > Width.NARROW else width
            found[value] = max(found[value], Width.WIDE if value in facts.given.large else width)

    def visit(op: int) -> None:
        if facts.forwards_operands(op):
            for value, result in facts.edges(op):
                if op in facts.loop_of_end and result in facts.states:
                    continue
                is_added = result in facts.sums and op in facts.loop_of_end and found[value] >= Width.NARROW
                settle(result, Width.WIDE if is_added else found[value])
                strengthen(value, found[result], result)
        elif op in products:
            for result in graph.results(op):
                settle(result, Width.NARROW if facts.leads[result] or facts.given.narrow_sums else Width.WIDE)
        else:
            width = width_of_op(facts, found, op)
            for result in graph.results(op):
                settle(result, width)
            if facts.kinds[op] in (Kind.COPY, Kind.ARITHMETIC):
                for value, result in facts.edges(op):
                    strengthen(value, max(width, found[result]), result)

    def strengthen(value: int, width: int, result: int) -> None:
        # A parameter that is joined to something in f32, as the scale of a normalization is, is in f32 in the backward
        # pass too. What only updates it says nothing about how it is used.
        if found[value] == Width.PARAMETER and width == Width.WIDE and facts.leads[result]:
            found[value] = Width.WIDE

    facts.until_settled(found, visit, again=True)
    return found


def width_of_op(facts: StepFacts, widths: list[int], op: int) -> int:
    """Returns the width in which an op computes that is no product in 16 bits."""
    if facts.names[op] in SOURCES:
        return Width.CONSTANT
    read = [widths[value] for value in facts.operands[op] if facts.tensors[value]]
    others = [value for value in facts.operands[op] if facts.has_dims[value] and not facts.is_wide_type[value]]
    kind, widest = facts.kinds[op], max(read, default=Width.CONSTANT)
    if not read and others:
        is_mask = facts.names[op] == CONVERT and facts.graph.type_of(others[0]).dtype == "i1"
        return Width.CONSTANT if is_mask or not any(facts.data[value] for value in others) else Width.WIDE
    if widest <= Width.PARAMETER and kind != Kind.PRODUCT:
        # Rows of a parameter that data choose are activations.
        return Width.NARROW if widest == Width.PARAMETER and any(facts.data[one] for one in others) else widest
    if kind == Kind.COPY:
        return widest
    leads = any(facts.leads[value] for value in facts.graph.results(op))
    return widest if kind == Kind.ARITHMETIC and leads and op not in facts.polynomials else Width.WIDE


def with_copied(facts: StepFacts, values: Iterable[int]) -> frozenset[int]:
    """Returns values and what they copy: what is stored in 16 bits wherever it is computed.

    Sums of loops, what leads to no product and arguments are none. Nor is what is repeated, which may be a statistic.
    """
    graph = facts.graph

    def may_be(value: int) -> bool:
        return facts.is_wide_type[value] and facts.leads[value] and value not in facts.sums

    def is_repeated(op: int, value: int, result: int) -> bool:
        sizes = [prod(graph.type_of(one).shape) for one in (value, result)]
        return facts.names[op] in REPEATS and sizes[0] < sizes[1]

    found = [False] * graph.num_values
    for value in values:
        found[value] = may_be(value)

    def visit(op: int) -> None:
        if facts.kinds[op] == Kind.COPY or facts.forwards_operands(op):
            for value, result in facts.edges(op):
                if found[result] and not found[value] and not is_repeated(op, value, result):
                    found[value] = may_be(value)

    facts.until_settled(found, visit, reverse=True)
    return frozenset(value for value in range(len(graph.arguments), graph.num_values) if found[value])


def find_statistics(facts: StepFacts, widths: list[int]) -> list[bool]:
    """Returns which values are sums, or follow from sums, constants and parameters alone, or copy parameters [values].

    A stack is what is written into it.
    """
    found = [False] * facts.graph.num_values
    copies = [value in facts.parameters for value in range(facts.graph.num_values)]

    def visit(op: int) -> None:
        if facts.forwards_operands(op):
            for value, result in facts.edges(op):
                found[result] |= found[value]
                copies[result] |= copies[value]
            return
        operands = facts.operands[op][1:2] if facts.names[op] == PART_UPDATE else facts.operands[op]
        read = [value for value in operands if facts.tensors[value]]
        is_copy = facts.kinds[op] == Kind.COPY and bool(read) and all(copies[value] for value in read)
        is_copy &= not any(facts.data[value] for value in facts.operands[op] if not facts.tensors[value])
        follows = any(found[one] for one in read) and all(found[one] or widths[one] <= Width.PARAMETER for one in read)
        is_statistic = facts.kinds[op] != Kind.PRODUCT and (facts.names[op] == REDUCE or follows)
        for result in facts.graph.results(op):
            copies[result] |= is_copy
            found[result] |= is_copy or is_statistic

    facts.until_settled(found, visit)
    return found
