"""What changes nothing when an op joins it to something, as a number and as a constant.

Source    StableHLO specification, section "reduce": the initial value has to be the identity of the body for the result
          to be the same in whatever parts it is computed.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.mlir.reader import maker_of

_INFINITE: Final = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)


def identity_of(by: str, element: ir.Type) -> float | None:
    """Returns the identity of the op called `by` on elements of a type, or None.

    None means that there is no identity, or that none is known.
    """
    least, largest = _range(element)
    is_integer = isinstance(element, ir.IntegerType)
    match by.removeprefix("stablehlo."):
        case "or" | "xor":
            return 0 if is_integer else None
        case "and":
            return (-1 if least else largest) if is_integer else None
        case "add":
            return 0
        case "multiply":
            return 1
        case "maximum":
            return least
        case "minimum":
            return largest
    return None


def _range(element: ir.Type) -> tuple[float | None, float | None]:
    """Returns the least and the largest number of a type; None where they are not known, or not infinite."""
    if isinstance(element, _INFINITE):
        return -inf, inf
    if not isinstance(element, ir.IntegerType):
        return None, None
    half = 2 ** (element.width - 1)
    return (0, 2 * half - 1) if element.is_unsigned or element.width == 1 else (-half, half - 1)


def make_constant(kind: ir.Type, number: float) -> ir.Value[Any]:
    """Makes a constant of a tensor type, all of whose elements are `number`, at the insertion point."""
    tensor = ir.RankedTensorType(kind)
    element = tensor.element_type
    if isinstance(element, ir.ComplexType):  # the bindings make no complex constants
        text = ir.Operation.parse(f"%0 = stablehlo.constant dense<({number}.0, 0.0)> : {kind}").operation
        copy: ir.Operation = text.clone(ip=ir.InsertionPoint.current)
        copy.location = ir.Location.current
        value: ir.Value[Any] = copy.results[0]
        return value
    if isinstance(element, ir.IntegerType):
        splat = ir.Attribute.parse(f"dense<{_integer_text(element, int(number))}> : {kind}")
    else:
        splat = ir.DenseElementsAttr.get_splat(tensor, ir.FloatAttr.get(element, float(number)))
    result: ir.Value[Any] = stablehlo.ConstantOp(splat).result
    return result


def _integer_text(element: ir.IntegerType, number: int) -> str:
    return str(bool(number)).lower() if element.width == 1 else str(number)


def is_uniform(op: ir.Operation) -> bool:
    """Says whether an op is a constant of one element value, or a broadcast scalar."""
    match op.name:
        case "stablehlo.constant":
            if isinstance(ir.RankedTensorType(op.results[0].type).element_type, ir.ComplexType):
                return False  # the bindings (jaxlib 0.10.2) do not read such constants
            value = op.attributes["value"]
            return isinstance(value, ir.DenseElementsAttr) and value.is_splat
        case "stablehlo.broadcast_in_dim":
            return not ir.RankedTensorType(op.operands[0].type).shape
    return False


def is_constant(value: ir.Value[Any], number: float) -> bool:
    """Says whether all elements of a value are known to be `number`."""
    made = maker_of(value)
    if made is not None and made.name == "stablehlo.broadcast_in_dim":
        return is_constant(made.operands[0], number)
    if made is None or made.name != "stablehlo.constant":
        return False
    element = ir.RankedTensorType(value.type).element_type
    if isinstance(element, ir.ComplexType):
        return f"dense<({number:e},0.000000e+00)>" in str(made)  # the bindings do not read complex constants
    if not isinstance(element, ir.FloatType | ir.IntegerType):
        return False
    attribute = made.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return False
    splat = attribute.get_splat_value()
    if isinstance(splat, ir.IntegerAttr | ir.BoolAttr) and isinstance(element, ir.IntegerType):
        # of one pattern of bits: -1 is 255 in eight
        return bool((int(splat.value) - int(number)) % 2**element.width == 0)
    return isinstance(splat, ir.FloatAttr) and bool(splat.value == number)
