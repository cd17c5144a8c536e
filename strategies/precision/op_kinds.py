"""What each kind of op does with numbers of fewer bits, as data: the list that mixed precision goes by.

Source    PyTorch's lists of ops for CUDA autocast (matrix products and convolutions in half precision; exponentials,
          logarithms, powers, norms, softmax and losses in f32; others in the widest type of what they read), which
          NVIDIA's Apex has at O1; master weights: Micikevicius et al., "Mixed Precision Training" (2018), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from rhino.strategies.cost.cost_model import PRODUCTS


class Kind(Enum):
    """What an op does with numbers of fewer bits."""

    PRODUCT = "product"
    COPY = "copy"
    ARITHMETIC = "arithmetic"
    WIDE = "wide"


@dataclass(frozen=True, slots=True)
class KindRow:
    """A line of the list: the ops of a kind, what type they compute in, and why."""

    kind: Kind
    ops: tuple[str, ...]
    computes_in: str
    reason: str


_COPIES: Final = (
    "abs broadcast broadcast_in_dim clamp concatenate dynamic_slice dynamic_update_slice gather maximum minimum negate "
    "optimization_barrier pad reshape reverse select slice transpose"
)
_ARITHMETIC: Final = "add compare divide is_finite logistic multiply sign subtract tanh"

KIND_ROWS: Final = (
    KindRow(
        Kind.PRODUCT,
        tuple(sorted(name.removeprefix("stablehlo.") for name in PRODUCTS)),
        "16 bits, with sums in f32",
        "They take most of the time, devices compute them several times as fast in 16 bits, and sum up in f32.",
    ),
    KindRow(
        Kind.COPY,
        tuple(_COPIES.split()),
        "the type of what they read",
        "Each element is one that they read, at most with another sign: rounding before or after gives the same.",
    ),
    KindRow(
        Kind.ARITHMETIC,
        tuple(_ARITHMETIC.split()),
        "the widest type of what they read",
        "The error is that of one rounding. Parameters and constants have no say in it.",
    ),
    KindRow(
        Kind.WIDE,
        (),
        "f32",
        "Sums of many elements lose small ones; exponentials, logarithms and powers make errors larger; "
        "what sorts, factorizes, draws random numbers or calls custom code is not known to be safe.",
    ),
)
"""Every op is of one kind; `WIDE` are those that no other row names."""

_KINDS: Final = {f"stablehlo.{name}": row.kind for row in KIND_ROWS for name in row.ops}
_COPIED_WHOLE: Final = frozenset({"sdy.sharding_constraint"})
"""Ops of Shardy's that pass on what they read."""


def kind_of_op(name: str) -> Kind:
    """Returns the kind of an op."""
    return Kind.COPY if name in _COPIED_WHOLE else _KINDS.get(name, Kind.WIDE)
