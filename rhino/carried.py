"""Which arguments of a step come back as its results, and so lie alike: the state that a training loop carries.

A donated argument, or a part of one, is carried in the first result that has its tree, shapes and dtypes and is not
taken yet. An argument that is not donated is carried as a whole or as its containers: a lone array in it that looks
like some result proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from rhino.call import Leaf, Tree


@dataclass(frozen=True, slots=True)
class _Part:
    """A subtree: which leaves it has, what they are, and what it is made of."""

    first: int
    tree: jax.tree_util.PyTreeDef
    leaves: tuple[Leaf, ...]
    children: tuple[_Part, ...]

    def every(self) -> Iterator[_Part]:
        yield self
        for child in self.children:
            yield from child.every()


def carried(arguments: Sequence[Tree], results: Tree, donated: Sequence[int]) -> dict[int, int]:
    """Returns for each leaf of `arguments` that is carried the leaf of `results` that it is in the next step.

    Leaves have `shape` and `dtype`, and are numbered through all arguments. `donated` are numbers of arguments, which
    go first.
    """
    firsts, parts = 0, []
    for argument in arguments:
        parts.append(_part(argument, firsts))
        firsts += len(parts[-1].leaves)
    found = _Pairing(list(_part(results, 0).every()))
    for number in sorted(range(len(parts)), key=lambda n: (n not in donated, n)):
        found.pair(parts[number], number in donated, is_whole=True)
    return dict(sorted(found.pairs.items()))


class _Pairing:
    """Pairs parts of arguments with parts of the results; each result is taken once."""

    def __init__(self, results: list[_Part]) -> None:
        self.places: dict[Any, list[int]] = {}
        for part in results:
            if part.leaves:
                self.places.setdefault((part.tree, part.leaves), []).append(part.first)
        self.taken: dict[int, None] = {}
        self.pairs: dict[int, int] = {}

    def pair(self, part: _Part, is_donated: bool, is_whole: bool = False) -> None:
        if not part.leaves:
            return
        count = len(part.leaves)
        if is_donated or is_whole or part.children:
            for first in self.places.get((part.tree, part.leaves), ()):
                if not any(first + n in self.taken for n in range(count)):
                    self.taken |= dict.fromkeys(range(first, first + count))
                    self.pairs |= {part.first + n: first + n for n in range(count)}
                    return
        for child in part.children:
            self.pair(child, is_donated)


def _part(tree: Tree, first: int) -> _Part:
    children = jax.tree.leaves(tree, is_leaf=lambda one: one is not tree)
    leaves = jax.tree.leaves(tree)
    kinds = tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)
    if len(children) == 1 and children[0] is tree:
        return _Part(first, jax.tree.structure(tree), kinds, ())
    parts, at = [], first
    for child in children:
        parts.append(_part(child, at))
        at += len(parts[-1].leaves)
    return _Part(first, jax.tree.structure(tree), kinds, tuple(parts))
