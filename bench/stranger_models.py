"""Training steps of models that others wrote, with random weights from configurations: nothing is downloaded.

Their libraries are no dependency of Rhino's, and each model imports those that it needs. Tried in an environment of
their own, with a version of transformers that still has models in Flax:

    pip install transformers==4.53.3 keras==3.15.1 flax==0.12.8 equinox==0.13.8 dm-haiku==0.0.17 optax==0.2.8

Widths suit a few cores, batches are those of training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
Loss = Callable[[Tree, Tree], jax.Array]


@dataclass(frozen=True, slots=True)
class Stranger:
    """A training step, of a state and a batch to the next state and the loss; dim 0 of all of `batch` is the batch."""

    step: Callable[[Tree, Tree], tuple[Tree, jax.Array]]
    state: Tree
    batch: Tree


def _trained(loss: Loss, parameters: Tree, batch: Tree, optimizer: str = "adamw") -> Stranger:
    """Returns the step of a loss under an optimizer of optax."""
    optax = import_module("optax")
    rule = optax.adamw(1e-3) if optimizer == "adamw" else optax.sgd(1e-2, momentum=0.9)

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        parameters, moments = state
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        updates, moments = rule.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), moments), value

    return Stranger(step, (parameters, rule.init(parameters)), batch)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    losses: jax.Array = import_module("optax").softmax_cross_entropy_with_integer_labels(logits, labels)
    return losses.mean()


def _draw() -> np.random.Generator:
    return np.random.default_rng(0)


def _images(batch: int, size: int, classes: int, *, is_channels_first: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    shape = (batch, 3, size, size) if is_channels_first else (batch, size, size, 3)
    images = _draw().standard_normal(shape, dtype=np.float32)
    return {"images": images, "labels": _draw().integers(0, classes, batch, dtype=np.int32)}


def _tokens(batch: int, length: int, vocabulary: int) -> dict[str, np.ndarray[Any, Any]]:
    return {name: _draw().integers(0, vocabulary, (batch, length), dtype=np.int32) for name in ("tokens", "labels")}


# Hugging Face


def _hugging_face(kind: str, sizes: Mapping[str, int], batch: Tree, entry: str) -> Stranger:
    """Returns a step of a model in Flax, with its dropout."""
    transformers = import_module("transformers")
    config, model_class = kind.split(" ")
    model = getattr(transformers, model_class)(getattr(transformers, config)(**sizes), seed=0)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        key = jax.random.key(batch["labels"].ravel()[0])
        logits = model(batch[entry], params=parameters, dropout_rng=key, train=True).logits
        return _cross_entropy(logits, batch["labels"])

    return _trained(loss, model.params, batch)


def _vit() -> Stranger:
    sizes = {
        **{"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512},
        **{"image_size": 32, "patch_size": 4, "num_labels": 16},
    }
    batch = _images(64, 32, 16, is_channels_first=True)
    return _hugging_face("ViTConfig FlaxViTForImageClassification", sizes, batch, "images")


def _gpt2() -> Stranger:
    sizes = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": 1024}
    return _hugging_face("GPT2Config FlaxGPT2LMHeadModel", sizes, _tokens(32, 128, 1024), "tokens")


def _bert() -> Stranger:
    sizes = {
        **{"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512},
        **{"max_position_embeddings": 128, "vocab_size": 1024},
    }
    return _hugging_face("BertConfig FlaxBertForMaskedLM", sizes, _tokens(32, 128, 1024), "tokens")


# Keras


def _keras(name: str, size: int, batch: int, **options: Any) -> Stranger:  # noqa: ANN401 - of the model
    """Returns a step of one of Keras's applications, with momentum as its paper trains it."""
    os.environ["KERAS_BACKEND"] = "jax"
    keras, optax = import_module("keras"), import_module("optax")
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(
        weights=None, classes=16, input_shape=(size, size, 3), classifier_activation=None, **options
    )
    rule = optax.sgd(1e-2, momentum=0.9)
    weights = [np.asarray(one.value) for one in model.trainable_variables]
    others = [np.asarray(one.value) for one in model.non_trainable_variables]

    def loss(weights: Tree, others: Tree, batch: Tree) -> tuple[jax.Array, Tree]:
        logits, others = model.stateless_call(weights, others, batch["images"], training=True)
        return _cross_entropy(logits, batch["labels"]), others

    def step(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
        weights, others, moments = state
        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(weights, others, batch)
        updates, moments = rule.update(gradients, moments, weights)
        return (optax.apply_updates(weights, updates), others, moments), value

    return Stranger(step, (weights, others, rule.init(weights)), _images(batch, size, 16))


# Flax


def _linen_cnn() -> Stranger:
    nn = import_module("flax.linen")

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, images: jax.Array) -> jax.Array:
            for width in (32, 64, 128):
                images = nn.relu(nn.Conv(width, (3, 3))(images))
                images = nn.avg_pool(images, (2, 2), strides=(2, 2))
            hidden = nn.relu(nn.Dense(256)(images.reshape((images.shape[0], -1))))
            logits: jax.Array = nn.Dense(16)(hidden)
            return logits

    net, batch = Net(), _images(128, 32, 16)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(net.apply(parameters, batch["images"]), batch["labels"])

    return _trained(loss, net.init(jax.random.key(0), batch["images"]), batch)


def _nnx_mixer() -> Stranger:
    nnx = import_module("flax.nnx")

    class Block(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, tokens: int, width: int, rngs: Any) -> None:  # noqa: ANN401 - of nnx
            self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
            self.tokens = nnx.List([nnx.Linear(tokens, 128, rngs=rngs), nnx.Linear(128, tokens, rngs=rngs)])
            self.channels = nnx.List([nnx.Linear(width, 512, rngs=rngs), nnx.Linear(512, width, rngs=rngs)])

        def __call__(self, x: jax.Array) -> jax.Array:
            up, down = self.tokens
            x = x + down(nnx.gelu(up(self.norms[0](x).swapaxes(1, 2)))).swapaxes(1, 2)
            up, down = self.channels
            mixed: jax.Array = x + down(nnx.gelu(up(self.norms[1](x))))
            return mixed

    class Mixer(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:  # noqa: ANN401 - of nnx
            self.patches = nnx.Conv(3, 128, (4, 4), strides=(4, 4), rngs=rngs)
            self.blocks = nnx.List([Block(64, 128, rngs) for _ in range(4)])
            self.head = nnx.Linear(128, 16, rngs=rngs)

        def __call__(self, images: jax.Array) -> jax.Array:
            x = self.patches(images).reshape((images.shape[0], 64, 128))
            for block in self.blocks:
                x = block(x)
            logits: jax.Array = self.head(x.mean(axis=1))
            return logits

    graph, parameters = nnx.split(Mixer(nnx.Rngs(0)))

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(nnx.merge(graph, parameters)(batch["images"]), batch["labels"])

    return _trained(loss, parameters, _images(64, 32, 16))


def _decoder() -> Stranger:
    """Returns a decoder as MaxText has it: scanned layers that are rematerialized, rotary positions, gated units."""
    nn = import_module("flax.linen")
    width, heads = 128, 4

    def rotated(x: jax.Array) -> jax.Array:
        length, size = x.shape[1], x.shape[-1]
        angles = jnp.arange(length)[:, None] / 10000 ** (jnp.arange(0, size, 2) / size)
        sin, cos = jnp.sin(angles)[None, :, None], jnp.cos(angles)[None, :, None]
        first, second = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            normed = nn.RMSNorm()(x)
            query, key, value = (nn.DenseGeneral((heads, width // heads), use_bias=False)(normed) for _ in range(3))
            scores = jnp.einsum("bqhd,bkhd->bhqk", rotated(query), rotated(key)) / np.sqrt(width // heads)
            scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -1e9)
            read = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
            x = x + nn.DenseGeneral(width, axis=(-2, -1), use_bias=False)(read)
            normed = nn.RMSNorm()(x)
            gate, up = (nn.Dense(384, use_bias=False)(normed) for _ in range(2))
            return x + nn.Dense(width, use_bias=False)(nn.silu(gate) * up), None

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embed = nn.Embed(1024, width)
            layers = nn.scan(
                nn.remat(Layer, prevent_cse=False), variable_axes={"params": 0}, split_rngs={"params": True}, length=4
            )
            x, _ = layers()(embed(tokens), None)
            logits: jax.Array = embed.attend(nn.RMSNorm()(x))
            return logits

    net, batch = Decoder(), _tokens(32, 128, 1024)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(net.apply(parameters, batch["tokens"]), batch["labels"])

    return _trained(loss, net.init(jax.random.key(0), batch["tokens"]), batch)


# Equinox


def _mamba() -> Stranger:
    """Returns a language model of selective state spaces (Mamba), its recurrence by `associative_scan`."""
    eqx = import_module("equinox")
    width, inner, states, rank = 64, 128, 8, 4

    class Block(eqx.Module):  # type: ignore[misc, name-defined]
        norm: Any
        enter: Any
        conv: Any
        select: Any
        rate: Any
        leave: Any
        log_a: jax.Array
        skip: jax.Array

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 5)
            self.norm = eqx.nn.RMSNorm(width)
            self.enter = eqx.nn.Linear(width, 2 * inner, use_bias=False, key=keys[0])
            self.conv = eqx.nn.Conv1d(inner, inner, 4, padding=((3, 0),), groups=inner, key=keys[1])
            self.select = eqx.nn.Linear(inner, rank + 2 * states, use_bias=False, key=keys[2])
            self.rate = eqx.nn.Linear(rank, inner, key=keys[3])
            self.leave = eqx.nn.Linear(inner, width, use_bias=False, key=keys[4])
            self.log_a = jnp.log(jnp.tile(jnp.arange(1.0, states + 1), (inner, 1)))
            self.skip = jnp.ones(inner)

        def __call__(self, x: jax.Array) -> jax.Array:
            read, gate = jnp.split(jax.vmap(self.enter)(jax.vmap(self.norm)(x)), 2, axis=-1)
            read = jax.nn.silu(self.conv(read.T).T)
            chosen = jax.vmap(self.select)(read)
            low, enter, leave = jnp.split(chosen, [rank, rank + states], axis=-1)
            rate = jax.nn.softplus(jax.vmap(self.rate)(low))
            decay = jnp.exp(rate[..., None] * -jnp.exp(self.log_a))
            added = (rate * read)[..., None] * enter[:, None, :]

            def join(a: tuple[jax.Array, jax.Array], b: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                return a[0] * b[0], b[0] * a[1] + b[1]

            _, state = jax.lax.associative_scan(join, (decay, added))
            y = jnp.einsum("lds,ls->ld", state, leave) + self.skip * read
            mixed: jax.Array = x + jax.vmap(self.leave)(y * jax.nn.silu(gate))
            return mixed

    class Mamba(eqx.Module):  # type: ignore[misc, name-defined]
        embed: Any
        blocks: tuple[Any, ...]
        head: Any

        def __init__(self, key: jax.Array) -> None:
            keys = jax.random.split(key, 4)
            self.embed = eqx.nn.Embedding(512, width, key=keys[0])
            self.blocks = tuple(Block(one) for one in keys[1:3])
            self.head = eqx.nn.Linear(width, 512, key=keys[3])

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = jax.vmap(self.embed)(tokens)
            for block in self.blocks:
                x = block(x)
            logits: jax.Array = jax.vmap(self.head)(x)
            return logits

    return _equinox(Mamba(jax.random.key(0)), _tokens(32, 64, 512), "tokens")


def _eqx_mlp() -> Stranger:
    eqx = import_module("equinox")
    model = eqx.nn.MLP(3 * 32 * 32, 16, 512, 3, key=jax.random.key(0))
    batch = _images(256, 32, 16)
    batch["images"] = batch["images"].reshape(256, -1)
    return _equinox(model, batch, "images")


def _equinox(model: Any, batch: Tree, entry: str) -> Stranger:  # noqa: ANN401 - a module of equinox
    eqx = import_module("equinox")
    parameters, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        logits = jax.vmap(eqx.combine(parameters, static))(batch[entry])
        return _cross_entropy(logits, batch["labels"])

    return _trained(loss, parameters, batch)


# Haiku


def _haiku_graphs() -> Stranger:
    """Returns a network on graphs: messages along edges, summed at the nodes that they reach."""
    hk = import_module("haiku")
    graphs, nodes, edges = 64, 48, 128

    def net(batch: Tree) -> jax.Array:
        x = hk.Linear(64)(batch["nodes"])
        for _ in range(3):
            sent = jnp.take_along_axis(x, batch["senders"][..., None], axis=1)
            reached = jnp.take_along_axis(x, batch["receivers"][..., None], axis=1)
            messages = hk.nets.MLP([128, 64])(jnp.concatenate([sent, reached], axis=-1))
            sums = jax.vmap(partial(jax.ops.segment_sum, num_segments=nodes))(messages, batch["receivers"])
            x = hk.LayerNorm(-1, True, True)(x + hk.nets.MLP([128, 64])(jnp.concatenate([x, sums], axis=-1)))
        logits: jax.Array = hk.Linear(16)(x.mean(axis=1))
        return logits

    draw = _draw()
    batch = {
        "nodes": draw.standard_normal((graphs, nodes, 16), dtype=np.float32),
        "senders": draw.integers(0, nodes, (graphs, edges), dtype=np.int32),
        "receivers": draw.integers(0, nodes, (graphs, edges), dtype=np.int32),
        "labels": draw.integers(0, 16, graphs, dtype=np.int32),
    }
    made = hk.without_apply_rng(hk.transform(net))

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(made.apply(parameters, batch), batch["labels"])

    return _trained(loss, made.init(jax.random.key(0), batch), batch)


STRANGERS: Final[Mapping[str, Callable[[], Stranger]]] = {
    "hf-vit": _vit,
    "hf-gpt2": _gpt2,
    "hf-bert": _bert,
    "keras-mobilenet": lambda: _keras("MobileNetV2", 32, 64, alpha=0.35),
    "keras-resnet50": lambda: _keras("ResNet50", 32, 32),
    "linen-cnn": _linen_cnn,
    "nnx-mixer": _nnx_mixer,
    "linen-decoder": _decoder,
    "equinox-mamba": _mamba,
    "equinox-mlp": _eqx_mlp,
    "haiku-graphs": _haiku_graphs,
}
"""By the library that each is written in."""


def stranger_text(name: str) -> bytes:
    """Returns the training step of a model by name as StableHLO text."""
    made = STRANGERS[name]()
    text: str = jax.jit(made.step, donate_argnums=0).lower(made.state, made.batch).as_text(debug_info=True)
    return text.encode()
