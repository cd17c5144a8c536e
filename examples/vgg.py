"""VGG19 (convolutions, then a wide classifier), up to the million classes of Rhino 7.4.

The convolutions compute nearly everything and the last layer holds nearly every parameter: each wants another way to be
split.

Source: Simonyan and Zisserman (2014), table 1, column E.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import jax
import jax.numpy as jnp
import mlp
from convnet import conv, max_pool, sample_images
from layers import Params, cross_entropy, he_normal
from training import Model


@dataclass(frozen=True, slots=True)
class VGGConfig:
    """Sizes of a VGG: `channels` and `convs` (number of convolutions) of each stage, and `hidden` of the classifier.

    Both layers before the classifier have the width `hidden`.
    """

    channels: tuple[int, ...] = (64, 128, 256, 512, 512)
    convs: tuple[int, ...] = (2, 2, 4, 4, 4)
    hidden: int = 4096
    classes: int = 1000
    image: int = 224
    batch: int = 128
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.convs):
            raise ValueError(f"channels {self.channels} and convs {self.convs} are not of one length")
        if self.image % 2 ** len(self.convs):
            raise ValueError(f"image ({self.image}) cannot be halved {len(self.convs)} times")

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels from the image through every convolution."""
        return (3, *(width for width, num in zip(self.channels, self.convs, strict=True) for _ in range(num)))

    @property
    def classifier(self) -> tuple[int, ...]:
        """The widths of the fully connected layers, from the last image on."""
        return self.channels[-1] * (self.image >> len(self.convs)) ** 2, self.hidden, self.hidden, self.classes


PRESETS: Final = {
    "vgg-1m-classes": VGGConfig(classes=1_000_000),  # Rhino 7.4 and Table 3: batch 128 a device.
}


def init(cfg: VGGConfig, key: jax.Array) -> Params:
    """Returns the parameters."""
    key_convs, key_classifier = jax.random.split(key)
    keys = jax.random.split(key_convs, sum(cfg.convs))
    return {
        "convs": [
            {"weight": he_normal(k, 3, 3, m, n), "bias": jnp.zeros(n)}
            for k, (m, n) in zip(keys, pairwise(cfg.widths), strict=True)
        ],
        "classifier": mlp.init_layers(cfg.classifier, key_classifier),
    }


def features(cfg: VGGConfig, convs: list[Params], x: jax.Array) -> jax.Array:
    """Maps images `x` [batch, image, image, 3] to [batch, features]."""
    layers = iter(convs)
    for stage, num in enumerate(cfg.convs):
        with jax.named_scope(f"stage{stage}"):
            for _ in range(num):
                p = next(layers)
                x = jax.nn.relu(conv(x, p["weight"]) + p["bias"])
            x = max_pool(x, 2, 2)
    return x.reshape(len(x), -1)


def loss(cfg: VGGConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of the images `batch["x"]` against the classes `batch["y"]`."""
    x = features(cfg, params["convs"], batch["x"])
    with jax.named_scope("classifier"):
        logits = mlp.forward(cfg.dropout, params["classifier"], x, key)
    return cross_entropy(logits, batch["y"]).mean()


def model(cfg: VGGConfig) -> Model:
    """Returns the VGG as a model to train."""
    return Model(
        "vgg", partial(init, cfg), partial(loss, cfg), partial(sample_images, cfg.batch, cfg.image, cfg.classes)
    )
