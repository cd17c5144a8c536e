"""Elimination of many alike layers in the time of a few: what is alike in all of them is removed from one, and joined for all.

Where layers of a stretch (`rhino.strategies.solver.elimination.repeated_layers`) have the same tables too, this is what happens, and all of
it is exact:

1. Most of the alike layers are left out; those before them are joined to those behind as neighbours are. Dominated states are dropped
   from this *short* problem, in rounds. Whether a node loses a state in a round hangs on its own costs and edges, and on what its
   neighbours lost before: what happens to it in so many rounds hangs on what is within as many edges of it. So a layer with more alike
   layers on either side loses what each of those left out would lose in the same rounds of the whole problem. A node outside has more
   edges there than here: its states are kept, and it is charged for nothing, for no drop and no charge has to be made.
2. The inner nodes of one layer are removed, node by node: what is left are tables over the joints about it, and nodes outside.
3. The *rest* is the short problem, the joints of the layers left out, and these tables again for each such layer, and each that came to
   be the same. A thousand layers are a chain of a thousand times some joints, which elimination in batches halves ten times.
4. The states of joints come back from the rest. What inner nodes do hangs on those about their layer, and is looked up once for all layers
   that agree in them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from rhino.ir.arrays import Bools, Ints
from rhino.strategies.solver.elimination.by_node import Core, Elimination, Parts, TableStore, TooWideError
from rhino.strategies.solver.elimination.in_batches import BatchElimination, alike, each, pair
from rhino.strategies.solver.elimination.repeated_layers import Stretch
from rhino.strategies.solver.problem import Problem, starts

_ROUNDS: Final = 7
"""Rounds in which dominated states are dropped, at most. GPTs on several devices take up to six."""

_MARGIN: Final = _ROUNDS + 3
"""Layers that stay at either end of alike ones, for each layer that edges may lead away: as many as the rounds, and one more each for the
tables of edges, for the neighbours of the layer that is like those left out, and for their edges."""

LEAST_LAYERS: Final = 4 * _MARGIN
"""Alike layers of which it is worth to leave some out: half of them then are."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """Layers that are left out, from `first` to before `last`. The one before them is like them."""

    first: int
    last: int

    @property
    def num_layers(self) -> int:
        """How many layers are left out."""
        return self.last - self.first

    @property
    def like(self) -> int:
        """A layer that is there, and like those left out."""
        return self.first - 1

    def over(self, layers: Ints, tails: Ints) -> Ints:
        """Returns the layers of `tails` where those of the gap are left out, and a layer from the other side stands for each."""
        back, on = (layers >= self.last) & (tails < self.last), (layers < self.first) & (tails >= self.first)
        return tails + self.num_layers * (on.astype(np.int64) - back)


def _gaps(stretch: Stretch, node_costs: Ints, edge_costs: Ints) -> list[_Gap]:
    """Returns which layers may be left out: those amid enough that have the same tables."""
    nodes, edges = node_costs[stretch.nodes[: stretch.num_own]], edge_costs[stretch.edges]
    same = (nodes[:, 1:] == nodes[:, :-1]).all(axis=0) & (edges[:, 1:] == edges[:, :-1]).all(axis=0)
    begin = [0, *(np.flatnonzero(~same) + 1).tolist(), nodes.shape[1]]
    margin, least = _MARGIN * stretch.span, LEAST_LAYERS * stretch.span
    return [_Gap(one + margin, other - margin) for one, other in pairwise(begin) if other - one >= least]


def _links(stretch: Stretch, gap: _Gap) -> tuple[Ints, Ints]:
    """Returns the edges that lead into a gap from heads outside it: their places, and the layers of the heads."""
    count = np.abs(stretch.way)
    places = np.repeat(np.arange(len(count)), count)
    number, way = np.arange(len(places)) - np.repeat(starts(count), count), stretch.way[places]
    return places, np.where(way > 0, gap.first - way, gap.last) + number


def _tableless(scopes: Ints, num_nodes: int) -> Problem:
    """Returns a problem of which only the graph matters; `scopes` [edges, 2]."""
    none = np.zeros(max(num_nodes, len(scopes)), dtype=np.int64)
    return Problem((), none[:num_nodes], scopes[:, 0], scopes[:, 1], none[: len(scopes)])


class _Short:
    """A problem without the layers of gaps, and without dominated states.

    Shapes: `kept` [nodes of it] are their numbers in the problem, `place` [nodes] the backward pass; `links` [links] are the edges over
    gaps, as pairs of ends in one number; `dropped` [nodes of it] is how many states each has lost.
    """

    def __init__(
        self, problem: Problem, stretch: Stretch, gaps: Sequence[_Gap], store: TableStore, node_costs: Ints, edge_costs: Ints
    ) -> None:
        self.stretch, self.store = stretch, store
        kept = np.ones(problem.num_nodes, dtype=bool)
        for gap in gaps:
            kept[stretch.nodes[: stretch.num_own, gap.first : gap.last]] = False
        self.kept, self.place = np.flatnonzero(kept), np.cumsum(kept) - 1
        there = np.flatnonzero(kept[problem.edge_u] & kept[problem.edge_v])
        joined = [self.place[np.column_stack([problem.edge_u[there], problem.edge_v[there]])]]
        costs = [edge_costs[there]]
        for gap in gaps:
            places, layers = _links(stretch, gap)
            joined.append(self.ends(gap, places, layers))
            costs.append(edge_costs[stretch.edges[places, layers]])
        self.links = _codes(np.concatenate(joined[1:]))
        graph = _tableless(np.concatenate(joined), len(self.kept))
        self.elimination = BatchElimination(graph, store, node_costs[self.kept], np.concatenate(costs))
        outside = np.zeros(len(self.kept), dtype=bool)
        outside[self.place[stretch.nodes[stretch.num_own :, 0]]] = True
        before = self.elimination.sizes()
        self.elimination.drop_in_rounds(_ROUNDS, outside)
        self.dropped = before - self.elimination.sizes()
        scopes, tables = self.elimination.factors[2]
        codes = np.append(_codes(scopes), np.iinfo(np.int64).max)  # the last is no edge
        order = np.argsort(codes)
        self._codes, self._tables = codes[order], np.append(tables, -1)[order]

    def ends(self, gap: _Gap, places: Ints, layers: Ints) -> Ints:
        """Returns the ends of edges here [edges, 2]: those at places whose heads are in these layers."""
        return self.place[self.stretch.ends(places, layers, gap.over(layers, layers + self.stretch.way[places]))]

    def tables_in(self, gap: _Gap, layers: Ints) -> Ints:
        """Returns the tables that edges of layers about a gap have by now [places, layers], -1 for those that are gone."""
        places = np.arange(len(self.stretch.head))
        codes = _codes(self.ends(gap, np.repeat(places, len(layers)), np.tile(layers, len(places))))
        at = np.searchsorted(self._codes, codes)
        tables = np.where(self._codes[at] == codes, self._tables[at], -1)
        return tables.reshape(len(places), len(layers))

    def factors(self, gone: Bools) -> tuple[Ints, Ints]:
        """Returns what joins nodes that are not `gone` [nodes], but for the edges over gaps: scopes [factors, 2], tables [factors]."""
        scopes, tables = self.elimination.factors[2]
        there = ~(np.isin(_codes(scopes), self.links) | gone[scopes].any(axis=1))
        return scopes[there], tables[there]


def _codes(scopes: Ints) -> Ints:
    return pair(*scopes.T)


class _Layer:
    """A layer that stands for those of a gap, and for those about it that are the same by now, without its inner nodes.

    Shapes: `layers` [layers] it stands for; `tables` [places] are those of its edges, -1 where there is none; `inner` [inner nodes] and
    `joints` [joints] are its nodes in the short problem; `column`, `way` [about] say what inner nodes are beside: which column, and how
    many layers on. These come first in `elimination`, then the inner nodes.
    """

    def __init__(self, short: _Short, gap: _Gap, max_entries: int) -> None:
        stretch, nodes = short.stretch, short.elimination
        self.stretch, self.gap = stretch, gap
        self.tables = short.tables_in(gap, np.array([gap.like]))[:, 0]
        self.inner = short.place[stretch.nodes[: stretch.num_inner, gap.like]]
        self.joints = short.place[stretch.nodes[stretch.num_inner : stretch.num_own, gap.like]]
        self.layers = np.concatenate([np.arange(gap.first, gap.last), self._same(short)])
        inner = np.flatnonzero((self.tables >= 0) & (stretch.head < stretch.num_inner))
        head, tail, way = stretch.head[inner], stretch.tail[inner], stretch.way[inner]
        beside = tail >= stretch.num_inner
        rows, number = alike(np.column_stack([tail < stretch.num_own, way + stretch.span, tail])[beside])
        self.column, self.way = tail[beside][rows], way[beside][rows]
        local = len(rows) + tail
        local[beside] = number
        scopes = np.column_stack([len(rows) + head, local])
        scopes[stretch.flipped[inner]] = scopes[stretch.flipped[inner], ::-1]
        sizes = nodes.sizes()[short.place[stretch.nodes[self.column, gap.like]]]
        free = each(sizes[:, None], lambda size: short.store.intern(np.zeros(size)))
        costs = np.concatenate([free, nodes.unary[self.inner]]).tolist()
        self.elimination = Elimination(_tableless(scopes, len(costs)), short.store, costs, self.tables[inner].tolist())
        self.elimination.run(max_entries, len(rows))

    def _same(self, short: _Short) -> Ints:
        """Returns the layers about the gap whose inner nodes have the same states, costs and edges by now."""
        stretch, nodes, margin = self.stretch, short.elimination, (_MARGIN - 1) * self.stretch.span
        layers = np.concatenate([np.arange(self.gap.first - margin, self.gap.first), np.arange(self.gap.last, self.gap.last + margin)])
        inner = short.place[stretch.nodes[: stretch.num_inner, layers]]
        edges = stretch.head < stretch.num_inner
        same = (short.tables_in(self.gap, layers)[edges] == self.tables[edges, None]).all(axis=0)
        for numbers in (nodes.unary, nodes.mask):
            same &= (numbers[inner] == numbers[self.inner][:, None]).all(axis=0)
        found: Ints = layers[same]
        return found

    def about(self) -> Ints:
        """Returns the nodes that inner nodes are beside, as numbered in the problem [about, layers]."""
        about: Ints = self.stretch.nodes[self.column[:, None], self.way[:, None] + self.layers]
        return about

    def left(self) -> list[tuple[tuple[int, ...], int]]:
        """Returns what is left of a layer: tables, and over which of the nodes about it."""
        one = self.elimination
        found: list[tuple[tuple[int, ...], int]] = []
        for node in range(len(self.column)):
            found.append(((node,), one.unary[node]))
            found += [((node, other), table) for other, table in sorted(one.pairs[node].items()) if node < other]
            found += [(scope, table) for scope, table in sorted(one.wide[node].items()) if scope[0] == node]
        return found

    def best(self, about: Ints) -> Ints:
        """Returns the best states of inner nodes [inner nodes, ways], given those of what they are beside [about, ways]."""
        picked = np.zeros((len(self.column) + len(self.inner), about.shape[1]), dtype=np.int64)
        picked[: len(about)] = about
        for step in reversed(self.elimination.steps):
            picked[step.node] = each(picked[[step.node, *step.neighbours]].T, partial(self._state, step.parts))
        return picked[len(about) :]

    def _state(self, parts: Parts, _: int, *index: int) -> int:
        """Returns the best state of a node by the parts of its sum and the states of its neighbours; its own is not known yet."""
        return self.elimination.store.best(parts, index)


class FoldedElimination:
    """The elimination of a problem with many alike layers; only for what `Solver` asks where tables are narrow enough."""

    def __init__(self, short: _Short, layers: Sequence[_Layer], costs: tuple[Ints, Ints]) -> None:
        """`costs` are the tables of nodes and of edges, numbered in `store`, for which this is."""
        self._short, self._layers, self.costs, self.store = short, layers, costs, short.store
        stretch, nodes = short.stretch, short.elimination
        self._place, unary, self._masks = short.place.copy(), [nodes.unary], [nodes.mask]
        gone = np.zeros(len(nodes.unary), dtype=bool)
        for layer in layers:
            gap = layer.gap
            among = stretch.nodes[stretch.num_inner : stretch.num_own, gap.first : gap.last].T
            self._place[among] = sum(map(len, unary)) + np.arange(among.size).reshape(among.shape)
            unary.append(np.tile(nodes.unary[layer.joints], gap.num_layers))
            self._masks.append(np.tile(nodes.mask[layer.joints], gap.num_layers))
            gone[short.place[stretch.nodes[: stretch.num_inner, layer.layers[gap.num_layers :]]]] = True
        scopes, tables = map(list, zip(short.factors(gone), *map(self._edges, layers), strict=True))
        graph = _tableless(np.concatenate(scopes), sum(map(len, unary)))
        self._rest = BatchElimination(graph, short.store, np.concatenate(unary), np.concatenate(tables))
        self._rest.alive[: len(gone)] = ~gone
        for layer in layers:
            self._join(layer)

    def _edges(self, layer: _Layer) -> tuple[Ints, Ints]:
        """Returns the edges into a gap and in it that no inner node of layers taken as one has: scopes [edges, 2], tables [edges]."""
        stretch, gap = layer.stretch, layer.gap
        over, layers = _links(stretch, gap)
        among = np.flatnonzero(stretch.head >= stretch.num_inner)
        places = np.concatenate([over, np.tile(among, gap.num_layers)])
        layers = np.concatenate([layers, np.repeat(np.arange(gap.first, gap.last), len(among))])
        there = (layer.tables[places] >= 0) & ((stretch.head[places] >= stretch.num_inner) | ~np.isin(layers, layer.layers))
        places, layers = places[there], layers[there]
        return self._place[stretch.ends(places, layers, layers + stretch.way[places])], layer.tables[places]

    def _join(self, layer: _Layer) -> None:
        """Takes up what is left of a layer for each that it stands for."""
        about, count = self._place[layer.about()].T, len(layer.layers)
        for scope, table in layer.left():
            self._rest.attach(about[:, list(scope)], np.full(count, table))
        self._rest.constant += count * layer.elimination.constant

    @property
    def dropped(self) -> int:
        """How many dominated states went."""
        short = self._short
        lost = [int(short.dropped[np.append(layer.inner, layer.joints)].sum()) * layer.gap.num_layers for layer in self._layers]
        return int(short.dropped.sum()) + sum(lost)

    @property
    def constant(self) -> float:
        """What all that is removed costs, in seconds."""
        return self._rest.constant

    @property
    def widest(self) -> int:
        """The entries of the largest table."""
        return max(self._rest.widest, *(layer.elimination.widest for layer in self._layers))

    def copy(self) -> FoldedElimination:
        """Returns an elimination in the same state, on the same store."""
        twin = copy.copy(self)
        twin._rest = self._rest.copy()
        return twin

    def remove_chains(self) -> None:
        """Removes nodes of at most two neighbours until none is left."""
        self._rest.remove_chains()

    def core(self) -> Core:
        """Returns what is left, by numbers of its own."""
        return self._rest.core()

    def run(self, max_entries: int) -> None:
        """Removes every node. Raises TooWideError as `BatchElimination.run` does."""
        self._rest.run(max_entries)

    def read_back(self) -> Ints:
        """Returns the best states [nodes], as numbered in the problem, after a whole run."""
        short, states = self._short, np.zeros(len(self._place), dtype=np.int64)
        stretch, nodes = short.stretch, short.elimination
        picked = self._rest.read_back()
        found = nodes.states(np.concatenate(self._masks), picked)
        states[short.kept] = found[: len(short.kept)]
        for layer in self._layers:
            joints = stretch.nodes[stretch.num_inner : stretch.num_own, layer.gap.first : layer.gap.last]
            states[joints] = found[self._place[joints]]
            about = picked[self._place[layer.about()]]
            first, number = alike(np.column_stack([np.zeros(len(layer.layers), dtype=np.int64), about.T]))  # there may be nothing about
            best = nodes.states(nodes.mask[layer.inner][:, None], layer.best(about[:, first]))
            states[stretch.nodes[: stretch.num_inner, layer.layers]] = best[:, number]
        return states


def folded(
    problem: Problem, stretch: Stretch, store: TableStore, node_costs: Ints, edge_costs: Ints, max_entries: int
) -> FoldedElimination | None:
    """Returns the elimination of a problem with these costs of nodes and edges (numbers of tables), where alike layers are one.

    None where too few layers are alike, or one of them needs a table of more than `max_entries` entries.
    """
    gaps = _gaps(stretch, node_costs, edge_costs)
    if not gaps:
        return None
    short = _Short(problem, stretch, gaps, store, node_costs, edge_costs)
    try:
        layers = [_Layer(short, gap, max_entries) for gap in gaps]
    except TooWideError:
        return None
    return FoldedElimination(short, layers, (node_costs, edge_costs))
