"""Which cases of a test the default run has, where all of them take too long: the rest are marked `long`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest

_GOLDEN: Final = 0.6180339887498949
"""Multiples of it fall evenly, so every value of a product's factors is among the cases that are kept."""


def one_in(number: int, cases: Iterable[Any]) -> list[Any]:
    """Returns cases for `pytest.mark.parametrize`, of which about one in `number` is not long; the first is not."""
    return [case if at * _GOLDEN % 1 < 1 / number else _long(case) for at, case in enumerate(cases)]


def _long(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.long])
    return pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.long)
