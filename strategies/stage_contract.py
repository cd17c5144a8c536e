"""Which nodes are on one device in every choice that moves less than one that is known.

A choice that has two nodes on different devices moves at least the least cut between them, as each net that is cut costs its bytes. So
where that cut is no less than what a known choice moves, parting the two is no better, and they are one group. Least cuts are bounded from
below by maximum adjacency orders (Klimmek and Wagner, "A simple hypergraph min cut algorithm", 1996; here for every prefix of the order, as
in Nagamochi, Ono and Ibaraki for graphs): each node taken next is the one that shares most bytes of nets with all that were taken, and that
sum is a lower bound of the least cut between it and the node taken just before.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from rhino.strategies.problem import Ints
from rhino.strategies.stage_problem import Nets, merged_nets

MOST_ORDERS = 40


def groups_below(nets: Nets, num_nodes: int, moved_bytes: float) -> Ints:
    """Returns the group of each node such that parting a group moves at least `moved_bytes` [nodes]."""
    group = np.arange(num_nodes, dtype=np.int64)
    for _ in range(MOST_ORDERS):
        count = int(group.max(initial=-1)) + 1
        inner = merged_nets(nets, group)
        pairs = [(a, b) for a, b, shared in adjacency_order(inner, count) if shared >= moved_bytes]
        if not pairs:
            break
        group = joined(count, pairs)[group]
    return group


def joined(num: int, pairs: Sequence[tuple[int, int]] | Ints) -> Ints:
    """Returns the class of each of `num` things, numbered from 0 by first member, where the things of each pair are in one class."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    _, found = connected_components(coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(num, num)), directed=False)
    _, first, of = np.unique(found, return_index=True, return_inverse=True)
    result: Ints = np.argsort(np.argsort(first))[of].astype(np.int64)
    return result


def adjacency_order(nets: Nets, num_nodes: int) -> list[tuple[int, int, float]]:
    """Returns each node but the first in a maximum adjacency order: the node before, it, and the bytes that it shares with all before."""
    bounds, members, sizes = nets.start.tolist(), nets.node.tolist(), nets.size.tolist()
    nets_of: list[list[int]] = [[] for _ in range(num_nodes)]
    for net, (start, end) in enumerate(pairwise(bounds)):
        for node in members[start:end]:
            nets_of[node].append(net)
    shared, taken, touched = [0.0] * num_nodes, [False] * num_nodes, [False] * len(sizes)
    queue = [(0.0, node) for node in range(num_nodes)]
    heapify(queue)
    order: list[tuple[int, int, float]] = []
    previous = -1
    while queue:
        negative, node = heappop(queue)
        if taken[node] or -negative < shared[node]:
            continue
        taken[node] = True
        if previous >= 0:
            order.append((previous, node, shared[node]))
        previous = node
        for net in nets_of[node]:
            if touched[net]:
                continue
            touched[net] = True
            for other in members[bounds[net] : bounds[net + 1]]:
                if not taken[other]:
                    shared[other] += sizes[net]
                    heappush(queue, (-shared[other], other))
    return order
