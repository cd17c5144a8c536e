"""Pins as a JAX user writes them: partition specs, or texts, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from rhino.ir.diagnostics import RhinoError
from rhino.ir.plan.plan import dims_text
from rhino.ir.request.patterns import RESULT, dotted, matches
from rhino.keywords import text_of, texts
from rhino.passes.planner.module_facts import Sides

Pins = Mapping[str, PartitionSpec | str] | Sequence[str]

_NAMED = "name tensors by their path, as 'state.w' or 'state.*'"


Named = tuple[tuple[str, ...], int]
"""A tensor that a pin may speak of: its names, of which the first is no other's, and its rank."""


def pin_texts(pins: Pins, tensors: Sequence[Named]) -> tuple[str, ...]:
    """Returns pins as `rhino-pin` reads them, for a function of these arguments and results.

    A partition spec leaves out dims at the end that are whole; the pin lists them for each tensor that its name finds.
    """
    if not isinstance(pins, Mapping):
        return texts("pins", pins, "give a list of such texts, or a dictionary")
    return tuple(
        text for name, spec in pins.items() for text in _texts(text_of("a name of pins", name, _NAMED), spec, tensors)
    )


def named(sides: Sides) -> list[Named]:
    """Returns arguments by path, and results by number and by path."""
    arguments, results = sides
    found: list[Named] = [((one.path,), len(one.dims)) for one in arguments]
    return [
        *found,
        *(((f"{RESULT}{number}", f"{RESULT}{one.path}"), len(one.dims)) for number, one in enumerate(results)),
    ]


def _texts(name: str, spec: PartitionSpec | str, tensors: Sequence[Named]) -> list[str]:
    if isinstance(spec, str):
        return [f"{name}={spec}"]
    if not isinstance(spec, PartitionSpec):
        raise RhinoError(
            "RHI-JAX-002",
            f"the pin of {name!r} is {spec!r:.60}",
            fix="pin to a PartitionSpec, or to a text as '[{}, {\"x\"}]'",
        )
    found = [(names[0], rank) for names, rank in tensors if any(_finds(name, one) for one in names)]
    ranks = {rank for _, rank in found}
    if len(ranks) <= 1:
        return [f"{name}={_dims(spec, max(ranks, default=len(spec)))}"]
    return [f"{path}={_dims(spec, rank)}" for path, rank in found]


def _finds(pattern: str, name: str) -> bool:
    is_result = pattern.startswith(RESULT)
    wanted, given = (dotted(one.removeprefix(RESULT)) for one in (pattern, name))
    return is_result == name.startswith(RESULT) and matches(wanted, given, ".")


def _dims(spec: PartitionSpec, rank: int) -> str:
    entries = [*spec, *[None] * (rank - len(spec))]
    return "[" + ", ".join(_dim(entry) for entry in entries) + "]"


def _dim(entry: object) -> str:
    if entry is PartitionSpec.UNCONSTRAINED:
        return "{?}"
    axes = (
        ()
        if entry is None
        else (entry,)
        if isinstance(entry, str)
        else tuple(map(str, entry))
        if isinstance(entry, tuple)
        else None
    )
    if axes is None:
        raise RhinoError(
            "RHI-JAX-002",
            f"a partition spec has the entry {entry!r}",
            fix="an entry is None, an axis, or a tuple of axes",
        )
    return dims_text((axes,))[1:-1]
