"""Draw training steps with fused projections, store them as blocks, and compare plans drawn at random with one device.

What a step does is drawn: which projections its layers have (queries, keys and values; those of grouped queries, whose
blocks differ in size; gates with hidden features; the gates of a recurrent cell; weights that are concatenated in the
step), in a loop or not, with a bias or not, with dropout, checkpointed or not, and its optimizer. One program is
viewed for the devices of a mesh, and then has a plan that nobody would choose (`drawn_plans.py`). In stages it is
viewed too, or in a loop as the planner chooses; the stages, micro-batches, schedule and mesh are drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from drawn_plans import drawable, one_device
from pipelines import Setting, difference, plan, run
from planning import reference, sharded

from rhino.ir.cluster.mesh import parse_mesh
from rhino.strategies.layout.blocked_views import Views
from rhino.strategies.pipeline.schedules import SCHEDULES
from rhino.tools.first_difference import first_difference

Array = jax.Array
Tree = Any
"""Arrays by name, or a state of such."""

WIDTH: Final = 24
HEADS: Final = 12
BATCH: Final = 8
SEQ: Final = 4
NUM_STEPS: Final = 2
_CLUSTER: Final = "cpu8"


def _softmax_of(queries: Array, keys: Array, values: Array) -> Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), values).reshape(*queries.shape[:2], -1)


def _heads(x: Array, num: int) -> Array:
    return x.reshape(*x.shape[:2], num, -1)


def _attention(y: Array) -> Array:
    return _softmax_of(*(_heads(part, HEADS) for part in jnp.split(y, 3, axis=-1)))


def _grouped(y: Array) -> Array:
    queries, keys, values = jnp.split(y, (2 * WIDTH, 3 * WIDTH), axis=-1)
    keys, values = (jnp.repeat(_heads(part, HEADS), 2, axis=2) for part in (keys, values))
    return _softmax_of(_heads(queries, 2 * HEADS), keys, values)


def _gated(y: Array) -> Array:
    gate, up = jnp.split(y, 2, axis=-1)
    return jax.nn.silu(gate) * up


def _cell(y: Array) -> Array:
    take, forget, give, new = jnp.split(y, 4, axis=-1)

    def one(state: Array, each: tuple[Array, ...]) -> tuple[Array, Array]:
        state = jax.nn.sigmoid(each[1]) * state + jax.nn.sigmoid(each[0]) * jnp.tanh(each[3])
        return state, jax.nn.sigmoid(each[2]) * jnp.tanh(state)

    moved = tuple(jnp.moveaxis(part, 1, 0) for part in (take, forget, give, new))
    return jnp.moveaxis(jax.lax.scan(one, jnp.zeros_like(take[:, 0]), moved)[1], 0, 1)


KINDS: Final[dict[str, tuple[tuple[int, ...], Callable[[Array], Array]]]] = {
    "attention": ((WIDTH,) * 3, _attention),
    "grouped": ((2 * WIDTH, WIDTH, WIDTH), _grouped),
    "gated": ((2 * WIDTH,) * 2, _gated),
    "cell": ((WIDTH,) * 4, _cell),
}
"""The widths of the blocks of a projection, and what is made of its result."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a step does: the kinds of each layer's projections, and how often the layer is there."""

    kinds: tuple[str, ...]
    num_layers: int
    is_scanned: bool
    is_biased: bool
    is_dropped: bool
    is_checkpointed: bool
    is_joined: bool
    optimizer: str

    def __str__(self) -> str:
        flags = ("scanned", "biased", "dropped", "checkpointed", "joined")
        said = [name for name in flags if getattr(self, f"is_{name}")]
        return " ".join([f"{self.num_layers} x {'+'.join(self.kinds)}", *said, self.optimizer])


def draw_form(random: np.random.Generator) -> Form:
    """Returns a form of a step."""
    kinds = tuple(str(one) for one in random.choice(list(KINDS), size=random.integers(1, 3), replace=False))
    scanned, biased, dropped, checkpointed, joined = (bool(one) for one in random.integers(2, size=5))
    optimizer = str(random.choice(["sgd", "adam", "clipped"]))
    return Form(kinds, int(random.integers(1, 4)), scanned, biased, dropped, checkpointed, joined, optimizer)


def step_of(form: Form) -> bytes:
    """Returns a training step of a form as StableHLO text."""
    state = jax.eval_shape(lambda: _state(form))
    batch = jax.ShapeDtypeStruct((BATCH, SEQ, WIDTH), jnp.float32)
    return str(jax.jit(_step(form), donate_argnums=0, keep_unused=True).lower(state, batch).as_text()).encode()


def _state(form: Form) -> Tree:
    layer: dict[str, Array] = {}
    for kind in form.kinds:
        blocks, _ = KINDS[kind]
        widths = blocks if form.is_joined else (sum(blocks),)
        layer |= {f"{kind}{n}": jnp.zeros((WIDTH, width)) for n, width in enumerate(widths)}
        layer[f"{kind}_bias"], layer[f"{kind}_out"] = jnp.zeros(sum(blocks)), jnp.zeros((blocks[0], WIDTH))
    stack = form.num_layers
    layers = jax.tree.map(lambda leaf: jnp.zeros((stack, *leaf.shape)), layer) if form.is_scanned else [layer] * stack
    return (layers, *[layers] * (0 if form.optimizer == "sgd" else 1))


def _step(form: Form) -> Callable[[Tree, Tree], Tree]:
    def layer(x: Array, each: tuple[Tree, Array]) -> tuple[Array, None]:
        p, key = each
        p = jax.tree.map(lambda leaf: 0.2 * leaf, p)
        for number, kind in enumerate(form.kinds):
            blocks, made = KINDS[kind]
            own = jax.random.fold_in(key, number)
            names = [f"{kind}{n}" for n in range(len(blocks) if form.is_joined else 1)]
            y = x @ jnp.concatenate([p[name] for name in names], axis=1)
            y = y + p[f"{kind}_bias"] if form.is_biased else y
            # In a loop the bits of a mask are made of what the loop reads, and would be moved to be seen as blocks.
            if form.is_dropped and not form.is_scanned:
                y = y * jax.random.bernoulli(own, 0.8, y.shape)
            z = made(y) @ p[f"{kind}_out"]
            x = x + (z * jax.random.bernoulli(own, 0.8, z.shape) if form.is_dropped else z)
        return x, None

    body = jax.checkpoint(layer) if form.is_checkpointed else layer

    def loss(params: Tree, batch: Array) -> Array:
        keys = jax.random.split(jax.random.key(0), form.num_layers)
        if form.is_scanned:
            batch, _ = jax.lax.scan(body, batch, (params, keys))
        else:
            for number, one in enumerate(params):
                batch, _ = body(batch, (one, keys[number]))
        return jnp.mean(batch**2)

    def step(state: Tree, batch: Tree) -> Tree:
        params, *moments = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        if form.optimizer == "clipped":
            norm = jnp.sqrt(sum((g * g).sum() for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.5 / (norm + 1e-3)), grads)
        if not moments:
            return (jax.tree.map(lambda p, g: p - 0.01 * g, params, grads),), value
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
        return (jax.tree.map(lambda p, m: p - 0.01 * m / (0.1 + jnp.abs(m)), params, mean), mean), value

    return step


def draw_setting(random: np.random.Generator, form: Form) -> Setting:
    """Returns how a step of a form is cut."""
    schedule = str(random.choice([name for name, one in SCHEDULES.items() if one.stages_per_rank == 1]))
    ranks, mesh = ((2, 2), (2, 4), (3, 2))[int(random.integers(3 if form.num_layers > 2 else 2))]
    remat = "0.5" if random.integers(4) == 0 else ""
    return Setting(ranks, int(random.choice([2, 4])), schedule, str(mesh), _CLUSTER, remat=remat, ranks=ranks)


def try_viewed(form: Form, seed: int, mood: str, mesh: str) -> tuple[bool, str]:
    """Returns whether a viewed step under a random plan gives the results of one device, and a line about it."""
    text, name = step_of(form), f"fused-{seed}"
    parts = prod(parse_mesh(mesh).shape)
    module, remarks = sharded(text, name, f"rhino-normalize,rhino-materialize-strides{{parts={parts}}}")
    drawn = drawable(str(module), mesh)
    chosen = drawn.plan(seed, mood)
    expected = one_device(text.decode())
    found = expected.difference(chosen, drawn.module, own_collectives=True)
    regions = len(remarks.result(Views).regions)
    if not regions:
        return False, "nothing is viewed"
    line = f"{regions} regions; worst result {found.value.label}, relative error {found.max_rel:.2g}"
    if found.passes:
        return True, line
    verdict = first_difference(drawn.module, expected.inputs, jax.devices()[:parts], None)
    return verdict.is_rounding, f"{line}: {verdict.note}"


def try_staged(form: Form, setting: Setting) -> tuple[bool, str]:
    """Returns whether a step in stages gives the results of one device in some steps, and a line about it.

    It is viewed, but for one whose loop stages cut: in that the planner chooses.
    """
    name, text = "fused", step_of(form)
    expected = reference(text, name, NUM_STEPS)
    if not form.is_scanned:
        parts = prod(parse_mesh(setting.mesh).shape)
        viewed, _ = sharded(text, name, f"rhino-normalize,rhino-materialize-strides{{parts={parts}}}")
        text = str(viewed).encode()
    made = plan(text, name, setting)
    found = difference(made, run(made, expected.inputs, NUM_STEPS), expected, name)
    num_viewed = sum(bool(one.viewed) for one in made.plan.arguments)
    return found.passes, f"{num_viewed} arguments as blocks; worst relative error {found.max_rel:.1e}"


def drawn(seed: int) -> tuple[Form, Setting]:
    """Returns the form and the cut of a seed."""
    random = np.random.default_rng(seed)
    form = draw_form(random)
    return form, draw_setting(random, form)
