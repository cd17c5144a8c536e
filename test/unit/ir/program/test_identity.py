"""Identities: joined to any value by their op they change nothing, and the constants made of them are known again."""

import numpy as np
import pytest
from snippets import context, tensor

from rhino.ir.mlir.bindings import ir, stablehlo
from rhino.ir.program.identity import identity_of, is_constant, make_constant

DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 32)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 64)},
    "i1": "bool",
    "complex<f32>": "complex64",
}
JOINS = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
ORDERED, BITS = ("maximum", "minimum"), ("and", "or", "xor")


def has_identity(op, element):
    return not (op in ORDERED and "complex" in element) and not (op in BITS and DTYPES[element][0] in "fc")


@pytest.mark.parametrize("op", JOINS)
@pytest.mark.parametrize("element", DTYPES)
def test_an_identity_changes_nothing_and_its_constant_is_known_again(op, element):
    with context(), ir.Location.unknown():
        kind = ir.Type.parse(tensor((), element))
        number = identity_of(f"stablehlo.{op}", kind.element_type)
        assert (number is not None) == has_identity(op, element)
        if number is None:
            return
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            value, other = make_constant(kind, number), make_constant(kind, 1 if number != 1 else 0)
            spread = stablehlo.BroadcastInDimOp(kind, value, list(range(len(kind.shape)))).result
        assert is_constant(value, number)
        assert is_constant(spread, number)
        assert not is_constant(other, number)
    values = np.array([0, 1, 1, 0] if element == "i1" else [3, 1, 100, 7]).astype(DTYPES[element])
    np.testing.assert_array_equal(JOINS[op](values, values.dtype.type(number)), values)


def test_what_has_no_identity_has_none():
    with context():
        assert identity_of("stablehlo.subtract", ir.F32Type.get()) is None
        assert identity_of("stablehlo.maximum", ir.Type.parse("f8E4M3FN")) is None
