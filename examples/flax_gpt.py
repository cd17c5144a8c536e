"""A GPT of flax with an optimizer of optax under `rhino.parallelize`, beside the same step under `jax.jit`.

    pip install -e '.[flax]'
    python examples/flax_gpt.py                                 (twenty steps on eight host devices)
    python examples/flax_gpt.py --preset=gpt-medium --cluster=h100x8 --plan-only

Nothing here knows of devices: `parallelize` takes the step that jit takes, and `init` the function that makes its
state.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from flax import linen
from flax.training.train_state import TrainState
from gpt import TABLE1, GPTConfig

import rhino

TINY: Final = GPTConfig(layers=2, hidden=32, heads=4, ffn=128, vocab=64, seq=16, batch=8, dropout=0.1)
PRESETS: Final = {"tiny": TINY, **TABLE1}


class Block(linen.Module):
    """One layer, of flax's own parts."""

    cfg: GPTConfig

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `x` [batch, seq, hidden] to the same shape."""
        cfg = self.cfg
        mask = linen.make_causal_mask(jnp.ones(x.shape[:2]))
        h = linen.LayerNorm()(x)
        h = linen.MultiHeadDotProductAttention(cfg.heads, dropout_rate=cfg.dropout, deterministic=False)(h, mask=mask)
        x = x + linen.Dropout(cfg.dropout, deterministic=False)(h)
        h = linen.Dense(cfg.hidden)(linen.gelu(linen.Dense(cfg.ffn)(linen.LayerNorm()(x))))
        return jnp.add(x, linen.Dropout(cfg.dropout, deterministic=False)(h))


class GPT(linen.Module):
    """The model: its `gpt.GPTConfig` says the sizes; `scan`, `fused_qkv` and `dtype` have no meaning here."""

    cfg: GPTConfig

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Maps `tokens` [batch, seq] to logits [batch, seq, vocab]."""
        embed = linen.Embed(self.cfg.vocab, self.cfg.hidden)
        x = embed(tokens) + self.param("positions", linen.initializers.normal(0.02), (self.cfg.seq, self.cfg.hidden))
        for _ in range(self.cfg.layers):
            x = Block(self.cfg)(x)
        logits: jax.Array = embed.attend(linen.LayerNorm()(x))
        return logits


class Training:
    """A model with its optimizer: how training starts, and its step."""

    def __init__(self, cfg: GPTConfig) -> None:
        self.cfg = cfg
        self.apply = GPT(cfg).apply
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, warmup_steps=5, decay_steps=40)
        self.optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=1e-2))

    def init(self, key: jax.Array) -> TrainState:
        """Returns the state before the first step."""
        tokens = jnp.zeros((1, self.cfg.seq), int)
        params = GPT(self.cfg).init({"params": key, "dropout": key}, tokens)["params"]
        state: TrainState = TrainState.create(apply_fn=self.apply, params=params, tx=self.optimizer)
        return state

    def step(self, state: TrainState, tokens: jax.Array, key: jax.Array) -> tuple[TrainState, jax.Array]:
        """One step on `tokens` [batch, seq + 1]; `key` draws the dropout masks."""

        def loss(params: Any) -> jax.Array:  # noqa: ANN401 - a pytree of flax
            logits = state.apply_fn({"params": params}, tokens[:, :-1], rngs={"dropout": key})
            losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return losses.mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    def batch(self, number: int) -> tuple[jax.Array, jax.Array]:
        """Returns the tokens and the key of a step; only a quarter of the vocabulary occurs, which can be learnt."""
        tokens, dropout = jax.random.split(jax.random.key(number))
        return jax.random.randint(tokens, (self.cfg.batch, self.cfg.seq + 1), 0, self.cfg.vocab // 4), dropout


def plan(cfg: GPTConfig, cluster: str) -> rhino.Plan:
    """Returns the plan for a cluster: from shapes alone, so any size works on a laptop."""
    training = Training(cfg)
    tokens, key = jax.eval_shape(lambda: training.batch(0))
    step = rhino.parallelize(training.step, cluster=cluster, donate_argnums=0)
    found: rhino.Plan = step.plan(jax.eval_shape(training.init, key), tokens, key)
    return found


def train(cfg: GPTConfig, num_steps: int) -> Iterator[tuple[float, float]]:
    """Trains on one device under `jax.jit`, and on all of them; yields the losses of both at each step."""
    training, key = Training(cfg), jax.random.key(0)
    one, expected = jax.jit(training.step), jax.jit(training.init)(key)
    all_of_them = rhino.parallelize(training.step, donate_argnums=0)
    all_of_them.plan(expected, *training.batch(0))
    state = all_of_them.init(training.init, key)
    for number in range(num_steps):
        expected, wanted = one(expected, *training.batch(number))
        state, loss = all_of_them(state, *training.batch(number))
        yield float(wanted), float(loss)


def run(argv: Sequence[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny", help="the size (default tiny)")
    parser.add_argument("--steps", type=int, default=20, help="how many steps to train (default 20)")
    parser.add_argument("--cluster", default="cpu8", help="what to plan for, with --plan-only (default cpu8)")
    parser.add_argument(
        "--plan-only", action="store_true", help="say what the plan for the cluster is, and run nothing"
    )
    options = parser.parse_args(argv)
    cfg = PRESETS[options.preset]
    if options.plan_only:
        print(plan(cfg, options.cluster).explain())
        return 0
    for number, (wanted, loss) in enumerate(train(cfg, options.steps)):
        print(f"step {number}: loss {wanted:.6f} under jax.jit on one device, {loss:.6f} on {jax.device_count()}")
    return 0


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    sys.exit(run(sys.argv[1:]))
