"""A training step of an MLP as a list of instructions written by hand: one layer a stage, 1F1B, plain SGD."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from rhino.ir.instructions import Feed, Fetch, Free, Global, Layout, Program, Run, Slot, Step, Task, Transfer
from rhino.ir.mesh import mesh_of_shape

HIDDEN, RATE = 8, 0.002


@dataclass
class Pipelined:
    """Arguments of the step: the weights, the batch, the targets. Results: the loss, the weights."""

    step: Step
    modules: dict[str, str]
    arguments: list[np.ndarray]

    @property
    def num_stages(self) -> int:
        return self.step.num_ranks


def layer(w, x):
    return jnp.tanh(x @ w)


def at(batch, i):
    return jax.lax.dynamic_index_in_dim(batch, i, keepdims=False)


def add_gradient(w, x, gy, total):
    gw, gx = jax.vjp(layer, w, x)[1](gy)
    return gx, total + gw


def last(w, x, targets, i, total, loss):
    value, (gw, gx) = jax.value_and_grad(lambda w, x: jnp.sum((layer(w, x) - at(targets, i)) ** 2), argnums=(0, 1))(w, x)
    return gx, total + gw, loss + value


FUNCTIONS: dict[str, tuple[Callable, str, str, tuple[tuple[int, int], ...]]] = {
    # What each program does, its arguments and results as letters (see `layouts`), and what it donates.
    "start": (lambda: (jnp.zeros((HIDDEN, HIDDEN)),), "", "w", ()),
    "start-last": (lambda: (jnp.zeros((HIDDEN, HIDDEN)), jnp.zeros(())), "", "wl", ()),
    "forward-first": (lambda w, batch, i: (layer(w, at(batch, i)),), "wbi", "x", ()),
    "forward": (lambda w, x: (layer(w, x),), "wx", "x", ()),
    "last": (last, "wxbiwl", "xwl", ((4, 1), (5, 2))),
    "backward": (add_gradient, "wxxw", "xw", ((3, 1),)),
    "backward-first": (lambda w, b, i, gy, total: add_gradient(w, at(b, i), gy, total)[1:], "wbixw", "w", ((4, 0),)),
    "apply": (lambda w, total: (w - RATE * total,), "ww", "w", ((0, 0),)),
}


def layouts(num_micro_batches: int, micro_batch: int, num_devices: int) -> dict[str, Layout]:
    rows: tuple[str, ...] = ("x",) if num_devices > 1 else ()
    return {
        "w": Layout((HIDDEN, HIDDEN), "f32", ((), ())),
        "b": Layout((num_micro_batches, micro_batch, HIDDEN), "f32", ((), rows, ())),
        "x": Layout((micro_batch, HIDDEN), "f32", (rows, ())),
        "i": Layout((), "i32", ()),
        "l": Layout((), "f32", ()),
    }


def lower(name: str, of: dict[str, Layout], num_devices: int) -> str:
    function, inputs, outputs, _ = FUNCTIONS[name]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:num_devices]), ("x",))

    def place(letter: str) -> jax.sharding.NamedSharding:
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(axes or None for axes in of[letter].dims)))

    types = {"f32": jnp.float32, "i32": jnp.int32}
    jitted = jax.jit(function, in_shardings=tuple(map(place, inputs)), out_shardings=tuple(map(place, outputs)), keep_unused=True)
    return jitted.lower(*(jax.ShapeDtypeStruct(of[one].shape, types[of[one].dtype]) for one in inputs)).as_text()


@dataclass
class Writer:
    of: dict[str, Layout]
    slots: list[Slot] = field(default_factory=list)
    instructions: list[Global] = field(default_factory=list)
    uids: itertools.count = field(default_factory=itertools.count)

    def slot(self, rank: int, letter: str) -> int:
        self.slots.append(Slot(rank, self.of[letter]))
        return len(self.slots) - 1

    def feed(self, argument: int, rank: int, letter: str) -> int:
        self.instructions.append(Feed(argument, slot := self.slot(rank, letter)))
        return slot

    def run(self, name: str, rank: int, inputs: Sequence[int], task: Task) -> list[int]:
        outputs = [self.slot(rank, letter) for letter in FUNCTIONS[name][2]]
        self.instructions.append(Run(list(FUNCTIONS).index(name), tuple(inputs), tuple(outputs), task))
        return outputs

    def move(self, source: int, rank: int) -> int:
        self.slots.append(Slot(rank, self.slots[source].layout))
        self.instructions += [Transfer(next(self.uids), source, len(self.slots) - 1), Free((source,))]
        return len(self.slots) - 1


def one_f_one_b(stage: int, num_stages: int, num_micro_batches: int) -> list[tuple[str, int]]:
    """Tasks of a stage in order; the last has backwards alone."""
    warm = min(num_stages - 1 - stage, num_micro_batches)
    if not warm:
        return [("backward", i) for i in range(num_micro_batches)]
    steady = [pair for i in range(num_micro_batches - warm) for pair in (("forward", warm + i), ("backward", i))]
    tail = [("backward", i) for i in range(num_micro_batches - warm, num_micro_batches)]
    return [*(("forward", i) for i in range(warm)), *steady, *tail]


def pipelined(num_stages: int, num_micro_batches: int, num_devices: int = 1, micro_batch: int = 4) -> Pipelined:
    """The step on `num_stages` ranks of `num_devices` each."""
    assert num_stages >= 2
    of = layouts(num_micro_batches, micro_batch, num_devices)
    out, final = Writer(of), num_stages - 1
    numbers = {(rank, i): out.slot(rank, "i") for rank in (0, final) for i in range(num_micro_batches)}
    weights = [out.feed(rank, rank, "w") for rank in range(num_stages)]
    batch, targets = out.feed(num_stages, 0, "b"), out.feed(num_stages + 1, final, "b")
    totals = [out.run("start", rank, (), Task("setup", rank))[0] for rank in range(final)]
    total, loss = out.run("start-last", final, (), Task("setup", final))
    totals.append(total)
    queues = [one_f_one_b(stage, num_stages, num_micro_batches) for stage in range(num_stages)]
    ready: dict[tuple[str, int, int], int] = {}  # what a task waits for, on its rank: an activation or a gradient
    kept: dict[tuple[int, int], int] = {}

    def step(stage: int, kind: str, i: int) -> bool:
        nonlocal loss
        task = Task("forward" if kind == "forward" else "backward", stage, i)
        if kind == "forward":
            if stage == 0:
                (y,) = out.run("forward-first", 0, (weights[0], batch, numbers[0, i]), task)
            elif ("x", stage, i) in ready:
                kept[stage, i] = ready.pop(("x", stage, i))
                (y,) = out.run("forward", stage, (weights[stage], kept[stage, i]), task)
            else:
                return False
            ready["x", stage + 1, i] = out.move(y, stage + 1)
            return True
        if ("x" if stage == final else "g", stage, i) not in ready:
            return False
        if stage == final:
            x = ready.pop(("x", stage, i))
            gx, totals[final], loss = out.run("last", final, (weights[final], x, targets, numbers[final, i], totals[final], loss), task)
            out.instructions.append(Free((x,)))
        elif stage:
            x, g = kept.pop((stage, i)), ready.pop(("g", stage, i))
            gx, totals[stage] = out.run("backward", stage, (weights[stage], x, g, totals[stage]), task)
            out.instructions.append(Free((x, g)))
        else:
            g = ready.pop(("g", 0, i))
            (totals[0],) = out.run("backward-first", 0, (weights[0], batch, numbers[0, i], g, totals[0]), task)
            out.instructions.append(Free((g,)))
            return True
        ready["g", stage - 1, i] = out.move(gx, stage - 1)
        return True

    while any(queues):
        moved = [stage for stage in range(num_stages) if queues[stage] and step(stage, *queues[stage][0])]
        assert moved
        for stage in moved:
            queues[stage].pop(0)
    out.instructions += [Free((batch,)), Free((targets,)), Fetch(loss, 0)]
    for rank in range(num_stages):
        (new,) = out.run("apply", rank, (weights[rank], totals[rank]), Task("apply", rank))
        out.instructions += [Free((totals[rank],)), Fetch(new, 1 + rank)]
    programs = tuple(
        Program(name, f"{name}.mlir", tuple(of[one] for one in inputs), tuple(of[one] for one in outputs), donated)
        for name, (_, inputs, outputs, donated) in FUNCTIONS.items()
    )
    constants = tuple((slot, i) for (_, i), slot in numbers.items())
    modules = {f"{name}.mlir": lower(name, of, num_devices) for name in FUNCTIONS}
    random = np.random.default_rng(0)
    arguments = [random.normal(size=(HIDDEN, HIDDEN)).astype(np.float32) / 3 for _ in range(num_stages)]
    arguments += [random.normal(size=of["b"].shape).astype(np.float32) for _ in range(2)]
    step_list = Step(mesh_of_shape((num_devices,)), num_stages, programs, tuple(out.slots), tuple(out.instructions), constants)
    return Pipelined(step_list, modules, arguments)


def by_hand(one: Pipelined, num_steps: int) -> tuple[list[float], list[np.ndarray]]:
    """Losses and final weights of the same training on one device, the batch as a whole."""
    weights = [jnp.asarray(array) for array in one.arguments[: one.num_stages]]
    batch, targets = (jnp.asarray(array).reshape(-1, HIDDEN) for array in one.arguments[one.num_stages :])

    def loss_of(weights: list[jax.Array]) -> jax.Array:
        x = batch
        for w in weights:
            x = layer(w, x)
        return jnp.sum((x - targets) ** 2)

    losses = []
    for _ in range(num_steps):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        losses.append(float(loss))
        weights = [w - RATE * g for w, g in zip(weights, gradients, strict=True)]
    return losses, [np.asarray(w) for w in weights]
