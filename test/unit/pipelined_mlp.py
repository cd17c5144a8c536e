"""A training step of an MLP in stages, one layer each, under any schedule: plain SGD on the sum of squares."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from rhino.ir.cluster.mesh import mesh_of_shape
from rhino.ir.plan.instructions import Layout, Step, StepProgram
from rhino.ir.plan.stage_programs import MICRO_BATCH, Argument, StagedStep, StageProgram
from rhino.strategies.pipeline.assemble import assemble
from rhino.strategies.pipeline.schedules import SCHEDULES, Pipeline, make_order

HIDDEN, RATE = 8, 0.002


@dataclass
class Pipelined:
    """Arguments of the step: the weights, the batch, the targets. Results: the loss, the weights."""

    step: Step
    modules: dict[str, str]
    arguments: list[np.ndarray]
    num_stages: int


def layer(w, x):
    return jnp.tanh(x @ w)


def at(batch, i):
    return jax.lax.dynamic_index_in_dim(batch, i, keepdims=False)


def inner(w, x, gy):
    """The gradient before the non-linearity."""
    y = layer(w, x)
    return gy * (1 - y * y)


def backward(w, x, gy, total):
    gz = inner(w, x, gy)
    return gz @ w.T, total + x.T @ gz


def input_gradient(w, x, gy):
    gz = inner(w, x, gy)
    return gz @ w.T, gz


def weight_gradient(x, gz, total):
    return (total + x.T @ gz,)


def error(w, x, targets, i, loss):
    difference = layer(w, x) - at(targets, i)
    return 2 * difference, loss + jnp.sum(difference**2)


def last(w, x, targets, i, total, loss):
    gy, loss = error(w, x, targets, i, loss)
    return *backward(w, x, gy, total), loss


def last_input_gradient(w, x, targets, i, loss):
    gy, loss = error(w, x, targets, i, loss)
    return *input_gradient(w, x, gy), loss


FUNCTIONS: dict[str, tuple[Callable, str, str, tuple[tuple[int, int], ...]]] = {
    # What each program does, its arguments and results as letters (see `layouts`), and what it donates.
    "start": (lambda: (jnp.zeros((HIDDEN, HIDDEN)),), "", "w", ()),
    "start-last": (lambda: (jnp.zeros((HIDDEN, HIDDEN)), jnp.zeros(())), "", "wl", ()),
    "forward-first": (lambda w, batch, i: (layer(w, at(batch, i)),), "wbi", "x", ()),
    "forward": (lambda w, x: (layer(w, x),), "wx", "x", ()),
    "last": (last, "wxbiwl", "xwl", ((4, 1), (5, 2))),
    "last-inputs": (last_input_gradient, "wxbil", "xxl", ((4, 2),)),
    "backward": (backward, "wxxw", "xw", ((3, 1),)),
    "backward-first": (lambda w, b, i, gy, total: backward(w, at(b, i), gy, total)[1:], "wbixw", "w", ((4, 0),)),
    "inputs": (input_gradient, "wxx", "xx", ()),
    "weights": (weight_gradient, "xxw", "w", ((2, 0),)),
    "apply": (lambda w, total: (w - RATE * total,), "ww", "w", ((0, 0),)),
}
NUMBERS = {name: number for number, name in enumerate(FUNCTIONS)}


def layouts(num_micro_batches: int, num_devices: int, micro_batch: int) -> dict[str, Layout]:
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
    jitted = jax.jit(
        function, in_shardings=tuple(map(place, inputs)), out_shardings=tuple(map(place, outputs)), keep_unused=True
    )
    return jitted.lower(*(jax.ShapeDtypeStruct(of[one].shape, types[of[one].dtype]) for one in inputs)).as_text()


@dataclass
class Parts:
    parts: list[StageProgram] = field(default_factory=list)

    def add(self, phase: str, stage: int, name: str, reads: str, gives: str) -> None:
        """Names in words; `mb` is the micro-batch's number."""
        read = tuple(MICRO_BATCH if one == "mb" else one for one in reads.split())
        self.parts.append(StageProgram(phase, stage, NUMBERS[name], read, tuple(gives.split())))


def parts_of(num_stages: int, split: bool) -> tuple[StageProgram, ...]:
    out, final = Parts(), num_stages - 1
    for s in range(num_stages):
        out.add(
            "setup", s, "start-last" if s == final else "start", "", f"total{s} loss" if s == final else f"total{s}"
        )
    out.add("forward", 0, "forward-first", "w0 batch mb", "x1")
    for s in range(1, final):
        out.add("forward", s, "forward", f"w{s} x{s}", f"x{s + 1}")
    for s in range(final, 0, -1):
        if not split:
            if s == final:
                out.add("backward", s, "last", f"w{s} x{s} targets mb total{s} loss", f"g{s} total{s} loss")
            else:
                out.add("backward", s, "backward", f"w{s} x{s} g{s + 1} total{s}", f"g{s} total{s}")
            continue
        if s == final:
            out.add("input-gradient", s, "last-inputs", f"w{s} x{s} targets mb loss", f"g{s} z{s} loss")
        else:
            out.add("input-gradient", s, "inputs", f"w{s} x{s} g{s + 1}", f"g{s} z{s}")
        out.add("weight-gradient", s, "weights", f"x{s} z{s} total{s}", f"total{s}")
    out.add("weight-gradient" if split else "backward", 0, "backward-first", "w0 batch mb g1 total0", "total0")
    for s in range(num_stages):
        out.add("apply", s, "apply", f"w{s} total{s}", f"new{s}")
    return tuple(out.parts)


@cache
def pipelined(
    num_stages: int, num_micro_batches: int, num_devices: int = 1, schedule: str = "1f1b", chunks: int = 1
) -> Pipelined:
    """The step on `num_stages / chunks` ranks of `num_devices` each."""
    assert num_stages >= 2
    of = layouts(num_micro_batches, num_devices, 4)
    programs = tuple(
        StepProgram(name, f"{name}.mlir", tuple(of[one] for one in inputs), tuple(of[one] for one in outputs), donated)
        for name, (_, inputs, outputs, donated) in FUNCTIONS.items()
    )
    arguments = (
        *(Argument(f"w{s}", of["w"], consumed=True) for s in range(num_stages)),
        *(Argument(name, of["b"]) for name in ("batch", "targets")),
    )
    results = ("loss", *(f"new{s}" for s in range(num_stages)))
    parts = parts_of(num_stages, SCHEDULES[schedule].splits_backward)
    staged = StagedStep(
        (mesh_of_shape((num_devices,)),) * num_stages, num_micro_batches, programs, parts, arguments, results
    )
    step = assemble(staged, make_order(schedule, Pipeline(num_stages, num_micro_batches, chunks)))
    random = np.random.default_rng(0)
    values = [random.normal(size=(HIDDEN, HIDDEN)).astype(np.float32) / 3 for _ in range(num_stages)]
    values += [random.normal(size=of["b"].shape).astype(np.float32) for _ in range(2)]
    return Pipelined(step, {f"{name}.mlir": lower(name, of, num_devices) for name in FUNCTIONS}, values, num_stages)


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
