"""Rules of cuDNN's attention, in every form in which JAX calls it, against its calls for parts of the operands."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn

from rhino.ir.calls.cudnn_rules import attention_rule, fit_attention
from rhino.ir.graph.rules import parse_rule
from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import walk

LENGTH, WIDTH = 256, 64


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """As if the library were there: to lower, JAX asks for its version alone."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)


def array(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


def calls(form, batch, heads):
    """The module of a form's gradient for a GPU, and its calls of attention."""
    q, options, rest = array(batch, LENGTH, heads, WIDTH), {}, {}
    k = array(batch, 2 * LENGTH, heads, WIDTH)
    if form == "grouped":
        k = array(batch, LENGTH, heads // 2, WIDTH)
    if form == "turned":
        q = k = array(batch, heads, LENGTH, WIDTH)
        options = {"qkv_layout": "BNTH"}
    if form == "causal":
        k, options = q, {"mask_type": cudnn.MaskType.CAUSAL}
    if form == "dropout":
        options = {"dropout_rate": 0.1, "seed": 3}
    if form == "bias":
        rest = {"bias": array(batch, heads, LENGTH, 2 * LENGTH)}
    if form in ("shared bias", "learned bias"):
        rest = {"bias": array(1, heads, LENGTH, 2 * LENGTH)}
    if form == "mask":
        rest = {"mask": array(batch, 1, LENGTH, 2 * LENGTH, dtype=jnp.bool_)}
    if form == "lengths":
        k = q
        rest = dict.fromkeys(("q_seqlen", "kv_seqlen"), array(batch, dtype=jnp.int32))
        options = {"mask_type": cudnn.MaskType.PADDING}

    def loss(q, k, v, rest):
        return cudnn.dot_product_attention(q, k, v, **rest, **options).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, (0, 1, 2, 3) if form == "learned bias" else (0, 1, 2))).trace(q, k, k, rest)
    module = ir.Module.parse(traced.lower(lowering_platforms=("cuda",)).as_text(), make_context())
    found = [op for op in walk(module.operation) if "call_target_name" in op.attributes]
    assert len(found) == 2
    return module, found


def dimensions(op):
    return json.loads(ir.StringAttr(op.attributes["backend_config"]).value)["cudnn_fmha_backend_config"][
        "intermediate_tensor_shape"
    ]["dimensions"]


FORMS = ("plain", "causal", "grouped", "turned", "bias", "shared bias", "learned bias", "mask", "lengths")


@pytest.mark.parametrize("form", FORMS)
def test_batch_and_heads_split_into_the_calls_that_jax_makes_for_parts(form):
    _module, whole = calls(form, 4, 8)
    _other, parts = calls(form, 2, 4)
    for op, part, is_backward in zip(whole, parts, (False, True), strict=True):
        found = attention_rule(op)
        assert found is not None
        with op.context:
            op.attributes["sdy.sharding_rule"] = ir.Attribute.parse(found.text)
        assert op.verify()
        rule = parse_rule(found.text)
        free = {rule.sizes[factor] for factor in range(len(rule.sizes)) if factor not in rule.fixed}
        heads = 4 if form == "grouped" else 8
        assert free == ({heads} if form == "learned bias" and is_backward else {4, heads})
        for value, smaller, dims in zip(
            (*op.operands, *op.results), (*part.operands, *part.results), (*rule.operands, *rule.results), strict=True
        ):
            sizes, expected = (list(ir.RankedTensorType(one.type).shape) for one in (value, smaller))
            split = [
                size // 2 if dim[0] not in rule.fixed and rule.sizes[dim[0]] > 1 else size
                for size, dim in zip(sizes, dims, strict=True)
            ]
            if form != "learned bias":  # of that, a device has the gradient of its own part of the batch alone
                assert split == expected
        part.attributes["backend_config"] = op.attributes["backend_config"]
        before, wanted = dimensions(part), [str(size) for size in (2, 4)]
        fit_attention(part)
        assert dimensions(part) == [*wanted, *before[2:]]


def test_the_work_is_that_of_its_products():
    _module, (forward, backward) = calls("plain", 4, 8)
    _other, (causal, _) = calls("causal", 4, 8)
    one = 2 * 4 * 8 * LENGTH * 2 * LENGTH * WIDTH
    assert attention_rule(forward).work.product_flops == 2 * one
    assert attention_rule(backward).work.product_flops == 5 * one
    assert attention_rule(causal).work.product_flops == one // 2  # half as many keys, and half of the scores
    assert attention_rule(forward).work.product_dtype == "bf16"


def test_a_pattern_of_dropout_is_that_of_the_whole():
    _module, found = calls("dropout", 4, 8)
    assert [attention_rule(op) for op in found] == [None, None]
