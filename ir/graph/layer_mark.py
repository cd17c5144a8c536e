"""For which alike layers an op or an argument stands, in a step that has fewer of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LayerMark:
    """The mark of an op or an argument: the group of layers that it belongs to.

    `group` is -1 where there is none; `size` is how many layers the group stands for, and `is_back` says whether it is
    of the backward pass.
    """

    group: int = -1
    size: int = 1
    is_back: bool = False


NOWHERE: Final = LayerMark()
