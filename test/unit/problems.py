"""Small random choice problems for the solvers' tests.

They have every kind of table, shared tables, illegal pairs, and memory of nodes and edges.
"""

import numpy as np
from brute_force import choice_costs, choice_peaks

from rhino.strategies.solver.problem import Problem, Residents

MAX_NODES, MAX_STATES, MAX_TIMES = 8, 4, 6


class Tables:
    """Tables made on demand; alike things get the same one now and then."""

    def __init__(self, rng):
        self.rng = rng
        self.tables = []
        self.made = {}
        self.scale = 10.0 ** rng.integers(-6, 2)
        self.illegal = rng.choice([0.0, 0.1, 0.4])

    def pick(self, kind, shape):
        alike = self.made.setdefault((kind, shape), [])
        if alike and self.rng.random() < 0.5:
            return int(self.rng.choice(alike))
        self.tables.append(getattr(self, kind)(shape))
        alike.append(len(self.tables) - 1)
        return alike[-1]

    def cost(self, shape):
        rng = self.rng
        style = rng.integers(4) if len(shape) == 2 else 0
        if style == 1:
            table = rng.uniform(0, self.scale, (shape[0], 1)) + rng.uniform(0, self.scale, (1, shape[1]))
        elif style == 2:
            table = np.where(np.equal.outer(*map(np.arange, shape)), 0.0, rng.uniform(0, self.scale, shape))
        elif style == 3:
            table = self.scale * rng.integers(0, 3, shape).astype(float)
        else:
            table = rng.uniform(0, self.scale, shape)
        if style == 1 and rng.random() < self.illegal:
            table[rng.integers(shape[0])] = np.inf
        elif len(shape) == 2:
            table[rng.random(shape) < self.illegal] = np.inf
        elif rng.random() < self.illegal:
            table[rng.integers(shape[0])] = np.inf
        return table

    def bytes(self, shape):
        rng = self.rng
        most = int(rng.choice([3, 20, 10**9]))
        if len(shape) == 2 and rng.random() < 0.4:
            return (rng.integers(0, most, (shape[0], 1)) + rng.integers(0, most, (1, shape[1]))).astype(float)
        return rng.integers(0, most, shape).astype(float)


def residents(rng, tables, shapes, num_times):
    owner = (
        np.sort(rng.integers(0, len(shapes), rng.integers(0, 2 * len(shapes) + 1)))
        if shapes
        else np.zeros(0, dtype=np.int64)
    )
    table = np.array([tables.pick("bytes", shapes[o]) for o in owner], dtype=np.int64)
    times = np.sort(rng.integers(0, num_times, (2, len(owner))), axis=0)
    return Residents(owner, table, times[0], times[1])


def random_problem(seed):
    """A problem of 2 to 8 nodes with 2 to 4 states each, 1 to 6 times; at most 65,536 choices."""
    rng = np.random.default_rng(seed)
    tables = Tables(rng)
    sizes = [int(n) for n in rng.integers(2, MAX_STATES + 1, rng.integers(2, MAX_NODES + 1))]
    density = rng.choice([0.2, 0.5, 1.0])
    edges = [(u, v) for u in range(len(sizes)) for v in range(u + 1, len(sizes)) if rng.random() < density]
    edge_shapes = [(sizes[u], sizes[v]) for u, v in edges]
    num_times = int(rng.integers(1, MAX_TIMES + 1))
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    node_table = np.array([tables.pick("cost", (n,)) for n in sizes])
    edge_table = np.array([tables.pick("cost", shape) for shape in edge_shapes], dtype=np.int64)
    kept = [residents(rng, tables, shapes, num_times) for shapes in ([(n,) for n in sizes], edge_shapes)]
    base = rng.integers(0, 10, num_times).astype(float)
    return Problem(tuple(tables.tables), node_table, ends[:, 0], ends[:, 1], edge_table, num_times, base, *kept)


def random_budget(problem, seed):
    """A budget that binds: the peak of one of some random legal choices, or a byte less.

    Now and then it is less than any of them needs.
    """
    rng = np.random.default_rng(seed)
    choices = np.array([rng.integers(0, n, 200) for n in problem.num_states()])
    peaks = choice_peaks(problem, choices)
    legal = peaks[np.isfinite(choice_costs(problem, choices))]
    some = np.sort(legal if len(legal) else peaks)
    if rng.random() < 0.2:
        return float(some[0] * 0.9 - 1)
    return float(some[rng.integers(0, max(1, len(some) // 4))] - rng.integers(2))
