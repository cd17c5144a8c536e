"""Plan random small programs twice: by the search, and by an oracle that shares no code with it.

Both must find the same optimum.

Programs and their notation are those of small_programs.py, costs and what may be chosen those of oracle_model.py, which
reads docs/costs.md and docs/specs.md a second time, and the optimum that of oracle_solve.py. Machines are drawn, too.
For each program the choice problem must have the same nodes with the same states, and the search the same cost and
bound as the oracle by elimination, one by one and in batches; where it is forced to prices of edges and sweeps, and to
prices of memory under budgets, the optimum lies between its bound and its cost. What a choice keeps in memory is asked
of the search's problem, for the oracle has no second model of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from unittest.mock import patch

import numpy as np
from oracle_model import Axis, Machine, problem_of
from oracle_model import Problem as OracleProblem
from oracle_solve import Kept, TooLargeError, eliminate, least_within
from small_programs import SmallProgram, draw, draw_layers

from rhino.ir.cluster.cluster import MeshAxis
from rhino.ir.cluster.hardware import Device, Line
from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.graph.graph import Graph
from rhino.ir.graph.spec import unpack
from rhino.ir.mlir.bindings import ir, make_context, run_pipeline
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.program import read_program
from rhino.strategies.choice.choice import Choice
from rhino.strategies.cost.cost_model import CostModel
from rhino.strategies.cost.target import Target
from rhino.strategies.sharding.choice_problem import build
from rhino.strategies.solver.answer import Answer, Infeasible
from rhino.strategies.solver.search import Limits, Search

_RULES: Final = "func.func(sdy-populate-op-sharding-rules)"
ROUNDING: Final = 1e-9
LAYERS_EVERY: Final = 25
"""Of so many seeds one makes a program of alike layers, too: that takes as long as a dozen small ones."""
_LAYERS: Final = 80
"""How many layers it has at least."""
_KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")


@dataclass
class Checked:
    """What was found of one program: a line for each thing that is not as it should be, and which checks were made."""

    wrong: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def expect(self, name: str, holds: bool, what: str) -> None:
        """Notes a check, and what is wrong where it does not hold."""
        self.done[name] += 1
        if not holds:
            self.wrong.append(f"{name}: {what}")


def draw_machine(seed: int, sizes: Sequence[int]) -> Machine:
    """Returns a machine on which arithmetic, memory, links and fixed times all count for tensors of some kilobytes."""
    rng = np.random.default_rng([seed, 1])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    axes = []
    for size in sizes:
        ring = between(1e8, 1e10)
        measured = {kind: (between(1e-8, 1e-6), between(1e8, 1e10)) for kind in _KINDS if rng.random() < 0.1}
        axes.append(Axis(size, between(1e-9, 1e-6), ring, ring * float(rng.uniform(0.3, 1.0)), measured))
    others = between(1e9, 1e11)
    costly = others / 5 if rng.random() < 0.5 else others
    fixed = [between(1e-9, 1e-7) if rng.random() < 0.5 else 0.0 for _ in range(3)]
    return Machine(between(1e9, 1e12), others, costly, between(1e9, 1e11), tuple(axes), *fixed)


class _Alone(CostModel):
    """A host whose collectives are waited for one by one: the oracle joins none."""

    @property
    def target(self) -> Target:
        return replace(super().target, joined=frozenset(), joined_bytes=0)


def cost_model(machine: Machine, dtype: str) -> CostModel:
    """Returns the machine as the search takes it."""
    device = Device(
        "drawn",
        (("f32", machine.products_per_s), (dtype, machine.products_per_s))
        if dtype != "f32"
        else (("f32", machine.products_per_s),),
        hbm_bytes=1 << 40,
        usable_hbm_fraction=1.0,
        hbm_bytes_per_s=2 * machine.memory_per_s,
        matmul_efficiency=1.0,
        memory_efficiency=0.5,
        sources=(),
        platform="cpu",
        launch_s=machine.launch_s,
        array_s=machine.array_s,
        op_s=machine.kernel_s,
        vector_per_s=machine.others_per_s,
        costly_per_s=machine.costly_per_s,
    )
    axes = [
        MeshAxis(
            name,
            one.size,
            one.step_s,
            one.ring_per_s,
            one.all_per_s,
            "ring",
            (name,),
            tuple((k, Line(*v)) for k, v in one.measured.items()),
        )
        for name, one in zip("xyz", machine.axes, strict=False)
    ]
    return _Alone(device, tuple(axes))


def graph_of(program: SmallProgram, sizes: tuple[int, ...]) -> Graph:
    """Returns the program as the search reads it."""
    module = ir.Module.parse(program.text(), make_context())
    run_pipeline(module, _RULES)
    return read_program(entry_function(module), mesh_of_shape(sizes)).graph


def check(seed: int, budgets: bool = True) -> Checked:
    """Plans one program by both."""
    found = Checked()
    program, sizes = draw(seed)
    machine = draw_machine(seed, sizes)
    oracle = problem_of(program, machine)
    choice = build(graph_of(program, sizes), cost_model(machine, program.dtype))
    order = same_states(oracle, choice, found)
    for residents in (choice.problem.node_residents, choice.problem.edge_residents):
        alive = (residents.start >= 0) & (residents.start <= residents.end) & (residents.end < choice.problem.num_times)
        found.expect("residents", bool(alive.all()), f"times {residents.start[~alive]} to {residents.end[~alive]}")
    try:
        least, _ = eliminate(oracle)
    except TooLargeError:
        found.done["too large"] += 1
        return found
    check_free(choice, least, found)
    if budgets and order is not None:
        check_budgets(oracle, choice, order, found)
    return found


def check_layers(seed: int) -> Checked:
    """Plans a program of alike layers by both: the search takes them in batches."""
    found = Checked()
    program, sizes = draw_layers(seed, _LAYERS + seed % 3)
    machine = draw_machine(seed, sizes)
    choice = build(graph_of(program, sizes), cost_model(machine, program.dtype))
    least, _ = eliminate(problem_of(program, machine))
    with patch("rhino.strategies.solver.elimination.in_batches._MANY", 0):
        outcome = Search(choice.problem).run(None)
    hair = ROUNDING * least
    same = isinstance(outcome, Answer) and abs(outcome.cost - least) <= hair and abs(outcome.bound - least) <= hair
    found.expect("many layers", same, f"{outcome}, the oracle {least}")
    return found


def same_states(oracle: OracleProblem, choice: Choice, found: Checked) -> list[list[int]] | None:
    """Returns the oracle's number of each state of each node, if both have the same."""
    num_axes, order = len(choice.model.sizes), list[list[int]]()
    kinds = [node.kind for node in choice.nodes], [node.kind for node in oracle.nodes]
    found.expect("nodes", kinds[0] == kinds[1], f"{kinds[0]} in the search, {kinds[1]} in the oracle")
    if kinds[0] != kinds[1]:
        return None
    for number, (node, other) in enumerate(zip(choice.nodes, oracle.nodes, strict=True)):
        ours = [
            (_specs(one.operand_specs, num_axes)[: len(other.states[0][0])], _specs(one.result_specs, num_axes))
            for one in node.states
        ]
        same = len(set(ours)) == len(ours) and set(ours) == set(other.states) and len(other.states) == len(ours)
        more, less = (
            sorted(set(ours) - set(other.states), key=str)[:3],
            sorted(set(other.states) - set(ours), key=str)[:3],
        )
        found.expect(
            "states",
            same,
            f"node {number} ({node.kind} {node.number}) has {more}, which the oracle has not, and not {less}",
        )
        if not same:
            return None
        order.append([other.states.index(one) for one in ours])
    return order


def _specs(specs: Sequence[int], num_axes: int) -> tuple[tuple[str | int, ...], ...]:
    return tuple(tuple("RP"[one] if one < 2 else one - 2 for one in unpack(spec, num_axes)) for spec in specs)


def check_free(choice: Choice, least: float, found: Checked) -> None:
    """Compares what the search finds without a budget, by each path."""
    hair = ROUNDING * least
    for path, many in (("elimination", 4000), ("batches", 0)):
        with patch("rhino.strategies.solver.elimination.in_batches._MANY", many):
            outcome = Search(choice.problem).run(None)
        same = isinstance(outcome, Answer) and abs(outcome.cost - least) <= hair and abs(outcome.bound - least) <= hair
        found.expect(path, same, f"{outcome}, the oracle finds {least:.12g}")
    # else little is left to be too wide
    with patch("rhino.strategies.solver.elimination.by_node.Elimination.remove_chains", lambda _: None):
        search = Search(choice.problem, Limits(table_entries=8))
        outcome = search.run(None)
    lies = isinstance(outcome, Answer) and outcome.bound - hair <= least <= outcome.cost + hair
    found.expect("sweeps" if search.solver.is_wide else "narrow", lies, f"{outcome}, the oracle finds {least:.12g}")
    if search.solver.is_wide and isinstance(outcome, Answer):
        found.done["sweeps: optimal"] += outcome.cost <= least + hair
        found.done["sweeps: proven"] += outcome.gap <= Limits().gap


def check_budgets(oracle: OracleProblem, choice: Choice, order: Sequence[Sequence[int]], found: Checked) -> None:
    """Compares what the search finds under budgets: shares of what the best choice takes."""
    problem = choice.problem
    free = Search(problem).run(None)
    assert isinstance(free, Answer)
    kept = kept_bytes(choice, order)
    for share in (0.95, 0.8):
        budget = share * free.peak_bytes
        try:
            least = least_within(oracle, kept, problem.num_times, budget)
        except TooLargeError:
            found.done["budget too large"] += 1
            continue
        for path, limits in (
            ("prices", Limits(exact_below_states=0)),
            ("prices, then MILP", Limits(exact_below_states=1000)),
        ):
            hair = ROUNDING * free.cost
            match Search(problem, limits).run(budget):
                case Infeasible():
                    found.expect(path, least == np.inf, f"nothing fits {budget}, and the oracle finds {least}")
                    found.done["nothing fits"] += 1
                case Answer() as answer:
                    within = answer.bound - 1e-6 * free.cost <= least <= answer.cost + hair
                    found.expect(
                        path, within, f"{answer.bound} .. {answer.cost} within {budget}, the oracle finds {least}"
                    )
                    exact = answer.cost <= least * (1 + 2 * limits.gap)
                    found.done[f"{path}: optimal"] += exact
                    if limits.exact_below_states and int(problem.num_states().sum()) <= limits.exact_below_states:
                        found.expect("MILP", exact, f"{answer.cost} within {budget}, the oracle finds {least}")
                case other:
                    found.done[f"{path}: nothing found"] += 1
                    found.expect(
                        path, other.bound - 1e-6 * free.cost <= least, f"bound {other.bound}, the oracle finds {least}"
                    )


def kept_bytes(choice: Choice, order: Sequence[Sequence[int]]) -> list[Kept]:
    """Returns what choices keep in memory, by the oracle's numbers of states."""
    problem, found = choice.problem, list[Kept]()
    for residents, owners in (
        (problem.node_residents, [(node,) for node in range(problem.num_nodes)]),
        (problem.edge_residents, list(zip(problem.edge_u.tolist(), problem.edge_v.tolist(), strict=True))),
    ):
        rows = zip(
            residents.owner.tolist(),
            residents.table.tolist(),
            residents.start.tolist(),
            residents.end.tolist(),
            strict=True,
        )
        for owner, number, first, last in rows:
            nodes = owners[owner]
            table = np.empty_like(problem.tables[number])
            table[np.ix_(*[order[node] for node in nodes])] = problem.tables[number]
            found.append(Kept(nodes, table, first, last))
    return found
