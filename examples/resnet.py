"""ResNet and Wide-ResNet (bottleneck blocks), from ResNet50 with 100,000 classes to the sizes of Rhino Table 4.

Source: He et al. (2015), section 4.1, with the stride in the 3x3 convolution. A width factor widens that convolution
alone, as in Alpa's Wide-ResNets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

import jax
import jax.numpy as jnp
from convnet import batch_norm, conv, max_pool, sample_images
from layers import Params, cross_entropy, he_normal, init_norm, normal
from training import Model

EXPANSION: Final = 4  # of channels at the end of a block (He et al., section 4.1)


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Sizes of a ResNet: `blocks` of each stage, `channels` of the first one, doubled from stage to stage."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    channels: int = 64
    width_factor: int = 1
    classes: int = 1000
    image: int = 224
    batch: int = 128

    def __post_init__(self) -> None:
        if self.image % 2 ** (len(self.blocks) + 1):
            raise ValueError(f"image ({self.image}) cannot be halved {len(self.blocks) + 1} times")

    @property
    def stages(self) -> tuple[int, ...]:
        """The stage of each block."""
        return tuple(stage for stage, num in enumerate(self.blocks) for _ in range(num))

    @property
    def strides(self) -> tuple[int, ...]:
        """The stride of each block: the first of every stage but stage 0 halves the image."""
        firsts = set(accumulate(self.blocks))
        return tuple(2 if index in firsts else 1 for index in range(sum(self.blocks)))

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels before, between and after the blocks."""
        return (self.channels, *(EXPANSION * self.channels << stage for stage in self.stages))


RESNET101: Final = (3, 4, 23, 3)

PRESETS: Final = {
    # Whale 5.1.2: the batch is 128 a device, the last layer holds most of the parameters.
    "resnet50-100k-classes": ResNetConfig(classes=100_000),
    "resnet50-1m-classes": ResNetConfig(classes=1_000_000),
    # Rhino Table 4 (layers, channels, width factor, batch), with Alpa's block and classes. They give Alpa's numbers of
    # parameters, which are lower than Rhino's: 1.0, 2.0, 4.0 and 9.6 B. The paper does not say what its blocks are, and
    # no block gives its numbers: from 320 to 640 channels, all else equal, parameters grow fourfold at most, and the
    # table has 1.3 and 6 B.
    "wr-1.3b": ResNetConfig(channels=320, width_factor=2, classes=1024, batch=4),
    "wr-2.6b": ResNetConfig(channels=448, width_factor=2, classes=1024, batch=4),
    "wr-6b": ResNetConfig(channels=640, width_factor=2, classes=1024, batch=4),
    "wr-12b": ResNetConfig(RESNET101, channels=320, width_factor=12, classes=1024, batch=4),
    # Alpa's and Aceso's other sizes.
    "wr-0.5b": ResNetConfig(channels=224, width_factor=2, classes=1024, batch=1536),
    "wr-6.8b": ResNetConfig(channels=320, width_factor=16, classes=1024, batch=1536),
    "wr-13b": ResNetConfig(RESNET101, channels=320, width_factor=16, classes=1024, batch=1536),
}


def init_conv(key: jax.Array, *shape: int) -> Params:
    """Returns the weights of a convolution [*window, in, out] and the norm after it."""
    return {"weight": he_normal(key, *shape), "norm": init_norm(shape[-1])}


def conv_norm(p: Params, x: jax.Array, stride: int = 1) -> jax.Array:
    """A convolution of `x` [batch, height, width, channels], then a norm over the batch."""
    return batch_norm(p["norm"], conv(x, p["weight"], stride))


def init_block(cfg: ResNetConfig, index: int, key: jax.Array) -> Params:
    """Returns the parameters of one block; its input is projected where its output has another shape."""
    inner, before, after = cfg.channels << cfg.stages[index], cfg.widths[index], cfg.widths[index + 1]
    wide = inner * cfg.width_factor
    reduce, middle, expand, project = jax.random.split(key, 4)
    convs = {
        "reduce": init_conv(reduce, 1, 1, before, inner),
        "middle": init_conv(middle, 3, 3, inner, wide),
        "expand": init_conv(expand, 1, 1, wide, after),
    }
    return convs if before == after else convs | {"project": init_conv(project, 1, 1, before, after)}


def block(x: jax.Array, p: Params, stride: int) -> jax.Array:
    """One bottleneck block over `x` [batch, height, width, channels]."""
    y = jax.nn.relu(conv_norm(p["reduce"], x))
    y = jax.nn.relu(conv_norm(p["middle"], y, stride))
    shortcut = conv_norm(p["project"], x, stride) if "project" in p else x
    return jax.nn.relu(shortcut + conv_norm(p["expand"], y))


def init(cfg: ResNetConfig, key: jax.Array) -> Params:
    """Returns the parameters."""
    start, blocks, head = jax.random.split(key, 3)
    keys = jax.random.split(blocks, sum(cfg.blocks))
    return {
        "start": init_conv(start, 7, 7, 3, cfg.channels),
        "blocks": [init_block(cfg, index, k) for index, k in enumerate(keys)],
        "head": {"weight": normal(head, cfg.widths[-1], cfg.classes), "bias": jnp.zeros(cfg.classes)},
    }


def loss(cfg: ResNetConfig, params: Params, batch: dict[str, jax.Array], _key: jax.Array) -> jax.Array:
    """Mean cross entropy of the images `batch["x"]` against the classes `batch["y"]`; nothing in it is random."""
    x = max_pool(jax.nn.relu(conv_norm(params["start"], batch["x"], 2)), 3, 2)
    for index, (p, stride) in enumerate(zip(params["blocks"], cfg.strides, strict=True)):
        with jax.named_scope(f"block{index}"):
            x = block(x, p, stride)
    with jax.named_scope("head"):
        logits = x.mean((1, 2)) @ params["head"]["weight"] + params["head"]["bias"]
    return cross_entropy(logits, batch["y"]).mean()


def model(cfg: ResNetConfig) -> Model:
    """Returns the ResNet as a model to train."""
    return Model(
        "resnet", partial(init, cfg), partial(loss, cfg), partial(sample_images, cfg.batch, cfg.image, cfg.classes)
    )
