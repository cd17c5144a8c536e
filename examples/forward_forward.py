"""A forward-forward learner: each layer has a loss of its own, and no gradient passes between layers.

A layer learns to be active on images that carry their own class, and quiet on images that carry another one. So a step
has no backward pass through the layers: each can be trained as soon as it is reached.

Source: Hinton (2022), "The Forward-Forward Algorithm", sections 2 and 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import mlp
from training import Model


@dataclass(frozen=True, slots=True)
class ForwardForwardConfig:
    """Sizes of the learner: `sizes` are the widths from the input on.

    A layer is undecided about the class where its activity (mean square) is `threshold`.

    The class stands in the first `classes` of the input's values, one of them 1 and the others 0.
    """

    sizes: tuple[int, ...] = (784, 2000, 2000, 2000, 2000)
    classes: int = 10
    threshold: float = 1.0
    batch: int = 128

    def __post_init__(self) -> None:
        if len(self.sizes) < 2:
            raise ValueError(f"sizes {self.sizes} need an input and a layer")
        if self.classes > self.sizes[0]:
            raise ValueError(f"classes ({self.classes}) do not fit into an input of {self.sizes[0]} values")


PRESETS: Final = {
    "forward-forward-mnist": ForwardForwardConfig(),  # Hinton, section 3.3: four layers of 2000, pixels of MNIST
    "forward-forward-wide": ForwardForwardConfig(sizes=(3072, *(16384,) * 8), batch=4096),
}


def carry(cfg: ForwardForwardConfig, x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns the inputs `x` [batch, sizes[0]] with the classes `y` [batch] written into them."""
    return jnp.concatenate([jax.nn.one_hot(y, cfg.classes), x[:, cfg.classes :]], axis=1)


def activity(h: jax.Array) -> jax.Array:
    """Returns the mean square [batch] of a layer's values `h` [batch, width]."""
    return (h * h).mean(-1)


def loss(cfg: ForwardForwardConfig, layers: mlp.Layers, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Sum over layers of the mean logistic loss of telling the right class of `batch["x"]` from a wrong one.

    The right class is `batch["y"]`, the wrong one `batch["wrong"]`.

    Both halves run as one batch. Only the direction of a layer's values goes on, or the next could read off how active
    it was.
    """
    del key
    h = jnp.concatenate([carry(cfg, batch["x"], batch["y"]), carry(cfg, batch["x"], batch["wrong"])])
    sign = jnp.where(jnp.arange(len(h)) < len(h) // 2, -1.0, 1.0)
    total = jnp.zeros(())
    for index, p in enumerate(layers):
        with jax.named_scope(f"layer{index}"):
            h = jax.lax.stop_gradient(h * jax.lax.rsqrt(activity(h) + 1e-6)[:, None])
            h = jax.nn.relu(h @ p["weight"] + p["bias"])
            total = jnp.add(total, jax.nn.softplus(sign * (activity(h) - cfg.threshold)).mean())
    return total


def sample(cfg: ForwardForwardConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random inputs `x` [batch, sizes[0]], classes `y` [batch] (int32), and for each a `wrong` one."""
    key_x, key_y, key_wrong = jax.random.split(key, 3)
    y = jax.random.randint(key_y, (cfg.batch,), 0, cfg.classes, jnp.int32)
    off = jax.random.randint(key_wrong, (cfg.batch,), 1, cfg.classes, jnp.int32)
    return {
        "x": jax.random.normal(key_x, (cfg.batch, cfg.sizes[0]), jnp.float32),
        "y": y,
        "wrong": (y + off) % cfg.classes,
    }


def model(cfg: ForwardForwardConfig) -> Model:
    """Returns the learner as a model to train."""
    return Model("forward-forward", partial(mlp.init_layers, cfg.sizes), partial(loss, cfg), partial(sample, cfg))
