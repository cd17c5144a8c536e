"""Connected components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rhino.ir.arrays import Ints


def components(num: int, pairs: Sequence[tuple[int, int]] | Ints) -> Ints:
    """Returns the component number of each of `num` things, where the things of each pair [pairs, 2] are connected."""
    u, v = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    label = np.arange(num)
    while True:  # everything takes the least label about it, and the label of that: twice as far every time
        before, least = label.copy(), np.minimum(label[u], label[v])
        for end in (u, v):
            np.minimum.at(label, label[end], least)
        label = label[label]
        if (label == before).all():
            return np.unique(label, return_inverse=True)[1]
