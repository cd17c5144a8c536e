"""What ops and collectives hold in memory beside their operands and results, in bytes of one device.

Facts of XLA, from its sources and from the buffers that jaxlib 0.10.2 assigns on the CPU (2026-11-21).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Final

from rhino.ir.graph import OpClass, TensorType
from rhino.ir.rules import Rule
from rhino.ir.spec import Spec, num_parts
from rhino.strategies.candidates import State
from rhino.strategies.reshard import Layout, Step, count_parts, way

_ALIGNMENT: Final = 64
"""Bytes: where XLA lets buffers begin on a CPU."""

_GAPS: Final = 32
"""XLA packs temporaries into one heap, largest first, each where it fits best. That leaves gaps: for the models of bench/memory.py the heap
was up to 4 % larger than what lay in it at most. One part in this many is set aside for them."""

_INDEX_BYTES: Final = 4

PRODUCT: Final = "stablehlo.dot_general"


def rounded(num_bytes: int) -> int:
    """Returns what a temporary buffer of `num_bytes` takes."""
    aligned = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return aligned + aligned // _GAPS


@dataclass(frozen=True, slots=True)
class _SizedStep:
    """A step of a way, and into how many parts the tensor is split before and after it."""

    step: Step
    parts_before: int
    parts_after: int


@lru_cache(maxsize=1 << 16)
def _sized_way(rank: int, source: Spec, target: Spec, sizes: tuple[int, ...]) -> tuple[_SizedStep, ...]:
    """Returns the steps from one spec to another, none where there is no way."""
    steps = way(rank, source, target, len(sizes)) or ()
    return tuple([_SizedStep(step, count_parts(step.before, sizes), count_parts(step.after, sizes)) for step in steps])


@dataclass(frozen=True, slots=True)
class Move:
    """How the bytes of a move are counted.

    Its source or its target may be counted elsewhere; a fused loop may write its source (`written_in_order`) and read its target
    (`read_in_any_order`) with their dims in any order.
    """

    source_counted: bool
    target_counted: bool
    written_in_order: bool
    read_in_any_order: bool

    def during(self, kind: TensorType, source: Spec, target: Spec, sizes: tuple[int, ...]) -> int:
        """Returns the bytes that bringing a tensor from one spec to another takes while it goes on."""
        steps = _sized_way(len(kind.shape), source, target, sizes)
        last = len(steps) - 1
        return max([self._held(kind, step, number == 0, number == last, sizes) for number, step in enumerate(steps)], default=0)

    def after(self, kind: TensorType, source: Spec, target: Spec, sizes: tuple[int, ...]) -> int:
        """Returns the bytes that are left of it: what it led to."""
        steps = _sized_way(len(kind.shape), source, target, sizes)
        return rounded(kind.num_bytes // steps[-1].parts_after) if steps else 0

    def before(self, kind: TensorType, source: Spec, target: Spec, sizes: tuple[int, ...]) -> int:
        """Returns the bytes that a fused loop, which could write over what it reads, takes to write its result in another order."""
        steps = _sized_way(len(kind.shape), source, target, sizes) if self.written_in_order else ()
        if not steps or steps[0].step.kind != "reduce_scatter":
            return 0
        step = steps[0].step
        reordered = not _is_major(kind, step.target, step.before, sizes)
        return rounded(kind.num_bytes // steps[0].parts_before) if reordered else 0

    def _held(self, kind: TensorType, sized: _SizedStep, first: bool, last: bool, sizes: tuple[int, ...]) -> int:
        step = sized.step
        before, after = rounded(kind.num_bytes // sized.parts_before), rounded(kind.num_bytes // sized.parts_after)
        total = 0 if first and self.source_counted else before
        total += 0 if last and self.target_counted else after
        match step.kind:
            case "all_to_all":  # its parts arrive as tensors of their own, which are then joined
                total += after
            case "all_gather" if not self.read_in_any_order and not _is_major(kind, step.source, step.after, sizes):
                total += after  # parts arrive one after the other, and are put in order
            case "reduce_scatter" if not (first and self.written_in_order) and not _is_major(kind, step.target, step.before, sizes):
                total += before
        return total


def _is_major(kind: TensorType, dim: int | None, layout: Layout, sizes: Sequence[int]) -> bool:
    """Says whether blocks of `dim` lie one after the other, row by row, in a tensor split as `layout`."""
    return all(extent == prod(sizes[a] for a in axes) for extent, axes in zip(kind.shape[:dim], layout[:dim], strict=True))


def selection_bytes(cls: OpClass, state: State, sizes: tuple[int, ...]) -> int:
    """Returns the temporaries of a `select_and_scatter`.

    XLA (`SelectAndScatterExpander`) finds what it selects by an index for each dim of each element, and carries these through a windowed
    reduction along with the elements.
    """
    kinds = zip(cls.operands[:2], state.needs[:2], strict=True)
    whole, windows = (kind.num_bytes // kind.element_bytes // num_parts(need, sizes) for kind, need in kinds)
    indices = _INDEX_BYTES * len(cls.operands[0].shape)
    return rounded(indices * whole + (indices + cls.operands[0].element_bytes) * windows)


def reads_as_it_lies(cls: OpClass, position: int) -> bool:
    """Says whether a product reads an operand as it lies: batch dims first, and of the left one the summed dims last; else it copies it."""
    if cls.name != PRODUCT or cls.rule is None:
        return True
    roles = [min(role, 1) if position else role for role in _roles(cls.rule, position)]
    return all(a <= b for a, b in pairwise(roles))


def is_matrix(cls: OpClass, position: int) -> bool:
    """Says whether an operand of a product has one dim to sum over and one of its own: others are joined first, by a reshape."""
    if cls.rule is None:
        return False
    roles = _roles(cls.rule, position)
    return roles.count(_FREE) <= 1 and roles.count(_SUMMED) <= 1


_BATCH, _FREE, _SUMMED = range(3)


def _roles(rule: Rule, position: int) -> list[int]:
    """Returns what each dim of an operand of a product is to it."""
    result = {factor for dim in rule.results[0] for factor in dim}
    other = {factor for dim in rule.operands[1 - position] for factor in dim}
    factors = [dim[0] for dim in rule.operands[position] if dim]
    return [_FREE if f not in other else _BATCH if f in result else _SUMMED for f in factors]
