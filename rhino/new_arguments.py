"""Why a function is planned again: what differs between the arguments of a call and those that it was planned for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import jax
from jax.tree_util import PyTreeDef, keystr, tree_flatten_with_path

from rhino.call import Key

_SHOWN: Final = 5
"""Differences that are named."""

_STATIC: Final = "differs in what is no array; functions that are made anew compare unequal: make them once"


def differences(now: Key, then: Key, titles: Sequence[str], title: Callable[[int | str], str]) -> tuple[str, ...]:
    """Returns what differs, the first few.

    `titles` are what the arrays of the call are called, and `title` gives that of a constant by its number or name.
    """
    found = [f"{path} was {old}, and is {new}" for path, old, new in _changed(now, then, titles)]
    new, old = dict(now.static), dict(then.static)
    for where in {**old, **new}:
        if where not in new or where not in old or new[where] != old[where]:
            values = (repr(one[where]) if where in one else "not given" for one in (old, new))
            found.append("constant {} was {:.40}, and is {:.40}".format(title(where), *values))
    if not found:
        found = list(_nodes(now.tree, then.tree, titles))
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return (*found[:_SHOWN], *more)


def _changed(now: Key, then: Key, titles: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields leaves of other kinds: their path, what they were, and what they are."""
    new, old = _kinds(now, titles), _kinds(then, titles)
    for path in {**old, **new}:
        if old.get(path) != new.get(path):
            yield path, old.get(path, "not there"), new.get(path, "gone")


def _kinds(key: Key, titles: Sequence[str]) -> dict[str, str]:
    specs = jax.tree.unflatten(key.tree, [f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in key.leaves])
    return {_title(titles, path[0].idx) + keystr(path[1:]): kind for path, kind in tree_flatten_with_path(specs)[0]}


def _nodes(now: PyTreeDef, then: PyTreeDef, titles: Sequence[str]) -> Iterator[str]:
    """Yields the arguments whose nodes differ though their leaves do not, and the first such node of each."""
    for number, (new, old) in enumerate(zip(now.children(), then.children(), strict=False)):
        if new != old:
            yield f"{_title(titles, number)}: {_node(new, old)}"


def _node(now: PyTreeDef, then: PyTreeDef) -> str:
    new, old = now.node_data(), then.node_data()
    for one, other in zip(now.children(), then.children(), strict=False):
        if one != other:
            return _node(one, other)
    if new is None or old is None or new[0] is not old[0]:
        names = [node[0].__name__ if node else "a leaf" for node in (old, new)]
        return f"a node was {names[0]}, and is {names[1]}"
    return f"a node of type {new[0].__name__} {_STATIC}"


def _title(titles: Sequence[str], number: int) -> str:
    return titles[number] if number < len(titles) else f"args[{number}]"
