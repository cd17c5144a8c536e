"""Plans that nobody would choose: drawn among all that are legal, localized, run, and compared with one device.

A plan is drawn by solving the model's own choice problem with random costs: what is legal stays as it is, what is good
does not. So every strategy of every op is met, beside every other that the problem allows, and every way of resharding
in between. Moods:

    any    every state of a node is as likely as every other
    near   as well, but changing a sharding costs too: fewer collectives, longer stretches in one sharding
    split  no op runs whole where it can be split
    sums   as well, and partial sums flow on as far as they can
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

import jax
import numpy as np
from planning import Planned, Reference, tolerance

from rhino.ir.arrays import Floats
from rhino.ir.graph.spec import partial_axes
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import wrap_manual
from rhino.ir.mlir.reader import read_module
from rhino.ir.program.collectives import module_stats
from rhino.ir.program.program import Program
from rhino.passes.base import Remarks
from rhino.passes.sharding.choose_shardings import ChooseShardings, predicted_stats, write_plan
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.sharding.planning_pass import Target, build_choice, with_offload
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.compare import Difference, differences, worst
from rhino.runtime.executor.executable import Executable, Host, compile_module
from rhino.runtime.executor.signature import Value
from rhino.runtime.executor.steps import run_steps
from rhino.strategies.choice.choice import Choice
from rhino.strategies.choice.sharding_plan import ShardingPlan, make_plan
from rhino.strategies.cost.candidates import REPLICATE, State
from rhino.strategies.cost.nodes import Node
from rhino.strategies.solver.answer import Answer
from rhino.strategies.solver.problem import Problem
from rhino.strategies.solver.search import Limits, Search

MOODS: Final = ("any", "near", "split", "sums")
_RULES = "rhino-normalize,func.func(sdy-populate-op-sharding-rules)"
_FILE = "drawn.mlir"
_LIMITS = Limits(table_entries=1 << 18, rounds=())
"""Any legal plan will do: on several axes that of a few sweeps, without a bound."""
_ENDLESS: Final = 1e18
"""Bytes per second."""
_REWARD = -1000.0
"""Far below all costs of a small program together, so that a state with it is chosen if it is legal at all."""


class NotDrawnError(Exception):
    """The search for any plan at all ended without one, as it may for loops in loops on several axes."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawable:
    """A program with its choices on one mesh."""

    module: ir.Module
    program: Program
    target: Target
    choice: Choice

    def plan(self, seed: int, mood: str, wanted: tuple[int, int] | None = None) -> ShardingPlan:
        """Returns a random legal plan, and annotates the module with it.

        In that plan the node `wanted[0]` is in its state `wanted[1]`.
        """
        return self.write(self.answer(seed, mood, wanted))

    def answer(self, seed: int, mood: str, wanted: tuple[int, int] | None = None) -> Answer:
        """Returns a random legal choice; its costs say nothing."""
        problem = random_costs(self.choice, seed, mood)
        outcome = Search(_preferring(problem, wanted) if wanted else problem, _LIMITS).run(None)
        if not isinstance(outcome, Answer):
            raise NotDrawnError(f"no plan within the limits of a draw: {outcome}")
        return outcome

    def write(self, answer: Answer) -> ShardingPlan:
        """Returns the plan of a choice, and annotates the module with it."""
        plan = make_plan(self.choice, answer.states)
        with self.module.context, ir.Location.unknown():
            write_plan(self.module.operation, self.program, plan, self.target)
            build_pass_manager("func.func(sdy-drop-sharding-rules)", self.module.context).run(self.module.operation)
        return plan


def drawable(text: str, mesh: str, *, is_joined: bool = False) -> Drawable:
    """Returns the program in `text`, read for `mesh` on the host's devices; each is good for one plan.

    What only its update reads may lie in host memory. `is_joined` says that all collectives of its local program are
    joined that may be, whatever they send.
    """
    module, remarks = read_module(text.encode(), _FILE, make_context()), Remarks(_FILE)
    with module.context, ir.Location.unknown():
        build_pass_manager(_RULES, module.context, remarks).run(module.operation)
        chooser = ChooseShardings(cluster="cpu8", mesh=mesh)
        target = chooser.target(module.operation, remarks)
        target = _packed(target) if is_joined else target
        program = with_offload(chooser.read(module.operation, target, remarks), target)
        return Drawable(module, program, target, build_choice(program, target))


def _packed(target: Target) -> Target:
    """Returns a target whose programs have collectives joined as if memory and links took no time."""
    model = target.model
    device = replace(model.device, platform="tpu", hbm_bytes_per_s=_ENDLESS)
    axes = tuple(replace(axis, bytes_per_s=_ENDLESS) for axis in model.axes)
    return replace(target, model=replace(model, device=device, axes=axes))


def _preferring(problem: Problem, wanted: tuple[int, int]) -> Problem:
    node, state = wanted
    table = problem.tables[problem.node_table[node]].copy()
    table[state] += _REWARD
    node_table = problem.node_table.copy()
    node_table[node] = len(problem.tables)
    return replace(problem, tables=(*problem.tables, table), node_table=node_table)


def random_costs(choice: Choice, seed: int, mood: str) -> Problem:
    """Returns the problem of `choice` with the same legal pairs and other costs, and without memory."""
    problem, random = choice.problem, np.random.default_rng(seed)

    def redraw(table: Floats, bias: Floats) -> Floats:
        return np.where(np.isfinite(table), random.random(table.shape) + bias, np.inf)

    nodes = [
        redraw(problem.tables[t], _bias(node, mood)) for t, node in zip(problem.node_table, choice.nodes, strict=True)
    ]
    tables = [problem.tables[t] for t in problem.edge_table]
    edges = [
        redraw(t, np.zeros(t.shape)) * (t > 0) if mood == "near" else np.where(np.isfinite(t), 0.0, np.inf)
        for t in tables
    ]
    first = np.arange(len(nodes) + len(edges))
    ends = (problem.edge_u, problem.edge_v)
    return Problem((*nodes, *edges), first[: len(nodes)], *ends, first[len(nodes) :], coordinates=problem.coordinates)


def _bias(node: Node, mood: str) -> Floats:
    """What the mood adds to the cost of each state of a node [states], where costs are drawn from 0 to 1."""
    whole = [node.kind == "op" and _way(state) == "whole" for state in node.states]
    sums = [any(map(partial_axes, (*state.operand_specs, *state.result_specs))) for state in node.states]
    return 1.0 * np.array(whole) * (mood in ("split", "sums")) - 1.0 * np.array(sums) * (mood == "sums")


def _way(state: State) -> str:
    """Returns in one word how an op runs."""
    if min(state.strategy, default=REPLICATE) < REPLICATE:
        return "partial"
    return "split" if max(state.strategy, default=REPLICATE) > REPLICATE else "whole"


def ways_to_run(plan: ShardingPlan) -> str:
    """Returns how many ops run in each way, for a report."""
    ways = Counter(_way(op) for op in plan.ops)
    return ", ".join(f"{ways[way]} {way}" for way in ("whole", "split", "partial"))


@dataclass(frozen=True, slots=True, eq=False)
class OneDevice:
    """What one device makes of a program, from drawn inputs."""

    inputs: list[Host]
    results: list[Host]

    def difference(self, plan: ShardingPlan, module: ir.Module, *, own_collectives: bool = False) -> Difference:
        """Returns how far the local program of a plan is from that: its worst result.

        The local program must have the collectives that the plan foresees, and no other unless it has some of its own.
        """
        local = localized_copy(module, _FILE)
        assert own_collectives or predicted_stats(plan) == module_stats(local), (
            predicted_stats(plan),
            module_stats(local),
        )
        executable = compile_module(wrap_manual(local), jax.devices()[: prod(plan.sizes)])
        found = worst(differences(executable.signature, _run(executable, self.inputs), self.results))
        assert found is not None
        return found


def one_device(text: str, seed: int = 0) -> OneDevice:
    """Runs the program in `text` as it is."""
    executable = compile_module(read_module(text.encode(), _FILE, make_context()), jax.devices()[:1])
    inputs = [_draw(value, np.random.default_rng([seed, value.index])) for value in executable.signature.arguments]
    return OneDevice(inputs, _run(executable, inputs))


def _run(executable: Executable, inputs: Sequence[Host]) -> list[Host]:
    (step,) = run_steps(executable, inputs, 1)
    return executable.fetch(step.results)


def _draw(value: Value, random: np.random.Generator) -> Host:
    """Floats of both signs; integers that index the dims of small tensors, and counts."""
    kind, shape = value.dtype.kind, value.shape
    if kind == "c":
        return np.asarray(random.uniform(-2, 2, shape) + 1j * random.uniform(-2, 2, shape)).astype(value.dtype)
    drawn = random.integers(0, 4 if kind in "iu" else 2, shape) if kind in "iub" else random.uniform(-2, 2, shape)
    return np.asarray(drawn).astype(value.dtype)


# Training steps


def random_plan(text: bytes, name: str, seed: int, mood: str, mesh: str = "8") -> Planned:
    """Returns a random legal plan of the training step in `text` on at most eight devices."""
    drawn = drawable(text.decode(), mesh, is_joined=True)
    answer = drawn.answer(seed, mood)
    plan = drawn.write(answer)
    return Planned(drawn.module, localized_copy(drawn.module, name), plan, answer)


def compile_planned(planned: Planned) -> Executable:
    """Returns the localized program of a plan, compiled for as many devices as its mesh has."""
    return compile_module(planned.form("localized"), jax.devices()[: prod(planned.plan.sizes)])


def try_plan(text: bytes, name: str, seed: int, mood: str, mesh: str, expected: Reference) -> tuple[bool, str]:
    """Returns whether a random plan does what it should, and a line about it."""
    planned = random_plan(text, name, seed, mood, mesh)
    found = expected.difference(compile_planned(planned), tolerance(name))
    exact = planned.predicted == planned.localized
    line = (
        f"{ways_to_run(planned.plan)}; {planned.localized.total.num} collectives{'' if exact else ', OTHERS PREDICTED'}"
    )
    return found.passes and exact, f"{line}; worst result {found.value.label}, relative error {found.max_rel:.2g}"
