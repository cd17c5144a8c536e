"""How the ops of a line are split in Aceso's model, and what stretches of it take so as stages.

A *division* of the line says how every op is split over so many devices. Even ones split all ops alike; the others are
the best ways through the line at prices on memory, which the solver of choice problems finds: an op is a node, how it
is split its state, and what it takes to bring a tensor from one to the next the edge between them. A stage is a stretch
of the line under one division, which is thus a shape of a rank (rhino.strategies.pipeline.stages.shapes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

import numpy as np
from aceso_model import AcesoModel, OpPlan, StagePlan

from rhino.ir.arrays import Floats
from rhino.ir.cluster.aceso_tables import ProfiledOp
from rhino.strategies.pipeline.stages.shapes import Shape
from rhino.strategies.remat.line_remat import Increments, RematLine, caps
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Search

PRICES: Final = (0.0, 0.1, 0.3, 1.0, 3.0)
"""What all memory of the line costs, times the seconds of the line.

At a price of 0 each op is split as is fastest; the higher it is, the more of them are split as takes least memory.
"""

WORTH: Final = 0.005
"""The share of its price that a way through the line has to save beside even ones, to be looked at."""

_ALL: Final = slice(None)

IN_FLIGHT: Final = (1, 4)
"""Micro-batches whose stash is paid for: of a late stage, and of an early one."""


class DividedLine:
    """What stretches of a line take as stages where every op is split in one way, for so many examples.

    Shapes: `seconds`, and the bytes `held` per micro-batch in flight and `kept` throughout [places + 1, places + 1].
    """

    def __init__(self, model: AcesoModel, examples: int, ops: tuple[OpPlan, ...]) -> None:
        self.model, self.ops = model, ops
        rows = model.rows(examples, StagePlan(0, ops[0].parts * ops[0].copies, ops))
        assert rows is not None, "only what was profiled is divided so"
        self.rows, num = rows, len(rows)
        kinds = model.kinds
        stash = np.array([row.stash_bytes * kind.stash for row, kind in zip(rows, kinds, strict=True)])
        forward = np.array([row.forward_s for row in rows])
        reshards = [0.0] * (1 + (num > 0))
        reshards += [model.reshard_s(at, ops[at - 1], ops[at], rows[at].input_bytes) for at in range(1, num)]
        start, end = np.meshgrid(np.arange(num + 1), np.arange(num + 1), indexing="ij")
        self.is_stage = end > start
        reshard_s = np.cumsum(reshards)
        computed = _along(forward + np.array([row.backward_s for row in rows]))
        between = reshard_s[end] - reshard_s[np.minimum(start + 1, num)]
        self.seconds = np.where(self.is_stage, computed + between, inf)
        comes = np.array([row.input_bytes for row in rows])
        self.held = comes[np.minimum(start, num - 1)] + _along(stash)
        weights = _along(np.array([row.weight_bytes for row in rows]))
        forward_reserved = _most(np.array([row.forward_reserved_bytes for row in rows]))
        backward_reserved = _most(np.array([row.backward_reserved_bytes for row in rows]))
        self.kept = weights * (2 + model.setup.state) + np.maximum(forward_reserved + backward_reserved, weights)
        begins = np.array([one.begins for one in kinds])
        fixed = np.array([one.is_fixed for one in kinds])
        for first, size, layers in model.layers:
            # Where layers are no blocks, their first op is kept, so that what is recomputed ends there.
            firsts = np.arange(first, first + size * layers, size)
            fixed[firsts] |= ~begins[firsts]
            begins[firsts] = True
        remat = RematLine(forward, stash, begins, fixed)
        self.increments = [(cap, Increments(remat, cap)) for cap in caps(remat)]
        self.layers = [one for one in model.layers if _repeats(ops, *one)]
        # What begins in a later layer of several and ends before the last one takes what it would in the first.
        self.is_first = np.ones_like(self.is_stage)
        for first, size, layers in self.layers:
            last = first + size * (layers - 1)
            self.is_first[first + size : last, : last + 1] = False
        self.shape = self._shape()

    def _shape(self) -> Shape:
        model, num = self.model, len(self.rows)
        enters, leaves = np.zeros((2, num + 1)), np.zeros((2, num + 1))
        for far in (0, 1):
            enters[far, :num] = [model.transfer_s(row.input_bytes, far=bool(far)) for row in self.rows]
            leaves[far, 1:] = [model.transfer_s(row.output_bytes, far=bool(far)) for row in self.rows]
        return Shape(self.ops[0].parts * self.ops[0].copies, enters, leaves)

    def over_bytes(self, behind: int, start: int | slice = _ALL, end: int | slice = _ALL) -> Floats:
        """Returns what stretches with so many stages behind them are over the memory of a device."""
        return self.kept[start, end] + self.held[start, end] * (behind + 1) - self.model.setup.memory_bytes

    def stage_s(self, behind: int, limit_s: float) -> Floats:
        """Returns the seconds of each stretch with so many stages behind it, with what it has to recompute."""
        over = self.over_bytes(behind)
        fair = self.is_stage & (self.seconds <= limit_s)
        found = np.where(fair & (over <= 0), self.seconds, inf)
        start, end = np.nonzero(fair & (over > 0) & self.is_first)
        for cap, increments in self.increments:
            need = (over[start, end] + cap) / (behind + 1)
            most_s = np.minimum(limit_s, found[start, end])
            may = np.flatnonzero(self.seconds[start, end] + increments.least_s(start, end, need) <= most_s)
            at, until = start[may], end[may]
            seconds = self.seconds[at, until] + increments.choose(at, until, need[may])[0]
            found[at, until] = np.minimum(found[at, until], seconds)
        for first, size, layers in self.layers:
            end_of_many = first + size * (layers - 1) + 1
            for start_of in range(first + size, end_of_many - 1):
                found[start_of, start_of:end_of_many] = found[start_of - size, start_of - size : end_of_many - size]
        return found

    def bound_s(self, behind: int, limit_s: float) -> Floats:
        """Returns seconds that are no more than those: with any run, at the price of the smallest."""
        over = self.over_bytes(behind)
        found = np.where(self.seconds <= limit_s, self.seconds, inf)
        start, end = np.nonzero((found < inf) & (over > 0))
        smallest = self.increments[0][0] if self.increments else 0.0
        most = self.increments[-1][1] if self.increments else None
        need = (over[start, end] + smallest) / (behind + 1)
        found[start, end] += most.least_s(start, end, need) if most else inf
        return found

    def least_over(self, behind: int, start: int, end: int) -> float:
        """Returns by how much a stretch is over the memory of a device, if it recomputes all it can."""
        over = float(self.over_bytes(behind, start, end))
        if not self.increments:
            return over
        cap, most = self.increments[-1]
        at, until = np.array([start]), np.array([end])
        saved = sum(int(most.count(number, at, until)[0]) * kind.saved for number, kind in enumerate(most.kinds))
        return over - (behind + 1) * saved + cap

    def plan(self, start: int, end: int, behind: int) -> StagePlan:
        """Returns the stage of a stretch, with what it recomputes to fit, as it can."""
        over = float(self.over_bytes(behind)[start, end])
        again = np.zeros(len(self.ops), dtype=bool)
        if over > 0:
            at, until = np.array([start]), np.array([end])
            needs = [(over + cap) / (behind + 1) for cap, _ in self.increments]
            costs = [
                float(one.choose(at, until, np.array([need]))[0][0])
                for need, (_, one) in zip(needs, self.increments, strict=True)
            ]
            best = int(np.argmin(costs))
            again = self.increments[best][1].ops(start, end, needs[best])
        ops = [replace(op, again=bool(one)) for op, one in zip(self.ops[start:end], again[start:end], strict=True)]
        return StagePlan(start, self.shape.devices, tuple(ops))


def _along(values: Floats) -> Floats:
    """Returns the sum of each stretch [places + 1, places + 1]."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    found: Floats = total[None, :] - total[:, None]
    return found


def _most(values: Floats) -> Floats:
    """Returns the most of each stretch but its last op, 0 where there is none [places + 1, places + 1]."""
    num = len(values)
    found = np.zeros((num + 1, num + 1))
    for start in range(num - 1):
        found[start, start + 2 :] = np.maximum.accumulate(values[start : num - 1])
    return found


def _repeats(ops: Sequence[OpPlan], first: int, size: int, layers: int) -> bool:
    end = first + size * layers
    return list(ops[first : end - size]) == list(ops[first + size : end])


def divisions(model: AcesoModel, examples: int) -> Iterator[tuple[OpPlan, ...]]:
    """Yields the ways to split all ops of the line over as many devices as a stage may have."""
    found: dict[tuple[OpPlan, ...], None] = {}
    for devices, even in even_divisions(model, examples).items():
        found |= {(one,) * len(model.line): None for one in even}
        if model.setup.resharded and devices > 1:
            found |= dict.fromkeys(_priced_divisions(model, examples, even))
    yield from found


def even_divisions(model: AcesoModel, examples: int) -> dict[int, list[OpPlan]]:
    """Returns the ways to split all ops alike, by the number of devices."""
    setup = model.setup
    widths = [1 << n for n in range(setup.devices_per_node.bit_length())]
    found = {
        devices: [
            OpPlan(parts, devices // parts)
            for parts in widths
            if parts <= devices
            and examples % (devices // parts) == 0
            and examples // (devices // parts) in setup.examples
        ]
        for devices in widths
    }
    profiled = {
        devices: [one for one in even if all(model.op(at, examples, one) for at in range(len(model.line)))]
        for devices, even in found.items()
    }
    return {devices: even for devices, even in profiled.items() if even}


def _priced_divisions(model: AcesoModel, examples: int, even: Sequence[OpPlan]) -> Iterator[tuple[OpPlan, ...]]:
    """Yields the best ways through the line at each price of memory that save something beside even ones."""
    states, rows = _states(model, examples, even)
    seconds = [np.array([row.forward_s + row.backward_s for row in some]) for some in rows]
    edges = [
        np.array(
            [[model.reshard_s(at, a, b, row.input_bytes) for b, row in zip(now, some, strict=True)] for a in before]
        )
        for at, (before, now, some) in enumerate(zip(states, states[1:], rows[1:], strict=False), 1)
    ]
    num = len(states)
    ends = np.arange(num - 1), np.arange(1, num), np.arange(num, 2 * num - 1)
    alike = [np.array([some.index(one) for some in states]) for one in even]
    for in_flight in IN_FLIGHT:
        sizes = [
            np.array(
                [row.weight_bytes * (3 + model.setup.state) + row.stash_bytes * kind.stash * in_flight for row in some]
            )
            for some, kind in zip(rows, model.kinds, strict=True)
        ]
        rate = sum(float(one.min()) for one in seconds) / sum(float(one.min()) for one in sizes)
        for price in PRICES:
            priced = [one + price * rate * size for one, size in zip(seconds, sizes, strict=True)]
            problem = Problem((*priced, *edges), np.arange(num), *ends)
            answer = Search(problem).run(None)
            if isinstance(answer, Answer) and answer.cost < (1 - WORTH) * min(map(problem.cost, alike)):
                yield tuple(some[state] for some, state in zip(states, answer.states, strict=True))


def _states(
    model: AcesoModel, examples: int, even: Sequence[OpPlan]
) -> tuple[list[list[OpPlan]], list[list[ProfiledOp]]]:
    """Returns in which ways each op may be split, and what it takes in each."""
    states: list[list[OpPlan]] = []
    rows: list[list[ProfiledOp]] = []
    for at, kind in enumerate(model.kinds):
        ways = [replace(one, form=form) for one in even for form in range(kind.forms)]
        known = [(one, row) for one in ways if (row := model.op(at, examples, one)) is not None]
        states.append([one for one, _ in known])
        rows.append([row for _, row in known])
    return states, rows
