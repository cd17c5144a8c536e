"""Localize plans that nobody would choose, and compare them with one device.

    python bench/random_plans.py [--models=mlp,gpt] [--meshes=8,2x3] [--seeds=0:8] [--moods=any,near,split,sums]

A plan is drawn by solving the model's own choice problem with random costs: what is legal stays as it is, what is good does not. So
every strategy of every op is met, beside every other that the problem allows, and every way of resharding in between. Moods:

    any    every state of a node is as likely as every other
    near   as well, but changing a sharding costs too: fewer collectives, longer stretches in one sharding
    split  no op runs whole where it can be split
    sums   as well, and partial sums flow on as far as they can

Exit code: 1 if a plan differs from one device, cannot be localized, or predicts other collectives than the local program has.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, Final

import jax
import numpy as np
from planning import Planned, Reference, reference, tolerance, zoo, zoo_step

from rhino.ir.mlir import ir, make_context
from rhino.ir.reader import read_module
from rhino.ir.spec import partial_axes
from rhino.passes.base import Remarks
from rhino.passes.choose_shardings import ChooseShardings, write_plan
from rhino.passes.localize import localized_copy
from rhino.passes.pipeline import build_pass_manager
from rhino.passes.problem import build_choice
from rhino.runtime.devices import request_host_devices
from rhino.runtime.executable import Executable, compile_module
from rhino.strategies.answer import Answer
from rhino.strategies.build import Choice
from rhino.strategies.candidates import REPLICATE, State
from rhino.strategies.nodes import Node
from rhino.strategies.plan import Plan, make_plan
from rhino.strategies.problem import Floats, Problem
from rhino.strategies.search import Limits, Search

MOODS: Final = ("any", "near", "split", "sums")
_LIMITS: Final = Limits(table_entries=1 << 18, rounds=())
"""Any legal plan will do: on several axes that of a few sweeps, without a bound."""

_RULES: Final = "rhino-normalize,func.func(sdy-populate-op-sharding-rules)"


def random_plan(text: bytes, name: str, seed: int, mood: str, mesh: str = "8") -> Planned:
    """Returns a random legal plan of the training step in `text` on at most eight devices."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    with module.context, ir.Location.unknown():
        build_pass_manager(_RULES, module.context, remarks).run(module.operation)
        chooser = ChooseShardings(cluster="cpu8", mesh=mesh)
        target = chooser.target(module.operation, remarks)
        program = chooser.read(module.operation, target, remarks)
        choice = build_choice(program, target)
        outcome = Search(random_costs(choice, seed, mood), _LIMITS).run(None)
        assert isinstance(outcome, Answer), outcome
        plan = make_plan(choice, outcome.states)
        write_plan(module.operation, program, plan, target)
        build_pass_manager("func.func(sdy-drop-sharding-rules)", module.context).run(module.operation)
    return Planned(module, localized_copy(module, name), plan, outcome)


def random_costs(choice: Choice, seed: int, mood: str) -> Problem:
    """Returns the problem of `choice` with the same legal pairs and other costs, and without memory."""
    problem, random = choice.problem, np.random.default_rng(seed)

    def redraw(table: Floats, bias: Floats) -> Floats:
        return np.where(np.isfinite(table), random.random(table.shape) + bias, np.inf)

    nodes = [redraw(problem.tables[t], _bias(node, mood)) for t, node in zip(problem.node_table, choice.nodes, strict=True)]
    tables = [problem.tables[t] for t in problem.edge_table]
    edges = [redraw(t, np.zeros(t.shape)) * (t > 0) if mood == "near" else np.where(np.isfinite(t), 0.0, np.inf) for t in tables]
    first = np.arange(len(nodes) + len(edges))
    ends = (problem.edge_u, problem.edge_v)
    return Problem((*nodes, *edges), first[: len(nodes)], *ends, first[len(nodes) :], coordinates=problem.coordinates)


def _bias(node: Node, mood: str) -> Floats:
    """What the mood adds to the cost of each state of a node [states], where costs are drawn from 0 to 1."""
    whole = [node.kind == "op" and _way(state) == "whole" for state in node.states]
    sums = [any(map(partial_axes, (*state.needs, *state.comes))) for state in node.states]
    return 1.0 * np.array(whole) * (mood in ("split", "sums")) - 1.0 * np.array(sums) * (mood == "sums")


def _way(state: State) -> str:
    """Returns in one word how an op runs."""
    if min(state.strategy, default=REPLICATE) < REPLICATE:
        return "partial"
    return "split" if max(state.strategy, default=REPLICATE) > REPLICATE else "whole"


def ways_to_run(plan: Plan) -> str:
    """Returns how many ops run in each way, for a report."""
    ways = Counter(_way(op) for op in plan.ops)
    return ", ".join(f"{ways[way]} {way}" for way in ("whole", "split", "partial"))


def try_plan(text: bytes, name: str, seed: int, mood: str, mesh: str, expected: Reference) -> tuple[bool, str]:
    """Returns whether a random plan does what it should, and a line about it."""
    try:
        planned = random_plan(text, name, seed, mood, mesh)
        found = expected.difference(compile_planned(planned), tolerance(name))
    except Exception as error:  # a crash is a finding like any other, and the next plan may have another
        return False, f"{type(error).__name__}: {error}"
    exact = planned.predicted == planned.localized
    line = f"{ways_to_run(planned.plan)}; {planned.localized.total.num} collectives{'' if exact else ', OTHERS PREDICTED'}"
    return found.passes and exact, f"{line}; worst result {found.value.label}, relative error {found.max_rel:.2g}"


def sixes() -> Mapping[str, Any]:
    """Returns small models by name all of whose sizes are multiples of six, for meshes that are no powers of two."""
    zoo()  # makes what follows importable
    import gpt  # noqa: PLC0415
    import mlp  # noqa: PLC0415

    transformer = gpt.GPTConfig(layers=1, hidden=24, heads=6, ffn=48, vocab=48, seq=12, batch=12)
    return {"gpt-sixes": gpt.model(transformer), "mlp-sixes": mlp.model(mlp.MLPConfig(sizes=(24, 48, 24), batch=12))}


def model_step(name: str) -> bytes:
    """Returns the training step of a model of examples/zoo.py, or of `sixes`, as StableHLO text."""
    if name not in sixes():
        return zoo_step(name)
    from training import export_step  # noqa: PLC0415 - found beside the zoo

    return export_step(sixes()[name]).encode()


def compile_planned(planned: Planned) -> Executable:
    """Returns the localized program of a plan, compiled for as many devices as its mesh has."""
    return compile_module(planned.form("localized"), jax.devices()[: prod(planned.plan.sizes)])


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", default="mlp,mlp-dropout,two-tower,gpt", help="names in examples/zoo.py, or gpt-sixes, mlp-sixes")
    parser.add_argument("--meshes", default="8,2x4", help="as in rhino-opt --mesh, each of at most 8 devices")
    parser.add_argument("--seeds", default="0:3", help="first:end")
    parser.add_argument("--moods", default=",".join(MOODS))
    options = parser.parse_args(argv)
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time would be LLVM's
    request_host_devices(8, os.environ)
    first, end = map(int, options.seeds.split(":"))
    failures = 0
    for name in options.models.split(","):
        text = model_step(name)
        expected = reference(text, name, num_steps=2)
        for mesh, seed, mood in product(options.meshes.split(","), range(first, end), options.moods.split(",")):
            passes, line = try_plan(text, name, seed, mood, mesh, expected)
            failures += not passes
            print(f"{'ok   ' if passes else 'WRONG'} {name} on {mesh} seed {seed} {mood}: {line}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
