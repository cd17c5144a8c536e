"""T5: an encoder and a decoder that reads it, positions as learned biases of the scores, RMS norms, no other biases.

Source: Raffel et al. (2019), section 2.1, with the sizes of its section 3.7. Scores are divided by the root of the
head's size, which T5 leaves to the initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import DType, Params, cast, cross_entropy, dropout, normal, rms_norm
from training import Model
from transformer import attend, causal_mask, init_layers, run_layers

BUCKETS: Final = 32  # of distances, each with a bias per head (Raffel et al., section 2.1)
FARTHEST: Final = 128  # distances from here on share a bucket


@dataclass(frozen=True, slots=True)
class T5Config:
    """Sizes of a T5; encoder and decoder share all of them but `seq`.

    `scan` rolls the layers into one loop.

    `dtype` is what the layers compute in: parameters, their updates, normalisation, softmax and the loss are float32 in
    all.
    """

    layers: int = 2
    hidden: int = 1024
    heads: int = 16
    head_dim: int = 64
    ffn: int = 4096
    vocab: int = 32128
    encoder_seq: int = 512
    decoder_seq: int = 512
    batch: int = 16
    dropout: float = 0.0
    scan: bool = False
    dtype: DType = "f32"


PRESETS: Final = {
    "t5-large": T5Config(layers=24),  # TAP, figure 6: batch 16
    # Aceso, table 2: batch and sequence lengths
    "t5-3b": T5Config(layers=24, heads=32, head_dim=128, ffn=16384, encoder_seq=2048, batch=1024),
    "t5-11b": T5Config(layers=24, heads=128, head_dim=128, ffn=65536, encoder_seq=2048, batch=1024),
}


def init_attention(cfg: T5Config, key: jax.Array) -> Params:
    """Returns the parameters of `attention` and of the norm before it."""
    inner = cfg.heads * cfg.head_dim
    q, k, v, out = jax.random.split(key, 4)
    qkv = {name: normal(each, cfg.hidden, inner) for name, each in zip("qkv", (q, k, v), strict=True)}
    return {"norm": jnp.ones(cfg.hidden), **qkv, "out": normal(out, inner, cfg.hidden)}


def init_feed_forward(cfg: T5Config, key: jax.Array) -> Params:
    """Returns the parameters of `feed_forward` and of the norm before it."""
    up, down = jax.random.split(key)
    return {
        "norm": jnp.ones(cfg.hidden),
        "up": normal(up, cfg.hidden, cfg.ffn),
        "down": normal(down, cfg.ffn, cfg.hidden),
    }


def init_encoder_layer(cfg: T5Config, key: jax.Array) -> Params:
    """Returns the parameters of one layer of the encoder."""
    attend_self, feed = jax.random.split(key)
    return {"self": init_attention(cfg, attend_self), "feed": init_feed_forward(cfg, feed)}


def init_decoder_layer(cfg: T5Config, key: jax.Array) -> Params:
    """Returns the parameters of one layer of the decoder."""
    rest, attend_encoder = jax.random.split(key)
    return init_encoder_layer(cfg, rest) | {"encoder": init_attention(cfg, attend_encoder)}


def init(cfg: T5Config, key: jax.Array) -> Params:
    """Returns the parameters; layers are lists, or (same values) stacked on a leading dimension when `cfg.scan`."""
    embed, *keys = jax.random.split(key, 5)

    def init_stack(init_layer: partial[Params], layers: jax.Array, bias: jax.Array) -> Params:
        return {
            "layers": init_layers(init_layer, cfg.layers, layers, cfg.scan),
            "bias": normal(bias, BUCKETS, cfg.heads),
            "final": jnp.ones(cfg.hidden),
        }

    return {
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "encoder": init_stack(partial(init_encoder_layer, cfg), *keys[:2]),
        "decoder": init_stack(partial(init_decoder_layer, cfg), *keys[2:]),
    }


def bucket(distance: jax.Array, both_ways: bool) -> jax.Array:
    """Returns the bucket of each distance (key's position less the query's, int32).

    Half of the buckets hold one distance each, the others grow with it. Keys after the query have buckets of their own
    if they are seen at all (`both_ways`), and else are taken for distance 0.
    """
    num = BUCKETS // 2 if both_ways else BUCKETS
    far, after = (jnp.abs(distance), jnp.where(distance > 0, num, 0)) if both_ways else (jnp.maximum(-distance, 0), 0)
    single = num // 2
    growth = jnp.log(jnp.maximum(far, 1) / single) / jnp.log(FARTHEST / single)
    grown = jnp.minimum(single + (growth * (num - single)).astype(jnp.int32), num - 1)
    return after + jnp.where(far < single, far, grown)


def position_bias(table: jax.Array, seq: int, both_ways: bool) -> jax.Array:
    """Returns what to add to each score [heads, seq, seq] from the biases of buckets, `table` [buckets, heads]."""
    positions = jnp.arange(seq)
    return table[bucket(positions[None, :] - positions[:, None], both_ways)].transpose(2, 0, 1)


def attention(
    cfg: T5Config,
    p: Params,
    x: jax.Array,
    source: jax.Array,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Multi-head attention of `x` [batch, seq, hidden] over `source` [batch, source_seq, hidden]."""

    def heads(projected: jax.Array) -> jax.Array:
        return projected.reshape(*projected.shape[:2], cfg.heads, cfg.head_dim)

    mixed = attend(heads(x @ p["q"]), heads(source @ p["k"]), heads(source @ p["v"]), mask, bias)
    return jnp.matmul(mixed.reshape(*x.shape[:2], -1), p["out"])


def attend_self(
    cfg: T5Config, bias: jax.Array, mask: jax.Array | None, x: jax.Array, p: Params, key: jax.Array
) -> jax.Array:
    """The part of a layer that reads its own sequence, and the residual around it."""
    normed = rms_norm(p["norm"], x)
    return x + dropout(cfg.dropout, key, attention(cfg, p, normed, normed, mask, bias))


def feed_forward(cfg: T5Config, x: jax.Array, p: Params, key: jax.Array) -> jax.Array:
    """Two projections with a ReLU between, and the residual around them."""
    return x + dropout(cfg.dropout, key, jax.nn.relu(rms_norm(p["norm"], x) @ p["up"]) @ p["down"])


def encoder_layer(cfg: T5Config, bias: jax.Array, x: jax.Array, p: Params, key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, encoder_seq, hidden]."""
    key_self, key_feed = jax.random.split(key)
    x = attend_self(cfg, bias, None, x, p["self"], key_self)
    return feed_forward(cfg, x, p["feed"], key_feed)


def decoder_layer(
    cfg: T5Config, bias: jax.Array, encoded: jax.Array, x: jax.Array, p: Params, key: jax.Array
) -> jax.Array:
    """One layer over `x` [batch, decoder_seq, hidden] that also reads `encoded` [batch, encoder_seq, hidden]."""
    key_self, key_encoder, key_feed = jax.random.split(key, 3)
    x = attend_self(cfg, bias, causal_mask(cfg.decoder_seq), x, p["self"], key_self)
    read = attention(cfg, p["encoder"], rms_norm(p["encoder"]["norm"], x), encoded)
    x = x + dropout(cfg.dropout, key_encoder, read)
    return feed_forward(cfg, x, p["feed"], key_feed)


def predict(cfg: T5Config, params: Params, inputs: jax.Array, previous: jax.Array, key: jax.Array) -> jax.Array:
    """Returns the logits [batch, decoder_seq, vocab] of the token after each of `previous` [batch, decoder_seq].

    The encoder reads `inputs` [batch, encoder_seq].
    """
    key_encoder, key_decoder = jax.random.split(key)
    params = cast(params, cfg.dtype)
    embed, encoder, decoder = params["embed"], params["encoder"], params["decoder"]
    with jax.named_scope("encoder"):
        layer = partial(encoder_layer, cfg, position_bias(encoder["bias"], cfg.encoder_seq, both_ways=True))
        x = run_layers(layer, embed[inputs], encoder["layers"], cfg.layers, key_encoder)
        encoded = rms_norm(encoder["final"], x)
    with jax.named_scope("decoder"):
        read = partial(decoder_layer, cfg, position_bias(decoder["bias"], cfg.decoder_seq, both_ways=False), encoded)
        x = run_layers(read, embed[previous], decoder["layers"], cfg.layers, key_decoder)
        return jnp.matmul(rms_norm(decoder["final"], x), embed.T)


def loss(cfg: T5Config, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `batch["targets"]` [batch, decoder_seq + 1].

    The encoder reads `batch["inputs"]` [batch, encoder_seq].
    """
    targets = batch["targets"]
    return cross_entropy(predict(cfg, params, batch["inputs"], targets[:, :-1], key), targets[:, 1:]).mean()


def sample(cfg: T5Config, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random tokens `inputs` [batch, encoder_seq] and `targets` [batch, decoder_seq + 1] (int32)."""
    key_inputs, key_targets = jax.random.split(key)
    return {
        "inputs": jax.random.randint(key_inputs, (cfg.batch, cfg.encoder_seq), 0, cfg.vocab, jnp.int32),
        "targets": jax.random.randint(key_targets, (cfg.batch, cfg.decoder_seq + 1), 0, cfg.vocab, jnp.int32),
    }


def model(cfg: T5Config) -> Model:
    """Returns the T5 as a model to train."""
    return Model("t5", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
