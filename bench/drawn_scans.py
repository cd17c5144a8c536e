"""Draw training steps whose layers are loops, cut them in stages at random, and compare with one device.

What a step does with its layers is drawn: how many there are and in how many loops, over one stack or several, in which
order, with dropout, a carried count or a value of each layer, checkpointed or not, in which dtype, and how the
optimizer reads the stacks. So is how it is cut: stages, micro-batches, schedule, the mesh of a rank, rematerialization,
and for half of the steps of how many iterations each piece of a loop is; for the others that is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from pipelines import Setting, difference, plan, run
from planning import reference

from rhino.strategies.pipeline.schedules import SCHEDULES

Array = jax.Array
Tree = Any
"""Arrays by name, or a state of such."""

WIDTH: Final = 8
BATCH: Final = 8
NUM_STEPS: Final = 2
MOST_DEVICES: Final = 8
_CLUSTER: Final = "cpu8"


@dataclass(frozen=True, slots=True)
class Form:
    """What a step does with its layers: as many in each loop as `loops` says."""

    loops: tuple[int, ...]
    is_shared: bool
    is_reversed: bool
    is_checkpointed: bool
    is_dropped: bool
    is_counted: bool
    gives: bool
    dtype: str
    optimizer: str

    def __str__(self) -> str:
        flags = ("shared", "reversed", "checkpointed", "dropped", "counted")
        said = [name for name in flags if getattr(self, f"is_{name}")]
        return " ".join(["+".join(map(str, self.loops)), *said, *(["gives"] if self.gives else []), self.dtype])


def draw_form(random: np.random.Generator) -> Form:
    """Returns a form of a step."""
    first, second = (int(one) for one in random.integers(2, 8, size=2))
    is_shared = bool(random.integers(2))
    loops = ((first,), (first, first if is_shared else second))[int(random.integers(2))]
    is_reversed, is_checkpointed, is_dropped, is_counted, gives = (bool(one) for one in random.integers(2, size=5))
    dtype = "bf16" if random.integers(4) == 0 else "f32"
    optimizer = str(random.choice(["sgd", "adam", "clipped"]))
    return Form(loops, is_shared, is_reversed, is_checkpointed, is_dropped, is_counted, gives, dtype, optimizer)


def step_of(form: Form) -> bytes:
    """Returns a training step of a form as StableHLO text."""
    state = jax.eval_shape(lambda: _state(form))
    batch = {name: jax.ShapeDtypeStruct((BATCH, size), jnp.float32) for name, size in (("x", 4), ("y", 3))}
    lowered = jax.jit(_step(form), donate_argnums=0, keep_unused=True).lower(state, batch)
    return str(lowered.as_text()).encode()


def _state(form: Form) -> Tree:
    def layers(num: int) -> Tree:
        shapes = {"up": (num, WIDTH, 2 * WIDTH), "down": (num, 2 * WIDTH, WIDTH), "scale": (num, WIDTH)}
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}

    stacks = [layers(num) for num in (form.loops[:1] if form.is_shared else form.loops)]
    params = {"in": jnp.zeros((4, WIDTH)), "stacks": stacks, "out": jnp.zeros((WIDTH, 3))}
    moments = 2 if form.optimizer != "sgd" else 0
    return (params, *[jax.tree.map(jnp.zeros_like, params) for _ in range(moments)])


def _step(form: Form) -> Callable[[Tree, Tree], Tree]:
    def one(carry: Tree, each: Tree) -> Tree:
        (x, number), (p, key) = carry, each
        p = jax.tree.map(lambda leaf: 0.3 * leaf, p)
        x = x + jnp.tanh(x * p["scale"].astype(x.dtype) @ p["up"].astype(x.dtype)) @ p["down"].astype(x.dtype)
        if form.is_dropped:
            x = x * jax.random.bernoulli(key, 0.8, x.shape).astype(x.dtype)
        if form.is_counted:
            x = x * (1 + 0.1 * number).astype(x.dtype)
        return (x, number + 1), jnp.sum(p["scale"] ** 2) if form.gives else None

    body = jax.checkpoint(one) if form.is_checkpointed else one

    def loss(params: Tree, batch: Tree) -> tuple[Array, list[Array | None]]:
        x, given = (batch["x"] @ params["in"]).astype(jnp.bfloat16 if form.dtype == "bf16" else jnp.float32), []
        for place, num in enumerate(form.loops):
            keys = jax.random.split(jax.random.key(place), num)
            stacks = params["stacks"][0 if form.is_shared else place]
            is_back = form.is_reversed and place == 0
            (x, _), of_layers = jax.lax.scan(body, (x, jnp.float32(0)), (stacks, keys), reverse=is_back)
            given.append(of_layers)
        return jnp.mean((x.astype(jnp.float32) @ params["out"] - batch["y"]) ** 2), given

    def step(state: Tree, batch: Tree) -> Tree:
        params, *moments = state
        (value, given), grads = jax.value_and_grad(loss, has_aux=True)(params, batch)
        if form.optimizer == "clipped":
            norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / (norm + 1e-3)), grads)
        if not moments:
            return (jax.tree.map(lambda p, g: p - 0.01 * g, params, grads),), (value, given)
        mean, square = moments
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, grads)
        params = jax.tree.map(lambda p, m, v: p - 0.01 * m / (jnp.sqrt(jnp.abs(v)) + 0.1), params, mean, square)
        return (params, mean, square), (value, given)

    return step


def draw_setting(random: np.random.Generator, form: Form) -> Setting:
    """Returns how a step of a form is cut, for at most `MOST_DEVICES` devices."""
    schedule = str(random.choice(list(SCHEDULES)))
    chunks = SCHEDULES[schedule].stages_per_rank
    ranks = int(random.integers(2, 5))
    mesh = int(random.choice([one for one in (1, 2, 4) if ranks * one <= MOST_DEVICES]))
    micro_batches = ranks if chunks > 1 and BATCH % ranks == 0 else int(random.choice([2, 4]))
    if chunks > 1 and micro_batches % ranks:
        schedule, chunks = "1f1b", 1
    counts = ""
    if random.integers(2):
        cuts = np.flatnonzero(random.integers(2, size=form.loops[0] - 1)) + 1
        counts = ";".join(str(count) for count in np.diff([0, *cuts, form.loops[0]]))
    stages = ranks * chunks
    of_stages = ";".join(str(share) for share in random.choice([0, 0.5, 1], size=stages))
    remat = str(random.choice(["", "0.5", "1", of_stages]))
    return Setting(stages, micro_batches, schedule, str(mesh), _CLUSTER, counts=counts, remat=remat, ranks=ranks)


def try_scan(form: Form, setting: Setting) -> tuple[bool, str]:
    """Returns whether a step gives the results of one device in some steps, and how far the worst is from them."""
    name = f"scan-{form.dtype}"
    text = step_of(form)
    expected = reference(text, name, NUM_STEPS)
    made = plan(text, name, setting)
    found = difference(made, run(made, expected.inputs, NUM_STEPS), expected, name)
    pieces = sum(one.rows is not None for one in made.plan.arguments)
    return found.passes, f"{pieces} arguments are pieces; worst relative error {found.max_rel:.1e}"


def drawn(seed: int) -> tuple[Form, Setting]:
    """Returns the form and the cut of a seed."""
    random = np.random.default_rng(seed)
    form = draw_form(random)
    return form, draw_setting(random, form)
