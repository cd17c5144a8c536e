"""Scopes on unequal and on disjoint devices, and defaults: what each asks holds, and steps are those of one device."""

import contextlib
import io
import random
import re
import textwrap
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import bert
import jax
import jax.numpy as jnp
import moe
import numpy as np
import pytest
import scoped
from snippets import lying
from tied_step import BATCH, Made, Scope, tied, tied_batch
from training import Batch, Model, Params

import rhino
from rhino.ir.diagnostics import RhinoError
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import entry_function, read_module, walk
from rhino.ir.mlir.shardings import SHARDING, module_mesh
from rhino.ir.program.op_stages import virtual_stage_of
from rhino.ir.program.scope_paths import scope_path, scopes_around
from rhino.passes.base import Remarks
from rhino.passes.pipeline.mesh_views import show
from rhino.passes.planner.staged_plan import cut_step
from rhino.strategies.choice.scope_axes import possible_counts
from rhino.strategies.pipeline.schedules import DEFAULT
from rhino.tools import opt
from rhino.tools import run as run_tool

ROOT = Path(__file__).parents[3]
NUM_STEPS = 3


def check(made: Made, **options: Any) -> rhino.Plan:
    """Trains for three steps as planned and on one device, compares, and returns the plan."""
    step, params = made
    fast = rhino.parallelize(step, donate_argnums=0, **options)
    x, ours = tied_batch(), jax.tree.map(jnp.copy, params)
    for number in map(jnp.int32, range(NUM_STEPS)):
        ours, got = fast(ours, x, number)
        params, expected = jax.jit(step)(params, x, number)
        assert float(got) == pytest.approx(float(expected), rel=1e-5)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-5)
    plan: rhino.Plan = fast.plan(ours, x, number)
    return plan


def drawn(seed: int) -> tuple[list[Scope], list[int], int]:
    """Three scopes of drawn kinds, on drawn numbers of at most eight devices in all, and that sum or a multiple."""
    draw = random.Random(seed)
    sizes = [draw.choice([1, 2, 3, 4]) for _ in range(3)]
    while sum(sizes) > 8 or not all(BATCH // 2 % size == 0 for size in sizes):
        sizes = [draw.choice([1, 2, 3, 4]) for _ in range(3)]
    kinds = [draw.choice([rhino.replicate, rhino.split]) for _ in range(3)]
    count = draw.choice([many for many in range(2, 9) if many % sum(sizes) == 0])
    return [partial(kind, size) for kind, size in zip(kinds, sizes, strict=True)], sizes, count


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 16))])
def test_scopes_are_stages_on_devices_of_their_own(seed: int):
    scopes, sizes, count = drawn(seed)
    plan = check(tied(scopes), devices=jax.devices()[:count], stages="scopes", micro_batches=2)
    assert [mesh.size for mesh in plan.meshes] == [size * (count // sum(sizes)) for size in sizes]
    specs = plan.partition_specs()
    for name, scope in (("own", scopes[2]), ("up", scopes[1]), ("down", scopes[1])):
        assert plan.rank_of(f"params.{name}") == {f"params['{name}']": scopes.index(scope)}
        if scope.func is rhino.replicate:
            assert not any(specs[f"params['{name}']"])


def test_stages_share_what_scopes_without_a_number_leave():
    """And the plan is the same each time, though scopes of a second trace are others."""
    step, params = tied([rhino.split, partial(rhino.replicate, 2), rhino.replicate])
    arguments = params, tied_batch(), jnp.int32(0)
    plans = [
        rhino.parallelize(step, cluster="cpu8", stages="scopes", micro_batches=2).plan(*arguments) for _ in range(2)
    ]
    assert [mesh.size for mesh in plans[0].meshes] == [3, 2, 3]
    assert plans[0].facts == plans[1].facts


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 14))])
def test_scopes_on_a_mesh_that_has_axes_for_them(seed: int):
    """On drawn meshes, scopes of drawn kinds and numbers, one of them a default."""
    draw = random.Random(seed)
    mesh = draw.choice([(2,), (3,), (4,), (6,), (8,), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (2, 2, 2)])
    kinds = [draw.choice([rhino.replicate, rhino.split]) for _ in range(3)]
    scopes: list[Scope] = [partial(kind, draw.choice([None, *possible_counts(mesh)[1:]])) for kind in kinds]
    default = draw.choice([rhino.replicate, rhino.split])()
    scopes[draw.randrange(3)] = partial(rhino.default_strategy, default)
    step, params = tied(scopes)
    plan = check((rhino.default_strategy(default)(step), params), cluster="cpu8", mesh="x".join(map(str, mesh)))
    assert [size for _, size in plan.axes] == list(mesh)


def three(*numbers: int) -> list[Scope]:
    """Scopes of two kinds on so many devices."""
    kinds = (rhino.replicate, rhino.split, rhino.replicate)
    return [partial(kind, number) for kind, number in zip(kinds, numbers, strict=True)]


@pytest.mark.parametrize("numbers", [(4, 8, 4), (2, 4, 8)])
def test_scopes_share_one_mesh_on_unequal_numbers_of_devices(numbers: tuple[int, ...]):
    """A mesh that is left open is one with axes for all of them."""
    plan = check(tied(three(*numbers)), cluster="cpu8", mesh="auto")
    assert sorted(size for _, size in plan.axes) == [2, 4]


def test_scopes_for_which_no_mesh_has_axes_are_refused():
    with pytest.raises(RhinoError, match="RHI-PIN-002"):
        check(tied(three(2, 1, 6)), cluster="cpu8", mesh="auto")


BERT = bert.BERTConfig(layers=1, hidden=16, heads=2, ffn=32, vocab=32, seq=4, batch=8, dropout=0.1)
M6 = moe.MoEConfig(
    layers=1, hidden=16, heads=2, ffn=32, experts=8, vocab=32, seq=6, batch=8, every=1, patches=2, pixels=8
)


@pytest.mark.parametrize(
    ("model", "split", "options"),
    [
        pytest.param(scoped.classifier(BERT, 64, body=4, head=8), "classes", {"mesh": "4x2"}, marks=pytest.mark.long),
        (scoped.m6(M6, body=4, experts=8), "experts", {"mesh": "4x2"}),
        pytest.param(scoped.m6(M6), "experts", {}, marks=pytest.mark.long),
        pytest.param(
            scoped.classifier(BERT, 64, 4, 4),
            "classes",
            {"stages": "scopes", "micro_batches": 2},
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_is_wide_is_split_and_the_rest_data_parallel(model: Model, split: str, options: dict[str, Any]):
    def step(params: Params, batch: Batch, number: jax.Array) -> tuple[Params, jax.Array]:
        value, grads = jax.value_and_grad(model.loss)(params, batch, jax.random.fold_in(jax.random.key(1), number))
        return jax.tree.map(lambda one, grad: one - 0.1 * grad, params, grads), value

    batch, state = model.sample(jax.random.key(1)), model.init(jax.random.key(0))
    fast, alone, ours = rhino.parallelize(step, cluster="cpu8", **options), jax.jit(step), state
    for number in map(jnp.int32, range(NUM_STEPS)):
        ours, got = fast(ours, batch, number)
        state, expected = alone(state, batch, number)
        assert float(got) == pytest.approx(float(expected), rel=1e-5)
    specs = fast.plan(ours, batch, number).partition_specs("params*")
    assert len(specs) > 8
    for path, spec in specs.items():
        assert ("x" in str(spec)) == (split in path), path


def test_the_listings_are_of_examples():
    """The page shows lines of models that are run here."""
    page = (ROOT / "docs" / "parallelize.md").read_text(encoding="utf-8").partition("## Scopes\n")[2]
    blocks = re.findall(r"(?:^    .*\n)+", page.partition("## The plan\n")[0], re.MULTILINE)
    source = (ROOT / "examples" / "scoped.py").read_text(encoding="utf-8")
    for depth in (4, 8):  # a function, and the body of one
        assert len([block for block in blocks if textwrap.indent(textwrap.dedent(block), " " * depth) in source]) == 1


def written(path: Path, scopes: list[Scope]) -> None:
    (path / "step.mlir").write_bytes(exported(scopes))


def optimize(path: Path, *options: str) -> tuple[int, str]:
    """Exit code and stderr of the planning command for `step.mlir`."""
    stderr = io.StringIO()
    words = ["--auto-parallel", "--stages=scopes", *options, str(path / "step.mlir")]
    return opt.run(words, io.BytesIO(), io.BytesIO(), stderr), stderr.getvalue()


def exported(scopes: list[Scope]) -> bytes:
    step, params = tied(scopes)
    shapes = jax.eval_shape(lambda: (params, tied_batch(), jnp.int32(0)))
    lowered = jax.jit(step, donate_argnums=0).trace(*shapes).lower()
    return str(lowered.as_text(debug_info=True)).encode()


@pytest.mark.parametrize(
    ("scopes", "meshes", "replicas"),
    [
        ([partial(rhino.replicate, 4), partial(rhino.split, 2), partial(rhino.replicate, 2)], "4;2;2", 1),
        ([partial(rhino.split, 1), partial(rhino.replicate, 2), partial(rhino.split, 1)], "2;2x2;2", 2),
        ([partial(rhino.split, 2), partial(rhino.replicate, 2), partial(rhino.split, 2)], "2x2", 2),
    ],
)
def test_products_are_split_as_the_scope_of_their_stage_says(scopes: list[Scope], meshes: str, replicas: int):
    """By the batch among replicas of the pipeline, and inside of a scope by the batch or by anything else."""
    module, seen = read_module(exported(scopes), "step", make_context()), []
    options = {"cluster": "cpu8+cpu8", "stages": "3", "ranks": "3", "mesh": meshes, "num": "2"}
    staged = {**options, "scope-replicas": str(replicas), "schedule": DEFAULT}
    cut_step(module, "step", staged, Remarks("step"), is_split=False)
    for stage in range(3):
        with module.context:
            show(module.operation, stage)
        sizes = module_mesh(module.operation)[1].axes
        for op in walk(entry_function(module).operation):
            if op.name != "stablehlo.dot_general" or virtual_stage_of(op) not in (stage, 4 - stage):
                continue
            (around,) = scopes_around(scope_path(op.location))
            dims, sums = lying(op.attributes[SHARDING])
            shape = list(op.results[0].type.shape)
            batch = dims[shape.index(BATCH // 2)] if BATCH // 2 in shape else sums
            ways = [prod(size for axis, size in sizes if axis in axes) for axes in (batch, {*"".join(dims), *sums})]
            own = around.sharding.num
            assert ways == [replicas * (own if around.sharding.kind == "replicate" else 1), replicas * own]
            seen.append(stage)
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize(
    ("scopes", "options", "error"),
    [
        (
            [1, 1, 1],
            (),
            r"RHI-STAGE-001\] 8 devices cannot be shared by the scopes split\(1\), split\(1\), split\(1\)$",
        ),
        (
            [None, 4, 5],
            (),
            r"RHI-STAGE-001\] 8 devices .* split, split\(4\), split\(5\)$",
        ),
        (
            [2, 1, 1],
            ("--micro-batches=8",),
            r"(?s)RHI-SHARD-001.*i of 3.*sharing each micro-batch among 2 replicas .*fewer --micro-batches",
        ),
        ([2, 2, 4], ("--mesh=2",), r"RHI-CLI-001\] stages are the scopes of the model, and mesh is given too"),
        ([2, 2, 4], ("--replicas=2",), r"RHI-CLI-001\] .* and replicas is given too"),
        ([2, 2, 4], ("--schedule=interleaved",), r"RHI-SCHED-001\] schedule 'interleaved' has 2 stages"),
    ],
)
def test_scopes_that_cannot_be_stages_are_refused(
    tmp_path: Path, scopes: list[int | None], options: tuple[str, ...], error: str
):
    written(tmp_path, [partial(rhino.split, number) for number in scopes])
    code, err = optimize(tmp_path, "--micro-batches=2", *options)
    assert code in (1, 2)
    assert re.search(error, err, re.MULTILINE), err


def test_stages_that_are_scopes_are_of_a_step_that_has_some(tmp_path: Path):
    written(tmp_path, [contextlib.nullcontext] * 3)
    code, err = optimize(tmp_path)
    assert (code, "RHI-STAGE-001] stages are to be scopes, and the step has none" in err) == (1, True)
    words, said = ["--auto-shard", "--stages=scopes", "--micro-batches=2", str(tmp_path / "step.mlir")], io.StringIO()
    assert opt.run(words, io.BytesIO(), io.BytesIO(), said) == 2
    assert "RHI-CLI-001] --stages=scopes is given, and no plan is made" in said.getvalue()


def test_micro_batches_of_scopes_are_chosen_where_they_are_not_given(tmp_path: Path):
    written(tmp_path, [partial(rhino.replicate, 4), partial(rhino.split, 2), partial(rhino.replicate, 2)])
    for name, more in (("plan", ()), ("asked", ("--micro-batches=2",))):
        code, err = optimize(tmp_path, "--cluster=cpu8", *more, f"--plan={tmp_path / name}")
        assert code == 0, err
        assert err.startswith("3 stages on 3 ranks of meshes x=4; x=2; x=2, 2 micro-batches, 1f1b"), err
    assert (tmp_path / "plan" / "step.json").read_bytes() == (tmp_path / "asked" / "step.json").read_bytes()


@pytest.mark.long
def test_a_plan_of_scopes_gives_the_answer_in_one_process_and_in_three(tmp_path: Path):
    written(tmp_path, [partial(rhino.replicate, 4), partial(rhino.split, 2), partial(rhino.split, 2)])
    code, err = optimize(tmp_path, "--micro-batches=2", "--cluster=cpu8", f"--plan={tmp_path / 'plan'}")
    assert code == 0, err
    assert err.startswith("3 stages on 3 ranks of meshes x=4; x=2; x=2, 2 micro-batches, 1f1b"), err
    for more in ((), ("--processes=3",)):
        out, said = io.StringIO(), io.StringIO()
        words = [str(tmp_path / "plan"), f"--compare={tmp_path / 'step.mlir'}", f"--steps={NUM_STEPS}", *more]
        assert run_tool.run(words, io.BytesIO(), out, said) == 0, said.getvalue()
        assert "the results agree with the one-device program" in out.getvalue()
