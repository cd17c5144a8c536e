"""The sharding rule and the work of cuDNN's fused attention, forward and backward, as JAX calls it.

The call's configuration says where its operands have the batch and the heads, and how large the matrix of scores is.
Along the batch and along the heads a part gives a part; heads that share keys stay together. With dropout in it no
part is like the whole: its pattern follows from the place in the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from math import prod
from typing import Any, Final

from rhino.ir.graph.rules import CallRule, CallWork, owned_rule
from rhino.ir.mlir.bindings import ir

_TARGET: Final = re.compile(r"__cudnn\$fmha(?P<bias>ScaleBias)?Softmax(?P<backward>Backward)?")
_CONFIG: Final = "backend_config"
_OWN: Final = "cudnn_fmha_backend_config"
_SCORES: Final = "intermediate_tensor_shape"
_PER_SCORE: Final = 6
"""Operations on each score beside products: it is scaled, its maximum subtracted, and so on."""
_CAUSAL: Final = ("CAUSAL", "PADDING_CAUSAL")
Factors = list[tuple[Hashable, int]]


def attention_rule(op: ir.Operation) -> CallRule | None:
    """Returns the rule of a call of cuDNN's attention, None for another op, and where no part gives a part."""
    match, config = _match(op), _config(op)
    if match is None or config is None:
        return None
    is_backward, has_bias = bool(match["backward"]), bool(match["bias"])
    try:
        own = config[_OWN]
        if own["max_seg_per_batch"] != 1 or own["is_paged_attention"]:
            return None
        batch, heads, queries, keys = map(int, own[_SCORES]["dimensions"])
        first = own["bmm2_grad_gemm2_dot_dimension_numbers" if is_backward else "bmm1_dot_dimension_numbers"]
        place = int(first["lhs_batch_dimensions"][1])
        causal = own["mask_type"] in _CAUSAL
    except (KeyError, ValueError, TypeError, IndexError):
        return None  # of another version
    given, made = (
        [tuple(ir.RankedTensorType(value.type).shape) for value in side] for side in (op.operands, op.results)
    )
    shared = given[1][place] if len(given) > 2 and len(given[1]) == 4 else 0
    if place not in (1, 2) or not shared or heads % shared:
        return None
    b: Factors = [("batch", batch)]
    every: Factors = [("shared", shared), ("heads", heads // shared)]
    few: Factors = [("shared", shared)]
    s: Factors = [("queries", queries)]
    t: Factors = [("keys", keys)]
    width: Factors = [("width", given[0][3])]
    value_width: Factors = [("value width", given[2][3])]

    def laid(heads: Factors, length: Factors, width: Factors) -> list[Factors]:
        return [b, heads, length, width] if place == 1 else [b, length, heads, width]

    def of_scores(shape: tuple[int, ...]) -> list[Factors]:
        wholes = ((b, batch), (every, heads), (s, queries), (t, keys))
        return [
            factors if size == whole else [(("one", number), size)]
            for number, (size, (factors, whole)) in enumerate(zip(shape, wholes, strict=True))
        ]

    operands = [laid(every, s, width), laid(few, t, width), laid(few, t, value_width)]
    results = [[b, every, s, value_width], [b, every, s]]
    if is_backward:
        operands += [[b, every, s], laid(every, s, value_width)]
        results = [[b, every, s, width], [b, few, t, width], [b, few, t, value_width]]
    free: set[Hashable] = {"batch", "shared"}
    if has_bias:
        bias = given[len(operands)]
        operands.append(of_scores(bias))
        if is_backward and len(made) == 5:  # its gradient is summed over what it has once
            results.append(of_scores(bias))
            if next(iter(op.results[3].uses), None) is not None:
                free -= {"batch"} if bias[0] < batch else set()
                free -= {"shared"} if bias[1] < heads else set()
    if is_backward:
        operands.append(laid(every, s, value_width))
    operands += [[b]] * (len(given) - len(operands))  # lengths of sequences
    results = [*results[: len(made) - 1], [[("workspace", made[-1][0])]]]
    if _sizes(operands) != given or _sizes(results) != made:
        return None
    dtype = str(ir.RankedTensorType(op.operands[0].type).element_type)
    scores = batch * heads * queries * keys // (2 if causal else 1)
    times = (3, 2) if is_backward else (1, 1)  # products with queries or keys, and with values or their gradient
    product_flops = 2 * scores * (times[0] * given[0][3] + times[1] * given[2][3])
    moved = sum(_bytes(value) for value in (*op.operands, *op.results))
    work = CallWork(product_flops + _PER_SCORE * scores, product_flops, dtype, moved)
    return CallRule(owned_rule(operands, results, free)[0], work)


def fit_attention(op: ir.Operation) -> None:
    """Gives a call of cuDNN's attention, made for larger operands, the scores of those that it has."""
    match, config = _match(op), _config(op)
    if match is None or config is None:
        return
    scores = config[_OWN][_SCORES]
    batch, heads, *_ = ir.RankedTensorType(op.results[0].type).shape  # the output, or the gradient of the queries
    dimensions = [str(batch), str(heads), *scores["dimensions"][2:]]
    if dimensions != scores["dimensions"]:
        scores["dimensions"] = dimensions
        op.attributes[_CONFIG] = ir.StringAttr.get(json.dumps(config), op.context)


def _sizes(tensors: list[list[Factors]]) -> list[tuple[int, ...]]:
    return [tuple(prod(size for _, size in dim) for dim in dims) for dims in tensors]


def _match(op: ir.Operation) -> re.Match[str] | None:
    if op.name != "stablehlo.custom_call":
        return None
    return _TARGET.fullmatch(ir.StringAttr(op.attributes["call_target_name"]).value)


def _config(op: ir.Operation) -> dict[str, Any] | None:
    given = op.attributes.get(_CONFIG, None)
    if not isinstance(given, ir.StringAttr):
        return None
    try:
        found = json.loads(given.value)
    except ValueError:
        return None
    return found if isinstance(found, dict) and _OWN in found else None


def _bytes(value: ir.Value[Any]) -> int:
    kind = ir.RankedTensorType(value.type)
    return int(prod(kind.shape)) * int(getattr(kind.element_type, "width", 8)) // 8
