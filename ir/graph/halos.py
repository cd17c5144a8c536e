"""What a block of a factor reads of a dim that its op reads with windows, shifted, or backwards.

Slices, pads, reversals and windows read a dim in one form: position `p` of a factor reads `span` elements from `stride
* p - low` on, counted in the dim with its elements `base` apart. What is counted there and is no element is padding.
Blocks of positions then read ranges that lie as far from one another as they are long apart, whichever device: the
*halo* is what of such a range lies in the blocks of other devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class Halo:
    """How the blocks of `factor` read `dim` of `operand`.

    The dim has `size` elements, the factor `count` positions. `stride` is negative where the dim is read backwards.

    Where `joins` is the name of an op, position `p` gives all elements up to `p` joined by it, or where `stride` is
    negative all from `p` on. Then a block reads only its own elements, and what those of the parts before come to.
    """

    factor: int
    operand: int
    dim: int
    size: int
    count: int
    stride: int = 1
    low: int = 0
    span: int = 1
    base: int = 1
    joins: str = ""

    @property
    def most_parts(self) -> int:
        """The number into whose divisors the factor can be split; 1 where its blocks would not read alike."""
        if not self.count or not self.size or self.count % self.base or (self.base > 1 and abs(self.stride) > 1):
            return 1
        return gcd(self.size, self.count, self.count // self.base)

    def read_by(self, parts: int) -> Range:
        """Returns what a part reads of the dim where the factor is split into so many; `most_parts` has to divide."""
        block = self.count // parts
        if self.joins:
            before, behind = (block - 1, 0) if self.stride > 0 else (0, block - 1)
            return Range(0, block, block, before, behind)
        ends = (-self.low, self.stride * (block - 1) - self.low)
        least, most = min(ends), max(ends) + self.span - 1
        first, last = -(-least // self.base), most // self.base
        length = (last - first) * self.base + 1
        low = first * self.base - least
        return Range(first, self.stride * block // self.base, last - first + 1, low, most - least + 1 - low - length)


@dataclass(frozen=True, slots=True)
class Range:
    """The elements that each part reads of a dim: part `p` reads `width` from `first + step * p` on.

    Some may lie outside the dim. An op that reads them has to pad them by `low` and `high` to give its block.
    """

    first: int
    step: int
    width: int
    low: int
    high: int
