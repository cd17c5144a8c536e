"""The types of NumPy arrays that plain data is made of, and ranges of numbers in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """Returns the numbers of ranges that start at `starts` and have these lengths, one range after another."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    found: Ints = np.arange(total) + np.repeat(starts - ends + lengths, lengths)
    return found
