"""Training steps of models that others wrote, with random weights from configurations: nothing is downloaded.

Their libraries are no dependency of Rhino's, and each model imports those that it needs. Tried in an environment of
their own, with a version of transformers that still has models in Flax:

    pip install transformers==4.53.3 keras==3.15.1 flax==0.12.8 equinox==0.13.8 dm-haiku==0.0.17 optax==0.2.8
    pip install torch==2.13.0 torchax==0.0.13

Each comes in two sizes: `TIMED`, whose widths suit a few cores and whose batches are those of training, and `SMALL`,
which compiles and runs in seconds under any plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
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


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the models are made of; those with another batch or width take a multiple of it."""

    width: int
    layers: int
    batch: int
    length: int
    image: int
    vocabulary: int


TIMED: Final = Sizes(width=128, layers=4, batch=32, length=128, image=32, vocabulary=1024)
SMALL: Final = Sizes(width=16, layers=2, batch=8, length=16, image=16, vocabulary=32)
NUM_CLASSES: Final = 16
_HEADS: Final = 4


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


def _images(batch: int, size: int, *, is_channels_first: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    shape = (batch, 3, size, size) if is_channels_first else (batch, size, size, 3)
    images = _draw().standard_normal(shape, dtype=np.float32)
    return {"images": images, "labels": _draw().integers(0, NUM_CLASSES, batch, dtype=np.int32)}


def _tokens(sizes: Sizes) -> dict[str, np.ndarray[Any, Any]]:
    shape = (sizes.batch, sizes.length)
    return {name: _draw().integers(0, sizes.vocabulary, shape, dtype=np.int32) for name in ("tokens", "labels")}


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


def _vit(sizes: Sizes) -> Stranger:
    fields = _attention(sizes) | {"image_size": sizes.image, "patch_size": 4, "num_labels": NUM_CLASSES}
    batch = _images(2 * sizes.batch, sizes.image, is_channels_first=True)
    return _hugging_face("ViTConfig FlaxViTForImageClassification", fields, batch, "images")


def _gpt2(sizes: Sizes) -> Stranger:
    fields = {
        **{"n_embd": sizes.width, "n_layer": sizes.layers, "n_head": _HEADS},
        **{"n_positions": sizes.length, "vocab_size": sizes.vocabulary},
    }
    return _hugging_face("GPT2Config FlaxGPT2LMHeadModel", fields, _tokens(sizes), "tokens")


def _bert(sizes: Sizes) -> Stranger:
    fields = _attention(sizes) | {"max_position_embeddings": sizes.length, "vocab_size": sizes.vocabulary}
    return _hugging_face("BertConfig FlaxBertForMaskedLM", fields, _tokens(sizes), "tokens")


def _t5(sizes: Sizes) -> Stranger:
    """Returns an encoder and a decoder that reads it; what the decoder is given are the labels, one place later."""
    transformers = import_module("transformers")
    module: Any = import_module("transformers.models.t5.modeling_flax_t5")
    clip = lambda x, a_min=None, a_max=None: jnp.clip(x, a_min, a_max)  # noqa: E731 - as JAX had it
    module.jnp = SimpleNamespace(**{**vars(jnp), "clip": clip})
    config = transformers.T5Config(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        d_kv=sizes.width // _HEADS,
        d_ff=4 * sizes.width,
        num_layers=sizes.layers // 2,
        num_heads=_HEADS,
        decoder_start_token_id=0,
    )
    model = transformers.FlaxT5ForConditionalGeneration(config, seed=0)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        given = jnp.pad(batch["labels"], ((0, 0), (1, 0)))[:, :-1]
        key = jax.random.key(batch["labels"].ravel()[0])
        logits = model(batch["tokens"], decoder_input_ids=given, params=parameters, dropout_rng=key, train=True).logits
        return _cross_entropy(logits, batch["labels"])

    return _trained(loss, model.params, _tokens(sizes))


def _attention(sizes: Sizes) -> dict[str, int]:
    return {
        **{"hidden_size": sizes.width, "num_hidden_layers": sizes.layers},
        **{"num_attention_heads": _HEADS, "intermediate_size": 4 * sizes.width},
    }


# Keras


def _keras(sizes: Sizes, name: str, batch: int, **options: Any) -> Stranger:  # noqa: ANN401 - of the model
    """Returns a step of one of Keras's applications, with momentum as its paper trains it."""
    os.environ["KERAS_BACKEND"] = "jax"
    keras, optax = import_module("keras"), import_module("optax")
    keras.utils.set_random_seed(0)
    size = 32  # the least that these take
    model = getattr(keras.applications, name)(
        weights=None, classes=NUM_CLASSES, input_shape=(size, size, 3), classifier_activation=None, **options
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

    return Stranger(step, (weights, others, rule.init(weights)), _images(batch, size))


# Flax


def _linen_cnn(sizes: Sizes) -> Stranger:
    nn = import_module("flax.linen")

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, images: jax.Array) -> jax.Array:
            for width in (sizes.width // 4, sizes.width // 2, sizes.width):
                images = nn.relu(nn.Conv(width, (3, 3))(images))
                images = nn.avg_pool(images, (2, 2), strides=(2, 2))
            hidden = nn.relu(nn.Dense(2 * sizes.width)(images.reshape((images.shape[0], -1))))
            logits: jax.Array = nn.Dense(NUM_CLASSES)(hidden)
            return logits

    net, batch = Net(), _images(4 * sizes.batch, sizes.image)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(net.apply(parameters, batch["images"]), batch["labels"])

    return _trained(loss, net.init(jax.random.key(0), batch["images"]), batch)


def _nnx_mixer(sizes: Sizes) -> Stranger:
    nnx = import_module("flax.nnx")
    num_patches, width = (sizes.image // 4) ** 2, sizes.width

    def perceptron(width: int, hidden: int, rngs: Any) -> Any:  # noqa: ANN401 - of nnx
        return nnx.List([nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, rngs=rngs)])

    class Block(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:  # noqa: ANN401 - of nnx
            self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
            self.tokens = perceptron(num_patches, width, rngs)
            self.channels = perceptron(width, 4 * width, rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            up, down = self.tokens
            x = x + down(nnx.gelu(up(self.norms[0](x).swapaxes(1, 2)))).swapaxes(1, 2)
            up, down = self.channels
            mixed: jax.Array = x + down(nnx.gelu(up(self.norms[1](x))))
            return mixed

    class Mixer(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, rngs: Any) -> None:  # noqa: ANN401 - of nnx
            self.patches = nnx.Conv(3, width, (4, 4), strides=(4, 4), rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(sizes.layers)])
            self.head = nnx.Linear(width, NUM_CLASSES, rngs=rngs)

        def __call__(self, images: jax.Array) -> jax.Array:
            x = self.patches(images).reshape((images.shape[0], num_patches, width))
            for block in self.blocks:
                x = block(x)
            logits: jax.Array = self.head(x.mean(axis=1))
            return logits

    graph, parameters = nnx.split(Mixer(nnx.Rngs(0)))

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(nnx.merge(graph, parameters)(batch["images"]), batch["labels"])

    return _trained(loss, parameters, _images(2 * sizes.batch, sizes.image))


def _decoder(sizes: Sizes, *, is_checkpointed: bool = True) -> Stranger:
    """Returns a decoder as MaxText has it: scanned layers that are rematerialized, rotary positions, gated units.

    Without checkpoints it has dropout, whose masks the loop stacks.
    """
    nn = import_module("flax.linen")
    width, heads = sizes.width, _HEADS

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
            gate, up = (nn.Dense(3 * width, use_bias=False)(normed) for _ in range(2))
            up = nn.Dropout(0.0 if is_checkpointed else 0.1, deterministic=is_checkpointed)(nn.silu(gate) * up)
            return x + nn.Dense(width, use_bias=False)(up), None

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, tokens: jax.Array) -> jax.Array:
            embed = nn.Embed(sizes.vocabulary, width)
            layers = nn.scan(
                nn.remat(Layer, prevent_cse=False) if is_checkpointed else Layer,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=max(4, sizes.layers),  # a loop costs no time to compile, and is cut in stages between iterations
            )
            x, _ = layers()(embed(tokens), None)
            logits: jax.Array = embed.attend(nn.RMSNorm()(x))
            return logits

    net, batch = Decoder(), _tokens(sizes)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        rngs = {"dropout": jax.random.key(0)}
        return _cross_entropy(net.apply(parameters, batch["tokens"], rngs=rngs), batch["labels"])

    rngs = {name: jax.random.key(number) for number, name in enumerate(("params", "dropout"))}
    return _trained(loss, net.init(rngs, batch["tokens"]), batch)


# Equinox


def _mamba(sizes: Sizes) -> Stranger:
    """Returns a language model of selective state spaces (Mamba), its recurrence by `associative_scan`."""
    eqx = import_module("equinox")
    width, inner, states, rank = sizes.width // 2, sizes.width, 8, 4
    vocabulary = sizes.vocabulary // 2

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
            keys = jax.random.split(key, (sizes.layers + 1) // 2 + 2)
            self.embed = eqx.nn.Embedding(vocabulary, width, key=keys[0])
            self.blocks = tuple(Block(one) for one in keys[1:-1])
            self.head = eqx.nn.Linear(width, vocabulary, key=keys[-1])

        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = jax.vmap(self.embed)(tokens)
            for block in self.blocks:
                x = block(x)
            logits: jax.Array = jax.vmap(self.head)(x)
            return logits

    tokens = _tokens(replace(sizes, length=sizes.length // 2, vocabulary=vocabulary))
    return _equinox(Mamba(jax.random.key(0)), tokens, "tokens")


def _eqx_mlp(sizes: Sizes) -> Stranger:
    eqx = import_module("equinox")
    model = eqx.nn.MLP(3 * sizes.image**2, NUM_CLASSES, 4 * sizes.width, 3, key=jax.random.key(0))
    batch = _images(8 * sizes.batch, sizes.image)
    batch["images"] = batch["images"].reshape(8 * sizes.batch, -1)
    return _equinox(model, batch, "images")


def _equinox(model: Any, batch: Tree, entry: str) -> Stranger:  # noqa: ANN401 - a module of equinox
    eqx = import_module("equinox")
    parameters, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        logits = jax.vmap(eqx.combine(parameters, static))(batch[entry])
        return _cross_entropy(logits, batch["labels"])

    return _trained(loss, parameters, batch)


# PyTorch


def _torch(model: Any, batch: Tree, entry: str) -> Stranger:  # noqa: ANN401 - a module of PyTorch
    """Returns a step of PyTorch's forward pass, as torchax translates it, and JAX's gradient."""
    torch, attention = import_module("torch"), import_module("torch.nn.attention")
    with attention.sdpa_kernel(attention.SDPBackend.MATH):  # the fused one has no translation
        program = torch.export.export(model, (torch.from_numpy(batch[entry]),))
    arrays, forward = _torchax_export().exported_program_to_jax(program)
    num_parameters = len(program.graph_signature.parameters)
    parameters, buffers = arrays[:num_parameters], arrays[num_parameters:]

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        (logits,) = forward([*parameters, *buffers], (batch[entry],))
        return _cross_entropy(logits, batch["labels"])

    return _trained(loss, parameters, batch)


def _torchax_export() -> Any:  # noqa: ANN401 - a module
    """Returns `torchax.export`, for whose import ops that torch 2.13 dropped have to be something."""
    packet = import_module("torch._ops").OpOverloadPacket
    own = packet.__getattr__

    def found(self: object, name: str) -> object:
        try:
            return own(self, name)
        except AttributeError:
            if name.startswith("__"):
                raise
            return object()

    packet.__getattr__ = found
    try:
        return import_module("torchax.export")
    finally:
        packet.__getattr__ = own


def _torch_encoder(sizes: Sizes) -> Stranger:
    nn = import_module("torch").nn

    class Encoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
            layer = nn.TransformerEncoderLayer(
                sizes.width, _HEADS, 4 * sizes.width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)
            self.head = nn.Linear(sizes.width, sizes.vocabulary)

        def forward(self, tokens: Any) -> Any:  # noqa: ANN401 - a tensor
            mask = nn.Transformer.generate_square_subsequent_mask(sizes.length)
            return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))

    return _torch(Encoder(), _tokens(sizes), "tokens")


# Haiku


def _haiku_graphs(sizes: Sizes) -> Stranger:
    """Returns a network on graphs: messages along edges, summed at the nodes that they reach."""
    hk = import_module("haiku")
    graphs, nodes, edges, width = 2 * sizes.batch, 48, 128, sizes.width // 2

    def net(batch: Tree) -> jax.Array:
        x = hk.Linear(width)(batch["nodes"])
        for _ in range(3):
            sent = jnp.take_along_axis(x, batch["senders"][..., None], axis=1)
            reached = jnp.take_along_axis(x, batch["receivers"][..., None], axis=1)
            messages = hk.nets.MLP([2 * width, width])(jnp.concatenate([sent, reached], axis=-1))
            sums = jax.vmap(partial(jax.ops.segment_sum, num_segments=nodes))(messages, batch["receivers"])
            x = hk.LayerNorm(-1, True, True)(x + hk.nets.MLP([2 * width, width])(jnp.concatenate([x, sums], axis=-1)))
        logits: jax.Array = hk.Linear(NUM_CLASSES)(x.mean(axis=1))
        return logits

    draw = _draw()
    batch = {
        "nodes": draw.standard_normal((graphs, nodes, 16), dtype=np.float32),
        "senders": draw.integers(0, nodes, (graphs, edges), dtype=np.int32),
        "receivers": draw.integers(0, nodes, (graphs, edges), dtype=np.int32),
        "labels": draw.integers(0, NUM_CLASSES, graphs, dtype=np.int32),
    }
    made = hk.without_apply_rng(hk.transform(net))

    def loss(parameters: Tree, batch: Tree) -> jax.Array:
        return _cross_entropy(made.apply(parameters, batch), batch["labels"])

    return _trained(loss, made.init(jax.random.key(0), batch), batch)


STRANGERS: Final[Mapping[str, Callable[[Sizes], Stranger]]] = {
    "hf-vit": _vit,
    "hf-gpt2": _gpt2,
    "hf-bert": _bert,
    "hf-t5": _t5,
    "keras-mobilenet": lambda sizes: _keras(sizes, "MobileNetV2", 2 * sizes.batch, alpha=0.35),
    "keras-resnet50": lambda sizes: _keras(sizes, "ResNet50", sizes.batch),
    "linen-cnn": _linen_cnn,
    "nnx-mixer": _nnx_mixer,
    "linen-decoder": _decoder,
    "linen-scanned": lambda sizes: _decoder(sizes, is_checkpointed=False),
    "equinox-mamba": _mamba,
    "equinox-mlp": _eqx_mlp,
    "haiku-graphs": _haiku_graphs,
    "torch-encoder": _torch_encoder,
}
"""By the library that each is written in."""


def stranger_text(name: str) -> bytes:
    """Returns the training step of a model by name, in its small size, as StableHLO text."""
    made = STRANGERS[name](SMALL)
    text: str = jax.jit(made.step, donate_argnums=0).lower(made.state, made.batch).as_text(debug_info=True)
    return text.encode()
