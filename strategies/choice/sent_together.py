"""Which collectives of a plan are sent together: the same ones that are joined in the program of a device.

Ops and collectives are one list here, in the order of the program. What an op reads in another spec is sent right
before it, and what it gives right behind it. The body of a loop is a list of its own, and in the list around it a loop
is one op, which reads what its body reads of there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from rhino.strategies.choice.sharding_plan import Path, ShardingPlan, Transfer
from rhino.strategies.cost.buckets import Packing, buckets
from rhino.strategies.cost.target import JOINED


def sent_together(plan: ShardingPlan, packing: Packing | None) -> Iterator[tuple[Transfer, ...]]:
    """Yields each collective of the program of a device, as the collectives of a plan that it is.

    Without `packing` each is sent by itself.
    """
    if packing is None:
        yield from ((one,) for one in plan.transfers())
        return
    for listed in _Lists(plan).run():
        joined = buckets(listed.keys, listed.num_bytes, listed.readers(), packing)
        members = {node for bucket in joined for node in bucket}
        for nodes in (*joined, *((node,) for node in range(len(listed.sent)) if node not in members)):
            if found := tuple(one for node in nodes if (one := listed.sent[node]) is not None):
                yield found


@dataclass(slots=True, eq=False)
class _Listed:
    """The ops and collectives of one block, by number.

    What they send is None for ops; `makers` are those that each waits for, numbers below 0 stand for none.
    """

    sent: list[Transfer | None] = field(default_factory=list)
    keys: list[Hashable | None] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    makers: list[Sequence[int]] = field(default_factory=list)

    def add(self, makers: Sequence[int], sent: Transfer | None = None, key: Hashable | None = None) -> int:
        """Adds one, and returns its number."""
        self.sent.append(sent)
        self.keys.append(key)
        self.num_bytes.append(sent.move.num_bytes if sent else 0)
        self.makers.append(makers)
        return len(self.sent) - 1

    def readers(self) -> list[list[int]]:
        """Returns those that wait for each."""
        found: list[list[int]] = [[] for _ in self.makers]
        for node, makers in enumerate(self.makers):
            for maker in makers:
                if maker >= 0:
                    found[maker].append(node)
        return found


@dataclass(slots=True, eq=False)
class _Open:
    """A list that is being made; of a loop's body, `reads` is what the loop waits for in the list around it."""

    listed: _Listed = field(default_factory=_Listed)
    reads: list[int] = field(default_factory=list)


class _Lists:
    """Makes the lists of a plan."""

    def __init__(self, plan: ShardingPlan) -> None:
        self.plan, self.graph = plan, plan.graph
        self.starts = {loop.op for loop in plan.graph.loops}
        self.ends = {loop.end: loop for loop in plan.graph.loops}
        self.open = [_Open()]
        """Those of the loops around, outermost first."""
        self.done: list[_Listed] = []
        self.made = [(0, -1)] * self.graph.num_values
        """In how many loops each value is made, and by what of that list."""

    def run(self) -> list[_Listed]:
        """Returns the lists."""
        for op, operands, halos, results in self.plan.paths_of_ops():
            values = self.graph.operands(op).tolist()
            read = [self.sent(self.read(value), path) for value, path in zip(values, operands, strict=True)]
            read += [self.sent(self.read(one.value), (one,)) for path in halos for one in path]
            if op in self.starts:
                self.open.append(_Open(reads=read))
                self.give(self.graph.results(op), -1)
                continue
            node = self.open[-1].listed.add(read)
            if loop := self.ends.get(op):
                body = self.open.pop()
                self.done.append(body.listed)
                self.give(self.graph.results(loop.op), self.open[-1].listed.add(body.reads))
                continue
            monoid = self.plan.ops[op].monoid
            for value, path in zip(self.graph.results(op), results, strict=True):
                self.give((value,), self.sent(node, path, monoid))
        for value, path in zip(self.graph.returns, self.plan.paths_of_returns(), strict=True):
            self.sent(self.read(value), path)
        return [*self.done, self.open[0].listed]

    def give(self, values: Sequence[int], node: int) -> None:
        """Says what values are made by, in the innermost list."""
        for value in values:
            self.made[value] = len(self.open) - 1, node

    def read(self, value: int) -> int:
        """Returns what makes a value in the innermost list; a loop waits for what its body reads from outside."""
        depth, node = self.made[value]
        if depth == len(self.open) - 1:
            return node
        self.open[depth + 1].reads.append(node)
        return -1

    def sent(self, node: int, path: Path, monoid: str = "add") -> int:
        """Lists the collectives that bring a value on its way, and returns the last."""
        for one in path:
            kind = one.move.kind
            dtype = self.graph.type_of(one.value).dtype
            key = (kind, one.move.axes, dtype, monoid) if kind in JOINED else None
            node = self.open[-1].listed.add([node], one, key)
        return node
