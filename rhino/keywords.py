"""Read what a user gives to `parallelize` into the types that the rest takes.

A value that makes no sense is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from typing import Final, SupportsIndex

import jax

from rhino.call import kind_name
from rhino.ir.cluster.mesh import Mesh
from rhino.ir.diagnostics import RhinoError
from rhino.ir.program.replicas import parse_replicas
from rhino.ir.units import parse_size
from rhino.passes.pipeline.rematerialize import BY_STAGE, parse_remat
from rhino.passes.planner.request import BY_SCOPES, parse_stages, refuse_two_meshes

_OPTION: Final = re.compile(r"--([a-z][a-z-]*)(?:=('[^']*'|[^\s,;)]+))?")
"""An option of the command line, with its value."""

_KEYWORDS: Final = {
    **{
        one: one
        for one in (
            "amp",
            "aot",
            "attention",
            "batch",
            "budget",
            "cluster",
            "compiles",
            "constraints",
            "forbid",
            "jobs",
            "mesh",
            "offload",
            "pad",
            "remat",
            "replicas",
            "schedule",
            "stages",
        )
    },
    **{
        "pin": "pins",
        "axis-role": "axis_roles",
        "op-rules": "op_rules",
        "micro-batches": "micro_batches",
        "batch-statistics": "batch_statistics",
    },
}
"""The keyword of `parallelize` for each option that has one."""


def count(name: str, given: SupportsIndex | None) -> int | None:
    """Returns a number from 1, NumPy's and JAX's too, or None. Raises RHI-JAX-002 for anything else."""
    if given is None:
        return None
    number = _index(given)
    if number is None or number < 1:
        raise RhinoError("RHI-JAX-002", f"{name} is {given!r:.60}", fix="give a number from 1, or leave it out")
    return number


def stages_of(given: SupportsIndex | str | None, mesh: str) -> tuple[int | None, tuple[Mesh, ...]]:
    """Returns the number of stages, and their meshes where the devices of each are given; `mesh` is the other keyword.

    Neither is known where stages are the model's scopes.

    Raises:
        RhinoError: RHI-JAX-002 where it is neither a number from 1 nor a text, RHI-CLI-001 for another text, or a mesh
            beside devices of stages.
    """
    if not isinstance(given, str):
        return count("stages", given), ()
    if given == BY_SCOPES:
        return None, ()
    refuse_two_meshes(given, mesh)
    number, meshes = parse_stages(given)
    return count("stages", number), meshes


def replicas_text(given: SupportsIndex | str) -> str:
    """Returns the text for a number of replicas, or for the micro-batches of each.

    Raises:
        RhinoError: RHI-JAX-002 where it is neither a number from 1 nor a text, RHI-REPLICA-001 for another text.
    """
    text = given if isinstance(given, str) else str(count("replicas", given))
    parse_replicas(text)
    return text


def shared_batches(replicas: str) -> int | None:
    """Returns how many micro-batches replicas take in all, where the numbers of each are given; None where not."""
    return sum(parse_replicas(replicas).shares) or None if replicas else None


def text_of(name: str, given: object, fix: str) -> str:
    """Returns a text. Raises RHI-JAX-002, with what to do, for anything else."""
    if isinstance(given, str):
        return given
    raise RhinoError("RHI-JAX-002", f"{name} is {kind_name(given)}, no text: {given!r:.60}", fix=fix)


def texts(name: str, given: str | Iterable[str], fix: str, *, is_one_enough: bool = False) -> tuple[str, ...]:
    """Returns several texts; one alone only where it is enough.

    Raises RHI-JAX-002, with what to do, for anything else.
    """
    if isinstance(given, str):
        if is_one_enough:
            return (given,)
        raise RhinoError("RHI-JAX-002", f"{name} is the text {given!r}", fix=fix)
    if not isinstance(given, Iterable):
        raise RhinoError("RHI-JAX-002", f"{name} is {kind_name(given)}: {given!r:.60}", fix=fix)
    return tuple(text_of(f"one of {name}", one, fix) for one in given)


def path_of(name: str, given: str | PathLike[str]) -> str:
    """Returns a path. Raises RHI-JAX-002 for what is none."""
    if isinstance(given, str | PathLike):
        return fspath(given)
    raise RhinoError(
        "RHI-JAX-002", f"{name} is {kind_name(given)}, no path: {given!r:.60}", fix="give the path of a file"
    )


def budget_bytes(given: object) -> int | None:
    """Returns what memory a device may use, in bytes; None for None.

    Raises:
        RhinoError: RHI-JAX-002 where it is no whole number of bytes from 1, or no size.
    """
    if given is None:
        return None
    number = int(given) if isinstance(given, float) and given.is_integer() else _index(given)
    text = given if isinstance(given, str) else str(given if number is None else number)
    try:
        return parse_size(text)
    except RhinoError as error:
        raise RhinoError("RHI-JAX-002", f"budget is {given!r:.60}, no memory size", fix=error.fix) from None


def remat_shares(given: float | str | None, stages: int | None) -> tuple[float, ...]:
    """Returns the shares that are recomputed; none for None, and where each stage has its own by its memory.

    Raises:
        RhinoError: RHI-REMAT-001 where they are no shares, or not of so many stages as are given.
    """
    if given is None or given == BY_STAGE:
        return ()
    try:
        shares = parse_remat(str(given))
    except RhinoError as error:
        fix = "give a number from 0 to 1, or with stages one for each, as '0;0.5', or 'auto'"
        raise replace(error, what=f"remat is {given!r:.60}, not between 0 and 1", fix=fix) from None
    if stages is not None and len(shares) not in (1, stages):
        what = f"remat has {len(shares)} shares, and stages is {stages}"
        raise RhinoError("RHI-REMAT-001", what, fix=f"give one share for all stages, or {stages}, with ; between")
    return shares


def devices_of(given: Sequence[jax.Device] | None) -> tuple[jax.Device, ...] | None:
    """Returns devices, each of which is there once.

    Raises:
        RhinoError: RHI-JAX-002 where something is no device, RHI-RUN-004 where one is there twice.
    """
    if given is None:
        return None
    devices = tuple(given) if isinstance(given, Iterable) else (given,)
    for number, one in enumerate(devices):
        if not isinstance(one, jax.Device):
            raise RhinoError(
                "RHI-JAX-002", f"devices has {one!r:.60}, which is {kind_name(one)}", fix="give some of jax.devices()"
            )
        if one in devices[:number]:
            raise RhinoError("RHI-RUN-004", f"devices has {one} more than once", fix="give each device once")
    return devices


def in_keywords(text: str) -> str:
    """Returns a text with the keywords of `parallelize` for options of the command line.

    For example, `batch='x:0'` replaces `--batch=x:0`.
    """
    return _OPTION.sub(_keyword, text)


@contextmanager
def fixed_in_python() -> Iterator[None]:
    """Has errors that are raised meanwhile say what to do by keywords."""
    try:
        yield
    except RhinoError as error:
        raise replace(error, fix=in_keywords(error.fix)) from None


def _keyword(option: re.Match[str]) -> str:
    name, value = option[1], option[2]
    word = _KEYWORDS.get(name)
    if word is None:
        return option[0]
    if value is None:
        return word
    text = value if value.startswith("'") else f"'{value}'"
    return f"{word}=[{text}]" if word in ("pins", "forbid") else f"{word}={text}"


def _index(given: object) -> int | None:
    """Returns the integer that something is, None where it is none."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None
