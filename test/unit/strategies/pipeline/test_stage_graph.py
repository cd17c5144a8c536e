"""Stages of real programs: what becomes a node, what a net costs, and where what costs nothing ends up."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from snippets import context

from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.cluster.hardware import Line
from rhino.ir.mlir.bindings import ir
from rhino.ir.program.program import Program
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.pipeline.pipeline_stages import PipelineStages, StageCut
from rhino.passes.pipeline.sharded_step import sharded_step
from rhino.passes.sharding.choose_shardings import ChooseShardings, ShardingChoice
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.passes.unsharded import unsharded_program
from rhino.strategies.choice.sharding_plan_costs import local_bytes
from rhino.strategies.pipeline.stages.cut import solve_stages
from rhino.strategies.pipeline.stages.stage_graph import NO_NODE, make_staging
from rhino.strategies.pipeline.stages.stage_problem import OPEN, StageProblem, make_nets
from rhino.strategies.structure.training_phases import parts_of

MICRO_BATCHES, BATCH, WIDTH = 4, 64, 32


def accumulation(loss, params, *, norm=False, width=WIDTH):
    """The text of a step that accumulates gradients of `loss(params, x, y)` in a loop and applies them.

    They are divided by their norm, or not.
    """

    def step(params, xs, ys):
        def body(i, sums):
            value, grads = jax.value_and_grad(loss)(params, xs[i], ys[i])
            return jax.tree.map(jnp.add, sums, (value, grads))

        value, grads = jax.lax.fori_loop(0, MICRO_BATCHES, body, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)))
        scale = 1 / jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads))) if norm else 0.1
        return jax.tree.map(lambda p, g: p - scale * g, params, grads), value / MICRO_BATCHES

    batch = jax.ShapeDtypeStruct((MICRO_BATCHES, BATCH, width), jnp.float32)
    return jax.jit(step, donate_argnums=0).lower(params, batch, batch).as_text()


def module_of(text):
    """The normalized module, whose loop is marked as the one over micro-batches."""
    module = ir.Module.parse(text, context())
    build_pass_manager((Normalize(),), context()).run(module.operation)
    (loop,) = [
        op for op in module.body.operations[0].regions[0].blocks[0].operations if op.operation.name == "stablehlo.while"
    ]
    with context():
        loop.operation.attributes["rhino.micro_batches"] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(64), MICRO_BATCHES
        )
    return module


def staged(text, num_stages, tolerance="0.1"):
    """The staging and the answer of the pass, with each op's name and stage: (in the loop, after it)."""
    module, remarks = module_of(text), Remarks()
    with context(), ir.Location.unknown():
        PipelineStages(stages=num_stages, tolerance=tolerance, cluster="v100x8").run(module.operation, remarks)
        block = module.body.operations[0].regions[0].blocks[0]
        (loop,) = [op for op in block.operations if op.operation.name == "stablehlo.while"]
        sides = [
            list(loop.regions[1].blocks[0].operations)[:-1],
            list(block.operations)[list(block.operations).index(loop) + 1 : -1],
        ]
        marked = [
            [(op.operation.name[10:], ir.IntegerAttr(op.attributes[name]).value) for op in side]
            for side, name in zip(sides, ("rhino.virtual_stage", "rhino.stage"), strict=True)
        ]
    cut = remarks.result(StageCut)
    return cut.staging, cut.answer, marked


def moved(staging, answer):
    """The bytes and the transfers of a step."""
    return staging.moved(staging.problem.device(answer.stage))


def layers(params, x, y):
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - y) ** 2)


def weights(count, width=WIDTH):
    return [jax.ShapeDtypeStruct((width, width), jnp.float32)] * count


def staging_of(text, link=None) -> tuple[Program, object]:
    module = module_of(text).operation
    with context(), ir.Location.unknown(), unsharded_program(module, Remarks()) as program:
        seconds = sharded_step(program, module, load_cluster("v100x8")).seconds
        parts = parts_of(program.graph, program.graph.loops[0], seconds)
        return program, make_staging(program.graph, parts, 2, MICRO_BATCHES, link=link)


def test_gradients_that_are_added_up_at_the_end_do_not_hide_where_the_way_back_begins():
    """Weights are larger than a micro-batch's share of a layer, and the loop adds up their gradients at its end."""
    _, staging = staging_of(accumulation(layers, weights(6, 4096), width=4096))
    problem = staging.problem
    assert problem.work[problem.late].sum() > 0.6 * problem.work.sum()
    assert problem.work[~problem.late].sum() > 0.2 * problem.work.sum()


@pytest.mark.parametrize("num_stages", [2, 4])
def test_a_chain_sends_one_activation_and_one_gradient_over_each_cut(num_stages):
    staging, answer, (body, after) = staged(accumulation(layers, weights(8)), num_stages)
    assert answer.is_optimal
    assert moved(staging, answer)[0] == (num_stages - 1) * 2 * MICRO_BATCHES * BATCH * WIDTH * 4
    assert {stage for _, stage in body} == set(range(2 * num_stages - 1))
    assert {stage for name, stage in after if name == "subtract"} == set(range(num_stages))


def test_a_tied_weight_and_what_one_of_its_uses_adds_to_its_gradient_are_sent_once_a_step():
    def loss(params, x, y):
        first, *others = params
        return layers([first, *others, first.T], x, y)

    untied = moved(*staged(accumulation(layers, weights(6)), 2)[:2])[0]
    staging, answer, _ = staged(accumulation(loss, weights(5)), 2)
    weight = WIDTH * WIDTH * 4
    assert answer.is_optimal
    assert moved(staging, answer)[0] == untied + weight + weight
    assert staging.problem.num_nodes


def inference(layers):
    """The text of a step that takes micro-batches through `layers`, back through the first, and stacks the results."""

    def step(params, xs):
        def body(i, out):
            x = xs[i]
            for weight in params:
                x = jnp.tanh(x @ weight)
            x = jax.lax.dot_general(x, params[0], (((1,), (1,)), ((), ())))
            return jax.lax.dynamic_update_index_in_dim(out, x, i, 0)

        return jax.lax.fori_loop(0, MICRO_BATCHES, body, jnp.zeros(xs.shape))

    return jax.jit(step).lower(layers, jax.ShapeDtypeStruct((MICRO_BATCHES, 8, 512), jnp.float32)).as_text()


def test_a_step_of_inference_goes_forward_even_where_a_weight_is_read_at_both_ends():
    staging, answer, (body, _) = staged(inference(weights(5, 512)), 3)
    assert not staging.problem.turns_round
    assert {stage for _, stage in body} == {0, 1, 2}
    back = solve_stages(replace(staging.problem, turns_round=True), 0.1)
    assert staging.problem.cost(staging.problem.device(back.stage)) < answer.cost
    assert back.stage.max() > 2


def test_a_norm_of_all_gradients_ties_no_update_to_another():
    staging, answer, (_, after) = staged(accumulation(layers, weights(8), norm=True), 2)
    assert moved(staging, answer)[0] == 2 * MICRO_BATCHES * BATCH * WIDTH * 4
    assert {stage for name, stage in after if name == "subtract"} == {0, 1}


def test_what_costs_nothing_has_no_node_and_counters_tie_nothing():
    program, staging = staging_of(accumulation(layers, weights(2)))
    names = {
        program.graph.cls(op).name
        for op in range(program.graph.num_ops)
        if staging.node[op] == NO_NODE and staging.parts.body[op]
    }
    assert {"stablehlo.compare", "stablehlo.select"} <= names
    every = [program.graph.cls(op).name for op in range(program.graph.num_ops)]
    assert "stablehlo.constant" in every
    assert "stablehlo.constant" not in {every[op] for op in range(program.graph.num_ops) if staging.node[op] != NO_NODE}


def test_updates_belong_to_the_sums_that_they_start_from():
    program, staging = staging_of(accumulation(layers, weights(2)))
    graph, node = program.graph, staging.node
    for value, returned in zip(
        graph.results(graph.loops[0].op), graph.operands(graph.loops[0].end).tolist(), strict=True
    ):
        readers = [
            op
            for op in np.flatnonzero(staging.parts.apply).tolist()
            if value in graph.operands(op) and node[op] != NO_NODE
        ]
        assert all(node[op] == node[graph.value_op[returned]] for op in readers)


def test_work_and_memory_are_those_of_the_program():
    _, staging = staging_of(accumulation(layers, weights(2)))
    problem, weight = staging.problem, WIDTH * WIDTH * 4
    assert problem.work.sum() == pytest.approx(staging.parts.seconds[staging.parts.body].sum())
    together = problem.device_memory(np.zeros(problem.num_nodes, dtype=np.int64))
    batch = MICRO_BATCHES * BATCH * WIDTH * 4
    sums, parameters = 2 * weight, 2 * weight
    saved = together[0] - 2 * batch - sums - parameters
    # both layers' results at least, for two micro-batches in flight
    assert saved / min(MICRO_BATCHES, 2) >= 2 * BATCH * WIDTH * 4


def test_a_running_sum_is_of_the_node_that_makes_what_is_added():
    program, staging = staging_of(accumulation(layers, weights(2)))
    graph, node = program.graph, staging.node
    (loop,) = graph.loops
    for value, returned in zip(graph.results(loop.op), graph.operands(loop.end).tolist(), strict=True):
        op = int(graph.value_op[returned])
        if node[op] == NO_NODE or not graph.type_of(value).shape:
            continue
        (added,) = set(graph.operands(op).tolist()) - {value}
        assert node[op] == node[graph.value_op[added]]


def test_a_transfer_costs_seconds_of_the_link_for_itself_and_for_its_bytes():
    text, link = accumulation(layers, weights(3)), Line(fixed_s=2e-6, per_s=1e9)
    (_, by_bytes), (_, by_seconds) = staging_of(text), staging_of(text, link)
    rng = np.random.default_rng(0)
    for _ in range(20):
        device = rng.integers(0, 2, size=by_bytes.problem.num_nodes)
        sent, transfers = by_seconds.moved(device)
        assert (sent, transfers) == by_bytes.moved(device)
        assert by_bytes.problem.cost(device) == sent
        assert by_seconds.problem.cost(device) == pytest.approx(transfers * link.fixed_s + sent / link.per_s)
    nodes = by_seconds.problem.nets
    times = {float(count) for count in by_seconds.net_transfers}
    assert len(nodes) == len(by_seconds.net_bytes)
    assert times <= {1.0, MICRO_BATCHES, MICRO_BATCHES + 1.0}


def test_many_small_tensors_or_one_large_one_depends_on_what_a_transfer_costs():
    """Between the first node and the last either three tensors of a byte cross or one of four."""

    def least(price):
        nets = [(0, [1], 1.0 + price)] * 3 + [(1, [2], 4.0 + price)]
        num = 3
        problem = StageProblem(
            num_stages=2,
            num_micro_batches=1,
            work=np.ones(num),
            before=np.array([0, 1]),
            after=np.array([1, 2]),
            nets=make_nets(([maker, *readers], size) for maker, readers, size in nets),
            pinned=np.array([0, OPEN, 1]),
            late=np.zeros(num, dtype=bool),
            own_bytes=np.zeros(num),
        )
        return solve_stages(problem, 0.5)

    assert (least(0.0).cost, least(0.0).stage.tolist()[1]) == (3.0, 1)
    assert (least(1.0).cost, least(1.0).stage.tolist()[1]) == (5.0, 0)


def test_a_sharded_step_is_cut_with_the_seconds_and_bytes_that_its_shardings_were_chosen_by():
    module, remarks = module_of(accumulation(layers, weights(6, 4096), width=4096)), Remarks()
    choose = ChooseShardings(mesh="2", ranks=2, cluster="v100x8")
    with context():
        build_pass_manager(
            [Normalize(), choose, PipelineStages(stages=2, cluster="v100x8")], module.context, remarks
        ).run(module.operation)
    staging, chosen = remarks.result(StageCut).staging, remarks.result(ShardingChoice)
    answer, plan = chosen.answer, chosen.plan
    times = np.where(staging.parts.body, MICRO_BATCHES, 1)
    assert staging.parts.seconds @ times == pytest.approx(answer.cost, rel=1e-6)
    whole, sent = staging.graph.value_bytes(), local_bytes(plan)
    assert sent.sum() < whole.sum()
    assert staging.problem.resident.size.max() == max(sent[: len(staging.graph.arguments)])
