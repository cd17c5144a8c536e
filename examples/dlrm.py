"""DLRM: a recommender of looked-up categories and dense features, which meet in the products of all pairs.

Source: Naumov et al. (2019), section 2. Most parameters are tables of which a step reads few rows; Adam, as in every
example here, updates all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import mlp
import numpy as np
from layers import Params
from training import Model


@dataclass(frozen=True, slots=True)
class DLRMConfig:
    """Sizes of a DLRM: rows of each table of categories, and the hidden layers of both perceptrons.

    The lower one ends in `embed` values, the upper one in a score.
    """

    tables: tuple[int, ...] = (1000,) * 8
    features: int = 13
    embed: int = 64
    lower: tuple[int, ...] = (512, 256)
    upper: tuple[int, ...] = (512, 256)
    batch: int = 2048


PRESETS: Final = {
    # Naumov et al. (2019), section 5.1: 13 dense and 26 categorical features of the Criteo Kaggle data.
    "dlrm-kaggle": DLRMConfig(
        tables=(
            *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
            *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
        ),
        embed=16,
    ),
    # MLPerf training v0.7 to v2.1, recommendation: Criteo's terabyte, tables of at most 40 million rows.
    "dlrm-terabyte": DLRMConfig(
        tables=(
            *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
            *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
        ),
        embed=128,
        upper=(1024, 1024, 512, 256),
        batch=65536,
    ),
}


def init_table(rows: int, embed: int, key: jax.Array) -> jax.Array:
    """Returns a table of categories, uniform within the root of one over its rows (the authors' code)."""
    return jax.random.uniform(key, (rows, embed), jnp.float32, -1.0, 1.0) / math.sqrt(rows)


def init(cfg: DLRMConfig, key: jax.Array) -> Params:
    """Returns the parameters."""
    tables, lower, upper = jax.random.split(key, 3)
    keys, count = jax.random.split(tables, len(cfg.tables)), len(cfg.tables) + 1
    return {
        "tables": [init_table(rows, cfg.embed, k) for rows, k in zip(cfg.tables, keys, strict=True)],
        "lower": mlp.init_layers((cfg.features, *cfg.lower, cfg.embed), lower),
        "upper": mlp.init_layers((cfg.embed + count * (count - 1) // 2, *cfg.upper, 1), upper),
    }


def interact(dense: jax.Array, looked_up: jax.Array) -> jax.Array:
    """Returns `dense` [batch, embed] and the products of each pair of it and `looked_up` [batch, tables, embed]."""
    every = jnp.concatenate([dense[:, None], looked_up], axis=1)
    products = jnp.einsum("bie,bje->bij", every, every)
    one, other = np.tril_indices(every.shape[1], -1)
    return jnp.concatenate([dense, products[:, one, other]], axis=-1)


def loss(cfg: DLRMConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of whether a row was clicked.

    Shapes: `batch["dense"]` [batch, features] (float32), `batch["categories"]` [batch, tables] (int32),
    `batch["clicked"]` [batch] (float32, 0 or 1). Nothing in it is random.
    """
    dense = jax.nn.relu(mlp.forward(0.0, params["lower"], batch["dense"], key))
    rows = [table[batch["categories"][:, at]] for at, table in enumerate(params["tables"])]
    score = mlp.forward(0.0, params["upper"], interact(dense, jnp.stack(rows, axis=1)), key)[:, 0]
    return (jax.nn.softplus(score) - batch["clicked"] * score).mean()


def sample(cfg: DLRMConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random rows, each with a category of each table."""
    key_dense, key_categories, key_clicked = jax.random.split(key, 3)
    shape, rows = (cfg.batch, len(cfg.tables)), jnp.array(cfg.tables, jnp.int32)
    return {
        "dense": jax.random.normal(key_dense, (cfg.batch, cfg.features), jnp.float32),
        "categories": jax.random.randint(key_categories, shape, 0, rows, jnp.int32),
        "clicked": jax.random.bernoulli(key_clicked, 0.5, (cfg.batch,)).astype(jnp.float32),
    }


def model(cfg: DLRMConfig) -> Model:
    """Returns the DLRM as a model to train."""
    return Model("dlrm", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
