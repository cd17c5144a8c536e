"""Connected components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhino.strategies.problem import Ints


def components(num: int, pairs: Sequence[tuple[int, int]] | Ints) -> Ints:
    """Returns the number of the connected component of each of `num` things, where the things of each pair [pairs, 2] are connected."""
    from scipy.sparse import coo_matrix  # noqa: PLC0415 - slow to load, and few passes need it
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    _, found = connected_components(coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(num, num)), directed=False)
    result: Ints = found.astype(np.int64)
    return result
