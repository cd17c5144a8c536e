"""Small programs in a notation of their own, drawn at random, and written as StableHLO.

Both the oracle and the search plan them. Values are numbered: arguments first, then what each op makes. A loop is an op
"loop", whose results are what it carries; the ops of its body stand behind it, and read these results as what a trip
begins with; a "next" ends it, with what the next trip takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

Shape = tuple[int, ...]

MESHES: Final = ((4,), (6,), (2, 2), (2, 3), (2, 2, 2))

_TYPES: Final = {"f32": 4, "bf16": 2}
_UNARY: Final = ("tanh", "negate", "exponential", "abs")
_BINARY: Final = ("add", "multiply", "subtract", "maximum", "divide")
_MOST_ELEMENTS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Op:
    """One op: what it reads, the shapes of what it makes, and the dims that it is about.

    `dims` are, of a "product", pairs of contracted dims of both operands, behind as many pairs of batch dims as
    `count`; of a "sum" or "largest" the dims that go; of a "transpose" where each result dim comes from; of a
    "broadcast" where each operand dim goes. `count` is how often a "loop" runs, and what each element of a "constant"
    is.
    """

    name: str
    reads: tuple[int, ...]
    shapes: tuple[Shape, ...]
    dims: tuple[int, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class SmallProgram:
    """A program on one type of elements.

    It has its arguments' shapes, its ops, what it returns, and which argument each result takes over.
    """

    dtype: str
    arguments: tuple[Shape, ...]
    ops: tuple[Op, ...]
    returns: tuple[int, ...]
    taken_over: tuple[int | None, ...]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return _TYPES[self.dtype]

    def shapes(self) -> list[Shape]:
        """Returns the shape of every value."""
        return [*self.arguments, *(shape for op in self.ops for shape in op.shapes)]

    def text(self) -> str:
        """Returns the program as StableHLO."""
        return _Writer(self).text()


@dataclass
class _Writer:
    program: SmallProgram
    names: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    loops: list[tuple[int, Op]] = field(default_factory=list)

    def kind(self, shape: Shape) -> str:
        return f"tensor<{'x'.join([*map(str, shape), self.program.dtype])}>"

    def kinds(self, values: Sequence[int]) -> str:
        shapes = self.program.shapes()
        return ", ".join(self.kind(shapes[value]) for value in values)

    def text(self) -> str:
        program = self.program
        given = {argument: number for number, argument in enumerate(program.taken_over) if argument is not None}
        arguments = []
        for number, shape in enumerate(program.arguments):
            alias = f" {{tf.aliasing_output = {given[number]} : i32}}" if number in given else ""
            arguments.append(f"%a{number}: {self.kind(shape)}{alias}")
            self.names.append(f"%a{number}")
        self.lines += [f"%c{n} = stablehlo.constant dense<{n}> : tensor<i32>" for n in (0, 1)]
        for number, op in enumerate(program.ops):
            self.op(number, op)
        results = self.kinds(program.returns)
        returned = f"return {', '.join(self.names[value] for value in program.returns)} : {results}"
        return "\n".join([f"func.func @main({', '.join(arguments)}) -> ({results}) {{", *self.lines, returned, "}"])

    def op(self, number: int, op: Op) -> None:
        """Writes an op; begins or ends a loop."""
        read = [self.names[value] for value in op.reads]
        if op.name == "loop":
            self.begin(number, op, read)
        elif op.name == "next":
            begun, _ = self.loops.pop()
            self.lines.append(f"%j{begun} = stablehlo.add %i{begun}, %c1 : tensor<i32>")
            self.lines.append(
                f"stablehlo.return {', '.join([f'%j{begun}', *read])} : tensor<i32>, {self.kinds(op.reads)} }}"
            )
            for value, name in enumerate(self.names):
                if name.startswith(f"%v{begun}_"):
                    self.names[value] = f"%w{begun}#{1 + int(name.rpartition('_')[2])}"
        else:
            self.names.append(f"%v{number}")
            self.lines.append(f"%v{number} = {self.one(op, read)}")

    def begin(self, number: int, op: Op, read: Sequence[str]) -> None:
        self.loops.append((number, op))
        carried = [f"%v{number}_{place}" for place in range(len(read))]
        pairs = ", ".join(
            f"{name} = {source}" for name, source in zip([f"%i{number}", *carried], ["%c0", *read], strict=True)
        )
        self.lines += [
            f"%n{number} = stablehlo.constant dense<{op.count}> : tensor<i32>",
            f"%w{number}:{1 + len(read)} = stablehlo.while({pairs}) : tensor<i32>, {self.kinds(op.reads)} cond {{",
            f"%p{number} = stablehlo.compare LT, %i{number}, %n{number} : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            f"stablehlo.return %p{number} : tensor<i1> }} do {{",
        ]
        self.names += carried

    def one(self, op: Op, read: Sequence[str]) -> str:
        """Returns an op that makes one value."""
        shapes = self.program.shapes()
        (shape,), operands = op.shapes, ", ".join(read)
        result = self.kind(shape)
        types = f"({self.kinds(op.reads)}) -> {result}"
        match op.name:
            case "constant":
                return f"stablehlo.constant dense<{op.count}.0> : {result}"
            case "product":
                pairs = [op.dims[at : at + 2] for at in range(0, len(op.dims), 2)]
                batch, contracted = (
                    [list(side) for side in zip(*part, strict=True)] for part in (pairs[: op.count], pairs[op.count :])
                )
                batching = f"batching_dims = {batch[0]} x {batch[1]}, " if batch else ""
                return (
                    f"stablehlo.dot_general {operands}, "
                    f"{batching}contracting_dims = {contracted[0]} x {contracted[1]} : {types}"
                )
            case "sum" | "largest":
                start, by = ("0.0", "add") if op.name == "sum" else (_LEAST[self.program.dtype], "maximum")
                name = f"%z{len(self.lines)}"
                self.lines.append(f"{name} = stablehlo.constant dense<{start}> : {self.kind(())}")
                across = f"across dimensions = [{', '.join(map(str, op.dims))}]"
                given = f"({self.kind(shapes[op.reads[0]])}, {self.kind(())}) -> {result}"
                return f"stablehlo.reduce({operands} init: {name}) applies stablehlo.{by} {across} : {given}"
            case "transpose" | "broadcast":
                name = "transpose" if op.name == "transpose" else "broadcast_in_dim"
                return f"stablehlo.{name} {operands}, dims = [{', '.join(map(str, op.dims))}] : {types}"
            case "reshape":
                return f"stablehlo.reshape {operands} : {types}"
        return f"stablehlo.{op.name} {operands} : {result}"


_LEAST: Final = {"f32": "0xFF800000", "bf16": "0xFF80"}


def without_dead(program: SmallProgram) -> SmallProgram:
    """Returns the program without ops that no result needs, as the search is given it.

    A loop is needed as a whole, or not at all.
    """
    first, number = list[int](), len(program.arguments)
    for op in program.ops:
        first.append(number)
        number += len(op.shapes)
    ends: dict[int, int] = {}
    begun: list[int] = []
    for place, op in enumerate(program.ops):
        if op.name == "loop":
            begun.append(place)
        elif op.name == "next":
            ends[place] = begun.pop()
    live, stays = set(program.returns), set[int]()
    for place in range(len(program.ops) - 1, -1, -1):
        op, own = program.ops[place], ends.get(place, place)
        made = range(first[own], first[own] + len(program.ops[own].shapes))
        if own in stays or not live.isdisjoint(made):
            stays.add(place)
            live |= {*op.reads, *made}
    kept = [
        *range(len(program.arguments)),
        *(first[place] + offset for place in sorted(stays) for offset in range(len(program.ops[place].shapes))),
    ]
    new = {value: number for number, value in enumerate(kept)}
    ops = [
        replace(program.ops[place], reads=tuple(new[value] for value in program.ops[place].reads))
        for place in sorted(stays)
    ]
    return replace(program, ops=tuple(ops), returns=tuple(new[value] for value in program.returns))


# Drawing


def draw(seed: int) -> tuple[SmallProgram, tuple[int, ...]]:
    """Returns a program and the sizes of a mesh."""
    rng = np.random.default_rng(seed)
    mesh = MESHES[seed % len(MESHES)]
    return _Draw(rng, mesh).program(), mesh


def draw_layers(seed: int, num_layers: int) -> tuple[SmallProgram, tuple[int, ...]]:
    """Returns a program of alike layers, and the sizes of a mesh of one axis or two.

    Each layer has weights of its own, which it may update.
    """
    rng = np.random.default_rng(seed)
    mesh = MESHES[seed % 4]
    drawn = _Draw(rng, mesh)
    inner, outer = (int(extent) for extent in rng.choice([prod(mesh), 2 * prod(mesh), 12, 10], 2))
    rows = int(rng.choice([prod(mesh), 24, 9]))
    parts = rng.choice(["product", "element", "share", "residual"], int(rng.integers(1, 4))).tolist()
    drawn.arguments = [(rows, inner), *[(inner, outer), (outer, inner)] * num_layers]
    drawn.shapes, drawn.visible = list(drawn.arguments), list(range(len(drawn.arguments)))
    value = 0
    for layer in range(num_layers):
        start = value
        for part in ("product", *parts):
            value = drawn.part(part, value, start, 1 + 2 * layer)
    dtype = str(rng.choice(list(_TYPES)))
    return without_dead(SmallProgram(dtype, tuple(drawn.arguments), tuple(drawn.ops), (value,), (None,))), mesh


@dataclass
class _Draw:
    rng: np.random.Generator
    mesh: tuple[int, ...]
    arguments: list[Shape] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    read: set[int] = field(default_factory=set)

    def program(self) -> SmallProgram:
        rng, parts = self.rng, prod(self.mesh)
        self.extents = [int(extent) for extent in rng.choice([parts, 2 * parts, 4 * parts, 12, 16, 24, 96, 10, 9], 3)]
        self.most_dims = 2 if len(self.mesh) == 3 else 3
        for _ in range(rng.integers(2, 4)):
            self.arguments.append(self.shape(int(rng.integers(1, self.most_dims + 1))))
        if rng.random() < 0.2:
            self.arguments.append(())
        self.shapes, self.visible = list(self.arguments), list(range(len(self.arguments)))
        for _ in range(rng.integers(2, 5 if len(self.mesh) == 3 else 8)):
            if rng.random() < 0.15 and not any(op.name == "loop" for op in self.ops):
                self.loop()
            else:
                self.step()
        made = [value for value in self.visible if value >= len(self.arguments)]
        returns = [value for value in made if value not in self.read or rng.random() < 0.15] or [0]
        if rng.random() < 0.15:
            returns.append(0)
        dtype = str(rng.choice(list(_TYPES)))
        return without_dead(
            SmallProgram(dtype, tuple(self.arguments), tuple(self.ops), tuple(returns), self.taken_over(returns))
        )

    def taken_over(self, returns: Sequence[int]) -> tuple[int | None, ...]:
        """Returns the arguments whose buffers results take over: of what the program makes, each once."""
        found: list[int | None] = []
        for number, value in enumerate(returns):
            fitting = [
                n for n, shape in enumerate(self.arguments) if shape == self.shapes[value] and shape and n not in found
            ]
            own = value >= len(self.arguments) and value not in returns[:number] and value not in self.constants()
            found.append(int(self.rng.choice(fitting)) if own and fitting and self.rng.random() < 0.6 else None)
        return tuple(found)

    def constants(self) -> set[int]:
        """Returns the values that depend on constants and scalars alone."""
        found, number = {n for n, shape in enumerate(self.arguments) if not shape}, len(self.arguments)
        for op in self.ops:
            for shape in op.shapes:
                if (
                    op.name == "constant"
                    or not shape
                    or (op.name not in ("loop", "product", "sum", "largest") and found.issuperset(op.reads))
                ):
                    found.add(number)
                number += 1
        return found

    def shape(self, rank: int) -> Shape:
        return tuple(int(extent) for extent in self.rng.choice(self.extents, rank))

    def add(
        self, name: str, reads: Sequence[int], shapes: Sequence[Shape], dims: Sequence[int] = (), count: int = 0
    ) -> None:
        self.ops.append(Op(name, tuple(reads), tuple(shapes), tuple(map(int, dims)), count))
        self.read |= set(reads)
        self.visible += range(len(self.shapes), len(self.shapes) + len(shapes))
        self.shapes += shapes

    def part(self, name: str, value: int, start: int, weight: int) -> int:
        """Adds a part of a layer, and returns its result.

        A part is two products, a function, shares of rows, or the sum with its start.
        """
        shape = self.shapes[value]
        match name:
            case "product":
                for number in (weight, weight + 1):
                    self.add(
                        "product",
                        [len(self.shapes) - 1 if number > weight else value, number],
                        [(shape[0], self.shapes[number][1])],
                        [1, 0],
                    )
            case "element":
                self.add("tanh", [value], [shape])
            case "share":
                self.add("sum", [value], [shape[:1]], [1])
                self.add("broadcast", [len(self.shapes) - 1], [shape], [0])
                self.add("divide", [value, len(self.shapes) - 1], [shape])
            case "residual":
                self.add("add", [value, start], [shape])
        return len(self.shapes) - 1

    def step(self) -> None:
        """Adds an op that fits what there is; tries again where one does not."""
        kinds: tuple[Callable[[int], bool], ...] = (
            *(
                self.product,
                self.product,
                self.product,
                self.element,
                self.pair,
                self.pair,
                self.reduction,
                self.transpose,
            ),
            *(self.broadcast, self.reshape),
        )
        for _ in range(50):
            # Values made last are read more often: else most programs would be many small ones.
            places = np.arange(1, len(self.visible) + 1, dtype=float)
            value = int(self.rng.choice(self.visible, p=places / places.sum()))
            if kinds[int(self.rng.integers(len(kinds)))](value):
                return
        raise AssertionError("an element-wise op fits any tensor")

    def like(self, value: int) -> int:
        """Returns a value of the same shape, or a new constant."""
        fitting = [n for n in self.visible if self.shapes[n] == self.shapes[value]]
        if self.rng.random() < 0.15:
            self.add("constant", (), [self.shapes[value]], count=int(self.rng.integers(1, 4)))
            return len(self.shapes) - 1
        return int(self.rng.choice(fitting))

    def element(self, value: int) -> bool:
        self.add(str(self.rng.choice(_UNARY)), [value], [self.shapes[value]])
        return True

    def pair(self, value: int) -> bool:
        other = self.like(value)
        both = [value, other] if self.rng.random() < 0.5 else [other, value]
        self.add(str(self.rng.choice(_BINARY)), both, [self.shapes[value]])
        return True

    def product(self, left: int) -> bool:
        """Contracts a dim of two values, along with batch dims where both begin alike."""
        rng, a = self.rng, self.shapes[left]
        right = int(rng.choice(self.visible))
        b = self.shapes[right]
        batch = 1 if len(a) > 1 and len(b) > 1 and a[0] == b[0] and rng.random() < 0.6 else 0
        pairs = [(i, j) for i in range(batch, len(a)) for j in range(batch, len(b)) if a[i] == b[j]]
        if not pairs:
            return False
        i, j = pairs[int(rng.integers(len(pairs)))]
        shape = (*a[:batch], *(n for d, n in enumerate(a) if d not in (i, *range(batch))))
        shape = (*shape, *(n for d, n in enumerate(b) if d not in (j, *range(batch))))
        if len(shape) > self.most_dims or prod(shape) > _MOST_ELEMENTS:
            return False
        self.add("product", [left, right], [shape], [*([0, 0] * batch), i, j], batch)
        return True

    def reduction(self, value: int) -> bool:
        shape, rng = self.shapes[value], self.rng
        if not shape:
            return False
        dims = sorted(rng.choice(len(shape), rng.integers(1, len(shape) + 1), replace=False).tolist())
        left = tuple(extent for dim, extent in enumerate(shape) if dim not in dims)
        self.add(str(rng.choice(["sum", "sum", "largest"])), [value], [left], dims)
        return True

    def transpose(self, value: int) -> bool:
        shape = self.shapes[value]
        if len(shape) < 2:
            return False
        dims = (
            [*range(1, len(shape)), 0]
            if self.rng.random() < 0.5
            else [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        )
        self.add("transpose", [value], [tuple(shape[dim] for dim in dims)], dims)
        return True

    def broadcast(self, value: int) -> bool:
        shape = self.shapes[value]
        if len(shape) >= self.most_dims:
            return False
        at = int(self.rng.integers(len(shape) + 1))
        result = (*shape[:at], int(self.rng.choice(self.extents)), *shape[at:])
        if prod(result) > _MOST_ELEMENTS:
            return False
        self.add("broadcast", [value], [result], [dim + (dim >= at) for dim in range(len(shape))])
        return True

    def reshape(self, value: int) -> bool:
        """Joins two dims, or parts one in two."""
        shape, rng = self.shapes[value], self.rng
        if len(shape) > 1 and rng.random() < 0.5:
            at = int(rng.integers(len(shape) - 1))
            result = (*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
        else:
            ways = [(at, by) for at, extent in enumerate(shape) for by in range(2, extent) if extent % by == 0]
            if not ways or len(shape) >= self.most_dims:
                return False
            at, by = ways[int(rng.integers(len(ways)))]
            result = (*shape[:at], by, shape[at] // by, *shape[at + 1 :])
        self.add("reshape", [value], [result])
        return True

    def loop(self) -> None:
        """Adds a loop over one or two values, of which one may begin as zeros; its body is a few ops."""
        rng = self.rng
        shaped = [value for value in self.visible if self.shapes[value]]
        starts = [int(value) for value in rng.choice(shaped, min(len(shaped), int(rng.integers(1, 3))), replace=False)]
        if rng.random() < 0.5:
            self.add("constant", (), [self.shapes[int(rng.choice(shaped))]])
            starts[-1] = len(self.shapes) - 1
        first, before = len(self.shapes), list(self.visible)
        carried = range(first, first + len(starts))
        self.add("loop", starts, [self.shapes[value] for value in starts], count=int(rng.integers(2, 6)))
        for _ in range(rng.integers(1, 4)):
            self.step()
        self.add("next", [self.after(value, first) for value in carried], [])
        self.visible = [*before, *carried]

    def after(self, value: int, first: int) -> int:
        """Returns what the next trip takes for a carried value, of what the loop and its body make.

        It is a value of the same shape, at times the carried value itself.
        """
        alike = [other for other in self.visible if other >= first and self.shapes[other] == self.shapes[value]]
        return alike[-1] if self.rng.random() < 0.8 else value
