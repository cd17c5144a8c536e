"""Which factors of an op its blocks can be computed by on local shapes, and what they have to read of other blocks.

Shardy's rules call a factor *permutation* where values change places along it, and *need_replication* where it knows of
no way to split it. For ops that read a dim in the form of `rhino.ir.graph.halos`, what a block reads is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from rhino.ir.graph.halos import Halo
from rhino.ir.graph.rules import RULE, Rule
from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.numerics import joined_by

PAD: Final = "stablehlo.pad"
SLICE: Final = "stablehlo.slice"
REVERSE: Final = "stablehlo.reverse"
CONCATENATE: Final = "stablehlo.concatenate"
CONVOLUTION: Final = "stablehlo.convolution"
REDUCE_WINDOW: Final = "stablehlo.reduce_window"
SELECT_AND_SCATTER: Final = "stablehlo.select_and_scatter"
CUSTOM_CALL: Final = "stablehlo.custom_call"
_EDGES: Final = ("edge_padding_low", "edge_padding_high", "interior_padding")
_WINDOWS: Final = ("window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding")

ADDRESSING: Final = {
    PAD: _EDGES,
    SLICE: ("start_indices", "strides"),
    REVERSE: ("dimensions",),
    CONCATENATE: ("dimension",),
    CONVOLUTION: (
        "dimension_numbers",
        *("window_strides", "padding", "lhs_dilation", "rhs_dilation", "window_reversal"),
    ),
    REDUCE_WINDOW: _WINDOWS,
    SELECT_AND_SCATTER: ("window_dimensions", "window_strides", "padding"),
    "stablehlo.scatter": ("scatter_dimension_numbers",),
    "stablehlo.triangular_solve": ("left_side",),
}
"""Attributes that say, beside an op's types and rule, which of its factors can be split: what `localizable` reads."""


def is_custom(rule: ir.Attribute) -> bool:
    """Says whether a sharding rule is marked as one that its op's owner gives."""
    return str(rule).endswith("custom>")


def localizable(op: ir.Operation, rule: Rule) -> Rule | None:
    """Returns the rule that says how blocks of the op are computed on local shapes.

    Returns None for an op that cannot be computed on local shapes at all.
    """
    match op.name:
        case "stablehlo.dynamic_update_slice":  # where it writes is a global place
            return rule.with_fixed(rule.factors_of(0) - rule.factors_of(1))
        case "stablehlo.scatter":
            return rule.with_fixed(_unaddressed(op, rule))
        case _ if op.name == CUSTOM_CALL:  # only its owner knows what it does with its shapes
            return rule if is_custom(op.attributes[RULE]) else None
        case "stablehlo.triangular_solve":  # each column, or row, is solved for by itself
            dim = rank_of(op.operands[1]) - (1 if ir.BoolAttr(op.attributes["left_side"]).value else 2)
            return rule.with_free(frozenset(rule.operands[1][dim]))
        case _ if op.name == CONVOLUTION:
            return _convolution_rule(op, rule)
        case _ if op.name == PAD:
            return _pad_rule(op, rule)
        case _ if op.name == SLICE:
            return _slice_rule(op, rule)
        case _ if op.name == REVERSE:
            return rule.with_halos(_reversed(op, rule))
        case _ if op.name == CONCATENATE:
            return rule.with_halos(_joined(op, rule))
        case _ if op.name == REDUCE_WINDOW:
            return rule.with_halos(_reduced(op, rule))
        case _ if op.name == SELECT_AND_SCATTER:
            return rule.with_halos(_selected(op, rule))
    return rule


def numbers(op: ir.Operation, name: str, count: int, missing: int) -> list[int]:
    """Returns the numbers that an attribute of an op holds, one for each of `count` dims; `missing` where it is not."""
    if name not in op.attributes:
        return [missing] * count
    given: Any = op.attributes[name]
    return [int(number) for number in given]


def paddings(op: ir.Operation, count: int) -> list[tuple[int, int]]:
    """Returns how an op with windows pads each of `count` dims, before and behind."""
    if "padding" not in op.attributes:
        return [(0, 0)] * count
    given = ir.DenseIntElementsAttr(op.attributes["padding"])
    flat = [int(given[number]) for number in range(2 * count)]
    return list(zip(flat[::2], flat[1::2], strict=True))


def shape_of(value: ir.Value[Any]) -> tuple[int, ...]:
    """Returns the shape of a tensor."""
    return tuple(ir.RankedTensorType(value.type).shape)


def rank_of(value: ir.Value[Any]) -> int:
    """Returns the number of dims of a tensor."""
    return len(shape_of(value))


def _unaddressed(op: ir.Operation, rule: Rule) -> frozenset[int]:
    """Returns the factors of dims that a scatter writes at index 0 alone.

    If such a dim is split, index 0 is on one of the devices.
    """
    scattered = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    dims = set(scattered.inserted_window_dims) - set(scattered.scattered_dims_to_operand_dims)
    return frozenset(factor for dim in dims for factor in rule.operands[0][dim])


def _convolution_rule(op: ir.Operation, rule: Rule) -> Rule:
    """Windows reach into the neighbour's block, and padding belongs to the global border.

    The blocks of a kernel, as large as an image where the gradient of a kernel is computed, read a range each too, and
    give sums.
    """
    dims = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, result = (
        list(one)
        for one in (dims.input_spatial_dimensions, dims.kernel_spatial_dimensions, dims.output_spatial_dimensions)
    )
    count = len(image)
    strides, dilated, spread = (
        numbers(op, name, count, 1) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    turned = numbers(op, "window_reversal", count, 0)
    shapes = [shape_of(value) for value in (*op.operands, *op.results)]
    halos: list[Halo] = []
    summed: set[int] = set()
    fixed: set[int] = set()
    for place, (low, _) in enumerate(paddings(op, count)):
        (by_result,), (by_kernel,) = rule.results[0][result[place]], rule.operands[1][kernel[place]]
        size, window, positions = (
            shape[dim[place]] for shape, dim in zip(shapes, (image, kernel, result), strict=True)
        )
        fixed |= {by_result, by_kernel}
        stride, between = strides[place], spread[place]
        read = Halo(
            by_result, 0, image[place], size, positions, stride, low, (window - 1) * between + 1, dilated[place]
        )
        halos.append(read)
        if not turned[place]:
            span = (positions - 1) * stride + 1
            halos.append(replace(read, factor=by_kernel, count=window, stride=between, span=span))
            summed.add(by_kernel)
    return replace(rule, reduction=rule.reduction | summed).with_fixed(frozenset(fixed)).with_halos(halos)


def _pad_rule(op: ir.Operation, rule: Rule) -> Rule:
    """Padding belongs to the global border, and moves what lies behind it (also where it adds and removes as much).

    Where each element gets the same around it, so that a block is padded as the whole is, a dim can be split as it is.
    """
    apart: set[int] = set()
    halos: list[Halo] = []
    size, count = shape_of(op.operands[0]), shape_of(op.results[0])
    edges = (numbers(op, edge, len(size), 0) for edge in _EDGES)
    for dim, (before, behind, between) in enumerate(zip(*edges, strict=True)):
        (factor,) = rule.operands[0][dim]
        if min(before, behind) >= 0 and before + behind == between > 0:
            apart.add(factor)
        elif before or behind or between:
            halos.append(Halo(factor, 0, dim, size[dim], count[dim], low=before, base=between + 1))
    return rule.with_free(frozenset(apart)).with_halos(halos)


def _slice_rule(op: ir.Operation, rule: Rule) -> Rule:
    """A dim can be split as it is if each block of a stride's length gives the same element."""
    sizes = list(rule.sizes)
    apart: set[int] = set()
    halos: list[Halo] = []
    count, size = shape_of(op.results[0]), shape_of(op.operands[0])
    starts, strides = (numbers(op, name, len(size), 0) for name in ADDRESSING[SLICE])
    for dim, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        (factor,) = rule.operands[0][dim]
        if stride > 1 and start < stride and count[dim] * stride == size[dim]:
            apart.add(factor)
            sizes[factor] = count[dim]
        elif count[dim] < size[dim]:
            halos.append(Halo(factor, 0, dim, size[dim], count[dim], stride, -start))
    return replace(rule.with_free(frozenset(apart)), sizes=tuple(sizes)).with_halos(halos)


def _reversed(op: ir.Operation, rule: Rule) -> Iterator[Halo]:
    size = shape_of(op.operands[0])
    for dim in numbers(op, "dimensions", 0, 0):
        (factor,) = rule.operands[0][dim]
        yield Halo(factor, 0, dim, size[dim], size[dim], -1, 1 - size[dim])


def _joined(op: ir.Operation, rule: Rule) -> Iterator[Halo]:
    """Each operand of a concatenation lies in the result as if it were padded."""
    dim, offset = ir.IntegerAttr(op.attributes["dimension"]).value, 0
    (factor,), count = rule.results[0][dim], shape_of(op.results[0])[dim]
    for number, operand in enumerate(op.operands):
        size = shape_of(operand)[dim]
        yield Halo(factor, number, dim, size, count, low=offset)
        offset += size


def _reduced(op: ir.Operation, rule: Rule) -> Iterator[Halo]:
    """Windows that pad split where what they start from changes nothing.

    A compiler leaves out what is outside of the dim (XLA:CPU, jaxlib 0.10.2); a block that others lie beside reads what
    windows start from there.
    """
    by = joined_by(op)
    size, count = shape_of(op.operands[0]), shape_of(op.results[0])
    sides = [numbers(op, name, len(size), 1) for name in _WINDOWS[:-1]]
    for dim, (window, stride, base, between) in enumerate(zip(*sides, strict=True)):
        (factor,) = rule.results[0][dim]
        if factor in rule.fixed:
            edges, span = paddings(op, len(size))[dim], (window - 1) * between + 1
            if len(by) == 1 and stride == base == between == 1 and window == size[dim] == count[dim]:
                step = {(window - 1, 0): 1, (0, window - 1): -1}.get(edges, 0)
                if step:
                    yield Halo(factor, 0, dim, window, window, step, joins=by[0])
                    continue
            if max(edges) > 0 and not by:
                continue
            for number in range(len(op.results)):
                yield Halo(factor, number, dim, size[dim], count[dim], stride, edges[0], span, base)


def _selected(op: ir.Operation, rule: Rule) -> Iterator[Halo]:
    """Windows that lie side by side without padding select in a block as they do in the whole."""
    size, count = shape_of(op.operands[0]), shape_of(op.operands[1])
    windows, strides = (numbers(op, name, len(size), 1) for name in ADDRESSING[SELECT_AND_SCATTER][:2])
    for dim, (window, stride, edges) in enumerate(zip(windows, strides, paddings(op, len(size)), strict=True)):
        (factor,) = rule.results[0][dim]
        if factor in rule.fixed and window <= stride and not any(edges) and count[dim] * stride == size[dim]:
            yield Halo(factor, 1, dim, count[dim], size[dim], low=stride - 1, span=stride, base=stride)
