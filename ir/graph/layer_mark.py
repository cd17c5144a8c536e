"""For which alike layers an op or an argument stands, in a step that has fewer of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LayerMark:
    """What is said of an op or an argument: the group it belongs to (-1: none), for how many layers that stands, and which way it goes."""

    group: int = -1
    size: int = 1
    is_back: bool = False


NOWHERE: Final = LayerMark()
