"""Sharding patterns of a wide classifier, after Whale's figure 16: what `rhino.split` chooses, and the other one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
from report import Options, Question, key, option

import rhino
from rhino.ir.cluster.cluster import load_cluster
from rhino.ir.units import format_seconds

Params = dict[str, jax.Array]

FEATURES: Final = 2048
"""What ResNet50 gives its classifier for an image."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """The step of a data parallel layer and a split classifier: as searched, by classes, and by features.

    Units: seconds, as predicted.
    """

    devices: str
    chosen_s: float
    by_classes_s: float
    by_features_s: float

    @property
    def times(self) -> float:
        """How many times as long the step by features takes as the one that is chosen."""
        return self.by_features_s / self.chosen_s


def step(params: Params, batch: dict[str, jax.Array]) -> tuple[Params, jax.Array]:
    """A step of gradient descent."""

    def loss(params: Params) -> jax.Array:
        with rhino.replicate():
            features = jax.nn.relu(batch["x"] @ params["body"])
        with rhino.split():
            with jax.named_scope("logits"):
                logits = features @ params["classes"]
            chosen = jnp.take_along_axis(logits, batch["y"][:, None], axis=1)[:, 0]
            return (jax.nn.logsumexp(logits, axis=1) - chosen).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda one, grad: one - 0.1 * grad, params, grads), value


def arguments(classes: int, rows: int) -> tuple[Params, Params]:
    """Returns parameters and a batch of so many rows."""
    params = {"body": jnp.zeros((FEATURES, FEATURES)), "classes": jnp.zeros((FEATURES, classes))}
    return params, {"x": jnp.zeros((rows, FEATURES)), "y": jnp.zeros(rows, jnp.int32)}


def records(options: Options) -> Iterator[Patterns]:
    """By which dim a wide classifier is split, and what the other pattern takes: Whale's SP1 and SP2.

    By classes (SP1) each device has some columns of the weight, and features are gathered; by features (SP2) it has
    some rows, and partial sums of logits are added. The exit code is 1 if the classifier is not split by classes.
    """
    for cluster in options.clusters:
        count = load_cluster(cluster).num_devices
        params, batch = jax.eval_shape(partial(arguments, options.classes, options.batch * count))
        asked = (), ("params.classes=[{}, {x}]",), ()
        barred = (), (), ("loc:jvp(rhino.split*)/logits/dot_general=[{}, {x}]",)
        plans = [
            rhino.parallelize(step, cluster=cluster, mesh=str(count), donate_argnums=0, pins=pins, forbid=forbid).plan(
                params, batch
            )
            for pins, forbid in zip(asked, barred, strict=True)
        ]
        yield Patterns(cluster, *(plan.facts.predicted.step_s for plan in plans))


def _faults(found: Sequence[Patterns]) -> Iterator[str]:
    for one in found:
        if one.chosen_s < one.by_classes_s:
            yield f"on {one.devices} the classifier is not split by classes"


QUESTION: Final = Question(
    records.__doc__ or "",
    records,
    {
        "devices": key("devices"),
        "chosen": lambda one: format_seconds(one.chosen_s),
        "by classes": lambda one: format_seconds(one.by_classes_s),
        "by features": lambda one: format_seconds(one.by_features_s),
        "times as long": lambda one: f"{one.times:.2f}",
    },
    (
        option("--clusters", ["v100x8", "v100x8x2", "v100x8x2+v100x8x2"], "to plan for"),
        option("--classes", 100_000, "of the classifier"),
        option("--batch", 128, "examples a device"),
    ),
    (),
    _faults,
)
