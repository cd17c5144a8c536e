"""Every pass and every named pipeline, in one place."""

from __future__ import annotations

from typing import Final

from rhino.passes.base import Pass
from rhino.passes.normalize import Normalize

PASSES: Final[tuple[type[Pass], ...]] = (Normalize,)
