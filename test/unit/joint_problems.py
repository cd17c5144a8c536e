"""Small random choice problems on two mesh axes.

A state is a choice along each; costs are those of each axis and of how the two meet.
"""

from dataclasses import replace

import numpy as np
from problems import Tables, residents

from rhino.strategies.solver.problem import Problem

MAX_CHOICES = 60_000


def coordinates(rng):
    """The states of one node [states, axes].

    They are all pairs of choices along two axes, but for some that are left out, never the first one.
    """
    first, second = (int(n) for n in rng.integers(1, 4, 2))
    pairs = [(a, b) for a in range(first) for b in range(second)]
    kept = [pair for pair in pairs if pair == (0, 0) or rng.random() < 0.8]
    return np.array(kept, dtype=np.int64)


class JointTables(Tables):
    """Costs by axis: a table is the sum of what each axis costs, times what the other leaves.

    Now and then something random is added.
    """

    def joint(self, *sides):
        """A table over the states of one node, or of two, by their coordinates."""
        rng = self.rng
        grids = np.meshgrid(*[np.arange(len(side)) for side in sides], indexing="ij")
        total = np.zeros(grids[0].shape)
        for axis in range(2):
            own = rng.uniform(0, self.scale, (4,) * len(sides)) * (rng.random((4,) * len(sides)) < 0.7)
            other = rng.uniform(0.2, 1, (4,) * len(sides))
            places = [tuple(side[grid, k] for side, grid in zip(sides, grids, strict=True)) for k in (axis, 1 - axis)]
            total += own[places[0]] * other[places[1]]
        if rng.random() < 0.5:
            total += rng.uniform(0, self.scale / 4, total.shape)
        total[rng.random(total.shape) < self.illegal / (2 if len(sides) == 2 else 8)] = np.inf
        if rng.random() < 0.8:
            total[(0,) * len(sides)] = self.scale * rng.random()  # to split nothing is legal, as a rule
        return total

    def pick_joint(self, names, *sides):
        """The number of a table, now and then of one made before for alike sides."""
        alike = self.made.setdefault(("joint", names), [])
        if alike and self.rng.random() < 0.5:
            return int(self.rng.choice(alike))
        self.tables.append(self.joint(*sides))
        alike.append(len(self.tables) - 1)
        return alike[-1]


def random_joint_problem(seed):
    """A problem of 1 to 8 nodes with up to 9 states each, at most `MAX_CHOICES` choices, 1 to 6 times."""
    rng = np.random.default_rng(seed)
    tables, kinds = JointTables(rng), [coordinates(rng) for _ in range(3)]
    wanted, kind = int(rng.integers(3, 9)), []
    while len(kind) < wanted:
        kind.append(int(rng.integers(len(kinds))))
        if np.prod([len(kinds[k]) for k in kind]) > MAX_CHOICES:
            kind.pop()
            break
    return _assembled(rng, tables, kinds, kind, rng.choice([0.4, 0.7, 1.0]))


def _assembled(rng, tables, kinds, kind, density):
    count = len(kind)
    edges = [(u, v) for u in range(count) for v in range(u + 1, count) if rng.random() < density]
    node_table = np.array([tables.pick_joint((k,), kinds[k]) for k in kind], dtype=np.int64)
    edge_table = np.array(
        [tables.pick_joint((kind[u], kind[v]), kinds[kind[u]], kinds[kind[v]]) for u, v in edges], dtype=np.int64
    )
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    num_times = int(rng.integers(1, 7))
    sizes = [(len(kinds[k]),) for k in kind], [(len(kinds[kind[u]]), len(kinds[kind[v]])) for u, v in edges]
    kept = [residents(rng, tables, shapes, num_times) for shapes in sizes]
    base = rng.integers(0, 10, num_times).astype(float)
    where = tuple(kinds[k] for k in kind)
    return Problem(
        tuple(tables.tables), node_table, ends[:, 0], ends[:, 1], edge_table, num_times, base, *kept, coordinates=where
    )


def layered(problem, layers, seed):
    """The problem `layers` times over, each joined to the next in the same way, the first and last like the others."""
    rng, count = np.random.default_rng(seed), problem.num_nodes
    tables, kinds = JointTables(rng), problem.coordinates
    tables.tables = list(problem.tables)
    u, v = int(rng.integers(count)), int(rng.integers(count))
    between = tables.pick_joint(("between",), kinds[u], kinds[v])
    shift = [layer * count for layer in range(layers)]
    ends = [
        np.concatenate([side + s for s in shift] + [[end + s for s in shift[more : layers - 1 + more]]]).astype(
            np.int64
        )
        for side, end, more in ((problem.edge_u, u, 0), (problem.edge_v, v, 1))
    ]
    return replace(
        problem,
        tables=tuple(tables.tables),
        node_table=np.tile(problem.node_table, layers),
        edge_u=ends[0],
        edge_v=ends[1],
        edge_table=np.concatenate([np.tile(problem.edge_table, layers), np.full(layers - 1, between)]),
        coordinates=kinds * layers,
        node_residents=type(problem.node_residents)(*[np.zeros(0, dtype=np.int64)] * 4),
        edge_residents=type(problem.node_residents)(*[np.zeros(0, dtype=np.int64)] * 4),
    )
