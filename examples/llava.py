"""A vision-language model of two towers (LLaVA): patches that a ViT has seen stand before the text in a causal decoder.

Two projections take what the image tower makes of each patch to the width of the text tower, which predicts the text
alone. All of it is trained, as in the second stage of the paper's training of its towers together.

Source: Improved Baselines with Visual Instruction Tuning (Liu et al., 2024), section 3.3; the towers of `vit.py` and
`llama.py`. The image tower's token and its last layer, of which the paper makes no use, are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import llama
from layers import Params, cast, cross_entropy, init_norm, layer_norm, normal, rms_norm
from llama import LlamaConfig, rotary_angles
from training import Model
from transformer import BlockConfig, block, init_block, init_layers, run_layers
from vit import cut


@dataclass(frozen=True, slots=True)
class LlavaConfig(LlamaConfig):
    """Sizes of both towers: those of a LLaMA, whose `seq` are tokens of text, and of a ViT of `image_layers` layers.

    An image of `image` squared pixels is cut in patches of `patch` squared.
    """

    image: int = 336
    patch: int = 14
    image_layers: int = 2
    image_hidden: int = 512
    image_heads: int = 8

    def __post_init__(self) -> None:
        LlamaConfig.__post_init__(self)
        if self.image % self.patch:
            raise ValueError(f"image ({self.image}) is not divisible by patch ({self.patch})")
        if self.phase != "train" or self.attention == "splash":
            raise ValueError("LLaVA is trained (phase=train), with attention that takes sequences of any length")
        _ = self.block  # Made here so that bad sizes are refused here.

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer of the image tower."""
        return BlockConfig(self.image_hidden, self.image_heads, 4 * self.image_hidden, causal=False)

    @property
    def patches(self) -> int:
        """The patches of an image."""
        return (self.image // self.patch) ** 2


# Section 3.3 and table 1: CLIP's ViT-L/14 on images of 336 squared, and Vicuna 7B, a LLaMA 2.
PRESETS: Final = {
    "llava-7b": LlavaConfig(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=32,
        ffn=11008,
        vocab=32000,
        seq=1472,
        batch=128,
        rope_theta=10000.0,
        image_layers=23,
        image_hidden=1024,
        image_heads=16,
        scan=True,
        dtype="bf16",
    ),
}


def init(cfg: LlavaConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are lists, or (same values) stacked on a leading dimension when `cfg.scan`."""
    text, patches, positions, layers, first, second = jax.random.split(key, 6)
    d = cfg.image_hidden
    return {
        "text": llama.init(cfg, text),
        "image": {
            "patches": normal(patches, 3 * cfg.patch**2, d),
            "positions": normal(positions, cfg.patches, d),
            "layers": init_layers(partial(init_block, cfg.block), cfg.image_layers, layers, cfg.scan),
            "final": init_norm(d),
        },
        "project": {"up": normal(first, d, cfg.hidden), "down": normal(second, cfg.hidden, cfg.hidden)},
    }


def see(cfg: LlavaConfig, params: Params, images: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `images` [batch, image, image, 3] to what the decoder reads of them [batch, patches, hidden]."""
    p, way = params["image"], params["project"]
    x = cut(cfg.patch, images.astype(p["patches"].dtype)) @ p["patches"] + p["positions"]
    each = partial(block, cfg.block)
    x = run_layers(jax.checkpoint(each) if cfg.remat else each, x, p["layers"], cfg.image_layers, key)
    return jnp.matmul(jax.nn.gelu(layer_norm(p["final"], x) @ way["up"]), way["down"])


def loss(cfg: LlavaConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of the texts `batch["tokens"]`, which follow the images `batch["x"]`."""
    inputs, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    params = cast(params, cfg.dtype)
    text = params["text"]
    x = jnp.concatenate([see(cfg, params, batch["x"], key), text["embed"][inputs]], axis=1)
    each = partial(llama.layer, cfg, rotary_angles(cfg, jnp.arange(x.shape[1])))
    x = run_layers(jax.checkpoint(each) if cfg.remat else each, x, text["layers"], cfg.layers, key)
    x = rms_norm(text["final"], x[:, cfg.patches :])
    return cross_entropy(x @ text["head"], targets).mean()


def sample(cfg: LlavaConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random images `x` [batch, image, image, 3] and texts `tokens` [batch, seq + 1] (int32)."""
    images, texts = jax.random.split(key)
    tokens = jax.random.randint(texts, (cfg.batch, cfg.seq + 1), 0, cfg.vocab, jnp.int32)
    return {"x": jax.random.normal(images, (cfg.batch, cfg.image, cfg.image, 3)), "tokens": tokens}


def model(cfg: LlavaConfig) -> Model:
    """Returns the model of both towers, to train."""
    return Model("llava", partial(init, cfg), partial(loss, cfg), partial(sample, cfg), llama.PLATFORMS[cfg.attention])
