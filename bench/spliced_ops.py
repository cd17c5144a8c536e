"""Ops that JAX does not write, inside programs that it traces.

Each is a function in StableHLO text, called on float32 arrays. While JAX traces, a custom call stands for each;
`spliced` puts calls of functions in their place. A function's name says all that it is made of, so nothing has to be
kept in between.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
from every_op import CHLO, STABLEHLO, VARIANTS, Case
from indexed_forms import Form, draw_form
from mlir_text import tensor

from rhino.ir.mlir.bindings import ir, make_context
from rhino.ir.mlir.reader import entry_function

Array = jax.Array
Shape = tuple[int, ...]

LONG: Final = frozenset({"_asin_acos_kernel", "polygamma", "broadcast_polygamma", "zeta", "broadcast_zeta"})
"""Ops of CHLO that are hundreds of ops of StableHLO."""
CASES: Final[tuple[Case, ...]] = tuple(
    case
    for name, case in [*STABLEHLO.items(), *VARIANTS.items(), *CHLO.items()]
    if not case.refused and not case.not_run and name not in LONG
)
"""One program for each op, and form of an op, that runs anywhere."""
_CALL: Final = re.compile(r"stablehlo\.custom_call @(case_\d+|form_\d+(?:_\d+)+)\(([^)]*)\) \{.*?\} : ")
_LARGEST: Final = 4.0
"""What comes out is clipped to this, so that no NaN or infinity hides what comes after."""


def call_case(number: int, values: list[Array], integers: Array) -> Array:
    """Returns the results of an op of CASES, joined to one array [n], on operands made of `values` and `integers`."""
    number %= len(CASES)
    _, operands, results = _signature(number)
    others = [_apart(integers)] if "dynamic_update_slice" in CASES[number].text else values[1:]
    chosen = [values[0], *(others[n % len(others)] for n in range(len(operands)))] if others else values * len(operands)
    given = [_fitted(shape, element, chosen[n], integers + n) for n, (shape, element) in enumerate(operands)]
    return _call(f"case_{number}", given, results)


def call_form(number: int, operand: Array, integers: Array) -> Array:
    """Returns the results of the drawn form `number` (indexed_forms.py) of an operand's shape, as one array [n]."""
    symbol = "_".join(["form", str(number), *map(str, operand.shape)])
    form = _form_of(symbol)
    values = [operand] * len(form.results) + [_apart(integers)] * len(form.operands)
    given = [_fitted(shape, element, values[n], integers) for n, (shape, element) in enumerate(form.operands)]
    return _call(symbol, given, form.results)


def spliced(text: str) -> str:
    """Returns a program in which calls of functions stand for what was called, and these functions."""
    symbols = sorted({found[1] for found in _CALL.finditer(text)})
    body = _CALL.sub(lambda found: f"func.call @{found[1]}({found[2]}) : ", text).rstrip()
    assert body.endswith("}")
    return "\n".join([body[:-1], *map(_definition, symbols), "}\n"])


def _call(symbol: str, given: list[Array], results: tuple[tuple[Shape, str], ...]) -> Array:
    kinds = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape, _ in results]
    made: Any = jax.ffi.ffi_call(symbol, kinds)(*given)
    shown = [jnp.where(jnp.isfinite(one), jnp.clip(one, -_LARGEST, _LARGEST), 0.5) for one in made]
    return shown[0] if len(shown) == 1 else jnp.concatenate([one.reshape(-1) for one in shown])


def _apart(integers: Array) -> Array:
    """Returns floats that have nothing to do with what they are written over.

    An update that is computed of what it is written over reads what has been written, on one device too (XLA's CPU,
    jaxlib 0.10.2).
    """
    return jnp.sin(integers.astype(jnp.float32))


def _fitted(shape: Shape, element: str, value: Array, integers: Array) -> Array:
    """Returns what a function takes for an operand: a value or integers in its shape, floats for floats."""
    chosen = value if _is_float(element) else integers
    return chosen if chosen.shape == shape else jnp.resize(chosen, shape)


def _definition(symbol: str) -> str:
    if symbol.startswith("form"):
        form = _form_of(symbol)
        return _wrapper(symbol, form.text.replace("@form(", f"@{symbol}_op("), form.operands, form.results)
    number = int(symbol.removeprefix("case_"))
    text, operands, results = _signature(number)
    return _wrapper(
        symbol,
        re.sub(r"@(\w+)(?=[(\s}])", lambda found: f"@{symbol}_{'op' if found[1] == 'main' else found[1]}", text),
        operands,
        results,
    )


def _form_of(symbol: str) -> Form:
    _, number, *sizes = symbol.split("_")
    return draw_form(int(number), shape=tuple(map(int, sizes)))


@cache
def _signature(number: int) -> tuple[str, tuple[tuple[Shape, str], ...], tuple[tuple[Shape, str], ...]]:
    """Returns the text of a case, and the shapes and element types of what its entry takes and gives."""
    text = CASES[number].text
    kind = entry_function(ir.Module.parse(text, make_context())).type
    operands, results = (
        tuple((tuple(one.shape), str(one.element_type)) for one in map(ir.RankedTensorType, side))
        for side in (kind.inputs, kind.results)
    )
    return text.replace("func.func @main", "func.func private @main"), operands, results


def _wrapper(
    symbol: str, text: str, operands: tuple[tuple[Shape, str], ...], results: tuple[tuple[Shape, str], ...]
) -> str:
    """Returns a function of float32 and int32 around one of other types.

    Barriers stand on both sides: XLA's own faults where two ops meet (docs/localize.md) are those of one device, too.
    """
    inner, outer = ([tensor(shape, one) for shape, one in side] for side in (operands, results))
    plain = [tensor(shape, "f32" if _is_float(one) else "i32") for shape, one in operands]
    given = [tensor(shape) for shape, _ in results]
    arguments = ", ".join(f"%a{n}: {kind}" for n, kind in enumerate(plain))
    lines = [f"func.func private @{symbol}({arguments}) -> ({', '.join(given)}) {{"]
    for n, kind in enumerate(plain):
        lines += [
            f"%b{n} = stablehlo.optimization_barrier %a{n} : {kind}",
            *_converted(f"%b{n}", f"%c{n}", kind, inner[n]),
        ]
    called, count = ", ".join(f"%c{n}" for n in range(len(plain))), len(results)
    lines.append(f"%r:{count} = func.call @{symbol}_op({called}) : ({', '.join(inner)}) -> ({', '.join(outer)})")
    for n in range(count):
        lines += [
            *_converted(f"%r#{n}", f"%d{n}", outer[n], given[n]),
            f"%e{n} = stablehlo.optimization_barrier %d{n} : {given[n]}",
        ]
    lines += [f"return {', '.join(f'%e{n}' for n in range(count))} : {', '.join(given)}", "}", text]
    return "\n".join(lines)


def _converted(value: str, name: str, kind: str, wanted: str) -> list[str]:
    """Returns the ops that make `name` of type `wanted` out of a value."""
    half = kind.replace("complex<", "").replace(">>", ">")
    if wanted.replace("complex<", "").replace(">>", ">") == kind != wanted:
        return [f"{name} = stablehlo.complex {value}, {value} : {wanted}"]
    if half != kind:
        real, imaginary = (
            f"{name}_{part} = stablehlo.{part} {value} : ({kind}) -> {half}" for part in ("real", "imag")
        )
        return [real, imaginary, f"{name} = stablehlo.add {name}_real, {name}_imag : {half}"]
    return [f"{name} = stablehlo.convert {value} : ({kind}) -> {wanted}"]


def _is_float(element: str) -> bool:
    return element.startswith(("f", "bf", "complex"))
