"""Connected components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from rhino.strategies.problem import Ints


def components(num: int, pairs: Sequence[tuple[int, int]] | Ints) -> Ints:
    """Returns the number of the connected component of each of `num` things, where the things of each pair [pairs, 2] are connected."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    _, found = connected_components(coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(num, num)), directed=False)
    result: Ints = found.astype(np.int64)
    return result
