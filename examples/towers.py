"""Many towers, one for each kind of input, that meet in one loss: a deep model whose graph is no line.

Each tower is a transformer over tokens of its own, and each is trained to tell apart the partners of the first one's
rows, as ImageBind does (Girdhar et al., 2023, section 3.2). No two towers have the same width and sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import Params
from training import Model
from two_tower import LOG_SCALE, TwoTowerConfig, contrast, encode_tokens, init_tokens, unit


@dataclass(frozen=True, slots=True)
class TowersConfig:
    """Sizes of the towers: `hiddens` and `seqs`, one for each, and `layers` in each; all end in `embed` values."""

    hiddens: tuple[int, ...] = (512, 256)
    seqs: tuple[int, ...] = (64, 32)
    layers: int = 2
    head: int = 64
    vocab: int = 32000
    embed: int = 512
    batch: int = 256
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if len(self.hiddens) != len(self.seqs) or len(self.seqs) < 2:
            raise ValueError(f"hiddens {self.hiddens} and seqs {self.seqs} must be one for each of two towers or more")
        _ = [tower.block for tower in self.towers]  # Made here so that bad sizes are refused here.

    @property
    def towers(self) -> tuple[TwoTowerConfig, ...]:
        """The sizes of each tower; feed-forward layers are four times as wide."""
        return tuple(
            TwoTowerConfig(
                vocab=self.vocab,
                seq=seq,
                layers=self.layers,
                hidden=hidden,
                heads=max(hidden // self.head, 1),
                ffn=4 * hidden,
                embed=self.embed,
                batch=self.batch,
                dropout=self.dropout,
            )
            for hidden, seq in zip(self.hiddens, self.seqs, strict=True)
        )


PRESETS: Final = {
    # A hundred layers and more, of the sizes of transformers for texts, images, sounds and the like.
    "towers-8": TowersConfig(
        hiddens=(1280, 1024, 1024, 768, 768, 512, 512, 384), seqs=(256, 256, 64, 192, 128, 128, 96, 64), layers=13
    ),
}


def init(cfg: TowersConfig, key: jax.Array) -> Params:
    """Returns the parameters of all towers and of the softmax's temperature."""
    keys = jax.random.split(key, len(cfg.towers))
    towers = [init_tokens(tower, k) for tower, k in zip(cfg.towers, keys, strict=True)]
    return {"towers": towers, "log_scale": jnp.float32(LOG_SCALE)}


def loss(cfg: TowersConfig, params: Params, batch: list[jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of finding the first tower's partner of each row of the others; `batch` has [batch, seq]s."""
    ends = []
    for at, (tower, p, tokens) in enumerate(zip(cfg.towers, params["towers"], batch, strict=True)):
        with jax.named_scope(f"tower{at}"):
            ends.append(unit(encode_tokens(tower, p, tokens, jax.random.fold_in(key, at))))
    losses = [contrast(ends[0], end, params["log_scale"]) for end in ends[1:]]
    return jnp.stack(losses).mean()


def sample(cfg: TowersConfig, key: jax.Array) -> list[jax.Array]:
    """Returns random tokens of each tower, [batch, seq] (int32)."""
    keys = jax.random.split(key, len(cfg.seqs))
    return [
        jax.random.randint(k, (cfg.batch, seq), 0, cfg.vocab, jnp.int32) for k, seq in zip(keys, cfg.seqs, strict=True)
    ]


def model(cfg: TowersConfig) -> Model:
    """Returns the towers as a model to train."""
    return Model("towers", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
