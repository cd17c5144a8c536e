"""GNMT: translation by eight LSTM layers to read, eight to write, and attention between the lowest of these.

Source: Wu et al. (2016), sections 3 and 4: the first layer that reads is bidirectional, sums pass around layers from
the third on, and what the lowest layer that writes attends to goes into all layers above it. Each layer is a loop over
its sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import Params, cross_entropy, dropout, normal
from training import Model


@dataclass(frozen=True, slots=True)
class GNMTConfig:
    """Sizes of a GNMT: `layers` read, and as many write; `vocab` is shared by both languages."""

    layers: int = 2
    hidden: int = 1024
    vocab: int = 32000
    encoder_seq: int = 50
    decoder_seq: int = 50
    batch: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.layers < 2:
            raise ValueError(f"layers ({self.layers}) must be 2 or more: the first one that reads does so both ways")


PRESETS: Final = {
    # Wu et al. (2016), sections 8.2 and 8.3, and Whale 5.2.1, which names no sizes: those of MLPerf training v0.5,
    # sentences of up to 50 pieces, 128 of them a device.
    "gnmt-8": GNMTConfig(layers=8),
}


def init_lstm(inputs: int, hidden: int, key: jax.Array) -> Params:
    """Returns the parameters of an LSTM layer; what it forgets starts from a bias of 1."""
    into, again = jax.random.split(key)
    bias = jnp.zeros((4, hidden)).at[1].set(1.0)
    return {"in": normal(into, inputs, 4, hidden), "again": normal(again, hidden, 4, hidden), "bias": bias}


def init(cfg: GNMTConfig, key: jax.Array) -> Params:
    """Returns the parameters."""
    source, target, back, reading, writing, query, memory, score, out = jax.random.split(key, 9)
    d = cfg.hidden
    reads = jax.random.split(reading, cfg.layers)
    return {
        "source": normal(source, cfg.vocab, d),
        "target": normal(target, cfg.vocab, d),
        "back": init_lstm(d, d, back),
        "encoder": [init_lstm(2 * d if at == 1 else d, d, k) for at, k in enumerate(reads)],
        "attention": {"query": normal(query, d, d), "memory": normal(memory, d, d), "score": normal(score, d)},
        "decoder": [init_lstm(2 * d, d, k) for k in jax.random.split(writing, cfg.layers)],
        "out": normal(out, d, cfg.vocab),
    }


def cell(state: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the hidden state and the memory [batch, hidden] after `gates` [batch, 4, hidden]."""
    enter, forget, leave, fresh = (gates[:, at] for at in range(4))
    memory = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(enter) * jnp.tanh(fresh)
    return jax.nn.sigmoid(leave) * jnp.tanh(memory), memory


def still(x: jax.Array, hidden: int) -> tuple[jax.Array, jax.Array]:
    """Returns the state before a sequence `x` [batch, seq, ...]."""
    return jnp.zeros((len(x), hidden)), jnp.zeros((len(x), hidden))


def lstm(p: Params, x: jax.Array, reverse: bool = False) -> jax.Array:
    """Returns the hidden state [batch, seq, hidden] after each of `x` [batch, seq, inputs], from either end."""

    def step(state: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        state = cell(state, gates + jnp.einsum("bh,hgk->bgk", state[0], p["again"]))
        return state, state[0]

    gates = jnp.einsum("bti,igh->tbgh", x, p["in"]) + p["bias"]
    return jnp.moveaxis(jax.lax.scan(step, still(x, p["again"].shape[0]), gates, reverse=reverse)[1], 0, 1)


def encode(cfg: GNMTConfig, params: Params, tokens: jax.Array, keys: jax.Array) -> jax.Array:
    """Maps `tokens` [batch, encoder_seq] to [batch, encoder_seq, hidden]."""
    x: jax.Array = params["source"][tokens]
    for at, p in enumerate(params["encoder"]):
        with jax.named_scope(f"encoder{at}"):
            entering = dropout(cfg.dropout, keys[at], x)
            y = lstm(p, entering)
            if at == 0:
                x = jnp.concatenate([y, lstm(params["back"], entering, reverse=True)], axis=-1)
            else:
                x = jnp.add(y, x) if at > 1 else y
    return x


def attend(p: Params, query: jax.Array, keys: jax.Array, memory: jax.Array) -> jax.Array:
    """Returns the average of `memory` [batch, seq, hidden] that `query` [batch, hidden] asks for (Bahdanau et al.)."""
    scores = jnp.tanh((query @ p["query"])[:, None] + keys) @ p["score"]
    return jnp.einsum("bs,bsh->bh", jax.nn.softmax(scores, axis=-1), memory)


def lowest(p: Params, attention: Params, x: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the hidden states of the lowest layer that writes, and what it attended to before each of them.

    Its state asks for what goes into its next step. Shapes: all [batch, seq, hidden].
    """
    into, seen = jnp.split(p["in"], 2)
    keys = memory @ attention["memory"]

    def step(
        state: tuple[jax.Array, jax.Array], gates: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        context = attend(attention, state[0], keys, memory)
        again = jnp.einsum("bh,hgk->bgk", state[0], p["again"]) + jnp.einsum("bh,hgk->bgk", context, seen)
        state = cell(state, gates + again)
        return state, (state[0], context)

    gates = jnp.einsum("bti,igh->tbgh", x, into) + p["bias"]
    hidden, context = jax.lax.scan(step, still(x, x.shape[-1]), gates)[1]
    return jnp.moveaxis(hidden, 0, 1), jnp.moveaxis(context, 0, 1)


def loss(cfg: GNMTConfig, params: Params, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
    """Mean cross entropy of the next piece of the translation.

    Shapes: `batch["source"]` [batch, encoder_seq], `batch["target"]` [batch, decoder_seq + 1], both int32.
    """
    keys = jax.random.split(key, 2 * cfg.layers)
    memory = encode(cfg, params, batch["source"], keys[: cfg.layers])
    x, context = lowest(params["decoder"][0], params["attention"], params["target"][batch["target"][:, :-1]], memory)
    for at, p in enumerate(params["decoder"][1:], 1):
        with jax.named_scope(f"decoder{at}"):
            mixed = jnp.concatenate([dropout(cfg.dropout, keys[cfg.layers + at], x), context], axis=-1)
            x = lstm(p, mixed) + x if at > 1 else lstm(p, mixed)
    return cross_entropy(x @ params["out"], batch["target"][:, 1:]).mean()


def sample(cfg: GNMTConfig, key: jax.Array) -> dict[str, jax.Array]:
    """Returns random sentences: `source` [batch, encoder_seq] and `target` [batch, decoder_seq + 1] (int32)."""
    key_source, key_target = jax.random.split(key)
    return {
        "source": jax.random.randint(key_source, (cfg.batch, cfg.encoder_seq), 0, cfg.vocab, jnp.int32),
        "target": jax.random.randint(key_target, (cfg.batch, cfg.decoder_seq + 1), 0, cfg.vocab, jnp.int32),
    }


def model(cfg: GNMTConfig) -> Model:
    """Returns the GNMT as a model to train."""
    return Model("gnmt", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
