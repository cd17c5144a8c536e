"""What a node of the choice problem stands for, and how one reads what another gives."""

from __future__ import annotations

from typing import NamedTuple

from rhino.strategies.cost.candidates import State
from rhino.strategies.cost.cost_model import Window


class Node(NamedTuple):
    """What a node of the problem stands for, and its states.

    `kind` is "argument", "op", "value" or "return", `number` counts within the kind. All but ops have states that read
    (`needs`) and give (`comes`) one spec, the same.
    """

    kind: str
    number: int
    states: tuple[State, ...]


class Use(NamedTuple):
    """One way from a node that gives a value to one that reads it: which result, which operand, of which type.

    `stays` says that it cannot be moved at all.
    """

    swapped: bool
    result: int
    operand: int
    type: int
    times: int
    stays: bool = False


class Way(NamedTuple):
    """A use with what its time depends on beside the specs at its ends.

    `is_narrow` says that the value is moved in elements half as wide, `is_fetched` and `is_returned` that it comes from
    the device's own memory by a copy, or goes there.
    """

    use: Use
    window: Window | None
    is_narrow: bool
    is_fetched: bool
    is_returned: bool
