"""A list of instructions as loops: some instructions, how often they follow one another, and by how much numbers grow.

A pipeline fills, runs, and drains: each is a few instructions again and again, in which slots, transfers and
micro-batches are the next ones. A loop has the instructions of its first turn, and the stride of each of their numbers
from turn to turn. Any list is loops, if only of one turn; how many there are does not grow with the micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Ints, ranges
from rhino.ir.plan.instruction_list import Form, InstructionList, One

_PERIODS: Final = 16
"""How many lengths of a turn are tried, of each of two kinds (`_periods`)."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions that follow one another `times` times.

    Those of a turn are of `forms`, by number; their numbers are `numbers` in the first turn, and `strides` more in each
    that follows.
    """

    times: int
    forms: tuple[int, ...]
    numbers: tuple[int, ...]
    strides: tuple[int, ...]


def loops_of(found: InstructionList[One]) -> tuple[Loop, ...]:
    """Returns the loops that a list is; of those from an instruction on, always the one that saves most."""
    count = len(found)
    period, times = np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    for one in _periods(found.form_of):  # of equal ones the shortest turn is best
        reach = _reaches(found, one)
        is_best = (reach - 1) * one > np.maximum((times - 1) * period, one)
        period[is_best], times[is_best] = one, reach[is_best]
    worth = np.flatnonzero(times > 1)
    loops: list[Loop] = []
    plain = 0
    while True:
        next_one = np.searchsorted(worth, plain)
        at = int(worth[next_one]) if next_one < len(worth) else count
        loops += [_loop(found, plain, at - plain, 1)] if at > plain else []
        if at == count:
            return tuple(loops)
        loops.append(_loop(found, at, int(period[at]), int(times[at])))
        plain = at + int(period[at] * times[at])


def list_of_loops(forms: Sequence[Form], loops: Sequence[Loop]) -> InstructionList[One]:
    """Returns the list that loops are, whose forms have these numbers."""
    form_of, numbers = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for one in loops:
        first, strides = (np.array(own, dtype=np.int64) for own in (one.numbers, one.strides))
        form_of.append(np.tile(np.array(one.forms, dtype=np.int64), one.times))
        numbers.append((first + np.arange(one.times)[:, None] * strides).ravel())
    return InstructionList(forms, np.concatenate(form_of), np.concatenate(numbers))


def _periods(form_of: Ints) -> list[int]:
    """Returns lengths of a turn to try, ascending.

    They are the distances at which most instructions are of one form, without multiples of one at which more are; and
    those between one instruction and the next of its form that reach over most of the list.
    """
    count = len(form_of)
    alike = _num_alike(form_of)
    found: list[int] = []
    for period in np.lexsort((np.arange(len(alike)), -alike)).tolist():
        if len(found) == _PERIODS or not alike[period]:
            break
        if period and not any(one > 1 and period % one == 0 for one in found):
            found.append(period)
    order = np.argsort(form_of, kind="stable")
    gaps = np.diff(order)[np.diff(form_of[order]) == 0]
    lengths, times = np.unique(gaps, return_counts=True)
    best = lengths[np.lexsort((lengths, -lengths * times))[:_PERIODS]]
    return sorted({*found, *best.tolist()} & set(range(1, count)))


def _num_alike(form_of: Ints) -> Ints:
    """Returns for each distance, below half of the list, how many instructions have their own form so far behind."""
    count = len(form_of)
    total = np.zeros(count // 2 + 1)
    for form in np.unique(form_of).tolist():
        spectrum = np.fft.rfft(form_of == form, 2 * count)
        total += np.fft.irfft(np.abs(spectrum) ** 2, 2 * count)[: count // 2 + 1]
    return np.rint(total).astype(np.int64)


def _reaches(found: InstructionList[One], period: int) -> Ints:
    """Returns how many turns of so many instructions follow one another from each instruction on, at least one."""
    count = len(found)
    is_alike, steps = _steps(found, period)
    same = np.zeros(count, dtype=bool)
    same[period:] = is_alike[period:] & is_alike[:-period] & _are_equal(found, steps, period)
    alike_for, same_for = _run_lengths(is_alike), _run_lengths(same)
    second = np.minimum(np.arange(count) + period, count)
    third = np.minimum(np.arange(count) + 2 * period, count)
    times: Ints = np.where(alike_for[second] >= period, 2 + same_for[third] // period, 1)
    return times


def _steps(found: InstructionList[One], period: int) -> tuple[Bools, Ints]:
    """Returns which instructions are of the form of that one turn before, and by how much each number is larger."""
    is_alike = np.zeros(len(found), dtype=bool)
    is_alike[period:] = found.form_of[period:] == found.form_of[:-period]
    steps = np.zeros(len(found.numbers), dtype=np.int64)
    places = np.flatnonzero(is_alike)
    widths = np.diff(found.starts)[places]
    own, before = ranges(found.starts[places], widths), ranges(found.starts[places - period], widths)
    steps[own] = found.numbers[own] - found.numbers[before]
    return is_alike, steps


def _are_equal(found: InstructionList[One], steps: Ints, period: int) -> Bools:
    """Says of each instruction, from one turn on, whether its numbers grow as those of the one a turn before."""
    is_equal = np.zeros(len(found) - period, dtype=bool)
    places = np.flatnonzero(found.form_of[period:] == found.form_of[:-period]) + period
    widths = np.diff(found.starts)[places]
    own, before = ranges(found.starts[places], widths), ranges(found.starts[places - period], widths)
    differ = np.concatenate([[0], np.cumsum(steps[own] != steps[before])])
    ends = np.cumsum(widths)
    is_equal[places - period] = differ[ends] == differ[ends - widths]
    return is_equal


def _run_lengths(holds: Bools) -> Ints:
    """Returns for how many instructions something holds from each on, and 0 behind the last one."""
    count = len(holds)
    ends = np.where(holds, count, np.arange(count))
    following = np.minimum.accumulate(ends[::-1])[::-1] if count else ends
    return np.concatenate([following - np.arange(count), [0]])


def _loop(found: InstructionList[One], at: int, period: int, times: int) -> Loop:
    first = slice(int(found.starts[at]), int(found.starts[at + period]))
    numbers = found.numbers[first]
    strides = np.zeros_like(numbers)
    if times > 1:
        strides = found.numbers[found.starts[at + period] : found.starts[at + 2 * period]] - numbers
    return Loop(
        times, tuple(found.form_of[at : at + period].tolist()), tuple(numbers.tolist()), tuple(strides.tolist())
    )
