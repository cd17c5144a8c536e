"""Start from PyTorch: export a training step of a `torch.nn.Module` to StableHLO, plan it, and train on eight devices.

    pip install -e '.[torch]'
    python examples/torch_step.py                       trains, and compares every loss with PyTorch's own
    python examples/torch_step.py -o out/torch.mlirbc   writes the step as a portable artifact, for rhino-opt, rhino-run

The eight devices are those of the host.

`make_fx` traces the step, backward and update included; `torch.export` makes a program of it, and `torchax` makes
StableHLO of that. The exporter gives a `jax.export.Exported`, so that JAX can call it: `rhino.parallelize` sees a
function like any other.

Checked with torch 2.12.1 and torchax 0.0.13. torch 2.13 has dropped ops that torchax 0.0.13 names when it is imported.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import jax.export
import torch
from torch import nn
from torch.func import functional_call, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

import rhino

VOCAB: Final = 128
SEQ: Final = 16
BATCH: Final = 8
LEARNING_RATE: Final = 0.3

Tensors = dict[str, torch.Tensor]
Arrays = dict[str, jax.Array]


class Decoder(nn.Module):
    """A small causal transformer out of PyTorch's own layers."""

    def __init__(self, hidden: int = 64, heads: int = 8, ffn: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden)
        self.positions = nn.Parameter(torch.zeros(SEQ, hidden))
        layer = nn.TransformerEncoderLayer(
            hidden, heads, ffn, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(hidden, VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Maps `tokens` [batch, seq] to logits [batch, seq, vocab]."""
        mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
        x: torch.Tensor = self.head(self.layers(self.embed(tokens) + self.positions, mask=mask, is_causal=True))
        return x


class Step(nn.Module):
    """A training step of a model, as the module that `torch.export` takes.

    It computes new parameters and the loss from old parameters and a batch.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, params: Tensors, tokens: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        """One step of gradient descent on `tokens` [batch, seq + 1]."""

        def loss(params: Tensors) -> torch.Tensor:
            logits = functional_call(self.model, params, (tokens[:, :-1],))
            return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        grads, value = grad_and_value(loss)(params)
        return {name: p - LEARNING_RATE * grads[name] for name, p in params.items()}, value


def start() -> tuple[Step, Tensors, torch.Tensor]:
    """Returns the step of a new model, its parameters and a batch."""
    torch.manual_seed(0)
    model = Decoder()
    return (
        Step(model),
        {name: p.detach() for name, p in model.named_parameters()},
        torch.randint(0, VOCAB, (BATCH, SEQ + 1)),
    )


def export_step(step: Step, params: Tensors, tokens: torch.Tensor) -> jax.export.Exported:
    """Returns the step as StableHLO, called with the flat inputs: `call([], ([*params, tokens],))`."""
    with warnings.catch_warnings():
        # of deprecated uses between both packages, and of 64-bit integers, which become 32-bit ones
        warnings.simplefilter("ignore")
        from torchax.export import exported_program_to_stablehlo  # noqa: PLC0415 - warns when it is loaded

        with sdpa_kernel(SDPBackend.MATH):  # The backward pass of the fused one is an op that has no StableHLO.
            traced = make_fx(step, tracing_mode="fake")(params, tokens)
        _, exported = exported_program_to_stablehlo(torch.export.export(traced, (params, tokens)))
    assert isinstance(exported, jax.export.Exported)
    return exported


def as_jax(exported: jax.export.Exported, params: Tensors) -> Callable[[Arrays, jax.Array], tuple[Arrays, jax.Array]]:
    """Returns the exported step as a function of JAX that has the names of the parameters."""

    def step(params: Arrays, tokens: jax.Array) -> tuple[Arrays, jax.Array]:
        *new, loss = exported.call([], ([*(params[name] for name in names), tokens],))
        return dict(zip(names, new, strict=True)), loss

    names = list(params)
    return step


def to_jax(tensors: Any) -> Any:  # noqa: ANN401 - a pytree
    """Returns a pytree of arrays with the values of a pytree of tensors."""
    return jax.tree.map(lambda tensor: jax.numpy.asarray(tensor.numpy()), tensors)


def train(num_steps: int) -> list[tuple[float, float]]:
    """Trains in PyTorch and, parallelized, in JAX; returns the losses of both at each step."""
    eager, theirs, tokens = start()
    fast = rhino.parallelize(as_jax(export_step(eager, theirs, tokens), theirs), cluster="cpu8", donate_argnums=0)
    ours, batch = to_jax(theirs), to_jax(tokens)
    losses = []
    for _ in range(num_steps):
        theirs, expected = eager(theirs, tokens)
        ours, loss = fast(ours, batch)
        losses.append((float(expected), float(loss)))
    return losses


def run(argv: Sequence[str]) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--steps", type=int, default=10, help="how many steps to train (default 10)")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the step there instead, as a StableHLO portable artifact"
    )
    options = parser.parse_args(argv)
    if options.output:
        Path(options.output).write_bytes(export_step(*start()).mlir_module_serialized)
        return 0
    for number, (theirs, ours) in enumerate(train(options.steps)):
        print(f"step {number}: loss {theirs:.6f} in PyTorch, {ours:.6f} on {jax.device_count()} devices")
    return 0


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    sys.exit(run(sys.argv[1:]))
