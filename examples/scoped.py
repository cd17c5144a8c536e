"""Models in scopes, as in Whale's listings: a few lines say what is data parallel, and what is split over devices.

What scopes are is in docs/parallelize.md. Source: Whale 3.1.2 (example 2), 5.3.2 (example 5).
"""

from __future__ import annotations

import bert
import jax
import moe
from bert import BERTConfig
from layers import Params, cross_entropy, normal
from moe import MoEConfig
from training import Model

import rhino


def m6(cfg: MoEConfig, body: int | None = None, experts: int | None = None) -> Model:
    """Returns a mixture of experts that is data parallel on `body` devices, with experts on `experts` of them.

    None are all devices.
    """

    @rhino.default_strategy(rhino.replicate(body))
    def loss(params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        return moe.loss(cfg, params, batch, key, feed=rhino.split(experts)(moe.feed))

    return moe.model(cfg)._replace(loss=loss)


def classifier(cfg: BERTConfig, classes: int, body: int | None = None, head: int | None = None) -> Model:
    """Returns a BERT that is data parallel on `body` devices, with a wide classifier that is split over `head`.

    It classifies the first token of each sequence. None are all devices.
    """

    def init(key: jax.Array) -> Params:
        encoder = {name: part for name, part in bert.init(cfg, key).items() if name != "head"}
        return {"encoder": encoder, "classes": normal(jax.random.fold_in(key, 1), cfg.hidden, classes)}

    def loss(params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        with rhino.replicate(body):
            features = bert.encode(cfg, params["encoder"], batch["tokens"], key)[:, 0]
        with rhino.split(head):
            return cross_entropy(features @ params["classes"], batch["labels"]).mean()

    def sample(key: jax.Array) -> dict[str, jax.Array]:
        labels = jax.random.randint(jax.random.fold_in(key, 1), (cfg.batch,), 0, classes)
        return {"tokens": bert.sample(cfg, key)["tokens"], "labels": labels}

    return Model("classifier", init, loss, sample)
