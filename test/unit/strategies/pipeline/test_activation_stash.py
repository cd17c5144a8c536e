"""What a forward pass passes on: the least of all choices, for estimates as for programs.

Some values are never made again.
"""

import dataclasses
from itertools import combinations

import gpt
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import CHEAP, random_graph
from snippets import context
from training import export_step
from zoo import GPT

from rhino.ir.graph.graph import materialized
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import read_module
from rhino.ir.plan.step_memory import local_bytes
from rhino.ir.program.accumulation import accumulation_loop
from rhino.ir.program.op_stages import virtual_stage_of
from rhino.ir.program.staged_module import read_staged
from rhino.passes.base import Remarks
from rhino.passes.pipeline.sharded_step import sharded_plan
from rhino.passes.pipeline.split_stages import SplitStages
from rhino.passes.registry import PARALLEL, build_named
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.passes.unsharded import unsharded_program
from rhino.strategies.choice import sharding_plan_costs as sharded
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.pipeline.activation_stash import SplitMicroBatch
from rhino.strategies.pipeline.plan_part import PlanPart, plan_of
from rhino.strategies.structure.training_phases import parts_of


def split_of(program, module):
    plan = sharded_plan(program, module)
    parts = parts_of(program.graph, accumulation_loop(program), np.zeros(program.graph.num_ops))
    return SplitMicroBatch(program.graph, parts, sharded.local_bytes(plan), sharded.runs_alone(plan))


def least(graph, parts, turn):
    """The least weight of what is kept and what is made again, over all sets of ops that may be done again."""
    maker = graph.value_op.tolist()

    def reads(op):
        return [v for v in graph.operands(op).tolist() if maker[v] >= 0 and not parts.free[maker[v]]]

    ops = np.flatnonzero(parts.body & ~parts.free).tolist()
    late = {(v, op) for op in ops if op > turn for v in reads(op) if maker[v] <= turn}
    whole = {v for v, op in late if not graph.cls(op).fusible}
    may = [op for op in ops if op <= turn and graph.cls(op).fusible and graph.results(op).start not in whole]
    weights = []
    for count in range(len(may) + 1):
        for again in combinations(may, count):
            needed, waiting = set(), [v for v, _ in late]
            while waiting:
                value = waiting.pop()
                if value not in needed:
                    needed.add(value)
                    waiting += reads(maker[value]) if maker[value] in again else ()
            made = {v for v in needed if maker[v] in again}
            weights.append(sum(weight(graph, v) if v in made else graph.type_of(v).num_bytes for v in needed))
    return min(weights)


def weight(graph, value):
    """What making a value again weighs.

    Its elements are four bytes each, and a tanh counts eight of the 32 operations that weigh as much as a byte.
    """
    assert graph.cls(int(graph.value_op[value])).name == CHEAP
    return graph.type_of(value).num_bytes / 4 * 8 / 32


@pytest.mark.parametrize("seed", range(40))
def test_the_least_of_all_choices(seed):
    graph = random_graph(seed, 14)
    parts = parts_of(graph, None, np.zeros(graph.num_ops))
    for turn in range(graph.num_ops):
        stage = (np.arange(graph.num_ops) > turn).astype(np.int64)
        split = SplitMicroBatch(graph, parts, graph.value_bytes())
        found = split.between(stage, 0, 1)
        assert not found.again & found.kept.keys()
        total = split.size(found) + sum(weight(graph, value) for value in found.again)
        assert total == pytest.approx(least(graph, parts, turn))


@pytest.mark.parametrize("seed", range(60))
def test_what_lies_in_memory_of_a_part_is_what_does_in_a_program_of_its_own(seed):
    graph = random_graph(seed, 14)
    inside = np.random.default_rng(seed).random(graph.num_ops) < 0.6
    made_by = np.where(graph.value_op >= 0, inside[graph.value_op], False)
    given = [value for value in range(graph.num_values) if made_by[value] and value % 3 == 0]
    part = PlanPart(np.flatnonzero(inside).tolist(), dict.fromkeys(given, 0), {})
    plan = ShardingPlan(graph, (), (None,) * graph.num_ops, (0,) * graph.num_values, ())
    own = [*part.arguments(graph), *(value for op in part.ops for value in graph.results(op))]
    assert materialized(graph, inside, given)[own].tolist() == materialized(plan_of(plan, part).graph).tolist()


@pytest.fixture(scope="module")
def cut():
    """A GPT with dropout on two devices, in three stages.

    Returned are the programs, and the bytes and element types that stages state they keep.
    """
    config = dataclasses.replace(GPT, layers=3, dropout=0.1)
    module, remarks = read_module(export_step(gpt.model(config)).encode(), "gpt", context()), Remarks("gpt")
    items = build_named(PARALLEL, {"stages": "3", "num": "4", "mesh": "2", "cluster": "v100x8"})
    before = items[: next(number for number, one in enumerate(items) if isinstance(one, SplitStages))]
    build_pass_manager(before, context(), remarks).run(module.operation)
    sizes, kinds = [], []
    with context(), ir.Location.unknown():
        with unsharded_program(module.operation, remarks) as program:
            split = split_of(program, module.operation)
            marks = [virtual_stage_of(op) for op in program.ops]
            stage = np.array([-1 if mark is None else mark for mark in marks])
            for forward in range(2):
                found = split.between(stage, forward, 4 - forward)
                sizes.append(split.size(found))
                kinds.append({program.graph.type_of(value).dtype for value in found.kept})
        SplitStages().run(module.operation, remarks)
    return module, sizes, kinds


def test_programs_hand_on_what_estimates_say(cut):
    module, sizes, _ = cut
    with context(), ir.Location.unknown():
        step = read_staged(module.operation)
    by_phase = {(part.phase, part.stage): part for part in step.parts}
    given = {name for part in step.parts if part.phase != "setup" for name in part.gives}
    for stage, expected in enumerate(sizes):
        forward, back = by_phase["forward", stage], by_phase["backward", stage]
        layouts = dict(zip(back.reads, step.programs[back.program].inputs, strict=True))
        crossing = [
            name
            for name in back.reads
            if name in given and name in {*forward.gives, *forward.reads} and "sum" not in name
        ]
        assert sum(local_bytes(layouts[name], step.meshes[0]) for name in crossing) == expected


def test_a_mask_is_kept_and_not_the_random_bits_or_the_numbers_that_it_is_made_of(cut):
    *_, kinds = cut
    assert all("i1" in one and "ui32" not in one for one in kinds)


def test_backward_pass_begins_before_gradients_are_made():
    """Layers that keep little hold most where they recompute, which is in the backward pass."""

    def layer(x, p):
        return x + jnp.tanh(x @ p["up"]) @ p["down"]

    def loss(params, x):
        x, _ = jax.lax.scan(lambda h, p: (jax.checkpoint(layer)(h, p), None), x, params["layers"])
        return (jnp.tanh(x @ params["out"]) ** 2).mean()

    def step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    layers = {"up": jnp.zeros((4, 4, 1024)), "down": jnp.zeros((4, 1024, 4))}
    params = {"layers": layers, "out": jnp.zeros((4, 512))}
    text = jax.jit(step, donate_argnums=0).lower(params, jnp.zeros((8, 4))).as_text()
    module = ir.Module.parse(text, context())
    passes = "rhino-normalize,rhino-split-scans{counts=1;1;1;1},rhino-micro-batch{num=2},rhino-normalize"
    build_pass_manager(passes, module.context, Remarks()).run(module.operation)
    with unsharded_program(module.operation, Remarks()) as program:
        names = [op.name for op in program.ops]
        turn, _, last_peak = split_of(program, module.operation).turns
    products = [number for number, name in enumerate(names) if name == "stablehlo.dot_general"]
    assert products[8] <= turn < products[9] < last_peak  # two of each layer, and the one behind them
