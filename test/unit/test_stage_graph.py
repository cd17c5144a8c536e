"""Stages of real programs: what becomes a node, what a net costs, and where what costs nothing ends up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from snippets import context

from rhino.ir.cluster import load_cluster, mesh_axes
from rhino.ir.mlir import ir
from rhino.ir.program import Program
from rhino.passes.base import Remarks
from rhino.passes.normalize import Normalize
from rhino.passes.pipeline import build_pass_manager
from rhino.passes.pipeline_stages import PipelineStages
from rhino.passes.whole import whole_program
from rhino.strategies.cost import CostModel
from rhino.strategies.stage_graph import NO_NODE, make_staging
from rhino.strategies.stage_parts import parts_of

MICRO_BATCHES, BATCH, WIDTH = 4, 64, 32


def accumulation(loss, params, *, norm=False):
    """The text of a step that accumulates the gradients of `loss(params, x, y)` in a loop, and applies them, over their norm or not."""

    def step(params, xs, ys):
        def body(i, sums):
            value, grads = jax.value_and_grad(loss)(params, xs[i], ys[i])
            return jax.tree.map(jnp.add, sums, (value, grads))

        value, grads = jax.lax.fori_loop(0, MICRO_BATCHES, body, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)))
        scale = 1 / jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads))) if norm else 0.1
        return jax.tree.map(lambda p, g: p - scale * g, params, grads), value / MICRO_BATCHES

    batch = jnp.zeros((MICRO_BATCHES, BATCH, WIDTH))
    return jax.jit(step, donate_argnums=0).lower(params, batch, batch).as_text()


def module_of(text):
    """The normalized module, whose loop is marked as the one over micro-batches."""
    module = ir.Module.parse(text, context())
    build_pass_manager((Normalize(),), context()).run(module.operation)
    (loop,) = [op for op in module.body.operations[0].regions[0].blocks[0].operations if op.operation.name == "stablehlo.while"]
    with context():
        loop.operation.attributes["rhino.micro_batches"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), MICRO_BATCHES)
    return module


def staged(text, num_stages, tolerance="0.1"):
    """The staging and the answer of the pass, with each op's name and stage: (in the loop, after it)."""
    module, remarks = module_of(text), Remarks()
    with context(), ir.Location.unknown():
        PipelineStages(stages=num_stages, tolerance=tolerance, cluster="v100x8").run(module.operation, remarks)
        block = module.body.operations[0].regions[0].blocks[0]
        (loop,) = [op for op in block.operations if op.operation.name == "stablehlo.while"]
        sides = [list(loop.regions[1].blocks[0].operations)[:-1], list(block.operations)[list(block.operations).index(loop) + 1 : -1]]
        marked = [[(op.operation.name[10:], ir.IntegerAttr(op.attributes["rhino.stage"]).value) for op in side] for side in sides]
    return remarks.statistics["staging"], remarks.statistics["stages"], marked


def layers(params, x, y):
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - y) ** 2)


def weights(count):
    return [jnp.zeros((WIDTH, WIDTH))] * count


def staging_of(text) -> tuple[Program, object]:
    cluster = load_cluster("v100x8")
    with context(), ir.Location.unknown(), whole_program(module_of(text).operation, Remarks()) as program:
        parts = parts_of(program.graph, program.graph.loops[0], CostModel(cluster.device, mesh_axes(cluster, (1,))))
        return program, make_staging(program.graph, parts, 2, MICRO_BATCHES)


@pytest.mark.parametrize("num_stages", [2, 4])
def test_a_chain_sends_one_activation_and_one_gradient_over_each_cut(num_stages):
    _, answer, (body, after) = staged(accumulation(layers, weights(8)), num_stages)
    assert answer.is_optimal
    assert answer.moved_bytes == (num_stages - 1) * 2 * MICRO_BATCHES * BATCH * WIDTH * 4
    assert {stage for _, stage in body} == set(range(2 * num_stages - 1))
    assert {stage for name, stage in after if name == "subtract"} == set(range(num_stages))


def test_a_tied_weight_is_sent_once_a_step_and_its_gradient_in_every_micro_batch():
    def loss(params, x, y):
        first, *others = params
        return layers([first, *others, first.T], x, y)

    untied = staged(accumulation(layers, weights(6)), 2)[1].moved_bytes
    staging, answer, _ = staged(accumulation(loss, weights(5)), 2)
    weight = WIDTH * WIDTH * 4
    assert answer.is_optimal
    assert answer.moved_bytes == untied + weight + MICRO_BATCHES * weight
    assert staging.problem.num_nodes


def test_a_norm_of_all_gradients_ties_no_update_to_another():
    _, answer, (_, after) = staged(accumulation(layers, weights(8), norm=True), 2)
    assert answer.moved_bytes == 2 * MICRO_BATCHES * BATCH * WIDTH * 4
    assert {stage for name, stage in after if name == "subtract"} == {0, 1}


def test_what_costs_nothing_has_no_node_and_counters_tie_nothing():
    program, staging = staging_of(accumulation(layers, weights(2)))
    names = {program.graph.cls(op).name for op in range(program.graph.num_ops) if staging.node[op] == NO_NODE and staging.parts.body[op]}
    assert {"stablehlo.constant", "stablehlo.compare", "stablehlo.select"} <= names
    sources = {program.graph.cls(op).name for op in range(program.graph.num_ops) if staging.node[op] != NO_NODE}
    assert "stablehlo.constant" not in sources


def test_updates_belong_to_the_sums_that_they_start_from():
    program, staging = staging_of(accumulation(layers, weights(2)))
    graph, node = program.graph, staging.node
    for value, returned in zip(graph.results(graph.loops[0].op), graph.operands(graph.loops[0].end).tolist(), strict=True):
        readers = [op for op in np.flatnonzero(staging.parts.apply).tolist() if value in graph.operands(op) and node[op] != NO_NODE]
        assert all(node[op] == node[graph.value_op[returned]] for op in readers)


def test_work_and_memory_are_those_of_the_program():
    _, staging = staging_of(accumulation(layers, weights(2)))
    problem, weight = staging.problem, WIDTH * WIDTH * 4
    assert problem.work.sum() == pytest.approx(staging.parts.seconds[staging.parts.body].sum())
    together = problem.device_memory(np.zeros(problem.num_nodes, dtype=np.int64))
    batch = MICRO_BATCHES * BATCH * WIDTH * 4
    sums, parameters = 2 * weight, 2 * weight
    saved = together[0] - 2 * batch - sums - parameters
    assert saved / min(MICRO_BATCHES, 2) >= 2 * BATCH * WIDTH * 4  # both layers' results at least, for two micro-batches in flight
