"""Plans that people found by hand come out of the search unasked, where they are the cheapest.

Asserted are the shardings of tensors and the strategies of ops. People found these plans where all collectives are
waited for, and so they are here: where gathers of weights are hidden, ZeRO-3 takes the place of most.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

import bert
import gpt
import mlp
import moe
import pytest
import quality
import resnet
import vgg
from clusters import waiting
from training import export_step

from rhino.ir.diagnostics import RhinoError
from rhino.ir.graph.spec import PARTIAL, REPLICATED, dim_axes, pack, split, split_axes, unpack
from rhino.ir.mlir.bindings import ir
from rhino.ir.request.patterns import dotted
from rhino.passes.sharding.choose_shardings import ShardingChoice
from rhino.strategies.choice.sharding_plan import ShardingPlan
from rhino.strategies.solver.answer import Answer

TARGET, MACHINES = f"{waiting('v100x8')}:8", f"{waiting('v100x8x2')}:2x8"
DOT, CONVOLUTION = "stablehlo.dot_general", "stablehlo.convolution"
S0, S1, S2 = map(split, range(3))
GATHER, SCATTER = "all_gather", "reduce_scatter"
pytestmark = pytest.mark.usefixtures("one_by_one")


@dataclass(frozen=True, eq=False)
class Found:
    """A plan, on eight devices in a row unless another target is named."""

    module: ir.Module
    plan: ShardingPlan
    answer: Answer

    def specs(self, pattern):
        """How the arguments lie whose dotted names match, by name."""
        arguments = enumerate(self.plan.graph.arguments)
        named = {dotted(argument.name): self.plan.specs[number] for number, argument in arguments}
        return {name: spec for name, spec in named.items() if fnmatchcase(name, pattern)}

    def ops(self, name):
        """The ops of that name, in program order."""
        graph = self.plan.graph
        return [op for op in range(graph.num_ops) if graph.cls(op).name == name]

    def readers(self, pattern, name=DOT):
        """How the ops of that name run that read a matching argument.

        Returned is what they need, the argument last, and how their results come.
        """
        graph = self.plan.graph
        found = []
        for op in self.ops(name):
            operands = graph.operands(op).tolist()
            last = operands[-1]
            if last < len(graph.arguments) and fnmatchcase(dotted(graph.arguments[last].name), pattern):
                found.append((*self.plan.ops[op].operand_specs, *self.plan.ops[op].result_specs))
        return found

    def moved(self, least_bytes, shape=None):
        """How many collectives of each kind have a payload of at least so many bytes; of tensors of that shape."""
        graph = self.plan.graph
        large = [t for t in self.plan.transfers() if t.move.num_bytes >= least_bytes]
        return Counter(t.move.kind for t in large if shape is None or graph.type_of(t.value).shape == shape)


@cache
def text(model):
    return export_step(model).encode()


@cache
def found(model, budget="", constraints="", target=TARGET):
    module, remarks = quality.search(text(model), "step.mlir", target, budget, constraints)
    chosen = remarks.result(ShardingChoice)
    return Found(module, chosen.plan, chosen.answer)


def forbid(*patterns):
    """Says that the arguments whose names match are whole on every device."""
    return "".join(f"[[forbid]]\nname = '{pattern}'\naxis = 'x'\n" for pattern in patterns)


# Loops


def without_layer(name):
    return re.sub(r"(layers)(\.\d+)?\.", r"\1.", dotted(name))


@pytest.mark.parametrize("mesh", ["8", pytest.param("2x4", marks=pytest.mark.long)])
def test_a_loop_over_layers_gets_the_plan_of_the_layers(mesh):
    """The plan of a GPT with its layers in a loop, given to the layers one by one, is as good as theirs.

    What is split by layers is left open.
    """
    target = f"{waiting('v100x8')}:{mesh}"
    sizes = gpt.GPTConfig(layers=4, hidden=1024, heads=16, ffn=4096, vocab=8192, seq=512, batch=8)
    plain, scanned = found(gpt.model(sizes), target=target), found(gpt.model(replace(sizes, scan=True)), target=target)
    graph, num_axes = scanned.plan.graph, len(scanned.plan.sizes)
    entries = {without_layer(a.name): unpack(scanned.plan.specs[n], num_axes) for n, a in enumerate(graph.arguments)}
    rows = []
    for number, argument in enumerate(plain.plan.graph.arguments):
        spec = entries[without_layer(argument.name)]
        in_layer = ".layers." in dotted(argument.name)
        if in_layer and split(0) in spec:
            continue
        dims = dim_axes(pack([one - in_layer if one > 1 else one for one in spec]), num_axes, rank_of(plain, number))
        sharding = ", ".join("{" + ", ".join(f'"{NAMES[axis]}"' for axis in axes) + "}" for axes in dims)
        rows.append(f"[[pin]]\nname = '{dotted(argument.name)}'\nsharding = '[{sharding}]'\n")
    same = found(gpt.model(sizes), constraints="".join(rows), target=target)
    assert same.answer.cost == pytest.approx(plain.answer.cost, rel=1e-2)


NAMES = ("x", "y")


def rank_of(one, value):
    return len(one.plan.graph.type_of(value).shape)


# Data parallelism, and ZeRO

LAYERS = 4
WIDE_BATCH = mlp.model(mlp.MLPConfig(sizes=(512,) * (LAYERS + 1), batch=16384, dropout=0.0, task="regress"))


def test_few_parameters_and_a_large_batch_are_data_parallel():
    model = mlp.model(mlp.MLPConfig(sizes=(64,) * 4, batch=65536, dropout=0.0, task="regress"))
    best = found(model)
    assert set(best.specs("batch.*").values()) == {S0}
    assert set(best.readers("*.weight")) == {(S0, REPLICATED, S0)}
    # of activations nothing is moved
    assert max(best.plan.graph.type_of(t.value).num_bytes for t in best.plan.transfers()) == 4 * 64 * 64


def test_the_optimizers_state_is_split_even_where_memory_is_plenty():
    """ZeRO-2: scattered gradients and gathered parameters send what an all-reduce does, and updates are shared."""
    best = found(WIDE_BATCH)
    assert set(best.readers("*.weight")) == {(S0, REPLICATED, S0)}
    assert set(best.specs("state.mu.*.weight").values()) == {S0} == set(best.specs("state.nu.*.weight").values())
    assert REPLICATED in best.specs("state.params.*.weight").values()
    assert best.moved(4 * 512 * 512) == {SCATTER: LAYERS, GATHER: LAYERS}
    plain = found(WIDE_BATCH, constraints=forbid("state.*"))
    assert plain.answer.cost > best.answer.cost
    assert plain.answer.peak_bytes > best.answer.peak_bytes


def tightened(model):
    """Plans for less and less memory, each a percent short of what the one before takes, down to where none fits."""
    steps = [found(model)]
    while (next_one := found_or_none(model, str(int(0.99 * steps[-1].answer.peak_bytes)))) is not None:
        steps.append(next_one)
    return steps


def found_or_none(model, budget):
    try:
        return found(model, budget)
    except RhinoError as error:
        if error.id != "RHI-SOLVE-001":
            raise
        return None


def test_parameters_are_split_one_by_one_as_memory_tightens():
    """From ZeRO-2 to ZeRO-3, but only as many weights as must be (Rhino 4.4)."""
    steps = tightened(WIDE_BATCH)
    costs = [one.answer.cost for one in steps]
    whole = [sum(spec == REPLICATED for spec in one.specs("state.params.*.weight").values()) for one in steps]
    assert costs == sorted(costs)
    assert whole == sorted(whole, reverse=True)
    assert whole[-1] == 0 < whole[0]
    assert len(set(whole)) > 2
    for one in steps:
        assert REPLICATED not in one.specs("state.mu.*.weight").values()
        assert all(spec == S0 for spec in one.specs("batch.*").values())


def test_splitting_the_state_of_attention_alone_is_dearer():
    """Rhino 7.3 reports that plan for eight devices.

    Splitting all of the optimizer's state sends no more and shares more updates.
    """
    model = gpt.model(gpt.GPTConfig(layers=1, hidden=256, heads=4, ffn=1024, vocab=512, seq=128, batch=64))
    best = found(model)
    others = ("*.up", "*.down", "*.embed", "*.positions", "state.params.*")
    theirs = found(model, constraints=forbid(*others))
    for name in "qkv":
        assert REPLICATED not in theirs.specs(f"state.mu.*.{name}").values()
    assert theirs.answer.cost > best.answer.cost
    for name in ("q", "k", "v", "out", "up", "down"):
        assert set(best.specs(f"state.params.*.{name}").values()) == {REPLICATED}
        assert REPLICATED not in best.specs(f"state.mu.*.{name}").values()


# Machines

WIDTH = 2048


def layers_of(batch):
    return mlp.model(mlp.MLPConfig(sizes=(WIDTH,) * 4, batch=batch, dropout=0.0, task="regress"))


def between_machines(best):
    """The payloads of what goes over the outer axis, if they are larger than those of a bias."""
    return {t.move.num_bytes for t in best.plan.transfers() if 0 in t.move.axes and t.move.num_bytes > 4 * WIDTH}


def test_gradients_are_summed_in_a_machine_before_their_shares_cross_machines():
    best = found(layers_of(16384), target=MACHINES)
    assert set(best.specs("batch.*").values()) == {pack((S0, S0))}
    assert set(best.readers("*.weight")) == {(pack((S0, S0)), REPLICATED, pack((S0, S0)))}
    assert between_machines(best) == {4 * WIDTH * WIDTH // 8}


def test_work_too_small_for_the_network_stays_in_each_machine():
    """Both machines do the same: halving the work would save less than the gradients' way across takes."""
    assert between_machines(found(layers_of(2048), target=MACHINES)) == set()


# Megatron, and sequence parallelism

NUM_BLOCKS, SEQ, HIDDEN = 2, 512, 1024
ONE_SEQUENCE = gpt.model(
    gpt.GPTConfig(layers=NUM_BLOCKS, hidden=HIDDEN, heads=16, ffn=4096, vocab=8192, seq=SEQ, batch=1)
)


def test_one_sequence_is_split_as_megatron_does():
    """Columns, then rows; in the backward pass rows, then columns."""
    best = found(ONE_SEQUENCE)
    for column in ("q", "k", "v", "up"):
        assert set(best.specs(f"state.*.layers.*.{column}").values()) == {S1}
        there, back = (REPLICATED, S1, S2), (S2, S1, PARTIAL)
        assert best.readers(f"state.params.*.{column}") == [there] * NUM_BLOCKS + [back] * NUM_BLOCKS
    for row in ("out", "down"):
        assert set(best.specs(f"state.*.layers.*.{row}").values()) == {S0}
        there, back = (S2, S0, PARTIAL), (REPLICATED, S0, S2)
        assert best.readers(f"state.params.*.{row}") == [there] * NUM_BLOCKS + [back] * NUM_BLOCKS


def test_each_pair_of_products_is_between_two_moves():
    """A sum is scattered after it and gathered before the next, or reduced at once.

    The backward pass, the embedding and the logits have such pairs, too: two a block and way, and one each for the
    embedding and the logits.
    """
    moved = found(ONE_SEQUENCE).moved(4 * SEQ * HIDDEN, (1, SEQ, HIDDEN))
    assert moved["all_reduce"] + moved[SCATTER] == moved["all_reduce"] + moved[GATHER] == 4 * NUM_BLOCKS + 2


def test_norms_between_are_split_along_the_sequence_where_memory_is_short():
    best = found(ONE_SEQUENCE)
    tight = found(ONE_SEQUENCE, str(int(0.8 * best.answer.peak_bytes)))
    *norms, _ = tight.ops("stablehlo.rsqrt")  # the last one is in no block
    assert len(norms) == 2 * NUM_BLOCKS
    assert {tight.plan.ops[op].result_specs for op in norms} == {(S1,)}
    moved = tight.moved(4 * SEQ * HIDDEN, (1, SEQ, HIDDEN))
    assert moved["all_reduce"] == 0
    assert moved[SCATTER] == 4 * NUM_BLOCKS + 2
    assert tight.answer.cost < 1.1 * best.answer.cost


# Experts, classes, tokens


def test_experts_are_split_by_expert_and_the_rest_by_batch():
    """GShard: tokens go to their experts and back, there and on the way back."""
    cfg = moe.MoEConfig(layers=2, hidden=256, heads=8, ffn=2048, experts=8, vocab=1024, seq=256, batch=64)
    best = found(moe.model(cfg))
    assert set(best.specs("state.*.experts.*").values()) == {S0}
    assert set(best.readers("state.params.*.experts.*")) == {(S0, S0, S0)}
    assert set(best.specs("batch").values()) == {S0}
    for name in ("q", "k", "v"):
        assert set(best.readers(f"state.params.*.{name}")) == {(S0, REPLICATED, S0)}
    tokens = 4 * cfg.batch * cfg.seq * 2 * cfg.hidden // 8  # those of a device, each sent to two experts
    assert best.moved(tokens) == {"all_to_all": 4}


def split_by_class(best, pattern):
    """Says that the last layer's weight, its state and its logits are split by class."""
    assert set(best.specs(f"state.*.{pattern}").values()) == {S1}
    assert best.readers(f"state.params.{pattern}") == [(REPLICATED, S1, S1), (S1, S1, PARTIAL)]


def forward_convolutions(best):
    """The operands' and results' specs of all convolutions that read a parameter as it is."""
    return best.readers("state.params.*", CONVOLUTION)


def test_the_last_layer_of_vgg_is_split_by_class_and_its_trunk_by_batch():
    cfg = vgg.VGGConfig(
        channels=(64, 128), convs=(1, 2), hidden=512, classes=1_000_000, image=64, batch=256, dropout=0.0
    )
    best = found(vgg.model(cfg))
    split_by_class(best, "classifier.2.weight")
    assert forward_convolutions(best) == [(S0, REPLICATED, S0)] * 3


def test_the_last_layer_of_resnet_is_split_by_class_and_its_trunk_by_batch():
    cfg = resnet.ResNetConfig(blocks=(1, 1), classes=100_000, batch=512)
    best = found(resnet.model(cfg))
    split_by_class(best, "head.weight")
    assert forward_convolutions(best) == [(S0, REPLICATED, S0)] * 9


def test_one_long_sequence_is_split_by_token():
    """Between its attention, which is split by head: an exchange turns one split into the other."""
    cfg = bert.BERTConfig(layers=1, hidden=128, heads=8, ffn=512, vocab=512, seq=16384, convs=1, batch=1)
    best = found(bert.model(cfg))
    for name in ("up", "down"):
        assert best.readers(f"state.params.layers.*.{name}") == [(S1, REPLICATED, S1)] * 2  # there and back
        assert split_axes(*best.specs(f"state.mu.layers.*.{name}").values())
    assert best.moved(4 * cfg.seq * cfg.hidden // 8)["all_to_all"] >= 4
