"""Branches with products are loops of one trip or none; the search splits what they compute, and only one runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from planning import plan_step, run_on
from traffic import splitting_cluster

from rhino.ir.graph.spec import split_axes
from rhino.ir.mlir.bindings import make_context
from rhino.ir.mlir.reader import read_module
from rhino.runtime.executor.compare import differences, worst
from rhino.runtime.executor.executable import compile_module

SHAPES = ((16, 8), (8, 32), (32, 8))


def step(which, inner, x, up, down):
    """Gradients through branches: two products; one, or a loop of products; or none."""

    def deep(x, up, down):
        return jnp.tanh(x @ up) @ down, jnp.array(True)

    def plain(x, up, down):
        return jnp.cos(x), jnp.array(False)

    def turned(x, up, down):
        hidden = jax.lax.cond(
            inner,
            lambda h: h,
            lambda h: jax.lax.scan(lambda h, _: (jnp.tanh(h @ down @ up), None), h, length=2)[0],
            x @ up,
        )
        return hidden[:, :8] - x, jnp.sum(hidden) > 0

    def loss(weights):
        y, flag = jax.lax.switch(which, (deep, plain, turned), x, *weights)
        return jnp.where(flag, 2.0, 1.0) * jnp.sum(y * y)

    return jax.value_and_grad(loss)((up, down))


@pytest.mark.parametrize("mesh", ["4", "2x2"])
def test_every_branch_gives_the_answer_of_one_device(mesh, tmp_path):
    cluster = tmp_path / "splitting.toml"
    cluster.write_text(splitting_cluster(), encoding="utf-8")
    given = (
        np.int32(0),
        np.bool_(True),
        *(np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in SHAPES),
    )
    text = jax.jit(step).trace(*given).lower(lowering_platforms=("cpu",)).as_text().encode()
    one = compile_module(read_module(text, "branches", make_context()), jax.devices()[:1])
    planned = plan_step(text, "branches", str(cluster), mesh=mesh)
    assert planned.predicted == planned.localized
    products = [
        n for n in range(planned.plan.graph.num_ops) if planned.plan.graph.cls(n).name == "stablehlo.dot_general"
    ]
    assert len(products) > 8
    assert all(any(map(split_axes, planned.plan.ops[n].operand_specs)) for n in products)
    executable = compile_module(planned.form("localized"), jax.devices()[:4])
    for which, inner in ((0, True), (1, True), (2, True), (2, False), (7, True)):
        inputs = [np.int32(which), np.bool_(inner), *given[2:]]
        (want,), (got,) = run_on(one, inputs, 1), run_on(executable, inputs, 1)
        found = worst(differences(one.signature, got, want))
        assert found is not None
        assert found.max_rel <= found.tolerance, (which, inner)
