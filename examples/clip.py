"""CLIP: a vision transformer and a text transformer that learn which image and which text of a batch belong together.

Source: Radford et al. (2021), figure 3 and section 2.4. As in the later layers of both, norms come first; the norm that
CLIP has before the first layer for images is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import vit
from layers import Params, init_norm, layer_norm, normal
from training import Model
from transformer import BlockConfig, block, init_block, init_layers, run_layers
from two_tower import LOG_SCALE, contrast, unit


@dataclass(frozen=True, slots=True)
class CLIPConfig:
    """Sizes of both towers; both end in `embed` values. Text has `seq` tokens, the largest of which ends it."""

    image: int = 224
    patch: int = 32
    image_layers: int = 12
    image_hidden: int = 768
    image_heads: int = 12
    vocab: int = 49408
    seq: int = 77
    text_layers: int = 12
    text_hidden: int = 512
    text_heads: int = 8
    embed: int = 512
    batch: int = 256

    def __post_init__(self) -> None:
        _ = self.vision, self.block  # Made here so that bad sizes are refused here.

    @property
    def vision(self) -> vit.ViTConfig:
        """The sizes of the image tower; its classes are the values that it ends in."""
        return vit.ViTConfig(
            self.image,
            self.patch,
            self.image_layers,
            self.image_hidden,
            self.image_heads,
            4 * self.image_hidden,
            self.embed,
        )

    @property
    def block(self) -> BlockConfig:
        """The sizes of one layer of the text tower."""
        return BlockConfig(self.text_hidden, self.text_heads, 4 * self.text_hidden, causal=True)


# Radford et al., tables 19 and 20 (sizes), 18 (batch).
PRESETS: Final = {
    "clip-b32": CLIPConfig(batch=32768),
    "clip-l14": CLIPConfig(
        patch=14,
        image_layers=24,
        image_hidden=1024,
        image_heads=16,
        text_hidden=768,
        text_heads=12,
        embed=768,
        batch=32768,
    ),
}


def init(cfg: CLIPConfig, key: jax.Array) -> Params:
    """Returns the parameters of both towers and of the softmax's temperature."""
    vision, head, embed, positions, layers, project = jax.random.split(key, 6)
    return {
        "image": {**vit.init_encoder(cfg.vision, vision), "project": normal(head, cfg.image_hidden, cfg.embed)},
        "text": {
            "embed": normal(embed, cfg.vocab, cfg.text_hidden),
            "positions": normal(positions, cfg.seq, cfg.text_hidden),
            "layers": init_layers(partial(init_block, cfg.block), cfg.text_layers, layers),
            "final": init_norm(cfg.text_hidden),
            "project": normal(project, cfg.text_hidden, cfg.embed),
        },
        "log_scale": jnp.float32(LOG_SCALE),
    }


def encode_text(cfg: CLIPConfig, p: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Maps `tokens` [batch, seq] to [batch, text_hidden]: what has become of each text's end, its largest token."""
    x = p["embed"][tokens] + p["positions"]
    x = run_layers(partial(block, cfg.block), x, p["layers"], cfg.text_layers, key)
    end = tokens.argmax(axis=1)
    return layer_norm(p["final"], jnp.take_along_axis(x, end[:, None, None], axis=1)[:, 0])


def loss(cfg: CLIPConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of finding each row's partner in the batch, over both directions."""
    key_image, key_text = jax.random.split(key)
    with jax.named_scope("image"):
        images = unit(vit.encode(cfg.vision, params["image"], batch["images"], key_image) @ params["image"]["project"])
    with jax.named_scope("text"):
        texts = unit(encode_text(cfg, params["text"], batch["tokens"], key_text) @ params["text"]["project"])
    return contrast(images, texts, params["log_scale"])


def sample(cfg: CLIPConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random pairs: `images` [batch, image, image, 3] (float32) and `tokens` [batch, seq] (int32)."""
    key_images, key_tokens = jax.random.split(key)
    return {
        "images": jax.random.normal(key_images, (cfg.batch, cfg.image, cfg.image, 3), jnp.float32),
        "tokens": jax.random.randint(key_tokens, (cfg.batch, cfg.seq), 0, cfg.vocab, jnp.int32),
    }


def model(cfg: CLIPConfig) -> Model:
    """Returns both towers as a model to train."""
    return Model("clip", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
