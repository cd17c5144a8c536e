"""Every pass and every named pipeline, in one place."""

from __future__ import annotations

from typing import Final

from rhino.passes.base import Pass
from rhino.passes.choose_shardings import ChooseShardings
from rhino.passes.localize import Localize
from rhino.passes.normalize import Normalize

PASSES: Final[tuple[type[Pass], ...]] = (ChooseShardings, Localize, Normalize)
"""Sorted by name."""
