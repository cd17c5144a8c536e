"""Replicas of a step: what a module says of them, and how a user asks for them.

Replicas are ranks that run the same micro-batches, each a number of its own. What all of them have accumulated is
joined before the update, as if one device had run all micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rhino.ir.diagnostics import RhinoError

SEND: Final = "rhino.send"
"""The target of a call that stands for the way of an argument to the replicas that it does not lie on."""

JOIN: Final = "rhino.join"
"""The target of a call that stands for what all replicas have accumulated, of which the operand is one's."""

HOW: Final = "rhino.how"
"""On a `JOIN`: the StableHLO op that joins values, `STACK`, or `LAST`."""

STACK: Final = "stack"
"""Each replica has rows, one for each of its micro-batches, and the other rows are no one's."""

LAST: Final = "last"
"""The value is that of the last micro-batch."""

EACH: Final = "rhino.each_replica"
"""On an argument: every replica is fed it, as each reads another part."""

SHARES: Final = "rhino.shares"
"""On a module in stages: how many micro-batches each replica takes."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What is asked of replicas: how many there are, and how many micro-batches each takes, where that is given."""

    count: int
    shares: tuple[int, ...] = ()


def parse_replicas(text: str) -> Replicas:
    """Returns what a text asks for: a number of replicas, as 2, or the micro-batches of each, as 5;3.

    Raises:
        RhinoError: RHI-REPLICA-001 where it is neither.
    """
    words = [word.strip() for word in text.split(";")]
    numbers = tuple([int(word) for word in words if word.isdecimal()])
    if len(numbers) < len(words) or min(numbers) < (2 if len(numbers) == 1 else 1):
        what = f"replicas '{text}' are neither a number of them, 2 or more, nor numbers of micro-batches"
        raise RhinoError("RHI-REPLICA-001", what, fix="give for example 2, or 5;3 for two that take 5 and 3")
    return Replicas(numbers[0]) if len(numbers) == 1 else Replicas(len(numbers), numbers)
