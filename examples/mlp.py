"""Multi-layer perceptron with dropout: a classifier (cross entropy) or a regressor (mean squared error)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Literal

import jax
import jax.numpy as jnp
from layers import cross_entropy, dropout, he_normal
from training import Model

Layers = list[dict[str, jax.Array]]


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Sizes of a perceptron: `sizes` are the widths from the input to the output (classes or regressed values)."""

    sizes: tuple[int, ...] = (1024, 4096, 4096, 1024)
    task: Literal["classify", "regress"] = "classify"
    batch: int = 256
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if len(self.sizes) < 2:
            raise ValueError(f"sizes {self.sizes} need an input and an output width")


PRESETS: Final = {
    # Nearly all of it is one matrix: split that one.
    "mlp-100k-classes": MLPConfig(sizes=(2048, 2048, 100_000), dropout=0.0),
    "mlp-deep": MLPConfig(sizes=(2048,) * 33, task="regress", batch=1024),
}


def init_layers(sizes: tuple[int, ...], key: jax.Array) -> Layers:
    """Returns weights that keep the scale through ReLU, and zero biases."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"weight": he_normal(k, m, n), "bias": jnp.zeros(n)} for k, (m, n) in zip(keys, pairwise(sizes), strict=True)
    ]


def forward(rate: float, layers: Layers, x: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `x` [batch, sizes[0]] to [batch, sizes[-1]]: ReLU, then dropout, between layers."""
    keys = jax.random.split(key, len(layers))
    for index, layer in enumerate(layers):
        if index:
            x = dropout(rate, keys[index], jax.nn.relu(x))
        with jax.named_scope(f"layer{index}"):
            x = x @ layer["weight"] + layer["bias"]
    return x


def loss(cfg: MLPConfig, layers: Layers, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy, or half the mean squared error, of `batch["x"]` against `batch["y"]`."""
    outputs = forward(cfg.dropout, layers, batch["x"], key)
    if cfg.task == "regress":
        return jnp.mean((outputs - batch["y"]) ** 2) / 2
    return cross_entropy(outputs, batch["y"]).mean()


def sample(cfg: MLPConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random inputs `x` [batch, sizes[0]] and labels `y` [batch] (int32), or values `y` [batch, sizes[-1]]."""
    key_x, key_y = jax.random.split(key)
    x = jax.random.normal(key_x, (cfg.batch, cfg.sizes[0]), jnp.float32)
    if cfg.task == "regress":
        return {"x": x, "y": jax.random.normal(key_y, (cfg.batch, cfg.sizes[-1]), jnp.float32)}
    return {"x": x, "y": jax.random.randint(key_y, (cfg.batch,), 0, cfg.sizes[-1], jnp.int32)}


def model(cfg: MLPConfig) -> Model:
    """Returns the perceptron as a model to train."""
    return Model("mlp", partial(init_layers, cfg.sizes), partial(loss, cfg), partial(sample, cfg))
