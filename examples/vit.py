"""Vision transformer (ViT): an image as a sequence of patches, classified by a token of its own.

Source: Dosovitskiy et al. (2021), section 3.1 and table 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from convnet import sample_images
from layers import Params, cross_entropy, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, block, init_block, init_layers, run_layers


@dataclass(frozen=True, slots=True)
class ViTConfig:
    """Sizes of a ViT: an image of `image` squared pixels is cut in patches of `patch` squared.

    `scan` rolls the layers into one loop.
    """

    image: int = 224
    patch: int = 16
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    ffn: int = 3072
    classes: int = 1000
    batch: int = 128
    dropout: float = 0.0
    scan: bool = False

    def __post_init__(self) -> None:
        if self.image % self.patch:
            raise ValueError(f"image ({self.image}) is not divisible by patch ({self.patch})")
        _ = self.block  # Made here so that bad sizes are refused here.

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer."""
        return BlockConfig(self.hidden, self.heads, self.ffn, self.dropout, causal=False)

    @property
    def seq(self) -> int:
        """The length of the sequence: the patches, and the token in front of them."""
        return 1 + (self.image // self.patch) ** 2


# Dosovitskiy et al., table 1: 86, 307 and 632 million parameters; the batch is that of section 4.1.
PRESETS: Final = {
    "vit-b16": ViTConfig(batch=4096),
    "vit-l16": ViTConfig(layers=24, hidden=1024, heads=16, ffn=4096, batch=4096),
    "vit-h14": ViTConfig(patch=14, layers=32, hidden=1280, heads=16, ffn=5120, batch=4096),
}


def init_encoder(cfg: ViTConfig, key: jax.Array) -> Params:
    """Returns the parameters of `encode`."""
    patches, token, positions, layers = jax.random.split(key, 4)
    return {
        "patches": normal(patches, 3 * cfg.patch**2, cfg.hidden),
        "token": normal(token, cfg.hidden),
        "positions": normal(positions, cfg.seq, cfg.hidden),
        "layers": init_layers(partial(init_block, cfg.block), cfg.layers, layers, cfg.scan),
        "final": init_norm(cfg.hidden),
    }


def cut(patch: int, images: jax.Array) -> jax.Array:
    """Cuts `images` [batch, image, image, 3] in patches [batch, patches, pixels]."""
    batch, image, _, colors = images.shape
    side = image // patch
    tiles = images.reshape(batch, side, patch, side, patch, colors).transpose(0, 1, 3, 2, 4, 5)
    return tiles.reshape(batch, side * side, patch * patch * colors)


def encode(cfg: ViTConfig, p: Params, images: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `images` [batch, image, image, 3] to [batch, hidden].

    The result is the output at the class token, which stands in front of the patches.
    """
    x = cut(cfg.patch, images) @ p["patches"]
    token = jnp.broadcast_to(p["token"], (len(x), 1, cfg.hidden))
    x = jnp.concatenate([token, x], axis=1) + p["positions"]
    x = run_layers(partial(block, cfg.block), x, p["layers"], cfg.layers, key)
    return layer_norm(p["final"], x[:, 0])


def init(cfg: ViTConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    encoder, head = jax.random.split(key)
    return {
        "encoder": init_encoder(cfg, encoder),
        "head": {"weight": normal(head, cfg.hidden, cfg.classes), "bias": jnp.zeros(cfg.classes)},
    }


def loss(cfg: ViTConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of the images `batch["x"]` against the classes `batch["y"]`."""
    head = params["head"]
    logits = encode(cfg, params["encoder"], batch["x"], key) @ head["weight"] + head["bias"]
    return cross_entropy(logits, batch["y"]).mean()


def model(cfg: ViTConfig) -> Model:
    """Returns the ViT as a model to train."""
    return Model(
        "vit", partial(init, cfg), partial(loss, cfg), partial(sample_images, cfg.batch, cfg.image, cfg.classes)
    )
