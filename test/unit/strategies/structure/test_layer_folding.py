"""A deep step planned as a shallow one.

Layers that stand for several count as often, in seconds, traffic and memory.
"""

import dataclasses
from collections import Counter
from functools import cache

import gpt
import pytest
import t5
from training import export_step
from zoo import GPT, T5

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.manual import bytecode
from rhino.ir.mlir.reader import entry_function, read_module
from rhino.ir.program.folded_layers import FOLDED
from rhino.ir.program.program import read_program
from rhino.passes.base import Remarks
from rhino.passes.frontend.normalize import Normalize
from rhino.passes.pipeline.fold_layers import FoldedLayers, FoldLayers
from rhino.passes.planner import setup as planner_setup
from rhino.passes.planner.evaluate import Evaluator
from rhino.passes.planner.setup import Setup, folded
from rhino.passes.sharding.localize import Localize
from rhino.passes.with_rules import run_on_functions
from rhino.strategies.autotune.base import PlanConfig

DEEP_GPT = dataclasses.replace(GPT, layers=9, hidden=256, vocab=512, seq=128, batch=16)
"""Eight of its layers are alike one by one: the last one's end belongs to the loss."""


@cache
def step(model):
    """Returns a normalized training step as bytecode."""
    made = gpt.model(model) if isinstance(model, gpt.GPTConfig) else t5.model(model)
    module = read_module(export_step(made).encode(), "step", make_context())
    with module.context, ir.Location.unknown():
        Normalize().run(module.operation, Remarks("step"))
    return bytecode(module)


def fold(code, groups):
    """Returns a module in which alike layers are `groups`, and how many there were in each stretch."""
    module, remarks = ir.Module.parse(code, make_context()), Remarks("step")
    with module.context, ir.Location.unknown():
        FoldLayers(num_groups=groups).run(module.operation, remarks)
    assert module.operation.verify()
    found = remarks.find(FoldedLayers)
    return module, found.counts if found else ()


def graph_of(module):
    with module.context, ir.Location.unknown():
        run_on_functions(module.operation, "sdy-populate-op-sharding-rules")
        return read_program(entry_function(module), mesh_of_shape((1,))).graph


def work(graph):
    """Returns how often ops of each kind and size run; what depends on constants alone is left out."""
    found = Counter()
    for op, times in enumerate(graph.times().tolist()):
        cls = graph.cls(op)
        if not cls.free:
            found[cls.name, cls.results] += times
    return found


def argument_bytes(graph):
    return int((graph.value_bytes() * graph.copies())[: len(graph.arguments)].sum())


@pytest.mark.parametrize(
    ("model", "groups", "stretches"), [(DEEP_GPT, 3, (8,)), (dataclasses.replace(T5, layers=6), 2, (4, 4))]
)
def test_groups_stand_for_the_work_and_the_arguments_of_all_layers(model, groups, stretches):
    module, found = fold(step(model), groups)
    deep, shallow = graph_of(ir.Module.parse(step(model), make_context())), graph_of(module)
    assert found == stretches
    assert shallow.num_ops < 0.7 * deep.num_ops
    assert work(shallow) == work(deep)
    assert argument_bytes(shallow) == argument_bytes(deep)


KIND = "tensor<8x8xf32>"


def product(one, other):
    return f"stablehlo.dot_general {one}, {other}, contracting_dims = [1] x [0] : ({KIND}, {KIND}) -> {KIND}"


def weights_used(where, layers=9):
    """Returns layers with a weight each.

    It is read there alone, by the layer two before too, or once more after all layers.
    """
    body = []
    for n in range(layers):
        body += [f"%p{n} = {product(f'%h{n}', f'%w{n}')}", f"%t{n} = stablehlo.tanh %p{n} : {KIND}"]
        body += [f"%h{n + 1} = {product(f'%t{n}', f'%w{n + 2}' if where == 'before' else '%s0')}"]
    for n in range(layers if where == "after" else 0):
        body += [f"%c{n} = {product(f'%w{n}', '%s0')}", f"%s{n + 1} = stablehlo.add %s{n}, %c{n} : {KIND}"]
    arguments = ", ".join(f"%{name}: {KIND}" for name in ["h0", "s0", *(f"w{n}" for n in range(layers + 2))])
    rest = "\n".join([*body, f"return %h{layers}, %s{layers if where == 'after' else 0} : {KIND}, {KIND}"])
    return bytecode(ir.Module.parse(f"func.func @main({arguments}) -> ({KIND}, {KIND}) {{ {rest} }}", make_context()))


@pytest.mark.parametrize(("where", "is_folded"), [("alone", True), ("before", False), ("after", False)])
def test_a_weight_that_more_than_its_layer_reads_is_none_that_stands_for_others(where, is_folded):
    assert bool(fold(weights_used(where), 2)[1]) == is_folded


@pytest.mark.parametrize("groups", [0, -1])
def test_no_layers_are_refused(groups):
    with pytest.raises(RhinoError, match="RHI-PASS-001"):
        fold(weights_used("alone"), groups)


def test_no_program_is_made_of_layers_that_stand_for_others():
    with pytest.raises(RhinoError, match="for estimates alone"):
        Localize().run(fold(weights_used("alone"), 2)[0].operation, Remarks("step"))


def test_a_step_with_too_few_alike_layers_stays_as_it_is():
    module, found = fold(step(DEEP_GPT), 5)
    assert not found
    assert FOLDED not in module.operation.attributes
    assert bytecode(module) == step(DEEP_GPT)


@pytest.mark.parametrize(
    ("shape", "off_s", "off_bytes"),
    [
        (PlanConfig(1, (8,), 2, 0.5), 0.005, 0.09),
        pytest.param(PlanConfig(2, (4,), 4), 0.05, 0.09, marks=pytest.mark.long),
    ],
)
def test_shapes_come_to_what_they_do_with_all_layers(shape, off_s, off_bytes):
    deep = Setup(step(DEEP_GPT), "step", "cpu8", 1e12, {}, ("1f1b",))
    shallow = dataclasses.replace(deep, module=bytecode(fold(step(DEEP_GPT), 4)[0]))
    one, other = (Evaluator(setup).outcome(shape) for setup in (deep, shallow))
    assert other.step_s == pytest.approx(one.step_s, rel=off_s)
    assert other.peak_bytes == pytest.approx(one.peak_bytes, rel=off_bytes)


def test_a_step_of_which_something_is_said_by_name_is_compared_as_it_is(monkeypatch):
    monkeypatch.setattr(planner_setup, "GROUPS", 4)
    setup = Setup(step(DEEP_GPT), "step", "cpu2", 1e12, {})
    assert (folded(setup).layers, folded(setup).groups) == ((8,), 4)
    pinned = dataclasses.replace(setup, options={"pin": "state.params.*=[{}]"})
    assert folded(pinned) is pinned
