"""What a plan costs, tensor by tensor, in the words of the program's owner."""

from __future__ import annotations

from collections.abc import Iterable

from rhino.ir.locations import name_of
from rhino.ir.program import Program
from rhino.ir.spmd_plan import Cost, folded
from rhino.strategies.cost import CostModel
from rhino.strategies.plan import Plan, Transfer


def collective_costs(plan: Plan, program: Program, model: CostModel) -> tuple[Cost, ...]:
    """Returns the collectives of a plan, the costliest first; those that differ in numbers of their names alone are one."""
    found: dict[tuple[str, str, str, int], list[Cost]] = {}
    for one in plan.transfers():
        cost = _cost(one, program, model)
        found.setdefault((cost.kind, folded(cost.tensor), folded(cost.reader), cost.num_bytes // cost.count), []).append(cost)
    together = [_together(key[1:3], costs) for key, costs in found.items()]
    return tuple(sorted(together, key=lambda one: (-one.seconds, one.tensor, one.reader, one.kind)))


def _cost(one: Transfer, program: Program, model: CostModel) -> Cost:
    seconds = one.times * model.move_s(one.move)
    reader = _name(program, one.reader) if one.reader is not None else ""
    return Cost(one.move.kind, one.times, one.times * one.move.num_bytes, seconds, _tensor(program, one.value), reader)


def _tensor(program: Program, value: int) -> str:
    op = int(program.graph.value_op[value])
    return program.graph.arguments[value].name if op < 0 else _name(program, op)


def _name(program: Program, op: int) -> str:
    """Returns JAX's scope of an op, or its kind where it has none."""
    return name_of(program.ops[op].location) or program.ops[op].name


def _together(names: Iterable[str], costs: list[Cost]) -> Cost:
    tensor, reader = names if len(costs) > 1 else (costs[0].tensor, costs[0].reader)
    count, num_bytes = (sum(getattr(one, field) for one in costs) for field in ("count", "num_bytes"))
    return Cost(costs[0].kind, count, num_bytes, sum(one.seconds for one in costs), tensor, reader)
