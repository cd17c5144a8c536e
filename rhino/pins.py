"""Pins as a JAX user writes them: partition specs, or texts, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.sharding import PartitionSpec

from rhino.ir.diagnostics import RhinoError
from rhino.ir.patterns import dotted, matches
from rhino.ir.spmd_plan import dims_text
from rhino.keywords import text_of, texts

Asked = Mapping[str, PartitionSpec | str] | Sequence[str]

_NAMED = "name tensors by their path, as 'state.w' or 'state.*'"


def pin_texts(asked: Asked, arguments: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Returns pins as `rhino-pin` reads them, for a function whose arguments have these paths and ranks.

    A partition spec leaves out dims at the end that are whole; the pin lists them for each argument that its name finds.
    """
    if not isinstance(asked, Mapping):
        return texts("pins", asked, "give a list of such texts, or a dictionary")
    return tuple(text for name, spec in asked.items() for text in _texts(text_of("a name of pins", name, _NAMED), spec, arguments))


def _texts(name: str, spec: PartitionSpec | str, arguments: Sequence[tuple[str, int]]) -> list[str]:
    if isinstance(spec, str):
        return [f"{name}={spec}"]
    if not isinstance(spec, PartitionSpec):
        raise RhinoError(
            "RHI-JAX-002", f"the pin of {name!r} is {spec!r:.60}", fix="pin to a PartitionSpec, or to a text as '[{}, {\"x\"}]'"
        )
    found = [(path, rank) for path, rank in arguments if matches(dotted(name), dotted(path), ".")]
    ranks = {rank for _, rank in found}
    if len(ranks) <= 1:
        return [f"{name}={_dims(spec, max(ranks, default=len(spec)))}"]
    return [f"{path}={_dims(spec, rank)}" for path, rank in found]


def _dims(spec: PartitionSpec, rank: int) -> str:
    entries = [*spec, *[None] * (rank - len(spec))]
    return "[" + ", ".join(_dim(entry) for entry in entries) + "]"


def _dim(entry: object) -> str:
    if entry is PartitionSpec.UNCONSTRAINED:
        return "{?}"
    axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(map(str, entry)) if isinstance(entry, tuple) else None
    if axes is None:
        raise RhinoError("RHI-JAX-002", f"a partition spec has the entry {entry!r}", fix="an entry is None, an axis, or a tuple of axes")
    return dims_text((axes,))[1:-1]
