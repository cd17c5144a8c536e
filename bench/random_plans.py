"""Localize plans that nobody would choose, and compare them with one device.

    python bench/random_plans.py [--models=mlp,gpt] [--seeds=0:8] [--moods=any,near,split,sums]

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
from collections.abc import Sequence
from typing import Final

import jax
import numpy as np
from planning import Planned, Reference, reference, tolerance, zoo_step

from rhino.ir.mlir import ir, make_context
from rhino.ir.reader import read_module
from rhino.ir.spec import partial_axes
from rhino.passes.base import Remarks
from rhino.passes.choose_shardings import ChooseShardings, write_plan
from rhino.passes.localize import localized_copy
from rhino.passes.pipeline import build_pass_manager
from rhino.passes.problem import build_choice
from rhino.runtime.devices import request_host_devices
from rhino.runtime.executable import compile_module
from rhino.strategies.answer import Answer
from rhino.strategies.build import Choice, Node
from rhino.strategies.candidates import REPLICATE, State
from rhino.strategies.plan import Plan, make_plan
from rhino.strategies.problem import Floats, Problem
from rhino.strategies.search import Search

MOODS: Final = ("any", "near", "split", "sums")
_RULES: Final = "rhino-normalize,func.func(sdy-populate-op-sharding-rules)"


def random_plan(text: bytes, name: str, seed: int, mood: str) -> Planned:
    """Returns a random legal plan of the training step in `text` on eight devices."""
    module, remarks = read_module(text, name, make_context()), Remarks(name)
    with module.context, ir.Location.unknown():
        build_pass_manager(_RULES, module.context, remarks).run(module.operation)
        chooser = ChooseShardings(cluster="cpu8")
        target = chooser.target(module.operation, remarks)
        program = chooser.read(module.operation, target, remarks)
        choice = build_choice(program, target)
        outcome = Search(random_costs(choice, seed, mood)).run(None)
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
    return Problem((*nodes, *edges), first[: len(nodes)], problem.edge_u, problem.edge_v, first[len(nodes) :])


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


def try_plan(text: bytes, name: str, seed: int, mood: str, expected: Reference) -> tuple[bool, str]:
    """Returns whether a random plan does what it should, and a line about it."""
    try:
        planned = random_plan(text, name, seed, mood)
        found = expected.difference(compile_module(planned.form("localized"), jax.devices()), tolerance(name))
    except Exception as error:  # a crash is a finding like any other, and the next plan may have another
        return False, f"{type(error).__name__}: {error}"
    exact = planned.predicted == planned.localized
    line = f"{ways_to_run(planned.plan)}; {planned.localized.total.num} collectives{'' if exact else ', OTHERS PREDICTED'}"
    return found.passes and exact, f"{line}; worst result {found.value.label}, relative error {found.max_rel:.2g}"


def run(argv: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--models", default="mlp,mlp-dropout,two-tower,gpt", help="names in examples/zoo.py")
    parser.add_argument("--seeds", default="0:3", help="first:end")
    parser.add_argument("--moods", default=",".join(MOODS))
    options = parser.parse_args(argv)
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time would be LLVM's
    request_host_devices(8, os.environ)
    first, end = map(int, options.seeds.split(":"))
    failures = 0
    for name in options.models.split(","):
        text = zoo_step(name)
        expected = reference(text, name, num_steps=2)
        for seed in range(first, end):
            for mood in options.moods.split(","):
                passes, line = try_plan(text, name, seed, mood, expected)
                failures += not passes
                print(f"{'ok   ' if passes else 'WRONG'} {name} seed {seed} {mood}: {line}", flush=True)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
