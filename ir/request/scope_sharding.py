"""How devices share the ops of a scope, as users write it and as names of scopes carry it.

Users write `replicate`, `split` or `split(8)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

REPLICATE, SPLIT = "replicate", "split"

PREFIX: Final = "rhino."
"""How the name of a scope begins."""

DEFAULT_PREFIX: Final = "rhino.default."
"""How the name of a default begins, which is for ops that are in no scope."""

_SHARING: Final = re.compile(rf"({REPLICATE}|{SPLIT})(?:\((\d+)\))?")
_NAME: Final = re.compile(rf"({REPLICATE}|{SPLIT})(?:\[(\d+)\])?(?:\.\d+)?")
_NUMBERED: Final = re.compile(rf"(rhino\.(?:default\.)?(?:{REPLICATE}|{SPLIT})(?:\[\d+\])?\.)(\d+)")


@dataclass(frozen=True, slots=True)
class ScopeSharding:
    """How `num` devices share the ops of a scope: `kind` is "replicate" or "split".

    Without `num`, the scope gets all devices that the scopes around it and inside it leave.
    """

    kind: str
    num: int | None

    def __str__(self) -> str:
        return self.kind if self.num is None else f"{self.kind}({self.num})"

    def name(self, number: int = 0, *, is_default: bool = False) -> str:
        """Returns the scope's name in locations; `number` tells it from others of the same words."""
        words = f"{DEFAULT_PREFIX if is_default else PREFIX}{self.kind}"
        words = words if self.num is None else f"{words}[{self.num}]"
        return f"{words}.{number}" if number else words


def parse_scope_sharding(text: str) -> ScopeSharding | None:
    """Returns the sharding that `text` spells, as `split(8)`, or None."""
    return _parsed(_SHARING.fullmatch(text))


def scope_sharding_of_name(name: str) -> ScopeSharding | None:
    """Returns the sharding that a scope's name in a location spells, as `rhino.split[8]`, or None."""
    return _parsed(_NAME.fullmatch(name.removeprefix(PREFIX))) if name.startswith(PREFIX) else None


def default_of_name(name: str) -> ScopeSharding | None:
    """Returns the sharding that a default's name in a location spells, as `rhino.default.replicate`, or None."""
    own = name.removeprefix(DEFAULT_PREFIX)
    return _parsed(_NAME.fullmatch(own)) if own != name else None


def renumbered(text: str) -> str:
    """Returns a text that names scopes, which are numbered from 1 in the order in which it first names them."""
    numbers: dict[str, int] = {}
    return _NUMBERED.sub(lambda name: f"{name[1]}{numbers.setdefault(name[2], len(numbers) + 1)}", text)


def _parsed(found: re.Match[str] | None) -> ScopeSharding | None:
    if found is None or found[2] == "0":
        return None
    return ScopeSharding(found[1], int(found[2]) if found[2] else None)
