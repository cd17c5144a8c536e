"""How devices share the ops of a scope, as users write it and as names of scopes carry it.

Users write `replicate`, `split` or `split(8)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

REPLICATE, SPLIT = "replicate", "split"

_SHARING: Final = re.compile(rf"({REPLICATE}|{SPLIT})(?:\((\d+)\))?")
_NAME: Final = re.compile(rf"rhino\.({REPLICATE}|{SPLIT})(?:\[(\d+)\])?(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ScopeSharding:
    """How `num` devices share the ops of a scope: `kind` is "replicate" or "split".

    Without `num`, the scope gets all devices that the scopes around it and inside it leave.
    """

    kind: str
    num: int | None

    def __str__(self) -> str:
        return self.kind if self.num is None else f"{self.kind}({self.num})"

    def name(self, depth: int = 0) -> str:
        """Returns the scope's name in locations; `depth` is the number of scopes of the same name around it."""
        words = f"rhino.{self.kind}" if self.num is None else f"rhino.{self.kind}[{self.num}]"
        return f"{words}.{depth}" if depth else words


def parse_scope_sharding(text: str) -> ScopeSharding | None:
    """Returns the sharding that `text` spells, as `split(8)`, or None."""
    return _parsed(_SHARING.fullmatch(text))


def scope_sharding_of_name(name: str) -> ScopeSharding | None:
    """Returns the sharding that a scope's name in a location spells, as `rhino.split[8]`, or None."""
    return _parsed(_NAME.fullmatch(name))


def _parsed(found: re.Match[str] | None) -> ScopeSharding | None:
    if found is None or found[2] == "0":
        return None
    return ScopeSharding(found[1], int(found[2]) if found[2] else None)
