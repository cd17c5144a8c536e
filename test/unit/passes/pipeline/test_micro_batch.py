"""A step that takes its batch in parts gives the answer of the whole batch, or says where it cannot."""

import dataclasses
import functools
from itertools import chain, combinations, product
from pathlib import Path

import jax
import mamba
import numpy as np
import pytest
import two_tower
from batched_steps import BATCH, MEMORY, STEPS, mean_loss, params, text
from drawn_steps import STEPS as PROGRAMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_cases import one_in
from models import zoo_step
from planning import Reference, reference, run_on, tolerance
from random_programs import program
from training import export_step
from zoo import MAMBA, TOWERS

from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.manual import bytecode, wrap_manual
from rhino.ir.mlir.reader import entry_function, read_module, walk
from rhino.passes.base import Remarks
from rhino.passes.pipeline.divider import Divider
from rhino.passes.pipeline.micro_batch import CarriedValues, MicroBatch
from rhino.passes.pipeline.time_loop import MICRO_BATCHES
from rhino.passes.sharding.localize import localized_copy
from rhino.passes.textual_pipelines import build_pass_manager
from rhino.runtime.executor.compare import differences, worst
from rhino.runtime.executor.executable import compile_module
from rhino.strategies.microbatch.accumulation_border import near_side

NUM_STEPS = 2
SCANNED = mamba.model(dataclasses.replace(MAMBA, scan=True))
PAIRS = two_tower.model(dataclasses.replace(TOWERS, pairs=True))
ZOO = (
    "bert",
    "gpt",
    "gpt-scan",
    "gpt-dropout",
    "gpt-bf16",
    "llama-remat",
    "mamba-scan",
    "mlp-dropout",
    "moe",
    "t5",
    "two-tower-pairs",
    "unet",
)
SCALARS = {"tensor<f32>", "tensor<i32>"}
PRODUCTS = {"stablehlo.dot_general", "stablehlo.convolution"}


@functools.cache
def step(name: str) -> bytes:
    if name == "two-tower-pairs":
        return export_step(PAIRS).encode()
    if name == "mamba-scan":  # scans over pairs leave tensors without elements
        return export_step(SCANNED).encode()
    return text(STEPS[name]) if name in STEPS else zoo_step(name)


@functools.cache
def expected(name: str) -> Reference:
    return reference(step(name), name, NUM_STEPS)


def in_parts(data: bytes, num: int, options: str = "", then: str = ""):
    """The module after the pass, and the passes in `then`, with the remarks."""
    module, remarks = read_module(data, "step.mlir", make_context()), Remarks("step.mlir")
    pipeline = f"rhino-micro-batch{{num={num} {options}}}" + (f",{then}" if then else "")
    build_pass_manager(pipeline, module.context, remarks).run(module.operation)
    assert module.operation.verify()
    return module, remarks


def loop_of(module):
    (loop,) = [op for op in walk(module.operation) if MICRO_BATCHES in op.attributes]
    return loop


def check_same(module, original: Reference, limit: float | None = None) -> None:
    found = original.difference(compile_module(module, jax.devices()[:1]), limit)
    assert found.passes, found


@pytest.mark.parametrize(("name", "num"), one_in(2, product(STEPS, [1, 2, 4])))
def test_step_gives_the_same_answer(name: str, num: int):
    module, _ = in_parts(step(name), num)
    check_same(module, expected(name), 1e-3 if name == "bf16" else None)


@pytest.mark.parametrize(
    ("name", "num"),
    [
        *(
            pytest.param(name, num, marks=() if (num == 2) == (place % 2 == 0) else pytest.mark.long)
            for place, name in enumerate(ZOO)
            for num in (2, 4)
            if name != "unet"
        ),
        *(pytest.param("unet", num, marks=pytest.mark.long) for num in (1, 2, 4)),
        ("gpt", 1),
        ("t5", 8),
    ],
)
def test_model_gives_the_same_answer(name: str, num: int):
    module, _ = in_parts(step(name), num)
    check_same(module, expected(name), tolerance(name))


@pytest.mark.parametrize("name", ZOO)
def test_every_product_is_in_the_loop_and_gradients_are_what_is_carried(name: str):
    module, remarks = in_parts(step(name), 2)
    loop = loop_of(module)
    products = [op for op in walk(module.operation) if op.name in PRODUCTS]
    assert products
    assert {op.name for op in walk(loop)} >= {op.name for op in products}
    assert len([op for op in walk(loop) if op.name in PRODUCTS]) == len(products)
    trained = [value for value in entry_function(module).arguments if "params" in str(value.location)]
    carried = remarks.result(CarriedValues).values
    assert {one.how for one in carried} == {"add"}
    gradients = [one for one in carried if one.kind not in SCALARS]  # two biases of one sum share theirs
    assert len(trained) - 4 <= len(gradients) <= len(trained)


@pytest.mark.parametrize("name", ["gpt-scan", "mlp-dropout", "moe"])
def test_result_can_be_sharded(name: str):
    module, _ = in_parts(step(name), 2, then="auto-shard{cluster=cpu8 mesh=4}")
    executable = compile_module(wrap_manual(localized_copy(module)), jax.devices()[:4])
    found = expected(name).difference(executable)
    assert found.passes, found


@settings(max_examples=25, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=PROGRAMS, dim=st.sampled_from(["", "arg0", "arg0:1", "arg1", "arg1:1", "arg2", "arg2:2", "arg3", "arg4"]))
def test_random_program_gives_the_same_answer_or_is_refused(steps, dim: str):
    data = program(steps).encode()
    try:
        module, _ = in_parts(data, 2, f'batch="{dim}"')
    except RhinoError as error:
        if error.id not in ("RHI-BATCH-004", "RHI-BATCH-005", "RHI-BATCH-007"):  # 007: no step reads that argument
            raise
        return
    check_same(module, reference(data, "program", 1))


def test_dim_carried_from_step_to_step_can_be_the_batch():
    data = text(MEMORY)
    original = reference(data, "memory", NUM_STEPS)
    for options in ("", 'batch="batch.x;*1"', 'batch=x no-batch="*1"'):
        module, _ = in_parts(data, 4, options)
        check_same(module, original)


def test_step_that_donates_nothing():
    data = text((mean_loss, params(), BATCH), donate=False)
    module, remarks = in_parts(data, 4)
    assert """dim 0 of "batch['x']", dim 0 of "batch['y']\"""" in remarks.items[0].text
    check_same(module, reference(data, "step", 1))


def test_sums_of_narrow_floats_are_kept_wide():
    def narrow_loss(p, batch):
        low = jax.tree.map(lambda a: a.astype(jax.numpy.bfloat16), batch)
        return mean_loss(p, low)

    data = text((narrow_loss, params(jax.numpy.bfloat16), BATCH))
    wide, narrow = (in_parts(data, 4, options)[1].result(CarriedValues).values for options in ("", "widen=false"))
    assert "bf16" not in "".join(one.kind for one in wide)
    assert "bf16" in "".join(one.kind for one in narrow)


def test_dropout_draws_nothing_for_the_whole_batch():
    """Each micro-batch draws its own bits: nothing in the loop, or before it, has a mask of all examples."""
    module, _ = in_parts(step("gpt-dropout"), 4)
    batch, seq = 8, 16
    shapes = [
        tuple(result.type.shape)
        for op in walk(module.operation)
        for result in op.results
        if hasattr(result.type, "shape")
    ]
    assert not [shape for shape in shapes if len(shape) > 2 and shape[:2] == (batch, seq)]


def test_batch_statistics_are_refused_at_their_op():
    with pytest.raises(RhinoError) as caught:
        in_parts(step("resnet"), 2)
    error = caught.value
    assert error.id == "RHI-BATCH-004"
    assert "'stablehlo.subtract'" in error.what
    assert Path(error.place.file).name == "convnet.py"
    assert "stablehlo.reduce" in error.notes[0]
    assert "convnet.py" in error.notes[0]
    assert "stablehlo.convolution" in error.notes[2]


def test_negatives_from_the_batch_are_refused_at_their_op():
    with pytest.raises(RhinoError) as caught:
        in_parts(step("two-tower"), 4)
    assert caught.value.id == "RHI-BATCH-004"
    assert "'stablehlo.dot_general'" in caught.value.what
    assert Path(caught.value.place.file).name == "two_tower.py"


def test_same_input_gives_the_same_bytes():
    texts = {str(in_parts(step("moe"), 4)[0]) for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("name", ["bert", "moe"])
def test_what_is_decided_once_gives_the_bytes_of_each_number(name: str):
    divider = Divider(make_context())
    for num in (2, 4):
        module = divider.divided(step(name), MicroBatch(num), Remarks("step.mlir"))
        assert bytecode(module) == bytecode(in_parts(step(name), num)[0]), num
    assert len(divider.decided) == 1


def test_border_is_a_least_cut():
    """Random graphs of partial values, whose results follow from others, against every set that a loop can compute."""
    random = np.random.default_rng(0)
    for _ in range(200):
        count = int(random.integers(2, 8))
        widths = random.integers(1, 9, count).tolist()
        flows = [(a, b) for b in range(count) for a in range(b) if random.random() < 0.35]
        made = {b for _, b in flows}
        arises = [v for v in range(count) if v not in made]
        needed = [v for v in range(count) if random.random() < 0.5]
        near = near_side(dict(enumerate(widths)), flows, set(needed), set(arises))
        every = [
            set(chosen) | set(arises)
            for chosen in chain.from_iterable(combinations(sorted(made), n) for n in range(len(made) + 1))
        ]
        legal = [chosen for chosen in every if all(a in chosen for a, b in flows if b in chosen)]
        assert near in legal
        assert cost(near, flows, needed, widths) == min(cost(chosen, flows, needed, widths) for chosen in legal)


def cost(near, flows, needed, widths):
    """The width of what is computed in the loop and read behind it; what nobody needs costs nothing behind it."""
    useful = set(needed)
    for a, b in sorted(flows, key=lambda flow: flow[1], reverse=True):
        if b in useful:
            useful.add(a)
    read = {v for v in needed if v in near} | {a for a, b in flows if a in near and b not in near and b in useful}
    return sum(widths[v] for v in read)


def test_differences_are_of_rounding():
    """What is compared is not trivial: a micro-batch left out is noticed."""
    module, _ = in_parts(step("mean-loss"), 4)
    data = str(module).replace("dense<4> : tensor<i32>", "dense<3> : tensor<i32>").encode()
    executable = compile_module(read_module(data, "m", make_context()), jax.devices()[:1])
    original = expected("mean-loss")
    (got, *_), (want, *_) = run_on(executable, original.inputs, 1), original.results
    assert not worst(differences(executable.signature, got, want)).passes
