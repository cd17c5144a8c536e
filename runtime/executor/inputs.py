"""Draw a program's inputs from a seed, or read some of them from a file.

The rule knows no names but those of a loss scale: integers that index something must stay small, and a value whose
square root or logarithm is taken must not be negative (the second moment of an optimizer, say). Everything else is
drawn with both signs, so that sums cancel as they do in training.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jax.numpy as jnp
import numpy as np

from rhino.ir.diagnostics import Place, RhinoError
from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.reader import entry_function
from rhino.ir.program.loss_scale import FIRST, NAME
from rhino.runtime.executor.executable import Host
from rhino.runtime.executor.signature import Signature, Value

FLOAT_RANGE: Final = 0.1
RULE: Final = f"""\
Inputs are drawn from the seed, each argument by itself:
  floats     uniform in [-{FLOAT_RANGE}, {FLOAT_RANGE}); in [0, {FLOAT_RANGE}) where a root or logarithm is taken of a \
sum or
             multiple of the argument (as of Adam's second moment)
  integers   uniform in [0, --int-range); 32-bit unsigned ones (random keys) over all their values
  booleans   true or false"""

_ROOTS: Final = frozenset({"stablehlo.sqrt", "stablehlo.rsqrt", "stablehlo.log", "stablehlo.cbrt", "stablehlo.power"})
_KEEPS_SIGN: Final = frozenset(
    {
        *(
            "stablehlo.add",
            "stablehlo.convert",
            "stablehlo.reshape",
            "stablehlo.transpose",
            "stablehlo.broadcast_in_dim",
        ),
        *("stablehlo.slice", "stablehlo.concatenate", "stablehlo.maximum", "sdy.sharding_constraint"),
    }
)
_SCALES: Final = frozenset({"stablehlo.multiply", "stablehlo.divide"})


@dataclass(frozen=True, slots=True)
class InputRule:
    """How inputs are drawn: the seed, the bound of integers, and the arguments (by index) that must not be negative."""

    seed: int
    int_range: int
    nonnegative: frozenset[int]

    def draw(self, value: Value, step: int = 0) -> Host:
        """Returns the value of one argument; another `step` gives another value.

        A loss scale is the one that training starts from.
        """
        owner, _, part = value.name.partition(".")
        if owner == NAME and part in FIRST:
            return np.asarray(FIRST[part]).astype(value.dtype)
        random = np.random.default_rng([self.seed, value.index, step])
        return np.asarray(self._draw(random, value)).astype(value.dtype)

    def _draw(self, random: np.random.Generator, value: Value) -> Host:
        dtype = value.dtype
        if dtype == np.bool_:
            return np.asarray(random.integers(0, 2, value.shape))
        if dtype == np.uint32:
            return np.asarray(random.integers(0, 2**32, value.shape, np.uint32))
        if jnp.issubdtype(dtype, jnp.integer):
            return np.asarray(random.integers(0, min(self.int_range, _max_int(dtype) + 1), value.shape))
        low = 0.0 if value.index in self.nonnegative else -FLOAT_RANGE
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return np.asarray(
                random.uniform(low, FLOAT_RANGE, value.shape) + 1j * random.uniform(low, FLOAT_RANGE, value.shape)
            )
        return np.asarray(random.uniform(low, FLOAT_RANGE, value.shape))


def _max_int(dtype: np.dtype[np.generic]) -> int:
    limits = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    return int(limits.max)


def nonnegative_arguments(module: ir.Module) -> frozenset[int]:
    """Returns the entry's arguments of which a root or logarithm is taken after additions and scalings alone."""
    entry = entry_function(module)
    return frozenset(arg.arg_number for arg in entry.arguments if _reaches_root(arg))


def _reaches_root(argument: ir.Value[ir.Type]) -> bool:
    """Whether `argument` flows into a root through ops that keep its sign; a product with itself ends the way."""
    derived: set[ir.Value[ir.Type]] = {argument}
    todo: list[ir.Value[ir.Type]] = [argument]
    while todo:
        value = todo.pop()
        for use in value.uses:
            op = use.owner.operation
            if op.name in _ROOTS and use.operand_number == 0:
                return True
            scales = op.name in _SCALES and op.operands[1 - use.operand_number] not in derived
            if (op.name in _KEEPS_SIGN or scales) and op.results[0] not in derived:
                derived.add(op.results[0])
                todo.append(op.results[0])
    return False


def draw_inputs(signature: Signature, rule: InputRule, given: Mapping[int, Host]) -> list[Host]:
    """Returns a value for each argument: that in `given`, by index, or one drawn by `rule`."""
    return [given[value.index] if value.index in given else rule.draw(value) for value in signature.arguments]


def fresh_inputs(signature: Signature, rule: InputRule, given: Mapping[int, Host]) -> Callable[[int], dict[int, Host]]:
    """Returns what draws, for a step, new values of the arguments that are neither given nor fed back."""
    batch = [
        value for value in signature.arguments if value.index not in given and value.index not in signature.feedback
    ]
    return lambda step: {value.index: rule.draw(value, step) for value in batch}


def read_inputs(path: Path, signature: Signature) -> dict[int, Host]:
    """Returns the arrays of an `.npz` file by argument index; a key is an argument's index or its name.

    Raises:
        RhinoError: RHI-CLI-002 where the file cannot be read, RHI-RUN-002 where a key is no argument, or an array does
            not match it.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except OSError as error:
        raise RhinoError(
            "RHI-CLI-002",
            f"cannot read the inputs: {error.strerror or error}",
            Place(str(path)),
            fix="give a file that can be read",
        ) from None
    except (ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise RhinoError(
            "RHI-CLI-002",
            f"the inputs are no .npz file of plain arrays: {error}",
            Place(str(path)),
            fix="write it with numpy.savez",
        ) from None
    values = [_find(key, signature, path) for key in arrays]
    return {value.index: _match(array, value, path) for value, array in zip(values, arrays.values(), strict=True)}


def _find(key: str, signature: Signature, path: Path) -> Value:
    found = [value for value in signature.arguments if key in (str(value.index), value.name)]
    if len(found) != 1:
        what = "several arguments" if found else "no argument"
        raise RhinoError(
            "RHI-RUN-002",
            f"{what} of the module has the index or name {key!r}",
            Place(str(path)),
            fix=f"use an index below {len(signature.arguments)}, or a name that one argument has",
        )
    return found[0]


def _match(array: Host, value: Value, path: Path) -> Host:
    # NumPy writes types that it does not know, such as bfloat16, as raw bytes.
    if array.dtype.kind == "V" and array.dtype.itemsize == value.dtype.itemsize:
        array = array.view(value.dtype)
    if array.shape != value.shape or array.dtype != value.dtype:
        got = f"{array.dtype}{list(array.shape)}"
        raise RhinoError(
            "RHI-RUN-002",
            f"argument {value.label}: got {got}, expected {value}",
            Place(str(path)),
            fix="save the expected array",
        )
    return array
