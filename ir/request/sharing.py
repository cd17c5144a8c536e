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
class Way:
    """How devices share the ops of a scope: `kind` is "replicate" or "split".

    Without `num`, it is all devices that the scopes around and inside leave.
    """

    kind: str
    num: int | None

    def __str__(self) -> str:
        return self.kind if self.num is None else f"{self.kind}({self.num})"

    def name(self, depth: int = 0) -> str:
        """Returns what a scope of this way is called in locations, where it is in so many of the same words."""
        words = f"rhino.{self.kind}" if self.num is None else f"rhino.{self.kind}[{self.num}]"
        return f"{words}.{depth}" if depth else words


def parse_way(text: str) -> Way | None:
    """Returns the way that `text` says, as `split(8)`, None where it says none."""
    return _parsed(_SHARING.fullmatch(text))


def way_of_name(name: str) -> Way | None:
    """Returns the way that a scope's name says."""
    return _parsed(_NAME.fullmatch(name))


def _parsed(found: re.Match[str] | None) -> Way | None:
    if found is None or found[2] == "0":
        return None
    return Way(found[1], int(found[2]) if found[2] else None)
