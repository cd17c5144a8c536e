"""Patterns over names of tensors: globs in which a pytree path may be written with dots.

`*` stands for any text and `?` for any one character; a pattern may leave out leading parts of a name, so that
`layers.*.up` finds `state.params['layers'][0]['up']`, and `state.mu['layers'][0]['up']` too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import cache
from typing import Final

RESULT: Final = "result:"
"""What a name of a result begins with; its number or its path follows."""

_KEY = re.compile(r"""\[(?:'([^']*)'|"([^"]*)"|([^\]]*))\]""")
_NEAR = 0.5
"""How alike names must be to be proposed (1 is equal)."""


def dotted(path: str) -> str:
    """Returns a pytree path with its keys and indices behind dots: `a['b'][0]` is `a.b.0`."""
    return _KEY.sub(lambda key: f".{key[1] or key[2] or key[3] or ''}", path).lstrip(".")


def matches(pattern: str, name: str, separator: str) -> bool:
    """Says whether `pattern` is `name`, or what stands behind one of its separators."""
    return _compiled(pattern, separator).fullmatch(name) is not None


def nearest(pattern: str, names: Iterable[str], separator: str) -> tuple[str, ...]:
    """Returns the three names that `pattern` comes closest to, best first.

    Matching neighbouring parts of a name counts as much as matching a whole name.
    """
    bare = pattern.replace("*", "")
    count = bare.count(separator) + 1

    def likeness(name: str) -> float:
        parts = name.split(separator)
        pieces = [separator.join(parts[first : first + count]) for first in range(max(1, len(parts) - count + 1))]
        return max(SequenceMatcher(None, bare, piece).ratio() for piece in (name, *pieces))

    scored = sorted((-likeness(name), name) for name in dict.fromkeys(names))
    return tuple(name for score, name in scored[:3] if -score >= _NEAR)


@cache
def _compiled(pattern: str, separator: str) -> re.Pattern[str]:
    glob = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    return re.compile(f"(?:.*{re.escape(separator)})?{glob}", re.DOTALL)
