"""A step that takes a loss scale and gives the next one, and does nothing but that where a gradient is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from rhino.ir.mlir.bindings import func, ir, stablehlo
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes, set_function_type
from rhino.ir.mlir.donation import ALIAS
from rhino.ir.mlir.reader import end_of
from rhino.ir.program.identity import make_constant
from rhino.ir.program.loss_scale import FACTOR, LOSS_SCALE, NAME, PARTS, PERIOD, RANGE
from rhino.ir.program.named_tensors import RESULT_INFO

Value = ir.Value[Any]


@dataclass(frozen=True, slots=True)
class LossScaleState:
    """The arguments of a step that hold its loss scale, and the numbers of the results that hold the next one.

    `scale` is a number of f32, `inverse` what it is divided by to give 1, `good_steps` one of i32.
    """

    scale: Value
    inverse: Value
    good_steps: Value
    results: tuple[int, int]


def take_loss_scale(entry: func.FuncOp) -> LossScaleState:
    """Returns the loss scale of a step, which has two more arguments and results then if it had none."""
    if not any(LOSS_SCALE in one for one in boundary_attributes(entry, "arg")):
        _add_arguments(entry)
    block = entry.regions[0].blocks[0]
    found = {
        str(ir.StringAttr(one[LOSS_SCALE]).value): (value, ir.IntegerAttr(one[ALIAS]).value)
        for value, one in zip(block.arguments, boundary_attributes(entry, "arg"), strict=True)
        if LOSS_SCALE in one
    }
    (scale, first), (good_steps, second) = (found[part] for part in PARTS)
    with ir.InsertionPoint.at_block_begin(block), entry.location:
        inverse = stablehlo.DivOp(make_constant(scale.type, 1.0), scale).result
    return LossScaleState(scale, inverse, good_steps, (first, second))


def _add_arguments(entry: func.FuncOp) -> None:
    block, end = entry.regions[0].blocks[0], end_of(entry.regions[0].blocks[0])
    sides = boundary_attributes(entry, "arg"), boundary_attributes(entry, "res")
    kinds = [ir.RankedTensorType.get([], kind) for kind in (ir.F32Type.get(), ir.IntegerType.get_signless(32))]
    values = [*end.operands]
    for part, kind in zip(PARTS, kinds, strict=True):
        alias = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), len(values))
        name = f"{NAME}.{part}"
        values.append(block.add_argument(kind, ir.Location.name(name)))
        sides[0].append({LOSS_SCALE: ir.StringAttr.get(part), ALIAS: alias})
        sides[1].append({RESULT_INFO: ir.StringAttr.get(name)})
    with ir.InsertionPoint(end), end.location:
        func.ReturnOp(values)
    end.erase()
    set_function_type(entry)
    set_boundary_attributes(entry, "arg", sides[0])
    set_boundary_attributes(entry, "res", sides[1])


def end_step(entry: func.FuncOp, state: LossScaleState, gradients: Sequence[Value]) -> None:
    """Makes a step give the next loss scale, and its arguments as they came where some of `gradients` is not finite.

    These are the arguments that results take the place of.
    """
    block = entry.regions[0].blocks[0]
    end = end_of(block)
    with ir.InsertionPoint(end), end.location:
        is_finite = reduce(lambda one, other: stablehlo.AndOp(one, other).result, map(_is_finite, gradients))
        for value, one in zip(block.arguments, boundary_attributes(entry, "arg"), strict=True):
            if ALIAS in one and LOSS_SCALE not in one:
                number = ir.IntegerAttr(one[ALIAS]).value
                if end.operands[number] != value:
                    end.operands[number] = stablehlo.SelectOp(is_finite, end.operands[number], value).result
        for number, value in zip(state.results, _next(state, is_finite), strict=True):
            end.operands[number] = value


def _is_finite(value: Value) -> Value:
    """Makes the boolean that says whether all elements of a tensor are finite."""
    finite: Value = stablehlo.IsFiniteOp(value).result
    tensor = ir.RankedTensorType(finite.type)
    if not tensor.shape:
        return finite
    number = ir.RankedTensorType.get([], tensor.element_type)
    dims = ir.DenseI64ArrayAttr.get(range(tensor.rank))
    made = stablehlo.ReduceOp([number], [finite], [make_constant(number, 1)], dims)
    body = made.regions[0].blocks.append(number, number)
    with ir.InsertionPoint(body):
        stablehlo.ReturnOp([stablehlo.AndOp(*body.arguments).result])
    result: Value = made.operation.results[0]
    return result


def _next(state: LossScaleState, is_finite: Value) -> tuple[Value, Value]:
    """Makes the next loss scale."""
    scale, count = state.scale, state.good_steps
    factor, (least, most) = make_constant(scale.type, FACTOR), (make_constant(scale.type, one) for one in RANGE)
    is_last = _at_least(count, make_constant(count.type, PERIOD - 1))  # a count of another period is larger
    larger = stablehlo.MinOp(stablehlo.MulOp(scale, factor), most).result
    smaller = stablehlo.MaxOp(stablehlo.DivOp(scale, factor), least).result
    after_good = stablehlo.SelectOp(is_last, larger, scale).result
    none = make_constant(count.type, 0)
    more = stablehlo.AddOp(count, make_constant(count.type, 1)).result
    counted = stablehlo.SelectOp(is_last, none, more).result
    return (
        stablehlo.SelectOp(is_finite, after_good, smaller).result,
        stablehlo.SelectOp(is_finite, counted, none).result,
    )


def _at_least(one: Value, other: Value) -> Value:
    direction = stablehlo.ComparisonDirectionAttr.get("GE")
    result: Value = stablehlo.CompareOp(one, other, direction).result
    return result
