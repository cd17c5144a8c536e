"""What a fused projection sends: in separate weights, fused, and fused and seen as blocks.

Training steps of batch 1 on eight devices. Their weights are pinned as Megatron splits them: a projection into heads or
hidden features along what it gives, one back along what it takes; everything else is the search's to choose. With
`--free` all is. Counted is what stands in each device's program (`rhino-localize`): payload per step and device, and in
how many collectives; beside it the predicted time of a step. `fused` splits the fused weight as it is, a device having
a part of the queries alone. `viewed` splits each of its blocks: with `--free` it is what `auto-shard` does unasked, and
with pins what it does after `rhino-materialize-strides`, for who splits a fused dim means that split.

Exit code: 1 if a viewed model with pinned weights sends more bytes than the one with separate weights, or one without
takes longer than the fused one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from models import sized, step_of
from planning import Planned, auto_shard, sharded
from planning import planned as as_planned
from report import Cell, Options, Question, key, option

from rhino.ir.mlir.bindings import ir
from rhino.ir.mlir.boundary import boundary_attributes, set_boundary_attributes
from rhino.ir.mlir.locations import name_of
from rhino.ir.mlir.reader import entry_function
from rhino.ir.mlir.shardings import MESH_NAME, SHARDING
from rhino.ir.units import format_bytes, format_seconds
from rhino.passes.base import Remarks
from rhino.passes.textual_pipelines import build_pass_manager

NUM_DEVICES: Final = 8
COLUMNS: Final = ("separate", "fused", "viewed")

_AXIS: Final = "x"
_WEIGHT: Final = re.compile(r"state\.params\[.*\['(\w+)'\]$")
_SPLIT_DIM: Final = {
    **dict.fromkeys(("q", "k", "v", "qkv", "gate", "up", "gate_up"), -1),
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
                dims[_SPLIT_DIM[found[1]]] = f'{{"{_AXIS}"}}'
                given[SHARDING] = ir.Attribute.parse(f"#sdy.sharding<@{MESH_NAME}, [{', '.join(dims)}]>")
        set_boundary_attributes(entry, "arg", attributes)


def _run(text: bytes, name: str, pipeline: str) -> ir.Module:
    return sharded(text, name, pipeline)[0]


def cases(layers: int, hidden: int, seq: int) -> dict[str, tuple[bytes, bytes]]:
    """Returns the training steps of each model, with separate and with fused weights, by its name."""
    sizes = {"layers": layers, "hidden": hidden, "heads": NUM_DEVICES, "ffn": 4 * hidden}
    sizes |= {"vocab": 8192, "seq": seq, "batch": 1}
    found = {}
    for suffix, scan in (("", False), ("-scan", True)):
        for name, fused in (("gpt", "fused_qkv"), ("llama", "fused_gate_up")):
            more = {"kv_heads": NUM_DEVICES} if name == "llama" else {}
            separate, joined = (step_of(sized(name, **sizes, **more, scan=scan, **{fused: on})) for on in (False, True))
            found[name + suffix] = separate, joined
    return found


def plans(steps: tuple[bytes, bytes], name: str, cluster: str, *, pinned: bool) -> list[Planned]:
    """Returns the plan of each column."""
    separate, fused = steps
    return [
        planned(text, name, cluster, views=views, pinned=pinned)
        for text, views in ((separate, False), (fused, False), (fused, True))
    ]


def records(options: Options) -> Iterator[dict[str, Any]]:
    """Yields what each model sends, by column."""
    for name, steps in cases(options.layers, options.hidden, options.seq).items():
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
    """Yields the models of which the viewed form sends more than separate weights, or takes longer than fused ones."""
    for one in found:
        if one["pinned"] and one["viewed"]["num_bytes"] > one["separate"]["num_bytes"]:
            yield f"{one['model']}: viewed sends more than separate"
        if not one["pinned"] and one["viewed"]["step_s"] > one["fused"]["step_s"]:
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
        option("--layers", 2, "of each model"),
        option("--hidden", 1024, "of each model"),
        option("--seq", 512, "of each model"),
        option("--cluster", "v100x8", "a preset's name or a cluster file, of eight devices"),
        option("--free", False, "pin nothing"),
    ),
    faults=faults,
)
