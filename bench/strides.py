"""What a fused projection sends: in separate weights, fused, and fused and seen as blocks.

Training steps of batch 1 on eight devices. Their weights are pinned as Megatron splits them: a projection into heads or
hidden features along what it gives, one back along what it takes; everything else is the search's to choose. With
`--free` all is. Counted is what stands in each device's program (`rhino-localize`): payload per step and device, and in
how many collectives; beside it the predicted time of a step. `fused` splits the fused weight as it is, a device having
a part of the queries alone; in `-joined` models the step makes it of separate ones. `viewed` splits each of its
blocks: with `--free` it is what `auto-shard` does unasked, and with pins what it does after
`rhino-materialize-strides`, for who splits a fused dim means that split.

Exit code: 1 if a viewed model takes longer by over 0.5 % than the one with separate weights, or, where nothing is
pinned, longer than the fused one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
from models import sized, step_of
from planning import Planned, auto_shard, sharded
from planning import planned as as_planned
from report import Cell, Options, Question, key, option

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import name_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import MESH_NAME, SHARDING
from rhino.ir.program.stored_shapes import BLOCKS
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager

NUM_DEVICES: Final = 8
COLUMNS: Final = ("separate", "fused", "viewed")

_AXIS: Final = "x"
_WEIGHT: Final = re.compile(r"state\.params\[.*\['(\w+)'\]$")
_SPLIT_DIM: Final = {
    **dict.fromkeys(("q", "k", "v", "qkv", "gate", "up", "gate_up", "qkv_gate_up"), -1),
    **dict.fromkeys(("out", "down"), -2),
}
"""The dim along which Megatron splits a weight, from the end.

4.1 and 4.2 of Megatron-LM (Shoeybi et al., 2019), for stacked layers too.
"""


def viewed(text: bytes, name: str) -> ir.Module:
    """Returns a training step whose fused weights are seen as blocks that the devices divide."""
    return _run(text, name, f"rhino-normalize,rhino-materialize-strides{{parts={NUM_DEVICES}}}")


def planned(text: bytes, name: str, cluster: str, *, views: bool, pinned: bool) -> Planned:
    """Returns a training step planned for a cluster, as blocks if `views`, and with its weights pinned if `pinned`."""
    module = viewed(text, name) if views and pinned else _run(text, name, "rhino-normalize")
    if pinned:
        pin(module)
    remarks = Remarks(name)
    pipeline = auto_shard(cluster) if views else f"rhino-choose-shardings{{cluster={cluster}}}"
    build_pass_manager(pipeline, module.context, remarks).run(module.operation)
    return as_planned(module, name, remarks)


def pin(module: ir.Module) -> None:
    """Gives the module a mesh, and each weight that has a place in tensor parallelism its sharding."""
    with module.context, ir.Location.unknown():
        mesh = ir.Module.parse(f'sdy.mesh @{MESH_NAME} = <["{_AXIS}"={NUM_DEVICES}]>').body.operations[0]
        mesh.operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))
        entry = entry_function(module)
        attributes = boundary_attributes(entry, "arg")
        for argument, given in zip(entry.arguments, attributes, strict=True):
            found = _WEIGHT.search(name_of(argument.location))
            if found and found[1] in _SPLIT_DIM:
                dims = ["{}"] * len(argument.type.shape)
                # Of blocks that interleave the parts are split, and they stand before what is in each.
                dims[_SPLIT_DIM[found[1]] - (BLOCKS in given)] = f'{{"{_AXIS}"}}'
                given[SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{MESH_NAME}, [{', '.join(dims)}]>")
        set_boundary_attributes(entry, "arg", attributes)


def _run(text: bytes, name: str, pipeline: str) -> ir.Module:
    return sharded(text, name, pipeline)[0]


_MODELS: Final[dict[str, tuple[str, dict[str, Any], tuple[str, ...]]]] = {
    "gpt": ("gpt", {}, ("fused_qkv",)),
    "llama": ("llama", {"kv_heads": NUM_DEVICES}, ("fused_gate_up",)),
    "grouped": ("llama", {"heads": 4 * NUM_DEVICES, "kv_heads": NUM_DEVICES}, ("fused_qkv",)),
    "parallel": ("llama", {"kv_heads": NUM_DEVICES, "parallel": True}, ("fused_qkv", "fused_gate_up")),
}
"""By name: the model, its sizes, and what is fused in it."""

CASES: Final = (
    *_MODELS,
    *("gpt-joined", "grouped-joined", "gpt-scan", "llama-scan", "grouped-scan", "grouped-scan-joined"),
)
"""Models, and their forms: with layers in a loop, and with separate weights that the step puts together."""

_PARTS: Final = {"qkv": "q k v", "gate_up": "gate up", "qkv_gate_up": "q k v gate up"}


def cases(layers: int, hidden: int, seq: int, names: Sequence[str] = CASES) -> dict[str, tuple[bytes, bytes]]:
    """Returns the training steps of models, each with separate and with fused weights, by its name."""
    common = {"layers": layers, "hidden": hidden, "heads": NUM_DEVICES, "ffn": 4 * hidden}
    common |= {"vocab": 8192, "seq": seq, "batch": 1}
    found = {}
    for name in names:
        kind, sizes, switches = _MODELS[name.split("-")[0]]
        separate, fused = (
            sized(kind, **{**common, **sizes}, scan="scan" in name, **dict.fromkeys(switches, on))
            for on in (False, True)
        )
        found[name] = step_of(separate), step_of(_joined(separate, fused) if "joined" in name else fused)
    return found


def _joined(separate: Any, fused: Any) -> Any:  # noqa: ANN401 - a `Model` of examples/training.py
    """Returns a model of separate weights, which are put together in the step as another has them."""
    weights = jax.eval_shape(fused.init, jax.random.key(0))

    def layer(own: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
        def one(name: str) -> Any:  # noqa: ANN401 - a pytree
            return own[name] if name in own else jnp.concatenate([own[part] for part in _PARTS[name].split()], axis=-1)

        return {name: one(name) for name in names}

    def loss(params: Any, *given: Any) -> Any:  # noqa: ANN401 - as a model's loss
        own, names = params["layers"], weights["layers"]
        layers = layer(own, names) if isinstance(own, dict) else list(map(layer, own, names))
        return fused.loss({**params, "layers": layers}, *given)

    return separate._replace(loss=loss)


def plans(steps: tuple[bytes, bytes], name: str, cluster: str, *, pinned: bool) -> list[Planned]:
    """Returns the plan of each column."""
    separate, fused = steps
    return [
        planned(text, name, cluster, views=views, pinned=pinned)
        for text, views in ((separate, False), (fused, False), (fused, True))
    ]


def records(options: Options) -> Iterator[dict[str, Any]]:
    """Yields what each model sends, by column."""
    for name, steps in cases(options.layers, options.hidden, options.seq, options.models or CASES).items():
        found = plans(steps, name, options.cluster, pinned=not options.free)
        yield {
            "model": name,
            "pinned": not options.free,
            **{column: _figures(plan) for column, plan in zip(COLUMNS, found, strict=True)},
        }


def _figures(plan: Planned) -> dict[str, float]:
    total = plan.localized.total
    return {"num_bytes": total.num_bytes, "num": total.num, "step_s": plan.answer.cost}


def faults(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields the models of which the viewed form takes longer than separate weights, or than fused ones."""
    for one in found:
        separate_s, fused_s, viewed_s = (one[column]["step_s"] for column in COLUMNS)
        if viewed_s > 1.005 * separate_s:
            yield f"{one['model']}: viewed takes longer than separate"
        if not one["pinned"] and viewed_s > fused_s:
            yield f"{one['model']}: viewed takes longer than fused"


def _cell(column: str) -> Cell:
    def cell(row: dict[str, Any]) -> str:
        one = row[column]
        return f"{format_bytes(one['num_bytes'])} in {one['num']}, {format_seconds(one['step_s'])}"

    return cell


QUESTION: Final = Question(
    __doc__,
    records,
    {"model": key("model"), **{column: _cell(column) for column in COLUMNS}},
    (
        option(
            "--models",
            [],
            f"of {', '.join(_MODELS)}, each with nothing or -scan, -joined, -scan-joined behind (default all)",
        ),
        option("--layers", 2, "of each model"),
        option("--hidden", 1024, "of each model"),
        option("--seq", 512, "of each model"),
        option("--cluster", "v100x8", "a preset's name or a cluster file, of eight devices"),
        option("--free", False, "pin nothing"),
    ),
    faults=faults,
)
