"""Mamba: a language model of selective state spaces, whose recurrence is an associative scan over the sequence.

Source: Gu and Dao (2023), section 3 and algorithm 2. Their kernel computes the recurrence in the chip's own memory;
here it is `jax.lax.associative_scan` over states of [batch, seq, inner, state], which any compiler takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from layers import Params, cross_entropy, normal, rms_norm
from training import Model
from transformer import init_layers, run_layers


@dataclass(frozen=True, slots=True)
class MambaConfig:
    """Sizes of a Mamba.

    `state` is the size of each channel's state, `window` the tokens that the convolution sees, `expand` the channels of
    a layer in units of `hidden`. `scan` rolls the layers into one loop.
    """

    layers: int = 2
    hidden: int = 768
    state: int = 16
    window: int = 4
    expand: int = 2
    vocab: int = 50280
    seq: int = 2048
    batch: int = 8
    scan: bool = False

    def __post_init__(self) -> None:
        if self.hidden % 16:
            raise ValueError(
                f"hidden ({self.hidden}) is not divisible by 16, of which the rank of the step size is one"
            )

    @property
    def inner(self) -> int:
        """The channels of a layer."""
        return self.expand * self.hidden

    @property
    def rank(self) -> int:
        """The rank of the projection that gives each token its step size (section 3.6: a 16th of `hidden`)."""
        return self.hidden // 16


PRESETS: Final = {
    # Gu and Dao (2023), table 12, with the vocabulary of GPT-NeoX; batches of half a million tokens.
    "mamba-130m": MambaConfig(layers=24, batch=256),
    "mamba-1.4b": MambaConfig(layers=48, hidden=2048, batch=256),
    "mamba-2.8b": MambaConfig(layers=64, hidden=2560, batch=256),
}


def init_layer(cfg: MambaConfig, key: jax.Array) -> Params:
    """Returns the parameters of one layer; states decay at rates 1 to `state` (S4D-Real)."""
    into, gate, window, select, step, out = jax.random.split(key, 6)
    d, channels = cfg.hidden, cfg.inner
    rates = jnp.broadcast_to(jnp.log(jnp.arange(1, cfg.state + 1, dtype=jnp.float32)), (channels, cfg.state))
    return {
        "norm": jnp.ones(d),
        "in": normal(into, d, channels),
        "gate": normal(gate, d, channels),
        "window": normal(window, cfg.window, channels),
        "window_bias": jnp.zeros(channels),
        "select": normal(select, channels, cfg.rank + 2 * cfg.state),
        "step": normal(step, cfg.rank, channels),
        "step_bias": jnp.full(channels, -4.6),  # softplus of it is 0.01: steps start between 0.001 and 0.1
        "log_rates": rates,
        "skip": jnp.ones(channels),
        "out": normal(out, channels, d),
    }


def init(cfg: MambaConfig, key: jax.Array) -> Params:
    """Returns the parameters; layers are a list, or (same values) stacked on a leading dimension when `cfg.scan`."""
    embed, layers = jax.random.split(key)
    return {
        "embed": normal(embed, cfg.vocab, cfg.hidden),
        "layers": init_layers(partial(init_layer, cfg), cfg.layers, layers, cfg.scan),
        "final": jnp.ones(cfg.hidden),
    }


def causal_conv(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums the last tokens of each channel of `x` [batch, seq, channels], weighted by `weights` [window, channels]."""
    window, seq = len(weights), x.shape[1]
    padded = jnp.pad(x, ((0, 0), (window - 1, 0), (0, 0)))
    return sum(padded[:, at : at + seq] * weights[at] for at in range(1, window)) + padded[:, :seq] * weights[0]


def recurrence(decay: jax.Array, added: jax.Array) -> jax.Array:
    """Returns the states h[t] = decay[t] h[t - 1] + added[t] with h[-1] = 0, all at once; t is dim 1."""

    def both(first: tuple[jax.Array, jax.Array], then: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return first[0] * then[0], then[0] * first[1] + then[1]

    states: jax.Array = jax.lax.associative_scan(both, (decay, added), axis=1)[1]
    return states


def selective_scan(cfg: MambaConfig, p: Params, x: jax.Array) -> jax.Array:
    """Returns what the states of `x` [batch, seq, inner] give, where every token chooses what is kept and read."""
    chosen = x @ p["select"]
    low, write, read = jnp.split(chosen, (cfg.rank, cfg.rank + cfg.state), axis=-1)
    step = jax.nn.softplus(low @ p["step"] + p["step_bias"])[..., None]
    states = recurrence(jnp.exp(-step * jnp.exp(p["log_rates"])), step * x[..., None] * write[..., None, :])
    return jnp.add(jnp.einsum("btcs,bts->btc", states, read), x * p["skip"])


def layer(cfg: MambaConfig, x: jax.Array, p: Params, _key: jax.Array) -> jax.Array:
    """One layer over `x` [batch, seq, hidden]; nothing in it is random."""
    normed = rms_norm(p["norm"], x)
    inner = jax.nn.silu(causal_conv(normed @ p["in"], p["window"]) + p["window_bias"])
    return jnp.add(x, (selective_scan(cfg, p, inner) * jax.nn.silu(normed @ p["gate"])) @ p["out"])


def loss(cfg: MambaConfig, params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross entropy of `tokens` [batch, seq + 1] (int32)."""
    x = run_layers(partial(layer, cfg), params["embed"][tokens[:, :-1]], params["layers"], cfg.layers, key)
    return cross_entropy(rms_norm(params["final"], x) @ params["embed"].T, tokens[:, 1:]).mean()


def sample(cfg: MambaConfig, key: jax.Array) -> jax.Array:
    """Returns random tokens [batch, seq + 1] (int32)."""
    return jax.random.randint(key, (cfg.batch, cfg.seq + 1), 0, cfg.vocab, jnp.int32)


def model(cfg: MambaConfig) -> Model:
    """Returns the Mamba as a model to train."""
    return Model("mamba", partial(init, cfg), partial(loss, cfg), partial(sample, cfg))
