"""Scopes: parts of a program whose ops devices share alike, and how the locations of ops name them.

JAX writes the names around an op on its location: `jit(step)/transpose(jvp(moe))/dot_general` is of the backward pass
of a scope `moe`. Its `named_scope` is what `rhino.replicate` and `rhino.split` leave there, as `rhino.split[8].3`, the
number telling a scope from others of these words, and `rhino.default_strategy`, as `rhino.default.split[8].4`. The
*path* of an op is these names, outermost first, without the transformations around them and without the op's own
primitive.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from rhino.ir.mlir.bindings import ir
from rhino.ir.request.constraints import Scope
from rhino.ir.request.patterns import matches
from rhino.ir.request.scope_sharding import (
    DEFAULT_PREFIX,
    PREFIX,
    REPLICATE,
    SPLIT,
    ScopeSharding,
    default_of_name,
    scope_sharding_of_name,
)

SCOPES: Final = "rhino.scopes"
"""On an op: the shardings of the scopes that it is in, outermost first."""

_ELSEWHERE: Final = "*"
"""The pattern that names ops in no other scope."""

_AGAIN: Final = frozenset({"checkpoint", "rematted_computation"})
"""Names that JAX puts around what it computes a second time."""

_WRAPPED: Final = re.compile(r"\w+\(|\)")
_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(:\d+)?(\()?|[()]')


def names_scopes(module: ir.Operation) -> bool:
    """Says whether a location of `module` may have a name of ours.

    This takes 7 ms for 10,000 ops, where looking at each of them takes 110 ms (AMD EPYC).
    """
    stream = io.BytesIO()
    module.write_bytecode(stream)
    found = stream.getvalue()
    return any(
        f"{prefix}{kind}".encode() in found for prefix in (PREFIX, DEFAULT_PREFIX) for kind in (REPLICATE, SPLIT)
    )


@dataclass(frozen=True, slots=True)
class ScopeAround:
    """A scope around an op: its `name`, which no other has, its sharding, and how the user put it.

    A default is there for want of scopes.
    """

    name: str
    sharding: ScopeSharding
    provenance: str
    is_default: bool = False


def scopes_around(path: tuple[str, ...], scopes: Sequence[Scope] = ()) -> tuple[ScopeAround, ...]:
    """Returns the scopes on a path, outermost first: those that it names, and those of `scopes` that match it.

    A name counts once: JAX may repeat it where it computes something again. Where there are none, it is the innermost
    default.
    """
    found = [
        (path.index(name), ScopeAround(name, sharding, f"{PREFIX}{sharding}"))
        for name in dict.fromkeys(path)
        if (sharding := scope_sharding_of_name(name))
    ]
    for one in scopes:
        depth = depth_in(one.pattern, path) if one.pattern != _ELSEWHERE else None
        if depth is not None and all(one.sharding != other.sharding for _, other in found):
            name = "/".join(part for part in path[:depth] if part not in _AGAIN)
            found.append((depth - 1, ScopeAround(name, one.sharding, one.provenance)))
    if found:
        return tuple([one for _, one in sorted(found, key=lambda pair: pair[0])])
    for name in reversed(path):
        if sharding := default_of_name(name):
            return (ScopeAround(name, sharding, f"rhino.default_strategy({sharding})", is_default=True),)
    given = [one for one in scopes if one.pattern == _ELSEWHERE]
    return tuple([ScopeAround(one.pattern, one.sharding, one.provenance, is_default=True) for one in given[:1]])


def scope_path(location: ir.Location) -> tuple[str, ...]:
    """Returns the path of an op with this location. What called its function comes first."""
    return _path(str(location))


def depth_in(pattern: str, path: tuple[str, ...]) -> int | None:
    """Returns how many names of `path` lead to the outermost scope that `pattern` finds, None where it finds none."""
    return next((n for n in range(1, len(path) + 1) if matches(pattern, "/".join(path[:n]), "/")), None)


@cache
def _path(text: str) -> tuple[str, ...]:
    joined = "/".join(reversed(list(_names(text))))
    return tuple(part for part in _WRAPPED.sub("", joined).split("/")[:-1] if part)


def _names(text: str) -> Iterator[str]:
    """Yields the names in a location, without those of the Python frames that a name stands for."""
    inside = 0
    for name, position, opens, single in ((m[1], m[2], m[3], m[0]) for m in _TOKEN.finditer(text)):
        if inside:
            inside += (opens is not None or single == "(") - (single == ")")
        elif name is not None and position is None:
            yield name
            inside = int(opens is not None)
