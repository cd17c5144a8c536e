"""The program as dense arrays: values, ops, uses; and one class for all ops that are alike.

A 72-layer GPT has some 30,000 ops and a few hundred classes (same name, types, rule and numerics), so whatever depends
on the class alone is computed once. No MLIR object lives in here: an op is its position in program order (a loop's body
after the loop), a value is a number (arguments first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from rhino.ir.arrays import Ints
from rhino.ir.graph.rules import Rule
from rhino.ir.graph.spec import Spec

MOST_TIMES: Final = 2**53
"""How often an op is taken to run at most.

So far floats count exactly, and a step that runs one more often does not end.
"""

Choices = tuple[frozenset[int] | None, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A static tensor type. `element_bytes` is 0 for tokens."""

    shape: tuple[int, ...]
    dtype: str
    element_bytes: int
    num_bytes: int = field(init=False, compare=False, repr=False)
    """Bytes of the whole tensor."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_bytes", prod(self.shape) * self.element_bytes)

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"


MemoryKind = Literal["device", "pinned_host"]
"""Where an array lies, by JAX's names of memory kinds."""

DEVICE: Final[MemoryKind] = "device"
HOST: Final[MemoryKind] = "pinned_host"


@dataclass(frozen=True, slots=True)
class OpClass:
    """What all alike ops share.

    `rule` is None for an op that cannot be split (it is replicated). `reduction` is the monoid ("add", "max", "min")
    with which the parts of a split reduction factor combine, or None. Each set in `linear` names operands such that the
    op commutes with addition over them jointly, the others held: when exactly these are partial sums, so is the result.
    A `free` op depends on constants alone: it is computed wherever it is needed. A `fusible` op can be computed inside
    its consumer's loop. `moved_bytes` is what the op reads and writes where somebody has said so; otherwise that
    follows from its operands and results. `fixed_specs` are the specs that its operands must have and its results come
    in, where there is no choice. `products` says of an op that is no product which dtype is multiplied in matrix
    products all the same, and how many of its `flops` these are. The results of a custom call that are `unread` may
    differ from device to device. `precision` is that of a product's operands: "default", "high" or "highest". `placed`
    is the memory to which the op moves what it reads, where that is all it does. `loads` are the `flops` at each place
    along a factor of the rule that does not spread them evenly.
    """

    name: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    rule: Rule | None
    reduction: str | None
    linear: tuple[frozenset[int], ...]
    free: bool
    fusible: bool
    flops: int
    moved_bytes: int | None = None
    fixed_specs: tuple[tuple[Spec, ...], tuple[Spec, ...]] | None = None
    precision: str = "default"
    placed: MemoryKind | None = None
    products: tuple[str, int] | None = None
    unread: frozenset[int] = frozenset()
    loads: tuple[tuple[int, tuple[int, ...]], ...] = ()
    is_view: bool = field(init=False, compare=False, repr=False)
    """Whether each result lies where the operand of the same number does: the same bytes under other indices."""

    def __post_init__(self) -> None:
        keeps_size = self.name in REPEATS and self.operands[0].num_bytes == self.results[0].num_bytes
        object.__setattr__(self, "is_view", self.name in _VIEWS or (keeps_size and self._in_order()))

    def _in_order(self) -> bool:
        """Says whether the operand's dims, but for those of one element, are the result's."""
        if self.rule is None:
            return False
        sides = (self.rule.operands[0], self.rule.results[0])
        before, after = ([f for dim in side for f in dim if self.rule.sizes[f] > 1] for side in sides)
        return before == after


@dataclass(frozen=True, slots=True)
class Argument:
    """A function argument: the name it is known by, and the result that takes over its buffer, if one does.

    `memories` are those in which it may lie; so does that result.
    """

    name: str
    alias: int | None
    memories: tuple[MemoryKind, ...] = (DEVICE,)


@dataclass(frozen=True, slots=True)
class Loop:
    """A `while` whose body is part of the graph.

    The ops after `op` and before `end`, which returns from the body, run `trips` times.

    What the loop carries is one value from its start to after its end: the results of `op` stand for the body's
    arguments too. `kept` says which of them the body returns as they came. `trips` is None where nobody knows how often
    it runs; it is then planned for once.
    """

    op: int
    end: int
    trips: int | None
    kept: tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeats:
    """For how many alike ones ops and values stand: those of the same group of layers.

    Shapes: `times` [ops] and `copies` [values], how many at most; `run` [ops] is equal for ops of one group on the same
    way, 0 for those of none. The runs of group g are 2g + 1 and 2g + 2.
    """

    times: Ints
    copies: Ints
    run: Ints

    @property
    def group(self) -> Ints:
        """The group of each op, -1 for none [ops]."""
        return (self.run - 1) // 2


WHILE, YIELD = "stablehlo.while", "stablehlo.return"
"""The ops that begin and end a loop in the graph."""

BARRIER = "stablehlo.optimization_barrier"
"""The op that forwards its operands as they are, each for itself."""

FORWARDS_OPERANDS = frozenset({WHILE, YIELD, BARRIER})
"""Ops that forward their operands as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """One function in normal form.

    Shapes: `op_class` [ops]; operands of op `o` are `uses[use_start[o] : use_start[o + 1]]`, its results are the values
    `result_start[o] .. result_start[o + 1] - 1`; `value_type` [values] indexes `types`; `value_op` [values] is -1 for
    an argument. Values 0 .. len(arguments) - 1 are the arguments. `returns` are the returned values. `fixed` and
    `return_fixed` hold the specs that the user's own shardings leave open, for the values and results that have one.
    `roles` says what each axis of the mesh is for ("batch", "model" or ""), and is empty where the user has not said
    it. `zeros` are the values all of whose elements are known to be 0. `choices` holds, for ops with a request, what
    they may do along each axis (as strategies/cost/candidates.py numbers it), None where that is open. `repeats`
    says for how many alike ones ops and values stand (ir/program/folded_layers.py); None where each is but itself.
    """

    classes: tuple[OpClass, ...]
    types: tuple[TensorType, ...]
    op_class: Ints
    use_start: Ints
    uses: Ints
    result_start: Ints
    value_type: Ints
    value_op: Ints
    arguments: tuple[Argument, ...]
    returns: tuple[int, ...]
    return_fixed: tuple[frozenset[Spec] | None, ...]
    fixed: dict[int, frozenset[Spec]]
    loops: tuple[Loop, ...] = ()
    roles: tuple[str, ...] = ()
    zeros: frozenset[int] = frozenset()
    choices: dict[int, Choices] = field(default_factory=dict)
    repeats: Repeats | None = None
    _results: list[range] = field(init=False, repr=False)
    _classes: list[OpClass] = field(init=False, repr=False)
    _types: list[TensorType] = field(init=False, repr=False)
    """What `results`, `cls` and `type_of` return: to ask an array for one number takes ten times as long."""

    def __post_init__(self) -> None:
        first = self.result_start.tolist()
        object.__setattr__(self, "_results", list(map(range, first[:-1], first[1:])))
        object.__setattr__(self, "_classes", [self.classes[number] for number in self.op_class.tolist()])
        object.__setattr__(self, "_types", [self.types[number] for number in self.value_type.tolist()])

    def times(self) -> Ints:
        """Returns how often each op runs in a step, `MOST_TIMES` if more often [ops]."""
        count = np.ones(self.num_ops) if self.repeats is None else self.repeats.times.astype(np.float64)
        for loop in self.loops:
            body = count[loop.op + 1 : loop.end + 1]
            np.minimum(body * (1 if loop.trips is None else loop.trips), MOST_TIMES, out=body)
        return count.astype(np.int64)

    @property
    def num_ops(self) -> int:
        """Number of ops, those of loop bodies included, without the function's return."""
        return len(self.op_class)

    @property
    def num_values(self) -> int:
        """Number of arguments and op results."""
        return len(self.value_type)

    def operands(self, op: int) -> Ints:
        """Returns the values that `op` reads, in order (captured values of its regions last)."""
        return self.uses[self.use_start[op] : self.use_start[op + 1]]

    def results(self, op: int) -> range:
        """Returns the values that `op` defines."""
        return self._results[op]

    def type_of(self, value: int) -> TensorType:
        """Returns the type of a value."""
        return self._types[value]

    def cls(self, op: int) -> OpClass:
        """Returns the class of an op."""
        return self._classes[op]

    def value_bytes(self) -> Ints:
        """Returns the bytes of every value on one device, unsplit [values]."""
        return np.array([t.num_bytes for t in self.types], dtype=np.int64)[self.value_type]

    def copies(self) -> Ints:
        """Returns for how many tensors every value stands [values]."""
        return np.ones(self.num_values, dtype=np.int64) if self.repeats is None else self.repeats.copies


def materialized(graph: Graph, inside: NDArray[np.bool_] | None = None, given: Sequence[int] = ()) -> NDArray[np.bool_]:
    """Returns, for every value, whether it gets memory of its own [values].

    With `inside` [ops], the program has these ops alone: it returns the values `given`, and its arguments are what it
    does not compute.

    Arguments and returned values do. So does what some reader takes from memory: products, gathers, loops and the like
    do, fusible ops and reductions do not, nor does an update of part of a buffer the part that it writes. Who reads a
    view reads what it views. Another fusible op is computed inside its reader, or inside each of its readers if it is
    cheap and none of them is a reduction (XLA's `InstructionFusion`; on the CPU of jaxlib 0.10.2 a library computes
    reductions, which fuse a producer only if nothing else reads it).
    """
    if not graph.num_ops:
        return np.ones(graph.num_values, dtype=bool)
    returns = list(graph.returns if inside is None else given)
    inside = np.ones(graph.num_ops, dtype=bool) if inside is None else inside
    read = np.repeat(inside, np.diff(graph.use_start))
    absorbs = np.array([c.fusible or c.name == REDUCE for c in graph.classes])[graph.op_class]
    reduces = np.array([c.name == REDUCE for c in graph.classes])
    reader = np.repeat(graph.op_class, np.diff(graph.use_start))
    absorbed = np.repeat(absorbs, np.diff(graph.use_start))
    updates = np.array([c.name == PART_UPDATE for c in graph.classes])[graph.op_class]
    absorbed[graph.use_start[:-1][updates] + 1] = True
    num_uses = np.bincount(graph.uses[read], minlength=graph.num_values)
    from_memory = np.bincount(graph.uses, weights=read & ~absorbed, minlength=graph.num_values) > 0
    reduced = np.bincount(graph.uses, weights=read & reduces[reader], minlength=graph.num_values) > 0
    from_memory[returns] = True
    view = np.array([c.is_view for c in graph.classes])[graph.op_class] & inside
    returned = graph.value_op[returns]
    view[returned[returned >= 0]] = False
    for op in np.flatnonzero(view)[::-1].tolist():
        for source, viewed in zip(graph.operands(op).tolist(), graph.results(op), strict=True):
            from_memory[source] |= from_memory[viewed]
            reduced[source] |= reduced[viewed]
            num_uses[source] += num_uses[viewed] - 1
    made_by = np.maximum(graph.value_op, 0)
    producer = graph.op_class[made_by]
    fusible = np.array([c.fusible for c in graph.classes])[producer]
    repeats = np.array([c.name in COPY_FREE for c in graph.classes])[producer]
    cheap = np.array([c.name not in COSTLY for c in graph.classes])[producer]
    fused = fusible & ~from_memory & ((num_uses <= 1) | repeats | (cheap & ~reduced))
    result: NDArray[np.bool_] = ~((fused | view[made_by]) & (graph.value_op >= 0) & inside[made_by])
    return result


REDUCE = "stablehlo.reduce"

_VIEWS = frozenset({"stablehlo.reshape", BARRIER})

REPEATS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Ops whose result repeats their operand, or gives it dims of one element."""

COPY_FREE = frozenset(
    {
        "stablehlo.reshape",
        "stablehlo.broadcast_in_dim",
        "stablehlo.iota",
        "stablehlo.constant",
        "stablehlo.bitcast_convert",
    }
)
"""Ops that need no memory of their own wherever their consumer computes: views, and values of a counter."""

_COSTLY = (
    "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power remainder rsqrt sine "
    "sqrt tan tanh"
)

COSTLY = frozenset(f"stablehlo.{name}" for name in _COSTLY.split())
"""Fusible ops that XLA does not compute twice (`InstructionFusion::IsExpensive`)."""

_MOVES = "broadcast_in_dim broadcast transpose slice reverse pad concatenate dynamic_slice"

MOVES = frozenset(f"stablehlo.{name}" for name in _MOVES.split())
"""Fusible ops whose elements come from another place of their operands: none is written over what it reads."""

COPIED_UPDATE = "stablehlo.scatter"
"""An update that writes over its first operand.

What makes this, unless that depends on constants alone, then writes over nothing, so that
there is one tensor more, as if XLA's CPU backend (jaxlib 0.10.2) copied it."""

PART_UPDATE = "stablehlo.dynamic_update_slice"
"""An update that is computed where it goes: XLA fuses what makes the part into it."""

UPDATES = frozenset({COPIED_UPDATE, PART_UPDATE})
"""Ops that write into their first operand's buffer where nothing else reads it."""
