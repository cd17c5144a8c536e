"""Segments: a partition along the cuts, and a model's layers, which names of ops and parameters tell.

Folds are compared with enumeration.
"""

import re
from collections import Counter
from dataclasses import replace
from itertools import permutations

import gpt
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import CHEAP, PRODUCT, graph_of, random_graph, shuffled
from snippets import context, kept
from training import export_step
from zoo import GPT, ZOO

from rhino.ir.mlir.bindings import ir
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.unsharded import unsharded_program
from rhino.strategies.structure.critical_path import critical_path
from rhino.strategies.structure.dependences import flow_of
from rhino.strategies.structure.segment_folding import fold
from rhino.strategies.structure.segments import segments_of

SEEDS = range(150)
CUTS = 6
"""Products that follow one another in a layer of the GPT: q and k, their scores, the weighted values, out, up, down."""


def program_of_text(text):
    """The program of a module, normalized; use it within the context."""
    module = kept(ir.Module.parse(text, context()))
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks())
    return unsharded_program(module.operation, Remarks())


def step_of(model):
    """The graph of a model's training step, and the layer of every op whose scope or parameter names one."""
    with program_of_text(export_step(model)) as program:
        return program.graph, layers_of(program)


def layers_of(program):
    """The layer of each op in a layer's scope, on either way, and of each that updates a layer's parameter."""
    graph, layers = program.graph, {}
    for op, operation in enumerate(program.ops):
        scope = re.search(r"layer(\d+)", str(operation.location))
        if scope:
            layers[op] = int(scope[1])
    for argument in graph.arguments:
        path = re.search(r"\['layers'\]\[(\d+)\]", argument.name)
        if path and argument.alias is not None:
            layers[int(graph.value_op[graph.returns[argument.alias]])] = int(path[1])
    return layers


def needed_by(graph, flow, op):
    """The ops that `op` leads to through tensors, and itself."""
    found, todo = {op}, [op]
    while todo:
        made = todo.pop()
        new = {
            int(reader) for reader, producer in zip(flow.reader, flow.producer, strict=True) if producer == made
        } - found
        found |= new
        todo += sorted(new)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_op_that_counts_is_in_one_segment(seed):
    graph = random_graph(seed, most=16)
    flow, segments = flow_of(graph), segments_of(graph)
    assert ((segments.number >= 0) == flow.counts).all()
    assert sorted(set(segments.number[flow.counts].tolist())) == list(range(len(segments.fold)))
    assert segments.sizes().sum() == flow.counts.sum()


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_way_back_segments_follow_the_cuts(seed):
    graph = random_graph(seed, most=16)
    flow, segments = flow_of(graph), segments_of(graph)
    if segments.turns:
        return
    path = critical_path(graph, flow, only_products=True)
    made = flow.producer >= 0
    assert (segments.number[flow.producer[made]] <= segments.number[flow.reader[made]]).all()
    firsts = {}
    for op in np.flatnonzero(flow.counts).tolist():
        times = [int(path.earliest[other]) for other in needed_by(graph, flow, op) if path.critical[other]]
        if times:
            firsts.setdefault(min(times), set()).add(int(segments.number[op]))
    assert [firsts[time] for time in sorted(firsts)] == [{number} for number in range(len(firsts))]
    assert len(segments.fold) <= len(firsts) + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_names_and_order_say_nothing(seed):
    graph = random_graph(seed, most=16)
    moved, where = shuffled(graph, seed)
    before, after = segments_of(graph), segments_of(moved)
    assert after.number[where].tolist() == before.number.tolist()
    assert after.fold.tolist() == before.fold.tolist()


def test_names_and_order_of_a_training_step_say_nothing():
    graph, _ = step_of(ZOO["gpt"])
    moved, where = shuffled(graph, 0)
    before, after = segments_of(graph), segments_of(moved)
    assert after.number[where].tolist() == before.number.tolist()
    assert after.fold.tolist() == before.fold.tolist()


def test_layers_come_out_and_fold():
    """An op of layer k is between that layer's cuts, on every way, and depth adds no segment of a new kind."""
    unique = set()
    for depth in (3, 5):
        graph, layers = step_of(gpt.model(replace(GPT, layers=depth)))
        segments = segments_of(graph)
        assert segments.turns
        assert len(segments.fold) == CUTS * depth + 1
        assert set(layers.values()) == set(range(depth))
        assert len(layers) > graph.num_ops / 2
        strays = [op for op, layer in layers.items() if not CUTS * layer <= segments.number[op] <= CUTS * (layer + 1)]
        assert [op for op in strays if segments.number[op] >= 0] == []
        unique.add(segments.num_unique)
        inner = segments.fold[CUTS : CUTS * (depth - 1)].reshape(-1, CUTS)
        assert (inner[:, 1:] == inner[0, 1:]).all()
    assert unique == {CUTS + 2}


def block(weights, x, mask):
    """A layer whose cheap way is longer in ops than that by its products."""
    hidden = jnp.tanh(x @ weights["up"]) @ weights["down"]
    return (x + hidden * x.mean(-1, keepdims=True)) * mask


def clipped(gradients):
    """Gradients scaled by their common norm: every update needs every gradient."""
    norm = jnp.sqrt(sum((one**2).sum() for one in jax.tree.leaves(gradients)))
    return jax.tree.map(lambda one: one / jnp.maximum(norm, 1), gradients)


@pytest.mark.parametrize("one_layer", [block, jax.checkpoint(block)], ids=["kept", "recomputed"])
@pytest.mark.parametrize("treat", [lambda gradients: gradients, clipped], ids=["plain", "clipped"])
def test_what_all_layers_share_hides_none(one_layer, treat):
    """All layers share a mask and a norm over all gradients, and their activations are computed twice.

    Depth still adds no segment of a new kind.
    """

    def step(params, moments, x, given):
        def loss(params):
            y, mask = x, jnp.abs(given)
            for weights in params:
                y = one_layer(weights, y, mask)
            return (y**2).sum()

        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, treat(jax.grad(loss)(params)))
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments

    found = []
    for depth in (5, 8):
        params = [{"up": jnp.zeros((8, 16)), "down": jnp.zeros((16, 8))}] * depth
        with program_of_text(
            jax.jit(step).lower(params, params, jnp.zeros((4, 8)), jnp.zeros((4, 8))).as_text()
        ) as program:
            segments = segments_of(program.graph)
        assert segments.turns
        assert abs(len(segments.fold) - 2 * depth) <= 1
        assert segments.sizes().max() < 60
        found.append(segments.num_unique)
    assert found[0] == found[1] < 9


def test_a_rolled_model_has_the_segments_of_one_layer():
    """Each segment has ops of both loops: the activations that one stacks and the other cuts up pair them."""
    graph, _ = step_of(ZOO["gpt-scan"])
    segments, bodies = segments_of(graph), [range(loop.op, loop.end) for loop in graph.loops]
    assert segments.turns
    assert len(segments.fold) == CUTS + 1
    down, up = [{int(segments.number[op]) for op in body if graph.cls(op).name == PRODUCT} for body in bodies]
    assert down == up == set(range(CUTS))


def pair_of(rng):
    """Two pieces of program side by side, each on its own arguments, and the segment of each op.

    Often one piece is the other one reordered.
    """
    pieces = []
    for _ in range(2):
        ops = []
        for number in range(rng.integers(1, 5)):
            operands = [int(v) for v in rng.integers(0, 2 + number, size=rng.integers(1, 3))]
            ops.append((str(rng.choice([CHEAP, PRODUCT])), operands, [0]))
        pieces.append((ops, [int(v) for v in rng.integers(2, 2 + len(ops), size=rng.integers(1, 3))]))
    if rng.random() < 0.6:
        piece = graph_of([0, 0], *pieces[0])
        moved, _ = shuffled(piece, int(rng.integers(1000)))
        ops = [(moved.cls(op).name, moved.operands(op).tolist(), [0]) for op in range(moved.num_ops)]
        if rng.random() < 0.5:
            ops[-1][1][-1] = int(rng.integers(0, 1 + len(ops)))  # reads something else, perhaps
        pieces[1] = (ops, list(moved.returns))
    (first, returned), (second, others) = pieces
    shift = 2 + len(first)
    number = {0: 0, 1: 1, **{2 + op: 4 + op for op in range(len(first))}}
    other = {0: 2, 1: 3, **{2 + op: shift + 2 + op for op in range(len(second))}}
    ops = [(name, [number[v] for v in reads], kinds) for name, reads, kinds in first]
    ops += [(name, [other[v] for v in reads], kinds) for name, reads, kinds in second]
    returns = [number[v] for v in returned] + [other[v] for v in others]
    return graph_of([0, 0, 0, 0], ops, returns), np.array([0] * len(first) + [1] * len(second))


def alike(graph, segment):
    """Whether some pairing of ops and arguments makes the two pieces one, by trying all."""
    sides = [[op for op in range(graph.num_ops) if segment[op] == side] for side in (0, 1)]
    if len(sides[0]) != len(sides[1]):
        return False
    returned = [{v for v in graph.returns if segment[graph.value_op[v]] == side} for side in (0, 1)]
    for ops in permutations(sides[1]):
        for arguments in permutations((2, 3)):
            pairing = dict(zip((0, 1), arguments, strict=True))
            pairing |= {graph.results(a)[0]: graph.results(b)[0] for a, b in zip(sides[0], ops, strict=True)}
            same = all(
                graph.op_class[a] == graph.op_class[b]
                and [pairing[v] for v in graph.operands(a).tolist()] == graph.operands(b).tolist()
                for a, b in zip(sides[0], ops, strict=True)
            )
            if same and {pairing[v] for v in returned[0]} == returned[1]:
                return True
    return False


def test_alike_is_what_some_pairing_shows():
    rng, seen = np.random.default_rng(0), Counter()
    for _ in range(600):
        graph, segment = pair_of(rng)
        first, second = fold(graph, flow_of(graph), segment, 2).tolist()
        assert (first == second) == alike(graph, segment)
        seen[first == second] += 1
    assert min(seen.values()) > 100
    assert len(seen) == 2
